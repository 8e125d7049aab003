//! The queue from the core to the reporter: frames of bytes in memory that the core alone can write.
//!
//! The core makes its queues itself, anew at each start, and seals the memory before it hands it on: from then on the
//! kernel refuses every other process, whatever its rights, a writable mapping, a write, another length, or a hole. The
//! writer reads nothing from that memory and never waits, so there is nothing by which a reader could mislead or delay
//! it. Where the reader is slow, dead or not there yet, the oldest frames are overwritten, which the reader sees by their
//! numbers and counts.
//!
//! The reader's position is in memory of the reader's own, which the writer never maps: a frame that a reader had
//! taken out when it died is lost; one that it was about to take out is read by the next one.
//!
//! The reader is woken by a futex in the memory and not by an eventfd: each process that holds an eventfd can make it one
//! that blocks, and fill it.

use crate::error::StateError;
use crate::shared::{Shared, View};
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::sync::Arc;

/// The longest frame, in bytes.
pub const FRAME: usize = 512;

// Words of the frames' memory. The first one is the futex.
/// The number of the next frame: all before it are written.
const HEAD: usize = 1;
/// Frames that were longer than [`FRAME`].
const TOO_LONG: usize = 2;
/// A cache line, so that the first frame does not share it.
const HEADER: usize = 8;
/// Its number; its length; its bytes.
const SLOT: usize = 2 + FRAME / 8;
/// The number of a slot that is being written. No frame has it.
const CHANGING: u64 = u64::MAX;
/// More than a queue of records ever needs.
const MOST_SLOTS: usize = 1 << 16;
/// Words of the reader's memory, which has the number of the frame to read next.
const PLACE: usize = 1;

/// The two memories of a queue.
#[derive(Debug)]
pub struct Descriptors {
    /// Memory of the frames, sealed.
    pub frames: OwnedFd,
    /// Memory of the readers, sealed at its length.
    pub place: OwnedFd,
}

/// Makes a queue with room for `slots` frames, between 1 and 65,536, and becomes its only writer.
pub fn create(slots: usize) -> Result<(Producer, Descriptors), StateError> {
    let fail = |what| move |source| StateError::Memory { what, source };
    let slots = slots.clamp(1, MOST_SLOTS);
    let words = HEADER + slots * SLOT;
    let frames = memory("plimsoll-queue", words)?;
    let shared = Shared::map(&frames, words).map_err(fail("map memory"))?;
    // After this process's own mapping, which is the last that can be written.
    seal(&frames, SealFlags::FUTURE_WRITE)?;
    // Not an error: without it, a part of the queue may have to be fetched when it is written.
    let _locked = shared.lock();
    let place = memory("plimsoll-place", PLACE)?;
    seal(&place, SealFlags::empty())?;
    Ok((Producer { shared, slots, head: 0, too_long: 0, unannounced: 0 }, Descriptors { frames, place }))
}

pub(crate) fn memory(name: &str, words: usize) -> Result<OwnedFd, StateError> {
    let fail = |what| move |source| StateError::Memory { what, source };
    let memory = plain_memory(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(fail("make memory"))?;
    ftruncate(&memory, 8 * words as u64).map_err(fail("size memory"))?;
    Ok(memory)
}

/// Memory that one side truncates would end the other by SIGBUS.
pub(crate) fn seal(memory: &OwnedFd, more: SealFlags) -> Result<(), StateError> {
    fcntl_add_seals(memory, LENGTH | SealFlags::SEAL | more)
        .map_err(|source| StateError::Memory { what: "seal memory", source })
}

const LENGTH: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Memory that can never be executed: with `vm.memfd_noexec=2` the kernel allows no other. Before Linux 6.3 there is no
/// such flag.
pub fn plain_memory(name: &str, flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        made => made,
    }
}

/// The words of `memory`, whose length can never change.
fn words_of(memory: &OwnedFd) -> Result<usize, StateError> {
    // What cannot be sealed is no such memory.
    if !fcntl_get_seals(memory).is_ok_and(|seals| seals.contains(LENGTH)) {
        return Err(StateError::NotAQueue("its length is not sealed"));
    }
    let length =
        fstat(memory).map_err(|source| StateError::Memory { what: "see the length of memory", source })?.st_size;
    Ok(usize::try_from(length).map_or(0, |length| length / 8))
}

/// The first word of the slot of a frame.
fn slot(slots: usize, number: u64) -> usize {
    // Less than `slots`, so it fits.
    let index = usize::try_from(number % slots as u64).unwrap_or(0);
    HEADER + index * SLOT
}

/// The side that writes.
#[derive(Debug)]
pub struct Producer {
    shared: Shared,
    slots: usize,
    head: u64,
    too_long: u64,
    /// Frames that the reader was not woken for.
    unannounced: usize,
}

impl Producer {
    /// Writes a frame, for which [`Self::wake`] wakes the reader. False: it is longer than [`FRAME`], which is counted.
    /// Nothing that waits or allocates. Where the reader was not woken for a quarter of the queue, it is woken here.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        let words = self.shared.words();
        let fits = frame.len() <= FRAME;
        if fits {
            let first = slot(self.slots, self.head);
            let slot = &words[first..first + SLOT];
            // A reader that is in this slot just now sees the one or the other number change.
            slot[0].store(CHANGING, Ordering::Relaxed);
            fence(Ordering::Release);
            slot[1].store(frame.len() as u64, Ordering::Relaxed);
            for (word, bytes) in slot[2..].iter().zip(frame.chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
            }
            slot[0].store(self.head, Ordering::Release);
            self.head += 1;
            words[HEAD].store(self.head, Ordering::Release);
        } else {
            self.too_long += 1;
            words[TOO_LONG].store(self.too_long, Ordering::Relaxed);
        }
        self.unannounced += 1;
        if self.unannounced >= self.slots / 4 {
            self.wake();
        }
        fits
    }

    /// Wakes the reader where there is something new: one system call, which neither waits nor allocates. Called once for
    /// all frames of one turn, so that the reader does not wake for each.
    pub fn wake(&mut self) {
        if core::mem::take(&mut self.unannounced) > 0 {
            self.shared.wake();
        }
    }
}

