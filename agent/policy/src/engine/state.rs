//! What is remembered from one decision to the next: since when thresholds are crossed, what was done, what each workload
//! used.

use super::attribution::Baseline;
use super::loops::Loops;
use crate::config::Config;
use crate::kubelet::{Condition, Conditions, DiskLayout, Readings, Signal, StatsTime, Threshold};
use crate::observation::{Reclaimed, Uid};
use crate::plan::{ReclaimOrder, Stage, Why};
use crate::scope::Scope;
use core::time::Duration;
use plimsoll_units::MonotonicNs;
use serde::{Deserialize, Serialize};

const MINUTE: Duration = Duration::from_mins(1);

/// One threshold's memory.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Watched {
    /// Below without a break since then.
    pub(super) since: Option<MonotonicNs>,
    /// It was met and is not resolved: its minimum reclaim counts.
    pub(super) is_latched: bool,
}

/// Whether a threshold has a grace period. The hard one is less: it acts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum ThresholdKind {
    Hard,
    Soft,
}

impl ThresholdKind {
    pub(super) const BOTH: [Self; 2] = [Self::Hard, Self::Soft];

    pub(super) const fn of(threshold: &Threshold) -> Self {
        if threshold.is_hard() { Self::Hard } else { Self::Soft }
    }
}

/// A reclaim that was asked for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Asked {
    /// What.
    pub(super) order: ReclaimOrder,
    /// When.
    pub(super) at: MonotonicNs,
    /// How many unused images there were then.
    pub(super) unused_images: usize,
    /// When it ended, or the first later one whose end was reported; absent until then.
    pub(super) ended: Option<StatsTime>,
    /// It did not help, and then nothing could be evicted.
    pub(super) in_vain: Option<InVain>,
}

/// What there was to reclaim when nothing could be evicted.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct InVain {
    pub(super) at: MonotonicNs,
    pub(super) dead_containers: Option<u32>,
    pub(super) unused_images: usize,
}

/// One scope's memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ScopeState {
    /// By threshold; swap last.
    pub(super) watched: Vec<Watched>,
    /// When a threshold behind each condition was last crossed.
    pub(super) last_observed: [Option<MonotonicNs>; Condition::ALL.len()],
    pub(super) conditions: Conditions,
    /// The last turn's.
    pub(super) last: Readings,
    pub(super) last_mem_available_at: Option<StatsTime>,
    pub(super) refaults: Option<u64>,
    /// The last reclaim for each signal, while a threshold on it is crossed; for hard thresholds, then for soft ones. What
    /// is asked for a hard one serves the soft ones too, and never the other way.
    asked: [[Option<Asked>; Signal::ALL.len()]; 2],
    orders: u64,
    /// When a workload was last evicted for a signal although that did not help.
    pub(super) futile: [Option<MonotonicNs>; Signal::ALL.len()],
    /// Hard thresholds have their own, that soft ones do not keep old.
    pub(super) baselines: [Baseline; 2],
}

impl ScopeState {
    fn new(thresholds: usize, slots: usize) -> Self {
        Self {
            watched: vec![Watched::default(); thresholds + 1],
            last_observed: [None; Condition::ALL.len()],
            conditions: Conditions::default(),
            last: Readings::default(),
            last_mem_available_at: None,
            refaults: None,
            asked: [[None; Signal::ALL.len()]; 2],
            orders: 0,
            futile: [None; Signal::ALL.len()],
            baselines: [(); 2].map(|()| Baseline::with_capacity(slots)),
        }
    }

    /// Numbers a reclaim and remembers it.
    pub(super) fn ask(
        &mut self,
        signal: Signal,
        kind: ThresholdKind,
        stage: Stage,
        line: Why,
        unused_images: usize,
        at: MonotonicNs,
    ) -> ReclaimOrder {
        self.orders += 1;
        let order = ReclaimOrder { order: self.orders, stage, line };
        for asked in &mut self.asked[kind as usize..] {
            asked[signal as usize] = Some(Asked { order, at, unused_images, ended: None, in_vain: None });
        }
        order
    }

