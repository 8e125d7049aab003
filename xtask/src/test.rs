//! `cargo xtask test`: what gates a change, in groups with a time budget each.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::builder::PossibleValuesParser;

use crate::demo::Claim;
use crate::kernels::SUITES;
use crate::progress::Progress;
use crate::{build_ebpf, demo, dependencies, install, run, vm};

/// The kernel on which everything runs.
const WHOLE: &str = "6.12";
/// What runs on the others in every run; `--long` runs all of it there, too.
const EVERYWHERE: [&str; 10] = [
    "sense-every-hook-attaches",
    "sense-node-threshold-submits-one-event",
    "sense-readings-agree-with-proc",
    "sense-slice-threshold-submits-an-event",
    "act-frozen-victim-dies",
    "act-process-without-its-first-thread",
    "meets-anonymous",
    "meets-populate",
    "meets-a-slice-at-its-own-limit",
    "core-or-reporter-dies",
];
/// What runs once more from an ext4 root, on the kernel on which everything runs: there the agent's own program and
/// libraries are pages of a file, which the kernel may drop when memory is short.
const FROM_EXT4: [&str; 1] = ["is-before-the-oom-killer"];
/// What runs on machines that are booted in a special way, on the kernel on which everything runs: the words on its
/// command line, whether it has two nodes, and the tests that belong there and run nowhere else.
const SPECIAL: [(Option<&str>, bool, &[&str]); 3] = [
    (Some("psi=0"), false, &["without-pressure-polls"]),
    (Some("cgroup_disable=memory"), false, &["without-memory-controller"]),
    (None, true, &["sense-oom-in-a-cpuset-is-named"]),
];
/// How long all groups together may take with everything cached, without what `--long` adds.
const TOTAL: Duration = Duration::from_mins(15);
/// A machine that has not ended by then hangs.
const MACHINE_SECONDS: u64 = 3600;
/// Where the results of a long run are kept, a file for each kernel.
const RESULTS: &str = "tests/results";

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The groups to run; none means all of them.
    groups: Vec<Group>,
    /// Run what is too slow for every run as well, the demo's full measurement on each kernel included, and write a
    /// table of results for each kernel. Takes about half an hour a kernel.
    #[arg(long)]
    long: bool,
    /// Of virtual machines only those with this kernel. Can be given more than once; all of them unless given.
    #[arg(long = "kernel", value_name = "VERSION", value_parser = PossibleValuesParser::new(SUITES.map(|(_, kernel)| kernel)))]
    kernels: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Group {
    /// Formatting, lints, licences, and every test that needs no virtual machine.
    Unit,
    /// Tests on real kernels in virtual machines.
    Vm,
}

impl Group {
    const ALL: [Self; 2] = [Self::Unit, Self::Vm];

    fn needs(self, kernels: &[&str]) -> anyhow::Result<Vec<install::Need>> {
        match self {
            Self::Unit => Ok(install::CHECKS.to_vec()),
            Self::Vm => install::machines(kernels),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Vm => "vm",
        }
    }

    /// How long it may take with everything cached.
    const fn budget(self, long: bool) -> Duration {
        match (self, long) {
            (Self::Unit, _) => Duration::from_mins(5),
            (Self::Vm, false) => Duration::from_mins(15),
            (Self::Vm, true) => Duration::from_hours(4),
        }
    }
}

impl Arguments {
    /// What the groups need that were asked for.
    pub(crate) fn needs(&self) -> anyhow::Result<Vec<install::Need>> {
        let mut needs = install::EBPF.to_vec();
        for group in Group::ALL.into_iter().filter(|group| self.asks_for(*group)) {
            needs.extend(group.needs(&self.kernels())?);
        }
        Ok(needs)
    }

    fn asks_for(&self, group: Group) -> bool {
        self.groups.is_empty() || self.groups.contains(&group)
    }

    /// The kernels to boot.
    fn kernels(&self) -> Vec<&'static str> {
        let all = SUITES.map(|(_, kernel)| kernel);
        all.into_iter().filter(|all| self.kernels.is_empty() || self.kernels.iter().any(|one| one == all)).collect()
    }
}

