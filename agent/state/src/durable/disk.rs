//! The directory: what is done to its files, a step at a time, and whether its owner can be trusted.

use super::content::MAX_BYTES;
use super::image::HEADER;
use rustix::fd::OwnedFd;
use rustix::fs::{
    CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, Stat, fallocate, flock, fstat, fsync, mkdir, open,
    openat, renameat,
};
use rustix::io::{Errno, pwrite, retry_on_intr};
use rustix::process::geteuid;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The files, in turn.
pub(super) const NAMES: [&str; 2] = ["state.0", "state.1"];
/// Room is reserved by this many bytes.
const ROOM: usize = 256 << 10;

/// Why a file is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aside {
    /// It cannot be used.
    Broken,
    /// A newer version wrote it.
    Newer,
}

impl Aside {
    /// What is then behind its name.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Broken => ".broken",
            Self::Newer => ".newer",
        }
    }
}

/// What two slots are made of. A file is named by its number.
pub(super) trait Disk {
    /// A file that is open to be written.
    type File;
    /// Where it is, for messages.
    fn path(&self, slot: usize) -> PathBuf;
    /// All of it; `None` where there is none.
    fn read(&self, slot: usize) -> Result<Option<Vec<u8>>, String>;
    /// Gives it another name, in the place of one that had it before.
    fn set_aside(&mut self, slot: usize, aside: Aside) -> Result<(), Errno>;
    /// Opens it, or makes it. [`Errno::INVAL`]: something else has its name.
    fn open(&mut self, slot: usize) -> Result<Self::File, Errno>;
    /// Reserves room for so many bytes, where that is possible.
    fn reserve(&mut self, file: &Self::File, bytes: usize);
    /// Writes all bytes, from its beginning.
    fn write(&mut self, file: &Self::File, bytes: &[u8]) -> Result<(), Errno>;
    /// Waits until its bytes are on the disk.
    fn sync(&mut self, file: &Self::File) -> Result<(), Errno>;
    /// Waits until all names are.
    fn sync_names(&mut self) -> Result<(), Errno>;
}

/// A store could not be opened. Nothing was read, and nothing is overwritten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The directory could not be used.
    #[error("cannot {what} the directory {}: {source}. Nothing is kept over a restart until it can", path.display())]
    Directory {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel answered.
        source: Errno,
    },
    /// Others could write what is believed.
    #[error(
        "the directory {} belongs to user {owner} and has mode {mode:o}: it must belong to user {user} or to root, and \
         only its owner may write to it",
        path.display()
    )]
    Untrusted {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Its permissions.
        mode: u32,
        /// The user of this process.
        user: u32,
    },
    /// Another process has it.
    #[error("another process keeps its state in {}: each agent needs a directory of its own", path.display())]
    Held {
        /// The directory.
        path: PathBuf,
    },
}

/// What becomes of a directory that another process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// It is an error.
    Free,
    /// It is waited for, for as long as that takes.
    Awaited,
}

/// The directory, opened and locked.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens it, or makes it.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let fail = |what| move |source| OpenError::Directory { what, path: path.to_owned(), source };
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = match open(path, how, Mode::empty()) {
            Err(Errno::NOENT) => {
                make(path).map_err(fail("make"))?;
                open(path, how, Mode::empty())
            }
            opened => opened,
        }
        .map_err(fail("open"))?;
        Self::of(fd, path, Lock::Free)
    }

    /// Of one that is open to be listed; `path` is for messages.
    pub(super) fn of(fd: OwnedFd, path: &Path, lock: Lock) -> Result<Self, OpenError> {
        let fail = |what| move |source| OpenError::Directory { what, path: path.to_owned(), source };
        let stat = fstat(&fd).map_err(fail("stat"))?;
        let user = geteuid().as_raw();
        if !is_trusted(&stat, user) {
            let (owner, mode) = (stat.st_uid, stat.st_mode & 0o7777);
            return Err(OpenError::Untrusted { path: path.to_owned(), owner, mode, user });
        }
        let how = match lock {
            Lock::Free => FlockOperation::NonBlockingLockExclusive,
            Lock::Awaited => FlockOperation::LockExclusive,
        };
        match retry_on_intr(|| flock(&fd, how)) {
            Ok(()) => Ok(Self { fd, path: path.to_owned() }),
            Err(Errno::WOULDBLOCK) => Err(OpenError::Held { path: path.to_owned() }),
            Err(source) => Err(fail("lock")(source)),
        }
    }
}

fn make(path: &Path) -> Result<(), Errno> {
    mkdir(path, Mode::RWXU)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fsync(openat(CWD, parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Only this user and root can have written it.
pub(super) fn is_trusted(stat: &Stat, user: u32) -> bool {
    [0, user].contains(&stat.st_uid) && stat.st_mode & 0o022 == 0
}

/// All of a file, for [`Disk::read`].
pub(super) fn read(directory: &OwnedFd, slot: usize, user: u32) -> Result<Option<Vec<u8>>, String> {
    let fd = match openat(directory, NAMES[slot], OFlags::RDONLY | SAFELY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened.map_err(|errno| errno.to_string())?,
    };
    let stat = fstat(&fd).map_err(|errno| errno.to_string())?;
    if !is_file(&stat) {
        return Err("it is not a regular file".into());
    }
    if !is_trusted(&stat, user) {
        let (owner, mode) = (stat.st_uid, stat.st_mode & 0o7777);
        return Err(format!("others could have written it: it belongs to user {owner} and has mode {mode:o}"));
    }
    let mut bytes = Vec::new();
    let most = u64::try_from(HEADER + MAX_BYTES).unwrap_or(u64::MAX);
    File::from(fd).take(most).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(Some(bytes))
}

fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Neither a link is followed nor a pipe waited for.
const SAFELY: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

impl Disk for Directory {
    type File = OwnedFd;

    fn path(&self, slot: usize) -> PathBuf {
        self.path.join(NAMES[slot])
    }

    fn read(&self, slot: usize) -> Result<Option<Vec<u8>>, String> {
        read(&self.fd, slot, geteuid().as_raw())
    }

    fn set_aside(&mut self, slot: usize, aside: Aside) -> Result<(), Errno> {
        match renameat(&self.fd, NAMES[slot], &self.fd, [NAMES[slot], aside.suffix()].concat()) {
            Err(Errno::NOENT) => Ok(()),
            renamed => renamed,
        }
    }

    fn open(&mut self, slot: usize) -> Result<OwnedFd, Errno> {
        let how = OFlags::RDWR | OFlags::CREATE | SAFELY;
        match openat(&self.fd, NAMES[slot], how, Mode::RUSR | Mode::WUSR) {
            Ok(fd) if is_file(&fstat(&fd)?) => Ok(fd),
            Ok(_) | Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::NODEV) => Err(Errno::INVAL),
            Err(errno) => Err(errno),
        }
    }

    fn reserve(&mut self, file: &OwnedFd, bytes: usize) {
        let room = u64::try_from(bytes.next_multiple_of(ROOM)).unwrap_or(u64::MAX);
        // Where there is no room, or it cannot be reserved, the write itself says so, or succeeds.
        let _ = fallocate(file, FallocateFlags::KEEP_SIZE, 0, room);
    }

    fn write(&mut self, file: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
        let mut written = 0;
        while written < bytes.len() {
            match pwrite(file, &bytes[written..], u64::try_from(written).unwrap_or(u64::MAX)) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn sync(&mut self, file: &OwnedFd) -> Result<(), Errno> {
        fsync(file)
    }

    fn sync_names(&mut self) -> Result<(), Errno> {
        fsync(&self.fd)
    }
}
