//! What watching costs while nothing happens, for few and for many workloads.

use crate::cgroup::{Cgroup, ROOT};
use crate::hog_tests::Hog;
use crate::machine::{self, wait_for};
use crate::scenarios::counted;
use crate::scene::{MIB, PATIENCE, Scene, allow_files_of_the_unit};
use crate::suite::figure;
use anyhow::{Context as _, Result, bail, ensure};
use rustix::param::page_size;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How many descriptors the agent has open for a workload, at most.
const DESCRIPTORS: f64 = 5.0;
/// How many times the CPU time of some workloads five times as many may take: each duty has a share of a CPU at most.
const MORE_CPU: u64 = 3;

/// What watching costs at rest, for some workloads and for five times as many.
pub(crate) fn at_rest() -> Result<()> {
    const MEASURED: Duration = Duration::from_mins(1);
    let mut each = Vec::new();
    for count in [100, 500] {
        for number in 0..count {
            Cgroup::create(&format!("work.slice/idle-{number}"))?;
        }
        let scene = Scene::set(96)?;
        let cgroup = scene.settings.cgroup()?;
        let used = || machine::named(&cgroup.read("cpu.stat")?, "usage_usec").context("cpu.stat has no usage_usec");
        // What it does at its start is over by then, and what it reads of itself was read.
        std::thread::sleep(Duration::from_secs(20));
        let before = used()?;
        std::thread::sleep(MEASURED);
        let cpu_ms = (used()? - before) / 1000;
        let value = |name: &str| counted(&scene, &format!("{name} "));
        let (workloads, descriptors) = (value("plimsoll_workloads")?, value("plimsoll_workload_descriptors")?);
        ensure!(descriptors <= DESCRIPTORS * workloads, "{descriptors} descriptors for {workloads} workloads");
        let kernel_memory = value("plimsoll_kernel_memory_bytes")?;
        figure("at-rest", &[("workloads", &workloads), ("cpu_ms_a_minute", &cpu_ms), ("descriptors", &descriptors)]);
        each.push((workloads, cpu_ms, kernel_memory));
        scene.end()?;
    }
    let [(fewer, less, small), (more, much, large)] = each[..] else { bail!("{} measurements", each.len()) };
    let a_workload = (large - small) / (more - fewer);
    figure("at-rest-of-more", &[("cpu_ms", &much), ("than_ms", &less), ("kernel_bytes_a_workload", &a_workload)]);
    ensure!(much <= MORE_CPU * less, "{more} workloads take {much} ms of CPU a minute, and {fewer} take {less} ms");
    // An open file of a cgroup keeps the page that its text was written into, and less than 1 KiB for itself.
    let bound = DESCRIPTORS * f64::from(u32::try_from(page_size())? + 1024);
    ensure!(a_workload <= bound, "{a_workload} bytes of kernel memory for a workload, of {bound} that five files take");
    Ok(())
}

/// What part of a CPU all of the agent may take with more workloads than it has rows for: one in so many. Each of its six
/// duties takes a fiftieth at most.
const CPU_SHARE: u64 = 4;

/// More workloads than there are rows: the rest is counted, the agent takes a bounded part of a CPU, and a workload that
/// it knew before grows and is killed.
pub(crate) fn more_than_rows() -> Result<()> {
    const ROWS: u32 = 4096;
    const MANY: u32 = 5000;
    const MEASURED: Duration = Duration::from_mins(1);
    allow_files_of_the_unit()?;
    let victim = Cgroup::create("work.slice/known")?;
    // Far below what is available, of which the cgroups and the agent's descriptors take a part.
    let mut scene = Scene::set_with(0, |settings| settings.threshold_bytes = 160 * MIB)?;
    for number in 0..MANY {
        fs::create_dir(Path::new(ROOT).join(format!("work.slice/idle-{number}")))?;
    }
    // The victim and two bystanders are there, too.
    let expected =
        [format!("\nplimsoll_workloads {ROWS}\n"), format!("\nplimsoll_workloads_without_row {}\n", MANY + 3 - ROWS)];
    let (begun, mut metrics) = (Instant::now(), String::new());
    // The next walk comes after fifty times as long as the last one took.
    wait_for("the workloads without a row are counted", 8 * PATIENCE, || {
        std::thread::sleep(Duration::from_secs(1));
        (_, metrics) = scene.agent.get("/metrics")?;
        Ok(expected.iter().all(|line| metrics.contains(line)))
    })
    .with_context(|| format!("{expected:?}: {metrics}"))?;
    let counted_s = begun.elapsed().as_secs();
    let (agent, value) = (scene.settings.cgroup()?, |name: &str| counted(&scene, &format!("{name} ")));
    let used = || machine::named(&agent.read("cpu.stat")?, "usage_usec").context("cpu.stat has no usage_usec");
    let (before, begun) = (used()?, Instant::now());
    std::thread::sleep(MEASURED);
    let (cpu_ms, elapsed_ms) = ((used()? - before) / 1000, u64::try_from(begun.elapsed().as_millis())?);
    let (available, kernel_memory) = (machine::meminfo("MemAvailable")?, value("plimsoll_kernel_memory_bytes")?);
    figure(
        "more-than-rows",
        &[
            ("counted_after_s", &counted_s),
            ("cpu_ms", &cpu_ms),
            ("of_ms", &elapsed_ms),
            ("sample_cost_s", &value("plimsoll_sample_cost_seconds")?),
            ("kernel_memory_bytes", &kernel_memory),
            ("available_bytes", &available),
        ],
    );
    ensure!(cpu_ms <= elapsed_ms / CPU_SHARE, "the agent took {cpu_ms} ms of CPU in {elapsed_ms} ms");
    let room = usize::try_from((available - scene.settings.threshold_bytes) / MIB)?;
    let mut hog = Hog::start("anon", victim.path(), room + 96, &["--rate", "40", "--hold", "60"])?;
    scene.expect_killed(&mut hog, &victim)?;
    scene.end()
}
