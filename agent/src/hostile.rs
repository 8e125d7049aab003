//! What code that an attacker runs in the reporter would try, for a test: compiled only with the feature
//! `fault-injection`.

#![expect(unsafe_code, reason = "an attacker does not go through a library that knows better")]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::ptr::null;

use anyhow::Context as _;
use libc::{c_int, c_long};

/// Names a FIFO by which the reporter is given the process of the core and the path of a socket that listens, once
/// both are there: `PID PATH`. It then tries all and says what came of each: `plimsoll: hostile: NAME: ERRNO`, where 0
/// is success.
const HOSTILE: &str = "PLIMSOLL_HOSTILE_REPORTER";

/// Opens the FIFO, before that is refused.
pub(crate) fn open() -> anyhow::Result<Option<File>> {
    let Some(path) = std::env::var_os(HOSTILE) else { return Ok(None) };
    // To write, too: otherwise opening it waits for a writer.
    let opened = File::options().read(true).write(true).open(path);
    Ok(Some(opened.with_context(|| format!("cannot open the FIFO that {HOSTILE} names"))?))
}

/// Waits on a thread of its own for what to attack, and attacks it.
pub(crate) fn start(fifo: Option<File>) -> anyhow::Result<()> {
    let Some(fifo) = fifo else { return Ok(()) };
    let serve = move || {
        let mut line = String::new();
        let read = BufReader::new(fifo).read_line(&mut line);
        let Some((pid, path)) = read.ok().and_then(|_| line.trim_end().split_once(' ')) else { return };
        let (Ok(core), Ok(path)) = (pid.parse(), CString::new(path)) else { return };
        for (name, attempt) in ATTEMPTS {
            print(&format!("{name}: {}", attempt(core, &path)));
        }
        print("done");
    };
    std::thread::Builder::new().name("hostile".into()).spawn(serve).map(drop).context("cannot start a thread")
}

/// In one write, so that the log of another process does not come in between.
fn print(outcome: &str) {
    // Nothing is left to do where standard error is closed: the test waits for `done` in vain.
    let _ = std::io::stderr().write_all(format!("plimsoll: hostile: {outcome}\n").as_bytes());
}

/// By name; each gives the error, or 0.
type Attempt = (&'static str, fn(c_int, &CStr) -> c_int);

const ATTEMPTS: &[Attempt] = &[
    ("connect", |_, path| unix(path, libc::SOCK_STREAM)),
    ("datagram", datagram),
    ("limit", |core, _| {
        let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        call(libc::SYS_prlimit64, [core.into(), c_long::from(libc::RLIMIT_CPU), at(&raw const limit), 0, 0])
    }),
    ("signal", |core, _| call(libc::SYS_kill, [core.into(), libc::SIGURG.into(), 0, 0, 0])),
    ("thread-signal", |core, _| call(libc::SYS_tgkill, [core.into(), core.into(), libc::SIGURG.into(), 0, 0])),
    ("process-descriptor", |core, _| call(libc::SYS_pidfd_open, [core.into(), 0, 0, 0, 0])),
    ("trace", |core, _| call(libc::SYS_ptrace, [libc::PTRACE_SEIZE.into(), core.into(), 0, 0, 0])),
    ("read-memory", |core, _| {
        let mut byte = 0_u8;
        let vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let vector = at(&raw const vector);
        call(libc::SYS_process_vm_readv, [core.into(), vector, 1, vector, 1])
    }),
    ("write-memory", |core, _| {
        let mut byte = 0_u8;
        let vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let vector = at(&raw const vector);
        call(libc::SYS_process_vm_writev, [core.into(), vector, 1, vector, 1])
    }),
    ("open-process", |_, _| open_at(c"/proc/1/cmdline", libc::O_RDONLY)),
    ("open-secret", |_, _| open_at(c"/etc/shadow", libc::O_RDONLY)),
    ("open-memory", |core, _| {
        let path = CString::new(format!("/proc/{core}/mem")).unwrap_or_default();
        open_at(&path, libc::O_RDWR)
    }),
    ("open-cgroup", |_, _| open_at(c"/sys/fs/cgroup/work.slice/cgroup.kill", libc::O_WRONLY)),
    ("create-map", |_, _| {
        // BPF_MAP_CREATE of an array with one value of eight bytes.
        let attributes = [2_u32, 4, 8, 1, 0, 0, 0, 0];
        let size = c_long::try_from(size_of_val(&attributes)).unwrap_or(0);
        call(libc::SYS_bpf, [0, at(&raw const attributes), size, 0, 0])
    }),
    ("mount", |_, _| {
        let (name, place) = (c"tmpfs".as_ptr(), c"/run".as_ptr());
        call(libc::SYS_mount, [at(name), at(place), at(name), 0, 0])
    }),
    ("namespace", |_, _| call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0, 0])),
    ("root", |_, _| call(libc::SYS_setresuid, [0; 5])),
    ("ring", |_, _| {
        let parameters = [0_u64; 32];
        call(libc::SYS_io_uring_setup, [1, at(parameters.as_ptr()), 0, 0, 0])
    }),
    ("program", |_, _| {
        let arguments = [c"/bin/plimsoll".as_ptr(), null()];
        // Where it succeeds, nothing is said any more.
        call(libc::SYS_execve, [at(arguments[0]), at(arguments.as_ptr()), 0, 0, 0])
    }),
];

