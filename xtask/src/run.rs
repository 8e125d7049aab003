//! Where the checkout is, and how a command is run in it.

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
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

/// `program`, as root or with sudo.
pub(crate) fn as_root(program: &str) -> Command {
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let mut command = Command::new(if root { program } else { "sudo" });
    if !root {
        command.arg(program);
    }
    command
}

/// Runs `command` to its end with its output shown. The error of one that fails is a [`Failed`].
pub(crate) fn shown(command: &mut Command) -> anyhow::Result<()> {
    let mut said = Vec::new();
    let name = format!("{command:?}");
    let status = each_line(command, &mut |line| {
        println!("{line}");
        said.push(line.to_owned());
        Ok(())
    })?;
    if status.success() { Ok(()) } else { Err(Failed { what: format!("{name} ended with {status}"), said }.into()) }
}

/// Runs `command` to its end with this program's own output: it goes on where this program is killed.
pub(crate) fn seen(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// A command that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    what: String,
    /// All that it printed, by line.
    pub(crate) said: Vec<String>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Failed {}

/// Runs `command` to its end, and hands on each line that it prints.
pub(crate) fn each_line(
    command: &mut Command,
    lines: &mut dyn FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<ExitStatus> {
    let (reader, writer) = std::io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    // The command holds the pipe's other end open, which would never close.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    for line in BufReader::new(reader).split(b'\n') {
        lines(&String::from_utf8_lossy(&line?))?;
    }
    Ok(child.wait()?)
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
