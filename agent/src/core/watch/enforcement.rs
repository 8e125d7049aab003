//! Plans carried out: requests to `act`, and the results that come back later. No request is assumed to succeed.

use core::time::Duration;
use std::sync::Arc;

use plimsoll_act::{
    Begun, BrakeEvent, Brakes, Done, Journal as _, KillEvent, KillRefused, Kills, LATE, Reclaimed, Worker, Workers,
};
use plimsoll_inventory::{EvictionStep, IncidentKind, Termination};
use plimsoll_node::Fault;
use plimsoll_node::cgroup::Handle;
use plimsoll_policy::kubelet::AT_ONCE_SECONDS;
use plimsoll_policy::{Action, Key, Scope, Why};
use plimsoll_state::{Kept, Record as RunRecord};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use rtrb::Consumer;
use rustix::io::Errno;

use super::super::inventory::Request;
use super::super::kernel_brake::KernelBrake;
use super::super::resume::Resumer;
use super::Watch;
use super::evictions::{self, Decided};
use super::freezing::Grown;
use super::holding::Holding;
use super::schedule::BELOW_PACE_MOST;
use super::scopes::past;
use super::triggers::Trigger;
use crate::record::{Cause, EnforcementRecord, HealthRecord, Killed, Refused, fitting};

/// While a victim is dying, how often it is polled.
const KILL_PACE: Duration = Duration::from_millis(2);
/// While something is not written that was requested, how often the workers are polled.
const WRITE_PACE: Duration = Duration::from_millis(2);
/// A workload that could not be killed is left alone for so long, and others have their turn.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
/// One whose grace is over is killed so much later where there is no room to wait for its end.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(10);

/// What became of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KillOutcome {
    /// The signal is on its way.
    Yes,
    /// There was no process, or it was refused, or is left to the next plan.
    No,
    /// As many victims are waited for as there is room for: it is left to the plan after one of these has ended.
    NoRoom,
}

/// Brakes, kills and the workers, where this agent acts. Without it, plans are only reported.
pub(in crate::core) struct Enforcer {
    pub(in crate::core) record: RunRecord,
    /// What the next core goes on with.
    pub(in crate::core) kept: Kept,
    /// Evictions and conditions that services does not have on a disk yet.
    pub(in crate::core) evictions: Kept,
    /// What an earlier core left of them.
    pub(in crate::core) evicted: evictions::Past,
    pub(in crate::core) brakes: Brakes,
    /// Evicted pods in which nothing is to run.
    pub(in crate::core) held: Holding,
    pub(in crate::core) kills: Kills,
    /// Kills that an earlier process had perhaps not done: decided about again where the victim does not empty.
    pub(in crate::core) doubtful: Vec<CgroupId>,
    pub(in crate::core) workers: Workers,
    pub(in crate::core) reclaim: Worker,
    /// Reads figures that a plan rests on.
    pub(in crate::core) figures: Worker,
    /// Has the kernel's counters folded in.
    pub(in crate::core) fold: Worker,
    /// Whether what grows is frozen while deciding.
    pub(in crate::core) freeze: bool,
}

/// What an agent that shadowed acts with from its turn on.
pub(in crate::core) struct Means {
    pub(in crate::core) enforcer: Enforcer,
    pub(in crate::core) resumer: Option<Resumer>,
}

/// What this agent acts with, if it does.
pub(in crate::core) struct Enforcement {
    pub(super) enforcer: Option<Enforcer>,
    pub(super) kernel_brake: KernelBrake,
    pub(super) grown: Grown,
    /// There was no room for the last victim. That was reported.
    has_no_room: bool,
    /// What an agent that shadows will act with, once that is its turn.
    means: Consumer<Means>,
    /// The kill switch is thrown: what is under way is followed up, and nothing is begun.
    pub(super) is_off: bool,
}

