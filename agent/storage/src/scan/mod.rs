//! What a directory tree occupies, counted as the kubelet counts it (`DiskUsage`, pkg/volume/util/fs/fs_unix.go): the
//! blocks of every inode, 512 bytes each, and the inodes themselves, directories and links included; one with several
//! names once; nothing of other file systems.
//!
//! The tree may belong to an attacker. A scan recurses nowhere, opens nothing but directories, follows no link and
//! crosses no mount, and takes the memory and the descriptors that [`levels`] and [`links`] state, whatever there is.

mod levels;
mod links;
#[cfg(test)]
mod tests;

use crate::directory;
use crate::error::StorageError;
use crate::mounts::Device;
use core::time::Duration;
use levels::{Identity, Levels, Return};
use links::{Links, Seen};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags, statx};
use rustix::io::Errno;
use std::ffi::CStr;
use std::path::Path;

/// A scan that has seen so many entries ends: a tree that grows faster than it is read would keep it for ever. Four times
/// the inodes of an ext4 of one tebibyte.
const MAX_ENTRIES: u64 = 1 << 28;

/// The unit of `st_blocks`, whatever the file system's own.
const BLOCK_BYTES: u64 = 512;

/// What a tree takes of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Bytes in allocated blocks: what `du` says, and less than the size of a file with holes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// Why a scan has not seen all there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incomplete {
    /// A directory could not be read.
    Failed(Errno),
    /// A directory was renamed while the scan was more than 32 levels below it, so that there was no way back.
    Moved,
    /// Directories are nested more than 131,072 deep. What is above is counted.
    Deep,
    /// More entries were seen than a scan goes through.
    Endless,
}

/// What a scan found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What was counted: all there is, if nothing made it incomplete.
    pub count: Count,
    /// The first thing that made it incomplete.
    pub incomplete: Option<Incomplete>,
}

/// How far a scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is more.
    More,
    /// It has ended.
    Done(Outcome),
}

/// How a scan shares the disk with others: so many entries, then a rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Directory entries at once. Each costs one `statx`, and a directory another one and two opens.
    pub entries: u32,
    /// What is slept then.
    pub rest: Duration,
}

impl Slice {
    /// Ten thousand entries a second at most.
    pub const GENTLE: Self = Self { entries: 200, rest: Duration::from_millis(20) };
}

/// What of a directory is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// It, and all below it.
    Tree,
    /// What is directly in it and no directory.
    Files,
}

/// The mount that a scan stays on. A mount of the same file system within the tree has the same device: its id
/// distinguishes it.
#[derive(Clone, Copy, Debug)]
struct Home {
    device: Device,
    mount: u64,
}

impl Home {
    fn has(self, stat: &Statx) -> bool {
        Device::of(stat) == self.device && stat.stx_mnt_id == self.mount
    }

    /// Opens a directory by its name, as it is then. `None` where a mount, or something else, came in its place: nothing but
    /// a directory of this mount is opened.
    fn open(self, above: BorrowedFd<'_>, name: &CStr) -> Result<Option<(Statx, OwnedFd)>, Errno> {
        let taken = directory::take(above, name)?;
        let stat = stat(taken.as_fd(), c"")?;
        if !self.has(&stat) || !is_directory(&stat) {
            return Ok(None);
        }
        Ok(Some((stat, directory::open(taken)?)))
    }

    fn identify(self, directory: BorrowedFd<'_>) -> Result<Option<Identity>, Errno> {
        let stat = stat(directory, c"")?;
        Ok(self.has(&stat).then(|| Identity::of(&stat)))
    }
}

/// A scan of one directory, in slices.
#[derive(Debug)]
pub struct Scan {
    extent: Extent,
    home: Home,
    levels: Levels,
    links: Links,
    count: Count,
    incomplete: Option<Incomplete>,
    seen: u64,
}

