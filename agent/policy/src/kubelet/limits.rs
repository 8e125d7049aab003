//! Limits that a pod's own specification sets on local storage.

use super::pod::Pod;
use super::ranking::DiskLayout;
use plimsoll_units::Amount;
use serde::{Deserialize, Serialize};

/// A limit of local storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// Of this volume of the pod.
    EmptyDir(u32),
    /// The sum of its containers' limits.
    Pod,
    /// Of this container of the pod's statistics.
    Container(u32),
}

/// The limit of its own that a pod is over (`localStorageEviction`): a volume's before the pod's before a container's.
pub(crate) fn over_limit(pod: &Pod<'_>, layout: DiskLayout) -> Option<Limit> {
    let stats = pod.stats.as_ref().filter(|_| pod.critical.is_none())?;
    // The first volume over its limit in the order of the specification is told; a limit of zero is none
    // (`emptyDirLimitEviction`).
    let volume = (0_u32..).zip(pod.volumes).find(|(_, volume)| {
        volume.size_limit.is_some_and(|limit| {
            // Of two entries for a volume the last counts here.
            let used =
                stats.volumes.iter().rfind(|stats| stats.name == volume.name).and_then(|stats| stats.usage.bytes);
            limit.is_positive() && used.is_some_and(|used| Amount::counted(used) > limit)
        })
    });
    let container = || {
        (0_u32..).zip(stats.containers).find(|(_, stats)| {
            let counted = |bytes: Option<u64>| bytes.map_or(Amount::ZERO, Amount::counted);
            // With images on a disk of their own only logs count.
            let layer = if layout.has_image_fs() { Amount::ZERO } else { counted(stats.rootfs.bytes) };
            let limits = pod.containers.iter().filter(|container| container.name == stats.name);
            let limit =
                limits.filter_map(|container| container.ephemeral_storage.filter(|limit| !limit.is_zero())).next_back();
            limit.is_some_and(|limit| limit < counted(stats.logs.bytes) + layer)
        })
    };
    let used = stats.ephemeral_storage.map_or(Amount::ZERO, Amount::counted);
    if let Some((volume, _)) = volume {
        Some(Limit::EmptyDir(volume))
    } else if pod.ephemeral_storage_limit.is_some_and(|limit| used > limit) {
        Some(Limit::Pod)
    } else {
        container().map(|(index, _)| Limit::Container(index))
    }
}
