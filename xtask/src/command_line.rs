//! `cargo xtask man` and `cargo xtask completions`: what an example of the agent's package makes of its command line.
//!
//! The agent cannot do it itself without the generators in its program, which the core locks in memory as a whole; and this
//! program cannot depend on the agent, because it builds the kernel programs that the agent holds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::{build_ebpf, run, share};

/// Where to.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The directory, which is made where it is missing.
    directory: PathBuf,
}

/// Writes man pages.
pub(crate) fn man(arguments: &Arguments) -> anyhow::Result<()> {
    write(share::MAN, &arguments.directory)
}

/// Writes a script for each shell.
pub(crate) fn completions(arguments: &Arguments) -> anyhow::Result<()> {
    write(share::COMPLETIONS, &arguments.directory)
}

fn write(what: &str, directory: &Path) -> anyhow::Result<()> {
    let directory = std::path::absolute(directory)?;
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    build_ebpf::run(&build_ebpf::PROCESSORS)?;
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--quiet", "--locked", "-p", "plimsoll", "--example", "command_line", "--", what]);
    run::shown(cargo.arg(&directory).current_dir(run::root()))?;
    println!("in {}", directory.display());
    Ok(())
}