/// Runs the groups and closes with a line of counts.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut counts = Counts::default();
    let (start, mut installed) = (Instant::now(), 0);
    counts.step("build-ebpf", build_ebpf::run());
    for group in Group::ALL {
        if !arguments.asks_for(group) {
            counts.not_run(&format!("group {}: not asked for", group.name()));
            continue;
        }
        let begin = Instant::now();
        match group {
            Group::Unit => installed += unit(&mut counts)?,
            Group::Vm => installed += machines(arguments, &mut counts)?,
        }
        let (took, budget) = (begin.elapsed(), group.budget(arguments.long));
        let verdict = if took > budget { "OVER its budget" } else { "within its budget" };
        println!(
            "group {} took {} s, {verdict} of {} s with everything cached",
            group.name(),
            took.as_secs(),
            budget.as_secs()
        );
    }
    if !arguments.long {
        let took = start.elapsed();
        let verdict = if took > TOTAL { "OVER" } else { "within" };
        println!("all took {} s, {verdict} {} s with everything cached", took.as_secs(), TOTAL.as_secs());
    }
    println!("{installed} things were installed meanwhile, which no budget counts");
    println!("{} skipped", counts.skipped);
    println!("{} passed, {} failed", counts.passed, counts.failed);
    if counts.failed > 0 {
        bail!("{} failed", counts.failed);
    }
    Ok(())
}

/// How many things were installed for it.
fn unit(counts: &mut Counts) -> anyhow::Result<usize> {
    let installed = install::all(&install::CHECKS);
    let number = *installed.as_ref().unwrap_or(&0);
    counts.step("what the checks need", installed.map(drop));
    counts.step("format", run::shown(cargo().args(["fmt", "--all", "--check"])));
    let kernel_side = run::root().join("ebpf");
    counts.step("format of the kernel side", run::shown(cargo().args(["fmt", "--check"]).current_dir(kernel_side)));
    let clippy = |more: &[&str]| {
        let mut command = cargo();
        command.args(["clippy", "--workspace", "--all-targets", "--locked"]).args(more).args(["--", "-Dwarnings"]);
        run::shown(&mut command)
    };
    counts.step("lints", clippy(&[]));
    counts.step("lints of the fault-injection build", clippy(&["--features", "plimsoll/fault-injection"]));
    counts.step("lints of the kernel side", build_ebpf::lints());
    counts.step("another folder gives the same kernel objects", build_ebpf::reproducible());
    counts.step("the core knows no runtime and no network", dependencies::core_is_small());
    let other = ["build", "--locked", "--target", install::AARCH64, "-p", "plimsoll"];
    counts.step("the agent builds for aarch64, which is not run here", run::shown(cargo().args(other)));
    let unsupported_os = ["check", "--locked", "--target", install::OTHER_SYSTEM, "-p", "plimsoll"];
    counts.step("the agent compiles where there is no Linux, to say so", run::shown(cargo().args(unsupported_os)));
    counts.step("licences and sources", dependencies::deny());
    let (tests, result) = tests()?;
    counts.add(tests);
    if result.is_err() && tests.failed == 0 {
        counts.step("tests", result);
    }
    Ok(number)
}

/// One machine's worth of the suite.
#[derive(Debug, PartialEq, Eq)]
struct Boot {
    kernel: &'static str,
    /// The tests by name; none means all there are.
    names: &'static [&'static str],
    ext4: bool,
    /// More words on the kernel's command line.
    append: Option<&'static str>,
    /// With two NUMA nodes.
    numa: bool,
}

/// Every machine, in the order in which they run.
fn boots(long: bool) -> Vec<Boot> {
    let mut boots = Vec::new();
    for (_, kernel) in SUITES {
        let names = if long || kernel == WHOLE { &[] } else { &EVERYWHERE[..] };
        boots.push(Boot { kernel, names, ext4: false, append: None, numa: false });
        if kernel == WHOLE {
            boots.push(Boot { kernel, names: &FROM_EXT4, ext4: true, append: None, numa: false });
            let special = |(append, numa, names)| Boot { kernel, names, ext4: false, append, numa };
            boots.extend(SPECIAL.map(special));
        }
    }
    boots
}

impl Boot {
    /// What is special about it, to be said after the kernel's or a test's name.
    fn special(&self) -> String {
        let mut text = String::new();
        if self.ext4 {
            text.push_str(" from an ext4 root");
        }
        if let Some(words) = self.append {
            text = text + " with " + words;
        }
        if self.numa {
            text.push_str(" with two nodes");
        }
        text
    }

