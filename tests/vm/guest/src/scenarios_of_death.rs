//! The agent dies at each of its own steps, or its victim does, and no other workload is killed or stays frozen for it.
//!
//! A build for tests knows its steps by name (`plimsoll kill-points` prints them). At the one that
//! `PLIMSOLL_KILL_POINT` names it writes so and, once, kills only the core, only the supervisor, or all of its
//! processes, or stops the core.

use crate::agent::{Agent, PROGRAM, tail};
use crate::cgroup::Cgroup;
use crate::hog_tests::{Hog, guest};
use crate::machine::{self, wait_for};
use crate::scene::{MIB, PATIENCE, Scene, held};
use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Signal, kill_process};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The variable of the agent's environment that names steps, and what dies there.
pub(crate) const KILL_POINT: &str = "PLIMSOLL_KILL_POINT";

/// What the hog takes, in MiB: more than all that is in use otherwise, by which a new agent knows it; and little enough
/// to be gone in the time after which a victim counts as stuck, although it grows on while no agent runs.
pub(crate) fn grown() -> Result<usize> {
    let used = machine::meminfo("MemTotal")?.saturating_sub(machine::meminfo("MemAvailable")?);
    Ok(usize::try_from(used / MIB)? + 48)
}

/// Hogs that may be met without a step: a victim that is gone early enough needs no thaw, for one.
pub(crate) const TRIES: usize = 5;
/// How long after a victim's death a step may still come.
pub(crate) const LATE: Duration = Duration::from_secs(4);
/// At how many steps one agent's cores die in turn: the supervisor waits longer before each next start.
pub(crate) const CORES: usize = 4;

pub(crate) fn core() -> Result<()> {
    kill_points("core")
}

pub(crate) fn supervisor() -> Result<()> {
    kill_points("supervisor")
}

pub(crate) fn all() -> Result<()> {
    kill_points("all")
}

fn kill_points(dying: &str) -> Result<()> {
    let output =
        Command::new(PROGRAM).arg("kill-points").stdin(Stdio::null()).output().context("cannot start the agent")?;
    ensure!(output.status.success(), "this agent has no kill points: it was not built for tests");
    let names = String::from_utf8(output.stdout)?;
    ensure!(names.lines().count() > 0, "the agent names no kill points");
    // The kernel would stop what the agent is to freeze.
    let (of_the_kernel, usual): (Vec<&str>, Vec<&str>) = names.lines().partition(|name| in_kernel(name));
    let at_once = if dying == "core" { CORES } else { 1 };
    let mut hogs = 0;
    for names in usual.chunks(at_once).chain(of_the_kernel.chunks(at_once)) {
        hogs += die_at(names, dying)?;
    }
    crate::suite::figure("kill-points", &[("names", &names.lines().count()), ("hogs", &hogs), ("dying", &dying)]);
    Ok(())
}

fn in_kernel(name: &str) -> bool {
    name.starts_with("kernel-")
}

/// One agent that dies at each of these steps in turn. A hog that outlives a step meets the next one, too. Gives how
/// many hogs that took.
fn die_at(names: &[&str], dying: &str) -> Result<usize> {
    let scene = Scene::launch_with(96, |settings| {
        let steps: Vec<String> = names.iter().map(|name| format!("{name}:{dying}")).collect();
        settings.environment.push((KILL_POINT, steps.join(",")));
        settings.kernel_brake = names.iter().any(|name| in_kernel(name));
    })?;
    let mut deaths = Deaths { scene, dying, hog: None, newcomers: Vec::new() };
    for (before, name) in names.iter().enumerate() {
        deaths.reach(name).and_then(|()| deaths.recover(before + 1)).with_context(|| format!("{name}, {dying}"))?;
    }
    deaths.end()
}

/// An agent that dies at one step after the other.
struct Deaths<'a> {
    scene: Scene,
    /// What dies: `core`, `supervisor`, `all`.
    dying: &'a str,
    /// What grows, until it is killed.
    hog: Option<(Cgroup, Hog)>,
    /// Processes that joined the cgroups of victims afterwards.
    newcomers: Vec<(Cgroup, Child)>,
}

