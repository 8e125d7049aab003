//! What pods take of disks: volumes and logs as the scanner measures them, writable layers as `services` has them from the
//! container runtime; and what `services` says of their limits. Neither can say what is the other's to measure.
//!
//! Names within a pod come as numbers ([`name_number`]). Two names of a pod that have the same number are one: the sender
//! adds up what they take, and that is held against the limit of each, so that the author of a pod hides nothing by it.

mod figures;

use core::time::Duration;
use std::collections::BTreeMap;

use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::{
    Amount, ContainerLimit, ContainerStats, Number, Pod, PodStats, Usage, Volume, VolumeStats,
};
use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};

use crate::PodFacts;
pub(crate) use figures::Storage;

/// The most parts of pods of which something is kept, and the most limits.
pub const MOST_PARTS: usize = 16_384;
/// A figure holds for so long after it was measured, and for as long again as measuring it took, twice.
const HOLDS: Duration = Duration::from_mins(30);

/// Stands for a name within one pod: of its containers, or of its volumes (FNV-1a, 32 bits).
pub fn name_number(name: &[u8]) -> u32 {
    name.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// A part of a pod's local storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StoragePart {
    /// The logs of this container.
    Logs(u32),
    /// This volume.
    Volume {
        /// Its name's number.
        name: u32,
        /// It is on a disk, and counts for the pod as a whole; else it is an `emptyDir` in memory.
        is_local: bool,
    },
    /// Files beside the logs, and `/etc/hosts`.
    Rest,
    /// The writable layer of this container.
    Layer(u32),
}

/// What a part of a pod takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartUsage {
    /// The pod.
    pub uid: Uid,
    /// Which part.
    pub part: StoragePart,
    /// Bytes and inodes; absent where it is there and could not be measured.
    pub used: Option<(u64, u64)>,
    /// When measuring it began.
    pub begun: MonotonicNs,
    /// When measuring it ended.
    pub ended: MonotonicNs,
}

/// A process that measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measurer {
    /// The scanner, by looking: volumes, logs and what is beside them.
    Scanner,
    /// `services`, by the container runtime's word: writable layers.
    Services,
}

/// What a process sends that measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StorageMessage {
    /// A part was measured.
    Part(PartUsage),
    /// All parts of this pod were sent since it was said last. Others are gone.
    Measured(Uid),
    /// All pods were named since it was said last. Others are gone.
    Round,
}

impl StorageMessage {
    /// Writes it into a buffer, and gives what it takes of that.
    pub fn encode<'b>(&self, buffer: &'b mut [u8; crate::MESSAGE]) -> &'b [u8] {
        postcard::to_slice(self, buffer).map_or(&[], |bytes| bytes)
    }

    /// With no time after `now`: what is said of later would hold for longer than what was measured.
    #[must_use]
    pub fn by(self, now: MonotonicNs) -> Self {
        match self {
            Self::Part(part) => {
                Self::Part(PartUsage { begun: part.begun.min(now), ended: part.ended.min(now), ..part })
            }
            other @ (Self::Measured(_) | Self::Round) => other,
        }
    }

    /// Whether this process may say so.
    #[must_use]
    pub fn may_be_of(&self, measurer: Measurer) -> bool {
        match self {
            Self::Part(PartUsage { part, .. }) => {
                matches!(part, StoragePart::Layer(_)) == (measurer == Measurer::Services)
            }
            Self::Measured(_) | Self::Round => true,
        }
    }

    /// Reads one. `None` for what is no message, or has something after it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::take_from_bytes(bytes).ok().filter(|(_, rest)| rest.is_empty()).map(|(message, _)| message)
    }
}

/// What a limit of local storage is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Limited {
    /// An `emptyDir`.
    Volume(u32),
    /// Logs and the writable layer of a container.
    Container(u32),
}

/// A limit of local storage in a pod's specification, beside that of the pod as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StorageLimit {
    /// The pod.
    pub uid: Uid,
    /// What it is on.
    pub on: Limited,
    /// No more than this.
    pub bytes: Bytes,
}

