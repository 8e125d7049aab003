//! Messages and annotations of pods evicted because the node is low on something.

use crate::api::Stats;
use plimsoll_pods::{Observed, Pod};
use plimsoll_policy::kubelet::{Readings, Resource, Signal};
use plimsoll_policy::message::{Met, NodeLow, ThresholdText};
use plimsoll_units::Percentage;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

#[derive(Deserialize)]
pub(crate) struct Case {
    #[serde(deserialize_with = "resource")]
    resource: Resource,
    pod: Pod,
    summary: Stats,
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

impl From<&Value> for ThresholdText {
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
        let Self { resource, pod, summary: Stats(summary), thresholds, message, annotations } = self;
        let victim = Observed::of(&pod, Some(&summary)).victim(resource);
        let texts: Vec<(Signal, ThresholdText)> = thresholds
            .iter()
            .flatten()
            .map(|threshold| (threshold.signal, ThresholdText::from(&threshold.value)))
            .collect();
        let readings = Readings::of(&summary.node_stats());
        let met = Met::first(resource, texts.iter().map(|(signal, text)| (*signal, text)), |it| readings.get(it));
        let low = NodeLow::of(resource, met, &victim);
        let ours_annotations: BTreeMap<String, String> =
            low.annotations().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let (ours, theirs) = ((low.to_string(), ours_annotations), (message, annotations));
        (ours != theirs).then(|| crate::both(&ours, &theirs))
    }
}