impl Enforcement {
    pub(in crate::core) const fn new(
        enforcer: Option<Enforcer>,
        kernel_brake: KernelBrake,
        means: Consumer<Means>,
    ) -> Self {
        Self { enforcer, kernel_brake, grown: Grown::none(), has_no_room: false, means, is_off: false }
    }

    /// Whether plans are carried out.
    pub(super) const fn acts(&self) -> bool {
        self.enforcer.is_some() && !self.is_off
    }

    /// Whether what grows is frozen while deciding.
    pub(super) fn freezes(&self) -> bool {
        self.acts() && self.enforcer.as_ref().is_some_and(|enforcer| enforcer.freeze)
    }

    /// Acts from here on, if the agent that acted is gone. Gives whether it does.
    pub(super) fn take_over(&mut self) -> bool {
        let Ok(Means { enforcer, resumer }) = self.means.pop() else { return false };
        self.enforcer = Some(enforcer);
        self.kernel_brake.set_resumer(resumer);
        true
    }

    /// The workloads that an earlier process killed, or this one, and whose processes have not ended yet.
    pub(super) fn dying(&self) -> impl Iterator<Item = CgroupId> {
        self.enforcer
            .iter()
            .flat_map(|Enforcer { kills, doubtful, .. }| kills.dying().filter(|id| !doubtful.contains(id)))
    }

    /// What an end now would leave half done: a victim is dying, or something is held.
    pub(super) fn under_way(&self) -> Option<&'static str> {
        let kills = |enforcer: &Enforcer| enforcer.kills.hopeful() > 0;
        if self.kernel_brake.holds() {
            Some("continue what the kernel stopped before the end")
        } else if self.holds() || self.holds_down() {
            Some("thaw a workload before the end")
        } else {
            self.enforcer.as_ref().is_some_and(kills).then_some("see a victim die before the end")
        }
    }

    /// Whether a cgroup is frozen, or not thawed yet.
    pub(super) fn holds(&self) -> bool {
        self.enforcer.as_ref().is_some_and(|enforcer| enforcer.brakes.count() > 0)
    }

    /// Whether nothing is frozen or stopped for a decision, and no victim is waited for.
    pub(super) fn is_idle(&self) -> bool {
        let waits = |enforcer: &Enforcer| enforcer.kills.count() > 0;
        !self.holds() && !self.kernel_brake.holds() && !self.enforcer.as_ref().is_some_and(waits)
    }

    /// Whether the workers have not done yet what was requested of them.
    pub(super) fn awaits_writes(&self) -> bool {
        let awaits = |Enforcer { brakes, held, kills, .. }: &Enforcer| {
            brakes.awaits_write() || held.awaits_write() || kills.awaits_signal()
        };
        self.enforcer.as_ref().is_some_and(awaits)
    }

    /// When something of it is due.
    pub(super) fn due(&self, now: MonotonicNs) -> Option<MonotonicNs> {
        let enforcer = self.enforcer.as_ref();
        let brakes = enforcer.and_then(|enforcer| enforcer.brakes.next_due());
        let kills = enforcer.map(|enforcer| &enforcer.kills).filter(|kills| kills.count() > 0);
        let kills = kills.map(|kills| now.after(if kills.hopeful() > 0 { KILL_PACE } else { BELOW_PACE_MOST }));
        let writes = self.awaits_writes().then(|| now.after(WRITE_PACE));
        let held = enforcer.and_then(|enforcer| enforcer.held.due());
        [brakes, kills, writes, held, self.kernel_brake.due()].into_iter().flatten().min()
    }

    fn brake_event(&mut self, now: MonotonicNs) -> Option<BrakeEvent> {
        let enforcer = self.enforcer.as_mut()?;
        enforcer.brakes.poll(now, &mut enforcer.record, &mut enforcer.workers)
    }

    fn brake_done(&mut self, done: Done, now: MonotonicNs) -> Option<BrakeEvent> {
        let enforcer = self.enforcer.as_mut()?;
        enforcer.brakes.done(done, now, &mut enforcer.record, &mut enforcer.workers)
    }

    fn kill_done(&mut self, done: Done, now: MonotonicNs) -> Option<KillEvent> {
        let enforcer = self.enforcer.as_mut()?;
        enforcer.kills.done(done, now, &mut enforcer.record)
    }

    fn kill_event(&mut self, now: MonotonicNs) -> Option<KillEvent> {
        let enforcer = self.enforcer.as_mut()?;
        enforcer.kills.poll(now, &mut enforcer.record, &mut enforcer.workers)
    }

    fn job_done(&mut self) -> Option<Done> {
        let enforcer = self.enforcer.as_mut()?;
        enforcer
            .workers
            .poll()
            .or_else(|| enforcer.reclaim.poll())
            .or_else(|| enforcer.figures.poll())
            .or_else(|| enforcer.fold.poll())
    }

    /// What an earlier process had frozen goes on. Where this one holds it by now, the entry is its own.
    pub(super) fn forget_thawed(&mut self, cgroup: CgroupId) {
        let is_held = |enforcer: &Enforcer| enforcer.brakes.holds(cgroup) || enforcer.held.holds(cgroup);
        if let Some(enforcer) = self.enforcer.as_mut().filter(|enforcer| !is_held(enforcer)) {
            enforcer.record.clear(cgroup, plimsoll_act::Action::Brake);
        }
    }

    /// A kill that an earlier process had perhaps not done is in doubt no more. Gives whether it was.
    fn end_doubt(&mut self, id: CgroupId) -> bool {
        let Some(enforcer) = &mut self.enforcer else { return false };
        let before = enforcer.doubtful.len();
        enforcer.doubtful.retain(|other| *other != id);
        enforcer.doubtful.len() < before
    }

    /// A victim is not waited for any more.
    fn forget_kill(&mut self, id: CgroupId) {
        if let Some(enforcer) = &mut self.enforcer {
            drop(enforcer.kills.forget(id, &mut enforcer.record));
        }
    }
}

