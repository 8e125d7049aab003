//! A growing process's own record of what it had filled when, which outlives its death.
//!
//! Pairs of (`CLOCK_MONOTONIC` nanoseconds, bytes filled so far) in a file on tmpfs that is mapped shared. The file is
//! made, sized and touched by the process that starts it, so that recording takes no memory at the moment it matters.
//! It is the check on the kernel's own time of a crossing, never a source of it.

use crate::map::Mapping;
use anyhow::{Context as _, Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAIR_BYTES: usize = 16;

/// One entry: at `at_ns`, `bytes` had been filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Filled {
    /// `CLOCK_MONOTONIC`, in nanoseconds, read just after the bytes were filled.
    pub(crate) at_ns: u64,
    /// The sum over all threads.
    pub(crate) bytes: u64,
}

/// Makes the file for `pairs` entries, with all of its pages present.
pub(crate) fn prepare(path: &Path, pairs: usize) -> Result<()> {
    fs::write(path, vec![0_u8; pairs * PAIR_BYTES])
        .with_context(|| format!("cannot prepare the record {}", path.display()))
}

/// Reads the entries written so far, in the order of time.
pub(crate) fn read(path: &Path) -> Result<Vec<Filled>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read the record {}", path.display()))?;
    Ok(decode(&bytes))
}

fn decode(bytes: &[u8]) -> Vec<Filled> {
    let (words, _) = bytes.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    let mut filled: Vec<Filled> = pairs
        .iter()
        .map(|[at, bytes]| Filled { at_ns: u64::from_ne_bytes(*at), bytes: u64::from_ne_bytes(*bytes) })
        .filter(|entry| entry.at_ns != 0)
        .collect();
    filled.sort_unstable();
    filled
}

/// The writer's side, shared by all threads of a hog.
pub(crate) struct Writer {
    map: Mapping,
    pairs: usize,
    next: AtomicUsize,
}

impl Writer {
    /// Opens a prepared record and checks that `needed` entries fit, so that none is dropped later.
    pub(crate) fn open(path: &Path, needed: usize) -> Result<Self> {
        let file: File = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("cannot open the record {}", path.display()))?;
        let bytes = usize::try_from(file.metadata()?.len())?;
        let pairs = bytes / PAIR_BYTES;
        ensure!(pairs >= needed, "the record {} holds {pairs} entries, {needed} are needed", path.display());
        let map = Mapping::shared(&file, bytes).context("cannot map the record")?;
        Ok(Self { map, pairs, next: AtomicUsize::new(0) })
    }

    /// Adds one entry. The time is published last: an entry without it was never finished.
    pub(crate) fn add(&self, entry: Filled) {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        if index < self.pairs {
            self.map.publish(index * 2 + 1, entry.bytes);
            self.map.publish(index * 2, entry.at_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_in_order_of_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        prepare(&path, 4).unwrap();
        let writer = Writer::open(&path, 4).unwrap();
        writer.add(Filled { at_ns: 9, bytes: 200 });
        writer.add(Filled { at_ns: 5, bytes: 100 });
        assert_eq!(read(&path).unwrap(), [Filled { at_ns: 5, bytes: 100 }, Filled { at_ns: 9, bytes: 200 }]);
    }

    #[test]
    fn a_record_that_would_overflow_is_refused_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        prepare(&path, 4).unwrap();
        assert!(Writer::open(&path, 5).is_err());
    }

    #[test]
    fn an_entry_without_its_time_was_never_finished() {
        let mut bytes = vec![0_u8; 32];
        bytes[8] = 77;
        assert_eq!(decode(&bytes), []);
    }
}
