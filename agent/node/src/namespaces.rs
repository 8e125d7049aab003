//! Whether this process sees the machine, or what a container runtime made for it; and the way out.
//!
//! A cgroup namespace of its own makes a process take its own cgroup for the root and `init`'s for one above it; the
//! cgroup file system that is mounted there shows the process's own part only. What acts for the whole machine enters the
//! machine's namespaces, where its privileges and `hostPID` allow that, or does not act at all.

use crate::NodeError;
use crate::os::CGROUP_ROOT;
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, openat, stat, statfs};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The inode of the machine's PID namespace in every kernel since 3.8: `PROC_PID_INIT_INO`, include/linux/proc_ns.h;
/// `PID_NS_INIT_INO`, include/uapi/linux/nsfs.h.
const PID: u64 = 0xEFFF_FFFC;
/// The same of the cgroup namespace, since 4.6.
const CGROUP: u64 = 0xEFFF_FFFB;
/// The root of every file system that is a kernfs, as the machine's cgroups are.
const ROOT: u64 = 1;

const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// What an owner can do where a process may not enter the machine's namespaces.
const ADVICE: &str = "In a container, set securityContext.privileged: true, or add the capabilities SYS_ADMIN, SYS_CHROOT \
and SYS_PTRACE, or give it the machine's cgroup namespace and mounts (docker: --cgroupns=host)";

/// The machine's mounts, to be entered.
#[derive(Debug)]
pub struct Mounts(OwnedFd);

/// Enters the machine's cgroup namespace, where this process is not in it or sees a part of its cgroups only, and gives
/// the mounts to be entered next: files of the container are read in between. `None` where it sees the machine.
///
/// For a process of one thread.
///
/// # Errors
/// [`NodeError::Contained`] where the machine's processes cannot be seen; [`NodeError::Refused`] where privileges are
/// missing.
pub fn enter_cgroups() -> Result<Option<Mounts>, NodeError> {
    if inode("/proc/self/ns/pid").is_ok_and(|pid| pid != PID) {
        return Err(NodeError::Contained);
    }
    let has_own = inode("/proc/self/ns/cgroup").is_ok_and(|cgroup| cgroup != CGROUP);
    let is_part = statfs(CGROUP_ROOT).is_ok_and(|it| it.f_type.cast_unsigned() == CGROUP2_MAGIC)
        && inode(CGROUP_ROOT).is_ok_and(|root| root != ROOT);
    if !has_own && !is_part {
        return Ok(None);
    }
    let [cgroup, mounts] = [open("/proc/1/ns/cgroup")?, open("/proc/1/ns/mnt")?];
    enter(&cgroup, LinkNameSpaceType::ControlGroup, "enter the machine's cgroup namespace")?;
    Ok(Some(Mounts(mounts)))
}

impl Mounts {
    /// Enters them: from here on every path is the machine's.
    pub fn enter(self) -> Result<(), NodeError> {
        enter(&self.0, LinkNameSpaceType::Mount, "enter the machine's mount namespace")
    }
}

fn inode(path: &str) -> Result<u64, Errno> {
    stat(path).map(|stat| stat.st_ino)
}

fn open(path: &str) -> Result<OwnedFd, NodeError> {
    let opened = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    opened.map_err(|source| NodeError::Refused { what: "open the namespaces of process 1", source, advice: ADVICE })
}

fn enter(namespace: &OwnedFd, kind: LinkNameSpaceType, what: &'static str) -> Result<(), NodeError> {
    move_into_link_name_space(namespace.as_fd(), Some(kind)).map_err(|source| NodeError::Refused {
        what,
        source,
        advice: ADVICE,
    })
}
