//! What keeping up with 100, 1,000 and 10,000 workloads takes besides decisions: a walk of the cgroup tree in which nothing
//! has changed, beside a walk that opens and lists the same directories; and the bookkeeping before a decision, in which the
//! usage of each workload is read, beside reading the same files. The tree is one of plain files: what the kernel takes to
//! make up a cgroup's figures is not in it. Of 10,000 workloads the walk finds all, and 4,096 have rows.
//!
//! Ends with 1 if either takes more than so many times as long as that for any number of workloads, and panics if the
//! bookkeeping allocates. What it is beside grows with the workloads and with what caches do to both.
//!
//! `cargo bench -p plimsoll-benches`.

use plimsoll_inventory::{Config, Inventory, Patterns, Protected, SLOTS, Sink, Table, Update};
use plimsoll_node::cgroup::Root;
use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::Critical;
use plimsoll_units::{MonotonicNs, Pattern};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashMap;
use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const COUNTS: [usize; 3] = [100, 1_000, 10_000];
/// The shortest of so many runs counts: what else the machine does only adds.
const RUNS: usize = 21;
/// So many bare walks a walk may take, and so many bare readings the bookkeeping.
const WALKS: f64 = 2.0;
const READINGS: f64 = 3.0;
/// What the bookkeeping reads of each workload.
const READ: [&str; 2] = ["memory.current", "cgroup.events"];

/// Takes what an inventory finds into a table.
struct Taking(Table);

impl Sink for Taking {
    fn update(&mut self, update: Update) {
        self.0.take(update);
    }

    fn protect(&mut self, _: &HashMap<Uid, Critical>, _: &[Uid]) -> bool {
        true
    }

    fn trouble(&mut self, tried: &'static str, text: Option<String>) {
        // More workloads than rows is what 10,000 are.
        assert!(tried == "count" || text.is_none(), "{tried}: {text:?}");
    }
}

/// A slice with so many workloads in it.
fn tree(count: usize) -> tempfile::TempDir {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let cgroup = |path: &Path| {
        fs::create_dir(path).expect("writable");
        for (file, text) in [
            ("cgroup.events", "populated 1\nfrozen 0\n"),
            ("memory.current", "1048576\n"),
            ("memory.low", "0\n"),
            ("memory.stat", "inactive_file 4096\nactive_file 4096\n"),
        ] {
            fs::write(path.join(file), text).expect("writable");
        }
    };
    let slice = tree.path().join("work.slice");
    cgroup(&slice);
    (0..count).for_each(|index| cgroup(&slice.join(index.to_string())));
    tree
}

/// The shortest time of many runs.
fn shortest(mut run: impl FnMut()) -> Duration {
    let times = (0..RUNS).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed()
    });
    times.min().unwrap_or_default()
}

fn directories(slice: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(slice).expect("readable").map(|entry| entry.expect("readable"));
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

/// What each takes, beside what that is measured by.
struct Times {
    bare_walk: Duration,
    walk: Duration,
    bare_reading: Duration,
    bookkeeping: Duration,
}

fn times(count: usize) -> Times {
    let tree = tree(count);
    let slice = tree.path().join("work.slice");
    let workloads = Pattern::parse("work.slice/*").expect("a pattern");
    let mut inventory = Inventory::new(Config {
        root: Root::open(tree.path()).expect("it is there"),
        patterns: Patterns { workloads: vec![workloads], ..Patterns::default() },
        priorities: vec![0],
        protected: Protected::default(),
        slices: Vec::new(),
        brakes: None,
        max_brakes: 0,
        max_workloads: SLOTS,
        counts_tasks: false,
    });
    let mut taking = Taking(Table::with_slots(SLOTS));
    inventory.discover(&mut taking);
    let rows = count.min(SLOTS);
    assert_eq!(inventory.workloads() as usize, rows);
    let walk = shortest(|| inventory.discover(&mut taking));
    let bare_walk = shortest(|| {
        for path in directories(&slice) {
            black_box(fs::read_dir(path).expect("readable").count());
        }
    });
    let table = &mut taking.0;
    let mut turn = 0;
    let bookkeeping = shortest(|| {
        turn += 1;
        let counted = allocation_counter::measure(|| {
            assert_eq!(black_box(table.observe(30, false, MonotonicNs(turn))).len(), rows);
        });
        assert_eq!((counted.count_total, counted.count_current), (0, 0), "the bookkeeping allocates");
    });
    // They have as many files open again.
    drop((inventory, taking));
    let open = |path: PathBuf| READ.map(|file| File::open(path.join(file)).expect("readable"));
    let files: Vec<File> = directories(&slice).into_iter().take(rows).flat_map(open).collect();
    let bare_reading = shortest(|| {
        let mut buffer = [0; 256];
        for file in &files {
            black_box(file.read_at(&mut buffer, 0).expect("readable"));
        }
    });
    Times { bare_walk, walk, bare_reading, bookkeeping }
}

fn main() -> ExitCode {
    let limit = Rlimit { current: getrlimit(Resource::Nofile).maximum, ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).expect("the limit may be raised as far as that");
    let all = COUNTS.map(times);
    println!("{:<18} {:>14} {:>14} {:>14}", "", "100", "1,000", "10,000");
    // Of more there are no rows.
    println!("{:<18} {:>14} {:>14} {SLOTS:>14}", "in rows", "100", "1,000");
    let row = |name: &str, of: fn(&Times) -> Duration| {
        let [few, some, many] = all.each_ref().map(|times| format!("{:?}", of(times)));
        println!("{name:<18} {few:>14} {some:>14} {many:>14}");
    };
    let is_within = |name: &str, most: f64, of: fn(&Times) -> (Duration, Duration)| {
        let times = all.each_ref().map(of).map(|(taken, bare)| taken.as_secs_f64() / bare.as_secs_f64());
        let [few, some, many] = times.map(|times| format!("{times:.2}"));
        println!("{name:<18} {few:>14} {some:>14} {many:>14} times, of {most} at most");
        times.into_iter().all(|times| times <= most)
    };
    row("bare walk", |times| times.bare_walk);
    row("walk", |times| times.walk);
    let walks = is_within("  beside it", WALKS, |times| (times.walk, times.bare_walk));
    row("bare reading", |times| times.bare_reading);
    row("bookkeeping", |times| times.bookkeeping);
    let readings = is_within("  beside it", READINGS, |times| (times.bookkeeping, times.bare_reading));
    if walks && readings { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
