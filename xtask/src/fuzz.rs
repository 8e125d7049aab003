//! `cargo xtask fuzz`: every parser against broken input, by libFuzzer and the stable toolchain.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::{build_ebpf, install, revision, run};

/// Where the results are kept.
const RESULTS: &str = "tests/fuzz/RESULTS.md";
/// What marks the project's and its libraries' code for libFuzzer: the coverage pass of LLVM, which needs no nightly
/// toolchain. There is no address sanitizer, because the parsers have no unsafe code.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1 -Clink-dead-code";

/// What the row of a target has that has no result, and of one with an input that ended it.
const NOT_RUN: &str = "NOT RUN";
const FINDING: &str = "FINDING";

/// What to fuzz, and for how long.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The targets, as `tests/fuzz/fuzz_targets` has them; none means all.
    targets: Vec<String>,
    /// End each target after so many executions
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// End each target after so many seconds of one CPU, however long that is on a busy machine.
    #[arg(long, default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Write the results into the committed table.
    #[arg(long)]
    record: bool,
}

/// The longest that libFuzzer runs in one piece. What it found stays for the next one.
const PIECE: Duration = Duration::from_mins(2);
/// The units of CPU time in /proc, a second: fixed in the kernel's interface on all processors that we build for.
const TICKS: u64 = 100;

/// What libFuzzer did with one target.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ran {
    executions: u64,
    /// Edges of the program that some input reached, and features (edges with their counts and compared values).
    edges: u64,
    features: u64,
}

/// What came of a target: where an input ended it, the error has where that is.
type Outcome = Result<Ran, String>;

/// Builds the targets and runs them one after the other; a finding ends it with the file that holds the input.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    install::all(&install::FUZZING)?;
    // The targets use crates that embed the kernel side.
    build_ebpf::run(&build_ebpf::PROCESSORS)?;
    let folder = run::root().join("tests/fuzz");
    let all = targets(&folder)?;
    if let Some(unknown) = arguments.targets.iter().find(|name| !all.contains(name)) {
        bail!("there is no target {unknown}; there are {}", all.join(", "));
    }
    let host = host()?;
    run::shown(
        Command::new("cargo")
            .args(["build", "--release", "--locked", "--target", &host, "--manifest-path"])
            .arg(folder.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(folder.join("target"))
            .env("RUSTFLAGS", FLAGS),
    )?;
    for target in all.iter().filter(|name| arguments.targets.is_empty() || arguments.targets.contains(name)) {
        let (outcome, cpu) = fuzz(&folder, &host, target, arguments)?;
        if arguments.record {
            record(target, &row(&outcome, cpu), &all)?;
        }
        match outcome {
            Ok(ran) => println!("{target}: {} executions, {} edges, no finding", ran.executions, ran.edges),
            Err(finding) => bail!(finding),
        }
    }
    Ok(())
}

