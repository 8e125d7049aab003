//! What grows, and what must come of it.

use crate::agent::{Agent, Settings, tail, values};
use crate::block::Slow;
use crate::cgroup::Cgroup;
use crate::hog_tests::{self, Hog, guest};
use crate::machine::{self, KernelLog, wait_for};
use crate::scene::{MIB, PATIENCE, Scene, was_killed};
use crate::suite::figure;
use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, kill_process};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How far below what is available the threshold is, in MiB.
const CAPACITY_LEFT: u64 = 96;
/// What a hog would take without an agent, in MiB: past the threshold, far from the end of memory.
const HOG: usize = 256;

/// Ways to grow, with the arguments of each.
const GROWTH: [(&str, &[&str]); 9] = [
    ("anon", &[]),
    ("anon", &["--threads", "4"]),
    ("anon", &["--rate", "40"]),
    ("thp", &[]),
    ("populate", &[]),
    ("mlock", &[]),
    ("tmpfs", &[]),
    ("fallocate", &[]),
    ("pipes", &[]),
];

/// One agent meets one process after the other, each of which grows in another way.
pub(crate) fn every_growth() -> Result<()> {
    let mut log = KernelLog::from_now()?;
    let mut scene = Scene::set(CAPACITY_LEFT)?;
    for (index, (kind, more)) in GROWTH.iter().enumerate() {
        let victim = Cgroup::create(&format!("work.slice/{kind}-{index}"))?;
        let mut hog = Hog::start(kind, victim.path(), HOG, more)?;
        scene.expect_killed(&mut hog, &victim).with_context(|| format!("{kind} {more:?}"))?;
        let (taken, more) = (hog.taken()? / MIB, more.join(" "));
        figure("met", &[("kind", &kind), ("more", &more), ("taken_mib", &taken), ("room_mib", &CAPACITY_LEFT)]);
        wait_for("memory is back", PATIENCE, || {
            Ok(machine::meminfo("MemAvailable")? > scene.settings.threshold_bytes + CAPACITY_LEFT / 2 * MIB)
        })
        .with_context(|| format!("after {kind} {more}"))?;
    }
    scene.end()?;
    log.expect("plimsoll: killed work.slice/anon-0: usage ")
}

/// What the agent traces while it decides gives the same plans when it is replayed, field by field, under each policy.
pub(crate) fn replayed() -> Result<()> {
    for policy in ["plimsoll", "openshift3", "kubelet"] {
        let folder = PathBuf::from(format!("/run/trace-{policy}"));
        let mut scene = Scene::set_with(CAPACITY_LEFT, |settings| {
            settings.eviction_policy = Some(policy);
            settings.trace = Some(folder.clone());
        })?;
        let victim = Cgroup::create("work.slice/hog")?;
        // The kubelet's figure is the higher one.
        let mut hog = Hog::start("anon", victim.path(), HOG + 128, &["--hold", "60"])?;
        scene.expect_killed(&mut hog, &victim).with_context(|| format!("under the policy {policy}"))?;
        let configuration = scene.agent.configuration().to_owned();
        let trace = folder.join("trace.jsonl");
        wait_for("the kill's plan is in the trace", PATIENCE, || {
            Ok(!evictions(&reported(&trace)?, &victim).is_empty())
        })?;
        scene.end()?;
        let reported = reported(&trace)?;
        ensure!(!reported.is_empty(), "no plan is in the trace");
        let turns = crate::agent::replayed(&trace, &configuration)?;
        expect_alike(&reported, &turns).with_context(|| format!("under the policy {policy}"))?;
        victim.remove()?;
    }
    Ok(())
}

/// Each plan that was reported is that of the replay's turn of the same time, field by field.
pub(crate) fn expect_alike(reported: &[Value], turns: &[Value]) -> Result<()> {
    for plan in reported {
        let same = |turn: &&Value| ["taken_ns", "scope", "slice"].iter().all(|key| turn[*key] == plan[*key]);
        let turn = turns.iter().find(same).with_context(|| format!("no turn of the replay is of {plan}"))?;
        for (field, value) in plan.as_object().into_iter().flatten() {
            ensure!(turn[field] == *value, "{field} is {value}, and replayed {}: {plan}", turn[field]);
        }
    }
    Ok(())
}

/// The plans that a trace has.
pub(crate) fn reported(trace: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(trace)?;
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
    Ok(lines
        .into_iter()
        .filter_map(|mut line| line.get_mut("reported").map(|reported| reported["plan"].take()))
        .collect())
}

/// Those that evict a workload.
pub(crate) fn evictions<'a>(plans: &'a [Value], victim: &Cgroup) -> Vec<&'a Value> {
    let evicts = |plan: &&Value| {
        let mut actions = plan["actions"].as_array().into_iter().flatten();
        actions.any(|action| action["action"] == "evict" && action["cgroup"] == victim.name())
    };
    plans.iter().filter(evicts).collect()
}

