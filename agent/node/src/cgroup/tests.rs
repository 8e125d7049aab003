//! Cgroups made of plain files.

use super::*;
use crate::process::Pid;
use core::time::Duration;
use plimsoll_units::MonotonicNs;
use std::collections::HashSet;
use std::fs;

struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    /// A directory with the files of a cgroup, as plain files.
    fn cgroup(&self, path: &[u8], files: &[(&str, &str)]) {
        let dir = self.dir.path().join(file::path_of(path));
        fs::create_dir_all(&dir).expect("writable");
        for (name, text) in [
            ("cgroup.events", "populated 1\nfrozen 0\n"),
            ("cgroup.freeze", "0\n"),
            ("memory.current", "4096\n"),
            ("memory.low", "0\n"),
            ("memory.min", "0\n"),
        ]
        .iter()
        .chain(files)
        {
            fs::write(dir.join(name), text).expect("writable");
        }
    }

    fn open(&self, path: &[u8]) -> Option<Handle> {
        let root = Root::open(self.dir.path()).expect("it is there");
        Handle::open(&root, path).expect("no other failure than absence")
    }
}

#[test]
fn names_made_to_hurt_are_names() {
    let tree = Tree::new();
    for path in [
        &b"system.slice/dev-disk-by\\x2dlabel.swap"[..],
        b"user.slice/new\nline",
        b"a/\xff\xfe\x80",
        b"a/ memory.current",
        b"a/*",
        b"a/...",
    ] {
        tree.cgroup(path, &[("memory.current", "8192\n")]);
        let handle = tree.open(path).expect("it is there");
        assert_eq!(handle.usage_seen(), None, "before it was read");
        assert_eq!((handle.usage(), handle.usage_seen()), (Ok(Bytes(8192)), Some(Bytes(8192))));
        assert_eq!(handle.path(), path);
    }
}

#[test]
fn nothing_outside_the_tree_is_opened() {
    let tree = Tree::new();
    tree.cgroup(b"inside/a", &[]);
    std::os::unix::fs::symlink(tree.dir.path().join("inside"), tree.dir.path().join("link")).expect("writable");
    let root = Root::open(&tree.dir.path().join("inside")).expect("it is there");
    for path in [&b""[..], b"/", b"..", b"../inside/a", b"a/..", b"./a"] {
        assert!(Handle::open(&root, path).is_err(), "{}", path.escape_ascii());
    }
    let root = Root::open(tree.dir.path()).expect("it is there");
    assert!(Handle::open(&root, b"link/a").is_err());
    assert!(Handle::open(&root, b"none").expect("absence is no error").is_none());
}

#[test]
fn figures_come_out_of_their_files() {
    let tree = Tree::new();
    tree.cgroup(
        b"w",
        &[
            ("memory.low", "1048576\n"),
            ("memory.min", "2097152\n"),
            ("memory.max", "max\n"),
            ("memory.stat", "anon 1\nfile 2\ninactive_file 12288\nactive_file 4096\nslab_reclaimable 512\n"),
            ("memory.peak", "16384\n"),
            ("memory.swap.current", "8192\n"),
            ("memory.swap.max", "max\n"),
            ("memory.zswap.current", "1024\n"),
            ("cgroup.events", "populated 0\nfrozen 1\n"),
        ],
    );
    let handle = tree.open(b"w").expect("it is there");
    assert_eq!(handle.protection(), Bytes::mib(2));
    assert_eq!(protection(handle.dir.as_fd(), |_| false), Bytes::ZERO);
    assert_eq!(handle.descriptors(), 4, "the directory, memory.current, cgroup.events, cgroup.freeze");
    assert_eq!(handle.max(), Ok(None));
    let (inactive_file, reclaimable) = (Bytes(12_288), Some(Bytes(12_288 + 4096 + 512)));
    assert_eq!(handle.page_cache(), Ok(PageCache { charged: Bytes(4096), inactive_file, reclaimable }));
    assert_eq!(
        (handle.active_file(), handle.peak(), handle.swapped()),
        (Ok(Bytes(4096)), Ok(Bytes(16_384)), Ok(Bytes(8192)))
    );
    let swap = Swap { used: Some(Bytes(8192)), limit: None, compressed: Some(Bytes(1024)) };
    assert_eq!(handle.swap(), swap);
    tree.cgroup(b"limited", &[("memory.swap.max", "0\n")]);
    let limited = tree.open(b"limited").expect("it is there");
    assert_eq!(limited.swap(), Swap { limit: Some(Bytes::ZERO), ..Swap::default() }, "no swap at all is a limit");
    assert_eq!(handle.events(), Ok(Events { populated: false, frozen: true }));
    assert_eq!(handle.kill(), Err(Fault::Absent { file: "cgroup.kill" }));
}

