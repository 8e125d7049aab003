//! What decisions about pods go by. Their thresholds depend on the runtime's disks, which are known later.

use crate::kubelet::{DiskLayout, EvictionThreshold, Kubelet, Operator, ThresholdValue, derive_containerfs};
use crate::model::Configuration;
use core::time::Duration;
use plimsoll_policy::Config as Policy;
use plimsoll_policy::kubelet::{Line, Origin, Signal, Threshold};

impl Configuration {
    /// The policy with the thresholds on all signals, where the runtime has these disks.
    pub fn policy_on(&self, layout: DiskLayout) -> Policy {
        Policy {
            thresholds: self.kubelet.thresholds_on(layout),
            max_pod_grace_seconds: i64::from(self.kubelet.max_pod_grace_seconds),
            ..self.policy.clone()
        }
    }
}

impl Kubelet {
    /// The thresholds as an eviction policy takes them, with those that the kubelet derives for containerfs on these
    /// disks.
    pub fn thresholds_on(&self, layout: DiskLayout) -> Vec<Threshold> {
        let of_containers = |threshold: &EvictionThreshold| {
            matches!(threshold.signal, Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree)
        };
        let mut thresholds = self.thresholds.clone();
        derive_containerfs(&mut thresholds, layout);
        // A runtime with containers apart and images not is not believed, and nothing is derived.
        let derives = layout.dedicated_image_fs || !layout.split_container_fs;
        let own: Vec<&EvictionThreshold> =
            self.thresholds.iter().filter(|threshold| derives && of_containers(threshold)).collect();
        let origin = |threshold: &EvictionThreshold| {
            let replaces = |own: &&EvictionThreshold| own.is_hard() && own.signal == threshold.signal;
            match (derives && of_containers(threshold), threshold.is_hard() && own.iter().any(replaces)) {
                (false, _) => Origin::Configured,
                (true, true) => Origin::DerivedInPlace,
                (true, false) => Origin::Derived,
            }
        };
        let mut taken: Vec<Threshold> =
            thresholds.iter().map(|threshold| taken(threshold, origin(threshold))).collect();
        // A soft one of the user's own is still looked at in the turn that learns of the disks.
        let soft = own.iter().filter(|own| !own.is_hard());
        taken.extend(soft.map(|own| self::taken(own, Origin::ReplacedInCopy)));
        taken
    }
}

fn taken(threshold: &EvictionThreshold, origin: Origin) -> Threshold {
    Threshold {
        signal: threshold.signal,
        line: match threshold.operator {
            Operator::LessThan => Some(line(&threshold.value)),
            Operator::Never => None,
        },
        grace: Duration::from_nanos(u64::try_from(threshold.grace_period_ns).unwrap_or(0)),
        min_reclaim: threshold.min_reclaim.as_ref().map(line),
        origin,
    }
}

fn line(value: &ThresholdValue) -> Line {
    match value {
        ThresholdValue::Quantity(quantity) => Line::At(quantity.amount()),
        ThresholdValue::Percentage(share) => Line::Share(*share),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::EvictionPolicy;
    use plimsoll_units::{Amount, Percentage};

    fn configuration(text: &str) -> Configuration {
        crate::parse(text, "f").unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    const ONE: DiskLayout = DiskLayout { dedicated_image_fs: false, split_container_fs: false };

    #[test]
    fn each_policy_gets_what_it_goes_by() {
        let text = "evictionHard: {memory.available: 1Gi, nodefs.available: 10%}\n\
                    evictionMinimumReclaim: {memory.available: 500Mi}\nevictionMaxPodGracePeriod: 7\n\
                    enforceNodeAllocatable: [none]\nlocalStorageCapacityIsolation: false\nswap: {free: 25%}\nmachine: {victimsPerMinute: 3, stallPercent: 50}\n";
        let mib = |mib: i64| Line::At(Amount::whole(mib << 20));
        let threshold = |signal, line, min_reclaim, origin| Threshold {
            signal,
            line: Some(line),
            grace: Duration::ZERO,
            min_reclaim,
            origin,
        };
        let expected = [
            threshold(Signal::MemoryAvailable, mib(1024), Some(mib(500)), Origin::Configured),
            threshold(Signal::NodeFsAvailable, Line::Share(Percentage::of_one(0.1)), None, Origin::Configured),
            threshold(Signal::ContainerFsAvailable, Line::Share(Percentage::of_one(0.1)), None, Origin::Derived),
        ];
        for book in EvictionPolicy::ALL {
            let policy = configuration(&format!("{text}evictionPolicy: {book}")).policy_on(ONE);
            assert_eq!((policy.eviction_policy, policy.max_pod_grace_seconds, policy.stall_percent), (book, 7, 50));
            assert_eq!((policy.hard_victims_per_minute, policy.soft_victims_per_minute), (3, 3));
            assert!(!policy.local_storage_isolation);
            let swap = policy.swap.expect("it is configured");
            assert_eq!((swap.free, swap.grace), (Line::Share(Percentage::of_one(0.25)), Duration::from_secs(30)));
            let met = policy.thresholds.iter().filter(|threshold| threshold.line.is_some()).copied();
            assert_eq!(met.collect::<Vec<Threshold>>(), expected, "{book}");
        }
    }

    #[test]
    fn own_lines_of_containerfs_are_replaced() {
        let text = "evictionHard: {containerfs.available: 1Gi, nodefs.available: 10%}\n\
                    evictionSoft: {containerfs.available: 2Gi}\nevictionSoftGracePeriod: {containerfs.available: 1m}\n";
        let origins = |layout| -> Vec<Origin> {
            let thresholds = configuration(text).kubelet.thresholds_on(layout).into_iter();
            let of_containers =
                thresholds.filter(|found| found.signal == Signal::ContainerFsAvailable && found.line.is_some());
            of_containers.map(|threshold| threshold.origin).collect()
        };
        assert_eq!(origins(ONE), [Origin::DerivedInPlace, Origin::ReplacedInCopy]);
        let disbelieved = DiskLayout { dedicated_image_fs: false, split_container_fs: true };
        assert_eq!(origins(disbelieved), [Origin::Configured, Origin::Configured]);
    }
}
