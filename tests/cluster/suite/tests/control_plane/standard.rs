//! The component that lets agents write the standard conditions: which writes it lets through. Its policy is installed for
//! an account of its own, beside that of `base`, which refuses all of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use plimsoll_cluster_suite::{Api, Cluster, Format, wait_for};
use serde_json::{Deserializer, Value, json};

use crate::attempts::Outcome::{self, Done, Refused};
use crate::attempts::{Attempt, expect_all};
use crate::{NODES, cluster};

const OTHER_NODE: &str = "the agent changes its own node alone";
const OTHER_CONDITION: &str = "the agent changes its own conditions alone";
const OTHER_CHANGE: &str =
    "a standard condition is set where it is not true, and taken back where the agent has set it";
const REMOVED: &str = "no standard condition is removed";

/// The account that the policy is installed for.
const ACCOUNT: &str = "standard";
const MET: (&str, &str) = ("True", "PlimsollThresholdMet");
const NOT_MET: (&str, &str) = ("False", "PlimsollThresholdNotMet");

#[test]
fn standard_conditions_are_set_where_they_are_not_true_and_only_what_was_set_is_taken_back() {
    let agent = agent_with_component().expect("it is accepted");
    let [own, other] = NODES;
    of_kubelet("DiskPressure", "True").expect("a node");
    of_kubelet("MemoryPressure", "False").expect("a node");
    let set = |what, node: &str, kind: &str, (status, reason): (&str, &str), outcome: Outcome| Attempt {
        what,
        user: &agent,
        method: "PATCH",
        path: format!("/api/v1/nodes/{node}/status"),
        format: Format::Strategic,
        body: conditions(kind, status, reason),
        outcome,
    };
    let remove = json!({"status": {"conditions": [{"type": "MemoryPressure", "$patch": "delete"}]}});
    expect_all(&[
        set("of another node", other, "MemoryPressure", MET, Refused(OTHER_NODE)),
        set("that it is not ready", own, "Ready", MET, Refused(OTHER_CONDITION)),
        set("for another reason", own, "MemoryPressure", ("True", "Any"), Refused(OTHER_CHANGE)),
        set("not set by it", own, "MemoryPressure", NOT_MET, Refused(OTHER_CHANGE)),
        set("true by the kubelet", own, "DiskPressure", MET, Refused(OTHER_CHANGE)),
        set("take back the kubelet's", own, "DiskPressure", NOT_MET, Refused(OTHER_CHANGE)),
        set("unknown", own, "MemoryPressure", ("Unknown", "PlimsollThresholdMet"), Refused(OTHER_CHANGE)),
        Attempt { body: remove, ..set("remove it", own, "MemoryPressure", MET, Refused(REMOVED)) },
        set("its own type", own, "PlimsollMemoryPressure", ("True", "ThresholdMet"), Done),
        set("set it", own, "MemoryPressure", MET, Done),
        set("take it back", own, "MemoryPressure", NOT_MET, Done),
        set("take it back twice", own, "MemoryPressure", ("False", "Any"), Refused(OTHER_CHANGE)),
    ]);
}

fn conditions(kind: &str, status: &str, reason: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": status, "reason": reason, "message": ""}]}})
}

/// A condition as the kubelet writes it.
fn of_kubelet(kind: &str, status: &str) -> Result<()> {
    let path = format!("/api/v1/nodes/{}/status", NODES[0]);
    let written = conditions(kind, status, "KubeletHasSome");
    cluster().api.request("PATCH", &path, Format::Strategic, &written)?.object().map(drop)
}

/// The policy for nodes as `base` has it with the component, for the other account, and the API server as that account uses
/// it on the first node.
fn agent_with_component() -> Result<Api> {
    let (cluster, folder) = (cluster(), overlay()?);
    let folder = folder.to_str().context("UTF-8")?;
    let printed = cluster.kubectl(&["create", "--dry-run=client", "--output", "json", "--kustomize", folder])?;
    let objects = Deserializer::from_str(&printed).into_iter::<Value>().collect::<Result<Vec<_>, _>>()?;
    let user = format!("system:serviceaccount:plimsoll:{ACCOUNT}");
    let api = &cluster.api;
    for (kind, path) in [
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    ] {
        let found = objects.iter().find(|it| it["kind"] == kind && it["metadata"]["name"] == "plimsoll-nodes");
        let text = found.with_context(|| format!("no {kind} for nodes"))?.to_string();
        let text = text.replace("system:serviceaccount:plimsoll:plimsoll", &user).replace("plimsoll-nodes", "standard");
        let path = format!("/apis/admissionregistration.k8s.io/v1/{path}");
        api.create(&path, &serde_json::from_str(&text)?)?.object()?;
    }
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}});
    api.create("/api/v1/namespaces/plimsoll/serviceaccounts", &account)?.object()?;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "plimsoll"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    });
    api.create(&format!("/apis/{group}/v1/clusterrolebindings"), &binding)?.object()?;
    let agent = api.by_token(&token(cluster)?)?;
    wait_for("the policy is enforced", Duration::from_secs(30), || {
        let path = format!("/api/v1/nodes/{}/status?dryRun=All", NODES[1]);
        let answer = agent.request("PATCH", &path, Format::Strategic, &conditions("MemoryPressure", MET.0, MET.1))?;
        Ok(answer.message().contains(OTHER_NODE).then_some(()))
    })?;
    Ok(agent)
}

/// A token of the account that is bound to a pod on the first node.
fn token(cluster: &Cluster) -> Result<String> {
    let spec = json!({
        "nodeName": NODES[0], "serviceAccountName": ACCOUNT, "automountServiceAccountToken": false,
        "containers": [{"name": "c", "image": "none"}],
    });
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": ACCOUNT}, "spec": spec});
    let made = cluster.api.create("/api/v1/namespaces/plimsoll/pods", &pod)?.object()?;
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": ACCOUNT, "uid": made["metadata"]["uid"]});
    cluster.token(ACCOUNT, &json!({"boundObjectRef": bound, "expirationSeconds": 3600}))
}

/// A kustomization with `base` and the component.
fn overlay() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("standard-conditions");
    for name in ["base", "standard-conditions"] {
        fs::create_dir_all(folder.join(name))?;
        for file in fs::read_dir(Cluster::manifests(name))? {
            let file = file?;
            fs::copy(file.path(), folder.join(name).join(file.file_name()))?;
        }
    }
    fs::write(folder.join("kustomization.yaml"), "resources: [base]\ncomponents: [standard-conditions]\n")?;
    Ok(folder)
}
