use super::super::testing::{SLICE, Scene, slice_policy};
use super::*;
use crate::core::inventory::{InventoryHandle, News, Request};
use crate::core::watch::Disks;
use crate::core::watch::stopping::Stopping;
use crate::core::watch::triggers::Ready;
use crate::record::{PlanRecord, Record};
use plimsoll_inventory::{
    ConditionState, CoreMessage, DiskReading, DiskRole, Facts, Pod, ReceiptOf, Room, StopOrder, Update,
};
use plimsoll_node::cgroup::Handle;
use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::{QosClass, Signal};
use plimsoll_state::KEPT_MOST;
use std::sync::Arc;

use EvictionStep::{Decided as Begun, GivenUp, Killed, Verified};

const SECOND: Duration = Duration::from_secs(1);

fn pod(uid: u128) -> Pod {
    Pod {
        uid: Uid(uid),
        qos: QosClass::Burstable,
        protected: None,
        memory_request: Bytes::ZERO,
        grace_seconds: Some(30),
        daemon_set: None,
        serves_others: false,
        ends: None,
    }
}

/// A pod that takes most of the slice, which is short.
fn hog(scene: &mut Scene) -> Arc<Handle> {
    scene.cgroup("hog", 90);
    let facts = scene.facts("hog");
    let handle = Arc::clone(&facts.handle);
    scene.update(Update::Workload(0, Facts { pod: Some(pod(1)), ..facts }));
    scene.uses("slice", SLICE - 1);
    handle
}

/// A threshold that gives the pod its time.
fn soft() -> plimsoll_policy::Config {
    let mut policy = slice_policy(10);
    policy.slices[0].thresholds[0].grace = Duration::from_nanos(1);
    policy.max_pod_grace_seconds = 30;
    policy
}

/// What is handed over at `now`.
fn named(scene: &mut Scene, now: MonotonicNs) -> Vec<(u64, EvictionStep)> {
    scene.watch.name_evictions(now);
    let mut named = Vec::new();
    while let Ok(message) = scene.informed.pop() {
        if let CoreMessage::Eviction(eviction) = message {
            named.push((eviction.number.0, eviction.step));
        }
    }
    named
}

fn past(scene: &Scene) -> Past {
    let enforcer = scene.watch.enforcement.enforcer.as_ref().expect("it acts");
    Evictions::read(&enforcer.evictions).expect("it can be read")
}

fn steps(scene: &Scene) -> Vec<EvictionStep> {
    past(scene).0.iter().map(|eviction| eviction.step).collect()
}

fn acknowledge(scene: &mut Scene, number: u64, step: EvictionStep, is_durable: bool) {
    let of = ReceiptOf::Eviction(EvictionNumber(number), step);
    scene.receive(News::Receipt(Receipt { of, is_durable }));
}

#[test]
fn a_pod_is_named_from_the_decision_to_its_end_and_again_until_that_is_on_a_disk() {
    let mut scene = Scene::new(10);
    hog(&mut scene);
    scene.decide();
    let (evictions, _) = past(&scene);
    let [eviction] = evictions[..] else { panic!("it is written before the kill is done: {evictions:?}") };
    assert_eq!((eviction.uid, eviction.used, eviction.grace_seconds), (Uid(1), Some(Bytes::mib(90)), 0));
    let (threshold, available) = (10 << 20, 1 << 20);
    let signal = Signal::MemoryAvailable;
    assert_eq!(eviction.cause, EvictionCause::Threshold { signal, threshold, available });
    assert!(!eviction.is_soft && eviction.wall_ms > 0 && eviction.number.0 > 0);
    let number = eviction.number.0;
    scene.settle();
    assert_eq!(steps(&scene), [Killed]);
    scene.write("hog", "cgroup.events", "populated 0\n");
    scene.follow_up(monotonic());
    let now = monotonic();
    assert_eq!(named(&mut scene, now), [(number, Verified)]);
    assert_eq!(named(&mut scene, now.after(SECOND / 2)), []);
    assert_eq!(named(&mut scene, now.after(SECOND)), [(number, Verified)]);
    assert_eq!(named(&mut scene, now.after(2 * SECOND)), [], "ever less often");
    acknowledge(&mut scene, number, Killed, true);
    assert_eq!(named(&mut scene, now.after(3 * SECOND)), [(number, Verified)], "that was another step");
    acknowledge(&mut scene, number, Verified, false);
    assert_eq!(named(&mut scene, now.after(40 * SECOND)), []);
    assert_eq!(named(&mut scene, now.after(63 * SECOND)), [(number, Verified)], "it is in memory alone");
    acknowledge(&mut scene, number, Verified, true);
    assert_eq!(named(&mut scene, now.after(1000 * SECOND)), []);
    assert_eq!(past(&scene).0, []);
}

