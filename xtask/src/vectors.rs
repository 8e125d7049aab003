//! `cargo xtask vectors DIR`: every known file of a directory and of those in it, case by case, against our code.

use anyhow::{Context as _, bail};
use std::path::PathBuf;

use crate::run;

/// The saved decisions of the checkout.
const SAVED: &str = "tests/data/vectors";

/// Which cases to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A directory of saved decisions, plain (`.json`) or compressed (`.json.gz`); the checkout's own unless given.
    directory: Option<PathBuf>,
    /// How many differences of each file to print.
    #[arg(long, default_value_t = 5)]
    differences: usize,
}

/// Runs them and fails if one differs, if a known file cannot be read, or if there is none.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { directory, differences } = arguments;
    let directory = &directory.clone().unwrap_or_else(|| run::root().join(SAVED));
    let mut known = 0;
    let mut failed = 0;
    for found in plimsoll_vectors::find(directory)? {
        let name = found.path.strip_prefix(directory).unwrap_or(&found.path).display().to_string();
        let Some(runner) = found.runner else {
            println!("{name:<24} unknown: nothing here can run it");
            continue;
        };
        known += 1;
        let report = match runner.run(&found.path).with_context(|| format!("running {name}")) {
            Ok(report) => report,
            Err(error) => {
                failed += 1;
                println!("{name:<24} failed: {error:#}");
                continue;
            }
        };
        println!("{name:<24} {} of {} cases passed", report.passed(), report.cases);
        for difference in report.differences.iter().take(*differences) {
            println!("  {}", difference.case);
            for line in difference.text.lines() {
                println!("    {line}");
            }
        }
        let unreported = report.differences.len().saturating_sub(*differences);
        if unreported > 0 {
            println!("  and {unreported} more");
        }
        failed += usize::from(!report.differences.is_empty());
    }
    if known == 0 {
        bail!("no known file in {}", directory.display());
    }
    if failed > 0 {
        bail!("{failed} of {known} known files failed");
    }
    Ok(())
}
