//! Pods in user namespaces of their own, which a kubelet gives them with containerd 2.0 or later.

use anyhow::Result;
use serde_json::Value;

use crate::eviction::grower_alone_is_evicted;
use crate::turn::Turn;
use crate::view::{self, IDLE, pod, pod_that_takes};
use crate::{NODE, PATIENCE, overlay, service_manager};

/// How many users a pod has there.
const USERS: &str = "65536";
/// MiB in a second at which the pod grows.
const RATE: u32 = 60;

/// A pod that grows is evicted as any other one is, and what is root in another one of its kind is no root of the node.
#[test]
fn a_pod_in_a_user_namespace_is_evicted_and_recorded_and_no_other() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.create(&mapped(pod("bystander", &IDLE))).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    is_mapped(&turn, "bystander").expect("it is in a user namespace");
    turn.create(&mapped(pod_that_takes("grower", 2600, RATE))).expect("it is accepted");
    grower_alone_is_evicted(&turn);
    turn.create(&mapped(pod("next", &IDLE))).expect("it is accepted");
    turn.runs("next").expect("there is room");
}

/// The same in a user namespace of its own, beside which the API accepts no network of the node's.
fn mapped(mut pod: Value) -> Value {
    pod["spec"]["hostUsers"] = false.into();
    pod["spec"]["hostNetwork"] = false.into();
    pod
}

/// Waits until the node's console has the map of users of a process of the pod: what is 0 there is another user here.
fn is_mapped(turn: &Turn, name: &str) -> Result<()> {
    let stored = view::stored(turn, name)?;
    let uid = stored["metadata"]["uid"].as_str().unwrap_or_default().replace('-', "_");
    let script = format!(
        "PATH=/usr/bin; cd /sys/fs/cgroup/kubepods.slice
for processes in */*pod{uid}.slice/*.scope/cgroup.procs; do
read -r process < $processes
echo {name} has users $(cat /proc/$process/uid_map) > /dev/console
done"
    );
    let mut console = turn.console(NODE)?;
    service_manager::start(turn, "looks", &["/usr/bin/sh", "-c", &script])?;
    console.wait(&[&format!("{name} has users 0 "), &format!(" {USERS}")], PATIENCE).map(drop)
}
