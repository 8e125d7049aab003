//! `cargo xtask demo`: the same growing process met by three watchers, side by side, on a real kernel.

mod chart;
mod cluster;
mod judge;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::claim::{self, Claim};
use crate::picture::{MIB, float, index, signed};
use crate::qemu::Processor;
use crate::scratch::Scratch;
use crate::vm::Root;
use crate::{cluster as cluster_of_tests, install, rounds, run, vm};

/// What is compared, in this order, and what each stands for.
const WATCHERS: [(&str, &str); 3] = [
    ("poll-10s", "a sample every 10 s, as the kubelet takes it"),
    ("psi", "a PSI trigger of the kernel"),
    ("ebpf", "Plimsoll, woken by an event of the kernel"),
];

/// How to show it.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Which kernel: a Debian suite (bookworm, trixie, forky) or its version (6.1, 6.12, 7.2).
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// Measure: 20 rounds of each watcher, three rates, the in-kernel brake, an ext4 root, and 3,000 wakes, on one processor
    /// whose clock follows instructions, so that two runs agree; and 3,000 wakes on two processors by wall clock, with the
    /// kernel's own model of preemption and with another one. Takes about half an hour once built.
    #[arg(long)]
    full: bool,
    /// Where the measurements are written, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where the picture is written.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Seed of the random phase of polls.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use this machine's own kernel instead of a virtual machine: as root, with programs in the kernel as the only
    /// watcher, because the others may let the OOM killer choose. A process will fill memory down to 100 MiB.
    #[arg(long)]
    native: bool,
    /// Show it in a cluster instead: a real control plane and a node with a real kubelet, on which a pod fills memory beside
    /// the kubelet alone, and beside the kubelet and the agent. Takes about ten minutes once built.
    #[arg(long, conflicts_with_all = ["full", "native", "json", "kernel", "seed"])]
    cluster: bool,
}

impl Arguments {
    /// A picture is there soon; what is measured is what is shipped.
    const fn build(&self) -> vm::Build {
        if self.full { vm::Build::Release } else { vm::Build::Plain }
    }

    /// What it needs: on this machine's own kernel, no machine.
    pub(crate) fn needs(&self) -> anyhow::Result<Vec<install::Need>> {
        if self.cluster {
            cluster_of_tests::needs_beside(Some(cluster_of_tests::NODE_KERNEL))
        } else if self.native {
            Ok([&install::EBPF[..], &install::PROGRAMS].concat())
        } else {
            install::machines(&[&self.kernel])
        }
    }
}

/// What the guest measured, as far as it is shown.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Measured {
    kernel: String,
    /// Whether the kernel can be booted with another model of preemption.
    #[serde(default)]
    chooses_preemption: bool,
    cpus: usize,
    #[serde(default)]
    page_bytes: u64,
    memory_bytes: u64,
    /// What the kernel's counters of free and used pages may be off by.
    #[serde(default)]
    drift_bytes: u64,
    watchers: BTreeMap<String, Watched>,
}

#[derive(Clone, Debug, Deserialize)]
struct Watched {
    #[serde(default)]
    wake: Option<Wake>,
    rounds: Vec<Round>,
}

/// From the crossing to awake, in turn with the barest wake on the same hook.
#[derive(Clone, Debug, Deserialize)]
struct Wake {
    times_ns: Vec<u64>,
    bare_times_ns: Vec<u64>,
}

/// One process that grew. Times are nanoseconds after the crossing.
#[derive(Clone, Debug, Deserialize)]
struct Round {
    threshold_bytes: u64,
    past_threshold_bytes: Option<u64>,
    crossed_to_awake_ns: Option<u64>,
    crossed_to_stopped_ns: Option<u64>,
    #[serde(default)]
    crossed_to_frozen_ns: Option<u64>,
    #[serde(default)]
    crossed_to_killed_ns: Option<u64>,
    #[serde(default)]
    crossed_to_oom_kill_ns: Option<u64>,
    crossed_to_memory_back_ns: Option<u64>,
    killed_by: Option<String>,
    oom_kills: u64,
    #[serde(default)]
    wanted_rate_bytes_per_s: u64,
    #[serde(default)]
    rate_bytes_per_s: Option<u64>,
    /// What the process's own record has as filled at the crossing, less by how much available memory had fallen.
    #[serde(default)]
    filled_minus_fallen_bytes: Option<i64>,
    #[serde(default)]
    core_major_faults: Option<u64>,
    #[serde(default)]
    trace: Vec<(i64, u64)>,
}

