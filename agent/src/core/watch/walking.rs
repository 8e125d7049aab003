//! A walk over the tree before a decision on what no known workload took.
//!
//! Where the source submits no events for cgroups that come, the inventory thread finds them when it walks, every few
//! seconds. One that is younger is in no observation, and a workload beside it would be evicted for what it took. So where
//! the known ones do not account for what is short ([`is_unaccounted`]), the decision waits until that thread has walked,
//! but not without end. Where they do, none waits.

use core::time::Duration;

use plimsoll_policy::{Scope, is_unaccounted};
use plimsoll_units::MonotonicNs;

use super::super::inventory::Request;
use super::Watch;
use super::sampling::Sample;

/// A decision on memory waits for no longer than this.
const PATIENCE: Duration = Duration::from_millis(100);
/// One on tasks alone has more time: a fork bomb keeps the CPUs busy, and the inventory thread waits for them, if not
/// like others; what is left below the threshold is for that.
const PATIENCE_FOR_TASKS: Duration = Duration::from_secs(5);
/// A walk is new for so long at least: longer than a decision waits then for figures of what it found.
const NEW_FOR: Duration = Duration::from_millis(250);
/// It is new for so many times as long as it took, as the inventory thread takes one part in so many of a CPU for walks.
const SHARE: u32 = 50;
/// By then that thread has walked of itself.
const NEW_FOR_MOST: Duration = Duration::from_secs(5);

/// The last walk that a decision needed.
#[derive(Debug)]
pub(in crate::core) struct Walking {
    /// No event comes for new cgroups.
    is_needed: bool,
    /// When the one was requested that is not done yet.
    requested: Option<MonotonicNs>,
    /// The last one is new until then.
    new_until: MonotonicNs,
    /// It was not done in time, and is not done since: no decision waits for it.
    is_stuck: bool,
    /// For how long one does at most: on memory, and on tasks alone.
    patience: [Duration; 2],
}

impl Walking {
    /// `has_events`: the source submits events for cgroups that come, so that no decision waits for a walk.
    pub(in crate::core) const fn new(has_events: bool) -> Self {
        Self {
            is_needed: !has_events,
            requested: None,
            new_until: MonotonicNs(0),
            is_stuck: false,
            patience: [PATIENCE, PATIENCE_FOR_TASKS],
        }
    }

    /// A decision needs a new walk. Gives whether one is to be requested.
    fn begin(&mut self, now: MonotonicNs) -> bool {
        let is_due = self.requested.is_none() && now >= self.new_until;
        if is_due {
            self.requested = Some(now);
        }
        is_due
    }

    /// Until when a decision waits at most, on tasks alone or on memory; absent where it does not.
    fn wait(&mut self, is_on_tasks: bool, now: MonotonicNs) -> Option<MonotonicNs> {
        let until = self.requested?.after(self.patience[usize::from(is_on_tasks)]);
        self.is_stuck |= now >= until;
        (!self.is_stuck).then_some(until)
    }

    /// The walk that was requested is done, and what it found was taken in.
    pub(super) fn done(&mut self, now: MonotonicNs) {
        let Some(requested) = self.requested.take() else { return };
        self.is_stuck = false;
        let new_for = (now.since(requested) * SHARE).clamp(NEW_FOR, NEW_FOR_MOST);
        self.new_until = now.after(new_for);
    }

    /// Whether a decision may wait.
    pub(super) const fn is_awaited(&self) -> bool {
        self.requested.is_some() && !self.is_stuck
    }

    #[cfg(test)]
    pub(super) const fn set_patience(&mut self, patience: Duration) {
        self.patience = [patience; 2];
    }
}

impl Watch {
    /// Whether the decision on a sample has to wait for a walk, which is then requested.
    pub(super) fn awaits_walk(&mut self, sample: &Sample) -> bool {
        let now = sample.completed;
        if !self.walking.is_needed || !self.scopes.all().any(|scope| self.is_unaccounted(scope, sample)) {
            return false;
        }
        if self.walking.begin(now) {
            self.workloads.handle.request(Request::Walk);
        }
        let Some(until) = self.walking.wait(!sample.is_below, now) else { return false };
        self.schedule.sample_by(until);
        true
    }

