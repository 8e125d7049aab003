//! Figures that a decision rests on, read again before it is taken.
//!
//! What a cgroup uses is read at each sample; its page cache is not: that file makes the kernel add up the parts of all
//! CPUs, so the inventory thread reads it every few seconds. In that time a process can replace page cache by anonymous
//! memory and seem to use nothing, or read a large file and seem to have grown. So below a threshold the decision waits
//! until the page cache of the slices and of the [`LARGEST`] workloads was read after the event that led to it; what grew
//! is frozen meanwhile. Those are the victims and the growers, as a rule. A victim that is smaller is read before it is
//! killed, and killed by the next plan.
//!
//! The cost is bounded: no cgroup is read more often than every [`NEW_FOR_NS`] without an event, a worker reads them, and
//! no decision waits for longer than [`PATIENCE`]. Where that worker does not answer within it, older figures count.

use core::time::Duration;
use std::sync::Arc;

use arrayvec::ArrayVec;
use plimsoll_act::{Job, Worker};
use plimsoll_inventory::{Observed, Table};
use plimsoll_node::cgroup::Handle;
use plimsoll_policy::Key;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

use super::Watch;
use super::sampling::Sample;
use super::triggers::Trigger;

/// Workloads that are read for one decision, those that are charged most.
const LARGEST: usize = 64;
/// Cgroups whose figures are known to be new, and room for what the worker is to read.
pub(in crate::core) const FIGURES: usize = 2 * LARGEST;
/// A decision waits for no longer than this.
const PATIENCE: Duration = Duration::from_millis(100);
/// While the worker reads, how often its answers are polled for.
const PACE: Duration = Duration::from_millis(1);
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
    /// The last event.
    event: MonotonicNs,
    /// Since when a decision waits.
    waits: Option<MonotonicNs>,
    /// What that decision is due to: the samples until then add to it.
    pub(super) waiting: Option<Trigger>,
    /// For how long it does at most.
    patience: Duration,
    /// The worker did not answer in time, and has not answered since: no decision waits for it.
    is_stuck: bool,
}

impl Figures {
    pub(super) const fn new() -> Self {
        Self {
            read: ArrayVec::new_const(),
            event: MonotonicNs(0),
            waits: None,
            waiting: None,
            patience: PATIENCE,
            is_stuck: false,
        }
    }

    /// Whether a decision waits.
    pub(super) const fn is_awaited(&self) -> bool {
        self.waits.is_some()
    }

    /// A threshold was crossed. A decision that waits already waits for no more than the event before.
    pub(super) fn crossed(&mut self, at: MonotonicNs) {
        if self.waits.is_none() {
            self.event = self.event.max(at);
        }
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
        if self.read.is_full() || worker.submit(Job::ReadCache(Arc::clone(handle))).is_err() {
            return false;
        }
        self.read.push(Figure { cgroup, requested: now, is_answered: false });
        true
    }

