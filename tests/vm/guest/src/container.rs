//! What a container runtime makes for a process: namespaces of its own, and in them its own cgroup as the root and other
//! files in the agent's directories.

use crate::{hog, machine};
use anyhow::{Context as _, Result};
use plimsoll_node::capabilities;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_remount, unmount,
};
use rustix::process::{Signal, getpid, kill_process};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::Command;

const CGROUPS: &str = "/sys/fs/cgroup";

/// Gives this process cgroup and mount namespaces of its own.
pub(crate) fn enter() -> Result<()> {
    own_mounts(UnshareFlags::NEWCGROUP)?;
    own_cgroups(MountFlags::empty())?;
    for place in ["/run/plimsoll", "/sys/fs/bpf"] {
        fs::create_dir_all(place)?;
        empty(place)?;
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

/// A process in a container that is not privileged.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The cgroup to join, which is the container's root: its directory.
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// Have a user namespace in the container, too, with a mount of cgroups in it that can be written, and go there.
    #[arg(long)]
    own_users: bool,
    /// Finish what only the first process of a PID namespace can do.
    #[arg(long, hide = true)]
    first: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// What containerd leaves to root in a container that is not privileged (`defaultUnixCaps` in its package `oci`).
const CAPABILITIES: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

/// Runs a program as root in a container as containerd makes one: every namespace but that of users, these capabilities,
/// cgroups and kernel settings read-only, none of the machine's files in /run, /dev and /tmp. It has no filter of system
/// calls, as in a pod that asks for none.
///
/// Ends as the program does.
pub(crate) fn main(arguments: &Arguments) -> Result<()> {
    if arguments.first {
        return first(arguments);
    }
    // As a runtime does, this process stays outside.
    let mut back = File::options().write(true).open(format!("{CGROUPS}/cgroup.procs"))?;
    hog::join(arguments.cgroup.as_deref().context("a container needs a cgroup")?)?;
    own_mounts(UnshareFlags::NEWCGROUP | UnshareFlags::NEWNET | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS)?;
    let kept = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    own_cgroups(kept | MountFlags::RDONLY)?;
    unmount("/sys/fs/bpf", UnmountFlags::DETACH).context("cannot unmount bpffs")?;
    mount_remount("/sys", kept | MountFlags::BIND | MountFlags::RDONLY, "").context("cannot have /sys read-only")?;
    for place in ["/run", "/tmp", "/dev"] {
        empty(place)?;
    }
    fs::create_dir("/dev/shm")?;
    let all = Mode::RUSR | Mode::WUSR | Mode::ROTH | Mode::WOTH;
    mknodat(CWD, "/dev/null", FileType::CharacterDevice, all, makedev(1, 3)).context("cannot make /dev/null")?;
    own_pids()?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["contained", "--first"]).args(arguments.own_users.then_some("--own-users"));
    let mut child = command.arg("--").args(&arguments.command).spawn().context("cannot start the first process")?;
    back.write_all(b"0").context("cannot leave the container's cgroup")?;
    let status = child.wait()?;
    if status.signal() == Some(Signal::KILL.as_raw()) {
        kill_process(getpid(), Signal::KILL)?;
    }
    std::process::exit(status.code().unwrap_or(255));
}

fn first(arguments: &Arguments) -> Result<()> {
    mount("proc", "/proc", "proc", MountFlags::empty(), None).context("cannot mount /proc")?;
    for place in ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"] {
        mount_bind(place, place).with_context(|| format!("cannot mount {place}"))?;
        mount_remount(place, MountFlags::BIND | MountFlags::RDONLY, "")?;
    }
    mount_bind("/dev/null", "/proc/kcore").context("cannot hide /proc/kcore")?;
    let keep = CAPABILITIES.map(|name| capabilities::named(name).with_context(|| format!("no capability {name}")));
    capabilities::keep_only(&keep.into_iter().collect::<Result<Vec<_>>>()?)?;
    if arguments.own_users {
        own_users()?;
    }
    let (program, rest) = arguments.command.split_first().context("no program was named")?;
    Err(Command::new(program).args(rest).exec()).with_context(|| format!("cannot become {program}"))
}

/// A user namespace gives root its capabilities back, over what belongs to that namespace: a new mount of its own cgroups
/// can be written.
fn own_users() -> Result<()> {
    const PLACE: &str = "/tmp";
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWCGROUP | UnshareFlags::NEWNS)?;
    machine::set("/proc/self/uid_map", "0 0 1")?;
    mount("cgroup2", PLACE, "cgroup2", MountFlags::empty(), None).context("cannot mount cgroups")?;
    std::env::set_current_dir(PLACE)?;
    Ok(())
}

fn own_mounts(and: UnshareFlags) -> Result<()> {
    unshare(and | UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).context("cannot make mounts private")
}

/// Mounted anew, they have the cgroup of this process as their root.
fn own_cgroups(flags: MountFlags) -> Result<()> {
    unmount(CGROUPS, UnmountFlags::DETACH).context("cannot unmount the cgroups")?;
    mount("cgroup2", CGROUPS, "cgroup2", flags, None).context("cannot mount cgroups")
}

fn empty(place: &str) -> Result<()> {
    mount("tmpfs", place, "tmpfs", MountFlags::empty(), None).with_context(|| format!("cannot mount {place}"))
}

#[expect(unsafe_code, reason = "only with files it could take descriptors from another thread")]
fn unshare(what: UnshareFlags) -> Result<()> {
    // SAFETY: the table of files stays shared.
    unsafe { unshare_unsafe(what) }.with_context(|| format!("cannot have {what:?} of its own"))
}
