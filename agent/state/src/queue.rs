//! The queue from the core to the reporter: frames of bytes in shared memory, one writer, one reader.
//!
//! The writer never waits: where the reader is slow, dead or not there yet, frames are dropped and counted. Either side
//! may die at any instruction and be replaced by another that attaches to the same descriptors. The reader has fewer
//! rights than the writer, so the writer trusts nothing that the reader can change in the memory: the worst that it can do
//! there is to lose frames. (Whoever holds an eventfd can make it one that waits, and fill it. There is no other kind of
//! wake that neither allocates nor shares its flags.) A frame that the reader had taken out when it died is lost; one that it was about to take out is read again.

use crate::error::StateError;
use crate::shared::Shared;
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, FdFlags, fcntl_setfd};

/// The longest frame.
pub const FRAME: usize = 512;

const MAGIC: u64 = u64::from_le_bytes(*b"PLIMQUE1");
// Places of the header, far enough apart that the two sides do not share a cache line.
const SLOTS: usize = 1;
const HEAD: usize = 8;
const TAIL: usize = 16;
const DROPPED: usize = 24;
const HEADER: usize = 32;
/// Its sequence number; its length and checksum; its bytes.
const SLOT: usize = 2 + FRAME / 8;
/// More would be no queue but a store.
const MOST_SLOTS: u64 = 1 << 16;

/// The descriptors of a queue, as they are made once and handed to both sides.
#[derive(Debug)]
pub struct Descriptors {
    /// The shared memory, sealed at its length.
    pub memory: OwnedFd,
    /// An eventfd that is readable while there may be frames.
    pub wake: OwnedFd,
}

impl Descriptors {
    /// Makes a queue with room for `slots` frames.
    pub fn create(slots: usize) -> Result<Self, StateError> {
        let fail = |what| move |source| StateError::Memory { what, source };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = plain_memory("plimsoll-queue", flags).map_err(fail("make memory"))?;
        let words = HEADER + slots * SLOT;
        ftruncate(&memory, 8 * words as u64).map_err(fail("size memory"))?;
        // Cut off by the one side, it would kill the other.
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(fail("seal memory"))?;
        let shared = Shared::map(&memory, words).map_err(fail("map memory"))?;
        shared.words()[SLOTS].store(slots as u64, Ordering::Relaxed);
        shared.words()[0].store(MAGIC, Ordering::Release);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(fail("make an eventfd"))?;
        Ok(Self { memory, wake })
    }

    /// Lets programs that this process starts from now on inherit both, or not.
    pub fn set_inherited(&self, inherited: bool) -> Result<(), StateError> {
        let flags = if inherited { FdFlags::empty() } else { FdFlags::CLOEXEC };
        for fd in [&self.memory, &self.wake] {
            fcntl_setfd(fd, flags).map_err(|source| StateError::Memory { what: "hand down descriptors", source })?;
        }
        Ok(())
    }
}

/// Memory that can never be executed: with `vm.memfd_noexec=2` the kernel gives no other. Before Linux 6.3 it does not know
/// the difference.
pub fn plain_memory(name: &str, flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        made => made,
    }
}

fn attach(memory: BorrowedFd<'_>) -> Result<(Shared, u64), StateError> {
    let failed = |source| StateError::Memory { what: "map memory", source };
    let length = fstat(memory).map_err(failed)?.st_size;
    let words = usize::try_from(length).map_or(0, |length| length / 8);
    if words < HEADER + SLOT {
        return Err(StateError::NotAQueue("it is too short"));
    }
    let shared = Shared::map(memory, words).map_err(failed)?;
    if shared.words()[0].load(Ordering::Acquire) != MAGIC {
        return Err(StateError::NotAQueue("it begins otherwise"));
    }
    let slots = ((words - HEADER) / SLOT) as u64;
    if slots > MOST_SLOTS || shared.words()[SLOTS].load(Ordering::Relaxed) != slots {
        return Err(StateError::NotAQueue("its length and its number of frames differ"));
    }
    Ok((shared, slots))
}

fn slot(words: &[AtomicU64], slots: u64, sequence: u64) -> &[AtomicU64] {
    // Less than `slots`, which fits: the mapping has that many.
    let index = usize::try_from(sequence % slots).unwrap_or(0);
    &words[HEADER + index * SLOT..HEADER + (index + 1) * SLOT]
}

/// Length and checksum of a frame at its place, in one word.
fn seal(sequence: u64, frame: &[u8]) -> u64 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&sequence.to_le_bytes());
    hasher.update(frame);
    u64::from(hasher.finalize()) << 32 | frame.len() as u64
}

/// The side that writes.
#[derive(Debug)]
pub struct Producer {
    shared: Shared,
    wake: OwnedFd,
    slots: u64,
    head: u64,
}

impl Producer {
    /// Attaches to a queue, and goes on where an earlier writer stopped.
    pub fn attach(descriptors: Descriptors) -> Result<Self, StateError> {
        let (shared, slots) = attach(descriptors.memory.as_fd())?;
        // Not an error: without it, a part of the queue may have to be fetched when it is written.
        let _locked = shared.lock();
        let head = shared.words()[HEAD].load(Ordering::Acquire);
        Ok(Self { shared, wake: descriptors.wake, slots, head })
    }

