//! What a container runtime makes for a process: namespaces of its own, and in them its own cgroup as the root and other
//! files in the agent's directories.

use anyhow::{Context as _, Result};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs;

/// Gives this process cgroup and mount namespaces of its own.
pub(crate) fn enter() -> Result<()> {
    unshare(UnshareFlags::NEWCGROUP | UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("cannot make mounts private")?;
    // Mounted anew, it has the cgroup of this process as its root.
    unmount("/sys/fs/cgroup", UnmountFlags::DETACH).context("cannot unmount the cgroups")?;
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2", MountFlags::empty(), None).context("cannot mount cgroups")?;
    for place in ["/run/plimsoll", "/sys/fs/bpf"] {
        fs::create_dir_all(place)?;
        mount("tmpfs", place, "tmpfs", MountFlags::empty(), None).with_context(|| format!("cannot mount {place}"))?;
    }
    Ok(())
}

/// Gives the children of this process a PID namespace of their own.
pub(crate) fn own_pids() -> Result<()> {
    unshare(UnshareFlags::NEWPID)
}

/// Gives this thread, and those that it starts, a network namespace of their own.
pub(crate) fn own_network() -> Result<()> {
    unshare(UnshareFlags::NEWNET)
}

#[expect(unsafe_code, reason = "only with files it could take descriptors from another thread")]
fn unshare(what: UnshareFlags) -> Result<()> {
    // SAFETY: the table of files stays shared.
    unsafe { unshare_unsafe(what) }.with_context(|| format!("cannot have {what:?} of its own"))
}
