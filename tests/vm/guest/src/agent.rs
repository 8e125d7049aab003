//! The agent as a test sees it from outside: a program, a file of configuration, a log, and a port.
//!
//! The one place that knows how the configuration is spelled. What a test asserts comes from the kernel (what
//! lives, what is frozen, the OOM killer's counter); the agent's log is only asked for what it alone can report.

use crate::cgroup::Cgroup;
use crate::hog_tests::guest;
use crate::machine::{KernelLog, wait_for};
use crate::surroundings_tests::unit_capabilities;
use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Where the agent is in these machines.
pub(crate) const PROGRAM: &str = "/bin/plimsoll";

/// The variable of the agent's environment by which a build for tests drops every event of a crossed threshold
/// (`crossings`), or of a cgroup that came or went (`cgroups`).
pub(crate) const LOSE_EVENTS: &str = "PLIMSOLL_LOSE_EVENTS";

/// The variable of the agent's environment by which a build for tests lets its core hang. Set unless a test takes it
/// out: many of them stop the core for as long as they need.
pub(crate) const NO_WATCHDOG: &str = "PLIMSOLL_NO_WATCHDOG";

/// What its supervisor reports of a core that was asked to end and ended otherwise.
pub(crate) const DISORDER: &str = "the core did not end in order";

/// The agent to start: `PLIMSOLL_PROGRAM` where this is no such machine.
fn program() -> OsString {
    env::var_os("PLIMSOLL_PROGRAM").unwrap_or_else(|| PROGRAM.into())
}

