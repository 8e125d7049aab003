use super::super::super::inventory::{eventfd, wake};
use super::super::End;
use super::super::testing::{SLICE, Scene, slice_policy};
use super::*;
use arrayvec::ArrayVec;
use core::time::Duration;
use plimsoll_node::clock::monotonic;
use plimsoll_sense::{CgroupChange, CrossedThreshold, Descriptor, Generation, Kind, MAX_DESCRIPTORS};
use plimsoll_units::Pages;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Readable without end, and nothing can be read: a record that is reserved and not submitted.
struct Busy {
    ready: OwnedFd,
    drains: Arc<AtomicU32>,
}

impl Source for Busy {
    fn kind(&self) -> Kind {
        Kind::Ebpf
    }

    fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS> {
        let descriptor = Descriptor { fd: self.ready.as_fd(), interest: Interest::Readable, token: 0 };
        std::iter::once(descriptor).collect()
    }

    fn drain(&mut self, _: u32, _: &mut WakeList) -> Result<(), SenseError> {
        self.drains.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_record_that_stays_busy_leaves_the_cpu_to_other_threads_and_the_timers_go_on() {
    let (ready, drains) = (eventfd().expect("a descriptor"), Arc::new(AtomicU32::new(0)));
    wake(&ready);
    let mut scene = Scene::woken_by(Busy { ready, drains: Arc::clone(&drains) }, slice_policy(1));
    scene.cgroup("batch", 0);
    scene.joins(0, "batch");
    for (tokens, in_a_row) in
        [(&[Ready::Source(0)][..], 1), (&[Ready::Source(0)], 2), (&[], 0), (&[Ready::Source(0)], 1)]
    {
        scene.turn(tokens, Duration::ZERO);
        assert_eq!(scene.watch.triggers.empty_drains(), in_a_row);
    }
    scene.watch.schedule.set_slow(Duration::from_millis(20), monotonic());
    let term = scene.watch.triggers.signals().term.try_clone().expect("a descriptor more");
    let tree = scene.tree.path().to_owned();
    let kill = tree.join("batch/cgroup.kill");
    let write = move |file: &str, text: &str| fs::write(tree.join(file), text).expect("writable");
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        write("batch/memory.current", &format!("{}\n", (SLICE - 1) << 20));
        write("slice/memory.current", &format!("{}\n", (SLICE - 1) << 20));
        for _ in 0..400 {
            std::thread::sleep(Duration::from_millis(50));
            if fs::read_to_string(&kill).is_ok_and(|text| text == "1") {
                break;
            }
        }
        write("slice/memory.current", "0\n");
        write("batch/cgroup.events", "populated 0\n");
        wake(&term);
    });
    let begun = monotonic();
    assert_eq!(scene.watch.run(), End::Asked);
    let (took, drains) = (monotonic().since(begun), drains.load(Ordering::Relaxed));
    other.join().expect("it wrote everything");
    assert_eq!(scene.text("batch", "cgroup.kill"), "1", "the slow timer took no sample");
    // Twice at once, then once in a millisecond.
    assert!(u128::from(drains) <= 10 + took.as_millis(), "{drains} drains in {took:?}");
}

/// A crossing by a charge to the last of these cgroups, each below the one before from level 1 on.
fn crossing(path: &[CgroupId]) -> Wake {
    let lineage = |place: usize| if place == 0 { path.last() } else { path.get(place - 1) };
    Wake::ThresholdCrossed {
        threshold: CrossedThreshold::Node,
        generation: Generation(1),
        crossed: monotonic(),
        kubelet_available: Pages(0),
        mem_available: Pages(0),
        usage: None,
        lineage: core::array::from_fn(|place| lineage(place).copied()),
        pid: 1,
        tgid: 1,
    }
}

/// So many cgroups below one another.
fn below(cgroup: CgroupId, levels: u64) -> Vec<CgroupId> {
    std::iter::once(cgroup).chain((1..=levels).map(|level| CgroupId(u64::MAX - level))).collect()
}

#[test]
fn what_grows_is_frozen_while_the_decision_waits_however_far_below_its_workload_it_is_charged() {
    for levels in [0, 6, 7, 20] {
        let mut scene = Scene::new(1);
        scene.cgroup("a", 50);
        let path = below(scene.joins(0, "a").id(), levels);
        scene.uses("slice", SLICE - 1);
        let mut trigger = Trigger::new(monotonic());
        scene.watch.notice(&crossing(&path), &mut trigger);
        scene.watch.sample(&trigger);
        assert!(scene.watch.figures.is_awaited());
        while scene.watch.enforcement.awaits_writes() {
            scene.watch.follow_up(monotonic(), &mut Trigger::new(monotonic()));
        }
        assert_eq!(scene.text("a", "cgroup.freeze"), "1", "{levels} levels below");
    }
}

