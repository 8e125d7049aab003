//! Memory that a service of the node takes while all pods use less than they request.

use std::thread;

use anyhow::{Context as _, Result};
use plimsoll_cluster_suite::wait_for;
use serde_json::Value;

use crate::eviction::{SETTLED, never_restarted};
use crate::kill_switch::KILLED;
use crate::restarts::ended_as_it_says;
use crate::turn::Turn;
use crate::view::{self, pod};
use crate::{NODE, PATIENCE, overlay, service_manager};

/// The program that grows, as the node has it.
const PROGRAM: &str = "/usr/bin/plimsoll-guest";
/// MiB that each pod holds, and what it requests.
const HELD: &str = "300";
const REQUESTED: &str = "400Mi";
/// MiB that the service goes on below the threshold by the kubelet's formula: less than a pod holds, also by the kernel's
/// estimate, which may be a hundred lower.
const BEYOND: u64 = 60;
/// MiB that it takes beyond all that is available: less than a pod holds.
const TOO_MUCH: u64 = 200;
/// MiB a second: slow enough that the service's cgroup is known before memory is short.
const RATE: &str = "30";
/// Seconds until it ends, half of which it grows.
const HOLD: &str = "90";
const STOPPED: &str = "plimsoll_kernel_brakes_total{outcome=\"applied\"}";

/// As installed: what may be evicted did not grow.
#[test]
fn for_what_a_service_takes_no_pod_within_its_request_is_evicted_and_the_service_is_named() {
    let turn = Turn::with_agent(&overlay::with_metrics(overlay::SENSITIVE, "")).expect("it is installed");
    two_pods(&turn, "Always").expect("they run");
    let mut console = turn.console(NODE).expect("it is there");
    grow(&turn, "grower").expect("it is started");
    let named = ["outside all workloads", "\"cgroup\":\"system.slice/grower.service\""];
    console.wait(&named, PATIENCE).expect("it is named");
    turn.pressure_begins().expect("memory is short");
    turn.pressure_ends().expect("it ends with the service");
    for name in ["low", "high"] {
        turn.runs(name).expect("it runs on");
        assert_eq!(evictions(&turn, name).expect("a list"), 0, "{name}");
    }
}

/// With `evictForUnattributed`, and a brake in the kernel for the service.
#[test]
fn where_pods_pay_for_a_service_that_is_stopped_and_the_pod_of_the_lowest_priority_goes_once() {
    let more = "  evictForUnattributed: true\n  brake: {inKernel: [system.slice/braked.service]}\n";
    let turn = Turn::with_agent(&overlay::with_metrics(overlay::SENSITIVE, more)).expect("it is installed");
    two_pods(&turn, "Always").expect("they run");
    let before = stopped(&turn).expect("it is counted");
    let mut console = turn.console(NODE).expect("it is there");
    grow(&turn, "braked").expect("it is started");
    turn.is_evicted("low").expect("it is evicted");
    for logged in ["\"kernel_brake\":\"stopped\"", "\"kill\":\"begun\""] {
        console.wait(&[logged], PATIENCE).expect("it is logged");
    }
    let first = |key: &str, value: &str| {
        let times = view::records(&console.lines).filter(|it| it[key] == value).filter_map(|it| it["at_ns"].as_u64());
        times.min().expect("with its time")
    };
    assert!(first("kernel_brake", "stopped") < first("kill", "begun"), "the pod went first");
    thread::sleep(SETTLED);
    assert_eq!(evictions(&turn, "low").expect("a list"), 1);
    never_restarted(&turn, "low").expect("it stays dead");
    turn.runs("high").expect("it runs on");
    assert_eq!(evictions(&turn, "high").expect("a list"), 0);
    // Counted with the next heartbeat.
    wait_for("the service was stopped", PATIENCE, || Ok((stopped(&turn)? > before).then_some(())))
        .expect("in the kernel");
    let braked = reported(|| view::events_of_node(&turn, "PlimsollBraked")).expect("an event of the node");
    assert!(braked["message"].as_str().is_some_and(|it| it.contains("system.slice/braked.service")), "{braked}");
    turn.pressure_ends().expect("there is room");
}

/// As installed, and the service takes more than there is: the kernel ends a pod, whose `oom_score_adj` puts it first.
#[test]
fn where_no_pod_may_be_evicted_for_a_service_the_oom_killer_is_first_and_its_victim_fails_and_has_an_event_of_that() {
    the_oom_killer_is_first("Never");
}

