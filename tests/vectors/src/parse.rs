//! Thresholds from configuration maps, for a disk layout, from flags, and on a capacity.

use plimsoll_config::kubelet::{DiskLayout, EvictionSettings, derive_containerfs, parse_map_flag, parse_thresholds};
use plimsoll_policy::kubelet::{self, Origin, ThresholdAmount};
use plimsoll_units::{Percentage, Quantity};
use serde::Deserialize;
use std::collections::BTreeMap;

type Map = BTreeMap<String, String>;

#[derive(Deserialize)]
pub(crate) struct Case {
    #[serde(flatten)]
    kind: Kind,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Kind {
    Config {
        #[serde(flatten)]
        settings: Settings,
        #[serde(default)]
        thresholds: Vec<Threshold>,
        errors: Option<Vec<String>>,
    },
    ContainerFs {
        #[serde(flatten)]
        settings: Settings,
        #[serde(default)]
        dedicated_image_fs: bool,
        #[serde(default)]
        split_container_fs: bool,
        outcomes: Vec<Derived>,
    },
    Flag {
        separator: char,
        args: Vec<String>,
        map: Map,
        error: Option<String>,
    },
    Quantity {
        threshold: String,
        capacity: i64,
        quantity: String,
        value: String,
    },
}

#[derive(Deserialize)]
struct Settings {
    #[serde(default)]
    hard: Map,
    #[serde(default)]
    soft: Map,
    #[serde(default)]
    soft_grace: Map,
    #[serde(default)]
    min_reclaim: Map,
    #[serde(default)]
    enforce_node_allocatable: Vec<String>,
}

impl From<Settings> for EvictionSettings {
    fn from(settings: Settings) -> Self {
        let Settings { hard, soft, soft_grace, min_reclaim, enforce_node_allocatable } = settings;
        Self { hard, soft, soft_grace, min_reclaim, enforce_node_allocatable }
    }
}

#[derive(Deserialize)]
struct Derived {
    #[serde(default)]
    thresholds: Vec<Threshold>,
    warning: Option<String>,
}

#[derive(Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Threshold {
    // In this order thresholds are sorted, which the files only do in part.
    grace_period_ns: i64,
    signal: String,
    operator: String,
    value: Value,
    min_reclaim: Option<Value>,
}

#[derive(Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(untagged)]
enum Value {
    Quantity { quantity: String, value: String },
    Percentage { percentage: String, percentage_bits: String },
}

impl From<&ThresholdAmount<Quantity>> for Value {
    fn from(amount: &ThresholdAmount<Quantity>) -> Self {
        match amount {
            ThresholdAmount::At(quantity) => {
                Self::Quantity { quantity: quantity.to_string(), value: quantity.to_decimal() }
            }
            ThresholdAmount::Share(share) => Self::Percentage {
                // Go's name for it.
                percentage: share.fraction().to_string().replace("inf", "+Inf"),
                percentage_bits: format!("{:08x}", share.fraction().to_bits()),
            },
        }
    }
}

fn sorted(thresholds: &[kubelet::Threshold<Quantity>]) -> Vec<Threshold> {
    // The kubelet's list does not have those that it replaced.
    let thresholds = thresholds.iter().filter(|threshold| threshold.origin != Origin::ReplacedInCopy);
    // One that is never met has no operator there.
    let never = ThresholdAmount::Share(Percentage::of_one(0.0));
    let thresholds = thresholds.map(|threshold| Threshold {
        grace_period_ns: i64::try_from(threshold.grace.as_nanos()).unwrap_or(i64::MAX),
        signal: threshold.signal.to_string(),
        operator: threshold.amount.as_ref().map_or("", |_| "LessThan").to_owned(),
        value: Value::from(threshold.amount.as_ref().unwrap_or(&never)),
        min_reclaim: threshold.min_reclaim.as_ref().map(Value::from),
    });
    in_order(thresholds.collect())
}

fn in_order(mut thresholds: Vec<Threshold>) -> Vec<Threshold> {
    thresholds.sort();
    thresholds
}

impl crate::Case for Case {
    fn difference(self) -> Option<String> {
        match self.kind {
            Kind::Config { settings, thresholds, errors } => match (parse_thresholds(&settings.into()), errors) {
                (Ok(ours), None) => {
                    let (ours, theirs) = (sorted(&ours), in_order(thresholds));
                    (ours != theirs).then(|| crate::both(&ours, &theirs))
                }
                (Err(ours), Some(errors)) => {
                    let ours = ours.to_string();
                    (!errors.contains(&ours)).then(|| format!("ours {ours}\ntheirs one of {errors:?}"))
                }
                (ours, theirs) => Some(crate::both(&ours, &theirs)),
            },
            Kind::ContainerFs { settings, dedicated_image_fs, split_container_fs, outcomes } => {
                let mut ours = match parse_thresholds(&settings.into()) {
                    Ok(ours) => ours,
                    Err(error) => return Some(format!("ours {error}")),
                };
                let layout = DiskLayout { dedicated_image_fs, split_container_fs };
                // Where the list has no room matters to the first turn only.
                let warning = derive_containerfs(&mut ours, layout, 0);
                let ours = sorted(&ours);
                let is_one = outcomes
                    .into_iter()
                    .any(|outcome| outcome.warning == warning && in_order(outcome.thresholds) == ours);
                (!is_one).then(|| format!("ours {warning:?} {ours:?}, which is none of theirs"))
            }
            Kind::Flag { separator, args, map, error } => {
                let (ours, our_error) = match parse_map_flag(args.iter().map(String::as_str), separator) {
                    Ok(read) => (read, None),
                    Err(malformed) => (malformed.read.clone(), Some(malformed.to_string())),
                };
                ((&ours, &our_error) != (&map, &error))
                    .then(|| format!("ours {ours:?} {our_error:?}\ntheirs {map:?} {error:?}"))
            }
            Kind::Quantity { threshold, capacity, quantity, value } => {
                let hard = Map::from([("memory.available".to_owned(), threshold)]);
                let ours = parse_thresholds(&EvictionSettings { hard, ..EvictionSettings::default() });
                let ours = ours.map(|thresholds| {
                    thresholds.into_iter().next().and_then(|threshold| threshold.amount).map(|amount| {
                        // Percentages print with binary suffixes whatever they are of.
                        let quantity = match amount {
                            ThresholdAmount::At(quantity) => quantity,
                            ThresholdAmount::Share(share) => Quantity::binary(share.of(capacity).into()),
                        };
                        (quantity.to_string(), quantity.to_decimal())
                    })
                });
                (ours != Ok(Some((quantity.clone(), value.clone()))))
                    .then(|| format!("ours {ours:?}\ntheirs {quantity} {value}"))
            }
        }
    }
}
