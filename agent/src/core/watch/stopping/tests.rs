//! Pods that have time to end, and what they are asked by.

use super::super::News;
use super::super::evictions::Decided;
use super::super::testing::Scene;
use super::*;
use plimsoll_inventory::{CoreMessage, EvictionCause, Facts, Pod, Update};
use plimsoll_node::cgroup::Handle;
use plimsoll_node::clock::monotonic;
use plimsoll_policy::kubelet::QosClass;
use std::process::{Child, Command};

const UID: Uid = Uid(7);
const GRACE: Duration = Duration::from_secs(30);

/// A pod with a process, which SIGTERM ends.
struct Rig {
    scene: Scene,
    handle: Arc<Handle>,
    process: Child,
}

impl Rig {
    fn new(is_asked: bool, is_pod: bool) -> Self {
        let mut scene = Scene::new(1);
        scene.watch.stopping = Stopping::new(is_asked);
        scene.cgroup("pod", 50);
        let process = Command::new("sleep").arg("600").spawn().expect("there is sleep");
        scene.write("pod", "cgroup.procs", &format!("{}\n", process.id()));
        let pod = Pod {
            uid: UID,
            qos: QosClass::Burstable,
            protected: None,
            memory_request: plimsoll_units::Bytes::ZERO,
            grace_seconds: Some(30),
            daemon_set: None,
            serves_others: false,
            ends: None,
        };
        let facts = Facts { pod: is_pod.then_some(pod), ..scene.facts("pod") };
        let handle = Arc::clone(&facts.handle);
        scene.update(Update::Workload(0, facts));
        Self { scene, handle, process }
    }

    fn key(&self) -> Key {
        Key { slot: 0, id: self.handle.id() }
    }

    /// Asks it to end, and gives the orders to stop it.
    fn ask(&mut self, now: MonotonicNs) -> Vec<StopOrder> {
        assert!(self.scene.watch.terminate(self.key(), None, GRACE, now));
        assert!(matches!(self.scene.termination(0, &self.handle), Some(Termination::Asked(..))));
        self.scene.watch.workloads.handle.take_stops()
    }

    /// Whether it is killed as a whole. Its process may be sent SIGKILL before that is written.
    fn is_killed(&self) -> bool {
        let begun = monotonic();
        while monotonic().since(begun) < Duration::from_mins(1) {
            if self.scene.text("pod", "cgroup.kill") == "1" {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// Whether it was sent SIGTERM: by now, or `soon`.
    fn was_sent(&mut self, soon: bool) -> bool {
        let begun = monotonic();
        let most = if soon { Duration::from_mins(1) } else { Duration::from_millis(200) };
        while monotonic().since(begun) < most {
            if self.process.try_wait().expect("it is a child").is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_pod_that_the_runtime_stops_is_sent_no_signal() {
    let mut rig = Rig::new(true, true);
    let now = monotonic();
    let expected = StopOrder { uid: UID, grace_seconds: 30, until: now.after(BEGUN_WITHIN) };
    assert_eq!(rig.ask(now), [expected]);
    rig.scene.receive(News::Stop(StopResult { uid: UID, is_begun: true }));
    rig.scene.follow_up(now.after(Duration::from_secs(29)));
    assert!(!rig.was_sent(false), "it would be stopped twice");
    rig.scene.follow_up(now.after(GRACE));
    assert!(rig.is_killed(), "its grace is over, whatever was said");
}

#[test]
fn a_pod_is_named_as_evicted_before_it_is_ordered_to_be_stopped() {
    let mut rig = Rig::new(true, true);
    let now = monotonic();
    let cause = EvictionCause::Throttled;
    rig.scene.watch.decide_eviction(&Decided { key: rig.key(), cause, is_soft: true, grace: GRACE, used: None }, now);
    assert_eq!(rig.ask(now).len(), 1);
    let named = rig.scene.informed.pop();
    assert!(matches!(named, Ok(CoreMessage::Eviction(eviction)) if eviction.uid == UID), "{named:?}");
}

#[test]
fn where_the_runtime_does_not_begin_in_time_or_cannot_the_processes_are_sent_sigterm() {
    for is_answered in [true, false] {
        let mut rig = Rig::new(true, true);
        let now = monotonic();
        assert_eq!(rig.ask(now).len(), 1);
        assert_eq!(rig.scene.watch.stopping.due(), Some(now.after(BEGUN_WITHIN)));
        if is_answered {
            rig.scene.receive(News::Stop(StopResult { uid: Uid(8), is_begun: false }));
            assert!(rig.scene.watch.stopping.due().is_some(), "that is another pod");
            rig.scene.receive(News::Stop(StopResult { uid: UID, is_begun: false }));
        } else {
            rig.scene.follow_up(now.after(BEGUN_WITHIN));
        }
        assert!(rig.was_sent(true), "answered: {is_answered}");
        assert_eq!(rig.scene.watch.stopping.due(), None);
    }
}

#[test]
fn without_a_runtime_and_where_it_is_no_pod_the_processes_are_sent_sigterm_at_once() {
    for (is_asked, is_pod) in [(false, true), (true, false)] {
        let mut rig = Rig::new(is_asked, is_pod);
        assert_eq!(rig.ask(monotonic()), []);
        assert!(rig.was_sent(true));
    }
}

#[test]
fn a_short_grace_is_not_spent_on_a_runtime_that_does_not_answer() {
    let mut rig = Rig::new(true, true);
    let now = monotonic();
    assert!(rig.scene.watch.terminate(rig.key(), None, Duration::from_secs(6), now));
    assert_eq!(rig.scene.watch.stopping.due(), Some(now.after(Duration::from_secs(2))));
}

#[test]
fn one_that_is_spared_meanwhile_is_sent_nothing() {
    let mut rig = Rig::new(true, true);
    let now = monotonic();
    rig.ask(now);
    rig.scene.receive(News::KillSwitch(true));
    rig.scene.receive(News::Stop(StopResult { uid: UID, is_begun: false }));
    assert!(!rig.was_sent(false));
}
