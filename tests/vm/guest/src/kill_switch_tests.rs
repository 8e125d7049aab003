//! The kill switch, thrown while a process grows, and a dry run.

use crate::agent::{Agent, Settings, replayed, tail};
use crate::cgroup::Cgroup;
use crate::hog_tests::Hog;
use crate::machine::wait_for;
use crate::scenarios::{counted, evictions, expect_alike, reported};
use crate::scene::{PATIENCE, Scene};
use crate::suite::figure;
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The default of `machine.killSwitch`.
const SWITCH: &str = "/etc/plimsoll/kill-switch";

/// How soon after the file appears every action is one in shadow, and readiness reports it.
const OBEYED: Duration = Duration::from_secs(1);

/// How far below what is available the threshold is, in MiB, and what the process takes that crosses it.
const ROOM: u64 = 96;
const HOG: usize = 256;

/// Removes the switch also where the test fails: other tests follow on this machine.
struct Removed;

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_file(SWITCH);
        let _ = fs::remove_dir("/etc/plimsoll");
    }
}

/// Whether a plan was reported that evicts it and is not carried out.
fn would_evict(scene: &Scene, victim: &Cgroup) -> bool {
    let name = victim.name();
    let evicts = |plan: &serde_json::Value| {
        let mut actions = plan["actions"].as_array().into_iter().flatten();
        plan["shadow"] == true && actions.any(|it| it["action"] == "evict" && it["cgroup"] == name)
    };
    scene.agent.plans().iter().any(evicts)
}

/// The file appears, with its directory, while a process grows past the threshold: within a second the agent shadows, and it
/// is not killed, nor stopped by the agent or the kernel, and what would be done is reported. The file goes, and the process
/// is killed.
pub(crate) fn thrown_and_taken_back() -> Result<()> {
    let removed = Removed;
    // That of an initial file system in memory is writable by all, and then no file in it counts.
    fs::set_permissions("/", fs::Permissions::from_mode(0o755))?;
    ensure!(!Path::new(SWITCH).exists(), "{SWITCH} is there before the test");
    let mut scene = Scene::set_with(ROOM, |settings| settings.kernel_brake = true)?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--rate", "20", "--hold", "300"])?;
    hog.wait_taken(8, PATIENCE)?;
    fs::create_dir_all(Path::new(SWITCH).parent().context("it has a directory")?)?;
    fs::write(SWITCH, "")?;
    let thrown = Instant::now();
    scene.agent.wait_shadowing(PATIENCE)?;
    let obeyed = thrown.elapsed();
    figure("kill-switch", &[("shadows_after_ms", &obeyed.as_millis())]);
    ensure!(obeyed <= OBEYED, "it shadows {obeyed:?} after the switch was thrown");
    ensure!(scene.agent.killed() == 0, "the process crossed the threshold before the switch was thrown");
    hog.wait_taken(HOG, PATIENCE).with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))?;
    wait_for("what would be done is reported", PATIENCE, || Ok(would_evict(&scene, &victim)))
        .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))?;
    let (status, says) = scene.agent.get("/readyz")?;
    ensure!(status == 503 && says.contains(SWITCH), "its readiness is {status}: {says}");
    for (metric, value) in [("plimsoll_kill_switch ", 1.0), ("plimsoll_acting ", 0.0), ("plimsoll_kills_total ", 0.0)] {
        let found = counted(&scene, metric)?;
        ensure!((found - value).abs() < 0.5, "{metric}is {found}");
    }
    scene.settled()?;
    let acted = |line: &&serde_json::Value| ["kill", "brake", "kernel_brake"].iter().any(|key| line[*key].is_string());
    let lines = scene.agent.lines();
    let acted: Vec<_> = lines.iter().filter(acted).collect();
    ensure!(acted.is_empty() && hog.child.try_wait()?.is_none(), "it acted: {acted:?}");
    drop(removed);
    scene.expect_killed(&mut hog, &victim)?;
    scene.agent.wait_ready(PATIENCE)?;
    scene.end()
}

/// An agent in a dry run does nothing while a process grows past the threshold, reports what it would do, and leaves the
/// right to act to an agent that is started later, which kills the next process. One that is started while memory is short
/// does not know what took it, and may evict nothing. What the first one traces of both processes gives the same plans when
/// it is replayed as of an agent that acts.
pub(crate) fn dry_run() -> Result<()> {
    let folder = PathBuf::from("/run/trace-dry-run");
    let mut scene = Scene::launch_with(ROOM, |settings| {
        settings.kernel_brake = true;
        settings.trace = Some(folder.clone());
        settings.environment.push(("PLIMSOLL_SHADOW", "true".into()));
    })?;
    scene.agent.wait_shadowing(PATIENCE)?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--rate", "40", "--hold", "300"])?;
    hog.wait_taken(HOG, PATIENCE).with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))?;
    wait_for("what would be done is reported", PATIENCE, || Ok(would_evict(&scene, &victim)))
        .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))?;
    let (status, says) = scene.agent.get("/readyz")?;
    ensure!(status == 503 && says.contains("dry run"), "its readiness is {status}: {says}");
    let acting = counted(&scene, "plimsoll_acting ")?;
    ensure!(acting < 0.5 && scene.agent.killed() == 0, "it acts: {acting}");
    ensure!(hog.child.try_wait()?.is_none(), "the process was killed");
    drop(hog);
    let port = scene.settings.port + 1;
    let second = Settings { port, trace: None, environment: Vec::new(), ..scene.settings.clone() };
    let second = Agent::start(&second)?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--rate", "40", "--hold", "300"])?;
    wait_for("the other agent kills the process", PATIENCE, || Ok(hog.child.try_wait()?.is_some()))
        .with_context(|| format!("the log ends with: {}", tail(&second.text())))?;
    second.stop()?;
    ensure!(scene.agent.killed() == 0, "both acted");
    let configuration = scene.agent.configuration().to_owned();
    scene.end()?;
    let reported = reported(&folder.join("trace.jsonl"))?;
    ensure!(!evictions(&reported, &victim).is_empty(), "no plan of the trace evicts the process: {reported:?}");
    expect_alike(&reported, &replayed(&folder.join("trace.jsonl"), &configuration)?)
}
