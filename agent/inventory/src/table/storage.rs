//! Pods with what they take of disks, for decisions on disks and on limits of local storage.

use plimsoll_policy::kubelet::Critical;
use plimsoll_policy::{Key, Workload};
use plimsoll_units::MonotonicNs;

use super::{Table, of_pod};

impl Table {
    /// Adds each pod that has processes and of which it is known what it takes of disks, as far as there is room, and gives
    /// how many were left out because they are said to take more than is in use: `in_use` bytes of the disk, or of memory
    /// what is charged to the pod. Allocates nothing.
    pub fn observe_storage<'t>(&'t self, in_use: u64, now: MonotonicNs, into: &mut Vec<Workload<'t>>) -> u32 {
        let mut disbelieved = 0;
        for (slot, workload) in self.iter() {
            let facts = &workload.facts;
            let (Some(pod), Some(storage)) = (facts.pod, &workload.storage) else { continue };
            let terminating = workload.termination.terminating();
            let is_gone = terminating.is_none() && facts.handle.populated() == Ok(false);
            let room = into.capacity().min(self.slots());
            if is_gone || into.len() >= room || slot as usize >= room {
                continue;
            }
            let charged = || facts.handle.usage().map_or(0, |usage| usage.0);
            if storage.whole(now).bytes.is_some_and(|bytes| bytes > in_use)
                || storage.in_memory() > 0 && storage.in_memory() > charged()
            {
                disbelieved += 1;
                continue;
            }
            let promised = of_pod(facts, pod, None);
            let with_storage = storage.facts(&promised.facts, now);
            if with_storage.stats.is_some() {
                // Limits are held against whatever is not critical, whatever else protects it.
                let critical = pod.protected.map(|_| Critical::Priority);
                into.push(Workload {
                    key: Key { slot, id: facts.handle.id() },
                    facts: plimsoll_policy::kubelet::Pod { critical, ..with_storage },
                    terminating,
                    started: facts.started,
                    slices: facts.slices,
                    ..promised
                });
            }
        }
        disbelieved
    }
}
