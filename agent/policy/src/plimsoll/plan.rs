//! What is to be done, and why: typed, in storage that is used again and again.

use super::config::Config;
use super::observation::{PodUid, Reclaimed};
use crate::kubelet::{Amount, Condition, Conditions, Critical, Limit, QosClass};
use crate::plan::Case;
use plimsoll_units::MonotonicNs;
use serde::Serialize;

/// What is decided on: a line that is crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// This threshold of the configuration.
    Threshold(u32),
    /// Swap is short, pages come back from it, and all tasks stall.
    Swap,
    /// The pod is over this limit of its own.
    Limit(Limit),
}

/// A line held against the observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Which: a threshold, or swap.
    pub line: Why,
    /// Where it is.
    pub at: Amount,
    /// The line and its minimum reclaim: what should be available once it was met.
    pub target: Amount,
    /// What is missing to the target, by the lowest reading that is below.
    pub missing: Amount,
    /// Which readings are below. Only memory has two.
    pub case: Case,
    /// Since when without a break; absent above the threshold.
    pub since: Option<MonotonicNs>,
    /// It is below, and its grace period is over.
    pub is_met: bool,
}

/// How much is missing, and how much of it comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deficit {
    /// Missing to the target.
    pub missing: Amount,
    /// Held by those who are going and not stuck.
    pub coming: Amount,
    /// Held by the victims of this plan, those hastened included.
    pub taken: Amount,
}

impl Deficit {
    /// Whether it is made up for.
    pub fn is_covered(&self) -> bool {
        self.coming + self.taken >= self.missing
    }
}

/// A clean-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reclaim this much memory from who is over its request, without killing.
    Memory(Amount),
    /// Remove dead containers and their logs.
    Containers,
    /// Remove the images of [`Plan::images`], in this order.
    Images,
}

/// A clean-up that is asked for. It is over when an observation says so ([`Reclaimed`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimOrder {
    /// Its number, higher than all before.
    pub order: u64,
    /// What is done.
    pub stage: Stage,
    /// The line it is done for.
    pub line: Why,
}

impl ReclaimOrder {
    /// Whether it has ended.
    pub fn has_ended(&self, reclaimed: Option<Reclaimed>) -> bool {
        reclaimed.is_some_and(|reclaimed| reclaimed.order >= self.order)
    }
}

/// One thing to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Clean up.
    Reclaim(ReclaimOrder),
    /// Kill at once a pod that is terminating in its grace period: a hard threshold is crossed.
    Hasten {
        /// Its index among the pods of the observation.
        pod: u32,
        /// What for.
        why: Why,
    },
    /// Evict.
    Evict {
        /// Its index among the pods of the observation.
        pod: u32,
        /// What for.
        why: Why,
        /// Seconds for an orderly end; below one they become one when it is killed.
        grace_seconds: i64,
    },
}

/// By which readings the lines behind a condition are crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum ConditionCase {
    /// At least one line by both, or by the only one that there is.
    Both,
    /// All by the kubelet's alone.
    KubeletOnly,
    /// All by the honest one alone.
    MemAvailableOnly,
    /// Some by the kubelet's alone and others by the honest one alone: nothing is below by both.
    Mixed,
}

/// Why nobody could be taken although somebody was needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoVictim {
    /// There are no pods.
    NoPods,
    /// All are critical, or going without an end.
    AllProtected,
    /// Those who may be taken could not be read, while others could.
    NoStatistics,
    /// Nothing that is known of pods says whose going would help. Nobody is taken at random.
    NoUsableRanking,
    /// The ones left are within their requests, and pay for nobody who returns at once and is over again.
    OnlyLoops,
}

/// The turn in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// No line is crossed.
    #[default]
    Calm,
    /// The runtime did not tell which disks there are.
    NoLayout,
    /// There are no statistics: everything stays as it was.
    NoStatistics,
    /// Pods over limits of their own go, and no hard threshold asks for more; soft ones wait for the next turn.
    OverLimits,
    /// Only soft thresholds are crossed, and their grace is not over.
    InGrace,
    /// The figures are not newer than those of the last turn: conditions and grace go on, actions wait.
    Stale,
    /// Something is cleaned up, or is being, or no figures are newer than that.
    Reclaiming,
    /// Only the kubelet's reading of memory is below, reclaim did not help, and nobody stalls: cache in use is no
    /// reason to kill.
    CacheInUse,
    /// Enough is coming back from those who are going.
    ComingBack,
    /// Somebody is evicted or hastened.
    Evict,
    /// The bound of victims a minute is used up.
    Bounded,
    /// Somebody is needed and nobody can be taken.
    NoVictim(NoVictim),
}

/// What becomes of a pod, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is evicted.
    Evicted,
    /// It was terminating in its grace period and is killed at once.
    Hastened,
    /// It is evicted in any case: it is over a limit of its own.
    OverLimit,
    /// Those before it are enough.
    NotNeeded,
    /// It is never taken.
    Protected(Critical),
    /// It is going already and counts as coming back.
    Going,
    /// It is going already, does not end, and is not counted on.
    Stuck,
    /// It could not be read, and others could: nobody is taken blindly.
    NoStatistics,
    /// Its going would give back nothing of what is short, as far as is known.
    NothingToFree,
    /// It returned at once after it was evicted and is over again; it is left alone until then.
    Looping(MonotonicNs),
    /// It is within its request, and does not pay for one that is left alone although it is over its own.
    SparedByLoop,
    /// Guaranteed, while another class remains.
    ClassRemains,
    /// It would have been next but for the bound of victims a minute.
    Bounded,
}

