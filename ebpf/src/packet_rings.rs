//! Memory that is charged to no cgroup: the ring buffers of packet sockets. Runs once for each open file of each process
//! while the agent reads the iterator, and never by itself.
//!
//! The sockets of all network namespaces are found, because their files are; and no right to inspect the processes is
//! needed, as it is for `/proc/PID/fd`.

use aya_ebpf::{
    bindings::{file, seq_file},
    cty::c_void,
    helpers::{bpf_seq_write, bpf_sock_from_file},
};
use plimsoll_abi::{PacketRingRecord, kind};

use crate::kernel;

/// `AF_PACKET`, include/linux/socket.h.
const AF_PACKET: u32 = 17;

/// The arguments of `bpf_iter_task_file` (`kernel/bpf/task_iter.c`); task and file are null at the end.
#[repr(C)]
struct Arguments {
    meta: *const Meta,
    task: *const c_void,
    fd: u64,
    file: *mut file,
}

/// The beginning of `struct bpf_iter_meta`, include/linux/bpf.h.
#[repr(C)]
struct Meta {
    seq: *mut seq_file,
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
extern "C" fn packet_rings(arguments: *const Arguments) -> i32 {
    // SAFETY: the kernel hands over these arguments, and its verifier checks each of these reads.
    let (meta, task, file) = unsafe { ((*arguments).meta, (*arguments).task, (*arguments).file) };
    if task.is_null() || file.is_null() {
        return 0;
    }
    // SAFETY: a file that the kernel holds as long as the program runs.
    let socket = unsafe { bpf_sock_from_file(file) };
    if socket.is_null() {
        return 0;
    }
    let sock = kernel::or_zero(kernel::member(socket as u64, &kernel::SOCKET_SK));
    // The family is the first half of what is read.
    match kernel::half_member(sock, &kernel::SOCK_FAMILY) {
        Some(family) if family & 0xffff == AF_PACKET => {}
        _ => return 0,
    }
    let pages = ring(sock, &kernel::RX_RING_LENGTH, &kernel::RX_RING_ORDER)
        + ring(sock, &kernel::TX_RING_LENGTH, &kernel::TX_RING_ORDER);
    if pages == 0 {
        return 0;
    }
    let Some(tgid) = kernel::half_member(task as u64, &kernel::TASK_TGID) else { return 0 };
    let record = PacketRingRecord { kind: kind::PACKET_RING, tgid, socket: sock, pages };
    // SAFETY: the file that the agent reads, and a record of this length. Where it has no room left, the kernel calls this
    // again for the same file.
    unsafe {
        bpf_seq_write((*meta).seq, (&raw const record).cast(), size_of::<PacketRingRecord>() as u32);
    }
    0
}

/// The pages of one ring: so many blocks of two to the power of an order.
#[inline(always)]
fn ring(sock: u64, length: &aya_ebpf::Global<u32>, order: &aya_ebpf::Global<u32>) -> u64 {
    match (kernel::half_member(sock, length), kernel::half_member(sock, order)) {
        (Some(length), Some(order)) => u64::from(length) << (order & 31),
        _ => 0,
    }
}
