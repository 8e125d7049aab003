//! An inventory of a tree of plain files.

use super::*;
use crate::{PodRoot, Table};
use plimsoll_policy::kubelet::DiskLayout;
use std::fs;
use std::path::Path;

#[derive(Default)]
struct Sent {
    updates: Vec<Update>,
    troubles: HashMap<&'static str, String>,
    /// What was written of protections, with how many updates had been sent before, and which pods were gone.
    written: Vec<(Vec<Uid>, usize, Vec<Uid>)>,
    /// Nothing can be written.
    is_full: bool,
}

impl Sink for Sent {
    fn update(&mut self, update: Update) {
        self.updates.push(update);
    }

    fn protect(&mut self, protected: &HashMap<Uid, Critical>, gone: &[Uid]) -> bool {
        let mut uids: Vec<_> = protected.keys().copied().collect();
        uids.sort_unstable();
        self.written.push((uids, self.updates.len(), gone.to_vec()));
        !self.is_full
    }

    fn trouble(&mut self, tried: &'static str, text: Option<String>) {
        match text {
            Some(text) => self.troubles.insert(tried, text),
            None => self.troubles.remove(tried),
        };
    }
}

impl Sent {
    /// The names of workloads that were sent, in order, and how many were said to be gone.
    fn take(&mut self) -> (Vec<String>, usize) {
        let mut gone = 0;
        let mut names = Vec::new();
        for update in self.updates.drain(..) {
            match update {
                Update::Workload(_, facts) => names.push(String::from_utf8_lossy(facts.handle.path()).into_owned()),
                Update::Gone(_) => gone += 1,
                Update::Mark(..) | Update::Slice(..) | Update::Storage(..) => {}
            }
        }
        names.sort_unstable();
        (names, gone)
    }
}

fn cgroup(tree: &Path, name: &str, usage: u64) {
    let folder = tree.join(name);
    fs::create_dir_all(&folder).expect("writable");
    for (file, text) in
        [("cgroup.events", "populated 1\n"), ("memory.current", &usage.to_string()), ("memory.low", "0\n")]
    {
        fs::write(folder.join(file), text).expect("writable");
    }
}

fn inventory(tree: &Path, max_workloads: usize) -> Inventory {
    Inventory::new(Config {
        root: Root::open(tree).expect("it is there"),
        patterns: Patterns::of(&["work.slice/*"], &[]),
        priorities: vec![3],
        protected: Protected::default(),
        slices: Vec::new(),
        brakes: None,
        max_brakes: 16,
        max_workloads,
        counts_tasks: false,
    })
}

#[test]
fn what_a_walk_finds_is_sent_once_and_again_when_it_changed() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    cgroup(tree.path(), "work.slice", 0);
    cgroup(tree.path(), "work.slice/a", 5);
    cgroup(tree.path(), "work.slice/b", 5);
    let (mut inventory, mut sent) = (inventory(tree.path(), 9), Sent::default());
    inventory.discover(&mut sent);
    assert_eq!(sent.take(), (vec!["work.slice/a".into(), "work.slice/b".into()], 0));
    inventory.discover(&mut sent);
    assert_eq!(sent.take(), (vec![], 0));
    fs::write(tree.path().join("work.slice/b/memory.stat"), "inactive_file 4096\n").expect("writable");
    inventory.refresh(Refresh::Moved, &mut sent);
    assert_eq!(sent.take(), (vec!["work.slice/b".into()], 0));
    // A reservation that changes is read at the next walk.
    for name in ["work.slice", "work.slice/a"] {
        fs::write(tree.path().join(name).join("memory.low"), "4096\n").expect("writable");
    }
    inventory.discover(&mut sent);
    assert!(matches!(&sent.updates[..], [Update::Workload(_, facts)] if facts.reservation == Bytes(4096)));
    sent.take();
    fs::remove_dir_all(tree.path().join("work.slice/b")).expect("writable");
    inventory.discover(&mut sent);
    assert_eq!((sent.take(), inventory.workloads()), ((vec![], 1), 1));
}