#[test]
fn what_is_no_pod_and_what_an_agent_in_shadow_would_evict_is_not_named() {
    let mut scene = Scene::new(10);
    scene.cgroup("batch", 90);
    scene.joins(0, "batch");
    scene.uses("slice", SLICE - 1);
    scene.sample();
    assert_eq!(scene.text("batch", "cgroup.kill"), "1");
    assert_eq!((named(&mut scene, monotonic()), past(&scene).0), (vec![], vec![]));
    let mut scene = Scene::new(10);
    hog(&mut scene);
    scene.receive(News::KillSwitch(true));
    scene.sample();
    assert_eq!((named(&mut scene, monotonic()), past(&scene).0), (vec![], vec![]));
}

#[test]
fn the_next_core_goes_on_with_the_same_number_and_takes_no_decision_twice() {
    let mut scene = Scene::new(10);
    hog(&mut scene);
    scene.decide();
    let before = past(&scene);
    let number = before.0[0].number;
    // The core is killed before its workers did anything.
    let mut next = Scene::new(10);
    let handle = hog(&mut next);
    let mut left = before.clone();
    left.0[0].cgroup = handle.id();
    next.watch.enforcement.enforcer.as_mut().expect("it acts").evicted = left;
    next.watch.resume_evictions(monotonic());
    assert_eq!(steps(&next), [Begun]);
    next.sample();
    let (evictions, _) = past(&next);
    assert!(evictions.len() == 1 && evictions[0].number == number && evictions[0].step == Killed, "{evictions:?}");
    // What is decided later has a later number.
    next.write("hog", "cgroup.events", "populated 0\n");
    next.follow_up(monotonic());
    next.watch.evictions.decide(Eviction { uid: Uid(2), ..evictions[0] }, monotonic());
    assert!(next.watch.evictions.rows[1].eviction.number > number);
}

/// A core after one that asked a pod to end so many seconds ago; the pod, and when that was.
fn next_core(ago: u64) -> (Scene, Arc<Handle>, MonotonicNs) {
    let mut scene = Scene::with(soft());
    let handle = hog(&mut scene);
    scene.sample();
    scene.sample();
    let (evictions, _) = past(&scene);
    let [eviction] = evictions[..] else { panic!("{evictions:?}") };
    assert_eq!((eviction.step, eviction.is_soft, eviction.grace_seconds), (Begun, true, 30));
    assert!(matches!(scene.termination(0, &handle), Some(Termination::Asked(..))));
    let mut next = Scene::with(soft());
    let handle = hog(&mut next);
    let decided = MonotonicNs(monotonic().0.saturating_sub(ago * 1_000_000_000));
    let left = Eviction { cgroup: handle.id(), decided, ..eviction };
    next.watch.enforcement.enforcer.as_mut().expect("it acts").evicted = (vec![left], Default::default());
    next.watch.stopping = Stopping::new(true);
    (next, handle, decided)
}

#[test]
fn a_pod_that_was_asked_to_end_has_the_rest_of_its_time_from_the_next_core() {
    let (mut next, handle, decided) = next_core(29);
    next.watch.resume_evictions(monotonic());
    let stops = next.watch.workloads.handle.take_stops();
    assert!(matches!(&stops[..], [StopOrder { uid: Uid(1), grace_seconds: 0 | 1, .. }]), "{stops:?}");
    assert_eq!(next.termination(0, &handle), Some(Termination::Asked(decided.after(30 * SECOND), 0)));
    next.follow_up(monotonic());
    assert_eq!(next.text("hog", "cgroup.kill"), "");
    next.follow_up(monotonic().after(2 * SECOND));
    assert_eq!(next.text("hog", "cgroup.kill"), "1");
}

