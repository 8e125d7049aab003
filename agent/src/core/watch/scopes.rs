//! What is kept of the node and of each slice with thresholds of its own.

use core::time::Duration;

use arrayvec::ArrayVec;
use plimsoll_policy::kubelet::{Condition, Conditions, Threshold};
use plimsoll_policy::{Config as Policy, MemoryReading, Reclaimed, Scope, SliceId, SliceSet};
use plimsoll_sense::MAX_SLICES;
use plimsoll_units::{Bytes, MonotonicNs};

use super::super::episode::{Depth, Episodes, SCOPES};
use super::reporting::Reported;

/// While reclaim runs on its worker, how often its end is polled for.
const RECLAIM_PACE: Duration = Duration::from_millis(20);

// What the configuration allows is what the kernel side has room for, and what the tables here are made for.
const _: () = assert!(SliceSet::MAX_SLICES == MAX_SLICES);

/// A reclaim that a plan asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reclaiming {
    /// How many jobs of it are not done.
    pub(super) jobs: usize,
    pub(super) scope: Scope,
    pub(super) order: u64,
}

/// The state of one scope.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScopeState {
    /// Its memory at the last sample; absent where it could not be read.
    pub(super) reading: Option<MemoryReading>,
    /// When that was read, and how long this thread took for it.
    pub(super) read_at: MonotonicNs,
    pub(super) read_cost: Duration,
    /// What was reported last of it.
    pub(super) reported: Option<Reported>,
    /// Its last reclaim that ended.
    pub(super) reclaimed: Option<Reclaimed>,
    /// The node's conditions behind which one of its thresholds is crossed.
    pub(super) crossed: Conditions,
    /// When its page cache is read anew without an event.
    reread_at: Option<MonotonicNs>,
    /// Its threshold is armed as if its page cache were used.
    is_early: bool,
}

/// The states of all scopes, and what concerns them together.
#[derive(Debug)]
pub(super) struct Scopes {
    states: [ScopeState; SCOPES],
    /// How many there are, the node included.
    count: usize,
    /// The reclaim under way: one at a time.
    pub(super) reclaiming: Option<Reclaiming>,
    pub(super) episodes: Episodes,
}

impl Scopes {
    pub(super) fn new(policy: &Policy) -> Self {
        Self {
            states: [ScopeState::default(); SCOPES],
            count: (1 + policy.slices.len()).min(SCOPES),
            reclaiming: None,
            episodes: Episodes::default(),
        }
    }

    /// The node, then the slices in their order.
    pub(super) fn all(&self) -> impl Iterator<Item = Scope> + use<> {
        (0..self.count).map(scope_at)
    }

    pub(super) fn get(&self, scope: Scope) -> &ScopeState {
        &self.states[index_of(scope)]
    }

    pub(super) fn get_mut(&mut self, scope: Scope) -> &mut ScopeState {
        &mut self.states[index_of(scope)]
    }

    /// Whether a threshold behind a condition of the node is crossed.
    pub(super) fn is_crossed(&self, condition: Condition) -> bool {
        self.states.iter().any(|state| state.crossed.has(condition))
    }

    /// Each scope whose memory was read, with that.
    pub(super) fn readings(&self) -> impl Iterator<Item = (Scope, MemoryReading)> {
        self.all().filter_map(|scope| Some((scope, self.get(scope).reading?)))
    }

    /// How many thresholds of each scope memory is below, by either reading.
    pub(super) fn depth(&self, policy: &Policy) -> Depth {
        let mut depth = [0; SCOPES];
        for (scope, memory) in self.readings() {
            let is_below =
                |threshold: &&Threshold| threshold.bytes(memory.capacity).is_some_and(|at| memory.lowest() < at);
            let below = on_memory(policy, scope).filter(is_below).count();
            depth[index_of(scope)] = u8::try_from(below).unwrap_or(u8::MAX);
        }
        depth
    }

    /// The scopes whose memory is below any of their thresholds.
    pub(super) fn below(&self, policy: &Policy) -> ArrayVec<Scope, SCOPES> {
        let depth = self.depth(policy);
        self.all().filter(|scope| depth[index_of(*scope)] > 0).collect()
    }

    /// Whether memory is below a threshold, or what is to be reclaimed beyond one, by the kubelet's reading alone: page cache in
    /// use counts as used there.
    pub(super) fn has_cache_in_use(&self, policy: &Policy) -> bool {
        self.readings().any(|(scope, memory)| {
            let Some(own) = memory.mem_available else { return false };
            let is_between = |threshold: &Threshold| {
                let beyond = threshold.min_reclaim.map_or(Bytes::ZERO, |amount| amount.of_bytes(memory.capacity));
                let at = threshold.bytes(memory.capacity);
                at.is_some_and(|at| own >= at && memory.kubelet_available < at.saturating_add(beyond))
            };
            on_memory(policy, scope).any(is_between)
        })
    }

    /// How much memory is available, in percent of the highest threshold, in the scope where that is least.
    pub(super) fn headroom(&self, policy: &Policy) -> u32 {
        let each = self.readings().filter_map(|(scope, memory)| {
            let highest = on_memory(policy, scope).filter_map(|threshold| threshold.bytes(memory.capacity)).max()?;
            Some(u32::try_from(memory.lowest().0.saturating_mul(100) / highest.0.max(1)).unwrap_or(u32::MAX))
        });
        each.min().unwrap_or(u32::MAX)
    }

    /// The most that memory of any scope is below its hard threshold.
    pub(super) fn past_hard_threshold(&self, policy: &Policy) -> Bytes {
        let each = self.readings().map(|(scope, memory)| past_hard_threshold(policy, scope, &memory));
        each.max().unwrap_or(Bytes::ZERO)
    }

