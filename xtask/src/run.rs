//! Where the checkout is, and how a command is run in it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, ensure};

/// The checkout's top folder, found when it is first asked for: a checkout that was copied with what had been built in it
/// has a program that was compiled elsewhere. Where there is none, the program ends with a sentence.
pub(crate) fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        find_root().unwrap_or_else(|error| {
            eprintln!("error: {error:#}");
            std::process::exit(2);
        })
    });
    &ROOT
}

/// The nearest folder with a workspace and this package in it: above the package that cargo runs (the variable is of the
/// run, not of the build), else above the working directory.
fn find_root() -> anyhow::Result<PathBuf> {
    let below = match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(package) => PathBuf::from(package),
        None => std::env::current_dir().context("cannot read the working directory")?,
    };
    let holds = |folder: &&Path| folder.join("Cargo.toml").is_file() && folder.join("xtask/Cargo.toml").is_file();
    let found = below.ancestors().find(holds);
    found
        .map(Path::to_owned)
        .with_context(|| format!("no checkout of Plimsoll above {}: run `cargo xtask` inside one", below.display()))
}

/// Where what is slow to get is kept between checkouts: `$PLIMSOLL_CACHE`, else `$XDG_CACHE_HOME/plimsoll`,
/// else `~/.cache/plimsoll`.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("PLIMSOLL_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|base| base.join("plimsoll")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/plimsoll")))
        .context("no place for the cache: set PLIMSOLL_CACHE or HOME")
}

/// Runs `command` to its end with its output shown.
pub(crate) fn shown(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// What `command` prints, as text.
pub(crate) fn text(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout).with_context(|| format!("{command:?} printed no UTF-8"))
}
