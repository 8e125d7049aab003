//! Sums by owner: all workloads of one owner are ranked by what they use, request, and grew by together.

use super::attribution::Baseline;
use super::left_behind::Suspicion;
use super::rank::By;
use crate::kubelet::{Amount, Resource};
use crate::observation::{Observation, Workload};
use crate::plan::{Attribution, Owned, Plan, Ranked, Verdict, is_share};
use plimsoll_units::Bytes;

/// What all workloads of an owner use, request, and grew by.
#[derive(Default)]
struct Sum {
    usage: Amount,
    request: Option<Amount>,
    /// Used now, and when memory was plentiful, of workloads whose growth counts.
    now: Bytes,
    before: Bytes,
    /// What the living workload grew by that grew most.
    most: Bytes,
    /// What empty ones grew by.
    left: Bytes,
}

impl Sum {
    /// `lives`: a process is left in one of the owner's workloads that may be evicted.
    fn add(&mut self, ranked: &Ranked, workload: &Workload<'_>, by: &By<'_>, lives: bool) {
        // What a terminating workload holds comes back.
        if ranked.verdict != Verdict::Terminating {
            self.usage = self.usage + ranked.usage;
        }
        let requested = match workload.owner.filter(|_| by.short.resource() == Resource::Memory) {
            Some(owner) => Some(Amount::bytes(owner.request)),
            None => ranked.request.map(|own| own + self.request.unwrap_or_default()),
        };
        self.request = requested.or(self.request);
        let Some(baseline) = by.baseline else { return };
        let before = baseline.used(workload.key);
        // What of it is in the owner's sum.
        let counted = before.filter(|before| before.owner == ranked.owner).and_then(|before| before.usage);
        let counts = grows(ranked, workload) || lives && workload.is_empty && !is_protected(ranked);
        match workload.working_set().filter(|_| counts) {
            Some(now) => {
                self.now = self.now.saturating_add(now);
                // One that could not be read then has not grown, and one that belonged to another grew by its own growth.
                let uncounted = before.filter(|_| counted.is_none()).map(|before| before.usage.unwrap_or(now));
                self.before = self.before.saturating_add(uncounted.unwrap_or(Bytes::ZERO));
                let grown = ranked.growth.own.unwrap_or(Bytes::ZERO);
                if workload.is_empty {
                    self.left = self.left.saturating_add(grown);
                } else {
                    self.most = self.most.max(grown);
                }
            }
            None => self.before = self.before.saturating_sub(counted.unwrap_or(Bytes::ZERO)),
        }
    }

    fn growth(&self) -> Bytes {
        self.now.saturating_sub(self.before)
    }

    /// What empty ones hold of that growth, where it is more than any living one grew by: else that one is the cause.
    fn left_behind(&self) -> Bytes {
        let left = self.left.min(self.growth());
        if left > self.most { left } else { Bytes::ZERO }
    }
}

/// Whether a workload's growth counts for its owner: that of a protected one is its own, and of one without a process
/// nothing grows any more.
pub(super) fn grows(ranked: &Ranked, workload: &Workload<'_>) -> bool {
    !is_protected(ranked) && !workload.is_empty
}

const fn is_protected(ranked: &Ranked) -> bool {
    matches!(ranked.verdict, Verdict::Protected(_))
}

