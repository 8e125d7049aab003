//! What is remembered from one decision to the next: since when thresholds are crossed, what was done, what each workload
//! used.

use super::attribution::Baseline;
use super::loops::Loops;
use super::unreaped::Unreaped;
use crate::config::Config;
use crate::kubelet::{Condition, Conditions, DiskLayout, Readings, Signal, StatsTime, Threshold};
use crate::observation::{Owner, Reclaimed, Uid, Workload};
use crate::plan::{ReclaimOrder, Stage, Why};
use crate::room::bring_in;
use crate::scope::Scope;
use core::time::Duration;
use plimsoll_units::{CgroupId, MonotonicNs};
use serde::{Deserialize, Serialize};

const MINUTE: Duration = Duration::from_mins(1);
/// So long after the end of a grace another workload of the owner may be what the victim has become: it is seen by the
/// next decisions on memory that is still short.
const CONTINUED_WITHIN: Duration = Duration::from_secs(10);

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
#[derive(Clone, Copy, Debug)]
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
#[derive(Clone, Copy, Debug)]
pub(super) struct InVain {
    pub(super) at: MonotonicNs,
    pub(super) dead_containers: Option<u32>,
    pub(super) unused_images: usize,
}

/// One scope's memory.
#[derive(Clone, Debug)]
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
    /// When a workload was last evicted for a signal although that did not help; for hard thresholds, then for soft ones,
    /// which hard ones do not wait for.
    pub(super) futile: [[Option<MonotonicNs>; Signal::ALL.len()]; 2],
    /// What the last victims for processes leave behind: hard thresholds go by their own, as if there were no soft one.
    pub(super) unreaped: [Option<Unreaped>; ThresholdKind::BOTH.len()],
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
            futile: [[None; Signal::ALL.len()]; 2],
            unreaped: [None; ThresholdKind::BOTH.len()],
            baselines: [(); 2].map(|()| Baseline::with_capacity(slots)),
        }
    }

    /// The conditions that follow from what was observed until `now`. A threshold that is crossed right now counts even if
    /// the period is zero.
    pub(super) fn conclude(&mut self, transition: Duration, now: MonotonicNs) {
        self.conditions = Conditions::of(|condition| {
            self.last_observed[condition as usize].is_some_and(|last| last == now || now.since(last) < transition)
        });
    }

    /// Numbers a reclaim and remembers it.
    pub(super) fn ask(
        &mut self,
        signal: Signal,
        kind: ThresholdKind,
        stage: Stage,
        why: Why,
        unused_images: usize,
        at: MonotonicNs,
    ) -> ReclaimOrder {
        self.orders += 1;
        let order = ReclaimOrder { order: self.orders, stage, why };
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

/// A victim that counts for the limit a minute.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Place {
    at: MonotonicNs,
    victim: Uid,
    /// Where it was in its observation: in the next one it is near.
    index: u32,
    owner: Option<CgroupId>,
    /// It was seen terminating since, or gone.
    is_killed: bool,
    /// When it was asked to end, and until when it has time for that; where it had any.
    asked: Option<(MonotonicNs, MonotonicNs)>,
}

/// The last victims, as many as may be taken in a minute. Further ones of an owner that has a place need none of their
/// own: the limit protects workloads of others, and no owner uses it up with many workloads of its own. So it bounds
/// how many owners lose workloads within any minute.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RateLimit {
    places: Vec<Option<Place>>,
    /// The last place that was taken.
    last: usize,
}

impl RateLimit {
    fn new(a_minute: u32) -> Self {
        Self { places: vec![None; a_minute as usize], last: 0 }
    }

    /// Whether another one, that was read back, has as many places.
    fn is_like(&self, other: &Self) -> bool {
        self.places.len() == other.places.len() && other.last <= other.places.len()
    }

    /// How many more may be taken now.
    pub(super) fn left(&self, now: MonotonicNs) -> usize {
        self.places.len() - self.taken(now).count()
    }

    fn taken(&self, now: MonotonicNs) -> impl Iterator<Item = &Place> {
        self.places.iter().flatten().filter(move |place| now.since(place.at) < MINUTE)
    }

    /// Whether this owner has lost a workload within the minute.
    pub(super) fn has_place(&self, owner: Option<Owner>, now: MonotonicNs) -> bool {
        owner.is_some_and(|owner| self.taken(now).any(|place| place.owner == Some(owner.id)))
    }

    /// When the next may be taken, if none may now.
    pub(super) fn next_at(&self) -> Option<MonotonicNs> {
        self.places.iter().flatten().map(|place| place.at.after(MINUTE)).min()
    }

