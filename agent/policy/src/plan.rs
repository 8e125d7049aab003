//! What is to be done, and why: typed, in storage that is used again and again, rendered by [`text`](crate::text).

use crate::config::Config;
use crate::kubelet::{Amount, Condition, Conditions, Limit, QosClass};
use crate::observation::{Key, MemoryReading, Protected, Reclaimed, Uid};
use crate::scope::Scope;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde::{Deserialize, Serialize};

/// Which of the two readings of available memory are below a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Case {
    /// None is: nothing is done.
    Neither,
    /// Both are, or the only one that there is: evict.
    Both,
    /// Only the kubelet's is. Cache that could be dropped is in the way: reclaim first, and evict only if that did not
    /// help and tasks stall.
    KubeletOnly,
    /// Only the kernel's own is. The kubelet's figure rises while memory runs out, because reclaim turns active file
    /// pages inactive, and this is where the OOM killer is first: evict.
    MemAvailableOnly,
}

impl Case {
    /// The case of two readings, where the kernel's may be missing.
    pub const fn of(kubelet_below: bool, kernel_below: Option<bool>) -> Self {
        match (kubelet_below, kernel_below) {
            (true, Some(true) | None) => Self::Both,
            (true, Some(false)) => Self::KubeletOnly,
            (false, Some(true)) => Self::MemAvailableOnly,
            (false, Some(false) | None) => Self::Neither,
        }
    }
}

/// What an action is done for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// This threshold of the scope is met.
    Threshold(u32),
    /// Swap is short, pages come back from it, and all tasks stall.
    Swap,
    /// The pod is over this limit of its own.
    Limit(Limit),
}

/// A threshold held against the observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThresholdStatus {
    /// Which: a threshold, or swap.
    pub why: Why,
    /// Where it is.
    pub at: Amount,
    /// The threshold and its minimum reclaim: what should be available once it was met.
    pub target: Amount,
    /// What is available, by the lowest reading that is below; the kubelet's where none is.
    pub available: Amount,
    /// Which readings are below the threshold, or below the target if it was met before and is not resolved. Only
    /// memory has two.
    pub case: Case,
    /// Since when without a break; absent above the threshold.
    pub since: Option<MonotonicNs>,
    /// It is below, and its grace period is over.
    pub is_met: bool,
}

impl ThresholdStatus {
    /// What is missing to the target.
    pub fn missing(&self) -> Amount {
        (self.target - self.available).max(Amount::ZERO)
    }
}

/// How much is missing, and how much of it comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deficit {
    /// Missing to the target.
    pub missing: Amount,
    /// What will be allocated until memory is back, at the rate of the fall. Only workloads that grew pay for it.
    pub expected: Amount,
    /// Held by workloads that are terminating and not stuck.
    pub coming: Amount,
    /// Held by the victims of this plan, those that are escalated to a kill included.
    pub taken: Amount,
}

impl Deficit {
    /// What of [`Self::missing`] is still missing when all of that is back.
    pub fn uncovered(&self) -> Amount {
        (self.missing - self.coming - self.taken).max(Amount::ZERO)
    }

    /// Whether nothing is.
    pub fn is_covered(&self) -> bool {
        self.uncovered().is_zero()
    }

    /// Whether it suffices for what is expected to be allocated meanwhile, too.
    pub(crate) fn covers_expected(&self) -> bool {
        self.missing + self.expected <= self.coming + self.taken
    }

    /// Whether another victim is needed, and this one pays for what is left.
    pub(crate) fn asks(&self, ranked: &Ranked) -> bool {
        !self.is_covered() || ranked.growth.is_large && !self.covers_expected()
    }
}

/// Which workloads took the memory since it was last plentiful. Growth is by owner: what all workloads of one use together
/// now, less what all of them used together then.
///
/// The rule: growth of workloads that may be evicted must be at least [`Config::responsible_percent`] of all that
/// available memory fell by, and half of that part of the fall which no dead workload holds. Otherwise most of the
/// trouble is elsewhere (tasks in the root cgroup, the kernel, a protected service, memory that outlives its cgroup).
/// Evicting by rank would then cost workloads that are not responsible and help for a moment only, so nothing is
/// evicted and the plan says so, unless [`Config::evict_for_unattributed`] is set.
///
/// "Last plentiful" is the latest observation with [`Config::plentiful`] more available than the highest threshold asks
/// for; for a hard threshold, than the highest hard one does, whatever soft ones there are above it. Where there was
/// none since the start, it is the first observation above all thresholds; where there was none of that either,
/// everything in use counts as grown. A workload without a reading counts as not grown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribution {
    /// By how much available memory fell, in the reading that is below.
    pub fallen: Bytes,
    /// How much of it workloads grew by of which no process is left.
    pub left_behind: Bytes,
    /// By how much those that may be evicted, or are terminating already, grew together.
    pub evictable_grew: Bytes,
    /// By how much protected ones grew together.
    pub protected_grew: Bytes,
}

