//! What workloads hold in huge pages, which are charged to no cgroup's memory.

use core::time::Duration;

use plimsoll_node::cgroup::{Bound, TaskList};
use plimsoll_node::clock::monotonic;
use plimsoll_node::process::Pid;
use plimsoll_policy::Key;
use plimsoll_units::Bytes;

use super::Inventory;
use crate::{Sink, Update};

/// Processes are looked at in so many cgroups of a workload, and for so long in all: a decision may wait for it.
const LOOKED_AT: (usize, Duration) = (256, Duration::from_millis(500));

impl Inventory {
    /// Adds up what the processes of each workload hold in huge pages, as `held` has it of one, and sends what has changed.
    /// Of a workload that cannot be read, or not in time, what was known stays.
    pub fn find_huge_pages(&mut self, held: impl Fn(Pid) -> Bytes, sink: &mut impl Sink) {
        let (cgroups, time) = LOOKED_AT;
        let bound = Bound { cgroups, by: monotonic().after(time) };
        for (id, known) in &mut self.known {
            let mut sum = Bytes::ZERO;
            let read = known.handle.each_task(TaskList::Processes, bound, &mut |pid| {
                sum = sum.saturating_add(held(pid));
                // Reading what a process holds takes longer than reading a list.
                monotonic() <= bound.by
            });
            if read == Ok(true) && std::mem::replace(&mut known.huge_pages, sum) != sum {
                sink.update(Update::HugePages(Key { slot: known.slot, id: *id }, sum));
            }
        }
    }
}
