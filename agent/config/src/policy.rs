//! The configuration as eviction policies take it. Thresholds on disks depend on which disks the runtime has, which is
//! known later.

use crate::kubelet::{DiskLayout, Kubelet, derive_containerfs, room};
use crate::model::Configuration;
use plimsoll_policy::Config as Policy;
use plimsoll_policy::kubelet::{Condition, Threshold};

impl Configuration {
    /// The policy's configuration, with thresholds on all signals, on these disks. Those on allocatable memory are the
    /// node's, as in the kubelet, so that all pods together are no slice.
    pub fn policy_on(&self, layout: DiskLayout) -> Policy {
        Policy {
            slices: self.policy.slices.iter().take(self.machine.slices.len()).cloned().collect(),
            thresholds: self.kubelet.thresholds_on(layout),
            max_pod_grace_seconds: i64::from(self.kubelet.max_pod_grace_seconds),
            ..self.policy.clone()
        }
    }

    /// What `run` holds the disks against: thresholds on disks alone, for the node.
    ///
    /// Those of containerfs are derived as on one disk, from nodefs. Where images and writable layers are together on a
    /// disk of their own, they are those of imagefs, on the same file system, so that imagefs stands for both.
    pub fn disk_policy(&self) -> Policy {
        let layout = DiskLayout { dedicated_image_fs: false, split_container_fs: false };
        let mut policy = self.policy_on(layout);
        policy.thresholds.retain(|threshold| threshold.signal.condition() == Condition::DiskPressure);
        Policy { slices: Vec::new(), swap: None, ..policy }
    }
}

