//! One round: a clean machine, the survivor, the rival, the workload, and what came of it.

use super::growth::Growth;
use super::living::{self, Living};
use super::rival::{self, Rival, Running};
use super::survivor::{self, Survivor};
use super::workload::{self, Workload};
use super::{Bench, name};
use crate::agent::{Settings, oom_choices};
use crate::block::Swap;
use crate::cgroup::Cgroup;
use crate::machine::{self, KernelLog, Reread, meminfo, now_ns, set, wait_for};
use crate::measure::{Sample, back, crossed_ns, sampled, woke};
use crate::scene::{MIB, PATIENCE};
use crate::systemd;
use anyhow::{Context as _, Result, ensure};
use plimsoll_node::priority::{Level, Priority, raise_this_thread};
use plimsoll_sense::Generation;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked what the workload does.
const TICK: Duration = Duration::from_millis(5);
/// How often a bare kill is tried out before the rounds.
const TRIES: u32 = 3;
/// How long an event of a crossing just before the end may take.
const LAST_EVENT: Duration = Duration::from_millis(200);
/// How long memory has to be back, and what lives may neither grow nor shrink, before a round is over in which not all was
/// killed. What dies shrinks, which can take seconds.
const REST: Duration = Duration::from_secs(2);
/// By how much it may change within that and count as at rest.
const STILL_BYTES: u64 = MIB;

#[derive(Default, Serialize)]
pub(super) struct Round {
    rival: String,
    number: usize,
    threshold_bytes: u64,
    /// How fast it grew in the tenth of a second before the crossing.
    rate_bytes_per_s: Option<u64>,
    /// From the crossing to Plimsoll's wake and to its decision, by its log.
    crossed_to_awake_ns: Option<u64>,
    crossed_to_decided_ns: Option<u64>,
    /// From the crossing to the last piece that was filled; to the least that was available where that is not noted.
    crossed_to_stopped_ns: Option<u64>,
    /// What was taken after the crossing at most; how far below the threshold memory was seen where that is not noted.
    past_threshold_bytes: Option<u64>,
    /// By how much that may be too much. Absent where it is by samples.
    past_resolution_bytes: Option<u64>,
    crossed_to_memory_back_ns: Option<u64>,
    /// The least that was available in any sample.
    lowest_available_bytes: Option<u64>,
    killed_by: Option<&'static str>,
    oom_kills: u64,
    /// The cgroups that lost a process.
    victims: BTreeSet<String>,
    /// Those of them that are not the workload's, or where nothing had to be killed.
    wrong_victims: BTreeSet<String>,
    /// Those that lost a process to the OOM killer, by the kernel's log.
    victims_of_oom_killer: BTreeSet<String>,
    /// Whether the rival's own cgroup lost one, to whatever.
    rival_died: bool,
    /// Whether `explain`, asked on the way to the threshold, named the workload that the OOM killer chose first.
    predicted: Option<bool>,
    survivor_longest_stall_ns: Option<u64>,
    /// The last lines of the rival's log, where something went wrong.
    log: Option<String>,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let past = self.past_threshold_bytes.map_or("-".to_owned(), |bytes| (bytes / 1024).to_string());
        write!(
            f,
            "{} killed_by={} awake_ms={} stopped_ms={} back_ms={} past_kib={past} oom_kills={} wrong_victims={} \
             survivor_stall_ms={}",
            self.rival,
            self.killed_by.unwrap_or("none"),
            ms(self.crossed_to_awake_ns),
            ms(self.crossed_to_stopped_ns),
            ms(self.crossed_to_memory_back_ns),
            self.oom_kills,
            self.wrong_victims.len(),
            ms(self.survivor_longest_stall_ns),
        )
    }
}

/// A workload that was killed as soon as it crossed the threshold, by a write to cgroup.kill and nothing else.
#[derive(Serialize)]
pub(super) struct BareKill {
    /// What it had taken.
    bytes: Option<u64>,
    /// From the write to an empty cgroup, and to memory above the threshold.
    emptied_ns: Option<u64>,
    memory_back_ns: Option<u64>,
}

