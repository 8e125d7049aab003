//! The errors of this crate.

use rustix::io::Errno;
use std::path::PathBuf;

/// What was tried, on what, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file could not be opened, made or locked.
    #[error("cannot {what} {}: {source}. The directory must exist and belong to root; is another path configured?", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel answered.
        source: Errno,
    },
    /// Shared memory could not be made or mapped.
    #[error(
        "cannot {what} for the queue to the reporter: {source}. Is the limit of open files or locked memory too low?"
    )]
    Memory {
        /// What was tried.
        what: &'static str,
        /// What the kernel answered.
        source: Errno,
    },
    /// A descriptor that should be a queue is none.
    #[error("the inherited descriptor is not the queue of this version: {0}. Start the agent with `plimsoll run`")]
    NotAQueue(&'static str),
}