#[test]
fn the_kubelet_and_the_runtime_are_no_workloads_once_they_are_found_and_what_is_in_a_pod_is_neither() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    for name in ["work.slice", "work.slice/a", "work.slice/kubelet"] {
        cgroup(tree.path(), name, 0);
    }
    let (mut inventory, mut sent) = (inventory(tree.path(), 9), Sent::default());
    inventory.discover(&mut sent);
    assert_eq!(sent.take(), (vec!["work.slice/a".into(), "work.slice/kubelet".into()], 0));
    let pod = "kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-containerd-0.scope";
    // A process in the root cgroup holds all others, and is in none that could be killed.
    let found = || ["work.slice/kubelet", "", pod, "work.slice/kubelet"].map(|path| path.as_bytes().to_vec());
    assert!(inventory.protect_node(found()) && !inventory.protect_node(found()));
    assert_eq!(inventory.config.protected.node, [b"work.slice/kubelet"]);
    inventory.discover(&mut sent);
    assert_eq!((sent.take(), inventory.workloads()), ((vec![], 1), 1));
    // It was started again elsewhere.
    assert!(inventory.protect_node([b"work.slice/b".to_vec()]));
    inventory.discover(&mut sent);
    assert_eq!(sent.take(), (vec!["work.slice/kubelet".into()], 0));
}

#[test]
fn figures_that_another_thread_read_are_replaced_although_they_are_as_they_were_before_that() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    for name in ["work.slice", "work.slice/a"] {
        cgroup(tree.path(), name, 1000);
    }
    for (file, text) in [("memory.max", "4000\n"), ("memory.stat", "inactive_file 0\n")] {
        fs::write(tree.path().join("work.slice").join(file), text).expect("writable");
    }
    let (mut inventory, mut sent, mut table) = (inventory(tree.path(), 9), Sent::default(), Table::with_slots(9));
    inventory.config.slices = vec![SlicePlace::Path("work.slice".parse().expect("a pattern"))];
    inventory.slices = vec![None];
    inventory.discover(&mut sent);
    sent.updates.drain(..).for_each(|update| drop(table.take(update)));
    let figures = |table: &mut Table| {
        let slice = table.slice_reading(0).map(|reading| reading.kubelet_available);
        (table.observe(0, false, MonotonicNs(1))[0].working_set(), slice)
    };
    assert_eq!(figures(&mut table), (Some(Bytes(1000)), Some(Bytes(3000))));
    // A large file, which is gone again.
    let cache = PageCache { charged: Bytes(1000), inactive_file: Bytes(900), reclaimable: None };
    let ids: Vec<_> = inventory.known.keys().copied().chain([table.slices()[0].1.handle.id()]).collect();
    for id in ids {
        table.set_cache(id, cache);
    }
    assert_eq!(figures(&mut table), (Some(Bytes(100)), Some(Bytes(3900))));
    inventory.find_slices(true, &mut sent);
    inventory.refresh(Refresh::Replace, &mut sent);
    sent.updates.drain(..).for_each(|update| drop(table.take(update)));
    assert_eq!(figures(&mut table), (Some(Bytes(1000)), Some(Bytes(3000))));
}

#[test]
fn page_cache_that_was_read_meanwhile_stays_where_something_else_is_sent() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    cgroup(tree.path(), POD, 1000);
    let (mut inventory, mut sent, mut table) = (inventory_of_pods(tree.path()), Sent::default(), Table::with_slots(9));
    inventory.discover(&mut sent);
    sent.updates.drain(..).for_each(|update| drop(table.take(update)));
    let id = *inventory.known.keys().next().expect("it is known");
    table.set_cache(id, PageCache { charged: Bytes(1000), inactive_file: Bytes(900), reclaimable: None });
    fs::write(tree.path().join(POD).join("memory.current"), "1200").expect("writable");
    table.observe(0, false, MonotonicNs(1));
    inventory.learn([PodMessage::Pod(facts_of_pod()), PodMessage::Complete].into_iter(), &mut sent);
    assert_eq!(sent.updates.len(), 1);
    sent.updates.drain(..).for_each(|update| drop(table.take(update)));
    let workload = table.iter().next().expect("it is there").1;
    assert_eq!((workload.facts.cache.inactive_file, workload.moved), (Bytes(900), Bytes(200)));
    // What was read since then replaces it.
    fs::write(tree.path().join(POD).join("memory.stat"), "inactive_file 300\n").expect("writable");
    inventory.refresh(Refresh::Moved, &mut sent);
    sent.updates.drain(..).for_each(|update| drop(table.take(update)));
    let workload = table.iter().next().expect("it is there").1;
    assert_eq!((workload.facts.cache.inactive_file, workload.moved), (Bytes(300), Bytes(0)));
}