impl Scan {
    /// Of the directory at `path` and all below it, itself included. Links on the way to it are followed.
    pub fn of(path: &Path) -> Result<Self, StorageError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
            .and_then(|directory| Self::start(directory, Extent::Tree))
            .map_err(|source| StorageError::File { what: "scan", path: path.to_owned(), source })
    }

    /// Of an open directory and all below it, itself included.
    pub(crate) fn tree(directory: OwnedFd) -> Result<Self, Errno> {
        Self::start(directory, Extent::Tree)
    }

    /// Of what is directly in an open directory and no directory, itself left out.
    pub(crate) fn files(directory: OwnedFd) -> Result<Self, Errno> {
        Self::start(directory, Extent::Files)
    }

    fn start(directory: OwnedFd, extent: Extent) -> Result<Self, Errno> {
        let stat = stat(directory.as_fd(), c"")?;
        let mut scan = Self {
            extent,
            home: Home { device: Device::of(&stat), mount: stat.stx_mnt_id },
            levels: Levels::default(),
            links: Links::default(),
            count: Count::default(),
            incomplete: None,
            seen: 0,
        };
        if extent == Extent::Tree {
            scan.add(&stat);
        }
        scan.levels.enter(directory, Identity::of(&stat))?;
        Ok(scan)
    }

    /// Goes on for so many directory entries. May hang as long as the disk does. Once it has ended it says the same again.
    pub fn step(&mut self, entries: u32) -> Progress {
        for _ in 0..entries {
            if !self.advance() {
                let count = self.links.shared().plus(self.count);
                return Progress::Done(Outcome { count, incomplete: self.incomplete });
            }
        }
        Progress::More
    }

    /// One entry further. False at the end.
    fn advance(&mut self) -> bool {
        let Some(directory) = self.levels.current() else { return false };
        self.seen += 1;
        if self.seen > MAX_ENTRIES {
            return self.end(Incomplete::Endless);
        }
        match directory.read() {
            Some(Ok(entry)) => self.visit(entry.file_name(), entry.offset()),
            // It was removed while it was read.
            None | Some(Err(Errno::NOENT)) => self.leave(),
            Some(Err(errno)) => {
                self.note(Incomplete::Failed(errno));
                self.leave()
            }
        }
    }

    fn visit(&mut self, name: &CStr, offset: i64) -> bool {
        self.levels.pass(offset);
        if name == c"." || name == c".." {
            return true;
        }
        let Some(directory) = self.levels.current().and_then(|directory| directory.fd().ok()) else { return false };
        let stat = match stat(directory, name) {
            Ok(stat) => stat,
            Err(errno) => return self.missed(errno),
        };
        if !self.home.has(&stat) {
            return true;
        }
        if !is_directory(&stat) {
            self.add_file(&stat);
            return true;
        }
        if self.extent == Extent::Files {
            return true;
        }
        match self.home.open(directory, name) {
            Ok(Some((stat, fd))) => {
                self.add(&stat);
                match self.levels.enter(fd, Identity::of(&stat)) {
                    Ok(true) => {}
                    Ok(false) => self.note(Incomplete::Deep),
                    Err(errno) => self.note(Incomplete::Failed(errno)),
                }
                true
            }
            Ok(None) => true,
            Err(errno) => self.missed(errno),
        }
    }

    /// Back to the directory above.
    fn leave(&mut self) -> bool {
        let home = self.home;
        match self.levels.leave(|directory| home.identify(directory)) {
            Return::Done => true,
            Return::Failed(errno) => self.end(Incomplete::Failed(errno)),
            Return::Moved => self.end(Incomplete::Moved),
        }
    }

    /// What was there a moment ago and is not now, or is something else, counts nothing, as for the kubelet.
    fn missed(&mut self, errno: Errno) -> bool {
        if !matches!(errno, Errno::NOENT | Errno::NOTDIR) {
            self.note(Incomplete::Failed(errno));
        }
        true
    }

    fn note(&mut self, why: Incomplete) {
        self.incomplete.get_or_insert(why);
    }

    fn end(&mut self, why: Incomplete) -> bool {
        self.note(why);
        self.levels = Levels::default();
        false
    }

    fn add(&mut self, stat: &Statx) {
        self.count = Count { bytes: stat.stx_blocks.saturating_mul(BLOCK_BYTES), inodes: 1 }.plus(self.count);
    }

    fn add_file(&mut self, stat: &Statx) {
        match self.links.see(stat.stx_ino, stat.stx_nlink) {
            Seen::First => self.add(stat),
            Seen::Again => {}
            Seen::Unknown => self.links.share(stat.stx_blocks.saturating_mul(BLOCK_BYTES), stat.stx_nlink),
        }
    }
}

impl Count {
    /// Both together; saturates.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), inodes: self.inodes.saturating_add(other.inodes) }
    }
}

/// Of what a name stands for, never of what a link points to, and without mounting anything; an empty name stands for the
/// directory itself. Where something is mounted, what answers is its root: from what the kernel knows already, so that a
/// FUSE server that a pod runs below its own volume cannot hold the scan up. File systems of disks know all of it.
fn stat(directory: BorrowedFd<'_>, name: &CStr) -> Result<Statx, Errno> {
    let wanted = StatxFlags::TYPE | StatxFlags::NLINK | StatxFlags::INO | StatxFlags::BLOCKS | StatxFlags::MNT_ID;
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(directory, name, flags, wanted)
}

fn is_directory(stat: &Statx) -> bool {
    FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory
}