    /// The end of the grace of an earlier victim of the owner, where the workload may be what that has become: while the
    /// victim has time, and for one that came since then also shortly after.
    pub(super) fn grace_ends(&self, workload: &Workload<'_>, now: MonotonicNs) -> Option<MonotonicNs> {
        let owner = workload.owner?.id;
        let of_owner = self.places.iter().flatten().filter(|place| place.owner == Some(owner));
        let continues = |(asked, until): &(MonotonicNs, MonotonicNs)| {
            let is_new = workload.started > *asked;
            now <= if is_new { until.after(CONTINUED_WITHIN) } else { *until }
        };
        of_owner.filter_map(|place| place.asked).filter(continues).map(|(_, until)| until).min()
    }

    /// Remembers the workload at this index of the observation as a victim, which has so much time to end.
    pub(super) fn took(&mut self, index: u32, victim: &Workload<'_>, grace: Duration, now: MonotonicNs) {
        let owner = victim.owner.map(|owner| owner.id);
        let is_recent = |place: &Place| now.since(place.at) < MINUTE;
        let is_own = |place: &&mut Place| is_recent(place) && place.owner == owner;
        let asked = (!grace.is_zero()).then(|| (now, now.after(grace)));
        if let Some(place) = owner.and_then(|_| self.places.iter_mut().flatten().find(is_own)) {
            place.at = now;
            // The first one's holds for all that come while it ends.
            if place.asked.is_none_or(|(_, until)| now > until.after(CONTINUED_WITHIN)) {
                place.asked = asked;
            }
            return;
        }
        let is_free = |place: &usize| !self.places[*place].as_ref().is_some_and(is_recent);
        if let Some(free) = (self.last..self.places.len()).chain(0..self.last).find(is_free) {
            self.places[free] = Some(Place { at: now, victim: victim.uid, index, owner, is_killed: false, asked });
            self.last = free;
        }
    }

