//! One sample: read, decide for each scope, have it carried out, and arm what wakes the thread next.

use plimsoll_node::clock::monotonic;
use plimsoll_node::limits::TaskReading;
use plimsoll_policy::kubelet::{Condition, Conditions, Resource};
use plimsoll_policy::{Config as Policy, MemoryReading, Outcome, Plan, Scope, State, decide};
use plimsoll_units::MonotonicNs;

use super::super::episode;
use super::super::inventory::Request;
use super::super::thresholds;
use super::Watch;
use super::reporting::{Made, is_quiet};
use super::sampling::{MachineMemory, Sample};
use super::schedule::BELOW_PACE_MOST;
use super::scopes::hard_threshold;
use super::triggers::Trigger;
use crate::record::{Cause, HealthRecord, ThresholdRecord};

/// The decisions, in storage made beforehand.
pub(in crate::core) struct Engine {
    pub(super) policy: Policy,
    pub(super) state: State,
    pub(super) plan: Plan,
    /// The number of the last plan.
    pub(super) number: u64,
}

impl Engine {
    /// For as many workloads as the table has room for.
    pub(in crate::core) fn new(policy: Policy, slots: usize) -> Self {
        Self {
            state: State::with_capacity(&policy, slots),
            plan: Plan::with_capacity(&policy, slots, 0),
            number: 0,
            policy,
        }
    }

    /// Brings in what it takes for slots below `slots`.
    pub(super) fn bring_in(&mut self, slots: usize) {
        self.state.bring_in(slots);
        self.plan.bring_in(slots);
    }

    /// Whether the plan is about memory, or about limits of pods.
    pub(super) fn is_about_memory(&self) -> bool {
        let signal = self.plan.acting().and_then(|status| self.policy.signal_of(self.plan.scope, status.why));
        signal.is_none_or(|signal| signal.resource() == Resource::Memory)
    }

    /// Whether a threshold on memory is crossed whose grace is over.
    fn is_met_on_memory(&self) -> bool {
        let Self { policy, plan, .. } = self;
        let is_on_memory = |why| policy.signal_of(plan.scope, why).is_none_or(|on| on.resource() == Resource::Memory);
        plan.thresholds.iter().any(|status| status.is_met && is_on_memory(status.why))
    }
}

/// What the plans of one sample say together.
#[derive(Clone, Copy, Debug)]
struct Summary {
    /// No threshold is crossed.
    is_quiet: bool,
    /// Victims are chosen, or memory of earlier ones comes back.
    is_evicting: bool,
    /// A threshold on memory is crossed whose grace is over.
    is_met: bool,
}

impl Summary {
    const NONE: Self = Self { is_quiet: true, is_evicting: false, is_met: false };

    fn with(self, engine: &Engine) -> Self {
        let outcome = engine.plan.outcome;
        Self {
            is_quiet: self.is_quiet && is_quiet(outcome),
            is_evicting: self.is_evicting || matches!(outcome, Outcome::Evict | Outcome::ComingBack),
            is_met: self.is_met || engine.is_met_on_memory(),
        }
    }
}

/// Whether no threshold is crossed, no condition is left of one that was, and no other decision is due.
fn leaves_nothing(plan: &Plan) -> bool {
    is_quiet(plan.outcome) && plan.conditions.iter().next().is_none() && plan.recheck_at.is_none()
}

