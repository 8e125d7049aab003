//! What code that runs in the reporter could do to the other processes of the agent, done here by root with every
//! capability, which may do more than the reporter; and a workload that is new among many.

use crate::agent::{LOSE_EVENTS, values};
use crate::cgroup::{Cgroup, ROOT};
use crate::hog_tests::{Hog, remove_leftovers};
use crate::machine::{self, wait_for};
use crate::scene::{MIB, PATIENCE, Scene, allow_files_of_the_unit};
use crate::suite::figure;
use crate::{measure, record};
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

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

/// How long the process that is met has grown when the threshold is crossed.
const BEFORE: Duration = Duration::from_millis(5);
/// It has to have begun in less, or in less than a tenth of the pause between two walks on a slow machine; or the test shows
/// less than it says.
const BEFORE_MOST: Duration = Duration::from_millis(100);
/// That pause is so many times as long as a walk takes, and as long as this at most. It reads directories of all workloads, as
/// the sample before reads files of them, which takes as long.
const PAUSE: f64 = 50.0;
const PAUSE_MOST: f64 = 10.0;
/// What is taken in less time than [`BEFORE`] on a slow machine: less than this above the threshold, what else happens on
/// the machine might cross it.
const NEAR: u64 = 6 * MIB;
/// More than is available above the threshold for growth to be counted from there, which is 3 % of all memory.
const PLENTIFUL: u64 = 40 * MIB;

/// A process that begins to grow 5 ms before the threshold is crossed, in a cgroup that was made just before among
/// thousands, is found by its crossing and evicted alone. No walk finds it in time: one was just taken, and none is for fifty
/// times as long as it took. The event of its cgroup is lost.
pub(crate) fn new_among_many() -> Result<()> {
    const MANY: usize = 4000;
    allow_files_of_the_unit()?;
    let known = Cgroup::create("work.slice/idle-0")?;
    let started = Instant::now();
    for number in 1..MANY {
        fs::create_dir(Path::new(ROOT).join(format!("work.slice/idle-{number}")))?;
    }
    let (made_after, launched) = (started.elapsed(), Instant::now());
    let left = 160 * MIB;
    let mut scene = Scene::set_with(0, |settings| {
        settings.threshold_bytes = left;
        settings.environment.push((LOSE_EVENTS, "cgroups".to_owned()));
    })?;
    let ready_after = launched.elapsed();
    // A walk follows each kill.
    let mut hog = Hog::start("anon", known.path(), mib_above(left, 0)? + 16, &["--hold", "120"])?;
    scene.expect_killed(&mut hog, &known)?;
    let filled = record::read(&hog.record)?;
    let rate = filled.last().and_then(|last| measure::rate_before(&filled, last.at_ns)).context("it grew")?;
    let near = NEAR.max(rate / 1000 * u64::try_from(BEFORE.as_millis())?);

    let outside = Cgroup::create("other.slice/outside")?;
    let ballast = come_near(&mut scene, &outside, left, near)?;
    let sample_cost = value(&scene.agent.get("/metrics")?.1, "plimsoll_sample_cost_seconds")?;
    scene.agent.empty_log()?;
    let elsewhere = Cgroup::create("other.slice/elsewhere")?;
    let most = usize::try_from(near / MIB)? + 96;
    let more = ["--held", "--chunk", "64", "--hold", "120"];
    let mut hog = Hog::spawn("anon", elsewhere.path(), most, 64, &more, Stdio::piped())?;
    wait_for("the process waits", PATIENCE, || Ok(machine::process_state(hog.child.id()) == Some('S')))?;
    let above = machine::meminfo("MemAvailable")?.saturating_sub(left);
    let made_ns = machine::now_ns();
    let victim = Cgroup::create("work.slice/new")?;
    victim.write("cgroup.procs", &hog.child.id().to_string())?;
    let freed_ns = machine::now_ns();
    drop(hog.child.stdin.take());
    scene.expect_killed(&mut hog, &victim)?;
    ensure!(scene.agent.killed() == 1, "{} kills for one growing process", scene.agent.killed());
    let crossed = measure::woke(&scene.agent.lines())
        .and_then(|woke| woke.event_ns)
        .context("it was not evicted at its crossing")?;
    let before_us = |at_ns: u64| crossed.saturating_sub(at_ns) / 1000;
    let first = record::read(&hog.record)?.first().map_or(crossed, |first| first.at_ns);
    let before = Duration::from_micros(before_us(freed_ns));
    let most = BEFORE_MOST.max(Duration::try_from_secs_f64((sample_cost * PAUSE).min(PAUSE_MOST) / 10.0)?);
    ensure!(before < most, "it began {before:?} before, and a sample takes {sample_cost} s");

    let (_, metrics) = scene.agent.get("/metrics")?;
    ensure!(metrics.contains("plimsoll_workloads_without_row 0\n"), "workloads without a row: {metrics}");
    let (workloads, descriptors) =
        (value(&metrics, "plimsoll_workloads")?, value(&metrics, "plimsoll_workload_descriptors")?);
    ensure!(workloads >= 4000.0, "{workloads} workloads");
    ensure!(descriptors <= 5.0 * workloads, "{descriptors} descriptors for {workloads} workloads");
    figure(
        "among-many",
        &[
            ("workloads", &workloads),
            ("made_s", &made_after.as_secs()),
            ("ready_s", &ready_after.as_secs()),
            ("rate_mib", &(rate / MIB)),
            ("above_kib", &(above / 1024)),
            ("cgroup_made_us_before", &before_us(made_ns)),
            ("began_us_before", &before_us(freed_ns)),
            ("filled_us_before", &before_us(first)),
            ("descriptors", &descriptors),
            ("kernel_memory_bytes", &value(&metrics, "plimsoll_kernel_memory_bytes")?),
            ("sample_cost_s", &sample_cost),
        ],
    );
    drop(ballast);
    remove_leftovers()?;
    scene.end()
}

