//! Pods that are evicted and conditions of the node, named to `services` until it answers that it has them on a disk.
//!
//! What is named is written to a file beside the run record first ([`Enforcer::evictions`](super::Enforcer)), by this thread and
//! before the kill is requested: a core that is killed at any instruction leaves what the next one goes on with, so that a
//! decision is finished under its number and is never taken twice. Only the agent that acts writes it and names anything.
//!
//! The inventory thread sends what is handed to it, or drops it where there is no room: whatever is not acknowledged is named
//! again: after a second, and ever less often up to once a minute. Another services is named everything at once. Without
//! services nothing is named, and no thread wakes for it.

mod named;

use core::time::Duration;

use arrayvec::ArrayVec;
use plimsoll_inventory::{ConditionState, Eviction, EvictionCause, EvictionNumber, EvictionStep, Receipt, Termination};
use plimsoll_node::clock::{monotonic, wall_ms};
use plimsoll_policy::kubelet::{Amount, Condition};
use plimsoll_policy::{Key, Plan, Why};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

use super::Watch;
use super::disk_victims::limit_of;
use crate::record::{DiskCause, HealthRecord};
use named::MOST_EVICTIONS;
pub(in crate::core) use named::{Evictions, MESSAGES, Past};

/// One that was decided, and nothing came of it for so long, is given up: what it was decided for is over.
const PATIENCE: Duration = Duration::from_secs(10);

/// A count, or bytes, as messages have it; what does not fit is the most that does.
fn whole(amount: Amount) -> i64 {
    let whole = amount.rounded_up();
    i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
}

/// Why a pod is evicted for a disk.
pub(super) fn of_disk(cause: DiskCause) -> EvictionCause {
    match cause {
        DiskCause::Threshold { signal, available, threshold } => {
            EvictionCause::Threshold { signal, threshold: whole(threshold), available: whole(available) }
        }
        DiskCause::Limit { on, limit } => EvictionCause::Limit { on, limit: limit.to_bytes() },
    }
}

/// Until when a pod has time to end that was asked to; absent for all others.
fn asked_until(eviction: &Eviction) -> Option<(CgroupId, MonotonicNs)> {
    let grace = Duration::from_secs(eviction.grace_seconds.into());
    let is_asked = eviction.step == EvictionStep::Decided && !grace.is_zero();
    is_asked.then(|| (eviction.cgroup, eviction.decided.after(grace)))
}

/// What is decided about a pod.
pub(super) struct Decided {
    pub(super) key: Key,
    pub(super) cause: EvictionCause,
    pub(super) is_soft: bool,
    pub(super) grace: Duration,
    pub(super) used: Option<Bytes>,
}

impl Watch {
    /// Goes on with what an earlier core left: a pod that was asked to end has the rest of its time. One whose time was over
    /// long before is not killed for that any more: another container may run in its cgroup by now. What was to be killed at
    /// once and was not is decided about again, and is the same eviction then. While the kill switch is thrown none is asked,
    /// and so none is killed when its grace is over: each is given up. A condition that held goes on for its transition period.
    pub(super) fn resume_evictions(&mut self, now: MonotonicNs) {
        let Some(enforcer) = &mut self.enforcement.enforcer else { return };
        let has_disks = self.disks.has_thresholds();
        let can_hold = |condition| has_disks || condition != Condition::DiskPressure;
        self.evictions.resume(&enforcer.evicted, can_hold, now);
        let (_, conditions) = enforcer.evicted;
        for state in conditions.into_iter().flatten().filter(|state| can_hold(state.condition)) {
            self.observe_before(state, now);
        }
        self.write_evictions();
        if !self.enforcement.acts() {
            return;
        }
        let rows = self.evictions.rows.iter().filter(|row| now.since(row.since) < PATIENCE);
        let asked: ArrayVec<(CgroupId, MonotonicNs), MOST_EVICTIONS> =
            rows.filter_map(|row| asked_until(&row.eviction)).collect();
        for (cgroup, until) in asked {
            let table = &mut self.workloads.table;
            let Some(key) = table.of(&[Some(cgroup)]) else { continue };
            if table.get(key).is_some_and(|workload| workload.termination == Termination::Stays) {
                table.set_termination(cgroup, Termination::Asked(until, 0));
                // Whether it was asked is not known: it is once more, by the runtime where that ends it in order. Where no
                // worker takes the job, it is killed when its grace is over.
                let _ = self.ask_to_end(key, until.since(now), now);
            }
        }
    }

    /// Why a pod is evicted by the plan, whether that is soft, and what of what is short it takes; absent where the plan does
    /// not have it.
    pub(super) fn cause_in_plan(&self, key: Key, why: Why) -> Option<(EvictionCause, bool)> {
        let Plan { scope, thresholds, .. } = &self.engine.plan;
        match why {
            Why::Threshold(index) => {
                let threshold = self.engine.policy.thresholds_in(*scope).get(index as usize)?;
                let status = thresholds.iter().find(|status| status.why == why)?;
                let (at, available) = (whole(status.at), whole(status.available));
                let cause = EvictionCause::Threshold { signal: threshold.signal, threshold: at, available };
                Some((cause, !threshold.is_hard()))
            }
            Why::Swap => {
                let is_soft = self.engine.policy.swap.is_some_and(|swap| !swap.grace.is_zero());
                Some((EvictionCause::Swap, is_soft))
            }
            Why::Limit(limit) => {
                let storage = self.workloads.table.get(key)?.storage.as_deref()?;
                Some((of_disk(limit_of(limit, storage)?), false))
            }
        }
    }

