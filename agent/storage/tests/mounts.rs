//! What needs mounts: a tmpfs as an `emptyDir`, and mounts within a tree. They are made in a mount namespace, in which each
//! test runs itself.

use plimsoll_policy::kubelet::DiskLayout;
use plimsoll_storage::{Count, Measure, Part, PodDirectories, PodName, Progress, Roots, Scan, VolumeKind, find};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const POD: PodName<'_> = PodName { name: Some(("default", "web-0")), uid: "6f1c" };

/// A mount, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(at: &Path) -> Self {
        fs::create_dir_all(at).expect("a directory");
        mount("tmpfs", at, "tmpfs", MountFlags::empty(), c"size=8M,nr_inodes=1000")
            .expect("a mount: is this a mount namespace of its own?");
        Self(at.to_owned())
    }

    fn bind(of: &Path, at: &Path) -> Self {
        if of.is_dir() {
            fs::create_dir_all(at).expect("a directory");
        }
        mount_bind(of, at).expect("a mount");
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn scanned(mut scan: Scan) -> Count {
    match scan.step(10_000) {
        Progress::Done(outcome) if outcome.incomplete.is_none() => outcome.count,
        other => panic!("{other:?}"),
    }
}

/// Set in the mount namespace of a test.
const INSIDE: &str = "PLIMSOLL_IN_A_MOUNT_NAMESPACE";

/// Whether this is a mount namespace of the test with this name. Where it is not, the test is run in one, and has passed
/// there when this returns.
fn is_inside(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let own = std::env::current_exe().expect("this program");
    let inside = format!("{INSIDE}=1");
    let run = |way: &[&str], command: &[&OsStr]| {
        let ended = Command::new(way[0]).args(&way[1..]).args(command).output().expect("it can be started");
        let said = [ended.stdout, ended.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        (ended.status.success(), said)
    };
    // As a user where the kernel allows that, which AppArmor may not.
    let ways: [&[&str]; 3] = [
        &["unshare", "--mount"],
        &["unshare", "--user", "--map-root-user", "--mount"],
        &["sudo", "unshare", "--mount"],
    ];
    let way = ways.iter().find(|way| run(way, &["true".as_ref()]).0);
    let way = way.expect("as root, with sudo or in a user namespace, a mount namespace can be made");
    let command = ["env", &inside].map(OsStr::new);
    let (is_success, said) = run(way, &[&command[..], &[own.as_os_str(), "--exact".as_ref(), name.as_ref()]].concat());
    assert!(is_success && said.contains("1 passed"), "{way:?}: {said}");
    false
}

#[test]
fn an_empty_dir_in_memory_is_what_its_tmpfs_says_removed_files_included() {
    if !is_inside("an_empty_dir_in_memory_is_what_its_tmpfs_says_removed_files_included") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let volume = directory.path().join("pods/6f1c/volumes/kubernetes.io~empty-dir/data");
    let _mounted = Mounted::tmpfs(&volume);
    let measured = |at: &Path| {
        PodDirectories::open(at, at).pod(POD).and_then(|pod| pod.measure(Part::Volume(VolumeKind::EmptyDir, "data")))
    };
    let measure = || match measured(directory.path()) {
        Ok(Measure::InMemory(count)) => count,
        other => panic!("{other:?}"),
    };
    assert_eq!(measure(), Count { bytes: 0, inodes: 1 });
    fs::write(volume.join("file"), [1; 10_000]).expect("a file");
    let file = fs::File::open(volume.join("file")).expect("it is there");
    let full = measure();
    assert_eq!(full, scanned(Scan::of(&volume).expect("it is there")), "as the kubelet's walk finds it");
    assert_eq!((full.bytes / 1000, full.inodes), (12, 2));
    fs::remove_file(volume.join("file")).expect("it is there");
    assert_eq!(measure().bytes, full.bytes, "still open");
    drop(file);
    assert_eq!(measure().bytes, 0);
    // A directory that is no mount is walked, on a tmpfs too.
    fs::create_dir_all(volume.join("pods/6f1c/volumes/kubernetes.io~empty-dir/data")).expect("a directory");
    let inner = measured(&volume);
    assert!(matches!(inner, Ok(Measure::Scan(_))), "{inner:?}");
}

#[test]
fn a_scan_enters_no_mount_not_even_one_of_the_same_file_system() {
    if !is_inside("a_scan_enters_no_mount_not_even_one_of_the_same_file_system") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (tree, beside) = (directory.path().join("tree"), directory.path().join("beside"));
    for path in ["tree/tmpfs", "tree/bind", "beside"] {
        fs::create_dir_all(directory.path().join(path)).expect("a directory");
    }
    fs::write(beside.join("file"), [1; 10_000]).expect("a file");
    fs::write(tree.join("file"), []).expect("a file");
    let before = scanned(Scan::of(&tree).expect("it is there"));
    let _tmpfs = Mounted::tmpfs(&tree.join("tmpfs"));
    let _bind = Mounted::bind(&beside, &tree.join("bind"));
    let _file = Mounted::bind(&beside.join("file"), &tree.join("file"));
    let after = scanned(Scan::of(&tree).expect("it is there"));
    assert_eq!((before.inodes, after.inodes), (4, 1), "what is mounted over is not of this mount");
    assert!(after.bytes <= before.bytes, "{before:?} {after:?}");
}

#[test]
fn bind_mounts_of_one_disk_are_one_and_disks_of_their_own_are_distinguished() {
    if !is_inside("bind_mounts_of_one_disk_are_one_and_disks_of_their_own_are_distinguished") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let [kubelet, images, elsewhere] = ["kubelet", "images", "elsewhere"].map(|name| directory.path().join(name));
    fs::create_dir(&kubelet).expect("a directory");
    fs::create_dir(&elsewhere).expect("a directory");
    let layout = |containers: Option<&Path>| {
        find(Roots { kubelet: &kubelet, images: &images, containers }).expect("all are there").layout
    };
    let bound = Mounted::bind(&elsewhere, &images);
    assert_eq!(layout(None), DiskLayout::Single);
    drop(bound);
    let _own = Mounted::tmpfs(&images);
    assert_eq!(layout(None), DiskLayout::DedicatedImageFs);
    assert_eq!(layout(Some(&images)), DiskLayout::DedicatedImageFs);
    assert_eq!(layout(Some(&kubelet)), DiskLayout::SplitImageFs);
    // The directory is not mounted itself, but is on what is.
    fs::create_dir(images.join("snapshots")).expect("a directory");
    let found = find(Roots { kubelet: &kubelet, images: &images.join("snapshots"), containers: None });
    assert_eq!(found.expect("both are there").image.measured_at, images);
}
