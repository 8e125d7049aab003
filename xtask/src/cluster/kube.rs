//! Kubernetes itself: one program with every component, built from Go modules by `tests/cluster`, once, into the cache.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::progress::Progress;
use crate::release::sha256;
use crate::run;

/// The module that it is built from.
const MODULE: &str = "tests/cluster";
/// What of the module decides what is built.
const SOURCES: [&str; 3] = ["go.mod", "go.sum", "main.go"];
/// The release of Kubernetes, as go.mod has it.
const KUBERNETES: &str = "k8s.io/kubernetes ";
/// Where a release has its own version; without it each component reports none.
const VERSION: &str = "k8s.io/component-base/version";
/// The first Go that gets the version that go.mod asks for by itself, as a module.
const GO: (u32, u32) = (1, 21);

/// Whether it is in the cache, whole.
pub(crate) fn is_there() -> anyhow::Result<bool> {
    Ok(place()?.is_file())
}

/// The program; what it does is decided by its first argument.
pub(crate) fn program() -> anyhow::Result<PathBuf> {
    let place = place()?;
    if !place.is_file() {
        build(&place)?;
    }
    Ok(place)
}

/// The release that is built, such as `v1.36.3`.
pub(crate) fn release() -> anyhow::Result<String> {
    let text = read("go.mod")?;
    let found = text.lines().find_map(|line| line.trim().strip_prefix(KUBERNETES));
    Ok(found.with_context(|| format!("{MODULE}/go.mod names no release of {KUBERNETES}"))?.trim().to_owned())
}

/// Whether a Go is there that can build it, and which.
pub(crate) fn go() -> anyhow::Result<String> {
    let said = run::text(Command::new("go").args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local"));
    let said =
        said.context("Kubernetes is built by Go: install Go 1.21 or later, as the package golang-go or from go.dev")?;
    let version = said.trim();
    ensure!(is_recent(version), "{version} cannot build {MODULE}: install Go 1.21 or later");
    Ok(version.to_owned())
}

/// `version` as `go env GOVERSION` prints it, such as `go1.26.8` or `go1.27rc1`.
fn is_recent(version: &str) -> bool {
    let mut parts = version.trim_start_matches("go").split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    matches!((parts.next(), parts.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= GO)
}

/// Another folder for other sources, so that a checkout never runs what another one built.
fn place() -> anyhow::Result<PathBuf> {
    let sources = SOURCES.map(read).into_iter().collect::<anyhow::Result<String>>()?;
    let digest = sha256(sources.as_bytes());
    Ok(run::cache()?.join(format!("kubernetes-{}-{}", release()?, &digest[..12])).join("kube"))
}

fn read(name: &str) -> anyhow::Result<String> {
    let path = run::root().join(MODULE).join(name);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn build(place: &PathBuf) -> anyhow::Result<()> {
    let release = release()?;
    println!("building Kubernetes {release} with {}, some ten minutes on two cores the first time", go()?);
    let folder = place.parent().context("a folder in the cache")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let module = run::root().join(MODULE);
    let go = || {
        let mut go = Command::new("go");
        go.current_dir(&module).env("CGO_ENABLED", "0");
        go
    };
    // Under another name until it is whole.
    let unfinished = folder.join("unfinished");
    let packages = run::text(go().args(["list", "-deps", "."])).context("Go cannot get the modules of Kubernetes")?;
    let progress = Progress::new("packages of Kubernetes", packages.lines().count() as u64);
    let mut last = Vec::new();
    let mut command = go();
    command
        .args(["build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", &linked(&release)?, "-o"])
        .arg(&unfinished)
        .arg(".");
    let status = run::each_line(&mut command, &mut |line| {
        progress.step();
        last.push(line.to_owned());
        Ok(())
    })?;
    drop(progress);
    let tail = last[last.len().saturating_sub(20)..].join("\n");
    ensure!(status.success(), "go build in {MODULE} ended with {status}:\n{tail}");
    fs::rename(&unfinished, place).with_context(|| format!("cannot write {}", place.display()))
}

/// What the linker sets, as Kubernetes' own builds do: what each component reports as its version.
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
    use super::{is_recent, linked, release};

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
    fn components_report_the_release_of_go_mod() {
        let release = release().expect("go.mod has it");
        assert!(release.starts_with("v1."), "{release}");
        let linked = linked(&release).expect("a release");
        assert!(
            linked.contains(&format!("version.gitVersion={release} ")) && linked.contains("gitMajor=1 "),
            "{linked}"
        );
        assert!(super::linked("v1").is_err());
    }
}