    /// Writes a frame and wakes the reader. False: it was dropped, and counted, because there was no room or it is longer
    /// than [`FRAME`]. Stores and one write to the eventfd: nothing that waits or allocates.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        let words = self.shared.words();
        let waiting = self.head.wrapping_sub(words[TAIL].load(Ordering::Acquire));
        // More waiting than there is room for means that the reader wrote nonsense; it mends that when it reads.
        let fits = frame.len() <= FRAME && waiting < self.slots;
        if fits {
            let slot = slot(words, self.slots, self.head);
            slot[0].store(self.head, Ordering::Relaxed);
            slot[1].store(seal(self.head, frame), Ordering::Relaxed);
            for (word, bytes) in slot[2..].iter().zip(frame.chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
            }
            self.head = self.head.wrapping_add(1);
            words[HEAD].store(self.head, Ordering::Release);
        } else {
            words[DROPPED].fetch_add(1, Ordering::Relaxed);
            // Where the reader wrote nonsense over it, it could not mend its own place otherwise, and both would wait.
            words[HEAD].store(self.head, Ordering::Release);
        }
        // A full counter is readable already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        fits
    }
}

/// The side that reads.
#[derive(Debug)]
pub struct Consumer {
    shared: Shared,
    wake: OwnedFd,
    slots: u64,
    damaged: u64,
}

impl Consumer {
    /// Attaches to a queue, and goes on where an earlier reader stopped.
    pub fn attach(descriptors: Descriptors) -> Result<Self, StateError> {
        let (shared, slots) = attach(descriptors.memory.as_fd())?;
        Ok(Self { shared, wake: descriptors.wake, slots, damaged: 0 })
    }

    /// Takes the next whole frame out, into `buffer`; `None` where there is none now.
    pub fn pop<'b>(&mut self, buffer: &'b mut [u8; FRAME]) -> Option<&'b [u8]> {
        let words = self.shared.words();
        let length = loop {
            let tail = words[TAIL].load(Ordering::Relaxed);
            let head = words[HEAD].load(Ordering::Acquire);
            let waiting = head.wrapping_sub(tail);
            if waiting == 0 {
                return None;
            }
            if waiting > self.slots {
                // The two do not belong together: begin again with what comes next.
                self.damaged = self.damaged.saturating_add(1);
                words[TAIL].store(head, Ordering::Release);
                continue;
            }
            let length = read(slot(words, self.slots, tail), tail, buffer);
            words[TAIL].store(tail.wrapping_add(1), Ordering::Release);
            match length {
                Some(length) => break length,
                None => self.damaged = self.damaged.saturating_add(1),
            }
        };
        Some(&buffer[..length])
    }

    /// Frames that were dropped since the queue was made, because there was no room.
    pub fn dropped(&self) -> u64 {
        self.shared.words()[DROPPED].load(Ordering::Relaxed)
    }

    /// Frames that this reader found damaged and left out.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Readable while there may be frames. Clear it, then pop until there are none.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes the descriptor wait for the next frame.
    pub fn clear_wake(&self) {
        let mut count = [0; 8];
        while let Err(Errno::INTR) = rustix::io::read(&self.wake, &mut count) {}
    }
}

