//! Workloads in the order in which they would be evicted, and what becomes of each.

use crate::kubelet::{Amount, QosClass};
use crate::observation::{Key, Protected, Uid};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde::{Deserialize, Serialize};

/// What becomes of a workload, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It is evicted.
    Evicted,
    /// It was terminating in its grace and is killed at once.
    EscalatedToKill,
    /// It is evicted in any case: it is over a limit of its own.
    OverLimit,
    /// Those before it are enough, or nothing had to be evicted.
    NotNeeded,
    /// It is never evicted.
    Protected(Protected),
    /// It is terminating already and counts as coming back.
    Terminating,
    /// It is terminating already and does not end, or could not be killed, and is not counted on.
    Stuck,
    /// It could not be read: nothing is evicted blindly.
    NoStatistics,
    /// Its eviction would give back nothing of what is short, as far as is known.
    NothingToFree,
    /// It returned at once after it was evicted and is over its request again; it is left alone until then.
    Looping(MonotonicNs),
    /// It is within its request, or of a higher priority, and does not pay for one that is left alone although it is over its
    /// own request.
    SparedByLoop,
    /// Guaranteed, while another class remains.
    ClassRemains,
    /// It would free less than a hundredth of what is missing on a disk, and all together would not be enough.
    TooLittle,
    /// It would have been next but for the limit of victims a minute.
    RateLimited,
    /// It is spared because most of the growth is in nothing that may be evicted, or in what another left behind.
    NotResponsible,
}

/// Growth of a workload and of its owner since memory was last plentiful; of memory alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// By how much it grew itself.
    pub own: Option<Bytes>,
    /// By how much all workloads of its owner did together.
    pub owner: Option<Bytes>,
    /// That is at least [`Config::responsible_percent`](crate::Config::responsible_percent) of what the owner grew by
    /// that grew most; or the workload grows while it is frozen.
    pub is_large: bool,
}

/// A workload with the keys that ranked it. Sorted: the one that would be evicted first is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranked {
    /// Its index among the workloads of the observation.
    pub workload: u32,
    /// Where it is kept.
    pub key: Key,
    /// The pod, or the cgroup.
    pub uid: Uid,
    /// The cgroup that it belongs to; absent where it is its own owner.
    pub owner: Option<CgroupId>,
    /// Its class of service.
    pub qos: QosClass,
    /// What is known of it says what it uses of what is short.
    pub is_measured: bool,
    /// What its owner requests of what is short; absent where nothing can be requested, or nothing is known.
    pub request: Option<Amount>,
    /// Its owner uses more than it requests, or anything where nothing can be requested.
    pub exceeds: bool,
    /// Its priority.
    pub priority: i32,
    /// What it uses, swapped memory included.
    pub usage: Amount,
    /// What all workloads of its owner use that are not terminating, less what the owner requests of just that.
    pub over: Amount,
    /// What its eviction gives back; of several that may hold what their owner's empty cgroups are charged with, the last
    /// one gives that back, too.
    pub frees: Amount,
    /// When it was started.
    pub started: MonotonicNs,
    /// By how much it grew since memory was last plentiful.
    pub growth: Growth,
    /// Its owner grew, and it did itself by as large a share of what the owner's workload grew by that grew most; or it may
    /// hold what the owner's empty cgroups grew by. While memory is short, every such workload may be taking more of it.
    pub grew: bool,
    /// How often it returned at once after it was evicted and was over its request again. More than zero names a loop.
    pub returns: u32,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// A workload of another's, while ranking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owned {
    pub(crate) owner: CgroupId,
    /// Its place among the ranked.
    pub(crate) row: u32,
    /// What all of the owner's workloads used when memory was plentiful; kept in its first one.
    pub(crate) before: Bytes,
    /// What its empty cgroups grew by, where that is more than any living workload of it did; kept in its first one.
    pub(crate) left: Bytes,
}
