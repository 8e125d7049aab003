//! What a plan is decided on, in parts.

use plimsoll_policy::kubelet::QosClass;
use plimsoll_policy::{MemoryReading, Owner, OwnerUid, Protected, Reclaimed, Scope, Stall, Terminating, Uid};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde::{Deserialize, Serialize};

/// What is decided by of a pod, beside what a cgroup has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedPod {
    /// Its UID.
    pub uid: Uid,
    /// Its class of service.
    pub qos: QosClass,
    /// Why it is never evicted, if so.
    pub protected: Option<Protected>,
    /// The time that it wants for an orderly end, in seconds.
    pub grace_seconds: Option<i64>,
    /// The DaemonSet that it belongs to.
    pub daemon_set: Option<OwnerUid>,
}

/// The machine's tasks, where a threshold is on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedTasks {
    /// How many there are.
    pub count: u64,
    /// How many there can be.
    pub limit: u64,
}

/// A part of an observation, sent by the watching thread only where a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ObservationRecord<'a> {
    /// An observation begins; its parts follow, then [`ObservationRecord::End`].
    Begin {
        /// When it was taken.
        taken: MonotonicNs,
        /// When it is decided on.
        made: MonotonicNs,
        /// Memory of the machine, the huge page pool included.
        memory: MemoryReading,
        /// What the kernel's own estimate leaves out of what could be freed.
        withheld: Option<Bytes>,
        /// The huge page pool.
        huge_page_pool: Bytes,
        /// Tasks; absent where no threshold is on them, and where they could not be read.
        tasks: Option<ObservedTasks>,
        /// Stall; absent if the kernel does not report it.
        stall: Option<Stall>,
    },
    /// Memory of a slice.
    Slice {
        /// Its index in the configuration.
        index: u8,
        /// What was read.
        memory: MemoryReading,
    },
    /// The last reclaim of a scope that ended before the observation.
    Reclaim {
        /// The scope.
        scope: Scope,
        /// The order's number, and when it ended.
        reclaimed: Reclaimed,
    },
    /// A workload.
    Workload {
        /// Its cgroup.
        id: CgroupId,
        /// What it belongs to; absent where that is the workload itself.
        owner: Option<Owner>,
        /// Its working set; absent if it could not be read.
        usage: Option<Bytes>,
        /// What it used when its page cache was read, where more has been charged to it since.
        settled: Option<Bytes>,
        /// How many tasks it has; absent where they are not short, and where that could not be read.
        tasks: Option<u64>,
        /// Its reservation.
        reservation: Bytes,
        /// Its priority.
        priority: i32,
        /// When it was first seen.
        started: MonotonicNs,
        /// Set while it is terminating.
        terminating: Option<Terminating>,
        /// The most of its memory that its end gives back, where that may be less than what it uses.
        returns_at_most: Option<Bytes>,
        /// No process is left in it.
        empty: bool,
        /// It is frozen and its memory grows nevertheless.
        grows_while_frozen: bool,
        /// The pod that it is.
        pod: Option<ObservedPod>,
        /// Its cgroup's path below the root.
        path: &'a [u8],
    },
    /// The observation is complete.
    End {
        /// How many workloads it has.
        workloads: u32,
    },
}
