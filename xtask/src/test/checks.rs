//! The long group `checks`: what needs no virtual machine, and builds more than a gate has time for.

use super::report::Report;
use super::unit::{cargo, lints};
use crate::{build_ebpf, install};

pub(super) fn run(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    build_ebpf::run(&build_ebpf::PROCESSORS)?;
    report.run("lints without features", &mut lints(&[]));
    report.step("another folder gives the same kernel objects", build_ebpf::reproducible());
    for (name, target) in [("this processor", install::GUEST), ("aarch64", install::AARCH64)] {
        let build = ["build", "--release", "--locked", "--target", target, "-p", "plimsoll"];
        report.run(&format!("a release of the agent builds for {name}"), &mut cargo(&build));
    }
    Ok(())
}
