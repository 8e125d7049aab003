//! Evicted pods are kept frozen, and by what that ends.

use super::super::News;
use super::super::testing::{HOLD, SLICE, Scene};
use super::super::triggers::Ready;
use super::super::{End, Stopping};
use super::*;
use crate::record::Record;
use plimsoll_act::Step;
use plimsoll_inventory::{Facts, Pod, Update, is_monitor};
use plimsoll_node::cgroup::{Handle, Purpose, Root};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::kubelet::QosClass;
use plimsoll_units::Bytes;
use std::sync::Arc;

const UID: Uid = Uid(1);
const SECOND: Duration = Duration::from_secs(1);

fn pod(serves_others: bool) -> Pod {
    Pod {
        uid: UID,
        qos: QosClass::Burstable,
        protected: None,
        memory_request: Bytes::ZERO,
        grace_seconds: Some(30),
        daemon_set: None,
        serves_others,
        ends: None,
    }
}

/// A pod that takes most of the slice, which is short.
struct Rig {
    scene: Scene,
    handle: Arc<Handle>,
}

impl Rig {
    fn new() -> Self {
        Self::of(Some(pod(false)))
    }

    fn of(pod: Option<Pod>) -> Self {
        let mut scene = Scene::new(10);
        scene.watch.stopping = Stopping::new(false);
        scene.cgroup("pod", 90);
        let facts = Facts { pod, ..scene.facts("pod") };
        let handle = Arc::clone(&facts.handle);
        scene.update(Update::Workload(0, facts));
        scene.uses("slice", SLICE - 1);
        Self { scene, handle }
    }

    /// Has it evicted, and lets it be empty.
    fn evict(&mut self) -> MonotonicNs {
        self.scene.sample();
        assert_eq!(self.killed(), "1", "it is killed");
        self.scene.write("pod", "cgroup.kill", "");
        self.scene.write("pod", "cgroup.events", "populated 0\n");
        self.scene.uses("slice", 1);
        let now = monotonic();
        self.scene.follow_up(now);
        now
    }

    /// An evicted pod that is held down.
    fn held() -> (Self, MonotonicNs) {
        let mut rig = Self::new();
        let now = rig.evict();
        assert_eq!((rig.frozen().as_str(), rig.steps()), ("1", vec![Step::Frozen]));
        assert!(matches!(rig.holds()[..], [(Held::Begun(HOLD), 1)]));
        (rig, now)
    }

    fn frozen(&self) -> String {
        self.scene.text("pod", "cgroup.freeze")
    }

    fn killed(&self) -> String {
        self.scene.text("pod", "cgroup.kill")
    }

    /// What the run record has of it.
    fn steps(&self) -> Vec<Step> {
        let enforcer = self.scene.watch.enforcement.enforcer.as_ref().expect("it acts");
        enforcer.record.entries().iter().map(|entry| entry.step).collect()
    }

    /// What was reported of holds since this was last asked, each with how many there were.
    fn holds(&mut self) -> Vec<(Held, u32)> {
        let mut holds = Vec::new();
        for frame in self.scene.frames() {
            match Record::read(&frame) {
                Some(Record::Enforcement(EnforcementRecord::Hold { what, .. })) => holds.push((what, 0)),
                Some(Record::Enforcement(EnforcementRecord::HeldDown { count })) => {
                    // It is sent from time to time, too.
                    if let Some((_, last)) = holds.last_mut() {
                        *last = count;
                    }
                }
                _ => {}
            }
        }
        holds
    }

    /// Waits until a worker has killed what is in it, and lets something be started anew.
    fn is_killed(&self) {
        let begun = monotonic();
        while self.killed() != "1" {
            assert!(monotonic().since(begun) < Duration::from_mins(1), "it is not killed");
            std::thread::yield_now();
        }
        self.scene.write("pod", "cgroup.kill", "");
    }
}

