//! The disk of the kubelet's directory: a pod that takes what is left of it is evicted, and the condition comes and goes.

use anyhow::{Context as _, Result};
use plimsoll_cluster_suite::wait_for;
use serde_json::{Value, json};

use crate::eviction::{never_restarted, recorded_for};
use crate::turn::Turn;
use crate::view::{IDLE, condition, pod};
use crate::{NODE, PATIENCE, overlay};

const CONDITION: &str = "PlimsollDiskPressure";
/// How far the thresholds are below what is left before, in MiB and inodes: more than a node writes by itself meanwhile.
const ROOM: u64 = 256;
const ROOM_INODES: u64 = 4000;
/// MiB that the pod writes, and of the directories that it makes, each of which counts as one KiB.
const WRITTEN: &str = "400";
const MADE: &str = "8";

#[test]
fn a_pod_that_fills_the_disk_is_evicted_and_the_condition_ends() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    // Odd, so that it is printed as it is written.
    let threshold = format!("{}Mi", ((left(&turn, "availableBytes").expect("the kubelet reads it") >> 20) - ROOM) | 1);
    drop(turn);
    evicted_for("nodefs.available", &threshold, &["tmpfs", "--keep", "--mib", WRITTEN], "ephemeral-storage");
}

#[test]
fn a_pod_that_takes_the_inodes_of_the_disk_is_evicted_and_the_condition_ends() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let threshold = ((left(&turn, "inodesFree").expect("the kubelet reads it") - ROOM_INODES) | 1).to_string();
    drop(turn);
    evicted_for("nodefs.inodesFree", &threshold, &["dirs", "--mib", MADE], "inodes");
}

/// A pod takes so much in an emptyDir that less than the threshold is left.
fn evicted_for(signal: &str, threshold: &str, takes: &[&str], resource: &str) {
    let turn = Turn::with_agent(&with_threshold(signal, threshold)).expect("it is installed");
    wait_for("the disk is reported as not short", PATIENCE, || is(&turn, "False")).expect("there is room");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    turn.create(&in_volume("writer", takes)).expect("it is accepted");
    wait_for("the disk is reported as short", PATIENCE, || is(&turn, "True")).expect("there is no room");
    turn.is_evicted("writer").expect("it is evicted");
    wait_for("the disk is reported as not short", PATIENCE, || is(&turn, "False")).expect("its volume went with it");
    recorded_for(&turn, "writer", resource, threshold).expect("as the kubelet does");
    never_restarted(&turn, "writer").expect("it stays dead");
    turn.runs("bystander").expect("it runs on");
    // Without the taint.
    turn.pressure_ends().expect("there is room");
    turn.create(&pod("next", &IDLE)).expect("it is accepted");
    turn.runs("next").expect("there is room");
}

/// [`overlay::SENSITIVE`] with this threshold instead.
fn with_threshold(signal: &str, threshold: &str) -> String {
    overlay::SENSITIVE.replace("memory.available: 1200Mi", &format!("{signal}: \"{threshold}\""))
}

/// What the kubelet has left on the disk.
fn left(turn: &Turn, key: &str) -> Result<u64> {
    let summary = turn.api.get(&format!("/api/v1/nodes/{NODE}/proxy/stats/summary"))?.object()?;
    summary["node"]["fs"][key].as_u64().with_context(|| format!("no {key} in {}", summary["node"]["fs"]))
}

/// Whether the condition has this status.
fn is(turn: &Turn, status: &str) -> Result<Option<()>> {
    Ok(condition(turn, CONDITION)?.is_some_and(|it| it["status"] == status).then_some(()))
}

fn in_volume(name: &str, takes: &[&str]) -> Value {
    let mut pod = pod(name, &[&["hog"], takes, &["--path", "/cache"]].concat());
    pod["spec"]["volumes"] = json!([{"name": "cache", "emptyDir": {}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "cache", "mountPath": "/cache"}]);
    pod
}
