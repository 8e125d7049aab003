//! What all pods may take together: the one that grows is evicted before they reach that, while the machine has plenty.

use plimsoll_cluster_suite::wait_for;

use crate::eviction::{never_restarted, recorded_for};
use crate::turn::Turn;
use crate::view::{self, IDLE, pod, pod_that_takes};
use crate::{PATIENCE, overlay, service_manager};

/// MiB that all pods may take for a while, how much of that is to be left, and what the pod would take.
const ALLOCATABLE: u64 = 1000;
const LEFT: &str = "301Mi";
const TAKEN: u32 = 1500;
/// MiB a second.
const RATE: u32 = 50;
/// What is available on the machine at least, in MiB, when the pod is evicted: far more than the threshold.
const PLENTY: u64 = 1000;
/// Seconds for which the limit is there: longer than it takes until it is known and the pod is evicted.
const LASTS: &str = "180";

#[test]
fn a_pod_is_evicted_before_all_pods_reach_what_is_allocatable() {
    let sensitive = overlay::SENSITIVE.replace("1200Mi", LEFT);
    let turn = Turn::with_agent(&overlay::with_metrics(&sensitive, "")).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    let script = format!(
        "set -e; PATH=/usr/bin; limit=/sys/fs/cgroup/kubepods.slice/memory.max
read -r before < $limit; echo $(({ALLOCATABLE} << 20)) > $limit; sleep {LASTS}; echo $before > $limit"
    );
    service_manager::start(&turn, "reserves", &["/usr/bin/sh", "-c", &script]).expect("it is started");
    let capacity = "plimsoll_signal_capacity{eviction_signal=\"allocatableMemory.available\"}";
    wait_for("the agent knows the limit", PATIENCE, || {
        let read = view::metric(&view::metrics(&turn)?, capacity);
        Ok((read == Some(ALLOCATABLE << 20)).then_some(()))
    })
    .expect("it is read again");
    turn.create(&pod_that_takes("grower", TAKEN, RATE)).expect("it is accepted");
    // Of the node, as with the kubelet.
    turn.pressure_begins().expect("it is reported as short");
    let available = view::available(&turn).expect("it is read");
    assert!(available > PLENTY << 20, "the machine had {available} bytes available");
    turn.is_evicted("grower").expect("it is evicted");
    recorded_for(&turn, "grower", "memory", LEFT).expect("as the kubelet does");
    turn.pressure_ends().expect("there is room");
    never_restarted(&turn, "grower").expect("it stays dead");
    turn.runs("bystander").expect("it runs on");
    turn.create(&pod("next", &IDLE)).expect("it is accepted");
    turn.runs("next").expect("there is room");
}
