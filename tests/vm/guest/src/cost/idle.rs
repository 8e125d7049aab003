//! What the agent, earlyoom and systemd-oomd take while nothing happens, for few and for many workloads, and while memory
//! is taken and given back as fast as a processor can; the same while nothing happens on a node with pods and a containerd.
//! In one boot, one after the other, on a machine with systemd.

use super::storm::{self, Kind};
use super::{Machine, SETTLED, pods, save, settings};
use crate::agent::{Agent, Settings};
use crate::bench;
use crate::bench::rival::{self, Rival, Running};
use crate::cgroup::{Cgroup, ROOT};
use crate::containerd::{self, Driver};
use crate::machine::{meminfo, named, now_ns, wait_for};
use crate::pods_tests::FACTS;
use crate::scene::{MIB, PATIENCE, allow_files_of_the_unit};
use crate::systemd;
use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

/// How long a window is, at rest and in a storm. At rest the agent walks the tree, and measures what pods take of disks, every
/// 15 minutes, and reads all figures anew every 30: each window has a whole cycle of both. In a storm a processor has work all
/// the time, so that a window takes the host as long as many at rest.
const AT_REST: Duration = Duration::from_mins(30);
const IN_STORM: Duration = Duration::from_secs(4);
/// The threshold, which nothing crosses.
const THRESHOLD: u64 = 64 * MIB;

/// What there is of workloads, without processes in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workloads {
    /// Cgroups in the slice of the workloads, which the agent knows by that. Also measured in storms.
    Cgroups,
    /// The same on a machine with more memory, and not in storms.
    Large,
    /// Pods, which the agent has a list of, with thresholds on the kubelet's disk. Beside a containerd.
    Pods,
}

impl Workloads {
    /// The cell that it is.
    const fn cell(self) -> &'static str {
        match self {
            Self::Cgroups => "idle",
            Self::Large => "large",
            Self::Pods => "pods",
        }
    }

    /// What is measured beside them, in this order.
    const fn watchers(self) -> &'static [Rival] {
        match self {
            Self::Cgroups => &[Rival::PlimsollEbpf, Rival::Earlyoom, Rival::SystemdOomd],
            Self::Large | Self::Pods => &[Rival::PlimsollEbpf, Rival::Earlyoom],
        }
    }

    fn settings(self) -> Result<Settings> {
        let settings = settings()?;
        Ok(match self {
            Self::Cgroups | Self::Large => settings,
            Self::Pods => Settings {
                pod_facts: Some(FACTS.into()),
                node_disk: Some((None, THRESHOLD)),
                node_inodes: Some(1000),
                ..settings
            },
        })
    }
}

/// All that was measured.
#[derive(Serialize)]
struct Measured {
    cell: &'static str,
    #[serde(flatten)]
    machine: Machine,
    versions: BTreeMap<String, String>,
    windows: Vec<Window>,
}

/// What one watcher took in one window.
#[derive(Serialize)]
struct Window {
    watcher: String,
    /// How many workloads there are.
    workloads: u32,
    /// Whether memory was taken and given back all the time.
    storm: bool,
    elapsed_ns: u64,
    /// How often its threads went to sleep by themselves, and so were woken, by process and thread.
    wakeups: BTreeMap<String, u64>,
    cpu_ns: u64,
    /// How long each of its threads ran, by process and thread.
    threads_cpu_ns: BTreeMap<String, u64>,
    /// Of all its processes.
    pss_bytes: u64,
    /// Of each of them.
    processes_pss_bytes: BTreeMap<String, u64>,
    /// Charged to its cgroup. Absent before Linux 5.18, whose memory.stat has no such figure.
    kernel_bytes: Option<u64>,
    /// All that is charged to its cgroup.
    charged_bytes: u64,
    descriptors: u64,
}

pub(super) fn measure(kind: Workloads, windows: usize, workloads: &[u32], out: &Path) -> Result<()> {
    ensure!(systemd::is_here(), "other daemons are units of systemd: boot with `--root systemd`");
    bench::set_up()?;
    allow_files_of_the_unit()?;
    let (machine, versions) = (Machine::here()?, bench::versions()?);
    let mut measured = Measured { cell: kind.cell(), machine, versions, windows: Vec::new() };
    let storms: &[bool] = if kind == Workloads::Cgroups { &[true, false] } else { &[false] };
    let turns: Vec<(u32, bool)> =
        workloads.iter().flat_map(|count| storms.iter().map(|is_storm| (*count, *is_storm))).collect();
    println!("PLAN {}", windows * kind.watchers().len() * turns.len());
    let _disk = if kind == Workloads::Pods {
        let disk = pods::disk()?;
        containerd::start(Driver::Systemd)?;
        Some(disk)
    } else {
        None
    };
    let (mut there, mut known) = (0, Vec::new());
    for (count, is_storm) in turns {
        while there < count {
            match kind {
                Workloads::Cgroups | Workloads::Large => {
                    let idle = Path::new(ROOT).join(bench::SLICE).join(format!("idle-{there}"));
                    fs::create_dir(&idle).with_context(|| format!("cannot make {}", idle.display()))?;
                }
                Workloads::Pods => pods::make(there, &mut known)?,
            }
            there += 1;
        }
        if kind == Workloads::Pods {
            pods::list(&known)?;
        }
        for &watcher in kind.watchers() {
            rival::clear()?;
            let watched = Watched::start(watcher, kind, count)?;
            thread::sleep(SETTLED);
            let storm = is_storm.then(Storm::start).transpose()?;
            for _ in 0..windows {
                let window = watched.window(watcher, count, is_storm)?;
                println!(
                    "ROUND {} {} {count} storm={is_storm} wakeups={} cpu_ns={} pss_bytes={} descriptors={}",
                    measured.windows.len() + 1,
                    window.watcher,
                    window.wakeups.values().sum::<u64>(),
                    window.cpu_ns,
                    window.pss_bytes,
                    window.descriptors
                );
                measured.windows.push(window);
                save(out, &measured)?;
            }
            drop(storm);
            watched.running.stop()?;
        }
    }
    Ok(())
}

