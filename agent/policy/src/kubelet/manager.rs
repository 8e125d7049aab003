//! One turn of the eviction manager (`managerImpl.synchronize`).
//!
//! A turn has one part, or two: where disks can be cleaned before anything is evicted, [`decide`] asks for that
//! ([`Outcome::Reclaim`]), and [`after_reclaim`] goes on with what was read after it.

mod kept;

use super::limits::{Limit, over_limit};
use super::pod::Manages;
use super::ranking::{DiskLayout, Ranked, Verdict, rank};
use super::reclaim::Reclaim;
use super::signals::{Condition, Readings, Resource};
use super::threshold::{Origin, Threshold};
use crate::room::bring_in;
use core::time::Duration;
use plimsoll_units::MonotonicNs;
use serde::{Deserialize, Serialize};

pub(crate) use kept::Kept;

/// Seconds for an orderly end where there is no time for one (`immediateEvictionGracePeriodSeconds`).
pub const AT_ONCE_SECONDS: i64 = 1;

/// What the manager's decisions depend on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// All thresholds, those derived for containerfs included.
    pub thresholds: Vec<Threshold>,
    /// How long a condition stays after a threshold behind it was met.
    pub pressure_transition: Duration,
    /// The longest that a victim of a soft threshold gets for an orderly end. Below one it is one in the end, whatever
    /// the pod wants: a flag of -1 does not leave it to the pod (`synchronize` hands it on, and the pod's worker makes
    /// one of all that is less).
    pub max_pod_grace_seconds: i64,
    /// Limits of local storage are enforced.
    pub local_storage_isolation: bool,
}

/// What was observed.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a, P> {
    /// Which disks there are; absent if the runtime did not say. Not asked again once it did.
    pub layout: Option<DiskLayout>,
    /// What the statistics of the node say; absent if they could not be had.
    pub readings: Option<Readings>,
    /// Running pods.
    pub pods: &'a [P],
}

/// Conditions of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions([bool; Condition::ALL.len()]);

impl Conditions {
    /// Those for which `is_true` holds.
    pub fn of(is_true: impl Fn(Condition) -> bool) -> Self {
        Self(Condition::ALL.map(is_true))
    }

    /// Whether one is true.
    pub const fn has(self, condition: Condition) -> bool {
        self.0[condition as usize]
    }

    /// Those that are true, by name.
    pub fn iter(self) -> impl Iterator<Item = Condition> {
        Condition::ALL.into_iter().filter(move |condition| self.has(*condition))
    }
}

/// A threshold's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Watched {
    /// When it was first met, of the turns without a break.
    since: Option<MonotonicNs>,
    /// Its grace period was over in the last turn: it stays until its minimum reclaim is reached.
    is_met: bool,
}

/// What is remembered from turn to turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    layout: Option<DiskLayout>,
    watched: Vec<Watched>,
    /// When a threshold behind each condition was last met.
    last_observed: [Option<MonotonicNs>; Condition::ALL.len()],
    conditions: Conditions,
    last: Readings,
}

impl State {
    /// A state for a configuration. Nothing allocates later.
    pub fn new(config: &Config) -> Self {
        Self { watched: vec![Watched::default(); config.thresholds.len()], ..Self::default() }
    }

    /// Asks for the layout anew, as the kubelet does after it is started again.
    pub(crate) const fn forget_layout(&mut self) {
        self.layout = None;
    }

    /// What the last turn read.
    pub(crate) const fn last(&self) -> Readings {
        self.last
    }

    /// Conditions that are true.
    pub const fn conditions(&self) -> Conditions {
        self.conditions
    }

    /// When a threshold behind each condition was last met.
    pub(crate) const fn last_observed_mut(&mut self) -> &mut [Option<MonotonicNs>; Condition::ALL.len()] {
        &mut self.last_observed
    }

    /// Since when a threshold is met, or was and is not resolved by its minimum reclaim.
    pub fn observed_since(&self, threshold: u32) -> Option<MonotonicNs> {
        self.watched.get(threshold as usize)?.since
    }

    /// Whether a threshold is met and its grace period over.
    pub fn is_met(&self, threshold: u32) -> bool {
        self.watched.get(threshold as usize).is_some_and(|watched| watched.is_met)
    }
}

impl State {
    /// With a period of zero none is ever reported, not even one that is met right now (`nodeConditionsObservedSince`).
    fn conclude(&mut self, transition: Duration, now: MonotonicNs) {
        self.conditions.0 = self.last_observed.map(|last| last.is_some_and(|last| now.since(last) < transition));
    }
}

