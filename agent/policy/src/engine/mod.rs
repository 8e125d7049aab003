//! The engine behind the policies `plimsoll` and `openshift3`: the kubelet's thresholds, conditions, ranking and
//! messages over workloads, with pod facts or without, for the node and for slices, without the defects that users
//! report.
//!
//! Every difference from the kubelet has a paragraph in `agent/docs/eviction-policies.md`. Where to find it:
//!
//! - [`thresholds`]: which are crossed, by which reading, since when; conditions; swap's own.
//! - [`attribution`]: which workloads took the memory since it was last plentiful.
//! - [`account`]: what all workloads of one owner use, request and grew by together.
//! - [`left_behind`]: which of them may hold what its empty cgroups are charged with.
//! - [`reclaim`]: what is reclaimed on the node first, in which order, and when that was enough.
//! - [`limits`]: pods over limits of their own.
//! - [`rank`]: which workload would be evicted first, and which cannot be; [`openshift3`] is another order.
//! - [`victims`]: how many are evicted, what is coming back already, and the limits a minute.
//! - [`loops`]: pods that return at once and are over their request again.
//! - [`unaccounted`]: whether a workload that is not observed may have taken what is short.
//! - [`unreaped`]: processes that victims leave behind until they are waited for.
//! - [`state`]: what is remembered; [`kept`]: what of it outlives the process.
//!
//! [`decide`] puts these together. Nothing here reads a file or a clock, kills, or allocates.

mod account;
mod attribution;
mod kept;
mod left_behind;
mod limits;
mod loops;
mod openshift3;
mod rank;
mod reclaim;
mod state;
mod thresholds;
mod unaccounted;
mod unreaped;
mod victims;

use crate::config::Config;
use crate::kubelet::{AT_ONCE_SECONDS, Amount, DiskLayout, Readings, Resource, Signal};
use crate::observation::Observation;
use crate::plan::{Attribution, Case, Outcome, Plan, Stage, ThresholdStatus, Why};
use core::cmp::Reverse;
use core::time::Duration;
pub(crate) use kept::{Keep, Kept};
use left_behind::LeftBehind;
use plimsoll_units::MonotonicNs;
use rank::{By, Short, Waits, coming, coming_by_limits, rank};
use reclaim::{Step, choose_images, step, unused};
pub(crate) use state::State;
use state::{InVain, ScopeState, ThresholdKind};
pub(crate) use unaccounted::is_unaccounted;
use unreaped::Unreaped;
use victims::{Need, take};

/// Seconds that a victim has where there is no time for an orderly end.
const AT_ONCE: u64 = AT_ONCE_SECONDS.unsigned_abs();

/// Decides what to do about `observation`, at `now`, and writes it into `plan`.
pub(crate) fn decide(
    config: &Config,
    state: &mut State,
    observation: &Observation<'_>,
    now: MonotonicNs,
    plan: &mut Plan,
) {
    plan.clear(observation.scope, observation.taken, now);
    state.settle(observation.workloads);
    let layout = state.layout.or(observation.layout);
    state.layout = layout;
    let Some(scope) = state.scope(observation.scope) else {
        plan.outcome = Outcome::NotObserved;
        return;
    };
    plan.conditions = scope.conditions;
    scope.reported(observation.reclaimed);
    let Some(layout) = layout else {
        plan.outcome = Outcome::NoLayout;
        return;
    };
    let Some(readings) = observation.readings.map(|readings| readings.in_scope(observation.scope)) else {
        plan.outcome = Outcome::NoStatistics;
        return;
    };
    let seen = observation.workloads.len().min(plan.capacity);
    plan.overlooked = u32::try_from(observation.workloads.len() - seen).unwrap_or(u32::MAX);
    let observation = Observation { workloads: &observation.workloads[..seen], ..*observation };
    thresholds::judge(config, scope, &readings, &observation, now, plan);
    attribution::remember(config, scope, &readings, &observation);
    let last = core::mem::replace(&mut scope.last, readings);
    let mem_available_at = observation.mem_available.and(observation.mem_available_at);
    let last_mem_available_at = core::mem::replace(&mut scope.last_mem_available_at, mem_available_at);
    forget_reclaims(config, scope, plan);
    if config.local_storage_isolation && observation.scope == crate::Scope::Node {
        limits::enforce(observation.workloads, layout, state, plan);
    }
    let for_limits = plan.actions.len();
    let mut turn = Turn {
        config,
        state,
        observation: &observation,
        readings: &readings,
        last: &last,
        has_fresh_mem_available: mem_available_at > last_mem_available_at,
        layout,
        now,
    };
    turn.act(plan);
    if for_limits > 0 && plan.actions.len() == for_limits {
        plan.outcome = Outcome::OverLimits;
        plan.acting = None;
        plan.deficit = None;
        plan.is_futile = false;
        plan.attribution = None;
        plan.ranked.clear();
    }
}