/// Frames that were not read, since this was taken last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// They were overwritten before they were read, or too long.
    pub lost: u64,
    /// They are not what a writer writes.
    pub damaged: u64,
}

/// The side that reads. It checks all that it reads from the memory.
#[derive(Debug)]
pub struct Consumer {
    frames: Arc<View>,
    place: Shared,
    slots: usize,
    /// Of [`TOO_LONG`], what is in `losses` or was.
    too_long: u64,
    losses: Losses,
}

impl Consumer {
    /// Attaches to a queue, and goes on where an earlier reader stopped.
    pub fn attach(descriptors: &Descriptors) -> Result<Self, StateError> {
        let failed = |source| StateError::Memory { what: "map memory", source };
        let words = words_of(&descriptors.frames)?;
        let slots = words.saturating_sub(HEADER) / SLOT;
        if !(1..=MOST_SLOTS).contains(&slots) || words != HEADER + slots * SLOT {
            return Err(StateError::NotAQueue("its length is that of no number of frames"));
        }
        if words_of(&descriptors.place)? != PLACE {
            return Err(StateError::NotAQueue("its reader's memory has another length"));
        }
        let frames = Arc::new(View::map(&descriptors.frames, words).map_err(failed)?);
        let place = Shared::map(&descriptors.place, PLACE).map_err(failed)?;
        Ok(Self { frames, place, slots, too_long: 0, losses: Losses::default() })
    }

    /// Takes the next frame out, into `buffer`; `None` where there is none now.
    pub fn pop<'b>(&mut self, buffer: &'b mut [u8; FRAME]) -> Option<&'b [u8]> {
        let length = self.next(buffer)?;
        Some(&buffer[..length])
    }

    fn next(&mut self, buffer: &mut [u8; FRAME]) -> Option<usize> {
        let place = &self.place.words()[0];
        // Each round but the first goes on by a frame: a writer that is faster for so long has woken this reader again.
        for _ in 0..=self.slots {
            let head = self.frames.load(HEAD, Ordering::Acquire);
            let number = place.load(Ordering::Relaxed);
            let waiting = head.wrapping_sub(number);
            if waiting == 0 {
                return None;
            }
            if waiting > self.slots as u64 {
                // The writer has overwritten it meanwhile; or an earlier reader left a wrong number.
                let oldest = head.saturating_sub(self.slots as u64);
                self.losses.lost = self.losses.lost.saturating_add(oldest.saturating_sub(number));
                place.store(oldest, Ordering::Relaxed);
                continue;
            }
            let found = self.read(number, buffer);
            place.store(number.wrapping_add(1), Ordering::Relaxed);
            match found {
                Slot::Frame(length) => return Some(length),
                Slot::Overwritten => self.losses.lost = self.losses.lost.saturating_add(1),
                Slot::Damaged => self.losses.damaged = self.losses.damaged.saturating_add(1),
            }
        }
        None
    }

    /// Copies the bytes of the frame with this number, if it is still there.
    fn read(&self, number: u64, buffer: &mut [u8; FRAME]) -> Slot {
        let first = slot(self.slots, number);
        if self.frames.load(first, Ordering::Acquire) != number {
            return Slot::Overwritten;
        }
        let length = self.frames.load(first + 1, Ordering::Relaxed);
        for (index, bytes) in buffer.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.frames.load(first + 2 + index, Ordering::Relaxed).to_le_bytes());
        }
        // Whatever was read of a later frame, its number is seen as well.
        fence(Ordering::Acquire);
        if self.frames.load(first, Ordering::Relaxed) != number {
            return Slot::Overwritten;
        }
        usize::try_from(length).ok().filter(|length| *length <= FRAME).map_or(Slot::Damaged, Slot::Frame)
    }

    /// The frames that were lost since this was called last.
    pub fn take_losses(&mut self) -> Losses {
        let too_long = self.frames.load(TOO_LONG, Ordering::Relaxed);
        self.losses.lost = self.losses.lost.saturating_add(too_long.saturating_sub(self.too_long));
        self.too_long = too_long;
        std::mem::take(&mut self.losses)
    }

    /// What waits for frames beside this reader.
    pub fn waiter(&self) -> Waiter {
        Waiter(Arc::clone(&self.frames))
    }
}

/// What a slot holds.
enum Slot {
    /// The frame, with this length.
    Frame(usize),
    /// A later one, or one that is being written.
    Overwritten,
    /// No frame.
    Damaged,
}

/// Waits for the writer.
#[derive(Debug)]
pub struct Waiter(Arc<View>);

impl Waiter {
    /// A number that changes with each wake. Take it, pop until there is none, then wait for another number.
    pub fn wakes(&self) -> u32 {
        self.0.wakes()
    }

    /// Waits until the number is not `seen` any more, at most so long, or for no reason.
    pub fn wait(&self, seen: u32, at_most: Duration) {
        // What is too long for the kernel is an hour.
        let at_most = Timespec::try_from(at_most).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
        self.0.wait(seen, at_most);
    }
}

#[cfg(test)]
mod tests;
