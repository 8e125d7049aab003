//! What thresholds on disks were held against, as a trace has it.

use plimsoll_inventory::{DiskReading, Room};
use plimsoll_policy::kubelet::{DiskLayout, FsStats, NodeStats, StatsTime};
use plimsoll_policy::{Outcome, Reclaimed};
use plimsoll_units::MonotonicNs;
use serde::{Deserialize, Serialize};

use crate::record::Judged;

/// A turn in which thresholds on disks were held against what `services` reads, and what followed. While none is crossed and
/// the condition does not hold, a turn that does not differ from the one before is not written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSample {
    /// When it was decided.
    pub at_ns: MonotonicNs,
    /// How many samples of disks before it are missing, because they were not written in time.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub missing: u32,
    /// What is left on each disk; absent where there is no figure, or one that is too old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodefs: Option<DiskLeft>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    /// That of images.
    pub imagefs: Option<DiskLeft>,
    /// That of writable layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containerfs: Option<DiskLeft>,
    /// Which disks there are; absent where the container runtime does not say where its own are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<DiskLayout>,
    /// How many images may be removed; 256 stands for more, and for a number that is not known.
    pub unused_images: u16,
    /// The last reclaim that had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaimed: Option<EndedReclaim>,
    /// What followed, in one word.
    pub outcome: Outcome,
    /// Whether the condition `DiskPressure` was true then.
    pub disk_pressure: bool,
    /// The number of the reclaim that was asked for then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim: Option<u64>,
}

/// What is left on a disk. What is not counted there is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskLeft {
    /// When it was read.
    pub read_ns: MonotonicNs,
    /// Bytes that are left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    /// All bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Inodes that are left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes_free: Option<u64>,
    /// All inodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
}

/// The end of a reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndedReclaim {
    /// Its number.
    pub order: u64,
    /// When it ended.
    pub at_ns: MonotonicNs,
}

fn stats_time(at: MonotonicNs) -> StatsTime {
    StatsTime(i64::try_from(at.0).unwrap_or(i64::MAX))
}

impl From<DiskReading> for DiskLeft {
    fn from(reading: DiskReading) -> Self {
        let DiskReading { role: _, bytes, inodes, at, layout: _ } = reading;
        let (left, all) = (|room: Room| room.left, |room: Room| room.all);
        Self {
            read_ns: at,
            available_bytes: bytes.map(left),
            capacity_bytes: bytes.map(all),
            inodes_free: inodes.map(left),
            inodes: inodes.map(all),
        }
    }
}

impl DiskLeft {
    /// The same as statistics of the node have it.
    fn stats(&self) -> FsStats {
        let Self { read_ns, available_bytes, capacity_bytes, inodes_free, inodes } = *self;
        let time = Some(stats_time(read_ns));
        FsStats { available: available_bytes, capacity: capacity_bytes, inodes_free, inodes, time }
    }
}

impl DiskSample {
    /// As the core has it.
    pub(crate) fn of(judged: &Judged, at: MonotonicNs) -> Self {
        let Judged { figures, layout, unused, reclaimed, outcome, has_pressure, reclaim } = *judged;
        let [nodefs, imagefs, containerfs] = figures.map(|figure| figure.map(DiskLeft::from));
        let ended = |reclaimed: Reclaimed| EndedReclaim {
            order: reclaimed.order,
            at_ns: MonotonicNs(u64::try_from(reclaimed.at.0).unwrap_or(0)),
        };
        Self {
            at_ns: at,
            missing: 0,
            nodefs,
            imagefs,
            containerfs,
            layout,
            unused_images: unused,
            reclaimed: reclaimed.map(ended),
            outcome,
            disk_pressure: has_pressure,
            reclaim: reclaim.map(|reclaim| reclaim.order),
        }
    }

    /// The disks as statistics of the node have them.
    pub fn stats(&self) -> NodeStats {
        let [node_fs, image_fs, container_fs] =
            [self.nodefs, self.imagefs, self.containerfs].map(|left| left.map(|left| left.stats()));
        NodeStats { node_fs, image_fs, container_fs, ..NodeStats::default() }
    }

    /// The last reclaim that had ended, as a policy is given it.
    pub fn ended(&self) -> Option<Reclaimed> {
        self.reclaimed.map(|EndedReclaim { order, at_ns }| Reclaimed { order, at: stats_time(at_ns) })
    }
}