/// Why a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// This threshold of the configuration.
    Threshold(u32),
    /// It is over this limit of its own.
    Limit(Limit),
}

/// A pod that is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Its index among the pods of the observation.
    pub pod: u32,
    /// Why.
    pub why: Why,
    /// Seconds for an orderly end; below one they become one when it is killed.
    pub grace_seconds: i64,
}

/// The turn in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// There is nothing to watch.
    #[default]
    Idle,
    /// The runtime did not say which disks there are. Nothing was read.
    NoLayout,
    /// There are no statistics: everything stays as it was, conditions beyond their period included.
    NoStatistics,
    /// Pods over limits of their own are evicted; pressure waits for the next turn.
    OverLimits,
    /// No threshold is met.
    NoPressure,
    /// Thresholds are met, and none for as long as its grace period.
    InGrace,
    /// Thresholds are met with their grace over, and their statistics are no newer than those of the last turn.
    Stale,
    /// Clean up, read again, and go on with [`after_reclaim`].
    Reclaim,
    /// Cleaning up was enough.
    Relieved,
    /// There are no pods to evict.
    NoPods,
    /// Only pods are left that are never evicted.
    AllCritical,
    /// One pod is evicted.
    Evict,
}

/// What a turn does.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// In one word.
    pub outcome: Outcome,
    /// The threshold that is acted on. Whenever there is one the node's event says so.
    pub acting: Option<u32>,
    /// What is cleaned up before anything is evicted.
    pub reclaim: Reclaim,
    /// Which pods are evicted.
    pub evictions: Vec<Eviction>,
    /// All pods, ranked; filled if a pod has to be evicted for a threshold.
    pub ranked: Vec<Ranked>,
    /// Pods that found no room in the plan and were left out.
    pub overlooked: usize,
}

impl Plan {
    /// A plan for this many pods. Nothing allocates later.
    pub fn with_capacity(pods: usize) -> Self {
        Self { evictions: Vec::with_capacity(pods), ranked: Vec::with_capacity(pods), ..Self::default() }
    }

    /// Brings in what it takes for so many pods.
    pub(crate) fn bring_in(&mut self, pods: usize) {
        bring_in(&mut self.evictions, pods);
        bring_in(&mut self.ranked, pods);
    }

    /// As it was when it asked for a reclaim.
    pub(crate) fn resume(&mut self, acting: u32) {
        self.clear();
        (self.outcome, self.acting) = (Outcome::Reclaim, Some(acting));
    }

    fn clear(&mut self) {
        self.outcome = Outcome::default();
        self.acting = None;
        self.reclaim = Reclaim::default();
        self.evictions.clear();
        self.ranked.clear();
        self.overlooked = 0;
    }
}

/// Decides a turn, at `now`, and writes it into `plan`.
pub fn decide<'a, P: Manages<'a>>(
    config: &Config,
    state: &mut State,
    observation: &Observation<'_, P>,
    now: MonotonicNs,
    plan: &mut Plan,
) {
    plan.clear();
    let was_configured = |threshold: &Threshold| threshold.origin != Origin::Derived;
    if !config.local_storage_isolation && !config.thresholds.iter().any(was_configured) {
        return;
    }
    let first_turn = state.layout.is_none();
    let Some(layout) = state.layout.or(observation.layout) else {
        plan.outcome = Outcome::NoLayout;
        return;
    };
    state.layout = Some(layout);
    let Some(readings) = observation.readings else {
        plan.outcome = Outcome::NoStatistics;
        return;
    };
    watch(config, state, &readings, now, first_turn);
    let last = core::mem::replace(&mut state.last, readings);

    let room = plan.ranked.capacity().min(plan.evictions.capacity());
    let pods = &observation.pods[..observation.pods.len().min(room)];
    plan.overlooked = observation.pods.len() - pods.len();
    if config.local_storage_isolation {
        let active = (0_u32..).zip(pods).filter(|(_, pod)| pod.is_active());
        plan.evictions.extend(active.filter_map(|(pod, facts)| {
            let why = Why::Limit(over_limit(facts.pod(), layout)?);
            Some(Eviction { pod, why, grace_seconds: AT_ONCE_SECONDS })
        }));
        if !plan.evictions.is_empty() {
            // The statistics count as used: without newer ones the next turn evicts no pod for them (`synchronize` has
            // stored them as the last by then).
            plan.outcome = Outcome::OverLimits;
            return;
        }
    }
    let Some(acting) = choose(config, state, &readings, &last) else {
        let is_any = |is: &dyn Fn(&Watched) -> bool| state.watched.iter().any(is);
        plan.outcome = if is_any(&|watched| watched.is_met) {
            Outcome::Stale
        } else if is_any(&|watched| watched.since.is_some()) {
            Outcome::InGrace
        } else {
            Outcome::NoPressure
        };
        return;
    };
    plan.acting = Some(acting);
    plan.reclaim = Reclaim::of(config.thresholds[acting as usize].signal, layout);
    if plan.reclaim.is_nothing() {
        evict(config, layout, pods, plan);
    } else {
        plan.outcome = Outcome::Reclaim;
    }
}

