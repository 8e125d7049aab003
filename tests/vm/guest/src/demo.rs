//! The same growing process, met by one watcher after another, and what each of them made of it.
//!
//! In every round the crossing is taken in the kernel by the guest's own observer, what the process had filled comes
//! from its own record, and when memory was back from /proc/meminfo, read every few milliseconds. The agent's own log
//! is taken for four things only: when it was awake, when the threshold that woke it was crossed, when it froze, and
//! when it killed.

use crate::agent::{Agent, Settings, tail};
use crate::cgroup::Cgroup;
use crate::hog_tests::{Hog, guest};
use crate::machine::{self, Dice, now_ns, short_lists, wait_for};
use crate::measure::{Sample, back, crossed_ns, filled_at, find, past, rate_before, sampled, woke};
use crate::observer::{Crossing, Observer};
use crate::record::{self, Filled};
use crate::scene::MIB;
use anyhow::{Context as _, Result, bail, ensure};
use plimsoll_node::priority::{Level, Priority, raise_this_thread};
use plimsoll_node::zoneinfo::Zones;
use plimsoll_sense::bare::Bare;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The watchers, in this order within each round.
    #[arg(long, value_delimiter = ',', default_value = "poll-10s,psi,ebpf")]
    watchers: Vec<Watcher>,
    /// How many rounds are played with each of them.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// How many crossings without a kill are timed, beside as many bare wakes.
    #[arg(long, default_value_t = 0)]
    wakes: usize,
    /// The threshold: act below so many MiB available, which is what is left before the OOM killer.
    #[arg(long, default_value_t = 100)]
    room_mib: u64,
    /// MiB a second at which the process comes to the threshold, one for each round in turn; 0 is as fast as it can.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    rates: Vec<u64>,
    /// What the moments within the poll's period are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Let the kernel itself stop what grows, in the rounds of `ebpf`.
    #[arg(long)]
    kernel_brake: bool,
    /// Keep the processors' own lists of free pages short, so that the process's record and what was available can be
    /// held against each other closely: what is on these lists is free and not counted as available.
    #[arg(long)]
    short_lists: bool,
    /// Keep what was available over time, for a picture.
    #[arg(long)]
    trace: bool,
    /// Seconds over which the agent's wake-ups are counted while nothing happens; 0 leaves it out.
    #[arg(long, default_value_t = 10)]
    idle: u64,
    /// Where the measurements are written, as JSON.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Watcher {
    /// Programs in the kernel.
    Ebpf,
    /// A pressure trigger.
    Psi,
    /// A sample every 10 s, as the kubelet takes it.
    #[value(name = "poll-10s")]
    #[serde(rename = "poll-10s")]
    Poll,
}

impl Watcher {
    /// The configuration's name of it.
    const fn source(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Psi => "psi",
            Self::Poll => "poll",
        }
    }
}

/// All that was measured. Times are nanoseconds, sizes bytes; what did not happen is null.
#[derive(Serialize)]
struct Measured {
    kernel: String,
    /// Whether the kernel can be booted with another model of preemption.
    chooses_preemption: bool,
    cpus: usize,
    page_bytes: usize,
    memory_bytes: u64,
    /// What the kernel's counters may be off by, all processors together.
    drift_bytes: u64,
    seed: u64,
    watchers: BTreeMap<Watcher, Watched>,
    processes: Option<Processes>,
}

#[derive(Default, Serialize)]
struct Watched {
    wake: Option<Wakes>,
    rounds: Vec<Round>,
}

/// From the crossing in the kernel to this process awake, in turn with the barest wake there is on the same hook.
#[derive(Debug, Serialize)]
struct Wakes {
    times_ns: Vec<u64>,
    bare_times_ns: Vec<u64>,
    /// Fills that did not cross, because what is available had moved meanwhile; they were done again.
    missed: usize,
}

