//! What pods take of disks, as the process that measures it says, and what `services` says of their limits.
//!
//! Names within a pod come as numbers ([`name_number`]). Two names of a pod that have the same number are one: the sender
//! adds up what they take, and that is held against the limit of each, so that the author of a pod hides nothing by it.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;

use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::{
    Amount, ContainerLimit, ContainerStats, Number, Pod, PodStats, Usage, Volume, VolumeStats,
};
use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};

use crate::PodFacts;

/// The most parts of pods of which something is kept, and the most limits.
pub const MOST_PARTS: usize = 16_384;
/// A figure holds for so long after it was measured, and for as long again as measuring it took, twice.
const HOLDS: Duration = Duration::from_mins(10);

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
    /// When measuring it began,
    pub begun: MonotonicNs,
    /// and when it ended.
    pub ended: MonotonicNs,
}

/// What the process sends that measures it.
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

/// A pod's local storage as it is decided about.
#[derive(Debug, PartialEq, Eq)]
pub struct PodStorage {
    request: Amount,
    limit: Option<Amount>,
    limits: Box<[ContainerLimit]>,
    volumes: Box<[Volume]>,
    containers: Box<[ContainerStats]>,
    volume_stats: Box<[VolumeStats]>,
    whole: Usage,
    in_memory: u64,
    until: MonotonicNs,
}

impl PodStorage {
    /// What was measured of a pod, each part once, with what is said of its limits.
    pub fn of(facts: &PodFacts, limits: &[StorageLimit], parts: impl Iterator<Item = PartUsage>) -> Self {
        let (mut volumes, mut volume_stats, mut containers) = (Vec::new(), Vec::new(), Vec::new());
        let (mut whole, mut in_memory, mut until) = (Some((0_u64, 0_u64)), 0_u64, MonotonicNs(u64::MAX));
        for PartUsage { part, used, begun, ended, .. } in parts {
            until = until.min(ended.after(HOLDS + ended.since(begun) * 2));
            match part {
                StoragePart::Logs(name) => {
                    let (number, logs) = (Number(name), usage(used));
                    containers.push(ContainerStats { number, logs, ..ContainerStats::default() });
                }
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
            whole = whole
                .zip(used)
                .map(|((bytes, inodes), (more, others))| (bytes.saturating_add(more), inodes.saturating_add(others)));
        }
        let of_containers = limits.iter().filter_map(|limit| match limit.on {
            Limited::Container(name) => {
                Some(ContainerLimit { number: Number(name), ephemeral_storage: Some(counted(limit.bytes)) })
            }
            Limited::Volume(_) => None,
        });
        Self {
            request: counted(facts.storage_request),
            limit: facts.storage_limit.map(counted),
            limits: of_containers.collect(),
            volumes: volumes.into(),
            containers: containers.into(),
            volume_stats: volume_stats.into(),
            whole: usage(whole),
            in_memory,
            until,
        }
    }

    /// What all of it on disks takes together; absent where a part of it is not known, or is too old.
    pub fn whole(&self, now: MonotonicNs) -> Usage {
        if now <= self.until { self.whole } else { Usage::default() }
    }

    /// What its volumes in memory take together, in bytes.
    pub const fn in_memory(&self) -> u64 {
        self.in_memory
    }

    /// Adds it to what else is known of the pod. What is not known or too old is absent.
    pub fn facts<'a>(&'a self, pod: &Pod<'_>, now: MonotonicNs) -> Pod<'a> {
        let stats = PodStats {
            ephemeral_storage: self.whole.bytes,
            containers: &self.containers,
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
            stats: (now <= self.until).then_some(stats),
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

/// Quantities of Kubernetes are signed: more would be below zero.
fn counted(bytes: Bytes) -> Amount {
    Amount::counted(bytes.0.min(i64::MAX.cast_unsigned()))
}

fn usage(used: Option<(u64, u64)>) -> Usage {
    Usage { bytes: used.map(|it| it.0), inodes: used.map(|it| it.1) }
}

#[derive(Debug, Default)]
struct Parts {
    known: BTreeMap<StoragePart, (bool, PartUsage)>,
    /// It was named in this round.
    is_named: bool,
}

/// What is known of all pods.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    pods: HashMap<Uid, Parts>,
    count: usize,
    /// Pods of which something has changed.
    changed: HashSet<Uid>,
}

impl Storage {
    /// Takes a message in. False: there is no room for it.
    pub(crate) fn take(&mut self, message: StorageMessage) -> bool {
        match message {
            StorageMessage::Part(usage) => {
                let is_new = self.pods.get(&usage.uid).is_none_or(|pod| !pod.known.contains_key(&usage.part));
                // Before the pod has an entry: those without parts would be bounded by nothing.
                if is_new && self.count >= MOST_PARTS {
                    return false;
                }
                let pod = self.pods.entry(usage.uid).or_default();
                self.count += usize::from(is_new);
                pod.is_named = true;
                pod.known.insert(usage.part, (true, usage));
            }
            StorageMessage::Measured(uid) => {
                if self.pods.len() >= MOST_PARTS && !self.pods.contains_key(&uid) {
                    return false;
                }
                let pod = self.pods.entry(uid).or_default();
                let before = pod.known.len();
                pod.known.retain(|_, (is_seen, _)| mem::take(is_seen));
                self.count -= before - pod.known.len();
                pod.is_named = true;
                self.changed.insert(uid);
            }
            StorageMessage::Round => {
                let (count, changed) = (&mut self.count, &mut self.changed);
                self.pods.retain(|uid, pod| {
                    let is_named = mem::take(&mut pod.is_named);
                    if !is_named {
                        *count -= pod.known.len();
                        changed.insert(*uid);
                    }
                    is_named
                });
            }
        }
        true
    }

    /// What is known of a pod has changed beside what was measured.
    pub(crate) fn touch(&mut self, uid: Uid) {
        self.changed.insert(uid);
    }

    /// The pods of which something has changed since this was last asked.
    pub(crate) fn changed(&mut self) -> HashSet<Uid> {
        mem::take(&mut self.changed)
    }

    /// A pod; absent where nothing was measured of it.
    pub(crate) fn of(&self, facts: &PodFacts, limits: &[StorageLimit]) -> Option<PodStorage> {
        let parts = &self.pods.get(&facts.uid)?.known;
        Some(PodStorage::of(facts, limits, parts.values().map(|(_, measured)| *measured)))
    }
}

#[cfg(test)]
mod tests;
