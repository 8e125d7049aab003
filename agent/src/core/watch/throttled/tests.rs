//! Which pod is evicted because memory.high throttles it, and which is not.

use super::super::News;
use super::super::testing::Scene;
use super::*;
use crate::record::Record;
use plimsoll_inventory::{CoreMessage, Eviction, Facts, Pod, Update};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::kubelet::QosClass;
use plimsoll_policy::{Protected, Uid};
use plimsoll_units::Bytes;

const LASTED: Duration = Duration::from_secs(10);

/// Two pods, of which the first one may be protected.
fn scene(a_minute: u32, protected: Option<Protected>, acts: bool) -> (Scene, [CgroupId; 2]) {
    let policy = Policy { soft_victims_per_minute: a_minute, ..Policy::default() };
    let mut scene = Scene::with(policy);
    if !acts {
        scene.receive(News::KillSwitch(true));
    }
    let ids = [("one", protected), ("two", None)].map(|(name, protected)| {
        scene.cgroup(name, 5);
        let pod = Pod {
            uid: Uid(1),
            qos: QosClass::Burstable,
            protected,
            memory_request: Bytes::ZERO,
            grace_seconds: Some(30),
            daemon_set: None,
            serves_others: false,
            ends: None,
        };
        let facts = Facts { pod: Some(pod), ..scene.facts(name) };
        let id = facts.handle.id();
        scene.update(Update::Workload(u32::from(name == "two"), facts));
        id
    });
    scene.frames();
    (scene, ids)
}

/// Of each victim that was reported, whether it was in shadow.
fn victims(scene: &mut Scene) -> Vec<bool> {
    scene.watch.reporting.publish();
    let frames = scene.frames();
    let records = frames.iter().filter_map(|frame| Record::read(frame));
    let shadow = records.filter_map(|record| match record {
        Record::Container(ContainerRecord::Victim { shadow, lasted: LASTED, .. }) => Some(shadow),
        _ => None,
    });
    shadow.collect()
}

fn is_killed(scene: &mut Scene, name: &str) -> bool {
    scene.settle();
    scene.text(name, "cgroup.kill") == "1"
}

#[test]
fn the_pod_is_evicted_and_no_other_one_and_the_next_one_later() {
    let (mut scene, [one, two]) = scene(30, None, true);
    scene.receive(News::Throttled(one, LASTED));
    assert_eq!((is_killed(&mut scene, "one"), is_killed(&mut scene, "two")), (true, false));
    assert_eq!(victims(&mut scene), [false]);
    let now = monotonic();
    scene.watch.name_evictions(now);
    let named = scene.informed.pop();
    let of_it = |it: &Eviction| (it.cgroup, it.cause, it.is_soft) == (one, EvictionCause::Throttled, true);
    assert!(matches!(&named, Ok(CoreMessage::Eviction(eviction)) if of_it(eviction)), "{named:?}");
    scene.watch.evict_throttled(one, LASTED, now.after(TURN));
    assert_eq!(victims(&mut scene), Vec::<bool>::new(), "it ends already");
    scene.watch.evict_throttled(two, LASTED, now);
    assert_eq!((is_killed(&mut scene, "two"), victims(&mut scene)), (false, vec![]), "too early");
    scene.watch.evict_throttled(two, LASTED, now.after(TURN));
    assert_eq!((is_killed(&mut scene, "two"), victims(&mut scene)), (true, vec![false]));
}

#[test]
fn neither_a_protected_pod_nor_any_in_shadow_or_without_victims_a_minute_is_evicted() {
    for (a_minute, protected, acts, reported) in
        [(30, Some(Protected::Unknown), true, vec![]), (30, None, false, vec![true]), (0, None, true, vec![])]
    {
        let (mut scene, [one, _]) = scene(a_minute, protected, acts);
        scene.receive(News::Throttled(one, LASTED));
        assert!(!is_killed(&mut scene, "one"), "{a_minute} {protected:?} {acts}");
        assert_eq!(victims(&mut scene), reported, "{a_minute} {protected:?} {acts}");
    }
    let (mut scene, _) = scene(30, None, true);
    scene.receive(News::Throttled(CgroupId(u64::MAX), LASTED));
    assert_eq!(victims(&mut scene), Vec::<bool>::new(), "it is gone");
}

#[test]
fn it_has_the_grace_of_a_victim_of_a_soft_threshold() {
    let (mut scene, [one, _]) = scene(30, None, true);
    scene.watch.engine.policy.max_pod_grace_seconds = 20;
    let now = monotonic();
    scene.watch.evict_throttled(one, LASTED, now);
    assert!(!is_killed(&mut scene, "one"));
    assert_eq!(scene.watch.workloads.table.next_overdue().map(|(at, ..)| at), Some(now.after(Duration::from_secs(20))));
}

#[test]
fn no_more_are_evicted_within_a_minute_than_may_be() {
    for (a_minute, seconds) in [(30, 10), (6, 10), (2, 30), (1, 60)] {
        let mut victims = ThrottledVictims::new(&Policy { soft_victims_per_minute: a_minute, ..Policy::default() });
        let taken: Vec<u64> =
            (100..400).filter(|second| victims.take(MonotonicNs(0).after(Duration::from_secs(*second)))).collect();
        assert_eq!(taken[1] - taken[0], seconds, "{a_minute}");
    }
}
