//! Machines that are not as the agent would like them: fewer privileges, hidden symbols, older cgroups.

use crate::agent::{Agent, PROGRAM, Settings, tail};
use crate::cgroup::{self, Cgroup};
use crate::hog_tests::Hog;
use crate::machine::{self, KernelLog, KernelSetting, wait_for};
use crate::scene::{MIB, PATIENCE, Scene, held, threshold_below};
use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The unit that is shipped.
const UNIT: &str = include_str!("../../../../agent/deploy/plimsoll.service");

/// The capabilities that the shipped unit leaves the agent.
pub(crate) fn unit_capabilities() -> Option<Vec<String>> {
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
        // CAP_DAC_OVERRIDE is bit 1, CAP_DAC_READ_SEARCH bit 2, CAP_KILL bit 5.
        let expected = |thread: &str| match (part, thread) {
            // It only opens the lock.
            ("core", "claim") => "0000000000000002",
            ("core", _) => "0000000000000026",
            _ => "0000000000000000",
        };
        let tasks = fs::read_dir(format!("/proc/{}/task", scene.agent.part(part)?))?;
        for task in tasks.collect::<std::io::Result<Vec<_>>>()? {
            let status = fs::read_to_string(task.path().join("status"))?;
            let held = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).context("no CapPrm")?.trim();
            let name = fs::read_to_string(task.path().join("comm"))?;
            let expected = expected(name.trim());
            ensure!(held == expected, "thread {} of the {part} holds {held}, not {expected}", name.trim());
        }
    }
    let (_, metrics) = scene.agent.get("/metrics")?;
    ensure!(metrics.contains("plimsoll_reporter_confined 1\n"), "the reporter can open files: {metrics}");
    // Read through a descriptor that was open before.
    for reading in ["kubelet", "kernel"] {
        let gauge = format!("plimsoll_memory_available_bytes{{reading=\"{reading}\"}} ");
        ensure!(metrics.contains(&gauge), "no {gauge}in {metrics}");
    }
    let mut log = KernelLog::from_now()?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), 256, &[])?;
    scene.expect_killed(&mut hog, &victim)?;
    scene.end()?;
    log.expect("plimsoll: killed work.slice/hog: usage ")
}

/// What `plimsoll check` prints, as JSON, and its exit code.
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
    let rows = value["rows"].as_array().context("no rows")?;
    // Nothing is configured, so that no cgroup is a workload.
    let degraded: Vec<_> = rows.iter().filter(|row| row["state"] != "ok").map(|row| &row["name"]).collect();
    ensure!(
        code == Some(4) && degraded == ["workloads"],
        "check ends with {code:?} where everything is there: {value}"
    );
    ensure!(rows.iter().any(|row| row["name"] == "hook threshold"), "no row for the threshold hook: {value}");
    Ok(())
}

pub(crate) fn hidden_symbols() -> Result<()> {
    hiding_symbols(without_symbols)
}

/// Hides the kernel's symbols for as long as `then` takes.
fn hiding_symbols(then: impl FnOnce() -> Result<()>) -> Result<()> {
    let _hidden = KernelSetting::begin("/proc/sys/kernel/kptr_restrict", "2")?;
    then()
}

fn without_symbols() -> Result<()> {
    let (code, value) = check()?;
    ensure!(code == Some(4), "check ends with {code:?} where symbols are hidden: {value}");
    ensure!(state_of(&value, "kernel symbols").as_deref() == Some("degraded"), "{value}");
    ensure!(state_of(&value, "source").as_deref() == Some("degraded"), "{value}");
    // It runs on with the next best source, and reports why.
    let agent = Agent::start(&Settings::with_threshold(64 * MIB))?;
    let (_, ready) = agent.get("/readyz")?;
    ensure!(ready.contains("source psi") && ready.contains("not ebpf: "), "where symbols are hidden it is {ready}");
    agent.stop()?;
    // Where no other is allowed, it reports so and ends.
    let mut settings = Settings::with_threshold(64 * MIB);
    settings.source = "ebpf";
    let mut agent = Agent::launch(&settings)?;
    let ended = agent.wait_end(PATIENCE)?;
    ensure!(ended.code() == Some(3), "with a source that cannot be had it ends with {ended}: {}", tail(&agent.text()));
    ensure!(agent.text().contains("kallsyms"), "it does not report why: {}", tail(&agent.text()));
    Ok(())
}

/// An upgrade takes the running agent's program away: what dies is started again all the same.
pub(crate) fn replaced() -> Result<()> {
    let copy = Path::new("/run/plimsoll-before-upgrade");
    fs::copy(PROGRAM, copy)?;
    let settings = Settings::with_threshold(64 * MIB);
    let mut command = Command::new(copy);
    command.args(["run", "--config"]).arg(settings.file()).stdin(Stdio::null());
    let mut agent = Agent::launch_by(&settings, command)?;
    agent.wait_ready(PATIENCE)?;
    fs::remove_file(copy)?;
    for part in ["core", "reporter"] {
        let before = agent.process(part)?;
        kill_process(before, Signal::KILL)?;
        wait_for("what died is started again", PATIENCE, || Ok(agent.process(part).is_ok_and(|pid| pid != before)))
            .with_context(|| format!("{part}; the log ends with: {}", tail(&agent.text())))?;
        agent.wait_ready(PATIENCE)?;
    }
    agent.stop()
}

