//! What came of each step: shown at once, counted, kept in a table where one is written, and closed with what failed.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;

use super::known;
use super::long::{Table, Word};
use crate::run;

/// How many flaky tests a gate may have.
const FLAKY_IN_A_RUN: usize = 2;
/// How many of a failed step's last lines are repeated at the end.
const LAST_LINES: usize = 12;

/// The steps so far.
pub(super) struct Report {
    /// Where whole logs are left.
    logs: PathBuf,
    passed: u32,
    not_run: u32,
    failures: Vec<Failure>,
    flaky: Vec<Flaky>,
    /// Flaky tests that the page of those does not list.
    unlisted: Vec<String>,
    booted_again: u32,
    /// The groups that took longer than their budget, each with both times.
    over_budget: Vec<String>,
    table: Option<Table>,
}

/// A test that failed and passed when it was repeated at once.
struct Flaky {
    test: String,
    /// With what it ran on.
    name: String,
    /// Of both runs.
    outcomes: String,
}

/// What is reported of a failed step at the end.
struct Failure {
    name: String,
    why: String,
    last: Vec<String>,
    log: Option<PathBuf>,
}

impl Failure {
    fn lines(&self) -> Vec<String> {
        let Self { name, why, last, log } = self;
        let mut lines = vec![String::new(), format!("FAILED: {name}: {why}")];
        lines.extend(last.iter().map(|line| format!("    {line}")));
        lines.extend(log.iter().map(|log| format!("  the whole log: {}", log.display())));
        lines
    }
}

impl Report {
    pub(super) fn new(logs: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        Ok(Self {
            logs,
            passed: 0,
            not_run: 0,
            failures: Vec::new(),
            flaky: Vec::new(),
            unlisted: Vec::new(),
            booted_again: 0,
            over_budget: Vec::new(),
            table: None,
        })
    }

    /// From now on steps are rows of this table of results.
    pub(super) fn begin_table(&mut self, table: Table) {
        self.table = Some(table);
    }

    pub(super) fn end_table(&mut self) {
        self.table = None;
    }

    /// Whether this step passed in an earlier run of the same sources, in which case it is counted as passed.
    pub(super) fn passed_before(&mut self, name: &str) -> bool {
        let before = self.table.as_ref().is_some_and(|table| table.has_passed(name));
        if before {
            println!("PASS {name}, in an earlier run of these sources");
            self.passed += 1;
        }
        before
    }

    /// The steps with this ending that passed in an earlier run of the same sources, without the ending.
    pub(super) fn rows_passed_before(&self, ending: &str) -> Vec<String> {
        self.table.as_ref().map_or_else(Vec::new, |table| table.passed_with(ending))
    }

    pub(super) fn passed(&mut self, name: &str, found: &str) {
        println!("PASS {name}");
        self.passed += 1;
        self.row(name, Word::Passed, found);
    }

    /// `last` is its last output, and `log` where all of it is.
    pub(super) fn failed(&mut self, name: &str, why: &str, last: &[String], log: Option<&Path>) {
        println!("FAIL {name}: {why}");
        let last = last[last.len().saturating_sub(LAST_LINES)..].to_vec();
        self.failures.push(Failure { name: name.into(), why: why.into(), last, log: log.map(Path::to_owned) });
        self.row(name, Word::Failed, why);
    }

    /// How many have failed.
    pub(super) const fn failures(&self) -> usize {
        self.failures.len()
    }

    /// What has failed since there were so many failures is run again, as it says nothing. False: nothing has.
    pub(super) fn take_back(&mut self, since: usize) -> bool {
        let have_failed = self.failures.len() > since;
        self.failures.truncate(since);
        have_failed
    }

    /// It failed, and passed when it was repeated at once. Whether that is accepted is judged at the end.
    pub(super) fn flaky(&mut self, test: &str, name: &str, outcomes: &str) {
        println!("FLAKY {name}: {outcomes}");
        self.flaky.push(Flaky { test: test.into(), name: name.into(), outcomes: outcomes.into() });
        self.passed += 1;
        self.row(name, Word::Flaky, outcomes);
    }