/// One machine's worth of measuring.
struct Boot {
    name: &'static str,
    arguments: Vec<&'static str>,
    /// One processor whose clock follows instructions: whatever the host does, two runs agree.
    icount: bool,
    append: Option<&'static str>,
    root: Root,
    timeout: u64,
}

impl Boot {
    /// By wall clock, on two processors.
    fn of(name: &'static str, arguments: &[&'static str], timeout: u64) -> Self {
        Self { name, arguments: arguments.to_vec(), icount: false, append: None, root: Root::Initramfs, timeout }
    }

    fn counted(name: &'static str, arguments: &[&'static str]) -> Self {
        Self { icount: true, ..Self::of(name, arguments, 3600) }
    }
}

/// Shows it, and writes what was asked for.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let begun = Instant::now();
    install::all(&arguments.needs()?)?;
    if arguments.cluster {
        return cluster::run(arguments.svg.as_deref());
    }
    arguments.build().run(Processor::of(&arguments.kernel))?;
    println!("built and ready after {} s", begun.elapsed().as_secs());
    let lines = &mut |_: &str| {};
    let first = measure(arguments, &shown(arguments.full), lines)?;
    let measured: Measured = serde_json::from_value(first.clone()).context("the guest measured something else")?;
    print!("\n{}", timeline(&measured));
    print!("{}", figures(&measured));
    let svg = arguments.svg.clone().unwrap_or_else(|| run::root().join("target/demo.svg"));
    chart::draw(&svg, &measured)?;
    println!("picture: {}", svg.display());
    if arguments.full {
        let claims = full(arguments, first, lines)?;
        let broken = claim::broken(&claims);
        ensure!(broken.is_empty(), "does not hold: {}", broken.join(", "));
        return Ok(());
    }
    match &arguments.json {
        Some(file) => save(file, &first),
        None => Ok(()),
    }
}

/// The round that is shown, by instructions where it is `judged`.
fn shown(judged: bool) -> Boot {
    Boot { icount: judged, ..Boot::of("shown", &["--rounds", "1", "--trace"], 600) }
}

/// The full measurement on this kernel, for which machines were prepared: what holds, and what does not. Hands on what the
/// machines print.
pub(crate) fn claims(kernel: &str, lines: &mut dyn FnMut(&str)) -> anyhow::Result<Vec<Claim>> {
    let json = run::root().join(format!("target/demo-{kernel}.json"));
    let arguments = Arguments {
        kernel: kernel.into(),
        full: true,
        json: Some(json),
        svg: None,
        seed: 1,
        native: false,
        cluster: false,
    };
    let first = measure(&arguments, &shown(true), lines)?;
    full(&arguments, first, lines)
}

