//! Traces of what was observed: one JSON object a line, the first of them a [`Header`]. `agent/docs/replay.md`
//! describes every field for other programs that write or read them.

use plimsoll_policy::kubelet::QosClass;
use plimsoll_policy::{MemoryReading, OwnerUid, Protected, Uid};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

mod disks;

pub use disks::{DiskLeft, DiskSample, EndedReclaim};

/// The version of the format that is written.
pub const VERSION: u32 = 4;
/// The oldest one that is read: the third is the fourth without disks.
pub const OLDEST_VERSION: u32 = 3;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`VERSION`].
    #[serde(rename = "plimsoll_trace")]
    pub version: u32,
    /// The agent's version.
    pub agent: String,
    /// The wall clock's nanoseconds since 1970 at the monotonic clock's zero, so that times can be given in wall-clock
    /// time; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_ns: Option<i64>,
}

/// A trace.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Its first line.
    pub header: Header,
    /// What follows, in order of time.
    pub entries: Vec<Entry>,
    /// The last line has no end and was left out.
    pub is_cut_off: bool,
}

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// What was decided on.
    Sample(Sample),
    /// A plan that the agent reported.
    Reported(Reported),
    /// What thresholds on disks were held against.
    Disks(DiskSample),
}

impl Entry {
    /// When, on the monotonic clock.
    pub const fn at(&self) -> MonotonicNs {
        match self {
            Self::Sample(sample) => sample.at_ns,
            Self::Reported(reported) => reported.at_ns,
            Self::Disks(sample) => sample.at_ns,
        }
    }

    /// Whether it is of disks, which have turns of their own: its time is one of its own kind alone.
    pub const fn is_of_disks(&self) -> bool {
        matches!(self, Self::Disks(_))
    }
}

/// What was observed of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// When.
    pub at_ns: MonotonicNs,
    /// When it was decided on, by the agent that wrote the trace. Such a sample has of every workload whether it is
    /// terminating, and which reclaims have ended. Absent for a sample on which nothing was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_ns: Option<MonotonicNs>,
    /// How many samples before it are missing, because they were not written in time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing: u32,
    /// Memory; absent if it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// What the kernel's own estimate leaves out of free memory, page cache and slab that can shrink; absent where it was
    /// not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld_bytes: Option<Bytes>,
    /// The part of the memory that is set aside for huge pages.
    #[serde(default, skip_serializing_if = "is_zero_bytes")]
    pub huge_page_pool_bytes: Bytes,
    /// Tasks of the machine; absent where no threshold is on them, and where they could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Tasks>,
    /// How long all tasks waited for memory; absent if the kernel does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
    /// Swap; absent if there is none, or if it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap: Option<Swap>,
    /// Slices with a limit of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<Slice>,
    /// The last reclaim of each scope that has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reclaimed: Vec<Reclaimed>,
    /// All workloads, those that are protected too.
    #[serde(default)]
    pub workloads: Vec<Workload>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
const fn is_zero_bytes(bytes: &Bytes) -> bool {
    bytes.0 == 0
}

/// A plan that the agent reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reported {
    /// When its observation was taken: there is a sample of that time before it.
    pub at_ns: MonotonicNs,
    /// The slice that it is about; absent for the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// The plan as the log has it.
    pub line: String,
    /// The plan as the log in JSON has it.
    #[serde(default)]
    pub plan: Map<String, Value>,
}

/// Memory by both readings. The kernel's own is without the huge page pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// All of it.
    pub capacity_bytes: Bytes,
    /// Available by the kubelet's formula.
    pub kubelet_bytes: Bytes,
    /// Available by the kernel's own estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_available_bytes: Option<Bytes>,
}

impl From<Memory> for MemoryReading {
    fn from(memory: Memory) -> Self {
        let Memory { capacity_bytes, kubelet_bytes, mem_available_bytes } = memory;
        Self { capacity: capacity_bytes, kubelet_available: kubelet_bytes, mem_available: mem_available_bytes }
    }
}

