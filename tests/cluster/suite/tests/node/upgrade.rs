//! An agent is replaced while a pod grows.

use std::thread;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::eviction::{SETTLED, never_restarted, recorded};
use crate::turn::Turn;
use crate::view::{self, pod, pod_that_takes};
use crate::{CONDITION, NODE, PATIENCE, overlay};

/// What the log of an agent has that begins to kill.
const KILL: &str = "\"kill\":\"begun\"";

/// The pod begins to grow when the next agent shadows the one that acts, which is ended ten seconds later: one of both
/// evicts it, before there is less memory than it may be.
#[test]
fn a_pod_that_grows_during_an_upgrade_is_killed_once_and_in_time() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let mut console = turn.console(NODE).expect("it has a console");
    turn.kubectl(&["--namespace", "plimsoll", "rollout", "restart", "daemonset/plimsoll"]).expect("it is accepted");
    console.wait(&["\"message\":\"armed with source ebpf", "; shadows: "], PATIENCE).expect("the next one shadows");
    turn.create(&pod_that_takes("grower", 2600, 200)).expect("it is accepted");
    turn.is_evicted("grower").expect("it is evicted");
    turn.kubectl(&["--namespace", "plimsoll", "rollout", "status", "daemonset/plimsoll", "--timeout=4m"])
        .expect("the next one is there");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    recorded(&turn, "grower").expect("once");
    never_restarted(&turn, "grower").expect("it stays dead");
    killed_once_and_in_time(console.read().expect("it is read")).expect("by one of both");
}

/// Memory is short while the agent is replaced, by a soft threshold in its grace: the condition and the taint are there in each
/// state that the node's object has meanwhile, and since the same time.
#[test]
fn the_condition_and_the_taint_are_kept_at_each_moment_of_an_upgrade() {
    let turn = Turn::with_agent(overlay::SOFT).expect("it is installed");
    let holds = ["hog", "anon", "--mib", "1800", "--hold", "600"];
    turn.create(&pod("holds", &holds)).expect("it is accepted");
    turn.pressure_begins().expect("memory is short");
    let before = view::node(&turn).expect("it is there");
    turn.kubectl(&["--namespace", "plimsoll", "rollout", "restart", "daemonset/plimsoll"]).expect("it is accepted");
    turn.kubectl(&["--namespace", "plimsoll", "rollout", "status", "daemonset/plimsoll", "--timeout=4m"])
        .expect("the next one is there");
    thread::sleep(SETTLED);
    let states = view::states_since(&turn, view::NODES, &before).expect("they are read");
    assert!(!states.is_empty(), "the next agent writes what holds");
    let of = |node: &Value| {
        let condition = view::condition_of(node, CONDITION).cloned().unwrap_or_default();
        (condition["status"].clone(), condition["lastTransitionTime"].clone(), view::ours_of(node))
    };
    for state in &states {
        assert_eq!(of(state), of(&before), "{state}");
    }
    turn.runs("holds").expect("it is not evicted");
}

/// The agent is given every privilege, and evicts as before.
#[test]
fn an_agent_with_every_privilege_evicts() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.install_from(&overlay::of_agents_over(&turn, "privileged", overlay::SENSITIVE).expect("it is written"))
        .expect("it is upgraded");
    let agent = turn.agent_on(NODE).expect("it runs");
    assert_eq!(agent["spec"]["containers"][0]["securityContext"]["privileged"], true, "{agent}");
    turn.create(&pod_that_takes("grower", 2600, 200)).expect("it is accepted");
    turn.is_evicted("grower").expect("it is evicted");
    turn.pressure_ends().expect("there is room");
    recorded(&turn, "grower").expect("once");
    never_restarted(&turn, "grower").expect("it stays dead");
}

fn killed_once_and_in_time(lines: &[String]) -> Result<()> {
    let kills: Vec<&String> = lines.iter().filter(|line| line.contains(KILL)).collect();
    ensure!(kills.len() == 1 && kills[0].contains("\"pod\":\"default/grower\""), "{kills:#?}");
    let late: Vec<&String> =
        lines.iter().filter(|it| it.contains("NODE low ") || it.contains("NODE oom-kills ")).collect();
    ensure!(late.is_empty(), "memory ran out: {late:?}");
    Ok(())
}