#[test]
fn what_memory_high_does_is_read_and_what_is_not_there_is_absent() {
    let tree = Tree::new();
    let events = ("memory.events.local", "low 0\nhigh 7\nmax 2\noom 0\noom_kill 0\n");
    let pressure =
        "some avg10=1.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
    tree.cgroup(b"w", &[events, ("memory.high", "8388608\n"), ("memory.pressure", pressure)]);
    tree.cgroup(b"w/b", &[events, ("memory.high", "max\n")]);
    tree.cgroup(b"w/a", &[]);
    let handle = tree.open(b"w").expect("it is there");
    assert_eq!(handle.throttling(), Ok(Throttling { exceeded: 7, stalled: Some(Duration::from_millis(2500)) }));
    assert_eq!(handle.high(), Ok(Some(Bytes::mib(8))));
    assert_eq!(handle.below(2), Ok(vec![b"w/a".to_vec(), b"w/b".to_vec()]));
    assert_eq!(handle.below(1).map(|paths| paths.len()), Ok(1));
    let without_pressure = tree.open(b"w/b").expect("it is there");
    assert_eq!(without_pressure.throttling(), Ok(Throttling { exceeded: 7, stalled: None }));
    assert_eq!(without_pressure.high(), Ok(None));
    let bare = tree.open(b"w/a").expect("it is there");
    assert_eq!(bare.throttling(), Err(Fault::Absent { file: "memory.events.local" }));
}

/// Of this thread (`syscr`, Documentation/filesystems/proc.rst).
fn read_calls() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/io").expect("this is Linux");
    let count = text.lines().find_map(|line| line.strip_prefix("syscr: "));
    count.and_then(|count| count.parse().ok()).expect("a number")
}

#[test]
fn one_that_is_only_read_opens_nothing_to_be_written() {
    let tree = Tree::new();
    tree.cgroup(b"w", &[("cgroup.kill", "")]);
    let root = Root::open(tree.dir.path()).expect("it is there");
    let handle = Handle::open_to_read(&root, b"w").expect("readable").expect("it is there");
    assert_eq!((handle.usage(), handle.descriptors()), (Ok(Bytes(4096)), 3));
    assert_eq!(handle.freeze(true), Err(Fault::Absent { file: "cgroup.freeze" }));
    assert_eq!(handle.kill(), Err(Fault::Absent { file: "cgroup.kill" }));
}

#[test]
fn tasks_are_counted_by_one_that_was_opened_for_that_where_the_controller_is_on() {
    let tree = Tree::new();
    tree.cgroup(b"w", &[("pids.current", "17\n")]);
    tree.cgroup(b"off", &[]);
    let root = Root::open(tree.dir.path()).expect("it is there");
    let counting = |path: &[u8]| Handle::open_with_tasks(&root, path).expect("readable").expect("it is there");
    let plain = tree.open(b"w").expect("it is there");
    assert_eq!((counting(b"w").tasks(), counting(b"w").descriptors()), (Ok(17), plain.descriptors() + 1));
    let absent = Err(Fault::Absent { file: "pids.current" });
    assert_eq!((plain.tasks(), counting(b"off").tasks()), (absent, absent));
}

#[test]
fn a_sample_reads_each_of_its_files_once() {
    let tree = Tree::new();
    tree.cgroup(b"w", &[]);
    let handle = tree.open(b"w").expect("it is there");
    let (first, second) = (read_calls(), read_calls());
    assert_eq!((handle.usage(), handle.populated()), (Ok(Bytes(4096)), Ok(true)));
    assert_eq!(read_calls() - second, second - first + 2);
}

#[test]
fn what_is_written_arrives_as_text() {
    let tree = Tree::new();
    tree.cgroup(b"w", &[("cgroup.kill", ""), ("memory.reclaim", "")]);
    let handle = tree.open(b"w").expect("it is there");
    let text = |name: &str| fs::read_to_string(tree.dir.path().join("w").join(name)).expect("readable");
    handle.freeze(true).expect("writable");
    assert_eq!(handle.freeze_asked(), Ok(true));
    handle.freeze(false).expect("writable");
    assert_eq!(text("cgroup.freeze"), "0\n");
    handle.kill().expect("writable");
    assert_eq!(text("cgroup.kill"), "1");
    for (amount, written) in [(0, "0"), (1_048_576, "1048576"), (u64::MAX, "18446744073709551615")] {
        handle.reclaim(Bytes(amount)).expect("writable");
        assert_eq!(text("memory.reclaim"), format!("{written} swappiness=0"));
    }
}

