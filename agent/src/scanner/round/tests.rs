//! Rounds over a tree as the kubelet makes it.

use super::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

/// What was sent, and how often the sink lets a round go on.
struct Sent {
    messages: Vec<StorageMessage>,
    turns: usize,
    complaints: usize,
}

impl Sink for Sent {
    fn complain(&mut self, _: &StorageError) {
        self.complaints += 1;
    }

    fn send(&mut self, message: StorageMessage) {
        self.messages.push(message);
    }

    fn goes_on(&mut self) -> bool {
        self.turns = self.turns.saturating_sub(1);
        self.turns > 0
    }
}

struct Node {
    directory: tempfile::TempDir,
    rounds: Rounds,
    complaints: usize,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let [kubelet, logs] = ["kubelet", "logs"].map(|name| directory.path().join(name));
        let slice = Slice { entries: 4, rest: Duration::ZERO };
        Self { rounds: Rounds { slice, share: 12, least: 8, ..Rounds::new(kubelet, logs) }, directory, complaints: 0 }
    }

    /// With two volumes that are put aside.
    fn with_large_trees() -> Self {
        let node = Self::new();
        for (name, files) in [("a-large", 100), ("b-large", 50)] {
            node.files(&format!("kubelet/pods/{POD}/volumes/kubernetes.io~empty-dir/{name}"), files);
        }
        node
    }

    fn files(&self, path: &str, count: usize) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(&path).expect("a directory");
        for number in 0..count {
            fs::write(path.join(number.to_string()), [1; 5000]).expect("a file");
        }
    }

    /// Inodes by pod and part, absent where they are not known; `None` for a round that was not ended.
    fn round(&mut self, turns: usize) -> Option<BTreeMap<(u128, StoragePart), Option<u64>>> {
        let mut sent = Sent { messages: Vec::new(), turns, complaints: 0 };
        self.rounds.go(&mut sent);
        self.complaints += sent.complaints;
        let is_whole = sent.messages.last() == Some(&StorageMessage::Round);
        let parts = sent.messages.iter().filter_map(|message| match message {
            StorageMessage::Part(usage) => Some(((usage.uid.0, usage.part), usage.used.map(|(_, inodes)| inodes))),
            StorageMessage::Measured(_) | StorageMessage::Round => None,
        });
        let parts = parts.collect();
        is_whole.then_some(parts)
    }

    /// What a round finds of these volumes of the pod.
    fn inodes<const COUNT: usize>(&mut self, volumes: [&str; COUNT]) -> [Option<u64>; COUNT] {
        let round = self.round(1000).expect("it ends");
        volumes.map(|name| round[&(uid(), volume(number(name)))])
    }
}

const fn volume(name: u32) -> StoragePart {
    StoragePart::Volume { name, is_local: true }
}

fn number(name: &str) -> u32 {
    name_number(name.as_bytes())
}

const POD: &str = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

fn uid() -> u128 {
    Uid::of(POD).0
}

#[test]
fn a_round_measures_volumes_and_logs_of_every_pod_and_no_link_leads_elsewhere() {
    let mut node = Node::new();
    assert_eq!(node.round(9), None, "there is no kubelet yet");
    node.files(&format!("kubelet/pods/{POD}/volumes/kubernetes.io~empty-dir/data"), 3);
    node.files(&format!("kubelet/pods/{POD}/volumes/kubernetes.io~secret/key"), 1);
    node.files(&format!("logs/default_web_{POD}/app"), 2);
    node.files("secret", 9);
    let volumes = node.directory.path().join(format!("kubelet/pods/{POD}/volumes/kubernetes.io~configmap"));
    fs::create_dir(&volumes).expect("writable");
    symlink(node.directory.path().join("secret"), volumes.join("link")).expect("writable");
    let expected = BTreeMap::from([
        ((uid(), volume(number("data"))), Some(4)),
        ((uid(), volume(number("link"))), None),
        ((uid(), StoragePart::Logs(number("app"))), Some(2)),
        ((uid(), StoragePart::Rest), Some(0)),
    ]);
    for _ in 0..2 {
        assert_eq!(node.round(99), Some(expected.clone()));
        assert_eq!(node.complaints, 1, "that the link cannot be measured is said once");
    }
    fs::remove_dir_all(node.directory.path().join(format!("kubelet/pods/{POD}"))).expect("writable");
    let logs =
        BTreeMap::from([((uid(), StoragePart::Logs(number("app"))), Some(2)), ((uid(), StoragePart::Rest), Some(0))]);
    assert_eq!(node.round(99), Some(logs), "logs are left of the pod");
    fs::remove_dir_all(node.directory.path().join("logs")).expect("writable");
    assert_eq!(node.round(99), Some(BTreeMap::new()), "the pod is gone");
    fs::create_dir_all(&volumes).expect("writable");
    symlink(node.directory.path().join("secret"), volumes.join("link")).expect("writable");
    node.round(99);
    assert_eq!(node.complaints, 2, "it worked in between");
}

