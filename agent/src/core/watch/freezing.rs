//! Workloads that are frozen while the engine decides, and the in-kernel brake's end.

use std::sync::Arc;

use plimsoll_act::{BrakeEvent, BrakeRefused, Owner};
use plimsoll_inventory::Termination;
use plimsoll_node::Fault;
use plimsoll_node::cgroup::Handle;
use plimsoll_node::clock::monotonic;
use plimsoll_policy::{Key, Scope};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

use super::super::episode;
use super::Watch;
use super::enforcement::{KillOutcome, errno_of};
use super::scopes::{owner_of, past_hard_threshold, scope_of};
use super::triggers::Trigger;
use crate::record::{Braked, Cause, Killed, Record, Refused, fitting};

impl Watch {
    /// Freezes what grows, before anything else is read, where memory is below a hard threshold by the kernel's own
    /// reading.
    pub(super) fn freeze_growers(&mut self, trigger: &Trigger) {
        if !self.enforcement.freezes() {
            return;
        }
        for key in trigger.growers() {
            let Some(workload) = self.workloads.table.get(key) else { continue };
            if workload.termination != Termination::Stays {
                continue;
            }
            let short = self.scopes.first_short(&self.engine.policy, workload.facts.slices);
            let Some((scope, past_threshold)) = short else { continue };
            let handle = Arc::clone(&workload.facts.handle);
            self.freeze(&handle, scope, past_threshold);
        }
    }

    /// Freezes a cgroup for `scope`, whose memory is this far below its threshold.
    pub(super) fn freeze(&mut self, handle: &Arc<Handle>, scope: Scope, past_threshold: Bytes) {
        let now = monotonic();
        let Some(enforcer) = &mut self.enforcement.enforcer else { return };
        let what = match enforcer.brakes.brake(handle, owner_of(scope), now, &mut enforcer.record) {
            Ok(()) => Braked::Frozen,
            Err(BrakeRefused::Already) => return,
            Err(BrakeRefused::ByOther) => Braked::Refused(Refused::ByOther),
            Err(BrakeRefused::Full | BrakeRefused::Journal(_)) => Braked::Refused(Refused::Full),
            Err(BrakeRefused::Fault(Fault::Gone)) => Braked::Gone,
            Err(BrakeRefused::Fault(fault)) => Braked::Refused(Refused::Kernel(errno_of(fault))),
        };
        if what == Braked::Frozen {
            self.report_stopped(past_threshold, now);
        }
        self.reporting.send(&Record::Brake { path: fitting(handle.path()), at: now, what });
    }

    /// Reports that what grew was stopped, the first time after a crossing.
    pub(super) fn report_stopped(&mut self, past_threshold: Bytes, now: MonotonicNs) {
        let stopped = self.scopes.episodes.stopped(past_threshold, now);
        if let Some(episode::Reported { crossed, past_threshold }) = stopped {
            self.reporting.send(&Record::Stopped { crossed, at: now, past_threshold });
        }
    }

    /// Takes the result of a brake in.
    pub(super) fn braked(&mut self, event: BrakeEvent, now: MonotonicNs, trigger: &mut Trigger) {
        trigger.because(Cause::FollowUp);
        if let BrakeEvent::StillGrows { handle, owner, grown } = event {
            let what = Braked::StillGrows(grown);
            self.reporting.send(&Record::Brake { path: fitting(handle.path()), at: now, what });
            self.still_grows(&handle, owner, now);
            return self.workloads.close(handle);
        }
        self.report_thaw(event, now);
    }