    fn machine(&self) -> vm::Arguments {
        let mut command = vec!["/bin/plimsoll-guest", "suite"];
        command.extend(self.names.iter().flat_map(|name| ["--only", name]));
        let mut machine = vm::Arguments::of(self.kernel, MACHINE_SECONDS, &command);
        machine.ext4 = self.ext4;
        machine.append = self.append.map(str::to_owned);
        machine.numa = self.numa;
        machine
    }

    /// Whether the suite ended as it has to, whatever came of its tests.
    fn verdict(&self, heard: &Heard, ended: anyhow::Result<i32>) -> anyhow::Result<()> {
        let code = ended?;
        let ran = heard.tests.len();
        // The suite says how many there were: a machine that ended early must not pass.
        let reported =
            heard.closed == Some(ran) && (code == 0) == heard.tests.iter().all(|(_, outcome)| !outcome.failed());
        ensure!(reported, "the suite ended with {code} after {ran} tests");
        // A test that has another name by now must not vanish.
        let named = self.names.len();
        ensure!(named == 0 || named == ran, "{named} tests were named and {ran} have such a name: {:?}", self.names);
        Ok(())
    }
}

/// Boots each kernel and runs its tests there, and in a long run the demo. How many things were installed for it.
fn machines(arguments: &Arguments, counts: &mut Counts) -> anyhow::Result<usize> {
    let (kernels, long) = (arguments.kernels(), arguments.long);
    let installed = match vm::prepare(&kernels) {
        Ok(installed) => installed,
        Err(error) => {
            counts.step("what machines need", Err(error));
            return Ok(0);
        }
    };
    for (_, kernel) in SUITES {
        if !kernels.contains(&kernel) {
            counts.not_run(&format!("kernel {kernel}: not asked for"));
            continue;
        }
        let mut results = Results { kernel, tests: Vec::new(), claims: None };
        for boot in boots(long).into_iter().filter(|boot| boot.kernel == kernel) {
            results.tests.extend(machine(&boot, counts));
            if long {
                results.save()?;
            }
        }
        if !long {
            counts.not_run(&format!("the demo's full measurement on {kernel}; --long runs it"));
            continue;
        }
        match demo::claims(kernel) {
            Ok(claims) => {
                for Claim { what, found, holds } in &claims {
                    let result = if *holds { Ok(()) } else { Err(anyhow::anyhow!("{found}")) };
                    counts.step(&format!("{what} on {kernel}"), result);
                }
                results.claims = Some(claims);
                results.save()?;
            }
            Err(error) => counts.step(&format!("the demo on {kernel}"), Err(error)),
        }
    }
    Ok(installed)
}

/// Boots one machine. Gives what came of each of its tests.
fn machine(boot: &Boot, counts: &mut Counts) -> Vec<(String, Outcome)> {
    let on = format!("{}{}", boot.kernel, boot.special());
    let mut heard = Heard::new(&on);
    let ended = vm::boot(&boot.machine(), Some(&mut |line| heard.line(line)));
    for (name, outcome) in &heard.tests {
        match outcome {
            Outcome::Pass => counts.passed += 1,
            Outcome::Fail(why) => counts.step(&format!("{name} on {on}"), Err(anyhow::anyhow!("{why}"))),
            Outcome::NotRun(why) => counts.not_run(&format!("{name} on {on}: {why}")),
        }
    }
    if heard.planned < heard.known && boot.kernel != WHOLE {
        let left_out = heard.known - heard.planned;
        let what = format!("{left_out} of {} tests on {on}; --long runs them", heard.known);
        counts.not_run_many(left_out, &what);
    }
    counts.step(&format!("all that was asked for ran on {on}"), boot.verdict(&heard, ended));
    heard.tests.into_iter().map(|(name, outcome)| (name + &boot.special(), outcome)).collect()
}

/// What a long run has found so far on one kernel.
struct Results {
    kernel: &'static str,
    tests: Vec<(String, Outcome)>,
    /// Of the demo, once it ended.
    claims: Option<Vec<Claim>>,
}

/// How a test in a machine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Pass,
    Fail(String),
    NotRun(String),
}

impl Outcome {
    const fn failed(&self) -> bool {
        matches!(self, Self::Fail(_))
    }
}

/// What was heard of a suite.
struct Heard {
    tests: Vec<(String, Outcome)>,
    /// How many tests the suite itself counted.
    closed: Option<usize>,
    /// How many it was going to run, of how many that it knows.
    planned: u32,
    known: u32,
    progress: Progress,
}

