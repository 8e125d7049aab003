//! One turn of the eviction manager (`managerImpl.synchronize`).
//!
//! A turn has one part, or two: where disks can be cleaned before anybody is evicted, [`decide`] asks for that
//! ([`Outcome::Reclaim`]), and [`after_reclaim`] goes on with what was seen after it.

use super::amount::Amount;
use super::pod::Pod;
use super::ranking::{DiskLayout, Fate, Ranked, rank};
use super::signals::{Condition, NodeStats, Readings, Resource, Signal};
use core::time::Duration;
use plimsoll_units::MonotonicNs;

/// Seconds for an orderly end where there is no time for one (`immediateEvictionGracePeriodSeconds`).
const AT_ONCE_SECONDS: i64 = 1;

/// Where a line is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Line {
    /// At this amount.
    At(Amount),
    /// At this fraction of the capacity. It may be anything that Go reads as a number.
    Share(f32),
}

impl Line {
    /// The line on this capacity (`GetThresholdQuantity`). Shares are taken in 64-bit floats of a 32-bit fraction and
    /// truncated, so that 10 % of 10 GiB is 16 bytes more than 1 GiB.
    pub fn of(self, capacity: i64) -> Amount {
        /// 2^63.
        const BEYOND: f64 = 9_223_372_036_854_775_808.0;
        match self {
            Self::At(amount) => amount,
            Self::Share(fraction) => {
                #[expect(clippy::cast_precision_loss, reason = "the kubelet multiplies in 64-bit floats")]
                let share = capacity as f64 * f64::from(fraction);
                // What does not fit becomes the lowest number on amd64, NaN included.
                #[expect(clippy::cast_possible_truncation, reason = "truncation is the rule")]
                let share = if (-BEYOND..BEYOND).contains(&share) { share as i64 } else { i64::MIN };
                Amount::whole(share)
            }
        }
    }
}

/// Where a threshold comes from. Those of containerfs are derived when the layout of the disks becomes known, which is
/// too late for that first turn (`synchronize` goes on with the list it had before `UpdateContainerFsThresholds`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    /// It was configured.
    #[default]
    Configured,
    /// It was derived, and is looked at from the second turn on, and to judge a reclaim.
    Derived,
    /// It was derived and took the place of a hard one in the same list, so that the first turn sees it.
    DerivedInPlace,
    /// It was configured as a soft one and replaced in a copy of the list: only the first turn sees it.
    ReplacedInCopy,
    /// It was configured as a hard one and replaced: it is never looked at.
    Replaced,
}

impl Origin {
    /// Whether it is looked at in the turn that learns of the disks, and in others.
    const fn is_seen(self, first_turn: bool) -> bool {
        match self {
            Self::Configured | Self::DerivedInPlace => true,
            Self::Derived => !first_turn,
            Self::ReplacedInCopy => first_turn,
            Self::Replaced => false,
        }
    }
}

/// A threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// What is measured.
    pub signal: Signal,
    /// Met while less than this is available; none is never met (the kubelet derives such ones from nothing).
    pub line: Option<Line>,
    /// How long it must be met before anything is done. Zero makes it a hard one, wherever it was configured.
    pub grace: Duration,
    /// How much above the line is wanted again once it was met.
    pub min_reclaim: Option<Line>,
    /// Where it comes from.
    pub origin: Origin,
}

impl Threshold {
    /// Whether it acts at once.
    pub const fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// Whether it is met (`thresholdsMet`): never without a reading.
    fn is_met(&self, readings: &Readings, with_min_reclaim: bool) -> bool {
        let (Some(line), Some(reading)) = (self.line, readings.get(self.signal)) else { return false };
        let wanted =
            self.min_reclaim.filter(|_| with_min_reclaim).map_or(Amount::ZERO, |line| line.of(reading.capacity));
        Amount::whole(reading.available) < line.of(reading.capacity) + wanted
    }

    /// `hasThreshold` does not compare minimum reclaims.
    fn is_same(&self, other: &Self) -> bool {
        (self.signal, self.grace) == (other.signal, other.grace) && self.line == other.line
    }
}

/// What the manager goes by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// All thresholds, those derived for containerfs included.
    pub thresholds: Vec<Threshold>,
    /// How long a condition stays after a threshold behind it was met.
    pub pressure_transition: Duration,
    /// The longest that a victim of a soft threshold gets for an orderly end. Below one it is one in the end, whatever
    /// the pod wants: a flag of -1 does not leave it to the pod.
    pub max_pod_grace_seconds: i64,
    /// Limits of local storage are enforced.
    pub local_storage_isolation: bool,
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observation<'a> {
    /// Which disks there are; absent if the runtime did not tell. Not asked again once it told.
    pub layout: Option<DiskLayout>,
    /// Statistics of the node; absent if they could not be had.
    pub node: Option<NodeStats>,
    /// Running pods.
    pub pods: &'a [Pod<'a>],
}

