//! Pressure cycles, one after another: a process in a new cgroup of a slice grows past the slice's threshold, is evicted,
//! and its memory is back, beside pods that are known. What the agent holds in the last hundred must be what it held in
//! the first.

use crate::cgroup::Cgroup;
use crate::hog_tests::guest;
use crate::machine::{named, wait_for};
use crate::node_storage_tests::KUBELET;
use crate::pods_tests::{FACTS, Pod, write_facts};
use crate::scenarios::counted;
use crate::scene::{MIB, PATIENCE, Scene, was_killed};
use crate::suite::figure;
use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many cycles.
    #[arg(long, default_value_t = 10_000)]
    cycles: u32,
}

/// How many cycles are compared at the beginning and at the end.
const WINDOW: u32 = 100;
/// How often the agent is measured in them, in cycles.
const EVERY: u32 = 10;
/// How often bystanders are checked and the log is emptied, in cycles.
const CHECKS: u32 = 100;
/// The slice's own limit, and the threshold below it.
const LIMIT: u64 = 48 * MIB;
const THRESHOLD: u64 = 28 * MIB;
/// What the process would take: less than the limit.
const GROWTH_MIB: &str = "24";
/// How many pods there are, which do nothing.
const PODS: u16 = 20;

/// What is measured of the agent: a name, how, and by how much it may be more at the end.
type Figure = (&'static str, fn(&Scene) -> Result<u64>, u64);

const FIGURES: [Figure; 11] = [
    ("supervisor-pss-kib", |scene| pss(scene.agent.pid()), 256),
    ("core-pss-kib", |scene| pss(scene.agent.part("core")?), 512),
    ("reporter-pss-kib", |scene| pss(scene.agent.part("reporter")?), 1024),
    ("services-pss-kib", |scene| pss(scene.agent.part("services")?), 1024),
    ("scanner-pss-kib", |scene| pss(scene.agent.part("scanner")?), 512),
    ("broker-pss-kib", |scene| pss(scene.agent.part("broker")?), 512),
    ("kernel-memory-kib", kernel_memory, 256),
    // What the kernel reports of programs and maps that the agent has open.
    ("bpf-memory-kib", bpf_memory, 0),
    ("descriptors", descriptors, 4),
    ("stopped-map-entries", stopped, 2),
    ("records-lost", |scene| lost(scene), 10),
];

pub(crate) fn main(arguments: &Arguments) -> Result<()> {
    soak(arguments.cycles)
}

/// A number of cycles that fits into a suite.
pub(crate) fn three_hundred() -> Result<()> {
    soak(300)
}

fn soak(cycles: u32) -> Result<()> {
    ensure!(cycles >= 2 * WINDOW, "at least {} cycles are compared", 2 * WINDOW);
    let slice = Cgroup::create("work.slice")?;
    slice.write("memory.max", &LIMIT.to_string())?;
    // Without a kubelet's directory nothing is measured.
    fs::create_dir_all(KUBELET).with_context(|| format!("cannot make {KUBELET}"))?;
    let (pods, mut processes) = pods()?;
    let facts: Vec<&Value> = pods.iter().map(|pod| &pod.facts).collect();
    write_facts(FACTS, &json!({"items": facts}).to_string())?;
    let mut scene = Scene::set_with(0, |settings| {
        settings.pod_facts = Some(FACTS.into());
        settings.threshold_bytes = 32 * MIB;
        settings.slice_threshold_bytes = Some(THRESHOLD);
        settings.kernel_brake = true;
        settings.environment.clear();
    })?;
    wait_for("the scanner runs", PATIENCE, || Ok(scene.agent.part("scanner").is_ok()))?;
    let begun = Instant::now();
    let (mut first, mut last) = (Window::begin(&scene)?, None);
    for number in 0..cycles {
        if number == WINDOW {
            first.end(&scene)?;
        }
        if number == cycles - WINDOW {
            last = Some(Window::begin(&scene)?);
        }
        cycle(&slice).with_context(|| format!("cycle {number} of {cycles}"))?;
        if number % EVERY == 0 {
            match &mut last {
                Some(last) => last.measure(&scene)?,
                None if number < WINDOW => first.measure(&scene)?,
                None => {}
            }
        }
        if number % CHECKS == CHECKS - 1 {
            let checked = scene.check();
            checked.with_context(|| format!("{:?} victims were stuck", counted(&scene, "plimsoll_stuck_victims")))?;
            println!("cycle {} of {cycles} after {} s", number + 1, begun.elapsed().as_secs());
            scene.agent.empty_log()?;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let mut last = last.context("no last window")?;
    last.end(&scene)?;
    let mut kills = 0.0;
    wait_for("all kills are counted", PATIENCE, || {
        kills = counted(&scene, "plimsoll_kills_total")?;
        Ok(kills >= f64::from(cycles))
    })
    .with_context(|| format!("{kills} kills in {cycles} cycles"))?;
    figure("soak", &[("name", &"cycles"), ("cycles", &cycles), ("kills", &kills), ("s", &format!("{seconds:.0}"))]);
    let mut more = Vec::new();
    for ((name, _, bound), (first, last)) in FIGURES.iter().zip(first.figures.iter().zip(last.figures)) {
        figure("soak", &[("name", name), ("first", first), ("last", &last), ("most", &(first + bound))]);
        if last > first + bound {
            more.push(format!("{name} {first} -> {last}"));
        }
    }
    ensure!(more.is_empty(), "the last {WINDOW} cycles exceed the first: {}", more.join(", "));
    scene.end()?;
    for process in &mut processes {
        ensure!(process.try_wait()?.is_none(), "a pod that did nothing was killed");
        process.kill()?;
        process.wait()?;
    }
    fs::remove_dir(KUBELET).with_context(|| format!("cannot remove {KUBELET}"))
}

/// The pods beside it, each with its process.
fn pods() -> Result<(Vec<Pod>, Vec<Child>)> {
    let mut pods = (Vec::new(), Vec::new());
    for number in 1..=PODS {
        let pod = Pod::create("besteffort", number, 0, &json!({}))?;
        pods.1.push(pod.holds(1)?);
        pods.0.push(pod);
    }
    Ok(pods)
}

fn cycle(slice: &Cgroup) -> Result<()> {
    let victim = slice.path().join("soak");
    fs::create_dir(&victim).context("cannot make a cgroup")?;
    let mut hog = guest().args(["hog", "anon", "--mib", GROWTH_MIB, "--cgroup"]).arg(&victim).spawn()?;
    let process = pidfd_open(Pid::from_child(&hog), PidfdFlags::empty())?;
    let limit = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    ensure!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit))? == 1, "it was not evicted");
    let ended = hog.wait()?;
    ensure!(was_killed(ended), "it ended by itself: {ended}");
    // The agent may have it open, but not in use.
    wait_for("the cgroup can be removed", PATIENCE, || Ok(fs::remove_dir(&victim).is_ok()))?;
    wait_for("memory is back", PATIENCE, || Ok(slice.current()? + THRESHOLD + 4 * MIB < LIMIT))
}

