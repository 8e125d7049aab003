//! Who is on this machine: workloads and slices by slot, as the inventory thread last told, in storage made beforehand.

use std::sync::Arc;

use arrayvec::ArrayVec;
use plimsoll_act::REGROWN;
use plimsoll_node::cgroup::Handle;
use plimsoll_policy::kubelet::{Amount, Pod, PodStats, QosClass};
use plimsoll_policy::{Key, MemoryReading, SliceSet, Terminating, Uid};
use plimsoll_sense::{ANCESTOR_LEVELS, MAX_SLICES};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

use super::thresholds::Machine;

/// The most workloads that are watched at a time.
pub(super) const SLOTS: usize = 4096;

/// What the inventory thread found out about a workload; handles and slow figures.
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
    /// What the inventory thread read.
    pub(super) figures: SliceFigures,
}

/// The slow figures of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SliceFigures {
    /// Its `memory.max`.
    pub(super) max: Bytes,
    /// Page cache of it that reclaim looks at first.
    pub(super) inactive_file: Bytes,
    /// What reclaim could take of it without ending or swapping anybody; absent where that could not be read.
    pub(super) reclaimable: Option<Bytes>,
}

/// News from the inventory thread.
#[derive(Debug)]
pub(super) enum Update {
    /// A workload that is new or changed.
    Workload(u32, Facts),
    /// A workload is gone.
    Gone(u32),
    /// A slice that the kernel itself brakes, by place, with its depth below the root.
    Mark(u8, Option<(CgroupId, u8)>),
    /// What the lines are reckoned with has changed.
    Machine(Machine),
    /// A slice that is new or changed; `None`: it is not there, or has no limit.
    Slice(u8, Option<SliceFacts>),
}

/// How somebody is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Termination {
    /// Not at all.
    Stays,
    /// It was asked to end by itself until then, by this plan.
    Asked(MonotonicNs, u64),
    /// It was killed; the least that it has used since. No more than that comes back by this kill.
    Killed(Bytes),
    /// It was killed and does not end; the least that it has used since. Where it grows again somebody was started in
    /// it, and it is as good as new.
    Stuck(Bytes),
    /// It could not be killed, and is left alone until then.
    Refused(MonotonicNs),
}

impl Termination {
    /// What becomes of it, with what it uses at `now`.
    fn seen(self, usage: Option<Bytes>, empty: bool, now: MonotonicNs) -> Self {
        match self {
            Self::Killed(least) => Self::Killed(usage.map_or(least, |usage| usage.min(least))),
            Self::Stuck(_) if empty => Self::Stays,
            Self::Stuck(least) => match usage {
                Some(usage) if usage > least.saturating_add(REGROWN) => Self::Stays,
                usage => Self::Stuck(usage.map_or(least, |usage| usage.min(least))),
            },
            Self::Refused(until) if until <= now => Self::Stays,
            other => other,
        }
    }

    fn terminating(self) -> Option<Terminating> {
        let (is_stuck, is_graceful, until) = match self {
            Self::Stays => return None,
            Self::Asked(until, _) => (false, true, Some(until)),
            Self::Killed(_) => (false, false, None),
            Self::Stuck(_) | Self::Refused(_) => (true, false, None),
        };
        Some(Terminating { is_stuck, is_graceful, until })
    }
}

/// A workload as it is decided about.
pub(super) type Observed = plimsoll_policy::Workload<'static>;

/// One workload.
#[derive(Debug)]
pub(super) struct Workload {
    /// What the inventory thread told.
    pub(super) facts: Facts,
    /// Whether it is on its way out.
    pub(super) termination: Termination,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Table {
    workloads: Vec<Option<Workload>>,
    /// No slot at or above this one was ever used.
    end: usize,
    slices: [Option<SliceFacts>; MAX_SLICES],
    /// Storage for one observation.
    observed: Vec<Observed>,
}

impl Workload {
    /// What it uses now, without page cache that reclaim looks at first; absent where that cannot be read.
    pub(super) fn usage(&self) -> Option<Bytes> {
        self.facts.handle.usage().ok().map(|usage| usage.saturating_sub(self.facts.inactive_file))
    }
}

impl Table {
    pub(super) fn new() -> Self {
        let mut workloads = Vec::with_capacity(SLOTS);
        workloads.resize_with(SLOTS, || None);
        Self { workloads, end: 0, slices: [const { None }; MAX_SLICES], observed: Vec::with_capacity(SLOTS) }
    }

