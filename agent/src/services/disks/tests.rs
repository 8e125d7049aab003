//! Turns of reading, without their pace.

use super::*;
use plimsoll_policy::kubelet::StatsTime;
use std::thread::yield_now;

fn disks(kubelet: &Path, images: Result<(PathBuf, Option<PathBuf>), String>, text: &str) -> Disks {
    let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
    let thresholds = configuration.disk_policy().thresholds;
    let mounts = Mounts::open().expect("this is Linux");
    Disks::start(Sources { kubelet: kubelet.to_owned(), images, mounts, thresholds }).expect("a thread")
}

const GIB: u64 = 1 << 30;

/// The next readings: by turns, without their pace.
fn next(disks: &mut Disks) -> Vec<DiskReading> {
    loop {
        let (readings, _) = disks.turn(monotonic());
        if !readings.is_empty() {
            return readings;
        }
        yield_now();
    }
}

fn roles(readings: &[DiskReading]) -> Vec<DiskRole> {
    readings.iter().map(|reading| reading.role).collect()
}

const THRESHOLDS: &str = "evictionHard: {nodefs.available: \"1\", imagefs.available: \"1\"}\n";

#[test]
fn each_disk_is_read_and_one_that_holds_images_and_layers_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let images = directory.path().join("images");
    std::fs::create_dir(&images).expect("a directory");
    let mut one = disks(directory.path(), Ok((images, None)), THRESHOLDS);
    let read = next(&mut one);
    assert_eq!(roles(&read), DiskRole::ALL);
    assert!(read[0].bytes.is_some_and(|room| room.left <= room.all && room.all > 0), "{read:?}");
    let again = next(&mut one);
    assert!(again[0].at > read[0].at, "{again:?} {read:?}");
    let mut apart = disks(directory.path(), Ok(("/proc".into(), None)), THRESHOLDS);
    // That of /proc counts neither bytes nor inodes, which is no zero.
    let image = loop {
        let read = next(&mut apart);
        // Each is read by a thread of its own, which may take until a later turn.
        assert!(!roles(&read).contains(&DiskRole::Container), "{read:?}");
        if let Some(image) = read.into_iter().find(|reading| reading.role == DiskRole::Image) {
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
