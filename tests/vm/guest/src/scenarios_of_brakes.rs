//! The brake in the kernel: how much it lets past, that it comes back after every hold, and that every process that it
//! stopped goes on or is killed.

use crate::agent::tail;
use crate::cgroup::Cgroup;
use crate::hog_tests::Hog;
use crate::machine::{self, short_lists, wait_for};
use crate::record;
use crate::scenarios::{LOST_EVENTS, counted, fill_events};
use crate::scene::{MIB, PATIENCE, Scene};
use crate::suite::figure;
use anyhow::{Context as _, Result, ensure};
use plimsoll_node::clock;
use rustix::process::{Signal, kill_process};
use std::time::Duration;

/// How far below what is available the threshold is, in MiB.
const CAPACITY_LEFT: u64 = 96;
/// What a hog would take without an agent, in MiB.
const HOG: usize = 256;
/// What each runnable thread may take after the kernel stopped its process.
const PAST: u64 = 2 * MIB;

fn scene(room: u64) -> Result<Scene> {
    Scene::set_with(room, |settings| settings.kernel_brake = true)
}

/// When the kernel stopped this process, by the agent's log so far.
fn reported_stop(scene: &Scene, pid: u32) -> Option<u64> {
    let lines = scene.agent.lines();
    lines.iter().find(|line| line["kernel_brake"] == "stopped" && line["pid"] == pid)?["at_ns"].as_u64()
}

pub(crate) fn past_the_threshold() -> Result<()> {
    let mut scene = scene(CAPACITY_LEFT)?;
    for threads in [1_u64, 2, 4] {
        let (mut tries, mut within, mut beyond) = (0..9, 0, 0);
        while within < 2 {
            tries.next().with_context(|| format!("the kernel hardly ever stopped {threads} threads"))?;
            match past_the_stop(&mut scene, threads)? {
                // The agent's own sample may come before the kernel's counters show the same: then nothing had to be
                // stopped.
                None => {}
                Some(past) if past <= PAST * threads => within += 1,
                // A thread that has to wait for a CPU between the decision to stop and the signal lets the others go
                // on.
                Some(past) => {
                    beyond += 1;
                    ensure!(
                        beyond < 2,
                        "{past} bytes were taken after the stop by {threads} threads, and not only once"
                    );
                }
            }
        }
    }
    wait_for("brakes of the kernel are counted", PATIENCE, || {
        Ok(counted(&scene, "plimsoll_kernel_brakes_total{outcome=\"applied\"}")? >= 3.0)
    })?;
    scene.end()
}

/// How many bytes a hog with so many threads took after the kernel stopped it, if the kernel did.
fn past_the_stop(scene: &mut Scene, threads: u64) -> Result<Option<u64>> {
    let victim = Cgroup::create(&format!("work.slice/threads-{threads}"))?;
    let count = threads.to_string();
    let mut hog = Hog::start("anon", victim.path(), HOG, &["--chunk", "64", "--threads", &count])?;
    let pid = hog.child.id();
    scene.expect_killed(&mut hog, &victim)?;
    // Slices are marked again with a sample above all thresholds, and all is reported by then.
    std::thread::sleep(Duration::from_secs(3));
    let Some(stopped) = reported_stop(scene, pid) else { return Ok(None) };
    let filled = record::read(&hog.record)?;
    let most = |until: u64| filled.iter().filter(|entry| entry.at_ns <= until).map(|entry| entry.bytes).max();
    let before = most(stopped).context("nothing was taken before the stop")?;
    let past = most(u64::MAX).unwrap_or(0) - before;
    figure("kernel-brake", &[("threads", &threads), ("past_kib", &(past >> 10)), ("taken_mib", &(before / MIB))]);
    Ok(Some(past))
}

/// A hold is over by its time while the core is stopped. The next one that grows is stopped again.
pub(crate) fn holds_again() -> Result<()> {
    // What was killed would lie on them, and memory not be back.
    let _lists = short_lists()?;
    let mut scene = scene(CAPACITY_LEFT)?;
    let core = scene.agent.process("core")?;
    for round in 0..2 {
        let victim = Cgroup::create(&format!("work.slice/round-{round}"))?;
        kill_process(core, Signal::STOP)?;
        let mut hog = Hog::start("anon", victim.path(), HOG, &["--hold", "120"])?;
        let pid = hog.child.id();
        let seen = wait_for("the kernel stops it", PATIENCE, || Ok(machine::process_state(pid) == Some('T')));
        // Longer than any hold may last.
        std::thread::sleep(Duration::from_secs(3));
        kill_process(core, Signal::CONT)?;
        seen.with_context(|| format!("round {round}"))?;
        scene.expect_killed(&mut hog, &victim)?;
        wait_for("that the kernel stopped it is reported", PATIENCE, || Ok(reported_stop(&scene, pid).is_some()))
            .with_context(|| format!("round {round}"))?;
        wait_for("memory is back above the threshold", PATIENCE, || {
            Ok(machine::meminfo("MemAvailable")? > scene.settings.threshold_bytes + 64 * MIB)
        })
        .with_context(|| {
            let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default().replace('\n', ", ");
            let threshold = scene.settings.threshold_bytes;
            format!("round {round}, threshold {threshold}: {meminfo}; the log ends with {}", tail(&scene.agent.text()))
        })?;
        // Marks come back with a sample above all thresholds.
        std::thread::sleep(Duration::from_secs(2));
    }
    scene.end()
}

/// The event that the kernel stopped a process is lost in a full ring buffer: the process goes on all the same.
pub(crate) fn stop_lost() -> Result<()> {
    let _lists = short_lists()?;
    // The one fits above the threshold, both together do not, each with tens of MiB to spare: what the agent takes for
    // itself is a guess.
    let small = Cgroup::create("work.slice/small")?;
    // Within its reservation: it is stopped, and another workload is evicted. The agent would open a new one before that
    // is written, and read it again later.
    small.write("memory.low", "160M")?;
    let mut scene = scene(160)?;
    let large = Cgroup::create("work.slice/large")?;
    let mut pays = Hog::start("anon", large.path(), 112, &[])?;
    pays.wait_taken(112, PATIENCE)?;
    wait_for("the agent knows both", PATIENCE, || Ok(counted(&scene, "plimsoll_workloads ")? >= 4.0))?;
    let core = scene.agent.process("core")?;
    kill_process(core, Signal::STOP)?;
    let filled = fill_events();
    let mut stopped = Hog::start("anon", small.path(), 96, &["--hold", "120"])?;
    let pid = stopped.child.id();
    let seen = wait_for("the kernel stops it", PATIENCE, || Ok(machine::process_state(pid) == Some('T')));
    let continued = clock::monotonic().0;
    kill_process(core, Signal::CONT)?;
    filled?;
    seen?;
    scene.expect_killed(&mut pays, &large)?;
    stopped.wait_taken(96, PATIENCE).context("it was stopped, and the event of that was lost")?;
    // It may be stopped once more before the other one's memory is back; the event of that is not lost.
    let reported = reported_stop(&scene, pid);
    ensure!(reported.is_none_or(|at| at > continued), "the stop was reported after all");
    wait_for("what was lost is counted", PATIENCE, || Ok(counted(&scene, LOST_EVENTS)? > 0.0))?;
    scene.end()
}
