//! What is measured against thresholds, and how it follows from the statistics of the node.

use crate::scope::Scope;
use core::fmt;
use serde::{Deserialize, Serialize};

/// A signal of the kubelet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Signal {
    /// Memory of the machine.
    MemoryAvailable,
    /// Memory that pods together may have.
    AllocatableMemoryAvailable,
    /// Bytes of the file system of the kubelet's own directory.
    NodeFsAvailable,
    /// Its inodes.
    NodeFsInodesFree,
    /// Bytes of the file system of images.
    ImageFsAvailable,
    /// Its inodes.
    ImageFsInodesFree,
    /// Bytes of the file system of containers' writable layers.
    ContainerFsAvailable,
    /// Its inodes.
    ContainerFsInodesFree,
    /// Process numbers.
    PidAvailable,
}

/// What runs out when a signal is low, as messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// Memory.
    Memory,
    /// Bytes on a disk.
    EphemeralStorage,
    /// Inodes on a disk.
    Inodes,
    /// Process numbers.
    Pids,
}

/// A condition of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Condition {
    /// Some disk is low.
    DiskPressure,
    /// Memory is low.
    MemoryPressure,
    /// Process numbers are low.
    PidPressure,
}

impl Resource {
    /// The kubelet's name of it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }
}

impl Condition {
    /// All of them, by name.
    pub const ALL: [Self; 3] = [Self::DiskPressure, Self::MemoryPressure, Self::PidPressure];

    /// Its type in the status of a node.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DiskPressure => "DiskPressure",
            Self::MemoryPressure => "MemoryPressure",
            Self::PidPressure => "PIDPressure",
        }
    }
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::ContainerFsAvailable,
        Self::ContainerFsInodesFree,
        Self::PidAvailable,
    ];

    /// The name in configuration files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::ContainerFsAvailable => "containerfs.available",
            Self::ContainerFsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The signal of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.name() == name)
    }

    /// What runs out.
    pub const fn resource(self) -> Resource {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Resource::Memory,
            Self::NodeFsAvailable | Self::ImageFsAvailable | Self::ContainerFsAvailable => Resource::EphemeralStorage,
            Self::NodeFsInodesFree | Self::ImageFsInodesFree | Self::ContainerFsInodesFree => Resource::Inodes,
            Self::PidAvailable => Resource::Pids,
        }
    }

    /// The condition that it sets.
    pub const fn condition(self) -> Condition {
        match self.resource() {
            Resource::Memory => Condition::MemoryPressure,
            Resource::EphemeralStorage | Resource::Inodes => Condition::DiskPressure,
            Resource::Pids => Condition::PidPressure,
        }
    }

    /// Whether its readings are bytes, which print with binary suffixes; the others are counts, with decimal ones.
    pub const fn is_bytes(self) -> bool {
        matches!(self.resource(), Resource::Memory | Resource::EphemeralStorage)
    }

    const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// When a figure was taken: nanoseconds on any clock, since these are only compared with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StatsTime(pub i64);

/// Memory of the machine or of a cgroup. What could not be read is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes that are left.
    pub available: Option<u64>,
    /// Bytes in use that cannot be dropped at once.
    pub working_set: Option<u64>,
    /// When they were read.
    pub time: Option<StatsTime>,
}

/// A file system. What could not be read is absent; some file systems have no inodes to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsStats {
    /// Bytes that are left.
    pub available: Option<u64>,
    /// Bytes in all.
    pub capacity: Option<u64>,
    /// Inodes that are left.
    pub inodes_free: Option<u64>,
    /// Inodes in all.
    pub inodes: Option<u64>,
    /// When they were read.
    pub time: Option<StatsTime>,
}

/// Process numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PidStats {
    /// How many there can be.
    pub max: Option<i64>,
    /// How many there are. May be more than there can be, where the limit was lowered.
    pub running: Option<i64>,
    /// When they were read.
    pub time: Option<StatsTime>,
}

