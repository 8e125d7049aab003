//! Processes that hold much memory that is charged to no workload: outside all of them, or in huge pages, which are in no
//! cgroup's usage. Named where no workload that may be evicted grew.

use std::cmp::Reverse;

use plimsoll_inventory::{Config, workload_of};
use plimsoll_node::process::{self, Memory, Pid, cgroup_path};
use plimsoll_units::Bytes;

/// How many are named.
const MOST: usize = 3;

/// The largest processes that are in no workload or hold huge pages, largest first.
pub(super) fn largest(inventory: &Config) -> Vec<Memory> {
    let held = |memory: &Memory| memory.resident.saturating_add(memory.huge_pages);
    let mut all: Vec<Memory> = process::all().filter_map(|process| Memory::of(&process)).collect();
    all.retain(|memory| held(memory) > Bytes::ZERO);
    all.sort_unstable_by_key(|memory| (Reverse(held(memory)), memory.pid));
    let is_outside = |pid| {
        let path = cgroup_path(Some(Pid::from_raw(pid)?))?;
        Some(workload_of(&inventory.root, &inventory.patterns, &inventory.protected, &path).is_none())
    };
    all.into_iter()
        .filter(|memory| memory.huge_pages > Bytes::ZERO || is_outside(memory.pid) == Some(true))
        .take(MOST)
        .collect()
}
