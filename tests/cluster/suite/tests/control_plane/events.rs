//! Which events are let through: those that name the agent and the token's own node, of pods that are evicted, and of that
//! node itself.

use plimsoll_cluster_suite::Format;
use serde_json::{Value, json};

use crate::attempts::Outcome::{self, Done, NoRight, Refused};
use crate::attempts::{Attempt, expect_all};
use crate::{NODES, agent};

const OTHER_SOURCE: &str = "the agent's events name the agent and its own node";
const OTHER_REPORT: &str = "the agent reports what it did to pods, and what its own node is short of or lacks";
const EVENTS: &str = "/api/v1/namespaces/default/events";

#[test]
fn a_token_reports_events_in_its_own_name_alone() {
    let (agent, [own, other]) = (agent(NODES[0]), NODES);
    let event = |component: &str, host: &str| {
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "web.1797a7cb2ac8bd15"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "web"},
            "reason": "Evicted",
            "type": "Warning",
            "source": {"component": component, "host": host},
            "reportingComponent": component,
            "reportingInstance": host,
        })
    };
    let attempt = |what, method, path: &str, body: Value, outcome: Outcome| Attempt {
        what,
        user: &agent,
        method,
        path: format!("{EVENTS}{path}"),
        format: if method == "PATCH" { Format::Merge } else { Format::Json },
        body,
        outcome,
    };
    let mut of_agent_and_another = event("plimsoll", own);
    of_agent_and_another["reportingComponent"] = json!("kubelet");
    let with = |pointer: &str, value: &str| {
        let mut event = event("plimsoll", own);
        *event.pointer_mut(pointer).expect("it is there") = json!(value);
        event
    };
    let of_node = |reason: &str, node: &str| {
        let mut event = event("plimsoll", own);
        event["metadata"]["name"] = json!(format!("{node}.{}", reason.to_lowercase()));
        event["involvedObject"] = json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": node});
        event["reason"] = json!(reason);
        event
    };
    let of_pod = |reason: &str| {
        let mut event = event("plimsoll", own);
        event["metadata"]["name"] = json!(format!("web.{}", reason.to_lowercase()));
        event["reason"] = json!(reason);
        event
    };
    expect_all(&[
        attempt("its own node is short", "POST", "", of_node("EvictionThresholdMet", own), Done),
        attempt("a part does not work", "POST", "", of_node("PlimsollDegraded", own), Done),
        attempt("it works again", "POST", "", of_node("PlimsollRecovered", own), Done),
        attempt("a pod was frozen", "POST", "", of_pod("PlimsollBraked"), Done),
        attempt("a cgroup was frozen", "POST", "", of_node("PlimsollBraked", own), Done),
        attempt("page cache of a pod was taken back", "POST", "", of_pod("PlimsollReclaimed"), Done),
        attempt("images were removed", "POST", "", of_node("PlimsollReclaimed", own), Done),
        attempt("the OOM killer was first in a pod", "POST", "", of_pod("PlimsollLostRace"), Done),
        attempt("and beside pods", "POST", "", of_node("PlimsollLostRace", own), Done),
        attempt("NUMA nodes were exhausted", "POST", "", of_pod("PlimsollNumaExhausted"), Done),
        attempt("and on another node", "POST", "", of_node("PlimsollLostRace", other), Refused(OTHER_REPORT)),
        attempt("a threshold of a pod", "POST", "", of_pod("EvictionThresholdMet"), Refused(OTHER_REPORT)),
        attempt("another reason of ours", "POST", "", of_pod("PlimsollBrake"), Refused(OTHER_REPORT)),
        attempt("another node is short", "POST", "", of_node("EvictionThresholdMet", other), Refused(OTHER_REPORT)),
        attempt("an evicted node", "POST", "", of_node("Evicted", own), Refused(OTHER_REPORT)),
        attempt("another reason of its node", "POST", "", of_node("NodeNotReady", own), Refused(OTHER_REPORT)),
        attempt("of the kubelet", "POST", "", event("kubelet", own), Refused(OTHER_SOURCE)),
        attempt("of another node's agent", "POST", "", event("plimsoll", other), Refused(OTHER_SOURCE)),
        attempt("of two sources", "POST", "", of_agent_and_another, Refused(OTHER_SOURCE)),
        attempt("another reason", "POST", "", with("/reason", "NodeNotReady"), Refused(OTHER_REPORT)),
        attempt("of no pod", "POST", "", with("/involvedObject/kind", "Node"), Refused(OTHER_REPORT)),
        attempt("of another group", "POST", "", with("/involvedObject/apiVersion", "v2"), Refused(OTHER_REPORT)),
        attempt("its own", "POST", "", event("plimsoll", own), Done),
        attempt("another text", "PATCH", "/web.1797a7cb2ac8bd15", json!({"message": "another"}), NoRight),
        attempt("one less", "DELETE", "/web.1797a7cb2ac8bd15", Value::Null, NoRight),
    ]);
}
