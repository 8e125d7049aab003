//! Plimsoll's own part of the configuration. The fields of these structs are the keys of the file, of its schema, of
//! `config show` and of the flags; their documents are the descriptions in all of these.

use crate::cluster::Cluster;
use crate::deserialize::{Document, Refusal};
use crate::scalar::{Address, Amount, As, Directory, Hold, Place, Source, Span, Victims, Whole, amount};
use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use plimsoll_policy::kubelet::{Origin as ThresholdOrigin, Signal, Threshold, ThresholdAmount};
use plimsoll_policy::{Config as Policy, SliceSet, SliceThresholds, SwapThreshold};
use plimsoll_units::Pattern;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where the service unit of this project puts the agent.
const USUAL_OWN_CGROUP: &str = "plimsoll.slice/plimsoll.service";
/// Where init is on a machine with systemd.
const INIT_CGROUP: &str = "init.scope";

/// What concerns this machine and no kubelet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, expecting = "a mapping")]
pub struct Machine {
    /// Which cgroups may be evicted. The first pattern that matches gives the priority. Without any, nothing is evicted but
    /// pods, where podFacts or a cluster makes them known.
    pub workloads: Vec<Workload>,
    /// Which of these are never evicted, as patterns. Init and the agent itself never are.
    #[schemars(with = "Vec<String>")]
    pub never: Vec<Pattern>,
    /// What is known of this node's pods, as `kubectl get pods -A -o json` prints it: an absolute path of a file that is
    /// read again when it changed. With it, pods are workloads, ranked by their own requests and priorities. Empty for none.
    #[serde(with = "As::<Source>")]
    pub pod_facts: Option<PathBuf>,
    /// Where the manifests of static pods are, an absolute path of a directory or of one file: what is known of a static pod
    /// that podFacts or the API server does not list. Empty for the kubelet's `staticPodPath`, where it is read, else for none.
    #[serde(with = "As::<Place>")]
    pub static_pods: Option<PathBuf>,
    /// How growth is held while deciding.
    pub brake: Brake,
    /// Evict by rank even where most of the growth was in nothing that may be evicted.
    pub evict_for_unattributed: bool,
    /// Hard thresholds evict workloads of at most so many owners within any minute, and soft ones of as many.
    #[serde(with = "As::<Victims>")]
    pub victims_per_minute: u32,
    /// Growth counts from this much of the fall in available memory, in percent: workloads that grew by less together
    /// are not evicted for it.
    #[serde(with = "As::<Whole<u8, 0, 100>>")]
    pub responsible_percent: u8,
    /// How much of the time all tasks must wait for memory before page cache in use is a reason to evict, in percent.
    #[serde(with = "As::<Whole<u8, 0, 100>>")]
    pub stall_percent: u8,
    /// The pause after a reclaim that did not help.
    #[serde(with = "As::<Span<1_000, 3_600_000>>")]
    pub reclaim_pause: Duration,
    /// How memory is watched.
    pub source: SourceChoice,
    /// The period of polling.
    #[serde(with = "As::<Span<10, 3_600_000>>")]
    pub poll_period: Duration,
    /// Slices that have a memory.max, with thresholds below it.
    pub slices: Vec<Slice>,
    /// Where metrics and health are served: an address with a port.
    #[serde(with = "As::<Address>")]
    pub metrics_address: SocketAddr,
    /// With a cluster metrics are served on an address of the loopback alone, as they name pods and ask no reader for a token.
    /// This allows any other one: all that reach it may read them.
    pub metrics_for_all: bool,
    /// The directory of the run record: an absolute path that does not survive a boot. Where it can only be read, another one
    /// in memory is taken, which is reported: /run/plimsoll or /dev/shm/plimsoll.
    #[serde(with = "As::<Directory>")]
    pub state_directory: PathBuf,
    /// The directory of the journal, in which what is known of pods outlives the agent and the machine: an absolute path on
    /// a disk. Used with podFacts, with a cluster, and with thresholds on disks where there is a kubelet's directory; made where it
    /// is not there.
    #[serde(with = "As::<Directory>")]
    pub journal_directory: PathBuf,
    /// The format of the log.
    pub log_format: LogFormat,
    /// What becomes of a container that memory.high throttles. All but `report` need podFacts or a
    /// cluster, and the container runtime.
    pub throttled: Throttled,
    /// How long an evicted pod is kept frozen at most, so that no container runs that the kubelet starts in it: until the
    /// API server has the pod's status. 0 for not at all, 1h at most. Empty for 5m with a cluster, and for 0 without, where
    /// it is a pause before the pod runs again.
    #[serde(with = "As::<Hold>")]
    pub hold_down: Option<Duration>,
    /// Images that are never removed for a disk, as patterns of their names: `registry.local/base/*`, `docker.io/library/**`.
    /// A pattern without tag and digest means all of them. Those that a container uses, running or not, never are.
    #[schemars(with = "Vec<String>")]
    pub images_never_removed: Vec<Pattern>,
    /// While this file is there, nothing is evicted, frozen, reclaimed or removed, and what would be is reported: an absolute
    /// path. It counts where root owns it, and root alone can write the directories around it. Empty for none.
    #[serde(with = "As::<Source>")]
    pub kill_switch: Option<PathBuf>,
    /// Dry run: watch, decide and report as ever, and evict, freeze, stop, reclaim, remove and raise nothing. What would be
    /// done is in the log, marked as shadow; readiness says why the agent does not act. It runs beside an agent that acts.
    pub shadow: bool,
    /// The kubelet's own directory, an absolute path. Empty for that of `--root-dir`, where the kubelet's command line is
    /// read, else for /var/lib/kubelet.
    #[serde(with = "As::<Place>")]
    pub kubelet_root: Option<PathBuf>,
    /// The socket of the container runtime, an absolute path, which `run` asks for the names of pods, and to remove what is
    /// unused where a disk is short. Empty for the kubelet's `containerRuntimeEndpoint`, where it is read, else for the one
    /// that answers of the usual sockets (containerd, k3s, CRI-O), which `run` asks with podFacts or a cluster alone.
    #[serde(with = "As::<Place>")]
    pub runtime_socket: Option<PathBuf>,
    /// The Kubernetes API server.
    pub cluster: Cluster,
    /// The directory in which the container runtime keeps images, an absolute path: `run` evicts pods for imagefs by the
    /// file system that it is on. Empty for the usual directories, one of which counts where its file system is as large as
    /// the runtime's.
    #[serde(with = "As::<Place>")]
    pub image_root: Option<PathBuf>,
    /// The directory in which the container runtime keeps writable layers of containers (containerfs). Empty for that of
    /// imageRoot.
    #[serde(with = "As::<Place>")]
    pub container_root: Option<PathBuf>,
}

