//! The groups that boot virtual machines: the gate's suite on all kernels, and in long runs, for one kernel each, the
//! whole suite, the demo's full measurement, a hundred boots, and many pressure cycles in one boot.

use anyhow::ensure;

use super::report::Report;
use super::suite;
use crate::demo;
use crate::qemu::Processor;
use crate::vm::{self, Build};

/// How often each kernel is booted in a long run.
const BOOTS: u32 = 100;
/// How long one of these boots may take.
const BOOT_SECONDS: u64 = 240;
/// How many pressure cycles there are in one boot, and how long that may take.
const CYCLES: &str = "10000";
const SOAK_SECONDS: u64 = 3600;
/// What a line with a figure of them begins with.
const SOAK_FIGURE: &str = "FIGURE soak ";

/// What every change has to pass: all on one kernel but what is left to long runs, a few on the others.
pub(super) fn gate(kernels: &[&'static str], report: &mut Report) -> anyhow::Result<()> {
    Build::Strict.run(Processor::X86_64)?;
    suite::run_side_by_side(kernels.iter().flat_map(|kernel| suite::gate(kernel)).collect(), report)
}

/// The whole suite on one kernel, in every machine that it needs.
pub(super) fn whole(kernels: &[&'static str], report: &mut Report) -> anyhow::Result<()> {
    for kernel in kernels {
        Build::Strict.run(Processor::of(kernel))?;
        for boot in suite::whole(kernel) {
            suite::run(&boot, report)?;
        }
    }
    Ok(())
}

/// What the demo claims, measured.
pub(super) fn demo(kernels: &[&'static str], report: &mut Report) -> anyhow::Result<()> {
    for kernel in kernels {
        Build::Plain.run(Processor::of(kernel))?;
        let all = "all that the demo claims holds";
        if report.passed_before(all) {
            continue;
        }
        let claims = demo::claims(kernel)?;
        let broken = claims.iter().filter(|claim| !claim.holds).count();
        for demo::Claim { what, found, holds } in claims {
            if holds {
                report.passed(what, &found);
            } else {
                report.failed(what, &found, &[], None);
            }
        }
        if broken == 0 {
            report.passed(all, "");
        }
    }
    Ok(())
}

/// How many of a hundred boots come to their first process; none that does not is booted again.
pub(super) fn boots(kernels: &[&'static str], report: &mut Report) -> anyhow::Result<()> {
    for kernel in kernels {
        Build::Strict.run(Processor::of(kernel))?;
        let machine = vm::Arguments::of(kernel, BOOT_SECONDS, &["/bin/busybox", "true"]);
        let name = format!("{BOOTS} boots");
        if report.passed_before(&name) {
            continue;
        }
        let mut failures = Vec::new();
        for number in 1..=BOOTS {
            if let Err(error) = boot_to_the_end(&machine) {
                println!("boot {number} of {BOOTS}: {error:#}");
                failures.push(format!("{number}: {error:#}"));
            }
        }
        let found = format!("{} of {BOOTS} failed", failures.len());
        if failures.is_empty() {
            report.passed(&name, &found);
        } else {
            report.failed(&name, &found, &failures, None);
        }
    }
    Ok(())
}

/// Many pressure cycles in one boot: what the agent holds in the last hundred of them beside what it held in the first.
pub(super) fn soak(kernels: &[&'static str], report: &mut Report) -> anyhow::Result<()> {
    for kernel in kernels {
        Build::Strict.run(Processor::of(kernel))?;
        let name = format!("{CYCLES} pressure cycles");
        if report.passed_before(&name) {
            continue;
        }
        let command = ["/bin/plimsoll-guest", "soak", "--cycles", CYCLES];
        let mut machine = vm::Arguments::of(kernel, SOAK_SECONDS, &command);
        machine.memory = "512M".into();
        let mut lines = Vec::new();
        let ended = vm::boot(&machine, &mut |line| {
            println!("{line}");
            lines.push(line.to_owned());
        });
        let figures: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix(SOAK_FIGURE)).collect();
        let found = figures.join("; ");
        match ended {
            Ok(vm::Ended { code: 0, .. }) => report.passed(&name, &found),
            Ok(vm::Ended { code, .. }) => report.failed(&name, &format!("ended with {code}; {found}"), &lines, None),
            Err(error) => report.failed(&name, &format!("{error:#}; {found}"), &lines, None),
        }
    }
    Ok(())
}

fn boot_to_the_end(machine: &vm::Arguments) -> anyhow::Result<()> {
    let code = vm::boot_once(machine, &mut |_| {})?;
    ensure!(code == 0, "the command ended with {code}");
    Ok(())
}
