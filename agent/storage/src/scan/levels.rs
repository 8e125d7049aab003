//! Where a scan is: the directories from the root of the tree down to the current one.
//!
//! The deepest 32 are held open. Of those above only the inode and the position in it are kept, 16 bytes, for 131,072
//! levels at most. Back in one of these, it is opened anew as `..` of the directory below, must be the same inode, and is
//! read on from its position. So 32 descriptors and 4.5 MiB bound what a scan holds, and no path is ever put together, as
//! none could be: `PATH_MAX` ends at some two thousand levels.

use crate::directory;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{Dir, Statx};
use rustix::io::Errno;
use std::collections::VecDeque;

/// How many directories are held open, each with a buffer of at most 48 KiB.
pub(super) const MAX_OPEN: usize = 32;
/// How deep a scan goes.
pub(super) const MAX_LEVELS: usize = 1 << 17;

/// The inode of a directory, whose file system and mount were compared already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity(u64);

impl Identity {
    pub(super) const fn of(stat: &Statx) -> Self {
        Self(stat.stx_ino)
    }
}

#[derive(Debug)]
struct Level {
    identity: Identity,
    /// The position behind the last entry that was read.
    offset: i64,
}

/// Whether there was a way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// There was, or it was the root and the scan is at its end.
    Done,
    /// The kernel's answer.
    Failed(Errno),
    /// What is above now is another directory than was.
    Moved,
}

#[derive(Debug, Default)]
pub(super) struct Levels {
    /// From the root down.
    levels: Vec<Level>,
    /// The open ones of the deepest.
    open: VecDeque<Dir>,
}

impl Levels {
    /// How many directories there are down to the current one.
    #[cfg(test)]
    pub(super) const fn depth(&self) -> usize {
        self.levels.len()
    }

    /// The directory that is being read.
    pub(super) fn current(&mut self) -> Option<&mut Dir> {
        self.open.back_mut()
    }

    /// Notes the position behind an entry of the current directory.
    pub(super) fn pass(&mut self, offset: i64) {
        if let Some(level) = self.levels.last_mut() {
            level.offset = offset;
        }
    }

    /// Goes down. False where that is too deep.
    pub(super) fn enter(&mut self, directory: OwnedFd, identity: Identity) -> Result<bool, Errno> {
        if self.levels.len() == MAX_LEVELS {
            return Ok(false);
        }
        self.open.push_back(Dir::new(directory)?);
        if self.open.len() > MAX_OPEN {
            self.open.pop_front();
        }
        self.levels.push(Level { identity, offset: 0 });
        Ok(true)
    }

    /// Goes up. `compare` says which directory one is, `None` for one outside of the mount.
    pub(super) fn leave(&mut self, compare: impl FnOnce(BorrowedFd<'_>) -> Result<Option<Identity>, Errno>) -> Return {
        self.levels.pop();
        let (Some(below), Some(level)) = (self.open.pop_back(), self.levels.last()) else {
            return Return::Done;
        };
        if self.open.is_empty() {
            match reopen(&below, level, compare) {
                Ok(Some(directory)) => self.open.push_back(directory),
                Ok(None) => return Return::Moved,
                Err(errno) => return Return::Failed(errno),
            }
        }
        Return::Done
    }
}

/// Opens the directory above one, where that is still this one, at its position. `None` where it is another one.
fn reopen(
    below: &Dir,
    level: &Level,
    compare: impl FnOnce(BorrowedFd<'_>) -> Result<Option<Identity>, Errno>,
) -> Result<Option<Dir>, Errno> {
    let above = directory::take(below.fd()?, c"..")?;
    if compare(above.as_fd())? != Some(level.identity) {
        return Ok(None);
    }
    let mut directory = Dir::new(directory::open(above)?)?;
    match directory.seek(level.offset) {
        // Ext4 takes no position of before in a directory that was removed, which has nothing more to read.
        Err(Errno::INVAL) => {
            directory.rewind();
            if directory.read().is_some() {
                return Err(Errno::INVAL);
            }
        }
        sought => sought?,
    }
    Ok(Some(directory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open};

    #[test]
    fn the_deepest_way_is_bounded_and_its_end_is_reported() {
        let mut levels = Levels::default();
        let mut enter = || {
            let directory = open("/", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("it is there");
            levels.enter(directory, Identity(1))
        };
        let memory = allocation_counter::measure(|| {
            for level in 0..MAX_LEVELS {
                assert_eq!(enter(), Ok(true), "{level}");
            }
        });
        assert_eq!(enter(), Ok(false));
        assert_eq!((levels.depth(), levels.open.len()), (MAX_LEVELS, MAX_OPEN));
        assert!(memory.bytes_max < 4 << 20, "{memory:?}");
    }
}
