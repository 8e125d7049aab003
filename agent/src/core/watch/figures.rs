//! Figures that a decision rests on, read again before it is taken.
//!
//! What a cgroup uses is read at each sample; its page cache is not: that file makes the kernel add up the parts of all
//! CPUs, so the inventory thread reads it every few seconds. In that time a process can replace page cache by anonymous
//! memory and seem to use nothing, or read a large file and seem to have grown. So below a threshold the decision waits
//! until the page cache of the slices and of the [`LARGEST`] workloads of the scopes that are below was read after the
//! event that led to it; what grew is frozen meanwhile. Those are the victims and the growers, as a rule; the smallest
//! of them are left out ([`LEFT_OUT`]). A victim that was not read is read before it is killed, and killed by the next
//! plan. Counters of the machine that may be off by too much are waited for likewise ([`folding`](super::folding)).
//!
//! Page cache of a slice is read anew without an event, too, where anonymous memory can replace it and so cross the
//! slice's threshold without one: the sooner, the less memory is left until then. Where there is little of it, the event comes
//! before that ([`is_early`](crate::core::thresholds::is_early)), and page cache is read then.
//!
//! While memory is plentiful, workloads whose charges have changed much are read anew from time to time: growth is counted
//! from what they used then, and page cache that was taken for that would hide as much growth, or make for some.
//!
//! The cost is bounded: for decisions no cgroup is read more often than every [`NEW_FOR_NS`] without an event, a worker
//! reads them, and no decision waits for longer than [`PATIENCE`]. Where that worker does not answer within it, older
//! figures count.

use core::time::Duration;
use std::sync::Arc;

use arrayvec::ArrayVec;
use plimsoll_act::{Job, Worker};
use plimsoll_inventory::Observed;
use plimsoll_node::cgroup::Handle;
use plimsoll_policy::{Key, Scope};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

use super::super::inventory::Request;
use super::Watch;
use super::sampling::Sample;
use super::triggers::Trigger;
use crate::core::thresholds::is_uncertain;
use crate::record::Cause;

/// Workloads that are read for one decision: those that are charged most in each scope that is below, as many of each.
const LARGEST: usize = 64;
/// Cgroups whose figures are known to be new, and room for what the worker is to read.
pub(in crate::core) const FIGURES: usize = 2 * LARGEST;
/// From here on, a change of what is charged to a workload has its page cache read. With less than that charged it may be left
/// out of what is read for a decision, within [`LEFT_OUT`].
const MOVED: Bytes = Bytes::mib(4);
/// All workloads that are left out of what is read for a decision have no more than this together: by so much they may seem to
/// have grown, or not to have.
const LEFT_OUT: Bytes = Bytes::mib(16);
/// So many of these at a time, those that changed most.
const MOVED_MOST: usize = 16;
/// A decision waits for no longer than this.
const PATIENCE: Duration = Duration::from_millis(100);
/// Figures that were read count as new for this many nanoseconds, unless an event comes after them. Much longer than a
/// decision waits, so that none waits for what became old during its wait.
const NEW_FOR_NS: u64 = 1_000_000_000;

/// A cgroup whose page cache was requested.
#[derive(Clone, Copy, Debug)]
struct Figure {
    cgroup: CgroupId,
    requested: MonotonicNs,
    is_answered: bool,
}

/// What was read again, and the decision that waits for it.
#[derive(Debug)]
pub(super) struct Figures {
    read: ArrayVec<Figure, FIGURES>,
    /// The last event before the decision that waits; figures that are older than it are read again.
    event: MonotonicNs,
    /// The last event since then: the next decision waits for figures that are newer.
    next_event: MonotonicNs,
    /// Since when a decision waits.
    waits: Option<MonotonicNs>,
    /// What that decision is due to: the samples until then add to it.
    pub(super) waiting: Option<Trigger>,
    /// For how long it does at most.
    patience: Duration,
    /// The table has figures of the worker's that the inventory thread does not know of.
    is_ahead: bool,
    /// The worker did not answer in time, and has not answered since: no decision waits for it.
    is_stuck: bool,
}

impl Figures {
    pub(super) const fn new() -> Self {
        Self {
            read: ArrayVec::new_const(),
            event: MonotonicNs(0),
            next_event: MonotonicNs(0),
            waits: None,
            waiting: None,
            patience: PATIENCE,
            is_ahead: false,
            is_stuck: false,
        }
    }

    /// Whether a decision waits.
    pub(super) const fn is_awaited(&self) -> bool {
        self.waits.is_some()
    }

