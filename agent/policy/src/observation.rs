//! What was seen, and when. What could not be read is absent, never zero.

use crate::scope::{Scope, SliceSet};
use core::time::Duration;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde::{Deserialize, Serialize};

/// How much memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReading {
    /// The machine's memory without its huge page pool, or the slice's limit.
    pub capacity: Bytes,
    /// By the kubelet's formula: capacity less (anonymous + file - inactive file).
    pub kubelet_available: Bytes,
    /// By the kernel's own estimate (`MemAvailable`, huge page pool taken out); in a slice, its limit less what reclaim
    /// could not drop. Absent where nobody could tell.
    pub mem_available: Option<Bytes>,
}

/// How long all tasks waited for memory ("full" in pressure stall information).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The time during which every runnable task waited,
    pub full: Duration,
    /// within this long.
    pub window: Duration,
}

impl Stall {
    /// Whether all tasks waited for at least this much of the window, and at all.
    pub const fn is_at_least(self, percent: u8) -> bool {
        !self.full.is_zero() && self.full.as_nanos() * 100 >= self.window.as_nanos() * percent as u128
    }
}

/// Who a candidate is: where the caller keeps it, and the cgroup's id, so that a successor in the same place is not
/// taken for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The caller's own number for it: small and dense, since growth is remembered in a table by slot.
    pub slot: u32,
    /// The cgroup.
    pub id: CgroupId,
}

/// Why somebody is never chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protected {
    /// It is the machine's init or holds it.
    Init,
    /// It is this agent or holds it.
    Agent,
    /// The owner listed it.
    Listed,
    /// A pod of a critical priority.
    Critical,
    /// A static pod, which the kubelet would start again.
    Static,
    /// The mirror of a static pod.
    Mirror,
}

/// Somebody on the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Going {
    /// Memory that it still holds and that comes back when it is gone.
    pub held: Bytes,
    /// It does not end although it was killed, or could not be killed: its memory is not counted on.
    pub stuck: bool,
    /// It was asked to end and has time left; a hard threshold does not wait for that.
    pub gentle: bool,
}

/// Somebody who could be evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// Who.
    pub key: Key,
    /// Working set; absent if it could not be read.
    pub usage: Option<Bytes>,
    /// No process is left in it. What is still charged to it (files in tmpfs, page cache) comes back by ending nobody.
    pub empty: bool,
    /// What it was promised (request, `memory.low` or `memory.min`): those within it go last.
    pub reservation: Bytes,
    /// Lower goes first.
    pub priority: i32,
    /// Set for who must not be chosen.
    pub protected: Option<Protected>,
    /// Set for who is going already.
    pub going: Option<Going>,
    /// When it was started; of equals the youngest goes first.
    pub started: MonotonicNs,
    /// The slices with own lines it is in.
    pub slices: SliceSet,
    /// How long it would want for an orderly end; bounded by [`Config::max_grace`](crate::Config::max_grace).
    pub grace: Duration,
}

/// One look at the machine or a slice. Build it with `..Observation::default()`, so that new fields do not disturb.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observation<'a> {
    /// The time of the oldest value in it.
    pub taken: MonotonicNs,
    /// What it is about.
    pub scope: Scope,
    /// Available memory; absent if it could not be read.
    pub memory: Option<MemoryReading>,
    /// Stall of the machine or the slice; absent if the kernel does not tell.
    pub stall: Option<Stall>,
    /// Memory of tasks outside all candidates (the root cgroup, kernel, what is listed nowhere), if known: only told
    /// on.
    pub unattributed: Option<Bytes>,
    /// When the last reclaim that a plan asked for in this scope ended.
    pub reclaimed: Option<MonotonicNs>,
    /// Who could be evicted, and who is protected or going.
    pub candidates: &'a [Candidate],
}
