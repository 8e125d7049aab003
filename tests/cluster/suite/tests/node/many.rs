//! What the agent costs at rest on a node with many pods. They are made by hand while the kubelet is stopped: objects of the
//! API that run by their status, and cgroups as the kubelet and containerd make them, each with a process that sleeps.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::{Answer, Format, wait_for};
use serde_json::{Value, json};

use crate::cost::{self, Cost};
use crate::turn::Turn;
use crate::view::{self, IDLE, PODS, pod};
use crate::{NODE, PATIENCE, overlay, service_manager};

/// How many there are, one number after the other.
const COUNTS: [u64; 3] = [0, 110, 250];
const LABEL: &str = "made=by-hand";
const WORKLOADS: &str = "plimsoll_workloads";
/// How long a count may take: pods are made, it settles, and is measured for a minute.
const COUNTED: Duration = Duration::from_mins(5);
/// KiB of memory that one more pod may take, with rows and objects of its own in each of the processes: some 20 were seen.
const KIB_A_POD: u64 = 32;

/// What runs on the node. For each count it waits for the objects, makes their cgroups, and prints a line before a minute and
/// one after it. The kubelet is started again when the objects are gone, and after ten minutes without any at the latest.
const SCRIPT: &str = r#"
burstable=/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice
uids() {
    /opt/kubernetes/kube kubectl --kubeconfig=/etc/kubernetes/kubelet.conf get pods --selector=@LABEL@ \
        --field-selector=spec.nodeName=@NODE@ --output='jsonpath={range .items[*]}{.metadata.uid}{"\n"}{end}'
}
slices=
made() {
    for uid in $(uids); do
        plain=$(echo $uid | tr -d -)
        slice=$burstable/kubepods-burstable-pod$(echo $uid | tr - _).slice
        scope=$slice/cri-containerd-$plain$plain.scope
        [ -d $scope ] && continue
        mkdir -p $scope
        slices="$slices $slice"
        sleep 3600 &
        echo $! > $scope/cgroup.procs
    done
}
sleep 20
systemctl stop kubelet.service
echo "NODE kubelet stopped" > /dev/console
tries=0
for count in @COUNTS@; do
    until [ $(uids | wc -l) -ge $count ]; do
        tries=$((tries + 1)); [ $tries -lt 120 ] || break 2
        sleep 1
    done
    made
    sleep 30
    cost before $count
    sleep 60
    cost after $count
done
tries=0
until [ $(uids | wc -l) = 0 ]; do
    tries=$((tries + 1)); [ $tries -lt 120 ] || break
    sleep 1
done
for slice in $slices; do echo 1 > $slice/cgroup.kill; done
sleep 5
for slice in $slices; do rmdir $slice/*.scope $slice; done
systemctl start kubelet.service
echo "NODE kubelet started" > /dev/console
"#;

/// The kubelet itself bounds pods to 110 by default.
#[test]
fn an_agent_at_rest_costs_little_more_with_many_pods() {
    let turn = Turn::with_agent(&overlay::with_metrics(overlay::AS_THE_KUBELET, "")).expect("it is installed");
    let costs = measured(&turn).expect("with each number of pods");
    let [none, .., most] = &costs[..] else { panic!("{} are measured", costs.len()) };
    let pods = COUNTS[COUNTS.len() - 1];
    assert!(most.pss <= none.pss + KIB_A_POD * pods, "{} and {} KiB", none.pss, most.pss);
    // Nothing that wakes it is of a pod.
    assert!(most.wakes * 2 <= none.wakes * 3, "{} and {} wake-ups", none.wakes, most.wakes);
}

fn measured(turn: &Turn) -> Result<Vec<Cost>> {
    let counts = COUNTS.map(|count| count.to_string()).join(" ");
    let script = [("@LABEL@", LABEL), ("@NODE@", NODE), ("@COUNTS@", &counts)]
        .iter()
        .fold(cost::script(turn, SCRIPT)?, |script, (name, value)| script.replace(name, value));
    let mut console = turn.console(NODE)?;
    service_manager::start(turn, "by-hand", &["/usr/bin/sh", "-c", &script])?;
    console.wait(&["NODE kubelet stopped"], PATIENCE)?;
    let by_hand = ByHand(turn);
    let (mut costs, mut workloads, mut made) = (Vec::new(), None, 0);
    for count in COUNTS {
        by_hand.make(made..count)?;
        made = count;
        console.wait(&["NODE after ", &format!(" pods={count} ")], COUNTED)?;
        let seen = view::read_metric(turn, WORKLOADS)?;
        let without = *workloads.get_or_insert(seen);
        ensure!(seen == without + count, "{seen} workloads are watched, {without} of them without these {count}");
        costs.push(Cost::last(&console, count)?);
    }
    drop(by_hand);
    console.wait(&["NODE kubelet started"], PATIENCE)?;
    wait_for("the node is ready", PATIENCE, || {
        Ok(view::condition(turn, "Ready")?.is_some_and(|it| it["status"] == "True").then_some(()))
    })?;
    Ok(costs)
}

/// Pods that are made by hand, until this is dropped.
struct ByHand<'a>(&'a Turn);

impl ByHand<'_> {
    /// Makes those with these numbers, which run by their status.
    fn make(&self, numbers: Range<u64>) -> Result<()> {
        for number in numbers {
            let mut object = pod(&format!("by-hand-{number}"), &IDLE);
            let (label, value) = LABEL.split_once('=').context("a label")?;
            object["metadata"]["labels"] = json!({label: value});
            // Its node is not ready without the kubelet.
            object["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
            let object = self.0.api.create(PODS, &object)?.object()?;
            let path = format!("{PODS}/by-hand-{number}/status");
            self.0.api.request("PATCH", &path, Format::Strategic, &running(&object)).and_then(Answer::object)?;
        }
        Ok(())
    }
}

/// The status of a pod that runs, with the id that the script gives its container.
fn running(pod: &Value) -> Value {
    let plain = pod["metadata"]["uid"].as_str().unwrap_or_default().replace('-', "");
    let since = &pod["metadata"]["creationTimestamp"];
    let container = json!({
        "name": "main", "image": view::IMAGE, "imageID": "", "containerID": format!("containerd://{plain}{plain}"),
        "ready": true, "restartCount": 0, "state": {"running": {"startedAt": since}},
    });
    json!({"status": {"phase": "Running", "startTime": since, "containerStatuses": [container]}})
}

impl Drop for ByHand<'_> {
    fn drop(&mut self) {
        let removed = self.0.kubectl(&["delete", "pods", "--selector", LABEL, "--force", "--grace-period=0"]);
        if let Err(error) = removed {
            eprintln!("pods that were made by hand are left: {error:#}");
        }
    }
}
