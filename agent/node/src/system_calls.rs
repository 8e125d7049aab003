//! Filters of system calls (seccomp) for processes that have started.
//!
//! A refused call answers `EPERM`, so that a library that can do without goes on. The kernel logs each refusal with
//! the process and the number of the call (`type=1326`; seccomp(2), `SECCOMP_FILTER_FLAG_LOG`), where it has audit
//! and `kernel.seccomp.actions_logged` names `errno`, as it does unless changed.

use crate::{NodeError, sys};
use libc::c_long;
use rustix::io::Errno;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;

/// All that a process needs that writes its log and talks through sockets that are open. It connects and signals to
/// nothing, and opens nothing.
const COMMON: &[c_long] = &[
    // Open descriptors.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_close,
    libc::SYS_dup,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    // Clients, and descriptors that are handed over. No `sendmsg`: the address that it names cannot be seen here.
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Threads and signals of its own. The other filter refuses `clone3`.
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_sched_getaffinity,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // What the vDSO answers where it can.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
];

/// What x86-64 has besides, and newer architectures do not.
#[cfg(target_arch = "x86_64")]
const COMMON_HERE: &[c_long] = &[libc::SYS_poll, libc::SYS_epoll_wait, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const COMMON_HERE: &[c_long] = &[];

/// To answer HTTP requests, and to end them.
const SERVER: &[c_long] = &[libc::SYS_bind, libc::SYS_listen, libc::SYS_accept4, libc::SYS_shutdown];

/// To see whether a file has changed, and what is left on a file system. Landlock, which names the one directory to be
/// read, bars neither, nor `O_PATH`.
const STAT: &[c_long] = &[libc::SYS_statx, libc::SYS_newfstatat, libc::SYS_fstatfs];

/// To go through directories, beside [`STAT`].
const WALK: &[c_long] = &[libc::SYS_getdents64];

/// To begin the next file of a trace; Landlock names the one directory.
const TRACE: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_statx,
    libc::SYS_newfstatat,
];
#[cfg(target_arch = "x86_64")]
const TRACE_HERE: &[c_long] = &[libc::SYS_open, libc::SYS_rename, libc::SYS_unlink, libc::SYS_stat, libc::SYS_lstat];
#[cfg(not(target_arch = "x86_64"))]
const TRACE_HERE: &[c_long] = &[];

/// To write the two files of a journal in turn, and to set one aside; Landlock names the one directory.
const JOURNAL: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_pwrite64,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_flock,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    // Whether the directory is its own.
    libc::SYS_geteuid,
];

/// What the core never does after its start. It is a list of what is refused because its workers, which open files,
/// signal processes and take over from other agents, need most of what a program needs.
const CORE: &[c_long] = &[
    // Other programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Sockets, whatever they reach.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    // Memory and descriptors of other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    // Parts of the kernel that have often been ways into it.
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
];

/// Marks a call by the x32 interface, which a filter cannot distinguish from x86-64 by the architecture (seccomp(2)).
#[cfg(target_arch = "x86_64")]
const X32: c_long = 0x4000_0000;

/// The calls of [`CORE`], and those that are allowed in part, as x32 has them. Some have a number of their own there
/// (arch/x86/entry/syscalls/syscall_64.tbl): `execve`, `ptrace`, `kexec_load`, `process_vm_readv`, `process_vm_writev`,
/// `execveat`.
#[cfg(target_arch = "x86_64")]
fn core_x32() -> impl Iterator<Item = c_long> {
    let in_part = [libc::SYS_bpf, libc::SYS_prlimit64, libc::SYS_clone, libc::SYS_clone3, 520, 521, 528, 539, 540, 545];
    CORE.iter().copied().chain(in_part).map(|call| call | X32)
}
#[cfg(not(target_arch = "x86_64"))]
fn core_x32() -> impl Iterator<Item = c_long> {
    std::iter::empty()
}

/// Commands of `bpf(2)` that read and change maps that are open or pinned: `BPF_MAP_LOOKUP_ELEM`, `_UPDATE_ELEM`,
/// `_DELETE_ELEM`, `_GET_NEXT_KEY`, `BPF_OBJ_GET`, `BPF_OBJ_GET_INFO_BY_FD`. None makes, loads or attaches anything.
const MAPS: [u64; 6] = [1, 2, 3, 4, 7, 15];

