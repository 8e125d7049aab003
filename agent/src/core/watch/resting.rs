//! Samples without workloads, while nothing moves.
//!
//! What a workload uses matters when it is decided on, and as what its growth is counted from. To read hundreds of them
//! once a second is most of what the agent costs where nothing happens. So a sample on the slow timer reads the node and
//! the slices alone as long as
//!
//! - a source wakes this thread at a crossing, no other event woke it, and nothing is under way;
//! - at least [`HEADROOM`] of the highest threshold of each scope is available;
//! - memory of no scope differs from what it was when workloads were last read by more than half of what makes a workload
//!   responsible for a fall to the threshold (`responsible_percent`);
//! - workloads were read within [`AT_REST`], and the inventory thread has sent nothing since.
//!
//! So what growth is counted from is older than a second for none but those that take, within [`AT_REST`], what others
//! give back at the same pace, and that counts only where memory then runs out within the next second. How fast memory
//! falls is counted from the last sample that found it plentiful, with workloads or without.

use core::time::Duration;

use plimsoll_inventory::Termination;
use plimsoll_policy::{Config as Policy, MemoryReading, Scope};
use plimsoll_sense::Kind;
use plimsoll_units::{Bytes, MonotonicNs};

use super::super::episode::SCOPES;
use super::super::inventory::Request;
use super::Watch;
use super::deciding::Engine;
use super::sampling::{MachineMemory, Sample};
use super::scopes::{Scopes, on_memory};
use super::triggers::Trigger;

/// Workloads are read this often at least.
const AT_REST: Duration = Duration::from_mins(1);
/// So many times in a row the charge hook may not have run on the slow timer, while memory does not move.
const UNCHARGED: u32 = 20;
/// In percent of the highest threshold.
const HEADROOM: u32 = 200;

/// What was seen when all workloads were last read and nothing was wrong.
#[derive(Debug, Default)]
pub(super) struct Resting {
    /// When that was; absent where something has happened since.
    since: Option<MonotonicNs>,
    /// Memory of each scope then.
    readings: [Option<MemoryReading>; SCOPES],
    /// How many times in a row the charge hook had not run.
    uncharged: u32,
}

impl Resting {
    /// All workloads were read, and nothing is wrong.
    pub(super) fn begin(&mut self, scopes: &Scopes, now: MonotonicNs) {
        self.since = Some(now);
        for (before, scope) in self.readings.iter_mut().zip(scopes.all()) {
            *before = scopes.get(scope).reading;
        }
    }

    /// The next sample reads workloads.
    pub(super) const fn end(&mut self) {
        self.since = None;
    }

    /// The slow timer saw whether the charge hook has run. Gives whether it has to show that it does. Where it did not,
    /// and memory turns out to have moved, it has to as well.
    pub(super) const fn charged(&mut self, has_run: bool) -> bool {
        self.uncharged = if has_run { 0 } else { self.uncharged.saturating_add(1) };
        !has_run && (self.since.is_none() || self.uncharged >= UNCHARGED)
    }

    /// Whether workloads were read lately, and nothing has happened since.
    fn is_recent(&self, now: MonotonicNs) -> bool {
        self.since.is_some_and(|since| now.since(since) < AT_REST)
    }

    /// Whether memory of a scope differs much from what it was then.
    fn has_moved(&self, policy: &Policy, scopes: &Scopes) -> bool {
        self.readings.iter().zip(scopes.all()).any(|(before, scope)| match (before, &scopes.get(scope).reading) {
            (Some(before), Some(now)) => differs(policy, scope, before, now),
            (Some(_), None) => true,
            (None, _) => false,
        })
    }
}

/// Whether a workload may have grown so much between two readings that half as much again would make it responsible for a
/// fall from the first one to the highest threshold.
fn differs(policy: &Policy, scope: Scope, before: &MemoryReading, now: &MemoryReading) -> bool {
    let configured = on_memory(policy, scope).filter_map(|threshold| threshold.bytes(before.capacity));
    let Some(highest) = configured.max() else { return false };
    let room = before.lowest().saturating_sub(highest);
    let most = room.0.saturating_mul(policy.responsible_percent.into()) / 200;
    let is_more = |before: Bytes, now: Bytes| before.0.abs_diff(now.0) > most;
    before.capacity != now.capacity
        || is_more(before.kubelet_available, now.kubelet_available)
        || is_more(before.kernel(), now.kernel())
}

