//! The annotation that switches an agent off.

use std::thread;
use std::time::Duration;

use anyhow::ensure;
use plimsoll_cluster_suite::{Answer, Format, wait_for};
use serde_json::{Value, json};

use crate::eviction::recorded;
use crate::restarts::not_evicted;
use crate::turn::Turn;
use crate::view::{self, pod_that_takes};
use crate::{NODE, PATIENCE, overlay};

const ANNOTATION: &str = "plimsoll.dev/kill-switch";
/// What the log has of a plan that is not carried out.
const WOULD_EVICT: [&str; 3] = ["\"shadow\":true", "\"action\":\"evict\"", "\"pod\":\"default/grower\""];
/// Whether it is switched off.
const SWITCHED_OFF: &str = "plimsoll_kill_switch";
/// What counts kills of the OOM killer: races that the agent lost, processes that were killed because the node was short of
/// memory, containers of pods that ended by that, and pods that the agent would have evicted before.
const COUNTED: [&str; 4] = [
    "plimsoll_races_lost_total",
    "plimsoll_oom_kills_total{scope=\"global\"}",
    "plimsoll_oom_killed_containers_total",
    "plimsoll_shadow_evictions_total{ended_by=\"oom_killer\"}",
];
/// The exit code of what SIGKILL ended: 128 and the signal.
pub(crate) const KILLED: u64 = 137;
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

/// The OOM killer ends what the agent may not: that is counted as the kernel's, and nothing says that the pod was evicted.
#[test]
fn what_the_oom_killer_ends_first_is_counted_as_the_kernels_and_not_recorded_as_evicted() {
    let turn = Turn::with_agent(&overlay::with_metrics(overlay::AS_THE_KUBELET, "")).expect("it is installed");
    annotate(&turn, &json!("")).expect("an administrator may");
    let counted = unhindered(&turn);
    // Before anything is asserted: a later test is to find the agent as it was.
    annotate(&turn, &Value::Null).expect("an administrator may");
    let (is_said, [lost, of_node, containers, shadow]) = counted.expect("the OOM killer ends it");
    assert!(lost > 0 && lost == of_node, "{lost} races lost, and {of_node} processes killed");
    assert_eq!((containers, shadow), (is_said, is_said));
    not_evicted(&turn, "grower").expect("the kernel's alone");
}

/// What is counted more than before of [`COUNTED`] once a pod has filled the node's memory and the OOM killer has ended it, and
/// of how many of its containers the kubelet says why: where the runtime reports the exit first, it has an error for a reason, and the
/// last two of the counts are by what it says.
fn unhindered(turn: &Turn) -> anyhow::Result<(u64, [u64; 4])> {
    wait_for("the agent is switched off", PATIENCE, || {
        Ok(view::metrics(turn).is_ok_and(|all| view::metric(&all, SWITCHED_OFF) == Some(1)).then_some(()))
    })?;
    let counts = || -> anyhow::Result<[u64; 4]> {
        let metrics = view::metrics(turn)?;
        // A label that was not counted yet has no series.
        Ok(COUNTED.map(|series| view::metric(&metrics, series).unwrap_or_default()))
    };
    let before = counts()?;
    let mut grower = pod_that_takes("grower", 4096, 0);
    grower["spec"]["restartPolicy"] = "Never".into();
    turn.create(&grower)?;
    let ended = wait_for("it has failed", PATIENCE, || {
        Ok(Some(view::stored(turn, "grower")?).filter(|pod| pod["status"]["phase"] == "Failed"))
    })?;
    let reasons: Vec<Value> =
        view::containers(&ended).iter().map(|it| it["state"]["terminated"]["reason"].clone()).collect();
    let is_killed = (reasons == ["OOMKilled"] || reasons == ["Error"]) && ended["status"]["reason"].is_null();
    let is_said = u64::from(reasons == ["OOMKilled"]);
    ensure!(is_killed && exit_code(&ended) == Some(KILLED), "{}", ended["status"]);
    let more = wait_for("the agent has counted it", PATIENCE, || {
        let now = counts()?;
        let more: [u64; 4] = std::array::from_fn(|at| now[at].saturating_sub(before[at]));
        let [lost, of_node, containers, shadow] = more;
        Ok((lost.min(of_node) > 0 && containers.min(shadow) >= is_said).then_some(more))
    })?;
    Ok((is_said, more))
}

fn exit_code(pod: &Value) -> Option<u64> {
    view::containers(pod).first()?["state"]["terminated"]["exitCode"].as_u64()
}

/// Switches the node's agent off by this value, and on again by none.
pub(crate) fn annotate(turn: &Turn, value: &Value) -> anyhow::Result<()> {
    let change = json!({"metadata": {"annotations": {ANNOTATION: value}}});
    let patched = turn.api.request("PATCH", &format!("/api/v1/nodes/{NODE}"), Format::Merge, &change);
    patched.and_then(Answer::object).map(drop)
}
