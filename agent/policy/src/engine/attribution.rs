//! Which workloads took the memory: growth since it was last plentiful.

use super::state::{ScopeState, ThresholdKind};
use super::thresholds::Available;
use crate::config::Config;
use crate::kubelet::{Amount, Readings, Resource, Signal};
use crate::observation::{Key, Observation, Workload};
use crate::plan::{Attribution, Case, Plan, ThresholdStatus, Verdict, Why};
use plimsoll_units::{Bytes, CgroupId};
use serde::{Deserialize, Serialize};

/// The signals on memory, by place in a baseline.
const MEMORY: [Signal; 2] = [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable];

/// What was in use when memory was last plentiful.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Baseline {
    /// Taken at all.
    is_taken: bool,
    /// Taken while memory was plentiful, not merely above the thresholds.
    is_plentiful: bool,
    /// Available then, by the kubelet's and the kernel's reading.
    available: [Option<(Amount, Option<Amount>)>; MEMORY.len()],
    /// Working sets then, by slot.
    usage: Vec<Option<(CgroupId, Option<Bytes>)>>,
}

impl Baseline {
    /// For workloads with slots below `slots`.
    pub(super) fn with_capacity(slots: usize) -> Self {
        Self { usage: vec![None; slots], ..Self::default() }
    }

    /// For how many.
    pub(super) const fn slots(&self) -> usize {
        self.usage.len()
    }

    fn take(&mut self, is_plentiful: bool, readings: &Readings, observation: &Observation<'_>) {
        self.is_taken = true;
        self.is_plentiful = is_plentiful;
        self.available = MEMORY.map(|signal| {
            Available::of(signal, readings, observation).map(|available| (available.kubelet, available.kernel))
        });
        self.usage.fill(None);
        for workload in observation.workloads {
            if let Some(place) = self.usage.get_mut(workload.key.slot as usize) {
                *place = Some((workload.key.id, workload.working_set()));
            }
        }
    }

    /// Available memory then, by the reading that is below now; all of the capacity if there is no baseline.
    fn available(&self, signal: Signal, case: Case, now: &Available) -> Amount {
        let place = MEMORY.iter().position(|known| *known == signal);
        match place.and_then(|place| self.available[place]) {
            None => Amount::whole(now.capacity),
            Some((kubelet, kernel)) => {
                let goes_by_kernel =
                    case == Case::MemAvailableOnly || case == Case::Both && now.kernel == Some(now.lowest());
                kernel.filter(|_| goes_by_kernel).unwrap_or(kubelet)
            }
        }
    }

    /// Growth since then; a new workload has grown from nothing, one that was unread then has not grown.
    pub(super) fn growth(&self, key: Key, usage: Bytes) -> Bytes {
        match self.usage.get(key.slot as usize).copied().flatten() {
            Some((id, Some(before))) if id == key.id => usage.saturating_sub(before),
            Some((id, None)) if id == key.id => Bytes::ZERO,
            _ => usage,
        }
    }
}

/// Whether a threshold is on memory, and of this kind or harder: hard thresholds go by themselves alone, so that no
/// soft one beside them changes what they do.
fn is_relevant(config: &Config, plan: &Plan, status: &ThresholdStatus, kind: ThresholdKind) -> Option<Signal> {
    let Why::Threshold(index) = status.line else { return None };
    let threshold = config.thresholds_in(plan.scope).get(index as usize)?;
    let is_memory = threshold.signal.resource() == Resource::Memory;
    (is_memory && ThresholdKind::of(threshold) <= kind).then_some(threshold.signal)
}

/// Remembers what each workload uses while memory is plentiful, or at least for the first time above all thresholds;
/// for each kind of threshold by itself.
pub(super) fn remember(
    config: &Config,
    scope: &mut ScopeState,
    readings: &Readings,
    observation: &Observation<'_>,
    plan: &Plan,
) {
    for (kind, baseline) in ThresholdKind::BOTH.into_iter().zip(&mut scope.baselines) {
        let relevant = || plan.thresholds.iter().filter_map(|it| Some((it, is_relevant(config, plan, it, kind)?)));
        let is_needed = config
            .thresholds_in(plan.scope)
            .iter()
            .any(|it| it.signal.resource() == Resource::Memory && ThresholdKind::of(it) == kind);
        if !is_needed || relevant().next().is_none() || relevant().any(|(status, _)| status.case != Case::Neither) {
            continue;
        }
        let is_plentiful = MEMORY.into_iter().all(|signal| {
            let highest = relevant().filter(|(_, of)| *of == signal).map(|(status, _)| status.target).max();
            let Some((highest, available)) = highest.zip(Available::of(signal, readings, observation)) else {
                return true;
            };
            available.lowest() >= highest + config.plentiful.of(available.capacity)
        });
        if is_plentiful || !baseline.is_taken {
            baseline.take(is_plentiful, readings, observation);
        }
    }
}

/// Adds up what grew, for a threshold that is acted on.
pub(super) fn attribute(
    baseline: &Baseline,
    signal: Signal,
    status: &ThresholdStatus,
    readings: &Readings,
    observation: &Observation<'_>,
    plan: &Plan,
) -> Option<Attribution> {
    let available = Available::of(signal, readings, observation)?;
    let fallen = (baseline.available(signal, status.case, &available) - status.available).to_bytes();
    let mut attribution = Attribution { fallen, ..Attribution::default() };
    for ranked in &plan.ranked {
        let grew = ranked.growth.unwrap_or(Bytes::ZERO);
        let sum = match ranked.verdict {
            // No living workload's growth any more, so it must not hide what grows now.
            _ if workload(observation, ranked.workload).is_empty => &mut attribution.left_behind,
            Verdict::Protected(_) => &mut attribution.protected_grew,
            _ => &mut attribution.evictable_grew,
        };
        *sum = sum.saturating_add(grew);
    }
    Some(attribution)
}

pub(super) fn workload<'a>(observation: &Observation<'a>, index: u32) -> &'a Workload<'a> {
    &observation.workloads[index as usize]
}
