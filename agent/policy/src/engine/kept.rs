//! What of the state outlives the process that decides: since when thresholds are crossed, which are latched, when a
//! condition was last observed, and what was evicted lately.
//!
//! Not what workloads used when memory was plentiful: that is by slot, and another process has other slots. Nor a reclaim
//! that was asked for: it ended with its process, and is asked for again.

use super::state::{ScopeState, State, Taken, ThresholdKind, Watched};
use crate::config::Config;
use crate::kept::Observed;
use crate::kubelet::{Condition, Signal, Threshold};
use crate::scope::{Scope, SliceId};
use plimsoll_units::MonotonicNs;
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;

/// What is kept of one scope.
#[derive(Debug, Serialize, Deserialize)]
struct KeptScope<'a> {
    watched: Cow<'a, [Watched]>,
    observed: [Option<Observed>; Condition::ALL.len()],
    /// For hard thresholds: a soft one waits for a turn at most less.
    futile: [Option<MonotonicNs>; Signal::ALL.len()],
}

/// A state as it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep<'a> {
    pub(crate) state: &'a State,
    pub(crate) config: &'a Config,
    /// With what was evicted lately, which takes most of the room.
    pub(crate) has_taken: bool,
}

/// What was kept, read back.
#[derive(Debug, Deserialize)]
pub(crate) struct Kept(Vec<KeptScope<'static>>, Option<[Taken; 2]>);

impl Serialize for Keep<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (ScopesOf(*self), self.has_taken.then_some(&self.state.taken)).serialize(serializer)
    }
}

struct ScopesOf<'a>(Keep<'a>);

impl Serialize for ScopesOf<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Keep { state, config, .. } = self.0;
        serializer.collect_seq(state.scopes().map(|(at, scope)| KeptScope::of(scope, config.thresholds_in(at))))
    }
}

impl<'a> KeptScope<'a> {
    fn of(scope: &'a ScopeState, thresholds: &[Threshold]) -> Self {
        let crossed = scope.watched.iter().map(|watched| watched.since.is_some());
        let conditions = thresholds.iter().map(|threshold| threshold.signal.condition());
        // Swap is last.
        let observed = Observed::each(crossed.zip(conditions.chain([Condition::MemoryPressure])), scope.last_observed);
        Self { watched: Cow::Borrowed(&scope.watched), observed, futile: scope.futile[ThresholdKind::Hard as usize] }
    }
}

impl State {
    /// The node, then the slices.
    pub(super) fn scopes(&self) -> impl Iterator<Item = (Scope, &ScopeState)> {
        let slices = (0_u8..).map(|index| Scope::Slice(SliceId(index))).zip(&self.slices);
        core::iter::once((Scope::Node, &self.node)).chain(slices)
    }

    /// A new state that goes on with what another process kept. `None`: it is of another configuration.
    pub(crate) fn resumed(Kept(scopes, taken): Kept, config: &Config, slots: usize, now: MonotonicNs) -> Option<Self> {
        let mut state = Self::with_capacity(config, slots);
        if scopes.len() != 1 + state.slices.len() {
            return None;
        }
        for (scope, kept) in core::iter::once(&mut state.node).chain(&mut state.slices).zip(scopes) {
            scope.resume(kept, config, now)?;
        }
        let fits = taken.is_none_or(|taken| state.take_over(taken));
        fits.then_some(state)
    }
}

impl ScopeState {
    fn resume(&mut self, kept: KeptScope<'_>, config: &Config, now: MonotonicNs) -> Option<()> {
        let KeptScope { watched, observed, futile } = kept;
        if watched.len() != self.watched.len() {
            return None;
        }
        for (own, kept) in self.watched.iter_mut().zip(watched.iter()) {
            *own = Watched { since: kept.since.map(|since| since.min(now)), ..*kept };
        }
        self.last_observed = Observed::last(observed, now);
        self.futile[ThresholdKind::Hard as usize] = futile.map(|at| at.map(|at| at.min(now)));
        self.conclude(config.pressure_transition, now);
        Some(())
    }
}