impl Watch {
    /// Whether a sample that is due for this can do without workloads, by what was just read of the node and the slices.
    pub(super) fn rests(&self, trigger: &Trigger, now: MonotonicNs) -> bool {
        trigger.is_timer_alone()
            && self.resting.is_recent(now)
            && self.triggers.source().kind() == Kind::Ebpf
            && !self.reporting.is_traced()
            && !self.figures.is_awaited()
            && self.enforcement.is_idle()
            && self.scopes.reclaiming.is_none()
            && !self.scopes.episodes.is_open()
            && self.arms_tasks(now)
            && self.scopes.headroom(&self.engine.policy) >= HEADROOM
            && !self.resting.has_moved(&self.engine.policy, &self.scopes)
    }

    /// A sample without workloads, for which thresholds stay armed as they are. The machine was read at `taken`.
    pub(super) fn rest(&mut self, taken: MonotonicNs, machine: MachineMemory, now: MonotonicNs) {
        let sample = Sample { taken, completed: taken, machine, tasks: None, stall: None, is_below: false };
        for scope in self.scopes.all() {
            let Engine { policy, state, .. } = &mut self.engine;
            state.rest(policy, &sample.observation(scope, self.scopes.get(scope), &[]));
        }
        self.schedule.rests(now);
        self.report_sampled();
    }

    /// A sample that reads workloads begins: where memory has moved since the last one, the inventory thread reads again
    /// what it reads rarely at rest.
    pub(super) fn stir(&mut self) {
        self.resting.end();
        if self.resting.has_moved(&self.engine.policy, &self.scopes) {
            self.workloads.handle.request(Request::Moved);
            if self.resting.uncharged > 0 {
                self.workloads.handle.request(Request::Source);
            }
        }
    }

    /// Whether no workload is ended by this process.
    pub(super) fn all_stay(&self) -> bool {
        self.workloads.table.iter().all(|(_, workload)| workload.termination == Termination::Stays)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SLICE, SLICE_SCOPE, Scene, THRESHOLD, slice_policy, task_policy};
    use super::*;
    use crate::record::Cause;
    use arrayvec::ArrayVec;
    use plimsoll_inventory::Update;
    use plimsoll_node::clock::monotonic;
    use plimsoll_node::limits::TaskReading;
    use plimsoll_policy::decide;
    use plimsoll_policy::kubelet::{Amount, Signal, Threshold, ThresholdAmount};
    use plimsoll_sense::{Descriptor, Interest, MAX_DESCRIPTORS, SenseError, Source, WakeList};
    use plimsoll_units::Percentage;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::{AsFd as _, OwnedFd};

    /// Its programs run, and it has no event.
    struct Quiet {
        kind: Kind,
        sees_forks: bool,
        ring: OwnedFd,
    }

    impl Quiet {
        fn new(kind: Kind, sees_forks: bool) -> Self {
            Self { kind, sees_forks, ring: eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor") }
        }
    }

    impl Source for Quiet {
        fn kind(&self) -> Kind {
            self.kind
        }

        fn sees_forks(&self) -> bool {
            self.sees_forks
        }

        fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS> {
            let ring = Descriptor { fd: self.ring.as_fd(), interest: Interest::Readable, token: 1 };
            [ring].into_iter().collect()
        }

        fn drain(&mut self, _: u32, _: &mut WakeList) -> Result<(), SenseError> {
            Ok(())
        }
    }

    /// A workload of 20 MiB in the slice, at rest.
    fn at_rest(kind: Kind) -> Scene {
        at_rest_with(Quiet::new(kind, true), slice_policy(1))
    }

    fn at_rest_with(source: Quiet, policy: Policy) -> Scene {
        let mut scene = Scene::woken_by(source, policy);
        scene.watch.reporting.set_traced(false);
        scene.cgroup("a", 20);
        scene.joins(0, "a");
        scene.uses("slice", 20);
        timer(&mut scene, Duration::ZERO);
        scene
    }

    /// A sample on the slow timer, `after` now, with which what was submitted without a wake is read.
    fn timer(scene: &mut Scene, after: Duration) {
        let mut trigger = Trigger::of(Cause::Timer, monotonic().after(after));
        scene.watch.drain_all(&mut trigger);
        scene.watch.sample(&trigger);
    }

