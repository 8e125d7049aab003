//! Cgroups made of plain files.

use super::*;
use crate::seen::{AT_REST, MOVED};
use crate::throttle::Ended;
use std::fs;

const MIB: u64 = 1 << 20;

struct Tree {
    dir: tempfile::TempDir,
    root: Root,
    containers: Containers,
}

/// What a cgroup's files say: charged and reclaimable page cache, memory.max, how often memory.high was exceeded, and the
/// time waited in ms; amounts in MiB.
#[derive(Clone, Copy)]
struct Says {
    charged: u64,
    cache: u64,
    max: Option<u64>,
    exceeded: u64,
    stalled: u64,
}

const IDLE: Says = Says { charged: 40, cache: 10, max: Some(100), exceeded: 0, stalled: 0 };

impl Tree {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let root = Root::open(dir.path()).expect("it is there");
        Self { dir, root, containers: Containers::default() }
    }

    fn write(&self, path: &str, says: Says) {
        let Says { charged, cache, max, exceeded, stalled } = says;
        let dir = self.dir.path().join(path);
        fs::create_dir_all(&dir).expect("writable");
        let (inactive, active) = (cache * MIB / 2, cache * MIB - cache * MIB / 2);
        for (file, text) in [
            ("cgroup.events", "populated 1\n".to_owned()),
            ("memory.current", format!("{}\n", charged * MIB)),
            ("memory.stat", format!("inactive_file {inactive}\nactive_file {active}\nslab_reclaimable 0\n")),
            ("memory.max", max.map_or_else(|| "max\n".to_owned(), |max| format!("{}\n", max * MIB))),
            ("memory.swap.current", "7000\n".to_owned()),
            ("memory.swap.max", "9000\n".to_owned()),
            ("memory.zswap.current", "2000\n".to_owned()),
            ("pids.current", "12\n".to_owned()),
            ("pids.max", "100\n".to_owned()),
            ("memory.events.local", format!("low 0\nhigh {exceeded}\nmax 0\n")),
            (
                "memory.pressure",
                format!(
                    "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
                    stalled * 1000
                ),
            ),
        ] {
            fs::write(dir.join(file), text).expect("writable");
        }
    }

    fn open(&self, path: &str) -> Handle {
        Handle::open_to_read(&self.root, path.as_bytes()).expect("readable").expect("it is there")
    }

    /// Reads the workload `pod` and gives whether it is to be looked at again soon, and what has changed.
    fn visit(&mut self, ms: u64, has_figures: bool) -> (bool, Vec<(String, Change, bool)>) {
        let (pod, mut found) = (self.open("pod"), Vec::new());
        let mut report = |it: Found<'_>| {
            found.push((String::from_utf8_lossy(it.path).into_owned(), it.change, it.is_gone));
        };
        let is_open = self.containers.read(&self.root, &pod, at(ms), has_figures, &mut report);
        (is_open, found)
    }

    fn figures(&self, path: &str) -> ContainerFigures {
        let container = self.containers.known.values().find(|container| container.path == path.as_bytes());
        container.expect("it is known").figures()
    }
}

fn at(ms: u64) -> MonotonicNs {
    MonotonicNs(0).after(Duration::from_millis(ms))
}

