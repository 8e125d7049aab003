//! What all processes of a workload together had filled when.

use crate::measure::{filled_at, past};
use crate::record::Filled;

/// Over how long before the crossing a rate is taken.
const RATE_NS: u64 = 100_000_000;

/// The records of its processes; no record where what it does is not noted.
#[derive(Default)]
pub(super) struct Growth {
    records: Vec<Vec<Filled>>,
    /// What a process takes between two entries.
    piece_bytes: u64,
}

impl Growth {
    /// Those of processes that noted something.
    pub(super) fn new(mut records: Vec<Vec<Filled>>, piece_bytes: u64) -> Self {
        records.retain(|record| !record.is_empty());
        Self { records, piece_bytes }
    }

    /// Bytes a second over the tenth of a second before `at_ns`, or over what there is of it. Of many processes each runs for
    /// a small part of that: what they took is added up, and not how fast each was while it ran.
    pub(super) fn rate_before(&self, at_ns: u64) -> Option<u64> {
        let first_ns = self.records.iter().filter_map(|record| Some(record.first()?.at_ns)).min()?;
        let from_ns = at_ns.saturating_sub(RATE_NS).max(first_ns);
        let span_ns = at_ns.checked_sub(from_ns).filter(|span_ns| *span_ns > 0)?;
        let filled = |at_ns| self.records.iter().filter_map(|record| filled_at(record, at_ns)).sum::<u64>();
        let grown = u128::from(filled(at_ns).saturating_sub(filled(from_ns)));
        u64::try_from(grown * 1_000_000_000 / u128::from(span_ns)).ok()
    }

    /// What was taken after `at_ns` at most: all of the pieces that the processes were at.
    pub(super) fn past(&self, at_ns: u64) -> Option<u64> {
        let of = |record: &Vec<Filled>| match filled_at(record, at_ns) {
            Some(_) => past(record, at_ns),
            None => record.last().map(|entry| entry.bytes),
        };
        let taken = self.records.iter().filter_map(of).reduce(|one, other| one + other);
        Some(taken? + self.resolution_bytes()?)
    }

    /// By how much that may be too much: a piece of each process. Absent where nothing is noted.
    pub(super) fn resolution_bytes(&self) -> Option<u64> {
        (!self.records.is_empty()).then(|| self.piece_bytes * self.records.len() as u64)
    }

    /// When the last piece was filled.
    pub(super) fn last_ns(&self) -> Option<u64> {
        self.records.iter().filter_map(|record| Some(record.last()?.at_ns)).max()
    }

    /// All that was filled.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.records.iter().filter_map(|record| Some(record.last()?.bytes)).reduce(|one, other| one + other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Vec<Filled>> {
        let filled = |at_ns, bytes| Filled { at_ns, bytes };
        vec![vec![filled(1000, 10), filled(3000, 30)], vec![], vec![filled(1900, 8), filled(2500, 16)]]
    }

    #[test]
    fn what_several_processes_took_is_added_up() {
        let growth = Growth::new(records(), 4);
        assert_eq!(growth.bytes(), Some(46));
        assert_eq!(growth.last_ns(), Some(3000));
        // 10 of the first, 8 of the other, and a piece of each.
        assert_eq!(growth.past(2000), Some(30 - 20 + 16 - 9 + 8));
        // The other had filled nothing by then.
        assert_eq!(growth.past(1000), Some(20 + 16 + 8));
        assert_eq!(growth.resolution_bytes(), Some(8));
    }

    #[test]
    fn a_rate_is_of_what_all_processes_took_in_the_same_time() {
        let filled = |at_ns, bytes| Filled { at_ns, bytes };
        // One after the other, each twice as fast as they are together.
        let one = vec![filled(0, 0), filled(50_000_000, 100)];
        let other = vec![filled(50_000_000, 0), filled(100_000_000, 100)];
        assert_eq!(Growth::new(vec![one, other.clone()], 4).rate_before(100_000_000), Some(2000));
        assert_eq!(Growth::new(vec![other.clone()], 4).rate_before(100_000_000), Some(2000), "of what there is of it");
        assert_eq!(Growth::new(vec![other], 4).rate_before(50_000_000), None);
    }

    #[test]
    fn nothing_is_known_of_what_notes_nothing() {
        let growth = Growth::default();
        assert_eq!((growth.bytes(), growth.past(1), growth.last_ns(), growth.rate_before(1)), (None, None, None, None));
        assert_eq!(growth.resolution_bytes(), None);
    }
}
