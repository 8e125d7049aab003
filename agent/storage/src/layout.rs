//! Which file systems are `nodefs`, `imagefs` and `containerfs`, found as the kubelet 1.36 finds them.

use crate::error::StorageError;
use crate::mounts::{FileSystem, Mounts};
use core::time::Duration;
use plimsoll_policy::kubelet::{DiskLayout, FsStats, NodeStats};
use std::fmt;
use std::path::Path;

/// Whether cAdvisor 0.56 can measure this type of file system (the plugins that pkg/kubelet/cadvisor/cadvisor_linux.go
/// registers). For any other the kubelet's eviction manager only logs an error.
fn is_measured_by_the_kubelet(fs_type: &str) -> bool {
    const TYPES: [&str; 17] = [
        "btrfs", "exfat", "f2fs", "fat", "hfs", "hfsplus", "iso9660", "jfs", "msdos", "ntfs", "overlay", "reiserfs",
        "squashfs", "tmpfs", "udf", "vfat", "xfs",
    ];
    fs_type.starts_with("ext") || fs_type.starts_with("nfs") || fs_type == "zfs" || TYPES.contains(&fs_type)
}

/// The directories that decide the layout. Links are followed.
#[derive(Clone, Copy, Debug)]
pub struct Roots<'a> {
    /// The kubelet's own directory (`--root-dir`, `/var/lib/kubelet`).
    pub kubelet: &'a Path,
    /// The mount point of the first of the runtime's `image_filesystems` (CRI `ImageFsInfo`).
    pub images: &'a Path,
    /// That of the first of its `container_filesystems`; `None` where the runtime reports none.
    pub containers: Option<&'a Path>,
}

/// The disks of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disks {
    /// Their layout, as the kubelet treats it.
    pub layout: DiskLayout,
    /// `nodefs`: volumes and logs.
    pub node: FileSystem,
    /// `imagefs`: images. The same as `nodefs` where there is one for everything.
    pub image: FileSystem,
    /// `containerfs`: writable layers.
    pub container: FileSystem,
    /// What is odd about them.
    pub warnings: Vec<Warning>,
}

/// A layout that the kubelet accepts without supporting it (KEP-4191), or cannot measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Images are on the node's file system and writable layers on another one.
    ContainersApart,
    /// Three file systems.
    AllApart,
    /// The kubelet knows no file system of this type and evicts nothing on this node; here it is measured as any other.
    UnknownType {
        /// Which of them it is: `nodefs`, `imagefs` or `containerfs`.
        role: &'static str,
        /// The type.
        fs_type: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ContainersApart => f.write_str(
                "unsupported layout: images are on the kubelet's file system and writable layers on another; thresholds \
                 of containerfs are those of nodefs",
            ),
            Self::AllApart => f.write_str(
                "unsupported layout: nodefs, imagefs and containerfs are three file systems; thresholds of containerfs \
                 are those of nodefs",
            ),
            Self::UnknownType { role, fs_type } => {
                write!(f, "{role} is of the type {fs_type}, which the kubelet cannot measure")
            }
        }
    }
}

/// Finds them. May hang where a disk does: ask through a [`crate::Worker`].
pub fn find(roots: Roots<'_>) -> Result<Disks, StorageError> {
    Mounts::open()?.disks(roots)
}

impl Mounts {
    /// The same as [`find`], by a list of mounts that is open already.
    pub fn disks(&mut self, roots: Roots<'_>) -> Result<Disks, StorageError> {
        let node = self.file_system(roots.kubelet)?;
        let image = self.file_system(roots.images)?;
        let container = roots.containers.map_or_else(|| Ok(image.clone()), |path| self.file_system(path))?;
        Ok(Disks::of(node, image, container))
    }
}

impl Disks {
    /// What `HasDedicatedImageFs` and `HasDedicatedContainerFs` (pkg/kubelet/stats/provider.go) make of three devices:
    /// images are apart where they are not on the kubelet's, or where writable layers are not with images.
    fn of(node: FileSystem, image: FileSystem, container: FileSystem) -> Self {
        let is_split = !image.is(&container);
        let layout = DiskLayout::of(is_split || !image.is(&node), is_split);
        let mut warnings = Vec::new();
        if is_split && !container.is(&node) {
            warnings.push(if image.is(&node) { Warning::ContainersApart } else { Warning::AllApart });
        }
        for (role, fs) in [("nodefs", &node), ("imagefs", &image), ("containerfs", &container)] {
            if !is_measured_by_the_kubelet(&fs.fs_type) {
                warnings.push(Warning::UnknownType { role, fs_type: fs.fs_type.clone() });
            }
        }
        Self { layout, node, image, container, warnings }
    }

