//! Which implementation decides, and in which order workloads are evicted.

use crate::kubelet::{DiskLayout, Reclaim, Signal};
use core::fmt;
use serde::{Deserialize, Serialize};

/// An eviction policy, under the name that configurations give it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EvictionPolicy {
    /// [`kubelet`](crate::kubelet): decision for decision the kubelet's.
    Kubelet,
    /// The engine: the kubelet's contract without its defects.
    #[default]
    Plimsoll,
    /// The engine with OpenShift 3's order for memory.
    OpenShift3,
}

impl EvictionPolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Kubelet, Self::Plimsoll, Self::OpenShift3];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Plimsoll => "plimsoll",
            Self::OpenShift3 => "openshift3",
        }
    }

    /// What can be reclaimed for a signal: what the kubelet reclaims, and under the engine, where the images have a disk of
    /// their own, for the node's disk the dead containers and logs that the kubelet's documentation promises.
    pub const fn reclaims(self, signal: Signal, layout: DiskLayout) -> Reclaim {
        let Reclaim { containers, images } = Reclaim::of(signal, layout);
        let on_node = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
        let is_promised = on_node && !matches!(self, Self::Kubelet);
        Reclaim { containers: containers || is_promised, images }
    }

    /// The eviction policy of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

impl fmt::Display for EvictionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DiskLayout::{DedicatedImageFs, Single, SplitImageFs};
    use Signal::{ImageFsAvailable, NodeFsAvailable};

    #[test]
    fn eviction_policies_are_found_by_name() {
        for policy in EvictionPolicy::ALL {
            assert_eq!(EvictionPolicy::parse(policy.name()), Some(policy));
        }
        assert_eq!((EvictionPolicy::parse("Kubelet"), EvictionPolicy::default()), (None, EvictionPolicy::Plimsoll));
    }

    #[test]
    fn with_images_on_a_disk_of_their_own_the_engine_removes_containers_for_the_node_s_and_the_kubelet_nothing() {
        let of = |policy: EvictionPolicy, signal, layout| {
            let Reclaim { containers, images } = policy.reclaims(signal, layout);
            (containers, images)
        };
        for (signal, layout, engine, kubelet) in [
            (NodeFsAvailable, Single, (true, true), (true, true)),
            (NodeFsAvailable, DedicatedImageFs, (true, false), (false, false)),
            (ImageFsAvailable, DedicatedImageFs, (true, true), (true, true)),
            (NodeFsAvailable, SplitImageFs, (true, false), (true, false)),
            (ImageFsAvailable, SplitImageFs, (false, true), (false, true)),
        ] {
            let found = EvictionPolicy::ALL.map(|policy| of(policy, signal, layout));
            assert_eq!(found, [kubelet, engine, engine], "{signal} {layout:?}");
        }
    }
}
