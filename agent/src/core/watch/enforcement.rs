//! What the watching thread does to cgroups, and what becomes of it: hold, ask, kill, reclaim, let go.

use core::time::Duration;
use std::sync::Arc;

use plimsoll_act::{Begun, BrakeEvent, BrakeRefused, Done, Job, KillEvent, KillRefused, Owner};
use plimsoll_node::Fault;
use plimsoll_node::cgroup::Handle;
use plimsoll_node::clock::monotonic;
use plimsoll_policy::kubelet::AT_ONCE_SECONDS;
use plimsoll_policy::{Action, Key, MemoryReading, ReclaimOrder, Reclaimed as ReclaimEnd, Scope, SliceSet, Stage};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

use super::super::episode::Reported;
use super::super::inventory::Request;
use super::super::table::{Observed, Termination};
use super::{Readings, Reclaiming, Trigger, Watch, past, scope_of, stats_time};
use crate::record::{Braked, Cause, Killed, Record, Refused, fitting};

/// Who could not be killed is left alone for so long, and others have their turn.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// What became of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KillOutcome {
    /// The signal is out.
    Yes,
    /// There was nobody, or it was refused.
    No,
}

impl Watch {
    pub(super) fn brake_event(&mut self, now: MonotonicNs) -> Option<BrakeEvent> {
        let enforcer = self.context.enforcer.as_mut()?;
        enforcer.brakes.poll(now, &mut enforcer.record)
    }

    pub(super) fn kill_event(&mut self, now: MonotonicNs) -> Option<KillEvent> {
        let enforcer = self.context.enforcer.as_mut()?;
        enforcer.kills.poll(now, &mut enforcer.record, &mut enforcer.workers)
    }

    pub(super) fn job_done(&mut self) -> Option<Done> {
        let enforcer = self.context.enforcer.as_mut()?;
        enforcer.workers.poll().or_else(|| enforcer.reclaim.poll())
    }

    pub(super) fn braked(&mut self, event: BrakeEvent, now: MonotonicNs, trigger: &mut Trigger) {
        let (handle, what) = match event {
            BrakeEvent::Thawed { handle, held, .. } => (handle, Braked::Thawed(held)),
            BrakeEvent::Gone { handle, .. } => (handle, Braked::Gone),
            BrakeEvent::ThawFailed { handle, .. } => (handle, Braked::ThawFailed),
            BrakeEvent::StillGrows { handle, owner, grown } => {
                self.report(&Record::Brake { path: fitting(handle.path()), at: now, what: Braked::StillGrows(grown) });
                self.still_grows(&handle, owner, now);
                trigger.because(Cause::FollowUp);
                self.close(handle);
                return;
            }
        };
        self.report(&Record::Brake { path: fitting(handle.path()), at: now, what });
        trigger.because(Cause::FollowUp);
        self.close(handle);
    }

    /// It is frozen and takes memory nevertheless: killed at once, if what it was stopped for is still short.
    fn still_grows(&mut self, handle: &Arc<Handle>, owner: Owner, now: MonotonicNs) {
        let found = self.table.iter().find(|(_, other)| other.facts.handle.id() == handle.id());
        let found = found.map(|(slot, workload)| (slot, workload.termination));
        if matches!(found, Some((_, Termination::Killed(_)))) {
            // It is dying, and goes on as soon as each of its processes was sent the signal.
            return;
        }
        let scope = owner.0 as usize;
        if !self.reading(scope).is_some_and(|memory| self.is_short(scope, &memory)) {
            return self.thaw(handle.id(), now);
        }
        let Some((slot, _)) = found else { return };
        if self.state.take_victim(now) {
            if self.kill(0, Key { slot, id: handle.id() }, handle.usage().ok(), now) == KillOutcome::No {
                self.state.give_back_victim();
            }
        } else {
            let what = Killed::Refused(Refused::Bounded);
            self.report(&Record::Kill { plan: 0, path: fitting(handle.path()), usage: None, at: now, what });
        }
    }

