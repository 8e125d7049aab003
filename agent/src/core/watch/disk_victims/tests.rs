//! Pods that are evicted for disks and for limits of local storage, and those that are not.

use super::super::Disks;
use super::super::testing::Scene;
use super::*;
use crate::core::disk_reader::{Disk, DiskReader};
use crate::record::Record;
use core::sync::atomic::{AtomicU64, Ordering};
use plimsoll_inventory::{
    Facts, PartUsage, Pod, PodFacts, RemovalError, RemovalResult, Room, StorageLimit, StoragePart, Update,
};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::kubelet::{QosClass, Signal};
use plimsoll_policy::{EvictionPolicy, Protected, Uid};
use plimsoll_storage::Device;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// The size of the disk.
const ALL: u64 = 1000 * MIB;
/// Where what is left cannot be read.
const UNREADABLE: u64 = u64::MAX;

struct Node {
    scene: Scene,
    left: Arc<AtomicU64>,
    /// The same on a disk of the runtime's own, which is half as large.
    left_apart: Arc<AtomicU64>,
    now: MonotonicNs,
}

/// A thread that reads a disk with this number and of this size.
fn reader(minor: u32, all: u64, left: u64) -> (DiskReader, Arc<AtomicU64>) {
    let left = Arc::new(AtomicU64::new(left));
    let read = Arc::clone(&left);
    let reader = DiskReader::start_with("disk", move || {
        let left = read.load(Ordering::Relaxed);
        let stats = FsStats {
            available: Some(left),
            capacity: Some(all),
            inodes_free: Some(500),
            inodes: Some(1000),
            time: None,
        };
        let disk = Disk { device: Device { major: 8, minor }, left: stats };
        let disk = Some(disk).filter(|_| left != UNREADABLE);
        // That of images, and of writable layers.
        [disk, disk, None, None, None]
    });
    (reader.expect("a thread"), left)
}

impl Node {
    /// With so much left on its disk, and a hard threshold at 100 MiB.
    fn new(policy: EvictionPolicy, left: u64) -> Self {
        Self::with(policy, left, RuntimeRoots::Usual)
    }

    /// The same, with a disk of the runtime's, which has plenty, and a hard threshold on imagefs at 50 MiB.
    fn with(policy: EvictionPolicy, left: u64, roots: RuntimeRoots) -> Self {
        let text =
            format!("evictionPolicy: {policy}\nevictionHard: {{nodefs.available: 100Mi, imagefs.available: 50Mi}}\n");
        let configuration = plimsoll_config::parse(&text, "f").expect("it is in order");
        let ((node, left), (runtime, left_apart)) = (reader(1, ALL, left), reader(2, ALL / 2, ALL / 4));
        let readers = DiskReaders::new(node, runtime);
        let mut scene = Scene::new(10);
        scene.watch.disk_victims = Some(DiskVictims::new(configuration.disk_policy(), 16, readers, roots));
        let mut node = Self { scene, left, left_apart, now: monotonic() };
        node.says(DiskRole::Node, ALL, ALL);
        node
    }

    /// Another process says so of a disk.
    fn says(&mut self, role: DiskRole, left: u64, all: u64) {
        let (bytes, inodes) = (Some(Room { left, all }), Some(Room { left: 500, all: 1000 }));
        let layout = Some(if all == ALL { DiskLayout::Single } else { DiskLayout::DedicatedImageFs });
        self.scene.watch.disks.believe(DiskReading { role, bytes, inodes, at: self.now, layout });
    }

    /// What was said of disks is read again.
    fn says_again(&mut self) {
        for reading in self.scene.watch.disks.said().iter().flatten().copied().collect::<Vec<_>>() {
            self.scene.watch.disks.believe(DiskReading { at: self.now, ..reading });
        }
    }