#[test]
fn where_pods_cannot_be_listed_that_is_said_once() {
    let mut node = Node::new();
    fs::create_dir(node.directory.path().join("kubelet")).expect("a directory");
    assert_eq!((node.round(9), node.complaints), (None, 0), "it is not there yet");
    let pods = node.directory.path().join("kubelet/pods");
    fs::write(&pods, "").expect("a file");
    for _ in 0..2 {
        assert_eq!((node.round(9), node.complaints), (None, 1));
    }
    fs::remove_file(&pods).expect("writable");
    fs::create_dir(&pods).expect("a directory");
    assert_eq!((node.round(9), node.complaints), (Some(BTreeMap::new()), 1));
}

#[test]
fn a_large_tree_is_put_aside_and_keeps_no_other_from_being_measured() {
    let mut node = Node::with_large_trees();
    node.files(&format!("kubelet/pods/{POD}/volumes/kubernetes.io~empty-dir/small"), 3);
    let inodes = |node: &mut Node| node.inodes(["a-large", "b-large", "small"]);
    assert_eq!(inodes(&mut node), [None, None, Some(4)], "they are known to be there");
    while node.rounds.rest() {}
    assert_eq!(inodes(&mut node), [Some(101), None, Some(4)], "the other one has its turn");
    while node.rounds.rest() {}
    assert_eq!(inodes(&mut node), [Some(101), Some(51), Some(4)]);
    fs::remove_dir_all(node.directory.path().join(format!("kubelet/pods/{POD}"))).expect("writable");
    for _ in 0..2 {
        assert_eq!(node.round(1000), Some(BTreeMap::new()));
    }
    assert!(!node.rounds.rest(), "what is gone is not gone on with");
}

#[test]
fn many_trees_of_one_pod_take_no_more_of_a_round_than_one() {
    let mut node = Node::new();
    node.rounds.share = 100;
    for name in 0..20 {
        node.files(&format!("kubelet/pods/{POD}/volumes/kubernetes.io~empty-dir/{name:02}"), 90);
    }
    node.files("kubelet/pods/other/volumes/kubernetes.io~empty-dir/data", 3);
    let round = node.round(90).expect("it ends");
    assert_eq!(round[&(Uid::of("other").0, volume(number("data")))], Some(4));
    let known = |round: &BTreeMap<_, Option<u64>>| {
        (0..20).filter(|name| round[&(uid(), volume(number(&format!("{name:02}"))))].is_some()).count()
    };
    assert!(known(&round) < 5, "{round:?}");
    for _ in 0..40 {
        while node.rounds.rest() {}
        node.round(90).expect("it ends");
    }
    let round = node.round(90).expect("it ends");
    assert!(known(&round) > 15, "each has its turn: {round:?}");
}

#[test]
fn what_was_put_aside_gives_way_after_its_turn() {
    let mut node = Node::with_large_trees();
    node.rounds.turn = Duration::ZERO;
    for expected in [[None, None], [None, None], [None, Some(51)]] {
        assert_eq!(node.inodes(["a-large", "b-large"]), expected);
        while node.rounds.rest() {}
    }
}

#[test]
fn a_pod_with_more_volumes_than_are_measured_is_not_known_as_a_whole() {
    let mut node = Node::new();
    for (count, rest) in [(MOST_OF_A_POD, Some(0)), (MOST_OF_A_POD + 1, None)] {
        for name in 0..count {
            node.files(&format!("kubelet/pods/{POD}/volumes/kubernetes.io~configmap/{name}"), 0);
        }
        let round = node.round(9999).expect("it ends");
        assert_eq!((round.len(), round[&(uid(), StoragePart::Rest)]), (MOST_OF_A_POD + 1, rest));
    }
}

fn counted(volume: &str, inodes: u64) -> Figure {
    Figure { pod: POD.to_owned(), volume: volume.to_owned(), bytes: 4096, inodes }
}

