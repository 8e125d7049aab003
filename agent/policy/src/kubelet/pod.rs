//! What a pod was promised, and what it uses.
//!
//! [`PodSpec`] is read once, when a pod comes; [`Pod`] is what a decision takes.

use plimsoll_units::Amount;
use serde::{Deserialize, Serialize};

/// The lowest priority of pods that are critical by it (`SystemCriticalPriority`).
const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Amounts by resource. Absent is not the same as zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Processors.
    pub cpu: Option<Amount>,
    /// Bytes of memory.
    pub memory: Option<Amount>,
    /// Bytes of local storage.
    pub ephemeral_storage: Option<Amount>,
    /// Whether there are any huge pages among them; how many does not matter here.
    pub huge_pages: bool,
}

/// What a container or a whole pod asks for, and what it may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requirements {
    /// What it is promised.
    pub requests: Amounts,
    /// What it may use.
    pub limits: Amounts,
}

/// A container that ends before the pod's own begin, unless it is one that stays beside them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitContainer {
    /// What it asks for.
    pub requirements: Requirements,
    /// It stays: its restart policy is `Always`.
    pub is_sidecar: bool,
}

/// The parts of a pod's specification that decisions depend on.
#[derive(Clone, Copy, Debug, Default)]
pub struct PodSpec<'a> {
    /// Its containers.
    pub containers: &'a [Requirements],
    /// Its init containers, in order.
    pub init_containers: &'a [InitContainer],
    /// What running it costs beside its containers.
    pub overhead: Amounts,
    /// What it asks for as a whole.
    pub pod_level: Option<Requirements>,
    /// Its priority.
    pub priority: Option<i32>,
    /// The annotation `kubernetes.io/config.source`.
    pub source: Option<&'a str>,
    /// It has the annotation `kubernetes.io/config.mirror`.
    pub is_mirror: bool,
}

/// Quality of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QosClass {
    /// Asks for nothing.
    #[default]
    BestEffort,
    /// Asks for something.
    Burstable,
    /// Asks for just what it may use.
    Guaranteed,
}

impl QosClass {
    /// The name in the status of a pod.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BestEffort => "BestEffort",
            Self::Burstable => "Burstable",
            Self::Guaranteed => "Guaranteed",
        }
    }
}

/// Why a pod is never evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Critical {
    /// It comes from a file or a URL: nothing would admit it again.
    Static,
    /// It stands for a static pod.
    Mirror,
    /// Its priority says so.
    Priority,
}

/// Chooses one resource of several.
type Resource = fn(&Amounts) -> Option<Amount>;

const fn ephemeral_storage(amounts: &Amounts) -> Option<Amount> {
    amounts.ephemeral_storage
}

impl Amounts {
    const fn has_pod_level_resource(&self) -> bool {
        self.cpu.is_some() || self.memory.is_some() || self.huge_pages
    }
}

