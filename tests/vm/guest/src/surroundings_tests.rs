//! Machines that are not as the agent would like them: fewer privileges, hidden symbols, older cgroups.

use crate::agent::{Agent, PROGRAM, Settings};
use crate::cgroup::Cgroup;
use crate::hog_tests::Hog;
use crate::machine::{self, wait_for};
use crate::scene::{MIB, PATIENCE, Scene};
use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::process::{Command, Stdio};

/// The unit that is shipped.
const UNIT: &str = include_str!("../../../../agent/deploy/plimsoll.service");

/// The capabilities that the shipped unit leaves the agent.
fn unit_capabilities() -> Option<Vec<String>> {
    let line = UNIT.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="))?;
    Some(line.split(' ').map(str::to_owned).collect())
}

pub(crate) fn least_privilege() -> Result<()> {
    let capabilities = unit_capabilities().context("the unit names no capabilities")?;
    let mut scene = Scene::set_with(96, |settings| {
        settings.capabilities = Some(capabilities);
        settings.kernel_brake = true;
    })?;
    let (_, ready) = scene.agent.get("/readyz")?;
    ensure!(ready.contains("source ebpf"), "with the unit's capabilities the agent is {ready}");
    ensure!(!ready.contains("without hook"), "with the unit's capabilities the agent is {ready}");
    for part in ["core", "reporter"] {
        let status = fs::read_to_string(format!("/proc/{}/status", scene.agent.part(part)?))?;
        let held = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).context("no CapPrm")?.trim();
        // CAP_DAC_OVERRIDE is bit 1, CAP_KILL bit 5.
        let expected = if part == "core" { "0000000000000022" } else { "0000000000000000" };
        ensure!(held == expected, "the {part} holds {held}, not {expected}");
    }
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), 256, &[])?;
    scene.expect_killed(&mut hog, &victim)?;
    scene.end()
}

/// What `plimsoll check` says, as JSON, and its exit code.
fn check() -> Result<(Option<i32>, Value)> {
    let output = Command::new(PROGRAM).args(["check", "--output", "json"]).stdin(Stdio::null()).output()?;
    let value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("no JSON, but: {}", String::from_utf8_lossy(&output.stderr)))?;
    Ok((output.status.code(), value))
}

fn state_of(value: &Value, name: &str) -> Option<String> {
    let rows = value["rows"].as_array()?;
    Some(rows.iter().find(|row| row["name"] == name)?["state"].as_str()?.to_owned())
}

pub(crate) fn check_finds_all() -> Result<()> {
    let (code, value) = check()?;
    ensure!(code == Some(0), "check ends with {code:?} where everything is there: {value}");
    let rows = value["rows"].as_array().context("no rows")?;
    ensure!(rows.iter().any(|row| row["name"] == "hook line"), "no row for the line's hook: {value}");
    Ok(())
}

pub(crate) fn hidden_symbols() -> Result<()> {
    let setting = "/proc/sys/kernel/kptr_restrict";
    let before = fs::read_to_string(setting)?;
    machine::set(setting, "2")?;
    let outcome = without_symbols();
    machine::set(setting, before.trim())?;
    outcome
}

fn without_symbols() -> Result<()> {
    let (code, value) = check()?;
    ensure!(code == Some(4), "check ends with {code:?} where symbols are hidden: {value}");
    ensure!(state_of(&value, "kernel symbols").as_deref() == Some("degraded"), "{value}");
    ensure!(state_of(&value, "source").as_deref() == Some("degraded"), "{value}");
    // It runs on with the next best source, and says why.
    let agent = Agent::start(&Settings::with_line(64 * MIB))?;
    let (_, ready) = agent.get("/readyz")?;
    ensure!(ready.contains("source psi") && ready.contains("not ebpf: "), "where symbols are hidden it is {ready}");
    agent.stop()
}

/// A shell's words in a mount namespace of their own, where cgroups are mounted anew.
fn elsewhere(mounts: &str, then: &str) -> Command {
    let script = format!("umount /sys/fs/cgroup && mount -t tmpfs none /sys/fs/cgroup && {mounts} && {then}");
    let mut command = Command::new("/bin/busybox");
    command.args(["unshare", "-m", "/bin/busybox", "sh", "-c", &script]).stdin(Stdio::null());
    command
}

const VERSION_1: &str = "mkdir /sys/fs/cgroup/systemd && \
    mount -t cgroup -o none,name=systemd none /sys/fs/cgroup/systemd";

pub(crate) fn version_1() -> Result<()> {
    let output = elsewhere(VERSION_1, &format!("exec {PROGRAM} run")).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(3), "with cgroup version 1 it ends with {}: {said}", output.status);
    ensure!(said.lines().count() == 1 && said.contains("cgroup version 1"), "it says: {said}");
    Ok(())
}

pub(crate) fn hybrid() -> Result<()> {
    let log = "/run/hybrid.log";
    let mounts = format!("{VERSION_1} && mkdir /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified");
    let out = File::create(log)?;
    let mut child = elsewhere(&mounts, &format!("exec {PROGRAM} run --metrics-address 127.0.0.1:10399"))
        .stderr(out.try_clone()?)
        .stdout(out)
        .spawn()?;
    let watched = wait_for("it says that it can only watch", PATIENCE, || {
        ensure!(child.try_wait()?.is_none(), "it ended: {}", fs::read_to_string(log)?);
        Ok(fs::read_to_string(log)?.contains("can only be watched"))
    });
    kill_process(Pid::from_child(&child), Signal::TERM)?;
    let status = child.wait()?;
    watched?;
    ensure!(status.success(), "it ended with {status}: {}", fs::read_to_string(log)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_names_capabilities_that_exist() {
        let names = unit_capabilities().unwrap();
        assert!(names.iter().all(|name| plimsoll_node::capabilities::named(name).is_some()), "{names:?}");
        assert!(names.iter().any(|name| name == "CAP_BPF"));
    }
}
