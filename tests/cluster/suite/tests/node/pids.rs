//! Process ids: a pod that takes what is left of them is evicted, and the condition comes and goes.

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::eviction::{never_restarted, recorded_for};
use crate::turn::Turn;
use crate::view::{self, IDLE, pod};
use crate::{overlay, service_manager};

const CONDITION: &str = "PlimsollPIDPressure";
/// How many tasks the node can have beside those that it has, with how few left a pod is evicted, and how many the container
/// of the fork bomb can have.
const TASKS: &str = "700";
const LEFT: &str = "500";
const BOMB: &str = "400";
/// Seconds for which the node can have no more tasks than that: longer than it takes until the condition has ended.
const LASTS: &str = "150";

#[test]
fn a_fork_bomb_is_evicted_and_the_condition_ends() {
    let sensitive = overlay::SENSITIVE.replace("memory.available: 1200Mi", &format!("pid.available: \"{LEFT}\""));
    let turn = Turn::with_agent(&sensitive).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    let begin = format!("/run/plimsoll-test-fork-{}", std::process::id());
    let mut bomb = pod("bomb", &["hog", "fork", "--mib", "1", "--begin", &begin]);
    view::mount_run(&mut bomb["spec"]);
    service_manager::start(&turn, "pipe", &["/usr/bin/busybox", "mkfifo", &begin]).expect("it is started");
    turn.create(&bomb).expect("it is accepted");
    turn.runs("bomb").expect("it runs");
    let bomb = view::stored(&turn, "bomb").expect("it is there");
    service_manager::start(&turn, "limits", &["/usr/bin/sh", "-c", &limit(&bomb, &begin).expect("it has a UID")])
        .expect("it is started");
    turn.becomes(CONDITION, "True").expect("there are too few process ids");
    turn.is_evicted("bomb").expect("it is evicted");
    turn.becomes(CONDITION, "False").expect("there are enough again");
    recorded_for(&turn, "bomb", "pids", LEFT).expect("as the kubelet does");
    never_restarted(&turn, "bomb").expect("it stays dead");
    turn.runs("bystander").expect("it runs on");
    turn.create(&pod("next", &IDLE)).expect("it is accepted");
    turn.runs("next").expect("there is room");
}

/// A script that limits the tasks of the pod's containers and of the node, has the pod begin, and takes the node's limit back
/// after a while.
fn limit(pod: &Value, begin: &str) -> Result<String> {
    let uid = pod["metadata"]["uid"].as_str().context("each pod has one")?.replace('-', "_");
    Ok(format!(
        "set -e; PATH=/usr/bin
for limit in /sys/fs/cgroup/kubepods.slice/*/*pod{uid}.slice/cri-containerd-*.scope/pids.max; do echo {BOMB} > $limit; done
IFS=' /' read -r one five fifteen runs tasks last < /proc/loadavg
before=$(cat /proc/sys/kernel/pid_max)
echo $((tasks + {TASKS})) > /proc/sys/kernel/pid_max
: > {begin}
sleep {LASTS}
echo $before > /proc/sys/kernel/pid_max"
    ))
}
