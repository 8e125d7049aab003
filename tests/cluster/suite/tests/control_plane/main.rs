//! What is installed into a cluster, beside a real control plane: which rights it has, which of its writes are let through,
//! and that it is accepted as it is. `cargo xtask test cluster` runs these.

mod attempts;
mod events;
mod kill_switch;
mod manifests;
mod metrics;
mod nodes;
mod pods;
mod rights;
mod standard;
mod taints;
mod uninstall;

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result};
use plimsoll_cluster_suite::{Api, Cluster, Format, wait_for};
use serde_json::{Value, json};

/// Two nodes with an agent each.
const NODES: [&str; 2] = ["node-a", "node-b"];

/// The cluster with what is installed, and the two nodes.
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let cluster = Cluster::of_environment().expect("a cluster to test");
        cluster.install("base").expect("it is accepted");
        for node in NODES {
            cluster.add_node(node).expect("a new name");
        }
        await_policies(&cluster).expect("they are enforced");
        cluster
    })
}

/// A policy is enforced a second or two after it was made; the one that is asked for is made last. What a token of no node
/// removes here would not be removed: it is a dry run.
fn await_policies(cluster: &Cluster) -> Result<()> {
    let unbound = cluster.api.by_token(&cluster.token("plimsoll", &json!({}))?)?;
    let pod = cluster.agent_on(NODES[0])?;
    let name = pod["metadata"]["name"].as_str().context("a pod has a name")?;
    let path = format!("/api/v1/namespaces/plimsoll/pods/{name}?dryRun=All");
    wait_for("the policies are enforced", Duration::from_secs(30), || {
        let answer = unbound.request("DELETE", &path, Format::Json, &Value::Null)?;
        Ok(answer.message().contains("plimsoll-pods").then_some(()))
    })
}

/// The API server as the agent of a node uses it.
fn agent(node: &str) -> Api {
    cluster().agent_token(node).and_then(|token| cluster().api.by_token(&token)).expect("a token")
}