#[test]
fn what_the_oom_killer_ends_for_a_service_is_restarted_by_its_policy_always() {
    the_oom_killer_is_first("Always");
}

#[test]
fn what_the_oom_killer_ends_for_a_service_is_restarted_by_its_policy_on_failure() {
    the_oom_killer_is_first("OnFailure");
}

/// And what it ends is the kubelet's: it is not reported as evicted, and ends or is restarted as this policy says.
fn the_oom_killer_is_first(policy: &str) {
    let turn = Turn::with_agent(&overlay::with_metrics(overlay::SENSITIVE, "")).expect("it is installed");
    two_pods(&turn, policy).expect("they run");
    let before = restarts(&turn).expect("the agent's pod");
    let all = view::available(&turn).expect("it is known") >> 20;
    let mib = (all + TOO_MUCH).to_string();
    // Faster than the kubelet looks, whose own threshold is met on the way.
    let grow = [PROGRAM, "hog", "anon", "--mib", &mib, "--hold", "1"];
    service_manager::start(&turn, "fills", &grow).expect("it is started");
    let pods = ["low", "high"].map(|name| view::stored(&turn, name).expect("it is there"));
    let of_either = || {
        let events = pods.iter().map(|pod| view::events(&turn, pod, "PlimsollLostRace"));
        Ok(events.collect::<Result<Vec<_>>>()?.concat())
    };
    let lost = reported(of_either).expect("an event of a pod");
    let message = lost["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("The OOM killer was first: the node was out of memory, and it killed process "),
        "{lost}"
    );
    assert!(message.contains("(plimsoll-guest) of the pod, which had ") && lost["type"] == "Warning", "{lost}");
    turn.pressure_ends().expect("it ends with the service");
    let victim = lost["involvedObject"]["name"].as_str().expect("it is of a pod");
    ended_as_it_says(&turn, victim, policy, |state| state["exitCode"] == KILLED).expect("as the kubelet has it");
    // The kubelet may have been sooner than the service to read that memory is short, or the pod that it started again.
    for name in ["low", "high"] {
        assert_eq!(evictions(&turn, name).expect("a list"), 0, "{name}");
    }
    // The kubelet has the OOM killer end all of a container, where it selects one process of it.
    assert_eq!(restarts(&turn).expect("the agent's pod"), before, "the agent was ended as a whole");
}

/// The first of these events, once there is one.
fn reported(events: impl Fn() -> Result<Vec<Value>>) -> Result<Value> {
    wait_for("it is reported", PATIENCE, || Ok(events()?.into_iter().next()))
}

/// Two pods within their requests, alike but for the priority. Without that the younger one, which has the high one, would
/// be evicted first.
fn two_pods(turn: &Turn, restarts: &str) -> Result<()> {
    turn.make_class()?;
    for name in ["low", "high"] {
        let mut pod = pod(name, &["idle", "--mib", HELD]);
        pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = REQUESTED.into();
        pod["spec"]["restartPolicy"] = restarts.into();
        if name == "high" {
            pod["spec"]["priorityClassName"] = name.into();
        }
        turn.create(&pod)?;
        turn.runs(name)?;
    }
    Ok(())
}

/// Starts a service with this name, which takes memory until less than the threshold is available.
fn grow(turn: &Turn, name: &str) -> Result<()> {
    let room = (view::available(turn)? >> 20).checked_sub(overlay::FAR_MIB).context("memory is short already")?;
    let mib = (room + BEYOND).to_string();
    service_manager::start(turn, name, &[PROGRAM, "hog", "anon", "--mib", &mib, "--rate", RATE, "--hold", HOLD])
}

fn evictions(turn: &Turn, name: &str) -> Result<usize> {
    let events = view::events(turn, &view::stored(turn, name)?, "Evicted")?;
    Ok(events.iter().filter(|event| event["source"]["component"] == "plimsoll").count())
}

/// How often the agent's container was started again.
fn restarts(turn: &Turn) -> Result<u64> {
    let status = &turn.agent_on(NODE)?["status"]["containerStatuses"][0];
    status["restartCount"].as_u64().with_context(|| format!("the agent has no container: {status}"))
}

/// How often the kernel has stopped a process.
fn stopped(turn: &Turn) -> Result<u64> {
    view::read_metric(turn, STOPPED)
}