impl fmt::Display for BareKill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bare-kill emptied_ms={} back_ms={}", ms(self.emptied_ns), ms(self.memory_back_ns))
    }
}

fn ms(ns: Option<u64>) -> String {
    ns.map_or("-".to_owned(), |ns| format!("{:.1}", Duration::from_nanos(ns).as_secs_f64() * 1e3))
}

/// What was seen until the round was over.
struct Seen {
    /// When the threshold was crossed, by the kernel's event.
    crossed_ns: Option<u64>,
    /// When it was over: what was left of the workload was killed then.
    over_ns: u64,
    oom_kills: u64,
}

impl Bench {
    /// A machine on which nothing is left of the round before, and swap that is empty.
    fn clean(&self) -> Result<Option<Swap>> {
        workload::clear()?;
        rival::clear()?;
        survivor::clear()?;
        systemd::start_journal()?;
        set("/proc/sys/vm/drop_caches", "3")?;
        self.swap.start()
    }

    /// Leaves nothing of a round that failed behind: the workload first, so that there is memory for the rest.
    pub(super) fn recover(&mut self) -> Result<()> {
        workload::clear()?;
        rival::recover()?;
        survivor::clear()?;
        // What was not read of a ring buffer keeps place in it.
        self.observer.oom_kill(0).map(drop)
    }

    pub(super) fn round(&mut self, rival: Rival, number: usize) -> Result<Round> {
        let swap = self.clean()?;
        let threshold_bytes = self.threshold_bytes;
        let survivor = Survivor::start()?;
        // What it has before it grows is part of what some rivals are configured by.
        let mut workload = Workload::prepare(self.workload, threshold_bytes)?;
        let running = rival.start(threshold_bytes, self.anonymous_bytes.map_or_else(|| meminfo("AnonPages"), Ok)?)?;
        // One that dies may have none any more.
        let own = running.cgroup()?;
        let before = living::lasting()?;
        thread::sleep(Duration::from_millis(self.dice.below(rival.period_ms().max(1))));
        let (oom_before, mut log) = (machine::oom_kills()?, KernelLog::from_now()?);
        let available = meminfo("MemAvailable")?;
        ensure!(available > threshold_bytes, "only {available} bytes are available before anything grows");
        let generation = self.observer.arm(threshold_bytes)?;
        let started = now_ns();
        survivor.begin();
        self.has_begun = true;
        let asks = rival == Rival::OomKiller && !self.workload.is_harmless();
        let (cgroup, ended) = (Cgroup::existing(&workload::cgroup())?, AtomicBool::new(false));
        let (mut samples, (seen, expected)) = sampled(threshold_bytes, || {
            thread::scope(|scope| {
                let asks = asks.then(|| {
                    scope.spawn(|| {
                        let expected = expected(threshold_bytes, available, &cgroup, &ended);
                        // Asking takes the only processor: how long is nothing that memory caused.
                        survivor.begin();
                        expected
                    })
                });
                let watched = self.watch(&mut workload, generation);
                ended.store(true, Ordering::Relaxed);
                let asked = asks.map(|asked| asked.join().map_err(|_| anyhow::anyhow!("the asking thread panicked")));
                Ok((watched?, asked.transpose()?.flatten()))
            })
        })?;
        samples.retain(|sample| sample.at_ns <= seen.over_ns);
        let oom_kills = seen.oom_kills - oom_before;
        let survivor_longest_stall_ns = survivor.longest_stall_ns();
        let (mut victims, growth) = (victims(&before, &workload)?, workload.growth()?);
        workload.end()?;
        let chosen = if oom_kills > 0 { cgroups(&log.oom_killed()?, &before) } else { Vec::new() };
        victims.extend(chosen.iter().cloned());
        let mut round = Round {
            rival: name(&rival),
            number,
            threshold_bytes,
            killed_by: killed_by(oom_kills, !victims.is_empty(), rival),
            oom_kills,
            wrong_victims: wrong(&victims, self.workload.is_harmless()),
            rival_died: has_died(own.as_ref().map(Cgroup::name), &victims),
            victims,
            victims_of_oom_killer: chosen.iter().cloned().collect(),
            predicted: chosen.first().zip(expected).map(|(chosen, expected)| *chosen == expected),
            survivor_longest_stall_ns,
            ..Round::default()
        };
        // It kills first and reports later.
        if round.killed_by == Some(RIVAL)
            && let Running::Agent(..) = running
        {
            let _ = wait_for("the decision is reported", PATIENCE, || Ok(woke(&running.lines()).is_some()));
        }
        round.time(&samples, &growth, seen.crossed_ns, &running);
        let went_well = if self.workload.is_harmless() { None } else { Some(RIVAL) };
        if round.killed_by != went_well || !round.wrong_victims.is_empty() {
            round.log = running.tail();
        }
        // What was not read of a ring buffer keeps place in it.
        self.observer.oom_kill(started)?;
        running.stop().context("the rival does not stop")?;
        survivor::clear()?;
        drop(swap);
        Ok(round)
    }

