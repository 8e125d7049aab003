//! Which of the disks that this process reads itself is imagefs, and which containerfs.
//!
//! Where the configuration names the runtime's directories, that decides alone. Else the container runtime's own word, which
//! another process passes on, decides between disks on which the usual directories of runtimes are, and the kubelet's:
//! what is said to be as large is taken for the same one. No path that another process sends is opened.

use std::path::PathBuf;

use plimsoll_config::Configuration;
use plimsoll_inventory::{DiskReading, DiskRole, LayersOn};
use plimsoll_policy::kubelet::{DiskLayout, FsStats};

use super::super::super::disk_reader::{Disk, MOST_DIRECTORIES, NodeDisks};

/// Where runtimes keep images and writable layers unless configured otherwise: containerd (its snapshotter first, which may
/// have a disk to itself), that of k3s and RKE2, CRI-O, and Docker behind cri-dockerd.
const USUAL: [&str; MOST_DIRECTORIES] = [
    "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs",
    "/var/lib/containerd",
    "/var/lib/rancher/k3s/agent/containerd",
    "/var/lib/containers/storage",
    "/var/lib/docker",
];

/// What the runtime's disks are found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum RuntimeRoots {
    /// The first directory is that of images, the second that of writable layers.
    Named,
    /// They are those of several runtimes.
    Usual,
}

impl RuntimeRoots {
    /// With the directories: as root configured them, or the usual ones.
    pub(in crate::core) fn of(configuration: &Configuration) -> (Vec<PathBuf>, Self) {
        let machine = &configuration.machine;
        let Some(images) = &machine.image_root else { return (USUAL.map(PathBuf::from).into(), Self::Usual) };
        let layers = machine.container_root.as_ref().unwrap_or(images);
        (vec![images.clone(), layers.clone()], Self::Named)
    }
}

/// The disks by what they are to the kubelet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Roles {
    pub(super) layout: DiskLayout,
    /// What is left on imagefs; absent where it was not read.
    pub(super) image: Option<FsStats>,
    /// The same of containerfs; absent also where imagefs stands for it.
    pub(super) container: Option<FsStats>,
    pub(super) layers: LayersOn,
    /// A disk of the runtime's was not read.
    pub(super) is_unread: bool,
}

/// What is in use on a disk, in bytes.
pub(super) fn in_use(left: &FsStats) -> u64 {
    left.capacity.zip(left.available).map_or(0, |(all, left)| all.saturating_sub(left))
}

/// Where another process says that images, or writable layers, are. Inodes are not compared: xfs makes them as they are
/// needed, so that their number follows from the room that is left and differs between two readings.
fn is_same(disk: &Disk, said: &DiskReading) -> bool {
    said.bytes.map(|room| room.all) == disk.left.capacity
}

impl Roles {
    /// `before`: which disks there were, for as long as those of the runtime cannot be read.
    pub(super) fn find(
        disks: &NodeDisks,
        roots: RuntimeRoots,
        said: &[Option<DiskReading>; DiskRole::ALL.len()],
        before: DiskLayout,
    ) -> Self {
        match roots {
            RuntimeRoots::Named => Self::named(disks, before),
            RuntimeRoots::Usual => Self::said(disks, said),
        }
    }

    fn named(disks: &NodeDisks, before: DiskLayout) -> Self {
        let [image, container, ..] = disks.runtime;
        let Some((image, container)) = image.zip(container) else {
            let layers = if before == DiskLayout::Single { LayersOn::NodeDisk } else { LayersOn::UnreadDisk };
            return Self { layout: before, image: None, container: None, layers, is_unread: true };
        };
        let is_one = |one: Disk, other: Disk| one.device == other.device;
        let layout = match (is_one(image, disks.node), is_one(container, image)) {
            (true, true) => DiskLayout::Single,
            (false, true) => DiskLayout::DedicatedImageFs,
            (_, false) => DiskLayout::SplitImageFs,
        };
        Self::of(disks, layout, Some(image), Some(container))
    }

    fn said(disks: &NodeDisks, said: &[Option<DiskReading>; DiskRole::ALL.len()]) -> Self {
        let [_, image, container] = said;
        let Some(image) = image else {
            // Nothing is known of them.
            let (layout, layers) = (DiskLayout::Single, LayersOn::NodeDisk);
            return Self { layout, image: None, container: None, layers, is_unread: false };
        };
        let is_apart = image.layout.is_some_and(|layout| layout != DiskLayout::Single);
        let apart = |said: &DiskReading| {
            let others = disks.runtime.iter().flatten().filter(|disk| disk.device != disks.node.device);
            others.copied().find(|disk| is_same(disk, said))
        };
        let with_node = |said: &DiskReading| Some(disks.node).filter(|node| is_same(node, said));
        let images = with_node(image).filter(|_| !is_apart);
        match (images, container) {
            (Some(node), _) => Self::of(disks, DiskLayout::Single, Some(node), Some(node)),
            (None, None) => {
                let own = apart(image);
                Self::of(disks, DiskLayout::DedicatedImageFs, own, own)
            }
            (None, Some(container)) => {
                let layers = with_node(container).or_else(|| apart(container));
                Self::of(disks, DiskLayout::SplitImageFs, apart(image), layers)
            }
        }
    }