#[test]
fn an_evicted_pod_is_frozen_when_it_is_empty_and_goes_on_when_its_time_is_over() {
    let (mut rig, begun) = Rig::held();
    rig.scene.follow_up(begun.after(HOLD.saturating_sub(SECOND)));
    assert_eq!(rig.frozen(), "1");
    let due = rig.scene.watch.enforcement.due(begun).expect("its end");
    assert!(due >= begun.after(HOLD.saturating_sub(SECOND)), "nothing is due before that");
    rig.scene.follow_up(monotonic().after(HOLD));
    assert_eq!((rig.frozen().as_str(), rig.killed().as_str(), rig.steps()), ("0", "", vec![]));
    assert!(matches!(rig.holds()[..], [(Held::Ended(HoldEnd::Over, _), 0)]));
}

#[test]
fn what_was_started_in_it_is_killed_once_its_status_is_recorded_and_again_before_the_thaw() {
    let (mut rig, begun) = Rig::held();
    rig.scene.receive(News::Recorded(Uid(2)));
    rig.scene.follow_up(begun.after(STANDS + SECOND));
    assert_eq!((rig.frozen().as_str(), rig.killed().as_str()), ("1", ""), "that was another pod's");
    rig.scene.receive(News::Recorded(UID));
    rig.is_killed();
    assert_eq!(rig.frozen(), "1", "the kubelet may start one more");
    // The kubelet has written over it, and it was written again.
    rig.scene.watch.recorded(UID, begun.after(20 * SECOND));
    rig.is_killed();
    rig.scene.follow_up(begun.after(19 * SECOND + STANDS));
    assert_eq!((rig.frozen().as_str(), rig.killed().as_str()), ("1", ""));
    rig.scene.follow_up(begun.after(21 * SECOND + STANDS));
    assert_eq!((rig.frozen().as_str(), rig.killed().as_str(), rig.steps()), ("0", "1", vec![]));
    assert!(matches!(rig.holds()[..], [(Held::Ended(HoldEnd::Recorded, _), 0)]));
}

#[test]
fn its_time_does_not_get_longer_by_what_is_recorded_and_it_is_killed_then_too() {
    let (mut rig, begun) = Rig::held();
    rig.scene.watch.recorded(UID, begun.after(HOLD.saturating_sub(SECOND)));
    rig.is_killed();
    rig.scene.follow_up(begun.after(HOLD + SECOND));
    assert_eq!((rig.frozen().as_str(), rig.killed().as_str()), ("0", "1"));
    assert!(matches!(rig.holds()[..], [(Held::Ended(HoldEnd::Recorded, _), 0)]));
}

#[test]
fn none_is_held_that_is_recorded_already_or_may_not_be_frozen_or_is_no_pod_or_where_that_is_switched_off() {
    let not_held = |rig: &mut Rig, why: &str| {
        rig.evict();
        assert_eq!((rig.frozen().as_str(), rig.steps(), rig.holds()), ("0", vec![], vec![]), "{why}");
    };
    let mut rig = Rig::new();
    rig.scene.sample();
    rig.scene.receive(News::Recorded(UID));
    not_held(&mut rig, "the API server has its status");
    not_held(&mut Rig::of(Some(pod(true))), "others wait for it");
    not_held(&mut Rig::of(None), "no kubelet starts it again");
    let mut rig = Rig::new();
    rig.scene.watch.enforcement.enforcer.as_mut().expect("it acts").held.most = Duration::ZERO;
    not_held(&mut rig, "it is switched off");
    let mut rig = Rig::new();
    rig.scene.sample();
    rig.scene.receive(News::KillSwitch(true));
    not_held(&mut rig, "the kill switch is thrown");
}

