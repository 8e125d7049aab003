//! Scans of trees that are known, and of some that change under them.

use super::levels::MAX_OPEN;
use super::*;
use proptest::prelude::*;
use rustix::fs::{CWD, mkfifoat, openat};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use tempfile::TempDir;

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Steps to the end.
fn finish(scan: &mut Scan, entries: u32) -> Outcome {
    loop {
        if let Progress::Done(outcome) = scan.step(entries) {
            return outcome;
        }
    }
}

fn scan(path: &Path, entries: u32) -> Outcome {
    finish(&mut Scan::of(path).expect("it can be opened"), entries)
}

/// The sum as one would write it for a tree that means no harm.
fn simple(path: &Path, known: &mut HashSet<u64>) -> Count {
    let metadata = fs::symlink_metadata(path).expect("nothing vanishes here");
    let mut count = Count { bytes: metadata.blocks() * 512, inodes: 1 };
    if metadata.is_dir() {
        for entry in fs::read_dir(path).expect("it can be read") {
            count = count.plus(simple(&entry.expect("it can be read").path(), known));
        }
    } else if metadata.nlink() > 1 && !known.insert(metadata.ino()) {
        return Count::default();
    }
    count
}

/// What is put into a directory of a tree that is made up.
#[derive(Clone, Debug)]
enum Made {
    Directory,
    File(Vec<u8>),
    /// A file with a hole of so many bytes, and one byte behind it.
    Sparse(u32),
    /// Another name of the file with this number.
    HardLink(prop::sample::Index),
    /// To the directory with this number: mostly one above, so that it is a loop.
    Link(prop::sample::Index),
    Dangling,
    Fifo,
}

fn made() -> impl Strategy<Value = (prop::sample::Index, Made)> {
    let kind = prop_oneof![
        4 => Just(Made::Directory),
        4 => proptest::collection::vec(any::<u8>(), 0..20_000).prop_map(Made::File),
        1 => (1_u32..1 << 24).prop_map(Made::Sparse),
        3 => any::<prop::sample::Index>().prop_map(Made::HardLink),
        2 => any::<prop::sample::Index>().prop_map(Made::Link),
        1 => Just(Made::Dangling),
        1 => Just(Made::Fifo),
    ];
    (any::<prop::sample::Index>(), kind)
}

