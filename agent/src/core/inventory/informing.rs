//! What the core has for `services`: orders to remove what is dead or unused, evictions and conditions, all of the watching
//! thread, and that cgroups came or went.

use plimsoll_inventory::{CoreMessage, RemovalError, RemovalResult};
use plimsoll_node::clock::monotonic;

use super::schedule::Schedule;
use super::{News, PACE, PodSocket, Thread};

impl Thread {
    /// Sends what is said of evictions and conditions. What cannot be sent is dropped: the watching thread says it again.
    pub(super) fn inform(&mut self) {
        while let Ok(message) = self.messages.pop() {
            if let Some(socket) = &self.pods {
                let _ = socket.send(&message);
            }
        }
    }

    /// Sends that cgroups came or went. Within the pace of the last time `services` still asks as often as it does after that.
    pub(super) fn inform_of_cgroups(&self, schedule: &mut Schedule) {
        let (now, Some(socket)) = (monotonic(), &self.pods) else { return };
        if schedule.informed.is_overdue(now) && socket.send(&CoreMessage::CgroupsChanged).is_ok() {
            schedule.informed.done(now, now, PACE);
        }
    }

    /// Sends the watching thread's order. Where that fails, it is the order's result.
    pub(super) fn send_removal(&mut self) {
        let Some(order) = self.handle.removal() else { return };
        let sent = order_by(self.broker.as_ref(), self.pods.as_ref(), &CoreMessage::Remove(order));
        if !sent {
            self.outgoing.send(News::Removed(RemovalResult::failed(order.number, RemovalError::NotSent)));
            self.outgoing.publish();
        }
    }
}

/// Sends an order to `services`, and before that to the broker, which lets nothing pass that was not ordered. Gives whether both
/// were sent it.
pub(super) fn order_by(broker: Option<&PodSocket>, services: Option<&PodSocket>, order: &CoreMessage) -> bool {
    let is_allowed = broker.is_none_or(|broker| broker.send(order).is_ok());
    is_allowed && services.is_some_and(|services| services.send(order).is_ok())
}