    /// The worker has read a cgroup. Gives whether that was the last one that is waited for.
    pub(super) fn answered(&mut self, cgroup: CgroupId) -> bool {
        self.is_stuck = false;
        if let Some(figure) = self.read.iter_mut().find(|figure| figure.cgroup == cgroup) {
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

    /// When answers are polled for.
    pub(super) fn next_due(&self, now: MonotonicNs) -> Option<MonotonicNs> {
        self.waits.map(|_| now.after(PACE))
    }

    /// No decision waits any more. What was read stays known for as long as it is new.
    fn end_wait(&mut self) {
        self.waits = None;
        self.read.retain(|figure| figure.is_answered);
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
        let is_needed = sample.is_below || trigger.crossed.is_some();
        let Some(enforcer) = self.enforcement.enforcer.as_mut().filter(|_| is_needed) else {
            self.figures.end_wait();
            return false;
        };
        let since = *self.figures.waits.get_or_insert(now);
        let table = &self.workloads.table;
        let workloads = largest(table.observed(), table);
        let workloads = workloads.iter().filter_map(|(_, key)| Some(&table.get(*key)?.facts.handle));
        let slices = table.slices();
        for handle in slices.iter().map(|(_, slice)| &slice.handle).chain(workloads) {
            if !self.figures.request(handle, &mut enforcer.figures, now) {
                break;
            }
        }
        self.figures.is_stuck |= now.since(since) >= self.figures.patience;
        if self.figures.is_pending() && !self.figures.is_stuck {
            self.schedule.sample_by(since.after(self.figures.patience));
            self.figures.waiting = Some(*trigger);
            return true;
        }
        self.figures.end_wait();
        false
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

/// The workloads that are charged most, page cache included.
fn largest(observed: &[Observed], table: &Table) -> ArrayVec<(Bytes, Key), LARGEST> {
    let mut largest = ArrayVec::<(Bytes, Key), LARGEST>::new();
    for workload in observed {
        let cache = table.get(workload.key).map_or(Bytes::ZERO, |workload| workload.facts.inactive_file);
        let charged = workload.working_set().unwrap_or(Bytes::ZERO).saturating_add(cache);
        let place = largest.partition_point(|(other, _)| *other >= charged);
        if place < LARGEST {
            if largest.is_full() {
                largest.pop();
            }
            largest.insert(place, (charged, workload.key));
        }
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SLICE, Scene, slice_policy};
    use super::*;
    use crate::record::{Cause, PlanRecord, Record};
    use plimsoll_inventory::{SliceFacts, SliceFigures, Update};
    use plimsoll_node::clock::monotonic;
    use plimsoll_policy::Config as Policy;
    use plimsoll_sense::{
        ArmedThresholds, BrakeMark, Descriptor, Generation, Kind, MAX_DESCRIPTORS, SenseError, Source, WakeList,
    };
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Counts how often it was armed.
    struct Armed(Arc<AtomicU32>);

    impl Source for Armed {
        fn kind(&self) -> Kind {
            Kind::Ebpf
        }

        fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS> {
            ArrayVec::new()
        }

        fn drain(&mut self, _: u32, _: &mut WakeList) -> Result<(), SenseError> {
            Ok(())
        }

        fn arm(&mut self, _: &ArmedThresholds) -> Result<Generation, SenseError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Generation(1))
        }

        fn disarm(&mut self) -> Result<(), SenseError> {
            Ok(())
        }

        fn set_brakes(&mut self, _: &[BrakeMark]) -> Result<(), SenseError> {
            Ok(())
        }
    }

    /// A workload of so many MiB, of which the inventory thread last saw so much as page cache, and so much is now.
    fn joins(scene: &mut Scene, slot: u32, name: &str, mib: u64, seen: u64, now: u64) {
        scene.cgroup(name, mib);
        scene.write(name, "memory.stat", &format!("inactive_file {}\n", now << 20));
        scene.joins_with_cache(slot, name, Bytes::mib(seen));
    }

    #[test]
    fn a_process_that_replaced_page_cache_by_anonymous_memory_is_the_victim() {
        let mut scene = Scene::new(10);
        joins(&mut scene, 0, "replaced", 70, 70, 0);
        joins(&mut scene, 1, "bystander", 20, 0, 0);
        scene.uses("slice", SLICE - 1);
        scene.sample();
        assert_eq!(
            (scene.text("replaced", "cgroup.kill"), scene.text("bystander", "cgroup.kill")),
            ("1".into(), String::new())
        );
    }

    #[test]
    fn a_workload_that_has_read_much_is_no_victim_for_its_page_cache() {
        let mut scene = Scene::new(10);
        joins(&mut scene, 0, "backup", 50, 0, 49);
        joins(&mut scene, 1, "hog", 49, 0, 0);
        scene.uses("slice", SLICE - 1);
        scene.sample();
        assert_eq!(
            (scene.text("backup", "cgroup.kill"), scene.text("hog", "cgroup.kill")),
            (String::new(), "1".into())
        );
    }

    #[test]
    fn page_cache_of_the_slice_itself_is_no_reason_to_evict() {
        let mut scene = Scene::new(10);
        scene.write(
            "slice",
            "memory.stat",
            &format!("inactive_file {0}\nactive_file 0\nslab_reclaimable 0\n", 60 << 20),
        );
        joins(&mut scene, 0, "backup", 70, 0, 60);
        scene.uses("slice", SLICE - 1);
        scene.sample();
        assert_eq!(scene.text("backup", "cgroup.kill"), "");
    }

    #[test]
    fn an_older_figure_of_a_slice_that_comes_late_is_read_again() {
        let mut scene = Scene::with(Policy { evict_for_unattributed: true, ..slice_policy(10) });
        scene.write(
            "slice",
            "memory.stat",
            &format!("inactive_file {0}\nactive_file 0\nslab_reclaimable 0\n", 5 << 20),
        );
        joins(&mut scene, 0, "hog", 6, 0, 0);
        joins(&mut scene, 1, "bystander", 5, 0, 0);
        scene.uses("slice", SLICE - 1);
        scene.sample();
        // As the inventory thread read it before: as if the victim were not enough.
        let (handle, max) = (scene.open("slice"), Bytes::mib(SLICE));
        let figures = SliceFigures { max, inactive_file: Bytes::ZERO, reclaimable: Some(Bytes::ZERO) };
        scene.update(Update::Slice(0, Some(SliceFacts { handle, figures })));
        scene.sample();
        assert_eq!(
            (scene.text("hog", "cgroup.kill"), scene.text("bystander", "cgroup.kill")),
            ("1".into(), String::new())
        );
    }

    #[test]
    fn a_decision_that_waited_knows_the_crossing_and_arms_the_threshold_again() {
        for is_below in [true, false] {
            let arms = Arc::new(AtomicU32::new(0));
            let mut scene = Scene::woken_by(Armed(Arc::clone(&arms)), slice_policy(10));
            joins(&mut scene, 0, "hog", 70, 0, 0);
            scene.uses("slice", SLICE - 1);
            let at = monotonic();
            let mut trigger = Trigger::of(Cause::Threshold, at);
            trigger.crossed = Some(at);
            scene.watch.sample(&trigger);
            assert!(scene.watch.figures.is_awaited() && arms.load(Ordering::Relaxed) == 0);
            if !is_below {
                scene.uses("slice", 0);
            }
            while scene.watch.figures.is_pending() {
                scene.watch.follow_up(monotonic(), &mut Trigger::new(monotonic()));
            }
            scene.watch.sample(&Trigger::of(Cause::Reclaim, monotonic()));
            assert_eq!(arms.load(Ordering::Relaxed), 1, "its event was taken, and no other would come");
            let crossed = scene.frames().iter().find_map(|frame| match Record::read(frame) {
                Some(Record::Plan(PlanRecord::Begin { cause: Cause::Threshold, crossed, .. })) => crossed,
                _ => None,
            });
            assert_eq!(crossed, is_below.then_some(at));
        }
    }

    #[test]
    fn a_decision_is_taken_on_older_figures_where_none_come_in_time() {
        let mut scene = Scene::new(10);
        scene.watch.figures.set_patience(Duration::ZERO);
        joins(&mut scene, 0, "hog", 70, 0, 0);
        scene.uses("slice", SLICE - 1);
        scene.sample();
        assert_eq!(scene.text("hog", "cgroup.kill"), "1");
    }

    #[test]
    fn a_victim_that_is_not_among_the_largest_is_read_before_it_is_killed() {
        let mut scene = Scene::with(Policy { evict_for_unattributed: true, ..slice_policy(1000) });
        for slot in 0..64 {
            joins(&mut scene, slot, &format!("large{slot}"), 2, 2, 2);
        }
        // All that it uses is page cache by now.
        joins(&mut scene, 64, "small", 1, 0, 1);
        scene.uses("slice", SLICE - 1);
        for _ in 0..3 {
            scene.sample();
        }
        assert_eq!(scene.text("small", "cgroup.kill"), "");
        // And now it is not, which the inventory thread has seen.
        joins(&mut scene, 64, "small", 1, 0, 0);
        // A threshold is crossed each time, so that all figures are old again.
        for _ in 0..3 {
            scene.cross();
        }
        assert_eq!(scene.text("small", "cgroup.kill"), "1");
    }

    #[test]
    fn of_many_small_victims_none_is_killed_for_page_cache() {
        let mut scene = Scene::with(Policy { evict_for_unattributed: true, ..slice_policy(1000) });
        for slot in 0..64 {
            joins(&mut scene, slot, &format!("large{slot}"), 2, 2, 2);
        }
        let names: Vec<_> = (64..164).map(|slot| (slot, format!("small{slot}"))).collect();
        for (slot, name) in &names {
            joins(&mut scene, *slot, name, 0, 0, 0);
            // All that it uses is page cache by now.
            scene.write(name, "memory.current", "65536\n");
            scene.write(name, "memory.stat", "inactive_file 65536\n");
        }
        scene.uses("slice", SLICE - 1);
        for _ in 0..40 {
            scene.sample();
        }
        for (_, name) in names {
            assert_eq!(scene.text(&name, "cgroup.kill"), "", "{name}");
        }
    }

    #[test]
    fn many_small_victims_are_killed_as_far_as_there_is_room_for_them() {
        let mut scene = Scene::with(Policy { evict_for_unattributed: true, ..slice_policy(1000) });
        for slot in 0..64 {
            joins(&mut scene, slot, &format!("large{slot}"), 2, 2, 2);
        }
        let names: Vec<_> = (64..164).map(|slot| (slot, format!("small{slot}"))).collect();
        for (slot, name) in &names {
            joins(&mut scene, *slot, name, 0, 0, 0);
            scene.write(name, "memory.current", "65536\n");
        }
        scene.uses("slice", SLICE - 1);
        for killed in 1..=25 {
            for _ in 0..2 {
                scene.cross();
            }
            let dying = |name: &&String| scene.text(name, "cgroup.kill") == "1";
            let dying: Vec<_> = names.iter().map(|(_, name)| name).filter(dying).collect();
            assert_eq!(dying.len(), 4, "four at a time, the {killed}th time");
            for name in dying {
                scene.write(name, "cgroup.kill", "");
                scene.write(name, "cgroup.events", "populated 0\n");
                scene.uses(name, 0);
            }
            scene.watch.follow_up(monotonic(), &mut Trigger::new(monotonic()));
            while scene.returned.pop().is_ok() {}
        }
    }

    #[test]
    fn figures_are_read_again_after_an_event_and_after_an_older_one_came() {
        let at = |ms: u64| MonotonicNs(0).after(Duration::from_millis(ms));
        let cgroup = CgroupId(7);
        let mut figures = Figures::new();
        figures.crossed(at(1000));
        figures.read.push(Figure { cgroup, requested: at(1001), is_answered: false });
        assert!(!figures.is_new(cgroup, at(1002)) && figures.is_pending());
        assert!(figures.answered(cgroup));
        for (now, is_new) in [(1002, true), (2001, true), (2002, false)] {
            assert_eq!(figures.is_new(cgroup, at(now)), is_new, "{now}");
        }
        // A decision that waits does not wait again for later events.
        figures.waits = Some(at(1002));
        figures.crossed(at(1003));
        assert!(figures.is_new(cgroup, at(2200)));
        figures.end_wait();
        figures.crossed(at(1004));
        assert!(!figures.is_new(cgroup, at(1005)));
        figures.event = at(1000);
        figures.outdate(cgroup);
        assert!(!figures.is_new(cgroup, at(1002)));
    }
}
