//! What outlives the process that decides, so that the next one goes on with it: conditions, grace periods, latches, and
//! what was evicted lately.

use crate::decide::MadeFor;
use crate::engine;
use crate::kubelet::Condition;
use crate::kubelet_policy;
use plimsoll_units::MonotonicNs;
use serde::{Deserialize, Serialize};

/// What of a [`State`](crate::State) outlives its process, to be serialised: [`State::keep`](crate::State::keep).
/// Serialising it allocates nothing, where the format does not.
#[derive(Debug, Serialize)]
pub struct Keep<'a>(pub(crate) MadeFor, pub(crate) KeepOf<'a>);

#[derive(Debug, Serialize)]
pub(crate) enum KeepOf<'a> {
    Engine(engine::Keep<'a>),
    Kubelet(kubelet_policy::Keep<'a>),
}

/// The same, read back: [`State::resume`](crate::State::resume).
#[derive(Debug, Deserialize)]
pub struct Kept(pub(crate) MadeFor, pub(crate) KeptOf);

#[derive(Debug, Deserialize)]
pub(crate) enum KeptOf {
    Engine(engine::Kept),
    Kubelet(kubelet_policy::Kept),
}

/// When a threshold behind a condition was last crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Observed {
    /// It is, so that what is kept does not change with each decision. Until the next process begins, it counts as
    /// crossed: what is not observed is not known to be over.
    Still,
    /// Then.
    At(MonotonicNs),
}

impl Observed {
    /// For each condition, by the thresholds behind it: whether they are crossed, and which condition follows.
    pub(crate) fn each(
        thresholds: impl Iterator<Item = (bool, Condition)>,
        last: [Option<MonotonicNs>; Condition::ALL.len()],
    ) -> [Option<Self>; Condition::ALL.len()] {
        let mut observed = last.map(|last| last.map(Self::At));
        for (_, condition) in thresholds.filter(|(is_crossed, _)| *is_crossed) {
            observed[condition as usize] = Some(Self::Still);
        }
        observed
    }

    /// The times, for a process that begins `now`.
    pub(crate) fn last(
        observed: [Option<Self>; Condition::ALL.len()],
        now: MonotonicNs,
    ) -> [Option<MonotonicNs>; Condition::ALL.len()] {
        observed.map(|observed| match observed? {
            Self::Still => Some(now),
            Self::At(at) => Some(at.min(now)),
        })
    }
}