#[test]
fn page_cache_is_read_where_usage_has_moved_or_all_of_it_is_asked_for() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    for name in ["work.slice", "work.slice/a"] {
        cgroup(tree.path(), name, 1 << 20);
    }
    let write = |file: &str, text: &str| fs::write(tree.path().join("work.slice/a").join(file), text).expect("ours");
    write("memory.stat", "inactive_file 4096\n");
    let (mut inventory, mut sent) = (inventory(tree.path(), 9), Sent::default());
    inventory.discover(&mut sent);
    sent.take();
    let handle = Arc::clone(&inventory.known.values().next().expect("it is known").handle);
    let mut is_read = |how, inactive: u64| {
        write("memory.stat", &format!("inactive_file {inactive}\n"));
        inventory.refresh(how, &mut sent);
        !sent.take().0.is_empty()
    };
    assert!(!is_read(Refresh::Moved, 8192) && is_read(Refresh::All, 8192));
    assert!(!is_read(Refresh::All, 8192) && is_read(Refresh::Replace, 8192), "it is what was sent before");
    write("memory.current", &(2 << 20).to_string());
    assert!(!is_read(Refresh::Moved, 4096), "no thread has seen that it moved");
    handle.usage().expect("it is there");
    assert!(is_read(Refresh::Moved, 4096) && !is_read(Refresh::Moved, 8192));
}

#[test]
fn what_there_is_no_room_for_is_counted_and_displaces_nothing() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    cgroup(tree.path(), "work.slice", 100);
    cgroup(tree.path(), "other.slice", 7);
    for name in ["m", "n"] {
        cgroup(tree.path(), &format!("work.slice/{name}"), 20);
    }
    let (mut inventory, mut sent) = (inventory(tree.path(), 2), Sent::default());
    inventory.discover(&mut sent);
    sent.take();
    // One that sorts earlier comes too late.
    cgroup(tree.path(), "work.slice/a", 60);
    inventory.discover(&mut sent);
    assert_eq!(sent.take(), (vec![], 0));
    let expected = Coverage { without_row: 1, outside: Bytes(67), descriptors: 6, kernel_memory: None };
    assert_eq!(inventory.coverage(), expected);
    assert!(sent.troubles["count"].starts_with("1 workload is not watched"), "{:?}", sent.troubles);
    for _ in 0..3 {
        assert!(inventory.sight_at(b"work.slice/a", &mut sent));
        assert_eq!(inventory.coverage(), expected, "it is the same one");
    }
    fs::remove_dir_all(tree.path().join("work.slice/m")).expect("writable");
    inventory.discover(&mut sent);
    assert_eq!(sent.take(), (vec!["work.slice/a".into()], 1));
    assert!(sent.troubles.is_empty(), "{:?}", sent.troubles);
}

#[test]
fn a_workload_is_closed_where_its_cgroup_is_gone_and_not_where_that_cannot_be_read() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    for (name, mib) in [("work.slice", 100), ("work.slice/m", 20)] {
        cgroup(tree.path(), name, mib);
    }
    let (mut inventory, mut sent) = (inventory(tree.path(), 2), Sent::default());
    inventory.discover(&mut sent);
    sent.take();
    let id = *inventory.known.keys().next().expect("one is known");
    let events = tree.path().join("work.slice/m/cgroup.events");
    fs::remove_file(&events).expect("it is there");
    fs::create_dir(&events).expect("writable");
    inventory.check(id, &mut sent);
    assert_eq!((sent.take(), inventory.workloads()), ((vec![], 0), 1), "it is no file");
    fs::remove_dir_all(tree.path().join("work.slice/m")).expect("writable");
    inventory.check(id, &mut sent);
    assert_eq!((sent.take(), inventory.workloads()), ((vec![], 1), 0));
}

