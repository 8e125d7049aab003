//! Where a pod's local storage is, and how each part of it is measured.
//!
//! Writable layers are the runtime's to report, and come in as parameters. A `hostPath` is not measured, as the kubelet
//! measures none (`MetricsNil`), and neither are secrets, projections and the downward API, which no decision counts.

use crate::directory;
use crate::error::StorageError;
use crate::scan::{Count, Scan};
use crate::statfs::Figures;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags, fstatfs, openat, statx};
use rustix::io::Errno;
use std::ffi::CStr;
use std::path::{Component, Path, PathBuf};

/// What a pod's directories are named after. The UID of a static pod is the kubelet's own, not that of its mirror.
#[derive(Clone, Copy, Debug)]
pub struct PodName<'a> {
    /// Its namespace and name, which its logs are found by; absent of one whose logs are not known.
    pub name: Option<(&'a str, &'a str)>,
    /// Its UID.
    pub uid: &'a str,
}

/// The volumes that lie in the kubelet's directory and count as the pod's own (`IsLocalEphemeralVolume`,
/// pkg/volume/util/util.go), and `emptyDir` in memory, which has a limit to be held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VolumeKind {
    /// On disk, in memory, or of huge pages.
    EmptyDir,
    /// A `configMap`.
    ConfigMap,
    /// A `gitRepo`.
    GitRepo,
}

impl VolumeKind {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::EmptyDir, Self::ConfigMap, Self::GitRepo];

    /// The plugin's name as directories have it (`EscapeQualifiedName`).
    pub const fn plugin(self) -> &'static str {
        match self {
            Self::EmptyDir => "kubernetes.io~empty-dir",
            Self::ConfigMap => "kubernetes.io~configmap",
            Self::GitRepo => "kubernetes.io~git-repo",
        }
    }
}