    pub(super) fn not_run(&mut self, name: &str, why: &str) {
        self.not_run_many(1, name, why);
    }

    pub(super) fn not_run_many(&mut self, count: u32, name: &str, why: &str) {
        println!("NOT RUN: {name}: {why}");
        self.not_run += count;
        self.row(name, Word::NotRun, why);
    }

    /// How many were reported as not run.
    #[cfg(test)]
    pub(super) const fn count_not_run(&self) -> u32 {
        self.not_run
    }

    pub(super) const fn booted_again(&mut self, times: u32) {
        self.booted_again += times;
    }

    /// Reports how long a group took. A budget is for two cores with everything cached, so that one that is exceeded is
    /// no failure.
    pub(super) fn took(&mut self, group: &str, took: Duration, budget: Duration) {
        let text = format!("group {group} took {} s of a budget of {} s", took.as_secs(), budget.as_secs());
        println!("{text}");
        if took > budget {
            self.over_budget.push(text);
        }
    }

    pub(super) fn step(&mut self, name: &str, result: anyhow::Result<()>) {
        match result {
            Ok(()) => self.passed(name, ""),
            Err(error) => self.broke(name, &error),
        }
    }

    /// A step that ended with an error, whose log is what a failed command printed, if there was one, and the error.
    pub(super) fn broke(&mut self, name: &str, error: &anyhow::Error) {
        let (log, why) = (self.log(name), format!("{error:#}"));
        let said = error.downcast_ref::<run::Failed>().map_or(&[][..], |failed| &failed.said);
        let text = said.iter().map(|line| line.clone() + "\n").chain([why.clone() + "\n"]).collect::<String>();
        let log = fs::write(&log, text).is_ok().then_some(log);
        self.failed(name, &why, said, log.as_deref());
    }

    /// Runs a command as a step of its own, whose row has the figures that it prints.
    pub(super) fn run(&mut self, name: &str, command: &mut Command) {
        let log = self.log(name);
        match said(command, &log, &mut |_| ()) {
            Ok((status, said)) if status.success() && ran_no_test(&said) => {
                self.failed(name, NO_TEST, &said, Some(&log));
            }
            Ok((status, said)) => {
                let mut found: Vec<String> = said.iter().filter_map(|line| figure(line)).map(str::to_owned).collect();
                if status.success() {
                    self.passed(name, &found.join("; "));
                } else {
                    found.insert(0, format!("ended with {status}"));
                    self.failed(name, &found.join("; "), &said, Some(&log));
                }
            }
            Err(error) => self.failed(name, &format!("{error:#}"), &[], Some(&log)),
        }
    }

    /// Runs `cargo test` as the step with this name, and counts its tests as its own closing lines do. Where a table is written
    /// each test is a row, with the figures that it printed, and those that have passed in it are not run again.
    pub(super) fn tests(&mut self, name: &str, command: &mut Command) -> anyhow::Result<()> {
        let before = self.rows_passed_before("");
        if !before.is_empty() {
            command.args(["--", "--exact"]);
        }
        for test in before.iter().filter(|test| self.passed_before(test)) {
            command.args(["--skip", test]);
        }
        self.run_tests(name, command, !before.is_empty())
    }

    /// The same, of tests that the command names: where none runs that is a failure.
    pub(super) fn tests_of(&mut self, name: &str, command: &mut Command) -> anyhow::Result<()> {
        self.run_tests(name, command, false)
    }

    fn run_tests(&mut self, name: &str, command: &mut Command, may_be_none: bool) -> anyhow::Result<()> {
        let log = self.log(name);
        let mut figures = Vec::new();
        let (status, said) = said(command, &log, &mut |line| {
            if let Some((test, figures)) = passed_test(line, &mut figures) {
                self.row(&test, Word::Passed, &figures);
            }
        })?;
        let (passed, ignored) = closing_counts(&said);
        self.passed += passed;
        if ignored > 0 {
            println!("NOT RUN: {ignored} ignored tests");
            self.not_run += ignored;
        }
        let failed = failed_tests(&said);
        for (test, last) in &failed {
            self.failed(test, "it failed", last, Some(&log));
        }
        if status.success() && !may_be_none && ran_no_test(&said) {
            self.failed(name, NO_TEST, &said, Some(&log));
        }
        if !status.success() && failed.is_empty() {
            self.failed(name, &format!("ended with {status}"), &said, Some(&log));
        }
        Ok(())
    }

