//! What the API has of the node and its pods.

use anyhow::Result;
use plimsoll_cluster_suite::Cluster;
use serde_json::{Value, json};

use crate::NODE;

/// The pods of tests.
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
/// The image of programs that grow or do nothing, which the node has (`tests/vm/guest/src/containerd.rs`).
const IMAGE: &str = "plimsoll.test/guest:1";

/// A burstable pod that requests 64Mi. It has the node's network, which is there sooner than one of its own.
pub(crate) fn pod(name: &str, arguments: &[&str]) -> Value {
    let resources = json!({"requests": {"memory": "64Mi"}});
    let container = json!({
        "name": "main", "image": IMAGE, "imagePullPolicy": "Never", "args": arguments, "resources": resources,
    });
    let spec = json!({
        "nodeName": NODE, "hostNetwork": true, "automountServiceAccountToken": false, "containers": [container],
    });
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// One that takes so many MiB as fast as it can.
pub(crate) fn pod_that_takes(name: &str, mib: u32) -> Value {
    pod(name, &["hog", "anon", "--mib", &mib.to_string()])
}

/// A pod as it is stored.
pub(crate) fn stored(cluster: &Cluster, name: &str) -> Result<Value> {
    cluster.api.get(&format!("{PODS}/{name}"))?.object()
}

/// The events of a pod with this reason.
pub(crate) fn events(cluster: &Cluster, pod: &Value, reason: &str) -> Result<Vec<Value>> {
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let path = format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid={uid},reason={reason}");
    Ok(cluster.api.get(&path)?.object()?["items"].as_array().cloned().unwrap_or_default())
}

fn node(cluster: &Cluster) -> Result<Value> {
    cluster.api.get(&format!("/api/v1/nodes/{NODE}"))?.object()
}

/// The status of a condition of the node.
pub(crate) fn condition(cluster: &Cluster, kind: &str) -> Result<Option<String>> {
    let node = node(cluster)?;
    let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let found = conditions.find(|it| it["type"] == kind).and_then(|it| it["status"].as_str());
    Ok(found.map(str::to_owned))
}

/// The types of the agent's conditions of the node.
pub(crate) fn conditions_of_ours(cluster: &Cluster) -> Result<Vec<String>> {
    Ok(named(&node(cluster)?["status"]["conditions"], "type", "Plimsoll"))
}

/// The keys of the agent's taints of the node.
pub(crate) fn taints_of_ours(cluster: &Cluster) -> Result<Vec<String>> {
    Ok(named(&node(cluster)?["spec"]["taints"], "key", "plimsoll.dev/"))
}

fn named(list: &Value, key: &str, prefix: &str) -> Vec<String> {
    let names = list.as_array().into_iter().flatten().filter_map(|it| it[key].as_str());
    names.filter(|name| name.starts_with(prefix)).map(str::to_owned).collect()
}
