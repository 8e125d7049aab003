//! Who is on this machine: workloads and slices by slot, as the scout last told, in storage made beforehand.

use std::sync::Arc;

use arrayvec::ArrayVec;
use plimsoll_node::cgroup::Handle;
use plimsoll_policy::{Candidate, Going, Key, MemoryReading, SliceSet};
use plimsoll_sense::{ANCESTOR_LEVELS, MAX_SLICES};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

/// The most workloads that are watched at a time.
pub(super) const SLOTS: usize = 4096;

/// What the scout found out about a workload; handles and slow figures.
#[derive(Debug)]
pub(super) struct Facts {
    /// Its descriptors.
    pub(super) handle: Arc<Handle>,
    /// What it was promised.
    pub(super) reservation: Bytes,
    /// Page cache of it that reclaim looks at first.
    pub(super) inactive_file: Bytes,
    /// Lower goes first.
    pub(super) priority: i32,
    /// When it was first seen.
    pub(super) started: MonotonicNs,
    /// The slices with own lines it is in.
    pub(super) slices: SliceSet,
}

/// A slice with lines of its own, as it stands now.
#[derive(Debug)]
pub(super) struct SliceFacts {
    /// Its descriptors.
    pub(super) handle: Arc<Handle>,
    /// Its `memory.max`.
    pub(super) max: Bytes,
    /// Page cache of it that reclaim looks at first.
    pub(super) inactive_file: Bytes,
}

/// News from the scout.
#[derive(Debug)]
pub(super) enum Update {
    /// A workload that is new or changed.
    Workload(u32, Facts),
    /// A workload is gone.
    Gone(u32),
    /// A slice that the kernel itself brakes, by place, with its depth below the root.
    Mark(u8, Option<(CgroupId, u8)>),
    /// A slice that is new or changed; `None`: it is not there, or has no limit.
    Slice(u8, Option<SliceFacts>),
}

/// How somebody is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// Not at all.
    Stays,
    /// It was asked to end by itself until then.
    Asked(MonotonicNs),
    /// It was killed.
    Killed,
    /// It was killed and does not end.
    Stuck,
}

/// One workload.
#[derive(Debug)]
pub(super) struct Workload {
    /// What the scout told.
    pub(super) facts: Facts,
    /// Whether it is on its way out.
    pub(super) leaving: Leaving,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Table {
    workloads: Vec<Option<Workload>>,
    /// No slot at or above this one was ever used.
    end: usize,
    slices: [Option<SliceFacts>; MAX_SLICES],
    /// Storage for one observation.
    candidates: Vec<Candidate>,
}

impl Table {
    pub(super) fn new() -> Self {
        let mut workloads = Vec::with_capacity(SLOTS);
        workloads.resize_with(SLOTS, || None);
        Self { workloads, end: 0, slices: [const { None }; MAX_SLICES], candidates: Vec::with_capacity(SLOTS) }
    }

    /// Takes news in, and gives back the handle that it replaces.
    pub(super) fn take(&mut self, update: Update) -> Option<Arc<Handle>> {
        match update {
            Update::Workload(slot, facts) => {
                let slot = slot as usize;
                self.end = self.end.max(slot + 1);
                let place = self.workloads.get_mut(slot)?;
                let leaving = match place {
                    Some(old) if old.facts.handle.id() == facts.handle.id() => old.leaving,
                    _ => Leaving::Stays,
                };
                place.replace(Workload { facts, leaving }).map(|old| old.facts.handle)
            }
            Update::Gone(slot) => self.workloads.get_mut(slot as usize)?.take().map(|old| old.facts.handle),
            // Not of this table.
            Update::Mark(..) => None,
            Update::Slice(index, slice) => {
                let place = self.slices.get_mut(usize::from(index))?;
                std::mem::replace(place, slice).map(|old| old.handle)
            }
        }
    }

    /// The workload in a slot, if it is still the one that was meant.
    pub(super) fn get(&self, key: Key) -> Option<&Workload> {
        self.workloads.get(key.slot as usize)?.as_ref().filter(|workload| workload.facts.handle.id() == key.id)
    }

