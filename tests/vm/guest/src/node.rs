//! A node without a kubelet: pods that a containerd runs, a file with what the API server has of them, and the agent's unit
//! with thresholds of the kubelet's.

use crate::agent::{self, DISORDER, tail};
use crate::containerd::{self, Driver, IMAGE};
use crate::cri::{Client, SOCKET};
use crate::machine::{self, now_ns, wait_for};
use crate::node_tests::{begun_kills, is_whole, logged};
use crate::pod::{Class, PIPE, Pod, VOLUME};
use crate::pods_tests::write_facts;
use crate::scene::{MIB, PATIENCE, held, threshold_below};
use crate::suite::figure;
use crate::systemd::{CONFIGURATION, UNIT, journal, systemctl};
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use std::fs::{self, DirBuilder, File};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The priority of system-node-critical.
pub(crate) const CRITICAL: i32 = 2_000_001_000;
/// What the agent's processes take for themselves, those that read what is known of pods among them.
const AGENT_BYTES: u64 = 40 * MIB;
/// The directory of the file with the pods.
const FACTS: &str = "/run/facts";
/// The directory of manifests of static pods.
pub(crate) const MANIFESTS: &str = "/run/manifests";
/// Where the agent serves metrics and health unless it is configured.
pub(crate) const ADDRESS: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 9464);

/// The node.
pub(crate) struct Node {
    pub(crate) client: Client,
    /// Its pods as the API server has them.
    facts: Vec<Value>,
    /// Where the agent finds the runtime, and further keys of `machine`.
    machine: String,
    oom_kills: u64,
}

impl Node {
    /// Without a pod.
    pub(crate) fn new() -> Result<Self> {
        let begun = now_ns();
        let client = containerd::start(Driver::Systemd)?;
        figure("node", &[("containerd-ms", &((now_ns() - begun) / 1_000_000))]);
        Self::with(client)
    }

    /// With a containerd that runs.
    pub(crate) fn with(client: Client) -> Result<Self> {
        let machine = format!("  runtimeSocket: {}\n", SOCKET.trim_start_matches("unix://"));
        Ok(Self { client, facts: Vec::new(), machine, oom_kills: machine::oom_kills()? })
    }

    /// The same where the agent finds the runtime at this socket, with further keys of `machine`.
    pub(crate) fn behind(self, socket: &str, keys: &str) -> Self {
        Self { machine: format!("  runtimeSocket: {socket}\n{keys}"), ..self }
    }

    /// Makes a pod without a container, and has it listed with this priority and grace.
    pub(crate) fn pod(&mut self, name: &str, class: Class, (priority, grace): (i32, i64)) -> Result<Pod> {
        let pod = Pod::make(&self.client, Driver::Systemd, name, class)?;
        self.facts.push(facts(&pod, priority, grace));
        Ok(pod)
    }

    /// Has a pod listed with these limits of local storage, of its container and of its volume.
    pub(crate) fn limit_storage(&mut self, pod: &Pod, container: Option<&str>, volume: Option<&str>) -> Result<()> {
        let facts = self.facts.iter_mut().find(|facts| facts["metadata"]["uid"] == pod.uid);
        let spec = &mut facts.context("the pod is listed")?["spec"];
        if let Some(limit) = container {
            spec["containers"][0]["resources"]["limits"]["ephemeral-storage"] = json!(limit);
        }
        if let Some(limit) = volume {
            spec["volumes"] = json!([{"name": "volume", "emptyDir": {"sizeLimit": limit}}]);
        }
        Ok(())
    }

    /// Makes a static pod, and has its mirror listed: by its own UID, and with that of the pod (the hash of its file) as an
    /// annotation (pkg/kubelet/pod/mirror_client.go).
    pub(crate) fn static_pod(&mut self, name: &str, class: Class, priority: i32) -> Result<Pod> {
        let hash = "5bd0c1f2a3e49687b5a4c3d2e1f00f1e";
        let pod = Pod::with_uid(&self.client, Driver::Systemd, name, hash, class)?;
        let mut mirror = facts(&pod, priority, 30);
        mirror["metadata"]["uid"] = json!("0a000000-0000-4000-8000-00000000000a");
        mirror["metadata"]["annotations"] =
            json!({"kubernetes.io/config.mirror": hash, "kubernetes.io/config.hash": hash});
        self.facts.push(mirror);
        Ok(pod)
    }

