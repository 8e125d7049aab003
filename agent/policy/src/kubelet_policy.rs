//! The policy `kubelet`: turns of the reference ([`kubelet`](crate::kubelet)) from the one observation to the one plan.
//!
//! A turn that reclaims has two parts. The first asks for it, and the turn goes on with the first observation after the
//! end of that; until then nothing else is decided, as the kubelet waits too.
//!
//! The kubelet begins a turn every ten seconds, and after an eviction as soon as the victim is gone, or after
//! [`POD_CLEANUP`]. Here a turn begins with every observation, but for those while victims of the last turn are
//! terminating, for so long at most. One that was killed and does not end is passed over.
//!
//! The kubelet knows no slices: nothing is decided about them.

use crate::config::Config;
use crate::kubelet::{self, Amount, Readings, Resource, Signal};
use crate::observation::{MemoryReading, Observation, Uid, Workload};
use crate::plan::{
    Action, Case, Growth, NoVictim, Outcome, Plan, Ranked, ReclaimOrder, Stage, ThresholdStatus, Verdict, Why,
};
use crate::room::bring_in;
use crate::scope::Scope;
use core::time::Duration;
use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// So long the kubelet waits for its victims (`podCleanupTimeout`).
const POD_CLEANUP: Duration = Duration::from_secs(30);

/// A turn that goes on when its reclaim has ended.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    order: ReclaimOrder,
    acting: u32,
}

/// What is remembered from turn to turn.
#[derive(Clone, Debug)]
pub(crate) struct State {
    manager: kubelet::State,
    waiting: Option<Waiting>,
    orders: u64,
    /// When the last turn evicted, and what.
    evicted_at: Option<MonotonicNs>,
    victims: Vec<Uid>,
    config: kubelet::Config,
    turn: kubelet::Plan,
}

/// What of it outlives the process that decides: what the manager keeps, when the last turn evicted, and what.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Keep<'a>(kubelet::Kept<'a>, Option<(Option<MonotonicNs>, Cow<'a, [Uid]>)>);

/// The same, read back.
pub(crate) type Kept = Keep<'static>;

fn of(config: &Config) -> kubelet::Config {
    let Config { thresholds, pressure_transition, max_pod_grace_seconds, local_storage_isolation, .. } = config;
    kubelet::Config {
        thresholds: thresholds.clone(),
        pressure_transition: *pressure_transition,
        max_pod_grace_seconds: *max_pod_grace_seconds,
        local_storage_isolation: *local_storage_isolation,
    }
}

impl State {
    pub(crate) fn with_capacity(config: &Config, workloads: usize) -> Self {
        let config = of(config);
        Self {
            manager: kubelet::State::new(&config),
            waiting: None,
            orders: 0,
            evicted_at: None,
            victims: Vec::with_capacity(workloads),
            turn: kubelet::Plan::with_capacity(workloads),
            config,
        }
    }

    /// Brings in what it takes for so many workloads.
    pub(crate) fn bring_in(&mut self, workloads: usize) {
        bring_in(&mut self.victims, workloads);
        self.turn.bring_in(workloads);
    }

    /// To be serialised. `has_taken`: with what the last turn evicted.
    pub(crate) fn keep(&self, has_taken: bool) -> Keep<'_> {
        let taken = has_taken.then_some((self.evicted_at, Cow::Borrowed(&*self.victims)));
        Keep(self.manager.keep(&self.config), taken)
    }

    /// A new one that goes on with what another process kept. `None`: it is of another configuration. A turn that waited
    /// for its reclaim is over, since that ended with its process.
    pub(crate) fn resumed(
        Keep(kept, taken): Kept,
        config: &Config,
        workloads: usize,
        now: MonotonicNs,
    ) -> Option<Self> {
        let mut state = Self::with_capacity(config, workloads);
        state.manager = kubelet::State::resumed(&kept, &state.config, now)?;
        if let Some((evicted_at, victims)) = taken {
            state.evicted_at = evicted_at.map(|at| at.min(now));
            state.victims.extend(victims.iter().take(workloads));
        }
        Some(state)
    }

    /// Asks for the layout of the disks anew. A turn that waits for a reclaim is not gone on with.
    pub(crate) const fn forget_layout(&mut self) {
        self.manager.forget_layout();
        self.waiting = None;
    }

    pub(crate) const fn manager(&self) -> &kubelet::State {
        &self.manager
    }

    pub(crate) const fn manager_mut(&mut self) -> &mut kubelet::State {
        &mut self.manager
    }

    /// Whether a victim of the last turn is still awaited.
    fn awaits(&self, observation: &Observation<'_>, now: MonotonicNs) -> bool {
        self.evicted_at.is_some_and(|at| now.since(at) < POD_CLEANUP)
            && observation.workloads.iter().any(|workload| {
                workload.terminating.is_some_and(|terminating| !terminating.is_stuck)
                    && self.victims.contains(&workload.uid)
            })
    }
}