#[test]
fn a_volume_takes_what_its_project_does_and_others_what_a_walk_finds() {
    let mut node = Node::new();
    let volumes = format!("kubelet/pods/{POD}/volumes");
    for volume in ["kubernetes.io~empty-dir/quota", "kubernetes.io~empty-dir/data", "kubernetes.io~configmap/quota"] {
        node.files(&format!("{volumes}/{volume}"), 3);
    }
    node.files("kubelet/pods/other/volumes/kubernetes.io~empty-dir/quota", 3);
    node.files(&format!("logs/default_web_{POD}/quota"), 2);
    let mut round = |figures: Vec<Figure>| {
        node.rounds.set_counted(monotonic(), figures);
        let round = node.round(99).expect("it ends");
        let part = |pod: &str, part| round[&(Uid::of(pod).0, part)];
        // Both volumes of one name are one part.
        [
            part(POD, volume(number("quota"))),
            part(POD, volume(number("data"))),
            part("other", volume(number("quota"))),
            part(POD, StoragePart::Logs(number("quota"))),
        ]
    };
    let gone = Figure { pod: POD.to_owned(), volume: "gone".to_owned(), bytes: 4096, inodes: 9 };
    assert_eq!(round(vec![counted("quota", 100), gone]), [Some(100 + 4), Some(4), Some(4), Some(2)]);
    assert_eq!(round(Vec::new()), [Some(4 + 4), Some(4), Some(4), Some(2)], "it is asked for in each round");
}

#[test]
fn what_the_kernel_counts_is_scanned_no_more_and_a_scan_of_before_is_not_gone_on_with() {
    let mut node = Node::with_large_trees();
    let inodes = |node: &mut Node, figures| {
        node.rounds.set_counted(monotonic(), figures);
        node.inodes(["a-large", "b-large"])
    };
    assert_eq!(inodes(&mut node, Vec::new()), [None, None]);
    let both = || vec![counted("a-large", 7), counted("b-large", 8)];
    assert_eq!(inodes(&mut node, both()), [Some(7), Some(8)]);
    assert!(!node.rounds.rest(), "a scan is gone on with");
    assert_eq!(inodes(&mut node, vec![counted("b-large", 8)]), [None, Some(8)], "the other one is scanned anew");
    while node.rounds.rest() {}
    assert_eq!(inodes(&mut node, vec![counted("b-large", 8)]), [Some(101), Some(8)]);
}

#[test]
fn a_round_ends_where_there_is_a_new_core() {
    let mut node = Node::new();
    node.files(&format!("kubelet/pods/{POD}/volumes/kubernetes.io~empty-dir/data"), 11);
    assert_eq!(node.round(2), None);
    assert!(node.round(1000).is_some());
}

/// A sink that has another receiver once, as when a core is started again.
struct Renewed {
    messages: Vec<StorageMessage>,
    asked: usize,
    at: usize,
}

impl Sink for Renewed {
    fn complain(&mut self, _: &StorageError) {}

    fn send(&mut self, message: StorageMessage) {
        self.messages.push(message);
    }

    fn goes_on(&mut self) -> bool {
        self.asked += 1;
        self.asked != self.at
    }
}

#[test]
fn of_a_pod_in_whose_middle_a_round_ends_nothing_is_sent() {
    let mut node = Node::new();
    node.files(&format!("kubelet/pods/{POD}/volumes/kubernetes.io~empty-dir/data"), 9);
    node.files(&format!("logs/default_web-0_{POD}/app"), 1);
    let mut sent = |at: usize| {
        let mut sink = Renewed { messages: Vec::new(), asked: 0, at };
        node.rounds.go(&mut sink);
        (sink.messages.len(), sink.asked)
    };
    let (whole, asked) = sent(usize::MAX);
    assert!(whole > 3 && asked > 2, "{whole} messages, asked {asked} times");
    assert_eq!((1..=asked).map(|at| sent(at).0).collect::<Vec<_>>(), vec![0; asked]);
}

#[test]
fn where_volumes_cannot_be_listed_the_pod_is_not_known() {
    let mut node = Node::new();
    node.files("elsewhere/data", 3);
    node.files(&format!("kubelet/pods/{POD}/volumes"), 0);
    node.files(&format!("logs/default_web-0_{POD}/app"), 1);
    // Another name for the same pod, which is none.
    node.files(&format!("logs/_web-0_{POD}"), 0);
    let [to, link] = ["elsewhere", &format!("kubelet/pods/{POD}/volumes/kubernetes.io~empty-dir")]
        .map(|path| node.directory.path().join(path));
    symlink(to, &link).expect("a link");
    let round = node.round(usize::MAX).expect("it ends");
    assert_eq!(round[&(uid(), StoragePart::Rest)], None, "{round:?}");
    assert_eq!(node.complaints, 1);
    fs::remove_file(link).expect("it is there");
    assert!(node.round(usize::MAX).expect("it ends")[&(uid(), StoragePart::Rest)].is_some());
}
