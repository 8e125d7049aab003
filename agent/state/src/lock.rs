//! One agent acts at a time on a machine; every other one watches and says what it would do.

use crate::error::StateError;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use std::path::Path;

/// The right to act. Given back when it is dropped, or when the process that holds it dies in whatever way.
#[derive(Debug)]
pub struct ActingLock {
    _held: OwnedFd,
}

impl ActingLock {
    /// Takes the right to act; `None` while another process has it. Never waits: whoever shadows asks again.
    pub fn try_acquire(path: &Path) -> Result<Option<Self>, StateError> {
        let fail = |what| move |source| StateError::File { what, path: path.to_owned(), source };
        let how = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(CWD, path, how, Mode::RUSR | Mode::WUSR).map_err(fail("open"))?;
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _held: fd })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(source) => Err(fail("lock")(source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_acts_until_it_is_gone() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("lock");
        let first = ActingLock::try_acquire(&path).expect("writable");
        assert!(first.is_some());
        assert!(ActingLock::try_acquire(&path).expect("writable").is_none());
        drop(first);
        assert!(ActingLock::try_acquire(&path).expect("writable").is_some());
        assert!(ActingLock::try_acquire(&dir.path().join("none/lock")).is_err());
    }
}