/// Decides a turn, or goes on with one.
pub(crate) fn decide(
    config: &Config,
    state: &mut State,
    observation: &Observation<'_>,
    now: MonotonicNs,
    plan: &mut Plan,
) {
    plan.clear(observation.scope, observation.taken, now);
    if observation.scope != Scope::Node {
        plan.outcome = Outcome::NotObserved;
        return;
    }
    plan.conditions = state.manager.conditions();
    plan.memory = observation.readings.as_ref().and_then(memory);
    if state.awaits(observation, now) {
        plan.outcome = Outcome::ComingBack;
        return;
    }
    if state.waiting.is_some_and(|waiting| !waiting.order.has_ended(observation.reclaimed)) {
        plan.outcome = Outcome::Reclaiming;
        return;
    }
    state.evicted_at = None;
    let seen = observation.workloads.len().min(plan.capacity);
    let workloads = &observation.workloads[..seen];
    let turn = kubelet::Observation { layout: observation.layout, readings: observation.readings, pods: workloads };
    let mut readings = observation.readings.unwrap_or_default();
    if let Some(Waiting { acting, .. }) = state.waiting.take() {
        // What was read since says only whether that was enough.
        readings = state.manager.last();
        state.turn.resume(acting);
        kubelet::after_reclaim(&state.config, &state.manager, &turn, observation.readings.as_ref(), &mut state.turn);
    } else {
        kubelet::decide(&state.config, &mut state.manager, &turn, now, &mut state.turn);
    }
    let left_out = state.turn.overlooked + (observation.workloads.len() - seen);
    plan.overlooked = u32::try_from(left_out).unwrap_or(u32::MAX);
    plan.conditions = state.manager.conditions();
    hold(config, &state.manager, &readings, plan);
    // What the turn goes by is the first of what it says of the threshold.
    let place_of = |index| plan.thresholds.iter().position(|status| status.why == Why::Threshold(index));
    plan.acting = state.turn.acting.and_then(place_of).and_then(|place| u32::try_from(place).ok());
    plan.outcome = outcome(state.turn.outcome, observation.readings.as_ref(), plan);
    fill_ranked(config, state, workloads, plan);
    if let (kubelet::Outcome::Reclaim, Some(acting)) = (state.turn.outcome, state.turn.acting) {
        state.orders += 1;
        let what = match (state.turn.reclaim.containers, state.turn.reclaim.images) {
            (true, true) => Stage::ContainersAndImages,
            (true, false) => Stage::Containers,
            (false, _) => Stage::Images,
        };
        let order = ReclaimOrder { order: state.orders, stage: what, why: Why::Threshold(acting) };
        state.waiting = Some(Waiting { order, acting });
        plan.actions.push(Action::Reclaim(order));
    }
    if !state.turn.evictions.is_empty() {
        state.evicted_at = Some(now);
        state.victims.clear();
        let victims = state.turn.evictions.iter().map(|eviction| workloads[eviction.pod as usize].uid);
        state.victims.extend(victims);
    }
    plan.actions.extend(state.turn.evictions.iter().map(|eviction| Action::Evict {
        workload: eviction.pod,
        why: why(eviction.why),
        grace_seconds: eviction.grace_seconds,
    }));
}

/// Ranks as [`decide`] would if memory were short now.
pub(crate) fn ranking(observation: &Observation<'_>, plan: &mut Plan) {
    plan.clear(observation.scope, observation.taken, observation.taken);
    let workloads = &observation.workloads[..observation.workloads.len().min(plan.capacity)];
    let mut ranked = Vec::with_capacity(workloads.len());
    kubelet::rank(Signal::MemoryAvailable, kubelet::DiskLayout::Single, workloads, &mut ranked);
    plan.ranked.extend(ranked.iter().map(|of| row(of, &workloads[of.pod as usize], Resource::Memory)));
    for ranked in &mut plan.ranked {
        if let Some(why) = workloads[ranked.workload as usize].protection() {
            ranked.verdict = Verdict::Protected(why);
        }
    }
}

fn memory(readings: &Readings) -> Option<MemoryReading> {
    let kubelet::Reading { available, capacity, time: _ } = readings.get(Signal::MemoryAvailable)?;
    let bytes = |amount: i64| Bytes(u64::try_from(amount).unwrap_or(0));
    Some(MemoryReading { capacity: bytes(capacity), kubelet_available: bytes(available), mem_available: None })
}

