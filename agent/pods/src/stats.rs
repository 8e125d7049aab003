//! A kubelet's `/stats/summary`. The Kubernetes API's types do not have it.

use core::time::Duration;
use jiff::Timestamp;
use plimsoll_policy::Stall;
use plimsoll_policy::kubelet::{self, DiskLayout, NodeStats, Readings, Signal, StatsTime, Usage};
use plimsoll_units::{Bytes, MonotonicNs};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

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
    memory: Option<Memory>,
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
pub struct Time(i64);

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
    pub fn monotonic(self) -> MonotonicNs {
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

/// Statistics of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodStats {
    #[serde(rename = "podRef")]
    pub(crate) pod_ref: PodRef,
    #[serde(rename = "startTime")]
    pub(crate) start_time: Option<Time>,
    pub(crate) memory: Option<Memory>,
    pub(crate) swap: Option<Swap>,
    pub(crate) process_stats: Option<Processes>,
    #[serde(rename = "ephemeral-storage")]
    pub(crate) ephemeral_storage: Option<Used>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) containers: Vec<ContainerStats>,
    #[serde(rename = "volume", deserialize_with = "nullable")]
    pub(crate) volumes: Vec<VolumeStats>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodRef {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Swap {
    pub(crate) swap_usage_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Processes {
    pub(crate) process_count: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Used {
    pub(crate) used_bytes: Option<u64>,
    inodes_used: Option<u64>,
}

impl From<Used> for Usage {
    fn from(Used { used_bytes, inodes_used }: Used) -> Self {
        Self { bytes: used_bytes, inodes: inodes_used }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerStats {
    pub(crate) name: String,
    pub(crate) memory: Option<Memory>,
    pub(crate) rootfs: Option<Used>,
    pub(crate) logs: Option<Used>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct VolumeStats {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) used: Used,
}

impl PodStats {
    /// Memory of no file.
    pub(crate) fn rss(&self) -> Option<Bytes> {
        self.memory?.rss_bytes.map(Bytes)
    }
}

impl Summary {
    /// How many pods it has statistics of.
    pub fn pods(&self) -> usize {
        self.pods.len()
    }

    /// The newest time in it.
    pub fn time(&self) -> Option<Time> {
        let Node { memory, fs, runtime, rlimit, .. } = &self.node;
        let of_fs = [*fs, runtime.image_fs, runtime.container_fs].into_iter().flatten().map(|fs| fs.time);
        of_fs.chain([memory.and_then(|memory| memory.time), rlimit.and_then(|limit| limit.time)]).flatten().max()
    }

    /// The figures of the node.
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

    /// Full stall of the last ten seconds, where the kubelet reports it.
    pub fn stall(&self) -> Option<Stall> {
        let percent = self.node.memory?.psi?.full?.avg10;
        Some(Stall { full: Duration::from_secs_f64(percent.clamp(0.0, 100.0) / 10.0), window: Duration::from_secs(10) })
    }

    /// Which disks there seem to be: two of the same size with as many inodes are taken for one. The statistics do not
    /// say.
    pub fn layout(&self) -> DiskLayout {
        let Node { fs, runtime: Runtime { image_fs, container_fs }, .. } = &self.node;
        let size = |fs: &Option<Fs>| fs.map(|fs| (fs.capacity_bytes, fs.inodes));
        let is_apart =
            |one: &Option<Fs>, other: &Option<Fs>| size(one).zip(size(other)).is_some_and(|(one, other)| one != other);
        DiskLayout::of(is_apart(image_fs, fs), is_apart(container_fs, image_fs))
    }

    /// What is available to pods together, if all their cache could be dropped: allocatable memory less what is no
    /// cache. Absent where the statistics of a pod lack that.
    pub fn pods_mem_available(&self) -> Option<Bytes> {
        let reading = Readings::of(&self.node_stats()).get(Signal::AllocatableMemoryAvailable)?;
        let held = self.pods.iter().try_fold(Bytes::ZERO, |sum, pod| Some(sum.saturating_add(pod.rss()?)))?;
        let allocatable = Bytes(u64::try_from(reading.capacity).ok()?);
        (!self.pods.is_empty()).then(|| allocatable.saturating_sub(held))
    }
}
