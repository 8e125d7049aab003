//! One turn: from an observation to a plan.

use super::config::Config;
use super::judge::judge;
use super::observation::{Observation, Pod};
use super::plan::{Action, Limited, Outcome, Plan, Stage, Why};
use super::ranking::{Short, coming, coming_by_limits, rank};
use super::reclaim::{Step, choose_images, step, unused};
use super::state::{InVain, State};
use super::victims::{Need, take};
use crate::kubelet::{AT_ONCE_SECONDS, Amount, DiskLayout, Readings, Resource, Signal, over_limit};
use crate::plan::Case;
use plimsoll_units::MonotonicNs;

/// Decides what to do about `observation`, at `now`, and writes it into `plan`.
///
/// `state` remembers what the next turn needs; it was made for the same `config`. Pods that the plan names count as
/// taken: the caller reports them as going from the next observation on. Allocates nothing.
pub fn decide(config: &Config, state: &mut State, observation: &Observation<'_>, now: MonotonicNs, plan: &mut Plan) {
    plan.clear();
    plan.conditions = state.conditions;
    state.hear(observation.reclaimed);
    let Some(layout) = state.layout.or(observation.layout) else {
        plan.outcome = Outcome::NoLayout;
        return;
    };
    state.layout = Some(layout);
    let Some(node) = &observation.node else {
        plan.outcome = Outcome::NoStatistics;
        return;
    };
    let readings = Readings::of(node);
    judge(config, state, &readings, observation, now, plan);
    let last = core::mem::replace(&mut state.last, readings);
    let mem_available_time = observation.mem_available.and(observation.mem_available_time);
    let last_mem_available = core::mem::replace(&mut state.last_mem_available, mem_available_time);
    forget_clean_ups(config, state, plan);

    let seen = observation.pods.len().min(plan.room);
    plan.overlooked = observation.pods.len() - seen;
    let observation = Observation { pods: &observation.pods[..seen], ..*observation };
    if config.local_storage_isolation {
        enforce_limits(observation.pods, layout, state, plan);
    }
    let for_limits = plan.actions.len();
    let mut turn = Turn {
        config,
        state,
        observation: &observation,
        readings: &readings,
        last: &last,
        has_fresh_mem_available: mem_available_time > last_mem_available,
        layout,
        now,
    };
    turn.act(plan);
    if for_limits > 0 && plan.actions.len() == for_limits {
        plan.outcome = Outcome::OverLimits;
        plan.acting = None;
        plan.deficit = None;
        plan.ranked.clear();
    }
}

/// A clean-up counts for as long as some line on its signal is crossed; for hard thresholds, as long as a hard one is.
fn forget_clean_ups(config: &Config, state: &mut State, plan: &Plan) {
    for signal in Signal::ALL {
        let is_crossed = |of_soft: bool| {
            plan.judged.iter().any(|judged| {
                judged.since.is_some()
                    && matches!(short(config, judged.line), Some(Short::Signal(own)) if own == signal)
                    && (of_soft || !is_soft(config, judged.line))
            })
        };
        for of_soft in [false, true] {
            if !is_crossed(of_soft) {
                state.forget(signal, of_soft);
            }
        }
    }
}

/// Whether a line has a grace period.
fn is_soft(config: &Config, line: Why) -> bool {
    match line {
        Why::Threshold(index) => config.thresholds.get(index as usize).is_some_and(|threshold| !threshold.is_hard()),
        Why::Swap | Why::Limit(_) => false,
    }
}

/// What is short when a threshold is crossed.
fn short(config: &Config, line: Why) -> Option<Short> {
    match line {
        Why::Threshold(index) => Some(Short::Signal(config.thresholds.get(index as usize)?.signal)),
        Why::Swap => Some(Short::Swap),
        Why::Limit(_) => None,
    }
}