    /// Makes a static pod that no list has, from a manifest that root alone may read.
    pub(crate) fn unlisted_static_pod(&self, name: &str, class: Class, priority: i32) -> Result<Pod> {
        DirBuilder::new().recursive(true).mode(0o700).create(MANIFESTS).with_context(|| format!("no {MANIFESTS}"))?;
        let file = format!("{MANIFESTS}/{name}.yaml");
        let resources = class.resources();
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  priority: {priority}\n  containers:\n  \
             - name: main\n    image: {IMAGE}\n    resources: {resources}\n"
        );
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(file)?;
        file.write_all(manifest.as_bytes())?;
        // generatePodName in pkg/kubelet/config/common.go.
        let node = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
        let hash = "9e107d9d372bb6826bd81d3542a419d6";
        Pod::with_uid(&self.client, Driver::Systemd, &format!("{name}-{node}"), hash, class)
    }

    /// Makes a pod that holds little memory, and less than it requests.
    pub(crate) fn bystander(&mut self) -> Result<Pod> {
        let pod = self.pod("bystander", Class::Burstable, (0, 30))?;
        pod.start(&self.client, "main", &["idle", "--mib", "16"])?;
        Ok(pod)
    }

    /// Starts the unit with these lines of its configuration, and waits until it knows the pods.
    pub(crate) fn start_agent(&self, lines: &str) -> Result<()> {
        let path = self.write_facts()?;
        let text = format!("{lines}machine:\n  podFacts: {path}\n{}  logFormat: json\n", self.machine);
        fs::write(CONFIGURATION, text).with_context(|| format!("cannot write {CONFIGURATION}"))?;
        systemctl(&["start", UNIT]).with_context(logged)?;
        let known = format!("{} pods are known", self.facts.len());
        wait_for(&known, PATIENCE, || Ok(journal()?.contains(&known))).with_context(logged)
    }

    /// Has a pod not listed any more, as once its object is removed.
    pub(crate) fn forget(&mut self, pod: &Pod) -> Result<()> {
        self.facts.retain(|facts| facts["metadata"]["uid"] != pod.uid);
        self.write_facts().map(drop)
    }

    /// Writes the list of pods, and gives its path.
    pub(crate) fn write_facts(&self) -> Result<String> {
        fs::create_dir_all(FACTS).with_context(|| format!("cannot make {FACTS}"))?;
        let path = format!("{FACTS}/pods.json");
        write_facts(&path, &json!({"items": self.facts}).to_string())?;
        Ok(path)
    }

    /// A new pod runs beside the agent.
    pub(crate) fn expect_room(&mut self) -> Result<()> {
        let next = self.pod("next", Class::Burstable, (0, 30))?;
        self.write_facts()?;
        next.start(&self.client, "main", &["idle", "--mib", "16"])?;
        wait_for("the next pod's memory is in place", PATIENCE, || Ok(next.cgroup()?.current()? >= 16 * MIB))?;
        is_whole(&next)
    }

    /// The agent ends in order, has killed these pods in this order and nothing else, and these others live.
    pub(crate) fn end(self, killed: &[&Pod], alive: &[&Pod]) -> Result<()> {
        for pod in alive {
            is_whole(pod)?;
        }
        wait_for("nothing stays frozen or stopped", PATIENCE, || Ok(held().is_empty()))?;
        systemctl(&["stop", UNIT])?;
        let log = journal()?;
        let expected: Vec<_> = killed.iter().map(|pod| (pod.path(), pod.full_name())).collect();
        let begun = begun_kills(&log);
        ensure!(begun == expected, "it killed {begun:?}, not {expected:?}; {}", tail(&log));
        ensure!(!log.contains(DISORDER), "{}", tail(&log));
        let kills = machine::oom_kills()? - self.oom_kills;
        ensure!(kills == 0, "the OOM killer fired {kills} times; {}", tail(&log));
        Ok(())
    }
}

/// Waits until nothing of a pod runs.
pub(crate) fn expect_dead(pod: &Pod) -> Result<()> {
    let cgroup = pod.cgroup()?;
    wait_for("all processes of the pod are killed", PATIENCE, || Ok(!cgroup.populated()?))
        .with_context(|| format!("of {}; {}", pod.name, logged()))
}

/// A pod as the API server has it.
fn facts(pod: &Pod, priority: i32, grace: i64) -> Value {
    json!({
        "metadata": {"name": pod.name, "namespace": "default", "uid": pod.uid},
        "spec": {
            "priority": priority,
            "terminationGracePeriodSeconds": grace,
            "containers": [{"name": "main", "resources": pod.class.resources()}],
        },
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
    })
}

/// The threshold so many MiB below what is available, once the agent runs.
pub(crate) fn threshold(room_mib: u64) -> Result<u64> {
    Ok(threshold_below(room_mib)?.saturating_sub(AGENT_BYTES))
}

