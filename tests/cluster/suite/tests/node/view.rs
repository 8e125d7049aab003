//! What the API has of the node and its pods.

use anyhow::{Context as _, Result};
use plimsoll_cluster_suite::Cluster;
use serde_json::{Value, json};

use crate::{CONDITION, NODE};

/// The pods of tests.
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const NODES: &str = "/api/v1/nodes";
/// The image of programs that grow or do nothing, which the node has (`tests/vm/guest/src/containerd.rs`).
pub(crate) const IMAGE: &str = "plimsoll.test/guest:1";
/// The port of the agent's metrics.
const METRICS: u16 = 9464;
/// Does nothing.
pub(crate) const IDLE: [&str; 3] = ["idle", "--mib", "16"];

/// The spec of a burstable pod that requests 64Mi. It has the node's network, which is there sooner than one of its own.
pub(crate) fn spec(arguments: &[&str]) -> Value {
    let resources = json!({"requests": {"memory": "64Mi"}});
    let container = json!({
        "name": "main", "image": IMAGE, "imagePullPolicy": "Never", "args": arguments, "resources": resources,
    });
    json!({"hostNetwork": true, "automountServiceAccountToken": false, "containers": [container]})
}

/// Gives the container of a pod the node's /run.
pub(crate) fn mount_run(spec: &mut Value) {
    mount(spec, &json!({"name": "run", "hostPath": {"path": "/run"}}), "/run");
}

/// Gives the container of a pod this volume, at this path.
pub(crate) fn mount(spec: &mut Value, volume: &Value, path: &str) {
    add(&mut spec["volumes"], volume.clone());
    add(&mut spec["containers"][0]["volumeMounts"], json!({"name": volume["name"], "mountPath": path}));
}

/// Adds to a list, which may not be there yet.
pub(crate) fn add(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        _ => *list = json!([item]),
    }
}

