use super::super::testing::Scene;
use super::*;
use crate::core::inventory::News;
use crate::record::Record;
use plimsoll_inventory::Room;
use plimsoll_node::clock::monotonic;
use plimsoll_policy::EvictionPolicy;

const SECOND: Duration = Duration::from_secs(1);

/// What is reported of thresholds and the condition: the names and states, in order.
struct Judge {
    disks: Disks,
    scene: Scene,
    now: MonotonicNs,
}

impl Judge {
    fn new(text: &str) -> Self {
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        Self { disks: Disks::new(configuration.disk_policy()), scene: Scene::new(1), now: monotonic() }
    }

    fn reads(&mut self, role: DiskRole, left: u64) {
        let room = Some(Room { left, all: 1000 });
        let reading = DiskReading { role, bytes: room, inodes: room, at: self.now, layout: None };
        self.disks.learn(reading, Duration::ZERO, self.now);
    }

    /// What is reported so much later. Judged twice: by the kubelet's policy every other turn ends a reclaim.
    fn after(&mut self, time: Duration) -> Vec<String> {
        self.now = self.now.after(time);
        for _ in 0..2 {
            self.disks.due = self.disks.due.map(|_| self.now);
            let Watch { workloads, reporting, .. } = &mut self.scene.watch;
            self.disks.judge(self.now, true, &workloads.handle, reporting);
        }
        let frames = self.scene.frames();
        let records = frames.iter().filter_map(|frame| match Record::read(frame) {
            Some(Record::Disk(DiskRecord::Threshold { signal, status, .. })) => Some(format!(
                "{signal} {}",
                if status.is_met {
                    "met"
                } else if status.since.is_some() {
                    "crossed"
                } else {
                    "above"
                }
            )),
            Some(Record::Disk(DiskRecord::Pressure { holds, read, .. })) => Some(format!("{holds} {read:?}")),
            _ => None,
        });
        records.collect()
    }
}

#[test]
fn a_condition_lasts_from_the_threshold_to_the_minimum_reclaim_and_its_transition_period() {
    for policy in EvictionPolicy::ALL {
        let mut judge = Judge::new(&format!(
            "evictionPolicy: {policy}\nevictionHard: {{nodefs.available: \"100\"}}\n\
             evictionMinimumReclaim: {{nodefs.available: \"50\"}}\nevictionPressureTransitionPeriod: 20s\n"
        ));
        assert_eq!(judge.after(SECOND), [""; 0], "{policy}: nothing was read");
        let read = "[true, false, false]";
        for (seconds, left, expected) in [
            (0, 100, vec![format!("false {read}")]),
            (1, 99, vec!["nodefs.available met".to_owned(), format!("true {read}")]),
            (1, 120, vec![]),
            (1, 150, vec!["nodefs.available above".to_owned(), format!("true {read}")]),
            (18, 150, vec![]),
            (3, 150, vec![format!("false {read}")]),
        ] {
            judge.reads(DiskRole::Node, left);
            assert_eq!(judge.after(SECOND * seconds), expected, "{policy}: {left}");
            assert!(judge.disks.plan.victims().next().is_none(), "{policy}");
        }
    }
}

#[test]
fn a_soft_threshold_holds_once_its_grace_is_over_and_what_is_not_read_is_absent() {
    let mut judge = Judge::new(
        "evictionHard: {imagefs.inodesFree: 1%}\nevictionSoft: {imagefs.inodesFree: 50%}\n\
         evictionSoftGracePeriod: {imagefs.inodesFree: 5s}\nevictionPressureTransitionPeriod: 10s\n",
    );
    let (absent, read) = ("[false, false, false]", "[false, true, false]");
    judge.reads(DiskRole::Image, 499);
    assert_eq!(judge.after(SECOND), ["imagefs.inodesFree crossed".to_owned(), format!("true {read}")]);
    assert_eq!(judge.after(SECOND * 4), [""; 0]);
    assert_eq!(judge.after(SECOND), ["imagefs.inodesFree met".to_owned(), format!("true {read}")]);
    assert_eq!(judge.after(SECOND * 24), [""; 0], "the figure is 30 s old");
    assert_eq!(judge.after(SECOND), [format!("true {absent}")], "it is too old, and the condition lasts for a while");
    assert_eq!(judge.after(SECOND * 10), [format!("false {absent}")]);
    judge.reads(DiskRole::Image, 499);
    assert_eq!(judge.after(SECOND), ["imagefs.inodesFree crossed".to_owned(), format!("true {read}")], "anew");
    let future = DiskReading { at: judge.now.after(SECOND * 1000), ..judge.disks.readings[1].expect("it was read") };
    judge.disks.learn(future, Duration::ZERO, judge.now);
    assert_eq!(judge.after(SECOND * 30).last(), Some(&format!("true {read}")));
    assert_eq!(judge.after(SECOND), [format!("true {absent}")], "a time to come is now");
}

impl Judge {
    /// The core is killed, and another one begins so much later, to which no figure was sent yet.
    fn restarts(&mut self, after: Duration) {
        let (kept, read) = self.disks.keep();
        let mut room = [0; 4096];
        let kept = postcard::to_slice(&kept, &mut room).expect("there is room");
        let kept = postcard::from_bytes(kept).expect("it can be read");
        let mut next = Disks::new(self.disks.policy.clone());
        self.now = self.now.after(after);
        next.resume(kept, read, self.now);
        self.disks = next;
    }
}

