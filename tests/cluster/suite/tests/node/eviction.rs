//! A pod that grows is evicted, and recorded as the kubelet records it.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use plimsoll_cluster_suite::Console;
use serde_json::{Value, json};

use crate::turn::Turn;
use crate::view::{self, IDLE, pod, pod_that_takes};
use crate::{NODE, overlay, service_manager};

/// More than six turns in which a kubelet writes what it has.
pub(crate) const SETTLED: Duration = Duration::from_mins(1);
/// How many pods are evicted one after another to see that none is started again.
const RUNS: usize = 20;

/// The cluster's records say what a kubelet's would and stay so, also over a restart of the kubelet and for two minutes, no other
/// pod is touched, and there is room for a new one.
#[test]
fn a_pod_that_grows_is_evicted_and_recorded_and_no_other() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.create(&pod_that_takes("grower", 2600, 0)).expect("it is accepted");
    grower_alone_is_evicted(&turn);
    service_manager::restart_kubelet(&turn).expect("it is another one");
    thread::sleep(SETTLED);
    recorded(&turn, "grower").expect("it stays evicted");
    never_restarted(&turn, "grower").expect("it stays dead");
    turn.runs("bystander").expect("it runs on");
    turn.create(&pod("next", &IDLE)).expect("it is accepted");
    turn.runs("next").expect("there is room");
}

/// The pod `grower` is evicted and stays so, and `bystander` runs on.
pub(crate) fn grower_alone_is_evicted(turn: &Turn) {
    turn.pressure_begins().expect("memory is short");
    turn.is_evicted("grower").expect("it is evicted");
    recorded(turn, "grower").expect("as the kubelet does");
    turn.runs("bystander").expect("it runs on");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    recorded(turn, "grower").expect("it stays evicted");
    never_restarted(turn, "grower").expect("it stays dead");
}

#[test]
fn no_container_of_an_evicted_pod_is_started_again() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let names: Vec<String> = (0..RUNS).map(|run| format!("grower-{run}")).collect();
    for name in &names {
        turn.create(&pod_that_takes(name, 2600, 0)).expect("it is accepted");
        turn.is_evicted(name).expect("it is evicted");
    }
    thread::sleep(SETTLED);
    for name in &names {
        never_restarted(&turn, name).expect("it stays dead");
        recorded(&turn, name).expect("it stays evicted");
    }
}

/// The status, the annotation and the only event of a pod of one container are those of an eviction for memory.
pub(crate) fn recorded(turn: &Turn, name: &str) -> Result<()> {
    let event = recorded_for(turn, name, "memory", "1200Mi")?;
    let message = event["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains("Container main was using ")
            && message.contains("request is 64Mi, has larger consumption of memory. "),
        "{message}"
    );
    ensure!(event["metadata"]["annotations"]["offending_containers"] == "main", "{event}");
    Ok(())
}

/// The same, for this resource and threshold, of a pod of any containers: the only event.
pub(crate) fn recorded_for(turn: &Turn, name: &str, resource: &str, threshold: &str) -> Result<Value> {
    let pod = view::stored(turn, name)?;
    let status = &pod["status"];
    ensure!(status["phase"] == "Failed" && status["reason"] == "Evicted", "{status}");
    let message = status["message"].as_str().context("it has a message")?;
    let low = format!("The node was low on resource: {resource}. Threshold quantity: {threshold}, available: ");
    ensure!(message.starts_with(&low), "{message}");
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let disrupted = conditions.find(|it| it["type"] == "DisruptionTarget").context("it has the condition")?;
    ensure!(disrupted["status"] == "True" && disrupted["reason"] == "TerminationByKubelet", "{disrupted}");
    ensure!(pod["metadata"]["annotations"]["plimsoll.dev/eviction-reported-at"].is_string(), "{}", pod["metadata"]);
    let events = view::events(turn, &pod, "Evicted")?;
    let [event] = &events[..] else { bail!("{} events: {events:?}", events.len()) };
    ensure!(event["source"] == json!({"component": "plimsoll", "host": NODE}), "{event}");
    ensure!(event["message"] == message && event["type"] == "Warning" && event["count"] == 1, "{event}");
    ensure!(event["metadata"]["annotations"]["starved_resource"] == resource, "{event}");
    Ok(event.clone())
}

/// The names of the tests' pods that the agent has begun to kill, in that order.
pub(crate) fn killed(console: &mut Console) -> Result<Vec<String>> {
    console.read()?;
    let begun = view::records(&console.lines).filter(|it| it["kill"] == "begun");
    Ok(begun.filter_map(|it| Some(it["pod"].as_str()?.strip_prefix("default/")?.to_owned())).collect())
}

/// The pod's containers ran once.
pub(crate) fn never_restarted(turn: &Turn, name: &str) -> Result<()> {
    let pod = view::stored(turn, name)?;
    let ran_once =
        |it: &Value| it["restartCount"] == 0 && it["lastState"].as_object().is_none_or(serde_json::Map::is_empty);
    ensure!(view::ends(&pod) && view::containers(&pod).iter().all(ran_once), "{}", pod["status"]);
    Ok(())
}