    /// Where the whole log of a step is left.
    pub(super) fn log(&self, name: &str) -> PathBuf {
        let plain = name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-");
        self.logs.join(plain).with_added_extension("log")
    }

    /// Flaky tests beyond what a gate accepts are failures, and those that are not among the known ones are named: how fast
    /// a machine is decides of that as well as the sources do.
    pub(super) fn judge_flaky(&mut self, known: &[String]) {
        let flaky: Vec<String> = self.flaky.iter().map(|flaky| flaky.test.clone()).collect();
        self.unlisted = flaky.iter().filter(|test| !known.contains(test)).cloned().collect();
        if flaky.len() > FLAKY_IN_A_RUN {
            let why = format!("{} are flaky: {}", flaky.len(), flaky.join(", "));
            self.failed(&format!("at most {FLAKY_IN_A_RUN} tests are flaky"), &why, &[], None);
        }
    }

    /// Reports what was flaky, each with both outcomes, and what failed, each with its last lines and where the whole log is,
    /// and counts all.
    pub(super) fn close(&self) -> ExitCode {
        print!("{}", self.closing());
        if self.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn closing(&self) -> String {
        let flaky = self.flaky.iter().map(|Flaky { name, outcomes, .. }| format!("FLAKY {name}: {outcomes}"));
        let unlisted = self.unlisted.iter().map(|test| format!("NOT LISTED: {} has no entry for {test}", known::PAGE));
        let failures = self.failures.iter().flat_map(Failure::lines);
        let (count, not_run, again) = (self.flaky.len(), self.not_run, self.booted_again);
        let over_budget = self.over_budget.iter().map(|text| format!("OVER BUDGET: {text}"));
        let counts = [
            format!("{count} flaky, {not_run} not run, {again} machines booted again"),
            format!("{} passed, {} failed", self.passed, self.failures.len()),
        ];
        flaky.chain(unlisted).chain(failures).chain(over_budget).chain(counts).map(|line| line + "\n").collect()
    }

    fn row(&mut self, name: &str, word: Word, found: &str) {
        let saved = self.table.as_mut().map_or(Ok(()), |table| table.put(name, word, found));
        if let Err(error) = saved {
            self.table = None;
            self.failed("the table of results is written", &format!("{error:#}"), &[], None);
        }
    }
}

/// Runs `command` to its end. Its output is shown, written to `log`, handed on by line, and given back.
fn said(
    command: &mut Command,
    log: &Path,
    next: &mut dyn FnMut(&str),
) -> anyhow::Result<(std::process::ExitStatus, Vec<String>)> {
    let mut file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut lines = Vec::new();
    let status = run::each_line(command, &mut |line| {
        println!("{line}");
        writeln!(file, "{line}")?;
        next(line);
        lines.push(line.to_owned());
        Ok(())
    })?;
    Ok((status, lines))
}

/// A name that no test has any more is no error for the program that runs them.
const NO_TEST: &str = "it ran no test";

/// Whether this is what tests print of which none was run.
fn ran_no_test(said: &[String]) -> bool {
    said.iter().any(|line| line.starts_with("test result: ")) && closing_counts(said).0 == 0
}

/// The names of tests that this lists, in the test harness's terse format.
pub(super) fn listed(list: &mut Command) -> anyhow::Result<Vec<String>> {
    let said = run::text(list)?;
    Ok(said.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// How many tests passed and were ignored, by the `test result:` lines of `cargo test`.
fn closing_counts(said: &[String]) -> (u32, u32) {
    let number = |line: &str, word: &str| -> u32 {
        let before = line.split(word).next().unwrap_or_default();
        before.rsplit([' ', '.']).find(|part| !part.is_empty()).and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let closing = said.iter().filter(|line| line.starts_with("test result:"));
    closing
        .fold((0, 0), |(passed, ignored), line| (passed + number(line, " passed"), ignored + number(line, " ignored")))
}

/// What a test prints past its harness.
fn figure(line: &str) -> Option<&str> {
    line.strip_prefix("FIGURE ")
}

/// The test of `cargo test` that passed by this line, with the figures that were printed since the one before: its own, where
/// tests run one at a time.
fn passed_test(line: &str, figures: &mut Vec<String>) -> Option<(String, String)> {
    if let Some(figure) = figure(line) {
        figures.push(figure.to_owned());
        return None;
    }
    let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let of_it = std::mem::take(figures).join("; ");
    (outcome == "ok").then(|| (name.to_owned(), of_it))
}

/// The failed tests of `cargo test`, each with its output.
fn failed_tests(said: &[String]) -> Vec<(String, Vec<String>)> {
    let names = said.iter().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    names
        .map(|name| {
            let head = format!("---- {name} stdout ----");
            let own = said.iter().skip_while(|line| **line != head).skip(1);
            let own = own.take_while(|line| !line.starts_with("---- ") && *line != "failures:");
            (name.to_owned(), own.filter(|line| !line.is_empty()).cloned().collect())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> (tempfile::TempDir, Report) {
        let place = tempfile::tempdir().expect("a directory");
        let report = Report::new(place.path().join("logs")).expect("a report");
        (place, report)
    }

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_failed_command_is_closed_with_its_last_lines_and_its_whole_log() {
        let (_place, mut report) = report();
        report.run("it counts", Command::new("sh").args(["-c", "seq 1 40; echo bad >&2; exit 3"]));
        report.run("it is quiet", &mut Command::new("true"));
        report.run("it is there", &mut Command::new("/nowhere/program"));
        report.run("it measures", Command::new("sh").args(["-c", "echo FIGURE one: 7 s; exit 3"]));
        report.not_run("group x", "it was not asked for");
        let log = report.log("it counts");
        let text = report.closing();
        assert!(text.starts_with("\nFAILED: it counts: ended with exit status: 3\n    30\n    31\n"), "{text}");
        assert!(text.contains(&format!("    40\n    bad\n  the whole log: {}\n", log.display())), "{text}");
        assert!(text.contains("FAILED: it is there: cannot start"), "{text}");
        assert!(text.contains("FAILED: it measures: ended with exit status: 3; one: 7 s\n"), "{text}");
        assert!(text.ends_with("\n0 flaky, 1 not run, 0 machines booted again\n1 passed, 3 failed\n"), "{text}");
        assert_eq!(fs::read_to_string(log).expect("a log").lines().count(), 41);
    }

    #[test]
    fn a_failure_that_says_nothing_is_taken_back_and_one_before_it_of_the_same_name_stays() {
        let (_place, mut report) = report();
        report.failed("it", "it is wrong", &[], None);
        let before = report.failures();
        assert!(!report.take_back(before));
        report.failed("it", "its machine ended", &[], None);
        assert!(report.take_back(before) && !report.take_back(before));
        report.passed("it", "");
        let text = report.closing();
        assert!(text.contains("FAILED: it: it is wrong") && text.ends_with("\n1 passed, 1 failed\n"), "{text}");
    }

    #[test]
    fn a_failed_step_is_closed_with_what_its_command_printed_and_its_whole_log() {
        let (_place, mut report) = report();
        let built = run::shown(Command::new("sh").args(["-c", "seq 1 40; exit 3"])).context("cannot build it");
        report.step("it is built", built);
        report.step("it is small", Err(anyhow::anyhow!("it is large")));
        let log = |name| report.log(name).display().to_string();
        let text = report.closing();
        assert!(text.starts_with("\nFAILED: it is built: cannot build it: \"sh\""), "{text}");
        assert!(text.contains(&format!("    40\n  the whole log: {}\n", log("it is built"))), "{text}");
        let small = format!("FAILED: it is small: it is large\n  the whole log: {}\n", log("it is small"));
        assert!(text.contains(&small), "{text}");
        let lines = |name| fs::read_to_string(log(name)).expect("a log").lines().count();
        assert_eq!((lines("it is built"), lines("it is small")), (41, 1));
    }

    #[test]
    fn a_group_over_its_budget_is_reported_at_the_end_and_does_not_fail_the_run() {
        let (_place, mut report) = report();
        report.took("unit", Duration::from_mins(4), Duration::from_mins(4));
        report.took("vm", Duration::from_secs(541), Duration::from_mins(9));
        assert_eq!(
            report.closing(),
            "OVER BUDGET: group vm took 541 s of a budget of 540 s\n0 flaky, 0 not run, 0 machines booted again\n\
             0 passed, 0 failed\n"
        );
    }

    #[test]
    fn tests_are_counted_by_their_own_closing_lines_and_failed_ones_named() {
        let said = lines(
            "test a ... ok\ntest b::c ... FAILED\ntest d ... FAILED\n\nfailures:\n\n---- b::c stdout ----\npanicked\nleft\n\n\
             ---- d stdout ----\nother\n\nfailures:\n    b::c\n    d\n\n\
             test result: FAILED. 42 passed; 2 failed; 1 ignored; 0 measured\ntest result: ok. 3 passed; 0 failed; 0 ignored",
        );
        assert_eq!(closing_counts(&said), (45, 1));
        assert!(!ran_no_test(&said) && !ran_no_test(&lines("a demo")));
        assert!(ran_no_test(&lines("test result: ok. 0 passed; 0 failed; 0 ignored; 7 filtered out")));
        assert_eq!(failed_tests(&said), [("b::c".into(), lines("panicked\nleft")), ("d".into(), lines("other"))]);
    }

    #[test]
    fn tests_are_rows_of_a_table_with_their_figures_and_not_run_again_once_they_passed() {
        let place = tempfile::tempdir().expect("a directory");
        let run = || {
            let mut report = Report::new(place.path().join("logs")).expect("a report");
            report.begin_table(Table::of(place.path(), "any", "2026-01-02", "abc"));
            let said = "test a ... ok\nFIGURE b: 1 s\ntest c has been running for over 60 seconds\nFIGURE c\ntest b ... ok\n\
                        FIGURE d\ntest c ... FAILED\ntest e ... ok\n";
            // As cargo hands on what is for the tests.
            let script = format!("echo \"$@\"; printf '{said}'; exit 1");
            report.tests("any", Command::new("sh").args(["-c", &script, "sh"])).expect("it runs");
            let log = fs::read_to_string(report.log("any")).expect("a log");
            (log.lines().next().map(str::to_owned), report.passed)
        };
        assert_eq!(run(), (Some(String::new()), 0));
        let table = fs::read_to_string(place.path().join("any.md")).expect("a table");
        let rows: Vec<&str> = table.lines().skip(6).collect();
        assert_eq!(
            rows,
            ["| a | passed |  |", "| b | passed | b: 1 s; c |", "| e | passed |  |", "| c | FAILED | it failed |"]
        );
        assert_eq!(run(), (Some("-- --exact --skip a --skip b --skip e".into()), 3));
    }

    #[test]
    fn two_flaky_tests_are_accepted_and_those_that_are_not_listed_are_named() {
        for (flaky, known, failures, unlisted) in [
            (&["a", "b"][..], &["a", "b"][..], 0, 0),
            (&["a", "b"], &["b"], 0, 1),
            (&["a", "b", "c"], &["a", "b", "c"], 1, 0),
            (&[], &[], 0, 0),
        ] {
            let (_place, mut report) = report();
            for test in flaky {
                report.flaky(test, &format!("{test} on 6.1"), "once");
            }
            report.judge_flaky(&known.iter().map(|&test| test.to_owned()).collect::<Vec<_>>());
            assert_eq!(report.failures.len(), failures, "{flaky:?} {known:?}");
            let closing = report.closing();
            let named =
                |test: &&&str| closing.contains(&format!("NOT LISTED: {} has no entry for {test}\n", known::PAGE));
            assert_eq!(flaky.iter().filter(named).count(), unlisted, "{closing}");
            assert!(closing.contains(&format!("{} flaky, ", flaky.len())));
            assert!(flaky.iter().all(|test| closing.contains(&format!("FLAKY {test} on 6.1: once\n"))), "{closing}");
        }
    }
}
