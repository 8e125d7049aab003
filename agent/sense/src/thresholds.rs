//! The armed thresholds: the levels that a source watches until it is armed again.

use core::time::Duration;

use arrayvec::ArrayVec;
use plimsoll_abi::{BRAKES, CGROUP_WAKE_PACE_NS, SLICES};
use plimsoll_units::{Bytes, CgroupId, Pages};

/// The most slices with thresholds of their own.
pub const MAX_SLICES: usize = 15;
const _: () = assert!(MAX_SLICES <= SLICES);

/// The most slices that the in-kernel brake may hold at a time.
pub const MAX_BRAKES: usize = BRAKES;

/// How long after an event of a cgroup others may have come that did not wake the reader.
pub const CGROUP_PACE: Duration = Duration::from_nanos(CGROUP_WAKE_PACE_NS);

/// Names one arming. A wake carries the one that it answers; each is larger than all before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// The node's threshold, in two readings of available memory. A level of zero bytes is not watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeThreshold {
    /// An event below this by the kubelet's reading: `MemTotal - (anonymous + file - inactive file)`.
    pub kubelet: Bytes,
    /// An event below this by `MemAvailable`: free and reclaimable, less the watermarks, as `MemAvailable`.
    pub mem_available: Bytes,
    /// `MemTotal`.
    pub total: Pages,
    /// What the kernel keeps for itself in every zone (`totalreserve_pages`).
    pub reserve: Pages,
    /// The sum of all zones' low watermarks.
    pub low_watermark: Pages,
    /// By how much the kernel's global counters may be late in the kubelet's reading: the event comes this much earlier.
    pub kubelet_drift: Pages,
    /// The same in `MemAvailable`.
    pub mem_available_drift: Pages,
}

/// A slice's threshold: an event when what is charged to it reaches `usage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceThreshold {
    /// The slice.
    pub cgroup: CgroupId,
    /// Its depth below the root cgroup, 1 for a child of the root.
    pub level: u16,
    /// An event at or above this.
    pub usage: Bytes,
}

/// An event at or above this many tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskThreshold {
    /// How many.
    pub count: u32,
}

/// All thresholds of one arming.
#[derive(Clone, Debug, Default)]
pub struct ArmedThresholds {
    /// The node's.
    pub node: Option<NodeThreshold>,
    /// The slices', by index.
    pub slices: ArrayVec<SliceThreshold, MAX_SLICES>,
    /// The tasks'.
    pub tasks: Option<TaskThreshold>,
}

/// A slice whose tasks the kernel itself stops as they charge memory below a threshold. Off unless the configuration
/// marks one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrakeMark {
    /// The slice; nested cgroups are held with it.
    pub slice: CgroupId,
    /// Its depth below the root cgroup, 1 for a child of the root.
    pub level: u8,
    /// Stop below this by the kubelet's reading; zero: not by this one.
    pub kubelet: Bytes,
    /// Stop below this by `MemAvailable`; zero: not by this one.
    pub mem_available: Bytes,
}
