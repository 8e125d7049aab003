//! Which thresholds are crossed, since when, and which conditions follow.

use super::state::{ScopeState, Watched};
use crate::config::Config;
use crate::kubelet::{Amount, Condition, Origin, Reading, Readings, Signal, Threshold};
use crate::observation::{MemoryReading, Observation};
use crate::plan::{Case, Plan, ThresholdStatus, Why};
use crate::scope::Scope;
use core::time::Duration;
use plimsoll_units::{Bytes, MonotonicNs};

/// What is available of something, by one reading or two.
#[derive(Clone, Copy)]
pub(super) struct Available {
    pub(super) kubelet: Amount,
    /// By the kernel's own estimate; of memory alone.
    pub(super) kernel: Option<Amount>,
    /// What that estimate leaves out of what could be freed.
    pub(super) withheld: Amount,
    pub(super) capacity: i64,
}

impl Available {
    /// A signal as it was observed. Huge pages that were set aside are no memory that anything else could have.
    pub(super) fn of(signal: Signal, readings: &Readings, observation: &Observation<'_>) -> Option<Self> {
        let Reading { available, capacity, time: _ } = readings.get(signal)?;
        let kubelet = Amount::whole(available);
        let counted = |bytes: Option<Bytes>| bytes.map(|bytes| Amount::counted(bytes.0));
        match signal {
            Signal::MemoryAvailable => {
                let pool = observation.huge_page_pool.0.cast_signed();
                Some(Self {
                    kubelet: kubelet - Amount::whole(pool),
                    kernel: counted(observation.mem_available),
                    withheld: counted(observation.withheld).unwrap_or(Amount::ZERO),
                    capacity: capacity.saturating_sub(pool),
                })
            }
            Signal::AllocatableMemoryAvailable => {
                let estimate = match observation.scope {
                    Scope::Node => observation.pods_mem_available,
                    Scope::Slice(_) => observation.mem_available,
                };
                Some(Self { kubelet, kernel: counted(estimate), withheld: Amount::ZERO, capacity })
            }
            _ => Some(Self { kubelet, kernel: None, withheld: Amount::ZERO, capacity }),
        }
    }

    /// The lower of both readings.
    pub(super) fn lowest(&self) -> Amount {
        self.kernel.map_or(self.kubelet, |kernel| kernel.min(self.kubelet))
    }

    fn case(&self, bar: Amount) -> Case {
        Case::of(self.kubelet < bar, self.kernel.map(|kernel| kernel < bar))
    }

    /// What is available by the lowest reading that is below.
    fn below(&self, case: Case) -> Amount {
        match (case, self.kernel) {
            (Case::MemAvailableOnly, Some(kernel)) => kernel,
            (Case::Both, Some(_)) => self.lowest(),
            _ => self.kubelet,
        }
    }

    /// In bytes, as far as they are any.
    fn memory(&self) -> MemoryReading {
        let bytes = |amount: Amount| amount.to_bytes();
        MemoryReading {
            capacity: Bytes(u64::try_from(self.capacity).unwrap_or(0)),
            kubelet_available: bytes(self.kubelet),
            mem_available: self.kernel.map(bytes),
        }
    }
}

/// Whether a threshold is one to go by: those derived are so from the first turn on, and those they replaced never.
const fn holds(threshold: &Threshold) -> bool {
    match threshold.origin {
        Origin::Configured | Origin::Derived | Origin::DerivedInPlace => true,
        Origin::ReplacedInCopy => false,
    }
}

/// Holds every threshold against what was observed, and writes into the plan what came of it.
pub(super) fn judge(
    config: &Config,
    scope: &mut ScopeState,
    readings: &Readings,
    observation: &Observation<'_>,
    now: MonotonicNs,
    plan: &mut Plan,
) {
    plan.memory = Available::of(Signal::MemoryAvailable, readings, observation).map(|available| available.memory());
    for (index, threshold) in (0_u32..).zip(config.thresholds_in(observation.scope)) {
        let Some(watched) = scope.watched.get_mut(index as usize) else { break };
        let Some(status) = compare(index, threshold, watched, readings, observation) else {
            // What cannot be read is forgotten: its grace starts anew.
            *watched = Watched::default();
            continue;
        };
        let (since, is_met) = watch(watched, status.case != Case::Neither, threshold.grace, now, plan);
        plan.thresholds.push(ThresholdStatus { since, is_met, ..status });
        if since.is_some() {
            scope.last_observed[threshold.signal.condition() as usize] = Some(now);
        }
    }
    judge_swap(config, scope, observation, now, plan);
    scope.conclude(config.pressure_transition, now);
    plan.conditions = scope.conditions;
}

