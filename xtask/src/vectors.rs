//! `cargo xtask vectors DIR`: every known file of a directory and of those in it, case by case, against our code.
//! With `--generate`, of new cases from the kubelet's own code.

use anyhow::{Context as _, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install::{self, Need};
use crate::run;

/// The saved decisions of the checkout.
const SAVED: &str = "tests/data/vectors";
/// The program that generates cases. The kubelet's package is copied beside its own part of that.
const GENERATOR: &str = "tests/vectors/kubelet";
/// Where that is built, below the checkout.
const BUILD: &str = "target/vectors";

/// Which cases to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A directory of saved decisions, plain (`.json`) or compressed (`.json.gz`); the checkout's own unless given.
    directory: Option<PathBuf>,
    /// How many differences of each file to print.
    #[arg(long, default_value_t = 5)]
    differences: usize,
    /// Run this many new cases of each generated kind instead. Takes Go 1.26 and its module proxy.
    #[arg(long, value_name = "CASES", conflicts_with = "directory")]
    generate: Option<u32>,
    /// The seed of generated cases: the same seed gives the same cases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Arguments {
    /// What it needs.
    pub(crate) fn needs(&self) -> Vec<Need> {
        if self.generate.is_some() { vec![Need::Go] } else { Vec::new() }
    }
}

/// Runs them and fails if one differs, if a known file cannot be read, or if there is none.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    install::all(&arguments.needs())?;
    let Arguments { directory, differences, generate, seed } = arguments;
    let directory = &match generate {
        Some(cases) => generated(*cases, *seed)?,
        None => directory.clone().unwrap_or_else(|| run::root().join(SAVED)),
    };
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

/// Draws cases from the kubelet's own code, and gives the directory of their files.
fn generated(cases: u32, seed: u64) -> anyhow::Result<PathBuf> {
    let build = run::root().join(BUILD);
    let package = build.join("eviction");
    if build.exists() {
        fs::remove_dir_all(&build).with_context(|| format!("cannot remove {}", build.display()))?;
    }
    let output = build.join("cases");
    for folder in [&package, &output] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let generator = run::root().join(GENERATOR);
    copy(&generator, &build)?;
    copy(&generator.join("eviction"), &package)?;
    let go = |arguments: &[&str]| {
        let mut command = Command::new("go");
        command.args(arguments).current_dir(&build);
        command
    };
    let module = run::text(&mut go(&["mod", "download", "-json", "k8s.io/kubernetes"]))
        .context("generating cases takes Go 1.26 and its module proxy")?;
    let module: serde_json::Value = serde_json::from_str(&module).context("go mod download printed no JSON")?;
    let module = module["Dir"].as_str().context("go mod download names no directory")?;
    copy(&Path::new(module).join("pkg/kubelet/eviction"), &package)?;
    let mut command = go(&["run", "."]);
    command.args(["-cases", &cases.to_string(), "-seed", &seed.to_string(), "-directory"]).arg(&output);
    run::shown(&mut command)?;
    Ok(output)
}

/// Copies the files of a folder, Go's tests left out. Those of Go's module cache cannot be written to, the copies can.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_file() && !name.to_string_lossy().ends_with("_test.go") {
            let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            fs::write(to.join(name), text).with_context(|| format!("cannot write {}", to.join(name).display()))?;
        }
    }
    Ok(())
}