    fn is_unaccounted(&self, scope: Scope, sample: &Sample) -> bool {
        let observation = sample.observation(scope, self.scopes.get(scope), self.workloads.table.observed());
        is_unaccounted(&self.engine.policy, &self.engine.state, &observation, sample.completed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::inventory::News;
    use super::super::testing::{SLICE, Scene, slice_policy, task_policy};
    use super::super::triggers::Trigger;
    use super::*;
    use plimsoll_node::clock::monotonic;
    use plimsoll_policy::Config as Policy;

    /// Far more than the number of tasks changes by while a test runs.
    const MANY: i64 = 1000;

    fn at(ms: u64) -> MonotonicNs {
        MonotonicNs(0).after(Duration::from_millis(ms))
    }

    #[test]
    fn a_walk_is_asked_for_once_and_waited_for_until_it_is_done() {
        let mut walking = Walking::new(false);
        assert!(walking.begin(at(1000)) && !walking.begin(at(1001)));
        for (is_on_tasks, now, until) in [(false, 1000, 1100), (false, 1099, 1100), (true, 5999, 6000)] {
            assert_eq!(walking.wait(is_on_tasks, at(now)), Some(at(until)));
        }
        walking.done(at(1002));
        assert_eq!((walking.wait(false, at(1002)), walking.is_awaited()), (None, false));
        // It is new for a while, and the next decision needs another one then.
        assert!(!walking.begin(at(1251)) && walking.wait(false, at(1251)).is_none() && walking.begin(at(1252)));
        // One that takes long is new for longer, but not without end.
        walking.done(at(1272));
        assert!(!walking.begin(at(2271)) && walking.begin(at(2272)));
        walking.done(at(3272));
        assert!(!walking.begin(at(8271)) && walking.begin(at(8272)));
    }

    #[test]
    fn a_walk_that_is_not_done_in_time_delays_one_decision_and_no_other_until_it_is() {
        let mut walking = Walking::new(false);
        assert!(walking.begin(at(1000)) && walking.wait(false, at(1099)).is_some());
        assert!(walking.wait(false, at(1100)).is_none() && !walking.is_awaited());
        assert!(!walking.begin(at(9000)) && walking.wait(true, at(9000)).is_none(), "it is under way still");
        walking.done(at(9000));
        assert!(walking.begin(at(14_000)) && walking.wait(false, at(14_000)).is_some());
    }

    /// A source without events for cgroups, and a workload of so many tasks and MiB.
    fn scene(policy: Policy, tasks: i64, mib: u64) -> Scene {
        let mut scene = Scene::with(policy);
        scene.watch.walking = Walking::new(false);
        joins(&mut scene, 0, "calm", tasks, mib);
        scene
    }

    fn joins(scene: &mut Scene, slot: u32, name: &str, tasks: i64, mib: u64) {
        scene.cgroup(name, mib);
        scene.write(name, "pids.current", &format!("{tasks}\n"));
        scene.joins(slot, name);
    }

    fn is_asked(scene: &Scene) -> bool {
        scene.watch.workloads.handle.is_asked(Request::Walk)
    }

    fn is_killed(scene: &Scene, name: &str) -> bool {
        scene.text(name, "cgroup.kill") == "1"
    }

    /// The inventory thread has walked, and this one wakes for that.
    fn walked(scene: &mut Scene) {
        scene.updates.push(News::Walked).expect("room");
        scene.turn(&[super::super::triggers::Ready::Inventory], Duration::ZERO);
    }

    #[test]
    fn tasks_that_no_known_workload_has_cost_none_before_the_one_that_has_them_is_found() {
        let mut scene = scene(task_policy(MANY), 30, 1);
        scene.watch.walking.set_patience(Duration::from_mins(1));
        for _ in 0..2 {
            scene.watch.sample(&Trigger::new(monotonic()));
            scene.settle();
            assert!(is_asked(&scene) && scene.watch.walking.is_awaited() && !is_killed(&scene, "calm"));
        }
        let due = scene.watch.schedule.next_sample().expect("patience ends");
        assert!(due > monotonic().after(Duration::from_secs(30)), "memory, which is read at a pace, is not short");
        joins(&mut scene, 1, "bomb", 5 * MANY, 1);
        walked(&mut scene);
        assert!(!scene.watch.walking.is_awaited());
        assert_eq!(["bomb", "calm"].map(|name| is_killed(&scene, name)), [true, false]);
    }

    #[test]
    fn memory_that_no_known_workload_took_costs_none_before_the_one_that_took_it_is_found() {
        let mut scene = scene(Policy { evict_for_unattributed: true, ..slice_policy(10) }, 1, 5);
        scene.watch.walking.set_patience(Duration::from_mins(1));
        scene.uses("slice", SLICE - 1);
        scene.sample();
        assert!(is_asked(&scene) && !is_killed(&scene, "calm"));
        joins(&mut scene, 1, "hog", 1, 90);
        walked(&mut scene);
        assert_eq!(["hog", "calm"].map(|name| is_killed(&scene, name)), [true, false]);
    }

    #[test]
    fn a_decision_is_taken_without_a_walk_that_does_not_end() {
        let mut scene = scene(task_policy(MANY), 30, 1);
        scene.watch.walking.set_patience(Duration::ZERO);
        scene.sample();
        assert!(is_asked(&scene) && is_killed(&scene, "calm"));
    }

    #[test]
    fn no_decision_waits_for_a_walk_where_workloads_account_for_what_is_short_or_events_name_new_ones() {
        let mut tasks = scene(task_policy(MANY), 5 * MANY, 1);
        tasks.sample();
        assert!(!is_asked(&tasks) && is_killed(&tasks, "calm"));
        let mut memory = scene(slice_policy(10), 1, 95);
        memory.uses("slice", SLICE - 1);
        memory.sample();
        assert!(!is_asked(&memory) && is_killed(&memory, "calm"));
        let mut events = scene(task_policy(MANY), 30, 1);
        events.watch.walking = Walking::new(true);
        events.sample();
        assert!(!is_asked(&events) && is_killed(&events, "calm"));
    }
}
