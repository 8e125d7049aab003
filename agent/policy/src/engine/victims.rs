//! How many workloads are evicted: as many as the deficit needs, chosen as a set.

use super::attribution::workload;
use super::rank::Short;
use super::state::{ScopeState, State, Taken, ThresholdKind};
use crate::config::Config;
use crate::eviction_policy::EvictionPolicy;
use crate::kubelet::{AT_ONCE_SECONDS, Amount, QosClass, Resource};
use crate::observation::{Observation, Workload};
use crate::plan::{Action, Deficit, NoVictim, Outcome, Plan, Ranked, Verdict, Why};
use core::time::Duration;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

/// What the victims are taken for.
#[derive(Clone, Copy)]
pub(super) struct Need {
    pub(super) why: Why,
    pub(super) short: Short,
    pub(super) missing: Amount,
    /// Will be allocated until memory is back.
    pub(super) expected: Amount,
    /// Comes back from workloads that are terminating, protected ones too, and from pods evicted for limits of their
    /// own.
    pub(super) coming: Amount,
    pub(super) kind: ThresholdKind,
    /// Less than half of a hard threshold is available.
    pub(super) is_running_out: bool,
}

/// The kubelet evicts one pod a turn, and a turn is this long (`monitoringInterval`).
const TURN: Duration = Duration::from_secs(10);

/// What stood in the way of evicting more.
#[derive(Clone, Copy, Default)]
struct Spared {
    by_rate_limit: bool,
    as_not_responsible: bool,
}

/// Takes workloads in the order of the plan's ranked list until what is missing is covered.
pub(super) fn take(
    config: &Config,
    state: &mut State,
    observation: &Observation<'_>,
    need: Need,
    now: MonotonicNs,
    plan: &mut Plan,
) -> Outcome {
    let is_soft = need.kind == ThresholdKind::Soft;
    let is_escalated =
        |index: u32| !is_soft && workload(observation, index).terminating.is_some_and(|it| it.is_graceful);
    let for_limits = plan.actions.len();
    let Need { missing, expected, coming, .. } = need;
    let mut deficit = Deficit { missing, expected, coming, taken: Amount::ZERO };
    // A hard threshold does not wait for the grace of those a soft one chose; they were chosen already.
    let in_grace = |ranked: &&mut Ranked| ranked.verdict == Verdict::Terminating && is_escalated(ranked.workload);
    for ranked in plan.ranked.iter_mut().filter(in_grace) {
        if deficit.asks(ranked) && (ranked.frees.is_positive() || ranked.grew) {
            ranked.verdict = Verdict::EscalatedToKill;
            deficit.taken = deficit.taken + ranked.frees;
            plan.actions.push(Action::EscalateToKill { workload: ranked.workload, why: need.why });
        }
    }
    let mut spared = Spared::default();
    if !deficit.covers_expected() {
        spared = choose(config, state, observation, need, now, &mut deficit, plan);
    }
    if !deficit.is_covered() && !is_soft && plan.actions.len() == for_limits {
        escalate_blindly(observation, need, plan);
    }
    plan.deficit = Some(deficit);
    if plan.actions.len() > for_limits {
        Outcome::Evict
    } else if deficit.is_covered() {
        Outcome::ComingBack
    } else if spared.as_not_responsible {
        Outcome::Unattributed
    } else if spared.by_rate_limit {
        Outcome::RateLimited
    } else if deficit.coming.is_positive() {
        Outcome::ComingBack
    } else {
        Outcome::NoVictim(why_none(need.short, plan))
    }
}

/// Where no other workload is taken, the first that a soft threshold chose and of which nothing is known has its grace
/// cut short. What it gives back is not known either: one at a time, and the next when that one is gone or stuck.
fn escalate_blindly(observation: &Observation<'_>, need: Need, plan: &mut Plan) {
    let is_terminating = |ranked: &Ranked, gracefully: bool| {
        let terminating = workload(observation, ranked.workload).terminating;
        ranked.verdict == Verdict::Terminating
            && !ranked.is_measured
            && terminating.is_some_and(|terminating| terminating.is_graceful == gracefully)
    };
    let is_awaited = plan.ranked.iter().any(|ranked| is_terminating(ranked, false));
    if is_awaited || !may_be_blind(need.short) {
        return;
    }
    if let Some(ranked) = plan.ranked.iter_mut().find(|ranked| is_terminating(ranked, true)) {
        ranked.verdict = Verdict::EscalatedToKill;
        plan.actions.push(Action::EscalateToKill { workload: ranked.workload, why: need.why });
    }
}