    /// With the disks of images and of writable layers.
    fn of(disks: &NodeDisks, layout: DiskLayout, image: Option<Disk>, layers: Option<Disk>) -> Self {
        let left = |disk: Disk| disk.left;
        Self {
            layout,
            image: image.map(left),
            // Where they are together, thresholds of containerfs are those of imagefs, on the same file system.
            container: layers.filter(|_| layout != DiskLayout::DedicatedImageFs).map(left),
            layers: match layers {
                Some(disk) if disk.device == disks.node.device => LayersOn::NodeDisk,
                Some(disk) => LayersOn::OwnDisk(in_use(&disk.left)),
                None => LayersOn::UnreadDisk,
            },
            is_unread: image.is_none() || layers.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_inventory::Room;
    use plimsoll_storage::Device;
    use plimsoll_units::MonotonicNs;

    const NODE: u64 = 1000;
    const OWN: u64 = 400;

    /// A disk with this number, of this size, of which a tenth is left.
    fn disk(minor: u32, all: u64) -> Disk {
        let left = FsStats { available: Some(all / 10), capacity: Some(all), ..FsStats::default() };
        Disk { device: Device { major: 8, minor }, left }
    }

    fn disks(runtime: [Option<Disk>; 2]) -> NodeDisks {
        let [one, other] = runtime;
        NodeDisks { node: disk(1, NODE), runtime: [one, other, None, None, None] }
    }

    fn said(role: DiskRole, all: u64, layout: DiskLayout) -> DiskReading {
        let bytes = Some(Room { left: 0, all });
        DiskReading { role, bytes, inodes: None, at: MonotonicNs(1), layout: Some(layout) }
    }

    /// Layout, what is left on imagefs and containerfs, and where writable layers are.
    fn found(roles: Roles) -> (DiskLayout, Option<u64>, Option<u64>, LayersOn) {
        let left = |stats: Option<FsStats>| stats.and_then(|stats| stats.available);
        (roles.layout, left(roles.image), left(roles.container), roles.layers)
    }

    #[test]
    fn directories_that_are_named_decide_alone_and_what_is_said_changes_nothing() {
        use DiskLayout::{DedicatedImageFs, Single, SplitImageFs};
        use LayersOn::{NodeDisk, OwnDisk, UnreadDisk};
        let [node, own, third] = [disk(1, NODE), disk(2, OWN), disk(3, 50)].map(Some);
        for (images, layers, before, expected) in [
            (node, node, Single, (Single, Some(100), Some(100), NodeDisk)),
            (own, own, Single, (DedicatedImageFs, Some(40), None, OwnDisk(360))),
            (own, node, Single, (SplitImageFs, Some(40), Some(100), NodeDisk)),
            (own, third, Single, (SplitImageFs, Some(40), Some(5), OwnDisk(45))),
            // As large as the kubelet's, and another one.
            (Some(disk(2, NODE)), Some(disk(2, NODE)), Single, (DedicatedImageFs, Some(100), None, OwnDisk(900))),
            (None, None, DedicatedImageFs, (DedicatedImageFs, None, None, UnreadDisk)),
            (own, None, SplitImageFs, (SplitImageFs, None, None, UnreadDisk)),
            (None, None, Single, (Single, None, None, NodeDisk)),
        ] {
            for layout in [Single, DedicatedImageFs] {
                let said = [None, Some(said(DiskRole::Image, NODE, layout)), None];
                let roles = Roles::find(&disks([images, layers]), RuntimeRoots::Named, &said, before);
                assert_eq!(found(roles), expected, "{images:?} {layers:?}");
            }
        }
    }

    #[test]
    fn of_the_usual_directories_that_one_counts_whose_disk_is_as_large_as_is_said() {
        use DiskLayout::{DedicatedImageFs, Single, SplitImageFs};
        use LayersOn::{NodeDisk, OwnDisk, UnreadDisk};
        let [node, own, twin] = [disk(1, NODE), disk(2, OWN), disk(3, NODE)].map(Some);
        for (runtime, image, container, expected) in [
            ([own, None], None, None, (Single, None, None, NodeDisk)),
            ([node, None], Some((NODE, Single)), Some(NODE), (Single, Some(100), Some(100), NodeDisk)),
            ([None, None], Some((NODE, Single)), Some(NODE), (Single, Some(100), Some(100), NodeDisk)),
            ([node, own], Some((OWN, DedicatedImageFs)), None, (DedicatedImageFs, Some(40), None, OwnDisk(360))),
            ([node, own], Some((OWN, SplitImageFs)), Some(NODE), (SplitImageFs, Some(40), Some(100), NodeDisk)),
            // No directory that is known is there.
            ([node, None], Some((OWN, DedicatedImageFs)), None, (DedicatedImageFs, None, None, UnreadDisk)),
            ([node, own], Some((77, SplitImageFs)), Some(OWN), (SplitImageFs, None, Some(40), OwnDisk(360))),
            // Two of one size are not taken for one.
            ([node, twin], Some((NODE, DedicatedImageFs)), None, (DedicatedImageFs, Some(100), None, OwnDisk(900))),
            ([node, None], Some((NODE, DedicatedImageFs)), None, (DedicatedImageFs, None, None, UnreadDisk)),
        ] {
            let image_said = image.map(|(all, layout)| said(DiskRole::Image, all, layout));
            let container_said = container.map(|all| said(DiskRole::Container, all, Single));
            let said = [Some(said(DiskRole::Node, NODE, Single)), image_said, container_said];
            let roles = Roles::find(&disks(runtime), RuntimeRoots::Usual, &said, Single);
            assert_eq!(found(roles), expected, "{runtime:?} {image:?}");
            let is_missing = image.is_some() && (roles.image.is_none() || roles.layers == UnreadDisk);
            assert_eq!(roles.is_unread, is_missing, "{runtime:?} {image:?}");
        }
    }
}
