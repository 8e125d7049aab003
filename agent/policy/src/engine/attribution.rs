//! Which workloads took the memory: growth since it was last plentiful.

use super::state::{ScopeState, ThresholdKind, Watched};
use super::thresholds::{Available, compared};
use crate::config::Config;
use crate::kubelet::{Amount, Readings, Resource, Signal};
use crate::observation::{Key, Observation, Workload};
use crate::plan::{Case, Owned, ThresholdStatus};
use crate::room::bring_in;
use core::time::Duration;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

/// The signals on memory, by place in a baseline.
const MEMORY: [Signal; 2] = [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable];

/// So long it takes from a decision until a victim's memory is back, at most: by then one whose exit makes no progress
/// is stuck.
pub(super) const RETURNS_WITHIN: Duration = Duration::from_millis(500);

/// What a workload used when memory was last plentiful.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    id: CgroupId,
    pub(super) owner: Option<CgroupId>,
    /// Absent if it could not be read.
    pub(super) usage: Option<Bytes>,
    /// No process was in it.
    pub(super) is_empty: bool,
}

/// What was available then.
#[derive(Clone, Copy, Debug)]
struct Then {
    kubelet: Amount,
    kernel: Option<Amount>,
    /// What that leaves out.
    withheld: Amount,
    /// All that there was.
    capacity: i64,
}

/// What was in use when memory was last plentiful.
#[derive(Clone, Debug, Default)]
pub(super) struct Baseline {
    /// When memory was last seen to be plentiful, or when it was taken first, if it was.
    taken: Option<MonotonicNs>,
    /// Memory was plentiful when it was last decided about.
    was_plentiful: bool,
    /// By signal.
    available: [Option<Then>; MEMORY.len()],
    /// By slot, up to the last one that was used.
    used: Vec<Option<Used>>,
    /// How many slots there can be.
    slots: usize,
    /// Since when what empty cgroups hold is counted on, and how much that was.
    awaited: Option<(MonotonicNs, Bytes)>,
}

impl Baseline {
    /// For workloads with slots below `slots`.
    pub(super) fn with_capacity(slots: usize) -> Self {
        Self { used: Vec::with_capacity(slots), slots, ..Self::default() }
    }

    /// Brings in what so many slots take.
    pub(super) fn bring_in(&mut self, slots: usize) {
        bring_in(&mut self.used, slots);
    }

    fn take(&mut self, readings: &Readings, observation: &Observation<'_>) {
        self.taken = Some(observation.taken);
        self.awaited = None;
        self.available = MEMORY.map(|signal| {
            let Available { kubelet, kernel, withheld, .. } = Available::of(signal, readings, observation)?;
            Some(Then { kubelet, kernel, withheld, capacity: readings.get(signal)?.capacity })
        });
        self.used.clear();
        for workload in observation.workloads.iter().filter(|workload| workload.is_in(observation.scope)) {
            let slot = workload.key.slot as usize;
            if slot < self.slots {
                if self.used.len() <= slot {
                    self.used.resize(slot + 1, None);
                }
                let owner = workload.owner.map(|owner| owner.id);
                // Page cache that counted as used would hide as much growth of what replaces it by other memory.
                let usage =
                    workload.working_set().map(|usage| workload.settled.map_or(usage, |known| known.min(usage)));
                self.used[slot] = Some(Used { id: workload.key.id, owner, usage, is_empty: workload.is_empty });
            }
        }
    }