/// Takes in an observation without workloads, which nothing is decided about.
pub(crate) fn rest(config: &Config, state: &mut State, observation: &Observation<'_>) {
    let readings = observation.readings.map(|readings| readings.in_scope(observation.scope));
    if let Some((scope, readings)) = state.scope(observation.scope).zip(readings) {
        attribution::rest(config, scope, &readings, observation);
    }
}

/// Ranks as [`decide`] would if memory were short now, for a caller that asks while it is not: which workload would be
/// evicted first, and which never. None has grown, since nothing is remembered.
pub(crate) fn ranking(config: &Config, observation: &Observation<'_>, plan: &mut Plan) {
    plan.clear(observation.scope, observation.taken, observation.taken);
    let seen = observation.workloads.len().min(plan.capacity);
    let observation = Observation { workloads: &observation.workloads[..seen], ..*observation };
    let by = By {
        policy: config.eviction_policy,
        short: Short::Signal(Signal::MemoryAvailable),
        layout: observation.layout.unwrap_or(DiskLayout::Single),
        loops: None,
        baseline: None,
        responsible_percent: config.responsible_percent,
        waits: Waits::ForKilled,
        returns_within: Duration::ZERO,
        now: observation.taken,
    };
    rank(&observation, by, plan);
}

/// A reclaim counts for as long as a threshold on its signal is crossed; for hard ones, as long as a hard one is.
fn forget_reclaims(config: &Config, scope: &mut ScopeState, plan: &Plan) {
    for signal in Signal::ALL {
        for kind in ThresholdKind::BOTH {
            let is_crossed = plan.thresholds.iter().any(|status| {
                status.since.is_some()
                    && short(config, plan, status.why) == Some(Short::Signal(signal))
                    && kind_of(config, plan, status.why) <= kind
            });
            if !is_crossed {
                scope.forget(signal, kind);
            }
        }
    }
}

/// Whether a threshold has a grace period.
fn kind_of(config: &Config, plan: &Plan, why: Why) -> ThresholdKind {
    match why {
        Why::Threshold(index) => {
            config.thresholds_in(plan.scope).get(index as usize).map_or(ThresholdKind::Hard, ThresholdKind::of)
        }
        Why::Swap | Why::Limit(_) => ThresholdKind::Hard,
    }
}

/// What is short when a threshold is crossed.
fn short(config: &Config, plan: &Plan, why: Why) -> Option<Short> {
    match why {
        Why::Threshold(_) => Some(Short::Signal(config.signal_of(plan.scope, why)?)),
        Why::Swap => Some(Short::Swap),
        Why::Limit(_) => None,
    }
}

/// In which order crossed thresholds are acted on: by these fields, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Precedence {
    /// Those for which something can be done come first.
    is_passive: bool,
    /// Hard before soft, so that no soft one ever delays a hard one.
    kind: ThresholdKind,
    /// Memory before the rest, as the kubelet does.
    is_other: bool,
    /// Of memory, evicting before reclaiming.
    reclaims: bool,
    /// Of memory, the one that misses more first.
    missing: Reverse<Amount>,
    /// Then as configured.
    index: u32,
}