#[test]
fn a_pod_that_is_frozen_by_its_parts_is_not_held() {
    let mut scene = Scene::new(10);
    let id = "0123456789abcdef".repeat(4);
    let (monitor, container) = (format!("pod/crio-conmon-{id}.scope"), format!("pod/crio-{id}.scope"));
    for cgroup in ["pod", &monitor, &container] {
        scene.cgroup(cgroup, 9);
    }
    let root = Root::open(scene.tree.path()).expect("it is there");
    let purpose = Purpose { is_written: true, counts_tasks: true, spares: Some(is_monitor) };
    let handle = Arc::new(Handle::open_for(&root, b"pod", purpose).expect("readable").expect("it is there"));
    assert!(handle.is_by_parts());
    let facts = Facts { pod: Some(pod(false)), handle: Arc::clone(&handle), ..scene.facts("pod") };
    scene.update(Update::Workload(0, facts));
    scene.watch.hold_down(handle.id(), UID, monotonic());
    scene.follow_up(monotonic());
    assert!(!scene.watch.enforcement.holds_down());
    assert_eq!(scene.text(&container, "cgroup.freeze"), "0");
}

#[test]
fn an_agent_that_acts_no_more_holds_none_and_kills_none_for_that() {
    let (mut rig, _) = Rig::held();
    rig.scene.receive(News::KillSwitch(true));
    rig.scene.settle();
    assert_eq!((rig.frozen().as_str(), rig.killed().as_str(), rig.steps()), ("0", "", vec![]));
    let (mut rig, _) = Rig::held();
    rig.scene.turn(&[Ready::Term], Duration::ZERO);
    assert_eq!(rig.scene.turn(&[], Duration::ZERO), Some(End::Asked));
    assert_eq!((rig.frozen().as_str(), rig.killed().as_str(), rig.steps()), ("0", "", vec![]));
    assert!(matches!(rig.holds()[..], [(Held::Ended(HoldEnd::NotActing, _), 0)]));
}

#[test]
fn a_brake_is_undone_first_and_what_is_held_is_not_braked() {
    let mut rig = Rig::new();
    rig.scene.freeze(&rig.handle);
    rig.evict();
    // Thawed, and frozen anew.
    rig.scene.follow_up(monotonic());
    assert_eq!((rig.frozen().as_str(), rig.steps()), ("1", vec![Step::Frozen]));
    assert!(rig.scene.watch.enforcement.holds_down() && !rig.scene.watch.enforcement.holds());
    rig.scene.frames();
    rig.scene.watch.freeze(&rig.handle, Bytes::ZERO);
    assert_eq!(rig.scene.brakes(), [], "no other program froze it");
    rig.scene.watch.thaw_all(monotonic());
    rig.scene.settle();
    assert_eq!(rig.frozen(), "1", "memory that is back ends brakes alone");
}

#[test]
fn as_many_are_held_as_there_is_room_for_and_one_more_is_reported() {
    let mut scene = Scene::new(10);
    let names: Vec<String> = (0..=MOST_HELD).map(|number| format!("pod{number}")).collect();
    for (slot, name) in (0..).zip(&names) {
        scene.cgroup(name, 1);
        let facts = Facts { pod: Some(Pod { uid: Uid(slot.into()), ..pod(false) }), ..scene.facts(name) };
        let id = facts.handle.id();
        scene.update(Update::Workload(slot, facts));
        scene.watch.hold_down(id, Uid(slot.into()), monotonic());
        scene.follow_up(monotonic());
    }
    let frozen = names.iter().filter(|name| scene.text(name, "cgroup.freeze") == "1").count();
    assert_eq!(frozen, MOST_HELD);
    let frames = scene.frames();
    let refused = frames.iter().filter_map(|frame| Record::read(frame)).filter(|record| {
        matches!(record, Record::Enforcement(EnforcementRecord::Hold { what: Held::Refused(Refused::Full), .. }))
    });
    assert_eq!(refused.count(), 1);
}

#[test]
fn what_another_program_froze_is_left_to_it() {
    let mut rig = Rig::new();
    rig.scene.sample();
    rig.scene.write("pod", "cgroup.freeze", "1\n");
    rig.evict();
    assert!(matches!(rig.holds()[..], [(Held::Refused(Refused::ByOther), 0)]));
    rig.scene.follow_up(monotonic().after(HOLD));
    assert_eq!((rig.frozen().as_str(), rig.steps()), ("1", vec![]));
}
