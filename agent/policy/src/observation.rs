//! What was observed, and when. What could not be read is absent, never zero.

use crate::kubelet::{self, Critical, DiskLayout, QosClass, Readings, StatsTime, Usage};
use crate::scope::{Scope, SliceSet};
use core::time::Duration;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde::{Deserialize, Serialize};

/// Available memory by both readings, without the huge page pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReading {
    /// The machine's memory, or the slice's limit.
    pub capacity: Bytes,
    /// By the kubelet's formula: capacity less (anonymous + file - inactive file).
    pub kubelet_available: Bytes,
    /// By the kernel's own estimate (`MemAvailable`); in a slice, its limit less what reclaim could not drop. Absent where
    /// it could not be read.
    pub mem_available: Option<Bytes>,
}

impl MemoryReading {
    /// The lower of both readings.
    pub fn lowest(&self) -> Bytes {
        self.mem_available.map_or(self.kubelet_available, |own| own.min(self.kubelet_available))
    }

    /// The kernel's reading, or the only one that there is.
    pub fn kernel(&self) -> Bytes {
        self.mem_available.unwrap_or(self.kubelet_available)
    }
}

/// How long all tasks waited for memory ("full" in pressure stall information).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// The time during which every runnable task waited.
    pub full: Duration,
    /// The time within which they waited so long.
    pub window: Duration,
}

impl Stall {
    /// Whether all tasks waited for at least this much of the window, and at all.
    pub const fn is_at_least(self, percent: u8) -> bool {
        !self.full.is_zero() && self.full.as_nanos() * 100 >= self.window.as_nanos() * percent as u128
    }
}

/// Swap of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// All of it.
    pub total: Bytes,
    /// What of it is free.
    pub free: Bytes,
    /// Pages that were read back soon after they went there, counted since boot (`workingset_refault_anon`).
    pub refaults: u64,
}

/// Where a workload is kept, and its cgroup's id, so that a successor in the same place is not taken for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The caller's own number for it: small and dense, since growth is remembered in a table by slot.
    pub slot: u32,
    /// The cgroup.
    pub id: CgroupId,
}

/// The UID of a pod, or the id of a cgroup that has none: 128 bits, however they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Uid(pub u128);

impl Uid {
    /// The UID that a text stands for: its 32 hexadecimal digits, in either case, with `-` as the API writes it, with `_`
    /// as names of systemd's slices have it, or without either, as the kubelet hashes the file of a static pod. Of a text
    /// in no such form, 128 bits that follow from it (FNV-1a), the same with `-` and with `_`.
    pub fn of(text: impl AsRef<[u8]>) -> Self {
        let text = text.as_ref();
        let is_digit = |byte: &&u8| !matches!(byte, b'-' | b'_');
        let digits = || text.iter().filter(is_digit);
        let bits = (digits().count() == 32)
            .then(|| {
                digits()
                    .try_fold(0_u128, |bits, digit| Some((bits << 4) | u128::from(char::from(*digit).to_digit(16)?)))
            })
            .flatten();
        Self(bits.unwrap_or_else(|| {
            text.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
                let byte = if *byte == b'_' { b'-' } else { *byte };
                (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
            })
        }))
    }
}

/// The UID of the `DaemonSet` that a pod belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OwnerUid(pub u128);

/// Why a workload is never chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protected {
    /// It is the machine's init or holds it.
    Init,
    /// It is this agent or holds it.
    Agent,
    /// The owner listed it.
    Listed,
    /// A pod of a critical priority.
    Critical,
    /// A static pod, which the kubelet would start again.
    Static,
    /// The mirror of a static pod.
    Mirror,
    /// A pod of which nothing is known: it may be a critical one.
    Unknown,
    /// It is the kubelet or a container runtime, or holds one.
    Node,
}

impl From<Critical> for Protected {
    fn from(critical: Critical) -> Self {
        match critical {
            Critical::Static => Self::Static,
            Critical::Mirror => Self::Mirror,
            Critical::Priority => Self::Critical,
        }
    }
}

