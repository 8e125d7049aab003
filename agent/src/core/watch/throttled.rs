//! Pods that are evicted because memory.high throttles one of their containers, although that was raised as far as it may
//! be. The inventory thread finds them ([`Reliefs`](plimsoll_inventory::Reliefs)), by the kernel's word alone; whether one is
//! evicted is decided here.
//!
//! Such a pod stands nearly still. Nothing else is short, so there is no threshold, no rank and no other victim: it is this
//! pod or none.

use core::time::Duration;

use plimsoll_inventory::{EvictionCause, Termination};
use plimsoll_policy::Config as Policy;
use plimsoll_units::{CgroupId, MonotonicNs};

use super::Watch;
use super::enforcement::grace_of;
use super::evictions::Decided;
use crate::record::{ContainerRecord, fitting};

const MINUTE: Duration = Duration::from_mins(1);
/// The least time between two victims.
const TURN: Duration = Duration::from_secs(10);

/// When the next one may be evicted.
#[derive(Debug)]
pub(super) struct ThrottledVictims {
    /// Absent where no victim is allowed in any minute.
    pause: Option<Duration>,
    next: MonotonicNs,
}

impl ThrottledVictims {
    /// So far apart that the limit of victims of soft thresholds holds within any minute.
    pub(super) fn new(policy: &Policy) -> Self {
        let pause = MINUTE.checked_div(policy.soft_victims_per_minute).map(|pause| pause.max(TURN));
        Self { pause, next: MonotonicNs(0) }
    }

    /// Whether one may be evicted now; then no other one is until later.
    fn take(&mut self, now: MonotonicNs) -> bool {
        let Some(pause) = self.pause.filter(|_| now >= self.next) else { return false };
        self.next = now.after(pause);
        true
    }
}

impl Watch {
    /// Evicts the pod with this cgroup, or reports that it would be. One that is protected, or ends already, never is.
    pub(super) fn evict_throttled(&mut self, cgroup: CgroupId, lasted: Duration, now: MonotonicNs) {
        let Some(key) = self.workloads.table.of(&[Some(cgroup)]) else { return };
        let Some(workload) = self.workloads.table.get(key) else { return };
        let Some(pod) = workload.facts.pod.filter(|pod| pod.protected.is_none()) else { return };
        if workload.termination != Termination::Stays || !self.throttled.take(now) {
            return;
        }
        let usage = workload.usage();
        let acts = self.enforcement.acts();
        self.engine.number += 1;
        let (plan, path) = (self.engine.number, fitting(workload.facts.handle.path()));
        self.reporting.send(ContainerRecord::Victim { plan, path, lasted, shadow: !acts, at: now });
        if !acts {
            return;
        }
        let grace = grace_of(self.engine.policy.soft_grace_seconds(pod.grace_seconds.map(i64::from)));
        let cause = EvictionCause::Throttled;
        self.decide_eviction(&Decided { key, cause, is_soft: true, grace, used: usage }, now);
        if grace.is_zero() || !self.terminate(key, usage, grace, now) {
            self.kill(plan, key, usage, now);
        }
    }
}

#[cfg(test)]
mod tests;
