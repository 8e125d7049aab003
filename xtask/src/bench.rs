//! `cargo xtask bench`: Plimsoll beside what a user would pick on one machine, in the same machine, on the same kernel,
//! against the same growth, in turn.

mod cells;
mod console;
mod cost;
mod figures;
mod measured;
mod plots;
mod rivals;
mod store;
mod table;
mod verdicts;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::builder::PossibleValuesParser;

use crate::claim::{self, Claim};
use crate::progress::Progress;
use crate::qemu::Processor;
use crate::vm::{Build, Root};
use crate::{debian_root, install, kernels, revision, rounds, run, vm};
use cells::{Cell, Plan};
use cost::CostCell;
use measured::Measured;
use store::{Done, Kept, Store};
use table::Missing;

/// Where results are kept in the checkout.
const RESULTS: &str = "benches/results";
/// Where those are left that are of few rivals or rounds, and what a run that was stopped goes on from.
const PART: &str = "target/bench/part";
const WHOLE: &str = "target/bench/whole";
/// What may change without another measurement: none of it is in the machine of a cell.
const OTHERS: [&str; 8] = [
    RESULTS,
    "tests/results",
    "*.md",
    "benches/*.rs",
    "tests/cluster",
    "tests/fuzz",
    "agent/deploy/kustomize",
    "agent/deploy/prometheus",
];
/// After how many seconds a cell's machine is ended, and after how many no further round begins in it: early enough that
/// the last one ends, and what was measured is sent, before.
const MACHINE_SECONDS: u64 = 60 * 60;
const ROUNDS_SECONDS: u64 = 45 * 60;
/// What the guest leaves, and what it printed.
const LEFT: &str = "bench.json";
const LOG: &str = "log";
/// How the name of a file ends that has what a machine was booted for, until what it measured is known.
const BEGUN: &str = "begun.json";
/// Why a cell is skipped that another command measures at the moment.
const TAKEN: &str = "another command is measuring it";
/// Why there are no results of one that no run was asked for so far.
const NOT_YET: &str = "not measured yet";

const CLOSING: &str = "A cell is a way of filling memory, a kind of swap and how much memory is left at the threshold, in \
    a machine of an hour at most, in which all rivals meet it in turn. Where the kernel gives up in a round, another machine \
    plays the rest, unless the cell was begun more than 45 minutes ago. What was measured of the same sources is kept in \
    target/bench and not measured again, so that a run can be stopped and resumed. The results are written into \
    benches/results (those of --quick or --rivals into target/bench/part): the rounds as JSON, tables as Markdown, and a \
    plot for each cell. What was not measured is NOT RUN there; a cell that has fewer rounds than planned is gone on \
    with by the next run. The exit code is 1 if something that has to hold does not, or a cell could not be measured with \
    all of its rounds. benches/README.md has the method.";

/// What to measure.
#[derive(clap::Args)]
#[command(after_help = CLOSING)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Arguments {
    /// Which kernel: a Debian suite (bookworm, trixie, forky) or its version (6.1, 6.12, 7.2).
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// Measure for less than five minutes once built: memory is filled as fast as possible, without swap, against few
    /// rivals in few rounds.
    #[arg(long, conflicts_with_all = ["cells", "rivals"])]
    quick: bool,
    /// Measure only this cell, of those that --list prints. Can be given more than once.
    #[arg(long = "cell", value_name = "NAME")]
    cells: Vec<String>,
    /// Only against these rivals, separated by commas; the results are no part of the published ones.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = PossibleValuesParser::new(rivals::names()))]
    rivals: Vec<String>,
    /// Seed of the order of cells and of rivals, and of the random phase of polls.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure again what was measured of the same sources.
    #[arg(long)]
    again: bool,
    /// Print the cells with their rounds, and measure nothing.
    #[arg(long)]
    list: bool,
    /// Write the tables and plots of the results in benches/results anew, without the reasons of runs that failed, and
    /// measure and judge nothing.
    #[arg(long, conflicts_with_all = ["quick", "cells", "rivals", "again", "list"])]
    tables: bool,
}

impl Arguments {
    /// What it needs: machines, and where there are other daemons, those with systemd and the daemons in them.
    pub(crate) fn needs(&self) -> anyhow::Result<Vec<install::Need>> {
        if self.tables {
            return Ok(Vec::new());
        }
        let mut needs = install::machines(&[&self.kernel])?;
        for cell in self.costs().into_iter().filter(|cell| !cell.packages.is_empty()) {
            needs.extend(install::systemd_machines_with(&[&self.kernel], cell.packages)?);
        }
        if !self.plans()?.is_empty() {
            needs.extend(install::systemd_machines_with(&[&self.kernel], &rivals::PACKAGES)?);
        }
        Ok(needs)
    }

