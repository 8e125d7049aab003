//! What can fail while sensing, and what to do about it.

use std::{io, path::PathBuf};

use crate::kind::Kind;

/// What was tried, on what, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum SenseError {
    /// A file or descriptor of the kernel did not answer.
    #[error("cannot {action} {path}: {error}", path = path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the kernel answered.
        error: io::Error,
    },
    /// A system call on an open descriptor failed.
    #[error("cannot {action}: {error}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the kernel answered; where that has no error number, the one that says the same.
        error: io::Error,
    },
    /// The PSI trigger was refused with every window.
    #[error(
        "the kernel refused the trigger `{trigger}` on {path}: {error}; windows that are no multiple of 2 s need \
         CAP_SYS_RESOURCE",
        path = path.display()
    )]
    TriggerRefused {
        /// What was written.
        trigger: String,
        /// On which file.
        path: PathBuf,
        /// What the kernel answered.
        error: io::Error,
    },
    /// The kernel programs do not load, or what they need is missing.
    #[error("{what}: {why}; `plimsoll check` lists what this kernel allows")]
    Ebpf {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        why: String,
    },
    /// More slices than the brake can hold, or the root cgroup.
    #[error("the in-kernel brake holds at most {most} slices, all of them below the root cgroup")]
    BrakeMarks {
        /// How many.
        most: usize,
    },
    /// The in-kernel brake was requested of a source that has none.
    #[error("source `{0}` cannot brake in the kernel; run with source `ebpf` or leave the in-kernel brake off")]
    NoKernelBrake(Kind),
    /// A poll period of zero.
    #[error("a poll period must be longer than zero")]
    ZeroPeriod,
    /// No source could be started.
    #[error("no source could be started: {0}")]
    NoSource(String),
}