impl Heard {
    fn new(kernel: &str) -> Self {
        let progress = Progress::new(&format!("tests on {kernel}"), 0);
        Self { tests: Vec::new(), closed: None, planned: 0, known: 0, progress }
    }

    fn line(&mut self, line: &str) {
        self.progress.line(line);
        // The firmware clears its screen and ends no line, so its last words stand before the machine's first ones.
        let line = match line.find("PLAN ") {
            Some(at) if line[..at].contains('\x1b') => &line[at..],
            _ => line,
        };
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, why) = rest.split_once(": ").unwrap_or((rest.split(' ').next().unwrap_or(""), ""));
        let outcome = match word {
            "PASS" => Outcome::Pass,
            "FAIL" => Outcome::Fail(why.to_owned()),
            "NOTRUN" => Outcome::NotRun(why.to_owned()),
            "PLAN" => {
                let mut numbers = rest.split(" of ").filter_map(|number| number.parse().ok());
                (self.planned, self.known) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
                self.progress.expect(self.planned.into());
                return;
            }
            _ => {
                let numbers: Vec<usize> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
                if let ([passed, failed, not_run], true) = (&numbers[..], line.ends_with(" not run")) {
                    self.closed = Some(passed + failed + not_run);
                }
                return;
            }
        };
        self.progress.step();
        self.tests.push((name.to_owned(), outcome));
    }
}

impl Results {
    /// After each machine: a run that is stopped leaves what it has seen.
    fn save(&self) -> anyhow::Result<()> {
        let folder = run::root().join(RESULTS);
        let file = folder.join(self.kernel).with_added_extension("md");
        let date = run::text(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
        let commit = run::text(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(run::root()))?;
        std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(&file, self.table(date.trim(), commit.trim())))
            .with_context(|| format!("cannot write {}", file.display()))
    }

    fn table(&self, date: &str, commit: &str) -> String {
        let kernel = self.kernel;
        let mut text =
            format!("# Results of `cargo xtask test vm --long --kernel {kernel}`\n\n{date}, commit {commit}\n\n");
        let rows = self.tests.iter().map(|(name, outcome)| {
            let (word, why) = match outcome {
                Outcome::Pass => ("passed", ""),
                Outcome::Fail(why) => ("FAILED", &why[..]),
                Outcome::NotRun(why) => ("NOT RUN", &why[..]),
            };
            format!("| {name} | {word} | {why} |\n")
        });
        text.push_str("| test | | |\n|---|---|---|\n");
        text.extend(rows);
        text.push_str("\n## What the demo measured\n\n| claim | | |\n|---|---|---|\n");
        match &self.claims {
            None => text.push_str("| all | NOT RUN | |\n"),
            Some(claims) => text.extend(claims.iter().map(|Claim { what, found, holds }| {
                let word = if *holds { "holds" } else { "DOES NOT HOLD" };
                format!("| {what} | {word} | {found} |\n")
            })),
        }
        text
    }
}

fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(run::root());
    command
}

/// Runs the workspace's tests, shows what they print, and counts them from their own closing lines.
fn tests() -> anyhow::Result<(Counts, anyhow::Result<()>)> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--locked", "--no-fail-fast"]).stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let result = if output.status.success() { Ok(()) } else { Err(anyhow::anyhow!("ended with {}", output.status)) };
    Ok((count(&text), result))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    fn not_run(&mut self, what: &str) {
        self.not_run_many(1, what);
    }

    fn not_run_many(&mut self, count: u32, what: &str) {
        println!("NOT RUN: {what}");
        self.skipped += count;
    }

    fn step(&mut self, name: &str, result: anyhow::Result<()>) {
        match result {
            Ok(()) => {
                println!("PASS {name}");
                self.passed += 1;
            }
            Err(error) => {
                println!("FAIL {name}: {error:#}");
                self.failed += 1;
            }
        }
    }
}

