//! Orders to remove what is dead or unused, on their way to the process that has it removed.

use plimsoll_inventory::{CoreMessage, RemovalError, RemovalResult};

use super::{News, Thread};

impl Thread {
    /// Sends the watching thread's order. Where that fails, it is the order's result.
    pub(super) fn send_removal(&mut self) {
        let Some(order) = self.handle.removal() else { return };
        let sent = self.pods.as_ref().is_some_and(|socket| socket.send(&CoreMessage::Remove(order)).is_ok());
        if !sent {
            self.outgoing.send(News::Removed(RemovalResult::failed(order.number, RemovalError::NotSent)));
            self.outgoing.publish();
        }
    }
}