/// Refuses every thread of this process, for good, all that the reporter does not need. `traces`: it writes a trace.
pub fn filter_reporter(traces: bool) -> Result<(), NodeError> {
    allow(reporter(traces)?)
}

/// Refuses every thread of this process, for good, all but what its log takes, sockets that are open, and files to read.
/// `keeps`: it writes a journal.
pub fn filter_services(keeps: bool) -> Result<(), NodeError> {
    allow(services(keeps)?)
}

/// Refuses every thread of this process, for good, all but going through directories and sending what was found by sockets
/// that are open. It starts no thread.
pub fn filter_scanner() -> Result<(), NodeError> {
    allow(scanner()?)
}

/// Refuses every thread of this process, for good, all but what its log takes, and sockets that are open or handed to it.
pub fn filter_broker() -> Result<(), NodeError> {
    allow(common([].iter())?)
}

fn allow(rules: Rules) -> Result<(), NodeError> {
    have_no_clone3()?;
    install(rules, refusal(Errno::PERM), SeccompAction::Allow)
}

/// A library that does not get `clone3` uses `clone`, whose flags can be seen; only this answer makes it do so.
fn have_no_clone3() -> Result<(), NodeError> {
    install(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), SeccompAction::Allow, refusal(Errno::NOSYS))
}

/// Refuses every thread of this process, for good, what the core does not do after its start.
pub fn filter_core() -> Result<(), NodeError> {
    have_no_clone3()?;
    install(core()?, SeccompAction::Allow, refusal(Errno::PERM))
}

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

fn reporter(traces: bool) -> Result<Rules, BackendError> {
    let trace = [TRACE, TRACE_HERE].into_iter().flatten().filter(|_| traces);
    let calls = SERVER.iter().chain(trace).chain(traces.then_some(&libc::SYS_ftruncate));
    let mut rules = common(calls)?;
    let inet = |family| {
        let stream = is(1, 0xf, word(libc::SOCK_STREAM))?;
        SeccompRule::new(vec![is(0, u64::MAX, word(family))?, stream])
    };
    rules.insert(libc::SYS_socket, vec![inet(libc::AF_INET)?, inet(libc::AF_INET6)?]);
    Ok(rules)
}

fn services(keeps: bool) -> Result<Rules, BackendError> {
    let mut rules = reading(STAT.iter())?;
    rules.extend(JOURNAL.iter().filter(|_| keeps).map(|call| (*call, Vec::new())));
    Ok(rules)
}

fn scanner() -> Result<Rules, BackendError> {
    let mut rules = reading(STAT.iter().chain(WALK))?;
    for call in [libc::SYS_clone, libc::SYS_clone3, libc::SYS_ioctl, libc::SYS_setsockopt, libc::SYS_getsockopt] {
        rules.remove(&call);
    }
    Ok(rules)
}

/// What opens files to read them, and makes these calls.
fn reading<'c>(more: impl Iterator<Item = &'c c_long>) -> Result<Rules, BackendError> {
    let mut rules = common(more)?;
    // `O_ACCMODE` of musl has `O_PATH` in it, which opens nothing to be read or written.
    let writes = word(libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC);
    rules.insert(libc::SYS_openat, any(2, writes, &[word(libc::O_RDONLY)])?);
    Ok(rules)
}

fn word(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}

/// The calls of [`COMMON`], `more`, and those that are allowed in part.
fn common<'c>(more: impl Iterator<Item = &'c c_long>) -> Result<Rules, BackendError> {
    let calls = [COMMON, COMMON_HERE].into_iter().flatten().chain(more);
    let mut rules: Rules = calls.map(|call| (*call, Vec::new())).collect();
    let executable = word(libc::PROT_EXEC);
    let thread = word(libc::CLONE_THREAD);
    let commands =
        [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC, libc::F_GET_SEALS];
    rules.extend([
        // To the other end of a socket that is connected, and to no address.
        (libc::SYS_sendto, any(4, u64::MAX, &[0])?),
        (libc::SYS_mmap, any(2, executable, &[0])?),
        (libc::SYS_mprotect, any(2, executable, &[0])?),
        (libc::SYS_clone, any(0, thread, &[thread])?),
        (libc::SYS_fcntl, any(1, u64::MAX, &commands.map(word))?),
        (libc::SYS_ioctl, any(1, u64::from(u32::MAX), &[FIONBIO])?),
        (libc::SYS_prctl, any(0, u64::MAX, &[word(libc::PR_SET_NAME)])?),
    ]);
    Ok(rules)
}