/// Goes on after a reclaim: with the same observation, and what was read of the node since, if anything. Errors of the
/// reclaim itself do not matter, only what is read.
///
/// Cleaning up was enough if no threshold at all is below its threshold and minimum reclaim: not one of another signal,
/// nor a soft one in its grace, nor one that never was met (`reclaimNodeLevelResources`). Without a second reading it
/// was not.
pub fn after_reclaim<'a, P: Manages<'a>>(
    config: &Config,
    state: &State,
    observation: &Observation<'_, P>,
    after: Option<&Readings>,
    plan: &mut Plan,
) {
    let (Outcome::Reclaim, Some(layout)) = (plan.outcome, state.layout) else { return };
    let is_enough = after.is_some_and(|readings| {
        let judges = |threshold: &&Threshold| threshold.origin.is_seen(false);
        !config.thresholds.iter().filter(judges).any(|threshold| threshold.is_met(readings, true))
    });
    if is_enough {
        plan.outcome = Outcome::Relieved;
    } else {
        let seen = observation.pods.len() - plan.overlooked;
        evict(config, layout, &observation.pods[..seen], plan);
    }
}

/// Remembers which thresholds are met since when, and which conditions follow.
fn watch(config: &Config, state: &mut State, readings: &Readings, now: MonotonicNs, first_turn: bool) {
    let State { watched, last_observed, .. } = state;
    let thresholds = &config.thresholds[..config.thresholds.len().min(watched.len())];
    // A reading that is missing ends a threshold, its grace and its latch (`thresholdsMet` skips it).
    let is_met = |threshold: &Threshold| threshold.origin.is_seen(first_turn) && threshold.is_met(readings, false);
    for (index, threshold) in thresholds.iter().enumerate() {
        let is_latched = || {
            // Of those that are the same but for their minimum reclaim, one that was merged before hides the others.
            watched[index].is_met
                && threshold.is_met(readings, true)
                && !thresholds.iter().any(|other| is_met(other) && other.is_same(threshold))
                && !thresholds[..index]
                    .iter()
                    .zip(watched.iter())
                    .any(|(other, watched)| watched.since.is_some() && other.is_same(threshold))
        };
        let since = (is_met(threshold) || is_latched()).then(|| watched[index].since.unwrap_or(now));
        let is_over = since.is_some_and(|since| now.since(since) >= threshold.grace);
        watched[index] = Watched { since, is_met: is_over };
        if since.is_some() {
            last_observed[threshold.signal.condition() as usize] = Some(now);
        }
    }
    state.conclude(config.pressure_transition, now);
}

/// The threshold to act on (`thresholdsUpdatedStats`, `byEvictionPriority`): only memory comes before the rest, whatever
/// is hard or soft. The kubelet leaves all else to chance; here it is hard before soft.
fn choose(config: &Config, state: &State, readings: &Readings, last: &Readings) -> Option<u32> {
    (0_u32..)
        .zip(&config.thresholds)
        .filter(|(index, threshold)| state.is_met(*index) && readings.is_fresh(threshold.signal, last))
        .min_by_key(|(index, threshold)| {
            (threshold.signal.resource() != Resource::Memory, !threshold.is_hard(), *index)
        })
        .map(|(index, _)| index)
}

