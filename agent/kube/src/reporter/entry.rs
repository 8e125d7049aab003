//! Evictions that are to be reported, and what came of each.

use super::retry::Retry;
use crate::eviction::{Eviction, Progress, Step};
use plimsoll_policy::Uid;
use tokio::time::Instant;

/// What was decided about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is evicted.
    Evicted(Eviction),
    /// It is not evicted any more, and nothing was done to it: what the API server has not taken yet is not to be written.
    GivenUp(Uid),
}

/// An eviction, and how far the API server knows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The eviction.
    pub eviction: Eviction,
    /// What of its pod is done.
    pub progress: Progress,
    /// Whether its event was written.
    pub has_event: bool,
}

impl From<Eviction> for Entry {
    fn from(eviction: Eviction) -> Self {
        Self { eviction, progress: Progress::Unreported, has_event: false }
    }
}

/// What came of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The API server has the pod of this UID as failed, or as one that is being deleted: its kubelet ends it, in its own
    /// order.
    Ends(String),
    /// Nothing is left to be written.
    Over(Entry),
}

/// An entry of which something is left to be written.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) entry: Entry,
    /// What has to be done about its pod, as it was when that was looked at last.
    pub(super) step: Step,
    /// Its patch was in conflict: it is not known whether the pod is another one by now.
    pub(super) is_in_conflict: bool,
    pub(super) of_pod: Retry,
    pub(super) of_event: Retry,
}

impl Open {
    pub(super) fn new(entry: Entry, now: Instant) -> Self {
        let (of_pod, of_event) = (Retry::new(now), Retry::new(now));
        Self { entry, step: Step::Wait(None), is_in_conflict: false, of_pod, of_event }
    }

    pub(super) fn pod(&self) -> String {
        let Eviction { namespace, name, .. } = &self.entry.eviction;
        format!("pod {namespace}/{name}")
    }
}