/// A pod with the keys that ranked it. Sorted: who would go first is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// Its index among the pods of the observation.
    pub pod: u32,
    /// Who.
    pub uid: PodUid,
    /// Its class of service.
    pub qos: QosClass,
    /// What is known of it says what it uses of what is short.
    pub is_measured: bool,
    /// What it was promised of what is short; absent where nothing can be promised, or nothing is known.
    pub request: Option<Amount>,
    /// It uses more than it was promised, or anything where nothing can be promised.
    pub exceeds: bool,
    /// Its priority.
    pub priority: i32,
    /// What it uses, swapped memory included.
    pub usage: Amount,
    /// What it uses, less what it was promised of just that.
    pub over: Amount,
    /// What its going gives back.
    pub frees: Amount,
    /// When it was started.
    pub started: MonotonicNs,
    /// How often it returned at once after it was evicted and was over again. More than zero names a loop.
    pub returns: u32,
    /// What becomes of it.
    pub fate: Fate,
}

/// A pod over a limit of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limited {
    pub(super) pod: u32,
    /// What it holds counts as coming back. Not so if it was to go last turn already and nobody saw it going.
    pub(super) counts: bool,
}

/// What is to be done.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(super) room: usize,
    /// In one word.
    pub outcome: Outcome,
    /// Who goes for limits of its own, in the order of the observation.
    pub(super) limited: Vec<Limited>,
    /// What is to be done, in order.
    pub actions: Vec<Action>,
    /// Images that are to be removed, in order.
    pub images: Vec<u32>,
    /// Conditions to report.
    pub conditions: Conditions,
    /// Every threshold that could be held against a reading, in the order of the configuration; then swap.
    pub judged: Vec<Judged>,
    /// The line (an index into [`Self::judged`]) that the outcome is about.
    pub acting: Option<u32>,
    /// What is missing; set when somebody had to be looked for.
    pub deficit: Option<Deficit>,
    /// All pods, ranked for the acting line; filled when somebody had to be looked for.
    pub ranked: Vec<Ranked>,
    /// Pods that found no room in the plan and were not looked at.
    pub overlooked: usize,
    /// Look again at this time even if nothing rings: a grace period, a bound or a pause ends then.
    pub recheck_at: Option<MonotonicNs>,
}

impl Plan {
    /// A plan for up to so many pods and images. Nothing allocates later.
    pub fn with_capacity(config: &Config, pods: usize, images: usize) -> Self {
        Self {
            room: pods,
            limited: Vec::with_capacity(pods),
            // One clean-up beside everybody.
            actions: Vec::with_capacity(pods + 1),
            images: Vec::with_capacity(images),
            // Swap beside the thresholds.
            judged: Vec::with_capacity(config.thresholds.len() + 1),
            ranked: Vec::with_capacity(pods),
            ..Self::default()
        }
    }

    /// The line that the outcome is about.
    pub fn acting(&self) -> Option<&Judged> {
        self.judged.get(self.acting? as usize)
    }

    /// By which readings the lines behind a condition are crossed right now; absent if none of them is.
    pub fn condition_case(&self, config: &Config, condition: Condition) -> Option<ConditionCase> {
        let is_behind = |line| match line {
            Why::Threshold(index) => {
                config.thresholds.get(index as usize).is_some_and(|line| line.signal.condition() == condition)
            }
            Why::Swap => condition == Condition::MemoryPressure,
            Why::Limit(_) => false,
        };
        let has = |case| {
            let mut crossed = self.judged.iter().filter(|judged| judged.since.is_some() && is_behind(judged.line));
            crossed.any(|judged| judged.case == case)
        };
        match (has(Case::Both), has(Case::KubeletOnly), has(Case::MemAvailableOnly)) {
            (true, _, _) => Some(ConditionCase::Both),
            (false, true, true) => Some(ConditionCase::Mixed),
            (false, true, false) => Some(ConditionCase::KubeletOnly),
            (false, false, true) => Some(ConditionCase::MemAvailableOnly),
            (false, false, false) => None,
        }
    }

    /// Indices of pods that are evicted, in order.
    pub fn evicted(&self) -> impl Iterator<Item = u32> + '_ {
        self.actions.iter().filter_map(|action| match *action {
            Action::Evict { pod, .. } => Some(pod),
            Action::Hasten { .. } | Action::Reclaim(_) => None,
        })
    }

    /// Indices of pods that were terminating in its grace period and are killed at once, in order.
    pub fn hastened(&self) -> impl Iterator<Item = u32> + '_ {
        self.actions.iter().filter_map(|action| match *action {
            Action::Hasten { pod, .. } => Some(pod),
            Action::Evict { .. } | Action::Reclaim(_) => None,
        })
    }

    /// What is cleaned up.
    pub fn reclaim(&self) -> Option<ReclaimOrder> {
        self.actions.iter().find_map(|action| match *action {
            Action::Reclaim(order) => Some(order),
            Action::Evict { .. } | Action::Hasten { .. } => None,
        })
    }

    pub(super) fn clear(&mut self) {
        self.outcome = Outcome::default();
        self.limited.clear();
        self.actions.clear();
        self.images.clear();
        self.judged.clear();
        self.acting = None;
        self.deficit = None;
        self.ranked.clear();
        self.overlooked = 0;
        self.recheck_at = None;
    }

    pub(super) fn recheck_by(&mut self, at: MonotonicNs) {
        self.recheck_at = Some(self.recheck_at.map_or(at, |earlier| earlier.min(at)));
    }
}
