//! Memory mapped on purpose in every way that takes pages: private, huge, populated, locked, shared with a file.
//!
//! The only module here with unsafe code, so what else needs it is here too: swap, rings of packet sockets, bpf(2), and
//! the end of one thread. A mapping owns its range, is unmapped when dropped, and is only touched through volatile
//! bytes or atomics, so no reference to its contents ever exists.

use rustix::fd::{AsFd, AsRawFd as _};
use rustix::io::Result;
use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap, mmap_anonymous, munmap};
use std::ffi::{CStr, c_void};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// One mapping of this process.
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the range belongs to the value, not to a thread, and is accessed with volatile writes or atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent volatile writes go to disjoint pages by the callers' division of the range, and a lost
// byte would harm nothing, as the contents are not read back.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of private memory; `flags` come on top of `MAP_PRIVATE | MAP_NORESERVE`.
    pub(crate) fn anonymous(bytes: usize, flags: MapFlags) -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | flags;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        Ok(Self { start: NonNull::new(start).ok_or(rustix::io::Errno::NOMEM)?, bytes })
    }

    /// Maps the first `bytes` of `file`, shared with every process that maps or reads it.
    pub(crate) fn shared(file: impl AsFd, bytes: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0)? };
        Ok(Self { start: NonNull::new(start).ok_or(rustix::io::Errno::NOMEM)?, bytes })
    }

    /// Maps the first `bytes` of `file` for reading.
    pub(crate) fn readable(file: impl AsFd, bytes: usize) -> Result<Self> {
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        Ok(Self { start: NonNull::new(start).ok_or(rustix::io::Errno::NOMEM)?, bytes })
    }

    /// Maps the first `bytes` of `file` for reading, with all page tables for it.
    pub(crate) fn populated(file: impl AsFd, bytes: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, flags, file, 0)? };
        Ok(Self { start: NonNull::new(start).ok_or(rustix::io::Errno::NOMEM)?, bytes })
    }

    /// Asks for huge pages, or for none.
    pub(crate) fn huge(&self, wanted: bool) -> Result<()> {
        let advice = if wanted { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the range is this mapping's own, and the advice does not change its contents.
        unsafe { madvise(self.start.as_ptr(), self.bytes, advice) }
    }

    /// Gives the pages back to the kernel; the range stays mapped and reads as zeros.
    pub(crate) fn give_back(&self) -> Result<()> {
        // SAFETY: the range is this mapping's own, there is no reference into it, and losing its contents is meant.
        unsafe { madvise(self.start.as_ptr(), self.bytes, Advice::LinuxDontNeed) }
    }

    /// Locks the whole range, which populates it inside the system call.
    pub(crate) fn lock(&self) -> Result<()> {
        // SAFETY: the range is this mapping's own.
        unsafe { mlock_with(self.start.as_ptr(), self.bytes, MlockFlags::empty()) }
    }

    /// Writes one byte to each `step`-th byte of `from..to`, so that each of these pages exists.
    pub(crate) fn touch(&self, from: usize, to: usize, step: usize) {
        for at in (from..to.min(self.bytes)).step_by(step) {
            // SAFETY: `at` is below `bytes`, so the byte lies in this mapping, which is writable; the write is volatile.
            unsafe { self.start.as_ptr().cast::<u8>().wrapping_add(at).write_volatile(1) };
        }
    }

    /// Writes these bytes to the beginning of each page of `from..to` that has room for them.
    pub(crate) fn fill(&self, from: usize, to: usize, page: usize, bytes: &[u8]) {
        for at in (from..to.min(self.bytes.saturating_sub(bytes.len() - 1))).step_by(page) {
            // SAFETY: as many bytes from `at` on lie in this mapping, which is writable, and `bytes` lies in none: no
            // reference into a mapping exists.
            unsafe { self.start.as_ptr().cast::<u8>().wrapping_add(at).copy_from(bytes.as_ptr(), bytes.len()) };
        }
    }

    /// Reads one byte of each `step`-th byte of `from..to`.
    pub(crate) fn look(&self, from: usize, to: usize, step: usize) {
        for at in (from..to.min(self.bytes)).step_by(step) {
            // SAFETY: `at` is below `bytes`, so the byte lies in this mapping, which is readable; the read is volatile.
            let _ = unsafe { self.start.as_ptr().cast::<u8>().wrapping_add(at).read_volatile() };
        }
    }

    /// The `index`-th eight bytes as an atomic, if the mapping is that long.
    pub(crate) fn word(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.bytes / size_of::<u64>() {
            return None;
        }
        // SAFETY: the word lies in this mapping, which lives as long as `self` and is aligned to a page.
        Some(unsafe { AtomicU64::from_ptr(self.start.as_ptr().cast::<u64>().wrapping_add(index)) })
    }

    /// Stores `value` in the `index`-th word, for all processes that share this mapping.
    pub(crate) fn publish(&self, index: usize, value: u64) {
        if let Some(word) = self.word(index) {
            word.store(value, Ordering::Release);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by this value and is not used after it.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}

/// Starts swapping to the block device or file at `path`.
pub(crate) fn swap_on(path: &CStr) -> std::io::Result<()> {
    // SAFETY: `path` is a terminated string that outlives the call.
    if unsafe { libc::swapon(path.as_ptr(), 0) } == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// A command of bpf(2) whose first argument is a number: an id or a descriptor. Gives the answer, and the second argument,
/// into which the commands that enumerate ids write.
pub(crate) fn bpf(command: u32, number: u32) -> std::io::Result<(i64, u32)> {
    let mut arguments = [number, 0, 0, 0];
    // SAFETY: the kernel reads and writes no more than the size that it is given, which is the array's.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, arguments.as_mut_ptr(), size_of_val(&arguments)) };
    if answer < 0 { Err(std::io::Error::last_os_error()) } else { Ok((answer, arguments[1])) }
}

/// Takes the descriptor that a command of bpf(2) gave.
pub(crate) fn own(descriptor: i64) -> std::io::Result<OwnedFd> {
    let descriptor = i32::try_from(descriptor).map_err(std::io::Error::other)?;
    // SAFETY: the kernel just made it for the caller, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Stops swapping to `path`, reading everything back first.
pub(crate) fn swap_off(path: &CStr) -> std::io::Result<()> {
    // SAFETY: `path` is a terminated string that outlives the call.
    if unsafe { libc::swapoff(path.as_ptr()) } == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Gives a packet socket a ring for received packets of `bytes` in blocks of 64 KiB (packet(7), `PACKET_RX_RING`).
pub(crate) fn packet_ring(socket: &impl AsFd, bytes: usize) -> std::io::Result<()> {
    const BLOCK: u32 = 64 << 10;
    const FRAME: u32 = 2 << 10;
    let blocks = u32::try_from(bytes).unwrap_or(u32::MAX) / BLOCK;
    let ring = libc::tpacket_req {
        tp_block_size: BLOCK,
        tp_block_nr: blocks,
        tp_frame_size: FRAME,
        tp_frame_nr: blocks * (BLOCK / FRAME),
    };
    let (fd, pointer, length) = (socket.as_fd().as_raw_fd(), (&raw const ring).cast(), size_of_val(&ring));
    let length = libc::socklen_t::try_from(length).map_err(std::io::Error::other)?;
    // SAFETY: the kernel reads one struct tpacket_req, which lives across the call.
    let outcome = unsafe { libc::setsockopt(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, pointer, length) };
    if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Ends the calling thread and no other, the first one of a process as well.
pub(crate) fn end_this_thread() -> ! {
    loop {
        // SAFETY: the call takes an integer and does not return; what this thread owns stays as it is, and so do
        // borrows of it.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}
