//! Memory shared with other processes, as words that are read and written one at a time.
#![expect(unsafe_code, reason = "mapping memory, and looking at it as atomic words, which is all that is done with it")]

use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, munmap};
use rustix::thread::futex;
use rustix::time::Timespec;

/// A shared mapping of a file, from its start.
///
/// If the file is cut off later, touching it kills this process with SIGBUS: so it is either in a directory that only
/// root may write to, or sealed.
#[derive(Debug)]
struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to this value alone, and atomic words may be touched from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; only shared references to atomic words are ever given out.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn map(fd: impl AsFd, words: usize, how: ProtFlags) -> Result<Self, Errno> {
        let bytes = words * size_of::<AtomicU64>();
        let kind = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: no address is asked for, so nothing that exists is mapped over.
        let start = unsafe { mmap(core::ptr::null_mut(), bytes, how, kind, fd, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, words })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped with this length, page-aligned and readable for as long as this value lives; every bit pattern
        // is a word, and other processes can only change words. `View` gives no word out, so nothing is stored in what
        // is mapped for reading only.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    /// The first half of the first word, which is used in no other way.
    fn futex(&self) -> &AtomicU32 {
        // SAFETY: no mapping is shorter than a page; an `AtomicU32` needs less alignment than an `AtomicU64`.
        unsafe { self.start.cast().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that this value mapped; no reference to it can outlive the value.
        let outcome = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.words * size_of::<AtomicU64>()) };
        debug_assert_eq!(outcome, Ok(()), "unmapping a whole mapping cannot fail");
    }
}

/// A mapping to read and to write.
#[derive(Debug)]
pub(crate) struct Shared(Mapping);

impl Shared {
    /// Maps `words` words of `fd`, which must be at least that long, and brings them in.
    pub(crate) fn map(fd: impl AsFd, words: usize) -> Result<Self, Errno> {
        Mapping::map(fd, words, ProtFlags::READ | ProtFlags::WRITE).map(Self)
    }

    /// Keeps it in memory. False: the limit of locked memory is too low.
    pub(crate) fn lock(&self) -> bool {
        // SAFETY: exactly the range that this value mapped.
        unsafe { mlock(self.0.start.as_ptr().cast::<c_void>(), self.0.words * size_of::<AtomicU64>()) }.is_ok()
    }

    /// All of it.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }

    /// Counts up in the first word and wakes one thread that waits for that. Neither allocates nor waits.
    pub(crate) fn wake(&self) {
        let futex = self.0.futex();
        futex.fetch_add(1, Ordering::Release);
        // It fails for an address that is not mapped only.
        let _ = futex::wake(futex, futex::Flags::empty(), 1);
    }
}

/// A mapping to read.
#[derive(Debug)]
pub(crate) struct View(Mapping);

impl View {
    /// As [`Shared::map`].
    pub(crate) fn map(fd: impl AsFd, words: usize) -> Result<Self, Errno> {
        Mapping::map(fd, words, ProtFlags::READ).map(Self)
    }

    /// The word at `index`, which must be within the mapping.
    pub(crate) fn load(&self, index: usize, ordering: Ordering) -> u64 {
        self.0.words()[index].load(ordering)
    }

    /// How often [`Shared::wake`] was called, modulo 2³².
    pub(crate) fn wakes(&self) -> u32 {
        self.0.futex().load(Ordering::Acquire)
    }

    /// Waits for the next wake, at most so long; not at all if there were others than `seen` already.
    pub(crate) fn wait(&self, seen: u32, at_most: Timespec) {
        // Whatever ended it, the caller checks for frames.
        let _ = futex::wait(self.0.futex(), futex::Flags::empty(), seen, Some(&at_most));
    }
}
