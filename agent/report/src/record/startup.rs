//! How the core started.

use core::time::Duration;

use serde::{Deserialize, Serialize};

/// How long the start took, part by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartParts {
    /// Reading and checking the configuration.
    pub configuration: Duration,
    /// Undoing what an earlier process left.
    pub undo: Duration,
    /// Starting the source: for eBPF, reading types, loading and attaching.
    pub source: Duration,
    /// Finding and opening the workloads.
    pub workloads: Duration,
    /// Locking memory and raising the priority.
    pub lock: Duration,
    /// All of it, until the first thresholds were armed.
    pub armed: Duration,
}

impl StartParts {
    /// Each part with its name.
    pub const fn named(&self) -> [(&'static str, Duration); 6] {
        let Self { configuration, undo, source, workloads, lock, armed } = *self;
        [
            ("configuration", configuration),
            ("undo", undo),
            ("source", source),
            ("workloads", workloads),
            ("lock", lock),
            ("armed", armed),
        ]
    }
}

/// Sent by the inventory thread once the core is armed, and again for each new reporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartupRecord<'a> {
    /// A better source that was not taken.
    SourceFailed {
        /// Its name.
        source: &'a str,
        /// Why not.
        why: &'a str,
    },
    /// A hook in the kernel.
    Hook {
        /// The hook family's name.
        name: &'a str,
        /// Whether it is attached.
        attached: bool,
        /// The attach type and target, or why it is missing.
        how: &'a str,
    },
    /// The core is armed. After the reasons why it is armed with less than it could be.
    Armed {
        /// The core's process.
        pid: u32,
        /// The source in use: `ebpf`, `psi` or `poll`.
        source: &'a str,
        /// Why this agent only watches; absent where it acts.
        shadow: Option<&'a str>,
        /// Workloads found.
        workloads: u32,
        /// How long the start took.
        start: StartParts,
    },
    /// What an earlier process left was undone at the start.
    Undone {
        /// Cgroups thawed.
        thawed: u32,
        /// Processes continued that the in-kernel brake had stopped.
        continued: u32,
        /// What could not be undone; it is tried again at the next start.
        failed: u32,
        /// Kills that are waited for.
        kills: u32,
    },
}
