//! What does not answer, or is gone, while a pod is evicted: the kill waits for nothing, and is recorded once.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use plimsoll_cluster_suite::{Answer, Format, Stopped, wait_for};
use serde_json::{Value, json};

use crate::eviction::{SETTLED, never_restarted, recorded};
use crate::turn::Turn;
use crate::view::{self, IDLE, PODS, pod, pod_that_takes, pressure};
use crate::{NODE, PATIENCE, overlay};

/// How long the API server is away after the kill.
const AWAY: Duration = Duration::from_secs(30);
/// And where the kubelet is to try to start the pod again meanwhile.
const LONG_AWAY: Duration = Duration::from_secs(100);
/// What the agent's log has of a pod whose processes are gone.
const KILLED: &str = "\"kill\":\"emptied\"";
/// The node restarts its kubelet with the next kill where this file is (`tests/vm/guest/src/kubelet.rs`).
const RESTART: &str = "/run/restart-the-kubelet-with-the-next-kill";
/// MiB in a second at which a pod grows that is to be seen running before it is evicted.
const SLOWLY: u32 = 60;

/// The kubelet starts the pod's containers again while the API server is away, and may write its own status over what is
/// reported when both reach it again: in the end the pod is recorded as evicted, and stays so.
#[test]
fn a_pod_is_killed_without_the_api_server_and_recorded_once_when_that_is_back() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    let stopped = killed_without_api_server(&turn, "outage").expect("it is killed");
    thread::sleep(AWAY);
    drop(stopped);
    turn.is_evicted("outage").expect("it is evicted");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    recorded(&turn, "outage").expect("once, and it stays evicted");
    turn.runs("bystander").expect("it runs on");
}

/// The kubelet makes the sandbox of a killed pod anew while the API server is away, after some 40 s. The pod is held down: no
/// container runs a second time, and once it is recorded as evicted the hold ends.
#[test]
fn no_container_of_a_pod_runs_again_without_the_api_server_however_long_that_is_away() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let mut console = turn.console(NODE).expect("it has a console");
    let stopped = killed_without_api_server(&turn, "held").expect("it is killed");
    console.wait(&["\"hold\":\"begun\"", "\"pod\":\"default/held\""], PATIENCE).expect("it is held down");
    thread::sleep(LONG_AWAY);
    drop(stopped);
    turn.is_evicted("held").expect("it is evicted");
    // It may have no name any more: the kubelet removes the cgroup of a pod that has failed.
    let ended = console.wait(&["\"hold\":\"ended\""], PATIENCE).expect("it goes on");
    assert!(ended.contains("\"reason\":\"recorded\"") || ended.contains("\"reason\":\"gone\""), "{ended}");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    recorded(&turn, "held").expect("once, and it stays evicted");
    never_restarted(&turn, "held").expect("it stays dead");
}

/// A pod of the same name that is made before the eviction of the first one is reported is another pod.
#[test]
fn a_second_pod_of_the_same_name_is_untouched() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let stopped = killed_without_api_server(&turn, "twin").expect("it is killed");
    drop(stopped);
    let now = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
    let deleted = turn.api.request("DELETE", &format!("{PODS}/twin"), Format::Json, &now);
    deleted.and_then(Answer::object).expect("it is deleted");
    turn.create(&pod("twin", &IDLE)).expect("it is accepted");
    turn.runs("twin").expect("it runs");
    turn.pressure_ends().expect("there is room");
    turn.runs("twin").expect("it runs on");
    let second = view::stored(&turn, "twin").expect("it is there");
    assert_eq!(second["metadata"]["annotations"], Value::Null, "{second}");
    assert_eq!(view::events(&turn, &second, "Evicted").expect("a list"), [Value::Null; 0]);
}

/// The agent's pod is removed right after an eviction: the next one goes on with the condition, and reports nothing again.
#[test]
fn the_next_agent_goes_on_with_the_condition_and_reports_nothing_again() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.create(&pod_that_takes("grower", 2600, 0)).expect("it is accepted");
    turn.pressure_begins().expect("memory is short");
    let mut console = turn.console(NODE).expect("it has a console");
    let since = transition(&turn).expect("it has a time");
    let (name, uid) = agent(&turn).expect("it runs");
    turn.kubectl(&["--namespace", "plimsoll", "delete", "pod", &name, "--grace-period=1", "--wait=false"])
        .expect("it is deleted");
    wait_for("another agent's pod is there", PATIENCE, || Ok((agent(&turn)?.1 != uid).then_some(())))
        .expect("the DaemonSet makes one");
    let armed = console.wait(&["\"message\":\"armed with source ebpf", "; acts\""], PATIENCE).expect("it acts");
    assert!(!armed.contains(&name), "{armed}");
    let condition = pressure(&turn).expect("a node").expect("it is kept");
    assert_eq!((&condition["status"], &condition["lastTransitionTime"]), (&json!("True"), &since), "{condition}");
    turn.is_evicted("grower").expect("it is evicted");
    let reported = reported_at(&turn, "grower").expect("it is there");
    turn.pressure_ends().expect("it ends in time");
    recorded(&turn, "grower").expect("once");
    assert_eq!(reported_at(&turn, "grower").expect("it is there"), reported);
}

/// The kubelet is restarted between a kill and its record.
#[test]
fn an_eviction_is_recorded_where_the_kubelet_is_restarted_in_the_middle() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let mut console = turn.console(NODE).expect("it has a console");
    let mut asks = pod("asks", &["hog", "anon", "--mib", "1", "--once", RESTART]);
    view::mount_run(&mut asks["spec"]);
    turn.create(&asks).expect("it is accepted");
    turn.runs("asks").expect("it runs");
    turn.create(&pod_that_takes("grower", 2600, 0)).expect("it is accepted");
    console.wait(&["NODE kubelet restarted"], PATIENCE).expect("it is restarted");
    turn.is_evicted("grower").expect("it is evicted");
    turn.pressure_ends().expect("there is room");
    recorded(&turn, "grower").expect("once");
    never_restarted(&turn, "grower").expect("it stays dead");
    turn.runs("asks").expect("it runs on");
}

/// Makes a pod that grows, stops the API server once it runs, and waits until the agent has killed it.
fn killed_without_api_server(turn: &Turn, name: &str) -> Result<Stopped> {
    turn.create(&pod_that_takes(name, 2600, SLOWLY))?;
    turn.runs(name)?;
    let mut console = turn.console(NODE)?;
    let stopped = turn.stop("kube-apiserver")?;
    console.wait(&[KILLED, &format!("\"pod\":\"default/{name}\"")], PATIENCE)?;
    Ok(stopped)
}

/// The name and the UID of the agent's pod.
fn agent(turn: &Turn) -> Result<(String, String)> {
    let pod = turn.agent_on(NODE)?;
    let text = |key: &str| pod["metadata"][key].as_str().map(str::to_owned).context("each pod has it");
    Ok((text("name")?, text("uid")?))
}

fn transition(turn: &Turn) -> Result<Value> {
    Ok(pressure(turn)?.context("it is there")?["lastTransitionTime"].clone())
}

/// When the pod's status was patched last.
fn reported_at(turn: &Turn, name: &str) -> Result<Value> {
    Ok(view::stored(turn, name)?["metadata"]["annotations"]["plimsoll.dev/eviction-reported-at"].clone())
}
