//! Pods over their own limits of local storage, which the kubelet enforces as well: whichever is first evicts them, once.

use std::io::Write as _;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use plimsoll_cluster_suite::wait_for;
use serde_json::{Value, json};

use crate::eviction::{SETTLED, never_restarted};
use crate::turn::Turn;
use crate::view::{self, pod};
use crate::{NODE, PATIENCE, kill_switch, overlay};

/// What both count for limits.
const BY_KUBELET: &str = "plimsoll_kubelet_evictions_total{resource=\"limit\"}";
/// MiB that each pod writes, a limit below and one above.
const WRITTEN: &str = "64";
const BELOW: &str = "16Mi";
const ABOVE: &str = "400Mi";

#[test]
fn a_pod_over_a_limit_of_local_storage_is_evicted_once_and_one_below_its_limits_is_not() {
    let turn = Turn::with_agent(overlay::ALL_SIGNALS).expect("it is installed");
    // The agent before may still have the port.
    let before = wait_for("figures are served", PATIENCE, || Ok(by_kubelet(&turn).ok())).expect("by the agent");
    turn.create(&in_volume("in-volume", BELOW)).expect("it is accepted");
    turn.create(&in_layer()).expect("it is accepted");
    turn.create(&in_volume("below", ABOVE)).expect("it is accepted");
    let over = [
        ("in-volume", format!("Usage of EmptyDir volume \"cache\" exceeds the limit \"{BELOW}\". ")),
        ("in-layer", format!("Container main exceeded its local ephemeral storage limit \"{BELOW}\". ")),
    ];
    for (name, message) in &over {
        turn.is_evicted(name).expect("it is evicted");
        evicted_by(&turn, name, message).expect("as the kubelet does");
    }
    thread::sleep(SETTLED);
    let mut of_kubelet = 0;
    for (name, message) in &over {
        let by = evicted_by(&turn, name, message).expect("it stays so");
        // A kubelet that removes the containers of a pod which it has evicted counts each as started again.
        if by == "plimsoll" {
            never_restarted(&turn, name).expect("it stays dead");
        }
        // Past the test harness, which keeps to itself what a test prints that passes.
        let _ = writeln!(std::io::stdout(), "FIGURE {name}: evicted by {by}");
        of_kubelet += u64::from(by == "kubelet");
    }
    assert_eq!(by_kubelet(&turn).expect("the agent counts them") - before, of_kubelet);
    turn.runs("below").expect("it runs on");
}

/// An agent that may not act until then finds the pod evicted. By the kubelet's own pace, of a minute or so, it is seldom first.
#[test]
fn a_pod_that_the_kubelet_has_evicted_for_its_limit_is_not_evicted_again() {
    let turn = Turn::with_agent(overlay::ALL_SIGNALS).expect("it is installed");
    let before = wait_for("figures are served", PATIENCE, || Ok(by_kubelet(&turn).ok())).expect("by the agent");
    let mut console = turn.console(NODE).expect("it is there");
    kill_switch::annotate(&turn, &json!("")).expect("an administrator may");
    turn.create(&in_volume("in-volume", BELOW)).expect("it is accepted");
    let is_over = console.wait(&["shadow, not done: evict", "\"pod\":\"default/in-volume\""], PATIENCE);
    let is_evicted = turn.is_evicted("in-volume");
    // Before anything is asserted: a later test is to find the agent as it was.
    kill_switch::annotate(&turn, &Value::Null).expect("an administrator may");
    is_over.expect("the agent has it over its limit, too");
    is_evicted.expect("it is evicted");
    thread::sleep(SETTLED);
    let message = format!("Usage of EmptyDir volume \"cache\" exceeds the limit \"{BELOW}\". ");
    assert_eq!(evicted_by(&turn, "in-volume", &message).expect("as the kubelet does"), "kubelet");
    assert_eq!(by_kubelet(&turn).expect("the agent counts it") - before, 1);
}

/// A pod that writes into a volume with this limit.
fn in_volume(name: &str, limit: &str) -> Value {
    let mut pod = pod(name, &["hog", "tmpfs", "--keep", "--path", "/cache", "--mib", WRITTEN]);
    view::mount(&mut pod["spec"], &json!({"name": "cache", "emptyDir": {"sizeLimit": limit}}), "/cache");
    pod
}

/// A pod of two containers, one of which writes more than it may into its layer, and less than both may together.
fn in_layer() -> Value {
    let mut pod = pod("in-layer", &["hog", "tmpfs", "--keep", "--path", "/", "--mib", WRITTEN]);
    let containers = pod["spec"]["containers"].as_array_mut().expect("it has one");
    let mut beside = containers[0].clone();
    containers[0]["resources"]["limits"] = json!({"ephemeral-storage": BELOW});
    beside["name"] = "beside".into();
    beside["args"] = json!(view::IDLE);
    beside["resources"]["limits"] = json!({"ephemeral-storage": ABOVE});
    containers.push(beside);
    pod
}

/// The program that evicted a pod, after the status and the only event are compared with the kubelet's: for limits that
/// has no annotations.
fn evicted_by(turn: &Turn, name: &str, message: &str) -> Result<String> {
    let pod = view::stored(turn, name)?;
    let status = &pod["status"];
    ensure!(status["phase"] == "Failed" && status["reason"] == "Evicted" && status["message"] == message, "{status}");
    let events = view::events(turn, &pod, "Evicted")?;
    let [event] = &events[..] else { bail!("{} events: {events:?}", events.len()) };
    ensure!(event["message"] == message && event["type"] == "Warning" && event["count"] == 1, "{event}");
    ensure!(event["metadata"]["annotations"].is_null(), "{event}");
    let by = event["source"]["component"].as_str().context("it has a source")?;
    let is_ours = pod["metadata"]["annotations"]["plimsoll.dev/eviction-reported-at"].is_string();
    ensure!(is_ours == (by == "plimsoll"), "{by}: {}", pod["metadata"]);
    Ok(by.to_owned())
}

fn by_kubelet(turn: &Turn) -> Result<u64> {
    view::read_metric(turn, BY_KUBELET)
}
