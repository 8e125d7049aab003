//! What is installed, as the API server takes it.

use anyhow::Result;
use plimsoll_cluster_suite::{Cluster, wait_for};
use serde_json::{Deserializer, Map, Value};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{NODES, cluster};

#[test]
fn the_policies_are_compiled_without_a_warning() {
    for name in ["plimsoll-pods", "plimsoll-nodes", "plimsoll-events", "plimsoll-kill-switch"] {
        let warnings = warnings(name).expect("an answer");
        assert!(warnings.is_empty(), "{name}: {warnings:?}");
    }
}

/// What the API server has against the expressions of a policy, once it has checked them.
pub(crate) fn warnings(name: &str) -> Result<Map<String, Value>> {
    let path = format!("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}");
    wait_for(&format!("{name} is checked"), Duration::from_secs(30), || {
        let policy = cluster().api.get(&path)?.object()?;
        Ok(policy["status"]["typeChecking"].as_object().cloned())
    })
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
    let folder = Cluster::manifests("base");
    let differences = cluster().kubectl(&["diff", "--server-side", "--kustomize", folder.to_str().expect("UTF-8")]);
    assert_eq!(differences.expect("nothing differs"), "");
}

/// An overlay's names are written into accounts and bindings, and not into expressions: an account with rights that no policy
/// knows would be bound by none.
#[test]
fn what_an_overlay_renames_has_no_rights_and_the_policies_are_about_what_has_them() {
    for name in ["base", "uninstall"] {
        let folder = renamed(name).expect("it is written");
        let folder = folder.to_str().expect("UTF-8");
        let printed = ["create", "--dry-run=client", "--output", "json", "--kustomize", folder];
        let printed = cluster().kubectl(&printed).expect("it is accepted");
        let objects = Deserializer::from_str(&printed).into_iter::<Value>().map(|object| object.expect("an object"));
        let objects: Vec<Value> = objects.collect();
        let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        let accounts: BTreeSet<_> = of_kind("ServiceAccount").map(|account| user(&account["metadata"])).collect();
        let bound: BTreeSet<_> = of_kind("ClusterRoleBinding")
            .flat_map(|binding| binding["subjects"].as_array().into_iter().flatten())
            .map(|subject| if subject["kind"] == "User" { text_of(&subject["name"]) } else { user(subject) })
            .collect();
        assert!(!accounts.is_empty() && accounts.is_disjoint(&bound), "{name}: {accounts:?} {bound:?}");
        // That of the kill switch is about all accounts.
        let conditions: BTreeSet<_> = of_kind("ValidatingAdmissionPolicy")
            .map(|policy| &policy["spec"]["matchConditions"][0])
            .filter(|condition| condition["name"] != "annotation-changes")
            .map(|condition| text_of(&condition["expression"]))
            .collect();
        let expected = bound.iter().map(|user| format!("request.userInfo.username == '{user}'")).collect();
        assert_eq!(conditions, expected, "{name}");
    }
}

/// An overlay over a copy of a shipped kustomization, with other names: the folder.
fn renamed(name: &str) -> std::io::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("renamed-{name}"));
    let shipped = folder.join("shipped");
    fs::create_dir_all(&shipped)?;
    for file in fs::read_dir(Cluster::manifests(name))? {
        let file = file?;
        fs::copy(file.path(), shipped.join(file.file_name()))?;
    }
    let text = "resources: [shipped]\nnamespace: other\nnamePrefix: renamed-\n";
    fs::write(folder.join("kustomization.yaml"), text)?;
    Ok(folder)
}

/// The user that a service account is.
fn user(account: &Value) -> String {
    format!("system:serviceaccount:{}:{}", text_of(&account["namespace"]), text_of(&account["name"]))
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
