//! The queue from the core to the reporter: frames of bytes in memory that the core alone can write.
//!
//! The core makes its queues itself, anew at each start, and seals the memory before it hands it on: from then on the
//! kernel refuses everybody else, whatever their rights, a writable mapping, a write, another length, or a hole. The
//! writer reads nothing from that memory and waits for nobody, so there is nothing by which a reader could mislead or
//! delay it. Where the reader is slow, dead or not there yet, the oldest frames are overwritten, which the reader sees
//! by their numbers and counts.
//!
//! How far the reader is stands in memory of the reader's own, which the writer never maps: a frame that a reader had
//! taken out when it died is lost; one that it was about to take out is read by the next one.
//!
//! The reader is woken by a futex in the memory and not by an eventfd: whoever holds an eventfd can make it one that
//! waits, and fill it.

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

// Words of the frames' memory. The first one is the bell.
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
/// More would be no queue but a store.
const MOST_SLOTS: usize = 1 << 16;
/// Words of the memory in which a reader notes the number of the frame to read next.
const PLACE: usize = 1;

/// What a reader attaches to.
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
    Ok((Producer { shared, slots, head: 0, too_long: 0 }, Descriptors { frames, place }))
}

fn memory(name: &str, words: usize) -> Result<OwnedFd, StateError> {
    let fail = |what| move |source| StateError::Memory { what, source };
    let memory = plain_memory(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(fail("make memory"))?;
    ftruncate(&memory, 8 * words as u64).map_err(fail("size memory"))?;
    Ok(memory)
}

/// Cut off by the one side, memory would kill the other.
fn seal(memory: &OwnedFd, more: SealFlags) -> Result<(), StateError> {
    fcntl_add_seals(memory, LENGTH | SealFlags::SEAL | more)
        .map_err(|source| StateError::Memory { what: "seal memory", source })
}

const LENGTH: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Memory that can never be executed: with `vm.memfd_noexec=2` the kernel gives no other. Before Linux 6.3 it does not
/// know the difference.
pub fn plain_memory(name: &str, flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        made => made,
    }
}

/// The words of `memory`, whose length can never change.
fn words_of(memory: &OwnedFd) -> Result<usize, StateError> {
    // What has no seals is no such memory.
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
}

impl Producer {
    /// Writes a frame and wakes the reader. False: it is longer than [`FRAME`], which is counted. Stores and one system
    /// call that wakes: nothing that waits or allocates.
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
        self.shared.ring();
        fits
    }
}

/// Frames that did not come out, since that was asked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// They were overwritten before they were read, or too long.
    pub lost: u64,
    /// They were none of a writer's.
    pub damaged: u64,
}

