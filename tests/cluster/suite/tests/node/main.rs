//! The agent as it is installed on a real node, beside a kubelet: `cargo xtask test --long cluster-6.12` runs these.
//!
//! The node is a virtual machine with containerd and a kubelet, without hardware virtualisation, so that times are bounded
//! generously, and what is asserted is what the API has in the end and in which order.

mod overlay;
mod view;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::{Cluster, wait_for};
use serde_json::{Value, json};

use view::{PODS, condition, conditions_of_ours, pod, pod_that_takes, taints_of_ours};

/// The node, as `xtask/src/cluster/control_plane.rs` names it.
const NODE: &str = "node-1";
/// How long the kubelet, containerd and the agent may take for anything.
const PATIENCE: Duration = Duration::from_mins(4);
const CONDITION: &str = "PlimsollMemoryPressure";
const TAINT: &str = "plimsoll.dev/memory-pressure";

/// Installed from the shipped manifests and image, the agent evicts a pod that grows, the cluster's records say so as a
/// kubelet's would and stay so, no other pod is touched, and nothing is left of it when it is removed.
#[test]
fn a_pod_that_grows_is_evicted_and_recorded_and_nothing_is_left_after_the_agent_is_removed() {
    let cluster = Cluster::of_environment().expect("a cluster to test");
    let folder = overlay::of_agents(&cluster).expect("a folder for the kustomization");
    installed(&cluster, &folder).expect("it is installed");
    cluster.api.create(PODS, &pod("bystander", &["idle", "--mib", "16"])).expect("it is accepted");
    cluster.api.create(PODS, &pod_that_takes("grower", 2600)).expect("it is accepted");
    evicted(&cluster, "grower").expect("it is evicted");
    spared(&cluster, "bystander").expect("it runs on");
    pressure_ends(&cluster).expect("the condition and the taint go");
    // More than six turns in which a kubelet writes what it has.
    std::thread::sleep(Duration::from_mins(1));
    recorded(&cluster, "grower").expect("it stays evicted");
    cluster.api.create(PODS, &pod("next", &["idle", "--mib", "16"])).expect("it is accepted");
    spared(&cluster, "next").expect("there is room");
    removed(&cluster, &folder).expect("nothing is left");
}

/// Installs it, and waits until its conditions say that memory is not short.
fn installed(cluster: &Cluster, folder: &Path) -> Result<()> {
    cluster.apply(folder)?;
    wait_for("the agent reports that memory is not short", PATIENCE, || {
        Ok((condition(cluster, CONDITION)?.as_deref() == Some("False")).then_some(()))
    })
}

/// Waits until the pod's phase says so, and the node's condition and taint with it.
fn evicted(cluster: &Cluster, name: &str) -> Result<()> {
    wait_for("memory is reported as short", PATIENCE, || {
        Ok((condition(cluster, CONDITION)?.as_deref() == Some("True")).then_some(()))
    })?;
    wait_for("the taint is there", PATIENCE, || {
        Ok(taints_of_ours(cluster)?.contains(&TAINT.to_owned()).then_some(()))
    })?;
    wait_for("all containers of the pod are reported as ended", PATIENCE, || {
        let pod = view::stored(cluster, name)?;
        let containers = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let ended = !containers.is_empty() && containers.iter().all(|it| it["state"]["terminated"].is_object());
        Ok((ended && pod["status"]["phase"] == "Failed" && pod["status"]["reason"] == "Evicted").then_some(()))
    })?;
    recorded(cluster, name)
}

/// The pod's status, its annotation and its only event are those of an eviction, and no container was started again.
fn recorded(cluster: &Cluster, name: &str) -> Result<()> {
    let pod = view::stored(cluster, name)?;
    let status = &pod["status"];
    ensure!(status["phase"] == "Failed" && status["reason"] == "Evicted", "{status}");
    let message = status["message"].as_str().context("it has a message")?;
    ensure!(
        message.starts_with("The node was low on resource: memory. Threshold quantity: 1200Mi, available: "),
        "{message}"
    );
    ensure!(
        message.contains("Container main was using ")
            && message.contains("request is 64Mi, has larger consumption of memory. "),
        "{message}"
    );
    let mut disrupted =
        status["conditions"].as_array().into_iter().flatten().filter(|it| it["type"] == "DisruptionTarget");
    let disrupted = disrupted.next().context("it has the condition DisruptionTarget")?;
    ensure!(disrupted["status"] == "True" && disrupted["reason"] == "TerminationByKubelet", "{disrupted}");
    ensure!(pod["metadata"]["annotations"]["plimsoll.dev/eviction-reported-at"].is_string(), "{}", pod["metadata"]);
    ensure!(
        status["containerStatuses"].as_array().is_some_and(|all| all.iter().all(|it| it["restartCount"] == 0)),
        "{status}"
    );
    let events = view::events(cluster, &pod, "Evicted")?;
    let [event] = &events[..] else { anyhow::bail!("{} events: {events:?}", events.len()) };
    ensure!(event["source"] == json!({"component": "plimsoll", "host": NODE}), "{event}");
    ensure!(event["message"] == message && event["type"] == "Warning", "{event}");
    let annotations = &event["metadata"]["annotations"];
    ensure!(
        annotations["starved_resource"] == "memory" && annotations["offending_containers"] == "main",
        "{annotations}"
    );
    Ok(())
}

/// The pod runs, and no container of it was started again.
fn spared(cluster: &Cluster, name: &str) -> Result<()> {
    wait_for(&format!("{name} runs"), PATIENCE, || {
        let pod = view::stored(cluster, name)?;
        ensure!(pod["status"]["phase"] != "Failed", "{}", pod["status"]);
        let containers = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let runs = containers.iter().all(|it| it["state"]["running"].is_object() && it["restartCount"] == 0);
        Ok((!containers.is_empty() && runs).then_some(()))
    })
}

fn pressure_ends(cluster: &Cluster) -> Result<()> {
    wait_for("memory is not reported as short any more", PATIENCE, || {
        Ok((condition(cluster, CONDITION)?.as_deref() == Some("False")).then_some(()))
    })?;
    wait_for("the taint is gone", PATIENCE, || Ok(taints_of_ours(cluster)?.is_empty().then_some(())))
}

/// Removes it as cluster.md says, after which the API has nothing of it.
fn removed(cluster: &Cluster, folder: &Path) -> Result<()> {
    cluster.kubectl(&["--namespace", "plimsoll", "delete", "daemonset", "plimsoll", "--cascade=foreground"])?;
    ensure!(!conditions_of_ours(cluster)?.is_empty(), "what has to be removed is there");
    let uninstall = overlay::of_uninstall(cluster)?;
    cluster.apply(&uninstall)?;
    cluster.kubectl(&[
        "--namespace",
        "plimsoll",
        "wait",
        "--for=condition=complete",
        "--timeout=4m",
        "job/plimsoll-uninstall",
    ])?;
    ensure!(
        conditions_of_ours(cluster)?.is_empty() && taints_of_ours(cluster)?.is_empty(),
        "{:?}",
        conditions_of_ours(cluster)?
    );
    cluster.remove(&uninstall)?;
    cluster.remove(folder)?;
    for path in [
        "/api/v1/namespaces",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    ] {
        let list = cluster.api.get(path)?.object()?;
        let names: Vec<&Value> =
            list["items"].as_array().into_iter().flatten().map(|it| &it["metadata"]["name"]).collect();
        ensure!(!names.iter().any(|name| name.to_string().contains("plimsoll")), "{path} has {names:?}");
    }
    Ok(())
}
