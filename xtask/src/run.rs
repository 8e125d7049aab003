//! Runs a command and says which one failed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// The checkout's top folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout")
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
