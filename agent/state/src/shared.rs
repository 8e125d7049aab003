//! Memory shared with other processes, as words that can be read and written one at a time by anyone.
#![expect(unsafe_code, reason = "mapping memory, and looking at it as atomic words, which is all that is done with it")]

use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, munmap};

/// A shared mapping of a file, from its start.
///
/// If the file is cut off later, touching it kills this process with SIGBUS: so it is either in a directory that only
/// root may write to, or sealed.
#[derive(Debug)]
pub(crate) struct Shared {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to this value alone, and atomic words may be touched from any thread.
unsafe impl Send for Shared {}
// SAFETY: as above; only shared references to atomic words are ever given out.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps `words` words of `fd`, which must be at least that long, and brings them in.
    pub(crate) fn map(fd: impl AsFd, words: usize) -> Result<Self, Errno> {
        let bytes = words * size_of::<AtomicU64>();
        let (how, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: no address is asked for, so nothing that exists is mapped over.
        let start = unsafe { mmap(core::ptr::null_mut(), bytes, how, kind, fd, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, words })
    }

    /// Keeps it in memory. False: the limit of locked memory is too low.
    pub(crate) fn lock(&self) -> bool {
        // SAFETY: exactly the range that this value mapped.
        unsafe { mlock(self.start.as_ptr().cast::<c_void>(), self.words * size_of::<AtomicU64>()) }.is_ok()
    }

    /// All of it.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped with this length, page-aligned, readable and writable for as long as this value lives; every
        // bit pattern is a word, and other processes can only change words.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: exactly the range that this value mapped; no reference to it can outlive the value.
        let outcome = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.words * size_of::<AtomicU64>()) };
        debug_assert_eq!(outcome, Ok(()), "unmapping a whole mapping cannot fail");
    }
}