    /// Lets the workload grow until the round is over, and kills what is left of it: nothing else can be done on a machine
    /// without memory.
    fn watch(&mut self, workload: &mut Workload, generation: Generation) -> Result<Seen> {
        let (mut meminfo, mut vmstat) = (Reread::open("/proc/meminfo", 4096)?, Reread::open("/proc/vmstat", 16 << 10)?);
        workload.begin();
        let (started, mut crossed, mut rest) = (Instant::now(), None, Rest::default());
        while started.elapsed() < self.workload.limit() {
            match crossed {
                None => crossed = self.observer.wait(generation, TICK)?.map(|crossing| crossing.at_ns),
                Some(_) => thread::sleep(TICK),
            }
            let is_above = meminfo.named("MemAvailable:")? * 1024 > self.threshold_bytes;
            let lives = workload.lives()?;
            workload.look()?;
            let is_at_rest = crossed.is_some() && rest.is_over(now_ns(), is_above, workload.current()?);
            let is_over = if self.workload.is_harmless() { !lives } else { is_above && (!lives || is_at_rest) };
            if is_over {
                if crossed.is_none() {
                    crossed = self.observer.wait(generation, LAST_EVENT)?.map(|crossing| crossing.at_ns);
                }
                // The sampler has to see it, too.
                thread::sleep(TICK * 10);
                break;
            }
        }
        workload.look()?;
        let seen = Seen { crossed_ns: crossed, over_ns: now_ns(), oom_kills: vmstat.named("oom_kill")? };
        workload.kill()?;
        Ok(seen)
    }

    /// Has a bare kill before the rounds that does not count: what some rivals are configured by is known from then on.
    pub(super) fn try_out(&mut self) -> Result<()> {
        for _ in 0..TRIES {
            if let Err(error) = self.bare_kill() {
                println!("a bare kill before the rounds failed: {error:#}");
                self.recover()?;
            }
            if self.anonymous_bytes.is_some() {
                return Ok(());
            }
        }
        println!(
            "no bare kill in {TRIES} tries: what was anonymous before the workload grew is taken for what is at the threshold"
        );
        Ok(())
    }

