//! What the kernel did by itself, and what processes hold that are no workload.

use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde::{Deserialize, Serialize};

/// Where memory was short when the OOM killer chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OomScope {
    /// On the whole machine: a race that was lost.
    Global,
    /// In a cgroup, at its own limit.
    Cgroup,
    /// On the memory nodes of a cpuset.
    Cpuset,
    /// On the memory nodes of a task's policy.
    NumaNode,
}

impl OomScope {
    /// In the log's field and the metric's label `scope`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Cgroup => "cgroup",
            Self::Cpuset => "cpuset",
            Self::NumaNode => "numa-node",
        }
    }
}

/// Sent by the watching thread, and suspects by the inventory thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineRecord<'a> {
    /// The OOM killer chose a process.
    Oom {
        /// When.
        at: MonotonicNs,
        /// The victim's process.
        pid: u32,
        /// Its command name, filled up with zero bytes.
        name: &'a [u8],
        /// The victim's cgroup.
        cgroup: Option<CgroupId>,
        /// What it had resident.
        resident: Option<Bytes>,
        /// Where memory was short.
        scope: OomScope,
    },
    /// The number of tasks crossed its threshold.
    Tasks {
        /// Tasks then.
        count: u32,
        /// When.
        at: MonotonicNs,
        /// The process that forked.
        pid: u32,
    },
    /// A process that holds much memory outside all workloads, or in huge pages or rings of packet sockets, named because
    /// no workload that may be evicted grew.
    Suspect {
        /// The process.
        pid: u32,
        /// Its command name.
        name: &'a [u8],
        /// Its cgroup.
        cgroup: &'a [u8],
        /// What it has resident.
        resident: Bytes,
        /// What it holds of the huge page pool, which is in no cgroup's usage.
        huge_pages: Bytes,
        /// What it holds in rings of packet sockets, likewise.
        packet_rings: Bytes,
    },
}