    /// It is frozen and takes memory nevertheless: killed at once, if what it was stopped for is still short.
    fn still_grows(&mut self, handle: &Arc<Handle>, owner: Owner, now: MonotonicNs) {
        let found = self.workloads.table.iter().find(|(_, other)| other.facts.handle.id() == handle.id());
        let found = found.map(|(slot, workload)| (slot, workload.termination));
        if matches!(found, Some((_, Termination::Killed(_)))) {
            // It is dying, and goes on as soon as each of its processes was sent the signal.
            return;
        }
        let (policy, scope) = (&self.engine.policy, scope_of(owner));
        let memory = self.sampler.reading(scope, policy.eviction_policy, &self.workloads.table);
        if memory.is_none_or(|memory| past_hard_threshold(policy, scope, &memory) == Bytes::ZERO) {
            return self.thaw(handle.id(), now);
        }
        let Some((slot, _)) = found else { return };
        if self.engine.state.take_victim(now) {
            if self.kill(0, Key { slot, id: handle.id() }, handle.usage().ok(), now) == KillOutcome::No {
                self.engine.state.give_back_victim();
            }
        } else {
            let what = Killed::Refused(Refused::Bounded);
            self.reporting.send(&Record::Kill { plan: 0, path: fitting(handle.path()), usage: None, at: now, what });
        }
    }

    pub(super) fn thaw(&mut self, id: CgroupId, now: MonotonicNs) {
        let Some(enforcer) = &mut self.enforcement.enforcer else { return };
        if let Some(event) = enforcer.brakes.thaw(id, now, &mut enforcer.record) {
            self.report_thaw(event, now);
        }
    }

    pub(super) fn thaw_all(&mut self, now: MonotonicNs) {
        while let Some(enforcer) = &mut self.enforcement.enforcer
            && let Some(event) = enforcer.brakes.thaw_any(now, &mut enforcer.record)
        {
            let is_refused = matches!(event, BrakeEvent::ThawFailed { .. });
            self.report_thaw(event, now);
            if is_refused {
                return;
            }
        }
    }

    fn report_thaw(&mut self, event: BrakeEvent, now: MonotonicNs) {
        let (handle, what) = match event {
            BrakeEvent::Thawed { handle, held, .. } => (handle, Braked::Thawed(held)),
            BrakeEvent::ThawFailed { handle, .. } => (handle, Braked::ThawFailed),
            BrakeEvent::Gone { handle, .. } | BrakeEvent::StillGrows { handle, .. } => (handle, Braked::Gone),
        };
        self.reporting.send(&Record::Brake { path: fitting(handle.path()), at: now, what });
        self.workloads.close(handle);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SLICE, SLICE_SCOPE, Scene, THRESHOLD};
    use super::*;
    use core::time::Duration;
    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, openat};
    use std::fs;

    #[test]
    fn a_frozen_workload_that_grows_is_killed_where_its_slice_is_short_and_goes_on_otherwise() {
        for (slice_mib, victims, killed, frozen) in
            [(SLICE - THRESHOLD + 1, 1, "1", "1"), (SLICE - THRESHOLD, 1, "", "0"), (SLICE - THRESHOLD + 1, 0, "", "1")]
        {
            let mut scene = Scene::new(victims);
            scene.cgroup("a", 50);
            // A reader of it waits for a writer: a worker that does not come to its end.
            let procs = scene.tree.path().join("a/cgroup.procs");
            fs::remove_file(&procs).expect("it is there");
            mknodat(CWD, &procs, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("writable");
            let handle = scene.joins(3, "a");
            scene.watch.freeze(&handle, SLICE_SCOPE, Bytes::ZERO);
            assert_eq!(scene.text("a", "cgroup.freeze"), "1");
            scene.uses("slice", slice_mib);
            let begun = monotonic();
            for (after, mib) in [(5, 50), (20, 60)] {
                scene.uses("a", mib);
                scene.watch.follow_up(begun.after(Duration::from_millis(after + 1)), &mut Trigger::new(monotonic()));
            }
            let found = (scene.text("a", "cgroup.kill"), scene.text("a", "cgroup.freeze"));
            assert_eq!((found.0.as_str(), found.1.as_str()), (killed, frozen), "{slice_mib} MiB, {victims} victims");
            if killed.is_empty() {
                continue;
            }
            // It goes on when each of its processes was sent the signal, not before.
            let since = monotonic();
            while scene.text("a", "cgroup.freeze") == "1" {
                assert!(monotonic().since(since) < Duration::from_secs(10), "it is never thawed");
                // Ends the wait of the worker, if it waits just now.
                drop(openat(CWD, &procs, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()));
                scene.watch.follow_up(begun.after(Duration::from_millis(22)), &mut Trigger::new(monotonic()));
            }
        }
    }
}
