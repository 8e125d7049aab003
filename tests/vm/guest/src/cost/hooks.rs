//! How often a fixed load runs each hook, and how many instructions that takes.

use super::storm::{self, Devices, Kind};
use super::{Machine, save, settings, settled, storms};
use crate::cgroup::Cgroup;
use crate::hog_tests::{Hog, guest};
use crate::machine::{KernelSetting, now_ns, set};
use anyhow::{Context as _, Result, ensure};
use plimsoll_sense::bare::Bare;
use plimsoll_sense::cost::{self, LoadedProgram};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// All that was measured. Times are in nanoseconds.
#[derive(Serialize)]
struct Measured {
    cell: &'static str,
    #[serde(flatten)]
    machine: Machine,
    programs: Vec<Program>,
    loads: Vec<LoadRun>,
    /// A program that does nothing while it is not armed, at the hook that runs most often: what the kernel counts for it
    /// is what the counting itself takes.
    empty: Ran,
    /// What the verifier takes for each program of every alternative, with the brake in the kernel.
    verified: BTreeMap<&'static str, u32>,
}

/// A program as it is loaded.
#[derive(Serialize)]
struct Program {
    name: String,
    verified_instructions: Option<u32>,
    translated_bytes: Option<u32>,
    machine_code_bytes: u32,
}

/// One load.
#[derive(Serialize)]
struct LoadRun {
    load: &'static str,
    number: usize,
    /// Whether the kernel counted. Without, the programs' counts are zero.
    statistics: bool,
    elapsed_ns: u64,
    programs: BTreeMap<String, Ran>,
}

/// How often a program ran, and how long in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Ran {
    calls: u64,
    ns: u64,
}

/// What is done to run every hook.
const LOADS: [(&str, Load); 7] = [
    ("allocation", |devices| took(Kind::Allocation, devices)),
    ("fork", |devices| took(Kind::Fork, devices)),
    ("page-cache", |devices| took(Kind::PageCache, devices)),
    ("page-cache-at-limit", |devices| took(Kind::PageCacheAtLimit, devices)),
    ("cgroups", |devices| took(Kind::Cgroups, devices)),
    ("huge-pages", |devices| timed(|| huge_pages(devices))),
    ("oom", |_| timed(oom)),
];

/// Gives how long it took.
type Load = fn(&Devices) -> Result<u64>;

fn took(kind: Kind, devices: &Devices) -> Result<u64> {
    Ok(storm::run(kind, kind.times(), devices)?.elapsed_ns)
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let begun = now_ns();
    work()?;
    Ok(now_ns() - begun)
}

/// Memory is full of page cache, and huge pages are taken, for which it is reclaimed at once.
fn huge_pages(devices: &Devices) -> Result<()> {
    const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";
    // The page cache of a device is dropped when no one has it open any more.
    let _open = File::open(devices.large())?;
    let cgroup = Cgroup::create("work.slice/huge-pages")?;
    let mut reader = guest();
    reader.args(["hog", "cache", "--mib", "1280", "--hold", "0", "--cgroup"]).arg(cgroup.path());
    let read = reader.arg("--path").arg(devices.large()).status();
    ensure!(read.context("cannot start a reader")?.success(), "the reader failed");
    set(HUGE_PAGES, "256")?;
    set(HUGE_PAGES, "0")
}

/// A cgroup at its own limit without anything to reclaim.
fn oom() -> Result<()> {
    let cgroup = Cgroup::create("work.slice/oom")?;
    cgroup.write("memory.max", "16M")?;
    let mut hog = Hog::start("anon", cgroup.path(), 64, &[])?;
    let ended = hog.child.wait()?;
    ensure!(!ended.success(), "the hog was not killed");
    Ok(())
}

pub(super) fn measure(rounds: usize, out: &Path) -> Result<()> {
    let devices = Devices::create()?;
    println!("PLAN {}", rounds * 2 * LOADS.len());
    let verified = cost::verified()?.into_iter().collect();
    let empty = empty(&devices)?;
    let agent = settled(&settings()?)?;
    let programs = cost::loaded()?.into_iter().map(|it| Program {
        name: it.name,
        verified_instructions: it.verified_instructions,
        translated_bytes: it.translated_bytes,
        machine_code_bytes: it.machine_code_bytes,
    });
    let machine = Machine::here()?;
    let mut measured =
        Measured { cell: "hooks", machine, programs: programs.collect(), loads: Vec::new(), empty, verified };
    ensure!(!measured.programs.is_empty(), "no program is loaded");
    for number in 0..rounds {
        for (name, load) in LOADS {
            for counted in storms::order(number) {
                let _counting = counted.then(KernelSetting::program_statistics).transpose()?;
                let before = cost::loaded()?;
                let elapsed_ns = load(&devices).with_context(|| format!("the load {name}"))?;
                let programs = since(&before, &cost::loaded()?);
                println!("ROUND {} {name} statistics={counted} elapsed_ns={elapsed_ns}", measured.loads.len() + 1);
                measured.loads.push(LoadRun { load: name, number, statistics: counted, elapsed_ns, programs });
                save(out, &measured)?;
            }
        }
    }
    agent.stop()
}

/// What the kernel counts for a program that does nothing.
fn empty(devices: &Devices) -> Result<Ran> {
    const NAME: &str = "bare_fentry";
    let _bare = Bare::new()?;
    let _counting = KernelSetting::program_statistics()?;
    let before = cost::loaded()?;
    took(Kind::Allocation, devices)?;
    since(&before, &cost::loaded()?).remove(NAME).with_context(|| format!("there is no program {NAME}"))
}

/// What ran between the two, of the programs that are in both.
fn since(before: &[LoadedProgram], after: &[LoadedProgram]) -> BTreeMap<String, Ran> {
    let ran = |program: &LoadedProgram| {
        let old = before.iter().find(|old| old.name == program.name)?;
        let ran = Ran {
            calls: program.runs.saturating_sub(old.runs),
            ns: program.run_time_ns.saturating_sub(old.run_time_ns),
        };
        Some((program.name.clone(), ran))
    };
    after.iter().filter_map(ran).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ran_is_the_difference_of_programs_that_were_there_before() {
        let program = |name: &str, runs, run_time_ns| LoadedProgram {
            name: name.into(),
            verified_instructions: None,
            translated_bytes: None,
            machine_code_bytes: 0,
            runs,
            run_time_ns,
        };
        let before = [program("a", 5, 100), program("b", 1, 1)];
        let after = [program("a", 7, 180), program("b", 1, 1), program("c", 9, 9)];
        let found = since(&before, &after);
        assert_eq!(found.get("a"), Some(&Ran { calls: 2, ns: 80 }));
        assert_eq!(found.get("b"), Some(&Ran::default()));
        assert_eq!(found.get("c"), None);
    }

    #[test]
    fn each_storm_is_a_load_of_its_own_name() {
        use clap::ValueEnum as _;
        for kind in Kind::value_variants() {
            let name = serde_json::to_string(kind).unwrap();
            assert!(LOADS.iter().any(|(load, _)| format!("{load:?}") == name), "{name}");
        }
    }
}