/// Adds up the `test result:` lines of `cargo test`.
fn count(text: &str) -> Counts {
    let mut counts = Counts::default();
    for line in text.lines().filter(|line| line.starts_with("test result:")) {
        let number = |word: &str| -> u32 {
            let before = line.split(word).next().unwrap_or_default();
            before.rsplit([' ', '.']).find(|part| !part.is_empty()).and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        counts.add(Counts { passed: number(" passed"), failed: number(" failed"), skipped: number(" ignored") });
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::{Boot, Claim, Counts, Heard, Outcome, Results, boots, count};

    #[test]
    fn the_table_has_a_row_for_each_test_and_claim() {
        let tests = vec![
            ("a".to_owned(), Outcome::Pass),
            ("b".to_owned(), Outcome::Fail("it: broke".into())),
            ("c".to_owned(), Outcome::NotRun("no zram".into())),
        ];
        let mut results = Results { kernel: "6.1", tests, claims: None };
        let head = "# Results of `cargo xtask test vm --long --kernel 6.1`\n\n2026-01-02, commit abc\n\n| test | | |\n\
            |---|---|---|\n| a | passed |  |\n| b | FAILED | it: broke |\n| c | NOT RUN | no zram |\n\n\
            ## What the demo measured\n\n| claim | | |\n|---|---|---|\n";
        assert_eq!(results.table("2026-01-02", "abc"), format!("{head}| all | NOT RUN | |\n"));
        let claim = |what, holds| Claim { what, found: "1 of 2".into(), holds };
        results.claims = Some(vec![claim("races", true), claim("past the threshold", false)]);
        let rows = "| races | holds | 1 of 2 |\n| past the threshold | DOES NOT HOLD | 1 of 2 |\n";
        assert_eq!(results.table("2026-01-02", "abc"), format!("{head}{rows}"));
    }

    #[test]
    fn a_named_test_that_is_no_more_fails_the_suite() {
        let boot = Boot { kernel: "6.1", names: &["a", "b"], ext4: false, append: None, numa: false };
        for (lines, code, passes) in [
            (&["PLAN 2 of 9", "PASS a (3 s)", "PASS b (3 s)", "2 passed, 0 failed, 0 not run"][..], 0, true),
            (&["PLAN 1 of 9", "PASS a (3 s)", "1 passed, 0 failed, 0 not run"], 0, false),
            (&["PLAN 2 of 9", "PASS a (3 s)"], 0, false),
            (&["PLAN 2 of 9", "PASS a (3 s)", "PASS b (3 s)", "2 passed, 0 failed, 0 not run"], 1, false),
        ] {
            let mut heard = Heard::new("6.1");
            for line in lines {
                heard.line(line);
            }
            assert_eq!(boot.verdict(&heard, Ok(code)).is_ok(), passes, "{lines:?}");
        }
    }

    #[test]
    fn every_kernel_boots_and_one_of_them_in_special_ways_too() {
        let shown = |long| -> Vec<(&str, String, bool)> {
            boots(long).iter().map(|boot| (boot.kernel, boot.special(), boot.names.is_empty())).collect()
        };
        let special =
            [" from an ext4 root", " with psi=0", " with cgroup_disable=memory", " with two nodes"].map(str::to_owned);
        for long in [false, true] {
            let mut expected = vec![("6.1", String::new(), long), ("6.12", String::new(), true)];
            expected.extend(special.clone().map(|special| ("6.12", special, false)));
            expected.push(("7.2", String::new(), long));
            assert_eq!(shown(long), expected);
        }
        let machines: Vec<_> = boots(false).iter().map(super::Boot::machine).collect();
        assert!(machines[2].ext4 && machines[5].numa);
        assert_eq!(machines[3].append.as_deref(), Some("psi=0"));
    }

    #[test]
    fn closing_lines_are_added_up() {
        let text = "test a ... ok\ntest result: ok. 42 passed; 0 failed; 1 ignored; 0 measured\n\
                    test result: FAILED. 3 passed; 2 failed; 0 ignored\n";
        assert_eq!(count(text), Counts { passed: 45, failed: 2, skipped: 1 });
    }

    #[test]
    fn a_suite_is_heard_test_by_test_and_by_its_own_count() {
        let mut heard = Heard::new("6.12");
        for line in [
            "Booting from ROM..\x1bc\x1b[?7l\x1b[2J\x1b[0m.\rPLAN 3 of 9",
            "PASS a (3 s)",
            "FAIL b: it: broke (1 s)",
            "NOTRUN c: no zram",
            "FIGURE x",
            "1 passed, 1 failed, 1 not run",
        ] {
            heard.line(line);
        }
        let named = |name: &str, outcome| (name.to_owned(), outcome);
        let expected = [
            named("a", Outcome::Pass),
            named("b", Outcome::Fail("it: broke (1 s)".into())),
            named("c", Outcome::NotRun("no zram".into())),
        ];
        assert_eq!(heard.tests, expected);
        assert_eq!((heard.closed, heard.planned, heard.known), (Some(3), 3, 9));
    }
}