    pub(super) fn killed(&mut self, event: KillEvent, now: MonotonicNs) {
        let (handle, what, termination) = match event {
            KillEvent::Again { handle, grown, left } => {
                self.table.set_termination(handle.id(), Termination::Killed(left));
                let what = Killed::Again(grown);
                self.report(&Record::Kill { plan: 0, path: fitting(handle.path()), usage: Some(left), at: now, what });
                return self.close(handle);
            }
            KillEvent::Emptied { handle, took, left } => {
                // What was told last has it among the living, or says that it does not end.
                self.reported.iter_mut().flatten().for_each(|last| last.is_outdated = true);
                (handle, Killed::Emptied(took, left), Termination::Stays)
            }
            KillEvent::Stuck { handle, left } => {
                (handle, Killed::Stuck(left), Termination::Stuck(left.unwrap_or(Bytes(u64::MAX))))
            }
        };
        let id = handle.id();
        let stuck = termination != Termination::Stays;
        // The worker may not have said that it is done: no process is left for it, or it does not come to it.
        self.thaw(id, now);
        self.table.set_termination(id, termination);
        self.report(&Record::Kill { plan: 0, path: fitting(handle.path()), usage: None, at: now, what });
        if let Some(enforcer) = &mut self.context.enforcer
            && stuck
            && enforcer.doubtful.contains(&id)
        {
            // An earlier process may have died before it wrote the kill: it is as if it was never decided.
            enforcer.doubtful.retain(|other| *other != id);
            drop(enforcer.kills.forget(id, &mut enforcer.record));
            self.table.set_termination(id, Termination::Stays);
        }
        if !stuck {
            self.context.inventory.request(Request::Discover);
        }
        self.close(handle);
    }

    /// Freezes what grows, before anything else is read, where memory is below a hard threshold by the kernel's own
    /// reading.
    pub(super) fn hold(&mut self, trigger: &Trigger, readings: &Readings) {
        if !self.context.enforcer.as_ref().is_some_and(|enforcer| enforcer.freeze) {
            return;
        }
        for key in trigger.growers.into_iter().flatten() {
            let Some(workload) = self.table.get(key).filter(|workload| workload.termination == Termination::Stays)
            else {
                continue;
            };
            let Some((scope, memory)) = self.short_scope(workload.facts.slices, readings) else { continue };
            let handle = Arc::clone(&workload.facts.handle);
            let past_threshold = past(&memory, self.hard_threshold(scope, memory.capacity));
            self.freeze(&handle, scope, past_threshold);
        }
    }

    /// The first scope of somebody in these slices that is below a hard threshold.
    fn short_scope(&self, slices: SliceSet, readings: &Readings) -> Option<(usize, MemoryReading)> {
        readings.iter().enumerate().find_map(|(scope, reading)| {
            let is_in = match scope_of(scope) {
                Scope::Node => true,
                Scope::Slice(slice) => slices.contains(slice),
            };
            reading.filter(|memory| is_in && self.is_short(scope, memory)).map(|memory| (scope, memory))
        })
    }

    pub(super) fn freeze(&mut self, handle: &Arc<Handle>, scope: usize, past_threshold: Bytes) {
        let now = monotonic();
        let Some(enforcer) = &mut self.context.enforcer else { return };
        let owner = Owner(u32::try_from(scope).unwrap_or(0));
        let what = match enforcer.brakes.brake(handle, owner, now, &mut enforcer.record) {
            Ok(()) => Braked::Frozen,
            Err(BrakeRefused::Already) => return,
            Err(BrakeRefused::ByOther) => Braked::Refused(Refused::ByOther),
            Err(BrakeRefused::Full | BrakeRefused::Journal(_)) => Braked::Refused(Refused::Full),
            Err(BrakeRefused::Fault(Fault::Gone)) => Braked::Gone,
            Err(BrakeRefused::Fault(fault)) => Braked::Refused(Refused::Kernel(errno_of(fault))),
        };
        if what == Braked::Frozen {
            self.stopped(past_threshold, now);
        }
        self.report(&Record::Brake { path: fitting(handle.path()), at: now, what });
    }

    /// How far memory was below the threshold that the plan is about.
    fn past_acting_threshold(&self) -> Bytes {
        let Some((memory, status)) = self.plan.memory.zip(self.plan.acting()) else { return Bytes::ZERO };
        past(&memory, status.at.to_bytes())
    }

