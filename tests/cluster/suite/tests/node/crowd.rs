//! Twenty pods at once, one of which grows.

use std::thread;
use std::time::Duration;

use crate::cost::{self, Cost};
use crate::eviction::{SETTLED, killed, never_restarted, recorded};
use crate::service_manager::{self, Pipe};
use crate::turn::Turn;
use crate::view::{pod, pod_that_takes};
use crate::{NODE, overlay};

/// How many others there are, and how many of these are made at once: a kubelet needs minutes for all.
const OTHERS: usize = 19;
const AT_ONCE: usize = 5;
/// Prints what the agent takes in a minute, once the node has settled.
const SCRIPT: &str = "sleep 30; cost before 20; sleep 60; cost after 20";
/// How long that takes at most.
const MEASURED: Duration = Duration::from_mins(5);
/// MiB a second.
const RATE: u32 = 100;

#[test]
fn of_twenty_pods_the_one_that_grows_is_evicted_and_the_others_run_on() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let pipe = Pipe::make(&turn).expect("it is made");
    turn.create(&pipe.held(pod_that_takes("grower", 2600, RATE))).expect("it is accepted");
    turn.runs("grower").expect("it runs");
    let others: Vec<String> = (1..=OTHERS).map(|number| format!("other-{number}")).collect();
    for some in others.chunks(AT_ONCE) {
        for name in some {
            turn.create(&pod(name, &["idle", "--mib", "4"])).expect("it is accepted");
        }
        for name in some {
            turn.runs(name).expect("it runs");
        }
    }
    let mut console = turn.console(NODE).expect("it is there");
    let script = cost::script(&turn, SCRIPT).expect("there is an agent");
    service_manager::start(&turn, "measures", &["/usr/bin/sh", "-c", &script]).expect("it is started");
    console.wait(&["NODE after "], MEASURED).expect("it is measured");
    Cost::last(&console, 20).expect("it is printed");
    pipe.open(&turn).expect("it is opened");
    turn.pressure_begins().expect("memory is short");
    turn.is_evicted("grower").expect("it is evicted");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    assert_eq!(killed(&mut console).expect("it is read"), ["grower"]);
    recorded(&turn, "grower").expect("as the kubelet does");
    never_restarted(&turn, "grower").expect("it stays dead");
    let lost: Vec<&String> = others.iter().filter(|name| !turn.runs_on(name)).collect();
    assert!(lost.is_empty(), "{lost:?} do not run on");
    turn.create(&pod("next", &["idle", "--mib", "4"])).expect("it is accepted");
    turn.runs("next").expect("there is room");
    // So many take longer to end than the next test waits.
    turn.kubectl(&["delete", "pods", "--all", "--grace-period=1", "--timeout=10m"]).expect("they end");
}
