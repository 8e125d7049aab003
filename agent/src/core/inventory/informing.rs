//! What the watching thread has for `services`: orders to remove what is dead or unused, evictions and conditions.

use plimsoll_inventory::{CoreMessage, RemovalError, RemovalResult};

use super::{News, Thread};

impl Thread {
    /// Sends what is said of evictions and conditions. What cannot be sent is dropped: the watching thread says it again.
    pub(super) fn inform(&mut self) {
        while let Ok(message) = self.messages.pop() {
            if let Some(socket) = &self.pods {
                let _ = socket.send(&message);
            }
        }
    }

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
