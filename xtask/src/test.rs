//! `cargo xtask test`: everything that gates a change and needs no virtual machine.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::{build_ebpf, install, run};

/// Builds the kernel side, checks formatting and lints, runs the tests, and closes with a line of counts.
pub(crate) fn run(mode: install::Mode) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut counts = Counts::default();
    counts.step("build-ebpf", build_ebpf::run(mode));
    if counts.failed == 0 {
        counts.step("format", run::shown(cargo().args(["fmt", "--all", "--check"])));
        counts.step(
            "lints",
            run::shown(cargo().args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-Dwarnings"])),
        );
        let (tests, result) = tests()?;
        counts.add(tests);
        if result.is_err() && tests.failed == 0 {
            counts.step("tests", result);
        }
    }
    println!("\ntook {} s", begin.elapsed().as_secs());
    println!("NOT RUN: vm: the tests of tests/vm/guest; run them with `cargo xtask vm -- /bin/plimsoll-guest suite`");
    println!("{} passed, {} failed, 1 skipped", counts.passed, counts.failed);
    if counts.failed > 0 {
        bail!("{} failed", counts.failed);
    }
    Ok(())
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
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
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
        counts.add(Counts { passed: number(" passed"), failed: number(" failed") });
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::{Counts, count};

    #[test]
    fn closing_lines_are_added_up() {
        let text = "test a ... ok\ntest result: ok. 42 passed; 0 failed; 0 ignored; 0 measured\n\
                    test result: FAILED. 3 passed; 2 failed; 0 ignored\n";
        assert_eq!(count(text), Counts { passed: 45, failed: 2 });
    }
}