    /// Marks how a workload leaves.
    pub(super) fn set_leaving(&mut self, id: CgroupId, leaving: Leaving) {
        if let Some((_, workload)) = self.iter_mut().find(|(_, workload)| workload.facts.handle.id() == id) {
            workload.leaving = leaving;
        }
    }

    /// The workload that a running task is in, by its ancestor cgroups, or else the one that was charged.
    pub(super) fn of(&self, ancestors: &[Option<CgroupId>; ANCESTOR_LEVELS], charged: Option<CgroupId>) -> Option<Key> {
        let among = |id: CgroupId| ancestors.contains(&Some(id));
        let found = self.iter().find(|(_, workload)| among(workload.facts.handle.id()));
        let found = found.or_else(|| self.iter().find(|(_, workload)| charged == Some(workload.facts.handle.id())));
        found.map(|(slot, workload)| Key { slot, id: workload.facts.handle.id() })
    }

    /// Workloads by slot.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Workload)> {
        (0..).zip(&self.workloads[..self.end]).filter_map(|(slot, place)| Some((slot, place.as_ref()?)))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Workload)> {
        (0..).zip(&mut self.workloads[..self.end]).filter_map(|(slot, place)| Some((slot, place.as_mut()?)))
    }

    /// Reads every workload's usage now, and gives them as candidates. `grace` is what each would want.
    pub(super) fn observe(&mut self, grace: core::time::Duration) -> &[Candidate] {
        self.candidates.clear();
        for (slot, place) in (0..).zip(&self.workloads[..self.end]) {
            let Some(Workload { facts, leaving }) = place else { continue };
            let usage = facts.handle.usage().ok().map(|usage| usage.saturating_sub(facts.inactive_file));
            let empty = facts.handle.populated() == Ok(false);
            let held = usage.filter(|_| !empty).unwrap_or(Bytes::ZERO);
            let going = match leaving {
                Leaving::Stays => None,
                Leaving::Asked(_) => Some(Going { held, stuck: false, gentle: true }),
                Leaving::Killed => Some(Going { held, stuck: false, gentle: false }),
                Leaving::Stuck => Some(Going { held, stuck: true, gentle: false }),
            };
            self.candidates.push(Candidate {
                key: Key { slot, id: facts.handle.id() },
                usage,
                empty,
                reservation: facts.reservation,
                priority: facts.priority,
                protected: None,
                going,
                started: facts.started,
                slices: facts.slices,
                grace,
            });
        }
        &self.candidates
    }

    /// The candidates of the last observation.
    pub(super) fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// A slice's reading now; `None` where it has no limit or cannot be read.
    pub(super) fn slice_reading(&self, index: usize) -> Option<MemoryReading> {
        let slice = self.slices.get(index)?.as_ref()?;
        let working_set = slice.handle.usage().ok()?.saturating_sub(slice.inactive_file);
        Some(MemoryReading {
            capacity: slice.max,
            kubelet_available: slice.max.saturating_sub(working_set),
            honest_available: None,
        })
    }

    /// Slices that are there, by index.
    pub(super) fn slices(&self) -> ArrayVec<(usize, &SliceFacts), MAX_SLICES> {
        self.slices.iter().enumerate().filter_map(|(index, slice)| Some((index, slice.as_ref()?))).collect()
    }

