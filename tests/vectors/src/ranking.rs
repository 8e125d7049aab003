//! The order in which pods would be evicted.

use crate::api::{Stats, decimal_amount};
use core::cmp::Ordering;
use plimsoll_pods::{Observed, Pod};
use plimsoll_policy::kubelet::{DiskLayout, Signal, compare, rank};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;

#[derive(Deserialize)]
pub(crate) struct Case {
    pods: Vec<Pod>,
    pod_facts: Vec<PodFacts>,
    /// Entries of pods in a summary.
    stats: serde_json::Value,
    ranks: BTreeMap<String, BTreeMap<String, Rank>>,
}

#[derive(Deserialize)]
struct PodFacts {
    qos: String,
    critical: bool,
    memory_request: String,
    ephemeral_storage_request: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Rank {
    SameAs(String),
    Of { groups: Option<Vec<Vec<u32>>>, order: Option<Vec<u32>>, matrix: Option<Vec<String>> },
}

/// Up to this many pods the kubelet's sort keeps the order of equal ones.
const STABLE: usize = 12;

impl crate::Case for Case {
    fn difference(self) -> Option<String> {
        let Stats(summary) = match serde_json::from_value(json!({ "pods": self.stats })) {
            Ok(summary) => summary,
            Err(error) => return Some(format!("stats: {error}")),
        };
        let observed: Vec<_> = self.pods.iter().map(|pod| Observed::of(pod, Some(&summary))).collect();
        for (index, (theirs, pod)) in self.pod_facts.iter().zip(&self.pods).enumerate() {
            let ours = (
                pod.qos.name().to_owned(),
                pod.facts.critical.is_some(),
                pod.facts.memory_request,
                pod.facts.ephemeral_storage_request,
            );
            let theirs = (
                theirs.qos.clone(),
                theirs.critical,
                decimal_amount(&theirs.memory_request),
                decimal_amount(&theirs.ephemeral_storage_request),
            );
            if ours != theirs {
                return Some(format!("pod {index}:\n{}", crate::both(&ours, &theirs)));
            }
        }
        let pods: Vec<_> = observed.iter().map(Observed::facts).collect();
        let mut ranked = Vec::new();
        for (layout_name, signals) in &self.ranks {
            let layout = match layout_name.as_str() {
                "single" => DiskLayout::Single,
                "imagefs" => DiskLayout::DedicatedImageFs,
                "split" => DiskLayout::SplitImageFs,
                other => return Some(format!("no such layout: {other}")),
            };
            for (name, expected) in signals {
                let Some(signal) = Signal::parse(name) else { return Some(format!("no such signal: {name}")) };
                let expected = match expected {
                    Rank::SameAs(other) => signals.get(other).or_else(|| self.ranks.get("single")?.get(other)),
                    of @ Rank::Of { .. } => Some(of),
                };
                let Some(Rank::Of { groups, order, matrix }) = expected else {
                    return Some(format!("{layout_name} {name} is the same as something that is not there"));
                };
                rank(signal, layout, &pods, &mut ranked);
                let ours: Vec<u32> = ranked.iter().map(|ranked| ranked.pod).collect();
                let at = |difference: String| Some(format!("{layout_name} {name}:\n{difference}"));
                if let Some(order) = order
                    && *order != ours
                {
                    return at(crate::both(&ours, order));
                }
                if let Some(groups) = groups
                    && !fits(&ours, groups)
                {
                    return at(crate::both(&ours, groups));
                }
                ranked.sort_by_key(|ranked| ranked.pod);
                let ours: Vec<String> =
                    ranked.iter().map(|one| ranked.iter().map(|other| symbol(signal, one, other)).collect()).collect();
                if let Some(matrix) = matrix
                    && *matrix != ours
                {
                    return at(crate::both(&ours, matrix));
                }
            }
        }
        None
    }
}

/// Whether an order is one of groups. Inside a group the kubelet guarantees an order to few pods only.
fn fits(ours: &[u32], groups: &[Vec<u32>]) -> bool {
    let mut rest = ours;
    groups.iter().all(|group| {
        let Some((first, after)) = rest.split_at_checked(group.len()) else { return false };
        rest = after;
        let sorted = |list: &[u32]| {
            let mut list = list.to_vec();
            list.sort_unstable();
            list
        };
        if ours.len() <= STABLE { first == group } else { sorted(first) == sorted(group) }
    }) && rest.is_empty()
}

fn symbol(signal: Signal, one: &plimsoll_policy::kubelet::Ranked, other: &plimsoll_policy::kubelet::Ranked) -> char {
    let goes_first = |one, other| compare(signal.resource(), one, other) == Ordering::Less;
    match (one.pod == other.pod, goes_first(one, other), goes_first(other, one)) {
        (true, ..) => '.',
        (false, true, true) => '!',
        (false, true, false) => '<',
        (false, false, true) => '>',
        (false, false, false) => '=',
    }
}