    /// Whether it has all rivals and rounds, so that its results are published.
    fn is_whole(&self) -> bool {
        !self.quick && self.rivals.is_empty()
    }

    /// Which of the cells are measured whose names begin with `cost-`: those that are asked for, or all unless less of
    /// the others is.
    fn costs(&self) -> Vec<&'static CostCell> {
        let asked = |cell: &&CostCell| self.cells.iter().any(|name| name == cell.name);
        let all = self.cells.is_empty() && self.is_whole();
        cost::CELLS.iter().filter(|cell| all || asked(cell)).collect()
    }

    /// What rivals are met in, in this order. An error where a cell is asked for that there is not.
    fn plans(&self) -> anyhow::Result<Vec<(Cell, Plan)>> {
        if self.quick {
            return Ok(vec![cells::quick()]);
        }
        let costs: Vec<&str> = self.costs().iter().map(|cell| cell.name).collect();
        ensure!(
            self.rivals.is_empty() || costs.is_empty(),
            "--rivals has no effect on {}: leave out one or the other",
            costs.join(", ")
        );
        let mut chosen = cells::all();
        let costs = cost::CELLS.iter().map(|cell| cell.name.to_owned());
        let names: Vec<String> = chosen.iter().map(Cell::name).chain(costs).collect();
        if let Some(unknown) = self.cells.iter().find(|name| !names.contains(name)) {
            bail!("there is no cell {unknown}; there are {}", names.join(", "));
        }
        chosen.retain(|cell| self.cells.is_empty() || self.cells.contains(&cell.name()));
        cells::shuffle(&mut chosen, self.seed);
        let asks = |rival: &String| self.rivals.is_empty() || self.rivals.contains(rival);
        let plan = |cell: &Cell| cell.plan().into_iter().filter(|(rival, _)| asks(rival)).collect();
        Ok(chosen.into_iter().map(|cell| (cell.clone(), plan(&cell))).collect())
    }
}

/// Measures, and writes what was measured. An error where something does not hold.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let plans = arguments.plans()?;
    if arguments.list {
        for (cell, plan) in &plans {
            println!("{:<18} {:>3} rounds: {}", cell.name(), plan.values().sum::<u32>(), cell.what());
        }
        for cell in arguments.costs() {
            println!("{:<18} {}", cell.name, cell.what);
        }
        return Ok(());
    }
    let costs = arguments.costs();
    let bench = Bench::of(arguments, &plans)?;
    if arguments.tables {
        return bench.render();
    }
    install::all(&arguments.needs()?)?;
    let programs = Build::Release.copies(Processor::of(bench.kernel))?;
    // What is measured has to be what the revision names.
    let (before, now) = (&bench.revision, revision::of_all_but(&OTHERS)?);
    ensure!(*before == now, "the sources were at {before} and are at {now} after building: run it again");
    let bench = Bench { programs: programs.path().to_owned(), ..bench };
    let (mut claims, mut failures) = (Vec::new(), Vec::new());
    let progress = Progress::new("cells", (plans.len() + costs.len()) as u64);
    if !costs.is_empty() {
        let (more, failed) = bench.costs(&costs, &progress)?;
        claims.extend(more);
        failures.extend(failed);
    }
    if !plans.is_empty() {
        let (more, failed) = bench.races(plans, &progress)?;
        claims.extend(more);
        failures.extend(failed);
    }
    let broken = claim::broken(&claims);
    ensure!(broken.is_empty(), "does not hold: {}", broken.join(", "));
    let left = failures.join(", ");
    ensure!(
        left.is_empty(),
        "not measured, or with fewer rounds than planned: {left}; the same command goes on with them"
    );
    Ok(())
}

/// One run.
struct Bench {
    kernel: &'static str,
    seed: u64,
    again: bool,
    /// Whether its cells were named, and not all of them are wanted.
    is_asked: bool,
    date: String,
    revision: String,
    /// The programs of all of its machines, in the same state for as long as it takes.
    programs: PathBuf,
    /// What a run that was stopped goes on from.
    before: Store,
    /// What is published, and the folder of that.
    results: Store,
    folder: PathBuf,
    /// The cells that are part of the tables where there are results of them: all, unless this run alone is shown.
    shown: Vec<Cell>,
}

