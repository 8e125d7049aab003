//! What is frozen because nothing is to run in it: it is empty, and whatever comes into it may be killed.

use super::{BrakeLimits, Brakes};
use crate::worker::{Job, Workers};
use core::time::Duration;
use plimsoll_node::Fault;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use std::sync::Arc;

impl BrakeLimits {
    /// Limits for what is empty and is to stay so: frozen for so long, and not looked at.
    pub const fn of_empty(hold: Duration) -> Self {
        let never = Duration::MAX;
        Self { hold, settle: never, watch: never, in_flight: Bytes::ZERO, batch: Bytes::ZERO, is_judged: false }
    }
}

impl Brakes {
    /// Whether a cgroup that is held was removed meanwhile.
    pub fn is_gone(&self, cgroup: CgroupId) -> bool {
        let mut held = self.table.iter().filter(|brake| brake.handle.id() == cgroup);
        held.any(|brake| brake.handle.populated() == Err(Fault::Gone))
    }

    /// Has whatever runs in a cgroup killed that is held, before a thaw that is requested afterwards: a worker writes both,
    /// in this order. Where the kernel has no `cgroup.kill` another worker sends the signal, perhaps just after the thaw.
    /// False: it is not held, or there is no room for the job.
    pub fn kill(&self, cgroup: CgroupId, workers: &mut Workers) -> bool {
        let Some(brake) = self.table.iter().find(|brake| brake.handle.id() == cgroup) else { return false };
        let (handle, by) = (Arc::clone(&brake.handle), MonotonicNs(u64::MAX));
        let submitted = if brake.handle.has_kill() {
            workers.write.submit(Job::WriteKill(handle, by))
        } else {
            workers.kill.submit(Job::Kill(handle, by))
        };
        submitted.is_ok()
    }
}