    /// Writes down that a pod is evicted, before anything is done to it. Of a cgroup that is none there is nothing to name.
    pub(super) fn decide_eviction(&mut self, decided: &Decided, now: MonotonicNs) {
        let Decided { key, cause, is_soft, grace, used } = *decided;
        let Some(uid) = self.workloads.table.get(key).and_then(|workload| workload.facts.pod).map(|pod| pod.uid) else {
            return;
        };
        let eviction = Eviction {
            number: EvictionNumber::default(),
            uid,
            cgroup: key.id,
            step: EvictionStep::Decided,
            cause,
            is_soft,
            grace_seconds: u32::try_from(grace.as_secs()).unwrap_or(u32::MAX),
            used,
            decided: now,
            wall_ms: wall_ms(),
        };
        self.evictions.decide(eviction, now);
        self.write_evictions();
    }

    /// An eviction has come so far, if the cgroup is that of one.
    pub(super) fn reach(&mut self, cgroup: CgroupId, step: EvictionStep, now: MonotonicNs) {
        let reached = self.evictions.reach(cgroup, step, now);
        let is_over = step == EvictionStep::Verified;
        let held_down = reached.filter(|row| is_over && !row.is_recorded).map(|row| row.eviction.uid);
        self.write_evictions();
        if let Some(uid) = held_down {
            self.hold_down(cgroup, uid, now);
        }
    }

    /// The cgroup is gone, if no workload is in the table that is the same.
    pub(super) fn left_table(&mut self, cgroup: CgroupId) {
        if self.evictions.is_any() && self.workloads.table.of(&[Some(cgroup)]).is_none() {
            self.reach(cgroup, EvictionStep::Verified, monotonic());
        }
    }

    /// Asks the kernel about each that may still end: a pod may end by itself, and what became of it before this core began
    /// comes by no event.
    pub(super) fn follow_evictions(&mut self, now: MonotonicNs) {
        let mut reached = ArrayVec::<(CgroupId, EvictionStep), MOST_EVICTIONS>::new();
        let table = &self.workloads.table;
        self.evictions.retain(|row| {
            let Eviction { cgroup, step, .. } = row.eviction;
            let workload = table.of(&[Some(cgroup)]).and_then(|key| table.get(key));
            let is_left = workload.is_none_or(|workload| workload.termination == Termination::Stays);
            if step < EvictionStep::Verified && workload.is_some_and(|it| it.facts.handle.populated() == Ok(false)) {
                reached.push((cgroup, EvictionStep::Verified));
            } else if !step.is_over() && is_left && now.since(row.since) >= PATIENCE {
                reached.push((cgroup, EvictionStep::GivenUp));
            }
            // One that was given up and is not waited for any more lives on, as any other pod.
            step != EvictionStep::GivenUp || !is_left || row.named.is_durable != Some(true)
        });
        for (cgroup, step) in reached {
            self.reach(cgroup, step, now);
        }
    }

    /// A condition of the node as it follows from the last decision. While the kill switch is thrown none becomes true; one that
    /// was ends as any other, so that its taint does not close the node for as long.
    pub(super) fn conclude(&mut self, condition: Condition, is_true: bool, is_crossed: bool, now: MonotonicNs) {
        let may_hold = self.enforcement.acts() || self.evictions.holds(condition);
        if self.enforcement.enforcer.is_some() && (may_hold || !is_true) {
            self.evictions.conclude(condition, is_true, is_crossed, now);
        }
    }

    /// What a condition was before this core, as services says. It is taken in once, and holds for what is left of its
    /// transition period: of one that was crossed until then, all of it.
    pub(super) fn take_before(&mut self, state: ConditionState, now: MonotonicNs) {
        // Each services begins with it.
        self.evictions.name_again();
        let condition = state.condition;
        let place = &mut self.evictions.before[condition as usize];
        if place.is_some() || self.evictions.conditions[condition as usize].is_some() {
            return;
        }
        *place = Some(state);
        self.observe_before(state, now);
    }

    /// A condition that was true before holds for what is left of its transition period, unless this core knows more of it.
    fn observe_before(&mut self, state: ConditionState, now: MonotonicNs) {
        let ConditionState { condition, is_true, observed, .. } = state;
        let observed = if is_true { observed.unwrap_or(now) } else { return };
        let state = match condition {
            Condition::DiskPressure => self.disks.state_mut(),
            Condition::MemoryPressure | Condition::PidPressure => &mut self.engine.state,
        };
        state.take_observed(condition, observed.min(now));
    }

    /// Takes in what services answered.
    pub(super) fn acknowledge(&mut self, receipt: Receipt) {
        self.evictions.acknowledge(receipt);
    }

    /// Writes down what has changed, and hands over what is due.
    pub(super) fn name_evictions(&mut self, now: MonotonicNs) {
        if self.enforcement.enforcer.is_some() {
            self.evictions.hand_over(&self.workloads.handle, now);
            self.write_evictions();
        }
        if core::mem::take(&mut self.evictions.has_left_out) {
            let what = "name more evictions to services, which does not acknowledge those before";
            self.reporting.send(HealthRecord::Failed { what, errno: None });
        }
    }

    fn write_evictions(&mut self) {
        if let Some(enforcer) = &mut self.enforcement.enforcer {
            self.evictions.write(&mut enforcer.evictions);
        }
    }
}

#[cfg(test)]
mod tests;
