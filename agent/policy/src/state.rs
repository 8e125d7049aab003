//! What is remembered from one decision to the next: since when lines are crossed, what was done, who had how much.

use crate::config::{Config, Threshold};
use crate::observation::{Candidate, Key};
use crate::scope::Scope;
use core::time::Duration;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

const MINUTE: Duration = Duration::from_mins(1);

/// One threshold's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watched {
    /// Below without a break since then.
    pub(crate) below_since: Option<MonotonicNs>,
    /// It was met and is not resolved: its minimum reclaim counts.
    pub(crate) latched: bool,
}

/// What was in use when memory was last plentiful.
#[derive(Clone, Debug)]
pub(crate) struct Baseline {
    /// Taken while memory was plentiful, not merely above the lines.
    plentiful: bool,
    /// Available then, by the kubelet's and `MemAvailable`.
    available: Option<(Bytes, Option<Bytes>)>,
    /// Working sets then, by slot.
    usage: Vec<Option<(CgroupId, Option<Bytes>)>>,
}

impl Baseline {
    /// Of nobody.
    pub(crate) const fn none() -> Self {
        Self { plentiful: false, available: None, usage: Vec::new() }
    }

    pub(crate) fn is_wanted(&self, plentiful: bool) -> bool {
        plentiful || (self.available.is_none() && !self.plentiful)
    }

    pub(crate) fn take(
        &mut self,
        plentiful: bool,
        kubelet: Bytes,
        mem_available: Option<Bytes>,
        candidates: &[Candidate],
    ) {
        self.plentiful = plentiful;
        self.available = Some((kubelet, mem_available));
        self.usage.fill(None);
        for candidate in candidates {
            if let Some(place) = self.usage.get_mut(candidate.key.slot as usize) {
                *place = Some((candidate.key.id, candidate.usage));
            }
        }
    }

    /// Available memory then; all of `capacity` if there is no baseline.
    pub(crate) fn available(&self, mem_available: bool, capacity: Bytes) -> Bytes {
        match self.available {
            None => capacity,
            Some((kubelet, reading)) => {
                if mem_available {
                    reading.unwrap_or(kubelet)
                } else {
                    kubelet
                }
            }
        }
    }

    /// Growth since then; somebody new has grown from nothing, somebody unread then has not grown.
    pub(crate) fn growth(&self, key: Key, usage: Bytes) -> Bytes {
        match self.usage.get(key.slot as usize).copied().flatten() {
            Some((id, Some(before))) if id == key.id => usage.saturating_sub(before),
            Some((id, None)) if id == key.id => Bytes::ZERO,
            _ => usage,
        }
    }
}

/// One scope's memory.
#[derive(Clone, Debug)]
pub(crate) struct ScopeState {
    pub(crate) watched: Vec<Watched>,
    pub(crate) last_taken: Option<MonotonicNs>,
    pub(crate) last_crossed: Option<MonotonicNs>,
    /// When reclaim was last asked for, for lines of each kind. What is asked for a hard one serves the soft ones too.
    pub(crate) reclaim_asked: [Option<MonotonicNs>; 2],
    /// A hard threshold has its own, that soft thresholds do not keep old.
    pub(crate) baselines: [Baseline; 2],
}

impl ScopeState {
    fn new(thresholds: usize, slots: usize) -> Self {
        Self {
            watched: vec![Watched::default(); thresholds],
            last_taken: None,
            last_crossed: None,
            reclaim_asked: [None; 2],
            baselines: [(); 2].map(|()| Baseline { usage: vec![None; slots], ..Baseline::none() }),
        }
    }
}

/// The times of the last victims, as many as may be taken in a minute.
#[derive(Clone, Debug)]
pub(crate) struct Victims {
    times: Vec<Option<MonotonicNs>>,
    next: usize,
}

impl Victims {
    /// For so many a minute.
    pub(crate) fn new(a_minute: u32) -> Self {
        Self { times: vec![None; a_minute as usize], next: 0 }
    }

    /// How many more may be taken now.
    pub(crate) fn left(&self, now: MonotonicNs) -> usize {
        self.times.iter().filter(|time| time.is_none_or(|time| now.since(time) >= MINUTE)).count()
    }