impl Bench {
    fn of(arguments: &Arguments, plans: &[(Cell, Plan)]) -> anyhow::Result<Self> {
        let kernel = kernels::version(&arguments.kernel)?;
        let (before, folder, shown) = if arguments.is_whole() {
            (WHOLE, RESULTS, cells::all())
        } else {
            (PART, PART, plans.iter().map(|(cell, _)| cell.clone()).collect())
        };
        let folder = run::root().join(folder);
        Ok(Self {
            kernel,
            seed: arguments.seed,
            again: arguments.again,
            is_asked: arguments.quick || !arguments.cells.is_empty(),
            date: revision::today()?,
            revision: revision::of_all_but(&OTHERS)?,
            programs: Build::Release.place(Processor::of(kernel)),
            before: Store::of(&run::root().join(before), kernel),
            results: Store::of(&folder, kernel),
            folder,
            shown,
        })
    }

    /// Measures a cell while no other command does. Gives nothing where another one does, which is an error only where the
    /// cell was asked for.
    fn alone<T>(&self, name: &str, measure: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        let lock = self.before.try_lock(name)?;
        ensure!(lock.is_some() || !self.is_asked, "{TAKEN}");
        lock.map(|_lock| measure()).transpose()
    }

    /// Has rivals meet these cells, and publishes all of which there are results. Gives what has to hold, and which cells
    /// could not be measured, or only in part.
    fn races(&self, plans: Vec<(Cell, Plan)>, progress: &Progress) -> anyhow::Result<(Vec<Claim>, Vec<String>)> {
        let (mut failed, mut skipped, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for (cell, plan) in plans {
            match self.alone(&cell.name(), || self.cell(&cell, plan, progress)) {
                Ok(None) => {
                    progress.line(&format!("{}: {TAKEN}", cell.name()));
                    skipped.push(cell);
                }
                Ok(Some(None)) => {}
                Ok(Some(Some(part))) => {
                    progress.line(&format!("A PART of {}: {part}", cell.name()));
                    parts.push(cell.name());
                }
                Err(error) => {
                    progress.line(&format!("NOT RUN {}: {error:#}", cell.name()));
                    failed.push(Missing { cell, why: format!("{error:#}") });
                }
            }
            progress.step();
        }
        parts.extend(failed.iter().map(|one| one.cell.name()));
        Ok((self.publish(failed, &skipped)?, parts))
    }

    /// Has a cell among the results: what was measured of it before in the same sources, and the rest of it now. Gives how
    /// much of it there is, where that is not all.
    fn cell(&self, cell: &Cell, plan: Plan, progress: &Progress) -> anyhow::Result<Option<String>> {
        let begun = Instant::now();
        let mut kept = match self.found_before(cell, &plan)? {
            Some(before) if before.part().is_none() => {
                progress.line(&format!("{}: measured before of these sources", cell.name()));
                before
            }
            Some(mut before) if !before.rest().is_empty() => {
                let found = before.measured.rounds.len();
                progress.line(&format!("{}: {found} rounds were measured before of these sources", cell.name()));
                if let Err(error) = self.go_on(cell, &mut before, progress) {
                    before.ended = Some(format!("{error:#}"));
                }
                before
            }
            _ => self.measure(cell, plan, self.seed, progress)?,
        };
        // One in which the kernel gave up is over with its machine, and another takes the next ones.
        while kept.has_panicked() && !kept.rest().is_empty() && begun.elapsed().as_secs() < ROUNDS_SECONDS {
            self.before.save(&cell.name(), &kept)?;
            if let Err(error) = self.go_on(cell, &mut kept, progress) {
                kept.ended = Some(format!("{error:#}"));
                break;
            }
        }
        self.before.save(&cell.name(), &kept)?;
        let part = kept.part();
        let published: Option<Kept> = self.results.load(&cell.name())?;
        if let (Some(part), Some(published)) = (&part, published)
            && published.measured.rounds.len() > kept.measured.rounds.len()
        {
            let (of, revision) = (published.measured.rounds.len(), published.revision);
            // What these rounds have shown is not lost with them.
            let seen = verdicts::claims(&[Done { cell: cell.clone(), kept, again: None }], std::slice::from_ref(cell));
            let broken = claim::broken(&seen);
            let broken = if broken.is_empty() {
                String::new()
            } else {
                format!("; in them does not hold: {}", broken.join(", "))
            };
            bail!("there are {part}{broken}; the results that are published have {of} of {revision}");
        }
        self.results.save(&cell.name(), &kept)?;
        Ok(part)
    }

    /// What was measured of it before in the same sources.
    fn found_before(&self, cell: &Cell, plan: &Plan) -> anyhow::Result<Option<Kept>> {
        if self.again {
            return Ok(None);
        }
        let (name, is_same) = (cell.name(), |kept: &Kept| kept.is_of(&self.revision, self.seed, plan));
        let found: Option<Kept> = self.before.load(&name)?.filter(is_same);
        // A checkout that was made anew has what was published alone.
        let found = found.map_or_else(|| self.results.load(&name), |it| Ok(Some(it)))?.filter(is_same);
        // What printed it may have been a run that was killed, and never kept it.
        let stopped = self.stopped(cell).filter(|it| revision::is_same(&it.revision, &self.revision));
        let Some(stopped) = stopped else { return Ok(found) };
        let found = match found {
            // With --again, after what was found was complete.
            Some(_) if is_same(&stopped) => Some(stopped),
            Some(mut found) => {
                // Of the rest of that, and not of another run.
                if stopped.plan == found.rest() && stopped.seed == self.seed_after(&found) {
                    report_anew(&name, found.go_on(stopped));
                }
                Some(found)
            }
            None => Some(stopped).filter(is_same),
        };
        if let Some(found) = &found {
            self.before.save(&name, found)?;
        }
        self.before.remove(&name, BEGUN)?;
        Ok(found)
    }

    /// What a machine printed whose run was killed before it kept that.
    fn stopped(&self, cell: &Cell) -> Option<Kept> {
        let name = cell.name();
        let mut begun: Kept = serde_json::from_str(&fs::read_to_string(self.before.path(&name, BEGUN)).ok()?).ok()?;
        let printed = fs::read(self.before.path(&name, "out").join(LOG)).ok()?;
        begun.measured = console::measured(&String::from_utf8_lossy(&printed))?;
        // The round in which the run was killed did not fail.
        begun.measured.failed.retain(|failed| failed.why != console::ENDED);
        begun.check(cell).ok()?;
        Some(begun)
    }

    /// Has another machine measure the rest of it, at other moments.
    fn go_on(&self, cell: &Cell, kept: &mut Kept, progress: &Progress) -> anyhow::Result<()> {
        let seed = self.seed_after(kept);
        report_anew(&cell.name(), kept.go_on(self.measure(cell, kept.rest(), seed, progress)?));
        Ok(())
    }

    /// What the machine that goes on with it draws from.
    const fn seed_after(&self, kept: &Kept) -> u64 {
        self.seed.wrapping_add(kept.measured.rounds.len() as u64)
    }

    /// Boots a machine for it. What that prints is left beside what it measured, which counts where it ends with an error,
    /// too.
    fn measure(&self, cell: &Cell, plan: Plan, seed: u64, progress: &Progress) -> anyhow::Result<Kept> {
        progress.line(&format!("measuring {}: {}", cell.name(), cell.what()));
        let (date, revision) = (self.date.clone(), self.revision.clone());
        let ended = Some("it was stopped".to_owned());
        let mut kept = Kept { date, revision, seed, plan, ended, measured: Measured::default() };
        self.before.save_as(&self.before.path(&cell.name(), BEGUN), &kept)?;
        let booted = self.boot(&cell.name(), &command(cell, &kept.plan, seed), |machine| {
            (machine.icount, machine.root) = (true, Root::Systemd);
            machine.packages = debian_root::names(&rivals::PACKAGES);
        });
        kept.ended = booted.err().map(|error| format!("{error:#}"));
        kept.measured = match (self.left(&cell.name()), &kept.ended) {
            (Ok(text), _) => serde_json::from_str(&text).context("the guest measured something else")?,
            (Err(_), Some(why)) => {
                let printed = fs::read(self.before.path(&cell.name(), "out").join(LOG))?;
                console::measured(&String::from_utf8_lossy(&printed)).with_context(|| why.clone())?
            }
            (Err(error), None) => return Err(error),
        };
        // What calls this keeps it.
        self.before.remove(&cell.name(), BEGUN)?;
        if kept.has_panicked() {
            // That is a result.
            kept.ended = None;
        }
        kept.check(cell)?;
        Ok(kept)
    }

    /// Boots a machine for a cell.
    fn boot(&self, name: &str, command: &[String], change: impl FnOnce(&mut vm::Arguments)) -> anyhow::Result<()> {
        let out = self.before.path(name, "out");
        match fs::remove_dir_all(&out) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => fs::create_dir_all(&out)?,
        }
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let mut machine = vm::Arguments::of(self.kernel, MACHINE_SECONDS, &command);
        machine.agent = Build::Release;
        machine.programs = Some(self.programs.clone());
        machine.out = Some(out.clone());
        change(&mut machine);
        let mut log = File::create(out.join(LOG))?;
        rounds::boot(&machine, name, &mut |line| {
            // A line that cannot be written is no reason to end a machine.
            let _ = writeln!(log, "{line}");
        })
    }