#[derive(Serialize)]
struct Round {
    threshold_bytes: u64,
    /// How fast it grew in the tenth of a second before the crossing.
    rate_bytes_per_s: Option<u64>,
    /// What it took after the crossing at most: by its own record, and all of the piece that it was at.
    past_threshold_bytes: Option<u64>,
    crossed_to_awake_ns: Option<u64>,
    /// From the crossing to the last piece it noted as filled; 0 where it finished none after it.
    crossed_to_stopped_ns: Option<u64>,
    /// From the crossing to the agent's freeze, to its kill and to the OOM killer's choice, each where there was one.
    crossed_to_frozen_ns: Option<u64>,
    crossed_to_killed_ns: Option<u64>,
    crossed_to_oom_kill_ns: Option<u64>,
    crossed_to_memory_back_ns: Option<u64>,
    killed_by: Option<&'static str>,
    victim: Option<String>,
    oom_kills: u64,
    /// The rate that was asked for; 0 is as fast as it can.
    wanted_rate_bytes_per_s: u64,
    /// How long after the agent was ready the process started.
    phase_ns: u64,
    /// The least that was available in any sample.
    lowest_available_bytes: Option<u64>,
    /// What the process's own record has as filled at the crossing, less by how much available memory had fallen: the
    /// check of one against the other. Above zero by what came from the CPUs' own lists of free pages, which do not
    /// count as available; below by what others took, page tables among them. Absent where the process was stopped before it
    /// crossed the threshold.
    filled_minus_fallen_bytes: Option<i64>,
    /// Major faults of the whole machine over the same time: how much it thrashed.
    major_faults: u64,
    /// Major faults of the agent's core, all threads, from before the growth to after the kill.
    core_major_faults: Option<u64>,
    /// From the start of the agent to its readiness.
    start_to_ready_ns: u64,
    /// (ns since the crossing, bytes available).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trace: Vec<(i64, u64)>,
    /// The agent's log of this round, its last lines, where something went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<String>,
}

/// The agent at rest.
#[derive(Serialize)]
struct Processes {
    idle_seconds: u64,
    supervisor: Resting,
    core: Option<Resting>,
    reporter: Option<Resting>,
    start_to_ready_ns: u64,
    /// The parts of it, as the agent's log has them.
    start: Option<serde_json::Value>,
}

#[derive(Serialize)]
struct Resting {
    resident_bytes: Option<u64>,
    locked_bytes: Option<u64>,
    threads: usize,
    wakeups_per_s: f64,
}

pub(crate) fn main(arguments: &Arguments) -> Result<()> {
    ensure!(!arguments.watchers.is_empty() && !arguments.rates.is_empty(), "name at least one watcher and one rate");
    // It measures; what is to be killed is another process.
    machine::oom_score_adjust(-1000)?;
    rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT | rustix::mm::MlockAllFlags::FUTURE)
        .context("cannot lock the observer's memory")?;
    let _lists = arguments.short_lists.then(short_lists).transpose()?;
    let mut observer = Observer::new()?;
    let mut measured = Measured {
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        chooses_preemption: fs::read_to_string("/proc/version")?.contains("PREEMPT_DYNAMIC"),
        cpus: thread::available_parallelism()?.get(),
        page_bytes: rustix::param::page_size(),
        memory_bytes: machine::meminfo("MemTotal")?,
        drift_bytes: Zones::read()?.drift().mem_available.0 * u64::try_from(rustix::param::page_size())?,
        seed: arguments.seed,
        watchers: arguments.watchers.iter().map(|watcher| (*watcher, Watched::default())).collect(),
        processes: None,
    };
    if arguments.idle > 0 {
        measured.processes = Some(rest(arguments.idle).context("the agent at rest")?);
        save(arguments, &measured)?;
    }
    if arguments.wakes > 0
        && let Some(watched) = measured.watchers.get_mut(&Watcher::Ebpf)
    {
        watched.wake = Some(wakes(&mut observer, arguments.wakes).context("wakes")?);
        save(arguments, &measured)?;
    }
    println!("PLAN {}", arguments.rounds * arguments.watchers.len());
    let mut dice = Dice::new(arguments.seed);
    for number in 0..arguments.rounds {
        let rate = arguments.rates[number % arguments.rates.len()];
        let phase = Duration::from_millis(dice.below(10_000));
        for watcher in &arguments.watchers {
            let round = round(&mut observer, arguments, *watcher, rate, phase)
                .with_context(|| format!("round {number} of {watcher:?}"))?;
            report(number, *watcher, &round);
            measured.watchers.entry(*watcher).or_default().rounds.push(round);
            // After each round: what was measured so far survives whatever comes.
            save(arguments, &measured)?;
        }
    }
    Ok(())
}