const fn why(why: kubelet::Why) -> Why {
    match why {
        kubelet::Why::Threshold(index) => Why::Threshold(index),
        kubelet::Why::Limit(limit) => Why::Limit(limit),
    }
}

/// Every threshold, as the manager holds it.
fn hold(config: &Config, manager: &kubelet::State, readings: &Readings, plan: &mut Plan) {
    for (index, threshold) in (0_u32..).zip(&config.thresholds) {
        let (Some(amount), Some(reading)) = (threshold.amount, readings.get(threshold.signal)) else { continue };
        let at = amount.of(reading.capacity);
        let since = manager.observed_since(index);
        plan.thresholds.push(ThresholdStatus {
            why: Why::Threshold(index),
            at,
            target: at + threshold.min_reclaim.map_or(Amount::ZERO, |amount| amount.of(reading.capacity)),
            available: Amount::whole(reading.available),
            case: if since.is_some() { Case::Both } else { Case::Neither },
            since,
            is_met: manager.is_met(index),
        });
    }
}

/// The manager does not distinguish no pressure from thresholds that could not be held against a reading.
fn outcome(outcome: kubelet::Outcome, readings: Option<&Readings>, plan: &Plan) -> Outcome {
    match outcome {
        kubelet::Outcome::Idle => Outcome::NotObserved,
        kubelet::Outcome::NoLayout => Outcome::NoLayout,
        kubelet::Outcome::NoStatistics => Outcome::NoStatistics,
        kubelet::Outcome::OverLimits => Outcome::OverLimits,
        kubelet::Outcome::InGrace => Outcome::InGrace,
        kubelet::Outcome::Stale => Outcome::Stale,
        kubelet::Outcome::NoPressure if readings.is_none_or(|_| plan.thresholds.is_empty()) => Outcome::NotObserved,
        kubelet::Outcome::NoPressure => Outcome::NoPressure,
        kubelet::Outcome::Reclaim => Outcome::Reclaiming,
        kubelet::Outcome::Relieved => Outcome::Relieved,
        kubelet::Outcome::NoPods => Outcome::NoVictim(NoVictim::NoCandidates),
        kubelet::Outcome::AllCritical => Outcome::NoVictim(NoVictim::AllProtected),
        kubelet::Outcome::Evict => Outcome::Evict,
    }
}

fn fill_ranked(config: &Config, state: &State, workloads: &[Workload<'_>], plan: &mut Plan) {
    let acting = state.turn.acting.and_then(|index| config.thresholds.get(index as usize));
    let resource = acting.map_or(Resource::Memory, |threshold| threshold.signal.resource());
    plan.ranked.extend(state.turn.ranked.iter().map(|ranked| row(ranked, &workloads[ranked.pod as usize], resource)));
}

fn row(ranked: &kubelet::Ranked, workload: &Workload<'_>, resource: Resource) -> Ranked {
    let kubelet::Ranked { pod, is_measured, exceeds, priority, over, processes, verdict } = *ranked;
    // One whose processes are not known ranks as one without any, and is not said to have none.
    let is_measured = is_measured && (resource != Resource::Pids || processes.is_some());
    let request = match resource {
        Resource::Memory => workload.facts.memory_request,
        // Of inodes it subtracts the bytes that are requested.
        Resource::EphemeralStorage | Resource::Inodes => workload.facts.ephemeral_storage_request,
        Resource::Pids => Amount::ZERO,
    };
    let usage = match (resource, is_measured) {
        (_, false) => Amount::ZERO,
        (Resource::Pids, true) => processes.map_or(Amount::ZERO, Amount::counted),
        (_, true) => over + request,
    };
    let verdict = match verdict {
        kubelet::Verdict::Evicted => Verdict::Evicted,
        kubelet::Verdict::PassedOver(_) => workload.protection().map_or(Verdict::Stuck, Verdict::Protected),
        kubelet::Verdict::NotNeeded => Verdict::NotNeeded,
    };
    Ranked {
        workload: pod,
        key: workload.key,
        uid: workload.uid,
        owner: None,
        qos: workload.qos,
        is_measured,
        request: (is_measured && !matches!(resource, Resource::Inodes | Resource::Pids)).then_some(request),
        exceeds,
        priority,
        usage,
        over,
        frees: usage,
        started: workload.started,
        growth: Growth::default(),
        grew: false,
        returns: 0,
        verdict,
    }
}
