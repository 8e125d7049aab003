//! What is to be done.

use super::Why;
use crate::kubelet::Amount;
use crate::observation::Reclaimed;
use serde::{Deserialize, Serialize};

/// A reclaim on the node, before anything is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Reclaim this much memory from workloads over their request, without killing.
    Memory(Amount),
    /// Remove dead containers and their logs.
    Containers,
    /// Remove the images of [`Plan::images`](super::Plan::images), in this order; all unused ones under the policy
    /// `kubelet`.
    Images,
    /// Remove dead containers and all unused images, as the kubelet does.
    ContainersAndImages,
}

/// A reclaim that is asked for. It is over when an observation says so ([`Reclaimed`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimOrder {
    /// Its number, higher than all before in the same scope.
    pub order: u64,
    /// What is done.
    pub stage: Stage,
    /// What it is done for.
    pub why: Why,
}

impl ReclaimOrder {
    /// Whether it has ended.
    pub fn has_ended(&self, reclaimed: Option<Reclaimed>) -> bool {
        reclaimed.is_some_and(|reclaimed| reclaimed.order >= self.order)
    }
}

/// One thing to do, in this order. Workloads are named by their index in the observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Reclaim on the node.
    Reclaim(ReclaimOrder),
    /// Kill at once a workload that is terminating in its grace: a hard threshold is met.
    EscalateToKill {
        /// Which.
        workload: u32,
        /// What for.
        why: Why,
    },
    /// Evict.
    Evict {
        /// Which.
        workload: u32,
        /// What for.
        why: Why,
        /// Seconds for an orderly end. One and less is at once: a pod is given one second, a cgroup is killed.
        grace_seconds: i64,
    },
}

impl Action {
    /// The workload that is killed or asked to end.
    pub const fn victim(&self) -> Option<u32> {
        match *self {
            Self::Evict { workload, .. } | Self::EscalateToKill { workload, .. } => Some(workload),
            Self::Reclaim(_) => None,
        }
    }
}