#[test]
fn a_workload_is_closed_when_a_cgroup_that_is_never_touched_is_made_in_it() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    for name in ["work.slice", "work.slice/a", "work.slice/b"] {
        cgroup(tree.path(), name, 0);
    }
    let mut inventory = inventory(tree.path(), 10);
    inventory.config.patterns = Patterns::of(&["work.slice/*"], &["work.slice/*/keep"]);
    let mut sent = Sent::default();
    inventory.discover(&mut sent);
    assert_eq!(sent.take(), (vec!["work.slice/a".into(), "work.slice/b".into()], 0));
    for (path, gone) in [("work.slice/b/other", 0), ("work.slice/a/keep", 1)] {
        cgroup(tree.path(), path, 0);
        assert!(inventory.sight_at(path.as_bytes(), &mut sent));
        assert_eq!(sent.take().1, gone, "{path}");
    }
    assert_eq!(inventory.workloads(), 1);
}

#[test]
fn slices_that_are_not_braked_are_reported() {
    let found = |path: &str| Found { path: path.into(), ..Found::default() };
    let discovery = |workloads: &[&str], refused: &[&str]| Discovery {
        workloads: workloads.iter().map(|path| found(path)).collect(),
        refused: refused.iter().map(|path| path.as_bytes().to_vec()).collect(),
        ..Discovery::default()
    };
    for (discovery, expected) in [
        (discovery(&["a"], &[]), None),
        (discovery(&[], &[]), Some("no slice of `inKernel` exists")),
        (discovery(&["a"], &["system.slice"]), Some("does not brake system.slice: that would stop")),
        (discovery(&[], &["a", "b", "c"]), Some("so would 2 more")),
        (discovery(&["a", "b", "c"], &[]), Some("at most 2")),
    ] {
        let reported = unmarked(&discovery, 2);
        assert_eq!(reported.is_some(), expected.is_some(), "{reported:?}");
        assert!(reported.unwrap_or_default().contains(expected.unwrap_or_default()), "{expected:?}");
    }
}

/// A pod of plain files, and an inventory that knows where pods are.
const POD: &str =
    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice";

fn facts_of_pod() -> crate::PodFacts {
    let uid = plimsoll_policy::Uid(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
    crate::PodFacts { uid, ..crate::PodFacts::default() }
}

fn inventory_of_pods(tree: &Path) -> Inventory {
    let mut inventory = inventory(tree, 9);
    inventory.config.patterns.pods = Some(crate::PodRoot::default());
    inventory
}

#[test]
fn the_kernel_brakes_no_pods_where_they_are_workloads() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let container = format!("{POD}/cri-containerd-{}.scope", "0".repeat(64));
    let slices = ["user.slice", "kubelet.slice", "kubepods.slice", POD, &container];
    for name in slices {
        cgroup(tree.path(), name, 100);
        for (pods, marks) in [(None, 1), (Some(crate::PodRoot::default()), usize::from(name == "user.slice"))] {
            let (mut inventory, mut sent) = (inventory(tree.path(), 9), Sent::default());
            inventory.config.brakes = Some(Patterns::of(&[name], &[]));
            inventory.config.patterns.pods = pods;
            inventory.find_marks(&mut sent);
            assert_eq!((sent.updates.len(), sent.troubles.contains_key("mark")), (marks, marks == 0), "{name}");
        }
    }
}

/// The cgroups that were killed, or else frozen.
fn written(tree: &Path, paths: &[String], file: &str) -> Vec<String> {
    let is_written = |path: &&String| fs::read_to_string(tree.join(path).join(file)).is_ok_and(|text| text == "1");
    paths.iter().filter(is_written).cloned().collect()
}