/// Takes new victims. Gives what stood in the way.
fn choose(
    config: &Config,
    state: &mut State,
    observation: &Observation<'_>,
    need: Need,
    now: MonotonicNs,
    deficit: &mut Deficit,
    plan: &mut Plan,
) -> Spared {
    let for_limits = plan.actions.len();
    let futile = Futile::of(state, need, deficit, now, plan);
    futile.mark(plan);
    let rules = Rules::of(config, observation, need, futile, now, plan);
    let taken = state.taken_mut(need.kind);
    let mut passed = Passed { places: taken.limit.left(now), ..Passed::default() };
    for ranked in &mut plan.ranked {
        if deficit.covers_expected() {
            break;
        }
        if !rules.may_take(ranked) {
            passed.lesser_class_remains |= is_lesser(ranked) && ranked.verdict == Verdict::NoStatistics;
            continue;
        }
        // What is expected is asked in this order of those that grew, and of none beyond the first that did not.
        passed.has_ungrown |= !ranked.growth.is_large;
        if deficit.is_covered() && passed.has_ungrown {
            break;
        }
        let candidate = workload(observation, ranked.workload);
        ranked.verdict = rules.verdict(ranked, candidate, deficit, taken, &mut passed);
        if ranked.verdict != Verdict::Evicted {
            passed.lesser_class_remains |= is_lesser(ranked);
            continue;
        }
        passed.places -= usize::from(!taken.limit.has_place(candidate.owner, now));
        let grace_ends = taken.limit.grace_ends(candidate, now);
        let grace_seconds = grace_seconds(config, need.kind, candidate, grace_ends.map(|ends| ends.since(now)));
        taken.limit.took(ranked.workload, candidate, grace(grace_seconds), now);
        taken.loops.took(candidate, now);
        deficit.taken = deficit.taken + ranked.frees;
        plan.actions.push(Action::Evict { workload: ranked.workload, why: need.why, grace_seconds });
        // What it gives back is not known, or does not help: one at a time.
        if rules.is_blind || futile.holds {
            break;
        }
    }
    let limit_ends = || futile.waits_until.or(taken.limit.next_at());
    for at in [passed.loop_ends, passed.spared.by_rate_limit.then(limit_ends).flatten()].into_iter().flatten() {
        plan.recheck_by(at);
    }
    if futile.holds && plan.actions.len() > for_limits {
        Futile::remember(state, need, now, plan);
    }
    passed.spared
}

fn is_lesser(ranked: &Ranked) -> bool {
    ranked.qos != QosClass::Guaranteed
}

/// `left`: what an earlier victim of the owner has left of its grace, where this one may be what that has become.
fn grace_seconds(config: &Config, kind: ThresholdKind, victim: &Workload<'_>, left: Option<Duration>) -> i64 {
    let left = left.map_or(i64::MAX, |left| i64::try_from(left.as_secs()).unwrap_or(i64::MAX));
    match kind {
        ThresholdKind::Soft => config.soft_grace_seconds(victim.facts.grace_seconds).min(left),
        ThresholdKind::Hard => AT_ONCE_SECONDS,
    }
}

/// Nothing where there is no time for an orderly end.
fn grace(seconds: i64) -> Duration {
    let is_some = seconds > AT_ONCE_SECONDS;
    u64::try_from(seconds).map_or(Duration::ZERO, |seconds| Duration::from_secs(if is_some { seconds } else { 0 }))
}

/// By what candidates are chosen; the same for all.
struct Rules<'a> {
    config: &'a Config,
    responsibility: Responsibility,
    futile: Futile,
    /// No statistics at all: candidates are taken without.
    is_blind: bool,
    /// Guaranteed workloads wait until no other class remains.
    classes_count: bool,
    /// None is left alone as a loop: what could be had by that is less than what the OOM killer costs.
    is_running_out: bool,
    now: MonotonicNs,
}