/// Such a pod, put onto the node without the scheduler.
pub(crate) fn pod(name: &str, arguments: &[&str]) -> Value {
    let mut spec = spec(arguments);
    spec["nodeName"] = NODE.into();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// One that takes so many MiB, at so many in a second, or as fast as it can for 0.
pub(crate) fn pod_that_takes(name: &str, mib: u32, rate: u32) -> Value {
    pod(name, &["hog", "anon", "--mib", &mib.to_string(), "--rate", &rate.to_string()])
}

/// A pod as it is stored.
pub(crate) fn stored(cluster: &Cluster, name: &str) -> Result<Value> {
    cluster.api.get(&format!("{PODS}/{name}"))?.object()
}

/// Each state that the API server has had since this one of an object in this list.
pub(crate) fn states_since(cluster: &Cluster, list: &str, object: &Value) -> Result<Vec<Value>> {
    let of = |key: &str| object["metadata"][key].as_str().with_context(|| format!("it has no {key}"));
    let (name, version) = (of("name")?, of("resourceVersion")?);
    let named = format!("fieldSelector=metadata.name={name}&resourceVersion={version}");
    let changes = cluster.api.get(&format!("{list}?watch=true&timeoutSeconds=3&{named}"))?.object()?;
    // One alone is JSON as a whole.
    let lines = changes.as_str().map_or_else(|| changes.to_string(), str::to_owned);
    lines.lines().map(|line| Ok(serde_json::from_str::<Value>(line)?["object"].take())).collect()
}

/// What is reported of a pod's containers.
pub(crate) fn containers(pod: &Value) -> Vec<Value> {
    pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default()
}

/// The metrics of an agent that is installed with [`crate::overlay::ALL_SIGNALS`] or [`crate::overlay::with_metrics`].
pub(crate) fn metrics(cluster: &Cluster) -> Result<String> {
    of_agent(cluster, "metrics")
}

/// What such an agent serves under this name.
pub(crate) fn of_agent(cluster: &Cluster, name: &str) -> Result<String> {
    let answer = cluster.api.get(&format!("/api/v1/nodes/{NODE}:{METRICS}/proxy/{name}"))?.object()?;
    Ok(answer.as_str().context("it is text")?.to_owned())
}

/// The value of a series, as it is written with its labels.
pub(crate) fn metric(metrics: &str, series: &str) -> Option<u64> {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// The same, which has to be there.
pub(crate) fn read_metric(cluster: &Cluster, series: &str) -> Result<u64> {
    metric(&metrics(cluster)?, series).with_context(|| format!("no {series}"))
}

/// The lines of the agent's log that these lines of the node's console have, where that is JSON.
pub(crate) fn records(lines: &[String]) -> impl Iterator<Item = Value> {
    lines.iter().filter_map(|line| serde_json::from_str(line.split_once(" stdout F ")?.1).ok())
}

/// What the agent reads of memory, as the kubelet computes it: bytes.
pub(crate) fn available(cluster: &Cluster) -> Result<u64> {
    read_metric(cluster, "plimsoll_signal_available{eviction_signal=\"memory.available\"}")
}

/// Whether all containers of a pod have ended.
pub(crate) fn ends(pod: &Value) -> bool {
    let containers = containers(pod);
    !containers.is_empty() && containers.iter().all(|it| it["state"]["terminated"].is_object())
}

/// The events of an object with this reason.
pub(crate) fn events(cluster: &Cluster, object: &Value, reason: &str) -> Result<Vec<Value>> {
    events_of(cluster, object["metadata"]["uid"].as_str().unwrap_or_default(), reason)
}

/// Those of the node with this reason: its UID in them is its name.
pub(crate) fn events_of_node(cluster: &Cluster, reason: &str) -> Result<Vec<Value>> {
    events_of(cluster, NODE, reason)
}

fn events_of(cluster: &Cluster, uid: &str, reason: &str) -> Result<Vec<Value>> {
    let path = format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid={uid},reason={reason}");
    Ok(cluster.api.get(&path)?.object()?["items"].as_array().cloned().unwrap_or_default())
}

/// The node as it is stored.
pub(crate) fn node(cluster: &Cluster) -> Result<Value> {
    cluster.api.get(&format!("{NODES}/{NODE}"))?.object()
}

/// A condition of the node.
pub(crate) fn condition(cluster: &Cluster, kind: &str) -> Result<Option<Value>> {
    Ok(condition_of(&node(cluster)?, kind).cloned())
}

/// A condition of a node in this state.
pub(crate) fn condition_of<'a>(node: &'a Value, kind: &str) -> Option<&'a Value> {
    node["status"]["conditions"].as_array()?.iter().find(|it| it["type"] == kind)
}

/// The agent's condition for memory.
pub(crate) fn pressure(cluster: &Cluster) -> Result<Option<Value>> {
    condition(cluster, CONDITION)
}

/// The types of the agent's conditions of the node.
pub(crate) fn conditions_of_ours(cluster: &Cluster) -> Result<Vec<String>> {
    Ok(named(&node(cluster)?["status"]["conditions"], "type", "Plimsoll"))
}

/// The keys of the agent's taints of the node.
pub(crate) fn taints_of_ours(cluster: &Cluster) -> Result<Vec<String>> {
    Ok(ours_of(&node(cluster)?))
}

/// The keys of the agent's taints of a node in this state.
pub(crate) fn ours_of(node: &Value) -> Vec<String> {
    named(&node["spec"]["taints"], "key", "plimsoll.dev/")
}

/// The keys of all taints of the node.
pub(crate) fn taints(cluster: &Cluster) -> Result<Vec<String>> {
    Ok(named(&node(cluster)?["spec"]["taints"], "key", ""))
}

fn named(list: &Value, key: &str, prefix: &str) -> Vec<String> {
    let names = list.as_array().into_iter().flatten().filter_map(|it| it[key].as_str());
    names.filter(|name| name.starts_with(prefix)).map(str::to_owned).collect()
}
