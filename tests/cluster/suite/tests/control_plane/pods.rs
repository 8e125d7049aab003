//! Which writes to pods are let through: evictions of pods of the token's own node, and of a pod only what an eviction
//! changes.

use plimsoll_cluster_suite::{Api, Format};
use serde_json::{Value, json};

use crate::attempts::Outcome::{self, Done, NoRight, Refused};
use crate::attempts::{Attempt, expect_all};
use crate::{NODES, agent, cluster};

const OTHER_POD: &str = "the agent evicts pods of its own node alone";
const CRITICAL: &str = "the agent evicts no critical or static pods";
const WITHOUT_UID: &str = "the agent deletes a pod by its UID alone";
const AT_ONCE: &str = "the agent deletes no running pod at once";
const OTHER_PHASE: &str = "the agent reports a pod as evicted, and nothing else of it";
const OTHER_STATUS: &str = "of a pod's status the agent changes phase, reason, message and conditions alone";
const OTHER_CONDITION: &str = "of a pod's conditions the agent changes DisruptionTarget alone";
const OTHER_ANNOTATION: &str = "of a pod's annotations the agent changes its own alone";
const OTHER_METADATA: &str = "of a pod's metadata the agent changes its own annotation alone";

/// The annotation that an eviction changes.
const ANNOTATION: &str = "plimsoll.dev/eviction-reported-at";
/// An annotation of the pod's author.
const OF_AUTHOR: &str = "any.test/of";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Makes a pod on a node, with more in its metadata and spec, and gives it as it is stored.
fn pod(name: &str, node: &str, metadata: &Value, spec: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {OF_AUTHOR: "a"}},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "any.test/image:1"}],
            "tolerations": [{"operator": "Exists"}],
        },
    });
    add(&mut pod["metadata"], metadata);
    add(&mut pod["spec"], spec);
    cluster().api.create(PODS, &pod).and_then(plimsoll_cluster_suite::Answer::object).expect("it is made")
}

/// Sets the keys of an object.
fn add(object: &mut Value, more: &Value) {
    for (key, value) in more.as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
}

/// What an eviction writes, with more in its metadata and status.
fn eviction(pod: &Value, metadata: &Value, status: &Value) -> Value {
    let mut patch = json!({
        "metadata": {"uid": pod["metadata"]["uid"], "annotations": {ANNOTATION: "2026-01-01T00:00:00Z"}},
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "The node was low on resource: memory. ",
            "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}],
        },
    });
    add(&mut patch["metadata"], metadata);
    add(&mut patch["status"], status);
    patch
}

fn attempt<'a>(
    user: &'a Api,
    what: &'a str,
    pod: &Value,
    metadata: &Value,
    status: &Value,
    outcome: Outcome,
) -> Attempt<'a> {
    let path = format!("{PODS}/{}/status", pod["metadata"]["name"].as_str().expect("a name"));
    let body = eviction(pod, metadata, status);
    Attempt { what, user, method: "PATCH", path, format: Format::Strategic, body, outcome }
}