    /// Tells that what grew was stopped, the first time after a crossing.
    fn stopped(&mut self, past_threshold: Bytes, now: MonotonicNs) {
        if let Some(Reported { crossed, past_threshold }) = self.episodes.stopped(past_threshold, now) {
            self.report(&Record::Stopped { crossed, at: now, past_threshold });
        }
    }

    /// Does what the plan says.
    pub(super) fn carry_out(&mut self, scope: usize, now: MonotonicNs) {
        if self.context.enforcer.is_none() {
            // None of them is killed: the bound of victims is not used up for the time when this agent acts.
            let evictions = self.plan.actions.iter().filter(|action| matches!(action, Action::Evict { .. }));
            (0..evictions.count()).for_each(|_| self.state.give_back_victim());
            return;
        }
        for index in 0..self.plan.actions.len() {
            match self.plan.actions[index] {
                Action::Evict { workload, grace_seconds, .. } => {
                    // A second is what the kubelet gives where there is no time.
                    let grace = match u64::try_from(grace_seconds) {
                        Ok(seconds) if grace_seconds > AT_ONCE_SECONDS => Duration::from_secs(seconds),
                        Ok(_) | Err(_) => Duration::ZERO,
                    };
                    if self.evict(workload, grace, now) == KillOutcome::No {
                        self.state.give_back_victim();
                    }
                }
                // The limit of victims counted it when it was asked.
                Action::EscalateToKill { workload, .. } => _ = self.evict(workload, Duration::ZERO, now),
                Action::Reclaim(order) => self.reclaim(scope, order, now),
            }
        }
    }

    fn evict(&mut self, workload: u32, grace: Duration, now: MonotonicNs) -> KillOutcome {
        let Some(workload) = self.table.observed().get(workload as usize).copied() else { return KillOutcome::No };
        if !grace.is_zero() && self.ask_to_end(&workload, grace, now) {
            return KillOutcome::Yes;
        }
        // Also where nobody could ask: it is as if it had not answered.
        let outcome_of_kill = self.kill(self.plans, workload.key, workload.working_set(), now);
        if outcome_of_kill == KillOutcome::Yes {
            self.stopped(self.past_acting_threshold(), monotonic());
        }
        outcome_of_kill
    }

    /// False: nobody could ask.
    fn ask_to_end(&mut self, observed: &Observed, grace: Duration, now: MonotonicNs) -> bool {
        let Some(workload) = self.table.get(observed.key) else { return false };
        let handle = Arc::clone(&workload.facts.handle);
        let Some(enforcer) = &mut self.context.enforcer else { return false };
        if enforcer.workers.kill.submit(Job::Terminate(Arc::clone(&handle))).is_err() {
            return false;
        }
        self.table.set_termination(observed.key.id, Termination::Asked(now.after(grace), self.plans));
        let (path, what) = (fitting(handle.path()), Killed::Asked(grace));
        self.report(&Record::Kill { plan: self.plans, path, usage: observed.working_set(), at: now, what });
        true
    }

    pub(super) fn kill(&mut self, plan: u64, key: Key, usage: Option<Bytes>, now: MonotonicNs) -> KillOutcome {
        let Some(workload) = self.table.get(key) else { return KillOutcome::No };
        let handle = Arc::clone(&workload.facts.handle);
        let held = workload.usage().unwrap_or(Bytes(u64::MAX));
        let Some(begun) = self.strike(&handle, now) else { return KillOutcome::No };
        let refused = |why| (Killed::Refused(why), Termination::Refused(now.after(REFUSED_PAUSE)), KillOutcome::No);
        let (what, termination, outcome_of_kill) = match begun {
            Ok(Begun::Written | Begun::OneByOne) => (Killed::Begun, Termination::Killed(held), KillOutcome::Yes),
            Ok(Begun::Gone) => (Killed::Gone, Termination::Stays, KillOutcome::No),
            Err(KillRefused::Already) => {
                (Killed::Refused(Refused::Already), Termination::Killed(held), KillOutcome::No)
            }
            Err(KillRefused::Full | KillRefused::Journal(_) | KillRefused::WorkerFull) => refused(Refused::Full),
            Err(KillRefused::Fault(fault)) => refused(Refused::Kernel(errno_of(fault))),
        };
        self.table.set_termination(key.id, termination);
        // What was killed goes on when each of its processes was sent the signal, and dies frozen as well.
        if !matches!(termination, Termination::Killed(_)) {
            self.thaw(key.id, now);
        }
        self.report(&Record::Kill { plan, path: fitting(handle.path()), usage, at: now, what });
        outcome_of_kill
    }

