//! Pods that a containerd runs, made through CRI as a kubelet makes them, and the agent's unit beside them: which pod is
//! evicted, how, and what becomes of the others and of the runtime.

use crate::agent::{DISORDER, tail};
use crate::containerd::{self, Driver};
use crate::cri::api::ContainerState;
use crate::cri::{Client, SOCKET};
use crate::machine::{self, KernelLog, now_ns, wait_for};
use crate::pod::{Class, Pod, SIGTERM_SENT};
use crate::scene::{MIB, PATIENCE, held, threshold_below};
use crate::suite::figure;
use crate::systemd::{CONFIGURATION, UNIT, journal, property, systemctl};
use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::thread;
use std::time::Duration;

/// What is available above the threshold when the agent has started, in MiB.
const ROOM_MIB: u64 = 128;
/// What the agent takes for itself.
const AGENT_BYTES: u64 = 32 * MIB;
/// What is reserved for a pod that keeps to it: a victim whose exit takes long on a busy machine is not the last.
const RESERVED_BYTES: u64 = 64 * MIB;
/// How long containerd may take to report the end of a container.
const REPORTED: Duration = Duration::from_secs(90);
/// The exit code of a process that SIGKILL ended.
const KILLED: i32 = 128 + 9;
/// Longer than any test: the grace with which a container is stopped that lives on.
const GRACE_SECONDS: i64 = 600;

/// A pod that is small and stays so, one that fills all memory once it is let go, and the agent.
struct Scene {
    client: Client,
    bystander: Pod,
    growing: Pod,
    /// The container that fills memory.
    container: String,
    containerd: Pid,
    oom_kills: u64,
    kernel_log: KernelLog,
    /// The same, to be read from its beginning.
    audit: KernelLog,
}

impl Scene {
    fn set() -> Result<Self> {
        let begun = now_ns();
        let client = containerd::start(Driver::Systemd)?;
        let started = now_ns();
        let bystander = Pod::make(&client, Driver::Systemd, "bystander", Class::Burstable)?;
        bystander.reserve(RESERVED_BYTES)?;
        bystander.start(&client, "main", &["idle", "--mib", "16"])?;
        let growing = Pod::make(&client, Driver::Systemd, "growing", Class::BestEffort)?;
        let container = growing.start_growing(&client, "main")?;
        let made = now_ns();
        let ms = |from: u64, to: u64| (to - from) / 1_000_000;
        figure("node", &[("containerd-ms", &ms(begun, started)), ("two-pods-ms", &ms(started, made))]);
        configure(threshold_below(ROOM_MIB)?.saturating_sub(AGENT_BYTES))?;
        let scene = Self {
            client,
            bystander,
            growing,
            container,
            containerd: containerd::main_process()?,
            oom_kills: machine::oom_kills()?,
            kernel_log: KernelLog::from_now()?,
            audit: KernelLog::from_now()?,
        };
        systemctl(&["start", UNIT]).with_context(logged)?;
        // Names cost the decision nothing, so that it would not wait for them.
        let named = "the container runtime names 2 pods";
        wait_for("both pods have names", PATIENCE, || Ok(journal()?.contains(named))).with_context(logged)?;
        Ok(scene)
    }

    /// Lets the pod grow, and waits until all of it was killed, by the agent.
    fn expect_evicted(&mut self) -> Result<()> {
        let victim = self.growing.path();
        let cgroup = self.growing.cgroup()?;
        self.growing.let_go()?;
        wait_for("the growing pod is killed", PATIENCE, || Ok(!cgroup.populated()?)).with_context(logged)?;
        let kills = self.machine_oom_kills()?;
        ensure!(kills == 0, "the OOM killer fired {kills} times; {}", logged());
        let line = format!("plimsoll: killed {victim}: usage ");
        let mut found = None;
        wait_for("the kill is in the kernel's log", PATIENCE, || {
            found = self.kernel_log.find(&line)?;
            Ok(found.is_some())
        })
        .with_context(logged)?;
        let pod = format!(", pod {}", self.growing.full_name());
        ensure!(
            found.as_ref().is_some_and(|line| line.trim_end().ends_with(&pod)),
            "it does not end with {pod:?}: {found:?}"
        );
        Ok(())
    }

    /// All others live on, and the runtime reports what ended.
    fn expect_usual(&mut self) -> Result<()> {
        let mut state = None;
        let begun = now_ns();
        wait_for("the runtime reports the container's end", REPORTED, || {
            let (now, code) = self.client.status(&self.container)?;
            state = Some((now.as_str_name(), code));
            Ok(now == ContainerState::ContainerExited)
        })
        .with_context(|| format!("it reports {state:?}"))?;
        figure("node", &[("reported-ms", &((now_ns() - begun) / 1_000_000))]);
        ensure!(state.is_some_and(|(_, code)| code == KILLED), "it reports the end as {state:?}");
        is_whole(&self.bystander)?;
        let now = containerd::main_process()?;
        ensure!(now == self.containerd, "containerd was started again");
        ensure!(property(UNIT, "ActiveState")? == "active", "the agent ended; {}", logged());
        let kills = self.machine_oom_kills()?;
        ensure!(kills == 0, "the OOM killer fired {kills} times");
        wait_for("nothing stays frozen or stopped", PATIENCE, || Ok(held().is_empty()))
    }

