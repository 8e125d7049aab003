//! Which pod would be evicted first.

use super::pod::{Critical, Manages, Pod, PodStats, Usage};
use super::signals::{Resource, Signal};
use core::cmp::{Ordering, Reverse};
use plimsoll_units::Amount;
use serde::{Deserialize, Serialize};

/// Up to this many elements are sorted by insertion in Go, which keeps the order of equal ones, and more are not.
const GO_INSERTION_SORT: usize = 12;

/// Which disks there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DiskLayout {
    /// One for everything.
    Single,
    /// Images and writable layers on their own.
    DedicatedImageFs,
    /// Images on their own, writable layers on the node's.
    SplitImageFs,
}

impl DiskLayout {
    /// What follows from the runtime's answers. A separate file system of containers without one of images is ignored.
    pub const fn of(dedicated_image_fs: bool, split_container_fs: bool) -> Self {
        match (dedicated_image_fs, split_container_fs) {
            (true, true) => Self::SplitImageFs,
            (true, false) => Self::DedicatedImageFs,
            (false, _) => Self::Single,
        }
    }

    /// Whether images are on a disk of their own.
    pub const fn has_image_fs(self) -> bool {
        !matches!(self, Self::Single)
    }
}

/// What of a pod lies on the disk in question. Images are never counted: the kubelet measures "images" of pods, which
/// is never filled in (`podDiskUsage` knows nothing of them).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Measured {
    rootfs: bool,
    logs: bool,
    volumes: bool,
}

impl Measured {
    /// `buildSignalToRankFunc`.
    pub(crate) const fn of(signal: Signal, layout: DiskLayout) -> Self {
        let on_node = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
        let on_images = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
        match layout {
            DiskLayout::DedicatedImageFs if on_node => Self { rootfs: false, logs: true, volumes: true },
            DiskLayout::DedicatedImageFs => Self { rootfs: true, logs: false, volumes: false },
            // All usages are zero, so that priority decides, then the smallest request: bystanders are evicted.
            DiskLayout::SplitImageFs if on_images => Self { rootfs: false, logs: false, volumes: false },
            DiskLayout::Single | DiskLayout::SplitImageFs => Self { rootfs: true, logs: true, volumes: true },
        }
    }

    /// `podDiskUsage`.
    pub(crate) fn usage(self, pod: &Pod<'_>, stats: &PodStats<'_>, of: fn(&Usage) -> Option<u64>) -> Amount {
        let counted = |usage: &Usage| of(usage).map_or(Amount::ZERO, Amount::counted);
        let mut sum = Amount::ZERO;
        for container in stats.containers {
            if self.rootfs {
                sum = sum + counted(&container.rootfs);
            }
            if self.logs {
                sum = sum + counted(&container.logs);
            }
        }
        if self.volumes {
            for volume in pod.volumes.iter().filter(|volume| volume.is_local) {
                // Of two entries for a volume the first counts (`podLocalVolumeUsage` stops there).
                if let Some(stats) = stats.volumes.iter().find(|stats| stats.number == volume.number) {
                    sum = sum + counted(&stats.usage);
                }
            }
        }
        sum
    }
}

/// What becomes of a ranked pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is evicted.
    Evicted,
    /// It is never evicted, wherever it ranks.
    PassedOver(Critical),
    /// Those before it are enough.
    NotNeeded,
}

/// A pod with the keys that rank it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// Its index among the pods of the observation.
    pub pod: u32,
    /// There are statistics of it. Those without rank before all others, or all others of the same priority where
    /// processes are short.
    pub is_measured: bool,
    /// It uses more than it requests. Processes cannot be requested.
    pub exceeds: bool,
    /// Its priority.
    pub priority: i32,
    /// What it uses of what is short, less what it requests.
    pub over: Amount,
    /// Its processes; absent where they are not known, which ranks as none.
    pub processes: Option<u64>,
    /// What becomes of it.
    pub verdict: Verdict,
}

