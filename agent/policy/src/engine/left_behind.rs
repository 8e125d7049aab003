//! What processes left charged to cgroups that they were moved out of.
//!
//! Which process holds the memory that an empty cgroup is charged with is not known. While a process of its owner lives,
//! that may be one: where the empty cgroups of an owner grew by more than any living workload of it, all of its workloads
//! are taken that may hold it, and with the last one it counts as given back.

use super::account::grows;
use super::attribution::workload;
use super::rank::{By, Waits};
use crate::kubelet::Amount;
use crate::observation::{Observation, Workload};
use crate::plan::{Plan, Ranked, Verdict};
use core::cmp::Ordering;
use plimsoll_units::Bytes;

/// Why a living workload may hold what its owner's empty ones are charged with, the weakest reason first. Only workloads
/// with the strongest of their owner are taken for it; if memory is not back then, those that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Suspicion {
    /// It lives.
    Lives,
    /// It grew.
    Grew,
    /// It has come since memory was plentiful, or its first process.
    Came,
}

impl Suspicion {
    /// Absent where it cannot be ended.
    pub(super) fn of(ranked: &Ranked, workload: &Workload<'_>, by: &By<'_>, grew: bool) -> Option<Self> {
        if !grows(ranked, workload) || ranked.verdict == Verdict::Stuck {
            return None;
        }
        let has_come = by.baseline.is_some_and(|baseline| baseline.has_come(workload.key));
        Some(if has_come {
            Self::Came
        } else if grew {
            Self::Grew
        } else {
            Self::Lives
        })
    }
}

/// What of it comes back.
#[derive(Clone, Copy, Default)]
pub(super) struct LeftBehind {
    /// Held by empty cgroups of owners that have a living workload.
    pub(super) held: Bytes,
    /// Comes back with workloads that are terminating.
    pub(super) coming: Amount,
}

/// Adds to what the last workload, in `order`, of those that may hold it gives back. While one of them is terminating, it
/// is coming back instead.
pub(super) fn count(
    observation: &Observation<'_>,
    by: &By<'_>,
    order: fn(&Ranked, &Ranked) -> Ordering,
    plan: &mut Plan,
) -> LeftBehind {
    let Plan { ranked, owned, .. } = plan;
    let held = owned.iter().fold(Bytes::ZERO, |sum, it| sum.saturating_add(it.left));
    let mut counted = LeftBehind { held, ..LeftBehind::default() };
    let is_awaited = by.baseline.is_some_and(|baseline| baseline.awaits(held, by.now, by.returns_within));
    for of_owner in owned.chunk_by(|one, other| one.owner == other.owner) {
        let left = Amount::counted(of_owner[0].left.0);
        if left.is_zero() {
            continue;
        }
        let mut last: Option<u32> = None;
        let mut is_coming = false;
        for row in of_owner.iter().map(|it| it.row) {
            let suspect = &mut ranked[row as usize];
            if !suspect.grew {
                continue;
            }
            let terminating = workload(observation, suspect.workload).terminating;
            is_coming |= terminating.is_some_and(|terminating| by.waits.for_one(terminating));
            if suspect.verdict == Verdict::NothingToFree {
                suspect.verdict = Verdict::NotNeeded;
            }
            let may_end = suspect.verdict == Verdict::NotNeeded
                || terminating.is_some_and(|it| it.is_graceful && matches!(by.waits, Waits::ForKilled));
            let is_last =
                last.is_none_or(|last| order(&ranked[row as usize], &ranked[last as usize]) == Ordering::Greater);
            if may_end && is_last {
                last = Some(row);
            }
        }
        if !is_awaited {
            continue;
        }
        if is_coming {
            counted.coming = counted.coming + left;
        } else if let Some(last) = last {
            let last = &mut ranked[last as usize];
            last.frees = last.frees + left;
        }
    }
    counted
}