    /// A new pod runs beside the agent.
    fn expect_room(&self) -> Result<()> {
        let next = Pod::make(&self.client, Driver::Systemd, "next", Class::Burstable)?;
        let container = next.start(&self.client, "main", &["idle", "--mib", "16"])?;
        wait_for("the next pod's memory is in place", PATIENCE, || Ok(next.cgroup()?.current()? >= 16 * MIB))?;
        let (now, _) = self.client.status(&container)?;
        ensure!(now == ContainerState::ContainerRunning, "the next pod is {}", now.as_str_name());
        is_whole(&next)
    }

    /// The agent ends in order, and has killed nothing else.
    fn end(mut self) -> Result<()> {
        systemctl(&["stop", UNIT])?;
        let log = journal()?;
        let killed = begun_kills(&log);
        let expected = [(self.growing.path(), self.growing.full_name())];
        ensure!(killed == expected, "it killed {killed:?}; {}", tail(&log));
        let evicted = format!("evict {} (pod {})", self.growing.path(), self.growing.full_name());
        ensure!(log.contains(&evicted), "no plan has {evicted:?}; {}", tail(&log));
        ensure!(!log.contains(DISORDER), "{}", tail(&log));
        let mut barred = self.audit.barred_calls()?;
        barred.retain(|line| line.contains(" uid=65525 "));
        ensure!(barred.is_empty(), "services needs system calls that its filter bars: {barred:?}");
        Ok(())
    }

    fn machine_oom_kills(&self) -> Result<u64> {
        Ok(machine::oom_kills()? - self.oom_kills)
    }
}

/// The processes of a pod's sandbox and of its container live.
pub(crate) fn is_whole(pod: &Pod) -> Result<()> {
    let alive = pod.processes()?.into_iter().filter(|pid| machine::alive(*pid)).count();
    ensure!(alive == 2, "of sandbox and container of {}, {alive} live; {}", pod.name, logged());
    Ok(())
}

/// Pods are workloads by their slices, and have the names that the runtime gives them.
fn configure(threshold_bytes: u64) -> Result<()> {
    let text = format!(
        "evictionHard: {{memory.available: \"{threshold_bytes}\"}}
machine:
  workloads:
    - {{match: kubepods.slice/kubepods-pod*, priority: 0}}
    - {{match: kubepods.slice/*/kubepods-*, priority: 0}}
  runtimeSocket: {}
  logFormat: json
",
        SOCKET.trim_start_matches("unix://")
    );
    fs::write(CONFIGURATION, text).with_context(|| format!("cannot write {CONFIGURATION}"))
}

/// What the unit logged last, for messages.
pub(crate) fn logged() -> String {
    format!("its journal ends with: {}", journal().map_or_else(|error| format!("{error:#}"), |text| tail(&text)))
}

/// The cgroups that the agent reported to have begun to kill, and the pods that it named.
pub(crate) fn begun_kills(log: &str) -> Vec<(String, String)> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let kills = lines.filter(|line| line["kill"] == "begun");
    let text = |line: &Value, field: &str| line[field].as_str().unwrap_or_default().to_owned();
    kills.map(|line| (text(&line, "cgroup"), text(&line, "pod"))).collect()
}

/// A pod grows past the threshold: it is killed as a whole, with its sandbox, and nothing else is; a new pod runs afterwards.
pub(crate) fn evicts_a_growing_pod() -> Result<()> {
    let mut scene = Scene::set()?;
    scene.expect_evicted()?;
    scene.expect_usual()?;
    scene.expect_room()?;
    scene.end()
}

/// A kill waits for no runtime: containerd is stopped until the pod is dead.
pub(crate) fn evicts_while_the_runtime_is_stopped() -> Result<()> {
    let mut scene = Scene::set()?;
    kill_process(scene.containerd, Signal::STOP)?;
    scene.expect_evicted()?;
    let pid = u32::try_from(scene.containerd.as_raw_nonzero().get())?;
    ensure!(machine::process_state(pid) == Some('T'), "containerd was continued before the pod was dead");
    kill_process(scene.containerd, Signal::CONT)?;
    scene.expect_usual()?;
    scene.end()
}

/// A container that lives on after SIGTERM, while the runtime waits for its grace to end, is killed at once all the same.
pub(crate) fn evicts_what_outlives_sigterm() -> Result<()> {
    let mut scene = Scene::set()?;
    let container = scene.container.clone();
    let stop = thread::spawn(move || Client::new()?.stop_container(&container, GRACE_SECONDS));
    let sent = scene.growing.volume().join(SIGTERM_SENT);
    wait_for("the container was sent SIGTERM", PATIENCE, || Ok(sent.exists()))?;
    ensure!(!stop.is_finished(), "the container ended by SIGTERM");
    scene.expect_evicted()?;
    scene.expect_usual()?;
    stop.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    scene.end()
}