fn make(root: &Path, tree: &[(prop::sample::Index, Made)]) {
    let (mut directories, mut files) = (vec![root.to_owned()], Vec::<PathBuf>::new());
    for (number, (parent, kind)) in tree.iter().enumerate() {
        // No name is UTF-8.
        let path =
            parent.get(&directories).join(OsStr::from_bytes(&[b"\xff\xfe"[number % 2], b"0123456789"[number % 10]]));
        let path = path.with_extension(number.to_string());
        match kind {
            Made::Directory => {
                fs::create_dir(&path).expect("a directory");
                directories.push(path);
            }
            Made::File(bytes) => {
                fs::write(&path, bytes).expect("a file");
                files.push(path);
            }
            Made::Sparse(bytes) => {
                let file = fs::File::create(&path).expect("a file");
                std::os::unix::fs::FileExt::write_all_at(&file, b"x", (*bytes).into()).expect("a byte");
                files.push(path);
            }
            Made::HardLink(file) if !files.is_empty() => fs::hard_link(file.get(&files), &path).expect("a link"),
            Made::Link(to) => symlink(to.get(&directories), &path).expect("a link"),
            Made::Dangling | Made::HardLink(_) => symlink("nowhere", &path).expect("a link"),
            Made::Fifo => mkfifoat(CWD, &path, Mode::RUSR).expect("a fifo"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_scan_finds_what_a_simple_sum_finds(
        tree in proptest::collection::vec(made(), 0..60), entries in 1_u32..200,
    ) {
        let directory = directory();
        make(directory.path(), &tree);
        let expected = simple(directory.path(), &mut HashSet::new());
        let found = scan(directory.path(), entries);
        prop_assert_eq!(found, Outcome { count: expected, incomplete: None });
    }
}

/// A chain of directories, each with a file, and the paths down to the last.
fn chain(root: &Path, depth: usize) -> Vec<PathBuf> {
    let mut paths = vec![root.to_owned()];
    for _ in 0..depth {
        let path = paths[paths.len() - 1].join("d");
        fs::create_dir(&path).expect("a directory");
        fs::write(path.join("file"), [1; 100]).expect("a file");
        paths.push(path);
    }
    paths
}

#[test]
fn a_step_goes_so_many_entries_and_the_end_is_said_again() {
    let directory = directory();
    chain(directory.path(), 3);
    let mut scan = Scan::of(directory.path()).expect("it can be opened");
    // Four directories, each with itself, the one above and its end, and three files and three names of directories.
    let entries = 4 * 3 + 3 + 3;
    assert_eq!(scan.step(entries), Progress::More);
    let Progress::Done(outcome) = scan.step(1) else { panic!("it has ended") };
    assert_eq!((outcome.count.inodes, scan.step(1)), (7, Progress::Done(outcome)));
}

#[test]
fn what_is_deeper_than_is_held_open_is_counted_with_all_beside_it() {
    let directory = directory();
    let depth = 3 * MAX_OPEN;
    chain(directory.path(), depth);
    let expected = simple(directory.path(), &mut HashSet::new());
    assert_eq!(expected.inodes, 2 * depth as u64 + 1);
    assert_eq!(scan(directory.path(), 7), Outcome { count: expected, incomplete: None });
}

#[test]
fn a_tree_that_vanishes_under_the_scan_ends_it_in_order() {
    let depth = 2 * MAX_OPEN;
    for steps in (0..4 * depth).step_by(7) {
        let directory = directory();
        let paths = chain(directory.path(), depth);
        let mut scan = Scan::of(directory.path()).expect("it can be opened");
        assert_eq!(scan.step(u32::try_from(steps).expect("few")), Progress::More);
        fs::remove_dir_all(&paths[1]).expect("it exists");
        let outcome = finish(&mut scan, 100);
        assert_eq!(outcome.incomplete, None, "{steps}");
        assert!(outcome.count.inodes <= 2 * depth as u64 + 1, "{steps} {outcome:?}");
    }
}

#[test]
fn a_directory_that_is_moved_away_leads_the_scan_nowhere_else() {
    let (inside, outside) = (directory(), directory());
    let paths = chain(inside.path(), 2 * MAX_OPEN);
    for name in 0..50 {
        fs::write(outside.path().join(name.to_string()), [1; 5000]).expect("a file");
    }
    let mut scan = Scan::of(inside.path()).expect("it can be opened");
    // To the bottom, from where the way up leads through the directory that is moved.
    while scan.levels.depth() < 2 * MAX_OPEN {
        assert_eq!(scan.step(1), Progress::More);
    }
    fs::rename(&paths[10], outside.path().join("moved")).expect("it can be moved");
    let outcome = finish(&mut scan, 100);
    assert_eq!(outcome.incomplete, Some(Incomplete::Moved));
    let all = 2 * (2 * MAX_OPEN as u64) + 1;
    assert!(outcome.count.inodes <= all, "nothing of the other directory is counted: {outcome:?}");
    // One that is still held open is gone on with, as by the kubelet.
    let inside = directory();
    let near = chain(inside.path(), 5);
    let mut scan = Scan::of(inside.path()).expect("it can be opened");
    while scan.levels.depth() < 5 {
        assert_eq!(scan.step(1), Progress::More);
    }
    fs::rename(&near[2], outside.path().join("near")).expect("it can be moved");
    assert_eq!(finish(&mut scan, 100).incomplete, None);
}

#[test]
fn the_first_failure_makes_a_scan_incomplete_and_what_vanished_does_not() {
    let directory = directory();
    fs::create_dir(directory.path().join("closed")).expect("a directory");
    let mut scan = Scan::of(directory.path()).expect("it can be opened");
    for vanished in [Errno::NOENT, Errno::NOTDIR] {
        assert!(scan.missed(vanished));
    }
    assert_eq!(scan.incomplete, None);
    assert!(scan.missed(Errno::IO) && scan.missed(Errno::ACCESS));
    let outcome = finish(&mut scan, 10);
    assert_eq!((outcome.incomplete, outcome.count.inodes), (Some(Incomplete::Failed(Errno::IO)), 2));
}

#[test]
fn mounts_below_are_not_entered() {
    // Every machine has several in /dev, and none has as many entries as they have.
    let is_mount = |path: &Path| {
        let stat = |path: &Path| fs::symlink_metadata(path).map(|metadata| metadata.dev()).ok();
        stat(path) != stat(Path::new("/dev"))
    };
    let pts = Path::new("/dev/pts");
    assert!(is_mount(pts), "/dev/pts is expected to be a mount");
    let dev = openat(CWD, "/dev", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("it can be opened");
    let mut scan = Scan::tree(dev).expect("it can be read");
    let home = scan.home;
    let mut of_pts = 0;
    while scan.step(1) == Progress::More {
        let inside = scan.levels.current().and_then(|directory| stat(directory.fd().ok()?, c"").ok());
        of_pts += u32::from(inside.is_some_and(|stat| !home.has(&stat)));
    }
    assert_eq!(of_pts, 0);
    let expected = fs::read_dir("/dev").expect("it can be read").filter_map(Result::ok);
    let here = expected.filter(|entry| !is_mount(&entry.path())).count() as u64;
    assert!(scan.count.inodes > here && here > 0, "the rest is: {} of {here}", scan.count.inodes);
}