    /// A decision is due, whether or not it waits already. One that does waits for no more than the event before it began
    /// to.
    fn begin(&mut self) {
        if self.waits.is_none() {
            self.event = self.next_event;
        }
    }

    /// A threshold was crossed.
    pub(super) fn crossed(&mut self, at: MonotonicNs) {
        self.next_event = self.next_event.max(at);
    }

    /// Older figures than this are read again.
    fn oldest(&self, now: MonotonicNs) -> MonotonicNs {
        let by_age = self.waits.unwrap_or(now).0.saturating_sub(NEW_FOR_NS);
        self.event.max(MonotonicNs(by_age))
    }

    fn is_new(&self, cgroup: CgroupId, now: MonotonicNs) -> bool {
        let oldest = self.oldest(now);
        self.read.iter().any(|figure| figure.cgroup == cgroup && figure.is_answered && figure.requested >= oldest)
    }

    /// Requests a cgroup's page cache, where that is not done. False: there is no room.
    fn request(&mut self, handle: &Arc<Handle>, worker: &mut Worker, now: MonotonicNs) -> bool {
        let (cgroup, oldest) = (handle.id(), self.oldest(now));
        if self.read.iter().any(|figure| figure.cgroup == cgroup && figure.requested >= oldest) {
            return true;
        }
        self.read.retain(|figure| figure.cgroup != cgroup && (!figure.is_answered || figure.requested >= oldest));
        if self.read.is_full() || worker.submit(Job::ReadCache(Arc::clone(handle), now)).is_err() {
            return false;
        }
        self.read.push(Figure { cgroup, requested: now, is_answered: false });
        true
    }

    /// The worker has read a cgroup, as was requested at that time. Gives whether that was the last one that is waited for.
    pub(super) fn answered(&mut self, cgroup: CgroupId, requested: MonotonicNs) -> bool {
        self.is_stuck = false;
        // Outside of a shortage, what is charged shows when a cgroup is to be read again.
        self.is_ahead |= self.waits.is_some();
        // The answer to an older request, which was outdated by an event meanwhile, may be older than that event.
        let answers = |figure: &&mut Figure| figure.cgroup == cgroup && figure.requested == requested;
        if let Some(figure) = self.read.iter_mut().find(answers) {
            figure.is_answered = true;
        }
        !self.is_pending()
    }

    /// A cgroup's figure is not needed any more, or the inventory thread has sent an older one.
    pub(super) fn outdate(&mut self, cgroup: CgroupId) {
        self.read.retain(|figure| figure.cgroup != cgroup || !figure.is_answered);
    }

    /// Whether the worker has not answered yet.
    pub(super) fn is_pending(&self) -> bool {
        self.read.iter().any(|figure| !figure.is_answered)
    }

    /// No decision waits any more. What was read stays known for as long as it is new.
    fn end_wait(&mut self) {
        self.waits = None;
        if self.is_stuck {
            self.read.retain(|figure| figure.is_answered);
        }
    }

    #[cfg(test)]
    pub(super) const fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    #[cfg(test)]
    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }
}

impl Watch {
    /// Whether the decision on a sample has to wait for newer figures, which are then requested.
    pub(super) fn awaits_figures(&mut self, sample: &Sample, trigger: &Trigger) -> bool {
        let now = sample.completed;
        self.figures.begin();
        let is_needed = sample.is_below || trigger.crossed.is_some();
        self.fold_counters(sample, is_needed);
        let Some(enforcer) = self.enforcement.enforcer.as_mut().filter(|_| is_needed) else {
            self.figures.end_wait();
            // That thread sends what differs from what it read itself: a figure that has come back to that would stay
            // wrong.
            if std::mem::take(&mut self.figures.is_ahead) {
                self.workloads.handle.request(Request::RefreshAll);
            }
            return false;
        };
        let since = *self.figures.waits.get_or_insert(now);
        let table = &self.workloads.table;
        let charged = |workload: &Observed| {
            let cache = table.get(workload.key).map_or(Bytes::ZERO, |workload| workload.facts.cache.inactive_file);
            workload.working_set().unwrap_or(Bytes::ZERO).saturating_add(cache)
        };
        let mut below = self.scopes.below(&self.engine.policy);
        if below.is_empty() {
            below.push(Scope::Node);
        }
        let of_each = LARGEST / below.len();
        let workloads = below.iter().flat_map(|scope| {
            let in_scope = table.observed().iter().filter(|workload| workload.is_in(*scope));
            without_smallest(largest(in_scope, of_each, charged))
        });
        let workloads = workloads.filter_map(|(_, key)| Some(&table.get(key)?.facts.handle));
        let slices = table.slices();
        for handle in slices.iter().map(|(_, slice)| &slice.handle).chain(workloads) {
            if !self.figures.request(handle, &mut enforcer.figures, now) {
                break;
            }
        }
        if now.since(since) >= self.figures.patience {
            self.figures.is_stuck |= self.figures.is_pending();
            self.folding.give_up();
        }
        if self.figures.is_pending() && !self.figures.is_stuck || self.folding.is_awaited() {
            self.schedule.sample_by(since.after(self.figures.patience));
            return true;
        }
        self.figures.end_wait();
        false
    }

