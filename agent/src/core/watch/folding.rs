//! The parts of the kernel's counters that each CPU keeps back, folded in while memory is so near to a threshold that they
//! decide on which side it is. Otherwise the kernel does so about once a second.
//!
//! On a machine with hundreds of CPUs they can add up to more than a threshold. A worker of its own has them folded in: it
//! waits for every CPU, and one that is taken by a real-time task must not delay the other figures.

use plimsoll_act::{Job, Worker};
use plimsoll_units::MonotonicNs;

use super::super::pause;

/// Counters that were folded in are new for so long, unless an event comes after it. As long as a decision waits at most.
const NEW_FOR_NS: u64 = 100_000_000;
/// Above the thresholds the pause is so many times as long as the folding before it took, as far as [`pause`] goes: it
/// runs on every CPU.
const SHARE: u32 = 50;

/// The last folding.
#[derive(Debug, Default)]
pub(super) struct Folding {
    requested: MonotonicNs,
    is_pending: bool,
    /// Above the thresholds, it is not requested before.
    not_before: MonotonicNs,
    /// The worker did not answer in time, and has not answered since, or the kernel refuses: no decision waits for it.
    pub(super) is_stuck: bool,
}

impl Folding {
    /// Requests it, where the counters were not folded in since `event` and lately. `is_needed`: a threshold is crossed.
    pub(super) fn request(&mut self, event: MonotonicNs, is_needed: bool, worker: &mut Worker, now: MonotonicNs) {
        let oldest = event.max(MonotonicNs(now.0.saturating_sub(NEW_FOR_NS)));
        let is_early = !is_needed && now < self.not_before;
        if self.is_pending || self.requested >= oldest || is_early || worker.submit(Job::FoldCounters).is_err() {
            return;
        }
        (self.requested, self.is_pending) = (now, true);
    }

    /// The worker has answered.
    pub(super) fn answered(&mut self, is_done: bool, now: MonotonicNs) {
        self.is_pending = false;
        self.is_stuck = !is_done;
        self.not_before = now.after(pause::after(now.since(self.requested), SHARE));
    }

    /// Whether a decision has to wait for it.
    pub(super) const fn is_awaited(&self) -> bool {
        self.is_pending && !self.is_stuck
    }

    /// It was waited for long enough.
    pub(super) const fn give_up(&mut self) {
        self.is_stuck |= self.is_pending;
    }

    #[cfg(test)]
    pub(super) const fn is_pending(&self) -> bool {
        self.is_pending
    }

    #[cfg(test)]
    pub(super) const fn requested(&self) -> MonotonicNs {
        self.requested
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SLICE, Scene, slice_policy};
    use super::super::triggers::Trigger;
    use super::*;
    use crate::core::thresholds::Machine;
    use core::time::Duration;
    use plimsoll_node::clock::monotonic;
    use plimsoll_node::zoneinfo::Drift;
    use plimsoll_policy::Config as Policy;
    use plimsoll_policy::kubelet::{Signal, Threshold, ThresholdAmount};
    use plimsoll_units::{Bytes, Pages};

    /// A machine with a threshold.
    fn scene(threshold: Bytes) -> Scene {
        let hard = Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(threshold));
        Scene::with(Policy { thresholds: vec![hard], ..slice_policy(10) })
    }

    /// Counters that may be off by so many pages.
    fn may_be_off(scene: &mut Scene, by: u64) {
        let drift = Drift { kubelet: Pages(by), mem_available: Pages(by) };
        scene.watch.arming.set_machine(Machine { page_bytes: 4096, drift, ..Machine::default() });
    }

    /// By more than any threshold.
    const FAR: u64 = u64::MAX >> 13;

    #[test]
    fn a_decision_that_rests_on_what_cpus_keep_back_waits_until_it_is_folded_in() {
        for (by, waits) in [(FAR, true), (0, false)] {
            let mut scene = scene(Bytes(1 << 50));
            scene.sample();
            // The other figures are new; this alone is missing.
            may_be_off(&mut scene, by);
            scene.watch.sample(&Trigger::new(monotonic()));
            assert_eq!((scene.watch.figures.is_pending(), scene.watch.figures.is_awaited()), (false, waits));
            scene.sample();
            assert!(!scene.watch.folding.is_pending() && !scene.watch.figures.is_awaited(), "it was decided");
        }
    }

    #[test]
    fn a_worker_that_reads_figures_is_not_stuck_for_a_folding_that_takes_long() {
        let mut scene = scene(Bytes(1 << 50));
        scene.sample();
        may_be_off(&mut scene, FAR);
        scene.watch.figures.set_patience(Duration::ZERO);
        scene.watch.sample(&Trigger::new(monotonic()));
        assert!(scene.watch.folding.is_stuck && !scene.watch.figures.is_awaited(), "it is waited for no longer");
        assert!(!scene.watch.figures.is_stuck(), "all of its answers are there");
    }

    #[test]
    fn above_a_threshold_counters_are_folded_in_and_no_decision_waits() {
        let mut scene = scene(Bytes(1));
        may_be_off(&mut scene, FAR);
        scene.uses("slice", SLICE / 2);
        scene.watch.sample(&Trigger::new(monotonic()));
        assert!(scene.watch.folding.requested() > MonotonicNs(0) && !scene.watch.figures.is_awaited());
    }

    #[test]
    fn no_decision_waits_for_a_worker_that_does_not_answer() {
        let mut scene = scene(Bytes(1 << 50));
        may_be_off(&mut scene, FAR);
        scene.watch.figures.set_patience(Duration::ZERO);
        scene.watch.sample(&Trigger::new(monotonic()));
        assert!(scene.watch.folding.is_stuck && !scene.watch.figures.is_awaited());
    }

    #[test]
    fn folding_is_paced_by_its_cost_until_a_threshold_is_crossed() {
        let mut worker = Worker::start("fold", 8).expect("a thread starts");
        let at = |ms: u64| MonotonicNs(0).after(Duration::from_millis(ms));
        let mut folding = Folding::default();
        let requested = |folding: &mut Folding, event: u64, is_needed: bool, worker: &mut Worker, ms: u64| {
            folding.request(at(event), is_needed, worker, at(ms));
            folding.requested() == at(ms)
        };
        assert!(requested(&mut folding, 0, false, &mut worker, 1000));
        assert!(!requested(&mut folding, 0, true, &mut worker, 1001), "it is under way");
        folding.answered(true, at(1010));
        assert!(!requested(&mut folding, 0, true, &mut worker, 1050), "the counters are new");
        assert!(!requested(&mut folding, 0, false, &mut worker, 1509), "a fiftieth of the CPUs");
        assert!(requested(&mut folding, 1040, true, &mut worker, 1051), "an event came since");
        folding.answered(false, at(1052));
        assert!(folding.is_stuck && !folding.is_awaited());
        assert!(requested(&mut folding, 0, false, &mut worker, 1200));
        folding.answered(true, at(4200));
        assert!(requested(&mut folding, 0, false, &mut worker, 14_200), "the machine stood still");
    }
}