    /// A pod whose volume takes so much, and is limited.
    fn pod(&mut self, slot: u32, protected: Option<Protected>, used: Option<u64>, limit: Option<u64>) {
        let name = slot.to_string();
        self.scene.cgroup(&name, 1);
        let uid = Uid(slot.into());
        let pod = Pod {
            uid,
            qos: QosClass::Burstable,
            protected,
            memory_request: Bytes::ZERO,
            grace_seconds: None,
            daemon_set: None,
            serves_others: false,
            ends: None,
        };
        let facts = Facts { pod: Some(pod), ..self.scene.facts(&name) };
        self.scene.update(Update::Workload(slot, facts));
        let volume = (StoragePart::Volume { name: 7, is_local: true }, used);
        let limit = limit.map(|bytes| StorageLimit { uid, on: Limited::Volume(7), bytes: Bytes(bytes) });
        self.takes(slot, &[volume], limit.as_slice(), None);
    }

    /// What it takes of disks, and may.
    fn takes(
        &mut self,
        slot: u32,
        parts: &[(StoragePart, Option<u64>)],
        limits: &[StorageLimit],
        storage_limit: Option<Bytes>,
    ) {
        let key = Key { slot, id: self.scene.facts(&slot.to_string()).handle.id() };
        let uid = Uid(slot.into());
        let of = |(part, used): &(StoragePart, Option<u64>)| {
            let used = used.map(|bytes| (bytes, 1));
            PartUsage { uid, part: *part, used, begun: self.now, ended: self.now }
        };
        let parts: Vec<_> = parts.iter().map(of).collect();
        let facts = PodFacts { uid, storage_request: Bytes(MIB), storage_limit, ..PodFacts::default() };
        let storage = PodStorage::of(&facts, limits, parts.into_iter(), true);
        self.scene.update(Update::Storage(key, Some(Arc::new(storage))));
    }

    /// A pod with a container that has logs and a writable layer of these sizes.
    fn container(&mut self, slot: u32, [logs, layer]: [u64; 2], limit: Option<u64>) {
        self.pod(slot, None, None, None);
        let parts = [(StoragePart::Logs(3), Some(logs)), (StoragePart::Layer(3), Some(layer))];
        let uid = Uid(slot.into());
        let limit = limit.map(|bytes| StorageLimit { uid, on: Limited::Container(3), bytes: Bytes(bytes) });
        self.takes(slot, &parts, limit.as_slice(), None);
    }

    /// Reads the disk and decides, twice: by the kubelet's policy every other turn ends a reclaim.
    fn turn(&mut self, after: Duration) {
        self.now = self.now.after(after);
        for _ in 0..2 {
            let victims = self.scene.watch.disk_victims.as_mut().expect("it is there");
            victims.due = self.now;
            self.scene.watch.evict_for_disks(self.now);
            self.answers();
            self.scene.watch.evict_for_disks(self.now);
            self.says_again();
        }
        self.scene.settle();
    }

    /// Waits until the disk was read.
    fn answers(&self) {
        while self.scene.watch.disk_victims.as_ref().is_some_and(|victims| !victims.readers.have_answered()) {
            std::thread::yield_now();
        }
    }

    /// What was reported as failed since this was last asked.
    fn failures(&mut self) -> Vec<String> {
        let frames = self.scene.frames();
        let records = frames.iter().filter_map(|frame| Record::read(frame));
        records
            .filter_map(|record| match record {
                Record::Health(HealthRecord::Failed { what, .. }) => Some(what.to_owned()),
                _ => None,
            })
            .collect()
    }

    /// Whether each pod was killed.
    fn killed<const COUNT: usize>(&self) -> [bool; COUNT] {
        core::array::from_fn(|slot| self.scene.text(&slot.to_string(), "cgroup.kill") == "1")
    }

    /// Nothing is left of a pod that was killed.
    fn ends(&mut self, slot: u32) {
        self.scene.write(&slot.to_string(), "cgroup.events", "populated 0\n");
        self.scene.follow_up(monotonic());
    }