fn host() -> anyhow::Result<String> {
    let version = run::text(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name what it runs on")?.to_owned())
}

fn targets(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder.join("fuzz_targets")).context("cannot list tests/fuzz/fuzz_targets")? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// Gives what it did, and how much CPU time that took.
fn fuzz(folder: &Path, host: &str, target: &str, arguments: &Arguments) -> anyhow::Result<(Outcome, Duration)> {
    println!("fuzzing {target}: {} executions, at most {} s of one CPU", arguments.runs, arguments.seconds);
    let most = Duration::from_secs(arguments.seconds);
    let before = cpu_of_children()?;
    let (mut ran, mut cpu) = (Ran::default(), Duration::ZERO);
    while ran.executions < arguments.runs && cpu < most {
        let piece = piece(folder, host, target, arguments.runs - ran.executions, PIECE.min(most.saturating_sub(cpu)))?;
        cpu = cpu_of_children()?.saturating_sub(before);
        ran = match piece {
            Ok(piece) => Ran { executions: ran.executions + piece.executions, ..piece },
            Err(finding) => return Ok((Err(finding), cpu)),
        };
        println!("{target}: {} executions in {} s of one CPU", ran.executions, cpu.as_secs());
    }
    Ok((Ok(ran), cpu))
}

/// The CPU time of all processes that this one has waited for.
fn cpu_of_children() -> anyhow::Result<Duration> {
    let text = fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    children_ticks(&text)
        .map(|ticks| Duration::from_millis(ticks * (1000 / TICKS)))
        .with_context(|| format!("no CPU time in /proc/self/stat: {text}"))
}

/// Fields 16 and 17 of proc(5)'s stat: user and system time. The second field is a name that may hold anything.
fn children_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(") ")?.1.split_whitespace().skip(13);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

fn piece(folder: &Path, host: &str, target: &str, runs: u64, most: Duration) -> anyhow::Result<Outcome> {
    let found = folder.join("target/corpus").join(target);
    let artifacts = folder.join("target/artifacts");
    fs::create_dir_all(&found)?;
    fs::create_dir_all(&artifacts)?;
    let seeds = folder.join("corpus").join(target);
    let log = folder.join("target").join(format!("{target}.log"));
    let mut command = Command::new(folder.join("target").join(host).join("release").join(target));
    command
        .arg(format!("-runs={runs}"))
        .arg(format!("-max_total_time={}", most.as_secs().max(1)))
        .arg(format!("-artifact_prefix={}/{target}-", artifacts.display()))
        .args(["-timeout=10", "-rss_limit_mb=4096", "-max_len=4096"])
        .arg(&found)
        .args(seeds.is_dir().then_some(&seeds));
    let file = fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).status()?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if !status.success() {
        return Ok(Err(format!(
            "{target}: {status}; the input is in {}, the end of {}:\n{}",
            artifacts.display(),
            log.display(),
            text.lines().rev().take(20).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
        )));
    }
    last(&text).map(Ok).with_context(|| format!("{} has no closing line", log.display()))
}