    /// The last reclaim for thresholds of this kind on a signal.
    pub(super) const fn asked(&self, signal: Signal, kind: ThresholdKind) -> Option<Asked> {
        self.asked[kind as usize][signal as usize]
    }

    /// All reclaims of memory that are remembered.
    pub(super) fn asked_of_memory(&self) -> impl Iterator<Item = Asked> {
        let all = self.asked.iter().flatten().copied().flatten();
        all.filter(|asked| matches!(asked.order.stage, Stage::Memory(_)))
    }

    /// Forgets it. Another is asked for before anything is evicted.
    pub(super) const fn forget(&mut self, signal: Signal, kind: ThresholdKind) {
        self.asked[kind as usize][signal as usize] = None;
    }

    /// Remembers that nothing could be evicted after it, and gives when that was first so.
    pub(super) fn was_in_vain(&mut self, signal: Signal, kind: ThresholdKind, now: InVain) -> Option<MonotonicNs> {
        let asked = self.asked[kind as usize][signal as usize].as_mut()?;
        Some(asked.in_vain.get_or_insert(now).at)
    }

    /// Remembers when reclaims ended: of a later one nothing can be said of those before.
    pub(super) fn reported(&mut self, reclaimed: Option<Reclaimed>) {
        for asked in self.asked.iter_mut().flatten().flatten() {
            if asked.ended.is_none() && asked.order.has_ended(reclaimed) {
                asked.ended = reclaimed.map(|reclaimed| reclaimed.at);
            }
        }
    }
}

/// The times of the last victims, as many as may be taken in a minute.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RateLimit {
    times: Vec<Option<MonotonicNs>>,
    next: usize,
}

impl RateLimit {
    fn new(a_minute: u32) -> Self {
        Self { times: vec![None; a_minute as usize], next: 0 }
    }

    /// How many more may be taken now.
    pub(super) fn left(&self, now: MonotonicNs) -> usize {
        self.times.iter().filter(|time| time.is_none_or(|time| now.since(time) >= MINUTE)).count()
    }

    /// When the next may be taken, if none may now.
    pub(super) fn next_at(&self) -> Option<MonotonicNs> {
        self.times.get(self.next).copied().flatten().map(|oldest| oldest.after(MINUTE))
    }

    /// Forgets the last one that was taken.
    fn give_back(&mut self) {
        let count = self.times.len();
        let last = self.next.checked_sub(1).or(count.checked_sub(1));
        if let Some(last) = last {
            self.times[last] = None;
            self.next = last;
        }
    }

    pub(super) fn took(&mut self, now: MonotonicNs) {
        if let Some(oldest) = self.times.get_mut(self.next) {
            *oldest = Some(now);
            self.next = (self.next + 1) % self.times.len();
        }
    }
}

/// What was evicted lately. Hard and soft thresholds each have their own, so that what a soft one took never stands in the
/// way of a hard one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Taken {
    pub(super) limit: RateLimit,
    pub(super) loops: Loops,
}

/// What the engine remembers, for one configuration. Sized when it is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(super) layout: Option<DiskLayout>,
    node: ScopeState,
    slices: Vec<ScopeState>,
    taken: [Taken; 2],
    /// For which kind the last victim was taken.
    last_taken: ThresholdKind,
    /// Pods that were to be evicted last turn for limits of their own.
    pub(super) over_limits: Vec<Uid>,
    /// How many of these there can be.
    room: usize,
}

impl State {
    /// For workloads with slots below `slots`, and as many of them.
    pub(crate) fn with_capacity(config: &Config, slots: usize) -> Self {
        let taken = |a_minute| Taken { limit: RateLimit::new(a_minute), loops: Loops::with_capacity() };
        Self {
            layout: None,
            node: ScopeState::new(config.thresholds.len(), slots),
            slices: config.slices.iter().map(|slice| ScopeState::new(slice.thresholds.len(), slots)).collect(),
            taken: [taken(config.hard_victims_per_minute), taken(config.soft_victims_per_minute)],
            last_taken: ThresholdKind::Hard,
            over_limits: Vec::with_capacity(slots),
            room: slots,
        }
    }

