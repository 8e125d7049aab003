//! Memory maps: an array map of the kernel, so that the agent arms a threshold with a store instead of a system call, and
//! pages that are charged.
#![expect(unsafe_code, reason = "a memory map shared with the kernel is reached through a raw pointer")]

use std::{io, os::fd::BorrowedFd, ptr::NonNull, sync::atomic::AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// The words of a mapped array map's only value.
#[derive(Debug)]
pub(crate) struct MappedWords {
    start: NonNull<AtomicU64>,
    words: usize,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone, and its words are only reached as atomics.
unsafe impl Send for MappedWords {}
// SAFETY: as above.
unsafe impl Sync for MappedWords {}

/// Has so many pages charged to the calling thread's cgroup, and gives them back at once.
pub(crate) fn charge(pages: usize) -> io::Result<()> {
    let length = pages * rustix::param::page_size();
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
    // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags) }?;
    // SAFETY: exactly the mapping just made, and nothing refers to it.
    Ok(unsafe { munmap(start, length) }?)
}

impl MappedWords {
    /// Maps `words` words of the map behind `fd`, which was made mappable and has at least as many.
    pub(crate) fn new(fd: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        let length = (words * size_of::<AtomicU64>()).next_multiple_of(rustix::param::page_size());
        // SAFETY: a new shared mapping at an address of the kernel's choice disturbs no other memory.
        let start =
            unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { start, words, length })
    }

    /// The word at byte `offset` of the value.
    ///
    /// # Panics
    /// If `offset` is not within the value.
    pub(crate) fn at(&self, offset: usize) -> &AtomicU64 {
        let index = offset / size_of::<AtomicU64>();
        assert!(index < self.words, "byte {offset} of a table of {} words", self.words);
        // SAFETY: within the mapping, which the assertion checked.
        let word = unsafe { self.start.add(index) };
        // SAFETY: the mapping is aligned to a page and lives as long as `self`.
        unsafe { word.as_ref() }
    }
}

impl Drop for MappedWords {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