/// Figures of some cycles: the mean of several measurements, of a counter the difference.
struct Window {
    figures: [u64; FIGURES.len()],
    measured: u64,
    lost: u64,
}

impl Window {
    fn begin(scene: &Scene) -> Result<Self> {
        Ok(Self { figures: [0; FIGURES.len()], measured: 0, lost: lost(scene)? })
    }

    fn measure(&mut self, scene: &Scene) -> Result<()> {
        for (sum, (name, read, _)) in self.figures.iter_mut().zip(FIGURES) {
            *sum += read(scene).with_context(|| format!("cannot measure {name}"))?;
        }
        self.measured += 1;
        Ok(())
    }

    fn end(&mut self, scene: &Scene) -> Result<()> {
        for figure in &mut self.figures {
            *figure /= self.measured.max(1);
        }
        if let Some(counter) = self.figures.last_mut() {
            *counter = lost(scene)? - self.lost;
        }
        Ok(())
    }
}

fn pss(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    named(&text, "Pss:").with_context(|| format!("{path} has no Pss"))
}

/// Memory of the kernel that is charged to the agent's cgroup.
fn kernel_memory(scene: &Scene) -> Result<u64> {
    let stat = scene.settings.cgroup()?.read("memory.stat")?;
    let fields = named(&stat, "kernel").or_else(|| Some(named(&stat, "slab")? + named(&stat, "kernel_stack")?));
    Ok(fields.context("memory.stat has no kernel memory")? >> 10)
}

fn processes(scene: &Scene) -> Result<[u32; 6]> {
    let part = |name| scene.agent.part(name);
    let (services, scanner, broker) = (part("services")?, part("scanner")?, part("broker")?);
    Ok([scene.agent.pid(), part("core")?, part("reporter")?, services, scanner, broker])
}

fn entries(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

fn bpf_memory(scene: &Scene) -> Result<u64> {
    let mut bytes = 0;
    for path in entries(Path::new(&format!("/proc/{}/fdinfo", scene.agent.part("core")?)))? {
        // It may be closed by now.
        let text = fs::read_to_string(path).unwrap_or_default();
        bytes += named(&text, "memlock:").unwrap_or(0);
    }
    ensure!(bytes > 0, "the core has no program or map open");
    Ok(bytes >> 10)
}

fn descriptors(scene: &Scene) -> Result<u64> {
    let counts = processes(scene)?.map(|process| Ok(entries(Path::new(&format!("/proc/{process}/fd")))?.len() as u64));
    counts.into_iter().sum()
}

fn stopped(_: &Scene) -> Result<u64> {
    Ok(plimsoll_sense::stopped::list(Path::new("/sys/fs/bpf/plimsoll/stopped"))?.len() as u64)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
fn lost(scene: &Scene) -> Result<u64> {
    Ok(counted(scene, "plimsoll_lost_records_total")? as u64)
}