/// Conditions of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions([bool; Condition::ALL.len()]);

impl Conditions {
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

    /// Conditions that are true.
    pub const fn conditions(&self) -> Conditions {
        self.conditions
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

/// What is cleaned up on disks, containers first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaim {
    /// Remove all dead containers.
    pub containers: bool,
    /// Remove all unused images.
    pub images: bool,
}

impl Reclaim {
    /// What can be cleaned up for a signal (`buildSignalToNodeReclaimFuncs`). With images on a disk of their own nothing
    /// is, for the node's, although its documentation says that dead containers and their logs go.
    pub const fn of(signal: Signal, layout: DiskLayout) -> Self {
        const NOTHING: Reclaim = Reclaim { containers: false, images: false };
        const BOTH: Reclaim = Reclaim { containers: true, images: true };
        let on_node = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
        let on_images = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
        match (signal.resource(), layout) {
            (Resource::Memory | Resource::Pids, _) => NOTHING,
            (Resource::EphemeralStorage | Resource::Inodes, DiskLayout::Single) => BOTH,
            (Resource::EphemeralStorage | Resource::Inodes, DiskLayout::DedicatedImageFs) => {
                if on_node {
                    NOTHING
                } else {
                    BOTH
                }
            }
            (Resource::EphemeralStorage | Resource::Inodes, DiskLayout::SplitImageFs) => {
                Self { containers: !on_images, images: on_images }
            }
        }
    }

    /// Whether there is nothing to do.
    pub const fn is_nothing(self) -> bool {
        !self.containers && !self.images
    }
}

/// Why a pod goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// This threshold of the configuration.
    Threshold(u32),
    /// This volume of the pod is over its size limit.
    EmptyDirLimit(u32),
    /// The pod is over the sum of its containers' limits.
    PodLimit,
    /// This container of the pod's statistics is over its limit.
    ContainerLimit(u32),
}

/// A pod that goes.
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
    /// The runtime did not tell which disks there are. Nothing was read.
    NoLayout,
    /// There are no statistics: everything stays as it was, conditions beyond their period included.
    NoStatistics,
    /// Pods over limits of their own go; pressure waits for the next turn.
    OverLimits,
    /// No threshold is met with its grace over and statistics newer than those of the last turn.
    Calm,
    /// Clean up, read again, and go on with [`after_reclaim`].
    Reclaim,
    /// Cleaning up was enough.
    Relieved,
    /// There is nobody to evict.
    NoPods,
    /// Only pods are left that are never evicted.
    AllCritical,
    /// One pod goes.
    Evict,
}

/// What a turn does.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// In one word.
    pub outcome: Outcome,
    /// The threshold that is acted on. Whenever there is one the node's event says so.
    pub acting: Option<u32>,
    /// What is cleaned up before anybody is evicted.
    pub reclaim: Reclaim,
    /// Who goes.
    pub evictions: Vec<Eviction>,
    /// All pods, ranked; filled if somebody has to go for a threshold.
    pub ranked: Vec<Ranked>,
    /// Pods that found no room in the plan and were not looked at.
    pub overlooked: usize,
}