impl Attribution {
    /// Whether workloads that may be evicted are responsible for enough of the fall.
    pub fn is_evictable(&self, responsible_percent: u8) -> bool {
        let living = self.fallen.saturating_sub(self.left_behind);
        is_share(self.evictable_grew, responsible_percent, self.fallen) && is_share(self.evictable_grew, 50, living)
    }
}

/// Whether `part` is at least so many percent of `whole`.
pub(crate) const fn is_share(part: Bytes, percent: u8, whole: Bytes) -> bool {
    part.0 as u128 * 100 >= whole.0 as u128 * percent as u128
}

/// A reclaim on the node, before anything is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Reclaim this much memory from workloads over their request, without killing.
    Memory(Amount),
    /// Remove dead containers and their logs.
    Containers,
    /// Remove the images of [`Plan::images`], in this order; all unused ones under the policy `kubelet`.
    Images,
    /// Remove dead containers and all unused images, as the kubelet does.
    ContainersAndImages,
}

/// A reclaim that is asked for. It is over when an observation says so ([`Reclaimed`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimOrder {
    /// Its number, higher than all before in the same scope.
    pub order: u64,
    /// What is done.
    pub stage: Stage,
    /// What it is done for.
    pub why: Why,
}

impl ReclaimOrder {
    /// Whether it has ended.
    pub fn has_ended(&self, reclaimed: Option<Reclaimed>) -> bool {
        reclaimed.is_some_and(|reclaimed| reclaimed.order >= self.order)
    }
}

/// One thing to do, in this order. Workloads are named by their index in the observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Reclaim on the node.
    Reclaim(ReclaimOrder),
    /// Kill at once a workload that is terminating in its grace: a hard threshold is met.
    EscalateToKill {
        /// Which.
        workload: u32,
        /// What for.
        why: Why,
    },
    /// Evict.
    Evict {
        /// Which.
        workload: u32,
        /// What for.
        why: Why,
        /// Seconds for an orderly end. One and less is at once: a pod is given one second, a cgroup is killed.
        grace_seconds: i64,
    },
}

impl Action {
    /// The workload that is killed or asked to end.
    pub const fn victim(&self) -> Option<u32> {
        match *self {
            Self::Evict { workload, .. } | Self::EscalateToKill { workload, .. } => Some(workload),
            Self::Reclaim(_) => None,
        }
    }
}

/// By which readings the thresholds behind a condition are crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum ConditionCase {
    /// At least one threshold by both, or by the only one that there is.
    Both,
    /// All by the kubelet's alone.
    KubeletOnly,
    /// All by the kernel's own alone.
    MemAvailableOnly,
    /// Some by the kubelet's alone and others by the kernel's alone: nothing is below by both.
    Mixed,
}

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
    /// It is within its request, and does not pay for one that is left alone although it is over its own.
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
    /// That is at least [`Config::responsible_percent`] of what the owner grew by that grew most; or the workload grows
    /// while it is frozen.
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
    /// What its eviction gives back.
    pub frees: Amount,
    /// When it was started.
    pub started: MonotonicNs,
    /// By how much it grew since memory was last plentiful.
    pub growth: Growth,
    /// Its owner grew, and it did itself by as large a share of what the owner's workload grew by that grew most. While
    /// memory is short, every such workload may be taking more of it.
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
}

/// A pod over a limit of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limited {
    pub(crate) workload: u32,
    /// What it holds counts as coming back. Not so if it was to be evicted last turn already and is not terminating.
    pub(crate) counts: bool,
}

/// What is to be done, in storage that is used again and again.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(crate) capacity: usize,
    /// What it is about.
    pub scope: Scope,
    /// When its observation was taken.
    pub taken: MonotonicNs,
    /// When it was made.
    pub made: MonotonicNs,
    /// In one word.
    pub outcome: Outcome,
    /// What memory was read.
    pub memory: Option<MemoryReading>,
    /// Every threshold that could be held against a reading, in the order of the configuration; then swap.
    pub thresholds: Vec<ThresholdStatus>,
    /// The threshold (an index into [`Self::thresholds`]) that the outcome is about.
    pub acting: Option<u32>,
    /// Pods that are evicted for limits of their own, in the order of the observation.
    pub(crate) limited: Vec<Limited>,
    /// What is to be done, in order.
    pub actions: Vec<Action>,
    /// Images that are to be removed, in order.
    pub images: Vec<u32>,
    /// Conditions to report.
    pub conditions: Conditions,
    /// What is missing; set when something had to be evicted.
    pub deficit: Option<Deficit>,
    /// All that may be evicted would together not free what is missing on a disk: evicting does not help, and is done
    /// at the kubelet's pace.
    pub is_futile: bool,
    /// Which workloads took the memory; set when something had to be evicted for it.
    pub attribution: Option<Attribution>,
    /// All workloads of the scope, ranked for the acting threshold; filled when one is acted on.
    pub ranked: Vec<Ranked>,
    /// Storage for ranking: workloads by owner.
    pub(crate) owned: Vec<Owned>,
    /// Workloads that found no room in the plan and were left out.
    pub overlooked: u32,
    /// Decide again at this time even without an event: a grace period, a limit or a pause ends then.
    pub recheck_at: Option<MonotonicNs>,
}

