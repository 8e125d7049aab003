//! Pods with what they take of disks, for decisions on disks and on limits of local storage.

use plimsoll_policy::kubelet::{Critical, DiskLayout, over_limit};
use plimsoll_policy::{Key, Workload};
use plimsoll_units::MonotonicNs;

use super::{Table, of_pod};
use crate::InUse;

/// How many pods are left out of an observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unobserved {
    /// They are said to take more than is in use.
    pub disbelieved: u32,
    /// There is no room for them.
    pub without_room: u32,
}

impl Table {
    /// Adds each pod of which it is known what it takes of disks, as far as there is room, and gives how many were left out:
    /// of them those that are said to take more than is in use on the disks, or of memory than is charged to the pod. One
    /// that has no processes is not added where it could be evicted: while `is_short`, and with this layout over a limit. Of
    /// others that is not read, which at rest is most of what an observation costs. Allocates nothing.
    pub fn observe_storage<'t>(
        &'t self,
        in_use: InUse,
        layout: DiskLayout,
        is_short: bool,
        now: MonotonicNs,
        into: &mut Vec<Workload<'t>>,
    ) -> Unobserved {
        let mut unobserved = Unobserved::default();
        for (slot, workload) in self.iter() {
            let facts = &workload.facts;
            let (Some(pod), Some(storage)) = (facts.pod, &workload.storage) else { continue };
            let terminating = workload.terminating(now);
            if is_short && workload.has_ended() {
                continue;
            }
            let room = into.capacity().min(self.slots());
            if into.len() >= room || slot as usize >= room {
                unobserved.without_room += 1;
                continue;
            }
            let charged = || facts.handle.usage().map_or(0, |usage| usage.0);
            let is_in_memory = storage.in_memory() == 0 || storage.in_memory() <= charged();
            let Some(counts) = storage.believed(in_use, now).filter(|_| is_in_memory) else {
                unobserved.disbelieved += 1;
                continue;
            };
            let promised = of_pod(facts, pod, None);
            let with_storage = storage.facts(&promised.facts, counts);
            if !is_short && over_limit(&with_storage, layout).is_some() && workload.has_ended() {
                continue;
            }
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
        unobserved
    }
}
