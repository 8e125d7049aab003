//! The workloads and slices by slot, as the inventory thread last sent them, in storage made beforehand.

use std::sync::Arc;

use arrayvec::ArrayVec;
use plimsoll_node::cgroup::{Handle, PageCache};
use plimsoll_policy::kubelet::{Amount, Pod, PodStats, QosClass};
use plimsoll_policy::room::bring_in;
use plimsoll_policy::{Key, MemoryReading, SliceSet, Terminating, Uid};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

use crate::termination::of_deletion;
use crate::{Facts, PodStorage, SliceFacts, SliceFigures, Termination, Update};

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
    /// What it takes of disks, if it is a pod and that was measured.
    pub storage: Option<Arc<PodStorage>>,
}

/// All workloads and slices.
#[derive(Debug)]
pub struct Table {
    /// By slot, up to the last one that was ever used.
    workloads: Vec<Option<Workload>>,
    slots: usize,
    slices: [Option<SliceFacts>; SliceSet::MAX_SLICES],
    /// Storage for one observation.
    observed: Vec<Observed>,
    /// When that observation was.
    observed_at: MonotonicNs,
}

impl Workload {
    /// Whether it may be frozen while others are decided about.
    pub fn may_freeze(&self) -> bool {
        self.facts.pod.is_none_or(|pod| pod.may_freeze())
    }

    /// Nothing of it runs, and this process does not end it.
    pub(crate) fn has_ended(&self) -> bool {
        self.termination.terminating().is_none() && self.facts.handle.populated() == Ok(false)
    }

    /// How it ends, by this process or because it was deleted.
    pub(crate) fn terminating(&self, now: MonotonicNs) -> Option<Terminating> {
        self.termination.terminating().or_else(|| of_deletion(self.facts.pod.as_ref(), now))
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
            memory_request: Amount::bytes(facts.reservation),
            grace_seconds: Some(grace_seconds),
            stats,
            ..Pod::default()
        },
        qos: if request > Bytes::ZERO { QosClass::Burstable } else { QosClass::BestEffort },
        ..Observed::default()
    }
}

/// What a pod was promised.
fn of_pod(facts: &Facts, pod: crate::Pod, stats: Option<PodStats<'static>>) -> Observed {
    Observed {
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
    }
}

impl Table {
    /// An empty table with all storage that it will use for so many workloads, [`SLOTS`] at most.
    pub fn with_slots(slots: usize) -> Self {
        let slots = slots.min(SLOTS);
        Self {
            workloads: Vec::with_capacity(slots),
            slots,
            slices: [const { None }; SliceSet::MAX_SLICES],
            observed: Vec::with_capacity(slots),
            observed_at: MonotonicNs(0),
        }
    }

    /// The most workloads that it has room for.
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// No slot at or above this one was ever used.
    pub const fn end(&self) -> usize {
        self.workloads.len()
    }

    /// Brings the storage for slots below `slots` in, before there are workloads in them.
    pub fn bring_in(&mut self, slots: usize) {
        bring_in(&mut self.workloads, slots);
        bring_in(&mut self.observed, slots);
    }

    /// Takes an update in, and gives back the handle that it replaces.
    pub fn take(&mut self, update: Update) -> Option<Arc<Handle>> {
        match update {
            Update::Workload(slot, mut facts) => {
                let slot = slot as usize;
                if slot < self.slots && self.workloads.len() <= slot {
                    self.workloads.resize_with(slot + 1, || None);
                }
                let place = self.workloads.get_mut(slot)?;
                let (mut termination, mut moved, mut storage) = (Termination::Stays, Bytes::ZERO, None);
                if let Some(old) = place.as_mut().filter(|old| old.facts.handle.id() == facts.handle.id()) {
                    (termination, storage) = (old.termination, old.storage.take());
                    if !facts.is_cache_read {
                        (facts.cache, moved) = (old.facts.cache, old.moved);
                    }
                }
                let workload = Workload { facts, termination, moved, storage };
                place.replace(workload).map(|old| old.facts.handle)
            }
            Update::Gone(slot) => self.workloads.get_mut(slot as usize)?.take().map(|old| old.facts.handle),
            // Not of this table.
            Update::Mark(..) => None,
            Update::Storage(key, storage) => {
                let place = self.workloads.get_mut(key.slot as usize)?.as_mut();
                if let Some(workload) = place.filter(|workload| workload.facts.handle.id() == key.id) {
                    workload.storage = storage;
                }
                None
            }
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
        let Some((_, workload)) = self.iter_mut().find(|(_, workload)| workload.facts.handle.id() == id) else {
            return;
        };
        workload.termination = termination;
        let pod = workload.facts.pod;
        if let Some(observed) = self.observed.iter_mut().find(|observed| observed.key.id == id) {
            observed.terminating = termination.terminating().or_else(|| of_deletion(pod.as_ref(), self.observed_at));
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
        (0..).zip(&self.workloads).filter_map(|(slot, place)| Some((slot, place.as_ref()?)))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Workload)> {
        (0..).zip(&mut self.workloads).filter_map(|(slot, place)| Some((slot, place.as_mut()?)))
    }

    /// Reads every workload's usage, and its number of tasks where it `counts_tasks`. `grace_seconds` is the grace that each
    /// asks for which is no pod.
    pub fn observe(&mut self, grace_seconds: i64, counts_tasks: bool, now: MonotonicNs) -> &[Observed] {
        self.observed.clear();
        self.observed_at = now;
        for (slot, place) in (0..).zip(&mut self.workloads) {
            let Some(workload) = place else { continue };
            let Workload { facts, termination, moved, storage: _ } = workload;
            let PageCache { charged: before, inactive_file, .. } = facts.cache;
            let charged = facts.handle.usage().ok();
            *moved = Bytes(charged.map_or(0, |now| now.0.abs_diff(before.0)));
            let usage = charged.map(|now| now.saturating_sub(inactive_file));
            let is_empty = facts.handle.populated() == Ok(false);
            *termination = termination.seen(usage, is_empty, now);
            let id = facts.handle.id();
            let processes = if counts_tasks { facts.handle.tasks().ok() } else { None };
            let of_usage = |usage: Bytes| PodStats { working_set: Some(usage.0), processes, ..PodStats::default() };
            let stats = usage.map(of_usage);
            let promised = match facts.pod {
                Some(pod) => of_pod(facts, pod, stats),
                None => of_cgroup(facts, stats, grace_seconds),
            };
            self.observed.push(Observed {
                key: Key { slot, id },
                terminating: termination.terminating().or_else(|| of_deletion(facts.pod.as_ref(), now)),
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

mod storage;
pub use storage::Unobserved;

#[cfg(test)]
mod tests;