    /// Whether it was made for such a configuration, so that decisions can go on with it.
    pub(crate) fn fits(&self, config: &Config, slots: usize) -> bool {
        let is_sized = |scope: &ScopeState, thresholds: &[Threshold]| {
            scope.watched.len() == thresholds.len() + 1 && scope.baselines.iter().all(|it| it.slots() == slots)
        };
        is_sized(&self.node, &config.thresholds)
            && self.room == slots
            && self.over_limits.len() <= slots
            && self.slices.len() == config.slices.len()
            && self.slices.iter().zip(&config.slices).all(|(scope, slice)| is_sized(scope, &slice.thresholds))
            && self.taken.iter().zip([config.hard_victims_per_minute, config.soft_victims_per_minute]).all(
                |(taken, a_minute)| {
                    let times = taken.limit.times.len();
                    times == a_minute as usize && (taken.limit.next < times || times == 0)
                },
            )
    }

    /// Has all the room again that it was made with.
    pub(crate) fn reserve(&mut self) {
        self.over_limits.reserve_exact(self.room.saturating_sub(self.over_limits.len()));
        for taken in &mut self.taken {
            taken.loops.reserve();
        }
    }

    /// Takes one victim more off the limit a minute, which the caller kills without a plan: as for a hard threshold.
    /// False: there is none left.
    pub(crate) fn take_victim(&mut self, now: MonotonicNs) -> bool {
        let limit = &mut self.taken[ThresholdKind::Hard as usize].limit;
        let has_left = limit.left(now) > 0;
        if has_left {
            limit.took(now);
            self.last_taken = ThresholdKind::Hard;
        }
        has_left
    }

    /// The last one that was taken was not killed after all.
    pub(crate) fn give_back_victim(&mut self) {
        self.taken[self.last_taken as usize].limit.give_back();
    }

    /// What was evicted lately for this kind of threshold.
    pub(super) const fn taken(&self, kind: ThresholdKind) -> &Taken {
        &self.taken[kind as usize]
    }

    /// The same, to evict one more for it.
    pub(super) const fn take_for(&mut self, kind: ThresholdKind) -> &mut Taken {
        self.last_taken = kind;
        &mut self.taken[kind as usize]
    }

    pub(super) fn scope(&mut self, scope: Scope) -> Option<&mut ScopeState> {
        match scope {
            Scope::Node => Some(&mut self.node),
            Scope::Slice(slice) => self.slices.get_mut(slice.0 as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_can_be_taken_again() {
        let config = Config { hard_victims_per_minute: 2, soft_victims_per_minute: 2, ..Config::default() };
        let mut state = State::with_capacity(&config, 1);
        let at = |seconds: u64| MonotonicNs(seconds * 1_000_000_000);
        assert!(state.take_victim(at(1)) && state.take_victim(at(2)) && !state.take_victim(at(3)));
        state.give_back_victim();
        assert!(state.take_victim(at(4)) && !state.take_victim(at(5)));
        assert_eq!(
            state.taken(ThresholdKind::Hard).limit.next_at(),
            Some(at(61)),
            "the first one still counts from its own time"
        );
        assert!(state.take_victim(at(61)) && !state.take_victim(at(62)));
        // Each kind by itself.
        state.take_for(ThresholdKind::Soft).limit.took(at(63));
        state.give_back_victim();
        assert_eq!((state.taken(ThresholdKind::Soft).limit.left(at(63)), state.take_victim(at(63))), (2, false));
        let none = Config { hard_victims_per_minute: 0, ..config };
        let mut none = State::with_capacity(&none, 1);
        none.give_back_victim();
        assert!(!none.take_victim(at(1)));
    }
}