/// Has `near` bytes available above the threshold, of which growth is not counted for any workload that lives.
fn come_near(scene: &mut Scene, outside: &Cgroup, left: u64, near: u64) -> Result<Hog> {
    // What is no workload takes most of it.
    let most = mib_above(left, PLENTIFUL)?;
    let mut ballast = Hog::start("anon", outside.path(), most, &["--hold", "120"])?;
    ballast.wait_taken(most, PATIENCE)?;
    // Growth is counted from a sample that has that in it. An OOM kill at the limit of a cgroup causes one, at once.
    let small = Cgroup::create("other.slice/small")?;
    small.write("memory.max", "8M")?;
    let mut killed = Hog::start("anon", small.path(), 32, &[])?;
    killed.child.wait()?;
    wait_for("the OOM kill is reported", PATIENCE, || Ok(scene.agent.text().contains("the OOM killer chose process")))?;
    scene.expect_oom_kill()?;
    // The report comes before the sample, which takes less than this.
    std::thread::sleep(Duration::from_secs(2));
    // The rest is in files on tmpfs, whose writers have ended.
    for number in 1..=3 {
        let more = mib_above(left, near)?;
        if more > 0 {
            let writer = Cgroup::existing(&format!("work.slice/idle-{number}"))?;
            let mut file = Hog::start("tmpfs", writer.path(), more, &["--keep", "--hold", "0"])?;
            ensure!(file.child.wait()?.success(), "{more} MiB could not be written");
        }
    }
    scene.check()?;
    Ok(ballast)
}

/// How many MiB are available above the threshold, less `kept` bytes.
fn mib_above(threshold: u64, kept: u64) -> Result<usize> {
    Ok(usize::try_from(machine::meminfo("MemAvailable")?.saturating_sub(threshold + kept) / MIB)?)
}

/// The value of a metric.
fn value(metrics: &str, name: &str) -> Result<f64> {
    values(metrics, &format!("{name} ")).next().with_context(|| format!("no {name} in {metrics}"))
}
