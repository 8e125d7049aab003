//! One sample: read, decide for each scope, have it carried out, and arm what wakes the thread next.

use plimsoll_node::clock::monotonic;
use plimsoll_policy::{Config as Policy, MemoryReading, Outcome, Plan, Scope, State, decide};
use plimsoll_units::MonotonicNs;

use super::super::episode;
use super::super::inventory::Request;
use super::Watch;
use super::reporting::{Made, is_quiet};
use super::sampling::Sample;
use super::schedule::BELOW_PACE_MOST;
use super::scopes::hard_threshold;
use super::triggers::Trigger;
use crate::record::{Cause, HealthRecord, ThresholdRecord};

/// The decisions, in storage made beforehand.
pub(super) struct Engine {
    pub(super) policy: Policy,
    pub(super) state: State,
    pub(super) plan: Plan,
    /// The number of the last plan.
    pub(super) number: u64,
}

impl Engine {
    /// For as many workloads as the table has room for.
    pub(super) fn new(policy: Policy, slots: usize) -> Self {
        Self {
            state: State::with_capacity(&policy, slots),
            plan: Plan::with_capacity(&policy, slots, 0),
            number: 0,
            policy,
        }
    }
}

/// What the plans of one sample say together.
#[derive(Clone, Copy, Debug)]
struct Summary {
    /// No threshold is crossed.
    is_quiet: bool,
    /// Victims are chosen, or memory of earlier ones comes back.
    is_evicting: bool,
    /// A threshold is crossed whose grace is over.
    is_met: bool,
}

impl Summary {
    const NONE: Self = Self { is_quiet: true, is_evicting: false, is_met: false };

    fn with(self, plan: &Plan) -> Self {
        Self {
            is_quiet: self.is_quiet && is_quiet(plan.outcome),
            is_evicting: self.is_evicting || matches!(plan.outcome, Outcome::Evict | Outcome::ComingBack),
            is_met: self.is_met || plan.thresholds.iter().any(|status| status.is_met),
        }
    }
}

impl Watch {
    pub(super) fn sample(&mut self, trigger: &Trigger) {
        self.schedule.sampled();
        let trigger = &trigger.after(self.figures.waiting.take().as_ref());
        let Some((sample, memory)) = self.observe(trigger) else {
            self.reporting.send(HealthRecord::Failed { what: "read /proc/meminfo", errno: None });
            return self.schedule.sample_by(trigger.awake.after(BELOW_PACE_MOST));
        };
        if self.awaits_figures(&sample, trigger) {
            return;
        }
        self.reporting.observed(&sample, &self.scopes, &self.workloads.table);
        let mut summary = Summary::NONE;
        for scope in self.scopes.all() {
            self.decide(scope, &sample, trigger);
            summary = summary.with(&self.engine.plan);
        }
        let now = sample.completed;
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
            self.schedule.is_below(is_under_way || trigger.crossed.is_some(), now);
        }
        self.rearm(trigger, &memory, summary.is_quiet, now);
        let headroom = self.scopes.headroom(&self.engine.policy);
        let cost = monotonic().since(sample.taken);
        self.workloads.handle.sampled(headroom, cost, self.schedule.delayed());
    }

    /// Reads everything, and freezes what grows before the workloads are read. Absent where the machine's memory cannot
    /// be read. Beside the sample: that memory as it is decided by.
    fn observe(&mut self, trigger: &Trigger) -> Option<(Sample, MemoryReading)> {
        let taken = monotonic();
        let machine = self.sampler.machine()?;
        let policy = &self.engine.policy;
        let memory = machine.decided_by(policy.eviction_policy);
        for scope in self.scopes.all() {
            self.scopes.get_mut(scope).reading = match scope {
                Scope::Node => Some(memory),
                Scope::Slice(slice) => self.workloads.table.slice_reading(slice.0.into()),
            };
        }
        let depth = self.scopes.depth(policy);
        if self.scopes.episodes.sample(depth, trigger.crossed, taken) {
            self.figures.crossed(taken);
        }
        if let Some(crossed) = trigger.crossed {
            self.figures.crossed(crossed);
        }
        self.freeze_growers(trigger);
        let completed = monotonic();
        self.workloads.table.observe(self.engine.policy.max_pod_grace_seconds, completed);
        if let Some(enforcer) = &self.enforcement.enforcer {
            enforcer.brakes.growing().for_each(|id| self.workloads.table.set_grows_while_frozen(id));
        }
        let (stall, is_below) = (self.sampler.stall(completed), depth.iter().any(|below| *below > 0));
        let sample = Sample { taken, completed, machine, stall, is_below };
        Some((sample, memory))
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
        let made = Made { plan, number: self.engine.number, trigger, is_shadow };
        self.reporting.plan(made, &self.workloads.table, &mut self.scopes.get_mut(scope).reported, now);
        if plan.outcome == Outcome::Unattributed {
            self.workloads.handle.request(Request::Suspects);
        }
        if let Some(at) = plan.recheck_at {
            self.schedule.sample_by(at);
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
