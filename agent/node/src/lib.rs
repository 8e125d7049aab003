//! This machine: the kernel's memory figures, cgroups by descriptors that stay open, processes, and what this process
//! asks of the kernel for itself (locked memory, priority, fewer capabilities).
//!
//! Two kinds of functions, and two kinds of errors:
//! - what is called between a wake and a kill takes `&self`, reads or writes a descriptor opened beforehand, parses
//!   bytes in place, never allocates, and fails with [`Fault`], which is `Copy`;
//! - what opens, walks or prepares may allocate and block, and fails with [`NodeError`], which says what to do.
//!
//! Nothing here decides anything, starts a thread, or logs.

#[cfg(not(target_os = "linux"))]
compile_error!("Plimsoll acts on Linux memory cgroups and reads Linux's /proc: build it for a Linux target.");

pub mod boot;
pub mod capabilities;
pub mod cgroup;
pub mod clock;
mod file;
pub mod limits;
pub mod lock;
pub mod meminfo;
pub mod namespaces;
pub mod os;
mod parse;
pub mod peers;
pub mod pressure;
pub mod priority;
pub mod process;
pub mod program;
pub mod project;
mod sys;
pub mod system_calls;
pub mod vmstat;
pub mod zoneinfo;

use rustix::io::Errno;
use std::path::PathBuf;

/// A failure on the way from a wake to a kill: no allocation, no text until it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The cgroup was removed. Where the aim was that it ends, that is success.
    #[error("the cgroup is gone")]
    Gone,
    /// This kernel, or this cgroup's set of controllers, has no such file.
    #[error("{file} does not exist here")]
    Absent {
        /// Its name.
        file: &'static str,
    },
    /// A read failed.
    #[error("reading {file}: {errno}")]
    Read {
        /// What was read.
        file: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
    /// A write failed.
    #[error("writing {file}: {errno}")]
    Write {
        /// What was written.
        file: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
    /// The file was read, and what it must contain was not in it.
    #[error("{file} has no readable {field}")]
    Malformed {
        /// What was read.
        file: &'static str,
        /// What was expected.
        field: &'static str,
    },
}

/// A failure while opening, walking or preparing: what was tried, on what, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A file or directory could not be opened.
    #[error("cannot open {}: {source}. {advice}", path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// What the kernel answered.
        source: Errno,
        /// What to do about it.
        advice: &'static str,
    },
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// What the kernel answered.
        source: Errno,
    },
    /// A file was read, and what it must contain was not in it.
    #[error("{} has no readable {what}: this kernel's format is not one that is known here", path.display())]
    Malformed {
        /// The path.
        path: PathBuf,
        /// What was expected.
        what: &'static str,
    },
    /// The kernel refused something that this process asked for itself.
    #[error("the kernel refused to {what}: {source}. {advice}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// What the kernel answered.
        source: Errno,
        /// What to do about it.
        advice: &'static str,
    },
    /// The capability sets of this thread could not be read or changed.
    #[error("cannot change this thread's capabilities: {0}. Start the agent as root, or with the unit it ships")]
    Capabilities(#[from] caps::errors::CapsError),
    /// This process is in a container that shows it a part of the machine.
    #[error(
        "this process is in a PID namespace of its own, where it sees a part of the machine's processes and cannot find \
         the machine's cgroups. In a pod, set hostPID: true; with docker, --pid=host"
    )]
    Contained,
    /// A filter of system calls could not be built for this architecture.
    #[error("cannot build a filter of system calls: {0}")]
    Filter(#[from] seccompiler::BackendError),
}