#[test]
fn a_pod_of_every_saved_tree_ends_as_a_whole_or_beside_its_monitors() {
    use crate::identity::tests::{LAYOUTS, Layout, Monitor, tree as saved};
    use crate::{ContainerKind, PodCgroup};
    for Layout { name, cgroup_root, monitor } in LAYOUTS {
        let (tree, paths) = (tempfile::tempdir().expect("a temporary directory"), saved(name));
        for path in &paths {
            cgroup(tree.path(), path, 100);
            for file in ["cgroup.freeze", "cgroup.kill"] {
                fs::write(tree.path().join(path).join(file), "0").expect("writable");
            }
        }
        let root = crate::PodRoot(cgroup_root.unwrap_or_default().into());
        // Containers where there are monitors beside them, or else pods.
        let is_killed = |path: &&String| match root.identify(path.as_bytes()) {
            Some(PodCgroup { container: Some(it), .. }) if monitor == Monitor::InPod => {
                it.kind == ContainerKind::Container && it.length == path.len()
            }
            pod => monitor == Monitor::Elsewhere && pod.is_some_and(|pod| pod.length == path.len()),
        };
        let expected: Vec<String> = paths.iter().filter(is_killed).cloned().collect();
        assert_eq!(expected.len(), if monitor == Monitor::InPod { 8 } else { 4 }, "{name}");
        let (mut inventory, mut sent) = (inventory(tree.path(), 9), Sent::default());
        inventory.config.patterns = Patterns { pods: Some(root.clone()), ..Patterns::default() };
        inventory.discover(&mut sent);
        for update in &sent.updates {
            let Update::Workload(_, facts) = update else { continue };
            assert_eq!(facts.handle.is_by_parts(), monitor == Monitor::InPod, "{name}: {:?}", facts.handle);
            facts.handle.freeze(true).expect("writable");
            facts.handle.kill().expect("writable");
        }
        for file in ["cgroup.freeze", "cgroup.kill"] {
            assert_eq!(written(tree.path(), &paths, file), expected, "{name}: {file}");
        }
    }
}

#[test]
fn containers_and_monitors_that_come_into_a_pod_or_go_are_known_by_the_event() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    cgroup(tree.path(), POD, 100);
    let (mut inventory, mut sent) = (inventory_of_pods(tree.path()), Sent::default());
    inventory.discover(&mut sent);
    sent.take();
    let name = |kind: &str, digit: &str| format!("{POD}/{kind}-{}.scope", digit.repeat(64));
    let (monitor, first, second) = (name("crio-conmon", "0"), name("crio", "0"), name("crio", "1"));
    // By the id of what came or went, as an event has it, and by its path where it is there.
    let event = |inventory: &mut Inventory, sent: &mut Sent, path: &str, id: CgroupId| {
        inventory.check(id, sent);
        if tree.path().join(path).exists() {
            assert!(inventory.sight_at(path.as_bytes(), sent), "{path}");
        }
        match sent.updates.drain(..).next() {
            Some(Update::Workload(_, facts)) => Some((facts.handle.is_by_parts(), facts.handle.descriptors())),
            None => None,
            other => panic!("sent for {path}: {other:?}"),
        }
    };
    for (path, expected) in
        [(&monitor, Some((true, 3))), (&first, Some((true, 5))), (&second, Some((true, 7))), (&second, None)]
    {
        cgroup(tree.path(), path, 100);
        assert_eq!(event(&mut inventory, &mut sent, path, CgroupId(0)), expected, "{path}");
    }
    let id =
        CgroupId(std::os::unix::fs::MetadataExt::ino(&fs::metadata(tree.path().join(&first)).expect("it is there")));
    fs::remove_dir_all(tree.path().join(&first)).expect("writable");
    assert_eq!(event(&mut inventory, &mut sent, &first, id), Some((true, 5)));
    // Without events the next walk finds what is there.
    for path in [&second, &monitor] {
        fs::remove_dir_all(tree.path().join(path)).expect("writable");
    }
    inventory.discover(&mut sent);
    let facts = sent.updates.pop();
    assert!(matches!(facts, Some(Update::Workload(_, facts)) if !facts.handle.is_by_parts()));
}