#[test]
fn figures_are_without_page_cache_and_unknown_until_they_are_known() {
    let mut tree = Tree::new();
    tree.write("pod", Says { max: None, ..IDLE });
    tree.write("pod/a", IDLE);
    tree.visit(0, true);
    let first = ContainerFigures {
        working_set: Some(Bytes::mib(35)),
        distance: Some(Bytes::mib(70)),
        swapped: Some(Bytes(7000)),
        swap_limit: Some(Bytes(9000)),
        zswap: Some(Bytes(2000)),
        tasks: Some(12),
        task_limit: Some(100),
        ..ContainerFigures::default()
    };
    assert_eq!(tree.figures("pod/a"), first, "no rate and no forecast by one reading");
    // Ten more, of which half is page cache.
    tree.write("pod/a", Says { charged: 50, cache: 15, ..IDLE });
    tree.write("pod", Says { charged: 50, max: None, ..IDLE });
    tree.visit(1000, true);
    let rate = i64::try_from(5 * MIB).ok();
    let forecast = Some(Duration::from_secs(13));
    let grown = ContainerFigures { working_set: Some(Bytes(50 * MIB - 15 * MIB / 2)), rate, forecast, ..first };
    assert_eq!(tree.figures("pod/a"), ContainerFigures { distance: Some(Bytes::mib(65)), ..grown });
    let pod = tree.figures("pod");
    assert_eq!((pod.rate, pod.distance, pod.forecast), (i64::try_from(10 * MIB).ok(), None, None), "it has no limit");
    // It shrinks.
    tree.write("pod/a", Says { charged: 15, ..IDLE });
    tree.visit(60_000, true);
    assert!(tree.figures("pod/a").rate.is_some_and(|rate| rate < 0) && tree.figures("pod/a").forecast.is_none());
    for file in
        ["memory.stat", "memory.swap.current", "memory.swap.max", "memory.zswap.current", "pids.current", "pids.max"]
    {
        fs::remove_file(tree.dir.path().join("pod/a").join(file)).expect("ours");
    }
    tree.visit(121_000, true);
    assert_eq!(tree.figures("pod/a"), ContainerFigures::default(), "what cannot be read is absent");
}

#[test]
fn the_container_that_is_throttled_is_found_and_no_other_and_it_ends() {
    let mut tree = Tree::new();
    let of = |exceeded, stalled| Says { exceeded, stalled, ..IDLE };
    for path in ["pod", "pod/a", "pod/b"] {
        tree.write(path, of(3, 1000));
    }
    assert_eq!(tree.visit(0, true), (false, Vec::new()), "what was counted before says nothing");
    tree.write("pod", of(3, 1100));
    tree.write("pod/a", of(4, 1100));
    tree.write("pod/b", of(3, 1100));
    assert_eq!(tree.visit(60_000, false), (true, Vec::new()));
    tree.write("pod", of(3, 1300));
    tree.write("pod/a", of(5, 1300));
    tree.write("pod/b", of(3, 1300));
    let found = tree.visit(60_250, false);
    assert_eq!(found, (true, vec![("pod/a".to_owned(), Change::Begins, false)]));
    let stall = Stall { waited: Duration::from_millis(200), within: Duration::from_millis(250) };
    assert_eq!(tree.figures("pod/a").stall, Some(stall));
    assert_eq!(tree.containers.throttled(), 1);
    let foremost: Vec<_> = tree.containers.foremost(9).iter().map(|it| it.path().to_vec()).collect();
    assert_eq!(foremost, [b"pod/a".to_vec()]);
    // A reading of figures directly after it leaves that alone.
    tree.visit(60_260, true);
    assert!(tree.figures("pod/a").is_throttled && tree.figures("pod/a").stall.is_some());
    let (is_open, found) = tree.visit(64_000, false);
    let lasted = Duration::from_millis(250);
    let ended = Change::Ends(Ended { lasted, stalled: Some(Duration::from_millis(200)) });
    assert_eq!((is_open, found), (false, vec![("pod/a".to_owned(), ended, false)]));
    assert_eq!((tree.figures("pod/a").stall, tree.containers.foremost(9).len()), (None, 0));
}

#[test]
fn one_that_is_gone_is_throttled_no_more_and_has_no_figures() {
    let mut tree = Tree::new();
    for path in ["pod", "pod/a"] {
        tree.write(path, IDLE);
    }
    tree.visit(0, true);
    // It was not there before, so that all that it has counted is new.
    tree.write("pod/new", Says { exceeded: 2, stalled: 100, ..IDLE });
    assert_eq!(tree.visit(60_000, false), (true, Vec::new()));
    tree.write("pod/new", Says { exceeded: 2, stalled: 400, ..IDLE });
    assert_eq!(tree.visit(60_300, false).1, [("pod/new".to_owned(), Change::Begins, false)]);
    fs::remove_dir_all(tree.dir.path().join("pod/new")).expect("ours");
    let (is_open, found) = tree.visit(60_600, false);
    assert!(!is_open && matches!(&found[..], [(path, Change::Ends(_), true)] if path == "pod/new"), "{found:?}");
    assert_eq!(tree.containers.known.len(), 2);
    let mut found = 0;
    tree.containers.retain(|_| false, &mut |_| found += 1);
    assert_eq!((found, tree.containers.known.len(), tree.containers.workloads.len()), (0, 0, 0));
}