#[test]
fn a_pod_whose_time_was_over_long_before_the_next_core_is_given_up() {
    for (ago, is_asked) in [(39, true), (41, false)] {
        let (mut next, handle, decided) = next_core(ago);
        let begun = monotonic();
        next.watch.resume_evictions(begun);
        let asked = Termination::Asked(decided.after(30 * SECOND), 0);
        assert_eq!(next.termination(0, &handle), Some(if is_asked { asked } else { Termination::Stays }), "{ago}");
        next.follow_up(begun);
        assert_eq!(next.text("hog", "cgroup.kill"), if is_asked { "1" } else { "" }, "{ago}");
        next.watch.follow_evictions(begun);
        assert_eq!(steps(&next), [if is_asked { Killed } else { GivenUp }], "{ago}");
    }
}

#[test]
fn a_core_that_begins_while_the_kill_switch_is_thrown_asks_and_kills_nothing_that_another_one_asked() {
    let (mut next, handle, _) = next_core(29);
    next.receive(News::KillSwitch(true));
    let begun = monotonic();
    next.watch.resume_evictions(begun);
    assert!(next.watch.workloads.handle.take_stops().is_empty());
    assert_eq!(next.termination(0, &handle), Some(Termination::Stays));
    next.follow_up(begun.after(2 * SECOND));
    assert_eq!((next.text("hog", "cgroup.kill").as_str(), &steps(&next)[..]), ("", &[Begun][..]));
    next.watch.follow_evictions(begun.after(PATIENCE));
    assert_eq!(steps(&next), [GivenUp]);
}

#[test]
fn a_pod_that_ends_by_itself_or_whose_cgroup_is_gone_has_ended() {
    for is_removed in [false, true] {
        let mut scene = Scene::with(soft());
        hog(&mut scene);
        scene.sample();
        scene.sample();
        assert_eq!(steps(&scene), [Begun]);
        if is_removed {
            scene.update(Update::Gone(0));
        } else {
            scene.write("hog", "cgroup.events", "populated 0\n");
            scene.watch.follow_evictions(monotonic());
        }
        assert_eq!(steps(&scene), [Verified], "{is_removed}");
    }
}

#[test]
fn where_the_source_alone_says_when_to_sample_a_pod_that_ended_is_seen_and_one_that_runs_again_is_given_up() {
    for is_started_again in [false, true] {
        let mut scene = Scene::with(soft());
        let handle = hog(&mut scene);
        scene.sample();
        scene.sample();
        scene.uses("slice", 1);
        scene.write("hog", "cgroup.events", "populated 0\n");
        scene.sample();
        assert_eq!((scene.termination(0, &handle), &steps(&scene)[..]), (Some(Termination::Stays), &[Begun][..]));
        if is_started_again {
            scene.write("hog", "cgroup.events", "populated 1\n");
        }
        assert_eq!(scene.turn(&[Ready::Source(0)], PATIENCE), None);
        assert_eq!(steps(&scene), [if is_started_again { GivenUp } else { Verified }]);
    }
}

#[test]
fn one_that_is_not_followed_up_is_given_up_and_forgotten_once_that_is_on_a_disk() {
    let mut scene = Scene::with(soft());
    hog(&mut scene);
    scene.sample();
    scene.sample();
    let number = past(&scene).0[0].number.0;
    scene.receive(News::KillSwitch(true));
    scene.watch.follow_evictions(monotonic().after(PATIENCE / 2));
    assert_eq!(steps(&scene), [Begun]);
    let now = monotonic().after(PATIENCE);
    scene.watch.follow_evictions(now);
    assert_eq!(named(&mut scene, now), [(number, GivenUp)]);
    acknowledge(&mut scene, number, GivenUp, true);
    scene.watch.follow_evictions(now);
    assert!(!scene.watch.evictions.is_any());
    assert_eq!(named(&mut scene, now), []);
    assert_eq!(past(&scene).0, [], "the next core does not go on with it");
    scene.receive(News::KillSwitch(false));
    scene.sample();
    let (evictions, _) = past(&scene);
    assert!(evictions.len() == 1 && evictions[0].number.0 > number, "it is another decision: {evictions:?}");
}