/// `FIONBIO`, asm-generic/ioctls.h; the type of libc's constant differs with the C library.
const FIONBIO: u64 = 0x5421;

fn core() -> Result<Rules, BackendError> {
    let mut rules: Rules = CORE.iter().copied().chain(core_x32()).map(|call| (call, Vec::new())).collect();
    rules.insert(libc::SYS_bpf, none(0, &MAPS)?);
    // Limits of other processes.
    rules.insert(libc::SYS_prlimit64, none(0, &[0])?);
    // Threads are started, and namespaces never. `clone` has no flag for those of time.
    let namespaces = NAMESPACES.map(|flag| SeccompRule::new(vec![is(0, word(flag), word(flag))?]));
    rules.insert(libc::SYS_clone, namespaces.into_iter().collect::<Result<_, _>>()?);
    Ok(rules)
}

/// Flags of `clone(2)`.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// An argument that is `value` in the bits of `mask`.
fn is(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), value)
}

/// An argument that is any of `values` in the bits of `mask`.
fn any(argument: u8, mask: u64, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    values.iter().map(|value| SeccompRule::new(vec![is(argument, mask, *value)?])).collect()
}

/// An argument of 32 bits that is none of `values`.
fn none(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    let differs = |value: &u64| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, *value);
    Ok(vec![SeccompRule::new(values.iter().map(differs).collect::<Result<_, _>>()?)?])
}

const fn refusal(errno: Errno) -> SeccompAction {
    SeccompAction::Errno(errno.raw_os_error().cast_unsigned())
}

