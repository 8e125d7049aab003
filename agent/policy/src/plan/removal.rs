//! What of a node's disks a plan's reclaim removes.

use super::{Plan, ReclaimOrder, Stage};
use crate::config::Config;
use crate::eviction_policy::EvictionPolicy;
use crate::kubelet::{DiskLayout, Reclaim, Signal};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// What is to be removed for a threshold on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// What the threshold is on.
    pub signal: Signal,
    /// What; nothing where these disks do not allow it.
    pub what: Reclaim,
    /// Images until they make up for so much, by the runtime's account; absent for all that are unused.
    pub bytes: Option<Bytes>,
}

impl Removal {
    /// What a plan asks for, as far as the disks allow it: nothing where the layout is not known. Absent where the reclaim
    /// is for no disk.
    pub fn of(config: &Config, plan: &Plan, order: ReclaimOrder, layout: Option<DiskLayout>) -> Option<Self> {
        let ReclaimOrder { stage, why, order: _ } = order;
        let signal = config.signal_of(plan.scope, why)?;
        let policy = config.eviction_policy;
        let allowed = layout.map_or(Reclaim::default(), |layout| policy.reclaims(signal, layout));
        let (containers, images) = match stage {
            Stage::Memory(_) => (false, false),
            Stage::Containers => (true, false),
            Stage::Images => (false, true),
            Stage::ContainersAndImages => (true, true),
        };
        let what = Reclaim { containers: containers && allowed.containers, images: images && allowed.images };
        let status = plan.thresholds.iter().find(|status| status.why == why)?;
        let bytes = match policy {
            EvictionPolicy::Kubelet => None,
            // The inodes of an image are not known: after each of them the disk is read.
            _ if !signal.is_bytes() => Some(Bytes(1)),
            EvictionPolicy::Plimsoll | EvictionPolicy::OpenShift3 => Some(status.missing().to_bytes()),
        };
        Some(Self { signal, what, bytes: bytes.filter(|_| what.images) })
    }
}