/// Puts the sums of each owner into the rows of its workloads, and says which of them grew. The rows are not sorted yet.
/// Gives what grew together; by how much memory fell is not known here.
pub(super) fn account(observation: &Observation<'_>, by: &By<'_>, plan: &mut Plan) -> Attribution {
    let Plan { ranked, owned, .. } = plan;
    collect(ranked, by.baseline, owned);
    let mut attribution = Attribution::default();
    for row in ranked.iter_mut() {
        let workload = &observation.workloads[row.workload as usize];
        row.growth.owner = row.growth.own;
        let growth = row.growth.own.unwrap_or(Bytes::ZERO);
        row.grew = growth > Bytes::ZERO;
        let sum = match row.verdict {
            // No living workload's growth any more, so it must not hide what grows now.
            _ if workload.is_empty => &mut attribution.left_behind,
            Verdict::Protected(_) => &mut attribution.protected_grew,
            // By owner, below.
            _ if row.owner.is_some() => continue,
            _ => &mut attribution.evictable_grew,
        };
        *sum = sum.saturating_add(growth);
    }
    for of_owner in owned.chunk_by_mut(|one, other| one.owner == other.owner) {
        let rows = || of_owner.iter().map(|it| &ranked[it.row as usize]);
        let workload = |row: &Ranked| &observation.workloads[row.workload as usize];
        // A process that is moved leaves its memory charged to the cgroup that it was in.
        let lives = rows().any(|row| grows(row, workload(row)));
        let mut sum = Sum { before: of_owner[0].before, ..Sum::default() };
        rows().for_each(|row| sum.add(row, workload(row), by, lives));
        attribution.evictable_grew = attribution.evictable_grew.saturating_add(sum.growth());
        let left = sum.left_behind();
        let suspicion = |row: &Ranked| Suspicion::of(row, workload(row), by, is_grown_most(row, by, &sum));
        let strongest = rows().filter(|_| left > Bytes::ZERO).filter_map(suspicion).max();
        of_owner[0].left = left;
        for it in &*of_owner {
            let ranked = &mut ranked[it.row as usize];
            let requested = sum.request.unwrap_or_default();
            ranked.request = ranked.request.and(sum.request);
            ranked.exceeds = sum.usage > requested;
            ranked.over = sum.usage - requested;
            ranked.growth.owner = by.baseline.map(|_| sum.growth());
            ranked.grew = match strongest {
                Some(_) => suspicion(ranked) == strongest,
                None => is_grown_most(ranked, by, &sum),
            };
        }
    }
    mark_grown(observation, by, ranked);
    attribution
}

/// Collects the workloads of others, by owner, each first one with what the owner's used when memory was plentiful. An
/// owner that is one workload now and was several then grew by what it uses beyond that sum.
fn collect(ranked: &mut [Ranked], baseline: Option<&Baseline>, owned: &mut Vec<Owned>) {
    let is_new = |ranked: &Ranked| baseline.is_some_and(|baseline| baseline.used(ranked.key).is_none());
    let counts_for = |ranked: &Ranked| ranked.owner.or_else(|| is_new(ranked).then_some(ranked.key.id));
    let rows = (0_u32..).zip(&*ranked).filter_map(|(row, ranked)| Some((counts_for(ranked)?, row)));
    owned.clear();
    owned.extend(rows.map(|(owner, row)| Owned { owner, row, before: Bytes::ZERO, left: Bytes::ZERO }));
    owned.sort_unstable_by_key(|it| (it.owner, it.row));
    if let Some(baseline) = baseline {
        baseline.sum_up(owned);
    }
    owned.retain(|it| {
        let ranked = &mut ranked[it.row as usize];
        if ranked.owner.is_none() {
            ranked.growth.own = ranked.growth.own.map(|own| own.saturating_sub(it.before));
        }
        ranked.owner.is_some()
    });
}

/// Marks owners that grew by a large enough share of what the owner grew by that grew most, and among their workloads
/// the ones that did so.
fn mark_grown(observation: &Observation<'_>, by: &By<'_>, ranked: &mut [Ranked]) {
    let workload = |row: &Ranked| &observation.workloads[row.workload as usize];
    let growing = ranked.iter().filter(|row| grows(row, workload(row)));
    let most = growing.filter_map(|row| row.growth.owner).max().unwrap_or(Bytes::ZERO);
    for row in ranked {
        let cannot_be_held = by.baseline.is_some() && workload(row).grows_while_frozen;
        row.growth.is_large = is_grown(row.growth.owner, by.responsible_percent, most) || cannot_be_held;
        row.grew = grows(row, workload(row)) && (row.grew && row.growth.is_large || cannot_be_held);
    }
}

/// Whether a workload grew by a large enough share of what the owner's living workload did that grew most.
fn is_grown_most(ranked: &Ranked, by: &By<'_>, sum: &Sum) -> bool {
    is_grown(ranked.growth.own, by.responsible_percent, sum.most)
}

fn is_grown(growth: Option<Bytes>, percent: u8, most: Bytes) -> bool {
    growth.is_some_and(|growth| growth > Bytes::ZERO && is_share(growth, percent, most))
}