    /// Kills the workload when it crosses the threshold. Of one that never does nothing is known.
    pub(super) fn bare_kill(&mut self) -> Result<BareKill> {
        let swap = self.clean()?;
        Survivor::start()?;
        let mut workload = Workload::prepare(self.workload, self.threshold_bytes)?;
        let (generation, started) = (self.observer.arm(self.threshold_bytes)?, now_ns());
        let oom_before = machine::oom_kills()?;
        let limit = self.workload.limit();
        let (threshold_bytes, observer) = (self.threshold_bytes, &mut self.observer);
        let kill = || {
            let mut meminfo = Reread::open("/proc/meminfo", 4096)?;
            workload.begin();
            let begun = Instant::now();
            // What is charged to no cgroup may cross it without an event.
            while observer.wait(generation, TICK)?.is_none() && meminfo.named("MemAvailable:")? * 1024 > threshold_bytes
            {
                workload.look()?;
                if begun.elapsed() > limit || !workload.lives()? {
                    return Ok(None);
                }
            }
            let anonymous_bytes = meminfo.named("AnonPages:")? * 1024;
            let killed_ns = now_ns();
            workload.kill()?;
            // No more often than in a round, as what looks takes of the processor that the killed one ends on.
            while workload.lives()? && begun.elapsed() < limit + PATIENCE {
                thread::sleep(TICK);
            }
            let emptied_ns = now_ns();
            let above = || Ok(meminfo.named("MemAvailable:")? * 1024 > threshold_bytes);
            let _ = wait_for("memory is back", REST, above);
            thread::sleep(TICK * 10);
            Ok(Some((anonymous_bytes, killed_ns, emptied_ns)))
        };
        self.has_begun = true;
        let (samples, killed) = sampled(threshold_bytes, || at_once(kill))?;
        // Where the OOM killer was faster it was no bare kill.
        let killed = killed.filter(|_| machine::oom_kills().is_ok_and(|kills| kills == oom_before));
        self.anonymous_bytes = killed.map(|(anonymous_bytes, ..)| anonymous_bytes).or(self.anonymous_bytes);
        let back_ns = |killed_ns| Some(back(&samples, killed_ns, self.threshold_bytes)?.saturating_sub(killed_ns));
        let kill = BareKill {
            bytes: workload.growth()?.bytes(),
            emptied_ns: killed.map(|(_, killed_ns, emptied_ns)| emptied_ns - killed_ns),
            memory_back_ns: killed.and_then(|(_, killed_ns, _)| back_ns(killed_ns)),
        };
        self.observer.oom_kill(started)?;
        workload.end()?;
        survivor::clear()?;
        drop(swap);
        Ok(kill)
    }
}

/// Does this on a thread that runs when it can, whatever else wants to: with the priority of an agent's watching thread.
fn at_once<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let got = raise_this_thread(Level::Watching);
            ensure!(got == Priority::RoundRobin, "a thread cannot have the priority of the agent's: {got:?}");
            work()
        });
        thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
    })
}

impl Round {
    /// Everything that counts from the crossing. Where a rival that is not Plimsoll was so early that the kernel saw no
    /// crossing, that is the first sample below the threshold.
    fn time(&mut self, samples: &[Sample], growth: &Growth, seen_ns: Option<u64>, running: &Running) {
        let lowest = samples.iter().min_by_key(|sample| sample.bytes);
        self.lowest_available_bytes = lowest.map(|sample| sample.bytes);
        let woke = woke(&running.lines());
        let below_ns = || samples.iter().find(|sample| sample.bytes <= self.threshold_bytes).map(|sample| sample.at_ns);
        let Some(crossed) = crossed_ns(seen_ns, woke).or_else(below_ns) else { return };
        let after = |at: u64| at.saturating_sub(crossed);
        self.rate_bytes_per_s = growth.rate_before(crossed);
        self.crossed_to_awake_ns = woke.map(|woke| after(woke.at_ns));
        self.crossed_to_decided_ns = woke.and_then(|woke| woke.decided_ns).map(after);
        let back_ns = back(samples, crossed, self.threshold_bytes);
        self.crossed_to_memory_back_ns = back_ns.map(after);
        // What is still growing at the end was not stopped.
        let stopped_ns = growth.last_ns().or(lowest.map(|sample| sample.at_ns));
        self.crossed_to_stopped_ns = back_ns.and(stopped_ns).map(after);
        let deepest = lowest.map(|sample| self.threshold_bytes.saturating_sub(sample.bytes));
        self.past_threshold_bytes = growth.past(crossed).or(deepest);
        self.past_resolution_bytes = growth.resolution_bytes();
    }
}

