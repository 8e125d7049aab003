use super::super::super::Watch;
use super::super::super::testing::Scene;
use super::super::Disks;
use super::*;
use crate::core::inventory::News;
use crate::record::Record;
use plimsoll_config::Configuration;
use plimsoll_inventory::{DiskReading, DiskRole, Room};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::EvictionPolicy;
use plimsoll_policy::kubelet::DiskLayout::{self, DedicatedImageFs, Single, SplitImageFs};
use plimsoll_policy::kubelet::{Condition, Signal};
use plimsoll_replay::trace::Entry;
use plimsoll_report::{Metrics, Reporter};
use std::collections::BTreeSet;

const SECOND: Duration = Duration::from_secs(1);
const CONTAINERS: Reclaim = Reclaim { containers: true, images: false };
const IMAGES: Reclaim = Reclaim { containers: false, images: true };
const ALL: Reclaim = Reclaim { containers: true, images: true };

/// Imagefs is short of 100 bytes, by a clock of the test's own.
struct Node {
    disks: Disks,
    scene: Scene,
    now: MonotonicNs,
    layout: Option<DiskLayout>,
    acts: bool,
    left: u64,
    configuration: Configuration,
    /// All that was reported.
    frames: Vec<Vec<u8>>,
}

impl Node {
    fn new(policy: EvictionPolicy) -> Self {
        Self::with(&format!("evictionPolicy: {policy}\nevictionHard: {{imagefs.available: \"150\"}}\n"))
    }

    fn with(text: &str) -> Self {
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        let disks = Disks::new(configuration.disk_policy());
        let (scene, now, layout) = (Scene::new(1), monotonic(), Some(DiskLayout::Single));
        Self { disks, scene, now, layout, acts: true, left: 50, configuration, frames: Vec::new() }
    }

    /// Another second, with or without a new figure. Gives the order that was sent, and what was recorded.
    fn turn(&mut self, is_read: bool) -> (Option<RemovalOrder>, Vec<DiskRecord<'static>>) {
        self.now = self.now.after(SECOND);
        if is_read {
            let room = Some(Room { left: self.left, all: 1000 });
            // Containerfs is not read where it is imagefs.
            let is_alone =
                |role: &DiskRole| *role != DiskRole::Container || self.layout != Some(DiskLayout::DedicatedImageFs);
            for role in DiskRole::ALL.into_iter().filter(is_alone) {
                let reading = DiskReading { role, bytes: room, inodes: None, at: self.now, layout: self.layout };
                self.disks.learn(reading, Duration::ZERO, self.now);
            }
        }
        self.disks.due = Some(self.now);
        let Watch { workloads, reporting, .. } = &mut self.scene.watch;
        self.disks.judge(self.now, self.acts, &workloads.handle, reporting);
        let sent = workloads.handle.take_removal();
        let records = self.records();
        assert!(self.disks.plan.victims().next().is_none());
        (sent, records)
    }

    /// What is recorded of removals.
    fn records(&mut self) -> Vec<DiskRecord<'static>> {
        let begun = self.frames.len();
        self.frames.extend(self.scene.frames());
        let records = self.frames[begun..].iter().filter_map(|frame| match Record::read(frame) {
            // Anew, because the record borrows from its frame.
            Some(Record::Disk(DiskRecord::Order { number, signal, what, bytes, is_repeated, at })) => {
                Some(DiskRecord::Order { number, signal, what, bytes, is_repeated, at })
            }
            Some(Record::Disk(DiskRecord::Removed { result, took, is_repeated })) => {
                Some(DiskRecord::Removed { result, took, is_repeated })
            }
            _ => None,
        });
        records.collect()
    }

    /// The next order that is sent within so many seconds, each with a new figure, and how many it took.
    fn order_within(&mut self, seconds: u32) -> Option<(RemovalOrder, u32)> {
        (1..=seconds).find_map(|second| self.turn(true).0.map(|order| (order, second)))
    }

    fn order(&mut self) -> RemovalOrder {
        self.order_within(3).expect("something is removed").0
    }

    fn result(&mut self, result: RemovalResult) -> Vec<DiskRecord<'static>> {
        self.disks.removed(result, self.now, &mut self.scene.watch.reporting);
        self.records()
    }

    /// The order removed some images or none, and so many are left.
    fn images(&mut self, order: RemovalOrder, images: u32, unused: u32) -> Vec<DiskRecord<'static>> {
        self.result(RemovalResult { number: order.number, images, unused: Some(unused), ..RemovalResult::default() })
    }

    fn nothing(&mut self, order: RemovalOrder) -> Vec<DiskRecord<'static>> {
        self.images(order, 0, 0)
    }
}