/// Cgroups that may be evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping such as {match: system.slice/*}")]
pub struct Workload {
    /// A path below the cgroup root; `*` stands for any part of a name, `**` at the end for everything below.
    #[serde(rename = "match")]
    #[schemars(with = "String")]
    pub pattern: Pattern,
    /// The lowest is evicted first.
    #[serde(default, with = "As::<Whole<i32, { i32::MIN }, { i32::MAX }>>")]
    pub priority: i32,
}

/// How growth is held while deciding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, expecting = "a mapping")]
pub struct Brake {
    /// How a growing cgroup is held from user space.
    pub mode: BrakeMode,
    /// Paths of cgroups that the kernel side may stop in their own context, before user space runs. With `podFacts`
    /// or a cluster, those around and in pods are left out: some must not be stopped.
    #[schemars(with = "Vec<String>")]
    pub in_kernel: Vec<Pattern>,
    /// The longest time that a brake holds.
    #[serde(with = "As::<Span<1, 2_000>>")]
    pub deadline: Duration,
}

/// How a growing cgroup is held from user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum BrakeMode {
    /// By cgroup.freeze.
    Freeze,
    /// Not at all.
    None,
}

/// How memory is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum SourceChoice {
    /// The best source that this kernel offers.
    Auto,
    /// Programs in the kernel.
    Ebpf,
    /// Pressure stall triggers.
    Psi,
    /// Polling.
    Poll,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs, one object a line.
    Json,
}

/// What becomes of a container that memory.high throttles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Throttled {
    /// It is reported with its stall.
    Report,
    /// Its memory.high is raised to its memory.max, and no higher than those of its pod and of the cgroups around that.
    Relax,
    /// Its memory.high is raised by half of what it is below that. Where it is throttled all the same, its pod is evicted.
    Evict,
}

/// A slice with a memory limit and thresholds below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping such as {path: user.slice, evictionHard: {memory.available: 64Mi}}"
)]
pub struct Slice {
    /// Its path below the cgroup root, without wildcards.
    #[schemars(with = "String")]
    pub path: Pattern,
    /// Its hard threshold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_hard: Option<OfMemory>,
    /// Its soft threshold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_soft: Option<OfMemory>,
    /// How long the soft threshold must be met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_soft_grace_period: Option<GraceOfMemory>,
    /// How much beyond the threshold is reclaimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_minimum_reclaim: Option<OfMemory>,
}

/// An amount of a slice's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping such as {memory.available: 64Mi}")]
pub struct OfMemory {
    /// Memory below the slice's limit: a quantity such as 100Mi, or a percentage of the limit such as 5%.
    #[serde(rename = "memory.available", with = "As::<Amount>")]
    pub memory_available: String,
}

