//! What may go wrong while a pod that a containerd runs is evicted: the agent dies, the pod goes by itself, a process of it
//! does not die, its files stay, the clock is stepped, and nothing can be written.

use crate::agent::{self, DISORDER, NO_WATCHDOG, PROGRAM, tail};
use crate::block::Slow;
use crate::cgroup::Cgroup;
use crate::containerd;
use crate::hog_tests::{self, Hog, remove_leftovers};
use crate::machine::{self, wait_for};
use crate::node::{ADDRESS, Node, await_available, await_begun, expect_dead, kills, lines, plans, threshold};
use crate::node_surroundings_tests::with_arguments;
use crate::node_tests::{begun_kills, is_whole, logged};
use crate::pod::{Class, Pod, container_cgroup};
use crate::scenarios_of_death::{CORES, KILL_POINT, LATE, grown};
use crate::scene::{MIB, PATIENCE, held};
use crate::suite::figure;
use crate::systemd::{self, CONFIGURATION, UNIT, drop_in, journal, property, start_guest, systemctl, unit_of};
use crate::systemd_tests::processes;
use anyhow::{Context as _, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// What is available above the threshold before pods grow, in MiB, and what one takes that crosses it.
const ROOM: u64 = 128;
const GROWTH: u64 = 256;
const USUAL: (i32, i64) = (0, 30);
/// Pods that may die without a step: a victim that is gone early enough needs no thaw, for one.
const SPARE: usize = 3;
/// What the agent and the containers take beside what is in use before them, in MiB.
const AGENT: usize = 64;

/// A pod that grows past the threshold once it is let go.
fn growing(node: &mut Node, name: &str) -> Result<Pod> {
    let pod = node.pod(name, Class::BestEffort, USUAL)?;
    pod.start_held(&node.client, "main", &["anon", "--mib", &GROWTH.to_string()])?;
    Ok(pod)
}

fn hard_threshold() -> Result<String> {
    Ok(format!("evictionHard: {{memory.available: \"{}\"}}\n", threshold(ROOM)?))
}

/// Whether the core wrote that it came to this step.
fn has_reached(step: &str) -> Result<bool> {
    Ok(journal()?.contains(&format!("plimsoll: fault injection: reached {step}\n")))
}

fn core() -> Result<Pid> {
    let core = *processes()?.get("core").context("the unit has no process `core`")?;
    Pid::from_raw(core.try_into()?).context("no process has the number zero")
}

/// The core is killed at each step of an eviction that has a name. The pod that grew is killed all the same, once unless it
/// was stuck, nothing else is, and nothing stays frozen or stopped.
pub(crate) fn core_dies_at_each_step() -> Result<()> {
    let printed = Command::new(PROGRAM).arg("kill-points").output().context("cannot start the agent")?;
    let printed = String::from_utf8(printed.stdout)?;
    // Pods are not stopped in the kernel.
    let steps: Vec<&str> = printed.lines().filter(|step| !step.starts_with("kernel-")).collect();
    ensure!(!steps.is_empty(), "this agent names no steps: it was not built for tests");
    let mut used = 0;
    for steps in steps.chunks(CORES) {
        used += cores_die_at(steps).with_context(|| steps.join(", "))?;
    }
    figure("kill-points", &[("names", &steps.len()), ("pods", &used)]);
    Ok(())
}

/// One agent whose cores die at these steps in turn. Gives how many pods grew.
fn cores_die_at(steps: &[&str]) -> Result<usize> {
    let mut node = Node::new()?;
    let (bystander, oom_kills) = (node.bystander()?, machine::oom_kills()?);
    let pods = (0..steps.len() + SPARE).map(|number| node.pod(&format!("step-{number}"), Class::BestEffort, USUAL));
    let pods = pods.collect::<Result<Vec<_>>>()?;
    let size = (grown()? + AGENT).to_string();
    for pod in &pods {
        pod.start_held(&node.client, "main", &["anon", "--mib", &size])?;
    }
    let points: Vec<String> = steps.iter().map(|step| format!("{step}:core")).collect();
    with_arguments("", &format!("Environment={KILL_POINT}={}\n", points.join(",")))?;
    node.start_agent(&hard_threshold()?)?;
    let mut next = pods.iter();
    for (deaths, step) in steps.iter().enumerate() {
        while !has_reached(step)? {
            let pod = next.next().with_context(|| format!("{step} is not reached with the pods that there are"))?;
            pod.let_go()?;
            let cgroup = pod.cgroup()?;
            wait_for("the step is reached, or the pod is dead", PATIENCE, || {
                Ok(has_reached(step)? || !cgroup.populated()?)
            })
            .with_context(|| format!("{step}; {}", logged()))?;
            // The last steps are taken after its death.
            let _ = wait_for("the step is reached", LATE, || has_reached(step));
            // Whichever step it was, it dies: the next core goes on.
            expect_dead(pod).with_context(|| (*step).to_owned())?;
        }
        wait_for("the core is started again", PATIENCE, || {
            Ok(journal()?.matches("the core ended and is started again").count() > deaths)
        })
        .with_context(logged)?;
        let is_ready = || Ok(agent::get(ADDRESS.into(), "/readyz").is_ok_and(|(status, _)| status == 200));
        wait_for("the agent is ready", PATIENCE, is_ready).with_context(logged)?;
        wait_for("nothing stays frozen or stopped", PATIENCE, || Ok(held().is_empty()))
            .with_context(|| format!("{step}: {}", held().join(", ")))?;
        is_whole(&bystander)?;
    }
    // A pod that is not empty after half a second is killed once more.
    thread::sleep(Duration::from_secs(1));
    let left = next.as_slice();
    for pod in left {
        is_whole(pod)?;
    }
    systemctl(&["stop", UNIT])?;
    let log = journal()?;
    ensure!(!log.contains(DISORDER), "{}", tail(&log));
    let killed = machine::oom_kills()? - oom_kills;
    ensure!(killed == 0, "the OOM killer fired {killed} times; {}", tail(&log));
    let grown = &pods[..pods.len() - left.len()];
    for (path, name) in begun_kills(&log) {
        ensure!(grown.iter().any(|pod| pod.path() == path), "{name} was killed; {}", tail(&log));
    }
    for pod in grown {
        let [begun, stuck] = ["begun", "stuck"].map(|what| kills(pod, what).map(|kills| kills.len()));
        ensure!(begun? <= 1 + stuck?, "{} was killed twice; {}", pod.name, tail(&log));
    }
    // The next agent's log and pods are its own.
    systemd::clean()?;
    containerd::clean()?;
    Ok(grown.len())
}

/// A pod is deleted when its kill is decided and written down, and not yet done. No other pod is killed for it, and the next
/// one that grows is.
pub(crate) fn pod_is_gone_before_its_kill() -> Result<()> {
    const STEP: &str = "kill-intent-written";
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let [gone, next] = ["gone", "next-one"].map(|name| growing(&mut node, name));
    let (gone, next) = (gone?, next?);
    with_arguments("", &format!("Environment={KILL_POINT}={STEP}:pause {NO_WATCHDOG}=1\n"))?;
    node.start_agent(&hard_threshold()?)?;
    gone.let_go()?;
    wait_for("the step is reached", PATIENCE, || has_reached(STEP)).with_context(logged)?;
    let core = core()?;
    ensure!(gone.cgroup()?.populated()?, "it was killed before its time");
    containerd::remove_sandbox(&node.client, &gone.sandbox)?;
    let path = gone.path();
    systemctl(&["stop", Path::new(&path).file_name().and_then(|name| name.to_str()).context("it is a slice")?])?;
    node.forget(&gone)?;
    kill_process(core, Signal::CONT)?;
    wait_for("that nothing is left of it is reported", PATIENCE, || Ok(!kills(&gone, "emptied")?.is_empty()))
        .with_context(logged)?;
    // Another one would be killed at the next sample.
    thread::sleep(Duration::from_secs(2));
    is_whole(&next)?;
    next.let_go()?;
    expect_dead(&next)?;
    await_begun(&next)?;
    let killed = if kills(&gone, "begun")?.is_empty() { vec![&next] } else { vec![&gone, &next] };
    node.end(&killed, &[&bystander])
}

/// A process of the pod that is evicted waits uninterruptibly. What else the pod has is back, the next pod that grows is
/// evicted meanwhile, and nothing else is.
pub(crate) fn victim_waits_uninterruptibly() -> Result<()> {
    let device = Slow::one_by_one("stuck")?;
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let stuck = growing(&mut node, "stuck")?;
    let next = growing(&mut node, "next-one")?;
    let hard = threshold(ROOM)?;
    node.start_agent(&format!("evictionHard: {{memory.available: \"{hard}\"}}\n"))?;
    // Beside the container's own cgroup, in which no other device may be opened.
    let beside = Cgroup::create(&format!("{}/waits.scope", stuck.path()))?;
    // One answer after the other, each after three seconds.
    let mut waiting = hog_tests::waiting_for(&device, &beside, 20)?;
    stuck.let_go()?;
    await_begun(&stuck)?;
    await_available(hard + ROOM / 2 * MIB)?;
    next.let_go()?;
    expect_dead(&next)?;
    ensure!(stuck.cgroup()?.populated()?, "the first one died before the next one did: nothing waited");
    waiting.wait()?;
    expect_dead(&stuck)?;
    beside.remove()?;
    await_begun(&next)?;
    ensure!(kills(&next, "begun")?.len() == 1, "the next one was killed twice; {}", logged());
    // One that does not die is killed again.
    let [begun, reported] = ["begun", "stuck"].map(|what| kills(&stuck, what).map(|kills| kills.len()));
    let (begun, reported) = (begun?, reported?);
    ensure!(reported > 0 && begun <= 1 + reported, "{begun} kills, {reported} times stuck; {}", logged());
    let of = |(path, _): &(String, String)| [&stuck, &next].into_iter().find(|pod| pod.path() == *path);
    let killed = begun_kills(&journal()?).iter().map(of).collect::<Option<Vec<_>>>();
    let killed = killed.with_context(|| format!("another one was killed; {}", logged()))?;
    ensure!(killed.first().is_some_and(|pod| pod.name == stuck.name), "the next one was killed first; {}", logged());
    node.end(&killed, &[&bystander])
}

/// Files on a tmpfs stay when the pod that wrote them is killed: it is killed once, and no other pod is for them. The next one
/// that grows is.
pub(crate) fn files_of_the_victim_stay() -> Result<()> {
    let done = with_files_that_stay();
    done.and(remove_leftovers())
}

fn with_files_that_stay() -> Result<()> {
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let writer = node.pod("writer", Class::BestEffort, USUAL)?;
    let container = writer.start(&node.client, "main", &["idle", "--mib", "1"])?;
    let next = growing(&mut node, "next-one")?;
    let hard = threshold(ROOM)?;
    node.start_agent(&format!("evictionHard: {{memory.available: \"{hard}\"}}\n"))?;
    let scope = container_cgroup(&writer, &container)?;
    let size = usize::try_from(GROWTH)?;
    let mut hog = Hog::start("tmpfs", scope.path(), size, &["--keep", "--rate", "100"])?;
    wait_for("the writer is killed", PATIENCE, || Ok(hog.child.try_wait()?.is_some())).with_context(logged)?;
    expect_dead(&writer)?;
    // What is no pod keeps memory below the threshold, so that each further sample finds a reason.
    let ballast = start_guest("ballast", &[], &["idle", "--mib", "64"])?;
    wait_for("the ballast is in place", PATIENCE, || Ok(ballast.current()? >= 64 * MIB))?;
    thread::sleep(Duration::from_secs(5));
    let available = machine::meminfo("MemAvailable")?;
    ensure!(available < hard, "{available} bytes are available: memory came back after all");
    ensure!(begun_kills(&journal()?).len() == 1, "more was killed than the writer; {}", logged());
    let plans = plans()?;
    let is_named = plans.iter().any(|plan| {
        let mut candidates = plan["candidates"].as_array().into_iter().flatten();
        candidates.any(|it| it["cgroup"] == writer.path() && it["verdict"] == "nothing-to-free")
    });
    ensure!(is_named, "no plan names the writer as what frees nothing: {plans:?}");
    systemctl(&["stop", &unit_of("ballast")])?;
    is_whole(&next)?;
    next.let_go()?;
    expect_dead(&next)?;
    await_begun(&next)?;
    node.end(&[&writer, &next], &[&bystander])
}

/// The clock is stepped to a day ahead and then to two days back while pods run: each pod that grows after that is evicted as ever.
pub(crate) fn clock_is_stepped() -> Result<()> {
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let pods = ["ahead", "back"].map(|name| growing(&mut node, name));
    let [ahead, back] = pods;
    let (ahead, back) = (ahead?, back?);
    let hard = threshold(ROOM)?;
    node.start_agent(&format!("evictionHard: {{memory.available: \"{hard}\"}}\n"))?;
    let (before, begun) = (clock_gettime(ClockId::Realtime), clock_gettime(ClockId::Monotonic));
    let stepped = [(&ahead, 86_400), (&back, -172_800)].into_iter().try_for_each(|(pod, step)| {
        let now = Timespec { tv_sec: before.tv_sec + step, tv_nsec: before.tv_nsec };
        clock_settime(ClockId::Realtime, now).context("cannot step the clock")?;
        pod.let_go()?;
        expect_dead(pod)?;
        await_available(hard + ROOM / 2 * MIB)
    });
    let passed = clock_gettime(ClockId::Monotonic).tv_sec - begun.tv_sec;
    let again = Timespec { tv_sec: before.tv_sec + passed, tv_nsec: before.tv_nsec };
    clock_settime(ClockId::Realtime, again).context("cannot set the clock again")?;
    stepped?;
    await_begun(&ahead)?;
    await_begun(&back)?;
    node.end(&[&ahead, &back], &[&bystander])
}

/// Where a test has a state directory that can only be read.
const STATE: &str = "/state-on-disk";

/// With a state directory that can only be read, which the log says, the pod that grows is evicted as ever.
pub(crate) fn state_directory_can_only_be_read() -> Result<()> {
    fs::create_dir_all(STATE)?;
    mount("none", STATE, "tmpfs", MountFlags::RDONLY, c"")?;
    let done = with_state_in_memory();
    // An agent that was not ended yet has it open.
    let unmounted = unmount(STATE, UnmountFlags::DETACH).context("cannot unmount the state directory");
    done.and(unmounted)
}

fn with_state_in_memory() -> Result<()> {
    let mut node = Node::new()?;
    let bystander = node.bystander()?;
    let pod = growing(&mut node, "growing")?;
    drop_in(&format!("ExecStart=\nExecStart={PROGRAM} run --config {CONFIGURATION} --state-directory {STATE}"))?;
    node.start_agent(&hard_threshold()?)?;
    ensure!(property(UNIT, "ActiveState")? == "active", "it does not run; {}", logged());
    let is_said = lines()?
        .iter()
        .any(|line| line["message"].as_str().is_some_and(|it| it.contains(&format!("{STATE}, can only be read"))));
    ensure!(is_said, "the log does not say that it can only be read; {}", logged());
    pod.let_go()?;
    expect_dead(&pod)?;
    await_begun(&pod)?;
    node.end(&[&pod], &[&bystander])
}