/// A part of a pod's local storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// All files in the log directory of this container, rotated ones included (`getPodContainerLogStats`,
    /// pkg/kubelet/stats/host_stats_provider.go).
    ContainerLogs(&'a str),
    /// All files beside those directories (`getPodLogStats`).
    PodLogs,
    /// The volume of this kind and name.
    Volume(VolumeKind, &'a str),
    /// The file that the kubelet writes to be its containers' `/etc/hosts` (`getPodEtcHostsStats`); nothing where the pod
    /// has none.
    EtcHosts,
}

/// How a part is measured.
#[derive(Debug)]
pub enum Measure {
    /// At once.
    Done(Count),
    /// By a scan, to be gone on with.
    Scan(Box<Scan>),
    /// At once: a volume in memory, which takes nothing of a disk.
    InMemory(Count),
    /// By a scan of such a volume, of huge pages or on a tmpfs without bounds.
    ScanInMemory(Box<Scan>),
}

/// The directories that pods' storage is in, opened for one round. Each is followed to where it is a link.
#[derive(Debug)]
pub struct PodDirectories {
    /// `pods` in the kubelet's own (`--root-dir`, `/var/lib/kubelet`).
    pods: Place,
    /// That of logs (`podLogsDir`, `/var/log/pods`).
    logs: Place,
}

impl PodDirectories {
    /// In the kubelet's directory, and of logs. May hang where a disk does.
    pub fn open(kubelet: &Path, logs: &Path) -> Self {
        Self { pods: Place::at(kubelet.join("pods")), logs: Place::at(logs.to_owned()) }
    }

    /// What the kubelet has a directory of, in order and `most` of them at most.
    ///
    /// # Errors
    /// Where that cannot be listed, or is not there, which [`StorageError::is_not_found`] knows.
    pub fn pods(&self, most: usize) -> Result<Vec<String>, StorageError> {
        self.pods.names(most).map_err(|errno| self.pods.failed(errno))
    }

    /// Likewise the directories of logs.
    pub fn logs(&self, most: usize) -> Option<Vec<String>> {
        self.logs.names(most).ok()
    }

    /// The directories of one pod. May hang where a disk does. One that is not there is an error of each part that would be in
    /// it, which [`StorageError::is_not_found`] knows.
    ///
    /// No link below the two directories is followed, and names that are not one component of a path are refused.
    pub fn pod(&self, pod: PodName<'_>) -> Result<PodDirectory, StorageError> {
        let PodName { name, uid } = pod;
        component("pod's UID", uid)?;
        let logs = match name {
            Some((namespace, name)) => {
                component("namespace", namespace)?;
                component("pod", name)?;
                Some(self.logs.below(format!("{namespace}_{name}_{uid}")))
            }
            None => None,
        };
        let own = self.pods.below(uid);
        let volumes = own.below("volumes");
        Ok(PodDirectory { volumes: VolumeKind::ALL.map(|kind| volumes.below(kind.plugin())), own, logs })
    }
}

/// The directories of one pod.
#[derive(Debug)]
pub struct PodDirectory {
    own: Place,
    /// Those of its volumes, by kind.
    volumes: [Place; VolumeKind::ALL.len()],
    logs: Option<Place>,
}

impl PodDirectory {
    /// The names of its volumes of this kind, in order and `most` of them at most. May hang where a disk does.
    pub fn volumes(&self, kind: VolumeKind, most: usize) -> Result<Vec<String>, StorageError> {
        self.volumes[kind as usize].names_if_there(most)
    }

    /// The names of the containers that have a directory of logs, likewise.
    pub fn containers(&self, most: usize) -> Result<Vec<String>, StorageError> {
        self.logs.as_ref().map_or(Ok(Vec::new()), |logs| logs.names_if_there(most))
    }

    /// Opens an `emptyDir` in which no process of the pod can have given a file another project: the pod has a user namespace
    /// of its own, from which the kernel changes none (`fileattr_set_prepare()`). The kubelet keeps the mapping of such a
    /// pod in its directory, where no container writes (`mappingsFile`, pkg/kubelet/userns/userns_manager.go). `None` of
    /// another pod, and where something is mounted as the volume. May hang where a disk does.
    pub fn volume_with_its_project(&self, volume: &str) -> Result<Option<OwnedFd>, StorageError> {
        component("volume", volume)?;
        let opened = || {
            if !self.own.has_file(c"userns")? {
                return Ok(None);
            }
            let directory = self.volumes[VolumeKind::EmptyDir as usize].below(volume).open()?;
            Ok((!is_mount_root(&directory)?).then_some(directory))
        };
        opened().map_err(|errno| self.own.failed(errno))
    }

    /// Begins to measure one part. May hang where a disk does.
    pub fn measure(&self, part: Part<'_>) -> Result<Measure, StorageError> {
        let logs = || self.logs.as_ref().ok_or_else(|| self.own.failed(Errno::NOENT));
        match part {
            Part::ContainerLogs(container) => {
                component("container", container)?;
                logs()?.below(container).files()
            }
            Part::PodLogs => logs()?.files(),
            Part::Volume(kind, volume) => {
                component("volume", volume)?;
                self.volumes[kind as usize].below(volume).volume(kind)
            }
            Part::EtcHosts => self.own.file(c"etc-hosts"),
        }
    }
}

/// A name that comes from outside and becomes a component of a path.
fn component(what: &'static str, name: &str) -> Result<(), StorageError> {
    let is_one = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
    if is_one { Ok(()) } else { Err(StorageError::Name { what, name: name.to_owned() }) }
}

/// A directory as it was found, not yet opened to be read, or why it was not.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    found: Result<OwnedFd, Errno>,
}