/// A watcher that runs, and the cgroup of its processes.
struct Watched {
    running: Running,
    cgroup: Cgroup,
}

impl Watched {
    fn start(watcher: Rival, kind: Workloads, count: u32) -> Result<Self> {
        let running = match watcher {
            // With the shipped unit's capabilities.
            Rival::PlimsollEbpf => {
                let settings = kind.settings()?;
                let agent = Agent::start(&settings)?;
                if kind == Workloads::Pods {
                    all_processes_work(&agent, count)?;
                }
                Running::Agent(agent, settings.cgroup()?)
            }
            other => {
                // As if all that is available until then were taken as anonymous memory.
                let taken = meminfo("MemAvailable")?.saturating_sub(THRESHOLD);
                other.start(THRESHOLD, meminfo("AnonPages")? + taken)?
            }
        };
        let cgroup = running.cgroup()?.with_context(|| format!("{} has no cgroup", bench::name(&watcher)))?;
        Ok(Self { running, cgroup })
    }

    fn window(&self, watcher: Rival, workloads: u32, storm: bool) -> Result<Window> {
        let cpu = || Ok(named(&self.cgroup.read("cpu.stat")?, "usage_usec").context("no usage_usec")? * 1000);
        let before = (self.threads()?, cpu()?, now_ns());
        thread::sleep(if storm { IN_STORM } else { AT_REST });
        let elapsed_ns = now_ns() - before.2;
        let (after, used): (_, Result<u64>) = (self.threads()?, cpu());
        let since = |of: fn(&Thread) -> u64| {
            let before = |name| before.0.get(name).map_or(0, of);
            after.iter().map(|(name, thread)| (name.clone(), of(thread).saturating_sub(before(name)))).collect()
        };
        let (mut processes_pss_bytes, mut descriptors) = (BTreeMap::new(), 0);
        for process in self.processes()? {
            let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
            *processes_pss_bytes.entry(part(process)?).or_default() += named(&rollup, "Pss:").context("no Pss")? * 1024;
            descriptors += fs::read_dir(format!("/proc/{process}/fd"))?.count() as u64;
        }
        Ok(Window {
            watcher: bench::name(&watcher),
            workloads,
            storm,
            elapsed_ns,
            wakeups: since(|thread| thread.slept),
            cpu_ns: used? - before.1,
            threads_cpu_ns: since(|thread| thread.ran_ns),
            pss_bytes: processes_pss_bytes.values().sum(),
            processes_pss_bytes,
            kernel_bytes: named(&self.cgroup.read("memory.stat")?, "kernel"),
            charged_bytes: self.cgroup.current()?,
            descriptors,
        })
    }

    fn processes(&self) -> Result<Vec<u32>> {
        let text = self.cgroup.read("cgroup.procs")?;
        let processes: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        ensure!(!processes.is_empty(), "{} is empty", self.cgroup.name());
        Ok(processes)
    }

    /// What each thread did so far. Threads of one name in one process are one.
    fn threads(&self) -> Result<BTreeMap<String, Thread>> {
        let mut threads = BTreeMap::<String, Thread>::new();
        for process in self.processes()? {
            let part = part(process)?;
            for task in fs::read_dir(format!("/proc/{process}/task"))? {
                let task = task?.path();
                let read = |file: &str| fs::read_to_string(task.join(file));
                let (status, ran, name) = (read("status")?, read("schedstat")?, read("comm")?);
                let thread = threads.entry(format!("{part} {}", name.trim())).or_default();
                thread.slept += named(&status, "voluntary_ctxt_switches:").context("no voluntary_ctxt_switches")?;
                let ran = ran.split_ascii_whitespace().next().context("schedstat is empty")?;
                thread.ran_ns += ran.parse::<u64>().with_context(|| format!("schedstat has {ran:?}"))?;
            }
        }
        Ok(threads)
    }
}

/// What a thread did since it was started.
#[derive(Default)]
struct Thread {
    /// How often it went to sleep by itself.
    slept: u64,
    ran_ns: u64,
}

/// Which process of the agent it is: they are the same program with another first argument.
fn part(process: u32) -> Result<String> {
    let line = fs::read(format!("/proc/{process}/cmdline"))?;
    let part = line.split(|byte| *byte == 0).nth(1).unwrap_or_default();
    Ok(String::from_utf8_lossy(part).into_owned())
}

/// Waits until the agent knows all pods. It has all of its processes.
fn all_processes_work(agent: &Agent, pods: u32) -> Result<()> {
    for part in ["services", "scanner", "broker"] {
        agent.part(part)?;
    }
    let known = format!("{pods} pods are known");
    wait_for(&known, PATIENCE, || Ok(agent.text().contains(&known)))
        .with_context(|| format!("the log ends with: {}", crate::agent::tail(&agent.text())))
}

/// A process that takes and gives back memory until this is dropped.
struct Storm(std::process::Child);

impl Storm {
    fn start() -> Result<Self> {
        let child = storm::command(Kind::Allocation, 0, None)?.stdout(Stdio::null()).spawn();
        Ok(Self(child.context("cannot start a storm")?))
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