/// The closing line, `#100 DONE   cov: 20 ft: 31 corp: …`.
fn last(text: &str) -> Option<Ran> {
    let line = text.lines().rev().find(|line| line.contains("DONE"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let after = |word: &str| words.iter().position(|it| *it == word).and_then(|at| words.get(at + 1)?.parse().ok());
    Some(Ran {
        executions: words.first()?.strip_prefix('#')?.parse().ok()?,
        edges: after("cov:")?,
        features: after("ft:")?,
    })
}

/// The middle of a target's row.
fn row(outcome: &Outcome, cpu: Duration) -> String {
    let found = match outcome {
        Ok(Ran { executions, edges, features }) => format!("{executions} | {edges} | {features}"),
        Err(_) => format!("{FINDING} | |"),
    };
    format!("{found} | {} s", cpu.as_secs())
}

/// Replaces the row of a target that ran; the rest stays. `all` are the targets that there are.
fn record(target: &str, row: &str, all: &[String]) -> anyhow::Result<()> {
    let (date, revision) = (revision::today()?, revision::of_all_but(&[RESULTS])?);
    let file = run::root().join(RESULTS);
    let before = fs::read_to_string(&file).unwrap_or_default();
    let row = format!("| {target} | {row} | {date} | {revision} |");
    fs::write(&file, merged(&before, target, &row, all)).with_context(|| format!("cannot write {}", file.display()))
}

/// The table with this row, and a sentence on what all rows have found.
fn merged(before: &str, target: &str, row: &str, all: &[String]) -> String {
    let is_of = |line: &str, target: &str| line.starts_with(&format!("| {target} |"));
    let old = |name: &String| before.lines().find(|line| is_of(line, name)).map(str::to_owned);
    let line = |name: &String| old(name).unwrap_or_else(|| format!("| {name} | {NOT_RUN} | | | | | |"));
    let lines: Vec<String> = all.iter().map(|name| if *name == target { row.to_owned() } else { line(name) }).collect();
    let with = |word: &str| -> Vec<&str> {
        let is_one = |(_, line): &(&String, &String)| line.contains(&format!(" | {word} | "));
        all.iter().zip(&lines).filter(is_one).map(|(name, _)| &name[..]).collect()
    };
    let found = match &with(FINDING)[..] {
        [] => "No finding in any that ran.".to_owned(),
        findings => format!("A finding in {}.", findings.join(", ")),
    };
    format!(
        "# Results of `cargo xtask fuzz --record`\n\n\
         {found} Edges and features are what libFuzzer counts as reached; what was found before\n\
         is read in again every two minutes, and counted as executed.\n\n\
         | target | executions | edges | features | CPU time | on | revision |\n|---|---|---|---|---|---|---|\n{}\n",
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Ran, children_ticks, last, merged, row, targets};

    #[test]
    fn the_closing_line_is_read() {
        let text = "#2\tINITED cov: 12 ft: 13 corp: 1/1b exec/s: 0 rss: 30Mb\n\
                    #100\tDONE   cov: 20 ft: 31 corp: 9/42b lim: 4 exec/s: 0 rss: 31Mb\nDone 100 runs in 0 second(s)\n";
        assert_eq!(last(text), Some(Ran { executions: 100, edges: 20, features: 31 }));
        assert_eq!(last("#2\tINITED cov: 12 ft: 13\n"), None);
    }

    #[test]
    fn cpu_time_of_children_is_found_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 11 12 130 40 20 0 1 0 5 6 7";
        assert_eq!(children_ticks(stat), Some(170));
        assert_eq!(children_ticks("7 (a) S 1"), None);
    }

    #[test]
    fn the_table_keeps_the_rows_of_others() {
        let all = ["a".to_owned(), "b".to_owned()];
        let merged =
            |before: &str, target: &str, row: &str| merged(before, target, &format!("| {target} | {row} |"), &all);
        let first = merged("", "b", "1 | 2 | 3 | 4 s | 2026-01-02 | abc");
        assert!(first.ends_with("| a | NOT RUN | | | | | |\n| b | 1 | 2 | 3 | 4 s | 2026-01-02 | abc |\n"), "{first}");
        let second = merged(&first, "a", "5 | 6 | 7 | 8 s | 2026-01-03 | abd");
        let third = merged(&second, "b", "9 | 9 | 9 | 9 s | 2026-01-04 | abe");
        let rows = "| a | 5 | 6 | 7 | 8 s | 2026-01-03 | abd |\n| b | 9 | 9 | 9 | 9 s | 2026-01-04 | abe |\n";
        assert!(third.ends_with(rows), "{third}");
        assert!(third.contains("\nNo finding in any that ran. Edges"), "{third}");
        // One that is no more has no row.
        assert_eq!(
            merged(&(third.clone() + "| gone | 1 | 2 | 3 | 4 s | 2026-01-02 | abc |\n"), "b", "1").lines().count(),
            9
        );
    }

    #[test]
    fn a_finding_is_in_the_row_of_its_target_and_in_the_headline_until_that_ran_without() {
        let all = ["a".to_owned(), "b".to_owned()];
        let merged = |before: &str, target: &str, row: &str| {
            merged(before, target, &format!("| {target} | {row} | 2026-01-02 | abc |"), &all)
        };
        let fine = row(&Ok(Ran { executions: 1, edges: 2, features: 3 }), Duration::from_secs(4));
        let finding = row(&Err("the input is in x".into()), Duration::from_secs(4));
        let text = merged(&merged("", "a", &fine), "b", &finding);
        assert!(text.contains("\nA finding in b. Edges"), "{text}");
        assert!(
            text.ends_with(
                "| a | 1 | 2 | 3 | 4 s | 2026-01-02 | abc |\n| b | FINDING | | | 4 s | 2026-01-02 | abc |\n"
            )
        );
        let text = merged(&text, "a", &finding);
        assert!(text.contains("\nA finding in a, b. Edges"), "{text}");
        let text = merged(&merged(&text, "a", &fine), "b", &fine);
        assert!(text.contains("\nNo finding in any that ran. Edges"), "{text}");
    }

    #[test]
    fn every_target_is_a_program_of_the_package() {
        let folder = crate::run::root().join("tests/fuzz");
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("it is there");
        for target in targets(&folder).expect("they are there") {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is not in Cargo.toml");
        }
    }
}
