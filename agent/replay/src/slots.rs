//! A slot for each workload, by which its growth is remembered.

use plimsoll_policy::{Uid, Workload};
use std::collections::{BTreeMap, BTreeSet};

/// The slots that workloads have. As long as there are free ones, a workload that is absent from some samples keeps its
/// own.
pub(crate) struct Slots {
    used: BTreeMap<Uid, u32>,
    free: Vec<u32>,
}

impl Slots {
    /// For as many workloads at one time.
    pub(crate) fn new(slots: usize) -> Self {
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        Self { used: BTreeMap::new(), free: (0..slots).rev().collect() }
    }

    /// Gives each of these its slot. Where that takes more than there are, those of absent workloads are free again.
    pub(crate) fn assign(&mut self, workloads: &mut [Workload<'_>]) {
        let is_new = |workload: &&Workload<'_>| !self.used.contains_key(&workload.uid);
        if workloads.iter().filter(is_new).count() > self.free.len() {
            let present: BTreeSet<Uid> = workloads.iter().map(|workload| workload.uid).collect();
            self.free.extend(self.used.extract_if(.., |uid, _| !present.contains(uid)).map(|(_, slot)| slot));
        }
        for workload in workloads {
            // One without a slot is decided on all the same: its growth alone is not remembered.
            workload.key.slot = *self.used.entry(workload.uid).or_insert_with(|| self.free.pop().unwrap_or(u32::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(slots: &mut Slots, uids: &[u128]) -> Vec<u32> {
        let mut workloads: Vec<_> = uids.iter().map(|uid| Workload { uid: Uid(*uid), ..Workload::default() }).collect();
        slots.assign(&mut workloads);
        workloads.iter().map(|workload| workload.key.slot).collect()
    }

    #[test]
    fn a_slot_is_kept_until_others_need_it() {
        let mut slots = Slots::new(3);
        assert_eq!(assigned(&mut slots, &[1, 2]), [0, 1]);
        assert_eq!(assigned(&mut slots, &[2]), [1]);
        assert_eq!(assigned(&mut slots, &[1, 3]), [0, 2], "it was absent from one sample");
        assert_eq!(assigned(&mut slots, &[3, 4]), [2, 1]);
        assert_eq!(assigned(&mut slots, &[5, 4]), [0, 1]);
    }
}