/// Evicts the first that may be evicted. Static, mirror and critical pods are ranked, and passed over without an event
/// (`evictPod`).
fn evict<'a>(config: &Config, layout: DiskLayout, pods: &[impl Manages<'a>], plan: &mut Plan) {
    let Some(acting) = plan.acting else { return };
    let threshold = &config.thresholds[acting as usize];
    if !pods.iter().any(Manages::is_active) {
        plan.outcome = Outcome::NoPods;
        return;
    }
    rank(threshold.signal, layout, pods, &mut plan.ranked);
    plan.outcome = Outcome::AllCritical;
    for ranked in &mut plan.ranked {
        let pod = &pods[ranked.pod as usize];
        if let Some(why) = pod.critical() {
            ranked.verdict = Verdict::PassedOver(why);
        } else if plan.outcome != Outcome::Evict {
            ranked.verdict = Verdict::Evicted;
            let most = config.max_pod_grace_seconds;
            let grace_seconds = if threshold.is_hard() {
                AT_ONCE_SECONDS
            } else {
                pod.pod().grace_seconds.map_or(most, |own| own.min(most))
            };
            plan.evictions.push(Eviction { pod: ranked.pod, why: Why::Threshold(acting), grace_seconds });
            plan.outcome = Outcome::Evict;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::signals::{FsStats, MemoryStats, NodeStats, Signal, StatsTime};
    use super::super::threshold::ThresholdAmount;
    use super::*;
    use crate::kubelet::{Amount, Critical, Pod};
    use plimsoll_units::Percentage;

    fn threshold(signal: Signal, grace: u64) -> Threshold {
        Threshold {
            signal,
            amount: Some(ThresholdAmount::At(Amount::whole(100))),
            grace: Duration::from_secs(grace),
            min_reclaim: None,
            origin: Origin::Configured,
        }
    }

    fn node(second: i64) -> NodeStats {
        let time = Some(StatsTime(second));
        NodeStats {
            memory: Some(MemoryStats { available: Some(50), working_set: Some(950), time }),
            node_fs: Some(FsStats {
                available: Some(50),
                capacity: Some(1000),
                inodes_free: Some(50),
                inodes: Some(1000),
                time,
            }),
            ..NodeStats::default()
        }
    }

    /// The threshold that is acted on once all of them are met.
    fn acting(thresholds: &[Threshold]) -> Option<u32> {
        let config = Config { thresholds: thresholds.to_vec(), ..Config::default() };
        let (mut state, mut plan) = (State::new(&config), Plan::with_capacity(0));
        for second in [1, 100] {
            let layout = Some(DiskLayout::Single);
            let readings = Some(Readings::of(&node(second)));
            let observation = Observation::<Pod<'_>> { layout, readings, pods: &[] };
            let now = MonotonicNs(u64::try_from(second).expect("positive") * 1_000_000_000);
            decide(&config, &mut state, &observation, now, &mut plan);
        }
        plan.acting
    }

    #[test]
    fn memory_goes_first_then_hard_before_soft_then_the_order_of_the_configuration() {
        use Signal::{MemoryAvailable, NodeFsAvailable, NodeFsInodesFree};
        for (thresholds, first) in [
            (&[(NodeFsAvailable, 10), (NodeFsAvailable, 0)][..], 1),
            (&[(NodeFsAvailable, 0), (NodeFsAvailable, 10)], 0),
            (&[(NodeFsAvailable, 10), (NodeFsInodesFree, 0)], 1),
            (&[(MemoryAvailable, 10), (MemoryAvailable, 0)], 1),
            (&[(NodeFsInodesFree, 0), (NodeFsAvailable, 0)], 0),
            // What the kubelet does not leave to chance: memory, even if only a soft threshold says so.
            (&[(NodeFsAvailable, 0), (MemoryAvailable, 10)], 1),
        ] {
            let thresholds: Vec<_> = thresholds.iter().map(|(signal, grace)| threshold(*signal, *grace)).collect();
            assert_eq!(acting(&thresholds), Some(first), "{thresholds:?}");
        }
    }

    #[test]
    fn what_holds_a_turn_back_is_told() {
        let config = Config { thresholds: vec![threshold(Signal::MemoryAvailable, 10)], ..Config::default() };
        let (mut state, mut plan) = (State::new(&config), Plan::with_capacity(0));
        for (available, read, second, outcome) in [
            (100, 1, 1, Outcome::NoPressure),
            (99, 2, 2, Outcome::InGrace),
            (99, 3, 11, Outcome::InGrace),
            (99, 3, 12, Outcome::Stale),
            (99, 4, 13, Outcome::NoPods),
            (99, 4, 14, Outcome::Stale),
            (100, 5, 15, Outcome::NoPressure),
        ] {
            let time = Some(StatsTime(read));
            let memory = MemoryStats { available: Some(available), working_set: Some(900), time };
            let readings = Some(Readings::of(&NodeStats { memory: Some(memory), ..NodeStats::default() }));
            let observation = Observation::<Pod<'_>> { layout: Some(DiskLayout::Single), readings, pods: &[] };
            decide(&config, &mut state, &observation, MonotonicNs(second * 1_000_000_000), &mut plan);
            assert_eq!(plan.outcome, outcome, "second {second}");
        }
    }

    #[test]
    fn a_threshold_that_is_no_number_is_never_met() {
        let no_number = Some(ThresholdAmount::Share(Percentage::of_one(f32::NAN)));
        let low = threshold(Signal::NodeFsAvailable, 0);
        for (thresholds, first) in [
            (&[Threshold { amount: no_number, ..threshold(Signal::MemoryAvailable, 0) }][..], None),
            (&[Threshold { amount: no_number, ..threshold(Signal::MemoryAvailable, 0) }, low], Some(1)),
            // Nor does a minimum reclaim that is none hold one.
            (&[Threshold { min_reclaim: no_number, ..low }], Some(0)),
        ] {
            assert_eq!(acting(thresholds), first, "{thresholds:?}");
        }
        let config = Config {
            thresholds: vec![Threshold { min_reclaim: no_number, ..threshold(Signal::MemoryAvailable, 0) }],
            ..Config::default()
        };
        let (mut state, mut plan) = (State::new(&config), Plan::with_capacity(0));
        let relieved = MemoryStats { available: Some(100), working_set: Some(900), time: None };
        for (node, is_met) in [(node(1), true), (NodeStats { memory: Some(relieved), ..NodeStats::default() }, false)] {
            let readings = Some(Readings::of(&node));
            let observation = Observation::<Pod<'_>> { layout: Some(DiskLayout::Single), readings, pods: &[] };
            decide(&config, &mut state, &observation, MonotonicNs(1), &mut plan);
            assert_eq!(state.is_met(0), is_met);
        }
    }

    /// The kubelet asks for nothing then, not even for its disks.
    #[test]
    fn with_nothing_to_watch_nothing_is_asked_for() {
        let derived = Threshold { origin: Origin::Derived, ..threshold(Signal::ContainerFsAvailable, 0) };
        let replaced = Threshold { origin: Origin::ReplacedInCopy, ..derived };
        for (thresholds, local_storage_isolation, outcome) in [
            (&[][..], false, Outcome::Idle),
            (&[derived], false, Outcome::Idle),
            (&[derived], true, Outcome::NoLayout),
            (&[derived, replaced], false, Outcome::NoLayout),
            (&[threshold(Signal::PidAvailable, 0)], false, Outcome::NoLayout),
        ] {
            let config = Config { thresholds: thresholds.to_vec(), local_storage_isolation, ..Config::default() };
            let (mut state, mut plan) = (State::new(&config), Plan::with_capacity(0));
            let observation = Observation::<Pod<'_>> { layout: None, readings: None, pods: &[] };
            decide(&config, &mut state, &observation, MonotonicNs(1), &mut plan);
            assert_eq!(plan.outcome, outcome, "{thresholds:?} {local_storage_isolation}");
        }
    }

    #[test]
    fn a_pod_that_is_never_evicted_is_reported_as_such_wherever_it_ranks() {
        let pods = [Some(Critical::Static), None, None, Some(Critical::Mirror), Some(Critical::Priority)];
        let pods: Vec<Pod<'_>> =
            (0..).zip(pods).map(|(priority, critical)| Pod { priority, critical, ..Pod::default() }).collect();
        let config = Config { thresholds: vec![threshold(Signal::MemoryAvailable, 0)], ..Config::default() };
        let (mut state, mut plan) = (State::new(&config), Plan::with_capacity(8));
        let readings = Some(Readings::of(&node(1)));
        let observation = Observation { layout: Some(DiskLayout::Single), readings, pods: &pods };
        decide(&config, &mut state, &observation, MonotonicNs(1), &mut plan);
        let verdicts: Vec<_> = plan.ranked.iter().map(|ranked| ranked.verdict).collect();
        assert_eq!(
            verdicts,
            [
                Verdict::PassedOver(Critical::Static),
                Verdict::Evicted,
                Verdict::NotNeeded,
                Verdict::PassedOver(Critical::Mirror),
                Verdict::PassedOver(Critical::Priority)
            ]
        );
    }
}
