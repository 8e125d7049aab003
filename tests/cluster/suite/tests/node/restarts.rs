//! A pod whose container the OOM killer kills at the pod's own limit is the kubelet's: it is started again as its restart
//! policy says, and is not reported as evicted.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::wait_for;
use serde_json::{Value, json};

use crate::turn::Turn;
use crate::view::{self, containers, mount_run, pod, pressure};
use crate::{PATIENCE, overlay};

const POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];
const KILLED: &str = "plimsoll_oom_killed_containers_total";
/// How long it is looked on afterwards.
const AFTERWARDS: Duration = Duration::from_secs(15);

#[test]
fn after_an_oom_kill_at_its_own_limit_a_pod_is_restarted_or_fails_as_its_policy_says() {
    let turn = Turn::with_agent(overlay::ALL_SIGNALS).expect("it is installed");
    let before = killed(&turn).expect("the agent counts them");
    for policy in POLICIES {
        turn.create(&bounded(policy)).expect("it is accepted");
    }
    for policy in POLICIES {
        ended_as_it_says(&turn, &name(policy), policy, is_oom_killed).expect("as the kubelet has it");
    }
    let counted = wait_for("the agent has counted each once", PATIENCE, || {
        Ok(Some(killed(&turn)?).filter(|after| after - before >= 3))
    });
    thread::sleep(AFTERWARDS);
    assert_eq!(counted.expect("it counts them") - before, 3);
    assert_eq!(killed(&turn).expect("the agent counts them") - before, 3, "each once");
    for policy in POLICIES {
        ended_as_it_says(&turn, &name(policy), policy, is_oom_killed).expect("it stays so");
        not_evicted(&turn, &name(policy)).expect("the kubelet's alone");
    }
    let condition = pressure(&turn).expect("a node").expect("it is there");
    assert_eq!(condition["status"], "False", "{condition}");
}

/// A pod that grows beyond its own limit, the first time that it runs.
fn bounded(policy: &str) -> Value {
    let once = format!("/run/plimsoll-test-{policy}-has-grown-{}", std::process::id());
    let mut pod = pod(&name(policy), &["hog", "anon", "--mib", "400", "--once", &once]);
    mount_run(&mut pod["spec"]);
    pod["spec"]["resources"] = json!({"limits": {"memory": "128Mi"}, "requests": {"memory": "128Mi"}});
    pod["spec"]["restartPolicy"] = policy.into();
    pod
}

fn name(policy: &str) -> String {
    format!("restarts-{}", policy.to_lowercase())
}

/// That of a container which has ended, as a kubelet sees it that is notified of an OOM kill.
fn is_oom_killed(terminated: &Value) -> bool {
    terminated["reason"] == "OOMKilled"
}

/// Waits until the kubelet has done what the policy says after a kill of a pod's only container, whose state then this names.
pub(crate) fn ended_as_it_says(
    turn: &Turn,
    name: &str,
    policy: &str,
    is_killed: impl Fn(&Value) -> bool,
) -> Result<()> {
    let waited = wait_for("the kubelet has noticed it", PATIENCE, || {
        let pod = view::stored(turn, name)?;
        let [container] = &containers(&pod)[..] else { return Ok(None) };
        let (state, last) = (&container["state"], &container["lastState"]);
        let (phase, restarts) = (&pod["status"]["phase"], container["restartCount"].as_u64().unwrap_or_default());
        let as_it_says = if policy == "Never" {
            phase == "Failed" && is_killed(&state["terminated"]) && restarts == 0
        } else {
            phase == "Running" && state["running"].is_object() && is_killed(&last["terminated"]) && restarts > 0
        };
        Ok(as_it_says.then_some(()))
    });
    waited.with_context(|| format!("{name}, {policy}: {:?}", view::stored(turn, name)))
}

/// Nothing in the API says that a pod was.
pub(crate) fn not_evicted(turn: &Turn, name: &str) -> Result<()> {
    let pod = view::stored(turn, name)?;
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    ensure!(pod["status"]["reason"] != "Evicted" && pod["metadata"]["annotations"].is_null(), "{pod}");
    ensure!(!conditions.any(|it| it["type"] == "DisruptionTarget"), "{}", pod["status"]);
    let events = view::events(turn, &pod, "Evicted")?;
    ensure!(events.is_empty(), "{events:?}");
    Ok(())
}

fn killed(turn: &Turn) -> Result<u64> {
    view::read_metric(turn, KILLED)
}
