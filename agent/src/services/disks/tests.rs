//! Turns of reading, without their pace.

use super::*;
use plimsoll_policy::kubelet::StatsTime;
use std::thread::yield_now;

fn disks(kubelet: &Path, directories: Result<Directories, String>, text: &str) -> Disks {
    let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
    let thresholds = configuration.disk_policy().thresholds;
    let mounts = Mounts::open().expect("this is Linux");
    let unasked = Some("no runtime".to_owned());
    let sources = Sources { kubelet: kubelet.to_owned(), unasked, mounts, thresholds };
    let disks = Disks::start(sources, Stir::new()).expect("a thread");
    *disks.located.lock() = directories;
    disks
}

fn images_at(images: impl Into<PathBuf>) -> Directories {
    Directories { images: images.into(), layers: None }
}

const GIB: u64 = 1 << 30;

/// Twice the pace of looks at which disks there are.
const LOOKED_AGAIN: Duration = Duration::from_mins(1);

/// The next readings: by turns, without their pace.
fn next(disks: &mut Disks) -> Vec<(DiskReading, Duration)> {
    loop {
        let (readings, _) = disks.turn(monotonic());
        if !readings.is_empty() {
            return readings;
        }
        yield_now();
    }
}

fn roles(readings: &[(DiskReading, Duration)]) -> Vec<DiskRole> {
    readings.iter().map(|(reading, _)| reading.role).collect()
}

const THRESHOLDS: &str = "evictionHard: {nodefs.available: \"1\", imagefs.available: \"1\"}\n";

#[test]
fn each_disk_is_read_and_one_that_holds_images_and_layers_once() {
    let (begun, directory) = (Instant::now(), tempfile::tempdir().expect("a directory"));
    let images = directory.path().join("images");
    std::fs::create_dir(&images).expect("a directory");
    let mut one = disks(directory.path(), Ok(images_at(images)), THRESHOLDS);
    // On a machine that is busy enough a directory does not answer in time, and counts as a disk of its own until the next look.
    let read = loop {
        let read = next(&mut one);
        if roles(&read) == DiskRole::ALL {
            break read;
        }
        assert!(begun.elapsed() < LOOKED_AGAIN, "{read:?}");
    };
    let (node, cost) = read[0];
    assert!(node.bytes.is_some_and(|room| room.left <= room.all && room.all > 0), "{read:?}");
    assert!(cost > Duration::ZERO && read.iter().all(|(_, other)| *other == cost), "it is read once: {read:?}");
    let again = next(&mut one);
    assert!(again[0].0.at > node.at, "{again:?} {read:?}");
    let mut apart = disks(directory.path(), Ok(images_at("/proc")), THRESHOLDS);
    // That of /proc counts neither bytes nor inodes, which is no zero.
    let image = loop {
        let read = next(&mut apart);
        // Each is read by a thread of its own, which may take until a later turn.
        assert!(!roles(&read).contains(&DiskRole::Container), "{read:?}");
        if let Some((image, _)) = read.into_iter().find(|(reading, _)| reading.role == DiskRole::Image) {
            break image;
        }
    };
    assert_eq!((image.bytes, image.inodes), (None, None));
}

#[test]
fn without_a_runtime_nodefs_alone_is_read_and_a_directory_that_is_missing_is_found_once_it_is_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let kubelet = directory.path().join("kubelet");
    let mut disks = disks(&kubelet, Err("no runtime".to_owned()), THRESHOLDS);
    while disks.troubles.is_empty() {
        assert_eq!(disks.turn(monotonic()).0, []);
        yield_now();
    }
    assert!(disks.troubles["disks are not read"].contains("kubelet"), "{:?}", disks.troubles);
    std::fs::create_dir(&kubelet).expect("a directory");
    disks.layout_due = monotonic();
    assert_eq!(roles(&next(&mut disks)), [DiskRole::Node]);
    assert_eq!(disks.troubles.keys().collect::<Vec<_>>(), ["imagefs and containerfs are not read"]);
}

/// What the runtime says of this directory.
fn said(images: &str) -> FileSystems {
    let directory = PathBuf::from(images);
    let images = vec![plimsoll_cri::FileSystem { directory, used: None, inodes: None, counted: None }];
    FileSystems { images, containers: Vec::new() }
}

#[test]
fn directories_are_followed_and_hold_while_the_runtime_does_not_say_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut disks = disks(directory.path(), Err("no runtime".to_owned()), THRESHOLDS);
    assert_eq!(roles(&next(&mut disks)), [DiskRole::Node]);
    let layout = |disks: &mut Disks, expected| {
        while next(disks).iter().all(|(reading, _)| reading.layout != Some(expected)) {
            yield_now();
        }
    };
    disks.locate(Ok(said("/proc")));
    layout(&mut disks, DiskLayout::DedicatedImageFs);
    assert!(disks.troubles.is_empty(), "{:?}", disks.troubles);
    for silent in [Err("it is away".to_owned()), Ok(FileSystems::default())] {
        disks.locate(silent);
        assert_eq!(*disks.located.lock(), Ok(images_at("/proc")));
    }
    disks.locate(Ok(said(directory.path().to_str().expect("a path"))));
    layout(&mut disks, DiskLayout::Single);
}