#[test]
fn a_victim_that_does_not_end_is_given_up_and_has_ended_once_it_does() {
    let mut scene = Scene::new(10);
    hog(&mut scene);
    scene.sample();
    scene.end_patience();
    assert_eq!(steps(&scene), [GivenUp]);
    let number = past(&scene).0[0].number.0;
    named(&mut scene, monotonic());
    acknowledge(&mut scene, number, GivenUp, true);
    scene.watch.follow_evictions(monotonic());
    assert!(scene.watch.evictions.is_any(), "it may still end");
    scene.write("hog", "cgroup.events", "populated 0\n");
    scene.follow_up(monotonic());
    assert_eq!(steps(&scene), [Verified]);
}

#[test]
fn as_many_as_there_can_be_fit_the_file_and_one_more_is_reported() {
    let mut scene = Scene::new(10);
    let most = Eviction {
        number: EvictionNumber(u64::MAX >> 1),
        uid: Uid(u128::MAX),
        cgroup: CgroupId(u64::MAX),
        step: Begun,
        cause: EvictionCause::Threshold { signal: Signal::PidAvailable, threshold: i64::MIN, available: i64::MIN },
        is_soft: true,
        grace_seconds: u32::MAX,
        used: Some(Bytes(u64::MAX)),
        decided: MonotonicNs(u64::MAX),
        wall_ms: u64::MAX,
    };
    let state = ConditionState {
        condition: Condition::PidPressure,
        is_true: true,
        since: MonotonicNs(u64::MAX),
        wall_ms: u64::MAX,
        observed: Some(MonotonicNs(u64::MAX)),
    };
    let longest = (vec![Eviction { number: EvictionNumber(u64::MAX), ..most }; MOST_EVICTIONS], [Some(state); 3]);
    let mut room = [0; KEPT_MOST];
    postcard::to_slice(&longest, &mut room).expect("it fits");
    for number in 0..=MOST_EVICTIONS {
        let uid = Uid(number as u128);
        scene.watch.evictions.decide(Eviction { uid, ..most }, MonotonicNs(1));
    }
    scene.frames();
    scene.watch.name_evictions(monotonic());
    scene.watch.name_evictions(monotonic());
    scene.watch.reporting.publish();
    assert_eq!(scene.frames().iter().filter(|frame| matches!(Record::read(frame), Some(Record::Health(_)))).count(), 1);
    let (evictions, _) = past(&scene);
    assert!(evictions.len() == MOST_EVICTIONS && evictions[0].uid == Uid(1), "the oldest went");
}

#[test]
fn without_services_no_thread_wakes_for_what_cannot_be_named() {
    for has_services in [true, false] {
        let (way, _messages) = rtrb::RingBuffer::new(1);
        let (handle, start) = (InventoryHandle::new().expect("an eventfd"), MonotonicNs(0));
        let mut evictions = Evictions::new(has_services.then_some(way), start);
        let later = start.after(Duration::from_mins(1));
        evictions.conclude(Condition::MemoryPressure, false, false, later);
        evictions.hand_over(&handle, later);
        assert_eq!(handle.is_asked(Request::Inform), has_services);
    }
}

fn said(condition: Condition, is_true: bool, observed: Option<MonotonicNs>) -> ConditionState {
    ConditionState { condition, is_true, since: MonotonicNs(7), wall_ms: 9, observed }
}

fn conditions(scene: &mut Scene) -> Vec<ConditionState> {
    scene.watch.name_evictions(monotonic());
    let mut states = Vec::new();
    while let Ok(message) = scene.informed.pop() {
        if let CoreMessage::Condition(state) = message {
            states.push(state);
        }
    }
    states
}

