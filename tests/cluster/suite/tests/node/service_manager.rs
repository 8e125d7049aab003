//! What a test has the service manager of the node start, as a login on the node would.

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::wait_for;
use serde_json::json;

use crate::PATIENCE;
use crate::turn::Turn;
use crate::view::{self, pod};

/// What the node's own programs need of it, by where they look for it.
const NEEDED: [(&str, &str, &str); 4] = [
    ("programs", "/usr", "/usr"),
    ("libraries", "/usr/lib", "/lib"),
    ("loader", "/usr/lib64", "/lib64"),
    ("run", "/run", "/run"),
];

/// Starts a service of system.slice with this name, which runs these words, by a pod that ends with that. No pod of the test
/// may have the name. The program has to be below /usr, since systemd-run looks for it in the container first.
pub(crate) fn start(turn: &Turn, name: &str, words: &[&str]) -> Result<()> {
    let mut starter = pod(name, &[]);
    let spec = &mut starter["spec"];
    let command = ["/usr/bin/systemd-run", "--quiet", "--collect", "--expand-environment=no"];
    let unit = ["--slice", "system.slice", "--unit", name];
    spec["restartPolicy"] = "Never".into();
    // It checks the process id of the manager, which its socket gives as 0 to another PID namespace.
    spec["hostPID"] = true.into();
    spec["containers"][0]["command"] = json!([&command[..], &unit, words].concat());
    spec["volumes"] = NEEDED.map(|(name, path, _)| json!({"name": name, "hostPath": {"path": path}})).into();
    spec["containers"][0]["volumeMounts"] = NEEDED.map(|(name, _, at)| json!({"name": name, "mountPath": at})).into();
    turn.create(&starter)?;
    wait_for(&format!("{name}.service is started"), PATIENCE, || {
        let status = &view::stored(turn, name)?["status"];
        ensure!(status["phase"] != "Failed", "{status}: {:?}", turn.kubectl(&["logs", name]));
        Ok((status["phase"] == "Succeeded").then_some(()))
    })
    .context("by systemd-run")
}
