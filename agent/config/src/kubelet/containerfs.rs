//! Thresholds for the file system of containers, which the kubelet derives instead of asking for them.

use super::threshold::{EvictionThreshold, Operator, ThresholdValue};
use plimsoll_policy::kubelet::Signal as EvictionSignal;
use plimsoll_units::Percentage;

/// What the runtime says of its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskLayout {
    /// Images are on another file system than the kubelet's directory.
    pub dedicated_image_fs: bool,
    /// Containers' writable layers are on another file system than images.
    pub split_container_fs: bool,
}

/// Derives them, and tells what of the user's own was replaced.
///
/// On one disk, or with writable layers on the node's disk, they are those of nodefs; with everything of the runtime's on
/// its own disk, those of imagefs. Where there is nothing to derive from, a threshold that is never met takes the place.
/// A runtime that has containers but no images apart is believed by nobody: nothing is derived. Only the last warning
/// is told, because the kubelet overwrites each with the next.
pub fn derive_containerfs(thresholds: &mut Vec<EvictionThreshold>, layout: DiskLayout) -> Option<String> {
    let warning = thresholds
        .iter()
        .rev()
        .find(|threshold| {
            matches!(threshold.signal, EvictionSignal::ContainerFsAvailable | EvictionSignal::ContainerFsInodesFree)
        })
        .map(|threshold| {
            let kind = if threshold.is_hard() { "hard" } else { "soft" };
            format!("found {} for {kind} eviction. ignoring", threshold.signal)
        });
    let (available, inodes) = match (layout.dedicated_image_fs, layout.split_container_fs) {
        (true, true) | (false, false) => (EvictionSignal::NodeFsAvailable, EvictionSignal::NodeFsInodesFree),
        (true, false) => (EvictionSignal::ImageFsAvailable, EvictionSignal::ImageFsInodesFree),
        (false, true) => return warning,
    };
    let before = thresholds.clone();
    // Of several that fit the last counts: a soft one without grace, which is a hard one, comes after the hard one.
    let last = |signal, hard| before.iter().rposition(|found| found.signal == signal && found.is_hard() == hard);
    for (derived, source) in
        [(EvictionSignal::ContainerFsAvailable, available), (EvictionSignal::ContainerFsInodesFree, inodes)]
    {
        for hard in [true, false] {
            let threshold = last(source, hard).map_or(
                EvictionThreshold {
                    signal: derived,
                    operator: Operator::Never,
                    value: ThresholdValue::Percentage(Percentage::of_one(0.0)),
                    grace_period_ns: 0,
                    min_reclaim: None,
                },
                |found| EvictionThreshold { signal: derived, ..before[found].clone() },
            );
            match last(derived, hard) {
                Some(own) => thresholds[own] = threshold,
                None => thresholds.push(threshold),
            }
        }
    }
    warning
}
