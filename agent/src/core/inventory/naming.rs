//! Names the processes that hold much memory outside all workloads.

use plimsoll_inventory::Sink as _;

use super::Thread;
use crate::core::suspects::{self, Suspect};
use crate::record::{MachineRecord, fitting};

impl Thread {
    pub(super) fn name_suspects(&mut self) {
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
