//! The workloads and slices by slot, as the inventory thread last sent them, in storage made beforehand.

use std::sync::Arc;

use arrayvec::ArrayVec;
use plimsoll_node::cgroup::{Handle, PageCache};
use plimsoll_policy::kubelet::{Amount, Pod, PodStats, QosClass};
use plimsoll_policy::{Key, MemoryReading, SliceSet, Uid};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

use crate::{Facts, SliceFacts, SliceFigures, Termination, Update};

/// The most workloads that are watched at a time.
pub const SLOTS: usize = 4096;

/// A workload as the policy takes it.
pub type Observed = plimsoll_policy::Workload<'static>;

/// One workload.
#[derive(Debug)]
pub struct Workload {
    /// What the inventory thread sent.
    pub facts: Facts,
    /// Whether and how it is ending.
    pub termination: Termination,
    /// By how much its charges differed at the last observation from what they were when its page cache was read: some of
    /// it may be page cache.
    pub moved: Bytes,
}

/// All workloads and slices.
#[derive(Debug)]
pub struct Table {
    workloads: Vec<Option<Workload>>,
    /// No slot at or above this one was ever used.
    end: usize,
    slices: [Option<SliceFacts>; SliceSet::MAX_SLICES],
    /// Storage for one observation.
    observed: Vec<Observed>,
}

impl Workload {
    /// Whether it may be frozen while others are decided about.
    pub fn may_freeze(&self) -> bool {
        self.facts.pod.is_none_or(|pod| pod.may_freeze())
    }

    /// What it uses now, without the page cache that reclaim takes first; absent where that cannot be read.
    pub fn usage(&self) -> Option<Bytes> {
        self.facts.handle.usage().ok().map(|usage| usage.saturating_sub(self.facts.cache.inactive_file))
    }
}

/// What a cgroup was promised that is no pod's: its request is its reservation. `grace_seconds` is the grace that it asks
/// for.
fn of_cgroup(facts: &Facts, stats: Option<PodStats<'static>>, grace_seconds: i64) -> Observed {
    let request = facts.owner.map_or(facts.reservation, |owner| owner.request);
    Observed {
        uid: Uid(facts.handle.id().0.into()),
        owner: facts.owner,
        facts: Pod {
            priority: facts.priority,
            memory_request: Amount::counted(facts.reservation.0),
            grace_seconds: Some(grace_seconds),
            stats,
            ..Pod::default()
        },
        qos: if request > Bytes::ZERO { QosClass::Burstable } else { QosClass::BestEffort },
        ..Observed::default()
    }
}

impl Table {
    /// An empty table with all storage that it will use for so many workloads, [`SLOTS`] at most.
    pub fn with_slots(slots: usize) -> Self {
        let slots = slots.min(SLOTS);
        let mut workloads = Vec::with_capacity(slots);
        workloads.resize_with(slots, || None);
        Self { workloads, end: 0, slices: [const { None }; SliceSet::MAX_SLICES], observed: Vec::with_capacity(slots) }
    }

    /// The most workloads that it has room for.
    pub fn slots(&self) -> usize {
        self.workloads.len()
    }