#[test]
fn a_workload_that_is_found_after_its_charge_crossed_a_threshold_is_frozen_while_the_decision_waits() {
    let mut scene = Scene::new(1);
    scene.cgroup("new", 50);
    scene.uses("slice", SLICE - 1);
    let mut trigger = Trigger::new(monotonic());
    scene.watch.notice(&crossing(&below(scene.open("new").id(), 1)), &mut trigger);
    scene.watch.sample(&trigger);
    assert!(scene.watch.figures.is_awaited());
    scene.joins(0, "new");
    scene.watch.sample(&Trigger::of(Cause::FollowUp, monotonic()));
    assert!(scene.watch.figures.is_awaited());
    while scene.watch.enforcement.awaits_writes() {
        scene.watch.follow_up(monotonic(), &mut Trigger::new(monotonic()));
    }
    assert_eq!(scene.text("new", "cgroup.freeze"), "1");
}

#[test]
fn kills_at_limits_of_cgroups_cause_one_sample_in_a_while_and_those_of_the_machine_one_each() {
    use plimsoll_sense::OomScope::{Cgroup, Global};
    let mut scene = Scene::new(1);
    scene.watch.schedule.sampled();
    let at = monotonic();
    let causes = [Cgroup, Cgroup, Global, Global, Cgroup].map(|scope| {
        let mut trigger = Trigger::new(at);
        let (victim, name, victim_cgroup, mapped, resident) = (1, [0; 16], None, None, None);
        let (lineage, limit) = ([None; LINEAGE], None);
        let wake = Wake::Oom { at, victim, name, victim_cgroup, lineage, mapped, resident, scope, limit };
        scene.watch.notice(&wake, &mut trigger);
        trigger.cause().is_some()
    });
    assert_eq!(causes, [true, false, true, true, false]);
    assert!(scene.watch.schedule.next_sample().is_some_and(|next| next > at), "delayed, not left out");
}

#[test]
fn tasks_that_reclaim_cause_one_sample_in_a_while() {
    let mut scene = Scene::new(1);
    scene.watch.schedule.sampled();
    let at = monotonic();
    let causes = [at, at, at.after(Duration::from_secs(1))].map(|at| {
        let mut trigger = Trigger::new(at);
        let by = plimsoll_sense::Reclaimer::Direct;
        scene.watch.notice(&Wake::ReclaimStarted { by, node: None, at }, &mut trigger);
        trigger.cause()
    });
    assert_eq!(causes, [Some(Cause::Reclaim), None, Some(Cause::Reclaim)]);
    assert!(scene.watch.schedule.next_sample().is_some_and(|next| next > at), "delayed, not left out");
}

#[test]
fn whatever_comes_beside_tasks_that_reclaim_or_stall_is_another_reason_to_arm() {
    let at = monotonic();
    for (causes, is_alone) in [
        (&[][..], false),
        (&[Cause::Reclaim, Cause::Psi], true),
        (&[Cause::Psi, Cause::Timer], false),
        (&[Cause::Reclaim, Cause::FollowUp], false),
        (&[Cause::Threshold, Cause::Reclaim], false),
    ] {
        let mut trigger = Trigger::new(at);
        for cause in causes {
            trigger.because(*cause);
        }
        assert_eq!(trigger.is_reclaim_alone(), is_alone, "{causes:?}");
        assert!(!trigger.after(Some(&Trigger::of(Cause::FollowUp, at))).is_reclaim_alone(), "{causes:?}");
        assert_eq!(trigger.after(Some(&Trigger::of(Cause::Psi, at))).is_reclaim_alone(), is_alone || causes.is_empty());
    }
}

/// So many events that were submitted without a wake.
struct Unread(OwnedFd, Arc<AtomicU32>);

impl Source for Unread {
    fn kind(&self) -> Kind {
        Kind::Ebpf
    }

    fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS> {
        std::iter::once(Descriptor { fd: self.0.as_fd(), interest: Interest::Readable, token: 0 }).collect()
    }

    fn drain(&mut self, _: u32, wakes: &mut WakeList) -> Result<(), SenseError> {
        while !wakes.is_full() && self.1.load(Ordering::Relaxed) > 0 {
            self.1.fetch_sub(1, Ordering::Relaxed);
            wakes.push(Wake::ReclaimStarted { by: plimsoll_sense::Reclaimer::Direct, node: None, at: monotonic() });
        }
        Ok(())
    }
}

#[test]
fn what_follows_an_event_of_a_cgroup_is_read_a_pace_later() {
    let unread = Arc::new(AtomicU32::new(0));
    let mut scene = Scene::woken_by(Unread(eventfd().expect("a descriptor"), Arc::clone(&unread)), slice_policy(1));
    let event = Wake::Cgroup { id: CgroupId(7), change: CgroupChange::Created, at: monotonic() };
    let now = monotonic();
    scene.watch.notice(&event, &mut Trigger::new(now));
    unread.store(3, Ordering::Relaxed);
    for (after, left) in [(Duration::ZERO, 3), (CGROUP_PACE, 0)] {
        scene.watch.turn(&[], now.after(after));
        assert_eq!(unread.load(Ordering::Relaxed), left, "{after:?}");
    }
}

#[test]
fn all_that_was_submitted_without_a_wake_is_read_in_a_slow_turn() {
    let unread = Arc::new(AtomicU32::new(300));
    let mut scene = Scene::woken_by(Unread(eventfd().expect("a descriptor"), Arc::clone(&unread)), slice_policy(1));
    scene.watch.drain_all(&mut Trigger::new(monotonic()));
    assert_eq!(unread.load(Ordering::Relaxed), 0);
}
