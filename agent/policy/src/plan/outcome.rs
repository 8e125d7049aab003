//! A plan in one word.

use serde::{Deserialize, Serialize};

/// Why nothing could be evicted although something had to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NoVictim {
    /// There are no workloads in this scope.
    NoCandidates,
    /// All are protected, or terminating without an end.
    AllProtected,
    /// Those that may be evicted could not be read.
    NoStatistics,
    /// Those that may be evicted hold nothing of what is short.
    NothingToFree,
    /// None would free a hundredth of what is missing on a disk, nor all together what is missing.
    TooLittle,
    /// Nothing that is known of pods says which eviction would help. None is evicted at random.
    NoUsableRanking,
    /// The ones left are within their requests, and pay for no pod that returns at once and is over its own again.
    OnlyLoops,
}

/// The whole plan in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// No threshold is crossed.
    #[default]
    NoPressure,
    /// The scope has no thresholds, or none that could be held against a reading.
    NotObserved,
    /// The runtime did not say which disks there are.
    NoLayout,
    /// There are no statistics: everything stays as it was.
    NoStatistics,
    /// Pods over limits of their own are evicted, and no hard threshold asks for more; soft ones wait for the next
    /// turn.
    OverLimits,
    /// Only soft thresholds are crossed, and their grace is not over.
    InGrace,
    /// The figures are not newer than those acted on before: conditions and grace go on, actions wait.
    Stale,
    /// A reclaim is asked for, or under way, or no figures are newer than its end.
    Reclaiming,
    /// A reclaim was enough. Only the policy `kubelet` says so.
    Relieved,
    /// Only the kubelet's reading is below, reclaim did not help, and tasks do not stall: cache in use is no reason to
    /// kill.
    CacheInUse,
    /// Enough is coming back from workloads that are terminating.
    ComingBack,
    /// At least one workload is evicted or escalated to a kill.
    Evict,
    /// The limit of victims a minute is used up.
    RateLimited,
    /// Most of the growth is in nothing that may be evicted; it is named, and no other workload pays for it.
    Unattributed,
    /// Something must be evicted and nothing can be.
    NoVictim(NoVictim),
}
