//! The kill switch: while it is thrown, this agent shadows as one does that has no right to act.

use plimsoll_node::clock::monotonic;
use plimsoll_units::MonotonicNs;

use super::Watch;

impl Watch {
    /// Begins nothing from here on, or acts again.
    ///
    /// What is frozen is thawed, evicted pods that are held down too, and what the kernel stopped goes on, and no more
    /// of it is marked. A kill that was requested is with the workers: it is finished and waited for, and not repeated
    /// where the victim is refilled. A workload that was asked to end is not killed when its grace is over. Of a
    /// reclaim, what was requested runs out.
    pub(super) fn switch(&mut self, is_off: bool) {
        self.enforcement.is_off = is_off;
        if is_off {
            let now = monotonic();
            self.thaw_all(now);
            self.end_holds(now);
            self.enforcement.kernel_brake.continue_all(self.triggers.source_mut());
            self.workloads.table.forget_graces();
            if let Some(enforcer) = &mut self.enforcement.enforcer {
                enforcer.kills.kill_none_again();
            }
        }
        // What would be done from here on is reported, or done, at once.
        self.scopes.outdate_reports();
        self.schedule.sample_by(MonotonicNs(0));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SLICE, Scene, slice_policy};
    use super::super::triggers::Ready;
    use super::super::{Means, News};
    use super::*;
    use crate::record::{PlanRecord, Record};
    use arrayvec::ArrayVec;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use core::time::Duration;
    use plimsoll_inventory::{Mark, PathEnd, Termination, Update};
    use plimsoll_policy::Outcome;
    use plimsoll_sense::{BrakeMark, Descriptor, Kind, MAX_DESCRIPTORS, SenseError, Source, WakeList};
    use plimsoll_units::{Bytes, CgroupId};
    use std::sync::Arc;

    /// Whether an eviction was reported since this was last asked, and of each whether it was in shadow.
    fn evictions(scene: &mut Scene) -> Vec<bool> {
        let frames = scene.frames();
        let records = frames.iter().filter_map(|frame| Record::read(frame));
        let shadow = records.filter_map(|record| match record {
            Record::Plan(PlanRecord::Begin { outcome: Outcome::Evict, shadow, .. }) => Some(shadow),
            _ => None,
        });
        shadow.collect()
    }

    #[test]
    fn what_is_frozen_goes_on_and_what_would_be_done_is_reported_until_it_is_done() {
        let mut scene = Scene::new(1);
        scene.cgroup("batch", 50);
        let batch = scene.joins(0, "batch");
        scene.freeze(&batch);
        assert_eq!(scene.text("batch", "cgroup.freeze"), "1");
        scene.uses("slice", SLICE - 1);
        scene.receive(News::KillSwitch(true));
        scene.settle();
        assert_eq!(scene.text("batch", "cgroup.freeze"), "0");
        for round in 0..3 {
            scene.sample();
            assert_eq!(
                (scene.text("batch", "cgroup.kill").as_str(), scene.text("batch", "cgroup.freeze").as_str()),
                ("", "0"),
                "round {round}"
            );
            let expected: &[bool] = if round == 0 { &[true] } else { &[] };
            assert_eq!(evictions(&mut scene), expected, "reported once, in round {round}");
        }
        scene.receive(News::KillSwitch(false));
        assert!(scene.watch.schedule.is_sample_due(monotonic()));
        scene.sample();
        assert_eq!(scene.text("batch", "cgroup.kill"), "1");
        assert_eq!(evictions(&mut scene).first(), Some(&false));
    }

    #[test]
    fn a_plan_is_reported_again_although_it_is_as_before() {
        let mut scene = Scene::new(10);
        scene.cgroup("batch", 50);
        scene.joins(0, "batch");
        scene.uses("slice", SLICE - 1);
        scene.receive(News::KillSwitch(true));
        scene.sample();
        assert_eq!(evictions(&mut scene), [true]);
        for is_off in [false, true] {
            scene.receive(News::KillSwitch(is_off));
        }
        scene.sample();
        assert_eq!(evictions(&mut scene), [true], "it may have been done meanwhile");
    }