impl Watch {
    /// Takes the results in: of brakes, kills and jobs.
    pub(super) fn follow_up(&mut self, now: MonotonicNs, trigger: &mut Trigger) {
        if self.enforcement.enforcer.is_none() {
            return;
        }
        self.follow_stopping(now);
        while let Some((at, key, plan)) = self.next_overdue()
            && at <= now
        {
            self.kill(plan, key, None, now);
        }
        self.take_results(now, trigger);
        while let Some(event) = self.enforcement.brake_event(now) {
            self.braked(event, now, trigger);
        }
        while let Some(event) = self.enforcement.kill_event(now) {
            self.killed(event, now, trigger);
        }
        self.follow_holding(now);
        if self.enforcement.kernel_brake.due().is_some_and(|due| due <= now) {
            // Whether or not memory is back; the marks come back when it is.
            self.enforcement.kernel_brake.continue_all(self.triggers.source_mut());
        }
    }

    /// The workload that is killed next because its grace is over, when that is, and the plan that asked it to end. None
    /// is where this agent does not act.
    pub(super) fn next_overdue(&self) -> Option<(MonotonicNs, Key, u64)> {
        self.workloads.table.next_overdue().filter(|_| self.enforcement.acts())
    }

    /// Takes the workers' results in.
    pub(super) fn take_results(&mut self, now: MonotonicNs, trigger: &mut Trigger) {
        while let Some(done) = self.enforcement.job_done() {
            self.done(done, now, trigger);
        }
    }