    /// Puts what is read of these three file systems, and of no other, into the statistics of the node. Gives what reading
    /// each of them cost: nodefs, imagefs and containerfs; absent where it was not read.
    pub fn fill(
        &self,
        stats: &mut NodeStats,
        mut read: impl FnMut(&FileSystem) -> Option<(FsStats, Duration)>,
    ) -> [Option<Duration>; 3] {
        let [node, image, container] = [&self.node, &self.image, &self.container].map(|fs| read(fs).unzip());
        (stats.node_fs, stats.image_fs, stats.container_fs) = (node.0, image.0, container.0);
        [node.1, image.1, container.1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::Device;

    fn fs(minor: u32) -> FileSystem {
        FileSystem {
            device: Device { major: 8, minor },
            mount_point: format!("/{minor}").into(),
            fs_type: "ext4".to_owned(),
            source: format!("/dev/sda{minor}").into(),
            measured_at: format!("/{minor}").into(),
        }
    }

    #[test]
    fn layouts_are_those_of_the_kubelet_and_unsupported_ones_are_named() {
        for (node, image, container, layout, warning) in [
            (1, 1, 1, DiskLayout::Single, None),
            (1, 2, 2, DiskLayout::DedicatedImageFs, None),
            (1, 2, 1, DiskLayout::SplitImageFs, None),
            (1, 1, 2, DiskLayout::SplitImageFs, Some(Warning::ContainersApart)),
            (1, 2, 3, DiskLayout::SplitImageFs, Some(Warning::AllApart)),
        ] {
            let disks = Disks::of(fs(node), fs(image), fs(container));
            let warnings: Vec<_> = warning.into_iter().collect();
            assert_eq!((disks.layout, disks.warnings), (layout, warnings), "{node} {image} {container}");
        }
    }

    #[test]
    fn a_type_that_the_kubelet_cannot_measure_is_named_with_its_role() {
        let image = FileSystem { fs_type: "virtiofs".to_owned(), ..fs(2) };
        let disks = Disks::of(fs(1), image.clone(), image);
        let texts: Vec<_> = disks.warnings.iter().map(Warning::to_string).collect();
        assert_eq!(disks.layout, DiskLayout::DedicatedImageFs);
        assert!(texts[0].starts_with("imagefs is of the type virtiofs"), "{texts:?}");
        assert!(texts[1].starts_with("containerfs is of the type virtiofs") && texts.len() == 2, "{texts:?}");
    }

    #[test]
    fn only_the_three_are_read_and_each_fills_its_own_signals() {
        let disks = Disks::of(fs(1), fs(2), fs(1));
        let mut asked = Vec::new();
        let mut stats = NodeStats::default();
        let cost = Duration::from_millis(3);
        let costs = disks.fill(&mut stats, |fs| {
            asked.push(fs.device.minor);
            (fs.device.minor == 2).then_some((FsStats { available: Some(7), ..FsStats::default() }, cost))
        });
        assert_eq!((asked, costs), (vec![1, 2, 1], [None, Some(cost), None]));
        assert_eq!((stats.node_fs, stats.container_fs), (None, None));
        assert_eq!(stats.image_fs.and_then(|fs| fs.available), Some(7));
    }

    #[test]
    fn directories_of_one_disk_are_one_and_a_link_elsewhere_is_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let [kubelet, images] = ["kubelet", "images"].map(|name| directory.path().join(name));
        std::fs::create_dir(&kubelet).expect("a directory");
        std::fs::create_dir(&images).expect("a directory");
        let roots = Roots { kubelet: &kubelet, images: &images, containers: None };
        assert_eq!(find(roots).expect("both exist").layout, DiskLayout::Single);
        std::fs::remove_dir(&images).expect("it is empty");
        // A file system that is on every machine, and never that of a directory for temporary files.
        std::os::unix::fs::symlink("/proc", &images).expect("a link");
        let elsewhere = find(roots).expect("both exist");
        assert_eq!((elsewhere.layout, elsewhere.container.fs_type.as_str()), (DiskLayout::DedicatedImageFs, "proc"));
        let split = find(Roots { containers: Some(&kubelet), ..roots }).expect("all exist");
        assert_eq!((split.layout, split.container), (DiskLayout::SplitImageFs, split.node));
    }
}
