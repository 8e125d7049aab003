//! Statistics and pods as the API writes them, as far as decisions go by them.

mod listed;
mod words;

pub use listed::{ListedContainer, ListedPod};
pub use words::storage_limit;

use core::time::Duration;
use jiff::Timestamp;
use plimsoll_policy::kubelet::{self, Amount, Amounts, DiskLayout, NodeStats, Readings, Signal, StatsTime, Usage};
use plimsoll_policy::{Key, OwnerUid, Stall, Terminating, Uid, Workload};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs, Quantity};
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// What local storage is called where it is asked for.
const STORAGE: &str = "ephemeral-storage";

/// A kubelet's answer to `/stats/summary`.
#[derive(Clone, Debug, Deserialize)]
pub struct Summary {
    pub(crate) node: Node,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) pods: Vec<PodStats>,
}

/// Go writes an empty list or map as `null`.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Node {
    #[serde(rename = "nodeName")]
    pub(crate) name: String,
    pub(crate) memory: Option<Memory>,
    #[serde(deserialize_with = "nullable")]
    system_containers: Vec<SystemContainer>,
    fs: Option<Fs>,
    #[serde(deserialize_with = "nullable")]
    runtime: Runtime,
    rlimit: Option<Rlimit>,
}

#[derive(Clone, Debug, Deserialize)]
struct SystemContainer {
    name: String,
    memory: Option<Memory>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Memory {
    time: Option<Time>,
    available_bytes: Option<u64>,
    pub(crate) working_set_bytes: Option<u64>,
    rss_bytes: Option<u64>,
    psi: Option<Psi>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Psi {
    full: Option<PsiFull>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct PsiFull {
    avg10: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Fs {
    time: Option<Time>,
    available_bytes: Option<u64>,
    capacity_bytes: Option<u64>,
    inodes: Option<u64>,
    inodes_free: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Runtime {
    image_fs: Option<Fs>,
    container_fs: Option<Fs>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Rlimit {
    time: Option<Time>,
    maxpid: Option<i64>,
    curproc: Option<i64>,
}

/// Nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(i64);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time: Timestamp =
            text.parse().map_err(|_| D::Error::custom("expected a time such as 2026-01-31T12:00:00Z"))?;
        i64::try_from(time.as_nanosecond()).map(Self).map_err(|_| D::Error::custom("expected a year from 1678 to 2261"))
    }
}

impl Time {
    /// The same on the clock of a replay, which begins in 1970.
    pub(crate) fn monotonic(self) -> MonotonicNs {
        MonotonicNs(u64::try_from(self.0).unwrap_or(0))
    }
}

fn stats_time(time: Option<Time>) -> Option<StatsTime> {
    time.map(|Time(nanos)| StatsTime(nanos))
}

impl From<Memory> for kubelet::MemoryStats {
    fn from(stats: Memory) -> Self {
        Self { available: stats.available_bytes, working_set: stats.working_set_bytes, time: stats_time(stats.time) }
    }
}

impl From<Fs> for kubelet::FsStats {
    fn from(stats: Fs) -> Self {
        Self {
            available: stats.available_bytes,
            capacity: stats.capacity_bytes,
            inodes_free: stats.inodes_free,
            inodes: stats.inodes,
            time: stats_time(stats.time),
        }
    }
}

impl Summary {
    /// The newest time in it.
    pub(crate) fn time(&self) -> Option<Time> {
        let Node { memory, fs, runtime, rlimit, .. } = &self.node;
        let of_fs = [*fs, runtime.image_fs, runtime.container_fs].into_iter().flatten().map(|fs| fs.time);
        of_fs.chain([memory.and_then(|memory| memory.time), rlimit.and_then(|limit| limit.time)]).flatten().max()
    }

    /// What it says of the node.
    pub fn node_stats(&self) -> NodeStats {
        let Node { memory, system_containers, fs, runtime, rlimit, name: _ } = &self.node;
        let pods = system_containers.iter().find(|container| container.name == "pods");
        NodeStats {
            memory: memory.map(Into::into),
            pods: pods.and_then(|pods| pods.memory).map(Into::into),
            node_fs: fs.map(Into::into),
            image_fs: runtime.image_fs.map(Into::into),
            container_fs: runtime.container_fs.map(Into::into),
            pids: rlimit.map(|limit| kubelet::PidStats {
                max: limit.maxpid,
                running: limit.curproc,
                time: stats_time(limit.time),
            }),
        }
    }

    /// Full stall of the last ten seconds, where the kubelet tells it.
    pub(crate) fn stall(&self) -> Option<Stall> {
        let percent = self.node.memory?.psi?.full?.avg10;
        Some(Stall { full: Duration::from_secs_f64(percent.clamp(0.0, 100.0) / 10.0), window: Duration::from_secs(10) })
    }

    /// Which disks there seem to be: two of the same size with as many inodes are taken for one. The statistics do not
    /// tell it.
    pub(crate) fn layout(&self) -> DiskLayout {
        let Node { fs, runtime: Runtime { image_fs, container_fs }, .. } = &self.node;
        let size = |fs: &Option<Fs>| fs.map(|fs| (fs.capacity_bytes, fs.inodes));
        let is_apart =
            |one: &Option<Fs>, other: &Option<Fs>| size(one).zip(size(other)).is_some_and(|(one, other)| one != other);
        DiskLayout::of(is_apart(image_fs, fs), is_apart(container_fs, image_fs))
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PodList {
    pub(crate) items: Vec<Pod>,
}

/// A pod.
#[derive(Clone, Debug, Deserialize)]
pub struct Pod {
    metadata: Metadata,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
    uid: String,
    #[serde(default, deserialize_with = "nullable")]
    annotations: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "nullable")]
    owner_references: Vec<Owner>,
    #[serde(default)]
    deletion_timestamp: Option<Time>,
}

#[derive(Clone, Debug, Deserialize)]
struct Owner {
    kind: String,
    uid: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    start_time: Option<Time>,
    #[serde(deserialize_with = "nullable")]
    container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "nullable")]
    init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    name: String,
    /// The runtime's name and the container's id there, `containerd://...`.
    #[serde(rename = "containerID", deserialize_with = "nullable")]
    container_id: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    node_name: String,
    #[serde(default, deserialize_with = "nullable")]
    containers: Vec<Container>,
    #[serde(default, deserialize_with = "nullable")]
    init_containers: Vec<Container>,
    priority: Option<i32>,
    #[serde(default, deserialize_with = "nullable")]
    priority_class_name: String,
    #[serde(default, deserialize_with = "nullable")]
    overhead: Resources,
    resources: Option<Requirements>,
    #[serde(default, deserialize_with = "nullable")]
    volumes: Vec<Volume>,
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    #[serde(default, deserialize_with = "nullable")]
    resources: Requirements,
    restart_policy: Option<String>,
}

type Resources = BTreeMap<String, Quantity>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Requirements {
    #[serde(deserialize_with = "nullable")]
    requests: Resources,
    #[serde(deserialize_with = "nullable")]
    limits: Resources,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    host_path: Option<IgnoredAny>,
    config_map: Option<IgnoredAny>,
    git_repo: Option<IgnoredAny>,
    empty_dir: Option<EmptyDir>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EmptyDir {
    medium: String,
    size_limit: Option<Quantity>,
}

/// Statistics of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodStats {
    #[serde(rename = "podRef")]
    pod_ref: PodRef,
    #[serde(rename = "startTime")]
    start_time: Option<Time>,
    memory: Option<Memory>,
    swap: Option<Swap>,
    process_stats: Option<Processes>,
    #[serde(rename = "ephemeral-storage")]
    ephemeral_storage: Option<Used>,
    #[serde(deserialize_with = "nullable")]
    containers: Vec<ContainerStats>,
    #[serde(rename = "volume", deserialize_with = "nullable")]
    volumes: Vec<VolumeStats>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodRef {
    name: String,
    namespace: String,
    uid: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Swap {
    swap_usage_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Processes {
    process_count: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Used {
    used_bytes: Option<u64>,
    inodes_used: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerStats {
    name: String,
    memory: Option<Memory>,
    rootfs: Option<Used>,
    logs: Option<Used>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeStats {
    name: String,
    #[serde(default)]
    used_bytes: Option<u64>,
    #[serde(default)]
    inodes_used: Option<u64>,
}

fn amounts(resources: &Resources) -> Amounts {
    let of = |name: &str| resources.get(name).map(Quantity::amount);
    Amounts {
        cpu: of("cpu"),
        memory: of("memory"),
        ephemeral_storage: of(STORAGE),
        huge_pages: resources.keys().any(|name| name.starts_with("hugepages-")),
    }
}

impl From<&Requirements> for kubelet::Requirements {
    fn from(Requirements { requests, limits }: &Requirements) -> Self {
        Self { requests: amounts(requests), limits: amounts(limits) }
    }
}

fn usage(used: Option<Used>) -> Usage {
    used.map_or(Usage::default(), |used| Usage { bytes: used.used_bytes, inodes: used.inodes_used })
}

/// The 128 bits of a UID; of one in no known form, bits that follow from its text.
fn bits(uid: &str) -> u128 {
    let digits: String = uid.chars().filter(|character| *character != '-').collect();
    if digits.len() == 32
        && let Ok(bits) = u128::from_str_radix(&digits, 16)
    {
        return bits;
    }
    // FNV-1a.
    uid.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// A pod of a recording has no cgroup: the end of its UID stands for that.
fn key(uid: Uid) -> Key {
    let [.., c, d] = [uid.0 >> 64, uid.0].map(|half| u64::try_from(half & u128::from(u64::MAX)).unwrap_or(0));
    Key { slot: 0, id: CgroupId(c ^ d) }
}

fn full_name(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// How long a pod may take to be gone once its grace is over and it is killed; whoever takes longer is stuck.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// A pod whose deletion is for this time, at which its grace is over.
fn terminating(end: MonotonicNs, now: MonotonicNs) -> Terminating {
    Terminating { is_stuck: now > end.after(KILL_PATIENCE), is_graceful: end > now, until: Some(end) }
}

/// What a summary tells of pods, and what a list of pods adds to it.
pub(crate) struct Seen<'a> {
    pub(crate) name: String,
    pub(crate) uid: Uid,
    pod: Option<&'a Pod>,
    stats: Option<&'a PodStats>,
    /// For the lists below to be borrowed from.
    limits: Vec<kubelet::ContainerLimit<'a>>,
    volumes: Vec<kubelet::Volume<'a>>,
    containers: Vec<kubelet::ContainerStats<'a>>,
    volume_stats: Vec<kubelet::VolumeStats<'a>>,
}

impl PodStats {
    /// Memory of no file.
    fn rss(&self) -> Option<Bytes> {
        self.memory?.rss_bytes.map(Bytes)
    }
}

impl Summary {
    /// What is available to pods together, if all their cache could be dropped: allocatable memory less what is no
    /// cache. Absent if that of any pod was not told.
    pub(crate) fn pods_mem_available(&self) -> Option<Bytes> {
        let reading = Readings::of(&self.node_stats()).get(Signal::AllocatableMemoryAvailable)?;
        let held = self.pods.iter().try_fold(Bytes::ZERO, |sum, pod| Some(sum.saturating_add(pod.rss()?)))?;
        let allocatable = Bytes(u64::try_from(reading.capacity).ok()?);
        (!self.pods.is_empty()).then(|| allocatable.saturating_sub(held))
    }
}

/// Pods that are seen: those of the list that run on this node, or, without a list, those that the summary knows.
pub(crate) fn seen<'a>(summary: &'a Summary, pods: Option<&'a [Pod]>) -> Vec<Seen<'a>> {
    match pods {
        None => {
            let of_stats = |stats: &'a PodStats| {
                let PodRef { name, namespace, uid } = &stats.pod_ref;
                Seen::of(full_name(namespace, name), uid, None, Some(stats))
            };
            summary.pods.iter().map(of_stats).collect()
        }
        Some(pods) => {
            let is_here = |pod: &&Pod| {
                let node = &summary.node.name;
                let runs = !matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
                runs && (node.is_empty() || pod.spec.node_name.is_empty() || pod.spec.node_name == *node)
            };
            let stats: BTreeMap<&str, &PodStats> =
                summary.pods.iter().map(|stats| (stats.pod_ref.uid.as_str(), stats)).collect();
            let of_pod = |pod: &'a Pod| {
                let Metadata { name, namespace, uid, annotations, .. } = &pod.metadata;
                // The statistics of a static pod carry the hash of its file; the pod that stands for it has that noted.
                let hash = annotations.get("kubernetes.io/config.hash").map(String::as_str);
                let stats = stats.get(uid.as_str()).or_else(|| stats.get(hash?)).copied();
                Seen::of(full_name(namespace, name), uid, Some(pod), stats)
            };
            pods.iter().filter(is_here).map(of_pod).collect()
        }
    }
}

impl<'a> Seen<'a> {
    /// Memory of no file; nothing where that was not told.
    pub(crate) fn rss(&self) -> Bytes {
        self.stats.and_then(PodStats::rss).unwrap_or(Bytes::ZERO)
    }

    fn of(name: String, uid: &str, pod: Option<&'a Pod>, stats: Option<&'a PodStats>) -> Self {
        let containers = pod.into_iter().flat_map(|pod| &pod.spec.containers);
        let volumes = pod.into_iter().flat_map(|pod| &pod.spec.volumes);
        Self {
            name,
            uid: Uid(bits(uid)),
            pod,
            stats,
            limits: containers
                .map(|container| kubelet::ContainerLimit {
                    name: &container.name,
                    ephemeral_storage: container.resources.limits.get(STORAGE).map(Quantity::amount),
                })
                .collect(),
            volumes: volumes
                .map(|volume| kubelet::Volume {
                    name: &volume.name,
                    is_local: volume.host_path.is_some()
                        || volume.config_map.is_some()
                        || volume.git_repo.is_some()
                        || volume.empty_dir.as_ref().is_some_and(|dir| dir.medium.is_empty()),
                    size_limit: volume.empty_dir.as_ref().and_then(|dir| dir.size_limit.as_ref()).map(Quantity::amount),
                })
                .collect(),
            containers: stats
                .into_iter()
                .flat_map(|stats| &stats.containers)
                .map(|container| kubelet::ContainerStats {
                    name: &container.name,
                    rootfs: usage(container.rootfs),
                    logs: usage(container.logs),
                })
                .collect(),
            volume_stats: stats
                .into_iter()
                .flat_map(|stats| &stats.volumes)
                .map(|volume| kubelet::VolumeStats {
                    name: &volume.name,
                    usage: Usage { bytes: volume.used_bytes, inodes: volume.inodes_used },
                })
                .collect(),
        }
    }

    /// The pod as it is decided about.
    pub(crate) fn workload(&self, now: MonotonicNs) -> Workload<'_> {
        let stats = self.stats.map(|stats| kubelet::PodStats {
            working_set: stats.memory.and_then(|memory| memory.working_set_bytes),
            processes: stats.process_stats.and_then(|processes| processes.process_count),
            ephemeral_storage: stats.ephemeral_storage.and_then(|used| used.used_bytes),
            containers: &self.containers,
            volumes: &self.volume_stats,
        });
        let status_start = self.pod.and_then(|pod| pod.status.start_time);
        let started = status_start.or_else(|| self.stats?.start_time).map_or(MonotonicNs(0), Time::monotonic);
        let swapped = self.stats.and_then(|stats| stats.swap?.swap_usage_bytes).map(plimsoll_units::Bytes);
        let base = Workload {
            key: key(self.uid),
            uid: self.uid,
            facts: kubelet::Pod { containers: &self.limits, volumes: &self.volumes, stats, ..kubelet::Pod::default() },
            started,
            swapped,
            ..Workload::default()
        };
        let Some(pod @ Pod { metadata, spec, status: _ }) = self.pod else { return base };
        let daemon_set = metadata.owner_references.iter().find(|owner| owner.kind == "DaemonSet");
        let (qos, facts) = pod.with_spec(|asked| {
            let facts = kubelet::Pod {
                priority: spec.priority.unwrap_or(0),
                critical: asked.critical(),
                memory_request: asked.memory_request(),
                ephemeral_storage_request: asked.ephemeral_storage_request(),
                ephemeral_storage_limit: asked.ephemeral_storage_limit(),
                grace_seconds: spec.termination_grace_period_seconds,
                ..base.facts
            };
            (asked.qos(), facts)
        });
        Workload {
            facts,
            qos,
            daemon_set: daemon_set.map(|owner| OwnerUid(bits(&owner.uid))),
            terminating: metadata.deletion_timestamp.map(|end| terminating(end.monotonic(), now)),
            ..base
        }
    }
}