    /// The first scope of a workload in these slices that is below a hard threshold, and how far.
    pub(super) fn first_short(&self, policy: &Policy, slices: SliceSet) -> Option<(Scope, Bytes)> {
        let is_in = |scope: Scope| match scope {
            Scope::Node => true,
            Scope::Slice(slice) => slices.contains(slice),
        };
        self.readings()
            .filter(|(scope, _)| is_in(*scope))
            .map(|(scope, memory)| (scope, past_hard_threshold(policy, scope, &memory)))
            .find(|(_, past)| *past > Bytes::ZERO)
    }

    /// Something that was reported has changed: the next plan of each scope is reported in any case.
    pub(super) fn outdate_reports(&mut self) {
        self.states.iter_mut().filter_map(|state| state.reported.as_mut()).for_each(|last| last.is_outdated = true);
    }

    /// A slice's threshold is armed, as if its page cache were used where `is_early`. Its page cache is read anew after `pace`, or
    /// at the time before that which was set, and at once where it was not read as long as the threshold was armed so.
    /// `None`: it need not be.
    pub(super) fn reread_after(&mut self, slice: usize, pace: Option<Duration>, is_early: bool, now: MonotonicNs) {
        let Some(state) = self.states.get_mut(1 + slice) else { return };
        let was_early = core::mem::replace(&mut state.is_early, is_early);
        let due = pace.map(|pace| if was_early { now } else { now.after(pace) });
        state.reread_at = due.map(|due| state.reread_at.map_or(due, |earlier| earlier.min(due)));
    }

    /// The next slice whose page cache is to be read anew.
    pub(super) fn take_reread(&mut self, now: MonotonicNs) -> Option<usize> {
        let is_due = |state: &mut ScopeState| state.reread_at.take_if(|at| *at <= now).is_some();
        self.states.iter_mut().skip(1).position(is_due)
    }

    /// When the reclaim under way is polled, or page cache read anew.
    pub(super) fn next_due(&self, now: MonotonicNs) -> Option<MonotonicNs> {
        let reclaim = self.reclaiming.map(|_| now.after(RECLAIM_PACE));
        self.states.iter().filter_map(|state| state.reread_at).chain(reclaim).min()
    }
}

/// How far memory is below the highest hard threshold of its scope, by the kernel's own reading.
pub(super) fn past_hard_threshold(policy: &Policy, scope: Scope, memory: &MemoryReading) -> Bytes {
    past(memory, hard_threshold(policy, scope, memory.capacity))
}

/// A scope's thresholds on memory.
pub(super) fn on_memory(policy: &Policy, scope: Scope) -> impl Iterator<Item = &Threshold> {
    policy.thresholds_on(scope, policy.memory_signal(scope))
}

/// The highest hard threshold of a scope on memory.
pub(super) fn hard_threshold(policy: &Policy, scope: Scope, capacity: Bytes) -> Bytes {
    let hard = on_memory(policy, scope).filter(|threshold| threshold.is_hard());
    hard.filter_map(|threshold| threshold.bytes(capacity)).max().unwrap_or(Bytes::ZERO)
}

/// How far memory is below `threshold`, by the kernel's own reading or by the only one there is.
pub(super) fn past(memory: &MemoryReading, threshold: Bytes) -> Bytes {
    threshold.saturating_sub(memory.kernel())
}

/// The node, then the slices in their order.
fn scope_at(index: usize) -> Scope {
    match index.checked_sub(1) {
        None => Scope::Node,
        Some(slice) => Scope::Slice(SliceId(u8::try_from(slice).unwrap_or(u8::MAX))),
    }
}

fn index_of(scope: Scope) -> usize {
    match scope {
        Scope::Node => 0,
        Scope::Slice(SliceId(slice)) => 1 + usize::from(slice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::kubelet::{Signal, ThresholdAmount};

    #[test]
    fn page_cache_in_use_is_between_the_readings_up_to_what_is_to_be_reclaimed() {
        let hard = Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(Bytes::mib(100)));
        let threshold = Threshold { min_reclaim: Some(ThresholdAmount::bytes(Bytes::mib(50))), ..hard };
        let policy = Policy { thresholds: vec![threshold], ..Policy::default() };
        let mut scopes = Scopes::new(&policy);
        for (kubelet, own, expected) in [
            (99, Some(100), true),
            (149, Some(900), true),
            (150, Some(900), false),
            (99, Some(99), false),
            (99, None, false),
        ] {
            scopes.get_mut(Scope::Node).reading = Some(MemoryReading {
                capacity: Bytes::mib(1000),
                kubelet_available: Bytes::mib(kubelet),
                mem_available: own.map(Bytes::mib),
            });
            assert_eq!(scopes.has_cache_in_use(&policy), expected, "{kubelet} {own:?}");
        }
    }

    #[test]
    fn page_cache_is_read_at_once_where_the_event_came_before_the_threshold_and_at_its_pace_after_that() {
        let (mut scopes, now) = (Scopes::new(&Policy::default()), MonotonicNs(1_000_000_000));
        let pace = Duration::from_secs(5);
        scopes.reread_after(0, None, true, now);
        assert_eq!(scopes.next_due(now), None, "the event comes first");
        scopes.reread_after(0, Some(pace), false, now);
        assert_eq!(scopes.take_reread(now), Some(0));
        scopes.reread_after(0, Some(pace), false, now);
        assert_eq!((scopes.take_reread(now), scopes.next_due(now)), (None, Some(now.after(pace))));
    }
}
