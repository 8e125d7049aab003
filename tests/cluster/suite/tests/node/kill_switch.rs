//! The annotation that switches an agent off.

use std::thread;
use std::time::Duration;

use plimsoll_cluster_suite::{Answer, Format};
use serde_json::{Value, json};

use crate::eviction::recorded;
use crate::turn::Turn;
use crate::view::{self, pod_that_takes};
use crate::{NODE, PATIENCE, overlay};

const ANNOTATION: &str = "plimsoll.dev/kill-switch";
/// What the log has of a plan that is not carried out.
const WOULD_EVICT: [&str; 3] = ["\"shadow\":true", "\"action\":\"evict\"", "\"pod\":\"default/grower\""];
/// For how long nothing is to happen.
const LOOKED_ON: Duration = Duration::from_secs(20);

/// What would be evicted is reported as that, and is evicted when the annotation is removed. The kubelet's own threshold is
/// not met.
#[test]
fn what_would_be_evicted_is_once_the_kill_switch_is_removed() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    annotate(&turn, &json!("")).expect("an administrator may");
    let mut console = turn.console(NODE).expect("it has a console");
    turn.create(&pod_that_takes("grower", 1600, 0)).expect("it is accepted");
    turn.runs("grower").expect("it runs");
    let outcome = console.wait(&WOULD_EVICT, PATIENCE);
    thread::sleep(LOOKED_ON);
    let runs_on = turn.runs_on("grower");
    // Before anything is asserted: a later test is to find the agent as it was.
    annotate(&turn, &Value::Null).expect("an administrator may");
    outcome.expect("it is reported");
    assert!(runs_on, "it was killed: {:?}", view::stored(&turn, "grower"));
    turn.is_evicted("grower").expect("it is evicted");
    recorded(&turn, "grower").expect("as the kubelet does");
    turn.pressure_ends().expect("there is room");
}

/// Switches the node's agent off by this value, and on again by none.
pub(crate) fn annotate(turn: &Turn, value: &Value) -> anyhow::Result<()> {
    let change = json!({"metadata": {"annotations": {ANNOTATION: value}}});
    let patched = turn.api.request("PATCH", &format!("/api/v1/nodes/{NODE}"), Format::Merge, &change);
    patched.and_then(Answer::object).map(drop)
}
