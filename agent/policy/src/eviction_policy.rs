//! Which implementation decides, and in which order workloads are evicted.

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

    #[test]
    fn eviction_policies_are_found_by_name() {
        for policy in EvictionPolicy::ALL {
            assert_eq!(EvictionPolicy::parse(policy.name()), Some(policy));
        }
        assert_eq!((EvictionPolicy::parse("Kubelet"), EvictionPolicy::default()), (None, EvictionPolicy::Plimsoll));
    }
}
