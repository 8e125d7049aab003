//! What the job of the uninstallation may do: remove the agent's taints and conditions from nodes, and nothing else.

use std::time::Duration;

use plimsoll_cluster_suite::{Answer, Api, Cluster, Format, wait_for};
use serde_json::{Value, json};

use crate::attempts::Outcome::{self, Done, NoRight, Refused};
use crate::attempts::{Attempt, expect_all};
use crate::{NODES, cluster, manifests};

/// A node of this test alone.
const NODE: &str = "node-uninstalled";
const ACCOUNT: &str = "plimsoll-uninstall";
const PATIENCE: Duration = Duration::from_secs(30);

const OTHER_TAINT: &str = "the agent's taints are removed, and no others";
const OTHER_CONDITION: &str = "the agent's conditions are removed, and no others";
const OTHER_SPEC: &str = "of a node's spec taints alone are removed";
const OTHER_STATUS: &str = "of a node's status conditions alone are removed";
const OTHER_METADATA: &str = "no labels and no annotations of a node are changed";

/// A taint and a condition of the agent's, and an owner's and a kubelet's.
const TAINT: &str = "plimsoll.dev/disk-pressure";
const OF_OWNER: &str = "any.test/dedicated";
const CONDITION: &str = "PlimsollDiskPressure";
const OF_KUBELET: &str = "DiskPressure";

#[test]
fn the_job_removes_taints_and_conditions_of_the_agents_and_changes_nothing_else() {
    let cluster = cluster();
    let folder = Cluster::manifests("uninstall");
    // Without the job.
    for file in ["rights.yaml", "admission.yaml"] {
        let file = folder.join(file);
        let apply = ["apply", "--server-side", "--filename", file.to_str().expect("UTF-8")];
        cluster.kubectl(&apply).expect("it is accepted");
    }
    let warnings = manifests::warnings(ACCOUNT).expect("it is checked");
    assert!(warnings.is_empty(), "{warnings:?}");

    let job = cluster.token(ACCOUNT, &json!({})).and_then(|token| cluster.api.by_token(&token)).expect("a token");
    let labels = json!({"metadata": {"labels": {"any.test/a": ""}}});
    let path = format!("/api/v1/nodes/{}?dryRun=All", NODES[0]);
    wait_for("the policy is enforced", PATIENCE, || {
        let answer = job.request("PATCH", &path, Format::Strategic, &labels)?;
        Ok((answer.status == 403 && answer.message().contains(OTHER_METADATA)).then_some(()))
    })
    .expect("the account has the right to patch nodes");
    // A node without a kubelet has taints of its controller after most of a minute.
    cluster.add_node(NODE).expect("a new name");

    let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
    let taints = |all: &[Value]| json!({"spec": {"taints": all}});
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "Any", "message": ""});
    let conditions = |all: &[Value]| json!({"status": {"conditions": all}});
    let removed = |kind: &str| conditions(&[json!({"type": kind, "$patch": "delete"})]);
    let before = [condition(CONDITION, "True"), condition(OF_KUBELET, "False")];
    let owner = &cluster.api;
    expect_all(&[
        patch(owner, "taints", "", &taints(&[taint(TAINT), taint(OF_OWNER)]), Done),
        patch(owner, "conditions", "/status", &conditions(&before), Done),
        patch(&job, "labels", "", &labels, Refused(OTHER_METADATA)),
        patch(
            &job,
            "annotations",
            "",
            &json!({"metadata": {"annotations": {"any.test/a": ""}}}),
            Refused(OTHER_METADATA),
        ),
        patch(&job, "cordon it", "", &json!({"spec": {"unschedulable": true}}), Refused(OTHER_SPEC)),
        patch(
            &job,
            "an owner's taint",
            "",
            &taints(&[taint(TAINT), taint(OF_OWNER), taint("any.test/b")]),
            Refused(OTHER_TAINT),
        ),
        patch(
            &job,
            "a taint of the agent's",
            "",
            &taints(&[taint(TAINT), taint(OF_OWNER), taint("plimsoll.dev/pid-pressure")]),
            Refused(OTHER_TAINT),
        ),
        patch(&job, "without an owner's taint", "", &taints(&[taint(TAINT)]), Refused(OTHER_TAINT)),
        patch(
            &job,
            "a condition of the agent's",
            "/status",
            &conditions(&[condition(CONDITION, "False")]),
            Refused(OTHER_CONDITION),
        ),
        patch(
            &job,
            "that it is not ready",
            "/status",
            &conditions(&[condition("Ready", "False")]),
            Refused(OTHER_CONDITION),
        ),
        patch(&job, "without a kubelet's condition", "/status", &removed(OF_KUBELET), Refused(OTHER_CONDITION)),
        patch(&job, "capacity", "/status", &json!({"status": {"capacity": {"cpu": "400"}}}), Refused(OTHER_STATUS)),
        Attempt { method: "DELETE", ..patch(&job, "remove it", "", &Value::Null, NoRight) },
        Attempt { method: "GET", path: "/api/v1/pods".into(), ..patch(&job, "read pods", "", &Value::Null, NoRight) },
        patch(&job, "without the agent's taint", "", &taints(&[taint(OF_OWNER)]), Done),
        patch(&job, "without the agent's condition", "/status", &removed(CONDITION), Done),
    ]);
    let node = owner.get(&format!("/api/v1/nodes/{NODE}")).and_then(Answer::object).expect("it is there");
    let has =
        |list: &Value, key: &str, name: &str| list.as_array().is_some_and(|all| all.iter().any(|it| it[key] == name));
    let (taints, conditions) = (&node["spec"]["taints"], &node["status"]["conditions"]);
    assert!(has(taints, "key", OF_OWNER) && !has(taints, "key", TAINT), "{taints}");
    assert!(has(conditions, "type", OF_KUBELET) && !has(conditions, "type", CONDITION), "{conditions}");
}

fn patch<'a>(user: &'a Api, what: &'a str, part: &str, body: &Value, outcome: Outcome) -> Attempt<'a> {
    let path = format!("/api/v1/nodes/{NODE}{part}");
    Attempt { what, user, method: "PATCH", path, format: Format::Strategic, body: body.clone(), outcome }
}