/// The cgroup of the process that the OOM killer would choose, by the agent's `explain` once half of what there is above
/// the threshold is taken; nothing where the round ends, or the OOM killer kills, before. The workload is frozen
/// meanwhile: the answer takes longer than the rest of the growth.
fn expected(threshold_bytes: u64, available: u64, cgroup: &Cgroup, ended: &AtomicBool) -> Option<String> {
    let half = threshold_bytes + available.saturating_sub(threshold_bytes) / 2;
    let before = machine::oom_kills().ok()?;
    while meminfo("MemAvailable").ok()? > half {
        if ended.load(Ordering::Relaxed) {
            return None;
        }
        thread::sleep(TICK);
    }
    cgroup.write("cgroup.freeze", "1").ok()?;
    let configuration = Settings::with_threshold(threshold_bytes).write();
    let choices = configuration.and_then(|configuration| oom_choices(&configuration));
    let is_in_time = machine::oom_kills().is_ok_and(|kills| kills == before);
    let thawed = cgroup.write("cgroup.freeze", "0");
    match thawed.and(choices) {
        Ok(choices) => choices.into_iter().next().filter(|_| is_in_time),
        Err(error) => {
            println!("no prediction: {error:#}");
            None
        }
    }
}

/// A kill by whatever watches memory.
const RIVAL: &str = "rival";

/// What killed: the OOM killer where that killed at all, else the rival, as nothing else kills here.
fn killed_by(oom_kills: u64, has_victims: bool, rival: Rival) -> Option<&'static str> {
    match oom_kills {
        1.. => Some("oom-killer"),
        0 if has_victims && rival != Rival::OomKiller => Some(RIVAL),
        0 => None,
    }
}

/// Whether what ran in this cgroup is among the victims.
fn has_died(cgroup: Option<&str>, victims: &BTreeSet<String>) -> bool {
    cgroup.is_some_and(|cgroup| victims.contains(cgroup))
}

/// The cgroups of these processes. Of those that began in the round all were the workload's.
fn cgroups(processes: &[u32], before: &Living) -> Vec<String> {
    processes.iter().map(|pid| before.get(pid).cloned().unwrap_or_else(workload::cgroup)).collect()
}

/// The cgroups that lost a process since.
fn victims(before: &Living, workload: &Workload) -> Result<BTreeSet<String>> {
    let mut lost = living::lost(before, &living::living()?);
    // Of the workload's processes some may have ended by themselves, and others may have come since.
    lost.remove(workload.name());
    lost.extend(workload.is_hurt.then(|| workload.name().to_owned()));
    Ok(lost)
}

/// The victims that should not have been any.
fn wrong(victims: &BTreeSet<String>, is_harmless: bool) -> BTreeSet<String> {
    let workload = workload::cgroup();
    victims.iter().filter(|victim| is_harmless || **victim != workload).cloned().collect()
}

/// Whether a round is over in which not all of the workload was killed.
#[derive(Default)]
struct Rest {
    /// Since when memory is back and the workload does not change, and what it had then.
    since: Option<(u64, u64)>,
}