    /// What the guest of that machine left.
    fn left(&self, name: &str) -> anyhow::Result<String> {
        fs::read_to_string(self.before.path(name, "out").join(LEFT)).context("the guest left no measurements")
    }

    /// Writes the tables and plots of what is published. An error where nothing is.
    fn render(&self) -> anyhow::Result<()> {
        let is_published = |name: &str| self.results.path(name, "json").is_file();
        let has_costs = cost::CELLS.iter().any(|cell| is_published(cell.name));
        let has_races = cells::all().iter().any(|cell| is_published(&cell.name()));
        ensure!(has_costs || has_races, "there are no results of {} in {}", self.kernel, self.folder.display());
        if has_costs {
            self.costs(&[], &Progress::new("cells", 0))?;
        }
        if has_races {
            self.publish(Vec::new(), &[])?;
        }
        Ok(())
    }

    /// Writes the tables and plots of all cells that there are results of, prints the short table and what has to hold, and
    /// gives that.
    fn publish(&self, mut missing: Vec<Missing>, skipped: &[Cell]) -> anyhow::Result<Vec<Claim>> {
        let mut done = Vec::new();
        for cell in cells::all() {
            let results = if self.shown.contains(&cell) { self.results.load(&cell.name())? } else { None };
            match results {
                Some(kept) => {
                    let again = missing.extract_if(.., |one| one.cell == cell).next().map(|one| one.why);
                    let one = Done { cell, kept, again };
                    plots::save(&self.results.path(&one.cell.name(), "svg"), &one)?;
                    done.push(one);
                }
                None if missing.iter().any(|one| one.cell == cell) => {}
                None => {
                    let why = if skipped.contains(&cell) { TAKEN } else { NOT_YET };
                    missing.push(Missing { cell, why: why.into() });
                }
            }
        }
        let claims = verdicts::claims(&done, &self.shown);
        let (kernel, short) = (self.kernel, table::short(&done, self.shown.len(), &claims));
        self.write(kernel, &table::whole(kernel, &short, &done, &missing, &claims))?;
        println!("\n{short}\n{}", table::judged(&claims));
        Ok(claims)
    }

