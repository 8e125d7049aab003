//! The tree that cgroups are in: its root, and the ways from there to a directory.

use super::walk;
use crate::{NodeError, sys};
use plimsoll_units::CgroupId;
use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, FsWord, Mode, OFlags, fstat, fstatfs, openat, readlink};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// `CGROUP2_SUPER_MAGIC`, include/uapi/linux/magic.h.
const CGROUP2: FsWord = 0x6367_7270;

/// The root of the cgroup tree.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    pub(super) path: PathBuf,
}

impl Root {
    /// Opens the root of a tree, `/sys/fs/cgroup` as a rule.
    pub fn open(path: &Path) -> Result<Self, NodeError> {
        let fd = openat(CWD, path, DIRECTORY, Mode::empty()).map_err(|source| NodeError::Open {
            path: path.to_owned(),
            source,
            advice: "It must be the root of a cgroup2 mount",
        })?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where a cgroup is now, below the root; `None` where it is gone. The kernel finds it by its id, whatever the size of
    /// the tree. Needs CAP_DAC_READ_SEARCH.
    pub fn path_of(&self, cgroup: CgroupId) -> Result<Option<Vec<u8>>, NodeError> {
        let failed = |source| NodeError::Open {
            path: self.path.clone(),
            source,
            advice: "To open a cgroup by its id CAP_DAC_READ_SEARCH is needed",
        };
        // Another file system would take the id for one of its own, or say that there is none.
        if fstatfs(self).map_err(failed)?.f_type != CGROUP2 {
            return Err(failed(Errno::OPNOTSUPP));
        }
        let fd = match sys::open_kernfs_by_id(self.as_fd(), cgroup.0) {
            Ok(fd) => fd,
            Err(Errno::STALE | Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        let link = readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new()).map_err(failed)?;
        // A cgroup outside of this mount, and one that was removed, have no path below the root.
        let below = link.as_bytes().strip_prefix(self.path.as_os_str().as_bytes());
        let path = below.and_then(|path| path.strip_prefix(b"/")).filter(|path| !path.is_empty());
        let Some(path) = path else { return Ok(None) };
        match open_below(self.as_fd(), path).and_then(|fd| id_of(fd.as_fd())) {
            Ok(id) => Ok((id == cgroup).then(|| path.into())),
            Err(Errno::NOENT | Errno::NODEV) => Ok(None),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Searches the tree for a cgroup: for one that cannot be opened by its id. `None` where it is gone.
    pub fn find(&self, cgroup: CgroupId) -> Result<Option<Vec<u8>>, NodeError> {
        let failed = |source| NodeError::Read { path: self.path.clone(), source };
        walk::find(self.as_fd(), cgroup).map_err(failed)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens the directory at `path` below `dir`, one name at a time: no symbolic link, no `..`, nothing outside.
pub fn open_below(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let open = |from: BorrowedFd<'_>, name: &[u8]| match name {
        b"." | b".." => Err(Errno::INVAL),
        name => openat(from, OsStr::from_bytes(name), DIRECTORY, Mode::empty()),
    };
    let mut fd = open(dir, names.next().ok_or(Errno::INVAL)?)?;
    for name in names {
        fd = open(fd.as_fd(), name)?;
    }
    Ok(fd)
}

/// The id of the cgroup whose directory is open.
pub fn id_of(fd: BorrowedFd<'_>) -> Result<CgroupId, Errno> {
    fstat(fd).map(|stat| CgroupId(stat.st_ino))
}

/// Names of the directories in `dir`, sorted.
pub fn children(dir: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    some_children(dir, usize::MAX)
}

/// Names of `most` of them at most, sorted: the first ones that are listed, which are the same ones each time.
pub(super) fn some_children(dir: BorrowedFd<'_>, most: usize) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    // A directory's own links are two, and each one in it has another (`kernfs_refresh_inode`, fs/kernfs/inode.c). A cgroup
    // has some sixty files, which need not be listed then. On file systems that do not count links so there is one.
    if fstat(dir)?.st_nlink == 2 {
        return Ok(names);
    }
    for entry in rustix::fs::Dir::read_from(dir)? {
        if names.len() >= most {
            break;
        }
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if entry.file_type() == rustix::fs::FileType::Directory && name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}
