//! Pods that are held down: evicted, empty, and frozen, so that what the kubelet starts in them does not run.
//!
//! The kubelet follows a pod's restart policy without its API server: until that has the status of the evicted pod, it starts
//! the containers again. In a frozen cgroup the runtime's first process stops before it runs anything of the container's.
//!
//! A hold has an entry in the run record as any brake has, so that it is undone where this process dies. It ends when the
//! API server has the pod's status, or has the pod no more: what was started meanwhile is killed at once, since the kubelet
//! waits for it, and once more before the thaw, when the status has stood for a while. It ends without a kill when its time is
//! over, and when this agent does not act any more.

use core::time::Duration;

use arrayvec::ArrayVec;
use plimsoll_act::{BrakeEvent, BrakeRefused, Brakes, Done, Workers};
use plimsoll_node::Fault;
use plimsoll_policy::Uid;
use plimsoll_state::Record as RunRecord;
use plimsoll_units::{CgroupId, MonotonicNs};

use super::Watch;
use super::enforcement::{Enforcement, errno_of};
use crate::record::{Braked, EnforcementRecord, Held, HoldEnd, Refused, fitting};

/// So many pods are held down at a time.
pub(in crate::core) const MOST_HELD: usize = 16;
/// How long it is held after the API server was given its status: as long as the longest pause after which that is written once
/// more where the kubelet has written its own over it, as after an outage. Then this begins anew.
const STANDS: Duration = Duration::from_secs(30);
/// How long it is left where there is no room for what is requested.
const AGAIN: Duration = Duration::from_millis(10);

/// How far a hold has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is not frozen for this: a brake holds it that is not thawed yet.
    Wanted,
    /// Until its time is over, which is then.
    Holds(MonotonicNs),
    /// The API server has the pod's status: it is thawed at the first of these, and its time is over at the second.
    Recorded(MonotonicNs, MonotonicNs),
    /// Its thaw is requested.
    Ends(HoldEnd),
}

/// A pod that is held down, or is about to be.
#[derive(Clone, Copy, Debug)]
struct Row {
    cgroup: CgroupId,
    uid: Uid,
    stage: Stage,
}

/// Pods that are held down.
pub(in crate::core) struct Holding {
    /// For so long at most; zero: none is.
    most: Duration,
    brakes: Brakes,
    rows: ArrayVec<Row, MOST_HELD>,
}

impl Holding {
    /// `brakes`: of those alone that are held down, with room for [`MOST_HELD`].
    pub(in crate::core) fn new(most: Duration, brakes: Brakes) -> Self {
        Self { most, brakes, rows: ArrayVec::new() }
    }

    /// How many are held, or not thawed yet.
    pub(super) fn count(&self) -> usize {
        self.brakes.count()
    }

    /// Whether a cgroup is held, or is about to be.
    pub(super) fn holds(&self, cgroup: CgroupId) -> bool {
        self.rows.iter().any(|row| row.cgroup == cgroup)
    }

    /// Whether a freeze or a thaw is not written yet.
    pub(super) fn awaits_write(&self) -> bool {
        self.brakes.awaits_write()
    }

    /// When the next thing is due.
    pub(super) fn due(&self) -> Option<MonotonicNs> {
        let recorded = self.rows.iter().filter_map(|row| match row.stage {
            Stage::Recorded(at, _) => Some(at),
            Stage::Wanted | Stage::Holds(_) | Stage::Ends(_) => None,
        });
        recorded.chain(self.brakes.next_due()).min()
    }

    /// A worker's result.
    pub(super) fn done(
        &mut self,
        done: Done,
        now: MonotonicNs,
        record: &mut RunRecord,
        workers: &mut Workers,
    ) -> Option<BrakeEvent> {
        self.brakes.done(done, now, record, workers)
    }

    /// The next thing that happened up to `now`; call until `None`.
    pub(super) fn poll(
        &mut self,
        now: MonotonicNs,
        record: &mut RunRecord,
        workers: &mut Workers,
    ) -> Option<BrakeEvent> {
        self.brakes.poll(now, record, workers)
    }

    /// Forgets what is not held any more. Why it ended, where that was requested.
    fn take(&mut self, cgroup: CgroupId) -> Option<HoldEnd> {
        let place = self.rows.iter().position(|row| row.cgroup == cgroup)?;
        match self.rows.swap_remove(place).stage {
            Stage::Ends(why) => Some(why),
            Stage::Wanted | Stage::Holds(_) | Stage::Recorded(..) => None,
        }
    }