/// A datagram to the path through a socket that is open already, as the one is that brings the queues; otherwise
/// through a new one.
fn datagram(_: c_int, path: &CStr) -> c_int {
    let Some((address, length)) = address(path) else { return libc::ENAMETOOLONG };
    let mut byte = 0_u8;
    let vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: all zeros is a message without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_name, message.msg_namelen) = ((&raw const address).cast_mut().cast(), length);
    (message.msg_iov, message.msg_iovlen) = ((&raw const vector).cast_mut(), 1);
    let one = |fd: c_int| {
        let to = [fd.into(), at(&raw const byte), 1, libc::MSG_DONTWAIT.into(), at(&raw const address)];
        // SAFETY: as in `call`; six arguments.
        let sent = unsafe { libc::syscall(libc::SYS_sendto, to[0], to[1], to[2], to[3], to[4], c_long::from(length)) };
        if sent >= 0 || call(libc::SYS_sendmsg, [fd.into(), at(&raw const message), 0, 0, 0]) == 0 {
            0
        } else {
            errno()
        }
    };
    // What is no socket answers so whatever is filtered.
    let refused = (3..64).map(one).filter(|error| ![libc::ENOTSOCK, libc::EBADF].contains(error));
    refused.min().unwrap_or_else(|| unix(path, libc::SOCK_DGRAM))
}

/// Connects to the path.
fn unix(path: &CStr, kind: c_int) -> c_int {
    let Some((address, length)) = address(path) else { return libc::ENAMETOOLONG };
    // SAFETY: integers only.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return errno();
    }
    call(libc::SYS_connect, [socket.into(), at(&raw const address), length.into(), 0, 0])
}

fn address(path: &CStr) -> Option<(libc::sockaddr_un, libc::socklen_t)> {
    let family = libc::AF_UNIX.try_into().ok()?;
    let mut address = libc::sockaddr_un { sun_family: family, sun_path: [0; 108] };
    for (index, byte) in path.to_bytes_with_nul().iter().enumerate() {
        *address.sun_path.get_mut(index)? = libc::c_char::from_ne_bytes([*byte]);
    }
    Some((address, size_of::<libc::sockaddr_un>().try_into().ok()?))
}

fn open_at(path: &CStr, how: c_int) -> c_int {
    call(libc::SYS_openat, [libc::AT_FDCWD.into(), at(path.as_ptr()), how.into(), 0, 0])
}

/// The address of what the kernel reads.
fn at<T>(pointer: *const T) -> c_long {
    pointer.expose_provenance().cast_signed() as c_long
}

/// Makes a system call, and gives the error, or 0.
fn call(number: c_long, arguments: [c_long; 5]) -> c_int {
    let [first, second, third, fourth, fifth] = arguments;
    // SAFETY: integers and addresses of what lives in the caller's frame, as the call of this number wants them.
    if unsafe { libc::syscall(number, first, second, third, fourth, fifth) } < 0 { errno() } else { 0 }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