#[test]
fn facts_of_a_pod_are_sent_to_the_table_once_and_again_when_they_change() {
    use crate::PodFacts;
    use plimsoll_policy::Uid;
    use plimsoll_policy::kubelet::{Amount, QosClass};
    let tree = tempfile::tempdir().expect("a temporary directory");
    cgroup(tree.path(), POD, 100);
    let mut inventory = inventory_of_pods(tree.path());
    let (mut sent, mut table) = (Sent::default(), Table::with_slots(9));
    let uid = Uid(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
    let facts =
        PodFacts { uid, priority: 7, memory_request: Bytes(60), started: Some(MonotonicNs(3)), ..PodFacts::default() };
    let resized = PodFacts { memory_request: Bytes(80), ..facts };
    inventory.discover(&mut sent);
    for (messages, request, priority, protected, count) in [
        (&[][..], 0, 0, Some(Why::Unknown), 1),
        (&[PodMessage::Pod(facts)], 0, 0, Some(Why::Unknown), 0),
        (&[PodMessage::Complete], 60, 7, None, 1),
        (&[PodMessage::Pod(facts), PodMessage::Complete], 60, 7, None, 0),
        (&[PodMessage::Pod(resized)], 80, 7, None, 1),
        (&[PodMessage::Gone(uid)], 0, 0, Some(Why::Unknown), 1),
    ] {
        inventory.learn(messages.iter().copied(), &mut sent);
        assert_eq!(sent.updates.len(), count, "{messages:?}");
        sent.updates.drain(..).for_each(|update| drop(table.take(update)));
        let observed = table.observe(30, false, MonotonicNs(9))[0];
        assert_eq!(
            (observed.uid, observed.qos, observed.facts.memory_request, observed.facts.priority, observed.protected),
            (uid, QosClass::Burstable, Amount::counted(request), priority, protected),
            "{messages:?}"
        );
        assert_eq!(observed.started == MonotonicNs(3), protected.is_none());
        assert_eq!(observed.owner, None);
    }
    inventory.discover(&mut sent);
    assert_eq!(sent.troubles["unknown"], "1 pod is never evicted: podFacts does not name it");
    inventory.learn([PodMessage::Pod(facts)].into_iter(), &mut sent);
    inventory.discover(&mut sent);
    assert_eq!(sent.troubles.get("unknown"), None);
}

#[test]
fn all_pods_are_a_slice_with_the_limit_that_their_cgroup_has_now() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    cgroup(tree.path(), "work.slice/a", 1000);
    let (mut inventory, mut sent, mut table) = (inventory(tree.path(), 9), Sent::default(), Table::with_slots(9));
    inventory.config.patterns.pods = Some(PodRoot::default());
    inventory.config.slices = vec![SlicePlace::Pods];
    inventory.slices = vec![None];
    let mut capacity = |walks: bool, inventory: &mut Inventory| {
        if walks {
            inventory.discover(&mut sent);
        } else {
            inventory.find_slices(false, &mut sent);
        }
        sent.updates.drain(..).for_each(|update| drop(table.take(update)));
        let inside = table.observe(0, false, MonotonicNs(1)).iter();
        let inside: Vec<_> = inside.map(|it| it.slices.contains(SliceId(0))).collect();
        (table.slice_reading(0).map(|reading| reading.capacity.0), sent.troubles.get("allocatable").cloned(), inside)
    };
    let not = |why: &str| Some(format!("allocatableMemory.available is not observed: {why}"));
    let limit = |text: &str| fs::write(tree.path().join("kubepods.slice/memory.max"), text).expect("writable");
    let nowhere = not("there is no kubepods cgroup here");
    assert_eq!(capacity(true, &mut inventory), (None, nowhere.clone(), vec![false]));
    let pod = "kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice";
    for name in ["kubepods.slice", pod] {
        cgroup(tree.path(), name, 2000);
    }
    limit("max\n");
    assert_eq!(capacity(false, &mut inventory).1, not("kubepods.slice has no memory.max"));
    limit("9000\n");
    let (found, trouble, mut inside) = capacity(true, &mut inventory);
    inside.sort_unstable();
    assert_eq!((found, trouble, inside), (Some(9000), None, vec![false, true]), "the pod alone is in it");
    // As the kubelet does where reservations change, or memory is added.
    limit("7000\n");
    assert_eq!(capacity(false, &mut inventory).0, Some(7000));
    fs::remove_dir_all(tree.path().join("kubepods.slice")).expect("writable");
    assert_eq!((capacity(true, &mut inventory).0, capacity(true, &mut inventory).1), (None, nowhere));
}

