//! Which accounts switch an agent off by the annotation on its node.

use plimsoll_cluster_suite::{Api, Format};
use serde_json::{Value, json};

use crate::attempts::Outcome::{self, Done, NoRight, Refused, RefusedByBoth};
use crate::attempts::{Attempt, expect_all};
use crate::{NODES, agent, cluster};

const OTHER_NODE: &str = "the agent changes its own node alone";
const OTHER_METADATA: &str = "the agent changes no labels and no annotations of a node";
const NO_SWITCH: &str =
    "an agent is switched off or on with the right to update nodes/kill-switch of plimsoll.dev alone";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// An account that may change nodes, and has these roles beside.
fn account(name: &str, roles: &[&str]) -> Api {
    let cluster = cluster();
    let api = &cluster.api;
    let make =
        |path: &str, object: &Value| api.create(path, object).and_then(|it| it.object().map(drop)).expect("made");
    let metadata = json!({"name": name});
    make(
        "/api/v1/namespaces/plimsoll/serviceaccounts",
        &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
    );
    let nodes = json!({"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["create", "patch"]});
    let version = "rbac.authorization.k8s.io/v1";
    make(
        &format!("{RBAC}/clusterroles"),
        &json!({"apiVersion": version, "kind": "ClusterRole", "metadata": metadata, "rules": [nodes]}),
    );
    for role in roles.iter().chain([&name]) {
        let binding = json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": format!("{name}-{role}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "plimsoll"}],
        });
        make(&format!("{RBAC}/clusterrolebindings"), &binding);
    }
    cluster.token(name, &json!({})).and_then(|token| api.by_token(&token)).expect("a token")
}

#[test]
fn an_agent_is_switched_off_by_those_that_may_and_by_no_agent() {
    let [own, other] = NODES;
    let (of_own, of_other) = (agent(own), agent(other));
    let [changes_nodes, switches] = [account("changes-nodes", &[]), account("switches", &["plimsoll-kill-switch"])];
    let annotate = |what, user, path: &str, annotations: Value, outcome: Outcome| Attempt {
        what,
        user,
        method: "PATCH",
        path: format!("/api/v1/nodes/{path}"),
        format: Format::Merge,
        body: json!({"metadata": {"annotations": annotations}}),
        outcome,
    };
    let switch = |value: Value| json!({"plimsoll.dev/kill-switch": value});
    let (on, off) = (switch(json!("")), switch(Value::Null));
    let status = format!("{own}/status");
    let made = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "switched", "annotations": on}});
    expect_all(&[
        annotate("an agent, its own node", &of_own, own, on.clone(), RefusedByBoth([OTHER_METADATA, NO_SWITCH])),
        annotate(
            "an agent, its own node's status",
            &of_own,
            &status,
            on.clone(),
            RefusedByBoth([OTHER_METADATA, NO_SWITCH]),
        ),
        annotate("an agent, another node", &of_other, own, on.clone(), RefusedByBoth([OTHER_NODE, NO_SWITCH])),
        annotate("an account that may change nodes", &changes_nodes, own, on.clone(), Refused(NO_SWITCH)),
        annotate("the same with the status", &changes_nodes, &status, on.clone(), Refused(NO_SWITCH)),
        annotate("another annotation", &changes_nodes, own, json!({"any.test/a": "1"}), Done),
        Attempt {
            method: "POST",
            path: "/api/v1/nodes".into(),
            format: Format::Json,
            body: made,
            ..annotate("with a new node", &changes_nodes, own, Value::Null, Refused(NO_SWITCH))
        },
        annotate("one that may", &switches, own, on.clone(), Done),
        annotate("another value", &changes_nodes, own, switch(json!("mine")), Refused(NO_SWITCH)),
        annotate("another annotation beside it", &changes_nodes, own, json!({"any.test/a": "2"}), Done),
        annotate("back, by the agent", &of_own, own, off.clone(), RefusedByBoth([OTHER_METADATA, NO_SWITCH])),
        annotate("back, without the right", &changes_nodes, own, off.clone(), Refused(NO_SWITCH)),
        annotate("back", &switches, own, off, Done),
        Attempt { method: "DELETE", ..annotate("an agent removes the node", &of_own, own, Value::Null, NoRight) },
    ]);
}
