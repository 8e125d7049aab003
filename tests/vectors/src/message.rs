//! Messages and annotations of pods evicted because the node is low on something.

use crate::api::OfNode;
use plimsoll_policy::kubelet::{Readings, Resource, Signal};
use plimsoll_policy::message::{Asked, Line, MemoryUsage, Met, NodeLow, Used, Victim, VictimUsage};
use plimsoll_units::{Percentage, Quantity};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

#[derive(Deserialize)]
pub(crate) struct Case {
    #[serde(deserialize_with = "resource")]
    resource: Resource,
    pod: Pod,
    summary: Summary,
    thresholds: Option<Vec<Threshold>>,
    message: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

fn resource<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Resource, D::Error> {
    let name = String::deserialize(deserializer)?;
    [Resource::Memory, Resource::EphemeralStorage, Resource::Inodes, Resource::Pids]
        .into_iter()
        .find(|resource| resource.name() == name)
        .ok_or_else(|| serde::de::Error::custom(format!("no such resource: {name}")))
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    uid: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    init_containers: Vec<Container>,
    #[serde(default)]
    containers: Vec<Container>,
    #[serde(default)]
    resources: Resources,
}

#[derive(Deserialize)]
struct Container {
    name: String,
    #[serde(default)]
    resources: Resources,
}

#[derive(Default, Deserialize)]
struct Resources {
    #[serde(default)]
    requests: BTreeMap<String, Quantity>,
}

impl Resources {
    fn request(&self, resource: Resource) -> Option<Quantity> {
        self.requests.get(resource.name()).cloned()
    }
}

#[derive(Deserialize)]
struct Summary {
    #[serde(flatten)]
    of_node: OfNode,
    pods: Option<Vec<PodStats>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStats {
    pod_ref: PodRef,
    memory: Option<Memory>,
    #[serde(default)]
    containers: Vec<ContainerStats>,
}

#[derive(Deserialize)]
struct PodRef {
    uid: String,
}

#[derive(Deserialize)]
struct ContainerStats {
    name: String,
    memory: Option<Memory>,
    rootfs: Option<Fs>,
    logs: Option<Fs>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    working_set_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fs {
    used_bytes: Option<u64>,
}

impl From<&PodStats> for VictimUsage {
    fn from(PodStats { pod_ref: _, memory, containers }: &PodStats) -> Self {
        let working_set = |memory: &Option<Memory>| memory.as_ref().and_then(|memory| memory.working_set_bytes);
        let used = |fs: &Option<Fs>| fs.as_ref().and_then(|fs| fs.used_bytes);
        Self {
            memory: memory.as_ref().map(|memory| MemoryUsage { working_set: memory.working_set_bytes }),
            containers: containers
                .iter()
                .map(|ContainerStats { name, memory, rootfs, logs }| Used {
                    name: name.clone(),
                    working_set: working_set(memory),
                    root_fs: used(rootfs),
                    logs: used(logs),
                })
                .collect(),
        }
    }
}

#[derive(Deserialize)]
struct Threshold {
    #[serde(deserialize_with = "signal")]
    signal: Signal,
    value: Value,
}

fn signal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Signal, D::Error> {
    let name = String::deserialize(deserializer)?;
    Signal::parse(&name).ok_or_else(|| serde::de::Error::custom(format!("no such signal: {name}")))
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Quantity { quantity: String },
    Percentage { percentage_bits: String },
}

impl From<&Value> for Line {
    fn from(value: &Value) -> Self {
        match value {
            Value::Quantity { quantity } => Self::Written(quantity.clone()),
            // Every pattern of bits is a float, and one that is none fails in every comparison.
            Value::Percentage { percentage_bits } => {
                let fraction = u32::from_str_radix(percentage_bits, 16).map_or(f32::NAN, f32::from_bits);
                Self::Fraction(Percentage::of_one(fraction))
            }
        }
    }
}

impl crate::Case for Case {
    fn difference(self) -> Option<String> {
        let Self { resource, pod: Pod { metadata, spec }, summary, thresholds, message, annotations } = self;
        let asked = |container: &Container| Asked {
            name: container.name.clone(),
            request: container.resources.request(resource).unwrap_or(Quantity::ZERO),
        };
        // Of two entries of a pod the last counts.
        let stats = summary.pods.iter().flatten().rfind(|stats| stats.pod_ref.uid == metadata.uid);
        let victim = Victim {
            name: metadata.name,
            request: spec.resources.request(resource),
            containers: spec.init_containers.iter().chain(&spec.containers).map(asked).collect(),
            used: stats.map(Into::into),
        };
        let lines: Vec<(Signal, Line)> =
            thresholds.iter().flatten().map(|threshold| (threshold.signal, Line::from(&threshold.value))).collect();
        let readings = Readings::of(&summary.of_node.0);
        let met = Met::first(resource, lines.iter().map(|(signal, line)| (*signal, line)), |it| readings.get(it));
        let low = NodeLow::of(resource, met, &victim);
        let ours_annotations: BTreeMap<String, String> =
            low.annotations().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let (ours, theirs) = ((low.to_string(), ours_annotations), (message, annotations));
        (ours != theirs).then(|| crate::both(&ours, &theirs))
    }
}
