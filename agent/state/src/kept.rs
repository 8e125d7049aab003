//! What the next core goes on with, in files beside the run record: bytes whose meaning is the caller's.
//!
//! The thread that decides writes it, as it writes the run record: into memory that is mapped and locked. So nothing is
//! handed to another thread, which may be slow, and what was decided before the process is killed is there.

use crate::error::StateError;
use crate::two_slots::{Found, Layout, TwoSlots};
use plimsoll_node::boot::BootId;
use std::path::Path;

/// No more is kept, in bytes.
pub const KEPT_MOST: usize = 8 << 10;

/// The length in bytes, then the bytes. The magic number is that of what the bytes mean, too.
const fn layout(magic: [u8; 8]) -> Layout {
    Layout { magic: u64::from_le_bytes(magic), row: 1, rows: 1 + KEPT_MOST / 8, is_row: |_| true }
}

static DECISIONS: Layout = layout(*b"PLIMKEP2");
static EVICTIONS: Layout = layout(*b"PLIMEVIC");

/// The file, opened and mapped.
#[derive(Debug)]
pub struct Kept {
    slots: TwoSlots,
    /// What may be written next, in storage made beforehand.
    next: Box<[u8]>,
}

impl Kept {
    /// Opens the file at `path` that has what decisions remember, or makes one. Never fails for what is in the file: that is in
    /// `Found`.
    pub fn open(path: &Path, boot: BootId) -> Result<(Self, Found), StateError> {
        Self::open_as(&DECISIONS, path, boot)
    }

    /// The same of the one that has evictions.
    pub fn open_evictions(path: &Path, boot: BootId) -> Result<(Self, Found), StateError> {
        Self::open_as(&EVICTIONS, path, boot)
    }

    fn open_as(layout: &'static Layout, path: &Path, boot: BootId) -> Result<(Self, Found), StateError> {
        let (slots, found) = TwoSlots::open(layout, path, boot)?;
        // Without it a write may have to wait for a disk; the run record reports the same.
        let _ = slots.lock();
        Ok((Self { slots, next: vec![0; KEPT_MOST].into_boxed_slice() }, found))
    }

    /// What was written last; nothing where nothing was.
    pub fn bytes(&self) -> Vec<u8> {
        let Some((length, words)) = self.slots.image().words().split_first() else { return Vec::new() };
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        bytes.take(usize::try_from(*length).unwrap_or(0)).collect()
    }

    /// Writes what `encode` puts into the storage that it is given, if that differs from what is there. `encode` gives how
    /// many bytes that are; nothing is written where it gives none. Neither allocates nor waits.
    pub fn write(&mut self, encode: impl FnOnce(&mut [u8]) -> Option<usize>) {
        let Self { slots, next } = self;
        let Some(length) = encode(next).filter(|length| *length <= KEPT_MOST) else { return };
        let words = || core::iter::once(length as u64).chain(next[..length].chunks(8).map(word));
        if slots.image().words().iter().copied().eq(words()) {
            return;
        }
        slots.clear();
        for word in words() {
            if let Some(row) = slots.push() {
                row[0] = word;
            }
        }
        slots.publish();
    }
}

fn word(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = BootId([1; 16]);

    fn put(kept: &mut Kept, bytes: &[u8]) {
        kept.write(|room| {
            room[..bytes.len()].copy_from_slice(bytes);
            Some(bytes.len())
        });
    }

    #[test]
    fn the_next_process_of_this_boot_reads_what_was_written_last() {
        let run = tempfile::tempdir().expect("a temporary directory");
        let path = run.path().join("kept");
        let (mut kept, found) = Kept::open(&path, BOOT).expect("writable");
        assert!(matches!(found, Found::New) && kept.bytes().is_empty());
        for bytes in [&b"a longer one of two words"[..], b"short", b"", &[7; KEPT_MOST]] {
            put(&mut kept, bytes);
            assert_eq!(kept.bytes(), bytes);
            let (next, found) = Kept::open(&path, BOOT).expect("writable");
            assert!(matches!(found, Found::Continued));
            assert_eq!(next.bytes(), bytes);
        }
        kept.write(|_| None);
        kept.write(|_| Some(KEPT_MOST + 1));
        assert_eq!(kept.bytes(), [7; KEPT_MOST]);
        let (next, found) = Kept::open(&path, BootId([2; 16])).expect("writable");
        assert!(matches!(found, Found::OtherBoot) && next.bytes().is_empty());
    }

    #[test]
    fn what_is_there_already_is_not_written_again() {
        let run = tempfile::tempdir().expect("a temporary directory");
        let path = run.path().join("kept");
        let (mut kept, _) = Kept::open(&path, BOOT).expect("writable");
        let file = || std::fs::read(&path).expect("readable");
        put(&mut kept, b"as it is");
        let before = file();
        put(&mut kept, b"as it is");
        assert!(file() == before);
        put(&mut kept, b"as it iz");
        assert!(file() != before);
    }
}
