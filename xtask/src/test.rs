//! `cargo xtask test`: what gates a change, and with `--long` what is too slow for that, in groups with a time budget
//! each.

mod checks;
mod cluster;
mod known;
mod log;
mod long;
mod machines;
mod report;
mod suite;
mod unit;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use clap::builder::PossibleValuesParser;

use crate::kernels::{self, MORE, SUITES};
use crate::{install, run};
use report::Report;

/// What the end of a run reports.
const CLOSING: &str = "The run closes with each failure (its last lines, and where its whole log is), each group that took \
    longer than its budget, and counts: what passed, failed, was flaky or was not run, and machines booted again. \
    It fails if anything failed, not if a budget was exceeded.";

/// What to run.
#[derive(clap::Args)]
#[command(after_help = CLOSING)]
pub(crate) struct Arguments {
    /// The groups to run; all of them unless given. Without --long: `unit` (formatting, lints, every test that needs no
    /// virtual machine), `vm` (tests on real kernels), `node` (pods that a containerd runs, on one of them) and `cluster`
    /// (what is installed, beside a real API server, and a pod that
    /// fills a node beside a kubelet); with --long: those that --list prints.
    groups: Vec<String>,
    /// Run groups that are too slow for every change, each within an hour, and write a table of results for each. What
    /// passed before in the same sources is not run again, so that a run can be stopped and resumed.
    #[arg(long)]
    long: bool,
    /// Print the groups and their budgets, and run nothing.
    #[arg(long)]
    list: bool,
    /// Boot only this kernel. Can be given more than once; all of them unless given, and some only with --long.
    #[arg(long = "kernel", value_name = "VERSION", value_parser = PossibleValuesParser::new(every_kernel()))]
    kernels: Vec<String>,
}

/// The kernels that are booted in some group.
fn every_kernel() -> Vec<&'static str> {
    SUITES.into_iter().chain(MORE).map(|(_, kernel)| kernel).collect()
}