    fn done(&mut self, done: Done, now: MonotonicNs, trigger: &mut Trigger) {
        match done {
            Done::FreezeWritten { .. } | Done::Stopped { .. } => {
                if let Some(event) = self.enforcement.brake_done(done, now) {
                    self.braked(event, now, trigger);
                } else if let Some(event) = self.enforcement.hold_done(done, now) {
                    self.held(event, now);
                }
            }
            Done::KillWritten { .. } | Done::Killed { .. } | Done::Measured { .. } => {
                if let Some(event) = self.enforcement.kill_done(done, now) {
                    self.killed(event, now, trigger);
                }
                // Each of its processes was sent the signal.
                if let Done::Killed { cgroup, is_whole: true, .. } = done {
                    self.thaw(cgroup, now);
                }
            }
            Done::CacheRead { cgroup, requested, cache } => {
                if let Some(cache) = cache {
                    self.workloads.table.set_cache(cgroup, cache);
                }
                if self.figures.answered(cgroup, requested) {
                    trigger.because(Cause::FollowUp);
                }
            }
            Done::CountersFolded(folded) => {
                let was_stuck = self.folding.is_stuck;
                self.folding.answered(folded.is_ok(), now);
                match folded {
                    Ok(()) => trigger.because(Cause::FollowUp),
                    Err(fault) if !was_stuck => {
                        let what = "fold what CPUs keep back into the kernel's counters";
                        self.reporting.send(HealthRecord::Failed { what, errno: errno_of(fault) });
                    }
                    Err(_) => {}
                }
            }
            Done::Released { cgroup, released, gone, kept } => {
                self.reporting.send(EnforcementRecord::Released { cgroup, released, gone, kept });
            }
            Done::Reclaimed { cgroup, asked, outcome } => {
                self.job_reclaimed(now);
                let is_all = outcome == Reclaimed::All;
                self.reporting.send(EnforcementRecord::Reclaimed { cgroup, asked, all: is_all });
                // For any other reason the kernel was asked for nothing.
                if is_all || matches!(outcome, Reclaimed::Less(Fault::Write { errno: Errno::AGAIN, .. })) {
                    self.happened(IncidentKind::Reclaimed { asked, is_all }, &[Some(cgroup)]);
                }
                trigger.because(Cause::FollowUp);
            }
        }
    }

    fn killed(&mut self, event: KillEvent, now: MonotonicNs, trigger: &mut Trigger) {
        let (handle, what, termination) = match event {
            KillEvent::Signalled { handle, at } => {
                self.report_stopped(at);
                self.workloads.table.signalled(handle.id());
                self.reach(handle.id(), EvictionStep::Killed, at);
                return self.workloads.close(handle);
            }
            KillEvent::Refused { handle, fault } => {
                let refused = Killed::Refused(Refused::Kernel(errno_of(fault)));
                // This process may have been stopped, or the whole machine: the workload is as it was.
                let pause = if fault == LATE { Duration::ZERO } else { REFUSED_PAUSE };
                (handle, refused, Termination::Refused(now.after(pause)))
            }
            KillEvent::Again { handle, grown, left } => {
                trigger.because(Cause::FollowUp);
                self.workloads.table.set_termination(handle.id(), Termination::Killed(left));
                self.report_kill(0, &handle, Some(left), now, Killed::Again(grown));
                return self.workloads.close(handle);
            }
            KillEvent::Emptied { handle, took, left } => {
                // The last reports have it among the living, or say that it does not end.
                self.scopes.outdate_reports();
                (handle, Killed::Emptied(took, left), Termination::Stays)
            }
            KillEvent::Stuck { handle, left } => {
                (handle, Killed::Stuck(left), Termination::Stuck(left.unwrap_or(Bytes(u64::MAX))))
            }
        };
        trigger.because(Cause::FollowUp);
        let step = if matches!(what, Killed::Emptied(..)) { EvictionStep::Verified } else { EvictionStep::GivenUp };
        self.reach(handle.id(), step, now);
        let (id, is_stuck) = (handle.id(), matches!(termination, Termination::Stuck(_)));
        // The worker may not have reported that it is done: no process is left for it, or it does not come to it.
        self.thaw(id, now);
        self.workloads.table.set_termination(id, termination);
        self.report_kill(0, &handle, None, now, what);
        if self.enforcement.end_doubt(id) && is_stuck {
            // An earlier process may have died before it wrote the kill: it is as if it was never decided.
            self.enforcement.forget_kill(id);
            self.workloads.table.set_termination(id, Termination::Stays);
        }
        if termination == Termination::Stays {
            self.workloads.handle.request(Request::Discover);
        }
        self.workloads.close(handle);
    }

