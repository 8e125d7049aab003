//! Processes that have ended and were not waited for.
//!
//! The kernel counts a process until its parent has waited for it. When a workload with thousands of them is killed, their
//! parents are gone, too, and another process, mostly init, is handed all of them. Until it has waited for each, they count
//! as tasks, but no process is left in the workload, whose cgroup may be removed already. So what belongs to no living
//! workload, beyond what did when the victim was chosen, comes back by evicting nothing: as much as the victims had, and
//! for no longer than [`PATIENCE`].

use crate::kubelet::{Amount, Readings, Signal};
use crate::observation::Observation;
use core::time::Duration;
use plimsoll_units::MonotonicNs;

/// So long after a victim was last seen to run: the kubelet's period (`monitoringInterval`), in which it evicts one pod.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the victims for processes leave behind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unreaped {
    /// How many processes belonged to no living workload when the first of the victims was chosen.
    outside: Amount,
    /// How many the victims had.
    taken: Amount,
    /// They are not counted on any more from then on.
    until: MonotonicNs,
}

impl Unreaped {
    /// Victims are chosen that have so many processes. `known`: of earlier ones.
    pub(super) fn took(
        known: Option<Self>,
        taken: Amount,
        (readings, observation): (&Readings, &Observation<'_>),
        now: MonotonicNs,
    ) -> Option<Self> {
        let until = now.after(PATIENCE);
        match known.filter(|known| now < known.until) {
            Some(known) => Some(Self { taken: known.taken + taken, until, ..known }),
            None => Some(Self { outside: outside(readings, observation)?, taken, until }),
        }
    }

    /// How many of them are to be waited for still.
    pub(super) fn coming(&mut self, readings: &Readings, observation: &Observation<'_>, now: MonotonicNs) -> Amount {
        if now >= self.until {
            return Amount::ZERO;
        }
        let mut terminating = observation.workloads.iter().filter(|workload| !workload.is_empty);
        if terminating.any(|workload| workload.terminating.is_some_and(|terminating| !terminating.is_stuck)) {
            self.until = now.after(PATIENCE);
        }
        self.left(readings, observation, now)
    }

    /// The same, by the time that they had until now.
    pub(super) fn left(&self, readings: &Readings, observation: &Observation<'_>, now: MonotonicNs) -> Amount {
        if now >= self.until {
            return Amount::ZERO;
        }
        let more = outside(readings, observation).map_or(Amount::ZERO, |now| now - self.outside);
        more.max(Amount::ZERO).min(self.taken)
    }
}

/// How many processes belong to no workload in which one lives.
pub(super) fn outside(readings: &Readings, observation: &Observation<'_>) -> Option<Amount> {
    let reading = readings.get(Signal::PidAvailable)?;
    let living = observation.workloads.iter().filter(|workload| !workload.is_empty);
    let counted: Amount = living.filter_map(|workload| workload.facts.stats?.processes).map(Amount::counted).sum();
    Some(Amount::whole(reading.capacity) - Amount::whole(reading.available) - counted)
}
