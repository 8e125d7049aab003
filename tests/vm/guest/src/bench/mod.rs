//! The measured table's cells: one workload on one machine with one kind of swap, met by one rival after another.
//!
//! All rivals are met in one boot, in an order that is drawn. In every round the crossing is taken in
//! the kernel by the guest's own observer, what the workload had filled comes from its own record, and what was available
//! from /proc/meminfo, read every few milliseconds, whatever watches memory. It needs a machine with systemd.

mod growth;
mod living;
pub(crate) mod rival;
mod round;
pub(crate) mod survivor;
mod workload;

use crate::agent;
use crate::block::{NULL_BLOCK, Swap};
use crate::machine::{self, Dice, set};
use crate::observer::Observer;
use crate::scene::MIB;
use crate::systemd::{self, systemctl};
use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use rival::Rival;
use round::{BareKill, Round};
use rustix::mount::{MountFlags, mount};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs, thread};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How memory is filled.
    #[arg(long)]
    workload: workload::Kind,
    /// What is swapped to: half as much as there is memory.
    #[arg(long, default_value = "none")]
    swap: SwapKind,
    /// What watches memory, one at a time.
    #[arg(long, value_delimiter = ',', required = true)]
    rivals: Vec<Rival>,
    /// How many rounds are played with each of them, as in `plimsoll-ebpf=20,earlyoom=5`; one where nothing is said.
    #[arg(long, value_delimiter = ',', value_parser = rounds_of)]
    rounds: Vec<(Rival, usize)>,
    /// The threshold: act below so many MiB available, which is what is left before the OOM killer.
    #[arg(long, default_value_t = 100)]
    room_mib: u64,
    /// What the order of the rivals and the moments within their periods are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// After how many seconds of the host no further round begins: a machine that is ended leaves nothing of what it
    /// measured.
    #[arg(long, default_value_t = 2700)]
    seconds: u64,
    /// Where the measurements are written, as JSON.
    #[arg(long)]
    out: PathBuf,
}

/// `RIVAL=NUMBER`
fn rounds_of(text: &str) -> Result<(Rival, usize), String> {
    let (rival, number) = text.split_once('=').ok_or("RIVAL=NUMBER is expected")?;
    Ok((Rival::from_str(rival, false)?, number.parse().map_err(|error| format!("{number}: {error}"))?))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SwapKind {
    None,
    /// Compressed memory.
    Zram,
    /// A file on the machine's disk.
    Disk,
}

impl SwapKind {
    /// Turns it on, with nothing in it.
    fn start(self) -> Result<Option<Swap>> {
        let mib = machine::meminfo("MemTotal")? / MIB / 2;
        match self {
            Self::None => Ok(None),
            Self::Zram => Swap::start(mib).map(Some),
            Self::Disk => Swap::on_file(Path::new("/var/tmp/swap"), mib).map(Some),
        }
    }
}

/// The slice of all workloads, which systemd-oomd monitors in its rounds.
pub(crate) const SLICE: &str = "work.slice";
/// A slice without processes in it. Because of its accounting systemd keeps the controllers on for all cgroups of the
/// slice, whatever units come and go there.
const ANCHOR: &str = "work-anchor.slice";
const UNITS: &str = "/run/systemd/system";

/// How many times the workload is killed with no rival, where there are as many rounds.
const BARE_KILLS: usize = 20;
/// How many turns one after the other may fail before nothing is expected of the rest.
const FAILURES: usize = 3;

/// All that was measured. Times are nanoseconds, sizes bytes; what did not happen is null.
#[derive(Serialize)]
struct Measured {
    kernel: String,
    cpus: usize,
    page_bytes: usize,
    memory_bytes: u64,
    workload: String,
    swap: String,
    room_bytes: u64,
    /// How long a round takes at most from the beginning of the growth: what had not happened by then is not known.
    limit_ns: u64,
    seed: u64,
    versions: BTreeMap<String, String>,
    rounds: Vec<Round>,
    bare_kills: Vec<BareKill>,
    failed: Vec<Failed>,
}

/// A turn of which nothing was measured.
#[derive(Serialize)]
struct Failed {
    /// Absent for a bare kill.
    rival: Option<String>,
    number: usize,
    /// Whether the workload had begun to grow, so that it might have shown something.
    has_begun: bool,
    why: String,
}

/// What is done next: a round with a rival, or a kill without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    rival: Option<Rival>,
    number: usize,
}

impl Turn {
    fn failed(self, has_begun: bool, error: &anyhow::Error) -> Failed {
        Failed { rival: self.rival.as_ref().map(name), number: self.number, has_begun, why: format!("{error:#}") }
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.rival.as_ref().map_or_else(|| "bare-kill".to_owned(), name), self.number)
    }
}

/// How much of a rival's rounds is 1, as a whole number.
const WHOLE: u64 = 1 << 40;
/// What the place of a round within its part of them is drawn below.
const PLACES: u64 = 1 << 20;

