//! The long group `checks`: what needs no virtual machine, and builds more than a gate has time for.

use super::report::Report;
use super::unit::{cargo, lints};
use crate::install::{self, Need};
use crate::{build_ebpf, dependencies, release, sbom};

pub(super) fn needs() -> Vec<Need> {
    [install::checks(), release::needs()].concat()
}

pub(super) fn run(_: &[&str], report: &mut Report) -> anyhow::Result<()> {
    build_ebpf::run(&build_ebpf::PROCESSORS)?;
    report.run("lints without features", &mut lints(&[]));
    let name = "a decision takes no longer than four sorts, and allocates nothing";
    report.run(name, &mut cargo(&["bench", "--locked", "-p", "plimsoll-benches"]));
    let hostile = ["test", "--locked", "-p", "plimsoll-storage", "--test", "hostile", "--", "--ignored"];
    report.run("a directory of ten million entries is scanned within the bounds", &mut cargo(&hostile));
    let database = dependencies::fetch_advisories();
    if let Err(error) = &database {
        println!("the database of advisories cannot be got: {error:#}");
    }
    for (folder, what) in dependencies::PUBLISHED {
        let name = format!("no dependency of {what} has an advisory");
        match &database {
            Ok(()) => report.run(&name, &mut dependencies::advisories(folder)?),
            Err(_) => report.not_run(&name, "the database of advisories cannot be got"),
        }
    }
    report.step("the SBOMs name what is built, and no folder of this machine", sbom::name_what_is_built());
    report.step("another folder gives the same release", release::reproducible());
    Ok(())
}