    /// The API server has the status of this pod, or has it no more.
    fn recorded(&mut self, uid: Uid, now: MonotonicNs, workers: &mut Workers) {
        self.rows.retain(|row| row.uid != uid || row.stage != Stage::Wanted);
        let Some(row) = self.rows.iter_mut().find(|row| row.uid == uid) else { return };
        let (Stage::Holds(over) | Stage::Recorded(_, over)) = row.stage else { return };
        row.stage = Stage::Recorded(now.after(STANDS).min(over), over);
        // The runtime waits for the process that hangs, and the kubelet for the runtime. Where there is no room for that now,
        // it is killed before the thaw.
        let _ = self.brakes.kill(row.cgroup, workers);
    }

    /// Ends the holds of pods of which the kubelet knows by now that they have failed.
    fn end_due(&mut self, now: MonotonicNs, workers: &mut Workers) {
        for row in &mut self.rows {
            let Stage::Recorded(at, over) = row.stage else { continue };
            if now < at {
                continue;
            }
            if self.brakes.kill(row.cgroup, workers) {
                self.brakes.thaw(row.cgroup, now, workers);
                row.stage = Stage::Ends(HoldEnd::Recorded);
            } else {
                row.stage = Stage::Recorded(now.after(AGAIN), over);
            }
        }
    }

    /// Ends all, without a kill.
    fn end(&mut self, now: MonotonicNs, workers: &mut Workers) {
        self.rows.retain(|row| row.stage != Stage::Wanted);
        for row in &mut self.rows {
            if !matches!(row.stage, Stage::Ends(_)) {
                row.stage = Stage::Ends(HoldEnd::NotActing);
            }
        }
        self.brakes.thaw_all(now, workers);
    }

    fn end_gone(&mut self, now: MonotonicNs, workers: &mut Workers) {
        for place in 0..self.rows.len() {
            let cgroup = self.rows[place].cgroup;
            if self.brakes.is_gone(cgroup) {
                self.brakes.thaw(cgroup, now, workers);
            }
        }
    }
}

impl Enforcement {
    /// Whether an evicted pod is held down, or not thawed yet.
    pub(super) fn holds_down(&self) -> bool {
        self.enforcer.as_ref().is_some_and(|enforcer| enforcer.held.count() > 0)
    }

    /// The next thing that happened to what is held down.
    pub(super) fn hold_event(&mut self, now: MonotonicNs) -> Option<BrakeEvent> {
        let enforcer = self.enforcer.as_mut()?;
        enforcer.held.poll(now, &mut enforcer.record, &mut enforcer.workers)
    }

    pub(super) fn hold_done(&mut self, done: Done, now: MonotonicNs) -> Option<BrakeEvent> {
        let enforcer = self.enforcer.as_mut()?;
        enforcer.held.done(done, now, &mut enforcer.record, &mut enforcer.workers)
    }
}

impl Watch {
    /// Nothing runs any more of a pod that was evicted: nothing is to run in its cgroup from here on, unless the API server
    /// has its status already.
    ///
    /// Not of one that may not be frozen, and not of one that is frozen by its parts: what comes later would not be.
    pub(super) fn hold_down(&mut self, cgroup: CgroupId, uid: Uid, now: MonotonicNs) {
        if self.schedule.end().is_some() || !self.enforcement.acts() {
            return;
        }
        let table = &self.workloads.table;
        let Some(workload) = table.of(&[Some(cgroup)]).and_then(|key| table.get(key)) else { return };
        let Some(enforcer) = &mut self.enforcement.enforcer else { return };
        let held = &mut enforcer.held;
        let handle = &workload.facts.handle;
        if held.most.is_zero() || !workload.may_freeze() || handle.is_by_parts() || held.holds(cgroup) {
            return;
        }
        if held.rows.try_push(Row { cgroup, uid, stage: Stage::Wanted }).is_err() {
            let what = Held::Refused(Refused::Full);
            self.reporting.send(EnforcementRecord::Hold { path: fitting(handle.path()), at: now, what });
        }
    }

    /// Goes on with what is held down.
    pub(super) fn follow_holding(&mut self, now: MonotonicNs) {
        self.begin_holds(now);
        let Some(enforcer) = &mut self.enforcement.enforcer else { return };
        enforcer.held.end_due(now, &mut enforcer.workers);
        while let Some(event) = self.enforcement.hold_event(now) {
            self.held(event, now);
        }
    }

