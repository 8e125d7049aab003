//! The group `unit`: formatting, lints, licences, and every test that needs no virtual machine.

use std::process::Command;

use super::report::Report;
use crate::{build_ebpf, dependencies, install, run, service};

/// Cargo in the checkout.
pub(super) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(run::root());
    command
}

pub(super) fn run(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    report.step("build-ebpf", build_ebpf::run(&build_ebpf::PROCESSORS));
    report.run("format", &mut cargo(&["fmt", "--all", "--check"]));
    report.run("format of the kernel side", cargo(&["fmt", "--check"]).current_dir(run::root().join("ebpf")));
    // With all features there is more code than without; what is only there without is linted in a long run.
    report.run("lints", &mut lints(&["--all-features"]));
    report.step("lints of the kernel side", build_ebpf::lints());
    report.step("the core knows no runtime and no network", dependencies::core_is_small());
    let other = ["check", "--locked", "--all-features", "--target", install::AARCH64, "-p", "plimsoll"];
    report.run("the agent compiles for aarch64", &mut cargo(&other));
    let no_linux = ["check", "--locked", "--target", install::OTHER_SYSTEM, "-p", "plimsoll"];
    report.run("the agent compiles for another system, where it reports that it needs Linux", &mut cargo(&no_linux));
    for (folder, what) in dependencies::PUBLISHED {
        report.run(&format!("licences and sources of {what}"), &mut dependencies::deny(folder)?);
    }
    for (what, result) in [
        ("systemd accepts the shipped unit", service::verify()),
        ("the shipped unit is no more exposed than it was", service::exposure()),
    ] {
        match result {
            Some(result) => report.step(what, result),
            None => report.not_run(what, "there is no systemd-analyze on this machine"),
        }
    }
    report.tests("tests", &mut cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]))
}

/// Clippy over the workspace.
pub(super) fn lints(features: &[&str]) -> Command {
    let mut command = cargo(&["clippy", "--workspace", "--all-targets", "--locked"]);
    command.args(features).args(["--", "-Dwarnings"]);
    command
}