    /// By how much available memory fell since then to `available`, by the reading that is below now, had there been as much
    /// in all as there is now: what was added since, or taken away, is no growth. From all of the capacity if there is no
    /// baseline.
    ///
    /// By the kernel's estimate it falls, too, where page cache is read that could be dropped again. No workload took
    /// that, so it does not count, but for no more than half of the fall: else the little that any workload grew by
    /// meanwhile would be all of it.
    fn fallen(&self, signal: Signal, case: Case, available: Amount, now: &Available, capacity: i64) -> Amount {
        let place = MEMORY.iter().position(|known| *known == signal);
        let Some(then) = place.and_then(|place| self.available[place]) else {
            return Amount::whole(now.capacity) - available;
        };
        let added = Amount::whole(capacity) - Amount::whole(then.capacity);
        let goes_by_kernel = case == Case::MemAvailableOnly || case == Case::Both && now.kernel == Some(now.lowest());
        match then.kernel.filter(|_| goes_by_kernel) {
            None => then.kubelet + added - available,
            Some(kernel) => {
                let fallen = kernel + added - available;
                let withheld = (now.withheld - then.withheld).max(Amount::ZERO);
                fallen.min((fallen - withheld).max(Amount::nanos(fallen.as_nanos() / 2)))
            }
        }
    }

    /// What a workload used then; absent where it is new.
    pub(super) fn used(&self, key: Key) -> Option<Used> {
        self.used.get(key.slot as usize)?.filter(|used| used.id == key.id)
    }

    /// Growth since then; a new workload has grown from nothing, one that was unread then has not grown.
    pub(super) fn growth(&self, key: Key, usage: Bytes) -> Bytes {
        self.used(key).map_or(usage, |used| usage.saturating_sub(used.usage.unwrap_or(usage)))
    }

    /// How much more the workloads of an observation use than those of its scope did then, of which some are gone. What
    /// could not be read then has not grown.
    pub(super) fn net_growth(&self, observation: &Observation<'_>) -> Amount {
        let counted = |bytes: Bytes| Amount::counted(bytes.0);
        let is_known = |workload: &&Workload<'_>| self.used(workload.key).is_none_or(|used| used.usage.is_some());
        let in_scope = observation.workloads.iter().filter(|workload| workload.is_in(observation.scope));
        let now: Amount = in_scope.filter(is_known).filter_map(Workload::working_set).map(counted).sum();
        let before: Amount = self.used.iter().flatten().filter_map(|used| used.usage).map(counted).sum();
        now - before
    }

    /// Whether a workload has come since then, or its first process.
    pub(super) fn has_come(&self, key: Key) -> bool {
        self.used(key).is_none_or(|used| used.is_empty)
    }

    /// Whether it is still to be expected that `left`, which empty cgroups hold, comes back with their owners' processes:
    /// those had this much time for it, and it again for each eighth that came back.
    pub(super) fn awaits(&self, left: Bytes, now: MonotonicNs, within: Duration) -> bool {
        self.awaited.is_none_or(|(since, _)| now.since(since) <= within) || self.comes_back(left)
    }

    /// Processes are ended for it.
    pub(super) fn await_from(&mut self, left: Bytes, now: MonotonicNs) {
        if left > Bytes::ZERO && (self.awaited.is_none() || self.comes_back(left)) {
            self.awaited = Some((now, left));
        }
    }

    fn comes_back(&self, left: Bytes) -> bool {
        self.awaited.is_some_and(|(_, before)| left <= before.saturating_sub(Bytes(before.0 / 8)))
    }

    /// Adds up by owner what workloads used then, those that are gone too, in the first row of each owner. An owner that
    /// was one workload then used that itself. The rows are sorted by owner.
    pub(super) fn sum_up(&self, rows: &mut [Owned]) {
        if rows.is_empty() {
            return;
        }
        for used in self.used.iter().flatten() {
            let (owner, Some(usage)) = (used.owner.unwrap_or(used.id), used.usage) else { continue };
            let first = rows.partition_point(|it| it.owner < owner);
            if let Some(first) = rows.get_mut(first).filter(|first| first.owner == owner) {
                first.before = first.before.saturating_add(usage);
            }
        }
    }

    /// What will be allocated from `now` until memory is back, if it goes on falling as fast as it did on average since
    /// then: never more than it fell. Nothing where it is not known since when it falls.
    pub(super) fn expected(&self, fallen: Bytes, now: MonotonicNs) -> Amount {
        let Some(taken) = self.taken else { return Amount::ZERO };
        let during = now.since(taken).max(RETURNS_WITHIN).as_nanos();
        let expected = u128::from(fallen.0) * RETURNS_WITHIN.as_nanos() / during;
        Amount::counted(u64::try_from(expected).unwrap_or(fallen.0))
    }
}

