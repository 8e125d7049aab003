//! The machine's tasks become few.

use crate::agent::{Agent, Settings, tail};
use crate::cgroup::Cgroup;
use crate::hog_tests::guest;
use crate::machine::{KernelSetting, process_state, wait_for};
use crate::scene::{MIB, PATIENCE, was_killed};
use crate::suite::figure;
use anyhow::{Context as _, Result, ensure};
use plimsoll_node::limits::TaskLimits;
use rustix::process::{WaitOptions, getpid, set_child_subreaper, waitpid};
use serde_json::Value;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

/// How many tasks there can be beside those that there are.
const ROOM: u64 = 700;
/// The threshold: fewer are left.
const LEFT: u64 = 500;
/// What the bomb may have at most.
const BOMB: u64 = 400;
/// For so long what the bomb leaves is not waited for.
const UNREAPED: Duration = Duration::from_secs(3);

/// A fork bomb is evicted for the tasks that it takes, with events of the kernel and without, and what is beside it stays:
/// also while those that it had still count, because they were not waited for.
pub(crate) fn fork_bomb() -> Result<()> {
    // What the bomb leaves is handed to this process, which waits for it when it pleases.
    set_child_subreaper(Some(getpid())).context("cannot become the parent of what the bomb leaves")?;
    for source in ["auto", "psi", "poll"] {
        evicted(source).with_context(|| format!("with the source {source}"))?;
    }
    Ok(())
}

fn evicted(source: &'static str) -> Result<()> {
    let calm = Cgroup::create("work.slice/calm")?;
    let mut beside = guest().args(["idle", "--cgroup"]).arg(calm.path()).spawn()?;
    wait_for("a process is beside the bomb", PATIENCE, || calm.populated())?;
    let agent = Agent::start(&Settings { source, pid_threshold: Some(LEFT), ..Settings::with_threshold(32 * MIB) })?;
    let limits = TaskLimits::open()?;
    let limit = KernelSetting::begin("/proc/sys/kernel/pid_max", &(limits.read()?.tasks + ROOM).to_string())?;
    let victim = Cgroup::create("work.slice/bomb")?;
    victim.write("pids.max", &BOMB.to_string())?;
    let mut bomb = guest().args(["hog", "fork", "--mib", "1", "--cgroup"]).arg(victim.path()).spawn()?;
    // It is not waited for either.
    let ended = wait_for("the bomb has ended", PATIENCE, || Ok(process_state(bomb.id()) == Some('Z')));
    ended.with_context(|| format!("the agent's log ends with: {}", tail(&agent.text())))?;
    wait_for("no process of the bomb runs", PATIENCE, || Ok(!victim.populated()?))?;
    let few = limits.read()?;
    ensure!(few.available() < LEFT, "nothing of the bomb is left to be waited for: {few:?}");
    stays(&mut beside, UNREAPED).with_context(|| agent.why_killed(calm.name()))?;
    ensure!(bomb.wait().is_ok_and(was_killed), "the bomb ended by itself");
    while waitpid(None, WaitOptions::NOHANG).is_ok_and(|waited| waited.is_some()) {}
    wait_for("the machine can have more tasks again", PATIENCE, || Ok(limits.read()?.available() > LEFT))?;
    ensure!(victim.read("pids.current")?.trim() == "0", "the bomb has tasks: {}", victim.read("pids.current")?);
    wait_for("the condition is reported", PATIENCE, || {
        Ok(agent.get("/metrics").is_ok_and(|(_, text)| text.contains("plimsoll_pid_pressure 1\n")))
    })?;
    let plans = agent.plans();
    let plan = plans.iter().find(|plan| evicts(plan, &victim)).context("no plan that evicts the bomb was reported")?;
    let conditions = plan["conditions"].as_array().context("a plan has no conditions")?;
    ensure!(conditions.iter().any(|condition| condition == "PIDPressure"), "the plan's conditions: {conditions:?}");
    let tasks = plan["candidates"][0]["usage"].as_u64().context("the bomb's tasks are not in the plan")?;
    figure("fork-bomb", &[("source", &source), ("tasks", &tasks), ("room", &(ROOM - LEFT))]);
    ensure!(agent.killed() == 1, "the agent killed {} workloads: {}", agent.killed(), tail(&agent.text()));
    drop(limit);
    stays(&mut beside, Duration::ZERO)?;
    agent.stop()?;
    beside.kill()?;
    beside.wait()?;
    calm.remove()?;
    victim.remove()
}

/// Whether the plan evicts a workload.
fn evicts(plan: &Value, victim: &Cgroup) -> bool {
    let mut actions = plan["actions"].as_array().into_iter().flatten();
    actions.any(|action| action["action"] == "evict" && action["cgroup"] == victim.name())
}

/// Fails where the process ends within this time.
fn stays(process: &mut Child, time: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        ensure!(process.try_wait()?.is_none(), "the bystander died");
        if begun.elapsed() >= time {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
}
