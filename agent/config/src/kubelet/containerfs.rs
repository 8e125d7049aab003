//! Thresholds for the file system of containers, which the kubelet derives instead of asking for them.

use super::threshold::{EvictionSettings, is_dropped};
use core::time::Duration;
use plimsoll_policy::kubelet::{Origin, Signal, Threshold, ThresholdAmount};
use plimsoll_units::Quantity;
use std::collections::BTreeMap;

/// The disks of the container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskLayout {
    /// Images are on another file system than the kubelet's directory.
    pub dedicated_image_fs: bool,
    /// Containers' writable layers are on another file system than images.
    pub split_container_fs: bool,
}

/// Derives them (`UpdateContainerFsThresholds`), and gives the kubelet's warning of those that are configured: of several
/// the last, since it overwrites each with the next. `room`: how many more thresholds fit the kubelet's list before it has
/// to be copied ([`room`]). Behind them are those that it replaced in a copy: its first turn still uses them.
///
/// On one disk, or with writable layers on the node's disk, they are those of nodefs; with everything of the runtime's on
/// its own disk, those of imagefs. Where there is nothing to derive from, a threshold that is never met takes the place.
/// For a runtime that reports a separate file system of containers but none of images, nothing is derived.
pub fn derive_containerfs(
    thresholds: &mut Vec<Threshold<Quantity>>,
    layout: DiskLayout,
    room: usize,
) -> Option<String> {
    let warning = thresholds
        .iter()
        .rev()
        .find(|threshold| matches!(threshold.signal, Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree))
        .map(|threshold| {
            let kind = if threshold.is_hard() { "hard" } else { "soft" };
            format!("found {} for {kind} eviction. ignoring", threshold.signal)
        });
    let (available, inodes) = match (layout.dedicated_image_fs, layout.split_container_fs) {
        (true, true) | (false, false) => (Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
        (true, false) => (Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
        (false, true) => return warning,
    };
    let before = thresholds.clone();
    let mut replaced = Vec::new();
    // Of several that fit the last counts: a soft one without grace, which is a hard one, comes after the hard one.
    let last = |signal, hard| before.iter().rposition(|found| found.signal == signal && found.is_hard() == hard);
    for (signal, source) in [(Signal::ContainerFsAvailable, available), (Signal::ContainerFsInodesFree, inodes)] {
        for hard in [true, false] {
            let (grace, origin) = (Duration::ZERO, Origin::Derived);
            let threshold = last(source, hard).map_or(
                Threshold { signal, amount: None, grace, min_reclaim: None, origin },
                |found| Threshold { signal, origin, ..before[found].clone() },
            );
            let Some(index) = last(signal, hard) else {
                thresholds.push(threshold);
                continue;
            };
            let configured = &before[index];
            // The kubelet compares percentages by value and quantities by pointer: an equal percentage is not replaced.
            let is_share =
                matches!((&threshold.amount, &threshold.min_reclaim), (Some(ThresholdAmount::Share(_)), None));
            if is_share && *configured == (Threshold { origin: configured.origin, ..threshold.clone() }) {
                continue;
            }
            if thresholds.len() - before.len() <= room {
                // It writes into the list that it uses in this turn already,
                thresholds[index] = Threshold { origin: Origin::DerivedInPlace, ..threshold };
            } else {
                // or into a copy, because the list had no capacity for one that was added before.
                thresholds[index] = threshold;
                replaced.push(Threshold { origin: Origin::ReplacedInCopy, ..configured.clone() });
            }
        }
    }
    thresholds.append(&mut replaced);
    warning
}

/// How many more thresholds fit the list that the kubelet (Go 1.26, amd64) made of these settings, whose thresholds are
/// these, before it has to be copied (`ParseThresholdConfig`).
///
/// The list is made of the hard ones first, and the soft ones are added; where pods are enforced it is copied, and what
/// that derives is added to the copy.
pub(crate) fn room(settings: &EvictionSettings, thresholds: &[Threshold<Quantity>]) -> usize {
    let count = |map: &BTreeMap<String, String>| map.values().filter(|written| !is_dropped(written)).count();
    let (hard, both) = (count(&settings.hard), count(&settings.hard) + count(&settings.soft));
    let capacity =
        if settings.enforces_pods() { grown(grown(0, both), thresholds.len()) } else { grown(grown(0, hard), both) };
    capacity.saturating_sub(thresholds.len())
}

/// For how many thresholds Go makes room where a list with room for `capacity` of them is to hold `length` (`growslice`):
/// twice as many as before if that is enough, and then as many as fit what the allocator gives.
fn grown(capacity: usize, length: usize) -> usize {
    /// Bytes of one: two strings, a pointer and a fraction, a duration, a pointer.
    const SIZE: usize = 64;
    /// Up to here the allocator has a size for each multiple of it.
    const SMALL: usize = 512;
    /// Beyond, it has these, and keeps [`HEADER`] bytes of each for itself.
    const SIZES: [usize; 15] = [640, 704, 768, 896, 1024, 1152, 1280, 1408, 1536, 1792, 2048, 2304, 2688, 3072, 3200];
    const HEADER: usize = 8;
    if length <= capacity {
        return capacity;
    }
    let bytes = length.max(2 * capacity) * SIZE;
    let fits = |size: &&usize| bytes + HEADER <= **size;
    if bytes <= SMALL { bytes / SIZE } else { SIZES.iter().find(fits).map_or(bytes, |size| size - HEADER) / SIZE }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a list of the same element that Go 1.26.8 grew in the same steps.
    #[test]
    fn lists_have_room_as_in_go() {
        // By the number of hard ones, rows, and of soft ones, columns: alone, and copied with none, one or two derived.
        for (hard, soft, alone, copied) in [
            (0, 9, 0, [0, 9, 8]),
            (1, 1, 0, [0, 1, 0]),
            (1, 9, 0, [0, 10, 9]),
            (2, 1, 1, [0, 2, 1]),
            (3, 9, 1, [1, 0, 13]),
            (4, 8, 1, [1, 0, 13]),
            (5, 2, 3, [0, 7, 6]),
            (6, 1, 6, [0, 7, 6]),
            (7, 5, 3, [1, 0, 13]),
            (8, 1, 8, [0, 9, 8]),
            (9, 0, 0, [0, 9, 8]),
            (9, 1, 9, [0, 10, 9]),
            (9, 9, 1, [1, 0, 21]),
        ] {
            assert_eq!(grown(grown(0, hard), hard + soft) - hard - soft, alone, "{hard} {soft}");
            for (derived, room) in copied.into_iter().enumerate() {
                let length = hard + soft + derived;
                assert_eq!(grown(grown(0, hard + soft), length) - length, room, "{hard} {soft} {derived}");
            }
        }
    }
}
