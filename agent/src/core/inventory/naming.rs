//! Finds what workloads hold in huge pages, and names the processes that hold much memory outside all workloads.

use plimsoll_inventory::Sink as _;
use plimsoll_node::process;

use super::Thread;
use crate::core::suspects::{self, Suspect};
use crate::record::{MachineRecord, fitting};

impl Thread {
    pub(super) fn name_suspects(&mut self) {
        self.inventory.find_huge_pages(process::huge_pages, &mut self.outgoing);
        // Before everything else: the next decision may need it.
        self.outgoing.publish();
        let rings = self.packet_rings.read();
        let why = rings.as_ref().err().map(|error| format!("rings of packet sockets cannot be found: {error}"));
        self.outgoing.trouble("packet rings", why);
        for suspect in suspects::largest(self.inventory.config(), &rings.unwrap_or_default()) {
            let Suspect { memory, packet_rings, cgroup } = suspect;
            self.outgoing.report(MachineRecord::Suspect {
                pid: memory.pid.cast_unsigned(),
                name: memory.name.as_bytes(),
                cgroup: fitting(&cgroup),
                resident: memory.resident,
                huge_pages: memory.huge_pages,
                packet_rings,
            });
        }
    }
}
