//! Disks: what another process says is left on them, held against their thresholds.
//!
//! The figures are not trusted further than for the condition, and for orders to remove what is dead or unused. So they
//! have a turn of their own, by the same engine: with a state of its own, and over no workload. Whatever is sent, no decision
//! on memory follows from it or waits for it, and nothing is evicted. Evictions are decided by the core's own figures
//! ([`super::disk_victims`]), and wait for what is removed.

mod removal;

use core::time::Duration;

use plimsoll_inventory::{DiskReading, DiskRole, RemovalResult};
use plimsoll_policy::kubelet::{Condition, DiskLayout, FsStats, NodeStats, Readings};
use plimsoll_policy::{
    Config as Policy, Keep, Kept, Observation, Outcome, Plan, Removal as Wanted, State, Why, decide,
};
use plimsoll_units::MonotonicNs;

use super::super::inventory::InventoryHandle;
use super::Watch;
use super::reporting::Reporting;
use crate::record::{DiskRecord, Judged};
use removal::Removal;

/// Older figures are absent: three times the slowest pace at which they are read (`Pace` in agent/storage).
const MAX_AGE: Duration = Duration::from_secs(30);
/// Without new figures, they are held against the thresholds this often, so that grace and transition periods end.
const PACE: Duration = Duration::from_millis(500);
/// No two reports are nearer, whatever is sent.
const REPORT_PAUSE: Duration = Duration::from_secs(1);
/// What stays the same while a threshold is crossed or the condition holds is reported again after this long.
const REPORT_AGAIN: Duration = Duration::from_secs(30);

/// What is known of the disks, and what follows.
pub(in crate::core) struct Disks {
    policy: Policy,
    state: State,
    plan: Plan,
    /// The last of each, by its role.
    readings: [Option<DiskReading>; DiskRole::ALL.len()],
    /// What each of them cost the thread that read it, as another process says. Nothing is decided by it.
    costs: [Option<Duration>; DiskRole::ALL.len()],
    /// Of which disks there were figures at the last turn.
    read: [bool; DiskRole::ALL.len()],
    /// Of which ones the core before this one had figures, and until when they are awaited: until then nothing is judged,
    /// so that none counts as absent that was not sent to this core yet.
    awaited: Option<([bool; DiskRole::ALL.len()], MonotonicNs)>,
    /// Which disks there are, as it was said last.
    layout: Option<DiskLayout>,
    removal: Removal,
    /// When the thresholds are judged next; absent until there was a figure.
    due: Option<MonotonicNs>,
    /// What was reported last, and when.
    reported: Option<(Reported, MonotonicNs)>,
    /// What was traced last.
    traced: Option<Judged>,
}

/// What is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reported {
    has_pressure: bool,
    /// Of which disks there are figures, by the number of the role.
    read: [bool; DiskRole::ALL.len()],
    /// Bits: the thresholds that are crossed, and those of them whose grace is over, by their places in the policy.
    crossed: u32,
    met: u32,
}

impl Reported {
    /// What a plan says.
    fn of(plan: &Plan, read: [bool; DiskRole::ALL.len()]) -> Self {
        let (mut crossed, mut met) = (0, 0);
        for status in &plan.thresholds {
            crossed |= if status.since.is_some() { bit(status.why) } else { 0 };
            met |= if status.is_met { bit(status.why) } else { 0 };
        }
        Self { has_pressure: plan.conditions.has(Condition::DiskPressure), read, crossed, met }
    }
}

/// The bit of a threshold on disks: six signals, hard and soft, and what the kubelet derives for two of them.
const fn bit(why: Why) -> u32 {
    match why {
        Why::Threshold(index) if index < u32::BITS => 1 << index,
        Why::Threshold(_) | Why::Swap | Why::Limit(_) => 0,
    }
}

impl Disks {
    /// `policy`: of thresholds on disks alone.
    pub(in crate::core) fn new(policy: Policy) -> Self {
        // Each reclaim is reported to have ended, in time.
        let policy = Policy { reclaim_patience: Duration::MAX, ..policy };
        Self {
            state: State::with_capacity(&policy, 0),
            plan: Plan::with_capacity(&policy, 0, 0),
            removal: Removal::new(policy.reclaim_pause),
            policy,
            readings: [None; DiskRole::ALL.len()],
            costs: [None; DiskRole::ALL.len()],
            read: [false; DiskRole::ALL.len()],
            awaited: None,
            layout: None,
            due: None,
            reported: None,
            traced: None,
        }
    }