pub(crate) fn nested() -> Result<()> {
    let mut scene = Scene::set(CAPACITY_LEFT)?;
    let pod = Cgroup::create("work.slice/pod")?;
    let sibling = Cgroup::create("work.slice/pod/other")?;
    let inner = Cgroup::create("work.slice/pod/app/worker")?;
    let mut beside = guest().args(["idle", "--cgroup"]).arg(sibling.path()).spawn()?;
    wait_for("a process is beside the hog", PATIENCE, || sibling.populated())?;
    let mut hog = Hog::start("anon", inner.path(), HOG, &[])?;
    scene.expect_killed(&mut hog, &pod)?;
    let ended = beside.try_wait()?;
    ensure!(ended.is_some_and(was_killed), "a part of the victim survived it, or ended by itself: {ended:?}");
    scene.end()
}

pub(crate) fn under_slice_limit() -> Result<()> {
    let slice = Cgroup::create("work.slice")?;
    // Far below what the node has: only the slice's own threshold can be crossed.
    slice.write("memory.max", &(160 * MIB).to_string())?;
    let mut scene = Scene::set_with(CAPACITY_LEFT, |settings| {
        settings.threshold_bytes = 32 * MIB;
        settings.slice_threshold_bytes = Some(64 * MIB);
    })?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--rate", "25"])?;
    scene.expect_killed(&mut hog, &victim)?;
    let events = slice.read("memory.events")?;
    ensure!(machine::named(&events, "oom_kill") == Some(0), "the kernel killed at the slice's limit first");
    scene.end()
}

pub(crate) fn ten_small_ones() -> Result<()> {
    let mut scene = Scene::set(CAPACITY_LEFT)?;
    let mut hogs = Vec::new();
    for number in 0..10 {
        let cgroup = Cgroup::create(&format!("work.slice/small-{number}"))?;
        // Together well past the threshold, and half of them well above it.
        let hog = Hog::start("anon", cgroup.path(), 16, &["--rate", "8", "--hold", "60"])?;
        hogs.push((cgroup, hog));
    }
    wait_for("one of ten is killed", PATIENCE, || {
        scene.check()?;
        Ok(hogs.iter_mut().any(|(_, hog)| hog.child.try_wait().is_ok_and(|ended| ended.is_some())))
    })
    .with_context(|| format!("the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    // All of them have grown up by then, and the answer must hold.
    std::thread::sleep(Duration::from_secs(6));
    scene.settled()?;
    let mut dead = 0;
    for (cgroup, hog) in &mut hogs {
        if let Some(ended) = hog.child.try_wait()? {
            ensure!(was_killed(ended), "the hog in {} ended by itself: {ended}", cgroup.name());
            scene.expect_reported(cgroup)?;
            dead += 1;
        }
    }
    figure("ten-small", &[("killed", &dead)]);
    ensure!(dead < 10, "all ten were killed where some would have done");
    let available = machine::meminfo("MemAvailable")?;
    ensure!(available > scene.settings.threshold_bytes, "{available} bytes are available, below the threshold");
    scene.end()
}

pub(crate) fn disk_bound() -> Result<()> {
    let device = Slow::create("slow", 128, Duration::from_millis(2))?;
    let mut scene = Scene::set(CAPACITY_LEFT)?;
    let cgroup = Cgroup::create("work.slice/disk")?;
    // Less than it reads round and round: each page is read again and again, with the node's memory free.
    cgroup.write("memory.max", "24M")?;
    let mut reader = guest()
        .args(["hog", "churn", "--mib", "48", "--hold", "60", "--cgroup"])
        .arg(cgroup.path())
        .arg("--path")
        .arg(&device.device)
        .spawn()?;
    let stalled = || -> Result<u64> {
        let text = cgroup.read("memory.pressure")?;
        let total = text.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="));
        Ok(total.context("memory.pressure has no total")?.parse()?)
    };
    wait_for("the reader stalls for 200 ms", PATIENCE, || Ok(stalled()? > 200_000))?;
    std::thread::sleep(Duration::from_secs(5));
    scene.settled()?;
    ensure!(reader.try_wait()?.is_none(), "a process that waits for its disk was killed with memory free");
    figure("disk-bound", &[("stalled_us", &stalled()?)]);
    reader.kill()?;
    reader.wait()?;
    scene.end()
}

/// How long it may take from the end of the agent that acts until the one that shadowed it acts. Its programs are
/// loaded, so it only has to undo what was left; the programs of a process that is killed are detached for seconds
/// meanwhile.
const TAKE_OVER: Duration = Duration::from_millis(1500);

/// Two agents: one acts, the other one shadows and reports so, and acts as soon as the first one ends in whatever way.
pub(crate) fn second_agent() -> Result<()> {
    // Room for both, and for one that loads its programs meanwhile.
    let mut scene = Scene::set(2 * CAPACITY_LEFT)?;
    let mut other = Settings { port: scene.settings.port + 1, ..scene.settings.clone() };
    let mut second = Agent::launch(&other)?;
    second.wait_shadowing(PATIENCE)?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), 2 * HOG, &[])?;
    scene.expect_killed(&mut hog, &victim)?;
    // The kernel does not report which process wrote cgroup.kill; by the second agent's own log it only watched.
    ensure!(second.killed() == 0 && second.running()?, "the second agent acted, or ended: {}", tail(&second.text()));
    for end in ["its core is killed", "all of it is killed", "it is asked to end"] {
        let core = second.part("core")?;
        let begun = Instant::now();
        match end {
            "its core is killed" => kill_process(scene.agent.process("core")?, Signal::KILL)?,
            "all of it is killed" => scene.settings.cgroup()?.write("cgroup.kill", "1")?,
            _ => kill_process(scene.agent.supervisor(), Signal::TERM)?,
        }
        second.wait_ready(PATIENCE).with_context(|| format!("{end}, and the other one does not take over"))?;
        let took = begun.elapsed();
        figure("taken-over", &[("end", &end.replace(' ', "-")), ("ms", &took.as_millis())]);
        ensure!(took <= TAKE_OVER, "{end}: the other one took over after {took:?}");
        ensure!(second.part("core")? == core, "{end}: the other one loaded its programs a second time");
        std::mem::swap(&mut scene.agent, &mut second);
        std::mem::swap(&mut scene.settings, &mut other);
        if end == "its core is killed" {
            // Its next core comes too late to act.
            second.wait_shadowing(PATIENCE)?;
        } else {
            second.wait_end(PATIENCE)?;
            second = Agent::launch(&other)?;
            second.wait_shadowing(PATIENCE)?;
        }
        let victim = Cgroup::create("work.slice/next")?;
        let mut hog = Hog::start("anon", victim.path(), 2 * HOG, &["--rate", "80"])?;
        scene.expect_killed(&mut hog, &victim).with_context(|| format!("after {end}"))?;
    }
    second.stop()?;
    scene.end()
}