/// On a machine without pressure: with symbols hidden as well, only polling is left.
pub(crate) fn without_pressure() -> Result<()> {
    let (code, value) = check()?;
    ensure!(code == Some(4), "check ends with {code:?} where pressure is off: {value}");
    ensure!(state_of(&value, "pressure (PSI)").as_deref() == Some("degraded"), "{value}");
    hiding_symbols(|| {
        let mut scene = Scene::set(96)?;
        let (_, ready) = scene.agent.get("/readyz")?;
        for part in ["source poll", "not ebpf: ", "not psi: "] {
            ensure!(ready.contains(part), "without pressure and symbols it is {ready}");
        }
        let victim = Cgroup::create("work.slice/hog")?;
        // It crosses the threshold after 6 s and takes 160 MiB between two samples, with hundreds of MiB left by then.
        let mut hog = Hog::start("anon", victim.path(), 320, &["--rate", "16", "--hold", "60"])?;
        scene.expect_killed(&mut hog, &victim)?;
        scene.end()
    })
}

/// On a machine without the memory controller: no workload has a usage, so none is evicted.
pub(crate) fn without_controller() -> Result<()> {
    let (code, value) = check()?;
    ensure!(code == Some(4), "check ends with {code:?} without the memory controller: {value}");
    ensure!(state_of(&value, "memory controller").as_deref() == Some("degraded"), "{value}");
    ensure!(value.to_string().contains("remove cgroup_disable=memory from the kernel's"), "{value}");
    let settings = Settings::with_threshold(threshold_below(96)?);
    let mut command = Command::new(PROGRAM);
    command.args(["run", "--config"]).arg(settings.file()).stdin(Stdio::null());
    let mut agent = Agent::launch_by(&settings, command)?;
    agent.wait_ready(PATIENCE)?;
    let (_, ready) = agent.get("/readyz")?;
    ensure!(ready.contains("source psi") && ready.contains("nothing is charged"), "it is {ready}");
    // Without the files of the memory controller it is made here.
    let place = Path::new(cgroup::ROOT).join("work.slice/hog");
    fs::create_dir_all(&place)?;
    let mut hog = Hog::start("anon", &place, 160, &["--hold", "60"])?;
    hog.wait_taken(160, PATIENCE)?;
    wait_for("that memory is below the threshold is reported", PATIENCE, || Ok(!agent.plans().is_empty()))
        .with_context(|| format!("the log ends with: {}", tail(&agent.text())))?;
    // An agent that acts has acted by then.
    std::thread::sleep(Duration::from_secs(2));
    ensure!(hog.child.try_wait()?.is_none(), "the hog is dead where no workload could be chosen");
    ensure!(agent.killed() == 0 && held().is_empty(), "it acted: {}, {}", held().join(", "), tail(&agent.text()));
    drop(hog);
    agent.stop()
}

/// A shell's commands in a mount namespace of their own, where cgroups are mounted anew.
fn unsupported_os(mounts: &str, then: &str) -> Command {
    let script = format!("umount /sys/fs/cgroup && mount -t tmpfs none /sys/fs/cgroup && {mounts} && {then}");
    let mut command = Command::new("/bin/busybox");
    command.args(["unshare", "-m", "/bin/busybox", "sh", "-c", &script]).stdin(Stdio::null());
    command
}

const VERSION_1: &str = "mkdir /sys/fs/cgroup/systemd && \
    mount -t cgroup -o none,name=systemd none /sys/fs/cgroup/systemd";

pub(crate) fn version_1() -> Result<()> {
    let output = unsupported_os(VERSION_1, &format!("exec {PROGRAM} run")).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(3), "with cgroup version 1 it ends with {}: {said}", output.status);
    ensure!(said.lines().count() == 1 && said.contains("cgroup version 1"), "it prints: {said}");
    Ok(())
}

pub(crate) fn hybrid() -> Result<()> {
    const HOG: usize = 160;
    let settings = Settings::with_threshold(threshold_below(96)?);
    let mounts = format!("{VERSION_1} && mkdir /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified");
    let run = format!("exec {PROGRAM} run --config {}", settings.file().display());
    let mut agent = Agent::launch_by(&settings, unsupported_os(&mounts, &run))?;
    agent.wait_shadowing(PATIENCE)?;
    let (_, ready) = agent.get("/readyz")?;
    ensure!(ready.contains("can only be watched"), "it is {ready}");
    let oom_kills = machine::oom_kills()?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--hold", "60"])?;
    hog.wait_taken(HOG, PATIENCE)?;
    wait_for("it reports what it would evict", PATIENCE, || {
        Ok(agent.plans().iter().any(|plan| plan["outcome"] == "evict" && plan["shadow"] == true))
    })
    .with_context(|| format!("the log ends with: {}", tail(&agent.text())))?;
    // An agent that acts has acted by then.
    std::thread::sleep(Duration::from_secs(2));
    ensure!(hog.child.try_wait()?.is_none(), "the hog is dead where no agent was to act");
    ensure!(agent.killed() == 0 && held().is_empty(), "it acted: {}, {}", held().join(", "), tail(&agent.text()));
    ensure!(machine::oom_kills()? == oom_kills, "the OOM killer fired");
    drop(hog);
    agent.stop()
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