impl Kubelet {
    /// The thresholds as an eviction policy takes them, with those that the kubelet derives for containerfs on these
    /// disks.
    pub fn thresholds_on(&self, layout: DiskLayout) -> Vec<Threshold> {
        let mut thresholds = self.thresholds.clone();
        derive_containerfs(&mut thresholds, layout, room(&self.eviction, &self.thresholds));
        thresholds.iter().map(Threshold::exact).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use plimsoll_policy::EvictionPolicy;
    use plimsoll_policy::kubelet::{Origin, Signal, ThresholdAmount};
    use plimsoll_units::{Amount, Percentage};

    fn configuration(text: &str) -> Configuration {
        crate::parse(text, "f").unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    const ONE: DiskLayout = DiskLayout { dedicated_image_fs: false, split_container_fs: false };

    #[test]
    fn each_policy_has_the_same_thresholds() {
        let text = "evictionHard: {memory.available: 1Gi, nodefs.available: 10%}\n\
                    evictionMinimumReclaim: {memory.available: 500Mi}\nevictionMaxPodGracePeriod: 7\n\
                    enforceNodeAllocatable: [none]\nlocalStorageCapacityIsolation: false\nswap: {free: 25%}\nmachine: {victimsPerMinute: 3, stallPercent: 50}\n";
        let mib = |mib: i64| ThresholdAmount::At(Amount::whole(mib << 20));
        let threshold = |signal, at, min_reclaim, origin| Threshold {
            signal,
            amount: Some(at),
            grace: Duration::ZERO,
            min_reclaim,
            origin,
        };
        let expected = [
            threshold(Signal::MemoryAvailable, mib(1024), Some(mib(500)), Origin::Configured),
            threshold(
                Signal::NodeFsAvailable,
                ThresholdAmount::Share(Percentage::of_one(0.1)),
                None,
                Origin::Configured,
            ),
            threshold(
                Signal::ContainerFsAvailable,
                ThresholdAmount::Share(Percentage::of_one(0.1)),
                None,
                Origin::Derived,
            ),
        ];
        for name in EvictionPolicy::ALL {
            let policy = configuration(&format!("{text}evictionPolicy: {name}")).policy_on(ONE);
            assert_eq!((policy.eviction_policy, policy.max_pod_grace_seconds, policy.stall_percent), (name, 7, 50));
            assert_eq!((policy.hard_victims_per_minute, policy.soft_victims_per_minute), (3, 3));
            assert!(!policy.local_storage_isolation);
            let swap = policy.swap.expect("it is configured");
            assert_eq!(
                (swap.free, swap.grace),
                (ThresholdAmount::Share(Percentage::of_one(0.25)), Duration::from_secs(30))
            );
            let met = policy.thresholds.iter().filter(|threshold| threshold.amount.is_some()).copied();
            assert_eq!(met.collect::<Vec<Threshold>>(), expected, "{name}");
        }
    }

    /// Where the thresholds of containerfs.available come from, sorted by whether they are hard, and those that are
    /// never met left out.
    fn origins(text: &str, layout: DiskLayout) -> Vec<(bool, Origin)> {
        let thresholds = configuration(text).kubelet.thresholds_on(layout).into_iter();
        let of_containers =
            thresholds.filter(|found| found.signal == Signal::ContainerFsAvailable && found.amount.is_some());
        let mut origins: Vec<_> = of_containers.map(|found| (found.is_hard(), found.origin)).collect();
        origins.sort_by_key(|(is_hard, origin)| (!is_hard, *origin as u8));
        origins
    }

    #[test]
    fn disks_are_held_against_their_own_thresholds_alone() {
        let text = "evictionHard: {memory.available: 1Gi, pid.available: 5%, nodefs.available: 10%, imagefs.inodesFree: 5%}\n\
                    evictionPressureTransitionPeriod: 7s\nswap: {free: 25%}\n\
                    machine: {slices: [{path: a, evictionHard: {memory.available: 1Mi}}]}\n";
        let policy = configuration(text).disk_policy();
        let mut signals: Vec<_> =
            policy.thresholds.iter().filter(|it| it.amount.is_some()).map(|it| it.signal).collect();
        signals.sort();
        assert_eq!(signals, [Signal::NodeFsAvailable, Signal::ImageFsInodesFree, Signal::ContainerFsAvailable]);
        assert_eq!((policy.slices.len(), policy.swap, policy.pressure_transition), (0, None, Duration::from_secs(7)));
    }

    const DISBELIEVED: DiskLayout = DiskLayout { dedicated_image_fs: false, split_container_fs: true };

    #[test]
    fn configured_thresholds_of_containerfs_are_replaced() {
        let text = "evictionHard: {containerfs.available: 1Gi, nodefs.available: 10%}\n\
                    evictionSoft: {containerfs.available: 2Gi}\nevictionSoftGracePeriod: {containerfs.available: 1m}\n";
        assert_eq!(origins(text, ONE), [(true, Origin::DerivedInPlace)]);
        assert_eq!(origins(text, DISBELIEVED), [(true, Origin::Configured), (false, Origin::Configured)]);
    }

    #[test]
    fn a_threshold_is_replaced_in_place_where_the_kubelets_list_has_room() {
        let grace = "evictionSoftGracePeriod: {containerfs.available: 1m, nodefs.available: 1m}";
        let soft = "evictionSoft: {containerfs.available: 2Gi, nodefs.available: 3Gi}";
        let (copied, kept) = (&[Origin::Derived, Origin::ReplacedInCopy][..], &[Origin::DerivedInPlace][..]);
        for (enforced, hard, origins_of_soft) in [
            // Four thresholds, in a list for four: a hard one that is added before needs a copy of it.
            ("none", "memory.available: 1Gi, nodefs.available: 1Gi", copied),
            // A fifth, derived of memory's, made the list one for eight.
            ("pods", "memory.available: 1Gi, nodefs.available: 1Gi", kept),
            ("pods", "pid.available: 10%, nodefs.available: 1Gi", copied),
            // Nothing has to be added before the soft one is replaced.
            ("none", "memory.available: 1Gi, containerfs.available: 1Gi", kept),
        ] {
            let text = format!("evictionHard: {{{hard}}}\n{soft}\n{grace}\nenforceNodeAllocatable: [{enforced}]\n");
            let soft = origins(&text, ONE).into_iter().filter(|(is_hard, _)| !is_hard).map(|(_, origin)| origin);
            assert_eq!(soft.collect::<Vec<_>>(), origins_of_soft, "{text}");
        }
    }

    #[test]
    fn one_that_is_replaced_by_itself_stays() {
        for (written, origin) in [("10%", Origin::Configured), ("1Gi", Origin::DerivedInPlace)] {
            let text = format!("evictionHard: {{containerfs.available: {written}, nodefs.available: {written}}}\n");
            assert_eq!(origins(&text, ONE), [(true, origin)], "{written}");
        }
    }
}
