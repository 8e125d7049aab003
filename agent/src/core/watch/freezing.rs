//! Workloads that are frozen while the engine decides, and the in-kernel brake's end.

use core::time::Duration;
use std::sync::Arc;

use arrayvec::ArrayVec;
use plimsoll_act::{BrakeEvent, BrakeRefused};
use plimsoll_inventory::{IncidentKind, Termination};
use plimsoll_node::Fault;
use plimsoll_node::cgroup::Handle;
use plimsoll_node::clock::monotonic;
use plimsoll_policy::{Outcome, Scope};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

use super::super::episode;
use super::Watch;
use super::enforcement::errno_of;
use super::scopes::past_hard_threshold;
use super::triggers::Trigger;
use crate::record::{Braked, Cause, EnforcementRecord, Refused, ThresholdRecord, fitting};

/// Cgroups that could not be frozen and are remembered as such, so that each is reported once.
const REFUSED: usize = 64;

/// Freezing by a plan, from its first freeze to the next time that everything is thawed.
#[derive(Clone, Debug)]
pub(super) struct Grown {
    until: Option<MonotonicNs>,
    /// Cgroups that could not be frozen, for want of room or because the kernel refused. That was reported.
    refused: ArrayVec<CgroupId, REFUSED>,
}

impl Grown {
    /// Nothing is frozen by a plan.
    pub(super) const fn none() -> Self {
        Self { until: None, refused: ArrayVec::new_const() }
    }

    /// Whether a plan may freeze. A workload that was thawed because its hold was over is not frozen again at once.
    fn may_freeze(&mut self, now: MonotonicNs, hold: Duration) -> bool {
        now < *self.until.get_or_insert(now.after(hold))
    }

    /// A cgroup could not be frozen. Gives whether that is to be reported: the first time.
    fn refuse(&mut self, cgroup: CgroupId) -> bool {
        !self.refused.contains(&cgroup) && self.refused.try_push(cgroup).is_ok()
    }
}

impl Watch {
    /// Freezes what grows, before anything else is read, where memory is below a hard threshold by the kernel's own
    /// reading.
    pub(super) fn freeze_growers(&mut self, trigger: &Trigger) {
        if !self.enforcement.freezes() {
            return;
        }
        // Looked up at each sample: a workload that was not known when its charge crossed the threshold may be by now.
        for lineage in trigger.growers() {
            let table = &self.workloads.table;
            let Some(workload) = table.of(&lineage).and_then(|key| table.get(key)) else { continue };
            if workload.termination != Termination::Stays || !workload.may_freeze() {
                continue;
            }
            let short = self.scopes.first_short(&self.engine.policy, workload.facts.slices);
            let Some((_, past_threshold)) = short else { continue };
            let handle = Arc::clone(&workload.facts.handle);
            self.freeze(&handle, past_threshold);
        }
    }

    /// Freezes every workload of the plan that grew, where the plan's scope is below a hard threshold by the kernel's own
    /// reading: until the victims' memory is back, and for no longer than one hold. Those that could not be frozen, as
    /// where there is no room, are reported and not tried again.
    pub(super) fn freeze_grown(&mut self, scope: Scope) {
        let plan = &self.engine.plan;
        let memory = self.scopes.get(scope).reading;
        let past = memory.map_or(Bytes::ZERO, |memory| past_hard_threshold(&self.engine.policy, scope, &memory));
        if past == Bytes::ZERO
            || !self.enforcement.freezes()
            || !matches!(plan.outcome, Outcome::Evict | Outcome::ComingBack)
        {
            return;
        }
        let Some(hold) = self.enforcement.enforcer.as_ref().map(|enforcer| enforcer.brakes.hold()) else { return };
        if !self.enforcement.grown.may_freeze(monotonic(), hold) {
            return;
        }
        for index in 0..self.engine.plan.ranked.len() {
            let ranked = self.engine.plan.ranked[index];
            let is_refused = self.enforcement.grown.refused.contains(&ranked.key.id);
            let Some(workload) = self.workloads.table.get(ranked.key) else { continue };
            if ranked.grew && !is_refused && workload.termination == Termination::Stays && workload.may_freeze() {
                let handle = Arc::clone(&workload.facts.handle);
                self.freeze(&handle, past);
            }
        }
    }