/// What the candidates that rank higher leave to the next one.
#[derive(Default)]
struct Passed {
    spared: Spared,
    /// So many owners may still lose workloads within this minute.
    places: usize,
    /// Its next workloads pay for the rest as one large one would.
    paying: Option<CgroupId>,
    /// Of these the limit spared one, and none that ranks lower pays for it.
    limited_class: Option<Class>,
    /// At least one is left alone as a loop; the first of them until then.
    loop_ends: Option<MonotonicNs>,
    /// The greatest priority of those: none of a greater one pays for them.
    loop_priority: Option<i32>,
    lesser_class_remains: bool,
    has_ungrown: bool,
}

/// The keys that rank before how much a workload is over its request.
type Class = (bool, i32, bool, Option<QosClass>);

impl<'a> Rules<'a> {
    fn of(
        config: &'a Config,
        observation: &Observation<'_>,
        need: Need,
        futile: Futile,
        now: MonotonicNs,
        plan: &Plan,
    ) -> Self {
        let is_memory = need.short.resource() == Resource::Memory;
        let responsibility = Responsibility::of(config, plan);
        // Without statistics no workload is known to have grown, also where memory fell by nothing.
        let needs_growth = plan.attribution.is_some() && !config.evict_for_unattributed;
        let is_blind = !needs_growth && picks_blindly(observation, need.short, plan);
        let classes_count = is_memory && config.eviction_policy == EvictionPolicy::OpenShift3;
        let is_running_out = need.is_running_out && may_be_blind(need.short);
        Self { config, responsibility, futile, is_blind, classes_count, is_running_out, now }
    }

    fn may_take(&self, ranked: &Ranked) -> bool {
        ranked.verdict == Verdict::NotNeeded || self.is_blind && ranked.verdict == Verdict::NoStatistics
    }

    /// What becomes of the next candidate.
    fn verdict(
        &self,
        ranked: &Ranked,
        candidate: &Workload<'_>,
        deficit: &Deficit,
        taken: &Taken,
        passed: &mut Passed,
    ) -> Verdict {
        let pays =
            passed.paying.is_some() && passed.paying == ranked.owner || self.responsibility.covers(ranked, deficit);
        if pays {
            passed.paying = ranked.owner;
        }
        // One that grows while it is frozen cannot be held, and pays in any case.
        if !pays && !candidate.grows_while_frozen {
            passed.spared.as_not_responsible = true;
            return Verdict::NotResponsible;
        }
        let alone_until = taken.loops.left_alone_until(candidate, self.config);
        let is_left_alone = |until: &MonotonicNs| ranked.exceeds && !self.is_running_out && *until > self.now;
        if let Some(until) = alone_until.filter(is_left_alone) {
            passed.loop_ends = Some(passed.loop_ends.map_or(until, |earlier| earlier.min(until)));
            passed.loop_priority = passed.loop_priority.max(Some(ranked.priority));
            return Verdict::Looping(until);
        }
        if passed.loop_priority.is_some_and(|of_loops| !ranked.exceeds || ranked.priority > of_loops) {
            return Verdict::SparedByLoop;
        }
        if self.classes_count && !is_lesser(ranked) && passed.lesser_class_remains {
            return Verdict::ClassRemains;
        }
        let class = (ranked.exceeds, ranked.priority, ranked.growth.is_large, self.classes_count.then_some(ranked.qos));
        if self.futile.waits_until.is_some()
            || passed.places == 0 && !taken.limit.has_place(candidate.owner, self.now)
            || passed.limited_class.is_some_and(|limited| limited != class)
        {
            passed.limited_class = passed.limited_class.or(Some(class));
            passed.spared.by_rate_limit = true;
            return Verdict::RateLimited;
        }
        Verdict::Evicted
    }
}

/// What growth says of whether workloads pay for what is missing.
#[derive(Clone, Copy, Default)]
struct Responsibility {
    /// Most of it is in nothing that may be evicted.
    is_unattributed: bool,
    /// Held by workloads of which no process is left.
    left_behind: Bytes,
}

impl Responsibility {
    /// Nothing where it does not count.
    fn of(config: &Config, plan: &Plan) -> Self {
        let Some(attribution) = plan.attribution.filter(|_| !config.evict_for_unattributed) else {
            return Self::default();
        };
        Self {
            is_unattributed: !attribution.is_evictable(config.responsible_percent),
            left_behind: attribution.left_behind,
        }
    }