    /// Requests that the kernel's counters are folded in, where they may be off by so much that the sample rests on it.
    fn fold_counters(&mut self, sample: &Sample, is_needed: bool) {
        let policy = &self.engine.policy;
        let memory = sample.machine.decided_by(policy.eviction_policy);
        if let Some(enforcer) = &mut self.enforcement.enforcer
            && is_uncertain(&policy.thresholds, &memory, self.arming.machine())
        {
            self.folding.request(self.figures.event, is_needed, &mut enforcer.fold, sample.completed);
        }
    }

    /// Reads the page cache of slices anew where that is due. While the worker reads something already, or there is none,
    /// they are sampled by the figures there are.
    pub(super) fn reread_slices(&mut self, now: MonotonicNs, trigger: &mut Trigger) {
        let is_idle = !self.figures.is_pending();
        while let Some(index) = self.scopes.take_reread(now) {
            let slice = self.workloads.table.slice(index);
            if let (Some(slice), Some(enforcer), true) = (slice, &mut self.enforcement.enforcer, is_idle) {
                self.figures.outdate(slice.handle.id());
                self.figures.request(&slice.handle, &mut enforcer.figures, now);
            } else {
                trigger.because(Cause::FollowUp);
            }
        }
    }

    /// Reads the page cache of workloads anew whose charges have changed much since it was read.
    pub(super) fn reread_moved(&mut self, now: MonotonicNs) {
        let Some(enforcer) = &mut self.enforcement.enforcer else { return };
        let table = &self.workloads.table;
        let moved = |workload: &Observed| table.get(workload.key).map_or(Bytes::ZERO, |workload| workload.moved);
        let most = largest(table.observed().iter(), MOVED_MOST, moved);
        for (_, key) in most.into_iter().take_while(|(moved, _)| *moved >= MOVED) {
            let Some(workload) = table.get(key) else { continue };
            self.figures.request(&workload.facts.handle, &mut enforcer.figures, now);
        }
    }

    /// Whether a victim's figures are as new as the others'. Otherwise they are requested, where the worker answers, and
    /// the victim is left to the next plan.
    pub(super) fn has_new_figures(&mut self, handle: &Arc<Handle>, now: MonotonicNs) -> bool {
        let Some(enforcer) = &mut self.enforcement.enforcer else { return true };
        if self.figures.is_stuck || self.figures.is_new(handle.id(), now) {
            return true;
        }
        if self.figures.read.is_full() && !self.figures.is_pending() {
            // The oldest, and no more than one for each decision: what else was read for victims stays.
            self.figures.read.remove(0);
        }
        // Without room it is requested when what is pending was read.
        let is_left = self.figures.request(handle, &mut enforcer.figures, now) || self.figures.is_pending();
        if is_left {
            // The next decision goes on with this one: events between the two make no figure old.
            self.figures.waits.get_or_insert(now);
        }
        !is_left
    }
}

/// The `most` workloads that have most of something.
fn largest<'a>(
    workloads: impl Iterator<Item = &'a Observed>,
    most: usize,
    of: impl Fn(&Observed) -> Bytes,
) -> ArrayVec<(Bytes, Key), LARGEST> {
    let mut largest = ArrayVec::<(Bytes, Key), LARGEST>::new();
    for workload in workloads {
        let amount = of(workload);
        let place = largest.partition_point(|(other, _)| *other >= amount);
        if place < most {
            if largest.len() == most {
                largest.pop();
            }
            largest.insert(place, (amount, workload.key));
        }
    }
    largest
}

/// Leaves out the smallest, which are the last: a victim is read before it is killed.
fn without_smallest(mut workloads: ArrayVec<(Bytes, Key), LARGEST>) -> ArrayVec<(Bytes, Key), LARGEST> {
    let mut left_out = Bytes::ZERO;
    while let Some((charged, _)) = workloads.last() {
        left_out = left_out.saturating_add(*charged);
        if *charged >= MOVED || left_out > LEFT_OUT {
            break;
        }
        workloads.pop();
    }
    workloads
}

#[cfg(test)]
mod tests;