impl PodSpec<'_> {
    /// The memory that it was promised.
    pub fn memory_request(&self) -> Amount {
        self.request(|amounts| amounts.memory)
    }

    /// The local storage that it was promised. A pod as a whole can request processors, memory and huge pages alone
    /// (`IsSupportedPodLevelResource`).
    pub fn ephemeral_storage_request(&self) -> Amount {
        let supported = |level: Requirements| Requirements {
            requests: Amounts { ephemeral_storage: None, ..level.requests },
            ..level
        };
        Self { pod_level: self.pod_level.map(supported), ..*self }.request(ephemeral_storage)
    }

    /// `GetResourceRequestQuantity`: containers together, or what starting takes if that is more, and the overhead.
    ///
    /// Kept as they are there: a request for the pod as a whole, of whatever resource, replaces those of containers for
    /// every resource, so that a pod that asks for processors as a whole was promised no memory; and the overhead
    /// counts only beside a request that is not zero.
    fn request(&self, resource: Resource) -> Amount {
        let request = match self.pod_level {
            Some(level) if level.requests.has_pod_level_resource() || level.limits.has_pod_level_resource() => {
                resource(&level.requests).unwrap_or_default()
            }
            _ => self.of_containers(|requirements| resource(&requirements.requests)).unwrap_or_default(),
        };
        let overhead = resource(&self.overhead).unwrap_or_default();
        if request.is_zero() { request } else { request + overhead }
    }

    /// The local storage that it may use, if any of its containers has a limit (`PodLimits`): one container with a limit
    /// so bounds the whole pod, containers without one included. Nothing is added to a limit of zero.
    pub fn ephemeral_storage_limit(&self) -> Option<Amount> {
        let limit = self.of_containers(|requirements| requirements.limits.ephemeral_storage)?;
        let overhead = self.overhead.ephemeral_storage.filter(|_| !limit.is_zero()).unwrap_or_default();
        Some(limit + overhead)
    }

    /// Containers and sidecars together; or an init container and the sidecars before it, where that is more.
    fn of_containers(&self, of: impl Fn(&Requirements) -> Option<Amount>) -> Option<Amount> {
        let add = |sum: &mut Option<Amount>, amount: Option<Amount>| {
            if let Some(amount) = amount {
                *sum = Some(sum.unwrap_or_default() + amount);
            }
        };
        let mut together = None;
        for container in self.containers {
            add(&mut together, of(container));
        }
        let mut sidecars = None;
        let mut starting: Option<Amount> = None;
        for init in self.init_containers {
            let own = of(&init.requirements);
            if init.is_sidecar {
                add(&mut together, own);
                add(&mut sidecars, own);
                starting = starting.max(sidecars);
            } else {
                let mut beside = sidecars;
                add(&mut beside, own);
                starting = starting.max(beside);
            }
        }
        together.max(starting)
    }

    /// Its class (`ComputePodQOS`). What a pod requests as a whole replaces what its containers request.
    pub fn qos(&self) -> QosClass {
        let resources: [Resource; 2] = [|amounts| amounts.cpu, |amounts| amounts.memory];
        let positive = |amounts: &Amounts, resource: Resource| resource(amounts).filter(|amount| amount.is_positive());
        let mut requests = [None::<Amount>; 2];
        let mut limits = [None::<Amount>; 2];
        let mut all_have_limits = true;
        let mut count = |requirements: &Requirements| {
            for (index, resource) in resources.into_iter().enumerate() {
                let add = |sum: &mut Option<Amount>, amount: Option<Amount>| {
                    if let Some(amount) = amount {
                        *sum = Some(sum.unwrap_or_default() + amount);
                    }
                };
                let limit = positive(&requirements.limits, resource);
                all_have_limits &= limit.is_some();
                add(&mut requests[index], positive(&requirements.requests, resource));
                add(&mut limits[index], limit);
            }
        };
        if let Some(level) = &self.pod_level {
            count(level);
        } else {
            self.containers.iter().for_each(&mut count);
            self.init_containers.iter().for_each(|init| count(&init.requirements));
        }
        if requests == [None; 2] && limits == [None; 2] {
            QosClass::BestEffort
        } else if all_have_limits && requests == limits {
            QosClass::Guaranteed
        } else {
            QosClass::Burstable
        }
    }

    /// Why it is never evicted, if so (`IsCriticalPod`).
    pub fn critical(&self) -> Option<Critical> {
        if self.source.is_some_and(|source| source != "api") {
            Some(Critical::Static)
        } else if self.is_mirror {
            Some(Critical::Mirror)
        } else if self.priority.is_some_and(|priority| priority >= CRITICAL_PRIORITY) {
            Some(Critical::Priority)
        } else {
            None
        }
    }
}

/// Bytes and inodes in use. What could not be read is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub bytes: Option<u64>,
    /// Inodes.
    pub inodes: Option<u64>,
}

/// Stands for a name within one pod: of its containers, or of its volumes. What has the same name has the same number, in
/// the specification as in the statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Number(pub u32);

/// What a container uses of disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerStats {
    /// Its number within the pod.
    pub number: Number,
    /// Its writable layer.
    pub rootfs: Usage,
    /// Its logs.
    pub logs: Usage,
}

/// What a volume takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Its number within the pod.
    pub number: Number,
    /// What it takes.
    pub usage: Usage,
}

/// What a pod uses. What could not be read is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodStats<'a> {
    /// Bytes of memory that cannot be dropped at once.
    pub working_set: Option<u64>,
    /// Processes.
    pub processes: Option<u64>,
    /// Bytes of local storage, by the statistics' own sum.
    pub ephemeral_storage: Option<u64>,
    /// Its containers.
    pub containers: &'a [ContainerStats],
    /// Its volumes.
    pub volumes: &'a [VolumeStats],
}

/// A volume of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Its number within the pod.
    pub number: Number,
    /// It lies on a disk of this node and belongs to the pod's usage: a host path, an `emptyDir` that is not in memory,
    /// a `configMap` or a `gitRepo` (`localVolumeNames`). Secrets, projections and the downward API are not counted.
    pub is_local: bool,
    /// The size limit of an `emptyDir`, in memory or not.
    pub size_limit: Option<Amount>,
}

/// The limit of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerLimit {
    /// Its number within the pod.
    pub number: Number,
    /// Bytes of local storage that it may use.
    pub ephemeral_storage: Option<Amount>,
}

/// A running pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pod<'a> {
    /// Its priority; none counts as zero.
    pub priority: i32,
    /// Why it is never evicted, if so.
    pub critical: Option<Critical>,
    /// [`PodSpec::memory_request`].
    pub memory_request: Amount,
    /// [`PodSpec::ephemeral_storage_request`].
    pub ephemeral_storage_request: Amount,
    /// [`PodSpec::ephemeral_storage_limit`].
    pub ephemeral_storage_limit: Option<Amount>,
    /// The time it wants for an orderly end.
    pub grace_seconds: Option<i64>,
    /// Its containers, init containers left out.
    pub containers: &'a [ContainerLimit],
    /// Its volumes.
    pub volumes: &'a [Volume],
    /// What it uses; absent if there are no statistics of it. Where there are two by its UID, the last
    /// (`cachedStatsFunc` puts them into a map).
    pub stats: Option<PodStats<'a>>,
}