#[test]
fn until_the_runtime_has_had_its_time_nodefs_is_not_read_alone() {
    let mounts = Mounts::open().expect("this is Linux");
    let sources = Sources { kubelet: "/".into(), unasked: None, mounts, thresholds: Vec::new() };
    let mut disks = Disks::start(sources, Stir::new()).expect("a thread");
    let (_, wait) = (disks.turn(monotonic()), disks.turn(monotonic()).1);
    assert!(wait <= RUNTIME_SAYS && disks.layout.outstanding(monotonic()).is_none(), "{wait:?}");
    disks.locate(Err("it is away".to_owned()));
    assert_eq!(roles(&next(&mut disks)), [DiskRole::Node]);
}

#[test]
fn a_disk_stirs_what_waits_for_it_once_it_has_moved_since_the_last_time() {
    let mut disks = disks(Path::new("/"), Err("no runtime".to_owned()), THRESHOLDS);
    let read = |available| Some(FsStats { available: Some(available), ..FsStats::default() });
    for (available, expected) in [(GIB, GIB), (GIB + 1, GIB), (GIB - 1, GIB), (GIB * 2, GIB * 2), (GIB * 2, GIB * 2)] {
        let (rest, before) = (disks.moved.rest(), disks.still);
        disks.note(DiskRole::Image, read(available));
        assert_eq!(disks.still, [None, read(expected), None], "{available}");
        assert_eq!(rest.is_over(), disks.still != before, "{available}");
    }
    let rest = disks.moved.rest();
    disks.take_readings(monotonic());
    assert!(rest.is_over(), "images are on a disk that is not read");
}

#[test]
fn the_nearest_threshold_sets_the_pace() {
    let text = "evictionHard: {nodefs.available: 10Gi, nodefs.inodesFree: \"100\", imagefs.available: 10Gi}\n";
    let mut disks = disks(Path::new("/"), Err("no runtime".to_owned()), text);
    let stats = |available, inodes_free, second: i64| FsStats {
        available: Some(available),
        capacity: Some(100 * GIB),
        inodes_free: Some(inodes_free),
        inodes: Some(1 << 40),
        time: Some(StatsTime(second * 1_000_000_000)),
    };
    let ms = Duration::from_millis;
    for (bytes, inodes, pace) in [
        (100 * GIB, 1 << 40, ms(10_000)),
        (26 * GIB, 1 << 40, ms(2000)),
        (26 * GIB, 500_100, ms(1000)),
        (26 * GIB, 50, ms(1000)),
        (9 * GIB, 1 << 40, ms(1000)),
    ] {
        disks.read[DiskRole::Node as usize] = [Some(stats(bytes, inodes, 1)), Some(stats(bytes, inodes, 2))];
        assert_eq!(disks.pace(monotonic()), pace, "{bytes} {inodes}");
    }
    disks.read[DiskRole::Node as usize] = [Some(stats(90 * GIB, 1 << 40, 1)), Some(stats(11 * GIB, 1 << 40, 2))];
    assert_eq!(disks.pace(monotonic()), ms(200), "a writer was seen");
    disks.read = [[None; 2]; DiskRole::ALL.len()];
    assert_eq!(disks.pace(monotonic()), ms(10_000), "nothing is known");
}

#[test]
fn of_a_disk_that_is_still_the_core_is_sent_what_thresholds_are_about_and_one_reading_in_a_while() {
    let text = "evictionHard: {nodefs.available: 10Gi}\nevictionMinimumReclaim: {nodefs.available: 5Gi}\n";
    let mut disks = disks(Path::new("/"), Err("no runtime".to_owned()), text);
    for (second, role, left, is_news) in [
        (0, DiskRole::Node, 90, true),
        (0, DiskRole::Image, 1, true),
        (1, DiskRole::Node, 16, false),
        (2, DiskRole::Image, 1, false),
        // The first one below counts at once, and so does the first one above.
        (3, DiskRole::Node, 9, true),
        (4, DiskRole::Node, 9, true),
        // What it was to be freed to is not reached.
        (5, DiskRole::Node, 14, true),
        (6, DiskRole::Node, 15, true),
        (7, DiskRole::Node, 15, false),
        (15, DiskRole::Node, 15, false),
        (16, DiskRole::Node, 15, true),
    ] {
        let bytes = Some(Room { left: left * GIB, all: 100 * GIB });
        let at = MonotonicNs(0).after(Duration::from_secs(second));
        let reading = DiskReading { role, bytes, inodes: None, at, layout: None };
        assert_eq!(disks.is_news(&reading, Duration::from_secs(1)), is_news, "{second} s, {role:?}");
    }
    let bytes = Some(Room { left: 15 * GIB, all: 100 * GIB });
    let at = MonotonicNs(0).after(Duration::from_secs(21));
    let reading = DiskReading { role: DiskRole::Node, bytes, inodes: None, at, layout: None };
    assert!(!disks.is_news(&reading, Duration::from_secs(5)), "the next one is soon enough");
    assert!(disks.is_news(&reading, Duration::from_secs(6)), "the next one would be too late");
    let at = MonotonicNs(0).after(Duration::from_secs(22));
    let (bytes, layout) = (Some(Room { left: 15 * GIB, all: 100 * GIB }), Some(DiskLayout::Single));
    assert!(
        disks.is_news(&DiskReading { role: DiskRole::Node, bytes, inodes: None, at, layout }, Duration::ZERO),
        "another layout"
    );
}
