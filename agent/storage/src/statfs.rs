//! What is left on a file system.

use crate::mounts::{Device, FileSystem};
use plimsoll_policy::kubelet::FsStats;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatFs, StatxFlags, fstatfs, openat, statx};
use rustix::io::Errno;
use std::fmt;
use std::path::Path;

/// `TMPFS_MAGIC` (linux/magic.h).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Why there is no figure of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The kernel's answer.
    Failed(Errno),
    /// Another file system is there now: something was mounted or unmounted, and the layout has to be found again.
    Moved(Device),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(errno) => write!(f, "statfs failed: {errno}"),
            Self::Moved(Device { major, minor }) => write!(f, "another file system ({major}:{minor}) is mounted there"),
        }
    }
}

/// Asks the kernel, which may hang. The time is left to the caller.
pub(crate) fn read(fs: &FileSystem) -> Result<FsStats, Trouble> {
    // Both questions go to one directory, whatever is mounted over its path meanwhile.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let directory = openat(CWD, &fs.measured_at, flags, Mode::empty()).map_err(Trouble::Failed)?;
    let stat = statx(&directory, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE).map_err(Trouble::Failed)?;
    let device = Device::of(&stat);
    if device != fs.device {
        return Err(Trouble::Moved(device));
    }
    fstatfs(&directory).map(|statfs| Figures::of(&statfs).left()).map_err(Trouble::Failed)
}

/// What is left on the file system of a directory, whichever that is now. Asks the kernel, which may hang. The time is left
/// to the caller.
pub fn left_at(directory: &Path) -> Result<FsStats, Errno> {
    room_at(directory).map(|(_, left)| left)
}

/// The same, with the file system's number.
pub fn room_at(directory: &Path) -> Result<(Device, FsStats), Errno> {
    // Both questions go to one directory, whatever is mounted over its path meanwhile.
    let directory = openat(CWD, directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let stat = statx(&directory, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE)?;
    fstatfs(&directory).map(|statfs| (Device::of(&stat), Figures::of(&statfs).left()))
}

/// What `statfs(2)` answers, in one integer type for all machines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    kind: u64,
    block_bytes: u64,
    blocks: u64,
    blocks_free: u64,
    blocks_available: u64,
    inodes: u64,
    inodes_free: u64,
}

impl Figures {
    pub(crate) fn of(statfs: &StatFs) -> Self {
        Self {
            kind: number(statfs.f_type),
            block_bytes: number(statfs.f_frsize),
            blocks: statfs.f_blocks,
            blocks_free: statfs.f_bfree,
            blocks_available: statfs.f_bavail,
            inodes: statfs.f_files,
            inodes_free: statfs.f_ffree,
        }
    }

    /// As cAdvisor computes it (fs/vfs/stats.go): blocks for users without privilege, in the fragment's size. A file
    /// system that counts no blocks or no inodes has none of these figures; the kubelet reads zero there.
    fn left(self) -> FsStats {
        let (has_blocks, has_inodes) = (self.blocks > 0, self.inodes > 0);
        FsStats {
            available: has_blocks.then(|| self.blocks_available.saturating_mul(self.block_bytes)),
            capacity: has_blocks.then(|| self.blocks.saturating_mul(self.block_bytes)),
            inodes_free: has_inodes.then_some(self.inodes_free),
            inodes: has_inodes.then_some(self.inodes),
            time: None,
        }
    }

    /// The bytes and inodes in use on a tmpfs that bounds both, as one that the kubelet mounts does; `None` on any other
    /// file system, and on a tmpfs without bounds, which counts neither.
    pub(crate) fn used_of_tmpfs(self) -> Option<(u64, u64)> {
        let is_counted = self.kind == TMPFS_MAGIC && self.blocks > 0 && self.inodes > 0;
        let used = self.blocks.saturating_sub(self.blocks_free).saturating_mul(self.block_bytes);
        is_counted.then(|| (used, self.inodes.saturating_sub(self.inodes_free)))
    }
}

/// These fields are signed on some machines; the kernel puts no negative number there.
fn number(field: impl TryInto<u64>) -> u64 {
    field.try_into().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::Mounts;

    const FIGURES: Figures = Figures {
        kind: TMPFS_MAGIC,
        block_bytes: 4096,
        blocks: 100,
        blocks_free: 30,
        blocks_available: 20,
        inodes: 50,
        inodes_free: 9,
    };

    #[test]
    fn what_is_left_is_what_users_may_take_and_what_is_not_counted_is_absent() {
        let left = FIGURES.left();
        assert_eq!((left.available, left.capacity), (Some(81_920), Some(409_600)));
        assert_eq!((left.inodes_free, left.inodes), (Some(9), Some(50)));
        let left = Figures { inodes: 0, inodes_free: 0, ..FIGURES }.left();
        assert_eq!((left.capacity, left.inodes_free, left.inodes), (Some(409_600), None, None));
        let left = Figures { blocks: 0, blocks_available: 0, ..FIGURES }.left();
        assert_eq!((left.available, left.capacity, left.inodes), (None, None, Some(50)));
        assert_eq!(Figures { blocks: u64::MAX, ..FIGURES }.left().capacity, Some(u64::MAX));
    }

    #[test]
    fn only_a_bounded_tmpfs_reports_what_is_used() {
        assert_eq!(FIGURES.used_of_tmpfs(), Some((70 * 4096, 41)));
        for other in
            [Figures { kind: 0xef53, ..FIGURES }, Figures { blocks: 0, ..FIGURES }, Figures { inodes: 0, ..FIGURES }]
        {
            assert_eq!(other.used_of_tmpfs(), None, "{other:?}");
        }
    }

    #[test]
    fn what_is_mounted_elsewhere_or_gone_is_distinguished() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut mounts = Mounts::open().expect("this is Linux");
        let fs = mounts.file_system(directory.path()).expect("it exists");
        let left = read(&fs).expect("it can be read");
        assert!(left.available <= left.capacity && left.capacity > Some(0), "{left:?}");
        assert_eq!(left_at(directory.path()).expect("it is there").capacity, left.capacity);
        let (device, room) = room_at(directory.path()).expect("it is there");
        assert_eq!((device, room.capacity), (fs.device, left.capacity));
        assert_eq!(left_at(&directory.path().join("gone")), Err(Errno::NOENT));
        let elsewhere = FileSystem { measured_at: "/proc".into(), ..fs.clone() };
        let proc = mounts.file_system(Path::new("/proc")).expect("it exists").device;
        assert_eq!(read(&elsewhere), Err(Trouble::Moved(proc)));
        let gone = FileSystem { measured_at: directory.path().join("gone"), ..fs };
        assert_eq!(read(&gone), Err(Trouble::Failed(Errno::NOENT)));
    }
}