/// Where writable layers are, by what the deciding process has read of disks itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayersOn {
    /// On the disk of volumes and logs.
    NodeDisk,
    /// On one of their own, of which so many bytes are in use.
    OwnDisk(u64),
    /// On one that was not read: what is said of them is not believed.
    UnreadDisk,
}

/// Bytes in use on the disks on which pods have something: no pod has more there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InUse {
    /// On that of volumes and logs.
    pub node: u64,
    /// Where writable layers are.
    pub layers: LayersOn,
}

/// What of a pod's storage counts in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// By this time figures may be too old.
    pub now: MonotonicNs,
    /// Writable layers, too.
    pub layers: bool,
}

/// Bytes and inodes; absent where a part of them is not known.
type Sum = Option<(u64, u64)>;

/// What is added up of parts of a pod, and how long that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Added {
    used: Sum,
    until: MonotonicNs,
}

/// A pod's local storage as it is decided about.
#[derive(Debug, PartialEq, Eq)]
pub struct PodStorage {
    request: Amount,
    limit: Option<Amount>,
    limits: Box<[ContainerLimit]>,
    volumes: Box<[Volume]>,
    /// With their writable layers, and by their logs alone: the same in the same places.
    containers: Box<[ContainerStats]>,
    without_layers: Box<[ContainerStats]>,
    volume_stats: Box<[VolumeStats]>,
    /// Volumes on disks, logs and what is beside them.
    scanned: Added,
    /// Writable layers.
    layers: Added,
    in_memory: u64,
}

impl PodStorage {
    /// What was measured of a pod, each part once, with what is said of its limits. `has_layers`: what the runtime knows of
    /// its writable layers is among the parts; else none of them was ever measured, and their sum is unknown.
    pub fn of(
        facts: &PodFacts,
        limits: &[StorageLimit],
        parts: impl Iterator<Item = PartUsage>,
        has_layers: bool,
    ) -> Self {
        let (mut volumes, mut volume_stats, mut in_memory) = (Vec::new(), Vec::new(), 0_u64);
        let mut containers: BTreeMap<u32, ContainerStats> = BTreeMap::new();
        let (mut scanned, mut layers) = (Added::NOTHING, Added::NOTHING);
        for PartUsage { part, used, begun, ended, .. } in parts {
            let until = ended.after(HOLDS + ended.since(begun) * 2);
            let sum = if matches!(part, StoragePart::Layer(_)) { &mut layers } else { &mut scanned };
            sum.until = sum.until.min(until);
            match part {
                StoragePart::Logs(name) => containers.entry(name).or_default().logs = usage(used),
                StoragePart::Layer(name) => containers.entry(name).or_default().rootfs = usage(used),
                StoragePart::Volume { name, is_local } => {
                    let limit = limits.iter().filter(|limit| limit.on == Limited::Volume(name));
                    // Of two names with one number each limit counts.
                    let size_limit = limit.map(|limit| counted(limit.bytes)).min();
                    volumes.push(Volume { number: Number(name), is_local, size_limit });
                    volume_stats.push(VolumeStats { number: Number(name), usage: usage(used) });
                    if !is_local {
                        in_memory = in_memory.saturating_add(used.map_or(0, |used| used.0));
                        continue;
                    }
                }
                StoragePart::Rest => {}
            }
            sum.used = plus(sum.used, used);
        }
        layers.used = layers.used.filter(|_| has_layers);
        let of_containers = limits.iter().filter_map(|limit| match limit.on {
            Limited::Container(name) => {
                Some(ContainerLimit { number: Number(name), ephemeral_storage: Some(counted(limit.bytes)) })
            }
            Limited::Volume(_) => None,
        });
        let named = |(name, stats)| ContainerStats { number: Number(name), ..stats };
        let containers: Box<[ContainerStats]> = containers.into_iter().map(named).collect();
        let without_layer = |it: &ContainerStats| ContainerStats { rootfs: Usage::default(), ..*it };
        Self {
            request: counted(facts.storage_request),
            limit: facts.storage_limit.map(counted),
            limits: of_containers.collect(),
            volumes: volumes.into(),
            without_layers: containers.iter().map(without_layer).collect(),
            containers,
            volume_stats: volume_stats.into(),
            scanned,
            layers,
            in_memory,
        }
    }