impl Plan {
    /// A plan for the scopes of `config`, and up to so many workloads and images. Nothing allocates later.
    pub fn with_capacity(config: &Config, workloads: usize, images: usize) -> Self {
        let thresholds =
            config.slices.iter().map(|slice| slice.thresholds.len()).fold(config.thresholds.len(), usize::max);
        Self {
            capacity: workloads,
            limited: Vec::with_capacity(workloads),
            // One reclaim beside all victims.
            actions: Vec::with_capacity(workloads + 1),
            images: Vec::with_capacity(images),
            // Swap beside the thresholds.
            thresholds: Vec::with_capacity(thresholds + 1),
            ranked: Vec::with_capacity(workloads),
            owned: Vec::with_capacity(workloads),
            ..Self::default()
        }
    }

    /// The threshold that the outcome is about.
    pub fn acting(&self) -> Option<&ThresholdStatus> {
        self.thresholds.get(self.acting? as usize)
    }

    /// By which readings the thresholds behind a condition are crossed right now; absent if none of them is.
    pub fn condition_case(&self, config: &Config, condition: Condition) -> Option<ConditionCase> {
        let thresholds = config.thresholds_in(self.scope);
        let is_behind = |why| match why {
            Why::Threshold(index) => {
                thresholds.get(index as usize).is_some_and(|threshold| threshold.signal.condition() == condition)
            }
            Why::Swap => condition == Condition::MemoryPressure,
            Why::Limit(_) => false,
        };
        let has = |case| {
            let mut crossed = self.thresholds.iter().filter(|status| status.since.is_some() && is_behind(status.why));
            crossed.any(|status| status.case == case)
        };
        match (has(Case::Both), has(Case::KubeletOnly), has(Case::MemAvailableOnly)) {
            (true, _, _) => Some(ConditionCase::Both),
            (false, true, true) => Some(ConditionCase::Mixed),
            (false, true, false) => Some(ConditionCase::KubeletOnly),
            (false, false, true) => Some(ConditionCase::MemAvailableOnly),
            (false, false, false) => None,
        }
    }

    /// Indices of all workloads that are killed by this plan, or asked to end.
    pub fn victims(&self) -> impl Iterator<Item = u32> + '_ {
        self.actions.iter().filter_map(Action::victim)
    }

    /// Indices of workloads that are evicted, in order.
    pub fn evicted(&self) -> impl Iterator<Item = u32> + '_ {
        self.actions.iter().filter(|action| matches!(action, Action::Evict { .. })).filter_map(Action::victim)
    }

    /// Indices of workloads that were terminating in their grace and are killed at once, in order.
    pub fn escalated(&self) -> impl Iterator<Item = u32> + '_ {
        self.actions.iter().filter(|action| matches!(action, Action::EscalateToKill { .. })).filter_map(Action::victim)
    }

    /// The reclaim that is asked for.
    pub fn reclaim(&self) -> Option<ReclaimOrder> {
        self.actions.iter().find_map(|action| match *action {
            Action::Reclaim(order) => Some(order),
            Action::Evict { .. } | Action::EscalateToKill { .. } => None,
        })
    }

    pub(crate) fn clear(&mut self, scope: Scope, taken: MonotonicNs, made: MonotonicNs) {
        self.scope = scope;
        self.taken = taken;
        self.made = made;
        self.outcome = Outcome::default();
        self.memory = None;
        self.thresholds.clear();
        self.acting = None;
        self.limited.clear();
        self.actions.clear();
        self.images.clear();
        self.conditions = Conditions::default();
        self.deficit = None;
        self.is_futile = false;
        self.attribution = None;
        self.ranked.clear();
        self.owned.clear();
        self.overlooked = 0;
        self.recheck_at = None;
    }

    pub(crate) fn recheck_by(&mut self, at: MonotonicNs) {
        self.recheck_at = Some(self.recheck_at.map_or(at, |earlier| earlier.min(at)));
    }
}
