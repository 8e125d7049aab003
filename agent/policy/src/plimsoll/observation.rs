//! What was seen of the node and its pods. What could not be read is absent, never zero.

use crate::kubelet::{self, DiskLayout, NodeStats, QosClass, StatsTime, Usage};
use crate::observation::Stall;
use plimsoll_units::{Bytes, MonotonicNs};

/// The UID of a pod: 128 bits, however they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(pub u128);

/// The UID of the `DaemonSet` that a pod belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerUid(pub u128);

/// A pod on the way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Going {
    /// It does not end although it was killed: what it holds is not counted on.
    pub is_stuck: bool,
    /// It was asked to end and has time left; a hard threshold does not wait for that.
    pub is_gentle: bool,
}

/// A pod, with what the kubelet's rules ask of it and what these ask besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pod<'a> {
    /// Who.
    pub uid: PodUid,
    /// Requests, limits, priority, statistics.
    pub facts: kubelet::Pod<'a>,
    /// Its class of service.
    pub qos: QosClass,
    /// When it was started; of equals the youngest goes first.
    pub started: MonotonicNs,
    /// The `DaemonSet` it belongs to, which starts it again wherever it is evicted from.
    pub daemon_set: Option<OwnerUid>,
    /// What of its memory is in swap.
    pub swapped: Option<Bytes>,
    /// What images take that no other pod uses; for layouts where images have a disk of their own.
    pub own_images: Usage,
    /// Set while it ends. It stays in the list, with its last statistics, until the node's figures are newer than its
    /// end: else what it held would be asked for a second time.
    pub going: Option<Going>,
}

/// An image on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// No container uses it, it is not pinned, and removing it did not fail lately.
    pub is_unused: bool,
    /// When it was last used.
    pub last_used: MonotonicNs,
    /// What it takes.
    pub usage: Usage,
}

/// Swap of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// All of it.
    pub total: Bytes,
    /// What of it is free.
    pub free: Bytes,
    /// Pages that were read back soon after they went there, counted since boot (`workingset_refault_anon`).
    pub refaults: u64,
}

/// The end of a clean-up that a plan asked for, whatever came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaimed {
    /// The number of the order; all earlier ones have ended as well.
    pub order: u64,
    /// When, on the clock of the statistics.
    pub at: StatsTime,
}

/// One look. Build it with `..Observation::default()`, so that new fields do not disturb.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observation<'a> {
    /// Which disks there are; absent if the runtime did not tell.
    pub layout: Option<DiskLayout>,
    /// Statistics of the node; absent if they could not be had.
    pub node: Option<NodeStats>,
    /// Available memory by the kernel's own estimate, without the huge page pool.
    pub mem_available: Option<Bytes>,
    /// When it was read, on the clock of the statistics; absent if it came with these.
    pub mem_available_time: Option<StatsTime>,
    /// What is available to pods together by the same estimate: their limit less what reclaim could not drop; absent if
    /// nobody could tell.
    pub pods_mem_available: Option<Bytes>,
    /// Memory set aside for huge pages, which the kubelet takes for available.
    pub huge_page_pool: Bytes,
    /// Stall of the machine; absent if the kernel does not tell.
    pub stall: Option<Stall>,
    /// Swap; absent without any.
    pub swap: Option<Swap>,
    /// Dead containers; absent if they were not counted.
    pub dead_containers: Option<u32>,
    /// Images on the node.
    pub images: &'a [Image],
    /// The last clean-up that ended.
    pub reclaimed: Option<Reclaimed>,
    /// Running pods, and those on the way out.
    pub pods: &'a [Pod<'a>],
}