#[test]
fn processes_are_found_at_any_depth() {
    let tree = Tree::new();
    let many = (1..=3000).map(|pid| pid.to_string()).collect::<Vec<_>>().join("\n") + "\n";
    tree.cgroup(b"w", &[("cgroup.procs", &many)]);
    tree.cgroup(b"w/a/b", &[("cgroup.procs", "4001\n0\n4002\n")]);
    let handle = tree.open(b"w").expect("it is there");
    let mut found = Vec::new();
    let mut take = |pid: Pid| {
        found.push(pid.as_raw_pid());
        true
    };
    handle.each_task(TaskList::Processes, Bound::NONE, &mut take).expect("readable");
    assert_eq!(found, (1..=3000).chain([4001, 4002]).collect::<Vec<_>>());
    let mut seen = 0;
    let mut until = |_| {
        seen += 1;
        seen < 7
    };
    handle.each_task(TaskList::Processes, Bound::NONE, &mut until).expect("readable");
    assert_eq!(seen, 7);
    tree.cgroup(b"d", &[]);
    let deep = b"d/".repeat(200);
    tree.cgroup(&deep, &[("cgroup.threads", "5\n")]);
    let mut found = Vec::new();
    let mut take = |pid: Pid| {
        found.push(pid.as_raw_pid());
        true
    };
    tree.open(b"d").expect("it is there").each_task(TaskList::Threads, Bound::NONE, &mut take).expect("readable");
    assert_eq!(found, [5]);
}

#[test]
fn activity_is_cpu_time_and_threads_of_all_below() {
    let tree = Tree::new();
    tree.cgroup(b"w", &[("cpu.stat", "usage_usec 1500\nuser_usec 500\n"), ("cgroup.threads", "7\n8\n")]);
    tree.cgroup(b"w/a", &[("cgroup.threads", "9\n")]);
    let handle = tree.open(b"w").expect("it is there");
    assert_eq!(handle.activity(), Ok(Activity { cpu: Duration::from_micros(1500), threads: Some(3) }));
    let without = tree.open(b"w/a").expect("it is there");
    assert_eq!(without.activity(), Err(Fault::Absent { file: "cpu.stat" }));
}

#[test]
fn tasks_are_opened_as_many_as_asked() {
    let tree = Tree::new();
    let me = rustix::process::getpid();
    let parent = rustix::process::getppid().expect("a test has a parent");
    let text = format!("{}\n{}\n", me.as_raw_pid(), parent.as_raw_pid());
    tree.cgroup(b"w", &[("cgroup.procs", &text)]);
    tree.cgroup(b"w/a", &[("cgroup.procs", &text)]);
    let handle = tree.open(b"w").expect("it is there");
    for (most, without, opened, more) in
        [(0, None, 0, true), (1, None, 1, true), (2, None, 2, false), (1, Some(me), 1, false)]
    {
        let open = TaskList::Processes.open_in(handle.dir.as_fd(), most, &mut |pid| Some(pid) == without);
        let found = open.expect("readable");
        assert_eq!((found.tasks.len(), found.more), (opened, more));
    }
}

#[test]
fn what_a_walk_for_tasks_may_take_is_bounded() {
    let tree = Tree::new();
    tree.cgroup(b"w", &[("cgroup.procs", "1\n")]);
    for number in 0..8 {
        tree.cgroup(format!("w/{number}").as_bytes(), &[("cgroup.procs", "1\n")]);
    }
    let handle = tree.open(b"w").expect("it is there");
    let past = MonotonicNs(1);
    for (bound, tasks, is_whole) in [
        (Bound::NONE, 9, true),
        (Bound { cgroups: 9, ..Bound::NONE }, 9, true),
        (Bound { cgroups: 8, ..Bound::NONE }, 8, false),
        (Bound { by: past, ..Bound::NONE }, 0, false),
    ] {
        let mut found = 0;
        let all = handle.each_task(TaskList::Processes, bound, &mut |_| {
            found += 1;
            true
        });
        assert_eq!((found, all), (tasks, Ok(is_whole)), "{bound:?}");
    }
    let me = rustix::process::getpid();
    tree.cgroup(b"w", &[("cgroup.procs", &format!("{}\n", me.as_raw_pid()))]);
    for (by, opened) in [(MonotonicNs(u64::MAX), 1), (past, 0)] {
        let largest = handle.open_largest(1, &HashSet::new(), Bound { by, ..Bound::NONE });
        assert_eq!(largest.expect("readable").len(), opened);
    }
}