    /// Kills, and makes room for that where all places are taken by those that do not end. `None` without hands.
    fn strike(&mut self, handle: &Arc<Handle>, now: MonotonicNs) -> Option<Result<Begun, KillRefused>> {
        let enforcer = self.context.enforcer.as_mut()?;
        let begun = enforcer.kills.begin(handle, now, &mut enforcer.record, &mut enforcer.workers);
        if begun != Err(KillRefused::Full) {
            return Some(begun);
        }
        let Some(stuck) = enforcer.kills.give_up(&mut enforcer.record) else { return Some(begun) };
        let begun = enforcer.kills.begin(handle, now, &mut enforcer.record, &mut enforcer.workers);
        self.close(stuck);
        Some(begun)
    }

    /// Asks for page cache of those over their reservation, in the order in which they would be evicted. One reclaim
    /// runs at a time: what another asks for meanwhile is asked for again after its pause.
    fn reclaim(&mut self, scope: usize, order: ReclaimOrder, now: MonotonicNs) {
        if self.reclaiming.is_some() {
            return;
        }
        // On disks nothing is reclaimed here.
        let Stage::Memory(amount) = order.stage else { return };
        let mut left = amount.to_bytes();
        let mut jobs = 0;
        for index in 0..self.plan.ranked.len() {
            let ranked = self.plan.ranked[index];
            let Some(workload) = self.table.get(ranked.key) else { continue };
            let cache = workload.facts.inactive_file;
            let request = ranked.over.to_bytes().saturating_add(cache).min(left);
            if request == Bytes::ZERO {
                continue;
            }
            let handle = Arc::clone(&workload.facts.handle);
            let Some(enforcer) = &mut self.context.enforcer else { return };
            if enforcer.reclaim.submit(Job::Reclaim { handle, amount: request }).is_err() {
                break;
            }
            jobs += 1;
            left = left.saturating_sub(request);
            if left == Bytes::ZERO {
                break;
            }
        }
        let order = order.order;
        if jobs > 0 {
            self.reclaiming = Some(Reclaiming { jobs, scope, order });
        } else {
            self.reclaimed[scope] = Some(ReclaimEnd { order, at: stats_time(now) });
        }
    }

    pub(super) fn thaw(&mut self, id: CgroupId, now: MonotonicNs) {
        let Some(enforcer) = &mut self.context.enforcer else { return };
        if let Some(event) = enforcer.brakes.thaw(id, now, &mut enforcer.record) {
            self.thawed(event, now);
        }
    }

    pub(super) fn thaw_all(&mut self, now: MonotonicNs) {
        while let Some(enforcer) = &mut self.context.enforcer
            && let Some(event) = enforcer.brakes.thaw_any(now, &mut enforcer.record)
        {
            let refused = matches!(event, BrakeEvent::ThawFailed { .. });
            self.thawed(event, now);
            if refused {
                return;
            }
        }
    }

    fn thawed(&mut self, event: BrakeEvent, now: MonotonicNs) {
        let (handle, what) = match event {
            BrakeEvent::Thawed { handle, held, .. } => (handle, Braked::Thawed(held)),
            BrakeEvent::ThawFailed { handle, .. } => (handle, Braked::ThawFailed),
            BrakeEvent::Gone { handle, .. } | BrakeEvent::StillGrows { handle, .. } => (handle, Braked::Gone),
        };
        self.report(&Record::Brake { path: fitting(handle.path()), at: now, what });
        self.close(handle);
    }
}

fn errno_of(fault: Fault) -> Option<i32> {
    match fault {
        Fault::Read { errno, .. } | Fault::Write { errno, .. } => Some(errno.raw_os_error()),
        Fault::Gone | Fault::Absent { .. } | Fault::Malformed { .. } => None,
    }
}