/// What `cargo xtask test NAME` runs. Another group is another row of [`gate`] or of [`long::groups`].
struct Group {
    name: String,
    /// How many minutes it may take with everything cached.
    minutes: u64,
    /// The kernels of its machines; none where it needs no machine.
    kernels: Vec<&'static str>,
    /// What has to be there before.
    needs: fn(&[&str]) -> anyhow::Result<Vec<install::Need>>,
    run: fn(&[&'static str], &mut Report) -> anyhow::Result<()>,
}

/// What every change has to pass.
fn gate(kernels: &[&'static str]) -> Vec<Group> {
    vec![
        Group {
            name: "unit".into(),
            minutes: 4,
            kernels: Vec::new(),
            needs: |_| Ok(install::checks()),
            run: unit::run,
        },
        Group {
            name: "vm".into(),
            minutes: 9,
            kernels: kernels.to_vec(),
            needs: install::machines,
            run: machines::gate,
        },
        Group {
            name: "node".into(),
            minutes: 5,
            // On the others in long runs.
            kernels: kernels.iter().filter(|kernel| **kernel == suite::WHOLE).copied().collect(),
            needs: suite::node_needs,
            run: machines::gate_node,
        },
        Group {
            name: "cluster".into(),
            minutes: 7,
            kernels: kernels.iter().filter(|kernel| **kernel == suite::WHOLE).copied().collect(),
            needs: cluster::needs,
            run: cluster::run,
        },
    ]
}

impl Group {
    const fn budget(&self) -> Duration {
        Duration::from_mins(self.minutes)
    }

    /// Installs what it needs, before any group runs: what cannot be had is known soon, and no budget counts it.
    fn prepare(&self) -> anyhow::Result<()> {
        let installed = install::all(&(self.needs)(&self.kernels)?)?;
        if installed > 0 {
            println!("{installed} things were installed for group {}", self.name);
        }
        Ok(())
    }
}

impl Arguments {
    /// What the groups need that were asked for.
    pub(crate) fn needs(&self) -> anyhow::Result<Vec<install::Need>> {
        let mut needs = self.room();
        for group in self.all()?.iter().filter(|group| self.asks_for(group)) {
            needs.extend((group.needs)(&group.kernels)?);
        }
        Ok(needs)
    }

    /// What the disk must have before a whole gate begins, which would end in the middle where it is full.
    fn room(&self) -> Vec<install::Need> {
        if self.long || !self.groups.is_empty() { Vec::new() } else { vec![install::GATE_ROOM] }
    }

    /// All groups with the kernels that were asked for. An error where a group or a kernel was asked for that is not among
    /// them.
    fn all(&self) -> anyhow::Result<Vec<Group>> {
        let booted = self.booted();
        ensure!(!booted.is_empty(), "of these kernels, none is booted without --long: {}", self.kernels.join(", "));
        let groups = if self.long { long::groups(&booted) } else { gate(&booted) };
        if let Some(unknown) = self.groups.iter().find(|name| groups.iter().all(|group| group.name != **name)) {
            let names: Vec<&str> = groups.iter().map(|group| &group.name[..]).collect();
            let long = if self.long { "" } else { "; with --long there are others" };
            bail!("there is no group {unknown}; there are {}{long}", names.join(", "));
        }
        Ok(groups)
    }

    /// Every kernel that these groups may boot.
    fn kernels(&self) -> Vec<&'static str> {
        if self.long { every_kernel() } else { kernels::of_gate().to_vec() }
    }

    /// Those of them that were asked for.
    fn booted(&self) -> Vec<&'static str> {
        self.asked(&self.kernels())
    }

    fn asks_for(&self, group: &Group) -> bool {
        self.groups.is_empty() || self.groups.contains(&group.name)
    }

    /// Those of these kernels that are to be booted.
    fn asked(&self, all: &[&'static str]) -> Vec<&'static str> {
        let asks = |kernel: &&&str| self.kernels.is_empty() || self.kernels.iter().any(|one| one == *kernel);
        all.iter().filter(asks).copied().collect()
    }
}

/// Runs the groups and closes with a line of counts.
pub(crate) fn command(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let groups = arguments.all()?;
    if arguments.list {
        for group in &groups {
            println!("{:<12} {} min", group.name, group.minutes);
        }
        return Ok(ExitCode::SUCCESS);
    }
    install::all(&arguments.room())?;
    let mut report = Report::new(run::root().join("target/test"))?;
    let booted = arguments.booted();
    for kernel in arguments.kernels().iter().filter(|kernel| !booted.contains(kernel)) {
        report.not_run(&format!("kernel {kernel}"), "it was not asked for");
    }
    let mut ready = Vec::new();
    for group in &groups {
        let name = format!("group {}", group.name);
        if !arguments.asks_for(group) {
            report.not_run(&name, "it was not asked for");
            continue;
        }
        // What a group lacks is a failure like others, so that the next one runs.
        match group.prepare() {
            Ok(()) => ready.push(group),
            Err(error) => report.broke(&name, &error.context("it needs something that could not be installed")),
        }
    }
    for group in ready {
        timed(group, arguments.long, &mut report)?;
    }
    if !arguments.long {
        for group in long::groups(&arguments.asked(&every_kernel())) {
            let with = format!("cargo xtask test --long {}", group.name);
            report.not_run(&format!("group {}", group.name), &format!("it is for `{with}`"));
        }
        report.judge_flaky(&known::flaky_tests()?);
    }
    Ok(report.close())
}

/// Runs one group, and reports how long it took.
fn timed(group: &Group, long: bool, report: &mut Report) -> anyhow::Result<()> {
    if long {
        report.begin_table(long::Table::open(&group.name)?);
    }
    let begun = Instant::now();
    // What a group cannot do is a failure like others, so that the next group runs.
    if let Err(error) = (group.run)(&group.kernels, report) {
        report.broke(&format!("group {}", group.name), &error);
    }
    report.end_table();
    report.took(&group.name, begun.elapsed(), group.budget());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_names_of_their_own_and_no_long_one_more_than_an_hour() {
        let (gate, long) = (gate(&kernels::of_gate()), long::groups(&every_kernel()));
        assert!(gate.iter().map(|group| group.minutes).sum::<u64>() <= 25);
        assert!(long.iter().all(|group| group.minutes <= 60));
        let names: std::collections::BTreeSet<&str> = gate.iter().chain(&long).map(|group| &group.name[..]).collect();
        assert_eq!(names.len(), gate.len() + long.len());
    }

    #[test]
    fn a_group_needs_its_own_kernels() {
        for group in gate(&kernels::of_gate()).iter().chain(&long::groups(&every_kernel())) {
            let needs = (group.needs)(&group.kernels).expect("known");
            let kernels: Vec<_> = needs.into_iter().filter(|need| matches!(need, install::Need::Kernel(_))).collect();
            assert_eq!(kernels, group.kernels.iter().map(|kernel| install::Need::Kernel(kernel)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn pods_are_made_on_one_kernel_in_a_gate_and_on_each_that_has_them_in_long_runs() {
        let node = |kernels: &[&'static str]| {
            let group = gate(kernels).into_iter().find(|group| group.name == "node");
            group.map(|group| (group.name, group.kernels))
        };
        assert_eq!(node(&kernels::of_gate()), Some(("node".into(), vec![suite::WHOLE])));
        assert_eq!(node(&["6.1"]), Some(("node".into(), vec![])));
        let long = long::groups(&every_kernel());
        let names: Vec<&str> =
            long.iter().map(|group| &group.name[..]).filter(|name| name.starts_with("node")).collect();
        assert_eq!(names, ["node-6.1", "node-6.12"]);
    }

    fn arguments(long: bool, groups: &[&str], kernels: &[&str]) -> Arguments {
        let owned = |names: &[&str]| names.iter().map(|&name| name.into()).collect();
        Arguments { groups: owned(groups), long, list: false, kernels: owned(kernels) }
    }

    #[test]
    fn a_group_or_a_kernel_that_is_not_there_is_refused_before_anything_is_needed() {
        let error = |long, groups: &[&str], kernels: &[&str]| {
            arguments(long, groups, kernels).needs().expect_err("refused").to_string()
        };
        let there = "there are unit, vm, node, cluster; with --long there are others";
        assert_eq!(error(false, &["unit", "units"], &[]), format!("there is no group units; {there}"));
        assert!(error(true, &["unit"], &[]).starts_with("there is no group unit; there are checks, "));
        assert_eq!(error(false, &[], &["5.10"]), "of these kernels, none is booted without --long: 5.10");
        assert_eq!(arguments(false, &["unit"], &[]).needs().expect("a group"), install::checks());
        assert_eq!(arguments(false, &[], &[]).needs().expect("all groups")[0], install::GATE_ROOM);
    }

    #[test]
    fn kernels_of_long_runs_are_in_no_gate() {
        let asked = |long, kernels: &[&str]| arguments(long, &[], kernels);
        for (_, kernel) in MORE {
            assert!(asked(false, &[kernel]).asked(&kernels::of_gate()).is_empty());
            assert_eq!(asked(true, &[kernel]).asked(&every_kernel()), [kernel]);
        }
        assert_eq!(asked(false, &[]).asked(&kernels::of_gate()).len(), SUITES.len());
    }
}