/// The lines of the agent's log.
pub(crate) fn lines() -> Result<Vec<Value>> {
    Ok(journal()?.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// The plans that the agent reported, oldest first.
pub(crate) fn plans() -> Result<Vec<Value>> {
    Ok(lines()?.into_iter().filter(|line| line["outcome"].is_string()).collect())
}

/// What the agent reported of killing a pod, oldest first: `asked`, `begun`, ...
pub(crate) fn kills(pod: &Pod, what: &str) -> Result<Vec<Value>> {
    let path = pod.path();
    Ok(lines()?.into_iter().filter(|line| line["cgroup"] == path && line["kill"] == what).collect())
}

/// Waits until the kill of a pod is reported: it kills first.
pub(crate) fn await_begun(pod: &Pod) -> Result<()> {
    wait_for("the kill is reported", PATIENCE, || Ok(!kills(pod, "begun")?.is_empty()))
        .with_context(|| format!("of {}; {}", pod.name, logged()))
}

/// The first plan that evicts a pod.
pub(crate) fn eviction_of(pod: &Pod) -> Result<Value> {
    let (path, mut found) = (pod.path(), None);
    let evicts = |plan: &Value| {
        let mut actions = plan["actions"].as_array().into_iter().flatten();
        actions.any(|action| action["action"] == "evict" && action["cgroup"] == path)
    };
    // It kills first, and reports the plan later.
    wait_for("the plan that evicts the pod is reported", PATIENCE, || {
        found = plans()?.into_iter().find(evicts);
        Ok(found.is_some())
    })
    .with_context(|| format!("of {}; {}", pod.name, logged()))?;
    found.context("there is a plan")
}

/// The threshold that a plan acts on.
pub(crate) fn acting(plan: &Value) -> Result<&Value> {
    let mut thresholds = plan["thresholds"].as_array().into_iter().flatten();
    thresholds.find(|threshold| threshold["acting"] == true).with_context(|| format!("it acts on none: {plan}"))
}

/// A number of a line of the log.
pub(crate) fn number(line: &Value, field: &str) -> Result<u64> {
    line[field].as_u64().with_context(|| format!("no number {field} in {line}"))
}

/// Waits until a metric has this value.
pub(crate) fn await_metric(line: &str, limit: Duration) -> Result<()> {
    agent::await_metric(ADDRESS.into(), line, limit).with_context(logged)
}

/// Waits until metrics have of each of these signals that it was read within the last two minutes, and what that took.
pub(crate) fn await_read(signals: &[&str]) -> Result<()> {
    let value = |metrics: &str, name: &str, signal: &str| -> Option<f64> {
        let series = format!("plimsoll_signal_read_{name}_seconds{{eviction_signal=\"{signal}\"}} ");
        agent::values(metrics, &series).next()
    };
    for signal in signals {
        let mut found = None;
        wait_for(&format!("{signal} was read"), PATIENCE, || {
            let Ok((_, metrics)) = agent::get(ADDRESS.into(), "/metrics") else { return Ok(false) };
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
            found = value(&metrics, "timestamp", signal).zip(value(&metrics, "cost", signal));
            Ok(found.is_some_and(|(read, cost)| (now - 120.0..=now).contains(&read) && cost > 0.0 && cost < 10.0))
        })
        .with_context(|| format!("{signal} has time and cost {found:?}; {}", logged()))?;
    }
    Ok(())
}

/// Waits until so much is available.
pub(crate) fn await_available(bytes: u64) -> Result<()> {
    wait_for("memory is available again", PATIENCE, || Ok(machine::meminfo("MemAvailable")? >= bytes))
        .with_context(logged)
}

/// A container that fills so much memory and gives it back, step by step.
pub(crate) struct Breathing<'a> {
    pod: &'a Pod,
    bytes: u64,
    /// One byte is one step.
    steps: File,
}

impl<'a> Breathing<'a> {
    /// Starts it. It ends with this value.
    pub(crate) fn start(client: &Client, pod: &'a Pod, mib: u64) -> Result<Self> {
        fs::create_dir_all(pod.volume())?;
        let pipe = pod.volume().join(PIPE);
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).context("cannot make a named pipe")?;
        let steps = format!("{VOLUME}/{PIPE}");
        pod.start(client, "main", &["breathe", "--mib", &mib.to_string(), "--steps", &steps])?;
        Ok(Self { pod, bytes: mib * MIB, steps: pod.open_pipe()? })
    }

    /// Fills memory.
    pub(crate) fn fill(&mut self) -> Result<()> {
        let all = self.bytes;
        self.step("memory is filled", |current| current >= all)
    }

    /// Gives it back.
    pub(crate) fn give_back(&mut self) -> Result<()> {
        let all = self.bytes;
        self.step("memory is given back", |current| current < all / 2)
    }

    fn step(&mut self, what: &str, done: impl Fn(u64) -> bool) -> Result<()> {
        self.steps.write_all(&[0]).context("the container takes no step")?;
        let cgroup = self.pod.cgroup()?;
        wait_for(what, PATIENCE, || Ok(done(cgroup.current()?))).with_context(logged)
    }
}