    /// Takes an update in, and gives back the handle that it replaces.
    pub fn take(&mut self, update: Update) -> Option<Arc<Handle>> {
        match update {
            Update::Workload(slot, mut facts) => {
                let slot = slot as usize;
                let place = self.workloads.get_mut(slot)?;
                self.end = self.end.max(slot + 1);
                let (mut termination, mut moved) = (Termination::Stays, Bytes::ZERO);
                if let Some(old) = place.as_ref().filter(|old| old.facts.handle.id() == facts.handle.id()) {
                    termination = old.termination;
                    if !facts.is_cache_read {
                        (facts.cache, moved) = (old.facts.cache, old.moved);
                    }
                }
                let workload = Workload { facts, termination, moved };
                place.replace(workload).map(|old| old.facts.handle)
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

    /// The workload in a slot, if it still is the one with the key's id.
    pub fn get(&self, key: Key) -> Option<&Workload> {
        self.workloads.get(key.slot as usize)?.as_ref().filter(|workload| workload.facts.handle.id() == key.id)
    }

    /// Records how a workload ends, also in the observation that slices are decided on next.
    pub fn set_termination(&mut self, id: CgroupId, termination: Termination) {
        if let Some(observed) = self.observed.iter_mut().find(|observed| observed.key.id == id) {
            observed.terminating = termination.terminating();
        }
        if let Some((_, workload)) = self.iter_mut().find(|(_, workload)| workload.facts.handle.id() == id) {
            workload.termination = termination;
        }
    }

    /// No workload is killed any more because its grace is over: each that was asked to end is decided about anew.
    pub fn forget_graces(&mut self) {
        for (_, workload) in self.iter_mut() {
            if let Termination::Asked(..) = workload.termination {
                workload.termination = Termination::Stays;
            }
        }
    }

    /// The processes of a workload that is killed were sent the signal: what it uses now is what comes back.
    pub fn signalled(&mut self, id: CgroupId) {
        let mut workloads = self.iter_mut().map(|(_, workload)| workload);
        if let Some(workload) = workloads.find(|workload| workload.facts.handle.id() == id)
            && workload.termination == Termination::Killing
        {
            workload.termination = Termination::Killed(workload.usage().unwrap_or(Bytes(u64::MAX)));
        }
    }

    /// The workload that one of these cgroups is.
    pub fn of(&self, lineage: &[Option<CgroupId>]) -> Option<Key> {
        let found = self.iter().find(|(_, workload)| lineage.contains(&Some(workload.facts.handle.id())));
        found.map(|(slot, workload)| Key { slot, id: workload.facts.handle.id() })
    }

    /// Workloads by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Workload)> {
        (0..).zip(&self.workloads[..self.end]).filter_map(|(slot, place)| Some((slot, place.as_ref()?)))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Workload)> {
        (0..).zip(&mut self.workloads[..self.end]).filter_map(|(slot, place)| Some((slot, place.as_mut()?)))
    }

    /// Reads every workload's usage. `grace_seconds` is the grace that each asks for which is no pod.
    pub fn observe(&mut self, grace_seconds: i64, now: MonotonicNs) -> &[Observed] {
        self.observed.clear();
        for (slot, place) in (0..).zip(&mut self.workloads[..self.end]) {
            let Some(workload) = place else { continue };
            let Workload { facts, termination, moved } = workload;
            let PageCache { charged: before, inactive_file, .. } = facts.cache;
            let charged = facts.handle.usage().ok();
            *moved = Bytes(charged.map_or(0, |now| now.0.abs_diff(before.0)));
            let usage = charged.map(|now| now.saturating_sub(inactive_file));
            let is_empty = facts.handle.populated() == Ok(false);
            *termination = termination.seen(usage, is_empty, now);
            let id = facts.handle.id();
            let stats = usage.map(|usage| PodStats { working_set: Some(usage.0), ..PodStats::default() });
            let promised = match facts.pod {
                Some(pod) => Observed {
                    uid: pod.uid,
                    facts: Pod {
                        priority: facts.priority,
                        memory_request: Amount::counted(pod.memory_request.0),
                        grace_seconds: pod.grace_seconds.map(i64::from),
                        stats,
                        ..Pod::default()
                    },
                    qos: pod.qos,
                    protected: pod.protected,
                    daemon_set: pod.daemon_set,
                    ..Observed::default()
                },
                None => of_cgroup(facts, stats, grace_seconds),
            };
            self.observed.push(Observed {
                key: Key { slot, id },
                terminating: termination.terminating(),
                returns_at_most: match *termination {
                    Termination::Killed(least) => Some(least),
                    _ => None,
                },
                settled: charged.filter(|now| *now > before).map(|_| before.saturating_sub(inactive_file)),
                is_empty,
                started: facts.started,
                slices: facts.slices,
                ..promised
            });
        }
        &self.observed
    }

    /// Takes a cgroup's page cache in as it was just read: a workload's, and a slice's.
    pub fn set_cache(&mut self, id: CgroupId, cache: PageCache) {
        if let Some((_, workload)) = self.iter_mut().find(|(_, workload)| workload.facts.handle.id() == id) {
            workload.facts.cache = cache;
        }
        for slice in self.slices.iter_mut().flatten().filter(|slice| slice.handle.id() == id) {
            slice.figures.cache = cache;
        }
    }

    /// Marks a workload of the last observation: it is frozen and grows.
    pub fn set_grows_while_frozen(&mut self, id: CgroupId) {
        if let Some(observed) = self.observed.iter_mut().find(|observed| observed.key.id == id) {
            observed.grows_while_frozen = true;
        }
    }

    /// The workloads of the last observation.
    pub fn observed(&self) -> &[Observed] {
        &self.observed
    }

    /// A slice's reading now; `None` where it has no limit or cannot be read.
    pub fn slice_reading(&self, index: usize) -> Option<MemoryReading> {
        let slice = self.slice(index)?;
        let SliceFigures { max, cache: PageCache { inactive_file, reclaimable, .. } } = slice.figures;
        let usage = slice.handle.usage().ok()?;
        let without = |part: Bytes| max.saturating_sub(usage.saturating_sub(part));
        Some(MemoryReading {
            capacity: max,
            kubelet_available: without(inactive_file),
            mem_available: reclaimable.map(without),
        })
    }

    /// A slice that exists and has a limit.
    pub fn slice(&self, index: usize) -> Option<&SliceFacts> {
        self.slices.get(index)?.as_ref()
    }

    /// Slices that exist and have a limit, by index.
    pub fn slices(&self) -> ArrayVec<(usize, &SliceFacts), { SliceSet::MAX_SLICES }> {
        self.slices.iter().enumerate().filter_map(|(index, slice)| Some((index, slice.as_ref()?))).collect()
    }

    /// When the grace of a workload that was asked to end is over next, which one, and the plan that asked.
    pub fn next_overdue(&self) -> Option<(MonotonicNs, Key, u64)> {
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
    use plimsoll_policy::Terminating;
    use std::fs;
    use std::path::Path;

    const NOW: MonotonicNs = MonotonicNs(50);

    fn facts(tree: &Path, name: &str, usage: u64, inactive_file: u64) -> Facts {
        let folder = tree.join(name);
        fs::create_dir_all(&folder).expect("writable");
        let text = usage.to_string();
        for (file, text) in [("cgroup.events", "populated 1\n"), ("cgroup.procs", ""), ("memory.current", &text)] {
            fs::write(folder.join(file), text).expect("writable");
        }
        let root = Root::open(tree).expect("it is there");
        let handle =
            plimsoll_node::cgroup::Handle::open(&root, name.as_bytes()).expect("readable").expect("it is there");
        Facts {
            handle: Arc::new(handle),
            owner: None,
            reservation: Bytes::ZERO,
            cache: PageCache { charged: Bytes(usage), inactive_file: Bytes(inactive_file), reclaimable: None },
            is_cache_read: true,
            priority: 0,
            started: MonotonicNs(1),
            slices: SliceSet::NONE,
            pod: None,
        }
    }

    #[test]
    fn a_cgroup_or_one_above_it_is_found() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let mut table = Table::with_slots(8);
        let (a, b) = (facts(tree.path(), "a", 0, 0), facts(tree.path(), "b", 0, 0));
        let (id_a, id_b) = (a.handle.id(), b.handle.id());
        assert!(table.take(Update::Workload(5, a)).is_none());
        table.take(Update::Workload(2, b));
        assert_eq!(table.of(&[Some(id_b), None]), Some(Key { slot: 2, id: id_b }));
        assert_eq!(table.of(&[Some(CgroupId(1)), Some(id_a), None]), Some(Key { slot: 5, id: id_a }));
        assert_eq!(table.of(&[None, Some(CgroupId(1))]), None);
    }

    #[test]
    fn usage_is_without_page_cache_that_reclaim_takes_first_and_ending_workloads_are_terminating() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let mut table = Table::with_slots(8);
        let one = facts(tree.path(), "one", 1000, 300);
        let id = one.handle.id();
        table.take(Update::Workload(0, one));
        assert_eq!(table.observe(0, NOW)[0].working_set(), Some(Bytes(700)));
        for (termination, is_stuck, is_graceful, until) in [
            (Termination::Asked(MonotonicNs(9), 4), false, true, Some(MonotonicNs(9))),
            (Termination::Killing, false, false, None),
            (Termination::Killed(Bytes(700)), false, false, None),
            (Termination::Stuck(Bytes(700)), true, false, None),
            (Termination::Refused(MonotonicNs(NOW.0 + 1)), true, false, None),
        ] {
            table.set_termination(id, termination);
            let is_refused = matches!(termination, Termination::Refused(_));
            let terminating = Terminating { is_stuck, is_refused, is_graceful, until };
            assert_eq!(table.observe(0, NOW)[0].terminating, Some(terminating));
        }
        table.set_termination(id, Termination::Asked(MonotonicNs(9), 4));
        assert_eq!(table.next_overdue(), Some((MonotonicNs(9), Key { slot: 0, id }, 4)));
    }

    #[test]
    fn a_victim_gives_back_no_more_than_it_held_at_its_kill() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let mut table = Table::with_slots(8);
        let one = facts(tree.path(), "one", 1000, 300);
        let id = one.handle.id();
        table.take(Update::Workload(0, one));
        table.set_termination(id, Termination::Killing);
        fs::write(tree.path().join("one/memory.current"), "2000").expect("writable");
        assert_eq!(table.observe(0, NOW)[0].returns_at_most, None, "it was not sent the signal, and may take more");
        fs::write(tree.path().join("one/memory.current"), "1000").expect("writable");
        table.signalled(id);
        // Memory that is charged after the kill is not freed by it, also where it replaces what the victim gave back.
        for (current, held) in [("1000", 700), ("5000", 700), ("400", 100), ("1000", 100)] {
            fs::write(tree.path().join("one/memory.current"), current).expect("writable");
            let least = table.observe(0, NOW)[0].returns_at_most.expect("it was killed");
            let used = table.observe(0, NOW)[0].working_set().expect("it is read");
            assert_eq!(least.min(used), Bytes(held), "{current}");
        }
    }