/// A workload on its way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminating {
    /// It does not end although it was killed, or could not be killed: what it holds is not counted on.
    pub is_stuck: bool,
    /// It could not be killed.
    pub is_refused: bool,
    /// It was asked to end and has time left; a hard threshold does not wait for that.
    pub is_graceful: bool,
    /// When that time is over, if it is known. A soft threshold waits for no more than its own victims would get.
    pub until: Option<MonotonicNs>,
}

/// What a workload belongs to: a delegated cgroup. All workloads below it are accounted, ranked and limited together, so
/// that what is written below it, or how its memory is split there, changes nothing for workloads of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The cgroup at the delegation boundary.
    pub id: CgroupId,
    /// Its effective protection (`memory.low` or `memory.min`, bounded by its ancestors), from files that the owner
    /// cannot write.
    pub request: Bytes,
}

/// A cgroup that could be evicted, with pod facts or without. Without, its request is its reservation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Workload<'a> {
    /// Where it is kept.
    pub key: Key,
    /// The pod, or the cgroup.
    pub uid: Uid,
    /// What it belongs to; absent where that is the workload itself, as with a pod.
    pub owner: Option<Owner>,
    /// What the kubelet's rules ask of it: requests, limits, priority, statistics.
    pub facts: kubelet::Pod<'a>,
    /// Its class of service.
    pub qos: QosClass,
    /// Why it must not be chosen, beside what its pod says.
    pub protected: Option<Protected>,
    /// Set while it ends. A pod stays in the list, with its last statistics, until the node's figures are newer than its
    /// end: else what it held would be asked for a second time.
    pub terminating: Option<Terminating>,
    /// The most of its memory that its end gives back, where that is less than all that it uses: a cgroup that is
    /// refilled after its kill uses memory that the kill does not free.
    pub returns_at_most: Option<Bytes>,
    /// What it used, in bytes, when its page cache was read, where more has been charged to it since: that may be page
    /// cache, so that less is known of what it uses than its working set shows.
    pub settled: Option<Bytes>,
    /// No process is left in it. What is still charged to it (files in tmpfs, page cache) comes back by ending nothing.
    pub is_empty: bool,
    /// It is frozen and its memory grows nevertheless, beyond what can have been in flight: it counts as grown.
    pub grows_while_frozen: bool,
    /// When it was started; of equals the youngest is first.
    pub started: MonotonicNs,
    /// The slices with thresholds of their own that it is in.
    pub slices: SliceSet,
    /// The `DaemonSet` it belongs to, which starts it again wherever it is evicted from.
    pub daemon_set: Option<OwnerUid>,
    /// What of its memory is in swap.
    pub swapped: Option<Bytes>,
    /// What images take that no other pod uses; for layouts where images have a disk of their own.
    pub own_images: Usage,
}

impl Workload<'_> {
    /// Why it is never chosen, if so.
    pub fn protection(&self) -> Option<Protected> {
        self.protected.or(self.facts.critical.map(Into::into))
    }

    /// Its class of service. Of a cgroup with an owner it follows from the owner's request alone.
    pub const fn class(&self) -> QosClass {
        match self.owner {
            None => self.qos,
            Some(Owner { request: Bytes::ZERO, .. }) => QosClass::BestEffort,
            Some(_) => QosClass::Burstable,
        }
    }

    /// Its working set; absent if it could not be read.
    pub fn working_set(&self) -> Option<Bytes> {
        self.facts.stats?.working_set.map(Bytes)
    }

    /// Whether a scope's decisions are about it.
    pub const fn is_in(&self, scope: Scope) -> bool {
        match scope {
            Scope::Node => true,
            Scope::Slice(slice) => self.slices.contains(slice),
        }
    }
}

impl<'a> kubelet::Manages<'a> for Workload<'a> {
    fn pod(&self) -> &kubelet::Pod<'a> {
        &self.facts
    }

    fn critical(&self) -> Option<Critical> {
        // What is protected for another reason, or was killed already in vain, is passed over just so.
        let is_passed_over = self.protected.is_some() || self.terminating.is_some_and(|it| it.is_stuck);
        self.facts.critical.or(is_passed_over.then_some(Critical::Priority))
    }

    /// The manager is not given pods that have ended.
    fn is_active(&self) -> bool {
        !self.is_empty
    }
}