/// Evicts pods over limits of their own.
fn enforce_limits(pods: &[Pod<'_>], layout: DiskLayout, state: &mut State, plan: &mut Plan) {
    for (index, pod) in (0_u32..).zip(pods).filter(|(_, pod)| pod.going.is_none()) {
        if let Some(limit) = over_limit(&pod.facts, layout) {
            plan.limited.push(Limited { pod: index, counts: !state.over_limits.contains(&pod.uid) });
            plan.actions.push(Action::Evict { pod: index, why: Why::Limit(limit), grace_seconds: AT_ONCE_SECONDS });
        }
    }
    state.over_limits.clear();
    // Never more than there is room for, if the plan has more of it than the state.
    let room = state.over_limits.capacity();
    state.over_limits.extend(plan.limited.iter().take(room).map(|limited| pods[limited.pod as usize].uid));
}

/// In which order crossed thresholds are acted on: those that can do something first; hard before soft, so that no soft
/// threshold ever delays a hard one; then memory before the rest, as the kubelet does; then as configured.
type Turns = (bool, bool, bool, u32);

/// What one turn looks at.
struct Turn<'a> {
    config: &'a Config,
    state: &'a mut State,
    observation: &'a Observation<'a>,
    readings: &'a Readings,
    last: &'a Readings,
    /// The kernel's own estimate of memory has a time, and it is newer than the last turn's.
    has_fresh_mem_available: bool,
    layout: DiskLayout,
    now: MonotonicNs,
}

