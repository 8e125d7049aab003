//! What is taken from a pod's specification: quantities of what it requests and may use.

use core::fmt;
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;
use plimsoll_policy::kubelet::{self, Amount, Amounts, InitContainer, PodSpec};
use plimsoll_policy::oom_score::{Requests, part_of_pod_request};
use plimsoll_units::{Bytes, Quantity};
use std::collections::BTreeMap;

/// The name of local storage among resources.
pub(crate) const STORAGE: &str = "ephemeral-storage";

/// The parts of a specification that something is reported of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// What it requests as a whole.
    pub resources: Option<Requirements>,
    /// What running it costs beside its containers.
    pub overhead: Resources,
    /// Its regular containers.
    pub containers: Vec<Container>,
    /// Its init containers.
    pub init_containers: Vec<Container>,
    /// Its ephemeral containers that have not ended, as far as the status says that. They request nothing.
    pub ephemeral_containers: Vec<Container>,
    /// Its volumes.
    pub volumes: Vec<Volume>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// What it requests and what it may use.
    pub resources: Requirements,
    /// An init container that stays beside the regular ones.
    pub is_sidecar: bool,
    /// Its id within the runtime, where the status has it.
    pub id: Option<String>,
}

/// What of a pod that runs can be resized in place.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// Quantities by the name of the resource.
pub type Resources = BTreeMap<String, Quantity>;

/// What a container or a pod requests, and what it may use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requirements {
    /// What it is promised.
    pub requests: Resources,
    /// What it may use.
    pub limits: Resources,
}

/// A volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its files count as the pod's, on a disk of the node ([`kubelet::Volume::is_local`]).
    pub is_local: bool,
    /// The size limit of an `emptyDir`.
    pub size_limit: Option<Quantity>,
}

/// A field of a pod that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The field with its parents, from the pod on: `spec.containers[0].resources.requests.memory`.
    pub path: String,
    /// What was expected, and the value.
    pub why: String,
}

impl core::error::Error for FieldError {}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.why)
    }
}

fn quantity(path: impl FnOnce() -> String, Written(text): &Written) -> Result<Quantity, FieldError> {
    let why = |error| format!("expected a quantity such as 500Mi, not {text:?}: {error}");
    Quantity::parse(text).map_err(|error| FieldError { path: path(), why: why(error) })
}

fn resources(path: &str, written: Option<BTreeMap<String, Written>>) -> Result<Resources, FieldError> {
    let read = |(name, written): (String, Written)| {
        let amount = quantity(|| format!("{path}.{name}"), &written)?;
        Ok((name, amount))
    };
    written.into_iter().flatten().map(read).collect()
}

impl Requirements {
    fn read(path: &str, written: api::ResourceRequirements) -> Result<Self, FieldError> {
        Ok(Self {
            requests: resources(&format!("{path}.requests"), written.requests)?,
            limits: resources(&format!("{path}.limits"), written.limits)?,
        })
    }

    /// What was promised, where the status says it: the request that the kubelet admitted last. Of a resize that it defers or
    /// finds infeasible that is the one before, and its limits are those that are in force.
    fn admit(&mut self, path: &str, admitted: Admitted<'_>) -> Result<(), FieldError> {
        let Some(requests) = admitted.allocated else { return Ok(()) };
        let limits = admitted.resources.and_then(|in_force| in_force.limits.as_ref());
        let requests = resources(&format!("{path}.allocatedResources"), Some(requests.clone()))?;
        let limits = resources(&format!("{path}.resources.limits"), limits.cloned())?;
        let is_admitted = |name| self.requests.get(name).is_none_or(|written| requests.get(name) == Some(written));
        if !RESIZABLE.into_iter().all(is_admitted) {
            replace(&mut self.requests, &requests);
            replace(&mut self.limits, &limits);
        }
        Ok(())
    }

    /// Whether it may use just as much memory as it requests. A request that is not written is as large as the limit.
    fn is_limited_to_request(&self) -> bool {
        let limit = memory(&self.limits);
        limit.is_some() && memory(&self.requests).or(limit) == limit
    }
}

/// What the status of a container, or of a pod, says of resources.
#[derive(Clone, Copy)]
struct Admitted<'a> {
    allocated: Option<&'a BTreeMap<String, Written>>,
    resources: Option<&'a api::ResourceRequirements>,
}

