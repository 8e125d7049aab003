//! What of the state outlives the process that decides.

use super::{Config, State, Watched};
use crate::kept::Observed;
use crate::kubelet::Condition;
use plimsoll_units::MonotonicNs;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// What of a state is kept.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kept<'a> {
    watched: Cow<'a, [Watched]>,
    observed: [Option<Observed>; Condition::ALL.len()],
}

impl State {
    /// To be serialised.
    pub(crate) fn keep(&self, config: &Config) -> Kept<'_> {
        let crossed = self.watched.iter().map(|watched| watched.since.is_some());
        let conditions = config.thresholds.iter().map(|threshold| threshold.signal.condition());
        Kept {
            watched: Cow::Borrowed(&self.watched),
            observed: Observed::each(crossed.zip(conditions), self.last_observed),
        }
    }

    /// A new one that goes on with what another process kept. `None`: it is of another configuration.
    pub(crate) fn resumed(kept: &Kept<'_>, config: &Config, now: MonotonicNs) -> Option<Self> {
        let mut state = Self::new(config);
        if kept.watched.len() != state.watched.len() {
            return None;
        }
        for (own, kept) in state.watched.iter_mut().zip(kept.watched.iter()) {
            *own = Watched { since: kept.since.map(|since| since.min(now)), ..*kept };
        }
        state.last_observed = Observed::last(kept.observed, now);
        state.conclude(config.pressure_transition, now);
        Some(state)
    }
}
