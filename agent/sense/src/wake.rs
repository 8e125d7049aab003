//! The events of a source. Every value is `Copy` and fixed in size: a drain writes into storage made beforehand.

use arrayvec::ArrayVec;
use plimsoll_units::{CgroupId, MonotonicNs, Pages};

use crate::thresholds::Generation;

/// How many cgroups a crossing carries: the charged one, and those above it.
pub const LINEAGE: usize = plimsoll_abi::LINEAGE;

/// The most wakes that one drain returns; what is left stays readable in its descriptor.
pub const WAKES_A_DRAIN: usize = 64;

/// Storage for one drain.
pub type WakeList = ArrayVec<Wake, WAKES_A_DRAIN>;

/// Which armed threshold was crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossedThreshold {
    /// The node's own, in either reading.
    Node,
    /// The slice with this index in [`ArmedThresholds::slices`](crate::ArmedThresholds::slices).
    Slice(usize),
}

/// The context that started to reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimer {
    /// The node's kernel thread was woken.
    Kswapd,
    /// A task that allocates had to reclaim by itself.
    Direct,
}

/// A process's command name as the kernel has it (`TASK_COMM_LEN`), which the process may choose.
pub type CommandName = [u8; 16];

/// Where the shortage was that the OOM killer answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomScope {
    /// The whole machine.
    Global,
    /// A memory cgroup at its own limit.
    Cgroup,
    /// The memory nodes of a cpuset.
    Cpuset,
    /// The memory nodes of a task's memory policy.
    NumaNode,
}

/// What happened to a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupChange {
    /// It was made.
    Created,
    /// It was removed.
    Removed,
    /// Its last task left.
    Emptied,
    /// Its first task came.
    Populated,
}

/// One thing that a source noticed. Times are the kernel's, taken where it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Memory crossed an armed threshold.
    ThresholdCrossed {
        /// Which threshold.
        threshold: CrossedThreshold,
        /// The arming that this answers. The agent samples whichever it is.
        generation: Generation,
        /// When.
        crossed: MonotonicNs,
        /// Available memory as the kubelet computes it, from the kernel's global counters, which may be late by the
        /// drift.
        kubelet_available: Pages,
        /// Available memory as `MemAvailable` is computed, likewise.
        mem_available: Pages,
        /// For a slice: what is charged to it, this charge included. Absent for the node.
        usage: Option<Pages>,
        /// The cgroup whose charge crossed the threshold, whichever task runs, since received data is charged in an
        /// interrupt; then its ancestors, itself included, from level 1 below the root on. Where memory is reclaimed and
        /// nothing is charged, those of the task that allocates. Absent beyond the last one, and throughout where
        /// neither is known. Before Linux 6.1 the ancestors may come from the charged cgroup up.
        lineage: [Option<CgroupId>; LINEAGE],
        /// The running thread, which need not be the one that allocates.
        pid: u32,
        /// Its process.
        tgid: u32,
    },
    /// Reclaim began, once for each arming.
    ReclaimStarted {
        /// Which context reclaims.
        by: Reclaimer,
        /// The memory node, where the kernel reports it.
        node: Option<u32>,
        /// When.
        at: MonotonicNs,
    },
    /// Tasks of a cgroup waited for memory longer than the configured share of a second.
    StallBurst {
        /// The cgroup of the tasks that waited.
        cgroup: CgroupId,
        /// How long, summed over its tasks, in the window that burst.
        stalled_ns: u64,
        /// When.
        at: MonotonicNs,
    },
    /// The OOM killer chose a victim.
    Oom {
        /// When.
        at: MonotonicNs,
        /// The victim's process.
        victim: u32,
        /// Its command name, filled up with zero bytes; of none where that is not known.
        name: CommandName,
        /// The victim's cgroup.
        victim_cgroup: Option<CgroupId>,
        /// Its memory cgroup and the ancestors of that, as in [`Self::ThresholdCrossed`].
        lineage: [Option<CgroupId>; LINEAGE],
        /// What the victim has mapped.
        mapped: Option<Pages>,
        /// What the victim has resident (file, anonymous and shared pages; the per-CPU part left out).
        resident: Option<Pages>,
        /// Where the shortage was.
        scope: OomScope,
        /// The memory cgroup whose limit was reached; absent where none was.
        limit: Option<CgroupId>,
    },
    /// The number of tasks crossed its threshold.
    Tasks {
        /// Tasks now.
        count: u32,
        /// The arming that this answers.
        generation: Generation,
        /// When.
        at: MonotonicNs,
        /// The process that forked.
        tgid: u32,
        /// Its cgroup.
        cgroup: CgroupId,
    },
    /// A cgroup came, went, filled or emptied.
    Cgroup {
        /// Which.
        id: CgroupId,
        /// What happened to it.
        change: CgroupChange,
        /// When.
        at: MonotonicNs,
    },
    /// The in-kernel brake stopped a process; the record that undoes it is in the pinned map.
    Stopped {
        /// The process.
        tgid: u32,
        /// The marked slice.
        slice: CgroupId,
        /// When.
        at: MonotonicNs,
    },
    /// The PSI trigger fired.
    Psi {
        /// The length of the trigger's window.
        window_us: u32,
        /// How much stall within a window fires it.
        stall_us: u32,
    },
    /// The poll's period is over.
    Tick {
        /// How many periods passed since the last drain.
        periods: u64,
    },
}
