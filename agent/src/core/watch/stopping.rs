//! Pods that have time to end are stopped by the container runtime, where `services` has one: each container is sent the
//! signal that its image names, and its first process alone, as the kubelet does. Without, every process of the pod is sent
//! SIGTERM.
//!
//! Neither is waited for any longer than the other: the pod is killed when its grace is over, whatever was said. Where the
//! runtime is not known to have begun by then, the processes are sent SIGTERM after a part of the grace.

use core::time::Duration;

use arrayvec::ArrayVec;
use plimsoll_act::Job;
use plimsoll_inventory::{StopOrder, StopResult, Termination};
use plimsoll_policy::{Key, Uid};
use plimsoll_units::MonotonicNs;
use std::sync::Arc;

use super::Watch;

/// So many are waited for at a time; the processes of others are sent SIGTERM at once.
const MOST: usize = 16;
/// The runtime has begun so soon, or is done without: a list of pods and one of containers take it a second at most where
/// it is not busy (0.7 s each on an emulated machine).
const BEGUN_WITHIN: Duration = Duration::from_secs(5);
/// And in this part of the grace, so that one that does not answer costs no more of that.
const PART: u32 = 3;

/// One of which nothing was said yet.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    key: Key,
    uid: Uid,
    until: MonotonicNs,
}

/// Those that are waited for.
#[derive(Debug, Default)]
pub(in crate::core) struct Stopping {
    /// Whether a runtime is asked at all.
    is_asked: bool,
    awaited: ArrayVec<Awaited, MOST>,
}

impl Stopping {
    /// `is_asked`: there is a runtime that `services` may ask.
    pub(in crate::core) const fn new(is_asked: bool) -> Self {
        Self { is_asked, awaited: ArrayVec::new_const() }
    }

    /// When the next one has been waited for long enough.
    pub(super) fn due(&self) -> Option<MonotonicNs> {
        self.awaited.iter().map(|awaited| awaited.until).min()
    }

    /// The next one that has.
    fn take_overdue(&mut self, now: MonotonicNs) -> Option<Key> {
        let place = self.awaited.iter().position(|awaited| awaited.until <= now)?;
        Some(self.awaited.swap_remove(place).key)
    }

    /// The one of this pod.
    fn take(&mut self, uid: Uid) -> Option<Key> {
        let place = self.awaited.iter().position(|awaited| awaited.uid == uid)?;
        Some(self.awaited.swap_remove(place).key)
    }
}

impl Watch {
    /// Asks a workload to end, by the runtime where it is a pod. False: the worker takes no job.
    pub(super) fn ask_to_end(&mut self, key: Key, grace: Duration, now: MonotonicNs) -> bool {
        let Some(workload) = self.workloads.table.get(key) else { return false };
        let has_room = self.stopping.is_asked && !self.stopping.awaited.is_full();
        let Some(pod) = workload.facts.pod.filter(|_| has_room) else { return self.send_sigterm(key) };
        let uid = pod.uid;
        // Before the order: where there is a cluster, services leaves it to the kubelet to end a pod that is evicted.
        self.name_evictions(now);
        let until = now.after((grace / PART).min(BEGUN_WITHIN));
        // Rounded down: the runtime kills when it is over, and so does this process.
        let grace_seconds = u32::try_from(grace.as_secs()).unwrap_or(u32::MAX);
        if !self.workloads.handle.order_stop(&StopOrder { uid, grace_seconds, until }) {
            return self.send_sigterm(key);
        }
        self.stopping.awaited.push(Awaited { key, uid, until });
        true
    }

    /// Takes in what came of an order.
    pub(super) fn stopped_by_runtime(&mut self, StopResult { uid, is_begun }: StopResult) {
        if let Some(key) = self.stopping.take(uid)
            && !is_begun
        {
            self.still_ask_to_end(key);
        }
    }

    /// Goes on without the runtime where that was not heard of in time.
    pub(super) fn follow_stopping(&mut self, now: MonotonicNs) {
        while let Some(key) = self.stopping.take_overdue(now) {
            self.still_ask_to_end(key);
        }
    }

    /// One that is killed by now, or is spared because the kill switch was thrown, is asked for nothing.
    fn still_ask_to_end(&mut self, key: Key) {
        let asked = |workload: &plimsoll_inventory::Workload| matches!(workload.termination, Termination::Asked(..));
        if self.workloads.table.get(key).is_some_and(asked) {
            // Where the worker takes nothing, it is killed when its grace is over.
            self.send_sigterm(key);
        }
    }

    fn send_sigterm(&mut self, key: Key) -> bool {
        let Some(workload) = self.workloads.table.get(key) else { return false };
        let handle = Arc::clone(&workload.facts.handle);
        let Some(enforcer) = &mut self.enforcement.enforcer else { return false };
        enforcer.workers.kill.submit(Job::Terminate(handle)).is_ok()
    }
}

#[cfg(test)]
mod tests;