fn save(file: &Path, measured: &Value) -> anyhow::Result<()> {
    fs::write(file, serde_json::to_string_pretty(measured)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!("measurements: {}", file.display());
    Ok(())
}

/// All that is published, boot by boot, in one object of the same shape with more beside it, and what has to hold. What
/// was measured is saved after each boot.
fn full(arguments: &Arguments, mut all: Value, lines: &mut dyn FnMut(&str)) -> anyhow::Result<Vec<Claim>> {
    let ebpf = "--watchers=ebpf";
    let wakes = [ebpf, "--rounds", "0", "--wakes", "3000", "--idle", "0"];
    let mut boots = vec![
        Boot::counted("races", &["--rounds", "20", "--idle", "0"]),
        Boot::counted("rates", &[ebpf, "--rounds", "9", "--rates", "50,100,200", "--short-lists", "--idle", "0"]),
        Boot::counted("kernel_brake", &[ebpf, "--rounds", "5", "--kernel-brake", "--idle", "0"]),
        Boot::counted("wakes", &wakes),
    ];
    // This machine has its own root, its own processors and its own model of preemption.
    if !arguments.native {
        boots.push(Boot { root: Root::Ext4, ..Boot::counted("ext4", &["--rounds", "3", "--idle", "0"]) });
        boots.push(Boot::of("wakes_of_two", &wakes, 3600));
        boots.push(Boot { append: Some("preempt=full"), ..Boot::of("wakes_of_two_preempted", &wakes, 3600) });
    }
    let file = arguments.json.clone().unwrap_or_else(|| run::root().join("target/demo.json"));
    save(&file, &all)?;
    for boot in boots {
        let mut measured = measure(arguments, &boot, lines)?;
        if boot.name == "races" {
            // These are the rounds of the published shape; at rest was measured before.
            all["watchers"] = measured["watchers"].take();
        } else {
            all[boot.name] = measured;
        }
        save(&file, &all)?;
    }
    let claims = judge::Full::deserialize(&all).context("the guest measured something else")?.claims(arguments.native);
    all["claims"] = serde_json::to_value(&claims)?;
    save(&file, &all)?;
    print!("\n{}", claim::text(&claims));
    Ok(claims)
}

/// Has the guest measure, in a machine, what it prints there being handed on, or on this one.
fn measure(arguments: &Arguments, boot: &Boot, lines: &mut dyn FnMut(&str)) -> anyhow::Result<Value> {
    println!("measuring: {}", boot.name);
    let out = Scratch::new("demo-")?;
    let seed = arguments.seed.to_string();
    if arguments.native {
        native(arguments.build(), &boot.arguments, &seed, out.path())?;
    } else {
        let mut command = vec!["/bin/plimsoll-guest", "demo", "--out", "/out/demo.json", "--seed", &seed];
        command.extend(&boot.arguments);
        let mut machine = vm::Arguments::of(&arguments.kernel, boot.timeout, &command);
        machine.agent = arguments.build();
        machine.icount = boot.icount;
        machine.append = boot.append.map(str::to_owned);
        machine.root = boot.root;
        machine.out = Some(out.path().to_owned());
        rounds::boot(&machine, boot.name, lines)?;
    }
    let text = fs::read_to_string(out.path().join("demo.json")).context("the guest left no measurements")?;
    Ok(serde_json::from_str(&text)?)
}

/// On this machine's own kernel.
fn native(build: vm::Build, more: &[&str], seed: &str, out: &Path) -> anyhow::Result<()> {
    let place = build.place(Processor::X86_64);
    let mut command = std::process::Command::new(place.join("plimsoll-guest"));
    command.env("PLIMSOLL_PROGRAM", place.join("plimsoll"));
    command.args(["demo", "--seed", seed, "--out"]).arg(out.join("demo.json")).args(more);
    if !more.iter().any(|word| word.starts_with("--watchers")) {
        command.arg("--watchers=ebpf");
    }
    run::shown(&mut command)
}

/// One row a watcher: what was available over time, from before the crossing until memory was back.
fn timeline(measured: &Measured) -> String {
    const WIDTH: usize = 64;
    const BEFORE: f64 = 0.5;
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let rounds: Vec<(&str, &str, &Round)> = WATCHERS
        .iter()
        .filter_map(|(name, what)| Some((*name, *what, measured.watchers.get(*name)?.rounds.first()?)))
        .collect();
    let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
    let end =
        rounds.iter().filter_map(|(.., round)| round.crossed_to_memory_back_ns).map(seconds).fold(1.0, f64::max) + 0.5;
    let mut text = format!(
        "One process fills memory as fast as it can; Linux {}, {} processors, {} MiB.\n\
         Bars: memory available, full height is twice the threshold. Time runs from {BEFORE} s before the threshold is crossed\n\
         to {end:.1} s after; | is the crossing.\n\n",
        measured.kernel,
        measured.cpus,
        measured.memory_bytes >> 20,
    );
    for (name, what, round) in rounds {
        let column = |at: f64| (at + BEFORE) / (end + BEFORE) * float(WIDTH as u64);
        let mut row = vec![None; WIDTH];
        for (at, bytes) in &round.trace {
            let at = signed(*at) / 1e9;
            let place = column(at);
            if place >= 0.0 && place < float(WIDTH as u64) {
                let place = index(place);
                let lowest: &mut Option<u64> = &mut row[place];
                *lowest = Some(lowest.map_or(*bytes, |low| low.min(*bytes)));
            }
        }
        let mut last = round.trace.first().map_or(0, |(_, bytes)| *bytes);
        let crossing = index(column(0.0));
        let line: String = (0..WIDTH)
            .map(|place| {
                last = row[place].unwrap_or(last);
                let height = float(last) / float(2 * round.threshold_bytes) * 8.0;
                if place == crossing { '|' } else { BARS[index(height.clamp(0.0, 8.0))] }
            })
            .collect();
        let ended = match round.killed_by.as_deref() {
            Some("oom-killer") => "the OOM killer chose",
            Some(_) => "evicted",
            None => "nothing happened",
        };
        // Writing into a String does not fail.
        let _ = writeln!(text, "{name:>9} {line} {ended}\n{:>9} {what}", "");
    }
    text
}

/// The same in numbers.
fn figures(measured: &Measured) -> String {
    let mut text = format!(
        "\n{:>9}  {:>12} {:>12} {:>12} {:>14}  {}\n",
        "", "awake", "stopped", "memory back", "past threshold", "killed by"
    );
    let ms = |ns: Option<u64>| ns.map_or("-".into(), |ns| format!("{:.1} ms", float(ns) / 1e6));
    for (name, _) in WATCHERS {
        for round in measured.watchers.get(name).map(|watched| &watched.rounds[..]).unwrap_or_default() {
            let past = round.past_threshold_bytes.map_or("-".into(), |bytes| format!("{:.1} MiB", float(bytes) / MIB));
            let _ = writeln!(
                text,
                "{name:>9}  {:>12} {:>12} {:>12} {past:>14}  {}",
                ms(round.crossed_to_awake_ns),
                ms(round.crossed_to_stopped_ns),
                ms(round.crossed_to_memory_back_ns),
                round.killed_by.as_deref().unwrap_or("none"),
            );
        }
    }
    text.push_str(
        "Times are from the crossing, by the kernel's clock, in an emulated machine: compare rows, not numbers.\n",
    );
    text
}

/// What a run measured on 6.12, its traces thinned. It was saved before freezes and kills were measured: their moments are
/// such as the traces allow.
#[cfg(test)]
const EXAMPLE: &str = include_str!("../../tests/data/demo/6.12.json");

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Measured {
        serde_json::from_str(EXAMPLE).expect("it has the guest's shape")
    }

    #[test]
    fn each_watcher_has_a_row_with_its_crossing_and_its_end() {
        let text = timeline(&example());
        let rows: Vec<&str> = text.lines().filter(|line| line.contains('█')).collect();
        let expected = [("poll-10s", "the OOM killer chose"), ("psi", "the OOM killer chose"), ("ebpf", "evicted")];
        assert_eq!(rows.len(), expected.len(), "{text}");
        for (row, (name, ended)) in rows.into_iter().zip(expected) {
            assert!(row.trim_start().starts_with(name) && row.ends_with(ended) && row.contains('|'), "{text}");
        }
    }

    #[test]
    fn a_watcher_without_rounds_and_a_round_without_an_end_are_shown_as_such() {
        let mut measured = example();
        measured.watchers.get_mut("psi").expect("it watched").rounds.clear();
        let round = &mut measured.watchers.get_mut("poll-10s").expect("it watched").rounds[0];
        (round.killed_by, round.crossed_to_memory_back_ns, round.past_threshold_bytes) = (None, None, None);
        let text = timeline(&measured) + &figures(&measured);
        assert!(text.contains("nothing happened") && text.contains("none") && !text.contains("psi "), "{text}");
    }

    #[test]
    fn figures_are_in_milliseconds_and_mebibytes() {
        let text = figures(&example());
        let row = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.trim_start().starts_with(name)).expect("a row");
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
        };
        assert_eq!(row("ebpf"), ["ebpf", "0.0 ms", "3.2 ms", "26.0 ms", "1.1 MiB", "plimsoll"]);
        assert_eq!(row("poll-10s"), ["poll-10s", "-", "519.8 ms", "598.2 ms", "128.4 MiB", "oom-killer"]);
    }

    #[test]
    fn the_picture_is_drawn() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let file = place.path().join("demo.svg");
        chart::draw(&file, &example()).expect("it can be drawn");
        let text = std::fs::read_to_string(file).expect("it was written");
        assert!(text.starts_with("<svg") && text.contains("polyline"), "{text}");
        assert!(text.contains("The same process beside each watcher"), "{text}");
        // In the panel of the watcher, and in the common one.
        for label in [
            "poll-10s: OOM kill after 519.0 ms",
            "psi: OOM kill after 313.5 ms",
            "ebpf: frozen after 3.1 ms",
            "ebpf: killed after 5.2 ms",
        ] {
            assert_eq!(text.matches(label).count(), 2, "{label}: {text}");
        }
    }
}