#[test]
fn each_file_that_is_kept_and_read_is_read_beforehand() {
    let tree = Tree::new();
    tree.cgroup(b"w", &[]);
    let handle = tree.open(b"w").expect("it is there");
    let (first, second) = (read_calls(), read_calls());
    handle.read_all_once();
    assert_eq!(read_calls() - second, second - first + 3, "memory.current, cgroup.events, cgroup.freeze");
}

#[test]
fn population_is_read_of_a_file_opened_anew() {
    let tree = Tree::new();
    tree.cgroup(b"w", &[]);
    let handle = tree.open(b"w").expect("it is there");
    let events = tree.dir.path().join("w/cgroup.events");
    // The file that is kept is another one from here on.
    fs::remove_file(&events).expect("it is there");
    fs::write(&events, "populated 0\nfrozen 0\n").expect("writable");
    assert_eq!((handle.populated(), handle.populated_now()), (Ok(true), Ok(false)));
}

fn is_kept_away(name: &[u8]) -> bool {
    name.starts_with(b"spared")
}

impl Tree {
    /// Sparing cgroups by that name.
    fn open_sparing(&self, path: &[u8]) -> Handle {
        let root = Root::open(self.dir.path()).expect("it is there");
        let purpose = Purpose { is_written: true, counts_tasks: false, spares: Some(is_kept_away) };
        Handle::open_for(&root, path, purpose).expect("readable").expect("it is there")
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.dir.path().join(file)).expect("readable").trim().to_owned()
    }
}

#[test]
fn beside_what_is_spared_each_part_is_frozen_and_killed_also_one_that_came_later() {
    let tree = Tree::new();
    for name in ["w", "w/a", "w/a/inner", "w/spared", "w/spared/inner"] {
        let procs = format!("{}\n", name.len());
        tree.cgroup(name.as_bytes(), &[("cgroup.kill", ""), ("cgroup.procs", &procs)]);
    }
    let handle = tree.open_sparing(b"w");
    assert!(handle.is_by_parts() && !handle.is_outdated());
    tree.cgroup(b"w/later", &[("cgroup.kill", ""), ("cgroup.procs", "7\n")]);
    handle.freeze(true).expect("writable");
    handle.kill().expect("writable");
    for (name, frozen, killed) in [("a", "1", "1"), ("later", "1", "1"), ("spared", "0", ""), ("", "0", "")] {
        let of = |file: &str| tree.text(&format!("w/{name}/{file}"));
        assert_eq!((of("cgroup.freeze").as_str(), of("cgroup.kill").as_str()), (frozen, killed), "{name}");
    }
    let mut found = Vec::new();
    let mut take = |pid: Pid| {
        found.push(pid.as_raw_pid());
        true
    };
    handle.each_task(TaskList::Processes, Bound::NONE, &mut take).expect("readable");
    found.sort_unstable();
    assert_eq!(found, [1, 3, 7, 9], "its own, those of its parts and below them");
    handle.freeze(false).expect("writable");
    assert_eq!((tree.text("w/a/cgroup.freeze"), tree.text("w/later/cgroup.freeze")), ("0".into(), "0".into()));
    // What is spared elsewhere than directly in it is not.
    tree.cgroup(b"w/a/spared", &[("cgroup.procs", "11\n")]);
    let mut count = 0;
    let mut each = |pid: Pid| {
        count += i32::from(pid.as_raw_pid() == 11);
        true
    };
    handle.each_task(TaskList::Processes, Bound::NONE, &mut each).expect("readable");
    assert_eq!(count, 1);
}

#[test]
fn where_nothing_is_spared_it_is_frozen_and_killed_as_a_whole_and_by_parts_once_something_is() {
    let tree = Tree::new();
    for name in ["w", "w/a"] {
        tree.cgroup(name.as_bytes(), &[("cgroup.kill", "")]);
    }
    let handle = tree.open_sparing(b"w");
    assert!(!handle.is_by_parts() && !handle.is_outdated());
    assert_eq!(handle.descriptors(), 5);
    handle.freeze(true).expect("writable");
    handle.kill().expect("writable");
    assert_eq!((tree.text("w/cgroup.freeze"), tree.text("w/cgroup.kill")), ("1".into(), "1".into()));
    assert_eq!((tree.text("w/a/cgroup.freeze"), tree.text("w/a/cgroup.kill")), ("0".into(), String::new()));
    // It was opened before that: it is thawed as it was frozen, and what is spared is not killed.
    tree.cgroup(b"w/spared", &[("cgroup.kill", "")]);
    assert!(handle.is_outdated());
    fs::write(tree.dir.path().join("w/cgroup.kill"), "").expect("writable");
    handle.freeze(false).expect("writable");
    handle.kill().expect("writable");
    assert_eq!((tree.text("w/cgroup.freeze"), tree.text("w/cgroup.kill")), ("0".into(), String::new()));
    assert_eq!((tree.text("w/a/cgroup.kill"), tree.text("w/spared/cgroup.kill")), ("1".into(), String::new()));
}

