//! A pod of containers of every kind.

use std::thread;

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::{Answer, Format, wait_for};
use serde_json::{Value, json};

use crate::eviction::{SETTLED, recorded_for};
use crate::turn::Turn;
use crate::view::{self, IDLE, IMAGE, PODS, pod};
use crate::{PATIENCE, overlay};

/// What the status has of containers, by their kind, and how many this pod has.
const KINDS: [(&str, usize); 3] =
    [("containerStatuses", 2), ("initContainerStatuses", 2), ("ephemeralContainerStatuses", 1)];

/// An ephemeral container, which has no requests and no limits, grows beside two containers, an init container that has
/// ended, and a sidecar. They see each other's processes: the first one of the sandbox is PID 1 of them all. The pod goes as
/// one, and none of its containers is started again.
#[test]
fn a_pod_of_containers_of_every_kind_is_evicted_as_one() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.create(&of_every_kind("many")).expect("it is accepted");
    turn.runs("many").expect("it runs");
    turn.runs("bystander").expect("it runs");
    add_ephemeral(&turn, "many", &["hog", "anon", "--mib", "2600"]).expect("it is accepted");
    turn.pressure_begins().expect("memory is short");
    turn.is_evicted("many").expect("it is evicted");
    wait_for("all of its containers have ended", PATIENCE, || Ok(all_have_ended(&turn, "many")?.then_some(())))
        .expect("as one");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    assert!(all_have_ended(&turn, "many").expect("it is there"), "one was started again");
    // What it takes is the pod's, and of which container is not known.
    let event = recorded_for(&turn, "many", "memory", "1200Mi").expect("as the kubelet does");
    assert_eq!(event["metadata"]["annotations"]["offending_containers"], "", "{event}");
    turn.runs("bystander").expect("it runs on");
}

fn of_every_kind(name: &str) -> Value {
    let mut pod = pod(name, &IDLE);
    let spec = &mut pod["spec"];
    let second = alike(spec, "second", &IDLE);
    let prepares = alike(spec, "prepares", &["hog", "anon", "--mib", "1", "--hold", "1"]);
    spec["initContainers"] = json!([prepares, sidecar(spec)]);
    spec["shareProcessNamespace"] = true.into();
    spec["containers"].as_array_mut().expect("it has one").push(second);
    pod
}

/// A container as the first one of a pod, with another name, that does something else.
fn alike(spec: &Value, name: &str, arguments: &[&str]) -> Value {
    let mut container = spec["containers"][0].clone();
    container["name"] = name.into();
    container["args"] = json!(arguments);
    container
}

/// A sidecar that does nothing, for a pod like this.
pub(crate) fn sidecar(spec: &Value) -> Value {
    let mut sidecar = alike(spec, "sidecar", &IDLE);
    sidecar["restartPolicy"] = "Always".into();
    sidecar
}

fn add_ephemeral(turn: &Turn, name: &str, arguments: &[&str]) -> Result<()> {
    let looks = json!({"name": "looks", "image": IMAGE, "imagePullPolicy": "Never", "args": arguments});
    let added = json!({"spec": {"ephemeralContainers": [looks]}});
    let path = format!("{PODS}/{name}/ephemeralcontainers");
    turn.api.request("PATCH", &path, Format::Strategic, &added).and_then(Answer::object).map(drop)
}

/// Whether each container that the pod has is reported as ended, without having been started again.
fn all_have_ended(turn: &Turn, name: &str) -> Result<bool> {
    let status = &view::stored(turn, name)?["status"];
    let mut ended = true;
    for (key, count) in KINDS {
        let containers = status[key].as_array().with_context(|| format!("no {key} in {status}"))?;
        ensure!(containers.len() == count, "{status}");
        ensure!(containers.iter().all(|it| it["restartCount"] == 0), "{status}");
        ended &= containers.iter().all(|it| it["state"]["terminated"].is_object());
    }
    Ok(ended)
}