/// A threshold held against what was observed, without since when it is crossed; absent where it is none to go by, or where
/// that was not read.
fn compare(
    index: u32,
    threshold: &Threshold,
    watched: &Watched,
    readings: &Readings,
    observation: &Observation<'_>,
) -> Option<ThresholdStatus> {
    let amount = threshold.amount.filter(|_| holds(threshold))?;
    let available = Available::of(threshold.signal, readings, observation)?;
    let at = amount.of(available.capacity);
    let target = at + threshold.min_reclaim.map_or(Amount::ZERO, |amount| amount.of(available.capacity));
    let case = available.case(if watched.is_latched { target } else { at });
    let available = available.below(case);
    Some(ThresholdStatus { why: Why::Threshold(index), at, target, available, case, since: None, is_met: false })
}

/// All thresholds of a scope that are to go by and could be read, as [`compare`] has them.
pub(super) fn compared<'c>(
    config: &'c Config,
    watched: &'c [Watched],
    readings: &'c Readings,
    observation: &'c Observation<'_>,
) -> impl Iterator<Item = (&'c Threshold, &'c Watched, ThresholdStatus)> + Clone {
    let watched = (0_u32..).zip(config.thresholds_in(observation.scope)).zip(watched);
    watched.filter_map(move |((index, threshold), watched)| {
        Some((threshold, watched, compare(index, threshold, watched, readings, observation)?))
    })
}

/// The thresholds that [`judge`] would find met now.
pub(super) fn met<'c>(
    config: &'c Config,
    scope: &'c ScopeState,
    readings: &'c Readings,
    observation: &'c Observation<'_>,
    now: MonotonicNs,
) -> impl Iterator<Item = (&'c Threshold, ThresholdStatus)> {
    compared(config, &scope.watched, readings, observation).filter_map(move |(threshold, watched, status)| {
        let is_over = now.since(watched.since.unwrap_or(now)) >= threshold.grace;
        (status.case != Case::Neither && is_over).then_some((threshold, status))
    })
}

/// Swap is pressure when all three hold at once: little of it free, pages coming back from it, and all tasks stalling.
/// Each alone is harmless: full swap may hold what is never asked for, and a stall may be a slow disk's.
fn judge_swap(
    config: &Config,
    scope: &mut ScopeState,
    observation: &Observation<'_>,
    now: MonotonicNs,
    plan: &mut Plan,
) {
    let before = core::mem::replace(&mut scope.refaults, observation.swap.map(|swap| swap.refaults));
    let Some(watched) = scope.watched.last_mut() else { return };
    let (Some(threshold), Some(swap)) = (config.swap, observation.swap) else {
        *watched = Watched::default();
        return;
    };
    let at = threshold.free.of(swap.total.0.cast_signed());
    let free = Amount::counted(swap.free.0);
    let is_below = free < at
        && before.is_some_and(|before| swap.refaults > before)
        && observation.stall.is_some_and(|stall| stall.is_at_least(config.stall_percent));
    let (since, is_met) = watch(watched, is_below, threshold.grace, now, plan);
    let case = if is_below { Case::Both } else { Case::Neither };
    plan.thresholds.push(ThresholdStatus { why: Why::Swap, at, target: at, available: free, case, since, is_met });
    if since.is_some() {
        scope.last_observed[Condition::MemoryPressure as usize] = Some(now);
    }
}

/// Since when a threshold is crossed, and whether its grace is over.
fn watch(
    watched: &mut Watched,
    is_below: bool,
    grace: Duration,
    now: MonotonicNs,
    plan: &mut Plan,
) -> (Option<MonotonicNs>, bool) {
    if !is_below {
        *watched = Watched::default();
        return (None, false);
    }
    let since = *watched.since.get_or_insert(now);
    let is_met = now.since(since) >= grace;
    watched.is_latched |= is_met;
    if !is_met {
        plan.recheck_by(since.after(grace));
    }
    (Some(since), is_met)
}
