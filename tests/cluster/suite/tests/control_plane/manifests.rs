//! What is installed, as the API server takes it.

use plimsoll_cluster_suite::wait_for;
use serde_json::Value;
use std::time::Duration;

use crate::{NODES, cluster};

#[test]
fn the_policies_are_compiled_without_a_warning() {
    let api = &cluster().api;
    let path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    for name in ["plimsoll-pods", "plimsoll-nodes", "plimsoll-events"] {
        let checked = wait_for(&format!("{name} is checked"), Duration::from_secs(30), || {
            let policy = api.get(&format!("{path}/{name}"))?.object()?;
            Ok(policy["status"]["typeChecking"].as_object().cloned())
        });
        let warnings = checked.expect("an answer");
        assert!(warnings.is_empty(), "{name}: {warnings:?}");
    }
}

#[test]
fn every_node_has_an_agent_that_is_critical_and_sees_its_processes() {
    for node in NODES {
        let pod = cluster().agent_on(node).expect("it is admitted");
        let spec = &pod["spec"];
        assert_eq!((&spec["priority"], &spec["hostPID"]), (&Value::from(2_000_001_000), &Value::from(true)));
        // Memory that is short, a node that is not ready, and whatever else there is: it tolerates every taint.
        assert_eq!(spec["tolerations"][0], serde_json::json!({"operator": "Exists"}));
    }
}

#[test]
fn what_is_applied_twice_changes_nothing() {
    let folder = plimsoll_cluster_suite::Cluster::manifests("base");
    let differences = cluster().kubectl(&["diff", "--server-side", "--kustomize", folder.to_str().expect("UTF-8")]);
    assert_eq!(differences.expect("nothing differs"), "");
}