impl Place {
    /// What the path leads to.
    fn at(path: PathBuf) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // `open` would be a call of its own on x86-64, which a filter of system calls may not allow.
        let found = openat(CWD, &path, flags, Mode::empty());
        Self { path, found }
    }

    /// What is below it, if no link is on the way.
    fn below(&self, below: impl AsRef<Path>) -> Self {
        let below = below.as_ref();
        Self { path: self.path.join(below), found: self.descend(below) }
    }

    fn descend(&self, below: &Path) -> Result<OwnedFd, Errno> {
        let mut found: Option<OwnedFd> = None;
        for name in below.components() {
            let Component::Normal(name) = name else { return Err(Errno::INVAL) };
            let above = found.as_ref().map_or_else(|| self.found(), |found| Ok(found.as_fd()))?;
            let taken = directory::take(above, name)?;
            let stat = statx(&taken, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE)?;
            if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Symlink {
                return Err(Errno::LOOP);
            }
            found = Some(taken);
        }
        found.ok_or(Errno::INVAL)
    }

    fn found(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.found.as_ref().map(AsFd::as_fd).map_err(|errno| *errno)
    }

    fn open(&self) -> Result<OwnedFd, Errno> {
        directory::open(self.found()?)
    }

    /// The names in it, in order; those that are not UTF-8 are none of the kubelet's.
    fn names(&self, most: usize) -> Result<Vec<String>, Errno> {
        let mut names = Vec::new();
        for entry in Dir::new(self.open()?)? {
            match entry?.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
            if names.len() >= most {
                break;
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The same; none where it is not there, or no directory.
    fn names_if_there(&self, most: usize) -> Result<Vec<String>, StorageError> {
        match self.names(most) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(Vec::new()),
            names => names.map_err(|errno| self.failed(errno)),
        }
    }

    fn files(&self) -> Result<Measure, StorageError> {
        let scan = self.open().and_then(Scan::files);
        scan.map(|scan| Measure::Scan(Box::new(scan))).map_err(|errno| self.failed(errno))
    }

    /// A tmpfs that is mounted as the volume knows what is used of it, files that are removed and still open included,
    /// which a walk cannot see. The kubelet walks it.
    fn volume(&self, kind: VolumeKind) -> Result<Measure, StorageError> {
        let measure = || {
            let directory = self.open()?;
            // One on a disk is a directory of the kubelet's own file system.
            if kind != VolumeKind::EmptyDir || !is_mount_root(&directory)? {
                return Scan::tree(directory).map(|scan| Measure::Scan(Box::new(scan)));
            }
            match Figures::of(&fstatfs(&directory)?).used_of_tmpfs() {
                Some((bytes, inodes)) => Ok(Measure::InMemory(Count { bytes, inodes })),
                None => Scan::tree(directory).map(|scan| Measure::ScanInMemory(Box::new(scan))),
            }
        };
        measure().map_err(|errno| self.failed(errno))
    }

    fn file(&self, name: &CStr) -> Result<Measure, StorageError> {
        let stat = || {
            let wanted = StatxFlags::TYPE | StatxFlags::BLOCKS;
            match statx(self.found()?, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, wanted) {
                Ok(stat) => Ok(Count { bytes: stat.stx_blocks.saturating_mul(512), inodes: 1 }),
                Err(Errno::NOENT) => Ok(Count::default()),
                Err(errno) => Err(errno),
            }
        };
        stat().map(Measure::Done).map_err(|errno| self.failed(errno))
    }

    fn has_file(&self, name: &CStr) -> Result<bool, Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        match statx(self.found()?, name, flags, StatxFlags::TYPE) {
            Ok(stat) => Ok(FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    fn failed(&self, source: Errno) -> StorageError {
        StorageError::File { what: "measure", path: self.path.clone(), source }
    }
}

fn is_mount_root(directory: &OwnedFd) -> Result<bool, Errno> {
    let stat = statx(directory.as_fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE)?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::Progress;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    const POD: PodName<'_> = PodName { name: Some(("default", "web-0")), uid: "6f1c" };

    struct Node {
        directory: tempfile::TempDir,
    }

    impl Node {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            for path in ["disk/kubelet/pods/6f1c/volumes", "disk/logs/default_web-0_6f1c/app"] {
                fs::create_dir_all(directory.path().join(path)).expect("a directory");
            }
            // Both are elsewhere, as where they were moved to a larger disk.
            for (link, to) in [("kubelet", "disk/kubelet"), ("logs", "disk/logs")] {
                symlink(to, directory.path().join(link)).expect("a link");
            }
            Self { directory }
        }

        fn write(&self, path: &str, bytes: usize) -> u64 {
            let path = self.directory.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
            fs::write(&path, vec![1; bytes]).expect("a file");
            fs::metadata(&path).expect("it exists").blocks() * 512
        }

        fn measure(&self, part: Part<'_>) -> Result<Count, StorageError> {
            let [kubelet, logs] = ["kubelet", "logs"].map(|name| self.directory.path().join(name));
            match PodDirectories::open(&kubelet, &logs).pod(POD)?.measure(part)? {
                Measure::Done(count) | Measure::InMemory(count) => Ok(count),
                Measure::Scan(mut scan) | Measure::ScanInMemory(mut scan) => match scan.step(1000) {
                    Progress::Done(outcome) => Ok(outcome.count),
                    Progress::More => panic!("there are not so many"),
                },
            }
        }
    }

    #[test]
    fn logs_are_the_files_of_a_container_rotated_ones_included_and_those_beside_it() {
        let node = Node::new();
        let app = "disk/logs/default_web-0_6f1c/app";
        let bytes = node.write(&format!("{app}/0.log"), 5000)
            + node.write(&format!("{app}/0.log.20261122-101010.gz"), 100)
            + node.write(&format!("{app}/1.log"), 1);
        node.write(&format!("{app}/directory/other.log"), 5000);
        let beside = node.write("disk/logs/default_web-0_6f1c/beside.log", 10);
        assert_eq!(node.measure(Part::ContainerLogs("app")).expect("it exists"), Count { bytes, inodes: 3 });
        assert_eq!(node.measure(Part::PodLogs).expect("it exists"), Count { bytes: beside, inodes: 1 });
        let missing = node.measure(Part::ContainerLogs("other")).expect_err("it is missing");
        assert!(missing.is_not_found() && missing.to_string().contains("default_web-0_6f1c/other"), "{missing}");
    }

    #[test]
    fn volumes_are_trees_with_their_own_directory_and_hosts_are_one_file_or_none() {
        let node = Node::new();
        assert_eq!(node.measure(Part::EtcHosts).expect("none is none"), Count::default());
        let hosts = node.write("disk/kubelet/pods/6f1c/etc-hosts", 200);
        assert_eq!(node.measure(Part::EtcHosts).expect("it exists"), Count { bytes: hosts, inodes: 1 });
        for (kind, plugin) in [
            (VolumeKind::EmptyDir, "empty-dir"),
            (VolumeKind::ConfigMap, "configmap"),
            (VolumeKind::GitRepo, "git-repo"),
        ] {
            let volume = format!("disk/kubelet/pods/6f1c/volumes/kubernetes.io~{plugin}/data");
            let file = node.write(&format!("{volume}/file"), 9000);
            let own = fs::metadata(node.directory.path().join(&volume)).expect("it exists").blocks() * 512;
            let count = node.measure(Part::Volume(kind, "data")).expect("it exists");
            assert_eq!(count, Count { bytes: file + own, inodes: 2 }, "{plugin}");
            assert!(node.measure(Part::Volume(kind, "other")).expect_err("it is missing").is_not_found());
        }
    }

    #[test]
    fn a_volume_keeps_its_project_in_a_pod_with_a_user_namespace_alone() {
        let node = Node::new();
        let place = node.directory.path().join("disk/kubelet/pods/6f1c");
        let volumes = place.join("volumes/kubernetes.io~empty-dir");
        node.write("disk/kubelet/pods/6f1c/volumes/kubernetes.io~empty-dir/data/userns", 1);
        symlink(node.directory.path(), volumes.join("link")).expect("a link");
        let [kubelet, logs] = ["kubelet", "logs"].map(|name| node.directory.path().join(name));
        let pod = || PodDirectories::open(&kubelet, &logs).pod(POD).expect("it is there");
        assert!(pod().volume_with_its_project("data").expect("it can be looked at").is_none(), "it has no such file");
        symlink("volumes", place.join("userns")).expect("a link");
        assert!(pod().volume_with_its_project("data").expect("it can be looked at").is_none(), "a link is no file");
        fs::remove_file(place.join("userns")).expect("a link");
        node.write("disk/kubelet/pods/6f1c/userns", 1);
        let opened = pod().volume_with_its_project("data").expect("it can be opened").expect("it is there");
        let found = statx(&opened, c"", AtFlags::EMPTY_PATH, StatxFlags::INO).expect("it is open");
        assert_eq!(found.stx_ino, fs::metadata(volumes.join("data")).expect("it is there").ino());
        for name in ["link", "missing", "..", "data/../data", ""] {
            assert!(pod().volume_with_its_project(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn no_name_and_no_link_leads_elsewhere() {
        let node = Node::new();
        node.write("secret/file", 9000);
        let volumes = node.directory.path().join("disk/kubelet/pods/6f1c/volumes/kubernetes.io~empty-dir");
        fs::create_dir(&volumes).expect("a directory");
        symlink(node.directory.path().join("secret"), volumes.join("data")).expect("a link");
        let linked = node.measure(Part::Volume(VolumeKind::EmptyDir, "data")).expect_err("it is a link");
        assert!(matches!(linked, StorageError::File { source: Errno::LOOP, .. }), "{linked}");
        for name in ["", ".", "..", "a/b", "/etc", "a\0"] {
            for part in [Part::ContainerLogs(name), Part::Volume(VolumeKind::EmptyDir, name)] {
                let refused = node.measure(part).expect_err("it is no name");
                assert!(matches!(refused, StorageError::Name { .. }), "{refused}");
            }
        }
    }
}