    /// What is left behind comes back by evicting nothing: for that much, only workloads of owners that grew pay.
    fn covers(self, ranked: &Ranked, deficit: &Deficit) -> bool {
        let is_left_behind = deficit.uncovered().to_bytes() <= self.left_behind;
        !self.is_unattributed && (ranked.growth.is_large || !is_left_behind)
    }
}

/// Evicting for a disk, or for processes, where all that may be evicted together do not free what is missing.
#[derive(Clone, Copy, Default)]
struct Futile {
    holds: bool,
    /// No eviction before then.
    waits_until: Option<MonotonicNs>,
    /// What an eviction must free at least.
    least: Amount,
}

impl Futile {
    fn of(state: &mut State, need: Need, deficit: &Deficit, now: MonotonicNs, plan: &Plan) -> Self {
        let Short::Signal(signal) = need.short else { return Self::default() };
        if signal.resource() == Resource::Memory {
            return Self::default();
        }
        let may_go = plan.ranked.iter().filter(|ranked| ranked.verdict == Verdict::NotNeeded);
        let all: Amount = may_go.map(|ranked| ranked.frees).sum();
        if all >= deficit.uncovered() {
            return Self::default();
        }
        // A soft threshold waits for the victims of a hard one, too, and never the other way.
        let of_kinds = |scope: &mut ScopeState| {
            scope.futile[..=need.kind as usize].iter().filter_map(|futile| futile[signal as usize]).max()
        };
        let last = state.scope(plan.scope).and_then(of_kinds);
        let waits_until = last.map(|last| last.after(TURN)).filter(|until| *until > now);
        Self { holds: true, waits_until, least: Amount::nanos(need.missing.as_nanos() / 100) }
    }

    /// Passes over candidates that free too little.
    fn mark(self, plan: &mut Plan) {
        plan.is_futile = self.holds;
        for ranked in plan.ranked.iter_mut().filter(|ranked| ranked.verdict == Verdict::NotNeeded) {
            if self.holds && ranked.frees < self.least {
                ranked.verdict = Verdict::TooLittle;
            }
        }
    }

    fn remember(state: &mut State, need: Need, now: MonotonicNs, plan: &Plan) {
        if let (Short::Signal(signal), Some(scope)) = (need.short, state.scope(plan.scope)) {
            scope.futile[need.kind as usize][signal as usize] = Some(now);
        }
    }
}

/// Whether a workload is taken without statistics: only when none at all has any, and none is terminating already.
fn picks_blindly(observation: &Observation<'_>, short: Short, plan: &Plan) -> bool {
    let is_coming = |ranked: &Ranked| workload(observation, ranked.workload).terminating.is_some_and(|it| !it.is_stuck);
    let is_known = plan.ranked.iter().any(|ranked| ranked.is_measured || is_coming(ranked));
    !is_known && may_be_blind(short)
}

/// Whether a workload can be taken of which nothing is known: of memory and processes, without which the machine stands
/// still. A disk that nothing is known about costs none.
fn may_be_blind(short: Short) -> bool {
    matches!(short.resource(), Resource::Memory | Resource::Pids)
}

fn why_none(short: Short, plan: &Plan) -> NoVictim {
    let has = |is: fn(Verdict) -> bool| plan.ranked.iter().any(|ranked| is(ranked.verdict));
    let is_measured = plan.ranked.iter().any(|ranked| ranked.is_measured);
    if plan.ranked.is_empty() {
        NoVictim::NoCandidates
    } else if has(|verdict| matches!(verdict, Verdict::Looping(_))) {
        NoVictim::OnlyLoops
    } else if has(|verdict| verdict == Verdict::NoStatistics) {
        if is_measured || may_be_blind(short) { NoVictim::NoStatistics } else { NoVictim::NoUsableRanking }
    } else if has(|verdict| verdict == Verdict::TooLittle) {
        NoVictim::TooLittle
    } else if has(|verdict| verdict == Verdict::NothingToFree) {
        NoVictim::NothingToFree
    } else {
        NoVictim::AllProtected
    }
}
