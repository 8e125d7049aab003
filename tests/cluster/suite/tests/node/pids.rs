//! Process ids: a pod that takes what is left of them is evicted, and the condition comes and goes.

use anyhow::{Context as _, Result};

use crate::eviction::{never_restarted, recorded_for};
use crate::overlay;
use crate::service_manager::{self, Pipe};
use crate::turn::Turn;
use crate::view::{self, IDLE, pod};

pub(crate) const CONDITION: &str = "PlimsollPIDPressure";
/// How many tasks the node can have beside those that it has, with how few left a pod is evicted, and how many the container
/// of the fork bomb can have.
const TASKS: u32 = 700;
const LEFT: &str = "500";
const BOMB: u32 = 400;
/// Seconds for which the node can have no more tasks than that: longer than it takes until the condition has ended.
const LASTS: u32 = 150;

#[test]
fn a_fork_bomb_is_evicted_and_the_condition_ends() {
    let turn = Turn::with_agent(&with_threshold(LEFT)).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    let pipe = Pipe::make(&turn).expect("it is made");
    turn.create(&pipe.held(pod("bomb", &FORKS))).expect("it is accepted");
    turn.runs("bomb").expect("it runs");
    limited(&turn, &[("bomb", BOMB)], TASKS, LASTS, &pipe).expect("it is started");
    turn.becomes(CONDITION, "True").expect("there are too few process ids");
    turn.is_evicted("bomb").expect("it is evicted");
    turn.becomes(CONDITION, "False").expect("there are enough again");
    recorded_for(&turn, "bomb", "pids", LEFT).expect("as the kubelet does");
    never_restarted(&turn, "bomb").expect("it stays dead");
    turn.runs("bystander").expect("it runs on");
    turn.create(&pod("next", &IDLE)).expect("it is accepted");
    turn.runs("next").expect("there is room");
}

/// What a fork bomb runs.
pub(crate) const FORKS: [&str; 4] = ["hog", "fork", "--mib", "1"];

/// [`overlay::SENSITIVE`] with a threshold on process ids instead.
pub(crate) fn with_threshold(left: &str) -> String {
    overlay::SENSITIVE.replace("memory.available: 1200Mi", &format!("pid.available: \"{left}\""))
}

/// Has a service limit the tasks of the containers of each of these pods, and the node to so many more than it has, open the
/// pipe, and take the node's limit back after so many seconds.
pub(crate) fn limited(turn: &Turn, pods: &[(&str, u32)], tasks: u32, lasts: u32, pipe: &Pipe) -> Result<()> {
    let limits = pods.iter().map(|(name, tasks)| {
        let pod = view::stored(turn, name)?;
        let uid = pod["metadata"]["uid"].as_str().context("each pod has one")?.replace('-', "_");
        let containers = format!("/sys/fs/cgroup/kubepods.slice/*/*pod{uid}.slice/cri-containerd-*.scope");
        Ok(format!("for limit in {containers}/pids.max; do echo {tasks} > $limit; done\n"))
    });
    let limits = limits.collect::<Result<String>>()?;
    let script = format!(
        "set -e; PATH=/usr/bin
{limits}IFS=' /' read -r one five fifteen runs all last < /proc/loadavg
before=$(cat /proc/sys/kernel/pid_max)
echo $((all + {tasks})) > /proc/sys/kernel/pid_max
{}
sleep {lasts}
echo $before > /proc/sys/kernel/pid_max",
        pipe.opening()
    );
    service_manager::start(turn, "limits", &["/usr/bin/sh", "-c", &script])
}
