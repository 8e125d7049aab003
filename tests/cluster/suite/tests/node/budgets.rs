//! What stands in the way of an eviction through the API, and not of one by a hard threshold; and a pod that comes back under
//! the same name.

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::{Answer, wait_for};
use serde_json::{Value, json};

use crate::eviction::{never_restarted, recorded};
use crate::turn::Turn;
use crate::view::{self, PODS, mount_run, pod_that_takes, spec};
use crate::{NODE, PATIENCE, overlay};

const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
/// Far longer than anything is waited for here.
const GRACE: u32 = 600;

/// The API's own eviction is refused meanwhile, and SIGTERM ends nothing in the pod.
#[test]
fn a_budget_and_a_long_grace_do_not_delay_a_hard_eviction() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let labels = json!({"app": "guarded"});
    turn.api.create(BUDGETS, &budget(&labels)).and_then(Answer::object).expect("it is accepted");
    let mut guarded = pod_that_takes("guarded", 2600, 20);
    guarded["metadata"]["labels"] = labels;
    guarded["spec"]["terminationGracePeriodSeconds"] = GRACE.into();
    let arguments = guarded["spec"]["containers"][0]["args"].as_array_mut().expect("it has arguments");
    arguments.extend(["--outlive".into(), "/outlived".into()]);
    turn.create(&guarded).expect("it is accepted");
    turn.runs("guarded").expect("it runs");
    none_may_be_disrupted(&turn).expect("the budget is used up");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "guarded"}});
    let refused = turn.api.create(&format!("{PODS}/guarded/eviction"), &eviction).expect("an answer");
    assert_eq!(refused.status, 429, "{}", refused.message());
    turn.is_evicted("guarded").expect("it is evicted");
    recorded(&turn, "guarded").expect("as the kubelet does");
    never_restarted(&turn, "guarded").expect("it stays dead");
    turn.pressure_ends().expect("there is room");
}

/// The controller deletes the pod that has failed and makes another one of its name.
#[test]
fn a_stateful_sets_pod_comes_back_under_its_name_and_is_untouched() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let path = "/apis/apps/v1/namespaces/default/statefulsets";
    turn.api.create(path, &stateful_set()).and_then(Answer::object).expect("it is accepted");
    let first = wait_for("the first pod is there", PATIENCE, || {
        Ok(view::stored(&turn, "store-0").ok().filter(|pod| pod["spec"]["nodeName"] == NODE))
    });
    let first = first.expect("the controller makes it");
    turn.pressure_begins().expect("memory is short");
    let second = wait_for("another pod has the name", PATIENCE, || {
        // There is none for a moment.
        let uid = &first["metadata"]["uid"];
        Ok(view::stored(&turn, "store-0").ok().filter(|pod| pod["metadata"]["uid"] != *uid))
    });
    let uid = second.expect("the controller makes it")["metadata"]["uid"].clone();
    turn.pressure_ends().expect("there is room");
    turn.runs("store-0").expect("it runs");
    let second = view::stored(&turn, "store-0").expect("it is there");
    assert_eq!(second["metadata"]["uid"], uid, "{second}");
    assert_eq!(second["metadata"]["annotations"], Value::Null, "{second}");
    assert_eq!(view::events(&turn, &second, "Evicted").expect("a list"), [Value::Null; 0]);
    assert_eq!(view::events(&turn, &first, "Evicted").expect("a list").len(), 1, "the first one was evicted once");
}

fn budget(labels: &Value) -> Value {
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": labels}});
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "guarded"}, "spec": spec})
}

/// Waits until the controller has counted the pod, of which there has to be one at least.
fn none_may_be_disrupted(turn: &Turn) -> Result<()> {
    let status = wait_for("the budget counts its pod", PATIENCE, || {
        let budget = turn.api.get(&format!("{BUDGETS}/guarded"))?.object()?;
        Ok(Some(budget["status"].clone()).filter(|status| status["currentHealthy"] == 1))
    })?;
    let allowed = status["disruptionsAllowed"].as_u64().context("it has a number")?;
    ensure!(allowed == 0, "{status}");
    Ok(())
}

/// Of its pods the first one grows, by a file of the node that is another one in each run.
fn stateful_set() -> Value {
    let once = format!("/run/plimsoll-test-store-has-grown-{}", std::process::id());
    let mut pod = spec(&["hog", "anon", "--mib", "2600", "--once", &once]);
    mount_run(&mut pod);
    let labels = json!({"app": "store"});
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let spec = json!({
        "replicas": 1, "serviceName": "store", "selector": {"matchLabels": labels}, "template": template,
    });
    json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "store"}, "spec": spec})
}