impl Watch {
    pub(super) fn sample(&mut self, trigger: &Trigger) {
        self.schedule.sampled();
        let trigger = &trigger.after(self.figures.waiting.take().as_ref());
        let taken = monotonic();
        let Some(machine) = self.read_scopes(taken) else {
            self.reporting.send(HealthRecord::Failed { what: "read /proc/meminfo", errno: None });
            return self.schedule.sample_by(trigger.awake.after(BELOW_PACE_MOST));
        };
        if self.rests(trigger, trigger.awake) {
            return self.rest(taken, machine, trigger.awake);
        }
        self.stir();
        let sample = self.observe(trigger, taken, machine);
        // Both at the same time.
        let (awaits_figures, awaits_walk) = (self.awaits_figures(&sample, trigger), self.awaits_walk(&sample));
        if awaits_figures || awaits_walk {
            self.figures.waiting = Some(*trigger);
            if awaits_figures && !sample.is_below {
                let completed = monotonic();
                self.schedule.awaits(completed.since(taken), completed);
            }
            return;
        }
        self.reporting.observed(&sample, &self.scopes, &self.workloads.table);
        let (mut summary, mut may_rest) = (Summary::NONE, trigger.is_timer_alone());
        for scope in self.scopes.all() {
            self.decide(scope, &sample, trigger);
            summary = summary.with(&self.engine);
            may_rest &= leaves_nothing(&self.engine.plan);
        }
        let now = sample.completed;
        self.conclude_all(now);
        let memory = machine.decided_by(self.engine.policy.eviction_policy);
        self.report_memory_back(summary, now);
        if !summary.is_evicting {
            self.thaw_all(now);
            self.continue_stopped_early();
        }
        if summary.is_quiet {
            self.schedule.is_quiet(monotonic().since(sample.taken));
            self.mark_slices(&memory);
            if matches!(trigger.cause(), Some(Cause::Timer | Cause::Poll)) {
                self.reread_moved(now);
            }
        } else {
            let is_under_way = summary.is_evicting && self.enforcement.acts();
            self.schedule.is_below(trigger.crossed.is_some(), is_under_way, now);
        }
        self.rearm(trigger, (&memory, sample.tasks), summary.is_quiet, now);
        if may_rest && self.all_stay() {
            self.resting.begin(&self.scopes, trigger.awake);
        }
        self.keep();
        self.cost = monotonic().since(sample.taken);
        self.report_sampled();
    }

    /// Shows the inventory thread how far memory is from the thresholds, and what samples cost that read workloads.
    pub(super) fn report_sampled(&self) {
        let headroom = self.scopes.headroom(&self.engine.policy);
        self.workloads.handle.sampled(headroom, self.cost, self.schedule.delayed());
    }

    /// Reads the machine, which begins at `taken`, and then the slices. Absent where the machine's memory cannot be read.
    fn read_scopes(&mut self, taken: MonotonicNs) -> Option<MachineMemory> {
        let machine = self.sampler.machine()?;
        let mut read_at = taken;
        for scope in self.scopes.all() {
            let reading = match scope {
                Scope::Node => Some(machine.decided_by(self.engine.policy.eviction_policy)),
                Scope::Slice(slice) => self.workloads.table.slice_reading(slice.0.into()),
            };
            // The end of one is the beginning of the next.
            let ended = monotonic();
            let state = self.scopes.get_mut(scope);
            (state.reading, state.read_at, state.read_cost) = (reading, read_at, ended.since(read_at));
            read_at = ended;
        }
        Some(machine)
    }

    /// Freezes what grows, and reads the workloads. The machine was read at `taken`.
    fn observe(&mut self, trigger: &Trigger, taken: MonotonicNs, machine: MachineMemory) -> Sample {
        let depth = self.scopes.depth(&self.engine.policy);
        if self.scopes.episodes.sample(depth, trigger.crossed, taken) {
            self.figures.crossed(taken);
        }
        if let Some(crossed) = trigger.crossed {
            self.figures.crossed(crossed);
        }
        self.freeze_growers(trigger);
        let mut tasks = self.tasks();
        let policy = &self.engine.policy;
        let counts_tasks = tasks.is_some_and(|tasks| thresholds::is_short_of_tasks(&policy.thresholds, &tasks));
        let completed = monotonic();
        self.workloads.table.observe(policy.max_pod_grace_seconds, counts_tasks, completed);
        if counts_tasks {
            // Tasks that ended meanwhile are in no workload's count: they must not be missing.
            tasks = self.tasks();
        }
        if let Some(enforcer) = &self.enforcement.enforcer {
            enforcer.brakes.growing().for_each(|id| self.workloads.table.set_grows_while_frozen(id));
        }
        // A trace is replayed with other thresholds, too.
        let needs_stall = self.reporting.is_traced() || self.scopes.has_cache_in_use(&self.engine.policy);
        let (stall, is_below) = (self.sampler.stall(needs_stall, completed), depth.iter().any(|below| *below > 0));
        Sample { taken, completed, machine, tasks, stall, is_below }
    }

