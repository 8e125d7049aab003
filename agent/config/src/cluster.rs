//! The keys of `machine.cluster`.

use crate::deserialize::Refusal;
use crate::machine::Machine;
use crate::scalar::{As, NodeName, Place};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The Kubernetes API server, which says what pods are on this node and is sent evictions, conditions and a taint. Off
/// unless inCluster or kubeconfig is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, expecting = "a mapping such as {inCluster: true}")]
pub struct Cluster {
    /// Use the service account of the pod that the agent runs in.
    pub in_cluster: bool,
    /// Use this kubeconfig, of which a client certificate or a token is taken: an absolute path. Empty for none.
    #[serde(with = "As::<Place>")]
    pub kubeconfig: Option<PathBuf>,
    /// The name of this node's object. Empty for that in the variable `NODE_NAME`.
    #[serde(with = "As::<NodeName>")]
    pub node_name: String,
    /// The effect of the taint on the node while a condition holds.
    pub taint: Taint,
    /// What becomes of the node's standard conditions, such as MemoryPressure, which the kubelet owns and takes back within
    /// ten seconds. All but `off` need the component `standard-conditions` of the installation, which lets the agent write
    /// them.
    pub standard_conditions: StandardConditions,
}

/// The effect of the taint on the node while a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Taint {
    /// No taint is set.
    #[serde(rename = "none")]
    None,
    /// Pods that do not tolerate it are scheduled elsewhere if they can be.
    PreferNoSchedule,
    /// No pod that does not tolerate it is scheduled there.
    NoSchedule,
}

/// What becomes of the node's standard conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum StandardConditions {
    /// They are left alone.
    Off,
    /// Each is set once, when a threshold is met.
    Lead,
    /// Each is set again whenever the kubelet has taken it back, for as long as the agent's own condition holds.
    Hold,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            in_cluster: false,
            kubeconfig: None,
            node_name: String::new(),
            taint: Taint::None,
            standard_conditions: StandardConditions::Off,
        }
    }
}

impl Cluster {
    /// Whether an API server is asked and reported to.
    pub const fn is_on(&self) -> bool {
        self.in_cluster || self.kubeconfig.is_some()
    }

    pub(crate) fn refusals(&self, machine: &Machine) -> Vec<Refusal> {
        let refused = |key: &str, why| Refusal::value(&format!("machine.cluster.{key}"), why);
        let mut found = Vec::new();
        if self.in_cluster && self.kubeconfig.is_some() {
            found.push(refused("kubeconfig", "inCluster is set too; expected one of both"));
        }
        if self.is_on() && machine.pod_facts.is_some() {
            let why = "the API server says what is known of pods (machine.cluster); expected one of both";
            found.push(Refusal::value("machine.podFacts", why));
        }
        if !self.is_on() && self.taint != Taint::None {
            found
                .push(refused("taint", "there is no API server to set it; expected inCluster or kubeconfig beside it"));
        }
        if !self.is_on() && self.standard_conditions != StandardConditions::Off {
            let why = "there is no API server to write them to; expected inCluster or kubeconfig beside it";
            found.push(refused("standardConditions", why));
        }
        found
    }
}

impl Machine {
    /// Whether something says what pods are on this node, so that pods are workloads.
    pub const fn knows_pods(&self) -> bool {
        self.pod_facts.is_some() || self.cluster.is_on()
    }
}
