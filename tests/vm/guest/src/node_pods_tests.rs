//! What `plimsoll pods` shows of what the container runtime says, and which pods `plimsoll check` names.

use crate::agent::PROGRAM as AGENT;
use crate::containerd::IMAGE;
use crate::cri::SOCKET;
use crate::node::Node;
use crate::pod::Class;
use crate::systemd::{CONFIGURATION, run};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// A pod whose container was started again is shown with its labels, annotations and image, and with its restarts. `check` names the
/// static pod beside it.
pub(crate) fn what_the_runtime_says() -> Result<()> {
    let mut node = Node::new()?;
    let pod = node.pod("shown", Class::BestEffort, (0, 30))?;
    let words = ["idle", "--mib", "1"];
    pod.create(&node.client, ("main", 0), IMAGE, &words)?;
    let second = pod.create(&node.client, ("main", 1), IMAGE, &words)?;
    node.client.start_container(&second)?;
    let fixed = node.static_pod("fixed", Class::BestEffort, 0)?;
    let facts = node.write_facts()?;
    expect_checked(&facts, &format!("a static pod: {}", fixed.full_name()))?;
    let shown = |output: &str| {
        let socket = SOCKET.trim_start_matches("unix://");
        let words = ["pods", "--pods", &facts, "--runtime-socket", socket, "--output", output];
        run(Command::new(AGENT).args(words))
    };
    let all = shown("json")?;
    let all: Value = serde_json::from_str(&all).with_context(|| format!("no JSON: {all}"))?;
    let rows = all["pods"].as_array().context("a list of pods")?;
    let row =
        rows.iter().find(|row| row["pod"] == "default/shown").with_context(|| format!("it is not there: {all}"))?;
    let said = &row["runtime"];
    ensure!(said["labels"]["app"] == "shown" && said["is_cut_short"] == false, "labels: {said}");
    ensure!(said["annotations"]["kubernetes.io/config.source"] == "api", "annotations: {said}");
    let containers = said["containers"].as_array().context("a list of containers")?;
    ensure!(containers.len() == 1 && containers[0]["restarts"] == 1, "containers: {said}");
    ensure!(containers[0]["image"] == IMAGE, "its image: {said}");
    ensure!(containers[0]["labels"]["io.kubernetes.container.name"] == "main", "labels of the container: {said}");
    let wide = shown("wide")?;
    let line =
        wide.lines().find(|line| line.contains("default/shown")).with_context(|| format!("it is not in {wide}"))?;
    ensure!(line.split_whitespace().any(|cell| cell == "main=1"), "restarts: {line}");
    Ok(())
}

/// With this list of pods, `check` has this in its row of pods, which is in order.
fn expect_checked(facts: &str, named: &str) -> Result<()> {
    fs::write(CONFIGURATION, format!("machine: {{podFacts: {facts}}}\n"))?;
    // Its exit code says that something else of this machine is missing.
    let words = ["check", "--config", CONFIGURATION, "--output", "json"];
    let checked = Command::new(AGENT).args(words).output().context("cannot check")?;
    let checked: Value = serde_json::from_slice(&checked.stdout).context("no JSON")?;
    let mut rows = checked["rows"].as_array().into_iter().flatten();
    let row = rows.find(|row| row["name"] == "pods").with_context(|| format!("no row of pods: {checked}"))?;
    let is_named = row["found"].as_str().is_some_and(|found| found.contains(named));
    ensure!(is_named && row["state"] == "ok", "not {named}: {row}");
    Ok(())
}