    /// What the workload uses in the last observation, in MiB.
    fn observed(scene: &Scene) -> Option<u64> {
        scene.watch.workloads.table.observed().first()?.working_set().map(|usage| usage.0 >> 20)
    }

    #[test]
    fn workloads_are_not_read_while_nothing_moves() {
        let mut scene = at_rest(Kind::Ebpf);
        scene.uses("a", 21);
        timer(&mut scene, Duration::ZERO);
        assert_eq!(observed(&scene), Some(20));
        timer(&mut scene, AT_REST);
        assert_eq!(observed(&scene), Some(21), "from time to time they are");
        // Without events a crossing would be seen by samples alone.
        let mut polled = at_rest(Kind::Polling);
        polled.uses("a", 21);
        timer(&mut polled, Duration::ZERO);
        assert_eq!(observed(&polled), Some(21));
    }

    #[test]
    fn whatever_happens_has_workloads_read() {
        type Happens = fn(&mut Scene);
        let happens: [(&str, Happens); 6] = [
            ("an event", |scene| scene.watch.sample(&Trigger::of(Cause::Reclaim, monotonic()))),
            ("an event beside the timer", |scene| {
                let mut trigger = Trigger::of(Cause::Timer, monotonic());
                trigger.because(Cause::Psi);
                scene.watch.sample(&trigger);
            }),
            ("an update", |scene| {
                let facts = scene.facts("a");
                scene.update(Update::Workload(0, facts));
                timer(scene, Duration::ZERO);
            }),
            ("a trace", |scene| {
                scene.watch.reporting.set_traced(true);
                timer(scene, Duration::ZERO);
            }),
            ("memory falls", |scene| {
                scene.uses("slice", 24);
                timer(scene, Duration::ZERO);
            }),
            ("memory comes back", |scene| {
                scene.uses("slice", 16);
                timer(scene, Duration::ZERO);
            }),
        ];
        for (what, happens) in happens {
            let mut scene = at_rest(Kind::Ebpf);
            scene.uses("a", 21);
            happens(&mut scene);
            assert_eq!(observed(&scene), Some(21), "{what}");
        }
    }

    #[test]
    fn samples_read_the_number_of_tasks_unless_an_event_comes_for_it() {
        for sees_forks in [true, false] {
            let mut scene = at_rest_with(Quiet::new(Kind::Ebpf, sees_forks), task_policy(-1000));
            scene.uses("a", 21);
            timer(&mut scene, Duration::ZERO);
            assert_eq!(observed(&scene), Some(if sees_forks { 20 } else { 21 }), "{sees_forks}");
        }
    }

    #[test]
    fn a_limit_of_tasks_that_was_changed_is_noticed_on_the_slow_timer() {
        let mut scene = at_rest_with(Quiet::new(Kind::Ebpf, true), task_policy(-1000));
        let mut turn = |before: Option<TaskReading>| {
            if let Some(before) = before {
                scene.watch.arming.set_task_limit(&before);
            }
            scene.uses("a", 21);
            scene.watch.slow_turn();
            timer(&mut scene, Duration::ZERO);
            observed(&scene)
        };
        assert_eq!([turn(None), turn(None)], [Some(20), Some(20)], "it is what it was");
        assert_eq!(turn(Some(TaskReading { tasks: 1, pid_max: 9, threads_max: 9 })), Some(21));
    }

    #[test]
    fn a_threshold_of_tasks_that_is_not_armed_yet_is_armed_by_the_next_sample() {
        let mut scene = at_rest(Kind::Ebpf);
        scene.watch.read_task_limit();
        scene.uses("a", 21);
        timer(&mut scene, Duration::ZERO);
        assert_eq!(observed(&scene), Some(21), "it is armed only where workloads are read");
        scene.uses("a", 20);
        timer(&mut scene, Duration::ZERO);
        assert_eq!(observed(&scene), Some(21), "and is armed from then on");
    }

    #[test]
    fn near_a_threshold_workloads_are_read() {
        for (used, reads) in [(SLICE - 2 * THRESHOLD, false), (SLICE - 2 * THRESHOLD + 1, true)] {
            let mut scene = at_rest(Kind::Ebpf);
            scene.uses("slice", used);
            // The first one has seen memory move.
            timer(&mut scene, Duration::ZERO);
            scene.uses("a", 22);
            timer(&mut scene, Duration::ZERO);
            assert_eq!(observed(&scene), Some(if reads { 22 } else { 20 }), "{used}");
        }
    }