pub(crate) fn clock_stepped() -> Result<()> {
    let mut scene = Scene::set(CAPACITY_LEFT)?;
    let now = clock_gettime(ClockId::Realtime);
    for (name, step) in [("ahead", 86_400), ("back", -172_800), ("again", 86_400)] {
        let stepped = Timespec { tv_sec: now.tv_sec + step, tv_nsec: now.tv_nsec };
        clock_settime(ClockId::Realtime, stepped).context("cannot step the clock")?;
        let victim = Cgroup::create(&format!("work.slice/{name}"))?;
        let mut hog = Hog::start("anon", victim.path(), HOG, &[])?;
        scene.expect_killed(&mut hog, &victim).with_context(|| format!("clock stepped {name}"))?;
    }
    clock_settime(ClockId::Realtime, now).context("cannot step the clock back")?;
    scene.end()
}

pub(crate) fn uninterruptible() -> Result<()> {
    // Above the threshold, and so near that memory is not plentiful any more: what was taken until then would be
    // forgotten.
    const NEAR: u64 = 16 * MIB;
    let _lists = machine::short_lists()?;
    let device = Slow::one_by_one("stuck")?;
    let mut scene = Scene::set(CAPACITY_LEFT)?;
    let cgroup = Cgroup::create("work.slice/stuck")?;
    // The largest of all, so the first to be chosen, with a task that cannot die yet.
    let mut waiting = hog_tests::waiting_for(&device, &cgroup, 5)?;
    let room = machine::meminfo("MemAvailable")?.saturating_sub(scene.settings.threshold_bytes + NEAR);
    let size = usize::try_from(room / MIB)?;
    let mut large = Hog::start("anon", cgroup.path(), size, &[])?;
    large.wait_taken(size, PATIENCE)?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--rate", "60"])?;
    scene.expect_killed(&mut hog, &victim)?;
    ensure!(cgroup.populated()?, "the first victim could die before the hog did");
    let begun = |cgroup: &Cgroup| scene.agent.kills(cgroup.name(), "begun").first()?["at_ns"].as_u64();
    let (first, then) =
        (begun(&cgroup).context("the cgroup that cannot die was not killed")?, begun(&victim).context("no time")?);
    // One plan may take both.
    ensure!(first <= then, "the hog was killed at {then}, before the cgroup that cannot die, at {first}");
    drop((large, hog));
    waiting.kill()?;
    waiting.wait()?;
    scene.end()
}