    /// Freezes a cgroup, where memory is this far below its threshold.
    pub(super) fn freeze(&mut self, handle: &Arc<Handle>, past_threshold: Bytes) {
        let now = monotonic();
        let Some(enforcer) = &mut self.enforcement.enforcer else { return };
        if enforcer.held.holds(handle.id()) {
            return;
        }
        let brakes = &mut enforcer.brakes;
        let what = match brakes.brake(handle, now, &mut enforcer.record, &mut enforcer.workers) {
            // Reported when it is written.
            Ok(()) => return self.scopes.episodes.stopping(past_threshold, now),
            Err(BrakeRefused::Already) => return,
            Err(BrakeRefused::ByOther) => Braked::Refused(Refused::ByOther),
            Err(BrakeRefused::Full | BrakeRefused::Journal(_) | BrakeRefused::WorkerFull) => {
                Braked::Refused(Refused::Full)
            }
            Err(BrakeRefused::Fault(Fault::Gone)) => Braked::Gone,
            Err(BrakeRefused::Fault(fault)) => Braked::Refused(Refused::Kernel(errno_of(fault))),
        };
        self.refused_brake(handle, what, now);
    }

    /// Reports, once for each cgroup, that it could not be frozen.
    fn refused_brake(&mut self, handle: &Handle, what: Braked, at: MonotonicNs) {
        if self.enforcement.grown.refuse(handle.id()) {
            self.reporting.send(EnforcementRecord::Brake { path: fitting(handle.path()), at, what });
        }
    }

    /// Reports that what grew was stopped at `at`, the first time after a crossing.
    pub(super) fn report_stopped(&mut self, at: MonotonicNs) {
        if let Some(episode::Reported { crossed, past_threshold }) = self.scopes.episodes.stopped() {
            self.reporting.send(ThresholdRecord::Stopped { crossed, at, past_threshold });
        }
    }

    /// Takes the result of a brake in.
    pub(super) fn braked(&mut self, event: BrakeEvent, now: MonotonicNs, trigger: &mut Trigger) {
        let (handle, what, at) = match event {
            BrakeEvent::Frozen { handle, at } => {
                self.report_stopped(at);
                (handle, Braked::Frozen, at)
            }
            BrakeEvent::Stopped { handle, processes, at } => {
                self.report_stopped(at);
                (handle, Braked::Stopped(processes), at)
            }
            BrakeEvent::Refused { handle, fault } => {
                self.refused_brake(&handle, Braked::Refused(Refused::Kernel(errno_of(fault))), now);
                return self.workloads.close(handle);
            }
            BrakeEvent::Thawed { handle, held, .. } => {
                self.happened(IncidentKind::Frozen(held), &[Some(handle.id())]);
                (handle, Braked::Thawed(held), now)
            }
            BrakeEvent::ThawFailed { handle, .. } => (handle, Braked::ThawFailed, now),
            BrakeEvent::Gone { handle, .. } => (handle, Braked::Gone, now),
            BrakeEvent::StillGrows { handle, grown, .. } => {
                // It stays frozen, and is marked in the observation that is decided on next.
                trigger.because(Cause::FollowUp);
                (handle, Braked::StillGrows(grown), now)
            }
        };
        self.reporting.send(EnforcementRecord::Brake { path: fitting(handle.path()), at, what });
        self.workloads.close(handle);
    }

    pub(super) fn thaw(&mut self, id: CgroupId, now: MonotonicNs) {
        if let Some(enforcer) = &mut self.enforcement.enforcer {
            enforcer.brakes.thaw(id, now, &mut enforcer.workers);
        }
    }