#[test]
fn containers_go_first_and_then_images_until_as_much_is_free_each_after_a_newer_figure() {
    let mut node = Node::new(EvictionPolicy::Plimsoll);
    let (first, records) = node.turn(true);
    let first = first.expect("it is sent");
    assert_eq!((first.number, first.what, first.until), (1, CONTAINERS, node.now.after(LASTS)));
    let [
        DiskRecord::Order {
            number: Some(1), signal: Signal::ImageFsAvailable, bytes: None, is_repeated: false, ..
        },
    ] = records[..]
    else {
        panic!("{records:?}")
    };
    assert_eq!((node.turn(true).0, node.turn(true).0), (None, None), "one is under way");
    let removed = RemovalResult { number: 1, containers: 1, ..RemovalResult::default() };
    let records = node.result(removed);
    assert!(
        matches!(records[..], [DiskRecord::Removed { result, took, .. }] if result == removed && took == 2 * SECOND)
    );
    assert_eq!(node.turn(false).0, None, "the disk was not read since");
    let second = node.order();
    assert_eq!((second.number, second.what, second.bytes), (2, IMAGES, Bytes(100)));
    node.left = 120;
    node.images(second, 2, 5);
    let third = node.order();
    assert_eq!((third.what, third.bytes), (IMAGES, Bytes(30)), "fewer are left, and it is still short");
    node.left = 150;
    node.images(third, 1, 4);
    assert_eq!(node.order_within(60), None, "there is room");
}

#[test]
fn more_images_than_the_policy_can_see_are_removed_without_a_pause() {
    let mut node = Node::new(EvictionPolicy::Plimsoll);
    let containers = node.order();
    node.nothing(containers);
    for left in (300..310).rev() {
        let (order, seconds) = node.order_within(3).expect("it is still short");
        assert_eq!((order.what, seconds), (IMAGES, 1), "{left} are left");
        node.images(order, 1, left);
    }
}

#[test]
fn another_threshold_is_served_by_the_order_that_is_under_way() {
    let mut node = Node::with("evictionHard: {imagefs.available: \"150\", nodefs.available: \"150\"}\n");
    let order = node.order();
    assert_eq!((order.what, node.order_within(5)), (CONTAINERS, None), "one is under way");
    node.nothing(order);
    let next = node.order();
    assert_eq!((next.number, next.what), (2, IMAGES));
    assert_eq!(node.order_within(5), None);
}

#[test]
fn by_the_kubelet_s_policy_all_goes_at_once() {
    let mut node = Node::new(EvictionPolicy::Kubelet);
    let order = node.order();
    assert_eq!((order.what, order.bytes), (ALL, Bytes(u64::MAX)));
    assert_eq!(node.order_within(5), None, "one is under way");
    assert!(node.disks.plan.conditions.has(Condition::DiskPressure), "it holds meanwhile");
    node.images(order, 3, 0);
    assert_eq!(node.order_within(9), None, "none is left, and no container was dead");
    let (order, _) = node.order_within(5).expect("the pause is over");
    assert_eq!(order.what, ALL);
}

#[test]
fn without_anything_to_remove_orders_are_ever_farther_apart_and_that_is_said_once() {
    for policy in [EvictionPolicy::Plimsoll, EvictionPolicy::Kubelet] {
        let mut node = Node::new(policy);
        let (mut sent, mut loud, mut last) = (Vec::new(), 0, 0);
        for second in 1_u32..=1800 {
            let (order, records) = node.turn(true);
            let mut records = records;
            if let Some(order) = order {
                if order.what.images {
                    sent.push(second - last);
                    last = second;
                }
                records.extend(node.nothing(order));
            }
            loud += records
                .iter()
                .filter(|record| {
                    matches!(
                        record,
                        DiskRecord::Order { is_repeated: false, .. } | DiskRecord::Removed { is_repeated: false, .. }
                    )
                })
                .count();
        }
        assert!(sent.len() > 4 && sent.len() < 14, "{policy}: {sent:?}");
        assert!(sent[1..].is_sorted_by(|a, b| *a <= b + 12) && sent[1] >= 10, "{policy}: {sent:?}");
        assert!(sent.last().is_some_and(|last| (290..330).contains(last)), "{policy}: {sent:?}");
        // An order and its result, of containers and of images.
        assert_eq!(loud, if policy == EvictionPolicy::Kubelet { 2 } else { 4 }, "{policy}");
        // Once there is something, the next one is not far.
        let order = node.order_within(700).expect("it is tried again").0;
        let order =
            if order.what.images { order } else { (node.nothing(order), node.order_within(700).expect("images").0).1 };
        node.images(order, 1, 7);
        assert!(node.order_within(15).is_some(), "{policy}: more are left");
    }
}