    /// What the next core goes on with.
    pub(super) fn keep(&self) -> (Keep<'_>, [bool; DiskRole::ALL.len()]) {
        (self.state.keep(&self.policy, false), self.awaited.map_or(self.read, |(awaited, _)| awaited))
    }

    /// Goes on with what the core before this one has kept, if it is of the same thresholds.
    pub(super) fn resume(&mut self, kept: Kept, read: [bool; DiskRole::ALL.len()], now: MonotonicNs) {
        let Some(state) = State::resume(kept, &self.policy, 0, now) else { return };
        self.state = state;
        if read.contains(&true) || self.has_pressure() {
            (self.awaited, self.due) = (Some((read, now.after(MAX_AGE))), Some(now));
        }
    }

    /// Whether there is a threshold that can be met: those that are derived from none have no amount.
    pub(super) fn has_thresholds(&self) -> bool {
        self.policy.thresholds.iter().any(|threshold| threshold.amount.is_some())
    }

    /// What decisions on disks remember.
    pub(super) const fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// Whether there is a condition of disks, and whether a threshold behind it is crossed; absent until there was a figure.
    fn concluded(&self) -> Option<(bool, bool)> {
        self.reported?;
        let is_crossed = self.plan.condition_case(&self.policy, Condition::DiskPressure).is_some();
        Some((self.has_pressure(), is_crossed))
    }

    /// As of the last turn.
    fn has_pressure(&self) -> bool {
        self.state.conditions(&self.policy).has(Condition::DiskPressure)
    }

    /// Whether figures are still to come that the core before this one had.
    fn awaits(&mut self, now: MonotonicNs) -> bool {
        let fresh = DiskRole::ALL.map(|role| self.fresh_reading(role, now).is_some());
        let is_due = |(awaited, until): &mut ([bool; DiskRole::ALL.len()], MonotonicNs)| {
            now > *until || awaited.iter().zip(fresh).all(|(is_awaited, is_fresh)| !is_awaited || is_fresh)
        };
        self.awaited.take_if(is_due);
        self.awaited.is_some()
    }

    /// What was reported last, if anything was.
    #[cfg(test)]
    pub(super) fn reported_pressure(&self) -> Option<bool> {
        self.reported.map(|(reported, _)| reported.has_pressure)
    }

    /// Takes a figure in, and what reading it cost. One from the future is of now.
    pub(super) fn learn(&mut self, reading: DiskReading, cost: Duration, now: MonotonicNs) {
        if self.policy.thresholds.is_empty() {
            return;
        }
        self.layout = reading.layout;
        self.readings[reading.role as usize] = Some(DiskReading { at: reading.at.min(now), ..reading });
        self.costs[reading.role as usize] = Some(cost);
        self.due = Some(now);
    }

    /// The same without a threshold to hold it against.
    #[cfg(test)]
    pub(super) fn believe(&mut self, reading: DiskReading) {
        self.readings[reading.role as usize] = Some(reading);
    }

    /// What was said last of each disk.
    pub(super) const fn said(&self) -> &[Option<DiskReading>; DiskRole::ALL.len()] {
        &self.readings
    }

    /// Whether a figure of then may lack what is removed by order: no pod is evicted by such a one.
    pub(super) fn frees(&self, taken: MonotonicNs) -> bool {
        self.removal.frees(taken)
    }

    /// What is known of each, as far as it is not too old.
    pub(super) fn stats(&self, now: MonotonicNs) -> [Option<FsStats>; DiskRole::ALL.len()] {
        DiskRole::ALL.map(|role| self.fresh_reading(role, now).map(|reading| reading.stats()))
    }

    /// What the last reading of a disk cost.
    pub(super) const fn cost(&self, role: DiskRole) -> Option<Duration> {
        self.costs[role as usize]
    }

    /// A figure that is not too old.
    fn fresh_reading(&self, role: DiskRole, now: MonotonicNs) -> Option<DiskReading> {
        self.readings[role as usize].filter(|reading| now.since(reading.at) <= MAX_AGE)
    }

    /// Takes in what came of an order.
    pub(super) fn removed(&mut self, result: RemovalResult, now: MonotonicNs, reporting: &mut Reporting) {
        if let Some(record) = self.removal.learn(result, now) {
            reporting.send(record);
        }
    }

