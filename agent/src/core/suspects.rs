//! Processes that hold much memory that is charged to no workload: outside all of them, or in what is charged to no
//! cgroup, wherever they run: huge pages and the ring buffers of packet sockets. Named where no workload that may be
//! evicted grew.

use std::cmp::Reverse;
use std::collections::HashMap;

use plimsoll_inventory::{Config, workload_of};
use plimsoll_node::meminfo::page_bytes;
use plimsoll_node::process::{self, Memory, Pid, cgroup_path};
use plimsoll_sense::PacketRing;
use plimsoll_units::Bytes;

/// How many are named.
const MOST: usize = 3;

/// A process to name.
#[derive(Debug)]
pub(super) struct Suspect {
    pub(super) memory: Memory,
    /// In ring buffers of packet sockets.
    pub(super) packet_rings: Bytes,
    /// Its cgroup.
    pub(super) cgroup: Vec<u8>,
}

impl Suspect {
    /// What it holds that is charged to no cgroup.
    fn uncharged(&self) -> Bytes {
        self.memory.huge_pages.saturating_add(self.packet_rings)
    }

    fn held(&self) -> Bytes {
        self.memory.resident.saturating_add(self.uncharged())
    }
}

/// The largest processes that are in no workload or hold memory that is charged to no cgroup, largest first.
pub(super) fn largest(inventory: &Config, rings: &[PacketRing]) -> Vec<Suspect> {
    let rings = by_process(rings);
    let suspect = |memory: Memory| {
        let packet_rings = rings.get(&memory.pid.cast_unsigned()).copied().unwrap_or_default();
        let suspect = Suspect { memory, packet_rings, cgroup: Vec::new() };
        (suspect.held() > Bytes::ZERO).then_some(suspect)
    };
    let mut all: Vec<Suspect> = process::all().filter_map(|process| suspect(Memory::of(&process)?)).collect();
    all.sort_unstable_by_key(|suspect| (Reverse(suspect.held()), suspect.memory.pid));
    let is_outside =
        |cgroup: &[u8]| workload_of(&inventory.root, &inventory.patterns, &inventory.protected, cgroup).is_none();
    all.into_iter()
        .filter_map(|suspect| {
            let cgroup = cgroup_path(Some(Pid::from_raw(suspect.memory.pid)?))?;
            let is_named = suspect.uncharged() > Bytes::ZERO || is_outside(&cgroup);
            is_named.then_some(Suspect { cgroup, ..suspect })
        })
        .take(MOST)
        .collect()
}

fn by_process(rings: &[PacketRing]) -> HashMap<u32, Bytes> {
    let mut sums = HashMap::<u32, Bytes>::new();
    for PacketRing { pid, size } in rings {
        let sum = sums.entry(*pid).or_default();
        *sum = sum.saturating_add(size.to_bytes(page_bytes()));
    }
    sums
}