/// How a test configures the agent.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The threshold: act below this many bytes available.
    pub(crate) threshold_bytes: u64,
    /// The threshold on tasks, where there is one: act with fewer than these left.
    pub(crate) pid_threshold: Option<u64>,
    /// `auto`, `ebpf`, `psi` or `poll`.
    pub(crate) source: &'static str,
    /// How often `poll` samples; every 10 s, as the kubelet does, unless a test changes it.
    pub(crate) poll_period: &'static str,
    /// The threshold of work.slice itself, below its own memory.max.
    pub(crate) slice_threshold_bytes: Option<u64>,
    /// Let the kernel itself stop what grows past the threshold.
    pub(crate) kernel_brake: bool,
    /// From how much stall on, in percent, page cache and slab are a reason to evict; the agent's default where absent.
    pub(crate) stall_percent: Option<u8>,
    /// The most victims within a minute.
    pub(crate) victims_per_minute: u32,
    /// The eviction policy; the agent's default where absent.
    pub(crate) eviction_policy: Option<&'static str>,
    /// OpenShift's file with the flags of the kubelet, if the thresholds are there and nowhere else.
    pub(crate) node_config: Option<PathBuf>,
    /// The kubelet that runs is asked for, and the thresholds are that one's.
    pub(crate) running_kubelet: bool,
    /// The file in which it finds the pods, if it has one.
    pub(crate) pod_facts: Option<PathBuf>,
    /// The kubelet's directory, if it is named, and the hard threshold on its file system, in bytes.
    pub(crate) node_disk: Option<(Option<PathBuf>, u64)>,
    /// The hard threshold on the inodes of that file system, if there is one.
    pub(crate) node_inodes: Option<u64>,
    /// A soft threshold on it, in bytes, and its grace period.
    pub(crate) soft_node_disk: Option<(u64, &'static str)>,
    /// How long `DiskPressure` lasts after it, where a threshold is on a disk.
    pub(crate) pressure_transition: &'static str,
    /// Where it writes a trace, if it does.
    pub(crate) trace: Option<PathBuf>,
    /// Where it listens; each agent of a test has its own.
    pub(crate) port: u16,
    /// It is in namespaces as a container runtime makes them.
    pub(crate) container: bool,
    /// The only capabilities that it has; all of them where absent.
    pub(crate) capabilities: Option<Vec<String>>,
    /// Added to its environment.
    pub(crate) environment: Vec<(&'static str, String)>,
}

impl Settings {
    /// The best source, freeze as the brake, this threshold.
    pub(crate) fn with_threshold(threshold_bytes: u64) -> Self {
        Self {
            threshold_bytes,
            pid_threshold: None,
            source: "auto",
            poll_period: "10s",
            slice_threshold_bytes: None,
            kernel_brake: false,
            stall_percent: None,
            victims_per_minute: 1000,
            eviction_policy: None,
            node_config: None,
            running_kubelet: false,
            pod_facts: None,
            node_disk: None,
            node_inodes: None,
            soft_node_disk: None,
            pressure_transition: "5s",
            trace: None,
            port: 10_350,
            container: false,
            capabilities: None,
            environment: vec![(NO_WATCHDOG, "1".to_owned())],
        }
    }

    /// The same as it is shipped: with the unit's capabilities, without which the kernel collects no statistics of programs
    /// for it either, and with its watchdog.
    pub(crate) fn as_shipped(threshold_bytes: u64) -> Result<Self> {
        let capabilities = Some(unit_capabilities().context("the unit names no capabilities")?);
        Ok(Self { capabilities, environment: Vec::new(), ..Self::with_threshold(threshold_bytes) })
    }

    /// The cgroup of all of the agent's processes.
    pub(crate) fn cgroup(&self) -> Result<Cgroup> {
        Cgroup::create(&format!("agent.slice/plimsoll-{}", self.port))
    }

    /// The agent's file of configuration.
    pub(crate) fn file(&self) -> PathBuf {
        PathBuf::from(format!("/run/agent-{}.yaml", self.port))
    }

    /// Writes that file.
    pub(crate) fn write(&self) -> Result<PathBuf> {
        let file = self.file();
        fs::write(&file, self.to_yaml()).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    fn to_yaml(&self) -> String {
        let Self {
            threshold_bytes,
            pid_threshold,
            source,
            poll_period,
            slice_threshold_bytes,
            kernel_brake,
            stall_percent,
            victims_per_minute,
            port,
            ..
        } = self;
        let on_disk = self.node_disk.as_ref().map(|(_, bytes)| format!(", nodefs.available: \"{bytes}\""));
        let on_inodes = self.node_inodes.map(|inodes| format!(", nodefs.inodesFree: \"{inodes}\""));
        let on_tasks = pid_threshold.map(|tasks| format!(", pid.available: \"{tasks}\""));
        let hard = format!(
            "evictionHard: {{memory.available: \"{threshold_bytes}\"{}{}{}}}\n",
            on_disk.unwrap_or_default(),
            on_inodes.unwrap_or_default(),
            on_tasks.unwrap_or_default()
        );
        let hard = if self.node_config.is_some() || self.running_kubelet { "" } else { &hard };
        let mut yaml = format!(
            "{hard}machine:
  workloads:
    - {{match: work.slice/high, priority: 1000}}
    - {{match: work.slice/low, priority: -1000}}
    - {{match: work.slice/*, priority: 0}}
    - {{match: user.slice/**, priority: 0}}
  victimsPerMinute: {victims_per_minute}
  source: {source}
  pollPeriod: {poll_period}
  metricsAddress: 127.0.0.1:{port}
  logFormat: json
",
        );
        if let Some((root, _)) = &self.node_disk {
            yaml.insert_str(0, &format!("evictionPressureTransitionPeriod: {}\n", self.pressure_transition));
            if let Some(root) = root {
                let _ = writeln!(yaml, "  kubeletRoot: {}", root.display());
            }
        }
        if let Some((bytes, grace)) = self.soft_node_disk {
            let soft = format!(
                "evictionSoft: {{nodefs.available: \"{bytes}\"}}\nevictionSoftGracePeriod: {{nodefs.available: {grace}}}\n"
            );
            yaml.insert_str(0, &soft);
        }
        if let Some(policy) = self.eviction_policy {
            yaml.insert_str(0, &format!("evictionPolicy: {policy}\n"));
        }
        if let Some(path) = &self.pod_facts {
            let _ = writeln!(yaml, "  podFacts: {}", path.display());
        }
        if let Some(bytes) = slice_threshold_bytes {
            let _ = writeln!(yaml, "  slices: [{{path: work.slice, evictionHard: {{memory.available: \"{bytes}\"}}}}]");
        }
        if let Some(percent) = stall_percent {
            let _ = writeln!(yaml, "  stallPercent: {percent}");
        }
        if *kernel_brake {
            yaml.push_str("  brake: {inKernel: [work.slice, user.slice]}\n");
        }
        yaml
    }
}

/// An agent that is running, in a cgroup of its own.
pub(crate) struct Agent {
    child: Child,
    configuration: PathBuf,
    log: PathBuf,
    /// The kernel's, since it was started.
    kernel_log: KernelLog,
    address: SocketAddr,
}

impl Agent {
    /// Starts it and waits until it reports that it is ready, which it is once its thresholds are armed.
    pub(crate) fn start(settings: &Settings) -> Result<Self> {
        let mut agent = Self::launch(settings)?;
        agent.wait_ready(Duration::from_mins(1))?;
        Ok(agent)
    }

    /// Starts it and does not wait.
    pub(crate) fn launch(settings: &Settings) -> Result<Self> {
        let cgroup = settings.cgroup()?;
        let capabilities = settings.capabilities.iter().flat_map(|all| ["--capabilities".to_owned(), all.join(",")]);
        let mut command = guest();
        command
            .arg("within")
            .args(capabilities)
            .args(settings.container.then_some("--container"))
            .arg("--cgroup")
            .arg(cgroup.path())
            .arg("--")
            .arg(program())
            .args(["run", "--config"])
            .arg(settings.file())
            .args(settings.node_config.iter().flat_map(|file| ["--node-config".as_ref(), file.as_os_str()]))
            .args(settings.running_kubelet.then_some("--running-kubelet"))
            .args(settings.trace.iter().flat_map(|trace| ["--trace".as_ref(), trace.as_os_str()]))
            .envs(settings.environment.iter().map(|(key, value)| (key, value)));
        Self::launch_by(settings, command)
    }

    /// Has `command` become the agent, with its file of configuration in place.
    pub(crate) fn launch_by(settings: &Settings, mut command: Command) -> Result<Self> {
        let config = settings.write()?;
        let log = PathBuf::from(format!("/run/agent-{}.log", settings.port));
        // Appended to, so that it can be emptied meanwhile.
        let out = File::options().create(true).append(true).open(&log)?;
        out.set_len(0)?;
        let kernel_log = KernelLog::from_now()?;
        let child = command.stdout(out.try_clone()?).stderr(out).spawn().context("cannot start the agent")?;
        let address = SocketAddr::from(([127, 0, 0, 1], settings.port));
        Ok(Self { child, configuration: config, log, kernel_log, address })
    }

    /// The file that it was started with.
    pub(crate) fn configuration(&self) -> &Path {
        &self.configuration
    }

    /// Waits for readiness; its early end is an error that quotes the end of its log.
    pub(crate) fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let address = self.address;
        let ready = wait_for("the agent is ready", limit, || {
            if let Some(status) = self.child.try_wait()? {
                bail!("the agent ended before it was ready: {status}");
            }
            Ok(get(address, "/readyz").is_ok_and(|(status, _)| status == 200))
        });
        ready.with_context(|| format!("its log ends with: {}", tail(&self.text())))
    }

    /// Waits until its thresholds are armed and it only watches, because another agent acts or because it cannot: then
    /// it is not ready, and reports why.
    pub(crate) fn wait_shadowing(&mut self, limit: Duration) -> Result<()> {
        let address = self.address;
        let shadows = wait_for("the agent shadows", limit, || {
            if let Some(status) = self.child.try_wait()? {
                bail!("the agent ended before it shadowed: {status}");
            }
            let Ok((status, said)) = get(address, "/readyz") else { return Ok(false) };
            let shadows = said.contains("shadow: ");
            ensure!(!shadows || status == 503, "it shadows, and its readiness is {status}: {said}");
            Ok(shadows)
        });
        shadows.with_context(|| format!("its log ends with: {}", tail(&self.text())))
    }

    /// The process that was started: the supervisor.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its processes below the supervisor whose arguments name `part` (`core`, `reporter`).
    pub(crate) fn part(&self, part: &str) -> Result<u32> {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        for pid in children.split_ascii_whitespace() {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if line.split(|byte| *byte == 0).nth(1) == Some(part.as_bytes()) {
                return Ok(pid.parse()?);
            }
        }
        bail!("the agent has no process `{part}`")
    }

    /// The same, to send it signals.
    pub(crate) fn process(&self, part: &str) -> Result<Pid> {
        Pid::from_raw(i32::try_from(self.part(part)?)?).context("no process has the number zero")
    }

    /// The supervisor, to send it signals.
    pub(crate) fn supervisor(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// All of its log so far.
    pub(crate) fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Drops all of its log so far.
    pub(crate) fn empty_log(&self) -> Result<()> {
        Ok(File::options().write(true).open(&self.log)?.set_len(0)?)
    }

    /// The lines of its log that are JSON.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.text().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The decisions that it reported, oldest first.
    pub(crate) fn plans(&self) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["outcome"].is_string()).collect()
    }

    /// What it reported of killing `cgroup`, oldest first: `begun`, `emptied`, `gone`, ...
    pub(crate) fn kills(&self, cgroup: &str, what: &str) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["cgroup"] == cgroup && line["kill"] == what).collect()
    }

    /// What it reported around the plan by which it killed a cgroup; the end of its log where it reported none.
    pub(crate) fn why_killed(&self, cgroup: &str) -> String {
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        let plan = self.kills(cgroup, "begun").first().map(|kill| format!("\"plan\":{},", kill["plan"]));
        let Some(at) = plan.and_then(|plan| lines.iter().position(|line| line.contains(&plan))) else {
            return tail(&text);
        };
        lines[at.saturating_sub(8)..lines.len().min(at + 4)].join(" | ")
    }

    /// How many kills it reported, of any workload.
    pub(crate) fn killed(&self) -> usize {
        self.lines().iter().filter(|line| line["kill"] == "begun").count()
    }

    /// What it answers at `path`.
    pub(crate) fn get(&self, path: &str) -> Result<(u16, String)> {
        get(self.address, path)
    }

    /// Waits until a line of its metrics is this one.
    pub(crate) fn await_metric(&self, line: &str, limit: Duration) -> Result<()> {
        await_metric(self.address, line, limit).with_context(|| format!("the log ends with: {}", tail(&self.text())))
    }

    /// Whether it still runs.
    pub(crate) fn running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait_end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let (begun, mut is_shown) = (Instant::now(), false);
        wait_for("the agent ends", limit, || {
            if begun.elapsed() > SLOW_END && !is_shown {
                is_shown = true;
                println!(
                    "the core does not end: {}",
                    self.part("core").map_or_else(|error| format!("{error:#}"), threads)
                );
            }
            Ok(self.child.try_wait()?.is_some())
        })?;
        Ok(self.child.wait()?)
    }

    /// Asks it to end as a service manager does, and expects success.
    pub(crate) fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let status = self.wait_end(Duration::from_secs(20))?;
        let text = self.text();
        if !status.success() || text.contains(DISORDER) {
            let barred = self.kernel_log.barred_calls()?;
            bail!("the agent ended with {status}: {}; system calls that its filter barred: {barred:?}", tail(&text));
        }
        Ok(())
    }
}

/// An end that takes longer than this is shown with what the core's threads wait for: the supervisor kills it after 15 s.
const SLOW_END: Duration = Duration::from_secs(12);

/// What each thread of a process does, and what it waits for in the kernel.
fn threads(process: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let of = |task: fs::DirEntry| {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let stat = read("stat");
        let state = stat.rsplit(") ").next().and_then(|rest| rest.get(..1)).unwrap_or("?").to_owned();
        let stack = read("stack");
        let stack: Vec<&str> = stack.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        format!("{} {state} in {} at {}", read("comm").trim(), read("wchan").trim(), stack.join(" < "))
    };
    tasks.map(of).collect::<Vec<_>>().join("; ")
}

/// Its version, as it prints it.
pub(crate) fn version() -> Result<String> {
    let output = Command::new(program()).arg("--version").output().context("cannot start the agent")?;
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(said.trim().trim_start_matches("plimsoll ").to_owned())
}

/// Which processes the OOM killer would select, by the agent's `explain`: their cgroups, the first choice first.
pub(crate) fn oom_choices(configuration: &Path) -> Result<Vec<String>> {
    let mut explain = Command::new(program());
    explain.arg("explain").arg("--config").arg(configuration).args(["--output", "json"]);
    let output = explain.output().context("cannot start the agent's explain")?;
    if !output.status.success() {
        bail!("explain ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let choices = answer["oom"].as_array().context("explain names no choice of the OOM killer")?;
    let cgroup = |it: &Value| it["cgroup"].as_str().unwrap_or_default().trim_start_matches('/').to_owned();
    Ok(choices.iter().map(cgroup).collect())
}

/// What the agent's `replay` makes of a trace, sample by sample.
pub(crate) fn replayed(trace: &Path, configuration: &Path) -> Result<Vec<Value>> {
    let mut replay = Command::new(program());
    replay.arg("replay").arg(trace).arg("--config").arg(configuration).args(["--all", "--output", "json"]);
    let output = replay.output().context("cannot start the agent's replay")?;
    if !output.status.success() {
        bail!("replay ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let mut answer: Value = serde_json::from_slice(&output.stdout)?;
    match answer["turns"].take() {
        Value::Array(turns) => Ok(turns),
        other => bail!("replay gave {other}"),
    }
}

/// One request to a server on loopback that closes the connection after its answer.
pub(crate) fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("not an answer of HTTP")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((status, body.to_owned()))
}

/// Waits until a line of the metrics at this address is this one.
pub(crate) fn await_metric(address: SocketAddr, line: &str, limit: Duration) -> Result<()> {
    let has = |text: &str| text.lines().any(|is| is == line);
    wait_for(line, limit, || Ok(get(address, "/metrics").is_ok_and(|(_, text)| has(&text))))
}

/// The values of the metrics whose lines begin like this; with a blank at its end, that is all of a name.
pub(crate) fn values<'m, T: FromStr>(metrics: &'m str, beginning: &'m str) -> impl Iterator<Item = T> + 'm {
    let lines = metrics.lines().filter(move |line| line.starts_with(beginning));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok())
}

/// The last lines of a text, on one line.
pub(crate) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tests_write_is_what_the_agent_reads() {
        let settings = Settings {
            pid_threshold: Some(50),
            source: "psi",
            poll_period: "100ms",
            slice_threshold_bytes: Some(64 << 20),
            kernel_brake: true,
            stall_percent: Some(100),
            ..Settings::with_threshold(100 << 20)
        };
        let read = plimsoll_config::parse(&settings.to_yaml(), "test.yaml").unwrap();
        assert_eq!(read.machine.metrics_address.port(), 10_350);
        assert_eq!(read.policy.thresholds.len(), 2);
        assert_eq!(read.machine.source, plimsoll_config::SourceChoice::Psi);
        assert_eq!(read.machine.poll_period, Duration::from_millis(100));
        assert_eq!(read.machine.slices[0].path.as_str(), "work.slice");
        assert_eq!(read.machine.brake.in_kernel.len(), 2);
        assert!(read.machine.workloads[2].pattern.matches("work.slice/hog"));
    }

    #[test]
    fn values_are_of_the_metrics_that_begin_like_this() {
        let text = "# HELP kills_total Kills by cause\nkills_total{by=\"a b\"} 2\nkills_total{by=\"c\"} 3\nkills 0.5\n";
        assert_eq!(values::<u64>(text, "kills_total").sum::<u64>(), 5);
        assert_eq!(values::<f64>(text, "kills ").collect::<Vec<_>>(), [0.5]);
        assert_eq!(values::<u64>(text, "kills_total{by=\"c\"} ").next(), Some(3));
        assert_eq!(values::<u64>(text, "none").next(), None);
    }

    #[test]
    fn the_tail_is_the_last_four_lines() {
        assert_eq!(tail("1\n2\n3\n4\n5\n"), "2 | 3 | 4 | 5");
        assert_eq!(tail(""), "");
    }
}