    /// Does what the plan says, as far as there is room for its victims.
    pub(super) fn carry_out(&mut self, scope: Scope, now: MonotonicNs) {
        if !self.enforcement.acts() {
            return;
        }
        for index in 0..self.engine.plan.actions.len() {
            let outcome = match self.engine.plan.actions[index] {
                Action::Evict { workload, grace_seconds, why } => {
                    self.evict(workload, why, grace_of(grace_seconds), now)
                }
                // The limit of victims counted it when it was asked to end.
                Action::EscalateToKill { workload, why } => self.evict(workload, why, Duration::ZERO, now),
                Action::Reclaim(order) => {
                    self.reclaim(scope, order, now);
                    KillOutcome::No
                }
            };
            if outcome == KillOutcome::NoRoom {
                return;
            }
        }
    }

    fn evict(&mut self, workload: u32, why: Why, grace: Duration, now: MonotonicNs) -> KillOutcome {
        let observed = self.workloads.table.observed().get(workload as usize).copied();
        let Some(workload) = observed else { return KillOutcome::No };
        let Some(known) = self.workloads.table.get(workload.key) else { return KillOutcome::No };
        let handle = Arc::clone(&known.facts.handle);
        // Page cache matters to decisions on memory alone.
        let is_about_memory = self.engine.is_about_memory();
        if is_about_memory && !self.has_new_figures(&handle, now) {
            return KillOutcome::No;
        }
        let (key, used) = (workload.key, workload.working_set());
        if let Some((cause, is_soft)) = self.cause_in_plan(key, why) {
            self.decide_eviction(&Decided { key, cause, is_soft, grace, used }, now);
        }
        if !grace.is_zero() && self.terminate(key, used, grace, now) {
            return KillOutcome::No;
        }
        // Also where the request to end could not be sent: it is as if it was not followed.
        let outcome = self.kill(self.engine.number, workload.key, workload.working_set(), now);
        if outcome == KillOutcome::Yes {
            self.figures.outdate(workload.key.id);
            if is_about_memory {
                self.scopes.episodes.stopping(self.past_acting_threshold(), now);
            }
        }
        outcome
    }

    /// How far memory was below the threshold that the plan is about.
    fn past_acting_threshold(&self) -> Bytes {
        let plan = &self.engine.plan;
        let Some((memory, status)) = plan.memory.zip(plan.acting()) else { return Bytes::ZERO };
        past(&memory, status.at.to_bytes())
    }

    /// Requests that a workload ends by itself. False: the worker takes no job.
    pub(super) fn terminate(&mut self, key: Key, usage: Option<Bytes>, grace: Duration, now: MonotonicNs) -> bool {
        let Some(workload) = self.workloads.table.get(key) else { return false };
        let handle = Arc::clone(&workload.facts.handle);
        if self.enforcement.enforcer.is_none() || !self.ask_to_end(key, grace, now) {
            return false;
        }
        let asked = Termination::Asked(now.after(grace), self.engine.number);
        self.workloads.table.set_termination(key.id, asked);
        self.report_kill(self.engine.number, &handle, usage, now, Killed::Asked(grace));
        true
    }