    #[test]
    fn the_inventory_thread_is_notified_that_memory_has_moved() {
        for (used, has_moved) in [(20, false), (23, false), (24, true)] {
            let mut scene = at_rest(Kind::Ebpf);
            assert!(!scene.watch.workloads.handle.is_asked(Request::Moved));
            scene.uses("slice", used);
            timer(&mut scene, AT_REST);
            assert_eq!(scene.watch.workloads.handle.is_asked(Request::Moved), has_moved, "{used}");
        }
    }

    #[test]
    fn a_twentieth_of_what_is_left_to_the_threshold_is_much() {
        let policy = slice_policy(1);
        let scope = Scope::Slice(plimsoll_policy::SliceId(0));
        let reading = |kubelet: u64, own: u64| MemoryReading {
            capacity: Bytes::mib(SLICE),
            kubelet_available: Bytes::mib(kubelet),
            mem_available: Some(Bytes::mib(own)),
        };
        // 80 MiB are left, of which 4 are a twentieth.
        let before = reading(90, 92);
        for (now, expected) in [
            (reading(86, 96), false),
            (reading(85, 92), true),
            (reading(95, 92), true),
            (reading(90, 87), true),
            (reading(90, 97), true),
            (MemoryReading { capacity: Bytes::mib(SLICE + 1), ..before }, true),
        ] {
            assert_eq!(differs(&policy, scope, &before, &now), expected, "{now:?}");
        }
        assert!(!differs(&policy, Scope::Node, &before, &reading(1, 1)), "no threshold, so no decision");
    }

    #[test]
    fn memory_falls_since_the_last_sample_that_found_it_plentiful_also_without_workloads() {
        let (mut scene, now) = (at_rest(Kind::Ebpf), monotonic());
        // Workloads were read half a minute ago.
        let (taken, machine) = (MonotonicNs(now.0.saturating_sub(30_000_000_000)), scene.watch.sampler.machine());
        let machine = machine.expect("this is Linux");
        let sample = Sample { taken, completed: taken, machine, tasks: None, stall: None, is_below: false };
        let Watch { engine: Engine { policy, state, plan, .. }, scopes, workloads, .. } = &mut scene.watch;
        let observation = sample.observation(SLICE_SCOPE, scopes.get(SLICE_SCOPE), workloads.table.observed());
        decide(policy, state, &observation, taken, plan);
        let rested = monotonic();
        timer(&mut scene, Duration::ZERO);
        scene.uses("a", 95);
        scene.uses("slice", 95);
        scene.decide();
        let plan = &scene.watch.engine.plan;
        let (fallen, deficit) = (plan.attribution.expect("reckoned").fallen, plan.deficit.expect("reckoned"));
        // However busy the machine is.
        let during = plan.taken.since(rested).max(Duration::from_millis(500)).as_nanos();
        let least = u64::try_from(u128::from(fallen.0) * 500_000_000 / during).expect("no more than the fall");
        assert_eq!(fallen, Bytes::mib(75));
        assert!(deficit.expected >= Amount::counted(least), "{deficit:?}");
    }

    #[test]
    fn a_threshold_on_tasks_is_none_on_memory() {
        let on_tasks = Threshold::hard(Signal::PidAvailable, ThresholdAmount::Share(Percentage::of_one(0.5)));
        let on_memory = Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(Bytes::mib(THRESHOLD)));
        let with = |thresholds| Policy { thresholds, ..Policy::default() };
        let (alone, both) = (with(vec![on_tasks]), with(vec![on_tasks, on_memory]));
        let reading = |available: u64| MemoryReading {
            capacity: Bytes::mib(SLICE),
            kubelet_available: Bytes::mib(available),
            mem_available: None,
        };
        // 50 MiB are left to the threshold on memory, of which 2.5 are a twentieth.
        for (policy, available, expected) in [(&alone, 1, false), (&both, 58, false), (&both, 57, true)] {
            assert_eq!(differs(policy, Scope::Node, &reading(60), &reading(available)), expected, "{available}");
        }
    }
}
