//! The agent dies at each of its own steps, and nobody pays for it.
//!
//! A build for tests knows its steps by name (`plimsoll kill-points` prints them) and kills itself, once, at the one
//! that `PLIMSOLL_KILL_POINT` names: only the core, only the supervisor, or all of its processes.

use crate::agent::{Agent, PROGRAM};
use crate::cgroup::Cgroup;
use crate::hog_tests::{Hog, guest};
use crate::machine::{self, wait_for};
use crate::scene::{PATIENCE, Scene, held};
use anyhow::{Context as _, Result, ensure};
use std::process::{Command, Stdio};
use std::time::Duration;

const WHO: &[&str] = &["core", "supervisor", "all"];

pub(crate) fn kill_points() -> Result<()> {
    let output =
        Command::new(PROGRAM).arg("kill-points").stdin(Stdio::null()).output().context("cannot start the agent")?;
    ensure!(output.status.success(), "this agent has no kill points: it was not built for tests");
    let names = String::from_utf8(output.stdout)?;
    ensure!(names.lines().count() > 0, "the agent names no kill points");
    for name in names.lines() {
        for who in WHO {
            die(name, who).with_context(|| format!("kill point {name}, {who}"))?;
        }
    }
    crate::suite::figure("kill-points", &[("names", &names.lines().count()), ("ways", &WHO.len())]);
    Ok(())
}

fn die(name: &str, who: &str) -> Result<()> {
    let mut scene = Scene::set_with(96, |settings| {
        settings.environment.push(("PLIMSOLL_KILL_POINT", format!("{name}:{who}")));
        settings.kernel_brake = name.contains("kernel");
    })?;
    let core = scene.agent.part("core")?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), 256, &["--hold", "60"])?;
    // Reached is what shows: the process that was to die is gone.
    let reached = wait_for("the kill point is reached", PATIENCE, || {
        Ok(if who == "core" { !machine::alive(core) } else { !scene.agent.running()? })
    });
    reached.with_context(|| format!("the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    if who == "core" {
        wait_for("the core is started again", PATIENCE, || Ok(scene.agent.part("core").is_ok_and(|pid| pid != core)))?;
        scene.agent.wait_ready(PATIENCE)?;
    } else {
        wait_for("nothing of the agent is left", PATIENCE, || Ok(!machine::alive(core)))?;
        // What a service manager does.
        scene.settings.environment.clear();
        scene.agent = Agent::start(&scene.settings)?;
    }
    wait_for("nothing stays frozen or stopped", PATIENCE, || Ok(held().is_empty()))
        .with_context(|| format!("held: {}", held().join(", ")))?;
    // The step may have been the kill itself, or one before it: in both cases it dies, once.
    scene.expect_killed(&mut hog, &victim)?;
    // Who comes into the same cgroup afterwards has done nothing.
    let mut next = guest().args(["idle", "--mib", "4", "--cgroup"]).arg(victim.path()).spawn()?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(next.try_wait()?.is_none(), "the cgroup was killed twice");
    next.kill()?;
    next.wait()?;
    scene.end()
}