    /// Holds the figures against the thresholds, if that is due, and reports what came of it. `acts`: orders are given.
    /// Gives whether it was due.
    fn judge(&mut self, now: MonotonicNs, acts: bool, orders: &InventoryHandle, reporting: &mut Reporting) -> bool {
        if let Some(stop) = self.removal.act(acts) {
            orders.order_removal(&stop);
        }
        if let Some(record) = self.removal.expire(now) {
            reporting.send(record);
        }
        if self.due.is_none_or(|due| now < due) {
            return false;
        }
        self.due = Some(now.after(PACE));
        if self.awaits(now) {
            let nothing = Reported::of(&self.plan, [false; DiskRole::ALL.len()]);
            self.report(Reported { has_pressure: self.has_pressure(), ..nothing }, now, reporting);
            return true;
        }
        let figures = DiskRole::ALL.map(|role| self.fresh_reading(role, now));
        let fresh = figures.map(|reading| reading.map(|reading| reading.stats()));
        let [node_fs, image_fs, container_fs] = fresh;
        let readings = Readings::of(&NodeStats { node_fs, image_fs, container_fs, ..NodeStats::default() });
        let (unused, reclaimed) = (self.removal.unused(now), self.removal.ended());
        let observation = Observation {
            taken: now,
            // A policy asks for the layout once, and it may change: it plans for the one that allows most, and what the
            // newest does not allow is left out of the order.
            layout: Some(DiskLayout::Single),
            readings: Some(readings),
            images: unused,
            reclaimed,
            ..Observation::default()
        };
        decide(&self.policy, &mut self.state, &observation, now, &mut self.plan);
        let judged = Judged {
            figures,
            layout: self.layout,
            unused: u16::try_from(unused.len()).unwrap_or(u16::MAX),
            reclaimed,
            outcome: self.plan.outcome,
            has_pressure: self.has_pressure(),
            reclaim: self.plan.reclaim(),
        };
        self.trace(&judged, reporting);
        if let Some(reclaim) = self.plan.reclaim() {
            let wanted = Wanted::of(&self.policy, &self.plan, reclaim, self.layout);
            if let Some((record, order)) = self.removal.ask(reclaim.order, wanted, now) {
                if let Some(order) = order {
                    orders.order_removal(&order);
                }
                reporting.send(record);
            }
        }
        // The kubelet's policy judges nothing while it waits for a reclaim.
        if self.plan.outcome == Outcome::Reclaiming && self.plan.thresholds.is_empty() {
            return true;
        }
        self.read = fresh.map(|fs| fs.is_some());
        self.report(Reported::of(&self.plan, self.read), now, reporting);
        true
    }

    /// Has what was judged, and what followed, in the trace. Left out is what is as it was at the last time, while no
    /// threshold is crossed and no condition holds: else periods count from this turn.
    fn trace(&mut self, judged: &Judged, reporting: &mut Reporting) {
        let is_calm = !judged.has_pressure && self.plan.thresholds.iter().all(|status| status.since.is_none());
        if reporting.is_traced() && (self.traced.as_ref() != Some(judged) || !is_calm) {
            self.traced = Some(*judged);
            reporting.send(DiskRecord::Judged { judged: *judged, at: self.plan.made });
        }
    }

    /// Reports what has changed, or was not reported for long: the thresholds first, then the condition.
    fn report(&mut self, new: Reported, now: MonotonicNs, reporting: &mut Reporting) {
        if self.reported.is_some_and(|(_, at)| now.since(at) < REPORT_PAUSE) {
            return;
        }
        let (last, is_stale) = match self.reported {
            Some((last, at)) => (last, now.since(at) >= REPORT_AGAIN && (new.has_pressure || new.crossed != 0)),
            None => (Reported { crossed: 0, met: 0, ..new }, true),
        };
        if new == last && !is_stale {
            return;
        }
        self.reported = Some((new, now));
        let named = (new.crossed ^ last.crossed) | (new.met ^ last.met) | if is_stale { new.crossed } else { 0 };
        for status in self.plan.thresholds.iter().filter(|status| named & bit(status.why) != 0) {
            let Why::Threshold(index) = status.why else { continue };
            let Some(threshold) = self.policy.thresholds.get(index as usize) else { continue };
            let (signal, grace) = (threshold.signal, threshold.grace);
            reporting.send(DiskRecord::Threshold { signal, grace, status: *status });
        }
        reporting.send(DiskRecord::Pressure { holds: new.has_pressure, read: new.read, at: now });
    }
}

impl Watch {
    /// Judges the disks where that is due.
    pub(super) fn judge_disks(&mut self, now: MonotonicNs) {
        if self.disks.judge(now, self.enforcement.acts(), &self.workloads.handle, &mut self.reporting) {
            if let Some((is_true, is_crossed)) = self.disks.concluded() {
                self.conclude(Condition::DiskPressure, is_true, is_crossed, now);
            }
            self.keep();
        }
    }
}

#[cfg(test)]
mod tests;
