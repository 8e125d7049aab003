//! What is to be done, and why: typed, in storage that is used again and again, rendered by [`text`](crate::text).

mod action;
mod deficit;
mod outcome;
mod ranked;
mod removal;
mod threshold;

pub use action::{Action, ReclaimOrder, Stage};
pub(crate) use deficit::is_share;
pub use deficit::{Attribution, Deficit};
pub use outcome::{NoVictim, Outcome};
pub(crate) use ranked::Owned;
pub use ranked::{Growth, Ranked, Verdict};
pub use removal::Removal;
pub use threshold::{Case, ConditionCase, ThresholdStatus, Why};

use crate::config::Config;
use crate::kubelet::{Condition, Conditions};
use crate::observation::MemoryReading;
use crate::room::bring_in;
use crate::scope::Scope;
use plimsoll_units::MonotonicNs;

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

    /// Brings the storage for so many workloads in.
    pub fn bring_in(&mut self, workloads: usize) {
        let Self { limited, actions, ranked, owned, thresholds, .. } = self;
        bring_in(limited, workloads);
        bring_in(actions, workloads + 1);
        bring_in(ranked, workloads);
        bring_in(owned, workloads);
        bring_in(thresholds, usize::MAX);
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