/// The side that reads. It takes nothing in the memory for granted.
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
        // Each round but the first goes on by a frame: a writer that is faster for so long has rung again.
        for _ in 0..=self.slots {
            let head = self.frames.load(HEAD, Ordering::Acquire);
            let number = place.load(Ordering::Relaxed);
            let waiting = head.wrapping_sub(number);
            if waiting == 0 {
                return None;
            }
            if waiting > self.slots as u64 {
                // The writer was here again meanwhile; or an earlier reader left nonsense.
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

    /// What did not come out since this was called last.
    pub fn take_losses(&mut self) -> Losses {
        let too_long = self.frames.load(TOO_LONG, Ordering::Relaxed);
        self.losses.lost = self.losses.lost.saturating_add(too_long.saturating_sub(self.too_long));
        self.too_long = too_long;
        std::mem::take(&mut self.losses)
    }

    /// A way to wait for frames beside this reader.
    pub fn handle(&self) -> InventoryHandle {
        InventoryHandle(Arc::clone(&self.frames))
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

/// Waits for a writer.
#[derive(Debug)]
pub struct InventoryHandle(Arc<View>);

impl InventoryHandle {
    /// A number that changes with each frame. Take it, pop until there is none, then wait for another number.
    pub fn attempt(&self) -> u32 {
        self.0.attempt()
    }

    /// Waits until the number is not `seen` any more, at most so long, or for no reason.
    pub fn wait(&self, seen: u32, at_most: Duration) {
        // One that is too long to be told is as good as any that is long.
        let at_most = Timespec::try_from(at_most).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
        self.0.wait(seen, at_most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
    use rustix::io::pwrite;
    use std::collections::VecDeque;
    use std::os::fd::AsRawFd as _;

    fn queue(slots: usize) -> (Descriptors, Producer, Consumer) {
        let (producer, descriptors) = create(slots).expect("memory");
        let consumer = Consumer::attach(&descriptors).expect("a queue");
        (descriptors, producer, consumer)
    }

    fn losses(lost: u64, damaged: u64) -> Losses {
        Losses { lost, damaged }
    }

    #[test]
    fn frames_come_out_as_they_went_in() {
        let (_keep, mut producer, mut consumer) = queue(4);
        let mut buffer = [0; FRAME];
        let frames: [&[u8]; 4] = [b"", b"a", &[7; 511], &[9; FRAME]];
        for frame in frames {
            assert!(producer.push(frame));
        }
        for frame in frames {
            assert_eq!(consumer.pop(&mut buffer), Some(frame));
        }
        assert_eq!(consumer.pop(&mut buffer), None);
        assert_eq!(consumer.take_losses(), losses(0, 0));
        assert!(!producer.push(&[0; FRAME + 1]));
        assert_eq!((consumer.pop(&mut buffer), consumer.take_losses()), (None, losses(1, 0)));
        for number in 0..6 {
            assert!(producer.push(&[number]));
        }
        assert_eq!(consumer.pop(&mut buffer), Some(&[2][..]), "the oldest two were overwritten");
        assert_eq!(consumer.take_losses(), losses(2, 0));
        assert_eq!(consumer.take_losses(), losses(0, 0), "each loss is told once");
    }

    #[test]
    fn nobody_but_the_writer_can_change_the_frames() {
        let (descriptors, mut producer, mut consumer) = queue(2);
        let again = format!("/proc/self/fd/{}", descriptors.frames.as_raw_fd());
        let again = open(again, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("a file of this process");
        for memory in [&descriptors.frames, &again] {
            let length = fstat(memory).expect("it is ours").st_size.cast_unsigned();
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let tried = [
                ("write", pwrite(memory, &[0; 8], 0).map(drop)),
                ("cut off", ftruncate(memory, 0)),
                ("extend", ftruncate(memory, 2 * length)),
                ("extend otherwise", fallocate(memory, FallocateFlags::empty(), 0, 2 * length)),
                ("make a hole", fallocate(memory, hole, 0, length)),
                ("map to write", Shared::map(memory, 1).map(drop)),
                ("seal", fcntl_add_seals(memory, SealFlags::WRITE)),
            ];
            for (what, outcome) in tried {
                assert_eq!(outcome, Err(Errno::PERM), "{what}");
            }
        }
        assert!(ftruncate(&descriptors.place, 0).is_err(), "nor can the reader be cut off from its own");
        producer.push(b"a");
        assert_eq!(consumer.pop(&mut [0; FRAME]), Some(&b"a"[..]));
    }

    #[test]
    fn the_reader_is_woken() {
        let (_keep, mut producer, consumer) = queue(1);
        let handle = consumer.handle();
        let seen = handle.attempt();
        let reader = std::thread::spawn(move || {
            // Woken for no reason, it waits again.
            while handle.attempt() == seen {
                handle.wait(seen, Duration::from_mins(1));
            }
            handle.wait(seen, Duration::MAX);
        });
        producer.push(b"a");
        reader.join().expect("no panic");
    }

    #[test]
    fn what_is_no_queue_is_refused() {
        let (good, ..) = queue(2);
        let refused = |frames: &OwnedFd, place: &OwnedFd| {
            let copy = |fd: &OwnedFd| fd.try_clone().expect("a descriptor more");
            let attached = Consumer::attach(&Descriptors { frames: copy(frames), place: copy(place) });
            matches!(attached, Err(StateError::NotAQueue(_)))
        };
        assert!(!refused(&good.frames, &good.place));
        for words in [0, HEADER, HEADER + SLOT - 1, HEADER + SLOT + 1, HEADER + (MOST_SLOTS + 1) * SLOT] {
            let bad = memory("none", words).expect("memory");
            assert!(refused(&bad, &good.place) && refused(&good.frames, &bad), "{words} words, not sealed");
            seal(&bad, SealFlags::empty()).expect("it is ours");
            assert!(refused(&bad, &good.place) && refused(&good.frames, &bad), "{words} words");
        }
        let unsealed = memory("none", HEADER + SLOT).expect("memory");
        assert!(refused(&unsealed, &good.place), "it could be cut off");
        let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
        assert!(refused(&pipe, &good.place) && refused(&good.frames, &pipe));
    }

    /// Frames that tell their own number, read while they are written, by a reader that is slower at times.
    #[test]
    fn what_is_read_while_it_is_written_is_whole_and_in_order() {
        const FRAMES: u64 = 50_000;
        let (_keep, mut producer, mut consumer) = queue(8);
        let writer = std::thread::spawn(move || {
            for number in 0..FRAMES {
                let length = 8 * (1 + usize::try_from(number % 60).expect("small"));
                producer.push(&number.to_le_bytes().repeat(length / 8));
            }
        });
        let (mut buffer, mut read, mut last, mut missing) = ([0; FRAME], 0, None, 0);
        loop {
            let done = writer.is_finished();
            while let Some(frame) = consumer.pop(&mut buffer) {
                let number = u64::from_le_bytes(frame[..8].try_into().expect("eight bytes"));
                assert!(frame.chunks(8).all(|bytes| bytes == number.to_le_bytes()), "{number} is torn");
                assert_eq!(frame.len() as u64, 8 * (1 + number % 60));
                assert!(last < Some(number), "{number} after {last:?}");
                (read, last) = (read + 1, Some(number));
            }
            let losses = consumer.take_losses();
            assert_eq!(losses.damaged, 0);
            missing += losses.lost;
            if done {
                break;
            }
        }
        writer.join().expect("no panic");
        assert_eq!((read + missing, last), (FRAMES, Some(FRAMES - 1)));
    }

    #[derive(Clone, Debug)]
    enum Move {
        Push(Vec<u8>),
        Pop,
        /// The writer dies with this many words of its next frame written.
        TornWriter(usize),
        NewReader,
    }

    fn moves() -> impl Strategy<Value = Move> {
        let frame = proptest::collection::vec(any::<u8>(), 0..=FRAME);
        prop_oneof![
            8 => frame.prop_map(Move::Push),
            8 => Just(Move::Pop),
            1 => (0..SLOT).prop_map(Move::TornWriter),
            2 => Just(Move::NewReader),
        ]
    }

    /// What a hostile process would write: small numbers, numbers near the ends, and any.
    fn word() -> impl Strategy<Value = u64> {
        prop_oneof![0..8_u64, (0..8_u64).prop_map(|less| u64::MAX - less), any::<u64>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whoever dies and comes again, frames come out whole and in order, and those that do not are counted.
        #[test]
        fn it_is_a_queue_whoever_dies(moves in proptest::collection::vec(moves(), 0..60)) {
            const SLOTS: usize = 3;
            let (keep, producer, mut consumer) = queue(SLOTS);
            let mut producer = Some(producer);
            let mut model: VecDeque<Vec<u8>> = VecDeque::new();
            let (mut buffer, mut overwritten) = ([0; FRAME], 0);
            for one in moves {
                match one {
                    Move::Push(frame) => {
                        let Some(producer) = &mut producer else { continue };
                        prop_assert!(producer.push(&frame));
                        if model.len() == SLOTS {
                            model.pop_front();
                            overwritten += 1;
                        }
                        model.push_back(frame);
                    }
                    Move::Pop => {
                        prop_assert_eq!(consumer.pop(&mut buffer).map(<[u8]>::to_vec), model.pop_front());
                        prop_assert_eq!(consumer.take_losses(), losses(std::mem::take(&mut overwritten), 0));
                    }
                    Move::TornWriter(words) => {
                        let Some(producer) = producer.take() else { continue };
                        let first = slot(SLOTS, producer.head);
                        for (index, word) in producer.shared.words()[first..].iter().take(words).enumerate() {
                            word.store(if index == 0 { CHANGING } else { index as u64 }, Ordering::Relaxed);
                        }
                        if words > 0 && model.len() == SLOTS {
                            model.pop_front();
                            overwritten += 1;
                        }
                    }
                    Move::NewReader => consumer = Consumer::attach(&keep).expect("a queue"),
                }
            }
        }

        /// Whatever stands in any word of either memory, at any moment: the reader neither panics nor goes on for ever,
        /// a frame is no longer than one may be, and what is written next comes out.
        #[test]
        fn nonsense_anywhere_loses_frames_only(
            steps in proptest::collection::vec((0..3_u8, 0..HEADER + 3 * SLOT, word()), 1..60),
        ) {
            let (_keep, mut producer, mut consumer) = queue(3);
            let mut buffer = [0; FRAME];
            for (step, at, value) in steps {
                match step {
                    0 => producer.shared.words()[at].store(value, Ordering::Relaxed),
                    1 => consumer.place.words()[0].store(value, Ordering::Relaxed),
                    _ => prop_assert!(producer.push(b"between")),
                }
                prop_assert!(consumer.pop(&mut buffer).is_none_or(|frame| frame.len() <= FRAME));
                let _ = consumer.take_losses();
            }
            // What an earlier reader left may be the very number of the next frame; after that one all come out.
            prop_assert!(producer.push(b"first"));
            for _ in 0..8 {
                let _ = consumer.pop(&mut buffer);
            }
            prop_assert!(producer.push(b"last"));
            prop_assert_eq!(consumer.pop(&mut buffer), Some(&b"last"[..]));
            prop_assert_eq!(consumer.pop(&mut buffer), None);
        }

        /// The writer reads nothing back: whatever stands in the memory, what it writes is the same.
        #[test]
        fn the_writer_goes_by_nothing_in_the_memory(
            scribbled in proptest::collection::vec((0..HEADER + 3 * SLOT, word()), 0..40),
            before in 0..5_usize,
        ) {
            let (keep, mut producer, _) = queue(3);
            for _ in 0..before {
                producer.push(b"before");
            }
            for (at, value) in scribbled {
                producer.shared.words()[at].store(value, Ordering::Relaxed);
            }
            let frames = [&b"one"[..], b"two", b"three"];
            for frame in frames {
                prop_assert!(producer.push(frame));
            }
            let mut consumer = Consumer::attach(&keep).expect("a queue");
            let mut buffer = [0; FRAME];
            for frame in frames {
                prop_assert_eq!(consumer.pop(&mut buffer), Some(frame));
            }
            prop_assert_eq!(consumer.pop(&mut buffer), None);
        }
    }
}
