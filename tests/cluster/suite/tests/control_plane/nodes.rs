//! Which writes to nodes are let through: the agent's own taint and conditions, of the token's own node.

use std::slice;

use plimsoll_cluster_suite::{Api, Format};
use serde_json::{Value, json};

use crate::attempts::Outcome::{self, Done, NoRight, Refused};
use crate::attempts::{Attempt, expect_all};
use crate::{NODES, agent, cluster};

const OTHER_NODE: &str = "the agent changes its own node alone";
const OTHER_TAINT: &str = "the agent changes its own taint alone";
const NO_EXECUTE: &str = "the agent's taint keeps new pods away and removes none";
const OTHER_SPEC: &str = "of a node's spec the agent changes taints alone";
const OTHER_CONDITION: &str = "the agent changes its own conditions alone";
const OTHER_STATUS: &str = "of a node's status the agent changes conditions alone";
const OTHER_METADATA: &str = "the agent changes no labels and no annotations of a node";

/// The agent's own names.
const TAINT: &str = "plimsoll.dev/memory-pressure";
const CONDITION: &str = "PlimsollMemoryPressure";
/// An owner's taint.
const OF_OWNER: &str = "any.test/dedicated";

fn taint(key: &str, effect: &str) -> Value {
    json!({"key": key, "effect": effect})
}

fn taints(all: &[Value]) -> Value {
    json!({"spec": {"taints": all}})
}

fn merge<'a>(user: &'a Api, what: &'a str, path: &str, body: Value, outcome: Outcome) -> Attempt<'a> {
    let path = format!("/api/v1/nodes/{path}");
    Attempt { what, user, method: "PATCH", path, format: Format::Merge, body, outcome }
}

fn apply<'a>(user: &'a Api, what: &'a str, (node, part): (&str, &str), kind: &str, outcome: Outcome) -> Attempt<'a> {
    let condition = json!({"type": kind, "status": "True", "reason": "Any", "message": ""});
    let body =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "status": {"conditions": [condition]}});
    let path = format!("/api/v1/nodes/{node}{part}?fieldManager=plimsoll&force=true");
    Attempt { what, user, method: "PATCH", path, format: Format::Apply, body, outcome }
}

#[test]
fn a_token_taints_its_own_node_and_changes_nothing_else_of_it() {
    let (agent, [own, other]) = (agent(NODES[0]), NODES);
    let dedicated = taint(OF_OWNER, "NoSchedule");
    let path = format!("/api/v1/nodes/{own}");
    cluster().api.request("PATCH", &path, Format::Merge, &taints(slice::from_ref(&dedicated))).expect("it is there");
    let with = |more: Value| taints(&[dedicated.clone(), more]);
    let labels = json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}});
    let annotations = json!({"metadata": {"annotations": {"any.test/a": ""}}});
    let try_own = |what, body, outcome| merge(&agent, what, own, body, outcome);
    expect_all(&[
        merge(&agent, "taint another node", other, taints(&[taint(TAINT, "NoSchedule")]), Refused(OTHER_NODE)),
        try_own("another taint", with(taint("any.test/b", "NoSchedule")), Refused(OTHER_TAINT)),
        try_own("without an owner's taint", taints(&[taint(TAINT, "NoSchedule")]), Refused(OTHER_TAINT)),
        try_own(
            "with another effect of an owner's taint",
            taints(&[taint(OF_OWNER, "NoExecute")]),
            Refused(OTHER_TAINT),
        ),
        try_own("have all pods removed", with(taint(TAINT, "NoExecute")), Refused(NO_EXECUTE)),
        try_own("cordon it", json!({"spec": {"unschedulable": true}}), Refused(OTHER_SPEC)),
        try_own("labels", labels, Refused(OTHER_METADATA)),
        try_own("annotations", annotations, Refused(OTHER_METADATA)),
        apply(&agent, "make a node", ("node-new", ""), CONDITION, NoRight),
        Attempt { method: "DELETE", ..merge(&agent, "remove it", own, Value::Null, NoRight) },
        Attempt { method: "PUT", format: Format::Json, ..merge(&agent, "replace it", own, json!({}), NoRight) },
        try_own("its own taint", with(taint(TAINT, "NoSchedule")), Done),
        try_own("another effect", with(taint(TAINT, "PreferNoSchedule")), Done),
        try_own("let go of it", taints(slice::from_ref(&dedicated)), Done),
    ]);
}

#[test]
fn a_token_sets_conditions_of_its_own_on_its_own_node() {
    let (agent, [own, other]) = (agent(NODES[0]), NODES);
    let unbound = cluster().token("plimsoll", &json!({})).and_then(|token| cluster().api.by_token(&token));
    let unbound = unbound.expect("a token of no node");
    let status = |node| (node, "/status");
    let try_own = |what, body, outcome| merge(&agent, what, &format!("{own}/status"), body, outcome);
    expect_all(&[
        apply(&agent, "of another node", status(other), CONDITION, Refused(OTHER_NODE)),
        apply(&unbound, "by a token of no node", status(own), CONDITION, Refused(OTHER_NODE)),
        apply(&agent, "the kubelet's", status(own), "MemoryPressure", Refused(OTHER_CONDITION)),
        apply(&agent, "that it is not ready", status(own), "Ready", Refused(OTHER_CONDITION)),
        try_own("capacity", json!({"status": {"capacity": {"cpu": "400"}}}), Refused(OTHER_STATUS)),
        try_own(
            "addresses",
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}),
            Refused(OTHER_STATUS),
        ),
        try_own("labels with the status", json!({"metadata": {"labels": {"any.test/a": ""}}}), Refused(OTHER_METADATA)),
        apply(&agent, "its own", status(own), CONDITION, Done),
        apply(&agent, "another one of its own", status(own), "PlimsollDiskPressure", Done),
    ]);
}