impl Deaths<'_> {
    /// Has a process grow until the agent comes to this step: without it, the hog is killed all the same.
    fn reach(&mut self, name: &str) -> Result<()> {
        for _ in 0..TRIES {
            // Slices are marked before the agent is ready; all other steps need a process that grows.
            if name == "kernel-marked" {
                return wait_reached(&self.scene, name);
            }
            let mut hog = match self.hog.take() {
                Some(hog) => hog,
                None => self.start()?,
            };
            wait_for("the kill point is reached, or the hog is dead", PATIENCE, || {
                Ok(has_reached(&self.scene, name) || hog.1.child.try_wait()?.is_some())
            })
            .with_context(|| format!("the log ends with: {}", tail(&self.scene.agent.text())))?;
            self.hog = Some(hog);
            // The last steps are taken after its death.
            if wait_for("the kill point is reached", LATE, || Ok(has_reached(&self.scene, name))).is_ok() {
                return Ok(());
            }
            self.meet()?;
        }
        bail!("not reached with {TRIES} hogs")
    }

    fn start(&mut self) -> Result<(Cgroup, Hog)> {
        let scene = &mut self.scene;
        scene.agent.wait_ready(PATIENCE)?;
        // Nearly as much is left as for the first one: processes that joined the victims' cgroups take some.
        wait_for("memory is back above the threshold", PATIENCE, || {
            Ok(machine::meminfo("MemAvailable")? > scene.settings.threshold_bytes + 32 * MIB)
        })?;
        let victim = Cgroup::create(&format!("work.slice/hog-{}", self.newcomers.len()))?;
        let hog = Hog::start("anon", victim.path(), grown()?, &["--hold", "60"])?;
        Ok((victim, hog))
    }

    /// Waits until the agent is back, after this many deaths, and holds nothing that its predecessor held.
    fn recover(&mut self, deaths: usize) -> Result<()> {
        let Self { scene, dying, .. } = self;
        if *dying == "core" {
            wait_for("the core is started again", PATIENCE, || {
                Ok(scene.agent.text().matches("the core ended and is started again").count() >= deaths)
            })?;
            scene.agent.wait_ready(PATIENCE)?;
        } else {
            let cgroup = scene.settings.cgroup()?;
            scene.agent.wait_end(PATIENCE)?;
            wait_for("nothing of the agent is left", PATIENCE, || Ok(!cgroup.populated()?))?;
            if *dying == "supervisor" {
                // The core lives a moment longer, and undoes what it held before it ends.
                wait_for("the core lets go without a supervisor", PATIENCE, || Ok(held().is_empty()))
                    .with_context(|| format!("held: {}", held().join(", ")))?;
            }
            // What a service manager does.
            scene.settings.environment.clear();
            scene.agent = Agent::start(&scene.settings)?;
        }
        wait_for("nothing stays frozen or stopped", PATIENCE, || Ok(held().is_empty()))
            .with_context(|| format!("held: {}", held().join(", ")))?;
        let is_dead = self.hog.as_mut().map_or(Ok(false), |(_, hog)| hog.child.try_wait().map(|it| it.is_some()))?;
        if is_dead { self.meet() } else { Ok(()) }
    }

    /// Waits until the hog is dead. A step may have been the kill itself, or one before it: in both cases it dies,
    /// once. The core that killed it may have died before it could report that.
    fn meet(&mut self) -> Result<()> {
        let Some((victim, mut hog)) = self.hog.take() else { return Ok(()) };
        self.scene.expect_dead(&mut hog.child, &victim)?;
        // What joins the same cgroup afterwards has done nothing.
        let newcomer = guest().args(["idle", "--mib", "4", "--cgroup"]).arg(victim.path()).spawn()?;
        self.newcomers.push((victim, newcomer));
        Ok(())
    }

    /// The last agent kills what still grows, and nothing twice.
    fn end(mut self) -> Result<usize> {
        if self.newcomers.is_empty() && self.hog.is_none() {
            self.hog = Some(self.start()?);
        }
        self.meet()?;
        // An agent that kills once more does so when the victim is not empty after half a second.
        std::thread::sleep(Duration::from_secs(1));
        for (victim, newcomer) in &mut self.newcomers {
            let name = victim.name();
            if let Some(status) = newcomer.try_wait()? {
                let (begun, log) = (self.scene.agent.kills(name, "begun"), tail(&self.scene.agent.text()));
                bail!("what joined {name} after its death ended, too: {status}; kills of it: {begun:?}; {log}");
            }
            let reported = |what| self.scene.agent.kills(name, what).len();
            ensure!(reported("begun") <= 1 + reported("stuck"), "{name} was killed anew although it was not stuck");
            newcomer.kill()?;
            newcomer.wait()?;
        }
        self.scene.end()?;
        Ok(self.newcomers.len())
    }
}