/// Takes what can be resized from the others, as far as it was there. A resize takes nothing away.
fn replace(resources: &mut Resources, others: &Resources) {
    for name in RESIZABLE {
        if resources.remove(name).is_some()
            && let Some(amount) = others.get(name)
        {
            resources.insert(name.to_owned(), amount.clone());
        }
    }
}

fn amounts(resources: &Resources) -> Amounts {
    let of = |name: &str| resources.get(name).map(Quantity::amount);
    Amounts {
        cpu: of("cpu"),
        memory: of("memory"),
        ephemeral_storage: of(STORAGE),
        huge_pages: resources.keys().any(|name| name.starts_with("hugepages-")),
    }
}

impl From<&Requirements> for kubelet::Requirements {
    fn from(Requirements { requests, limits }: &Requirements) -> Self {
        Self { requests: amounts(requests), limits: amounts(limits) }
    }
}

pub(crate) fn bytes(amount: Amount) -> Bytes {
    Bytes(u64::try_from(amount.rounded_up().max(0)).unwrap_or(u64::MAX))
}

fn memory(resources: &Resources) -> Option<Bytes> {
    resources.get("memory").map(|written| bytes(written.amount()))
}

fn containers(path: &str, written: Vec<api::Container>) -> Result<Vec<Container>, FieldError> {
    let read = |(index, container): (usize, api::Container)| {
        let path = format!("{path}[{index}].resources");
        Ok(Container {
            name: container.name,
            resources: Requirements::read(&path, container.resources.unwrap_or_default())?,
            is_sidecar: container.restart_policy.as_deref() == Some("Always"),
            id: None,
        })
    };
    written.into_iter().enumerate().map(read).collect()
}

/// Its fields have no `resources` that the API would take (`validateEphemeralContainers`, pkg/apis/core/validation).
fn ephemeral(container: api::EphemeralContainer) -> Container {
    Container { name: container.name, ..Container::default() }
}

/// Those of all containers, of which no two have one name.
fn statuses(status: &api::PodStatus) -> impl Iterator<Item = &api::ContainerStatus> {
    let of = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    of.into_iter().flatten().flatten()
}

fn volumes(written: Vec<api::Volume>) -> Result<Vec<Volume>, FieldError> {
    let read = |(index, volume): (usize, api::Volume)| {
        let empty_dir = volume.empty_dir;
        let is_on_disk = |dir: &api::EmptyDirVolumeSource| dir.medium.as_ref().is_none_or(String::is_empty);
        let path = || format!("spec.volumes[{index}].emptyDir.sizeLimit");
        Ok(Volume {
            name: volume.name,
            is_local: volume.host_path.is_some()
                || volume.config_map.is_some()
                || volume.git_repo.is_some()
                || empty_dir.as_ref().is_some_and(is_on_disk),
            size_limit: empty_dir.and_then(|dir| dir.size_limit).map(|limit| quantity(path, &limit)).transpose()?,
        })
    };
    written.into_iter().enumerate().map(read).collect()
}

impl Spec {
    pub(crate) fn read(spec: api::PodSpec) -> Result<Self, FieldError> {
        Ok(Self {
            resources: spec.resources.map(|written| Requirements::read("spec.resources", written)).transpose()?,
            overhead: resources("spec.overhead", spec.overhead)?,
            containers: containers("spec.containers", spec.containers)?,
            init_containers: containers("spec.initContainers", spec.init_containers.unwrap_or_default())?,
            ephemeral_containers: spec.ephemeral_containers.unwrap_or_default().into_iter().map(ephemeral).collect(),
            volumes: volumes(spec.volumes.unwrap_or_default())?,
        })
    }

    /// Takes what the status says of containers.
    pub(crate) fn add_ids(&mut self, status: &api::PodStatus) {
        let has_ended = |status: &api::ContainerStatus| status.state.as_ref().is_some_and(|it| it.terminated.is_some());
        self.ephemeral_containers.retain(|it| !statuses(status).any(|of| of.name == it.name && has_ended(of)));
        let init = self.init_containers.iter_mut();
        for container in self.containers.iter_mut().chain(init).chain(&mut self.ephemeral_containers) {
            let status = statuses(status).find(|status| status.name == container.name);
            let id = status.and_then(|status| status.container_id.as_deref());
            // `containerd://` and the id.
            let id = id.map(|id| id.split_once("://").map_or(id, |(_, id)| id));
            container.id = id.filter(|id| !id.is_empty()).map(str::to_owned);
        }
    }