    /// Takes news in, and gives back the handle that it replaces.
    pub(super) fn take(&mut self, update: Update) -> Option<Arc<Handle>> {
        match update {
            Update::Workload(slot, facts) => {
                let slot = slot as usize;
                self.end = self.end.max(slot + 1);
                let place = self.workloads.get_mut(slot)?;
                let termination = match place {
                    Some(old) if old.facts.handle.id() == facts.handle.id() => old.termination,
                    _ => Termination::Stays,
                };
                place.replace(Workload { facts, termination }).map(|old| old.facts.handle)
            }
            Update::Gone(slot) => self.workloads.get_mut(slot as usize)?.take().map(|old| old.facts.handle),
            // Not of this table.
            Update::Mark(..) | Update::Machine(_) => None,
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

    /// Marks how a workload leaves, also for the slices that are decided about next on the same observation.
    pub(super) fn set_termination(&mut self, id: CgroupId, termination: Termination) {
        if let Some(observed) = self.observed.iter_mut().find(|observed| observed.key.id == id) {
            observed.terminating = termination.terminating();
        }
        if let Some((_, workload)) = self.iter_mut().find(|(_, workload)| workload.facts.handle.id() == id) {
            workload.termination = termination;
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

    /// Reads every workload's usage. `grace_seconds` is what each would want for an orderly end.
    pub(super) fn observe(&mut self, grace_seconds: i64, now: MonotonicNs) -> &[Observed] {
        self.observed.clear();
        for (slot, place) in (0..).zip(&mut self.workloads[..self.end]) {
            let Some(workload) = place else { continue };
            let usage = workload.usage();
            let Workload { facts, termination } = workload;
            let is_empty = facts.handle.populated() == Ok(false);
            *termination = termination.seen(usage, is_empty, now);
            let id = facts.handle.id();
            let has_reservation = facts.reservation > Bytes::ZERO;
            self.observed.push(Observed {
                key: Key { slot, id },
                uid: Uid(id.0.into()),
                // Without pod facts its request is its reservation.
                facts: Pod {
                    priority: facts.priority,
                    memory_request: Amount::counted(facts.reservation.0),
                    grace_seconds: Some(grace_seconds),
                    stats: usage.map(|usage| PodStats { working_set: Some(usage.0), ..PodStats::default() }),
                    ..Pod::default()
                },
                qos: if has_reservation { QosClass::Burstable } else { QosClass::BestEffort },
                terminating: termination.terminating(),
                returns_at_most: match *termination {
                    Termination::Killed(least) => Some(least),
                    _ => None,
                },
                is_empty,
                started: facts.started,
                slices: facts.slices,
                ..Observed::default()
            });
        }
        &self.observed
    }

    /// The workloads of the last observation.
    pub(super) fn observed(&self) -> &[Observed] {
        &self.observed
    }

    /// A slice's reading now; `None` where it has no limit or cannot be read.
    pub(super) fn slice_reading(&self, index: usize) -> Option<MemoryReading> {
        let slice = self.slices.get(index)?.as_ref()?;
        let SliceFigures { max, inactive_file, reclaimable } = slice.figures;
        let usage = slice.handle.usage().ok()?;
        let without = |part: Bytes| max.saturating_sub(usage.saturating_sub(part));
        Some(MemoryReading {
            capacity: max,
            kubelet_available: without(inactive_file),
            mem_available: reclaimable.map(without),
        })
    }

    /// Slices that are there, by index.
    pub(super) fn slices(&self) -> ArrayVec<(usize, &SliceFacts), MAX_SLICES> {
        self.slices.iter().enumerate().filter_map(|(index, slice)| Some((index, slice.as_ref()?))).collect()
    }

    /// The next time at which somebody who was asked to end is killed, who, and the plan that asked.
    pub(super) fn next_overdue(&self) -> Option<(MonotonicNs, Key, u64)> {
        let asked = self.iter().filter_map(|(slot, workload)| match workload.termination {
            Termination::Asked(until, plan) => Some((until, Key { slot, id: workload.facts.handle.id() }, plan)),
            _ => None,
        });
        asked.min_by_key(|(until, ..)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_node::cgroup::Root;
    use std::fs;
    use std::path::Path;

    const NOW: MonotonicNs = MonotonicNs(50);

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
    fn usage_is_without_page_cache_that_goes_first_and_leaving_ones_are_terminating() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let mut table = Table::new();
        let one = facts(tree.path(), "one", 1000, 300);
        let id = one.handle.id();
        table.take(Update::Workload(0, one));
        assert_eq!(table.observe(0, NOW)[0].working_set(), Some(Bytes(700)));
        for (termination, is_stuck, is_graceful, until) in [
            (Termination::Asked(MonotonicNs(9), 4), false, true, Some(MonotonicNs(9))),
            (Termination::Killed(Bytes(700)), false, false, None),
            (Termination::Stuck(Bytes(700)), true, false, None),
            (Termination::Refused(MonotonicNs(NOW.0 + 1)), true, false, None),
        ] {
            table.set_termination(id, termination);
            assert_eq!(table.observe(0, NOW)[0].terminating, Some(Terminating { is_stuck, is_graceful, until }));
        }
        table.set_termination(id, Termination::Asked(MonotonicNs(9), 4));
        assert_eq!(table.next_overdue(), Some((MonotonicNs(9), Key { slot: 0, id }, 4)));
    }

    #[test]
    fn a_victim_gives_back_no_more_than_it_held_at_its_kill() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let mut table = Table::new();
        let one = facts(tree.path(), "one", 1000, 300);
        let id = one.handle.id();
        table.take(Update::Workload(0, one));
        table.set_termination(id, Termination::Killed(Bytes(700)));
        // What came after the kill is another one's, also where that takes the place of what the victim gave back.
        for (current, held) in [("1000", 700), ("5000", 700), ("400", 100), ("1000", 100)] {
            fs::write(tree.path().join("one/memory.current"), current).expect("writable");
            let least = table.observe(0, NOW)[0].returns_at_most.expect("it was killed");
            let used = table.observe(0, NOW)[0].working_set().expect("it is read");
            assert_eq!(least.min(used), Bytes(held), "{current}");
        }
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
        assert!(table.observe(0, NOW)[0].is_empty);
        table.set_termination(id, Termination::Asked(MonotonicNs(9), 4));
        let observed = table.observe(0, NOW)[0];
        assert!(observed.terminating.is_some_and(|terminating| terminating.is_graceful));
        assert!(observed.is_empty, "what is left is not coming back");
        table.set_termination(id, Termination::Stays);
        fs::write(&events, "populated 1\n").expect("writable");
        assert!(!table.observe(0, NOW)[0].is_empty, "it was started again");
    }

    #[test]
    fn what_could_not_be_ended_is_left_alone_until_that_changed() {
        let stuck = |mib| Termination::Stuck(Bytes::mib(mib));
        let killed = |mib| Termination::Killed(Bytes::mib(mib));
        for (before, usage, empty, after) in [
            (stuck(100), Some(110), false, stuck(100)),
            (stuck(100), Some(60), false, stuck(60)),
            (stuck(100), None, false, stuck(100)),
            (stuck(60), Some(76), false, stuck(60)),
            (stuck(60), Some(77), false, Termination::Stays),
            (stuck(60), Some(60), true, Termination::Stays),
            (
                Termination::Refused(MonotonicNs(NOW.0 + 1)),
                Some(1),
                false,
                Termination::Refused(MonotonicNs(NOW.0 + 1)),
            ),
            (Termination::Refused(NOW), Some(1), false, Termination::Stays),
            (killed(60), Some(1000), false, killed(60)),
            (killed(60), Some(50), false, killed(50)),
            (killed(60), None, true, killed(60)),
        ] {
            assert_eq!(before.seen(usage.map(Bytes::mib), empty, NOW), after, "{before:?} {usage:?} {empty}");
        }
    }

    #[test]
    fn news_of_the_same_workload_keep_how_it_leaves_and_a_successor_begins_anew() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let mut table = Table::new();
        let first = facts(tree.path(), "w", 0, 0);
        let id = first.handle.id();
        table.take(Update::Workload(0, first));
        table.set_termination(id, Termination::Killed(Bytes(1)));
        assert!(table.take(Update::Workload(0, facts(tree.path(), "w", 1, 0))).is_some());
        assert_eq!(
            table.get(Key { slot: 0, id }).map(|workload| workload.termination),
            Some(Termination::Killed(Bytes(1)))
        );
        let other = facts(tree.path(), "x", 0, 0);
        let other_id = other.handle.id();
        table.take(Update::Workload(0, other));
        assert!(table.get(Key { slot: 0, id }).is_none(), "a successor in the slot is not the one that was meant");
        assert_eq!(
            table.get(Key { slot: 0, id: other_id }).map(|workload| workload.termination),
            Some(Termination::Stays)
        );
        assert!(table.take(Update::Gone(0)).is_some());
        assert!(table.observe(0, NOW).is_empty());
    }
}