fn save(arguments: &Arguments, measured: &Measured) -> Result<()> {
    let text = serde_json::to_string_pretty(measured)?;
    fs::write(&arguments.out, text + "\n").with_context(|| format!("cannot write {}", arguments.out.display()))
}

/// One line for the terminal.
fn report(number: usize, watcher: Watcher, round: &Round) {
    let ms = |ns: Option<u64>| {
        ns.map_or("-".to_owned(), |ns| format!("{:.1}", Duration::from_nanos(ns).as_secs_f64() * 1e3))
    };
    println!(
        "ROUND {number} {} killed_by={} awake_ms={} stopped_ms={} back_ms={} past_kib={} oom_kills={}",
        watcher.source(),
        round.killed_by.unwrap_or("none"),
        ms(round.crossed_to_awake_ns),
        ms(round.crossed_to_stopped_ns),
        ms(round.crossed_to_memory_back_ns),
        round.past_threshold_bytes.map_or("-".to_owned(), |bytes| (bytes / 1024).to_string()),
        round.oom_kills,
    );
}

/// How long a round may take from the start of the growth.
const ROUND_LIMIT: Duration = Duration::from_secs(45);
/// How often it is looked whether the process is alive until it crosses the threshold.
const CROSSING_LIMIT: Duration = Duration::from_millis(200);
/// How long the agent's report of a kill is waited for.
const REPORTED_LIMIT: Duration = Duration::from_secs(5);
/// How often the process notes what it has filled.
const CHUNK_KIB: u64 = 64;
/// What a paced process takes at its rate before it is at the threshold.
const APPROACH_MIB: u64 = 48;

