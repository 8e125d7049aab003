//! Trees that are made to hurt: they cost time, never memory.

use plimsoll_storage::{Outcome, Progress, Scan};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat, renameat, unlinkat};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a scan takes at most, by the bounds that agent/docs/local-storage.md states.
const MAX_BYTES: u64 = 5 << 20;
/// Few enough that a scan is interrupted often, and many enough that interrupting costs little.
const ENTRIES: u32 = 1000;

fn finish(scan: &mut Scan) -> Outcome {
    loop {
        if let Progress::Done(outcome) = scan.step(ENTRIES) {
            return outcome;
        }
    }
}

/// Scans, and says how much memory that took at most, and how many descriptors were open at most.
fn measured(path: &Path) -> (Outcome, u64, usize) {
    let (mut outcome, mut descriptors) = (None, 0);
    let memory = allocation_counter::measure(|| {
        let mut scan = Scan::of(path).expect("it can be opened");
        while outcome.is_none() {
            if let Progress::Done(done) = scan.step(ENTRIES) {
                outcome = Some(done);
            }
            descriptors = descriptors.max(allocated_descriptors());
        }
    });
    (outcome.expect("it has ended"), memory.bytes_max, descriptors)
}

fn allocated_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("it can be read").count()
}

/// In memory, where making hundreds of thousands of files takes no disk's time.
fn directory_in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory")
}

fn directory(at: &OwnedFd, name: &str) -> OwnedFd {
    openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("it can be opened")
}

/// A tree of one directory in the next, each named `d`, which no path reaches and nothing that recurses removes.
struct Deep {
    directory: tempfile::TempDir,
    root: OwnedFd,
}

impl Deep {
    fn new(depth: u32) -> Self {
        let directory = directory_in_memory();
        let root =
            openat(CWD, directory.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("it is there");
        let mut at = root.try_clone().expect("a descriptor");
        for _ in 0..depth {
            mkdirat(&at, "d", Mode::RWXU).expect("a directory");
            mknodat(&at, "file", FileType::RegularFile, Mode::RUSR, 0).expect("a file");
            at = self::directory(&at, "d");
        }
        Self { directory, root }
    }
}

impl Drop for Deep {
    /// The second directory takes the place of the first, until there is none.
    fn drop(&mut self) {
        let _ = unlinkat(&self.root, "file", AtFlags::empty());
        while let Ok(first) = openat(&self.root, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            let _ = unlinkat(&first, "file", AtFlags::empty());
            let _ = renameat(&first, "d", &self.root, "e");
            if unlinkat(&self.root, "d", AtFlags::REMOVEDIR).is_err() {
                break;
            }
            let _ = renameat(&self.root, "e", &self.root, "d");
        }
    }
}

#[test]
fn a_tree_of_twenty_thousand_levels_is_counted_within_the_bounds() {
    const DEPTH: u32 = 20_000;
    let deep = Deep::new(DEPTH);
    let (outcome, bytes, descriptors) = measured(deep.directory.path());
    assert_eq!((outcome.count.inodes, outcome.incomplete), (2 * u64::from(DEPTH) + 1, None));
    assert!(bytes < MAX_BYTES, "{bytes} bytes");
    // Other tests run beside this one, with scans of their own.
    assert!(descriptors < 32 * 4 + 100, "{descriptors} descriptors");
}

#[test]
fn a_directory_of_two_hundred_thousand_entries_is_counted_within_the_bounds() {
    counted(&directory_in_memory(), 200_000);
}

/// On a disk: as many inodes take 10 GiB of memory.
#[test]
#[ignore = "it takes minutes and 3 GiB of a disk: `cargo xtask test --long checks`"]
fn a_directory_of_ten_million_entries_is_counted_within_the_bounds() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    counted(&directory, 10_000_000);
}

fn counted(directory: &tempfile::TempDir, files: u32) {
    let at = openat(CWD, directory.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("it is there");
    for number in 0..files {
        mknodat(&at, number.to_string(), FileType::RegularFile, Mode::RUSR, 0).expect("a file");
    }
    let (outcome, bytes, _) = measured(directory.path());
    assert_eq!((outcome.count.inodes, outcome.incomplete), (u64::from(files) + 1, None));
    assert!(bytes < 256 << 10, "{bytes} bytes, and no inode has to be remembered");
}

#[test]
fn more_files_with_several_names_than_are_remembered_count_once_within_the_bounds() {
    const FILES: u32 = 20_000;
    let directory = directory_in_memory();
    for number in 0..FILES {
        let path = directory.path().join(number.to_string());
        fs::write(&path, "x").expect("a file");
        fs::hard_link(&path, path.with_extension("again")).expect("a link");
    }
    let own = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(directory.path()).expect("it is there"));
    let one = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(directory.path().join("0")).expect("it is there"));
    let (outcome, bytes, _) = measured(directory.path());
    assert_eq!((outcome.count.inodes, outcome.incomplete), (u64::from(FILES) + 1, None));
    assert_eq!(outcome.count.bytes, 512 * (own + u64::from(FILES) * one));
    assert!(bytes < MAX_BYTES, "{bytes} bytes");
}

#[test]
fn a_tree_that_others_change_meanwhile_ends_the_scan_with_what_rested_counted() {
    let directory = directory_in_memory();
    let (rests, moves) = (directory.path().join("rests"), directory.path().join("moves"));
    for name in ["a", "b", "c"] {
        fs::create_dir_all(rests.join(name).join(name)).expect("a directory");
        fs::write(rests.join(name).join("file"), [1; 9000]).expect("a file");
    }
    let rested = finish(&mut Scan::of(&rests).expect("it is there"));
    fs::create_dir(&moves).expect("a directory");
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let change = || {
            let mut round = 0_u32;
            while !ends.load(Ordering::Relaxed) {
                let [one, other] = ["one", "other"].map(|name| moves.join(name).join("below").join("below"));
                let again = fs::create_dir_all(&one)
                    .and_then(|()| fs::write(one.join(round.to_string()), [1; 100]))
                    .and_then(|()| fs::rename(moves.join("one"), moves.join("other")))
                    .and_then(|()| fs::rename(&other, moves.join("up")))
                    .and_then(|()| std::os::unix::fs::symlink("..", moves.join("other").join("loop")))
                    .and_then(|()| fs::remove_dir_all(moves.join("up")))
                    .and_then(|()| fs::remove_dir_all(moves.join("other")));
                again.expect("nothing else changes it");
                round += 1;
            }
        };
        let changing = scope.spawn(change);
        for _ in 0..100 {
            let mut scan = Scan::of(directory.path()).expect("it is there");
            let outcome = finish(&mut scan);
            // Nothing here is deep enough to lose the way, and what vanishes is nothing.
            assert_eq!(outcome.incomplete, None);
            assert!(outcome.count.inodes >= rested.count.inodes + 2, "{outcome:?} {rested:?}");
            assert!(outcome.count.bytes >= rested.count.bytes, "{outcome:?} {rested:?}");
        }
        ends.store(true, Ordering::Relaxed);
        changing.join().expect("it changed the tree to the end");
    });
}