/// All turns, in an order that is drawn: each rival's are spread over the whole, one at random within each part of it, so
/// that of a cell that ends early each has had the same share.
fn turns(rounds: &[(Option<Rival>, usize)], dice: &mut Dice) -> Vec<Turn> {
    let mut placed = Vec::new();
    for &(rival, rounds) in rounds {
        for number in 0..rounds {
            let place = number as u64 * PLACES + dice.below(PLACES);
            placed.push((place * (WHOLE / PLACES) / rounds as u64, Turn { rival, number }));
        }
    }
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, turn)| turn).collect()
}

/// The name on the command line.
pub(crate) fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// What each round plays in.
struct Bench {
    observer: Observer,
    workload: workload::Kind,
    swap: SwapKind,
    threshold_bytes: u64,
    /// How much anonymous memory there was at the threshold in the last bare kill. Absent where nothing may be killed.
    anonymous_bytes: Option<u64>,
    /// Whether the workload of this round has begun to grow.
    has_begun: bool,
    dice: Dice,
}

pub(crate) fn main(arguments: &Arguments) -> Result<()> {
    ensure!(systemd::is_here(), "rivals are units of systemd: boot with `--root systemd`");
    // It measures; what is to be killed is another process.
    machine::oom_score_adjust(-1000)?;
    // The machine ends with the process that started this one.
    set(format!("/proc/{}/oom_score_adj", std::os::unix::process::parent_id()), "-1000")?;
    rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT | rustix::mm::MlockAllFlags::FUTURE)
        .context("cannot lock the observer's memory")?;
    set_up()?;
    let mut dice = Dice::new(arguments.seed);
    let rounds_of =
        |rival: Rival| arguments.rounds.iter().find(|(it, _)| *it == rival).map_or(1, |(_, rounds)| *rounds);
    let mut rounds: Vec<_> = arguments.rivals.iter().map(|rival| (Some(*rival), rounds_of(*rival))).collect();
    if !arguments.workload.is_harmless() {
        let most = rounds.iter().map(|(_, rounds)| *rounds).max().unwrap_or(0);
        rounds.push((None, most.min(BARE_KILLS)));
    }
    let turns = turns(&rounds, &mut dice);
    let mut measured = Measured {
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        cpus: thread::available_parallelism()?.get(),
        page_bytes: rustix::param::page_size(),
        memory_bytes: machine::meminfo("MemTotal")?,
        workload: name(&arguments.workload),
        swap: name(&arguments.swap),
        room_bytes: arguments.room_mib * MIB,
        limit_ns: u64::try_from(arguments.workload.limit().as_nanos())?,
        seed: arguments.seed,
        versions: versions()?,
        rounds: Vec::new(),
        bare_kills: Vec::new(),
        failed: Vec::new(),
    };
    let mut bench = Bench {
        observer: Observer::new()?,
        workload: arguments.workload,
        swap: arguments.swap,
        threshold_bytes: arguments.room_mib * MIB,
        anonymous_bytes: None,
        has_begun: false,
        dice,
    };
    println!("PLAN {}", turns.len());
    // What is on the terminal is there, too, where the machine does not come to its end.
    println!("MEASURED {}", serde_json::to_string(&measured)?);
    let begun = host_seconds()?;
    if !arguments.workload.is_harmless() {
        bench.try_out()?;
    }
    let is_over = || Ok(host_seconds()?.saturating_sub(begun) >= arguments.seconds);
    in_order(&turns, is_over, |index, turn| {
        let (rounds, bare_kills) = (measured.rounds.len(), measured.bare_kills.len());
        println!("TURN {}", json!({"rival": turn.rival.as_ref().map(name), "number": turn.number}));
        let played = bench.play(turn, &mut measured);
        let said = played.as_ref().map_or_else(|error| format!("{turn} failed: {error:#}"), String::clone);
        println!("ROUND {} of {} {said}", index + 1, turns.len());
        let failed = played.err().map(|error| turn.failed(bench.has_begun, &error));
        let went_well = failed.is_none();
        let (rounds, bare_kills) = (&measured.rounds[rounds..], &measured.bare_kills[bare_kills..]);
        println!("PART {}", json!({"rounds": rounds, "bare_kills": bare_kills, "failed": failed.as_slice()}));
        measured.failed.extend(failed);
        // After each: what was measured so far survives whatever comes.
        save(&arguments.out, &measured)?;
        if !went_well {
            bench.recover().context("cannot clean up after a round that failed")?;
        }
        Ok(went_well)
    })
}

/// The host's time: QEMU has the real-time clock follow it where the machine's other clocks follow instructions.
fn host_seconds() -> Result<u64> {
    let text = fs::read_to_string("/sys/class/rtc/rtc0/since_epoch").context("cannot read the real-time clock")?;
    text.trim().parse().context("the real-time clock is no number of seconds")
}

/// Has each turn played until the time is over. An error where too many one after the other do not go well.
fn in_order(
    turns: &[Turn],
    is_over: impl Fn() -> Result<bool>,
    mut play: impl FnMut(usize, Turn) -> Result<bool>,
) -> Result<()> {
    let mut failed = 0;
    for (index, turn) in turns.iter().enumerate() {
        if is_over()? {
            println!("the time is over after {index} of {} rounds", turns.len());
            break;
        }
        failed = if play(index, *turn)? { 0 } else { failed + 1 };
        ensure!(failed < FAILURES, "{FAILURES} rounds failed one after the other");
    }
    Ok(())
}