impl Ranked {
    fn of(index: u32, pod: &Pod<'_>, signal: Signal, layout: DiskLayout) -> Self {
        let unmeasured = Self {
            pod: index,
            is_measured: false,
            exceeds: false,
            priority: pod.priority,
            over: Amount::ZERO,
            processes: None,
            verdict: Verdict::NotNeeded,
        };
        let Some(stats) = &pod.stats else { return unmeasured };
        let measured = Self { is_measured: true, processes: stats.processes, ..unmeasured };
        let used =
            |usage: Amount, request: Amount| Self { exceeds: usage > request, over: usage - request, ..measured };
        match signal.resource() {
            Resource::Memory => used(stats.working_set.map_or(Amount::ZERO, Amount::counted), pod.memory_request),
            Resource::EphemeralStorage => {
                let usage = Measured::of(signal, layout).usage(pod, stats, |usage| usage.bytes);
                used(usage, pod.ephemeral_storage_request)
            }
            Resource::Inodes => {
                let usage = Measured::of(signal, layout).usage(pod, stats, |usage| usage.inodes);
                // Inodes cannot be requested, so that a pod with one exceeds; but then the request in bytes is taken
                // from their number (`disk` in helpers.go), and pods that request storage sort behind those that do not.
                Self { exceeds: usage.is_positive(), ..used(usage, pod.ephemeral_storage_request) }
            }
            Resource::Pids => measured,
        }
    }

    /// Its processes, as they rank (`processUsage`).
    fn counted(&self) -> u64 {
        self.processes.unwrap_or(0)
    }
}

/// Compares two as the kubelet does; equal ones keep their places.
///
/// Counts of processes are compared by their 64-bit difference (`process` in helpers.go), which is no order where they
/// are 2^63 and more apart.
pub fn compare(resource: Resource, one: &Ranked, other: &Ranked) -> Ordering {
    match resource {
        Resource::Pids => {
            one.priority.cmp(&other.priority).then(one.is_measured.cmp(&other.is_measured)).then_with(|| {
                match (one.is_measured, other.is_measured) {
                    (true, true) => other.counted().wrapping_sub(one.counted()).cast_signed().cmp(&0),
                    _ => Ordering::Equal,
                }
            })
        }
        Resource::Memory | Resource::EphemeralStorage | Resource::Inodes => {
            let key = |ranked: &Ranked| (ranked.is_measured, !ranked.exceeds, ranked.priority, Reverse(ranked.over));
            key(one).cmp(&key(other))
        }
    }
}

/// Ranks pods: the one that would be evicted first is first. Allocates nothing where `ranked` has room for all; static,
/// mirror and critical pods are ranked like others.
///
/// Of equals the one that was given first is first. The kubelet does the same with up to twelve pods, and anything
/// with more.
pub fn rank<'a>(signal: Signal, layout: DiskLayout, pods: &[impl Manages<'a>], ranked: &mut Vec<Ranked>) {
    ranked.clear();
    let active = (0_u32..).zip(pods).filter(|(_, pod)| pod.is_active());
    ranked.extend(active.map(|(index, pod)| Ranked::of(index, pod.pod(), signal, layout)));
    let resource = signal.resource();
    let is_order = resource != Resource::Pids || ranked.iter().all(|ranked| ranked.counted() < 1 << 63);
    if !is_order && ranked.len() <= GO_INSERTION_SORT {
        // Where the comparison contradicts itself the result depends on which are compared.
        for sorted in 1..ranked.len() {
            let mut place = sorted;
            while place > 0 && compare(resource, &ranked[place], &ranked[place - 1]) == Ordering::Less {
                ranked.swap(place, place - 1);
                place -= 1;
            }
        }
    } else if is_order {
        // Unstable sorting allocates nothing, and with no two equal it is as good as stable.
        ranked.sort_unstable_by(|one, other| compare(resource, one, other).then(one.pod.cmp(&other.pod)));
    } else {
        ranked.sort_unstable_by_key(|ranked| {
            (ranked.priority, ranked.is_measured, Reverse(ranked.counted()), ranked.pod)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::pod::{Volume, VolumeStats};
    use super::*;

    #[test]
    fn of_two_entries_for_a_volume_the_first_is_counted() {
        let entries = |used: [u64; 2]| {
            used.map(|used| VolumeStats {
                usage: Usage { bytes: Some(used), inodes: Some(used + 1) },
                ..VolumeStats::default()
            })
        };
        let (small, large) = (entries([7, 900]), entries([8, 1]));
        let volume = [Volume { is_local: true, ..Volume::default() }];
        let pod = |volumes| Pod {
            volumes: &volume,
            stats: Some(PodStats { volumes, ..PodStats::default() }),
            ..Pod::default()
        };
        let mut ranked = Vec::new();
        for (signal, over) in [(Signal::NodeFsAvailable, [8, 7]), (Signal::NodeFsInodesFree, [9, 8])] {
            rank(signal, DiskLayout::Single, &[pod(&small), pod(&large)], &mut ranked);
            let reported: Vec<_> = ranked.iter().map(|ranked| (ranked.pod, ranked.over)).collect();
            assert_eq!(reported, [(1, Amount::whole(over[0])), (0, Amount::whole(over[1]))], "{signal}");
        }
    }
}
