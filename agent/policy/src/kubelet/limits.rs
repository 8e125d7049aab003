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
pub fn over_limit(pod: &Pod<'_>, layout: DiskLayout) -> Option<Limit> {
    let stats = pod.stats.as_ref().filter(|_| pod.critical.is_none())?;
    // The first volume over its limit in the order of the specification is named; a limit of zero is none
    // (`emptyDirLimitEviction`).
    let volume = (0_u32..).zip(pod.volumes).find(|(_, volume)| {
        volume.size_limit.is_some_and(|limit| {
            // Of two entries for a volume the last counts here.
            let used =
                stats.volumes.iter().rfind(|stats| stats.number == volume.number).and_then(|stats| stats.usage.bytes);
            limit.is_positive() && used.is_some_and(|used| Amount::counted(used) > limit)
        })
    });
    let container = || {
        (0_u32..).zip(stats.containers).find(|(_, stats)| {
            let counted = |bytes: Option<u64>| bytes.map_or(Amount::ZERO, Amount::counted);
            // With images on a disk of their own only logs count.
            let layer = if layout.has_image_fs() { Amount::ZERO } else { counted(stats.rootfs.bytes) };
            let limits = pod.containers.iter().filter(|container| container.number == stats.number);
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

#[cfg(test)]
mod tests {
    use super::super::pod::{ContainerLimit, ContainerStats, PodStats, Usage, Volume, VolumeStats};
    use super::*;

    const fn bytes(bytes: u64) -> Usage {
        Usage { bytes: Some(bytes), inodes: None }
    }

    #[test]
    fn of_two_entries_for_a_volume_the_last_is_held_against_its_limit_and_zero_is_none() {
        for (limit, entries, over) in [
            (50, [100, 5], None),
            (50, [5, 100], Some(Limit::EmptyDir(0))),
            (50, [100, 50], None),
            (50, [100, 51], Some(Limit::EmptyDir(0))),
            (0, [1, 1], None),
        ] {
            let volumes = entries.map(|used| VolumeStats { usage: bytes(used), ..VolumeStats::default() });
            let volume = Volume { is_local: true, size_limit: Some(Amount::whole(limit)), ..Volume::default() };
            let stats = Some(PodStats { volumes: &volumes, ..PodStats::default() });
            let pod = Pod { volumes: &[volume], stats, ..Pod::default() };
            assert_eq!(over_limit(&pod, DiskLayout::Single), over, "{limit} {entries:?}");
        }
    }

    #[test]
    fn a_limit_of_zero_bounds_no_container() {
        for (limits, over) in [
            (&[Some(9)][..], Some(Limit::Container(0))),
            (&[Some(10)], None),
            (&[Some(0)], None),
            (&[None], None),
            // The last that is a limit.
            (&[Some(9), Some(0)], Some(Limit::Container(0))),
            (&[Some(9), Some(10)], None),
        ] {
            let limit = |limit: &Option<i64>| ContainerLimit {
                ephemeral_storage: limit.map(Amount::whole),
                ..ContainerLimit::default()
            };
            let containers: Vec<_> = limits.iter().map(limit).collect();
            let used = [ContainerStats { rootfs: bytes(4), logs: bytes(6), ..ContainerStats::default() }];
            let stats = Some(PodStats { containers: &used, ..PodStats::default() });
            let pod = Pod { containers: &containers, stats, ..Pod::default() };
            assert_eq!(over_limit(&pod, DiskLayout::Single), over, "{limits:?}");
        }
    }
}