/// What the manager is given of each pod: a [`Pod`], or something that holds one.
pub trait Manages<'a> {
    /// The pod.
    fn pod(&self) -> &Pod<'a>;

    /// Why it is never evicted, if so.
    fn critical(&self) -> Option<Critical> {
        self.pod().critical
    }

    /// Whether it is one of the pods that the manager is given (`GetActivePods`).
    fn is_active(&self) -> bool {
        true
    }
}

impl<'a> Manages<'a> for Pod<'a> {
    fn pod(&self) -> &Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn memory(request: i64) -> Requirements {
        let requests = Amounts { memory: Some(Amount::whole(request)), ..NOTHING };
        Requirements { requests, limits: NOTHING }
    }

    const NOTHING: Amounts = Amounts { cpu: None, memory: None, ephemeral_storage: None, huge_pages: false };

    #[test]
    fn starting_takes_what_an_init_container_and_the_sidecars_before_it_take() {
        let init = |request, is_sidecar| InitContainer { requirements: memory(request), is_sidecar };
        for (containers, init_containers, overhead, request) in [
            (&[memory(5), memory(7)][..], &[][..], 3, 15),
            (&[memory(5)], &[init(9, false)], 0, 9),
            (&[memory(5)], &[init(9, true)], 0, 14),
            (&[memory(5)], &[init(9, true), init(6, false)], 0, 15),
            (&[memory(5)], &[init(6, false), init(9, true)], 0, 14),
            (&[], &[], 3, 0),
            (&[memory(0)], &[], 3, 0),
        ] {
            let overhead = Amounts { memory: Some(Amount::whole(overhead)), ..NOTHING };
            let spec = PodSpec { containers, init_containers, overhead, ..PodSpec::default() };
            assert_eq!(spec.memory_request(), Amount::whole(request));
        }
    }

    #[test]
    fn one_limit_of_local_storage_bounds_the_pod_and_overhead_widens_all_but_zero() {
        let limits = |limit: Option<i64>| Requirements {
            limits: Amounts { ephemeral_storage: limit.map(Amount::whole), ..NOTHING },
            requests: NOTHING,
        };
        for (containers, limit) in [
            (&[limits(None), limits(None)][..], None),
            (&[limits(Some(5)), limits(None)], Some(8)),
            (&[limits(Some(5)), limits(Some(1))], Some(9)),
            (&[limits(Some(0)), limits(None)], Some(0)),
        ] {
            let overhead = Amounts { ephemeral_storage: Some(Amount::whole(3)), ..NOTHING };
            let spec = PodSpec { containers, overhead, ..PodSpec::default() };
            assert_eq!(spec.ephemeral_storage_limit(), limit.map(Amount::whole));
        }
    }

    #[test]
    fn what_is_zero_does_not_count_for_the_class() {
        let amounts = |cpu: i64, memory: i64| Amounts {
            cpu: Some(Amount::whole(cpu)),
            memory: Some(Amount::whole(memory)),
            ..NOTHING
        };
        for (requests, limits, class) in [
            (amounts(0, 0), amounts(0, 0), QosClass::BestEffort),
            (amounts(0, 0), NOTHING, QosClass::BestEffort),
            (amounts(0, 1), amounts(0, 1), QosClass::Burstable),
            (amounts(1, 1), amounts(1, 1), QosClass::Guaranteed),
            (amounts(0, 0), amounts(1, 1), QosClass::Burstable),
        ] {
            let requirements = Requirements { requests, limits };
            let as_a_whole = PodSpec { pod_level: Some(requirements), ..PodSpec::default() };
            let in_parts = PodSpec { containers: &[requirements], ..PodSpec::default() };
            assert_eq!([as_a_whole.qos(), in_parts.qos()], [class; 2], "{requirements:?}");
        }
    }

    #[test]
    fn a_request_for_the_pod_replaces_all_of_its_containers() {
        let requests = Amounts { cpu: Some(Amount::whole(1)), ..NOTHING };
        let pod_level = Some(Requirements { requests, limits: NOTHING });
        let spec = PodSpec { containers: &[memory(5)], pod_level, ..PodSpec::default() };
        assert_eq!((spec.memory_request(), spec.qos()), (Amount::ZERO, QosClass::Burstable));
        let requests = Amounts { ephemeral_storage: Some(Amount::whole(7)), ..requests };
        let spec = PodSpec { pod_level: Some(Requirements { requests, limits: NOTHING }), ..spec };
        assert_eq!(spec.ephemeral_storage_request(), Amount::ZERO, "local storage is no resource of a pod as a whole");
    }

    #[test]
    fn critical_pods_are_known_by_source_or_priority() {
        for (source, is_mirror, priority, critical) in [
            (None, false, None, None),
            (Some("api"), false, Some(CRITICAL_PRIORITY - 1), None),
            (Some("file"), false, None, Some(Critical::Static)),
            (None, true, None, Some(Critical::Mirror)),
            (None, false, Some(CRITICAL_PRIORITY), Some(Critical::Priority)),
        ] {
            let spec = PodSpec { priority, source, is_mirror, ..PodSpec::default() };
            assert_eq!(spec.critical(), critical);
        }
    }
}