#[test]
fn a_slice_that_is_not_there_or_has_no_limit_is_reported_with_the_reason() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    cgroup(tree.path(), "b.slice", 1000);
    let limit = |text: &str| fs::write(tree.path().join("b.slice/memory.max"), text).expect("writable");
    let (mut inventory, mut sent) = (inventory(tree.path(), 9), Sent::default());
    inventory.config.slices =
        ["a.slice", "b.slice"].map(|path| SlicePlace::Path(path.parse().expect("a pattern"))).to_vec();
    inventory.slices = vec![None, None];
    limit("max\n");
    inventory.find_slices(false, &mut sent);
    let expected = "thresholds of slices are not observed: there is no cgroup a.slice here; b.slice has no memory.max";
    assert_eq!(sent.troubles["slices"], expected);
    inventory.config.slices.remove(0);
    limit("4000\n");
    inventory.find_slices(false, &mut sent);
    assert_eq!(sent.troubles.get("slices"), None);
}

/// The UID in the path of the pod of this number.
fn pod(number: u8) -> (Uid, String) {
    let name = format!("kubepods/burstable/pod0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8{number:02x}");
    (Uid(0x0a1b_2c3d_4e5f_6071_8293_a4b5_c6d7_e800 | u128::from(number)), name)
}

fn said(uid: Uid, critical: Option<Critical>) -> PodMessage {
    PodMessage::Pod(crate::PodFacts { uid, critical, ..crate::PodFacts::default() })
}

fn with_pods(tree: &Path, numbers: &[u8]) -> Inventory {
    for folder in ["kubepods", "kubepods/burstable"] {
        cgroup(tree, folder, 0);
    }
    for number in numbers {
        cgroup(tree, &pod(*number).1, 5);
    }
    let mut inventory = inventory(tree, 9);
    inventory.config.patterns.pods = Some(crate::PodRoot::default());
    inventory
}

#[test]
fn what_is_protected_is_written_before_it_has_any_effect_and_once() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let ((critical, name), (other, _)) = (pod(1), pod(2));
    let (mut inventory, mut sent) = (with_pods(tree.path(), &[1, 2]), Sent::default());
    inventory.discover(&mut sent);
    sent.updates.clear();
    let complete = PodMessage::Complete;
    let all = [said(critical, Some(Critical::Priority)), said(other, None), complete];
    inventory.learn(all.into_iter(), &mut sent);
    assert_eq!(sent.written, [(vec![critical], 0, vec![])], "nothing was sent before");
    assert_eq!(sent.updates.len(), 2);
    inventory.learn([said(critical, None), complete].into_iter(), &mut sent);
    inventory.discover(&mut sent);
    assert_eq!(sent.written.len(), 1, "nothing is new of it");
    fs::remove_dir_all(tree.path().join(name)).expect("writable");
    inventory.discover(&mut sent);
    assert_eq!(sent.written.pop().map(|(uids, _, gone)| (uids, gone)), Some((vec![], vec![critical])));
}

#[test]
fn what_could_not_be_written_is_tried_again() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let (critical, _) = pod(1);
    let (mut inventory, mut sent) = (with_pods(tree.path(), &[1]), Sent { is_full: true, ..Sent::default() });
    inventory.discover(&mut sent);
    inventory.learn([said(critical, Some(Critical::Priority))].into_iter(), &mut sent);
    sent.is_full = false;
    inventory.refresh(Refresh::Moved, &mut sent);
    inventory.refresh(Refresh::Moved, &mut sent);
    assert_eq!(sent.written.len(), 2);
}