/// Statistics of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// Memory of the machine.
    pub memory: Option<MemoryStats>,
    /// Memory of the cgroup that all pods are in (in a summary: the first system container named `pods`).
    pub pods: Option<MemoryStats>,
    /// The file system of the kubelet's own directory.
    pub node_fs: Option<FsStats>,
    /// The file system of images.
    pub image_fs: Option<FsStats>,
    /// The file system of containers' writable layers.
    pub container_fs: Option<FsStats>,
    /// Process numbers.
    pub pids: Option<PidStats>,
}

/// One signal as it was observed. Negative where counters do not fit a signed 64-bit number, or the limit of processes was
/// lowered below their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// What is left.
    pub available: i64,
    /// What there is in all.
    pub capacity: i64,
    /// When it was read; absent if that is not known.
    pub time: Option<StatsTime>,
}

/// All signals as they were observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readings([Option<Reading>; Signal::ALL.len()]);

impl Readings {
    /// Derives them (the kubelet's `makeSignalObservations`). A signal that lacks a part of it is absent.
    pub fn of(stats: &NodeStats) -> Self {
        let NodeStats { memory, pods, node_fs, image_fs, container_fs, pids } = stats;
        let mut readings = Self::default();
        readings.set(Signal::MemoryAvailable, memory.and_then(Reading::of_memory));
        readings.set(Signal::AllocatableMemoryAvailable, pods.and_then(Reading::of_memory));
        for (bytes, inodes, fs) in [
            (Signal::NodeFsAvailable, Signal::NodeFsInodesFree, node_fs),
            (Signal::ImageFsAvailable, Signal::ImageFsInodesFree, image_fs),
            (Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree, container_fs),
        ] {
            let Some(fs) = fs else { continue };
            readings.set(bytes, Reading::of_counters(fs.available, fs.capacity, fs.time));
            readings.set(inodes, Reading::of_counters(fs.inodes_free, fs.inodes, fs.time));
        }
        readings.set(Signal::PidAvailable, pids.and_then(Reading::of_pids));
        readings
    }

    /// As the thresholds of a scope are judged by them. A slice has one memory, its own: in the cgroup of all pods that is
    /// what is allocatable.
    #[must_use]
    pub const fn in_scope(mut self, scope: Scope) -> Self {
        if let Scope::Slice(_) = scope {
            self.set(Signal::AllocatableMemoryAvailable, self.get(Signal::MemoryAvailable));
        }
        self
    }

    /// One of them; absent if it was not read.
    pub const fn get(&self, signal: Signal) -> Option<Reading> {
        self.0[signal.index()]
    }

    /// Whether one of them is newer than it was in the last turn (`thresholdsUpdatedStats`): compared with that turn's,
    /// not with the newest ever. One whose time is not known is always fresh.
    pub fn is_fresh(&self, signal: Signal, last: &Self) -> bool {
        self.get(signal).is_some_and(|reading| {
            last.get(signal).is_none_or(|last| reading.time.is_none() || reading.time > last.time)
        })
    }

    const fn set(&mut self, signal: Signal, reading: Option<Reading>) {
        self.0[signal.index()] = reading;
    }
}

impl Reading {
    fn of_memory(MemoryStats { available, working_set, time }: MemoryStats) -> Option<Self> {
        let (available, working_set) = (available?, working_set?);
        // The sum wraps before it is cut to a signed number.
        Some(Self {
            available: available.cast_signed(),
            capacity: available.wrapping_add(working_set).cast_signed(),
            time,
        })
    }

    fn of_counters(available: Option<u64>, capacity: Option<u64>, time: Option<StatsTime>) -> Option<Self> {
        Some(Self { available: available?.cast_signed(), capacity: capacity?.cast_signed(), time })
    }

    fn of_pids(PidStats { max, running, time }: PidStats) -> Option<Self> {
        let (max, running) = (max?, running?);
        Some(Self { available: max.wrapping_sub(running), capacity: max, time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_found_by_name() {
        for (index, signal) in Signal::ALL.into_iter().enumerate() {
            assert_eq!((Signal::parse(signal.name()), signal.index()), (Some(signal), index));
        }
        assert_eq!(Signal::parse("memory"), None);
    }
}