impl Plan {
    /// A plan for this many pods. Nothing allocates later.
    pub fn with_capacity(pods: usize) -> Self {
        Self { evictions: Vec::with_capacity(pods), ranked: Vec::with_capacity(pods), ..Self::default() }
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
pub fn decide(config: &Config, state: &mut State, observation: &Observation<'_>, now: MonotonicNs, plan: &mut Plan) {
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
    let Some(node) = &observation.node else {
        plan.outcome = Outcome::NoStatistics;
        return;
    };
    let readings = Readings::of(node);
    watch(config, state, &readings, now, first_turn);
    let last = core::mem::replace(&mut state.last, readings);

    let room = plan.ranked.capacity().min(plan.evictions.capacity());
    let pods = &observation.pods[..observation.pods.len().min(room)];
    plan.overlooked = observation.pods.len() - pods.len();
    if config.local_storage_isolation {
        plan.evictions.extend((0_u32..).zip(pods).filter_map(|(index, pod)| over_limit(index, pod, layout)));
        if !plan.evictions.is_empty() {
            // The statistics count as used: without newer ones the next turn evicts nobody for them.
            plan.outcome = Outcome::OverLimits;
            return;
        }
    }
    let Some(acting) = choose(config, state, &readings, &last) else {
        plan.outcome = Outcome::Calm;
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

/// Goes on after a reclaim: with the same observation, and what was seen of the node since, if anything. Errors of the
/// reclaim itself do not matter, only what is seen.
///
/// Cleaning up was enough if no threshold at all is below its line and minimum reclaim: not one of another signal, nor a
/// soft one in its grace, nor one that never was met (`reclaimNodeLevelResources`). Without a second reading it was not.
pub fn after_reclaim(
    config: &Config,
    state: &State,
    observation: &Observation<'_>,
    after: Option<&NodeStats>,
    plan: &mut Plan,
) {
    let (Outcome::Reclaim, Some(layout)) = (plan.outcome, state.layout) else { return };
    let is_enough = after.map(Readings::of).is_some_and(|readings| {
        let judges = |threshold: &&Threshold| threshold.origin.is_seen(false);
        !config.thresholds.iter().filter(judges).any(|threshold| threshold.is_met(&readings, true))
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
    let State { watched, last_observed, conditions, .. } = state;
    let thresholds = &config.thresholds[..config.thresholds.len().min(watched.len())];
    // A reading that is missing ends a threshold, its grace and its latch.
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
    // With a period of zero none is ever reported, not even one that is met right now.
    conditions.0 = last_observed.map(|last| last.is_some_and(|last| now.since(last) < config.pressure_transition));
}

/// The threshold to act on (`thresholdsUpdatedStats`, `byEvictionPriority`): only memory goes before the rest, whatever is
/// hard or soft. The kubelet leaves all else to chance; here it is hard before soft.
fn choose(config: &Config, state: &State, readings: &Readings, last: &Readings) -> Option<u32> {
    let is_fresh = |signal: Signal| {
        readings.get(signal).is_some_and(|reading| {
            // Compared with the last turn's, not with the newest ever; an unknown time is always fresh.
            last.get(signal).is_none_or(|last| reading.time.is_none() || reading.time > last.time)
        })
    };
    (0_u32..)
        .zip(&config.thresholds)
        .filter(|(index, threshold)| state.is_met(*index) && is_fresh(threshold.signal))
        .min_by_key(|(index, threshold)| {
            (threshold.signal.resource() != Resource::Memory, !threshold.is_hard(), *index)
        })
        .map(|(index, _)| index)
}

/// Evicts the first who may be. Static, mirror and critical pods are passed over silently.
fn evict(config: &Config, layout: DiskLayout, pods: &[Pod<'_>], plan: &mut Plan) {
    let Some(acting) = plan.acting else { return };
    let threshold = &config.thresholds[acting as usize];
    if pods.is_empty() {
        plan.outcome = Outcome::NoPods;
        return;
    }
    rank(threshold.signal, layout, pods, &mut plan.ranked);
    for ranked in &mut plan.ranked {
        let pod = &pods[ranked.pod as usize];
        if pod.critical.is_some() {
            ranked.fate = Fate::PassedOver;
            continue;
        }
        ranked.fate = Fate::Evicted;
        let most = config.max_pod_grace_seconds;
        let grace_seconds =
            if threshold.is_hard() { AT_ONCE_SECONDS } else { pod.grace_seconds.map_or(most, |own| own.min(most)) };
        plan.evictions.push(Eviction { pod: ranked.pod, why: Why::Threshold(acting), grace_seconds });
        plan.outcome = Outcome::Evict;
        return;
    }
    plan.outcome = Outcome::AllCritical;
}

/// Whether a pod is over a limit of its own (`localStorageEviction`).
fn over_limit(index: u32, pod: &Pod<'_>, layout: DiskLayout) -> Option<Eviction> {
    let stats = pod.stats.as_ref().filter(|_| pod.critical.is_none())?;
    // The first volume over its limit in the order of the specification is told; a limit of zero is none.
    let volume = (0_u32..).zip(pod.volumes).find(|(_, volume)| {
        volume.size_limit.is_some_and(|limit| {
            // Of two entries for a volume the last counts here.
            let used =
                stats.volumes.iter().rfind(|stats| stats.name == volume.name).and_then(|stats| stats.usage.bytes);
            limit.is_positive() && used.is_some_and(|used| Amount::counted(used) > limit)
        })
    });
    let container = || {
        (0_u32..).zip(stats.containers).find(|(_, stats)| {
            let counted = |bytes: Option<u64>| bytes.map_or(Amount::ZERO, Amount::counted);
            // With images on a disk of their own only logs count.
            let layer = if layout.has_image_fs() { Amount::ZERO } else { counted(stats.rootfs.bytes) };
            let limits = pod.containers.iter().filter(|container| container.name == stats.name);
            let limit =
                limits.filter_map(|container| container.ephemeral_storage.filter(|limit| !limit.is_zero())).next_back();
            limit.is_some_and(|limit| limit < counted(stats.logs.bytes) + layer)
        })
    };
    let used = stats.ephemeral_storage.map_or(Amount::ZERO, Amount::counted);
    let why = if let Some((volume, _)) = volume {
        Why::EmptyDirLimit(volume)
    } else if pod.ephemeral_storage_limit.is_some_and(|limit| used > limit) {
        Why::PodLimit
    } else {
        Why::ContainerLimit(container()?.0)
    };
    Some(Eviction { pod: index, why, grace_seconds: AT_ONCE_SECONDS })
}