/// Whether the agent wrote that it came to its kill point: nothing else that ends it counts.
pub(crate) fn has_reached(scene: &Scene, name: &str) -> bool {
    scene.agent.text().contains(&format!("plimsoll: fault injection: reached {name}\n"))
}

/// Waits until it writes so.
fn wait_reached(scene: &Scene, name: &str) -> Result<()> {
    wait_for("the kill point is reached", PATIENCE, || Ok(has_reached(scene, name)))
        .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))
}

/// All processes are killed at once while a workload is frozen: `plimsoll undo` lets every process go on.
pub(crate) fn undone_by_command() -> Result<()> {
    for (name, in_kernel) in [("freeze-recorded", false), ("kernel-stop-seen", true)] {
        let mut tried = 0;
        while !undo_after(name, in_kernel).with_context(|| format!("all killed at {name}"))? {
            tried += 1;
            ensure!(tried < TRIES, "all killed at {name}: the hog was dead already in {TRIES} rounds");
        }
    }
    Ok(())
}

/// One round. Gives whether a workload was frozen at that step: where the threshold's event came first, the hog may be
/// dead by then.
fn undo_after(name: &str, in_kernel: bool) -> Result<bool> {
    let mut scene = Scene::set_with(96, |settings| {
        settings.environment.push((KILL_POINT, format!("{name}:pause")));
        settings.kernel_brake = in_kernel;
        if in_kernel {
            // The threshold's own event comes at the same charge, a little earlier: by it the hog may be dead too soon.
            settings.environment.push((crate::agent::LOSE_EVENTS, "crossings".into()));
        }
    })?;
    let victim = Cgroup::create("work.slice/hog")?;
    let grown = grown()?;
    let mut hog = Hog::start("anon", victim.path(), grown, &["--hold", "120"])?;
    // The only responsible workload may be killed before it is frozen.
    wait_for("the kill point is reached, or the hog is dead", PATIENCE, || {
        Ok(has_reached(&scene, name) || hog.child.try_wait()?.is_some())
    })
    .with_context(|| format!("the log ends with: {}", tail(&scene.agent.text())))?;
    if !has_reached(&scene, name) {
        scene.expect_killed(&mut hog, &victim)?;
        scene.end()?;
        return Ok(false);
    }
    // The kernel stops the process that was charged when the threshold was crossed, which need not be the hog.
    let is_held = || -> Result<bool> {
        let stopped = in_kernel && workers().into_iter().any(|pid| machine::process_state(pid) == Some('T'));
        Ok(stopped || victim.is_frozen()?)
    };
    wait_for(
        "a workload is frozen, or the hog is dead",
        PATIENCE,
        || Ok(is_held()? || hog.child.try_wait()?.is_some()),
    )
    .with_context(|| format!("the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    // A worker may kill what was just frozen in the moment in which the core stops.
    std::thread::sleep(Duration::from_secs(1));
    if !is_held()? || hog.child.try_wait()?.is_some() {
        kill_process(scene.agent.process("core")?, Signal::CONT)?;
        scene.expect_killed(&mut hog, &victim)?;
        scene.end()?;
        return Ok(false);
    }
    let cgroup = scene.settings.cgroup()?;
    cgroup.write("cgroup.kill", "1")?;
    scene.agent.wait_end(PATIENCE)?;
    wait_for("nothing of the agent is left", PATIENCE, || Ok(!cgroup.populated()?))?;
    ensure!(is_held()?, "the hog went on before it was undone");
    // Doing it again does no harm.
    for _ in 0..2 {
        let file = scene.settings.file();
        let output = Command::new(PROGRAM).args(["undo", "--config"]).arg(&file).stdin(Stdio::null()).output()?;
        let said = [output.stdout, output.stderr].concat();
        ensure!(output.status.success(), "undo ended with {}: {}", output.status, String::from_utf8_lossy(&said));
        ensure!(held().is_empty(), "after undo are held: {}", held().join(", "));
    }
    hog.wait_taken(grown, PATIENCE).context("it does not go on")?;
    scene.settings.environment.clear();
    scene.agent = Agent::start(&scene.settings)?;
    scene.expect_killed(&mut hog, &victim)?;
    scene.end()?;
    Ok(true)
}

/// Processes of all workloads.
fn workers() -> Vec<u32> {
    let mut pids = Vec::new();
    for path in crate::cgroup::all().into_iter().filter(|path| path.to_string_lossy().contains("/work.slice/")) {
        let text = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    }
    pids
}

/// The victim and its cgroup go by themselves when the kill is decided and written down, and not yet done.
pub(crate) fn cgroup_gone() -> Result<()> {
    let name = "kill-intent-written";
    let pause = format!("{name}:pause");
    let mut scene = Scene::set_with(96, |settings| settings.environment.push((KILL_POINT, pause)))?;
    let cgroup = Cgroup::create("work.slice/gone")?;
    let mut hog = Hog::start("anon", cgroup.path(), 256, &["--hold", "120"])?;
    wait_reached(&scene, name)?;
    let core = scene.agent.process("core")?;
    ensure!(hog.child.try_wait()?.is_none(), "it was killed before its time");
    hog.child.kill()?;
    hog.child.wait()?;
    cgroup.remove()?;
    kill_process(core, Signal::CONT)?;
    // The kill was requested when it was still there.
    let is_reported = || Ok(!scene.agent.kills("work.slice/gone", "emptied").is_empty());
    wait_for("that nothing is left of it is reported", PATIENCE, is_reported)
        .with_context(|| format!("the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    scene.settled()?;
    let of_it = scene.agent.kills("work.slice/gone", "begun").len();
    ensure!(scene.agent.killed() == of_it, "another workload was killed");
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), 256, &[])?;
    scene.expect_killed(&mut hog, &victim)?;
    scene.end()
}

/// It is asked to end while it kills, and another process grows past the threshold meanwhile: both are met before it
/// ends.
pub(crate) fn asked_to_end() -> Result<()> {
    let mut scene =
        Scene::set_with(96, |settings| settings.environment.push((KILL_POINT, "kill-written:pause".into())))?;
    let (first, next) = (Cgroup::create("work.slice/first")?, Cgroup::create("work.slice/next")?);
    // Known before it grows: the core is frozen while the hog joins it.
    let mut idle = guest().args(["idle", "--mib", "4", "--cgroup"]).arg(next.path()).spawn()?;
    wait_for("a process is in place", PATIENCE, || Ok(next.current()? >= 4 * MIB))?;
    // No event reports a cgroup that had a process at once; the core searches for workloads every few seconds.
    std::thread::sleep(Duration::from_secs(6));
    let mut hog = Hog::start("anon", first.path(), 256, &["--hold", "120"])?;
    wait_reached(&scene, "kill-written")?;
    kill_process(scene.agent.supervisor(), Signal::TERM)?;
    let mut other = Hog::start("anon", next.path(), 256, &["--hold", "120"])?;
    other.wait_taken(256, PATIENCE)?;
    kill_process(scene.agent.process("core")?, Signal::CONT)?;
    let status = scene.agent.wait_end(PATIENCE)?;
    let text = scene.agent.text();
    let in_order = status.success() && !text.contains(crate::agent::DISORDER);
    ensure!(in_order, "the agent ended with {status}: {}", crate::agent::tail(&text));
    // As it was when the agent ended: nothing else kills it.
    for (name, child) in [("first", &mut hog.child), ("other", &mut other.child), ("idle", &mut idle)] {
        let ended = child.try_wait()?;
        let killed = ended.is_some_and(crate::scene::was_killed);
        ensure!(killed, "the agent left the {name} alive: {ended:?}; {}", crate::agent::tail(&scene.agent.text()));
    }
    for victim in [&first, &next] {
        let reported = |what| scene.agent.kills(victim.name(), what).len();
        ensure!((reported("begun"), reported("emptied")) == (1, 1), "{}", crate::agent::tail(&scene.agent.text()));
    }
    ensure!(held().is_empty(), "after the agent's end are held: {}", held().join(", "));
    scene.settings.environment.clear();
    scene.agent = Agent::start(&scene.settings)?;
    scene.end()
}
