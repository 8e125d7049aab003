//! Project quotas: which project a directory has, and what the kernel counts for a project. Nothing here assigns one.

use crate::sys;
use rustix::fd::AsFd;
use rustix::io::Errno;

/// The project of a directory (`FS_IOC_FSGETXATTR`, ext4 and xfs). Zero is that of all that was given none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Project {
    /// Its number.
    pub number: u32,
    /// What is made in the directory has it too (`FS_XFLAG_PROJINHERIT`).
    pub is_inherited: bool,
}

/// What files of a project take, those that are removed and still open included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Bytes in allocated blocks, and in those that are reserved for what was written just now.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// The project of an open directory. May hang where a disk does.
///
/// # Errors
/// `ENOTTY` or `EOPNOTSUPP` on file systems without projects.
pub fn of(directory: impl AsFd) -> Result<Project, Errno> {
    /// `FS_XFLAG_PROJINHERIT`, linux/fs.h.
    const INHERITED: u32 = 0x200;
    let (flags, number) = sys::project(directory.as_fd())?;
    Ok(Project { number, is_inherited: flags & INHERITED != 0 })
}

/// What a project takes of the file system that something open is on, from Linux 5.14 on (quotactl_fd(2)). May hang where a
/// disk does.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN; `ESRCH`, `ENOENT` or `ENOSYS` where the file system counts nothing for it.
pub fn taken(on: impl AsFd, number: u32) -> Result<Taken, Errno> {
    let (bytes, inodes) = sys::project_quota(on.as_fd(), number)?;
    Ok(Taken { bytes, inodes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_file_system_without_projects_has_none() {
        let proc = File::open("/proc").expect("it is there");
        let errno = of(&proc).expect_err("it has none");
        assert!([Errno::NOTTY, Errno::OPNOTSUPP].contains(&errno), "{errno}");
        let errno = taken(&proc, 1).expect_err("it counts nothing");
        // Of a kernel without quotas, of a file system without them, and without the capability.
        assert!([Errno::NOSYS, Errno::SRCH, Errno::PERM].contains(&errno), "{errno}");
    }
}
