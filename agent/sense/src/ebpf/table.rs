//! The table that the kernel's programs compare with: a copy of every word that was written is kept, so that a change by
//! another program is found.

use std::{
    mem::offset_of,
    sync::{Arc, atomic::Ordering},
};

use plimsoll_abi::{SLICES, SliceSlot, ThresholdTable};

use crate::mapped::MappedWords;

/// The table's length.
pub(super) const WORDS: usize = size_of::<ThresholdTable>() / WORD;

const WORD: usize = size_of::<u64>();

/// The one word that is not the agent's: the program sets it.
pub(super) const CHARGE_RAN: usize = offset_of!(ThresholdTable, charge_ran);

/// Where the record goes whose program took a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    Thresholds,
    Events,
}

/// The mapped table, and what was written into it.
pub(super) struct Table {
    words: Arc<MappedWords>,
    written: [u64; WORDS],
    /// For each word with a generation, the newest one of which the record was read.
    answered: [u64; WORDS],
}

impl Table {
    /// A table of zeros, as the kernel makes it.
    pub(super) fn new(words: Arc<MappedWords>) -> Self {
        Self { words, written: [0; WORDS], answered: [0; WORDS] }
    }

    /// Writes the word at byte `offset`.
    pub(super) fn store(&mut self, offset: usize, value: u64) {
        self.written[offset / WORD] = value;
        self.words.at(offset).store(value, Ordering::Release);
    }

    /// The record was read whose program took `generation` from byte `offset`; absent: the one that is armed.
    pub(super) fn answer(&mut self, offset: usize, generation: Option<u64>) {
        let index = offset / WORD;
        // Records of two CPUs may be in the other order.
        self.answered[index] = self.answered[index].max(generation.unwrap_or(self.written[index]));
    }

    /// Whether the charge hook ran since this was last asked.
    pub(super) fn ran(&self) -> bool {
        self.words.at(CHARGE_RAN).swap(0, Ordering::Relaxed) != 0
    }

    /// Writes anew what another program changed, and gives whether that was anything. A generation that a program took,
    /// to submit an event, is no change: its record was read, or is in its ring buffer. `is_drained`: there is nothing in
    /// that ring buffer, nor is a record reserved in it.
    pub(super) fn restore(&mut self, is_drained: impl Fn(Ring) -> bool) -> bool {
        let mut changed = false;
        for index in 0..WORDS {
            let (offset, written) = (index * WORD, self.written[index]);
            let word = self.words.at(offset);
            let now = word.load(Ordering::Acquire);
            if now == written || offset == CHARGE_RAN {
                continue;
            }
            // The record is reserved before the generation is taken.
            let is_taken = |ring| now == 0 && (self.answered[index] == written || !is_drained(ring));
            if !ring_of(offset).is_some_and(is_taken) {
                word.store(written, Ordering::Release);
                changed = true;
            }
        }
        changed
    }
}

/// The byte offset of a slice's slot.
pub(super) const fn slice_slot(slot: usize) -> usize {
    offset_of!(ThresholdTable, slices) + slot * size_of::<SliceSlot>()
}

/// The byte offset of the generation of a threshold, by its number in a record: zero for the node, the slot's index plus
/// one for a slice.
pub(super) const fn generation_of(threshold: u32) -> usize {
    match (threshold as usize).checked_sub(1) {
        None => offset_of!(ThresholdTable, node_generation),
        Some(slot) => slice_slot(slot) + offset_of!(SliceSlot, generation),
    }
}

/// The ring buffer for the word at `offset`, if it is a generation.
fn ring_of(offset: usize) -> Option<Ring> {
    const RECLAIM: usize = offset_of!(ThresholdTable, reclaim_generation);
    const TASKS: usize = offset_of!(ThresholdTable, task_generation);
    let slots = slice_slot(0)..slice_slot(SLICES);
    let is_slice = slots.contains(&offset) && (offset - slots.start).is_multiple_of(size_of::<SliceSlot>());
    match offset {
        RECLAIM | TASKS => Some(Ring::Events),
        offset if is_slice || offset == generation_of(0) => Some(Ring::Thresholds),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    /// A table in a file, and the other program's way to it.
    fn table() -> (Table, Arc<MappedWords>) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(4096).expect("it grows");
        let words = Arc::new(MappedWords::new(file.as_fd(), WORDS).expect("it is mapped"));
        (Table::new(Arc::clone(&words)), words)
    }

    const LEVEL: usize = offset_of!(ThresholdTable, node_mem_available);

    #[test]
    fn every_word_that_another_program_changes_is_written_anew() {
        let (mut table, words) = table();
        for offset in (0..WORDS).map(|index| index * WORD) {
            table.store(offset, 7);
        }
        for offset in (0..WORDS).map(|index| index * WORD) {
            words.at(offset).store(8, Ordering::Relaxed);
            assert_eq!(table.restore(|_| true), offset != CHARGE_RAN, "{offset}");
            assert_eq!(words.at(offset).load(Ordering::Relaxed), if offset == CHARGE_RAN { 8 } else { 7 });
            assert!(!table.restore(|_| true));
        }
    }

    #[test]
    fn the_charge_hook_is_seen_to_run_once_each_time() {
        let (table, words) = table();
        assert!(!table.ran());
        words.at(CHARGE_RAN).store(1, Ordering::Relaxed);
        assert!(table.ran() && !table.ran());
    }

    #[test]
    fn a_generation_that_was_taken_for_an_event_is_no_change() {
        let generations = [(generation_of(0), Ring::Thresholds), (generation_of(16), Ring::Thresholds)];
        let events = [offset_of!(ThresholdTable, reclaim_generation), offset_of!(ThresholdTable, task_generation)];
        for (offset, own) in generations.into_iter().chain(events.map(|offset| (offset, Ring::Events))) {
            let (mut table, words) = table();
            table.store(offset, 3);
            words.at(offset).store(0, Ordering::Relaxed);
            assert!(!table.restore(|ring| ring != own), "its record may not have been read yet");
            table.answer(offset, Some(3));
            assert!(!table.restore(|_| true), "its record was read");
            table.store(offset, 4);
            words.at(offset).store(0, Ordering::Relaxed);
            assert!(table.restore(|_| true), "there is no record of this one");
            assert_eq!(words.at(offset).load(Ordering::Relaxed), 4, "it is armed again");
            words.at(offset).store(0, Ordering::Relaxed);
            table.answer(offset, Some(4));
            table.answer(offset, Some(3));
            assert!(!table.restore(|_| true), "its record was read before an older one");
        }
        let (mut table, words) = table();
        table.store(LEVEL, 5);
        words.at(LEVEL).store(0, Ordering::Relaxed);
        assert!(table.restore(|_| false), "no program of the agent writes a level");
    }
}