    /// What all of it on disks takes together (`calcEphemeralStorage`), whichever disks these are; absent where a part of it
    /// is not known, does not count, or is too old.
    pub fn whole(&self, counts: Counts) -> Usage {
        let layers = self.layers.at(counts.now).filter(|_| counts.layers);
        usage(self.scanned.at(counts.now).and_then(|scanned| plus(Some(scanned), layers)))
    }

    /// Whether it can be, with so many bytes in use on the disks; and whether its writable layers count then.
    pub(crate) fn believed(&self, in_use: InUse, now: MonotonicNs) -> Option<Counts> {
        let [scanned, layers] = [self.scanned, self.layers].map(|sum| sum.at(now).map_or(0, |(bytes, _)| bytes));
        let (on_node, is_believed) = match in_use.layers {
            LayersOn::NodeDisk => (scanned.saturating_add(layers), true),
            LayersOn::OwnDisk(in_use) => (scanned, layers <= in_use),
            LayersOn::UnreadDisk => (scanned, true),
        };
        let counts = Counts { now, layers: in_use.layers != LayersOn::UnreadDisk };
        (is_believed && on_node <= in_use.node).then_some(counts)
    }

    /// What its volumes in memory take together, in bytes.
    pub const fn in_memory(&self) -> u64 {
        self.in_memory
    }

    /// Adds it to what else is known of the pod. What is not known, does not count or is too old is absent.
    pub fn facts<'a>(&'a self, pod: &Pod<'_>, counts: Counts) -> Pod<'a> {
        let has_layers = counts.layers && counts.now <= self.layers.until;
        let stats = PodStats {
            ephemeral_storage: self.whole(counts).bytes,
            containers: if has_layers { &self.containers } else { &self.without_layers },
            volumes: &self.volume_stats,
            ..PodStats::default()
        };
        Pod {
            priority: pod.priority,
            critical: pod.critical,
            memory_request: pod.memory_request,
            grace_seconds: pod.grace_seconds,
            ephemeral_storage_request: self.request,
            ephemeral_storage_limit: self.limit,
            containers: &self.limits,
            volumes: &self.volumes,
            stats: (counts.now <= self.scanned.until).then_some(stats),
        }
    }

    /// The name's number of a volume, by its place.
    pub fn volume(&self, place: u32) -> Option<u32> {
        self.volumes.get(place as usize).map(|volume| volume.number.0)
    }

    /// The name's number of a container of the statistics, by its place.
    pub fn container(&self, place: u32) -> Option<u32> {
        self.containers.get(place as usize).map(|container| container.number.0)
    }

    /// The limit of the pod as a whole, of a volume, or of a container.
    pub fn limit_on(&self, on: Option<Limited>) -> Option<Amount> {
        match on {
            None => self.limit,
            Some(Limited::Volume(name)) => self.volumes.iter().find(|it| it.number.0 == name)?.size_limit,
            Some(Limited::Container(name)) => self.limits.iter().find(|it| it.number.0 == name)?.ephemeral_storage,
        }
    }
}

impl Added {
    const NOTHING: Self = Self { used: Some((0, 0)), until: MonotonicNs(u64::MAX) };

    /// The sum, unless it is too old.
    fn at(&self, now: MonotonicNs) -> Sum {
        self.used.filter(|_| now <= self.until)
    }
}

fn plus(one: Sum, other: Sum) -> Sum {
    one.zip(other).map(|((bytes, inodes), (more, others))| (bytes.saturating_add(more), inodes.saturating_add(others)))
}

/// Quantities of Kubernetes are signed: more would be below zero.
fn counted(bytes: Bytes) -> Amount {
    Amount::counted(bytes.0.min(i64::MAX.cast_unsigned()))
}

fn usage(used: Option<(u64, u64)>) -> Usage {
    Usage { bytes: used.map(|it| it.0), inodes: used.map(|it| it.1) }
}

#[cfg(test)]
mod tests;