#[test]
fn pressure_lasts_over_a_restart_until_its_transition_period_is_over() {
    for policy in EvictionPolicy::ALL {
        let mut judge = Judge::new(&format!(
            "evictionPolicy: {policy}\nevictionHard: {{nodefs.available: \"100\"}}\n\
             evictionPressureTransitionPeriod: 40s\n"
        ));
        judge.reads(DiskRole::Node, 99);
        judge.after(SECOND);
        judge.reads(DiskRole::Node, 500);
        judge.after(SECOND * 2);
        judge.restarts(SECOND * 10);
        assert_eq!(judge.after(Duration::ZERO), ["true [false, false, false]"], "{policy}: no figure is there yet");
        assert_eq!(judge.after(SECOND * 2), [""; 0], "{policy}");
        judge.reads(DiskRole::Node, 500);
        assert_eq!(judge.after(SECOND), ["true [true, false, false]"], "{policy}");
        // It was crossed last 15 s before.
        assert_eq!(judge.after(SECOND * 24), [""; 0], "{policy}");
        assert_eq!(judge.after(SECOND), ["false [true, false, false]"], "{policy}");
    }
}

#[test]
fn a_grace_goes_on_over_a_restart_and_what_is_not_sent_again_is_absent_after_a_while() {
    let mut judge = Judge::new(
        "evictionHard: {nodefs.available: \"1\"}\n\
         evictionSoft: {imagefs.available: \"100\", nodefs.available: \"100\"}\n\
         evictionSoftGracePeriod: {imagefs.available: 20s, nodefs.available: 20s}\n",
    );
    judge.reads(DiskRole::Image, 99);
    judge.reads(DiskRole::Node, 99);
    assert_eq!(judge.after(SECOND).len(), 3);
    judge.restarts(SECOND * 12);
    judge.reads(DiskRole::Node, 99);
    assert_eq!(judge.after(SECOND), ["true [false, false, false]"], "imagefs is still to be read");
    judge.restarts(SECOND);
    judge.reads(DiskRole::Node, 99);
    judge.reads(DiskRole::Image, 99);
    let expected = ["imagefs.available crossed", "nodefs.available crossed", "true [true, true, false]"];
    assert_eq!(sorted(judge.after(SECOND)), expected);
    assert_eq!(judge.after(SECOND * 4), [""; 0]);
    let expected = ["imagefs.available met", "nodefs.available met", "true [true, true, false]"];
    assert_eq!(sorted(judge.after(SECOND)), expected, "20 s after they were crossed");
    judge.restarts(SECOND);
    judge.reads(DiskRole::Node, 99);
    assert_eq!(judge.after(SECOND * 29), ["true [false, false, false]"]);
    judge.reads(DiskRole::Node, 99);
    let expected = ["nodefs.available met", "true [true, false, false]"];
    assert_eq!(judge.after(SECOND * 2), expected, "there was no figure of imagefs for 30 s");
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort_unstable();
    lines
}

#[test]
fn other_thresholds_on_disks_begin_anew() {
    let mut judge = Judge::new("evictionHard: {nodefs.available: \"100\"}\n");
    judge.reads(DiskRole::Node, 99);
    judge.after(SECOND);
    judge.disks.policy = Judge::new("evictionHard: {nodefs.available: \"101\"}\n").disks.policy;
    judge.restarts(SECOND);
    assert_eq!(judge.after(SECOND), [""; 0]);
    assert!(judge.disks.due.is_none());
}

#[test]
fn what_lasts_is_reported_again() {
    let mut judge = Judge::new("evictionHard: {nodefs.available: \"100\"}\n");
    judge.reads(DiskRole::Node, 1);
    assert_eq!(judge.after(SECOND).len(), 2);
    judge.reads(DiskRole::Node, 1);
    assert_eq!(judge.after(SECOND * 29), [""; 0]);
    assert_eq!(judge.after(SECOND), ["nodefs.available met", "true [true, false, false]"]);
}

/// By the engine, a disk that is full would be a reason to evict before a soft threshold on memory is.
#[test]
fn whatever_is_sent_nothing_is_evicted_and_memory_is_decided_as_without() {
    let configuration = plimsoll_config::parse("evictionHard: {nodefs.available: 1Gi}\n", "f").expect("in order");
    let mut scene = Scene::new(10);
    scene.watch.disks = Disks::new(configuration.disk_policy());
    scene.cgroup("batch", 90);
    scene.joins(0, "batch");
    scene.sample();
    let number = scene.watch.engine.number;
    let room = Some(Room { left: 0, all: 1 << 40 });
    for role in DiskRole::ALL {
        let layout = Some(DiskLayout::Single);
        let reading = DiskReading { role, bytes: room, inodes: room, at: monotonic(), layout };
        scene.receive(News::Disk(reading, Duration::MAX));
    }
    scene.watch.turn(&[], monotonic());
    assert!(scene.watch.disks.reported.is_some_and(|(reported, _)| reported.has_pressure));
    assert_eq!(scene.watch.engine.number, number, "no decision on memory follows");
    assert_eq!(scene.text("batch", "cgroup.kill"), "");
}