impl Bench {
    /// Plays a turn, and gives it in a line once it is among what was measured.
    fn play(&mut self, turn: Turn, measured: &mut Measured) -> Result<String> {
        self.has_begun = false;
        if let Some(rival) = turn.rival {
            let round = self.round(rival, turn.number)?;
            let said = round.to_string();
            measured.rounds.push(round);
            Ok(said)
        } else {
            let kill = self.bare_kill()?;
            let said = kill.to_string();
            measured.bare_kills.push(kill);
            Ok(said)
        }
    }
}

fn save(path: &Path, measured: &Measured) -> Result<()> {
    let text = serde_json::to_string_pretty(measured)?;
    fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// Makes the slice of the workloads, and what they need beside.
pub(crate) fn set_up() -> Result<()> {
    fs::create_dir_all(UNITS)?;
    let reserved = survivor::RESERVED;
    // The kernel's log has to have room for all victims of a round, which is read after it.
    set("/proc/sys/vm/oom_dump_tasks", "0")?;
    set(format!("{UNITS}/{SLICE}"), &format!("[Unit]\nDescription=Workloads\n[Slice]\n{reserved}\n"))?;
    let accounting = "MemoryAccounting=yes\nTasksAccounting=yes";
    set(format!("{UNITS}/{ANCHOR}"), &format!("[Unit]\nDescription=Keeps controllers on\n[Slice]\n{accounting}\n"))?;
    systemctl(&["daemon-reload"])?;
    systemctl(&["start", SLICE, ANCHOR])?;
    fs::create_dir_all(workload::TMPFS)?;
    mount("tmpfs", workload::TMPFS, "tmpfs", MountFlags::empty(), c"size=0,nr_inodes=0")
        .context("cannot mount a tmpfs")?;
    if !Path::new(NULL_BLOCK).exists() {
        mount("configfs", "/sys/kernel/config", "configfs", MountFlags::empty(), None)
            .context("cannot mount configfs")?;
    }
    Ok(())
}

/// The versions of the agent and of the rivals' packages, as far as they are installed.
pub(crate) fn versions() -> Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::from([("plimsoll".to_owned(), agent::version()?)]);
    for package in rival::PACKAGES {
        versions.extend(rival::package_version(package).ok().map(|version| (package.to_owned(), version)));
    }
    Ok(versions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rival_has_the_same_share_of_its_rounds_at_any_time_in_an_order_that_is_drawn() {
        let rounds =
            [(Some(Rival::PlimsollEbpf), 100), (Some(Rival::Earlyoom), 6), (None, 20), (Some(Rival::Nohang), 0)];
        let drawn = |seed| turns(&rounds, &mut Dice::new(seed));
        let all = drawn(1);
        assert_eq!(all.len(), 126);
        assert_ne!(all, drawn(2));
        for (rival, rounds) in rounds {
            let numbers: Vec<usize> = all.iter().filter(|turn| turn.rival == rival).map(|turn| turn.number).collect();
            assert_eq!(numbers, (0..rounds).collect::<Vec<_>>());
            // At any time it is at most one round before or behind its share.
            for end in 0..all.len() {
                let played = all[..end].iter().filter(|turn| turn.rival == rival).count();
                let others = all[..end].iter().filter(|turn| turn.rival == Some(Rival::PlimsollEbpf)).count();
                assert!((played * 100).abs_diff(others * rounds) <= 100 + rounds, "{rival:?}: {played} at {end}");
            }
        }
        // Which of two is first is drawn in each part.
        let rounds = [(Some(Rival::Earlyoom), 20), (Some(Rival::Nohang), 20)];
        let first = |pair: &[Turn]| pair[0].rival == Some(Rival::Earlyoom);
        let firsts = turns(&rounds, &mut Dice::new(1)).chunks(2).filter(|pair| first(pair)).count();
        assert!((1..20).contains(&firsts), "{firsts}");
    }

    #[test]
    fn a_round_that_fails_ends_nothing_and_three_in_a_row_do() {
        let turns = [Turn { rival: None, number: 0 }; 8];
        let played = |seconds: usize, fail: &[usize]| {
            let count = std::cell::Cell::new(0);
            let ended = in_order(
                &turns,
                || Ok(count.get() == seconds),
                |index, _| {
                    count.set(index + 1);
                    Ok(!fail.contains(&index))
                },
            );
            (count.get(), ended.is_ok())
        };
        assert_eq!(played(9, &[0, 1, 3, 4, 6, 7]), (8, true));
        assert_eq!(played(9, &[2, 3, 4]), (5, false));
        assert_eq!(played(3, &[2]), (3, true));
    }

    #[test]
    fn rounds_are_given_by_rival() {
        assert_eq!(rounds_of("systemd-oomd=5"), Ok((Rival::SystemdOomd, 5)));
        for text in ["earlyoom", "unknown=5", "earlyoom=x"] {
            assert!(rounds_of(text).is_err(), "{text}");
        }
    }
}
