//! What the inventory thread sends to the table.

use std::sync::Arc;

use plimsoll_node::cgroup::{Handle, PageCache};
use plimsoll_policy::{Key, Owner, SliceSet};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

use crate::{PathEnd, Pod, PodStorage};

/// A workload's handle and slow figures.
#[derive(Debug)]
pub struct Facts {
    /// Its descriptors.
    pub handle: Arc<Handle>,
    /// The delegated cgroup that it belongs to; absent where it belongs to the machine's administrator alone.
    pub owner: Option<Owner>,
    /// Its effective protection, as far as its owner cannot write it.
    pub reservation: Bytes,
    /// Its page cache; none where that could not be read.
    pub cache: PageCache,
    /// It was read since it was sent last. Where it was not, what the table has may be newer, and stays.
    pub is_cache_read: bool,
    /// Lower is evicted first.
    pub priority: i32,
    /// When it was first seen.
    pub started: MonotonicNs,
    /// The slices with thresholds of their own that it is in.
    pub slices: SliceSet,
    /// The pod that it is.
    pub pod: Option<Pod>,
}

/// A slice with thresholds of its own.
#[derive(Debug)]
pub struct SliceFacts {
    /// Its descriptors.
    pub handle: Arc<Handle>,
    /// Its slow figures.
    pub figures: SliceFigures,
}

/// The slow figures of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceFigures {
    /// Its `memory.max`.
    pub max: Bytes,
    /// Its page cache; none where that could not be read.
    pub cache: PageCache,
}

/// A slice that the kernel itself brakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The slice.
    pub slice: CgroupId,
    /// Its depth below the root.
    pub level: u8,
    /// What names it.
    pub path: PathEnd,
}

/// One change for the table.
#[derive(Debug)]
pub enum Update {
    /// A workload that is new or changed, by its slot.
    Workload(u32, Facts),
    /// The workload in this slot is gone.
    Gone(u32),
    /// What the pod takes of disks that is the workload with this key; absent where nothing was measured. The sender keeps
    /// another reference for as long as this one is held, so that the table never frees it.
    Storage(Key, Option<Arc<PodStorage>>),
    /// A slice that the kernel itself brakes, by place.
    Mark(u8, Option<Mark>),
    /// A slice that is new or changed, by its index; `None`: it does not exist, or has no limit.
    Slice(u8, Option<SliceFacts>),
}
