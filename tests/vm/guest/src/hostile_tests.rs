//! What code that runs in the reporter could do to the other processes of the agent, done here by root with every
//! capability, which may do more than the reporter; and a workload that is new among many.

use crate::agent::LOSE_EVENTS;
use crate::cgroup::Cgroup;
use crate::hog_tests::Hog;
use crate::machine::{self, wait_for};
use crate::scene::{MIB, PATIENCE, Scene};
use crate::suite::figure;
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

/// Memory of the queues between the core and the reporter, opened to read and write; by name.
fn queues(supervisor: u32) -> Result<Vec<(String, File)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{supervisor}/fd"))? {
        let path = entry?.path();
        let target = fs::read_link(&path)?.to_string_lossy().into_owned();
        let name = target.strip_prefix("/memfd:plimsoll-").and_then(|name| name.split(' ').next());
        if let Some(name @ ("queue" | "place")) = name {
            let file = File::options().read(true).write(true).open(&path);
            found.push((name.to_owned(), file.with_context(|| format!("cannot open the memory of a {name}"))?));
        }
    }
    Ok(found)
}

/// Fills the memory with a word, cuts holes into it and cuts it off: as far as the kernel allows, which is the answer.
fn spoil(file: &File, word: u64) -> Result<bool> {
    let length = file.metadata()?.len();
    let bytes = word.to_ne_bytes().repeat(usize::try_from(length / 8)?);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = word == 0 && fallocate(file, hole, 0, length).is_ok();
    let wrote = file.write_all_at(&bytes, 0).is_ok();
    let cut = file.set_len(0).is_ok();
    Ok(punched || wrote || cut)
}

/// Whatever is done to the queues, the core that runs acts and reports, and so does each one after it.
pub(crate) fn reporter_spoils_the_queues() -> Result<()> {
    let mut scene = Scene::set(96)?;
    let mut changed = Vec::new();
    for (round, word) in [0, u64::MAX].into_iter().enumerate() {
        let found = queues(scene.agent.pid())?;
        ensure!(found.iter().filter(|(name, _)| name == "queue").count() == 2, "these are the queues: {found:?}");
        for (name, file) in &found {
            if spoil(file, word)? {
                changed.push(name.clone());
            }
        }
        let victim = Cgroup::create(&format!("work.slice/spoilt-{round}"))?;
        let mut hog = Hog::start("anon", victim.path(), 256, &[])?;
        scene.expect_killed(&mut hog, &victim).with_context(|| format!("by the core whose queues hold {word:#x}"))?;
        let core = scene.agent.process("core")?;
        kill_process(core, Signal::KILL)?;
        wait_for("the core is started again", PATIENCE, || {
            Ok(scene.agent.process("core").is_ok_and(|new| new != core))
        })?;
        scene.agent.wait_ready(PATIENCE).with_context(|| format!("after the queues held {word:#x}"))?;
        let victim = Cgroup::create(&format!("work.slice/after-{round}"))?;
        let mut hog = Hog::start("anon", victim.path(), 256, &[])?;
        scene.expect_killed(&mut hog, &victim).with_context(|| format!("by the core after {word:#x}"))?;
    }
    ensure!(!changed.iter().any(|name| name == "queue"), "a queue's frames can be changed: {changed:?}");
    scene.end()
}

/// A process that is started among many workloads while memory falls is found by its crossing, where no walk would find
/// it: one was just taken, and none is for fifty times as long as it took. The event of its cgroup is lost.
pub(crate) fn new_among_many() -> Result<()> {
    const MANY: usize = 600;
    for number in 0..MANY {
        Cgroup::create(&format!("work.slice/idle-{number}"))?;
    }
    let left = 160 * MIB;
    let mut scene = Scene::set_with(0, |settings| {
        settings.threshold_bytes = left;
        settings.environment.push((LOSE_EVENTS, "cgroups".to_owned()));
    })?;
    let available = machine::meminfo("MemAvailable")?;
    let room = usize::try_from(available.saturating_sub(left) / MIB)?;
    // A walk follows each kill.
    let known = Cgroup::create("work.slice/idle-0")?;
    let mut hog = Hog::start("anon", known.path(), room + 16, &["--hold", "120"])?;
    scene.expect_killed(&mut hog, &known)?;
    // What is no workload takes memory up to shortly before the threshold, and the new workload what is left of it.
    let outside = Cgroup::create("other.slice/outside")?;
    let mut ballast = Hog::start("anon", outside.path(), room - 64, &["--hold", "120"])?;
    ballast.wait_taken(room - 64, PATIENCE)?;
    // Growth is counted from a sample that has that in it: memory is plentiful to 29 MiB above the threshold, and the slow
    // timer fires each second, or fifty times what a sample costs apart.
    let (_, metrics) = scene.agent.get("/metrics")?;
    let cost = Duration::from_secs_f64(value(&metrics, "plimsoll_sample_cost_seconds")?);
    std::thread::sleep(Duration::from_secs(2) + 2 * 50 * cost);
    let victim = Cgroup::create("work.slice/new")?;
    let mut hog = Hog::start("anon", victim.path(), room, &["--hold", "120"])?;
    scene.expect_killed(&mut hog, &victim)?;
    ensure!(scene.agent.killed() == 2, "{} kills for two growing processes", scene.agent.killed());
    let (_, metrics) = scene.agent.get("/metrics")?;
    ensure!(metrics.contains("plimsoll_workloads_without_row 0\n"), "workloads without a row: {metrics}");
    let (workloads, descriptors) =
        (value(&metrics, "plimsoll_workloads")?, value(&metrics, "plimsoll_workload_descriptors")?);
    ensure!(descriptors <= 5.0 * workloads, "{descriptors} descriptors for {workloads} workloads");
    let core = fs::read_to_string(format!("/proc/{}/stat", scene.agent.part("core")?))?;
    let ticks: Vec<&str> = core.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    figure(
        "among-many",
        &[
            ("workloads", &workloads),
            ("descriptors", &descriptors),
            ("kernel_memory_bytes", &value(&metrics, "plimsoll_kernel_memory_bytes")?),
            ("sample_cost_s", &value(&metrics, "plimsoll_sample_cost_seconds")?),
            ("core_cpu_ticks", &format!("{}+{}", ticks[11], ticks[12])),
        ],
    );
    drop(ballast);
    scene.end()
}

/// The value of a metric.
fn value(metrics: &str, name: &str) -> Result<f64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).with_context(|| format!("no {name} in {metrics}"))
}