#[test]
fn without_a_result_it_goes_on_after_a_while_and_a_late_one_counts_for_nothing() {
    let mut node = Node::new(EvictionPolicy::Plimsoll);
    let order = node.order();
    let waited = (1..=300).find_map(|second| {
        let (sent, records) = node.turn(true);
        assert_eq!(sent, None);
        records.first().copied().map(|record| (second, record))
    });
    let Some((190, DiskRecord::Removed { result, .. })) = waited else { panic!("{waited:?}") };
    assert_eq!(result, RemovalResult::failed(order.number, RemovalError::Unanswered));
    assert_eq!(node.nothing(order), [], "it is too late");
    let next = node.order();
    assert_eq!((next.number, next.what), (order.number + 1, IMAGES), "containers have their pause");
    for other in [0, order.number, next.number + 1, u64::MAX] {
        assert_eq!(node.images(RemovalOrder { number: other, ..next }, 9, 9), [], "{other}");
    }
    assert_eq!(node.order_within(5), None, "it is still under way");
    node.result(RemovalResult::failed(next.number, RemovalError::NotSent));
    assert_eq!(node.order_within(5), None, "services is gone");
}

#[test]
fn an_agent_that_does_not_act_orders_nothing_and_reports_once_what_it_would() {
    for policy in [EvictionPolicy::Plimsoll, EvictionPolicy::Kubelet] {
        let mut node = Node::new(policy);
        node.acts = false;
        let mut loud = 0;
        for _ in 0..300 {
            let (order, records) = node.turn(true);
            assert_eq!(order, None, "{policy}");
            for record in records {
                let DiskRecord::Order { number: None, is_repeated, .. } = record else { panic!("{record:?}") };
                loud += u32::from(!is_repeated);
            }
        }
        assert_eq!(loud, if policy == EvictionPolicy::Kubelet { 1 } else { 2 }, "{policy}");
        node.acts = true;
        assert!(node.order_within(12).is_some(), "{policy}: what was reported is done");
    }
}

#[test]
fn the_kill_switch_stops_what_is_under_way() {
    let mut node = Node::new(EvictionPolicy::Plimsoll);
    let order = node.order();
    node.acts = false;
    assert_eq!(node.turn(false).0, Some(order.stopping()), "before another figure");
    assert_eq!(node.turn(true).0, None, "once");
    let records = node.result(RemovalResult::failed(order.number, RemovalError::Stopped));
    assert!(matches!(records[..], [DiskRecord::Removed { .. }]), "{records:?}");
    assert_eq!(node.order_within(60), None);
}

#[test]
fn what_the_layout_does_not_allow_is_not_ordered_and_without_one_nothing_is() {
    let both = "evictionHard: {nodefs.available: \"150\"}\n";
    for (policy, layout, expected) in [
        ("plimsoll", Some(Single), &[CONTAINERS, IMAGES][..]),
        ("plimsoll", Some(DedicatedImageFs), &[CONTAINERS]),
        ("plimsoll", Some(SplitImageFs), &[CONTAINERS]),
        ("plimsoll", None, &[]),
        ("kubelet", Some(Single), &[ALL]),
        ("kubelet", Some(DedicatedImageFs), &[]),
        ("kubelet", Some(SplitImageFs), &[CONTAINERS]),
        ("kubelet", None, &[]),
    ] {
        let mut node = Node::with(&format!("evictionPolicy: {policy}\n{both}"));
        // Also where it was another one before.
        node.left = 200;
        node.turn(true);
        (node.left, node.layout) = (50, layout);
        let mut sent = Vec::new();
        for _ in 0..9 {
            if let Some(order) = node.turn(true).0 {
                sent.push(order.what);
                node.nothing(order);
            }
        }
        assert_eq!(sent, expected, "{policy} {layout:?}");
    }
}

#[test]
fn for_inodes_the_disk_is_read_after_each_image() {
    let mut node = Node::with("evictionHard: {imagefs.inodesFree: \"150\"}\n");
    let layout = node.layout;
    let turn = |node: &mut Node| {
        let at = node.now.after(SECOND);
        let inodes = Some(Room { left: 1, all: 1000 });
        let reading = DiskReading { role: DiskRole::Image, bytes: None, inodes, at, layout };
        node.disks.learn(reading, Duration::ZERO, at);
        node.turn(false).0
    };
    let containers = turn(&mut node).expect("it is sent");
    node.nothing(containers);
    let first = turn(&mut node).expect("it is sent");
    assert_eq!((first.what, first.bytes), (IMAGES, Bytes(1)));
    node.images(first, 1, 9);
    assert_eq!(turn(&mut node).map(|next| next.bytes), Some(Bytes(1)));
}