    /// Gives back the place of each victim that was not killed: it is still there and not terminating, or could not be
    /// killed.
    fn settle(&mut self, workloads: &[Workload<'_>], mut not_taken: impl FnMut(Uid)) {
        for taken in &mut self.places {
            let Some(place) = taken.as_mut().filter(|place| !place.is_killed) else { continue };
            place.is_killed = true;
            let (before, after) = workloads.split_at(workloads.len().min(place.index as usize + 1));
            let is_dying =
                |workload: &Workload<'_>| workload.terminating.is_some_and(|terminating| !terminating.is_refused);
            // Another victim of the same owner has its place, too.
            let is_of_owner =
                |workload: &&Workload<'_>| place.owner.is_some() && workload.owner.map(|owner| owner.id) == place.owner;
            if let Some(victim) = before.iter().rev().chain(after).find(|workload| workload.uid == place.victim)
                && !victim.is_empty
                && !is_dying(victim)
                && !workloads.iter().filter(is_of_owner).any(is_dying)
            {
                not_taken(place.victim);
                *taken = None;
            }
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
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// Which disks there are; absent until that was observed.
    pub(crate) layout: Option<DiskLayout>,
    pub(super) node: ScopeState,
    pub(super) slices: Vec<ScopeState>,
    pub(super) taken: [Taken; 2],
    /// Pods that were to be evicted last turn for limits of their own.
    pub(super) over_limits: Vec<Uid>,
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
            over_limits: Vec::with_capacity(slots),
        }
    }

    /// Goes on with what another process took a minute. False: that is of another configuration.
    pub(super) fn take_over(&mut self, taken: [Taken; 2]) -> bool {
        let fits = self.taken.iter().zip(&taken).all(|(own, taken)| own.limit.is_like(&taken.limit));
        if fits {
            self.taken = taken;
            self.taken.iter_mut().for_each(|taken| taken.loops.reserve());
        }
        fits
    }

    /// Brings in what it takes for slots below `slots`.
    pub(crate) fn bring_in(&mut self, slots: usize) {
        bring_in(&mut self.over_limits, slots);
        self.taken.iter_mut().for_each(|taken| taken.loops.bring_in());
        self.baselines_mut().for_each(|baseline| baseline.bring_in(slots));
    }

    fn baselines_mut(&mut self) -> impl Iterator<Item = &mut Baseline> {
        core::iter::once(&mut self.node).chain(&mut self.slices).flat_map(|scope| &mut scope.baselines)
    }

    /// Gives back what the limit of victims a minute counted for kills that were not done, and forgets these evictions.
    pub(super) fn settle(&mut self, workloads: &[Workload<'_>]) {
        for Taken { limit, loops } in &mut self.taken {
            limit.settle(workloads, |victim| loops.not_taken(victim));
        }
    }

    /// What was evicted lately for this kind of threshold.
    pub(super) const fn taken(&self, kind: ThresholdKind) -> &Taken {
        &self.taken[kind as usize]
    }

    /// The same, to evict one more for it.
    pub(super) const fn taken_mut(&mut self, kind: ThresholdKind) -> &mut Taken {
        &mut self.taken[kind as usize]
    }

    /// The conditions of the node, with those of the scopes that are [the node's](Config::is_of_node).
    pub(crate) fn conditions(&self, config: &Config) -> Conditions {
        let has = |condition| {
            let mut of_node = self.scopes().filter(|(scope, _)| config.is_of_node(*scope));
            of_node.any(|(_, state)| state.conditions.has(condition))
        };
        Conditions::of(has)
    }

    /// When a threshold behind each condition of the node was last crossed.
    pub(crate) const fn last_observed_mut(&mut self) -> &mut [Option<MonotonicNs>; Condition::ALL.len()] {
        &mut self.node.last_observed
    }

    /// One scope's memory, to be read alone.
    pub(super) fn of(&self, scope: Scope) -> Option<&ScopeState> {
        match scope {
            Scope::Node => Some(&self.node),
            Scope::Slice(slice) => self.slices.get(slice.0 as usize),
        }
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
    use crate::observation::Terminating;

    fn workload(uid: u128, owner: Option<u64>) -> Workload<'static> {
        let owner = owner.map(|id| Owner { id: CgroupId(id), ..Owner::default() });
        Workload { uid: Uid(uid), owner, ..Workload::default() }
    }

    const fn at(seconds: u64) -> MonotonicNs {
        MonotonicNs(seconds * 1_000_000_000)
    }

    #[test]
    fn a_place_is_given_back_where_the_victim_was_not_killed() {
        let killed = |is_refused| Some(Terminating { is_stuck: is_refused, is_refused, ..Terminating::default() });
        for (seen, left) in [
            (vec![workload(1, None)], 2),
            (vec![Workload { terminating: killed(true), ..workload(1, None) }], 2),
            (vec![Workload { terminating: killed(false), ..workload(1, None) }], 1),
            (vec![Workload { is_empty: true, ..workload(1, None) }], 1),
            (vec![workload(2, None)], 1),
        ] {
            let mut limit = RateLimit::new(2);
            limit.took(0, &workload(1, None), Duration::ZERO, at(1));
            assert_eq!((limit.left(at(1)), limit.next_at()), (1, Some(at(61))));
            limit.settle(&seen, |_| {});
            assert_eq!(limit.left(at(1)), left, "{seen:?}");
            // Once it was seen to be killed, another one at its place is not.
            limit.settle(&[workload(1, None)], |_| {});
            assert_eq!(limit.left(at(1)), left, "{seen:?}");
        }
    }

    #[test]
    fn the_place_of_an_owner_is_kept_where_one_of_its_victims_was_killed() {
        let killed = Some(Terminating::default());
        for (second, left) in [(killed, 1), (None, 2)] {
            let mut limit = RateLimit::new(2);
            for (index, uid) in [(0, 1), (1, 2)] {
                limit.took(index, &workload(uid, Some(7)), Duration::ZERO, at(1));
            }
            let second = Workload { terminating: second, ..workload(2, Some(7)) };
            limit.settle(&[workload(1, Some(7)), second], |_| {});
            assert_eq!(limit.left(at(1)), left);
        }
    }

    #[test]
    fn a_place_is_free_again_after_a_minute_from_its_own_time() {
        let mut limit = RateLimit::new(2);
        limit.took(0, &workload(1, None), Duration::ZERO, at(1));
        limit.took(0, &workload(2, None), Duration::ZERO, at(2));
        assert_eq!((limit.left(at(60)), limit.left(at(61)), limit.left(at(62))), (0, 1, 2));
        limit.took(0, &workload(3, None), Duration::ZERO, at(61));
        assert_eq!((limit.left(at(61)), limit.next_at()), (0, Some(at(62))));
        let mut none = RateLimit::new(0);
        none.took(0, &workload(1, None), Duration::ZERO, at(1));
        assert_eq!((none.left(at(1)), none.next_at()), (0, None));
    }

    #[test]
    fn an_owner_has_one_place_until_a_minute_after_its_last_victim() {
        let mut limit = RateLimit::new(2);
        limit.took(0, &workload(1, Some(7)), Duration::ZERO, at(1));
        limit.took(0, &workload(2, Some(7)), Duration::ZERO, at(5));
        let owner = |id| workload(3, id).owner;
        assert!(limit.has_place(owner(Some(7)), at(64)) && !limit.has_place(owner(Some(7)), at(65)));
        assert!(!limit.has_place(owner(Some(8)), at(5)) && !limit.has_place(owner(None), at(5)));
        assert_eq!((limit.left(at(5)), limit.next_at()), (1, Some(at(65))));
    }
}