    /// When the next may be taken, if none may now.
    pub(crate) fn next_at(&self) -> Option<MonotonicNs> {
        self.times.get(self.next).copied().flatten().map(|oldest| oldest.after(MINUTE))
    }

    /// Forgets the last one that was taken.
    pub(crate) fn give_back(&mut self) {
        let count = self.times.len();
        let last = self.next.checked_sub(1).or(count.checked_sub(1));
        if let Some(last) = last {
            self.times[last] = None;
            self.next = last;
        }
    }

    pub(crate) fn took(&mut self, now: MonotonicNs) {
        if let Some(oldest) = self.times.get_mut(self.next) {
            *oldest = Some(now);
            self.next = (self.next + 1) % self.times.len();
        }
    }
}

/// What [`decide`](crate::decide) remembers, for one configuration. Sized when it is made.
#[derive(Clone, Debug)]
pub struct State {
    node: ScopeState,
    slices: Vec<ScopeState>,
    /// Each kind of line has its own, so that what a soft one took never stands in the way of a hard one.
    victims: [Victims; 2],
    /// Which of them took the last victim.
    last_taken: LineKind,
}

/// Whether a line has a grace period. The hard one is less: it acts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LineKind {
    Hard,
    Soft,
}

impl LineKind {
    pub(crate) const BOTH: [Self; 2] = [Self::Hard, Self::Soft];

    pub(crate) const fn of(threshold: &Threshold) -> Self {
        if threshold.is_hard() { Self::Hard } else { Self::Soft }
    }
}

impl State {
    /// For `config`, and candidates with slots below `slots`. A new configuration needs a new state.
    pub fn with_capacity(config: &Config, slots: usize) -> Self {
        Self {
            node: ScopeState::new(config.thresholds.len(), slots),
            slices: config.slices.iter().map(|slice| ScopeState::new(slice.thresholds.len(), slots)).collect(),
            victims: [(); 2].map(|()| Victims::new(config.victims_per_minute)),
            last_taken: LineKind::Hard,
        }
    }

    /// Takes one victim more off the bound of victims a minute, for whom the caller kills without a plan: as for a hard
    /// line. False: there is none left.
    pub fn take_victim(&mut self, now: MonotonicNs) -> bool {
        let victims = self.victims_of(LineKind::Hard);
        let left = victims.left(now) > 0;
        if left {
            victims.took(now);
            self.last_taken = LineKind::Hard;
        }
        left
    }

    /// The last one that was taken was not killed after all.
    pub fn give_back_victim(&mut self) {
        self.victims_of(self.last_taken).give_back();
    }

    pub(crate) const fn victims_of(&mut self, kind: LineKind) -> &mut Victims {
        &mut self.victims[kind as usize]
    }

    /// Takes one for a line of this kind.
    pub(crate) fn took(&mut self, kind: LineKind, now: MonotonicNs) {
        self.victims_of(kind).took(now);
        self.last_taken = kind;
    }

    pub(crate) fn scope(&mut self, scope: Scope) -> Option<&mut ScopeState> {
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
        let config = Config { victims_per_minute: 2, ..Config::default() };
        let mut state = State::with_capacity(&config, 1);
        let at = |seconds: u64| MonotonicNs(seconds * 1_000_000_000);
        assert!(state.take_victim(at(1)) && state.take_victim(at(2)) && !state.take_victim(at(3)));
        state.give_back_victim();
        assert!(state.take_victim(at(4)) && !state.take_victim(at(5)));
        assert_eq!(
            state.victims_of(LineKind::Hard).next_at(),
            Some(at(61)),
            "the first one still counts from its own time"
        );
        assert!(state.take_victim(at(61)) && !state.take_victim(at(62)));
        // Each kind by itself.
        state.took(LineKind::Soft, at(63));
        state.give_back_victim();
        assert_eq!((state.victims_of(LineKind::Soft).left(at(63)), state.take_victim(at(63))), (2, false));
        let mut none = State::with_capacity(&Config { victims_per_minute: 0, ..config }, 1);
        none.give_back_victim();
        assert!(!none.take_victim(at(1)));
    }
}