    /// The next time at which somebody who was asked to end is killed, and who.
    pub(super) fn next_overdue(&self) -> Option<(MonotonicNs, Key)> {
        let asked = self.iter().filter_map(|(slot, workload)| match workload.leaving {
            Leaving::Asked(until) => Some((until, Key { slot, id: workload.facts.handle.id() })),
            _ => None,
        });
        asked.min_by_key(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_node::cgroup::Root;
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    fn facts(tree: &Path, name: &str, usage: u64, inactive_file: u64) -> Facts {
        let folder = tree.join(name);
        fs::create_dir_all(&folder).expect("writable");
        let usage = usage.to_string();
        for (file, text) in [("cgroup.events", "populated 1\n"), ("cgroup.procs", ""), ("memory.current", &usage)] {
            fs::write(folder.join(file), text).expect("writable");
        }
        let root = Root::open(tree).expect("it is there");
        let handle =
            plimsoll_node::cgroup::Handle::open(&root, name.as_bytes()).expect("readable").expect("it is there");
        Facts {
            handle: Arc::new(handle),
            reservation: Bytes::ZERO,
            inactive_file: Bytes(inactive_file),
            priority: 0,
            started: MonotonicNs(1),
            slices: SliceSet::NONE,
        }
    }

    #[test]
    fn a_running_task_is_found_by_its_ancestors_and_else_by_what_was_charged() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let mut table = Table::new();
        let (a, b) = (facts(tree.path(), "a", 0, 0), facts(tree.path(), "b", 0, 0));
        let (id_a, id_b) = (a.handle.id(), b.handle.id());
        assert!(table.take(Update::Workload(5, a)).is_none());
        table.take(Update::Workload(2, b));
        let mut ancestors = [None; ANCESTOR_LEVELS];
        assert_eq!(table.of(&ancestors, Some(id_b)), Some(Key { slot: 2, id: id_b }));
        ancestors[1] = Some(id_a);
        assert_eq!(table.of(&ancestors, Some(id_b)), Some(Key { slot: 5, id: id_a }));
        assert_eq!(table.of(&[None; ANCESTOR_LEVELS], Some(CgroupId(1))), None);
    }

    #[test]
    fn usage_is_without_page_cache_that_goes_first_and_leaving_ones_are_going() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let mut table = Table::new();
        let one = facts(tree.path(), "one", 1000, 300);
        let id = one.handle.id();
        table.take(Update::Workload(0, one));
        assert_eq!(table.observe(Duration::ZERO)[0].usage, Some(Bytes(700)));
        for (leaving, stuck, gentle) in [
            (Leaving::Asked(MonotonicNs(9)), false, true),
            (Leaving::Killed, false, false),
            (Leaving::Stuck, true, false),
        ] {
            table.set_leaving(id, leaving);
            assert_eq!(table.observe(Duration::ZERO)[0].going, Some(Going { held: Bytes(700), stuck, gentle }));
        }
        table.set_leaving(id, Leaving::Asked(MonotonicNs(9)));
        assert_eq!(table.next_overdue(), Some((MonotonicNs(9), Key { slot: 0, id })));
    }

    #[test]
    fn what_is_left_of_the_dead_does_not_come_back() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let mut table = Table::new();
        // Charged still: files in tmpfs that outlive who wrote them.
        let one = facts(tree.path(), "one", 1000, 300);
        let (id, events) = (one.handle.id(), tree.path().join("one/cgroup.events"));
        table.take(Update::Workload(0, one));
        fs::write(&events, "populated 0\n").expect("writable");
        assert!(table.observe(Duration::ZERO)[0].empty);
        table.set_leaving(id, Leaving::Asked(MonotonicNs(9)));
        assert_eq!(
            table.observe(Duration::ZERO)[0].going,
            Some(Going { held: Bytes::ZERO, stuck: false, gentle: true }),
            "what is left is not coming back"
        );
        table.set_leaving(id, Leaving::Stays);
        fs::write(&events, "populated 1\n").expect("writable");
        assert!(!table.observe(Duration::ZERO)[0].empty, "it was started again");
    }

    #[test]
    fn news_of_the_same_workload_keep_how_it_leaves_and_a_successor_begins_anew() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let mut table = Table::new();
        let first = facts(tree.path(), "w", 0, 0);
        let id = first.handle.id();
        table.take(Update::Workload(0, first));
        table.set_leaving(id, Leaving::Killed);
        assert!(table.take(Update::Workload(0, facts(tree.path(), "w", 1, 0))).is_some());
        assert_eq!(table.get(Key { slot: 0, id }).map(|workload| workload.leaving), Some(Leaving::Killed));
        let other = facts(tree.path(), "x", 0, 0);
        let other_id = other.handle.id();
        table.take(Update::Workload(0, other));
        assert!(table.get(Key { slot: 0, id }).is_none(), "a successor in the slot is not the one that was meant");
        assert_eq!(table.get(Key { slot: 0, id: other_id }).map(|workload| workload.leaving), Some(Leaving::Stays));
        assert!(table.take(Update::Gone(0)).is_some());
        assert!(table.observe(Duration::ZERO).is_empty());
    }
}
