//! Orders to stop a pod that the API server is asked to have ended by its kubelet: hooks before a stop, sidecars last.
//!
//! An order is answered once the API server has taken that. Where it does not in half of the time that the order leaves, the
//! other half is the container runtime's.

use std::collections::HashSet;

use plimsoll_inventory::StopOrder;
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use plimsoll_units::MonotonicNs;

/// What an order waits for.
#[derive(Debug, Default)]
pub(super) struct Stops {
    /// Pods that their kubelet ends.
    ending: HashSet<Uid>,
    /// Orders, each with the time until which the API server has to have answered.
    held: Vec<(StopOrder, MonotonicNs)>,
}

impl Stops {
    /// Whether the pod's kubelet ends it.
    pub(super) fn ends(&self, uid: Uid) -> bool {
        self.ending.contains(&uid)
    }

    /// Has an order wait.
    pub(super) fn hold(&mut self, order: StopOrder) {
        let now = monotonic();
        self.held.push((order, now.after(order.until.since(now) / 2)));
    }

    /// The API server has taken it. Whether an order waited for that.
    pub(super) fn end(&mut self, uid: Uid) -> bool {
        self.ending.insert(uid);
        let count = self.held.len();
        self.held.retain(|(order, _)| order.uid != uid);
        self.held.len() < count
    }

    /// The API server will not have the pod ended: an order does not wait for it any more.
    pub(super) fn give_up(&mut self, uid: Uid) {
        for (_, until) in self.held.iter_mut().filter(|(order, _)| order.uid == uid) {
            *until = MonotonicNs(0);
        }
    }

    /// The next order that has waited for long enough.
    pub(super) async fn overdue(&mut self) -> StopOrder {
        let next = self.held.iter().map(|(_, until)| *until).enumerate().min_by_key(|(_, until)| *until);
        let Some((place, until)) = next else { return std::future::pending().await };
        tokio::time::sleep(until.since(monotonic())).await;
        self.held.swap_remove(place).0
    }

    /// These are all pods: others have ended.
    pub(super) fn learn(&mut self, is_there: impl Fn(Uid) -> bool) {
        self.ending.retain(|uid| is_there(*uid));
    }
}