/// By what the inventory thread sends.
#[test]
fn a_result_is_taken_in_and_wakes_no_decision_on_memory() {
    let mut node = Node::new(EvictionPolicy::Plimsoll);
    let order = node.order();
    let number = node.scene.watch.engine.number;
    core::mem::swap(&mut node.disks, &mut node.scene.watch.disks);
    node.scene.receive(News::Removed(RemovalResult { number: order.number, ..RemovalResult::default() }));
    assert_eq!((node.records().len(), node.scene.watch.engine.number), (1, number));
}

/// A node that becomes short of disk, has things removed, recovers, and is short again without newer figures.
fn traced(policy: EvictionPolicy) -> Node {
    let mut node = Node::with(&format!(
        "evictionPolicy: {policy}\nevictionHard: {{imagefs.available: \"150\", nodefs.available: \"100\"}}\n\
         evictionSoft: {{imagefs.available: \"300\"}}\nevictionSoftGracePeriod: {{imagefs.available: 3s}}\n\
         evictionPressureTransitionPeriod: 5s\n"
    ));
    node.scene.watch.reporting.set_traced(true);
    for (left, layout, seconds) in [
        (900, Single, 2),
        (250, Single, 6),
        (120, Single, 9),
        (500, Single, 9),
        (90, SplitImageFs, 6),
        (90, DedicatedImageFs, 6),
    ] {
        (node.left, node.layout) = (left, Some(layout));
        for _ in 0..seconds {
            if let Some(order) = node.turn(true).0 {
                node.images(order, 1, 3);
            }
        }
    }
    for _ in 0..40 {
        node.turn(false);
    }
    node
}

#[test]
fn what_is_traced_of_disks_gives_the_same_orders_and_conditions_when_it_is_replayed() {
    for policy in EvictionPolicy::ALL {
        let node = traced(policy);
        let (entries, traced) = std::sync::mpsc::channel();
        let mut sinks = Reporter::new(node.configuration.clone(), Metrics::new(true), None, None);
        sinks.trace(move |entry| entries.send(entry).is_ok());
        let mut orders = Vec::new();
        for frame in &node.frames {
            let record = Record::read(frame).expect("a record");
            if let Record::Disk(DiskRecord::Order { signal, what, bytes, at, .. }) = record {
                orders.push((at, signal, what, bytes));
            }
            sinks.report(&record);
        }
        drop(sinks);
        let (version, agent) = (plimsoll_replay::trace::VERSION, "x".to_owned());
        let header = plimsoll_replay::trace::Header { version, agent, epoch_ns: None };
        let entries: Vec<_> = traced.iter().collect();
        let lines = [serde_json::to_string(&header)].into_iter().chain(entries.iter().map(serde_json::to_string));
        let text: String = lines.map(|line| line.expect("JSON") + "\n").collect();
        let recording = plimsoll_replay::read(text.as_bytes()).expect("a trace");
        let settings =
            plimsoll_replay::Settings { configuration: &node.configuration, eviction_policy: None, layout: None };
        let mut turns = Vec::new();
        plimsoll_replay::run(&recording, None, &settings, &mut |turn| {
            let has_pressure = turn.plan.conditions.has(Condition::DiskPressure);
            let reclaim = turn.plan.reclaim().map(|reclaim| reclaim.order);
            turns.push((turn.at, turn.plan.outcome, has_pressure, reclaim, turn.removal()));
        });
        let recorded = entries.iter().filter_map(|entry| match entry {
            Entry::Disks(sample) => Some((sample.at_ns, sample.outcome, sample.disk_pressure, sample.reclaim)),
            Entry::Sample(_) | Entry::Reported(_) => None,
        });
        let replayed =
            turns.iter().map(|(at, outcome, has_pressure, reclaim, _)| (*at, *outcome, *has_pressure, *reclaim));
        let recorded: Vec<_> = recorded.collect();
        assert_eq!(replayed.collect::<Vec<_>>(), recorded, "{policy}");
        let changes = recorded.windows(2).filter(|pair| pair[0].2 != pair[1].2).count();
        assert!(changes >= 3, "{policy}: the condition came, went and came again: {recorded:?}");
        let kinds: BTreeSet<_> = orders.iter().map(|(_, signal, ..)| signal.name()).collect();
        assert!(kinds.len() > 1 || policy == EvictionPolicy::Kubelet, "{policy}: {orders:?}");
        for (at, signal, what, bytes) in orders {
            let removal = turns.iter().find(|turn| turn.0 == at).and_then(|turn| turn.4).expect("one of that turn");
            // What of it was due then is not in a trace.
            let is_part = (removal.what.containers || !what.containers) && (removal.what.images || !what.images);
            let much = bytes.filter(|_| what.images);
            assert!(
                removal.signal == signal && is_part && (much.is_none() || removal.bytes == much),
                "{policy}: {removal:?}"
            );
        }
    }
}
