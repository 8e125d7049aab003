//! What gives metrics to those that may read them: the rights of the proxy, and the questions that it asks. The proxy itself
//! is another project's, and does not run here.

use plimsoll_cluster_suite::{Api, wait_for};
use serde_json::{Value, json};
use std::time::Duration;

use crate::{NODES, cluster};

const READER: &str = "plimsoll-test-reader";

/// The API server as the proxy uses it.
fn proxy() -> Api {
    cluster().install("metrics").expect("it is accepted");
    let token = cluster().token("plimsoll-metrics", &json!({})).expect("a token");
    cluster().api.by_token(&token).expect("an API server")
}

fn is_allowed(api: &Api, user: &str, path: &str) -> bool {
    let spec = json!({"user": user, "nonResourceAttributes": {"verb": "get", "path": path}});
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
    let answer = api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review);
    answer.and_then(plimsoll_cluster_suite::Answer::object).expect("it may ask")["status"]["allowed"] == true
}

#[test]
fn metrics_are_for_those_that_are_bound_to_the_role_and_the_proxy_may_ask_and_do_nothing_else() {
    let proxy = proxy();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": READER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "plimsoll-metrics-reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": READER}],
    });
    let made = cluster().api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding);
    made.expect("an answer").object().expect("it is accepted");
    let bound = wait_for("the binding holds", Duration::from_secs(30), || {
        Ok(is_allowed(&proxy, READER, "/metrics").then_some(()))
    });
    bound.expect("the role grants it");
    assert!(!is_allowed(&proxy, READER, "/readyz"), "the role grants more than metrics");
    assert!(!is_allowed(&proxy, "another", "/metrics"), "it is granted to all");

    let token = cluster().agent_token(NODES[0]).expect("a token");
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let of_token = proxy.create("/apis/authentication.k8s.io/v1/tokenreviews", &review).expect("an answer");
    let of_token = of_token.object().expect("it may ask");
    assert_eq!(of_token["status"]["user"]["username"], "system:serviceaccount:plimsoll:plimsoll");

    for path in ["/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces/plimsoll/secrets"] {
        let answer = proxy.get(path).expect("an answer");
        assert!(answer.message().contains("plimsoll-metrics"), "{path}: {}", answer.message());
    }
}

#[test]
fn every_node_has_a_proxy_that_is_no_root_and_has_no_capability() {
    drop(proxy());
    let path = "/api/v1/namespaces/plimsoll/pods?labelSelector=app.kubernetes.io/name=plimsoll-metrics";
    let pods = wait_for("every node has one", Duration::from_mins(1), || {
        let list = cluster().api.get(path)?.object()?;
        let pods = list["items"].as_array().cloned().unwrap_or_default();
        Ok((pods.len() >= NODES.len()).then_some(pods))
    });
    for pod in pods.expect("they are admitted") {
        let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(spec["hostPID"], Value::Null);
    }
}