    #[test]
    fn what_is_charged_to_an_empty_cgroup_does_not_come_back() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let mut table = Table::with_slots(8);
        // Charged still: files in tmpfs outlive the process that wrote them.
        let one = facts(tree.path(), "one", 1000, 300);
        let (id, events) = (one.handle.id(), tree.path().join("one/cgroup.events"));
        table.take(Update::Workload(0, one));
        fs::write(&events, "populated 0\n").expect("writable");
        table.set_termination(id, Termination::Asked(MonotonicNs(9), 4));
        let observed = table.observe(0, NOW)[0];
        assert!(observed.is_empty, "what stays charged is not coming back");
        assert_eq!(observed.terminating, None, "it has ended");
        fs::write(&events, "populated 1\n").expect("writable");
        assert!(!table.observe(0, NOW)[0].is_empty, "it was started again");
    }

    #[test]
    fn an_update_of_the_same_workload_keeps_its_termination_and_a_successor_begins_anew() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let mut table = Table::with_slots(8);
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
        assert!(table.get(Key { slot: 0, id }).is_none(), "a successor in the slot is another workload");
        assert_eq!(
            table.get(Key { slot: 0, id: other_id }).map(|workload| workload.termination),
            Some(Termination::Stays)
        );
        assert!(table.take(Update::Gone(0)).is_some());
        assert!(table.observe(0, NOW).is_empty());
    }
}