    /// Kills a workload by the plan of this number; 0: by none.
    pub(super) fn kill(&mut self, plan: u64, key: Key, usage: Option<Bytes>, now: MonotonicNs) -> KillOutcome {
        let Some(workload) = self.workloads.table.get(key) else { return KillOutcome::No };
        let handle = Arc::clone(&workload.facts.handle);
        let held = workload.usage().unwrap_or(Bytes(u64::MAX));
        let waits = match workload.termination {
            Termination::Asked(_, plan) => Termination::Asked(now.after(NO_ROOM_PAUSE), plan),
            other => other,
        };
        let Some(begun) = self.begin_kill(&handle, now) else { return KillOutcome::No };
        let (what, termination, outcome) = match begun {
            Ok(Begun::Requested) => {
                // Whatever became of a kill by an earlier process, this one is known.
                self.enforcement.end_doubt(key.id);
                (Killed::Begun, Termination::Killing, KillOutcome::Yes)
            }
            Ok(Begun::Gone) => {
                self.reach(key.id, EvictionStep::Verified, now);
                (Killed::Gone, Termination::Stays, KillOutcome::No)
            }
            Err(KillRefused::Already) => {
                let awaits = |enforcer: &Enforcer| enforcer.kills.awaits_signal_of(key.id);
                let is_signalled = !self.enforcement.enforcer.as_ref().is_some_and(awaits);
                let termination = if is_signalled { Termination::Killed(held) } else { Termination::Killing };
                (Killed::Refused(Refused::Already), termination, KillOutcome::No)
            }
            // Others must not pay for it meanwhile.
            Err(KillRefused::Full | KillRefused::Journal(_) | KillRefused::WorkerFull) => {
                (Killed::Refused(Refused::Full), waits, KillOutcome::NoRoom)
            }
        };
        let had_no_room = std::mem::replace(&mut self.enforcement.has_no_room, outcome == KillOutcome::NoRoom);
        self.workloads.table.set_termination(key.id, termination);
        // A killed cgroup is thawed when each of its processes was sent the signal; it dies frozen as well.
        if !matches!(termination, Termination::Killing | Termination::Killed(_)) && outcome != KillOutcome::NoRoom {
            self.thaw(key.id, now);
        }
        if !(had_no_room && self.enforcement.has_no_room) {
            self.report_kill(plan, &handle, usage, now, what);
        }
        outcome
    }

    /// Kills, and makes room for that where all places are taken by victims that do not end. `None`: this agent does not
    /// act.
    fn begin_kill(&mut self, handle: &Arc<Handle>, now: MonotonicNs) -> Option<Result<Begun, KillRefused>> {
        let enforcer = self.enforcement.enforcer.as_mut()?;
        let begun = enforcer.kills.begin(handle, now, &mut enforcer.record, &mut enforcer.workers);
        if begun != Err(KillRefused::Full) {
            return Some(begun);
        }
        let Some(stuck) = enforcer.kills.give_up(&mut enforcer.record) else { return Some(begun) };
        let begun = enforcer.kills.begin(handle, now, &mut enforcer.record, &mut enforcer.workers);
        self.workloads.close(stuck);
        Some(begun)
    }

    pub(super) fn report_kill(
        &mut self,
        plan: u64,
        handle: &Handle,
        usage: Option<Bytes>,
        at: MonotonicNs,
        what: Killed,
    ) {
        self.reporting.send(EnforcementRecord::Kill { plan, path: fitting(handle.path()), usage, at, what });
    }
}

/// The time for an orderly end. A second is what the kubelet gives where there is no time.
pub(super) fn grace_of(seconds: i64) -> Duration {
    match u64::try_from(seconds) {
        Ok(long) if seconds > AT_ONCE_SECONDS => Duration::from_secs(long),
        Ok(_) | Err(_) => Duration::ZERO,
    }
}

pub(super) fn errno_of(fault: Fault) -> Option<i32> {
    match fault {
        Fault::Read { errno, .. } | Fault::Write { errno, .. } => Some(errno.raw_os_error()),
        Fault::Gone | Fault::Absent { .. } | Fault::Malformed { .. } => None,
    }
}

#[cfg(test)]
mod tests;