    /// Writes a page of tables.
    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let file = self.folder.join(name).with_added_extension("md");
        fs::create_dir_all(&self.folder)?;
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("results: {}", file.display());
        Ok(())
    }
}

/// Prints that a cell is begun anew, where there is a reason.
fn report_anew(name: &str, why: Option<String>) {
    if let Some(why) = why {
        println!("{name}: begun anew, because what was measured before is of another machine: {why}");
    }
}

/// What the guest is asked to measure.
fn command(cell: &Cell, plan: &Plan, seed: u64) -> Vec<String> {
    let rivals: Vec<&str> = plan.keys().map(String::as_str).collect();
    let rounds: Vec<String> = plan.iter().map(|(rival, rounds)| format!("{rival}={rounds}")).collect();
    let (room, seed, seconds) = (cell.room_mib.to_string(), seed.to_string(), ROUNDS_SECONDS.to_string());
    let (rivals, rounds, out) = (rivals.join(","), rounds.join(","), format!("/out/{LEFT}"));
    let words = [
        ("--workload", cell.workload.name),
        ("--swap", cell.swap),
        ("--rivals", &rivals),
        ("--rounds", &rounds),
        ("--room-mib", &room),
        ("--seed", &seed),
        ("--seconds", &seconds),
        ("--out", &out),
    ];
    let words = words.into_iter().flat_map(|(name, value)| [name, value]);
    ["/bin/plimsoll-guest", "bench"].into_iter().chain(words).map(str::to_owned).collect()
}

