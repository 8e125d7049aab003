//! Which lines are crossed, since when, and which conditions follow.

use super::config::Config;
use super::observation::Observation;
use super::plan::{Judged, Plan, Why};
use super::state::{State, Watched};
use crate::kubelet::{Amount, Condition, Conditions, Origin, Reading, Readings, Signal, Threshold};
use crate::plan::Case;
use core::time::Duration;
use plimsoll_units::MonotonicNs;

/// What is available of something, by one reading or two.
#[derive(Clone, Copy)]
struct Available {
    kubelet: Amount,
    /// By the kernel's own estimate; of memory alone.
    kernel: Option<Amount>,
    capacity: i64,
}

impl Available {
    /// A signal as it was seen. Huge pages that were set aside are no memory that anybody else could have.
    fn of(signal: Signal, readings: &Readings, observation: &Observation<'_>) -> Option<Self> {
        let Reading { available, capacity, time: _ } = readings.get(signal)?;
        let kubelet = Amount::whole(available);
        match signal {
            Signal::MemoryAvailable => {
                let pool = observation.huge_page_pool.0.cast_signed();
                Some(Self {
                    kubelet: kubelet - Amount::whole(pool),
                    kernel: observation.mem_available.map(|bytes| Amount::counted(bytes.0)),
                    capacity: capacity.saturating_sub(pool),
                })
            }
            Signal::AllocatableMemoryAvailable => {
                let kernel = observation.pods_mem_available.map(|bytes| Amount::counted(bytes.0));
                Some(Self { kubelet, kernel, capacity })
            }
            _ => Some(Self { kubelet, kernel: None, capacity }),
        }
    }

    fn case(&self, bar: Amount) -> Case {
        Case::of(self.kubelet < bar, self.kernel.map(|kernel| kernel < bar))
    }

    /// What is missing to a target, by the lowest reading that is below it.
    fn missing(&self, target: Amount, case: Case) -> Amount {
        let available = match (case, self.kernel) {
            (Case::MemAvailableOnly, Some(kernel)) => kernel,
            (Case::Both, Some(kernel)) => self.kubelet.min(kernel),
            _ => self.kubelet,
        };
        (target - available).max(Amount::ZERO)
    }
}

/// Whether a threshold is one to go by: those derived are so from the first turn on, and those they replaced never.
const fn holds(threshold: &Threshold) -> bool {
    match threshold.origin {
        Origin::Configured | Origin::Derived | Origin::DerivedInPlace => true,
        Origin::Replaced | Origin::ReplacedInCopy => false,
    }
}

/// Holds every line against what was seen, and writes into the plan what came of it.
pub(super) fn judge(
    config: &Config,
    state: &mut State,
    readings: &Readings,
    observation: &Observation<'_>,
    now: MonotonicNs,
    plan: &mut Plan,
) {
    for (index, threshold) in (0_u32..).zip(&config.thresholds) {
        let watched = &mut state.watched[index as usize];
        let available = Available::of(threshold.signal, readings, observation);
        let (Some(line), Some(available), true) = (threshold.line, available, holds(threshold)) else {
            // What cannot be seen is forgotten: its grace starts anew.
            *watched = Watched::default();
            continue;
        };
        let at = line.of(available.capacity);
        let target = at + threshold.min_reclaim.map_or(Amount::ZERO, |line| line.of(available.capacity));
        let case = available.case(if watched.is_latched { target } else { at });
        let (since, is_met) = watch(watched, case != Case::Neither, threshold.grace, now, plan);
        let missing = available.missing(target, case);
        plan.judged.push(Judged { line: Why::Threshold(index), at, target, missing, case, since, is_met });
        if since.is_some() {
            state.last_observed[threshold.signal.condition() as usize] = Some(now);
        }
    }
    judge_swap(config, state, observation, now, plan);
    // A line that is crossed right now counts even if the period is zero.
    state.conditions = Conditions::of(|condition| {
        state.last_observed[condition as usize]
            .is_some_and(|last| last == now || now.since(last) < config.pressure_transition)
    });
    plan.conditions = state.conditions;
}

/// Swap is pressure when all three hold at once: little of it free, pages coming back from it, and all tasks stalling.
/// Each alone is harmless: full swap may hold what nobody asks for, and a stall may be a slow disk's.
fn judge_swap(config: &Config, state: &mut State, observation: &Observation<'_>, now: MonotonicNs, plan: &mut Plan) {
    let before = core::mem::replace(&mut state.refaults, observation.swap.map(|swap| swap.refaults));
    let Some(watched) = state.watched.last_mut() else { return };
    let (Some(line), Some(swap)) = (config.swap, observation.swap) else {
        *watched = Watched::default();
        return;
    };
    let at = line.free.of(swap.total.0.cast_signed());
    let free = Amount::counted(swap.free.0);
    let is_below = free < at
        && before.is_some_and(|before| swap.refaults > before)
        && observation.stall.is_some_and(|stall| stall.is_at_least(config.stall_percent));
    let (since, is_met) = watch(watched, is_below, line.grace, now, plan);
    let case = if is_below { Case::Both } else { Case::Neither };
    let missing = (at - free).max(Amount::ZERO);
    plan.judged.push(Judged { line: Why::Swap, at, target: at, missing, case, since, is_met });
    if since.is_some() {
        state.last_observed[Condition::MemoryPressure as usize] = Some(now);
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
