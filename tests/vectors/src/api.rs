//! Pods and their statistics as the API writes them, with the texts that messages repeat, and what the eviction policy
//! makes of them. What is said of the node is read by `plimsoll-replay`.

use plimsoll_policy::kubelet::{
    self, Amount, Amounts, ContainerLimit, Critical, InitContainer, NodeStats, PodSpec, QosClass, Usage,
};
use plimsoll_replay::{Summary, storage_limit};
use plimsoll_units::Quantity;
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::Map;
use std::collections::BTreeMap;

/// What a summary says of the node.
pub(crate) struct OfNode(pub(crate) NodeStats);

impl<'de> Deserialize<'de> for OfNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut summary = Map::deserialize(deserializer)?;
        // A kubelet always says something of its node, a case may not.
        summary.entry("node").or_insert_with(|| Map::new().into());
        let summary: Summary = serde_json::from_value(summary.into()).map_err(D::Error::custom)?;
        Ok(Self(summary.node_stats()))
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Memory {
    pub(crate) working_set_bytes: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Pod {
    pub(crate) metadata: Metadata,
    pub(crate) spec: Spec,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    uid: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Spec {
    #[serde(default)]
    pub(crate) containers: Vec<Container>,
    #[serde(default)]
    pub(crate) init_containers: Vec<Container>,
    pub(crate) priority: Option<i32>,
    #[serde(default)]
    pub(crate) overhead: Resources,
    pub(crate) resources: Option<Requirements>,
    #[serde(default)]
    pub(crate) volumes: Vec<Volume>,
    termination_grace_period_seconds: Option<i64>,
    #[serde(default)]
    pub(crate) tolerations: Vec<Toleration>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Toleration {
    pub(crate) key: String,
    pub(crate) operator: String,
    pub(crate) value: String,
    pub(crate) effect: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Container {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) resources: Requirements,
    restart_policy: Option<String>,
}

impl Container {
    fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

pub(crate) type Resources = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Requirements {
    pub(crate) requests: Resources,
    pub(crate) limits: Resources,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Volume {
    pub(crate) name: String,
    host_path: Option<IgnoredAny>,
    config_map: Option<IgnoredAny>,
    git_repo: Option<IgnoredAny>,
    pub(crate) empty_dir: Option<EmptyDir>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EmptyDir {
    medium: String,
    pub(crate) size_limit: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodStats {
    #[serde(rename = "podRef")]
    pod_ref: PodRef,
    pub(crate) memory: Option<Memory>,
    #[serde(rename = "process_stats")]
    processes: Option<Processes>,
    #[serde(rename = "ephemeral-storage")]
    ephemeral_storage: Option<Used>,
    pub(crate) containers: Vec<ContainerStats>,
    #[serde(rename = "volume")]
    volumes: Vec<VolumeStats>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodRef {
    uid: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Processes {
    process_count: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Used {
    pub(crate) used_bytes: Option<u64>,
    inodes_used: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerStats {
    pub(crate) name: String,
    pub(crate) memory: Option<Memory>,
    pub(crate) rootfs: Option<Used>,
    pub(crate) logs: Option<Used>,
}

#[derive(Clone, Debug, Deserialize)]
struct VolumeStats {
    name: String,
    #[serde(flatten)]
    used: Used,
}

/// An exact amount.
pub(crate) fn amount(text: &str) -> Amount {
    Quantity::parse(text).expect("a quantity").amount()
}

/// A plain decimal number, with up to nine places.
pub(crate) fn decimal_amount(decimal: &str) -> Amount {
    let (whole, fraction) = decimal.split_once('.').unwrap_or((decimal, ""));
    Amount::nanos(format!("{whole}{fraction:0<9}").parse().expect("a number of nine places at most"))
}

fn amounts(resources: &Resources) -> Amounts {
    let of = |name: &str| resources.get(name).map(|text| amount(text));
    Amounts {
        cpu: of("cpu"),
        memory: of("memory"),
        ephemeral_storage: of("ephemeral-storage"),
        huge_pages: resources.keys().any(|name| name.starts_with("hugepages-")),
    }
}

impl From<&Requirements> for kubelet::Requirements {
    fn from(Requirements { requests, limits }: &Requirements) -> Self {
        Self { requests: amounts(requests), limits: amounts(limits) }
    }
}

fn usage(used: Option<Used>) -> Usage {
    used.map_or(Usage::default(), |used| Usage { bytes: used.used_bytes, inodes: used.inodes_used })
}

/// What is asked of a pod's specification.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) memory_request: Amount,
    pub(crate) ephemeral_storage_request: Amount,
    pub(crate) ephemeral_storage_limit: Option<Amount>,
    pub(crate) critical: Option<Critical>,
    pub(crate) qos: QosClass,
}

impl Pod {
    pub(crate) fn facts(&self) -> Facts {
        let containers: Vec<_> = self.spec.containers.iter().map(|container| (&container.resources).into()).collect();
        let init_containers: Vec<_> = self
            .spec
            .init_containers
            .iter()
            .map(|container| InitContainer {
                requirements: (&container.resources).into(),
                is_sidecar: container.is_sidecar(),
            })
            .collect();
        let spec = PodSpec {
            containers: &containers,
            init_containers: &init_containers,
            overhead: amounts(&self.spec.overhead),
            pod_level: self.spec.resources.as_ref().map(Into::into),
            priority: self.spec.priority,
            source: self.metadata.annotations.get("kubernetes.io/config.source").map(String::as_str),
            is_mirror: self.metadata.annotations.contains_key("kubernetes.io/config.mirror"),
        };
        Facts {
            memory_request: spec.memory_request(),
            ephemeral_storage_request: spec.ephemeral_storage_request(),
            ephemeral_storage_limit: spec.ephemeral_storage_limit(),
            critical: spec.critical(),
            qos: spec.qos(),
        }
    }

    /// The local storage that it may use (the sum that [`PodSpec::ephemeral_storage_limit`] takes), as it is printed.
    pub(crate) fn storage_limit(&self) -> Option<Quantity> {
        const STORAGE: &str = "ephemeral-storage";
        let quantity = |text: &String| Quantity::parse(text).expect("a quantity");
        let own = |container: &Container| container.resources.limits.get(STORAGE).map(quantity);
        let Spec { containers, init_containers, overhead, .. } = &self.spec;
        storage_limit(
            containers.iter().map(own),
            init_containers.iter().map(|container| (container.is_sidecar(), own(container))),
            overhead.get(STORAGE).map(quantity).as_ref(),
        )
    }

    /// Its statistics: the last entry of its UID.
    pub(crate) fn stats<'a>(&self, stats: &'a [PodStats]) -> Option<&'a PodStats> {
        stats.iter().rfind(|stats| stats.pod_ref.uid == self.metadata.uid)
    }
}

/// The lists that pods borrow from.
pub(crate) struct Lists<'a> {
    pod: &'a Pod,
    facts: Facts,
    limits: Vec<ContainerLimit<'a>>,
    volumes: Vec<kubelet::Volume<'a>>,
    stats: Option<(&'a PodStats, Vec<kubelet::ContainerStats<'a>>, Vec<kubelet::VolumeStats<'a>>)>,
}

impl<'a> Lists<'a> {
    pub(crate) fn new(pod: &'a Pod, stats: &'a [PodStats]) -> Self {
        let limits = pod.spec.containers.iter().map(|container| ContainerLimit {
            name: &container.name,
            ephemeral_storage: container.resources.limits.get("ephemeral-storage").map(|text| amount(text)),
        });
        let volumes = pod.spec.volumes.iter().map(|volume| kubelet::Volume {
            name: &volume.name,
            is_local: volume.host_path.is_some()
                || volume.config_map.is_some()
                || volume.git_repo.is_some()
                || volume.empty_dir.as_ref().is_some_and(|dir| dir.medium.is_empty()),
            size_limit: volume.empty_dir.as_ref().and_then(|dir| dir.size_limit.as_deref()).map(amount),
        });
        let stats = pod.stats(stats).map(|stats| {
            let containers = stats.containers.iter().map(|container| kubelet::ContainerStats {
                name: &container.name,
                rootfs: usage(container.rootfs),
                logs: usage(container.logs),
            });
            let volumes = stats
                .volumes
                .iter()
                .map(|volume| kubelet::VolumeStats { name: &volume.name, usage: usage(Some(volume.used)) });
            (stats, containers.collect(), volumes.collect())
        });
        Self { pod, facts: pod.facts(), limits: limits.collect(), volumes: volumes.collect(), stats }
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(crate) fn pod(&self) -> kubelet::Pod<'_> {
        kubelet::Pod {
            priority: self.pod.spec.priority.unwrap_or(0),
            critical: self.facts.critical,
            memory_request: self.facts.memory_request,
            ephemeral_storage_request: self.facts.ephemeral_storage_request,
            ephemeral_storage_limit: self.facts.ephemeral_storage_limit,
            grace_seconds: self.pod.spec.termination_grace_period_seconds,
            containers: &self.limits,
            volumes: &self.volumes,
            stats: self.stats.as_ref().map(|(stats, containers, volumes)| kubelet::PodStats {
                working_set: stats.memory.and_then(|memory| memory.working_set_bytes),
                processes: stats.processes.and_then(|processes| processes.process_count),
                ephemeral_storage: stats.ephemeral_storage.and_then(|used| used.used_bytes),
                containers,
                volumes,
            }),
        }
    }
}