impl From<MemoryReading> for Memory {
    fn from(memory: MemoryReading) -> Self {
        let MemoryReading { capacity, kubelet_available, mem_available } = memory;
        Self { capacity_bytes: capacity, kubelet_bytes: kubelet_available, mem_available_bytes: mem_available }
    }
}

/// Tasks (threads) of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tasks {
    /// How many there are.
    pub count: u64,
    /// How many there can be: the lesser of `pid_max` and `threads-max`.
    pub limit: u64,
}

/// Full stall within a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// The time during which all tasks waited.
    pub full_ns: u64,
    /// The time within which they waited so long.
    pub window_ns: u64,
}

/// Swap of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Swap {
    /// All of it.
    pub total_bytes: Bytes,
    /// The part of it that is free.
    pub free_bytes: Bytes,
    /// Pages that were read back soon after they were swapped out, counted since boot (`workingset_refault_anon`).
    pub refaults: u64,
}

/// The end of a reclaim that a plan asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reclaimed {
    /// The slice that the plan was about; absent for the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// The number of the order.
    pub order: u64,
    /// When it ended.
    pub at_ns: MonotonicNs,
}

/// How a workload is terminating.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Terminating {
    /// It was asked to terminate within its grace period.
    Graceful {
        /// When the grace period ends.
        until_ns: MonotonicNs,
    },
    /// It was killed.
    Killed,
    /// It was killed and does not end.
    Stuck,
    /// It could not be killed.
    Refused,
}

/// A slice with a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Its path below the cgroup root.
    pub path: String,
    /// Its limit.
    pub capacity_bytes: Bytes,
    /// The limit less its working set.
    pub available_bytes: Bytes,
    /// The limit less what reclaim could not take of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_available_bytes: Option<Bytes>,
}

/// The delegated cgroup that a workload belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// The cgroup's id.
    pub id: CgroupId,
    /// Its effective protection, bounded by its ancestors.
    pub request_bytes: Bytes,
}

/// A workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Its path below the cgroup root.
    pub cgroup: String,
    /// The cgroup's id: another one at the same path has another id.
    pub id: CgroupId,
    /// What it belongs to; absent where that is the workload itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Its working set; absent if it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<Bytes>,
    /// What it was when the page cache was read, where more has been charged since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_bytes: Option<Bytes>,
    /// The part of it that reclaim could not drop; absent if that could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_bytes: Option<Bytes>,
    /// The part of its memory that is in swap; absent if that could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swapped_bytes: Option<Bytes>,
    /// How many tasks it has; absent where they are not short, and where that could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u64>,
    /// No process is left in it.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub empty: bool,
    /// It was frozen and its memory grew nevertheless.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub grows_while_frozen: bool,
    /// Its reservation: the memory request, or `memory.low` of a cgroup.
    #[serde(default)]
    pub reservation_bytes: Bytes,
    /// Its priority; a workload of lower priority is evicted first.
    #[serde(default)]
    pub priority: i32,
    /// When it was first seen.
    #[serde(default)]
    pub started_ns: MonotonicNs,
    /// Set while it is terminating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating: Option<Terminating>,
    /// The most of its memory that its end gives back, where that may be less than what it uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returns_at_most_bytes: Option<Bytes>,
    /// Why it is never evicted, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protected: Option<Protected>,
    /// The pod that it is, with its request and its priority in the fields above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pod {
    /// Its UID.
    pub uid: String,
    /// Its class of service.
    pub qos: QosClass,
    /// The time that it wants for an orderly end; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<i64>,
    /// The UID of the DaemonSet that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon_set: Option<String>,
}

impl Pod {
    /// With UIDs as text.
    pub fn new(uid: Uid, qos: QosClass, grace_seconds: Option<i64>, daemon_set: Option<OwnerUid>) -> Self {
        let text = |uid: u128| format!("{uid:032x}");
        Self { uid: text(uid.0), qos, grace_seconds, daemon_set: daemon_set.map(|owner| text(owner.0)) }
    }
}