#[test]
fn what_is_spared_counts_for_no_population() {
    const NONE: &str = "populated 0\nfrozen 0\n";
    let tree = Tree::new();
    for name in ["w", "w/a", "w/b", "w/spared"] {
        tree.cgroup(name.as_bytes(), &[]);
    }
    let handle = tree.open_sparing(b"w");
    assert_eq!(handle.descriptors(), 4 + 2 * 2);
    let population = || (handle.population(), handle.populated(), handle.populated_now());
    assert_eq!(population(), (Ok(Population::Populated), Ok(true), Ok(true)));
    tree.cgroup(b"w/a", &[("cgroup.events", NONE)]);
    assert_eq!(population(), (Ok(Population::Populated), Ok(true), Ok(true)));
    tree.cgroup(b"w/b", &[("cgroup.events", NONE)]);
    assert_eq!(population(), (Ok(Population::PerhapsSpared), Ok(false), Ok(false)));
    // One that came later is not kept open.
    tree.cgroup(b"w/c", &[]);
    assert_eq!(population(), (Ok(Population::PerhapsSpared), Ok(false), Ok(true)));
    assert!(handle.is_outdated());
    assert_eq!(tree.open_sparing(b"w").population(), Ok(Population::Populated));
    tree.cgroup(b"w", &[("cgroup.events", NONE)]);
    assert_eq!(population(), (Ok(Population::Empty), Ok(false), Ok(false)));
}

#[test]
fn a_freeze_of_one_part_is_that_of_another_program() {
    let tree = Tree::new();
    for name in ["w", "w/a", "w/b", "w/spared"] {
        tree.cgroup(name.as_bytes(), &[]);
    }
    let handle = tree.open_sparing(b"w");
    assert_eq!(handle.freeze_asked(), Ok(false));
    tree.cgroup(b"w/b", &[("cgroup.events", "populated 1\nfrozen 1\n")]);
    assert_eq!(handle.freeze_asked(), Ok(true));
}

#[test]
fn what_cannot_be_frozen_as_a_whole_is_not_left_frozen_in_parts() {
    let tree = Tree::new();
    for name in ["w", "w/a", "w/b", "w/c", "w/spared"] {
        tree.cgroup(name.as_bytes(), &[("cgroup.kill", "")]);
    }
    for file in ["cgroup.freeze", "cgroup.kill"] {
        let path = tree.dir.path().join("w/b").join(file);
        fs::remove_file(&path).expect("it is there");
        std::os::unix::fs::symlink("/dev/full", &path).expect("writable");
    }
    let handle = tree.open_sparing(b"w");
    assert!(matches!(handle.freeze(true), Err(Fault::Write { file: "cgroup.freeze", .. })));
    assert_eq!((tree.text("w/a/cgroup.freeze"), tree.text("w/c/cgroup.freeze")), ("0".into(), "0".into()));
    // The others are killed all the same.
    assert!(matches!(handle.kill(), Err(Fault::Write { file: "cgroup.kill", .. })));
    assert_eq!((tree.text("w/a/cgroup.kill"), tree.text("w/c/cgroup.kill")), ("1".into(), "1".into()));
}

#[test]
fn more_parts_than_are_kept_open_are_killed_and_not_frozen() {
    let tree = Tree::new();
    for name in ["w", "w/spared"] {
        tree.cgroup(name.as_bytes(), &[("cgroup.kill", "")]);
    }
    for number in 0..=KEPT {
        let events = if number == KEPT { "populated 1\n" } else { "populated 0\n" };
        tree.cgroup(format!("w/{number:02}").as_bytes(), &[("cgroup.kill", ""), ("cgroup.events", events)]);
    }
    let handle = tree.open_sparing(b"w");
    assert_eq!(handle.descriptors(), 5 + 2 * u32::try_from(KEPT).expect("small"));
    assert_eq!((handle.population(), handle.populated()), (Ok(Population::PerhapsSpared), Ok(true)));
    assert!(handle.freeze_asked().is_err());
    handle.kill().expect("writable");
    assert_eq!(tree.text(&format!("w/{KEPT}/cgroup.kill")), "1");
    assert!(!handle.is_outdated());
}