    /// Takes what the status says of resizes; no resize changes the class of a pod.
    pub(crate) fn add_resizes(&mut self, status: &api::PodStatus) -> Result<(), FieldError> {
        let of_pod = Admitted { allocated: status.allocated_resources.as_ref(), resources: status.resources.as_ref() };
        if let Some(resources) = &mut self.resources {
            resources.admit("status", of_pod)?;
        }
        let lists = [
            ("containerStatuses", &mut self.containers, &status.container_statuses),
            ("initContainerStatuses", &mut self.init_containers, &status.init_container_statuses),
        ];
        for (list, containers, statuses) in lists {
            for (index, status) in statuses.iter().flatten().enumerate() {
                let admitted =
                    Admitted { allocated: status.allocated_resources.as_ref(), resources: status.resources.as_ref() };
                if let Some(container) = containers.iter_mut().find(|container| container.name == status.name) {
                    container.resources.admit(&format!("status.{list}[{index}]"), admitted)?;
                }
            }
        }
        Ok(())
    }

    /// As the kubelet's code takes it; without priority and annotations.
    pub(crate) fn with<T>(&self, take: impl FnOnce(PodSpec<'_>) -> T) -> T {
        let requirements = |container: &Container| (&container.resources).into();
        let containers: Vec<_> = self.containers.iter().map(requirements).collect();
        let init =
            |container| InitContainer { requirements: requirements(container), is_sidecar: container.is_sidecar };
        let init_containers: Vec<_> = self.init_containers.iter().map(init).collect();
        take(PodSpec {
            containers: &containers,
            init_containers: &init_containers,
            overhead: amounts(&self.overhead),
            pod_level: self.resources.as_ref().map(Into::into),
            ..PodSpec::default()
        })
    }

    /// The local storage that the pod may use, to be printed: the sum that [`PodSpec::ephemeral_storage_limit`] takes.
    pub fn storage_limit(&self) -> Option<Quantity> {
        let plus = |one: Option<Quantity>, other: Option<Quantity>| match (one, other) {
            (Some(one), Some(other)) => Some(&one + &other),
            (one, other) => one.or(other),
        };
        let most = |one: Option<Quantity>, other: Option<Quantity>| match (one, other) {
            (Some(one), Some(other)) if one.amount() >= other.amount() => Some(one),
            (one, other) => other.or(one),
        };
        let own = |container: &Container| container.resources.limits.get(STORAGE).cloned();
        let mut together = self.containers.iter().map(own).fold(None, plus);
        let (mut sidecars, mut starting) = (None, None);
        for container in &self.init_containers {
            if container.is_sidecar {
                together = plus(together, own(container));
                sidecars = plus(sidecars, own(container));
                starting = most(starting, sidecars.clone());
            } else {
                starting = most(starting, plus(own(container), sidecars.clone()));
            }
        }
        let limit = most(together, starting)?;
        let overhead = self.overhead.get(STORAGE).filter(|_| !limit.is_zero());
        Some(overhead.map_or(limit.clone(), |overhead| &limit + overhead))
    }

    /// Whether the pod may use just as much memory as it requests.
    pub fn is_limited_to_request(&self) -> bool {
        let level = self.resources.as_ref().filter(|level| memory(&level.limits).is_some());
        let all = || self.containers.iter().all(|container| container.resources.is_limited_to_request());
        level.map_or_else(|| !self.containers.is_empty() && all(), Requirements::is_limited_to_request)
    }

    /// The containers that run at once: sidecars, then regular ones, then ephemeral ones.
    pub fn running(&self) -> impl Iterator<Item = &Container> {
        let sidecars = self.init_containers.iter().filter(|container| container.is_sidecar);
        sidecars.chain(&self.containers).chain(&self.ephemeral_containers)
    }

    /// What decides about the `oom_score_adj` of a running container.
    pub(crate) fn requests(&self, container: &Container) -> Requests {
        let own = |container: &Container| memory(&container.resources.requests).unwrap_or(Bytes::ZERO);
        let of_pod = self.resources.as_ref().and_then(|level| memory(&level.requests)).map_or(Bytes::ZERO, |level| {
            let of_containers =
                |spec: PodSpec<'_>| PodSpec { pod_level: None, overhead: Amounts::default(), ..spec }.memory_request();
            let count = u64::try_from(self.containers.len() + self.init_containers.len()).unwrap_or(u64::MAX);
            part_of_pod_request(level, bytes(self.with(of_containers)), count)
        });
        let least_regular = self.containers.iter().map(own).min().filter(|_| container.is_sidecar);
        Requests { own: own(container), of_pod, least_regular }
    }
}
