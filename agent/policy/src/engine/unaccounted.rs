//! Whether the workloads of an observation account for what is short.
//!
//! A cgroup may be so new that the caller does not know it as a workload yet. What it took is then in none of those that
//! the caller observed, and one of these would be evicted for it.

use super::attribution;
use super::state::{ScopeState, State, ThresholdKind};
use super::thresholds::met;
use super::unreaped::outside;
use crate::config::Config;
use crate::kubelet::{Amount, Readings, Resource};
use crate::observation::{Observation, Workload};
use crate::plan::is_share;
use core::cmp::Reverse;
use plimsoll_units::{Bytes, MonotonicNs};

/// Whether a threshold is met for memory or processes that the observed workloads may not have taken.
pub(crate) fn is_unaccounted(config: &Config, state: &State, observation: &Observation<'_>, now: MonotonicNs) -> bool {
    let readings = observation.readings.map(|readings| readings.in_scope(observation.scope));
    let (Some(scope), Some(readings)) = (state.of(observation.scope), readings) else { return false };
    let mut met = met(config, scope, &readings, observation, now);
    met.any(|(threshold, status)| match threshold.signal.resource() {
        Resource::Memory => {
            let baseline = &scope.baselines[ThresholdKind::of(threshold) as usize];
            let fallen = attribution::fallen(baseline, threshold.signal, &status, &readings, observation);
            fallen.is_some_and(|fallen| {
                let elsewhere = (Amount::counted(fallen.0) - baseline.net_growth(observation)).to_bytes();
                elsewhere > Bytes::ZERO && is_share(elsewhere, config.responsible_percent, fallen)
            })
        }
        Resource::Pids => lacks_processes(scope, &readings, observation, status.missing(), now),
        Resource::EphemeralStorage | Resource::Inodes => false,
    })
}

/// Whether the first victim has fewer processes than are missing, or than belong to no workload that is known. Beside the
/// system's own, which are among these, its growth is not known: no count is kept while processes are plentiful.
fn lacks_processes(
    scope: &ScopeState,
    readings: &Readings,
    observation: &Observation<'_>,
    missing: Amount,
    now: MonotonicNs,
) -> bool {
    let Some(outside) = outside(readings, observation) else { return false };
    let known = scope.unreaped.iter().flatten();
    let left = known.map(|unreaped| unreaped.left(readings, observation, now)).max().unwrap_or(Amount::ZERO);
    let needed = missing.max(outside - left);
    let candidates = observation.workloads.iter().filter(|workload| may_be_victim(workload));
    let counted = candidates.filter_map(|workload| Some((workload.facts.priority, workload.facts.stats?.processes?)));
    let first = counted.min_by_key(|(priority, processes)| (*priority, Reverse(*processes)));
    first.is_none_or(|(_, processes)| Amount::counted(processes) < needed)
}

/// Whether it may be evicted, or is already and comes to its end.
fn may_be_victim(workload: &Workload<'_>) -> bool {
    workload.protection().is_none() && !workload.is_empty && workload.terminating.is_none_or(|it| !it.is_stuck)
}
