//! The errors of this crate.

use rustix::io::Errno;
use std::path::PathBuf;

/// What was tried, on what, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A file or directory could not be looked at.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel answered.
        source: Errno,
    },
    /// The mount that a path is on is not listed. It was unmounted in between, or `/proc` is another process's view.
    #[error("the mount {mount} that {} is on is not in /proc/self/mountinfo: is /proc of this mount namespace?", path.display())]
    NoMount {
        /// The mount's id.
        mount: u64,
        /// The path on it.
        path: PathBuf,
    },
    /// A name that cannot be one component of a path.
    #[error("{name:?} cannot be the name of a {what}: one component of a path is expected")]
    Name {
        /// What it names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// All threads that may exist do, hung ones included.
    #[error(
        "no thread for {name}: all {limit} are taken, by file systems that do not answer if the layout has changed"
    )]
    NoSlot {
        /// What it was for.
        name: String,
        /// How many there may be.
        limit: usize,
    },
    /// The kernel gave no thread.
    #[error("cannot start a thread for {name}: {source}. Is the limit of tasks of the service too low?")]
    Thread {
        /// What it was for.
        name: String,
        /// What the kernel answered.
        source: std::io::Error,
    },
}

impl StorageError {
    /// Whether what was looked for does not exist.
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::File { source: Errno::NOENT, .. })
    }
}