/// An image on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// No container uses it, it is not pinned, and removing it did not fail lately.
    pub is_unused: bool,
    /// When it was last used.
    pub last_used: MonotonicNs,
    /// What it takes.
    pub usage: Usage,
}

impl Image {
    /// One of which no more is known than that it may be removed.
    pub const UNUSED: Self =
        Self { is_unused: true, last_used: MonotonicNs(0), usage: Usage { bytes: None, inodes: None } };
    /// So many of these stand for more, and for a number that is not known.
    pub const MOST_UNUSED: usize = 256;
}

/// The end of a reclaim that a plan asked for, whatever came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// The number of the order; all earlier ones of the same scope have ended as well.
    pub order: u64,
    /// When, on the clock of the statistics.
    pub at: StatsTime,
}

/// One observation of the node or a slice. Build it with `..Observation::default()`, so that new fields do not disturb.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observation<'a> {
    /// What it is about.
    pub scope: Scope,
    /// The time of the oldest value in it.
    pub taken: MonotonicNs,
    /// Which disks there are; absent if the runtime did not say.
    pub layout: Option<DiskLayout>,
    /// What is available of everything that has a signal, by the kubelet's formulas; of a slice only of memory. Absent if
    /// there were no statistics at all.
    pub readings: Option<Readings>,
    /// Available memory by the kernel's own estimate, without the huge page pool; in a slice, its limit less what reclaim
    /// could not drop.
    pub mem_available: Option<Bytes>,
    /// When that was read, on the clock of the statistics; absent if it came with these.
    pub mem_available_at: Option<StatsTime>,
    /// What is available to pods together by the same estimate: their limit less what reclaim could not drop; absent if
    /// that is not known.
    pub pods_mem_available: Option<Bytes>,
    /// What the kernel's own estimate leaves out of free memory, page cache and slab that can shrink. It grows with page
    /// cache that no workload holds to itself, up to low watermarks; absent in a slice, whose estimate leaves out nothing.
    pub withheld: Option<Bytes>,
    /// Memory set aside for huge pages, which the kubelet takes for available.
    pub huge_page_pool: Bytes,
    /// Stall of the machine or the slice; absent if the kernel does not say.
    pub stall: Option<Stall>,
    /// Swap; absent without any.
    pub swap: Option<Swap>,
    /// Dead containers; absent if they were not counted.
    pub dead_containers: Option<u32>,
    /// Images on the node.
    pub images: &'a [Image],
    /// The last reclaim of this scope that ended.
    pub reclaimed: Option<Reclaimed>,
    /// All workloads, those that are protected or terminating too.
    pub workloads: &'a [Workload<'a>],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_the_same_however_it_is_written() {
        let uid = Uid(0x0a1b_2c3d_4e5f_6071_8293_a4b5_c6d7_e8f9);
        for text in [
            "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9",
            "0A1B2C3D-4E5F-6071-8293-A4B5C6D7E8F9",
            "0a1b2c3d_4e5f_6071_8293_a4b5c6d7e8f9",
            "0a1b2c3d4e5f60718293a4b5c6d7e8f9",
        ] {
            assert_eq!(Uid::of(text), uid, "{text}");
        }
    }

    #[test]
    fn a_text_in_no_known_form_has_bits_of_its_own() {
        // FNV-1a's own test: nothing, and one byte.
        assert_eq!(Uid::of(""), Uid(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d));
        assert_eq!(Uid::of("a"), Uid(0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964));
        assert_eq!(Uid::of("my-pod"), Uid::of("my_pod"));
        let [plus, zero] = ["+", "0"].map(|first| Uid::of(format!("{first}{}", "0".repeat(31))));
        assert_eq!(zero, Uid(0));
        assert_ne!(plus, zero, "a sign is no digit");
        assert_ne!(Uid::of("0".repeat(33)), zero);
    }
}