    pub(super) fn thaw_all(&mut self, now: MonotonicNs) {
        self.enforcement.grown = Grown::none();
        if let Some(enforcer) = &mut self.enforcement.enforcer {
            enforcer.brakes.thaw_all(now, &mut enforcer.workers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SLICE, Scene, THRESHOLD};
    use super::*;
    use core::time::Duration;
    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, openat};
    use std::fs;

    /// Lets a frozen workload be read at these times with these usages in MiB.
    fn read(scene: &mut Scene, begun: MonotonicNs, name: &str, readings: &[(u64, u64)]) {
        for (after, mib) in readings {
            scene.uses(name, *mib);
            scene.follow_up(begun.after(Duration::from_millis(*after)));
        }
    }

    #[test]
    fn a_frozen_workload_that_grows_is_ranked_like_others_and_marked() {
        let mut scene = Scene::new(1);
        for (name, mib) in [("frozen", 20), ("large", 40)] {
            scene.cgroup(name, mib);
        }
        let (frozen, large) = (scene.joins(0, "frozen"), scene.joins(1, "large"));
        scene.uses("slice", SLICE - THRESHOLD + 1);
        scene.freeze(&frozen);
        let begun = monotonic();
        read(&mut scene, begun, "frozen", &[(6, 20), (22, 26), (38, 27)]);
        assert_eq!(
            (scene.text("frozen", "cgroup.kill"), scene.text("frozen", "cgroup.freeze")),
            (String::new(), "1".into())
        );
        scene.sample();
        let marked = |scene: &Scene, handle: &Handle| {
            let observed = scene.watch.workloads.table.observed().iter().find(|it| it.key.id == handle.id());
            observed.expect("it is observed").grows_while_frozen
        };
        assert!(marked(&scene, &frozen) && !marked(&scene, &large));
        let killed = |name: &str| scene.text(name, "cgroup.kill") == "1";
        assert!(killed("large") && !killed("frozen"), "both grew, and the larger one is first");
    }

    #[test]
    fn a_frozen_workload_that_grows_is_thawed_where_memory_is_back() {
        let mut scene = Scene::new(1);
        scene.cgroup("a", 50);
        let handle = scene.joins(0, "a");
        scene.freeze(&handle);
        let begun = monotonic();
        scene.uses("slice", SLICE - THRESHOLD);
        read(&mut scene, begun, "a", &[(6, 50), (22, 60), (38, 70)]);
        scene.sample();
        assert_eq!((scene.text("a", "cgroup.kill"), scene.text("a", "cgroup.freeze")), (String::new(), "0".into()));
    }

    #[test]
    fn a_killed_workload_is_thawed_when_each_of_its_processes_was_sent_the_signal() {
        let mut scene = Scene::new(1);
        scene.cgroup("a", 50);
        // A reader of it waits for a writer: a worker that does not come to its end.
        let procs = scene.tree.path().join("a/cgroup.procs");
        fs::remove_file(&procs).expect("it is there");
        mknodat(CWD, &procs, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("writable");
        let handle = scene.joins(3, "a");
        scene.freeze(&handle);
        scene.uses("slice", SLICE - THRESHOLD + 1);
        scene.sample();
        assert_eq!((scene.text("a", "cgroup.kill"), scene.text("a", "cgroup.freeze")), ("1".into(), "1".into()));
        let since = monotonic();
        while scene.text("a", "cgroup.freeze") == "1" {
            assert!(monotonic().since(since) < Duration::from_secs(10), "it is never thawed");
            // Ends the wait of the worker, if it waits just now.
            drop(openat(CWD, &procs, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()));
            scene.follow_up(since);
        }
    }

    #[test]
    fn all_workloads_that_grew_are_frozen_while_a_victim_dies_as_far_as_there_is_room_and_once() {
        let mut scene = Scene::new(1);
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        for (slot, name) in (0..).zip(names) {
            scene.cgroup(name, 5);
            scene.joins(slot, name);
        }
        // Plentiful memory: what each uses now is where its growth counts from.
        scene.uses("slice", 10);
        scene.sample();
        for name in &names[..6] {
            scene.uses(name, 14);
        }
        scene.uses("slice", SLICE - 1);
        scene.sample();
        let with = |scene: &Scene, file: &str| names.iter().filter(|name| scene.text(name, file) == "1").count();
        assert_eq!((with(&scene, "cgroup.kill"), with(&scene, "cgroup.freeze")), (1, 4), "there is room for four");
        assert_eq!(scene.text("g", "cgroup.freeze"), "0", "it did not grow");
        let refused =
            |scene: &mut Scene| scene.brakes().iter().filter(|what| **what == Braked::Refused(Refused::Full)).count();
        assert_eq!(refused(&mut scene), 1);
        scene.sample();
        assert_eq!(refused(&mut scene), 0, "reported once");
        // Their time is over, and they are not frozen again for the same shortage.
        let later = monotonic().after(Duration::from_secs(3));
        scene.follow_up(later);
        assert_eq!(with(&scene, "cgroup.freeze"), 0);
    }
}
