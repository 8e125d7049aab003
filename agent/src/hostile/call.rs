//! System calls as an attacker makes them, without a library that knows better. Each gives the error, or 0.

#![expect(unsafe_code, reason = "an attacker does not go through a library that knows better")]

use std::ffi::CStr;

use libc::{c_int, c_long};

/// A page, whatever its size is on this machine.
const PAGE: c_long = 65536;
const NONE: c_long = 0;
const NO_FILE: c_long = -1;

/// The address of what the kernel reads.
pub(super) fn at<T>(pointer: *const T) -> c_long {
    pointer.expose_provenance().cast_signed() as c_long
}

/// Makes a system call.
pub(super) fn call(number: c_long, arguments: [c_long; 5]) -> c_int {
    let [first, second, third, fourth, fifth] = arguments;
    // SAFETY: integers and addresses of what lives in the caller's frame, as the call of this number wants them.
    if unsafe { libc::syscall(number, first, second, third, fourth, fifth) } < 0 { errno() } else { 0 }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

pub(super) fn open_at(path: &CStr, how: c_int) -> c_int {
    call(libc::SYS_openat, [libc::AT_FDCWD.into(), at(path.as_ptr()), how.into(), 0o600, 0])
}

/// Starts a process with these flags, which ends at once.
pub(super) fn fork(flags: c_int) -> c_int {
    let flags = c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without CLONE_VM the process has a copy of all memory, and it does nothing but end.
    match unsafe { libc::syscall(libc::SYS_clone, flags, NONE, NONE, NONE, NONE) } {
        // SAFETY: always.
        0 => unsafe { libc::_exit(0) },
        started if started < 0 => errno(),
        _ => 0,
    }
}

/// Maps memory that can be executed. Not by musl's `mmap`, which makes another error of `EPERM`.
pub(super) fn executable() -> c_int {
    let (how, of) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let (how, of) = (c_long::from(how), c_long::from(of));
    // SAFETY: at an address that the kernel chooses.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, NONE, PAGE, how, of, NO_FILE, NONE) };
    if mapped == -1 { errno() } else { 0 }
}

/// A socket's address: a path, or an abstract name where it begins with a zero.
struct Address {
    address: libc::sockaddr_un,
    length: libc::socklen_t,
}

impl Address {
    fn of(name: &[u8]) -> Option<Self> {
        let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX.try_into().ok()?, sun_path: [0; 108] };
        for (index, byte) in name.iter().enumerate() {
            *address.sun_path.get_mut(index)? = libc::c_char::from_ne_bytes([*byte]);
        }
        // An abstract name ends with the address, a path with a zero.
        let length = size_of::<libc::sa_family_t>() + name.len() + usize::from(name.first() != Some(&0));
        Some(Self { address, length: length.try_into().ok()? })
    }
}

/// Connects to a socket of this machine by a new one.
pub(super) fn connect(name: &[u8], kind: c_int) -> c_int {
    let Some(Address { address, length }) = Address::of(name) else { return libc::ENAMETOOLONG };
    through_new(libc::AF_UNIX, kind, |socket| {
        call(libc::SYS_connect, [socket.into(), at(&raw const address), length.into(), 0, 0])
    })
}

/// Connects to this port of loopback.
pub(super) fn connect_port(port: u16) -> c_int {
    let Ok(family) = libc::AF_INET.try_into() else { return libc::EINVAL };
    // SAFETY: all zeros is an address.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    (address.sin_family, address.sin_port) = (family, port.to_be());
    address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
    through_new(libc::AF_INET, libc::SOCK_STREAM, |socket| {
        let length = c_long::try_from(size_of_val(&address)).unwrap_or(0);
        call(libc::SYS_connect, [socket.into(), at(&raw const address), length, 0, 0])
    })
}

/// What comes of a new socket, or that there is none.
pub(super) fn through_new(family: c_int, kind: c_int, then: impl FnOnce(c_int) -> c_int) -> c_int {
    // SAFETY: integers only.
    let socket = unsafe { libc::socket(family, kind, 0) };
    if socket < 0 { errno() } else { then(socket) }
}

/// Whether there is such a descriptor, and of a socket. What asks is allowed: each refused call costs a line of audit, for
/// which the caller waits once there are many.
fn is_socket(fd: c_int) -> bool {
    let mut kind: c_int = 0;
    let mut length: libc::socklen_t = 4;
    let to = [at(&raw mut kind), at(&raw mut length)];
    call(libc::SYS_getsockopt, [fd.into(), libc::SOL_SOCKET.into(), libc::SO_TYPE.into(), to[0], to[1]]) == 0
}

/// Reaches the path through each socket that is open already, as the one is that brings the queues: by connecting it anew,
/// and by a datagram.
pub(super) fn through_open(name: &[u8]) -> c_int {
    let Some(Address { address, length }) = Address::of(name) else { return libc::ENAMETOOLONG };
    let mut byte = 0_u8;
    let vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: all zeros is a message without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_name, message.msg_namelen) = ((&raw const address).cast_mut().cast(), length);
    (message.msg_iov, message.msg_iovlen) = ((&raw const vector).cast_mut(), 1);
    let through = |fd: c_int| {
        let to = [fd.into(), at(&raw const byte), 1, libc::MSG_DONTWAIT.into(), at(&raw const address)];
        // SAFETY: as in `call`; six arguments.
        let sent = unsafe { libc::syscall(libc::SYS_sendto, to[0], to[1], to[2], to[3], to[4], c_long::from(length)) };
        [
            if sent < 0 { errno() } else { 0 },
            call(libc::SYS_sendmsg, [fd.into(), at(&raw const message), 0, 0, 0]),
            call(libc::SYS_connect, [fd.into(), at(&raw const address), length.into(), 0, 0]),
        ]
    };
    let outcomes = (3..64).filter(|fd| is_socket(*fd)).flat_map(through);
    outcomes.min_by_key(|error| *error == libc::EPERM).unwrap_or(libc::ENOTSOCK)
}
