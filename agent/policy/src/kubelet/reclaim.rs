//! What is cleaned up before anything is evicted.

use super::ranking::DiskLayout;
use super::signals::{Resource, Signal};
use serde::{Deserialize, Serialize};

/// What is cleaned up on disks, containers first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaim {
    /// Remove all dead containers.
    pub containers: bool,
    /// Remove all unused images.
    pub images: bool,
}

impl Reclaim {
    /// What can be cleaned up for a signal (`buildSignalToNodeReclaimFuncs`). With images on a disk of their own nothing
    /// is, for the node's, although its documentation says that dead containers and their logs are removed.
    pub const fn of(signal: Signal, layout: DiskLayout) -> Self {
        const NOTHING: Reclaim = Reclaim { containers: false, images: false };
        const BOTH: Reclaim = Reclaim { containers: true, images: true };
        let on_node = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
        let on_images = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
        match (signal.resource(), layout) {
            (Resource::Memory | Resource::Pids, _) => NOTHING,
            (Resource::EphemeralStorage | Resource::Inodes, DiskLayout::Single) => BOTH,
            (Resource::EphemeralStorage | Resource::Inodes, DiskLayout::DedicatedImageFs) => {
                if on_node {
                    NOTHING
                } else {
                    BOTH
                }
            }
            (Resource::EphemeralStorage | Resource::Inodes, DiskLayout::SplitImageFs) => {
                Self { containers: !on_images, images: on_images }
            }
        }
    }

    /// Whether there is nothing to do.
    pub const fn is_nothing(self) -> bool {
        !self.containers && !self.images
    }
}