fn round(
    observer: &mut Observer,
    arguments: &Arguments,
    watcher: Watcher,
    rate: u64,
    phase: Duration,
) -> Result<Round> {
    let threshold_bytes = arguments.room_mib * MIB;
    let settings = Settings {
        source: watcher.source(),
        kernel_brake: arguments.kernel_brake && watcher == Watcher::Ebpf,
        ..Settings::with_threshold(threshold_bytes)
    };
    let work = Cgroup::create("work.slice/hog")?;
    let oom_before = machine::oom_kills()?;
    let started = now_ns();
    let agent = Agent::start(&settings)?;
    let start_to_ready_ns = now_ns() - started;
    // Only a watcher that samples at fixed times can be met at a good or a bad one.
    let phase = if watcher == Watcher::Poll { phase } else { Duration::ZERO };
    thread::sleep(phase);
    let core = agent.part("core").ok();
    let faults_before = core.and_then(major_faults);
    let all_faults_before = machine::vmstat("pgmajfault")?;

    let available = machine::meminfo("MemAvailable")?;
    let more = 512;
    let mib = usize::try_from(available / MIB + more)?;
    let rush = available.saturating_sub(threshold_bytes) / MIB;
    let rush = if rate == 0 { 0 } else { rush.saturating_sub(APPROACH_MIB) };
    let generation = observer.arm(threshold_bytes)?;
    let (samples, (crossing, mut hog)) =
        sampled(threshold_bytes, || play(observer, generation, &work, mib, rate, rush, threshold_bytes))?;
    let oom_kills = machine::oom_kills()? - oom_before;
    let oom_kill = observer.oom_kill(started)?;
    let ended = hog.child.try_wait()?;
    let dead = ended.is_some();
    let faults_after = core.and_then(major_faults);
    let all_faults = machine::vmstat("pgmajfault")?.saturating_sub(all_faults_before);
    let reported = || !agent.kills(work.name(), "begun").is_empty();
    if dead && oom_kills == 0 {
        // It kills first and reports later. What it never reports it did not do.
        let _ = wait_for("the kill is reported", REPORTED_LIMIT, || Ok(reported()));
    }
    let killed_by = killed_by(oom_kills, ended.and_then(|status| status.signal()), reported());
    let filled = record::read(&hog.record)?;
    let lines = agent.lines();
    let frozen = lines.iter().find(|line| line["cgroup"] == work.name() && line["brake"] == "frozen").and_then(at_ns);
    let killed = agent.kills(work.name(), "begun").first().and_then(at_ns);
    let log = (!dead).then(|| tail(&agent.text()));
    drop(hog);
    // An agent that the OOM killer took is part of what is measured, not an error of the measurement.
    if agent.stop().is_err() {
        Cgroup::create(&format!("agent.slice/plimsoll-{}", settings.port))?.remove()?;
    }
    work.remove()?;

    // The armed threshold lies above the configured one by what the kernel's counters may be off by. Where it woke the
    // agent, all times are from there, and what was taken since is more than what was taken past the threshold.
    let woke = woke(&lines);
    let crossed_ns = crossed_ns(crossing.map(|seen| seen.at_ns), woke);
    let after = |at: u64| crossed_ns.map(|crossed| at.saturating_sub(crossed));
    Ok(Round {
        threshold_bytes,
        rate_bytes_per_s: crossed_ns.and_then(|crossed| rate_before(&filled, crossed)),
        past_threshold_bytes: crossed_ns.and_then(|crossed| Some(past(&filled, crossed)? + CHUNK_KIB * 1024)),
        crossed_to_awake_ns: woke.and_then(|woke| after(woke.at_ns)),
        crossed_to_stopped_ns: filled.last().filter(|_| dead).and_then(|last| after(last.at_ns)),
        crossed_to_frozen_ns: frozen.and_then(after),
        crossed_to_killed_ns: killed.and_then(after),
        crossed_to_oom_kill_ns: oom_kill.and_then(after),
        crossed_to_memory_back_ns: crossed_ns
            .and_then(|crossed| back(&samples, crossed, threshold_bytes))
            .and_then(after),
        killed_by,
        victim: dead.then(|| work.name().to_owned()),
        oom_kills,
        wanted_rate_bytes_per_s: rate * MIB,
        phase_ns: u64::try_from(phase.as_nanos())?,
        lowest_available_bytes: samples.iter().map(|sample| sample.bytes).min(),
        filled_minus_fallen_bytes: crossing.and_then(|crossing| disagreement(&filled, available, crossing)),
        major_faults: all_faults,
        core_major_faults: faults_after.zip(faults_before).map(|(after, before)| after.saturating_sub(before)),
        start_to_ready_ns,
        trace: if arguments.trace {
            trace(&samples, crossing.map_or(0, |crossing| crossing.at_ns))
        } else {
            Vec::new()
        },
        log,
    })
}

/// What killed the process, by the signal that it died of and whether the agent reported it; absent where it lives or
/// something else ended it.
fn killed_by(oom_kills: u64, signal: Option<i32>, reported: bool) -> Option<&'static str> {
    match (oom_kills, signal) {
        (1.., _) => Some("oom-killer"),
        (0, Some(signal)) if signal == Signal::KILL.as_raw() && reported => Some("plimsoll"),
        (0, _) => None,
    }
}

