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
    assert_eq!(consumer.take_losses(), losses(0, 0), "each loss is counted once");
}

#[test]
fn only_the_writer_can_change_the_frames() {
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
    assert!(ftruncate(&descriptors.place, 0).is_err(), "nor can the reader's memory be truncated");
    producer.push(b"a");
    assert_eq!(consumer.pop(&mut [0; FRAME]), Some(&b"a"[..]));
}

#[test]
fn the_reader_is_woken_once_for_all_frames_of_a_turn() {
    let (_keep, mut producer, consumer) = queue(40);
    let waiter = consumer.waiter();
    let wakes = || waiter.wakes();
    producer.wake();
    assert_eq!(wakes(), 0, "there is nothing new");
    for _ in 0..9 {
        assert!(producer.push(b"a"));
    }
    assert_eq!(wakes(), 0);
    producer.wake();
    producer.wake();
    assert_eq!(wakes(), 1);
    assert!(!producer.push(&[0; FRAME + 1]));
    producer.wake();
    assert_eq!(wakes(), 2, "what was too long is to be counted");
    for _ in 0..30 {
        assert!(producer.push(b"a"));
    }
    assert_eq!(wakes(), 5, "before what is new fills the queue");
}

#[test]
fn a_reader_that_waits_is_woken() {
    let (_keep, mut producer, consumer) = queue(8);
    let waiter = consumer.waiter();
    let seen = waiter.wakes();
    let reader = std::thread::spawn(move || {
        // Woken for no reason, it waits again.
        while waiter.wakes() == seen {
            waiter.wait(seen, Duration::from_mins(1));
        }
        waiter.wait(seen, Duration::MAX);
    });
    producer.push(b"a");
    producer.wake();
    reader.join().expect("no panic");
}

#[test]
fn memory_that_is_no_queue_is_refused() {
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
    assert!(refused(&unsealed, &good.place), "it could be truncated");
    let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
    assert!(refused(&pipe, &good.place) && refused(&good.frames, &pipe));
}

/// Frames that hold their own number, read while they are written, by a reader that is slower at times.
#[test]
fn frames_read_while_they_are_written_are_whole_and_in_order() {
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

/// Words that a hostile process could write: small numbers, numbers near the ends, and any.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![0..8_u64, (0..8_u64).prop_map(|less| u64::MAX - less), any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whichever side dies and is started again, frames come out whole and in order, and those that do not are counted.
    #[test]
    fn frames_are_in_order_whichever_side_dies(moves in proptest::collection::vec(moves(), 0..60)) {
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

    /// Whatever is in any word of either memory, at any time: the reader neither panics nor goes on for ever,
    /// a frame is no longer than one may be, and what is written next comes out.
    #[test]
    fn wrong_words_anywhere_lose_frames_only(
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

    /// The writer reads nothing back: whatever is in the memory, what it writes is the same.
    #[test]
    fn the_writer_depends_on_nothing_in_the_memory(
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