#[test]
fn a_condition_is_named_when_it_changes_and_when_what_is_behind_it_is_over() {
    let mut scene = Scene::new(1);
    let conclude = |scene: &mut Scene, is_true, is_crossed, at| {
        scene.watch.conclude(Condition::MemoryPressure, is_true, is_crossed, MonotonicNs(at));
        conditions(scene)
    };
    let begun = scene.watch.evictions.begun.0;
    assert_eq!(conclude(&mut scene, false, false, begun), [], "what it was is not known yet");
    scene.receive(News::Condition(said(Condition::MemoryPressure, false, None)));
    let named: Vec<_> =
        [(false, false), (true, true), (true, true), (true, false), (true, false), (true, true), (false, false)]
            .into_iter()
            .zip(0..)
            .map(|((is_true, is_crossed), at)| {
                let named = conclude(&mut scene, is_true, is_crossed, begun + at);
                named
                    .first()
                    .map(|state| (state.is_true, state.since.0 - begun.min(state.since.0), state.observed.is_some()))
            })
            .collect();
    let (first, last) = (Some((false, 0, false)), Some((false, 6, false)));
    let expected = [first, Some((true, 1, false)), None, Some((true, 1, true)), None, Some((true, 1, false)), last];
    assert_eq!(named, expected);
    scene.receive(News::KillSwitch(true));
    assert_eq!(conclude(&mut scene, true, true, begun + 9), [], "none becomes true where nothing is acted on");
}

#[test]
fn a_condition_that_holds_when_the_kill_switch_is_thrown_ends_and_none_begins() {
    let mut scene = Scene::new(1);
    let begun = scene.watch.evictions.begun.0;
    let conclude = |scene: &mut Scene, condition, is_true, at| {
        scene.watch.conclude(condition, is_true, is_true, MonotonicNs(begun + at));
        conditions(scene).iter().map(|state| (state.condition, state.is_true)).collect::<Vec<_>>()
    };
    let (memory, pids) = (Condition::MemoryPressure, Condition::PidPressure);
    for condition in [memory, pids] {
        // The one of process ids held before this core.
        scene.receive(News::Condition(said(condition, condition == pids, None)));
    }
    assert_eq!(conclude(&mut scene, memory, true, 1), [(memory, true)]);
    scene.receive(News::KillSwitch(true));
    assert_eq!(conclude(&mut scene, memory, true, 2), [], "it goes on");
    for condition in [memory, pids] {
        assert_eq!(conclude(&mut scene, condition, false, 3), [(condition, false)], "it ends");
        assert_eq!(conclude(&mut scene, condition, true, 4), [], "it does not begin again");
    }
    scene.receive(News::KillSwitch(false));
    assert_eq!(conclude(&mut scene, memory, true, 5), [(memory, true)]);
}

#[test]
fn a_condition_holds_for_what_is_left_of_its_period_without_what_the_core_kept() {
    let text =
        "evictionHard: {nodefs.available: \"100\", memory.available: \"1\"}\nevictionPressureTransitionPeriod: 1m\n";
    let configuration = plimsoll_config::parse(text, "f").expect("in order");
    for (ago, holds) in [(30, true), (90, false)] {
        let mut scene = Scene::with(configuration.policy.clone());
        scene.watch.disks = Disks::new(configuration.disk_policy());
        let observed = MonotonicNs(monotonic().0.saturating_sub(ago * 1_000_000_000));
        for condition in [Condition::MemoryPressure, Condition::DiskPressure] {
            scene.receive(News::Condition(said(condition, true, Some(observed))));
        }
        let room = Some(Room { left: 900, all: 1000 });
        let reading = DiskReading { role: DiskRole::Node, bytes: room, inodes: None, at: monotonic(), layout: None };
        scene.receive(News::Disk(reading, Duration::ZERO));
        scene.turn(&[], Duration::ZERO);
        scene.sample();
        assert_eq!(scene.watch.disks.reported_pressure(), Some(holds), "{ago}");
        assert_eq!(scene.watch.engine.plan.conditions.has(Condition::MemoryPressure), holds, "{ago}");
        for condition in [Condition::MemoryPressure, Condition::DiskPressure] {
            let (state, _) = scene.watch.evictions.conditions[condition as usize].expect("it is concluded");
            // Where it holds it began before this core.
            assert_eq!((state.is_true, state.since == MonotonicNs(7)), (holds, holds), "{ago}");
        }
    }
}