/// Lets the process grow until it is dead and memory is back, or the time is up.
fn play(
    observer: &mut Observer,
    generation: plimsoll_sense::Generation,
    work: &Cgroup,
    mib: usize,
    rate: u64,
    rush: u64,
    threshold_bytes: u64,
) -> Result<(Option<Crossing>, Hog)> {
    let (rate, rush) = (rate.to_string(), rush.to_string());
    let chunk = CHUNK_KIB.to_string();
    let mut hog = Hog::start("anon", work.path(), mib, &["--rate", &rate, "--rush", &rush, "--chunk", &chunk])?;
    let started = Instant::now();
    let crossing = loop {
        // An agent may stop it before it crosses the threshold. What crosses it just before its end is seen once more.
        let ended = hog.child.try_wait()?.is_some() || started.elapsed() >= ROUND_LIMIT;
        let crossing = observer.wait(generation, CROSSING_LIMIT)?;
        if ended || crossing.is_some() {
            break crossing;
        }
    };
    let started = Instant::now();
    while started.elapsed() < ROUND_LIMIT {
        if hog.child.try_wait()?.is_some() && machine::meminfo("MemAvailable")? > threshold_bytes {
            // The sampler has to see it, too.
            thread::sleep(Duration::from_millis(50));
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok((crossing, hog))
}

/// At most a few hundred points, with time counted from the crossing.
fn trace(samples: &[Sample], crossed_ns: u64) -> Vec<(i64, u64)> {
    let step = (samples.len() / 400).max(1);
    let since = |at: u64| i64::try_from(i128::from(at) - i128::from(crossed_ns)).unwrap_or(i64::MAX);
    samples.iter().step_by(step).map(|sample| (since(sample.at_ns), sample.bytes)).collect()
}

/// What the record has as filled at the crossing, less the fall of what is available as the kernel saw it.
fn disagreement(filled: &[Filled], available: u64, crossing: Crossing) -> Option<i64> {
    let fallen = i64::try_from(available).ok()? - i64::try_from(crossing.available).ok()?;
    Some(i64::try_from(filled_at(filled, crossing.at_ns)?).ok()? - fallen)
}

/// When what a line of the agent's log reports was done.
fn at_ns(line: &serde_json::Value) -> Option<u64> {
    line["at_ns"].as_u64()
}

/// Major faults of all threads of a process so far.
fn major_faults(pid: u32) -> Option<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        // After the name in parentheses: state is the first field, majflt the tenth.
        sum += stat.rsplit_once(") ")?.1.split(' ').nth(9)?.parse::<u64>().ok()?;
    }
    Some(sum)
}

fn rest(seconds: u64) -> Result<Processes> {
    let settings = Settings::with_threshold(64 * MIB);
    let started = now_ns();
    let agent = Agent::start(&settings)?;
    let start_to_ready_ns = now_ns() - started;
    thread::sleep(Duration::from_secs(2));
    let pids = [Some(agent.pid()), agent.part("core").ok(), agent.part("reporter").ok()];
    let before = pids.map(|pid| pid.map_or(0, switches));
    thread::sleep(Duration::from_secs(seconds));
    let resting = |index: usize| -> Option<Resting> {
        let pid = pids[index]?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let bytes = |key| machine::named(&status, key).map(|kib| kib * 1024);
        #[expect(clippy::cast_precision_loss, reason = "a count of a few thousand at most")]
        let wakeups_per_s = switches(pid).saturating_sub(before[index]) as f64 / seconds as f64;
        Some(Resting {
            resident_bytes: bytes("VmRSS:"),
            locked_bytes: bytes("VmLck:"),
            threads: fs::read_dir(format!("/proc/{pid}/task")).ok()?.count(),
            wakeups_per_s,
        })
    };
    let processes = Processes {
        idle_seconds: seconds,
        supervisor: resting(0).context("the agent ended")?,
        core: resting(1),
        reporter: resting(2),
        start_to_ready_ns,
        start: agent.lines().iter().find_map(|line| find(line, "start").cloned()),
    };
    agent.stop()?;
    Ok(processes)
}

/// How often the threads of a process went to sleep by themselves, and so were woken.
fn switches(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            machine::named(&fs::read_to_string(task.path().join("status")).ok()?, "voluntary_ctxt_switches:")
        })
        .sum()
}

/// A process that fills and gives back once for each byte that it is sent.
struct Breathing(Child);

impl Breathing {
    fn start(mib: u64) -> Result<Self> {
        let cgroup = Cgroup::create("work.slice/breathing")?;
        let child = guest()
            .args(["breathe", "--mib", &mib.to_string(), "--cgroup"])
            .arg(cgroup.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Self(child))
    }

    /// Sends the byte.
    fn begin(&mut self) -> Result<()> {
        Ok(self.0.stdin.as_mut().context("no pipe")?.write_all(b".")?)
    }

    /// Waits until it is done.
    fn done(&mut self) -> Result<()> {
        let mut byte = [0];
        self.0.stdout.as_mut().context("no pipe")?.read_exact(&mut byte).context("the breathing process ended")
    }
}

impl Drop for Breathing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is filled in one breath, and how far above its end the threshold lies: more than the kernel's counters drift.
const BREATH_MIB: u64 = 16;
const BELOW_MIB: u64 = 6;