    fn causes(&mut self) -> Vec<DiskCause> {
        let frames = self.scene.frames();
        let records = frames.iter().filter_map(|frame| Record::read(frame));
        records
            .filter_map(|record| match record {
                Record::Disk(DiskRecord::Victim { cause, shadow: false, .. }) => Some(cause),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn a_pod_over_its_limit_is_evicted_and_no_other_one() {
    for policy in EvictionPolicy::ALL {
        let mut node = Node::new(policy, 500 * MIB);
        node.pod(0, None, Some(9 * MIB), Some(8 * MIB));
        node.pod(1, None, Some(300 * MIB), None);
        node.pod(2, Some(Protected::Critical), Some(9 * MIB), Some(8 * MIB));
        node.pod(3, None, Some(8 * MIB), Some(8 * MIB));
        node.turn(Duration::ZERO);
        assert_eq!(node.killed(), [true, false, false, false], "{policy}");
        let limit = DiskCause::Limit { on: Some(Limited::Volume(7)), limit: Amount::whole(8 << 20) };
        assert_eq!(node.causes(), [limit], "{policy}");
        node.ends(0);
        for _ in 0..2 {
            node.turn(Duration::from_mins(1));
        }
        assert_eq!(node.killed(), [true, false, false, false], "{policy}: nor later one that is protected");
    }
}

#[test]
fn of_pods_over_their_limits_one_is_evicted_at_a_time() {
    let mut node = Node::new(EvictionPolicy::Plimsoll, 500 * MIB);
    node.pod(0, None, Some(9 * MIB), Some(8 * MIB));
    node.pod(1, None, Some(9 * MIB), Some(8 * MIB));
    node.turn(Duration::ZERO);
    node.turn(Duration::from_secs(9));
    assert_eq!(node.killed(), [true, false]);
    node.turn(Duration::from_secs(1));
    assert_eq!(node.killed(), [true, true]);
}

#[test]
fn a_pod_over_its_limit_of_which_nothing_runs_is_passed_over() {
    let mut node = Node::new(EvictionPolicy::Plimsoll, 500 * MIB);
    node.pod(0, None, Some(9 * MIB), Some(8 * MIB));
    node.pod(1, None, Some(9 * MIB), Some(8 * MIB));
    node.scene.write("0", "cgroup.events", "populated 0\n");
    node.turn(Duration::ZERO);
    assert_eq!(node.killed(), [false, true]);
    // It has begun again.
    node.scene.write("0", "cgroup.events", "populated 1\n");
    node.turn(Duration::from_secs(10));
    assert_eq!(node.killed(), [true, true]);
}

#[test]
fn below_a_threshold_the_pod_that_takes_most_over_its_request_is_evicted() {
    for policy in EvictionPolicy::ALL {
        let mut node = Node::new(policy, 50 * MIB);
        for (slot, mib) in [(0, 100), (1, 300), (2, 200)] {
            node.pod(slot, None, Some(mib * MIB), None);
        }
        node.turn(Duration::ZERO);
        assert_eq!(node.killed(), [false, true, false], "{policy}");
        let (available, threshold) = (Amount::whole(50 << 20), Amount::whole(100 << 20));
        let cause = DiskCause::Threshold { signal: Signal::NodeFsAvailable, available, threshold };
        assert_eq!(node.causes(), [cause], "{policy}");
    }
}

#[test]
fn where_the_disk_has_not_gained_the_next_one_waits_and_where_it_has_it_does_not() {
    for (gained, seconds, second_goes) in [(0, 60, false), (0, 301, true), (30, 60, false), (160, 60, true)] {
        let mut node = Node::new(EvictionPolicy::Plimsoll, 10 * MIB);
        node.pod(0, None, Some(300 * MIB), None);
        node.pod(1, None, Some(200 * MIB), None);
        // All of it would not be enough.
        let more = "evictionHard: {nodefs.available: 900Mi}\n";
        let policy = plimsoll_config::parse(more, "f").expect("in order").disk_policy();
        let victims = node.scene.watch.disk_victims.take().expect("it is there");
        node.scene.watch.disk_victims = Some(DiskVictims::new(policy, 16, victims.readers, RuntimeRoots::Usual));
        node.turn(Duration::ZERO);
        assert_eq!(node.killed(), [true, false]);
        node.ends(0);
        node.left.store((10 + gained) * MIB, Ordering::Relaxed);
        node.turn(Duration::from_secs(seconds));
        assert_eq!(node.killed(), [true, second_goes], "{gained} MiB after {seconds} s");
    }
}

#[test]
fn the_next_core_takes_no_other_victim_sooner_and_begins_no_grace_anew() {
    let next_core = |before: &Node, node: &mut Node| {
        let bytes = before.scene.watch.enforcement.enforcer.as_ref().expect("it acts").kept.bytes();
        let enforcer = node.scene.watch.enforcement.enforcer.as_mut().expect("it acts");
        enforcer.kept.write(|room| {
            room[..bytes.len()].copy_from_slice(&bytes);
            Some(bytes.len())
        });
        node.now = before.now;
        node.scene.watch.resume(node.now);
    };
    for (resumes, seconds, second_goes) in [(true, 60, false), (true, 301, true), (false, 60, true)] {
        let mut before = Node::new(EvictionPolicy::Plimsoll, 10 * MIB);
        before.pod(0, None, Some(300 * MIB), None);
        before.turn(Duration::ZERO);
        assert_eq!(before.killed(), [true]);
        // The disk has not gained by it.
        let mut node = Node::new(EvictionPolicy::Plimsoll, 10 * MIB);
        node.pod(1, None, Some(200 * MIB), None);
        if resumes {
            next_core(&before, &mut node);
        }
        node.turn(Duration::from_secs(seconds));
        assert_eq!(node.scene.text("1", "cgroup.kill") == "1", second_goes, "{resumes} after {seconds} s");
    }
    let soft = |node: &mut Node| {
        let text = "evictionSoft: {nodefs.available: 100Mi}\nevictionSoftGracePeriod: {nodefs.available: 30m}\n\
                    evictionHard: {nodefs.available: 1Mi}\n";
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        let victims = node.scene.watch.disk_victims.as_mut().expect("it is there");
        victims.state = State::with_capacity(&configuration.disk_policy(), 16);
        victims.plan = Plan::with_capacity(&configuration.disk_policy(), 16, 0);
        victims.policy = configuration.disk_policy();
    };
    let mut before = Node::new(EvictionPolicy::Plimsoll, 50 * MIB);
    soft(&mut before);
    before.turn(Duration::ZERO);
    let mut node = Node::new(EvictionPolicy::Plimsoll, 50 * MIB);
    soft(&mut node);
    node.pod(1, None, Some(200 * MIB), None);
    next_core(&before, &mut node);
    node.turn(Duration::from_mins(29));
    assert_eq!(node.scene.text("1", "cgroup.kill"), "");
    node.turn(Duration::from_mins(1));
    assert_eq!(node.scene.text("1", "cgroup.kill"), "1", "the grace counts from the first core's crossing");
}

#[test]
fn where_the_disk_has_gained_and_another_pod_takes_that_again_it_is_evicted() {
    // Above the threshold by a tenth of what the victim took, and by less; below it by half of that, and by less.
    for (taken, gained, second_goes) in [(300, 95, true), (980, 95, false), (120, 65, true), (120, 50, false)] {
        let mut node = Node::new(EvictionPolicy::Plimsoll, 10 * MIB);
        node.pod(0, None, Some(taken * MIB), None);
        node.pod(1, None, Some(110 * MIB), None);
        node.turn(Duration::ZERO);
        assert_eq!(node.killed(), [true, false]);
        node.ends(0);
        node.left.store((10 + gained) * MIB, Ordering::Relaxed);
        node.turn(Duration::from_secs(5));
        node.left.store(20 * MIB, Ordering::Relaxed);
        node.turn(Duration::from_secs(10));
        assert_eq!(node.killed(), [true, second_goes], "{gained} MiB of {taken}");
    }
}

/// Of pods, by their names: little but logs, little but a writable layer.
fn pods_on_both(node: &mut Node) {
    node.container(0, [200 * MIB, 2 * MIB], None);
    node.container(1, [20 * MIB, 100 * MIB], None);
}

#[test]
fn on_one_disk_a_writable_layer_counts_for_the_pod_and_its_container() {
    for policy in EvictionPolicy::ALL {
        let mut node = Node::new(policy, 500 * MIB);
        node.container(0, [8 * MIB, 9 * MIB], Some(17 * MIB));
        node.container(1, [8 * MIB, 9 * MIB], Some(16 * MIB));
        node.turn(Duration::ZERO);
        let limit = DiskCause::Limit { on: Some(Limited::Container(3)), limit: Amount::whole(16 << 20) };
        assert_eq!((node.killed(), node.causes()), ([false, true], vec![limit]), "{policy}");
        node.ends(1);
        // All of it is held against the limit of the pod.
        let parts = [(StoragePart::Logs(3), Some(8 * MIB)), (StoragePart::Layer(3), Some(9 * MIB))];
        node.takes(0, &parts, &[], Some(Bytes::mib(16)));
        node.turn(Duration::from_secs(10));
        let limit = DiskCause::Limit { on: None, limit: Amount::whole(16 << 20) };
        assert_eq!((node.killed(), node.causes()), ([true, true], vec![limit]), "{policy}");
        let mut node = Node::new(policy, 50 * MIB);
        node.container(0, [90 * MIB, 2 * MIB], None);
        node.container(1, [20 * MIB, 100 * MIB], None);
        node.turn(Duration::ZERO);
        assert_eq!(node.killed(), [false, true], "{policy}: for nodefs");
    }
}

#[test]
fn where_images_have_a_disk_of_their_own_pods_rank_by_what_they_have_on_the_disk_that_is_short() {
    for policy in EvictionPolicy::ALL {
        for roots in [RuntimeRoots::Usual, RuntimeRoots::Named] {
            for (left, left_apart, killed) in
                [(50, 250, [true, false]), (500, 40, [false, true]), (500, 60, [false, false])]
            {
                let mut node = Node::with(policy, left * MIB, roots);
                node.left_apart.store(left_apart * MIB, Ordering::Relaxed);
                node.says(DiskRole::Image, 0, ALL / 2);
                pods_on_both(&mut node);
                node.turn(Duration::ZERO);
                assert_eq!(node.killed(), killed, "{policy} {roots:?} {left} {left_apart}");
            }
        }
    }
}

#[test]
fn with_a_disk_of_its_own_a_writable_layer_is_not_held_against_the_limit_of_its_container() {
    for policy in EvictionPolicy::ALL {
        let mut node = Node::with(policy, 500 * MIB, RuntimeRoots::Named);
        node.says(DiskRole::Image, 0, ALL / 2);
        node.container(0, [8 * MIB, 9 * MIB], Some(16 * MIB));
        node.container(1, [17 * MIB, 0], Some(16 * MIB));
        node.turn(Duration::ZERO);
        assert_eq!(node.killed(), [false, true], "{policy}");
        node.ends(1);
        // Nor is more believed than is in use there.
        let parts = [(StoragePart::Logs(3), Some(MIB)), (StoragePart::Layer(3), Some(ALL))];
        node.takes(0, &parts, &[], Some(Bytes::mib(16)));
        node.turn(Duration::from_secs(10));
        assert_eq!((node.killed(), node.failures().len()), ([false, true], 1), "{policy}");
    }
}

#[test]
fn a_disk_of_the_runtimes_that_is_not_read_is_reported_once_and_no_pod_is_evicted_for_it() {
    let mut node = Node::with(EvictionPolicy::Plimsoll, 500 * MIB, RuntimeRoots::Usual);
    pods_on_both(&mut node);
    let mut failures = Vec::new();
    for left_apart in [40 * MIB, UNREADABLE, UNREADABLE, 250 * MIB, UNREADABLE] {
        node.left_apart.store(left_apart, Ordering::Relaxed);
        // It is said to be as large as another disk.
        node.says(DiskRole::Image, 0, if left_apart == 40 * MIB { 3 * ALL } else { ALL / 2 });
        node.turn(Duration::from_secs(10));
        failures.push(node.failures().len());
    }
    assert_eq!((failures, node.killed()), (vec![1, 0, 0, 0, 1], [false, false]));
}

#[test]
fn disks_that_become_known_later_are_decided_for() {
    for policy in EvictionPolicy::ALL {
        let mut node = Node::new(policy, 500 * MIB);
        node.left_apart.store(40 * MIB, Ordering::Relaxed);
        pods_on_both(&mut node);
        node.turn(Duration::ZERO);
        assert_eq!(node.killed(), [false, false], "{policy}: the runtime has not said where images are");
        node.says(DiskRole::Image, 0, ALL / 2);
        node.turn(Duration::from_secs(10));
        assert_eq!(node.killed(), [false, true], "{policy}");
    }
}

/// A hostile `services` says that every disk is full.
#[test]
fn no_pod_is_evicted_for_a_disk_that_the_core_itself_does_not_find_short() {
    for policy in EvictionPolicy::ALL {
        let mut node = Node::new(policy, 500 * MIB);
        node.pod(0, None, Some(300 * MIB), None);
        for role in DiskRole::ALL {
            node.says(role, 0, ALL);
        }
        node.turn(Duration::ZERO);
        node.says(DiskRole::Image, 0, 2 * ALL);
        node.turn(Duration::from_mins(1));
        node.left.store(UNREADABLE, Ordering::Relaxed);
        node.turn(Duration::from_mins(1));
        assert_eq!(node.killed(), [false], "{policy}");
        // The same pod goes once the disk is short.
        node.left.store(50 * MIB, Ordering::Relaxed);
        node.turn(Duration::from_mins(1));
        assert_eq!(node.killed(), [true], "{policy}");
    }
}

#[test]
fn for_a_disk_pods_wait_for_what_is_removed_and_for_their_own_limits_they_do_not() {
    // The disk is read at a time of the machine's own clock.
    for (seconds, goes) in [(4, false), (6, true)] {
        let mut node = Node::new(EvictionPolicy::Plimsoll, 50 * MIB);
        let ended = MonotonicNs(monotonic().0 - seconds * 1_000_000_000);
        let text = "evictionHard: {nodefs.available: 100Mi}\n";
        node.scene.watch.disks = Disks::new(plimsoll_config::parse(text, "f").expect("in order").disk_policy());
        let (bytes, layout) = (Some(Room { left: 0, all: ALL }), Some(DiskLayout::Single));
        let reading = DiskReading { role: DiskRole::Node, bytes, inodes: None, at: ended, layout };
        node.scene.watch.disks.learn(reading, Duration::ZERO, ended);
        node.scene.watch.judge_disks(ended);
        let order = node.scene.watch.workloads.handle.take_removal().expect("an order");
        node.pod(0, None, Some(300 * MIB), None);
        node.turn(Duration::ZERO);
        assert_eq!(node.killed(), [false], "the order is under way");
        let result = RemovalResult { containers: 1, ..RemovalResult::failed(order.number, RemovalError::Unanswered) };
        let Watch { disks, reporting, .. } = &mut node.scene.watch;
        disks.removed(result, ended, reporting);
        node.turn(Duration::from_secs(10));
        assert_eq!(node.killed(), [goes], "it freed something {seconds} s ago");
        if !goes {
            node.pod(1, None, Some(9 * MIB), Some(8 * MIB));
            node.turn(Duration::from_secs(10));
            assert_eq!(node.killed(), [false, true], "a limit is the pod's own");
        }
    }
}

#[test]
fn a_pod_waits_until_others_had_time_to_see_the_crossing_and_to_order_what_is_removed_first() {
    let mut node = Node::new(EvictionPolicy::Plimsoll, 50 * MIB);
    node.pod(0, None, Some(300 * MIB), None);
    let killed = |node: &mut Node, after| {
        node.now = node.now.after(Duration::from_secs(after));
        let victims = node.scene.watch.disk_victims.as_mut().expect("it is there");
        victims.due = node.now;
        node.scene.watch.evict_for_disks(node.now);
        node.answers();
        node.scene.watch.evict_for_disks(node.now);
        node.scene.settle();
        node.killed() == [true]
    };
    node.now = node.now.after(Duration::from_secs(1));
    assert_eq!([0, 0, 14].map(|after| killed(&mut node, after)), [false; 3], "what is said is older");
    assert!(killed(&mut node, 1), "but not without end");
}

/// A hostile scanner says what cannot be, or nothing.
#[test]
fn what_is_not_known_or_cannot_be_evicts_no_pod() {
    let mut node = Node::new(EvictionPolicy::Plimsoll, 500 * MIB);
    node.pod(0, None, Some(501 * MIB), Some(8 * MIB));
    node.pod(1, None, None, Some(8 * MIB));
    node.turn(Duration::ZERO);
    assert_eq!(node.killed(), [false, false], "no more than 500 MiB are in use");
    node.left.store(499 * MIB, Ordering::Relaxed);
    node.turn(Duration::from_secs(10));
    assert_eq!(node.killed(), [true, false], "now as much is in use");
    let mut node = Node::new(EvictionPolicy::Plimsoll, 500 * MIB);
    node.pod(0, None, Some(9 * MIB), Some(8 * MIB));
    node.turn(Duration::from_mins(31));
    assert_eq!(node.killed(), [false], "the figure is too old");
}

#[test]
fn a_disk_that_is_not_read_is_reported_once_until_it_is() {
    let mut node = Node::new(EvictionPolicy::Plimsoll, 500 * MIB);
    let mut failures = Vec::new();
    for left in [UNREADABLE, UNREADABLE, 500 * MIB, UNREADABLE] {
        node.left.store(left, Ordering::Relaxed);
        node.turn(Duration::from_secs(10));
        failures.push(node.failures().len());
    }
    assert_eq!(failures, [1, 0, 0, 1]);
    // One that hangs has not answered within a minute.
    node.left.store(500 * MIB, Ordering::Relaxed);
    node.turn(Duration::from_secs(10));
    let victims = node.scene.watch.disk_victims.as_mut().expect("it is there");
    victims.readers.hang(node.now);
    for (seconds, failures) in [(59, 0), (1, 1), (600, 0)] {
        node.now = node.now.after(Duration::from_secs(seconds));
        node.scene.watch.evict_for_disks(node.now);
        assert_eq!(node.failures().len(), failures, "after {seconds} more seconds");
    }
}

#[test]
fn that_there_is_no_room_for_a_pod_is_reported_once() {
    let mut node = Node::new(EvictionPolicy::Plimsoll, 500 * MIB);
    node.scene.watch.disk_victims.as_mut().expect("it is there").rows = Vec::with_capacity(1);
    node.pod(0, None, Some(MIB), Some(8 * MIB));
    node.turn(Duration::ZERO);
    assert_eq!(node.failures().len(), 0);
    node.pod(1, None, Some(9 * MIB), Some(8 * MIB));
    let failures = [10, 10].map(|seconds| {
        node.turn(Duration::from_secs(seconds));
        node.failures().len()
    });
    assert_eq!((failures, node.killed()), ([1, 0], [false, false]));
}

#[test]
fn an_agent_that_does_not_act_reports_what_it_would_do() {
    let mut node = Node::new(EvictionPolicy::Plimsoll, 500 * MIB);
    node.scene.watch.enforcement.is_off = true;
    node.pod(0, None, Some(9 * MIB), Some(8 * MIB));
    node.turn(Duration::ZERO);
    assert_eq!(node.killed(), [false]);
    let frames = node.scene.frames();
    let mut records = frames.iter().filter_map(|frame| Record::read(frame));
    assert!(records.any(|it| matches!(it, Record::Disk(DiskRecord::Victim { shadow: true, .. }))));
}

#[test]
fn storage_for_rows_is_used_again() {
    let rows: Vec<Workload<'static>> = Vec::with_capacity(7);
    let (place, capacity) = (rows.as_ptr(), rows.capacity());
    let again = emptied(rows);
    assert_eq!((again.as_ptr(), again.capacity()), (place, capacity));
}
