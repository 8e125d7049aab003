//! What the scheduler and the controllers make of an eviction, and of the taint.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use plimsoll_cluster_suite::{Answer, wait_for};
use serde_json::{Value, json};

use crate::eviction::recorded;
use crate::turn::Turn;
use crate::view::{self, IMAGE, PODS, mount_run, spec};
use crate::{PATIENCE, TAINT, overlay};

/// The label of the Deployment's pods.
const LABEL: &str = "app=shop";

/// A pod without requests waits for the end of the taint. The replacement may be scheduled before the scheduler has seen that.
#[test]
fn a_deployments_pod_is_replaced_and_a_pod_without_requests_waits_for_the_end_of_the_taint() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let path = "/apis/apps/v1/namespaces/default/deployments";
    turn.api.create(path, &deployment()).and_then(Answer::object).expect("it is accepted");
    turn.pressure_begins().expect("memory is short");
    turn.create(&best_effort()).expect("it is accepted");
    waits_for_the_taint(&turn, "best-effort").expect("it is not scheduled");
    let one_in = |phase| wait_for(&format!("a pod is {phase}"), PATIENCE, || Ok(pods_in(&turn, phase)?.pop()));
    let evicted = one_in("Failed").expect("the first one is evicted");
    turn.pressure_ends().expect("there is room");
    turn.runs("best-effort").expect("it is scheduled");
    let replacement = one_in("Running").expect("the controller makes another one");
    turn.runs(&replacement).expect("it takes nothing");
    turn.is_evicted(&evicted).expect("it stays evicted");
    recorded(&turn, &evicted).expect("as the kubelet does");
    assert_eq!(pods_in(&turn, "Running").expect("a list"), [replacement], "there is one and it stays");
}

/// Of its pods the first one grows, by a file of the node that is another one in each run.
fn deployment() -> Value {
    let once = format!("/run/plimsoll-test-has-grown-{}", std::process::id());
    let mut pod = spec(&["hog", "anon", "--mib", "2600", "--once", &once]);
    mount_run(&mut pod);
    let labels = json!({"app": "shop"});
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": labels}, "template": template});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop"}, "spec": spec})
}

/// A pod that requests nothing.
fn best_effort() -> Value {
    let container = json!({"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "args": ["idle", "--mib", "1"]});
    let spec = json!({"hostNetwork": true, "automountServiceAccountToken": false, "containers": [container]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "best-effort"}, "spec": spec})
}

/// The scheduler names the taint as the reason, and the pod is still there some seconds later.
fn waits_for_the_taint(turn: &Turn, name: &str) -> Result<()> {
    let refused = || -> Result<Option<String>> {
        let pod = view::stored(turn, name)?;
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let scheduled = conditions.find(|it| it["type"] == "PodScheduled" && it["status"] == "False");
        Ok(scheduled.and_then(|it| it["message"].as_str()).map(str::to_owned))
    };
    let why = wait_for("the scheduler refuses it", PATIENCE, refused)?;
    ensure!(why.contains("had untolerated taint(s)"), "{why}");
    ensure!(view::taints(turn)? == [TAINT], "{:?}", view::taints(turn)?);
    thread::sleep(Duration::from_secs(5));
    ensure!(refused()?.is_some(), "it was scheduled beside the taint");
    Ok(())
}

/// The names of the Deployment's pods in this phase.
fn pods_in(turn: &Turn, phase: &str) -> Result<Vec<String>> {
    let list = turn.api.get(&format!("{PODS}?labelSelector={LABEL}"))?.object()?;
    let pods = list["items"].as_array().into_iter().flatten().filter(|pod| pod["status"]["phase"] == phase);
    Ok(pods.filter_map(|pod| pod["metadata"]["name"].as_str()).map(str::to_owned).collect())
}