#[test]
fn a_protection_of_an_earlier_process_holds_whatever_is_said_and_a_new_pod_is_believed() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let ((critical, _), (other, _)) = (pod(1), pod(2));
    let (mut inventory, mut sent) = (with_pods(tree.path(), &[1, 2]), Sent::default());
    inventory.take_over(HashMap::from([(critical, Critical::Priority)]));
    inventory.discover(&mut sent);
    inventory.learn([said(critical, None), said(other, None), PodMessage::Complete].into_iter(), &mut sent);
    let protected = |uid: Uid| {
        let of_uid = inventory.known.values().find_map(|known| known.pod.filter(|(pod, _)| pod.uid == uid));
        of_uid.map(|(pod, _)| pod.protected)
    };
    assert_eq!((protected(critical), protected(other)), (Some(Some(Why::Critical)), Some(None)));
    assert_eq!(sent.written, [], "it is written already");
}

#[test]
fn what_a_pod_takes_of_disks_is_sent_to_the_table_which_frees_none_of_it() {
    use crate::{InUse, LayersOn, Limited, PartUsage, StoragePart};
    let tree = tempfile::tempdir().expect("a temporary directory");
    cgroup(tree.path(), POD, 100);
    let mut inventory = inventory_of_pods(tree.path());
    let (mut sent, mut table) = (Sent::default(), Table::with_slots(9));
    let facts = facts_of_pod();
    let uid = facts.uid;
    let part = |bytes| {
        let (begun, ended) = (MonotonicNs(1), MonotonicNs(2));
        let part = StoragePart::Volume { name: 7, is_local: true };
        StorageMessage::Part(PartUsage { uid, part, used: Some((bytes, 1)), begun, ended })
    };
    let limit = StorageLimit { uid, on: Limited::Volume(7), bytes: Bytes(5) };
    let mut observe = |sent: &mut Sent, is_short| {
        sent.updates.drain(..).for_each(|update| drop(table.take(update)));
        let (mut rows, now) = (Vec::with_capacity(9), MonotonicNs(9));
        let in_use = InUse { node: 100, layers: LayersOn::NodeDisk };
        let unobserved = table.observe_storage(in_use, DiskLayout::Single, is_short, now, &mut rows);
        let of = |row: &plimsoll_policy::Workload<'_>| {
            (row.facts.stats.and_then(|stats| stats.ephemeral_storage), row.facts.volumes[0].size_limit.is_some())
        };
        (rows.first().map(of), unobserved.disbelieved)
    };
    inventory.discover(&mut sent);
    let no_layer = [StorageMessage::Measured(uid)].into_iter();
    inventory.learn_storage([part(60), StorageMessage::Measured(uid)].into_iter(), Measurer::Scanner, &mut sent);
    assert_eq!(observe(&mut sent, false), (None, 0), "nothing is known of the pod yet");
    inventory.learn([PodMessage::Pod(facts), PodMessage::Complete].into_iter(), &mut sent);
    assert_eq!(observe(&mut sent, false), (Some((None, false)), 0), "its writable layers are not known");
    inventory.learn_storage(no_layer, Measurer::Services, &mut sent);
    assert_eq!(observe(&mut sent, false), (Some((Some(60), false)), 0));
    let has_processes = |has| {
        std::fs::write(tree.path().join(POD).join("cgroup.events"), format!("populated {}\n", u8::from(has)))
            .expect("writable");
    };
    has_processes(false);
    assert_eq!(observe(&mut sent, true), (None, 0), "it has no processes");
    assert_eq!(observe(&mut sent, false), (Some((Some(60), false)), 0), "which is not asked at rest");
    has_processes(true);
    inventory.learn([PodMessage::Limit(limit)].into_iter(), &mut sent);
    assert_eq!(observe(&mut sent, false), (Some((Some(60), true)), 0), "a limit that comes later counts");
    has_processes(false);
    assert_eq!(observe(&mut sent, false), (None, 0), "and is exceeded by nothing that runs");
    has_processes(true);
    inventory.learn_storage([part(101), StorageMessage::Measured(uid)].into_iter(), Measurer::Scanner, &mut sent);
    let held = Arc::downgrade(&inventory.replaced[0]);
    assert_eq!(observe(&mut sent, false), (None, 1), "no more than 100 bytes are in use");
    assert_eq!(held.strong_count(), 1, "the table has let go of it");
    inventory.learn([PodMessage::Gone(uid)].into_iter(), &mut sent);
    assert_eq!(observe(&mut sent, false), (None, 0));
    assert_eq!(held.strong_count(), 0, "it is freed here");
}
