//! Of pods that take the same resource at the same time the one of low priority is evicted first, and the one of high priority
//! after it, although that takes more; a pod within its request stays. So a kubelet does in its own tests.

use std::thread;

use plimsoll_cluster_suite::Console;
use serde_json::{Value, json};

use crate::disks::{self, in_volume};
use crate::eviction::{SETTLED, killed, never_restarted, recorded_for};
use crate::pids;
use crate::service_manager::Pipe;
use crate::turn::Turn;
use crate::view::{IDLE, condition, pod};
use crate::{CONDITION, NODE, overlay};

/// The pods that grow, in the order in which they go. The second one has the priority class of its name.
const ORDER: [&str; 2] = ["low", "high"];
/// The pod that stays, what it requests, and MiB that it takes of that.
const WITHIN: &str = "within";
const REQUESTED: &str = "300Mi";
const TAKEN: &str = "200";
/// MiB of memory that each of both takes in a second, and that the one of high priority takes before.
const RATE: &str = "60";
const BEFORE: &str = "200";
/// MiB that each writes to the disk in a second, slowly enough that the disk is read before both are needed, and in all: more
/// than is left above the threshold.
const WRITES: [&str; 2] = ["4", "5"];
const WRITTEN: &str = "400";
/// How many tasks each can have, and the node beside those that it has; with how few left a pod is evicted. The one of low
/// priority is not enough for that alone, and the other one is.
const TASKS: [u32; 2] = [100, 300];
const OF_NODE: u32 = 1000;
const LEFT: &str = "751";
/// Seconds for which the node can have no more: longer than it takes until the condition has ended.
const LASTS: u32 = 240;

#[test]
fn of_pods_that_fill_memory_the_one_of_low_priority_goes_first_and_one_within_its_request_stays() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let console = turn.console(NODE).expect("it is there");
    turn.create(&within("memory", &["idle", "--mib", TAKEN])).expect("it is accepted");
    turn.runs(WITHIN).expect("it runs");
    let grower = |name, before| pod(name, &["hog", "anon", "--mib", "2600", "--rate", RATE, "--rush", before]);
    let pipe = held(&turn, [grower(ORDER[0], "0"), grower(ORDER[1], BEFORE)]);
    pipe.open(&turn).expect("it is opened");
    evicted_in_order(&turn, console, [CONDITION, "memory", "1200Mi"]);
}

#[test]
fn of_pods_that_fill_the_disk_the_one_of_low_priority_goes_first_and_one_within_its_request_stays() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let console = turn.console(NODE).expect("it is there");
    turn.create(&within("ephemeral-storage", &["hog", "tmpfs", "--keep", "--path", "/", "--mib", TAKEN]))
        .expect("it is accepted");
    turn.runs(WITHIN).expect("it runs");
    let [low, high] = WRITES;
    let writer = |name, rate| in_volume(name, &["tmpfs", "--keep", "--mib", WRITTEN, "--rate", rate]);
    let pipe = held(&turn, [writer(ORDER[0], low), writer(ORDER[1], high)]);
    // What was written before is in what the kubelet has read by then.
    thread::sleep(SETTLED);
    let threshold = disks::threshold(&turn);
    turn.install(&disks::with_threshold("nodefs.available", &threshold)).expect("it is installed");
    turn.becomes(disks::CONDITION, "False").expect("there is room");
    pipe.open(&turn).expect("it is opened");
    evicted_in_order(&turn, console, [disks::CONDITION, "ephemeral-storage", &threshold]);
}

#[test]
fn of_fork_bombs_the_one_of_low_priority_goes_first_and_a_pod_beside_them_stays() {
    let turn = Turn::with_agent(&pids::with_threshold(LEFT)).expect("it is installed");
    let console = turn.console(NODE).expect("it is there");
    let pipe = held(&turn, ORDER.map(|name| pod(name, &pids::FORKS)));
    // Of the higher priority, too: no request counts for tasks (`rankPIDPressure`, pkg/kubelet/eviction/helpers.go), so that one
    // of the lower priority would go before the second one, however few it has.
    let mut beside = pod(WITHIN, &IDLE);
    beside["spec"]["priorityClassName"] = ORDER[1].into();
    turn.create(&beside).expect("it is accepted");
    turn.runs(WITHIN).expect("it runs");
    let limits = [(ORDER[0], TASKS[0]), (ORDER[1], TASKS[1])];
    pids::limited(&turn, &limits, OF_NODE, LASTS, &pipe).expect("it is started");
    evicted_in_order(&turn, console, [pids::CONDITION, "pids", LEFT]);
}

/// Makes both pods, which begin when the pipe is opened.
fn held(turn: &Turn, pods: [Value; 2]) -> Pipe {
    turn.make_class().expect("it is accepted");
    let pipe = Pipe::make(turn).expect("it is made");
    let [low, mut high] = pods;
    high["spec"]["priorityClassName"] = ORDER[1].into();
    for pod in [low, high] {
        turn.create(&pipe.held(pod)).expect("it is accepted");
    }
    for name in ORDER {
        turn.runs(name).expect("it runs");
    }
    pipe
}

/// A pod that takes less of a resource than it requests, which is as much as it may.
fn within(resource: &str, arguments: &[&str]) -> Value {
    let mut pod = pod(WITHIN, arguments);
    let mut bound = json!({"cpu": "500m", "memory": REQUESTED});
    bound[resource] = REQUESTED.into();
    pod["spec"]["containers"][0]["resources"] = json!({"requests": bound, "limits": bound});
    pod
}

/// Both are evicted for `[condition, resource, threshold]`, each once; the condition comes and goes, nothing follows, and a
/// new pod runs.
fn evicted_in_order(turn: &Turn, mut console: Console, [kind, resource, threshold]: [&str; 3]) {
    turn.becomes(kind, "True").expect("it is short");
    for name in ORDER {
        turn.is_evicted(name).expect("it is evicted");
    }
    turn.becomes(kind, "False").expect("there is room");
    let ended = condition(turn, kind).expect("a node").expect("it is there");
    thread::sleep(SETTLED);
    assert_eq!(killed(&mut console).expect("it is read"), ORDER);
    for name in ORDER {
        recorded_for(turn, name, resource, threshold).expect("as the kubelet does");
        never_restarted(turn, name).expect("it stays dead");
    }
    let still = condition(turn, kind).expect("a node").expect("it is there");
    assert_eq!(still["lastTransitionTime"], ended["lastTransitionTime"], "{still}");
    turn.pressure_ends().expect("without a taint");
    turn.runs(WITHIN).expect("it runs on");
    turn.create(&pod("next", &IDLE)).expect("it is accepted");
    turn.runs("next").expect("there is room");
}
