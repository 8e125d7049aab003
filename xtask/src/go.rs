//! Programs of other projects, built from Go modules of `tests/cluster`, each once, into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::progress::Progress;
use crate::release::sha256;
use crate::{lock, run};

/// The first Go that gets the version that go.mod asks for by itself, as a module.
const GO: (u32, u32) = (1, 21);
/// The package in which Kubernetes' programs, and those that are built like them, have their version; without it they report none.
const VERSION: &str = "k8s.io/component-base/version";

/// A program, and the module of this checkout that it is built from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Its project, by which people know it.
    pub(crate) project: &'static str,
    /// The folder of the module.
    pub(crate) module: &'static str,
    /// What of the module decides what is built; go.mod among it.
    pub(crate) sources: &'static [&'static str],
    /// The requirement in go.mod whose version is the program's.
    pub(crate) requirement: &'static str,
    /// The package to build.
    pub(crate) package: &'static str,
    /// How long that takes on two cores.
    pub(crate) takes: &'static str,
    /// How its folder in the cache begins, and its file there.
    pub(crate) folder: &'static str,
    pub(crate) file: &'static str,
}

impl Program {
    /// Whether it is in the cache, whole.
    pub(crate) fn is_there(&self) -> anyhow::Result<bool> {
        Ok(self.place()?.is_file())
    }

    /// Its file, built where it is not in the cache.
    pub(crate) fn get(&self) -> anyhow::Result<PathBuf> {
        let place = self.place()?;
        lock::once(&place, || Ok(place.is_file()), || self.build(&place))?;
        Ok(place)
    }

    /// The release that is built, such as `v1.36.3`.
    pub(crate) fn release(&self) -> anyhow::Result<String> {
        let text = self.read("go.mod")?;
        let required = |line: &str| Some(line.strip_prefix(self.requirement)?.split_whitespace().next()?.to_owned());
        let found = text.lines().map(|line| line.trim().trim_start_matches("require ")).find_map(required);
        found.with_context(|| format!("{}/go.mod names no release of {}", self.module, self.requirement))
    }

    /// Another folder for other sources, so that a checkout never runs what another one built.
    fn place(&self) -> anyhow::Result<PathBuf> {
        let sources = self.sources.iter().map(|name| self.read(name)).collect::<anyhow::Result<String>>()?;
        let digest = sha256(sources.as_bytes());
        Ok(run::cache()?.join(format!("{}-{}-{}", self.folder, self.release()?, &digest[..12])).join(self.file))
    }

    fn read(&self, name: &str) -> anyhow::Result<String> {
        let path = run::root().join(self.module).join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    fn build(&self, place: &Path) -> anyhow::Result<()> {
        let Self { project, module, package, .. } = self;
        let release = self.release()?;
        let version = version().with_context(|| format!("{project} is built by Go"))?;
        println!("building {project} {release} with {version}, some {} on two cores the first time", self.takes);
        let folder = place.parent().context("a folder in the cache")?;
        let go = || {
            let mut go = Command::new("go");
            go.current_dir(run::root().join(module)).env("CGO_ENABLED", "0");
            go
        };
        // Under another name until it is whole.
        let unfinished = folder.join("unfinished");
        let packages = run::text(go().args(["list", "-deps", package]))
            .with_context(|| format!("Go cannot get the modules of {project}"))?;
        let progress = Progress::new(&format!("packages of {project}"), packages.lines().count() as u64);
        let mut last = Vec::new();
        let mut command = go();
        command.args(["build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", &linked(&release)?, "-o"]);
        command.arg(&unfinished).arg(package);
        let status = run::each_line(&mut command, &mut |line| {
            progress.step();
            last.push(line.to_owned());
            Ok(())
        })?;
        drop(progress);
        let tail = last[last.len().saturating_sub(20)..].join("\n");
        ensure!(status.success(), "go build in {module} ended with {status}:\n{tail}");
        fs::rename(&unfinished, place).with_context(|| format!("cannot write {}", place.display()))
    }
}

/// Whether a Go is there that can build these programs, and which.
pub(crate) fn version() -> anyhow::Result<String> {
    const INSTALL: &str = "install Go 1.21 or later: the package golang-go or, where that is older, the one \
                           from go.dev, with its folder before /usr/bin in PATH";
    let said = run::text(Command::new("go").args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local")).context(INSTALL)?;
    let version = said.trim();
    ensure!(is_recent(version), "{version} does not get the Go that a module asks for: {INSTALL}");
    Ok(version.to_owned())
}

/// `version` as `go env GOVERSION` prints it, such as `go1.26.8` or `go1.27rc1`.
fn is_recent(version: &str) -> bool {
    let mut parts = version.trim_start_matches("go").split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    matches!((parts.next(), parts.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= GO)
}

/// What the linker leaves out, and what it sets, as these programs' own builds do: what each reports as its version.
fn linked(release: &str) -> anyhow::Result<String> {
    let mut numbers = release.trim_start_matches('v').split('.');
    let (major, minor) = numbers.next().zip(numbers.next()).with_context(|| format!("{release} is no release"))?;
    Ok(format!(
        "-s -w -X {VERSION}.gitVersion={release} -X {VERSION}.gitMajor={major} -X {VERSION}.gitMinor={minor} \
         -X {VERSION}.gitTreeState=clean"
    ))
}

#[cfg(test)]
mod tests {
    use super::{is_recent, linked};

    #[test]
    fn a_go_that_gets_the_right_one_by_itself_is_recent() {
        for (version, recent) in [
            ("go1.26.8", true),
            ("go1.21.0", true),
            ("go1.27rc1", true),
            ("go1.19.8", false),
            ("devel", false),
            ("", false),
        ] {
            assert_eq!(is_recent(version), recent, "{version}");
        }
    }

    #[test]
    fn components_report_the_release() {
        let set = linked("v1.36.3").expect("a release");
        assert!(set.contains("version.gitVersion=v1.36.3 ") && set.contains("gitMinor=36 "), "{set}");
        assert!(linked("v1").is_err());
    }
}