/// The cell `anon` as the guest would have measured it. It is made up: nothing was measured.
#[cfg(test)]
fn sample() -> Done {
    let measured = include_str!("../../tests/data/bench/anon.json");
    let measured: Measured = serde_json::from_str(measured).expect("the guest's form");
    let mut plan = Plan::new();
    for round in &measured.rounds {
        *plan.entry(round.rival.clone()).or_default() += 1;
    }
    let (cell, _) = cells::quick();
    Done {
        cell,
        kept: Kept { date: "2026-01-02".into(), revision: "abc".into(), seed: 1, plan, ended: None, measured },
        again: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn arguments() -> Arguments {
        let (cells, rivals) = (Vec::new(), Vec::new());
        Arguments {
            kernel: "6.12".into(),
            quick: false,
            cells,
            rivals,
            seed: 1,
            again: false,
            list: false,
            tables: false,
        }
    }

    #[test]
    fn all_is_measured_unless_less_is_asked_for() {
        let all = arguments().plans().expect("all");
        assert_eq!(all.len(), cells::all().len());
        assert!(arguments().is_whole() && all.iter().all(|(cell, plan)| *plan == cell.plan()));
        let two = Arguments { cells: vec!["slab".into(), "anon-zram".into()], ..arguments() };
        assert!(two.is_whole());
        let mut names: Vec<String> = two.plans().expect("two").iter().map(|(cell, _)| cell.name()).collect();
        names.sort_unstable();
        assert_eq!(names, ["anon-zram", "slab"]);
        let few = Arguments { rivals: vec!["nohang".into()], ..two };
        assert!(!few.is_whole());
        assert!(few.plans().expect("two").iter().all(|(_, plan)| plan.keys().eq(["nohang"])));
        let quick = Arguments { quick: true, ..arguments() };
        assert!(!quick.is_whole() && quick.plans().expect("one").len() == 1);
        let unknown = Arguments { cells: vec!["anon-none".into()], ..arguments() };
        assert!(
            unknown
                .plans()
                .expect_err("no cell")
                .to_string()
                .contains("there is no cell anon-none; there are anon-20, ")
        );
    }

    #[test]
    fn costs_are_measured_with_all_or_where_they_are_asked_for() {
        let names = |arguments: &Arguments| arguments.costs().iter().map(|cell| cell.name).collect::<Vec<_>>();
        assert_eq!(names(&arguments()).len(), cost::CELLS.len());
        for less in [
            Arguments { quick: true, ..arguments() },
            Arguments { rivals: vec!["nohang".into()], ..arguments() },
            Arguments { cells: vec!["slab".into()], ..arguments() },
        ] {
            assert_eq!(names(&less), [""; 0]);
        }
        let one = Arguments { cells: vec!["cost-start".into()], ..arguments() };
        assert_eq!((names(&one), one.plans().expect("a cell").len()), (vec!["cost-start"], 0));
    }

    #[test]
    fn the_guest_is_asked_for_the_cell_and_its_plan() {
        let cell = cells::all().into_iter().find(|cell| cell.name() == "tmpfs-zram").expect("a cell");
        let plan = Plan::from([("earlyoom".into(), 6), ("plimsoll-ebpf".into(), 20)]);
        assert_eq!(
            command(&cell, &plan, 7).join(" "),
            "/bin/plimsoll-guest bench --workload tmpfs --swap zram --rivals earlyoom,plimsoll-ebpf --rounds \
             earlyoom=6,plimsoll-ebpf=20 --room-mib 100 --seed 7 --seconds 2700 --out /out/bench.json"
        );
    }

    #[test]
    fn machines_have_the_other_daemons() {
        let needs = arguments().needs().expect("a kernel");
        assert!(needs.ends_with(&[install::Need::DebianRoot("6.12", &rivals::PACKAGES)]), "{needs:?}");
        let of = |cell: &str| Arguments { cells: vec![cell.into()], ..arguments() }.needs();
        let alone = of("cost-start").expect("a cell");
        assert!(!alone.iter().any(|need| matches!(need, install::Need::DebianRoot(..))), "{alone:?}");
        assert!(alone.contains(&install::Need::Kernel("6.12")));
        let daemons = of("cost-idle").expect("a cell");
        assert!(daemons.contains(&install::Need::DebianRoot("6.12", &rivals::PACKAGES)), "{daemons:?}");
        assert!(of("cost-unknown").is_err());
    }

    #[test]
    fn what_a_run_that_was_killed_had_printed_is_gone_on_with() {
        let place = tempfile::tempdir().expect("a directory");
        let Done { cell, kept, .. } = sample();
        let bench = bench_in(place.path());
        let (first, rest) = kept.measured.rounds.split_at(2);
        let begun = Measured { rounds: Vec::new(), bare_kills: Vec::new(), ..kept.measured.clone() };
        let begun_line = format!("MEASURED {}\n", serde_json::to_string(&begun).expect("values"));
        let part = |rounds: &[measured::Round]| {
            format!("PART {}\n", serde_json::json!({"rounds": rounds, "bare_kills": [], "failed": []}))
        };
        let printed = |of: &Kept, rounds: &[measured::Round]| {
            bench.before.save_as(&bench.before.path("anon", BEGUN), of).expect("written");
            let out = bench.before.path("anon", "out");
            fs::create_dir_all(&out).expect("made");
            // It was killed in the next round.
            let turn = "TURN {\"rival\":\"plimsoll-ebpf\",\"number\":9}\n";
            fs::write(out.join(LOG), begun_line.clone() + &part(rounds) + turn).expect("written");
        };
        printed(&Kept { measured: Measured::default(), ..kept.clone() }, first);
        let found = bench.found_before(&cell, &kept.plan).expect("readable").expect("two rounds");
        assert_eq!((found.measured.rounds.len(), found.rest().values().sum::<u32>() as usize), (2, rest.len()));
        // The next machine was booted for the rest.
        let other = Kept { plan: found.rest(), seed: 4, measured: Measured::default(), ..kept.clone() };
        printed(&other, rest);
        let found = bench.found_before(&cell, &kept.plan).expect("readable").expect("two rounds");
        assert_eq!(found.measured.rounds.len(), 2, "those are of another run");
        printed(&Kept { plan: found.rest(), seed: 3, measured: Measured::default(), ..kept.clone() }, rest);
        let found = bench.found_before(&cell, &kept.plan).expect("readable").expect("all rounds");
        assert_eq!((found.part(), found.measured.failed.len()), (None, kept.measured.failed.len()));
        let found = bench.found_before(&cell, &kept.plan).expect("readable").expect("all rounds");
        assert_eq!(found.measured.rounds.len(), kept.measured.rounds.len(), "once");
        printed(&Kept { revision: "abd".into(), measured: Measured::default(), ..kept.clone() }, rest);
        let found = bench.found_before(&cell, &kept.plan).expect("readable").expect("all rounds");
        assert_eq!(found.measured.rounds.len(), kept.measured.rounds.len(), "those are of other sources");
        // --again was killed after two rounds.
        printed(&Kept { measured: Measured::default(), ..kept.clone() }, first);
        let found = bench.found_before(&cell, &kept.plan).expect("readable").expect("two rounds");
        assert_eq!(found.measured.rounds.len(), 2);
    }

    /// A run of the sources of [`sample`].
    pub(super) fn bench_in(place: &std::path::Path) -> Bench {
        let (before, results) = (place.join("before"), place.join("results"));
        Bench {
            kernel: "6.12",
            seed: 1,
            again: false,
            is_asked: false,
            date: "2026-01-03".into(),
            revision: "abc".into(),
            programs: place.into(),
            before: Store::of(&before, "6.12"),
            results: Store::of(&results, "6.12"),
            folder: results,
            shown: cells::all(),
        }
    }

    #[test]
    fn tables_and_plots_are_of_the_results_beside_them() {
        let (place, published) = (tempfile::tempdir().expect("a directory"), run::root().join(RESULTS));
        let read = |folder: &std::path::Path, name: &str| fs::read_to_string(folder.join(name)).expect(name);
        for kernel in ["6.1", "6.12", "7.2"] {
            let bench = Bench { kernel, results: Store::of(place.path(), kernel), ..bench_in(place.path()) };
            let bench = Bench { folder: place.path().into(), ..bench };
            assert!(bench.render().expect_err("none").to_string().contains(&format!("no results of {kernel} in")));
            fs::create_dir(place.path().join(kernel)).expect("made");
            let names = |folder: &std::path::Path| {
                let files = fs::read_dir(folder.join(kernel)).expect("a folder").map(|file| file.expect("a file"));
                files.map(|file| format!("{kernel}/{}", file.file_name().display())).collect::<BTreeSet<_>>()
            };
            let is_result = |name: &&String| std::path::Path::new(name).extension().is_some_and(|it| it == "json");
            for name in names(&published).iter().filter(is_result) {
                fs::copy(published.join(name), place.path().join(name)).expect("copied");
            }
            bench.render().expect("tables");
            let pages = [format!("{kernel}.md"), format!("{kernel}-cost.md")];
            for name in names(&published).union(&names(place.path())).chain(&pages) {
                let is_published = published.join(name).exists();
                assert_eq!(place.path().join(name).exists(), is_published, "{name}");
                if is_published {
                    let same = read(&published, name) == read(place.path(), name);
                    assert!(same, "{name} is of other results: run `cargo xtask bench --kernel {kernel} --tables`");
                }
            }
        }
        let (readme, page) = (read(run::root(), "README.md"), read(&published, "6.12.md"));
        let (_, short) = page.split_once("## In short").expect("a short table");
        let (table, status) = short.split_once("\nStatus: ").expect("a status");
        let (measured, _) = status.split_once(", revision").expect("what is measured");
        let (_, dated) = table.lines().find_map(|line| line.rsplit_once("bytes; ")).expect("where times are from");
        let short_revision = dated.find("revision ").expect("a revision") + "revision ".len() + 7;
        let lines = table.lines().filter(|line| line.starts_with('|'));
        for line in lines.chain([measured, &dated[..short_revision]]) {
            assert!(
                readme.contains(line),
                "README has the short table of 6.12.md, and how much is measured, but not: {line}"
            );
        }
    }

    #[test]
    fn results_of_an_earlier_run_are_published_again_unless_one_run_is_shown() {
        let place = tempfile::tempdir().expect("a directory");
        let Done { cell, kept, .. } = sample();
        let mut bench = bench_in(place.path());
        let results = bench.folder.clone();
        bench.before.save(&cell.name(), &kept).expect("written");
        let part = bench.cell(&cell, kept.plan.clone(), &Progress::new("cells", 1)).expect("it was measured before");
        assert_eq!(part, None);
        assert!(results.join("6.12/anon.json").is_file());
        let failed = Missing { cell: cell.clone(), why: "it failed".into() };
        let tmpfs = cells::all().into_iter().find(|cell| cell.name() == "tmpfs").expect("a cell");
        let skipped: Vec<Cell> = cells::all().into_iter().filter(|cell| cell.name() == "slab").collect();
        let claims =
            bench.publish(vec![failed, Missing { cell: tmpfs, why: "it broke".into() }], &skipped).expect("tables");
        assert_eq!(claim::broken(&claims), [""; 0]);
        assert!(results.join("6.12/anon.svg").is_file());
        let text = fs::read_to_string(results.join("6.12.md")).expect("tables");
        for expected in [
            "\n## anon\n",
            "\nMeasuring it again failed: it failed.\n",
            "| tmpfs | NOT RUN | it broke |",
            "| slab | NOT RUN | another command is measuring it |",
            "| anon-zram | NOT RUN | not measured yet |",
            "\nStatus: 1 of 28 cells measured, revision abc. no race is lost: UNDECIDED; ",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert!(!text.contains("| anon | NOT RUN"), "{text}");
        bench.shown.retain(|one| *one != cell);
        assert!(bench.publish(Vec::new(), &[]).expect("tables").is_empty());
    }

    #[test]
    fn a_cell_that_another_command_measures_is_skipped_and_an_error_where_it_was_asked_for() {
        let place = tempfile::tempdir().expect("a directory");
        let (one, mut other) = (bench_in(place.path()), bench_in(place.path()));
        let both = one.alone("anon", || Ok((other.alone("anon", || Ok(1))?, other.alone("slab", || Ok(2))?)));
        assert_eq!(both.expect("a folder"), Some((None, Some(2))));
        assert_eq!(other.alone("anon", || Ok(3)).expect("a folder"), Some(3), "it is free again");
        let Done { cell, kept, .. } = sample();
        let _lock = one.before.try_lock("anon").expect("a folder").expect("it is free");
        // What was found of it stays as it is: another command writes into it.
        one.before.save_as(&one.before.path("anon", BEGUN), &kept).expect("written");
        let (_, failures) =
            other.races(vec![(cell.clone(), kept.plan.clone())], &Progress::new("cells", 1)).expect("tables");
        assert_eq!((failures.len(), one.before.path("anon", BEGUN).is_file()), (0, true));
        other.is_asked = true;
        let error = other.alone("anon", || Ok(4)).expect_err("it is taken").to_string();
        assert_eq!(error, TAKEN);
        let (_, failures) = other.races(vec![(cell, kept.plan)], &Progress::new("cells", 1)).expect("tables");
        assert_eq!(failures, ["anon"]);
    }
}