    /// How many tasks there are, where a threshold is on that. Where they cannot be read, that is reported.
    fn tasks(&mut self) -> Option<TaskReading> {
        if !self.watches_tasks() {
            return None;
        }
        let read = self.sampler.tasks()?;
        if read.is_err() {
            self.reporting.send(HealthRecord::Failed { what: "read the number of tasks", errno: None });
        }
        read.ok()
    }

    /// Decides for one scope, and has it carried out and reported.
    fn decide(&mut self, scope: Scope, sample: &Sample, trigger: &Trigger) {
        let now = sample.completed;
        let observation = sample.observation(scope, self.scopes.get(scope), self.workloads.table.observed());
        let engine = &mut self.engine;
        decide(&engine.policy, &mut engine.state, &observation, now, &mut engine.plan);
        self.engine.number += 1;
        self.carry_out(scope, now);
        self.freeze_grown(scope);
        let plan = &self.engine.plan;
        let is_shadow = !self.enforcement.acts();
        let conditions = self.engine.state.conditions(&self.engine.policy);
        let made = Made { plan, conditions, number: self.engine.number, trigger, is_shadow };
        self.reporting.plan(made, &self.workloads.table, &mut self.scopes.get_mut(scope).reported, now);
        if plan.outcome == Outcome::Unattributed {
            self.workloads.handle.request(Request::Suspects);
        }
        if let Some(at) = plan.recheck_at {
            self.schedule.sample_by(at);
        }
        if self.engine.policy.is_of_node(scope) {
            let Engine { policy, plan, .. } = &self.engine;
            self.scopes.get_mut(scope).crossed = Conditions::of(|it| plan.condition_case(policy, it).is_some());
        }
    }

    /// What the conditions of the node are, once all scopes behind them were decided about.
    fn conclude_all(&mut self, now: MonotonicNs) {
        let conditions = self.engine.state.conditions(&self.engine.policy);
        for condition in [Condition::MemoryPressure, Condition::PidPressure] {
            let is_crossed = self.scopes.is_crossed(condition);
            self.conclude(condition, conditions.has(condition), is_crossed, now);
        }
    }

    /// Reports that memory is back, once for each crossing where something was done.
    fn report_memory_back(&mut self, summary: Summary, now: MonotonicNs) {
        let past = self.scopes.past_hard_threshold(&self.engine.policy);
        self.scopes.episodes.past(past);
        if !summary.is_met
            && let Some(episode::Reported { crossed, past_threshold }) = self.scopes.episodes.over(summary.is_quiet)
        {
            self.reporting.send(ThresholdRecord::MemoryBack { crossed, at: now, past_threshold });
        }
    }

    /// Marks the slices that the kernel brakes, while memory is above the thresholds.
    fn mark_slices(&mut self, memory: &MemoryReading) {
        let threshold = hard_threshold(&self.engine.policy, Scope::Node, memory.capacity);
        let source = self.triggers.source_mut();
        if self.enforcement.acts() && self.enforcement.kernel_brake.set(source, threshold).is_err() {
            self.reporting.send(HealthRecord::Failed { what: "mark slices for the in-kernel brake", errno: None });
        }
    }