#[test]
fn a_token_marks_pods_of_its_own_node_as_evicted_and_nothing_else() {
    let ([agent, of_other], none) = (NODES.map(agent), json!({}));
    let own = pod("own", NODES[0], &none, &none);
    let other = pod("other", NODES[1], &none, &none);
    let critical = pod("critical", NODES[0], &none, &json!({"priorityClassName": "system-node-critical"}));
    let hash = json!({"annotations": {"kubernetes.io/config.mirror": "5bd0c1f2a3e49687b5a4c3d2e1f00f1e"}});
    let of_file = pod("of-file", NODES[0], &hash, &none);
    let restarted = json!([{"name": "main", "image": "", "imageID": "", "ready": true, "restartCount": 1}]);
    let ready = json!([{"type": "Ready", "status": "False"}]);
    let with_metadata =
        |what, key: &str, value, outcome| attempt(&agent, what, &own, &json!({key: value}), &none, outcome);
    let with_status =
        |what, key: &str, value, outcome| attempt(&agent, what, &own, &none, &json!({key: value}), outcome);
    let other_annotation = json!({ANNOTATION: "", "any.test/b": ""});
    let removed_annotation = json!({ANNOTATION: "", OF_AUTHOR: null});
    expect_all(&[
        attempt(&agent, "a pod of another node", &other, &none, &none, Refused(OTHER_POD)),
        attempt(&of_other, "a pod of the first node", &own, &none, &none, Refused(OTHER_POD)),
        attempt(&agent, "a critical pod", &critical, &none, &none, Refused(CRITICAL)),
        attempt(&agent, "a static pod", &of_file, &none, &none, Refused(CRITICAL)),
        with_status("as done", "phase", json!("Succeeded"), Refused(OTHER_PHASE)),
        with_status("for another reason", "reason", json!("OOMKilled"), Refused(OTHER_PHASE)),
        with_status("with another address", "podIP", json!("192.0.2.1"), Refused(OTHER_STATUS)),
        with_status("with containers", "containerStatuses", restarted, Refused(OTHER_STATUS)),
        with_status("with another condition", "conditions", ready, Refused(OTHER_CONDITION)),
        with_metadata("with labels", "labels", json!({"app": "other"}), Refused(OTHER_METADATA)),
        with_metadata("with a finalizer", "finalizers", json!(["any.test/b"]), Refused(OTHER_METADATA)),
        with_metadata("with another annotation", "annotations", other_annotation, Refused(OTHER_ANNOTATION)),
        with_metadata("without an annotation", "annotations", removed_annotation, Refused(OTHER_ANNOTATION)),
        attempt(&agent, "a pod of its own node", &own, &none, &none, Done),
        attempt(&agent, "the same once more", &own, &none, &json!({"message": "another"}), Done),
    ]);
}

#[test]
fn a_token_removes_pods_of_its_own_node_by_their_uid() {
    let ([agent, of_other], none) = (NODES.map(agent), json!({}));
    let own = pod("removed-own", NODES[0], &none, &none);
    let over = pod("removed-over", NODES[0], &none, &none);
    let other = pod("removed-other", NODES[1], &none, &none);
    let critical = pod("removed-critical", NODES[0], &none, &json!({"priorityClassName": "system-node-critical"}));
    let by =
        |preconditions: &Value| json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
    let by_uid = |pod: &Value| by(&json!({"uid": pod["metadata"]["uid"]}));
    let with_grace = |pod: &Value, seconds: u32| {
        let mut options = by_uid(pod);
        options["gracePeriodSeconds"] = seconds.into();
        options
    };
    let remove_as = |user, what, path: &str, body, outcome| Attempt {
        what,
        user,
        method: "DELETE",
        path: format!("{PODS}{path}"),
        format: Format::Json,
        body,
        outcome,
    };
    let remove = |what, path: &str, body, outcome| remove_as(&agent, what, path, body, outcome);
    expect_all(&[
        remove_as(&of_other, "a pod of the first node", "/removed-own", by_uid(&own), Refused(OTHER_POD)),
        remove("a pod of another node", "/removed-other", by_uid(&other), Refused(OTHER_POD)),
        remove("a critical pod", "/removed-critical", by_uid(&critical), Refused(CRITICAL)),
        remove("a pod by its name", "/removed-own", by(&none), Refused(WITHOUT_UID)),
        remove("all pods", "", by(&none), NoRight),
        remove("a pod at once", "/removed-own", with_grace(&own, 0), Refused(AT_ONCE)),
        remove("a pod of its own node", "/removed-own", with_grace(&own, 1), Done),
        attempt(&agent, "a pod that is over from then on", &over, &none, &none, Done),
        remove("a pod that is over", "/removed-over", with_grace(&over, 1), Done),
    ]);
}