#[test]
fn those_that_are_throttled_come_first_and_then_those_that_are_nearest_to_their_limit() {
    let mut tree = Tree::new();
    let paths = ["pod", "pod/far", "pod/near", "pod/still", "pod/throttled"];
    for path in paths {
        tree.write(path, Says { max: Some(1000), ..IDLE });
    }
    tree.visit(0, true);
    for (path, charged) in [("pod/far", 41), ("pod/near", 80)] {
        tree.write(path, Says { charged, max: Some(1000), ..IDLE });
    }
    tree.write("pod/throttled", Says { exceeded: 9, stalled: 900, max: Some(1000), ..IDLE });
    tree.visit(1000, true);
    let foremost = |most| -> Vec<String> {
        let foremost = tree.containers.foremost(most);
        foremost.iter().map(|it| String::from_utf8_lossy(it.path()).into_owned()).collect()
    };
    assert_eq!(foremost(9), ["pod/throttled", "pod/near", "pod/far"]);
    assert_eq!(foremost(2), ["pod/throttled", "pod/near"]);
    let pod = tree.open("pod").id();
    assert_eq!(tree.containers.of(pod).count(), paths.len());
}

#[test]
fn one_that_is_near_its_limit_of_tasks_is_among_the_foremost() {
    let mut tree = Tree::new();
    tree.write("pod", Says { max: None, ..IDLE });
    tree.write("pod/a", IDLE);
    for (current, limit, is_near) in
        [("12", "100", false), ("89", "100", false), ("90", "100", true), ("90", "max", false)]
    {
        fs::write(tree.dir.path().join("pod/a/pids.current"), current).expect("ours");
        fs::write(tree.dir.path().join("pod/a/pids.max"), limit).expect("ours");
        tree.visit(0, true);
        let foremost: Vec<_> = tree.containers.foremost(9).into_iter().map(Container::path).collect();
        assert_eq!(foremost == [b"pod/a"], is_near, "{current} of {limit}: {foremost:?}");
    }
}

#[test]
fn a_workload_rests_while_it_uses_what_it_used_and_none_in_it_is_on_its_way_to_a_limit() {
    let mut tree = Tree::new();
    let pod = |charged| Says { charged, max: None, ..IDLE };
    let rests = |tree: &Tree, handle: &Handle, ms: u64| tree.containers.rests(handle, at(ms));
    tree.write("pod", pod(40));
    tree.write("pod/a", IDLE);
    let handle = tree.open("pod");
    let read = |tree: &mut Tree, ms: u64, has_figures| {
        tree.containers.read(&tree.root, &handle, at(ms), has_figures, &mut |_| ());
    };
    read(&mut tree, 0, true);
    assert!(!rests(&tree, &handle, 0), "what it uses was read by no thread yet");
    handle.usage().expect("it is there");
    read(&mut tree, 1000, false);
    assert!(!rests(&tree, &handle, 1000), "that was no reading of its figures");
    read(&mut tree, 2000, true);
    let rested = u64::try_from(AT_REST.as_millis()).expect("it is less");
    assert!(rests(&tree, &handle, 1999 + rested) && !rests(&tree, &handle, 2000 + rested));
    read(&mut tree, 3000, false);
    assert!(rests(&tree, &handle, 3000), "they are known still");
    let write_usage = |bytes: u64| {
        fs::write(tree.dir.path().join("pod/memory.current"), bytes.to_string()).expect("ours");
        handle.usage().expect("it is there");
    };
    for (bytes, expected) in [(40 * MIB + MOVED - 1, true), (40 * MIB + MOVED, false), (40 * MIB - MOVED, false)] {
        write_usage(bytes);
        assert_eq!(rests(&tree, &handle, 3000), expected, "{bytes}");
    }
    // A container grows, and would reach its limit: it is read until it does no more.
    tree.write("pod", pod(50));
    tree.write("pod/a", Says { charged: 50, ..IDLE });
    handle.usage().expect("it is there");
    read(&mut tree, 4000, true);
    assert!(tree.figures("pod/a").forecast.is_some() && !rests(&tree, &handle, 4000));
    tree.write("pod/a", Says { charged: 10, ..IDLE });
    read(&mut tree, 60_000, true);
    assert!(rests(&tree, &handle, 60_000), "it has shrunk");
}