    /// Lets the processes go on that the kernel stopped, as soon as no victim is chosen or dying for them.
    fn continue_stopped_early(&mut self) {
        if self.enforcement.kernel_brake.holds() {
            self.enforcement.kernel_brake.continue_all(self.triggers.source_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Scene, slice_policy, task_policy};
    use super::*;
    use crate::record::{PlanRecord, Record};
    use plimsoll_sense::{Generation, Wake};
    use plimsoll_units::CgroupId;

    /// Far more than the number of tasks changes by while a test runs.
    const MANY: i64 = 1000;

    /// A workload of five times as many tasks, and one of few.
    fn scene(policy: Policy) -> Scene {
        let mut scene = Scene::with(policy);
        for (slot, name, tasks) in [(0, "bomb", 5 * MANY), (1, "calm", 3)] {
            scene.cgroup(name, 1);
            scene.write(name, "pids.current", &format!("{tasks}\n"));
            scene.joins(slot, name);
        }
        scene
    }

    fn killed(scene: &Scene) -> [bool; 2] {
        ["bomb", "calm"].map(|name| scene.text(name, "cgroup.kill") == "1")
    }

    #[test]
    fn the_workload_with_most_tasks_is_killed_at_once_and_others_stay_until_the_last_of_them_was_waited_for() {
        let mut scene = scene(task_policy(MANY));
        scene.watch.sample(&Trigger::new(monotonic()));
        assert!(!scene.watch.figures.is_awaited(), "page cache has nothing to do with it");
        scene.settle();
        assert_eq!(killed(&scene), [true, false]);
        assert!(!scene.watch.scopes.episodes.is_open(), "memory was never short");
        // Nothing is left of it, and the machine has as many tasks as before.
        scene.write("bomb", "cgroup.events", "populated 0\n");
        scene.write("bomb", "pids.current", "0\n");
        scene.follow_up(monotonic());
        scene.sample();
        let reported = scene.watch.scopes.get(Scope::Node).reported.map(|last| last.outcome_and_time().0);
        assert_eq!((reported, killed(&scene)), (Some(Outcome::ComingBack), [true, false]));
    }

    #[test]
    fn tasks_are_counted_where_they_are_short_and_read_where_a_threshold_is_on_them() {
        for (policy, is_read, is_counted) in
            [(task_policy(MANY), true, true), (task_policy(-MANY), true, false), (slice_policy(1), false, false)]
        {
            let mut scene = scene(policy);
            scene.sample();
            let counted = scene.watch.workloads.table.observed()[1].facts.stats.and_then(|stats| stats.processes);
            assert_eq!((counted, scene.watch.tasks().is_some()), (is_counted.then_some(3), is_read));
            assert_eq!(scene.watch.schedule.next_sample().is_some(), is_read, "no event comes here");
        }
    }

    #[test]
    fn the_condition_is_reported_when_it_begins() {
        let mut scene = scene(task_policy(MANY));
        scene.sample();
        let frames = scene.frames();
        let mut conditions = frames.iter().filter_map(|frame| match Record::read(frame) {
            Some(Record::Plan(PlanRecord::Begin { scope: Scope::Node, conditions, .. })) => Some(conditions),
            _ => None,
        });
        assert!(conditions.next_back().is_some_and(|conditions| conditions.has(Condition::PidPressure)));
    }

    #[test]
    fn a_fork_past_the_threshold_is_a_crossing_where_one_is_configured_and_a_warning_elsewhere() {
        for (policy, is_crossing) in [(task_policy(MANY), true), (slice_policy(1), false)] {
            let mut scene = Scene::with(policy);
            let mut trigger = Trigger::new(monotonic());
            let (generation, at, cgroup) = (Generation(1), monotonic(), CgroupId(1));
            scene.watch.notice(&Wake::Tasks { count: 9, generation, at, tgid: 1, cgroup }, &mut trigger);
            scene.watch.reporting.publish();
            let frames = scene.frames();
            let is_sent =
                |is: fn(&Record<'_>) -> bool| frames.iter().filter_map(|it| Record::read(it)).any(|it| is(&it));
            assert_eq!(trigger.cause().is_some(), is_crossing);
            assert_eq!(is_sent(|it| matches!(it, Record::Threshold(ThresholdRecord::Crossed { .. }))), is_crossing);
            assert_eq!(is_sent(|it| matches!(it, Record::Machine(_))), !is_crossing);
        }
    }
}