impl Turn<'_> {
    /// Acts on one line: the first, in order, for which something can be done.
    fn act(&mut self, plan: &mut Plan) {
        let mut before = None;
        let mut without_victim = None;
        let mut waiting = None;
        let for_limits = plan.actions.len();
        while let Some(turns) = self.next_after(before, plan) {
            before = Some(turns);
            let outcome = self.act_on(turns.3, plan);
            if plan.actions.len() > for_limits {
                plan.outcome = outcome;
                plan.acting = Some(turns.3);
                return;
            }
            let nothing = if plan.deficit.is_some() { &mut without_victim } else { &mut waiting };
            nothing.get_or_insert((outcome, turns.3));
            plan.deficit = None;
            plan.ranked.clear();
        }
        match (without_victim, waiting) {
            // What the plan tells of pods is about the first line that found nobody.
            (Some((outcome, acting)), _) => {
                self.act_on(acting, plan);
                (plan.outcome, plan.acting) = (outcome, Some(acting));
            }
            (None, Some((outcome, acting))) => (plan.outcome, plan.acting) = (outcome, Some(acting)),
            (None, None) if plan.judged.iter().any(|judged| judged.since.is_some()) => plan.outcome = Outcome::InGrace,
            (None, None) => plan.outcome = Outcome::Calm,
        }
    }

    /// The next threshold to act on.
    fn next_after(&self, before: Option<Turns>, plan: &Plan) -> Option<Turns> {
        let met = (0_u32..).zip(&plan.judged).filter(|(_, judged)| judged.is_met);
        met.filter_map(|(index, judged)| {
            let short = short(self.config, judged.line)?;
            // While pods go for limits of their own, soft thresholds wait and hard ones do not; but not for one whose
            // kill failed.
            if self.is_soft(judged.line) && plan.limited.iter().any(|limited| limited.counts) {
                return None;
            }
            let is_passive = match self.step(index, short, plan) {
                Some(Step::Evict | Step::Reclaim(_)) => false,
                Some(Step::Await | Step::ComingBack | Step::LeaveCache) | None => true,
            };
            Some((is_passive, self.is_soft(judged.line), short.resource() != Resource::Memory, index))
        })
        .filter(|turns| before.is_none_or(|before| *turns > before))
        .min()
    }

    fn is_soft(&self, line: Why) -> bool {
        is_soft(self.config, line)
    }

    /// Whether what a signal is judged by is newer than the last turn's. Of memory that is below by the kernel's
    /// estimate that one is enough: the kernel does not wait for the kubelet's statistics.
    fn is_fresh(&self, signal: Signal, case: Case) -> bool {
        let goes_by_mem_available =
            signal == Signal::MemoryAvailable && matches!(case, Case::MemAvailableOnly | Case::Both);
        self.readings.is_fresh(signal, self.last) || goes_by_mem_available && self.has_fresh_mem_available
    }

    /// What a line asks for; nothing on figures that are not newer than the last turn's.
    fn step(&self, index: u32, short: Short, plan: &Plan) -> Option<Step> {
        let Self { config, state, observation, readings, layout, now, .. } = self;
        let Short::Signal(signal) = short else { return Some(Step::Evict) };
        let judged = &plan.judged[index as usize];
        if !self.is_fresh(signal, judged.case) {
            return None;
        }
        let is_covered = || self.coming(judged.line, short, plan) >= judged.missing;
        let is_soft = self.is_soft(judged.line);
        Some(match step(config, state, *layout, (signal, is_soft, judged), (readings, observation), *now) {
            // Nothing is cleaned up for what comes back by itself.
            Step::Reclaim(_) if is_covered() => Step::ComingBack,
            step => step,
        })
    }

    /// What comes back of what is short by itself.
    fn coming(&self, line: Why, short: Short, plan: &Plan) -> Amount {
        let Self { observation: Observation { pods, .. }, layout, .. } = self;
        coming(pods, short, *layout, self.is_soft(line)) + coming_by_limits(plan, pods, short, *layout)
    }

    fn act_on(&mut self, index: u32, plan: &mut Plan) -> Outcome {
        let judged = plan.judged[index as usize];
        let Some(short) = short(self.config, judged.line) else { return Outcome::Calm };
        match (self.step(index, short, plan), short) {
            (None, _) => Outcome::Stale,
            (Some(Step::Await), _) => Outcome::Reclaiming,
            (Some(Step::ComingBack), _) => Outcome::ComingBack,
            (Some(Step::LeaveCache), _) => Outcome::CacheInUse,
            (Some(Step::Reclaim(stage)), Short::Signal(signal)) => {
                let images = self.observation.images;
                if stage == Stage::Images {
                    choose_images(short.resource(), judged.missing, images, plan);
                }
                let is_soft = self.is_soft(judged.line);
                let order = self.state.ask(signal, is_soft, stage, judged.line, unused(images), self.now);
                plan.actions.push(Action::Reclaim(order));
                plan.recheck_by(self.now.after(self.config.reclaim_pause));
                Outcome::Reclaiming
            }
            (Some(Step::Evict), _) | (Some(Step::Reclaim(_)), Short::Swap) => {
                let need = Need {
                    line: judged.line,
                    short,
                    missing: judged.missing,
                    coming: self.coming(judged.line, short, plan),
                    is_soft: self.is_soft(judged.line),
                };
                rank(
                    self.observation.pods,
                    short,
                    self.layout,
                    self.config.memory_order,
                    &self.state.taken(need.is_soft).loops,
                    plan,
                );
                let outcome = take(self.config, self.state, self.observation, need, self.now, plan);
                if let Short::Signal(signal) = short {
                    self.after(outcome, signal, need.is_soft, plan);
                }
                outcome
            }
        }
    }

    /// What somebody had to be looked for means for clean-ups on the signal.
    fn after(&mut self, outcome: Outcome, signal: Signal, is_soft: bool, plan: &mut Plan) {
        let Self { config, state, observation, now, .. } = self;
        if outcome == Outcome::Evict {
            // What victims leave behind can be cleaned up before others have to go.
            state.forget(signal, true);
            if !is_soft {
                state.forget(signal, false);
            }
        } else if matches!(signal.resource(), Resource::EphemeralStorage | Resource::Inodes) {
            // What dies or is left unused meanwhile can be cleaned up as long as nobody goes.
            let unused_images = unused(observation.images);
            let in_vain = InVain { at: *now, dead_containers: observation.dead_containers, unused_images };
            let again = state.was_in_vain(signal, is_soft, in_vain).map(|at| at.after(config.reclaim_pause));
            if let Some(again) = again.filter(|again| again > now) {
                plan.recheck_by(again);
            }
        }
    }
}