/// What one breath gives back must not lie on a CPU's own list, where the next one would take it from without what is
/// available having changed at all.
fn wakes(observer: &mut Observer, wanted: usize) -> Result<Wakes> {
    let _lists = short_lists()?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            // As the agent's own thread waits; both kinds of wake are waited for by this one.
            let got = raise_this_thread(Level::Watching);
            ensure!(got == Priority::RoundRobin, "the observer's thread cannot wait as the agent's does: {got:?}");
            breathe(observer, wanted)
        });
        waiting.join().map_err(|_| anyhow::anyhow!("the observer's thread panicked"))?
    })
}

fn breathe(observer: &mut Observer, wanted: usize) -> Result<Wakes> {
    let mut breathing = Breathing::start(BREATH_MIB)?;
    let mut bare = Bare::new().context("the bare wake")?;
    let (mut times, mut bare_times, mut missed) = (Vec::with_capacity(wanted), Vec::with_capacity(wanted), 0);
    while times.len() < wanted {
        ensure!(missed < wanted + 20, "{missed} of {} fills did not cross the threshold", missed + times.len());
        let generation = observer.arm(machine::meminfo("MemAvailable")?.saturating_sub(BELOW_MIB * MIB))?;
        breathing.begin()?;
        match observer.wait(generation, Duration::from_secs(2))? {
            Some(crossing) => times.push(crossing.awake_ns.saturating_sub(crossing.at_ns)),
            None => missed += 1,
        }
        breathing.done()?;
        breathing.begin()?;
        breathing.done()?;

        while bare.take().is_some() {}
        bare.arm();
        breathing.begin()?;
        bare_times.push(bare_wake(&mut bare)?);
        breathing.done()?;
        breathing.begin()?;
        breathing.done()?;
    }
    drop(breathing);
    wait_for("the breathing process is gone", Duration::from_secs(20), || {
        Ok(!Cgroup::create("work.slice/breathing")?.populated()?)
    })?;
    Ok(Wakes { times_ns: times, bare_times_ns: bare_times, missed })
}

fn bare_wake(bare: &mut Bare) -> Result<u64> {
    let started = Instant::now();
    let limit = Duration::from_secs(10);
    while started.elapsed() < limit {
        let descriptor = bare.descriptor();
        poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&Timespec::try_from(limit)?))?;
        let awake_ns = now_ns();
        if let Some(trigger) = bare.take() {
            return Ok(awake_ns.saturating_sub(trigger.0));
        }
    }
    bail!("the bare wake did not come within {} s", limit.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &[Filled] =
        &[Filled { at_ns: 1000, bytes: 10 }, Filled { at_ns: 2000, bytes: 20 }, Filled { at_ns: 3000, bytes: 40 }];

    #[test]
    fn the_record_and_the_kernel_are_compared_in_bytes() {
        let crossing = |at_ns| Crossing { at_ns, awake_ns: 0, available: 88 };
        assert_eq!(disagreement(RECORD, 100, crossing(2500)), Some(18));
        assert_eq!(disagreement(RECORD, 100, crossing(1000)), Some(-2));
        assert_eq!(disagreement(RECORD, 100, crossing(1)), None);
    }

    #[test]
    fn only_a_kill_that_was_reported_is_the_agents() {
        for (oom_kills, signal, reported, expected) in [
            (0, Some(9), true, Some("plimsoll")),
            (0, Some(9), false, None),
            (0, Some(11), true, None),
            (0, None, true, None),
            (2, Some(9), true, Some("oom-killer")),
            (1, None, false, Some("oom-killer")),
        ] {
            assert_eq!(killed_by(oom_kills, signal, reported), expected, "{oom_kills} {signal:?} {reported}");
        }
    }

    #[test]
    fn watchers_are_called_as_readers_of_the_figures_expect() {
        let names: Vec<String> =
            [Watcher::Ebpf, Watcher::Psi, Watcher::Poll].iter().map(|it| serde_json::to_string(it).unwrap()).collect();
        assert_eq!(names, ["\"ebpf\"", "\"psi\"", "\"poll-10s\""]);
    }
}