    /// Has those frozen that are to be, once no brake holds them any more.
    fn begin_holds(&mut self, now: MonotonicNs) {
        let Some(enforcer) = &mut self.enforcement.enforcer else { return };
        let held = &mut enforcer.held;
        let table = &self.workloads.table;
        let mut place = 0;
        while let Some(Row { cgroup, stage, .. }) = held.rows.get(place).copied() {
            if stage != Stage::Wanted || enforcer.brakes.holds(cgroup) {
                place += 1;
                continue;
            }
            let Some(workload) = table.of(&[Some(cgroup)]).and_then(|key| table.get(key)) else {
                held.rows.swap_remove(place);
                continue;
            };
            let handle = &workload.facts.handle;
            let refused = match held.brakes.brake(handle, now, &mut enforcer.record, &mut enforcer.workers) {
                Ok(()) | Err(BrakeRefused::Already) => {
                    held.rows[place].stage = Stage::Holds(now.after(held.most));
                    place += 1;
                    continue;
                }
                Err(BrakeRefused::Fault(Fault::Gone)) => None,
                Err(BrakeRefused::Fault(fault)) => Some(Refused::Kernel(errno_of(fault))),
                Err(BrakeRefused::ByOther) => Some(Refused::ByOther),
                Err(BrakeRefused::Full | BrakeRefused::Journal(_) | BrakeRefused::WorkerFull) => Some(Refused::Full),
            };
            held.rows.swap_remove(place);
            if let Some(why) = refused {
                let what = Held::Refused(why);
                self.reporting.send(EnforcementRecord::Hold { path: fitting(handle.path()), at: now, what });
            }
        }
    }

    /// Takes the result of a hold in.
    pub(super) fn held(&mut self, event: BrakeEvent, now: MonotonicNs) {
        let Some(enforcer) = &mut self.enforcement.enforcer else { return };
        let held = &mut enforcer.held;
        let (handle, what) = match event {
            BrakeEvent::Frozen { handle, .. } => (handle, Some(Held::Begun(held.most))),
            BrakeEvent::Refused { handle, fault } => {
                held.take(handle.id());
                (handle, Some(Held::Refused(Refused::Kernel(errno_of(fault)))))
            }
            BrakeEvent::Thawed { handle, held: lasted, .. } => {
                let why = held.take(handle.id()).unwrap_or(HoldEnd::Over);
                (handle, Some(Held::Ended(why, lasted)))
            }
            BrakeEvent::Gone { handle, since, .. } => {
                held.take(handle.id());
                (handle, Some(Held::Ended(HoldEnd::Gone, now.since(since))))
            }
            BrakeEvent::ThawFailed { handle, .. } => {
                let (path, what) = (fitting(handle.path()), Braked::ThawFailed);
                self.reporting.send(EnforcementRecord::Brake { path, at: now, what });
                (handle, None)
            }
            // Nothing runs in it when it is frozen, and its growth is not looked for.
            BrakeEvent::Stopped { handle, .. } | BrakeEvent::StillGrows { handle, .. } => (handle, None),
        };
        if let Some(what) = what {
            self.reporting.send(EnforcementRecord::Hold { path: fitting(handle.path()), at: now, what });
            self.report_holds();
        }
        self.workloads.close(handle);
    }

    /// Reports how many are held down, for a metric.
    pub(super) fn report_holds(&mut self) {
        let Some(enforcer) = &self.enforcement.enforcer else { return };
        let count = u32::try_from(enforcer.held.count()).unwrap_or(u32::MAX);
        self.reporting.send(EnforcementRecord::HeldDown { count });
    }

    /// The API server has this pod as failed, or as one that is deleted, or has it no more, as another process says. What
    /// follows is done to no pod but one that this agent evicted and holds.
    pub(super) fn recorded(&mut self, uid: Uid, now: MonotonicNs) {
        self.evictions.recorded(uid);
        if let Some(enforcer) = &mut self.enforcement.enforcer {
            enforcer.held.recorded(uid, now, &mut enforcer.workers);
        }
    }

    /// Those of which the cgroup was removed are not held any more.
    pub(super) fn end_gone_holds(&mut self, now: MonotonicNs) {
        if let Some(enforcer) = &mut self.enforcement.enforcer {
            enforcer.held.end_gone(now, &mut enforcer.workers);
        }
    }

    /// This agent acts no more, or ends: nothing is held down, and nothing is killed for that.
    pub(super) fn end_holds(&mut self, now: MonotonicNs) {
        if let Some(enforcer) = &mut self.enforcement.enforcer {
            enforcer.held.end(now, &mut enforcer.workers);
        }
    }
}

#[cfg(test)]
mod tests;