/// What one turn decides about.
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
    /// Acts on one threshold: the first, in order, for which something can be done.
    fn act(&mut self, plan: &mut Plan) {
        let mut before = None;
        let mut without_victim = None;
        let mut waiting = None;
        let for_limits = plan.actions.len();
        while let Some(next) = self.next_after(before, plan) {
            before = Some(next);
            let index = next.index;
            let outcome = self.act_on(index, plan);
            if plan.actions.len() > for_limits {
                (plan.outcome, plan.acting) = (outcome, Some(index));
                self.recheck_reclaims(plan);
                return;
            }
            let nothing = if plan.deficit.is_some() { &mut without_victim } else { &mut waiting };
            nothing.get_or_insert((outcome, index));
            plan.deficit = None;
            plan.is_futile = false;
            plan.attribution = None;
            plan.ranked.clear();
        }
        match (without_victim, waiting) {
            // What the plan says of workloads is about the first threshold that found no victim. It finds none again: the plan
            // is as it was then.
            (Some((outcome, acting)), _) => {
                self.act_on(acting, plan);
                (plan.outcome, plan.acting) = (outcome, Some(acting));
            }
            (None, Some((outcome, acting))) => (plan.outcome, plan.acting) = (outcome, Some(acting)),
            (None, None) if plan.thresholds.iter().any(|status| status.since.is_some()) => {
                plan.outcome = Outcome::InGrace;
            }
            (None, None) if plan.thresholds.is_empty() => plan.outcome = Outcome::NotObserved,
            (None, None) => plan.outcome = Outcome::NoPressure,
        }
        self.recheck_reclaims(plan);
    }

    /// What waits for a reclaim of memory may ask for another after its pause.
    fn recheck_reclaims(&mut self, plan: &mut Plan) {
        let Self { config, now, .. } = *self;
        let Some(scope) = self.state.scope(plan.scope) else { return };
        for asked in scope.asked_of_memory() {
            let again = asked.at.after(config.reclaim_pause);
            if again > now {
                plan.recheck_by(again);
            }
        }
    }

    /// The next threshold to act on.
    fn next_after(&mut self, before: Option<Precedence>, plan: &Plan) -> Option<Precedence> {
        let mut next: Option<Precedence> = None;
        for (index, status) in (0_u32..).zip(&plan.thresholds).filter(|(_, status)| status.is_met) {
            let Some(short) = short(self.config, plan, status.why) else { continue };
            let kind = kind_of(self.config, plan, status.why);
            // While pods are evicted for limits of their own, soft thresholds wait and hard ones do not; but not for
            // one whose kill failed.
            if kind == ThresholdKind::Soft && plan.limited.iter().any(|limited| limited.counts) {
                continue;
            }
            let step = self.step(index, short, plan);
            let is_passive = !matches!(step, Some(Step::Evict | Step::Reclaim(_)));
            let is_memory = short.resource() == Resource::Memory;
            let reclaims = is_memory && step != Some(Step::Evict);
            let missing = if is_memory { status.missing() } else { Amount::ZERO };
            let missing = Reverse(missing);
            let own = Precedence { is_passive, kind, is_other: !is_memory, reclaims, missing, index };
            if before.is_none_or(|before| own > before) {
                next = Some(next.map_or(own, |next| next.min(own)));
            }
        }
        next
    }

    /// Whether what a signal is judged by is newer than the last turn's. Of memory that is below by the kernel's
    /// estimate that one is enough: the kernel does not wait for the kubelet's statistics.
    fn is_fresh(&self, signal: Signal, case: Case) -> bool {
        let goes_by_kernel = signal == Signal::MemoryAvailable && matches!(case, Case::MemAvailableOnly | Case::Both);
        self.readings.is_fresh(signal, self.last) || goes_by_kernel && self.has_fresh_mem_available
    }

    /// What a threshold asks for; nothing on figures that are not newer than the last turn's.
    fn step(&mut self, index: u32, short: Short, plan: &Plan) -> Option<Step> {
        let Short::Signal(signal) = short else { return Some(Step::Evict) };
        let status = plan.thresholds[index as usize];
        if !self.is_fresh(signal, status.case) {
            return None;
        }
        let kind = kind_of(self.config, plan, status.why);
        let Self { config, observation, readings, layout, now, .. } = *self;
        let scope = self.state.scope(plan.scope)?;
        Some(match step(config, scope, layout, (signal, kind, &status), (readings, observation), now) {
            // Nothing is reclaimed for what comes back by itself.
            Step::Reclaim(_) if self.coming(&status, short, plan) >= status.missing() => Step::ComingBack,
            step => step,
        })
    }

    /// What comes back of what is short by itself.
    fn coming(&self, status: &ThresholdStatus, short: Short, plan: &Plan) -> Amount {
        let Self { config, observation, layout, .. } = *self;
        let (waits, _) = self.waits(kind_of(config, plan, status.why));
        coming(observation, short, layout, waits) + coming_by_limits(plan, observation, short, layout)
    }

    /// What comes back of processes that belong to no workload any more.
    fn unreaped(&mut self, short: Short, kind: ThresholdKind, scope: crate::Scope) -> Amount {
        let Self { readings, observation, now, .. } = *self;
        let known = self.state.scope(scope).and_then(|scope| scope.unreaped[kind as usize].as_mut());
        let known = known.filter(|_| short.resource() == Resource::Pids);
        known.map_or(Amount::ZERO, |known| known.coming(readings, observation, now))
    }

    /// For which terminating workloads a threshold waits, and how long it takes until the memory of a victim is back.
    fn waits(&self, kind: ThresholdKind) -> (Waits, Duration) {
        match kind {
            ThresholdKind::Hard => (Waits::ForKilled, attribution::RETURNS_WITHIN),
            ThresholdKind::Soft => {
                let most = u64::try_from(self.config.max_pod_grace_seconds).unwrap_or(0).max(AT_ONCE);
                let most = Duration::from_secs(most);
                (Waits::Until(self.now.after(most)), most + attribution::RETURNS_WITHIN)
            }
        }
    }

    /// Ranks all workloads for a threshold. Gives what grew together, and what of it is left behind.
    fn rank(&mut self, short: Short, kind: ThresholdKind, plan: &mut Plan) -> (Attribution, LeftBehind) {
        let Self { config, observation, layout, now, .. } = *self;
        let (waits, returns_within) = self.waits(kind);
        let scope = plan.scope;
        let Some(known) = self.state.scope(scope) else { return <_>::default() };
        let baseline = core::mem::take(&mut known.baselines[kind as usize]);
        let is_memory = matches!(short, Short::Signal(signal) if signal.resource() == Resource::Memory);
        let by = By {
            policy: config.eviction_policy,
            short,
            layout,
            loops: Some(&self.state.taken(kind).loops),
            baseline: is_memory.then_some(&baseline),
            responsible_percent: config.responsible_percent,
            waits,
            returns_within,
            now,
        };
        let grown = rank(observation, by, plan);
        if let Some(known) = self.state.scope(scope) {
            known.baselines[kind as usize] = baseline;
        }
        grown
    }

    fn act_on(&mut self, index: u32, plan: &mut Plan) -> Outcome {
        let status = plan.thresholds[index as usize];
        let Some(short) = short(self.config, plan, status.why) else { return Outcome::NoPressure };
        let kind = kind_of(self.config, plan, status.why);
        match (self.step(index, short, plan), short) {
            (None, _) => Outcome::Stale,
            (Some(Step::Await), _) => Outcome::Reclaiming,
            (Some(Step::ComingBack), _) => Outcome::ComingBack,
            (Some(Step::LeaveCache), _) => Outcome::CacheInUse,
            (Some(Step::Reclaim(stage)), Short::Signal(signal)) => {
                let images = self.observation.images;
                match stage {
                    // It is taken from workloads in the order in which they would be evicted.
                    Stage::Memory(_) => _ = self.rank(short, kind, plan),
                    Stage::Images => choose_images(short.resource(), status.missing(), images, plan),
                    Stage::Containers | Stage::ContainersAndImages => {}
                }
                if let Some(scope) = self.state.scope(plan.scope) {
                    let order = scope.ask(signal, kind, stage, status.why, unused(images), self.now);
                    plan.actions.push(crate::Action::Reclaim(order));
                }
                plan.recheck_by(self.now.after(self.config.reclaim_pause));
                Outcome::Reclaiming
            }
            (Some(Step::Evict), _) | (Some(Step::Reclaim(_)), Short::Swap) => {
                let coming = self.coming(&status, short, plan);
                let (grown, left) = self.rank(short, kind, plan);
                let coming = coming + left.coming + self.unreaped(short, kind, plan.scope);
                let expected = self.attribute(grown, short, kind, &status, plan);
                let (why, missing) = (status.why, status.missing());
                let is_running_out = kind == ThresholdKind::Hard && status.available + status.available < status.at;
                let need = Need { why, short, missing, expected, coming, kind, is_running_out };
                let outcome = take(self.config, self.state, self.observation, need, self.now, plan);
                if outcome == Outcome::Evict
                    && let Some(scope) = self.state.scope(plan.scope)
                {
                    scope.baselines[kind as usize].await_from(left.held, self.now);
                    if let (Resource::Pids, Some(deficit)) = (short.resource(), plan.deficit) {
                        let Self { readings, observation, now, .. } = *self;
                        let known = &mut scope.unreaped[kind as usize];
                        *known = Unreaped::took(*known, deficit.taken, (readings, observation), now);
                    }
                }
                if let Short::Signal(signal) = short {
                    self.after(outcome, signal, kind, plan);
                }
                outcome
            }
        }
    }

    /// Says in the plan which workloads took the memory. Gives what will be allocated until it is back: for a hard
    /// threshold, as a soft one has time for another turn.
    fn attribute(
        &mut self,
        grown: Attribution,
        short: Short,
        kind: ThresholdKind,
        status: &ThresholdStatus,
        plan: &mut Plan,
    ) -> Amount {
        let Self { observation, readings, .. } = *self;
        let (Short::Signal(signal), Some(scope)) = (short, self.state.scope(plan.scope)) else { return Amount::ZERO };
        if signal.resource() != Resource::Memory {
            return Amount::ZERO;
        }
        let baseline = &scope.baselines[kind as usize];
        let fallen = attribution::fallen(baseline, signal, status, readings, observation);
        plan.attribution = fallen.map(|fallen| Attribution { fallen, ..grown });
        match (kind, fallen) {
            (ThresholdKind::Hard, Some(fallen)) => baseline.expected(fallen, observation.taken),
            (ThresholdKind::Soft, _) | (_, None) => Amount::ZERO,
        }
    }

    /// What it means for reclaims on the signal that something had to be evicted.
    fn after(&mut self, outcome: Outcome, signal: Signal, kind: ThresholdKind, plan: &mut Plan) {
        let Self { config, observation, now, .. } = *self;
        let Some(scope) = self.state.scope(plan.scope) else { return };
        if outcome == Outcome::Evict {
            // What victims leave behind can be reclaimed before others are evicted.
            for kind in &ThresholdKind::BOTH[kind as usize..] {
                scope.forget(signal, *kind);
            }
        } else if matches!(signal.resource(), Resource::EphemeralStorage | Resource::Inodes) {
            // What dies or is left unused meanwhile can be reclaimed as long as nothing is evicted.
            let unused_images = unused(observation.images);
            let in_vain = InVain { at: now, dead_containers: observation.dead_containers, unused_images };
            let again = scope.was_in_vain(signal, kind, in_vain).map(|at| at.after(config.reclaim_pause));
            if let Some(again) = again.filter(|again| *again > now) {
                plan.recheck_by(again);
            }
        }
    }
}
