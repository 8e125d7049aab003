//! What the inventory gives of the workloads that it knows.

use plimsoll_node::cgroup::Handle;
use plimsoll_units::CgroupId;

use super::Inventory;

impl Inventory {
    /// A number that changes when a workload comes or goes.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// The cgroups of all workloads.
    pub fn handles(&self) -> impl Iterator<Item = &Handle> {
        self.known.values().map(|known| &*known.handle)
    }

    /// The cgroup of a workload.
    pub fn handle(&self, id: CgroupId) -> Option<&Handle> {
        self.known.get(&id).map(|known| &*known.handle)
    }
}