fn install(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<(), NodeError> {
    let filter = SeccompFilter::new(rules, otherwise, matched, std::env::consts::ARCH.try_into()?)?;
    let program: BpfProgram = filter.try_into()?;
    sys::filter_all_threads(&program).map_err(|source| NodeError::Refused {
        what: "filter this process's system calls",
        source,
        advice: "This needs a kernel with CONFIG_SECCOMP_FILTER",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    /// Runs a test of this file in a process of its own: a filter stays.
    fn alone(name: &str, test: impl FnOnce()) {
        if std::env::var("FILTERED").as_deref() == Ok(name) {
            return test();
        }
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.env("FILTERED", name).args(["--exact", &format!("system_calls::tests::{name}"), "--nocapture"]);
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    }

    fn is_refused<T>(result: std::io::Result<T>) -> bool {
        result.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    }

    /// Makes a call whose first argument is this one and whose others are zero.
    #[expect(unsafe_code, reason = "libraries do not make calls like these")]
    fn call(number: c_long, first: i32) -> std::io::Result<c_long> {
        // SAFETY: with these arguments none of the calls that are tried changes memory of this process.
        match unsafe { libc::syscall(number, c_long::from(first), 0, 0, 0, 0, 0) } {
            -1 => Err(std::io::Error::last_os_error()),
            result => Ok(result),
        }
    }

    /// What reaches other processes, or makes this one another.
    const REACHES: [c_long; 11] = [
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_prlimit64,
        libc::SYS_kill,
        libc::SYS_pidfd_send_signal,
        libc::SYS_pidfd_getfd,
        libc::SYS_setresuid,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_bpf,
    ];

    #[test]
    fn a_reporter_serves_and_opens_and_connects_to_nothing() {
        alone("a_reporter_serves_and_opens_and_connects_to_nothing", || {
            let place = tempfile::tempdir().expect("a directory");
            let path = place.path().join("socket");
            let _listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
            rustix::thread::set_no_new_privs(true).expect("always allowed");
            let (ready, wait) = std::sync::mpsc::channel::<()>();
            let other = std::thread::spawn(move || {
                wait.recv().expect("it begins");
                is_refused(File::open("/proc/self/status"))
            });
            filter_reporter(false).expect("a filter");
            ready.send(()).expect("it waits");
            assert!(other.join().expect("it ends"), "a thread that was there before is filtered, too");
            let server = TcpListener::bind("127.0.0.1:0").expect("it may listen");
            let address = server.local_addr().expect("an address");
            assert!(is_refused(TcpStream::connect(address)) && is_refused(UnixStream::connect(&path)));
            assert!(is_refused(UnixStream::pair()) && is_refused(Command::new("/bin/true").spawn()));
            for number in REACHES {
                assert!(is_refused(call(number, 0)), "{number}");
            }
            assert_eq!(std::thread::spawn(|| 7).join().expect("threads start"), 7);
        });
    }

    #[test]
    fn one_that_traces_opens_files() {
        alone("one_that_traces_opens_files", || {
            let place = tempfile::tempdir().expect("a directory");
            rustix::thread::set_no_new_privs(true).expect("always allowed");
            filter_reporter(true).expect("a filter");
            let [old, new] = ["old", "new"].map(|name| place.path().join(name));
            let mut file = File::options().write(true).create(true).truncate(true).open(&old).expect("writable");
            file.write_all(b"whole, and half").expect("writable");
            // What is left of a line that did not fit is cut off.
            assert_eq!(file.seek(SeekFrom::Start(5)).expect("it is a file"), 5);
            file.set_len(5).expect("writable");
            std::fs::rename(&old, &new).expect("it moves");
            assert_eq!(std::fs::metadata(&new).expect("it is there").len(), 5);
            std::fs::remove_file(&new).expect("it goes");
        });
    }

    #[test]
    fn services_read_files_and_write_and_connect_to_nothing() {
        alone("services_read_files_and_write_and_connect_to_nothing", || {
            let place = tempfile::tempdir().expect("a directory");
            let [file, socket] = ["file", "socket"].map(|name| place.path().join(name));
            std::fs::write(&file, "text").expect("writable");
            let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
            let (mut ours, mut theirs) = UnixStream::pair().expect("sockets");
            rustix::thread::set_no_new_privs(true).expect("always allowed");
            filter_services(false).expect("a filter");
            let mut text = String::new();
            File::open(&file).and_then(|mut file| file.read_to_string(&mut text)).expect("readable");
            assert_eq!((&*text, std::fs::metadata(&file).expect("it is there").len()), ("text", 4));
            let (path, mode) = (rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
            let opened = rustix::fs::openat(rustix::fs::CWD, "/", path, mode).expect("it is there");
            assert!(rustix::fs::fstatfs(&opened).is_ok());
            let (at, what) = (rustix::fs::AtFlags::empty(), rustix::fs::StatxFlags::TYPE);
            assert!(rustix::fs::statx(rustix::fs::CWD, "/proc", at, what).is_ok());
            assert!(is_refused(std::fs::write(&file, "x")) && is_refused(File::create(place.path().join("new"))));
            assert!(is_refused(File::options().append(true).open(&file)) && is_refused(std::fs::remove_file(&file)));
            assert!(is_refused(UnixStream::connect(&socket)) && is_refused(TcpListener::bind("127.0.0.1:0")));
            assert!(is_refused(UnixStream::pair()) && is_refused(Command::new("/bin/true").spawn()));
            for number in REACHES {
                assert!(is_refused(call(number, 0)), "{number}");
            }
            rustix::net::send(&ours, b"x", rustix::net::SendFlags::NOSIGNAL).expect("it is open");
            theirs.read_exact(&mut [0]).expect("it was sent");
            ours.flush().expect("it is open");
            // The core would be sent nothing by those that are started after it.
            assert!(is_refused(ours.shutdown(Shutdown::Both)));
            assert_eq!(std::thread::spawn(|| 7).join().expect("threads start"), 7);
        });
    }

    #[test]
    fn a_broker_talks_by_sockets_that_are_open_and_opens_and_connects_nothing() {
        alone("a_broker_talks_by_sockets_that_are_open_and_opens_and_connects_nothing", || {
            let place = tempfile::tempdir().expect("a directory");
            let socket = place.path().join("socket");
            let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
            let (mut ours, mut theirs) = UnixStream::pair().expect("sockets");
            rustix::thread::set_no_new_privs(true).expect("always allowed");
            filter_broker().expect("a filter");
            ours.write_all(b"x").expect("it is open");
            theirs.read_exact(&mut [0]).expect("it was sent");
            assert!(is_refused(File::open("/proc/self/status")) && is_refused(std::fs::metadata(&socket)));
            assert!(is_refused(UnixStream::connect(&socket)) && is_refused(TcpListener::bind("127.0.0.1:0")));
            assert!(is_refused(UnixStream::pair()) && is_refused(Command::new("/bin/true").spawn()));
            for number in REACHES {
                assert!(is_refused(call(number, 0)), "{number}");
            }
            assert_eq!(std::thread::spawn(|| 7).join().expect("threads start"), 7);
        });
    }

    #[test]
    fn services_with_a_journal_write_and_sync_files_and_remove_none() {
        alone("services_with_a_journal_write_and_sync_files_and_remove_none", || {
            use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, fsync, openat, renameat};
            let place = tempfile::tempdir().expect("a directory");
            let directory = File::open(place.path()).expect("a directory");
            let user = rustix::process::geteuid();
            rustix::thread::set_no_new_privs(true).expect("always allowed");
            filter_services(true).expect("a filter");
            assert_eq!(rustix::process::geteuid(), user);
            flock(&directory, FlockOperation::NonBlockingLockExclusive).expect("it is free");
            let (how, mode) = (OFlags::RDWR | OFlags::CREATE, Mode::RUSR | Mode::WUSR);
            let file = openat(&directory, "state.0", how, mode).expect("writable");
            fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 4096).expect("there is room");
            assert_eq!(rustix::io::pwrite(&file, b"text", 0), Ok(4));
            fsync(&file).expect("it is a file");
            renameat(&directory, "state.0", &directory, "state.0.broken").expect("it moves");
            assert!(is_refused(std::fs::remove_file(place.path().join("state.0.broken"))));
            for number in REACHES {
                assert!(is_refused(call(number, 0)), "{number}");
            }
        });
    }

    #[test]
    fn a_scanner_lists_directories_and_writes_connects_and_starts_nothing() {
        alone("a_scanner_lists_directories_and_writes_connects_and_starts_nothing", || {
            use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, openat, openat2};
            let place = tempfile::tempdir().expect("a directory");
            let file = place.path().join("file");
            std::fs::write(&file, "text").expect("writable");
            let (ours, mut theirs) = UnixStream::pair().expect("sockets");
            rustix::thread::set_no_new_privs(true).expect("always allowed");
            filter_scanner().expect("a filter");
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            // What that would open cannot be seen.
            let unseen = openat2(CWD, place.path(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
            assert_eq!(unseen.err(), Some(Errno::PERM));
            let taken = openat(CWD, place.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("it is there");
            let opened = openat(taken, c".", flags, Mode::empty());
            let names = Dir::new(opened.expect("it is there")).expect("a directory").count();
            assert_eq!(names, 3, "with . and ..");
            assert!(is_refused(std::fs::write(&file, "x")) && is_refused(std::fs::remove_file(&file)));
            assert!(is_refused(UnixStream::pair()) && is_refused(Command::new("/bin/true").spawn()));
            for number in REACHES {
                assert!(is_refused(call(number, 0)), "{number}");
            }
            rustix::net::send(&ours, b"x", rustix::net::SendFlags::NOSIGNAL).expect("it is open");
            theirs.read_exact(&mut [0]).expect("it was sent");
            assert!(is_refused(std::thread::Builder::new().spawn(|| ()).map(drop)), "one thread is enough");
        });
    }

    #[test]
    fn a_core_opens_files_and_signals_but_starts_and_connects_nothing() {
        alone("a_core_opens_files_and_signals_but_starts_and_connects_nothing", || {
            rustix::thread::set_no_new_privs(true).expect("always allowed");
            filter_core().expect("a filter");
            assert!(File::open("/proc/self/status").is_ok());
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::URG).expect("allowed");
            assert!(is_refused(UnixStream::pair()) && is_refused(Command::new("/bin/true").spawn()));
            let (own, parent) = (None, rustix::process::getppid());
            let limits = |process| {
                use rustix::process::{Resource, Rlimit, prlimit};
                prlimit(process, Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
            };
            assert!(limits(own).is_ok());
            assert_eq!(limits(parent).err(), Some(Errno::PERM));
            for flag in NAMESPACES {
                assert!(is_refused(call(libc::SYS_clone, flag)), "{flag:#x}");
            }
            assert_eq!(call(libc::SYS_clone3, 0).expect_err("refused").raw_os_error(), Some(libc::ENOSYS));
            assert_eq!(std::thread::spawn(|| 7).join().expect("threads start"), 7);
        });
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn what_the_core_never_does_is_refused_by_the_x32_interface_too() {
        let rules = core().expect("rules");
        assert!(CORE.iter().all(|call| rules.contains_key(&(call | X32))));
        // A command of `bpf(2)` that is allowed is allowed by the native interface alone.
        assert!(rules[&(libc::SYS_bpf | X32)].is_empty() && !rules[&libc::SYS_bpf].is_empty());
    }
}