impl Rest {
    /// Takes note of what is at `now_ns`, and gives whether it is over.
    fn is_over(&mut self, now_ns: u64, is_above: bool, current: u64) -> bool {
        let still = |&(_, had): &(u64, u64)| is_above && current.abs_diff(had) <= STILL_BYTES;
        self.since = self.since.filter(still).or(is_above.then_some((now_ns, current)));
        self.since.is_some_and(|(since, _)| u128::from(now_ns - since) >= REST.as_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST_NS: u64 = 2_000_000_000;

    #[test]
    fn a_round_is_over_when_memory_is_back_and_the_workload_does_not_change() {
        let mut rest = Rest::default();
        for (now, is_above, current, is_over) in [
            (0, true, MIB, false),
            (REST_NS - 1, true, MIB, false),
            // Below in between.
            (REST_NS, false, MIB, false),
            (2 * REST_NS, true, MIB, false),
            // Grown in between.
            (3 * REST_NS, true, 3 * MIB, false),
            // Shrunk in between.
            (4 * REST_NS, true, MIB, false),
            (5 * REST_NS - 1, true, MIB, false),
            (5 * REST_NS, true, 0, true),
        ] {
            assert_eq!(rest.is_over(now, is_above, current), is_over, "{now}");
        }
    }

    #[test]
    fn the_oom_killer_is_first_in_what_killed() {
        for (oom_kills, has_victims, rival, expected) in [
            (0, true, Rival::Earlyoom, Some("rival")),
            (0, false, Rival::Earlyoom, None),
            (1, true, Rival::Earlyoom, Some("oom-killer")),
            (0, true, Rival::OomKiller, None),
            (2, true, Rival::OomKiller, Some("oom-killer")),
        ] {
            assert_eq!(killed_by(oom_kills, has_victims, rival), expected, "{oom_kills} {has_victims} {rival:?}");
        }
    }

    #[test]
    fn a_process_that_began_in_the_round_is_the_workloads() {
        let before = Living::from([(7, "system.slice/dbus.service".to_owned())]);
        assert_eq!(cgroups(&[9, 7], &before), ["work.slice/hog", "system.slice/dbus.service"]);
    }

    #[test]
    fn a_rival_has_died_whose_own_cgroup_lost_a_process() {
        let victims = BTreeSet::from(["work.slice/hog".to_owned(), "hostcritical.slice/nohang.service".to_owned()]);
        assert!(has_died(Some("hostcritical.slice/nohang.service"), &victims));
        assert!(!has_died(Some("system.slice/earlyoom.service"), &victims) && !has_died(None, &victims));
    }

    #[test]
    fn a_victim_beside_the_workload_is_wrong_and_any_where_nothing_is_to_be_killed() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let victims = set(&["work.slice/hog", "system.slice/dbus.service"]);
        assert_eq!(wrong(&victims, false), set(&["system.slice/dbus.service"]));
        assert_eq!(wrong(&victims, true), victims);
    }

    #[test]
    fn figures_count_from_the_crossing() {
        use crate::record::Filled;
        let filled = |at_ns, bytes| Filled { at_ns, bytes };
        let sample = |at_ns, bytes| Sample { at_ns, bytes };
        let samples = [sample(90, 120), sample(110, 95), sample(130, 60), sample(150, 200)];
        let mut round = Round { threshold_bytes: 100, ..Round::default() };
        let growth = Growth::new(vec![vec![filled(80, 0), filled(100, 20), filled(125, 70)]], 5);
        round.time(&samples, &growth, Some(100), &Running::Nothing);
        assert_eq!((round.past_threshold_bytes, round.crossed_to_stopped_ns), (Some(55), Some(25)));
        assert_eq!(round.past_resolution_bytes, Some(5));
        assert_eq!((round.crossed_to_memory_back_ns, round.lowest_available_bytes), (Some(50), Some(60)));
        // Without a record, and a crossing that only the samples have.
        let mut round = Round { threshold_bytes: 100, ..Round::default() };
        round.time(&samples, &Growth::default(), None, &Running::Nothing);
        assert_eq!((round.past_threshold_bytes, round.crossed_to_stopped_ns), (Some(40), Some(20)));
        assert_eq!(round.past_resolution_bytes, None);
        // Memory that never came back: nothing was stopped.
        let mut round = Round { threshold_bytes: 100, ..Round::default() };
        round.time(&samples[..3], &growth, Some(100), &Running::Nothing);
        assert_eq!((round.crossed_to_memory_back_ns, round.crossed_to_stopped_ns), (None, None));
    }
}
