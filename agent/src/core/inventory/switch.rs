//! The kill switch, as the inventory thread checks it.

use plimsoll_inventory::Sink as _;

use super::outgoing::clip;
use super::{News, Thread};
use crate::kill_switch::Found;
use crate::record::HealthRecord;

impl Thread {
    /// Checks it, and has what is new followed and reported.
    pub(super) fn follow_switch(&mut self) {
        if self.check_switch() {
            self.report_switch();
            // What is frozen must not wait for what else this thread does.
            self.outgoing.publish();
        }
    }

    /// Checks it, and sends the watching thread what is new. Gives whether anything is.
    pub(super) fn check_switch(&mut self) -> bool {
        let Some(switch) = &mut self.kill_switch else { return false };
        let was_thrown = switch.is_thrown();
        let found = switch.check();
        let path = switch.path().display();
        let ignored = match found {
            Found::Ignored(why) => Some(format!("what is at {path} is no kill switch: {why}")),
            Found::Absent | Found::Thrown => None,
        };
        self.outgoing.trouble("kill switch", ignored);
        let unreported = switch.unreported();
        let why =
            unreported.map(|errno| format!("the kernel does not report changes of {path}: {errno}; it is polled"));
        self.outgoing.trouble("kill switch's directories", why);
        let is_thrown = switch.is_thrown();
        if is_thrown != was_thrown {
            self.outgoing.send(News::KillSwitch(is_thrown));
        }
        is_thrown != was_thrown
    }

    pub(super) fn report_switch(&mut self) {
        if let Some(switch) = &self.kill_switch {
            let path = switch.path().to_string_lossy();
            self.outgoing.report(HealthRecord::KillSwitch { path: clip(&path), is_thrown: switch.is_thrown() });
        }
    }
}
