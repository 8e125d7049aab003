//! The groups that boot virtual machines: the gate's suite on all kernels, and in long runs, for one kernel each, the
//! whole suite, the shipped unit with systemd, pods of a containerd (in the gate, too), the demo's full measurement, a hundred boots, and many pressure cycles in
//! one boot.

use anyhow::ensure;

use super::log::Log;
use super::report::Report;
use super::suite;
use crate::claim::Claim;
use crate::demo;
use crate::qemu::Processor;
use crate::vm::{self, Build};

/// How often each kernel is booted in a long run, and how many boots are a row of results.
const BOOTS: u32 = 100;
const ROW: u32 = 10;
/// How long one of these boots may take.
const BOOT_SECONDS: u64 = 240;
/// How many pressure cycles there are in one boot, and how long that may take.
const CYCLES: &str = "10000";
const SOAK_SECONDS: u64 = 3600;
/// What a line with a figure of them begins with.
const SOAK_FIGURE: &str = "FIGURE soak ";

/// What every change has to pass: all on one kernel but what is left to long runs, a few on the others.
pub(super) fn gate(kernels: &[&'static str], report: &mut Report) -> anyhow::Result<()> {
    Build::FaultInjection.run(Processor::X86_64)?;
    suite::run_side_by_side(kernels.iter().flat_map(|kernel| suite::gate(kernel)).collect(), report)
}

/// The whole suite on one kernel, in every machine that it needs.
pub(super) fn whole(kernels: &[&'static str], report: &mut Report) -> anyhow::Result<()> {
    for kernel in kernels {
        Build::FaultInjection.run(Processor::of(kernel))?;
        for boot in suite::whole(kernel) {
            suite::run(&boot, report)?;
        }
    }
    Ok(())
}

/// The shipped unit on a machine with systemd.
pub(super) fn systemd(kernels: &[&'static str], report: &mut Report) -> anyhow::Result<()> {
    for kernel in kernels {
        Build::FaultInjection.run(Processor::of(kernel))?;
        suite::run(&suite::systemd(kernel), report)?;
    }
    Ok(())
}

/// Pods that a containerd runs, made through CRI as a kubelet makes them.
pub(super) fn node(kernels: &[&'static str], report: &mut Report) -> anyhow::Result<()> {
    nodes(kernels, suite::node, report)
}

/// The same but for what is left to long runs.
pub(super) fn gate_node(kernels: &[&'static str], report: &mut Report) -> anyhow::Result<()> {
    nodes(kernels, suite::gate_node, report)
}

fn nodes(kernels: &[&'static str], boot: fn(&'static str) -> suite::Boot, report: &mut Report) -> anyhow::Result<()> {
    if kernels.is_empty() {
        report.not_run("pods of a containerd", &format!("they are tested on {}", suite::NODE_KERNELS.join(" and ")));
        return Ok(());
    }
    for kernel in kernels {
        Build::FaultInjection.run(Processor::of(kernel))?;
        suite::run(&boot(kernel), report)?;
    }
    Ok(())
}

/// What the demo claims, measured.
pub(super) fn demo(kernels: &[&'static str], report: &mut Report) -> anyhow::Result<()> {
    for kernel in kernels {
        Build::Release.run(Processor::of(kernel))?;
        let all = "all that the demo claims holds";
        if report.passed_before(all) {
            continue;
        }
        let mut log = Log::begin(report, &format!("demo-{kernel}"))?;
        let claims = demo::claims(kernel, &mut |line| log.line(line));
        report.booted_again(log.booted_again());
        let claims = match claims {
            Ok(claims) => claims,
            Err(error) => {
                report.failed(all, &format!("{error:#}"), &log.last, Some(log.path()));
                continue;
            }
        };
        let broken = claims.iter().filter(|claim| claim.holds != Some(true)).count();
        for Claim { what, found, holds } in claims {
            if holds == Some(true) {
                report.passed(what, &found);
            } else {
                report.failed(what, &found, &log.last, Some(log.path()));
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
        Build::FaultInjection.run(Processor::of(kernel))?;
        let machine = vm::Arguments::of(kernel, BOOT_SECONDS, &["/bin/busybox", "true"]);
        boots_in_rows(kernel, BOOTS, &mut |lines| boot_to_the_end(&machine, lines), report)?;
    }
    Ok(())
}

/// Boots once, and hands on what is printed.
type Boot<'a> = &'a mut dyn FnMut(&mut dyn FnMut(&str)) -> anyhow::Result<()>;

/// So many boots, but for the rows of them that passed in an earlier run of the same sources.
fn boots_in_rows(kernel: &str, count: u32, boot: Boot<'_>, report: &mut Report) -> anyhow::Result<()> {
    for first in (1..=count).step_by(ROW as usize) {
        let last = count.min(first + ROW - 1);
        let name = format!("boots {first} to {last}");
        if report.passed_before(&name) {
            continue;
        }
        let mut log = Log::begin(report, &format!("{name}-{kernel}"))?;
        let mut failures = Vec::new();
        for number in first..=last {
            if let Err(error) = boot(&mut |line| log.line(line)) {
                let failure = format!("boot {number} of {count}: {error:#}");
                println!("{failure}");
                log.line(&failure);
                failures.push(failure);
            }
        }
        let found = format!("{} of {} failed", failures.len(), last - first + 1);
        if failures.is_empty() {
            report.passed(&name, &found);
        } else {
            report.failed(&name, &found, &failures, Some(log.path()));
        }
    }
    Ok(())
}

/// Many pressure cycles in one boot: what the agent holds in the last hundred of them beside what it held in the first.
pub(super) fn soak(kernels: &[&'static str], report: &mut Report) -> anyhow::Result<()> {
    for kernel in kernels {
        Build::FaultInjection.run(Processor::of(kernel))?;
        let name = format!("{CYCLES} pressure cycles");
        if report.passed_before(&name) {
            continue;
        }
        let command = ["/bin/plimsoll-guest", "soak", "--cycles", CYCLES];
        let mut machine = vm::Arguments::of(kernel, SOAK_SECONDS, &command);
        machine.memory = "512M".into();
        let mut log = Log::begin(report, &format!("soak-{kernel}"))?;
        let ended = vm::boot(&machine, &mut |line| {
            println!("{line}");
            log.line(line);
        });
        report.booted_again(log.booted_again());
        let figures: Vec<&str> = log.last.iter().filter_map(|line| line.strip_prefix(SOAK_FIGURE)).collect();
        let found = figures.join("; ");
        let broke = match ended {
            Ok(0) => {
                report.passed(&name, &found);
                continue;
            }
            Ok(code) => format!("ended with {code}"),
            Err(error) => format!("{error:#}"),
        };
        report.failed(&name, &format!("{broke}; {found}"), &log.last, Some(log.path()));
    }
    Ok(())
}

fn boot_to_the_end(machine: &vm::Arguments, lines: &mut dyn FnMut(&str)) -> anyhow::Result<()> {
    let code = vm::boot_once(machine, lines)?;
    ensure!(code == 0, "the command ended with {code}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::long::Table;
    use super::*;

    #[test]
    fn boots_are_rows_and_resumed_by_those_that_passed() {
        let place = tempfile::tempdir().expect("a directory");
        // How many boots of so many are done where those with these numbers fail, and the rows that are written.
        let run = |count, failing: &[u32]| {
            let mut report = Report::new(place.path().join("logs")).expect("a report");
            report.begin_table(Table::of(place.path(), "boots", "2026-01-02", "abc"));
            let mut done = 0;
            let mut boot = |lines: &mut dyn FnMut(&str)| {
                done += 1;
                lines("Linux");
                ensure!(!failing.contains(&done), "no first process");
                Ok(())
            };
            boots_in_rows("6.12", count, &mut boot, &mut report).expect("logs");
            let table = std::fs::read_to_string(place.path().join("boots.md")).expect("a table");
            (done, table.lines().filter(|row| row.starts_with("| boots ")).map(str::to_owned).collect::<Vec<_>>())
        };
        let (first, second) =
            ("| boots 1 to 10 | passed | 0 of 10 failed |", "| boots 11 to 15 | FAILED | 1 of 5 failed |");
        assert_eq!(run(15, &[12]), (15, vec![first.to_owned(), second.to_owned()]));
        let log = std::fs::read_to_string(place.path().join("logs/boots-11-to-15-6.12.log")).expect("a log");
        assert_eq!(log, "Linux\nLinux\nboot 12 of 15: no first process\nLinux\nLinux\nLinux\n");
        assert_eq!(run(15, &[]), (5, vec![first.to_owned(), "| boots 11 to 15 | passed | 0 of 5 failed |".to_owned()]));
        assert_eq!(run(15, &[]).0, 0);
    }
}