/// The grace period of a slice's soft threshold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping such as {memory.available: 1m30s}")]
pub struct GraceOfMemory {
    /// A duration such as 1m30s.
    #[serde(rename = "memory.available", with = "As::<Span>")]
    pub memory_available: Duration,
}

/// When swap is short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping such as {free: 10%, grace: 30s}")]
pub struct Swap {
    /// Less than this of it is free: a quantity such as 1Gi, or a percentage such as 10%.
    #[serde(with = "As::<Amount>")]
    pub free: String,
    /// For so long without a break.
    #[serde(default = "swap_grace", with = "As::<Span>")]
    pub grace: Duration,
}

/// How long an evicted pod is held down with a cluster where that is not configured: as long as a kubelet waits at most before
/// it starts a container again that ends each time (the cap of `CrashLoopBackOff`).
const HOLD_DOWN: Duration = Duration::from_mins(5);

const fn swap_grace() -> Duration {
    Duration::from_secs(30)
}

impl Default for Machine {
    fn default() -> Self {
        let policy = Policy::default();
        Self {
            workloads: Vec::new(),
            never: Vec::new(),
            pod_facts: None,
            static_pods: None,
            brake: Brake::default(),
            evict_for_unattributed: policy.evict_for_unattributed,
            victims_per_minute: policy.hard_victims_per_minute,
            responsible_percent: policy.responsible_percent,
            stall_percent: policy.stall_percent,
            reclaim_pause: policy.reclaim_pause,
            source: SourceChoice::Auto,
            poll_period: Duration::from_secs(1),
            slices: Vec::new(),
            metrics_address: (Ipv4Addr::LOCALHOST, 9464).into(),
            metrics_for_all: false,
            state_directory: "/run/plimsoll".into(),
            journal_directory: "/var/lib/plimsoll/journal".into(),
            log_format: LogFormat::Text,
            throttled: Throttled::Report,
            hold_down: None,
            images_never_removed: Vec::new(),
            kill_switch: Some("/etc/plimsoll/kill-switch".into()),
            shadow: false,
            kubelet_root: None,
            runtime_socket: None,
            cluster: Cluster::default(),
            image_root: None,
            container_root: None,
        }
    }
}

impl Machine {
    /// How long an evicted pod is held down at most; zero: none is.
    pub fn hold_down(&self) -> Duration {
        let usual = if self.cluster.is_on() { HOLD_DOWN } else { Duration::ZERO };
        self.hold_down.unwrap_or(usual)
    }
}

impl Default for Brake {
    fn default() -> Self {
        Self { mode: BrakeMode::Freeze, in_kernel: Vec::new(), deadline: Duration::from_secs(2) }
    }
}

impl Swap {
    /// The threshold on free swap; absent where it is switched off.
    pub(crate) fn threshold(&self) -> Option<SwapThreshold> {
        Some(SwapThreshold { free: amount(&self.free, false).ok()??, grace: self.grace })
    }

    pub(crate) fn refusal(&self) -> Option<Refusal> {
        refused_amount("swap.free", &self.free, false)
    }
}

impl Slice {
    /// Its thresholds. Amounts that are refused are left out.
    pub(crate) fn thresholds(&self) -> SliceThresholds {
        let amount_of = |of: &Option<OfMemory>, is_reclaim| amount(&of.as_ref()?.memory_available, is_reclaim).ok()?;
        let grace = self.eviction_soft_grace_period.as_ref().map(|grace| grace.memory_available);
        let hard = amount_of(&self.eviction_hard, false).zip(Some(Duration::ZERO));
        let soft = amount_of(&self.eviction_soft, false).zip(grace);
        let min_reclaim = amount_of(&self.eviction_minimum_reclaim, true);
        let thresholds = [hard, soft].into_iter().flatten();
        let on_memory = |(at, grace)| threshold(Signal::MemoryAvailable, at, grace, min_reclaim);
        SliceThresholds { thresholds: thresholds.map(on_memory).collect() }
    }

