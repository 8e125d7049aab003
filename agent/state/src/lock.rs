//! One agent acts at a time on a machine; every other one watches and reports what it would do.

use crate::error::StateError;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use std::path::Path;

/// The right to act. Released when it is dropped, or when the process that holds it ends in whatever way.
#[derive(Debug)]
pub struct ActingLock {
    _held: OwnedFd,
}

impl ActingLock {
    /// Takes the right to act; `None` while another process has it. Never waits.
    pub fn try_acquire(path: &Path) -> Result<Option<Self>, StateError> {
        Self::lock(path, FlockOperation::NonBlockingLockExclusive)
    }

    /// Waits for the right to act, for as long as another process has it: the kernel wakes this thread when it is free.
    pub fn acquire(path: &Path) -> Result<Self, StateError> {
        loop {
            // `None` here: a signal ended the wait.
            if let Some(lock) = Self::lock(path, FlockOperation::LockExclusive)? {
                return Ok(lock);
            }
        }
    }

    fn lock(path: &Path, how: FlockOperation) -> Result<Option<Self>, StateError> {
        let fail = |what| move |source| StateError::File { what, path: path.to_owned(), source };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::RUSR | Mode::WUSR).map_err(fail("open"))?;
        match flock(&fd, how) {
            Ok(()) => Ok(Some(Self { _held: fd })),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(source) => Err(fail("lock")(source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_acts_until_it_is_dropped() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("lock");
        let first = ActingLock::try_acquire(&path).expect("writable");
        assert!(first.is_some());
        assert!(ActingLock::try_acquire(&path).expect("writable").is_none());
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || ActingLock::acquire(&path).expect("writable")
        });
        drop(first);
        let next = waiting.join().expect("it has its turn");
        assert!(ActingLock::try_acquire(&path).expect("writable").is_none());
        drop(next);
        assert!(ActingLock::try_acquire(&path).expect("writable").is_some());
        assert!(ActingLock::try_acquire(&dir.path().join("none/lock")).is_err());
    }
}