/// As where another agent had the right to act until now, or the configuration is another one.
#[test]
fn a_condition_that_the_agent_before_had_holds_for_what_is_left_of_its_period_where_it_can_end() {
    let text = "evictionHard: {memory.available: \"1\"}\nevictionPressureTransitionPeriod: 1m\n";
    let configuration = plimsoll_config::parse(text, "f").expect("in order");
    for (ago, holds) in [(30, true), (90, false)] {
        let mut scene = Scene::with(configuration.policy.clone());
        scene.watch.disks = Disks::new(configuration.disk_policy());
        let observed = MonotonicNs(monotonic().0.saturating_sub(ago * 1_000_000_000));
        let past = Condition::ALL.map(|condition| Some(said(condition, true, Some(observed))));
        // It saw one itself while another agent acted.
        scene.watch.engine.state.take_observed(Condition::MemoryPressure, MonotonicNs(1));
        scene.watch.enforcement.enforcer.as_mut().expect("it acts").evicted = (Vec::new(), past);
        scene.watch.resume_evictions(monotonic());
        scene.sample();
        let conditions =
            scene.watch.evictions.conditions.map(|it| it.map(|(state, _)| (state.is_true, state.since.0 == 7)));
        let [memory, disk, _] = [Condition::MemoryPressure, Condition::DiskPressure, Condition::PidPressure]
            .map(|condition| conditions[condition as usize]);
        assert_eq!((memory, disk), (Some((holds, holds)), None), "{ago}");
    }
}

#[test]
fn what_all_pods_lack_together_is_the_condition_of_the_node() {
    for (signal, holds) in [(Signal::AllocatableMemoryAvailable, true), (Signal::MemoryAvailable, false)] {
        let mut policy = slice_policy(1);
        policy.slices[0].thresholds[0].signal = signal;
        let mut scene = Scene::with(policy);
        scene.receive(News::Condition(said(Condition::MemoryPressure, false, None)));
        let concluded = |scene: &Scene| {
            let condition = scene.watch.evictions.conditions[Condition::MemoryPressure as usize];
            condition.map(|(state, _)| (state.is_true, state.observed.is_some()))
        };
        // The period of transition is not over when memory is back.
        for (used, is_crossed) in [(SLICE - 1, true), (0, false)] {
            scene.uses("slice", used);
            scene.sample();
            assert_eq!(concluded(&scene), Some((holds, holds && !is_crossed)), "{signal:?} with {used} MiB");
        }
        let mut of_node = scene.frames().into_iter().filter_map(|frame| match Record::read(&frame) {
            Some(Record::Plan(PlanRecord::Begin { of_node, .. })) => Some(of_node),
            _ => None,
        });
        assert_eq!(of_node.next_back().map(|last| last.has(Condition::MemoryPressure)), Some(holds), "{signal:?}");
    }
}

#[test]
fn another_services_is_named_at_once_what_its_predecessor_had_not_written() {
    let mut scene = Scene::new(10);
    hog(&mut scene);
    scene.sample();
    let now = monotonic();
    assert_eq!(named(&mut scene, now).len(), 1);
    assert_eq!(named(&mut scene, now), []);
    scene.receive(News::Condition(said(Condition::MemoryPressure, false, None)));
    assert_eq!(named(&mut scene, now).len(), 1);
}

#[test]
fn a_condition_is_handed_over_before_an_eviction() {
    let mut scene = Scene::new(10);
    hog(&mut scene);
    scene.decide();
    scene.receive(News::Condition(said(Condition::MemoryPressure, false, None)));
    while scene.informed.pop().is_ok() {}
    let now = monotonic();
    scene.watch.conclude(Condition::MemoryPressure, true, true, now);
    scene.watch.name_evictions(now.after(63 * SECOND));
    let first = scene.informed.pop().expect("a message");
    assert!(matches!(first, CoreMessage::Condition(_)), "{first:?}");
    let mut others = core::iter::from_fn(|| scene.informed.pop().ok());
    assert!(others.any(|message| matches!(message, CoreMessage::Eviction(_))));
}
