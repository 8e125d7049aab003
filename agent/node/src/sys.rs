//! The few system calls that no library in use wraps, or that musl refuses to make.
#![expect(unsafe_code, reason = "raw system calls; each has only scalars and one pointer to what lives across it")]

use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use rustix::process::Pid;

fn outcome(result: libc::c_long) -> Result<(), Errno> {
    if result == -1 {
        let code = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Errno::from_raw_os_error(code));
    }
    Ok(())
}

/// `process_mrelease(2)`: takes the memory of a process that is already dying.
pub(crate) fn process_mrelease(pidfd: impl AsFd) -> Result<(), Errno> {
    let fd = pidfd.as_fd().as_raw_fd();
    // SAFETY: the call reads its two integers and touches no memory of this process.
    outcome(unsafe { libc::syscall(libc::SYS_process_mrelease, fd, 0) })
}

/// `tgkill(2)` with no signal: succeeds where the thread is one of the process.
pub(crate) fn would_signal_thread(process: Pid, thread: Pid) -> Result<(), Errno> {
    let [process, thread] = [process, thread].map(Pid::as_raw_pid);
    // SAFETY: the call reads its three integers and touches no memory of this process.
    outcome(unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) })
}

/// `close_range(2)` with `CLOSE_RANGE_UNSHARE`: the calling thread goes on with a table of open files that has the first
/// three of the process only.
pub(crate) fn unshare_files() -> Result<(), Errno> {
    // SAFETY: the call reads three integers and touches no memory of this process. Every descriptor stays open for the
    // other threads; that this thread uses none of them is up to the caller of `process::separate_descriptors`.
    outcome(unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) })
}

/// `SO_PEERCRED` of a connected Unix socket (unix(7)): the number of the process at its other end, zero where this PID
/// namespace has none for it, and that process's effective user.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> Result<(i32, u32), Errno> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let Ok(mut length) = libc::socklen_t::try_from(size_of_val(&found)) else { return Err(Errno::INVAL) };
    let (socket, value) = (socket.as_raw_fd(), (&raw mut found).cast());
    // SAFETY: the call writes at most `length` bytes to `found`, any of which is valid there, and their number to `length`;
    // both live across it.
    let done = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, value, &raw mut length) };
    outcome(done.into())?;
    Ok((found.pid, found.uid))
}

/// `sched_setscheduler(2)` for the calling thread alone: threads that it starts are ordinary ones. musl's own function of
/// that name always fails.
pub(crate) fn set_round_robin(priority: i32) -> Result<(), Errno> {
    let parameters = [priority];
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: struct sched_param is one int; `parameters` lives across the call, which only reads it.
    outcome(unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, parameters.as_ptr()) })
}

/// `sched_setscheduler(2)` for the calling thread and all that it starts: it runs where no ordinary one does.
pub(crate) fn set_idle_cpu() -> Result<(), Errno> {
    let parameters = [0_i32];
    // SAFETY: as above.
    outcome(unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_IDLE, parameters.as_ptr()) })
}

/// `ioprio_set(2)` for the calling thread: it reads from disks where no other one does.
pub(crate) fn set_idle_io() -> Result<(), Errno> {
    /// `IOPRIO_WHO_PROCESS` and `IOPRIO_CLASS_IDLE` at its place (linux/ioprio.h).
    const PROCESS: i32 = 1;
    const IDLE: i32 = 3 << 13;
    // SAFETY: the call reads its three integers and touches no memory of this process.
    outcome(unsafe { libc::syscall(libc::SYS_ioprio_set, PROCESS, 0, IDLE) })
}

/// `open_by_handle_at(2)` for the directory with this id in the kernfs that `mount` is of, cgroups' for one.
pub(crate) fn open_kernfs_by_id(mount: BorrowedFd<'_>, id: u64) -> Result<OwnedFd, Errno> {
    /// `FILEID_KERNFS` in include/linux/exportfs.h: the handle is the id.
    const KERNFS: i32 = 0xfe;
    /// `struct file_handle` with its 8 bytes.
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        id: u64,
    }
    let handle = Handle { bytes: 8, kind: KERNFS, id };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: `handle` has the layout of struct file_handle and lives across the call, which only reads it.
    let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw const handle, flags) };
    outcome(fd)?;
    let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
    // SAFETY: the call succeeded, so this is a descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `FS_IOC_FSGETXATTR` of a file that is open: its flags and its project.
pub(crate) fn project(file: BorrowedFd<'_>) -> Result<(u32, u32), Errno> {
    /// `struct fsxattr` (linux/fs.h): the flags are the first of its seven words, and the project is the fourth.
    type Attributes = [u32; 7];
    const GET: Opcode = opcode::read::<Attributes>(b'X', 31);
    let mut found = Attributes::default();
    // SAFETY: the call writes as many bytes as the number of the request says, which are those of `found`; any are valid
    // there, and it lives across the call.
    outcome(unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), GET, &raw mut found) })?;
    Ok((found[0], found[3]))
}

/// `quotactl_fd(2)` with `Q_XGETQUOTA`: bytes and inodes that a project takes of the file system that `on` is on, which may
/// be open as a path alone. Not with `Q_GETQUOTA`, for which the mount has to be writable (`quotactl_cmd_write()`,
/// fs/quota/quota.c): in the mounts of a service it mostly is not.
pub(crate) fn project_quota(on: BorrowedFd<'_>, project: u32) -> Result<(u64, u64), Errno> {
    /// `struct fs_disk_quota` (linux/dqblk_xfs.h), 112 bytes: the sixth word of 64 bits is what is in use, in units of 512
    /// bytes for every file system (`copy_to_xfs_dqblk()`), and the seventh are inodes.
    type Quota = [u64; 14];
    const UNIT: u64 = 512;
    /// `QCMD(Q_XGETQUOTA, PRJQUOTA)`.
    const GET: u32 = ((b'X' as u32) << 8 | 3) << 8 | 2;
    let mut found = Quota::default();
    // SAFETY: `found` has room for the structure, which the call fills; any bytes are valid there, and it lives across the
    // call.
    outcome(unsafe { libc::syscall(libc::SYS_quotactl_fd, on.as_raw_fd(), GET, project, &raw mut found) })?;
    Ok((found[5].saturating_mul(UNIT), found[6]))
}

/// `seccomp(2)` for all threads of this process, which must have no new privileges; the kernel logs what is refused.
pub(crate) fn filter_all_threads(program: &[seccompiler::sock_filter]) -> Result<(), Errno> {
    let Ok(len) = u16::try_from(program.len()) else { return Err(Errno::INVAL) };
    // The kernel only reads what `filter` points to.
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut() };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_LOG;
    // SAFETY: struct sock_fprog with a pointer to as many instructions as it says; both types of an instruction are the
    // kernel's struct sock_filter. Both live across the call, which copies them.
    match unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) } {
        // The number of a thread that has a filter of its own.
        1.. => Err(Errno::BUSY),
        result => outcome(result),
    }
}
