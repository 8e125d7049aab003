//! The groups of `cargo xtask test --long`, and the table of results that each leaves in the checkout.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::{Group, checks, cluster, machines, suite};
use crate::kernels::SUITES;
use crate::{install, revision, run};

/// Where the tables are kept, a file for each group.
const RESULTS: &str = "tests/results";
/// What is between a table's date and its revision, and between the two dates of one that was resumed on another day.
const REVISION: &str = ", revision ";
const TO: &str = " to ";

/// Every long group, those of these kernels only.
pub(super) fn groups(kernels: &[&'static str]) -> Vec<Group> {
    let mut groups = vec![Group {
        name: "checks".into(),
        minutes: 60,
        kernels: Vec::new(),
        needs: |_| Ok(checks::needs()),
        run: checks::run,
    }];
    for kernel in kernels {
        let of = |what, minutes, run| Group {
            name: format!("{what}-{kernel}"),
            minutes,
            kernels: vec![kernel],
            needs: install::machines,
            run,
        };
        groups.push(of("suite", 45, machines::whole));
        if SUITES.iter().any(|(_, usual)| usual == kernel) {
            groups.push(of("demo", 45, machines::demo));
            groups.push(of("boots", 30, machines::boots));
            groups.push(Group { needs: install::systemd_machines, ..of("systemd", 15, machines::systemd) });
        }
        if suite::NODE_KERNELS.contains(kernel) {
            groups.push(Group { needs: suite::node_needs, ..of("node", 30, machines::node) });
        }
        if *kernel == cluster::NEWEST {
            groups.push(Group { needs: cluster::needs_with_newest, ..of("cluster", 45, cluster::with_newest) });
        }
        if *kernel == suite::WHOLE {
            groups.push(of("soak", 60, machines::soak));
            let beside = |what, minutes, run| Group { needs: cluster::needs_with_node, ..of(what, minutes, run) };
            groups.push(beside("cluster", 60, cluster::evictions));
            groups.push(beside("signals", 60, cluster::signals));
            groups.push(beside("outages", 60, cluster::outages));
            groups.push(beside("order", 60, cluster::order));
            groups.push(beside("kubelets", 40, cluster::kubelets));
            groups.push(beside("race-50", 40, |_, report| cluster::races("50", report)));
            groups.push(beside("race-200", 40, |_, report| cluster::races("200", report)));
            groups.push(beside("race-unbounded", 40, |_, report| cluster::races("0", report)));
        }
    }
    groups
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Passed,
    Failed,
    Flaky,
    NotRun,
}

impl Word {
    const fn text(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Flaky => "FLAKY",
            Self::NotRun => "NOT RUN",
        }
    }
}

/// The results of one group, written after each step: a run that is stopped leaves what it has seen.
pub(super) struct Table {
    path: PathBuf,
    group: String,
    date: String,
    revision: String,
    /// Name, word, what was found.
    rows: Vec<[String; 3]>,
}

impl Table {
    /// The table of a group in the checkout.
    pub(super) fn open(group: &str) -> anyhow::Result<Self> {
        let revision = revision::of_all_but(&[RESULTS])?;
        Ok(Self::of(&run::root().join(RESULTS), group, &revision::today()?, &revision))
    }

    /// The table of a group in a folder. What passed in an earlier run is kept where the sources are still the same.
    pub(super) fn of(folder: &Path, group: &str, date: &str, revision: &str) -> Self {
        let path = folder.join(group).with_added_extension("md");
        let before = fs::read_to_string(&path).unwrap_or_default();
        let begun = resumed(&before, revision);
        let rows = if begun.is_some() { passed_rows(&before) } else { Vec::new() };
        // Rows that are kept are as old as the table.
        let date = match begun.filter(|begun| *begun != date) {
            Some(begun) if !rows.is_empty() => format!("{begun}{TO}{date}"),
            _ => date.into(),
        };
        Self { path, group: group.into(), date, revision: revision.into(), rows }
    }

    pub(super) fn has_passed(&self, name: &str) -> bool {
        let name = cell(name);
        self.rows.iter().any(|[row, word, _]| *row == name && *word == Word::Passed.text())
    }

    /// The names of passed rows with this ending, without it.
    pub(super) fn passed_with(&self, ending: &str) -> Vec<String> {
        let passed = self.rows.iter().filter(|[_, word, _]| word == Word::Passed.text());
        passed.filter_map(|[name, ..]| name.strip_suffix(ending)).map(str::to_owned).collect()
    }