    fn refusals(&self, at: &str, document: &Document<'_>) -> Vec<Refusal> {
        let amounts = [
            ("evictionHard", &self.eviction_hard, false),
            ("evictionSoft", &self.eviction_soft, false),
            ("evictionMinimumReclaim", &self.eviction_minimum_reclaim, true),
        ];
        let mut found: Vec<Refusal> = amounts
            .into_iter()
            .filter_map(|(map, of, is_reclaim)| {
                refused_amount(&format!("{at}.{map}.memory.available"), &of.as_ref()?.memory_available, is_reclaim)
            })
            .collect();
        let [hard, soft, grace] = ["evictionHard", "evictionSoft", "evictionSoftGracePeriod"]
            .map(|map| Some(format!("{at}.{map}")).filter(|key| document.has(key)));
        match (&soft, &grace) {
            (Some(soft), None) => {
                let why = format!("missing; {soft}.memory.available needs a grace period");
                found.push(Refusal::missing(soft, &format!("{at}.evictionSoftGracePeriod.memory.available"), why));
            }
            (None, Some(grace)) => {
                found.push(Refusal::value(&format!("{grace}.memory.available"), "there is no soft threshold for it"));
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        if hard.is_none() && soft.is_none() {
            let why = "missing; expected evictionHard or evictionSoft for each slice in the list".to_owned();
            found.push(Refusal::missing(at, &format!("{at}.evictionHard"), why));
        }
        found
    }
}

impl Machine {
    /// What the types do not refuse. `own`: the outermost cgroup that is the agent's alone.
    pub(crate) fn refusals(&self, own: Option<&str>, document: &Document<'_>) -> Vec<Refusal> {
        let own = own.unwrap_or(USUAL_OWN_CGROUP);
        let mut found = Vec::new();
        for (at, workload) in document.items("machine.workloads").iter().zip(&self.workloads) {
            let key = format!("{at}.match");
            found.extend(too_wide(&workload.pattern, own).map(|why| Refusal::value(&key, why)));
        }
        for (at, pattern) in document.items("machine.brake.inKernel").iter().zip(&self.brake.in_kernel) {
            let refused = literal_only(pattern).or_else(|| too_wide(pattern, own));
            found.extend(refused.map(|why| Refusal::value(at, why)));
        }
        if self.container_root.is_some() && self.image_root.is_none() {
            let why = "missing; machine.containerRoot counts beside it alone";
            found.push(Refusal::missing("machine.containerRoot", "machine.imageRoot", why));
        }
        let paths = document.items("machine.slices");
        for (index, (at, slice)) in paths.iter().zip(&self.slices).enumerate() {
            let is_repeated = self.slices[..index].iter().any(|before| before.path == slice.path);
            let repeated = is_repeated.then(|| "this slice is in the list before".to_owned());
            let refused = literal_only(&slice.path).or(repeated);
            found.extend(refused.map(|why| Refusal::value(&format!("{at}.path"), why)));
            found.extend(slice.refusals(at, document));
        }
        if self.throttled != Throttled::Report && !self.knows_pods() {
            let why = "needs machine.podFacts or machine.cluster: without one of them pods are not known";
            found.push(Refusal::value("machine.throttled", why));
        }
        // All pods together are one more.
        let most = SliceSet::MAX_SLICES - usize::from(self.knows_pods());
        if self.slices.len() > most {
            let beside = if self.knows_pods() { ", beside the cgroup of all pods" } else { "" };
            let why = format!("expected at most {most} slices with thresholds{beside}");
            found.push(Refusal::missing("machine.slices", "machine.slices", why));
        }
        if self.cluster.is_on() && !self.metrics_address.ip().is_loopback() && !self.metrics_for_all {
            let why = "expected an address of the loopback, as metrics name pods and ask no reader for a token: a proxy that does \
                       serves them to other machines; machine.metricsForAll allows this one";
            found.push(Refusal::value("machine.metricsAddress", why));
        }
        found.extend(self.cluster.refusals(self));
        found
    }
}

fn refused_amount(key: &str, text: &str, is_reclaim: bool) -> Option<Refusal> {
    amount(text, is_reclaim).err().map(|expected| Refusal::value(key, expected))
}

/// The signals by which `run` decides about the node.
pub(crate) const IN_RUN: [Signal; 2] = [Signal::MemoryAvailable, Signal::PidAvailable];

/// A threshold as `run` decides by it. A minimum reclaim of nothing is none.
pub(crate) fn threshold(
    signal: Signal,
    at: ThresholdAmount,
    grace: Duration,
    min_reclaim: Option<ThresholdAmount>,
) -> Threshold {
    let min_reclaim = min_reclaim.filter(|at| !matches!(at, ThresholdAmount::At(amount) if amount.is_zero()));
    Threshold { signal, amount: Some(at), grace, min_reclaim, origin: ThresholdOrigin::Configured }
}

fn literal_only(pattern: &Pattern) -> Option<String> {
    (!pattern.is_literal()).then(|| "expected the path of one cgroup, without `*`".to_owned())
}

/// Why a pattern includes too much, if it does.
fn too_wide(pattern: &Pattern, own: &str) -> Option<String> {
    if pattern.covers(INIT_CGROUP) {
        return Some(format!("it would include init ({INIT_CGROUP}); expected a pattern such as system.slice/*"));
    }
    // Discovery leaves out the agent's cgroup and those around it, so that a wildcard may match them. A pattern for all
    // of a parent of the agent can only be a mistake.
    if pattern.holds(own) || pattern.is_literal() && pattern.matches(own) {
        return Some(format!("it would include this agent ({own}); expected a pattern such as system.slice/*"));
    }
    None
}
