//! How the core and its source fare.

use core::time::Duration;
use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};

/// Sent by the inventory thread every few seconds, and failures by both threads when they happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HealthRecord<'a> {
    /// The core lives. Without it for long, the agent is not ready.
    Beat {
        /// When.
        at: MonotonicNs,
        /// Workloads known.
        workloads: u32,
        /// Records of the kernel side that could not be decoded.
        malformed: u64,
        /// Processes that the in-kernel brake stopped.
        brakes_applied: u64,
        /// In-kernel brakes refused because their undo could not be written.
        brakes_refused: u64,
        /// Signals to processes that went on although the in-kernel brake had stopped them.
        brakes_repeated: u64,
    },
    /// What the inventory leaves out, and what it costs. With each heartbeat.
    Inventory {
        /// Workloads for which there is no row in the table: they are not watched.
        without_row: u32,
        /// Memory that is charged to cgroups and to no workload that is watched.
        outside: Bytes,
        /// Descriptors that are kept open for workloads.
        descriptors: u32,
        /// Kernel memory that is charged to the agent's cgroup. Absent: the kernel does not report it.
        kernel_memory: Option<Bytes>,
        /// How long the watching thread's last sample took, to which its pace is adapted.
        sample_cost: Duration,
        /// How many samples so far came later than they would have, because they cost much.
        delayed_samples: u32,
    },
    /// Records that found a ring buffer of the kernel full, so far.
    Lost {
        /// The ring buffer.
        ring: &'a str,
        /// How many.
        count: u64,
    },
    /// The counters of a program in the kernel, so far. Absent: the kernel does not count it.
    Program {
        /// Its name.
        name: &'a str,
        /// How often it ran.
        runs: Option<u64>,
        /// For how long, over all CPUs, in nanoseconds.
        run_time_ns: Option<u64>,
        /// How often it was left out because it was running already.
        recursion_misses: Option<u64>,
    },
    /// Another program changed what this agent has in the kernel.
    Tampered(Tampered),
    /// A call of the watching thread that should not fail did.
    Failed {
        /// What was tried.
        what: &'a str,
        /// The kernel's error number, where there is one.
        errno: Option<i32>,
    },
    /// Something outside of the watching thread does not work, or works again; the agent goes on without it.
    Trouble {
        /// What was tried, in a word or two, as the metric's label has it; [`START`](Self::START) for what failed while
        /// the core started, of which each has a record.
        what: &'a str,
        /// What does not work and what that costs, as a sentence. Absent: it works again.
        text: Option<&'a str>,
        /// Another process has logged it, with what it knows of the cause.
        is_logged: bool,
    },
    /// Whether a kill switch stops every action. Before each [`Armed`](super::StartupRecord::Armed), and when it changes.
    KillSwitch {
        /// The path of the file, or the annotation.
        switch: &'a str,
        /// It is there.
        is_thrown: bool,
    },
}

impl HealthRecord<'_> {
    /// What failed while the core started, in [`Trouble`](Self::Trouble).
    pub const START: &'static str = "start";
}

/// What of the agent's was changed in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tampered {
    /// Armed thresholds or marks of the in-kernel brake. They are written anew.
    Thresholds,
    /// The programs are attached and do not run, or were detached. The core is started again.
    Programs,
}

impl Tampered {
    /// In the log's field `tampered` and the metric's label `what`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Thresholds => "thresholds",
            Self::Programs => "programs",
        }
    }
}