    /// Adds or replaces a row, and writes all.
    pub(super) fn put(&mut self, name: &str, word: Word, found: &str) -> anyhow::Result<()> {
        let row = [cell(name), word.text().into(), cell(found)];
        match self.rows.iter_mut().find(|[before, ..]| *before == row[0]) {
            Some(before) => *before = row,
            None => self.rows.push(row),
        }
        fs::write(&self.path, self.text()).with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn text(&self) -> String {
        let Self { group, date, revision, rows, .. } = self;
        let mut text = format!("# Results of `cargo xtask test --long {group}`\n\n{date}{REVISION}{revision}\n\n");
        text.push_str("| what | | |\n|---|---|---|\n");
        text.extend(rows.iter().map(|[name, word, found]| format!("| {name} | {word} | {found} |\n")));
        text
    }
}

/// A text that fits between two bars.
fn cell(text: &str) -> String {
    text.replace(['|', '\n'], "/")
}

/// The day on which a table was begun that is of exactly these sources.
fn resumed<'t>(table: &'t str, revision: &str) -> Option<&'t str> {
    let (date, of) = table.lines().find_map(|line| line.split_once(REVISION))?;
    revision::is_same(of, revision).then(|| date.split(TO).next().unwrap_or(date))
}

fn passed_rows(table: &str) -> Vec<[String; 3]> {
    let rows = table.lines().filter_map(|line| {
        let mut cells =
            line.strip_prefix("| ")?.strip_suffix(" |")?.splitn(3, " | ").map(|cell| cell.trim().to_owned());
        Some([cells.next()?, cells.next()?, cells.next().unwrap_or_default()])
    });
    rows.filter(|[_, word, _]| word == Word::Passed.text()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(folder: &Path) -> Table {
        Table::of(folder, "any", "2026-01-02", "abc")
    }

    #[test]
    fn a_stopped_run_is_resumed_by_what_passed_in_the_same_sources() {
        let place = tempfile::tempdir().expect("a directory");
        let mut first = table(place.path());
        for (name, word, found) in [
            ("a", Word::Passed, "1 of 2"),
            ("b", Word::Failed, "it: broke | here"),
            ("c", Word::NotRun, "no zram"),
            ("d", Word::Flaky, "once"),
            ("e", Word::Passed, ""),
        ] {
            first.put(name, word, found).expect("written");
        }
        let text = fs::read_to_string(place.path().join("any.md")).expect("a table");
        let rows = "| a | passed | 1 of 2 |\n| b | FAILED | it: broke / here |\n| c | NOT RUN | no zram |\n\
                    | d | FLAKY | once |\n| e | passed |  |\n";
        let head = "# Results of `cargo xtask test --long any`\n\n2026-01-02, revision abc\n\n";
        assert_eq!(text, format!("{head}| what | | |\n|---|---|---|\n{rows}"));
        let of_others = ["abd", "abc with changes"].map(|revision| resumed(&text, revision));
        assert_eq!((resumed(&text, "abc"), of_others), (Some("2026-01-02"), [None, None]));
        let second = table(place.path());
        let passed = ["a", "b", "c", "d", "e"].map(|name| second.has_passed(name));
        assert_eq!(passed, [true, false, false, false, true]);
        let mut third = table(place.path());
        third.put("e", Word::Failed, "now").expect("written");
        assert!(!third.has_passed("e"));
    }
    #[test]
    fn a_table_that_is_resumed_on_another_day_has_the_days_of_its_oldest_and_newest_rows() {
        let place = tempfile::tempdir().expect("a directory");
        let date = |day, revision| {
            let mut table = Table::of(place.path(), "any", day, revision);
            table.put(day, Word::Passed, "").expect("written");
            let text = fs::read_to_string(place.path().join("any.md")).expect("a table");
            text.lines().nth(2).map(str::to_owned).expect("a third line")
        };
        assert_eq!(date("2026-01-02", "abc"), "2026-01-02, revision abc");
        assert_eq!(date("2026-01-02", "abc"), "2026-01-02, revision abc");
        assert_eq!(date("2026-01-03", "abc"), "2026-01-02 to 2026-01-03, revision abc");
        assert_eq!(date("2026-01-05", "abc"), "2026-01-02 to 2026-01-05, revision abc");
        assert_eq!(date("2026-01-06", "abd"), "2026-01-06, revision abd");
    }
}