pub(crate) fn fork_bomb() -> Result<()> {
    let mut scene = Scene::set(CAPACITY_LEFT)?;
    let victim = Cgroup::create("work.slice/bomb")?;
    victim.write("pids.max", "96")?;
    let mut bomb = guest().args(["hog", "fork", "--mib", "4", "--cgroup"]).arg(victim.path()).spawn()?;
    scene.expect_dead(&mut bomb, &victim)?;
    scene.expect_reported(&victim)?;
    scene.end()
}

/// Records that did not fit into the kernel's ring buffer of events; the agent's own queues have others.
pub(crate) const LOST_EVENTS: &str = "plimsoll_lost_records_total{ring=\"events\"}";

pub(crate) fn records_lost() -> Result<()> {
    let mut scene = Scene::set(CAPACITY_LEFT)?;
    let core = scene.agent.process("core")?;
    kill_process(core, Signal::STOP)?;
    let filled = fill_events();
    kill_process(core, Signal::CONT)?;
    filled?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &[])?;
    scene.expect_killed(&mut hog, &victim)?;
    // The core reads the kernel's own counters every few seconds.
    wait_for("records that were made while the core was stopped are counted as lost", PATIENCE, || {
        Ok(counted(&scene, LOST_EVENTS)? > 0.0)
    })?;
    scene.end()
}

/// While the core cannot read, cgroups come and go until the ring buffer of events is full.
pub(crate) fn fill_events() -> Result<()> {
    for number in 0..4000 {
        let path = Path::new(crate::cgroup::ROOT).join(format!("work.slice/many-{number}"));
        std::fs::create_dir(&path)?;
        std::fs::remove_dir(&path)?;
    }
    Ok(())
}

/// No event of a threshold comes: the slow timer samples all the same, later.
pub(crate) fn threshold_events_lost() -> Result<()> {
    let mut scene = Scene::set_with(CAPACITY_LEFT, |settings| {
        settings.environment.push((crate::agent::LOSE_EVENTS, "crossings".into()));
    })?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--rate", "40", "--hold", "60"])?;
    scene.expect_killed(&mut hog, &victim)?;
    let plans = scene.agent.plans();
    ensure!(plans.iter().all(|plan| plan["crossed_ns"].is_null()), "an event of a threshold came");
    ensure!(plans.iter().any(|plan| plan["outcome"] == "evict"), "no decision evicts");
    scene.end()
}

/// How many times as long as the next core says that it took until its programs were attached there may be none after a
/// core is killed: its programs are detached meanwhile, and the supervisor waits 100 ms.
const GAP: u64 = 3;

/// How long each core so far took until its programs were attached, in nanoseconds.
pub(crate) fn starts(scene: &Scene) -> Vec<u64> {
    scene.agent.lines().iter().filter_map(|line| line["start"]["armed_ns"].as_u64()).collect()
}

pub(crate) fn core_dies() -> Result<()> {
    let mut scene = Scene::set(CAPACITY_LEFT)?;
    // What is started again goes by the configuration that was read at the start, not by a mistake made meanwhile.
    std::fs::write(scene.agent.configuration(), "evictionHard: [")?;
    for part in ["reporter", "core"] {
        let pid = scene.agent.process(part)?;
        let (before, begun) = (starts(&scene).len(), Instant::now());
        kill_process(pid, Signal::KILL)?;
        // Ready again, and by another process than before.
        wait_for(&format!("the {part} is started again"), PATIENCE, || {
            Ok(scene.agent.part(part).is_ok_and(|next| i32::try_from(next) != Ok(pid.as_raw_pid())))
        })?;
        scene.agent.wait_ready(PATIENCE)?;
        let ready_ms = u64::try_from(begun.elapsed().as_millis())?;
        if part == "core" {
            wait_for("the next core reports its start", PATIENCE, || Ok(starts(&scene).len() > before))?;
            let gap_ms = u64::try_from(begun.elapsed().as_millis())?;
            let start_ms = starts(&scene).last().context("there was one")? / 1_000_000;
            figure("no-core", &[("ms", &gap_ms), ("ready_ms", &ready_ms), ("start_ms", &start_ms)]);
            // The record and the answer come at about the same time.
            ensure!(gap_ms <= 2 * ready_ms, "ready after {ready_ms} ms, while there was no core for {gap_ms} ms");
            ensure!(gap_ms <= GAP * start_ms, "no core for {gap_ms} ms, and the next one's start took {start_ms} ms");
        }
        let victim = Cgroup::create(&format!("work.slice/after-{part}"))?;
        let mut hog = Hog::start("anon", victim.path(), HOG, &[])?;
        scene.expect_killed(&mut hog, &victim).with_context(|| format!("after the {part}'s death"))?;
    }
    scene.end()
}

/// The sum of the metrics with this beginning.
pub(crate) fn counted(scene: &Scene, prefix: &str) -> Result<f64> {
    let (_, metrics) = scene.agent.get("/metrics")?;
    Ok(values::<f64>(&metrics, prefix).sum())
}