/// The thresholds on memory of this kind or harder, with their signals: hard thresholds go by themselves alone, so that
/// no soft one beside them changes what they do.
fn relevant<'a>(
    config: &'a Config,
    kind: ThresholdKind,
    watched: &'a [Watched],
    readings: &'a Readings,
    observation: &'a Observation<'_>,
) -> impl Iterator<Item = (Signal, ThresholdStatus)> + Clone {
    compared(config, watched, readings, observation)
        .filter(move |(it, ..)| it.signal.resource() == Resource::Memory && ThresholdKind::of(it) <= kind)
        .map(|(threshold, _, status)| (threshold.signal, status))
}

/// Whether memory is plentiful, by these thresholds.
fn is_plentiful(
    config: &Config,
    relevant: &(impl Iterator<Item = (Signal, ThresholdStatus)> + Clone),
    readings: &Readings,
    observation: &Observation<'_>,
) -> bool {
    MEMORY.into_iter().all(|signal| {
        let highest = relevant.clone().filter(|(of, _)| *of == signal).map(|(_, status)| status.target).max();
        let Some((highest, available)) = highest.zip(Available::of(signal, readings, observation)) else {
            return true;
        };
        available.lowest() >= highest + config.plentiful.of(available.capacity)
    })
}

/// Remembers what each workload uses while memory is plentiful, or at least for the first time above all thresholds;
/// for each kind of threshold by itself.
pub(super) fn remember(config: &Config, scope: &mut ScopeState, readings: &Readings, observation: &Observation<'_>) {
    for (kind, baseline) in ThresholdKind::BOTH.into_iter().zip(&mut scope.baselines) {
        baseline.was_plentiful = false;
        let relevant = relevant(config, kind, &scope.watched, readings, observation);
        let is_needed = config
            .thresholds_in(observation.scope)
            .iter()
            .any(|it| it.signal.resource() == Resource::Memory && ThresholdKind::of(it) == kind);
        let is_below = relevant.clone().any(|(_, status)| status.case != Case::Neither);
        if !is_needed || relevant.clone().next().is_none() || is_below {
            continue;
        }
        let is_plentiful = is_plentiful(config, &relevant, readings, observation);
        if is_plentiful || baseline.taken.is_none() {
            baseline.take(readings, observation);
            baseline.was_plentiful = is_plentiful;
        }
    }
}

/// Workloads are not read at this observation. Where memory was plentiful when they were read last, and still is, it
/// falls from here on at the earliest. What was available and used stays as it was then, so that no growth since is
/// missed.
pub(super) fn rest(config: &Config, scope: &mut ScopeState, readings: &Readings, observation: &Observation<'_>) {
    for (kind, baseline) in ThresholdKind::BOTH.into_iter().zip(&mut scope.baselines) {
        let relevant = relevant(config, kind, &scope.watched, readings, observation);
        let is_read = relevant.clone().next().is_some();
        if baseline.was_plentiful && is_read && is_plentiful(config, &relevant, readings, observation) {
            baseline.taken = Some(observation.taken);
        }
    }
}

/// By how much available memory fell, in the reading that is below.
pub(super) fn fallen(
    baseline: &Baseline,
    signal: Signal,
    status: &ThresholdStatus,
    readings: &Readings,
    observation: &Observation<'_>,
) -> Option<Bytes> {
    let available = Available::of(signal, readings, observation)?;
    let capacity = readings.get(signal)?.capacity;
    Some(baseline.fallen(signal, status.case, status.available, &available, capacity).to_bytes())
}

pub(super) fn workload<'a>(observation: &Observation<'a>, index: u32) -> &'a Workload<'a> {
    &observation.workloads[index as usize]
}