/// The length of the frame in `slot`, if it is the one that belongs there and whole.
fn read(slot: &[AtomicU64], sequence: u64, buffer: &mut [u8; FRAME]) -> Option<usize> {
    for (bytes, word) in buffer.chunks_exact_mut(8).zip(&slot[2..]) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    let sealed = slot[1].load(Ordering::Relaxed);
    let length = usize::try_from(sealed & 0xffff_ffff).ok().filter(|length| *length <= FRAME)?;
    let whole = slot[0].load(Ordering::Relaxed) == sequence && seal(sequence, &buffer[..length]) == sealed;
    whole.then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn again(descriptors: &Descriptors) -> Descriptors {
        Descriptors {
            memory: descriptors.memory.try_clone().expect("a descriptor more"),
            wake: descriptors.wake.try_clone().expect("a descriptor more"),
        }
    }

    fn queue(slots: usize) -> (Descriptors, Producer, Consumer) {
        let descriptors = Descriptors::create(slots).expect("memory");
        let producer = Producer::attach(again(&descriptors)).expect("a queue");
        let consumer = Consumer::attach(again(&descriptors)).expect("a queue");
        (descriptors, producer, consumer)
    }

    #[test]
    fn frames_come_out_as_they_went_in() {
        let (_keep, mut producer, mut consumer) = queue(4);
        let mut buffer = [0; FRAME];
        let frames: [&[u8]; 4] = [b"", b"a", &[7; 511], &[9; FRAME]];
        for frame in frames {
            assert!(producer.push(frame));
        }
        assert!(!producer.push(b"too many"));
        for frame in frames {
            assert_eq!(consumer.pop(&mut buffer), Some(frame));
        }
        assert_eq!(consumer.pop(&mut buffer), None);
        assert!(!producer.push(&[0; FRAME + 1]));
        assert_eq!((consumer.dropped(), consumer.damaged()), (2, 0));
    }

    #[test]
    fn a_reader_that_writes_nonsense_over_both_places_does_not_stop_it_for_ever() {
        let (_keep, mut producer, mut consumer) = queue(3);
        producer.push(b"one");
        for place in [HEAD, TAIL] {
            consumer.shared.words()[place].store(u64::MAX / 3, Ordering::Relaxed);
        }
        let mut buffer = [0; FRAME];
        assert!(!producer.push(b"two"));
        assert_eq!(consumer.pop(&mut buffer), None);
        assert!(producer.push(b"three"));
        assert_eq!(consumer.pop(&mut buffer), Some(&b"three"[..]));
    }

    #[test]
    fn the_reader_is_woken() {
        let (_keep, mut producer, consumer) = queue(1);
        let readable = |consumer: &Consumer| {
            let mut fds = [rustix::event::PollFd::new(&consumer.wake, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).expect("a poll") == 1
        };
        assert!(!readable(&consumer));
        producer.push(b"a");
        producer.push(b"dropped, and worth a look too");
        assert!(readable(&consumer));
        consumer.clear_wake();
        assert!(!readable(&consumer));
    }

    #[test]
    fn what_is_no_queue_is_refused() {
        let fd = memfd_create("none", MemfdFlags::CLOEXEC).expect("memory");
        for length in [0, 8, 100_000] {
            ftruncate(&fd, length).expect("it is ours");
            assert!(matches!(attach(fd.as_fd()), Err(StateError::NotAQueue(_))), "{length}");
        }
        let (keep, ..) = queue(2);
        attach(keep.memory.as_fd()).expect("a queue").0.words()[SLOTS].store(3, Ordering::Relaxed);
        assert!(matches!(attach(keep.memory.as_fd()), Err(StateError::NotAQueue(_))));
        assert!(ftruncate(&keep.memory, 0).is_err(), "nobody can cut it off");
    }

    #[derive(Clone, Debug)]
    enum Move {
        Push(Vec<u8>),
        Pop,
        /// The writer dies with this many words of its next frame written, and another comes.
        TornWriter(Vec<u8>, usize),
        NewReader,
    }

    fn moves() -> impl Strategy<Value = Move> {
        let frame = proptest::collection::vec(any::<u8>(), 0..=FRAME);
        prop_oneof![
            4 => frame.clone().prop_map(Move::Push),
            4 => Just(Move::Pop),
            1 => (frame, 0..SLOT).prop_map(|(frame, words)| Move::TornWriter(frame, words)),
            1 => Just(Move::NewReader),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whoever dies and comes again, frames come out whole and in order.
        #[test]
        fn it_is_a_queue_whoever_dies(moves in proptest::collection::vec(moves(), 0..60)) {
            let (keep, mut producer, mut consumer) = queue(3);
            let mut model: VecDeque<Vec<u8>> = VecDeque::new();
            let mut buffer = [0; FRAME];
            for one in moves {
                match one {
                    Move::Push(frame) => {
                        let fits = model.len() < 3;
                        prop_assert_eq!(producer.push(&frame), fits);
                        if fits {
                            model.push_back(frame);
                        }
                    }
                    Move::Pop => prop_assert_eq!(consumer.pop(&mut buffer).map(<[u8]>::to_vec), model.pop_front()),
                    Move::TornWriter(frame, words) => {
                        if model.len() < 3 {
                            let slot = slot(producer.shared.words(), 3, producer.head);
                            for (index, word) in slot.iter().take(words).enumerate() {
                                word.store(frame.get(index).map_or(0, |byte| u64::from(*byte)), Ordering::Relaxed);
                            }
                        }
                        producer = Producer::attach(again(&keep)).expect("a queue");
                    }
                    Move::NewReader => consumer = Consumer::attach(again(&keep)).expect("a queue"),
                }
            }
            prop_assert_eq!(consumer.damaged(), 0);
        }

        /// Whatever either side finds in the memory: no panic, no endless loop, no frame that was not written.
        #[test]
        fn damage_loses_frames_only(damage in proptest::collection::vec((2..HEADER + 3 * SLOT, any::<u64>()), 1..8)) {
            let (_keep, mut producer, mut consumer) = queue(3);
            let mut buffer = [0; FRAME];
            producer.push(b"one");
            producer.push(b"two");
            for (at, value) in damage {
                consumer.shared.words()[at].store(value, Ordering::Relaxed);
            }
            producer.push(b"three");
            for _ in 0..8 {
                if let Some(frame) = consumer.pop(&mut buffer) {
                    prop_assert!([&b"one"[..], b"two", b"three"].contains(&frame));
                }
            }
            // With both sides attached it heals: the next frame that fits comes out.
            while consumer.pop(&mut buffer).is_some() {}
            for _ in 0..3 {
                if producer.push(b"four") {
                    return Ok(());
                }
                prop_assert_eq!(consumer.pop(&mut buffer), None);
            }
            prop_assert!(false, "it stays full for ever");
        }
    }
}