    #[test]
    fn a_workload_that_was_asked_to_end_is_not_killed_when_its_grace_is_over() {
        for is_off in [false, true] {
            let mut scene = Scene::new(1);
            scene.cgroup("asked", 1);
            let (asked, now) = (scene.joins(0, "asked"), monotonic());
            scene.watch.workloads.table.set_termination(asked.id(), Termination::Asked(now, 7));
            scene.receive(News::KillSwitch(is_off));
            scene.follow_up(now.after(Duration::from_secs(1)));
            assert_eq!(scene.text("asked", "cgroup.kill"), if is_off { "" } else { "1" });
            if is_off {
                assert_eq!(scene.termination(0, &asked), Some(Termination::Stays));
            }
        }
    }

    #[test]
    fn a_kill_that_was_requested_is_finished_and_not_repeated() {
        for is_off in [false, true] {
            let mut scene = Scene::new(10);
            scene.cgroup("batch", 90);
            let batch = scene.joins(0, "batch");
            scene.uses("slice", SLICE - 1);
            scene.decide();
            scene.receive(News::KillSwitch(is_off));
            scene.settle();
            assert_eq!(scene.text("batch", "cgroup.kill"), "1", "the workers had it");
            scene.write("batch", "cgroup.kill", "");
            scene.uses("batch", 10);
            scene.follow_up(monotonic().after(Duration::from_millis(10)));
            // Another process is in it now.
            scene.uses("batch", 40);
            scene.follow_up(monotonic().after(Duration::from_millis(20)));
            let again = scene.termination(0, &batch);
            let stuck = Some(Termination::Stuck(Bytes::mib(40)));
            assert_eq!(again == stuck, is_off, "{again:?}");
            if is_off {
                assert_eq!(scene.text("batch", "cgroup.kill"), "");
                scene.write("batch", "cgroup.events", "populated 0\n");
                scene.follow_up(monotonic().after(Duration::from_secs(2)));
                assert!(!scene.watch.enforcement.enforcer.as_ref().is_some_and(|it| it.kills.waits_for(batch.id())));
            }
        }
    }

    #[test]
    fn an_agent_whose_turn_comes_meanwhile_acts_once_the_switch_is_taken_back() {
        let mut scene = Scene::new(1);
        let enforcer = scene.watch.enforcement.enforcer.take().expect("it acted");
        scene.cgroup("batch", 50);
        scene.joins(0, "batch");
        scene.uses("slice", SLICE - 1);
        scene.receive(News::KillSwitch(true));
        assert!(scene.give_means.push(Means { enforcer, resumer: None }).is_ok());
        assert_eq!(scene.turn(&[Ready::Inventory], Duration::ZERO), None);
        assert!(scene.watch.enforcement.enforcer.is_some(), "its turn has come");
        assert_eq!(scene.text("batch", "cgroup.kill"), "");
        scene.receive(News::KillSwitch(false));
        assert_eq!(scene.turn(&[], Duration::ZERO), None);
        assert_eq!(scene.text("batch", "cgroup.kill"), "1");
    }

    /// Remembers how many slices are marked.
    struct Marked(Arc<AtomicUsize>);

    impl Source for Marked {
        fn kind(&self) -> Kind {
            Kind::Polling
        }

        fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS> {
            ArrayVec::new()
        }

        fn drain(&mut self, _: u32, _: &mut WakeList) -> Result<(), SenseError> {
            Ok(())
        }

        fn set_brakes(&mut self, marks: &[BrakeMark]) -> Result<(), SenseError> {
            self.0.store(marks.len(), Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn the_kernel_stops_nothing_and_what_it_stopped_goes_on() {
        let marked = Arc::new(AtomicUsize::new(0));
        let mut scene = Scene::woken_by(Marked(Arc::clone(&marked)), slice_policy(1));
        let marks = || marked.load(Ordering::Relaxed);
        scene.uses("slice", 1);
        let mark = Mark { slice: CgroupId(7), level: 1, path: PathEnd::default() };
        scene.update(Update::Mark(0, Some(mark)));
        scene.sample();
        assert_eq!(marks(), 1);
        scene.watch.enforcement.kernel_brake.stopped(monotonic());
        scene.receive(News::KillSwitch(true));
        assert_eq!((marks(), scene.watch.enforcement.kernel_brake.holds()), (0, false));
        scene.sample();
        assert_eq!(marks(), 0, "memory is plentiful");
        // Stopped just before the marks came off, and reported only now.
        let now = monotonic();
        scene.watch.enforcement.kernel_brake.stopped(now);
        scene.follow_up(now.after(Duration::from_secs(2)));
        assert!(!scene.watch.enforcement.kernel_brake.holds());
        scene.receive(News::KillSwitch(false));
        scene.sample();
        assert_eq!(marks(), 1);
    }
}
