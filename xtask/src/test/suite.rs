//! The suite of `tests/vm/guest` in virtual machines: which machines there are, and what each of them prints.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::ensure;

use super::log::Log;
use super::report::Report;
use crate::progress::Progress;
use crate::qemu::Processor;
use crate::vm::{self, Root};
use crate::{debian_root, install};

/// The kernel on which everything runs.
pub(super) const WHOLE: &str = "6.12";
/// What runs on the others in every run; a long run has all of it there, too.
const EVERYWHERE: [&str; 10] = [
    "sense-every-hook-attaches",
    "sense-verifier-takes-no-more",
    "sense-node-threshold-submits-one-event",
    "sense-readings-agree-with-proc",
    "sense-slice-threshold-submits-an-event",
    "act-frozen-victim-dies",
    "act-process-without-its-first-thread",
    "meets-every-kind-of-growth",
    "meets-a-slice-at-its-own-limit",
    "core-or-reporter-dies",
];
/// What a gate leaves to long runs on the kernel on which everything else runs, with the reason.
const LEFT_TO_LONG: [(&str, &str); 22] = [
    ("costs-little-at-rest", "170 s; it measures what watching many workloads costs"),
    ("watches-no-more-workloads-than-rows", "300 s; unit tests of agent/inventory have more workloads than rows"),
    ("evictions-outlive-random-moments", "50 starts; evictions-outlive-all-processes has the steps that differ"),
    ("kill-points-supervisor", "180 s; the same steps as kill-points-core, which stays"),
    ("kill-points-all", "165 s; the same steps as kill-points-core, which stays"),
    ("hostile-writes-to-many-cgroups", "20,000 cgroups; unit tests of agent/act have a writer that waits"),
    ("act-next-one-undoes", "25 s; all-killed-and-undone has the whole agent do it"),
    ("act-uninterruptible-is-stuck", "24 s; uninterruptible-victim has the whole agent meet it"),
    ("hostile-owner-of-a-subtree-at-length", "45 s; hostile-owner-of-a-subtree has the attempts that once succeeded"),
    ("hostile-container-at-length", "20 s; hostile-container has one attempt, and all that reach for the agent"),
    ("three-hundred-cycles", "120 s; it compares what the agent holds, which no other test changes"),
    (
        "journal-without-its-disk",
        "it waits for pauses of a minute; unit tests of agent/state have each failure of a disk",
    ),
    (
        "periods-outlive-the-core",
        "it waits for a minute; unit tests of the core have periods that the next one goes on with",
    ),
    ("hogs-are-charged-to-their-cgroup", "6 s; each kind of growth has a test of its own"),
    (
        "hostile-holder-of-bpf-detaches-and-edits",
        "77 s, within bounds of time; a unit test of agent/sense has each word of the table written anew",
    ),
    (
        "disk-pressure-is-reported",
        "61 s for periods of transition; pods-are-evicted-for-what-they-take-of-disks has a disk that is short",
    ),
    ("pods-of-crio-end-by-their-containers", "45 s; unit tests of agent/inventory have what ends of each saved tree"),
    (
        "follows-the-kubelet",
        "41 s; unit tests have what is found, and the race beside a node goes by the one that runs",
    ),
    ("core-that-cannot-die-holds-nothing", "36 s; core-that-is-stopped-is-replaced has one that can"),
    (
        "meets-a-new-workload-among-many",
        "75 s, most of which makes cgroups; what grows in any other scenario is in a new one, too",
    ),
    (
        "names-pinned-slab",
        "50 s; meets-a-file-that-stays has what a kill does not free, and reclaims-slab figures of slab",
    ),
    (
        "protection-outlives-the-core",
        "40 s; hostile-services-forge-facts has facts that are withdrawn, and unit tests what the next core knows",
    ),
];
/// The same of the machine with containerd.
const NODE_LEFT_TO_LONG: [(&str, &str); 28] = [
    (
        "node-soft-victims-have-the-lesser-grace",
        "28 s; unit tests of agent/policy and of the core have victims' graces",
    ),
    ("node-soft-victims-end-in-order", "unit tests of the core and of agent/cri have each step of it"),
    ("node-evicted-pods-are-held-down", "it waits for 40 s; unit tests of the core have how a hold begins and ends"),
    ("node-held-pods-go-on", "50 s; all-killed-and-undone has what undoes a freeze without the core"),
    ("node-runtime-is-never-evicted", "it waits for 20 s; unit tests have each step, and what is found is refused"),
    ("node-throttled-is-evicted", "it waits for 10 s; unit tests of the core have which pod is evicted, and when"),
    ("node-minimum-reclaim", "34 s; unit tests of agent/policy have minimum reclaim"),
    ("node-inodes-of-nodefs", "pods-are-evicted-for-the-inodes-they-take has the same without a containerd"),
    ("node-minimum-reclaim-of-nodefs", "it waits for 10 s between victims; unit tests of the core have each step"),
    ("node-inodes-of-imagefs", "it waits for the runtime; pods-are-evicted-for-the-inodes-they-take has another disk"),
    ("node-imagefs-of-its-own", "the runtime takes long to say what layers take; unit tests have ranks by layout"),
    (
        "node-directories-of-a-pod-that-is-gone",
        "a pod has to have been gone for two minutes; unit tests of agent/inventory have which ones are",
    ),
    ("node-split-layout", "the runtime takes long to say what layers take; unit tests have ranks by layout"),
    ("node-inodes-of-containerfs", "the same, and node-inodes-of-imagefs has inodes of writable layers"),
    ("node-limits-of-local-storage", "it waits for the runtime; unit tests of agent/inventory have each limit"),
    (
        "node-project-quotas",
        "it is started twice, and waits 10 s between victims; unit tests have what is asked, and what replaces a walk",
    ),
    ("node-allocatable", "18 s; pods-are-bounded-together has the same without a containerd"),
    ("node-openshift3", "44 s; laws of agent/policy have the order, and pods-are-bounded-together has the file"),
    ("node-dry-run-replays-alike", "30 s; what-is-traced-replays-alike has cgroups that are no pods"),
    ("node-shadow-replays-alike", "29 s; what-is-traced-replays-alike has cgroups that are no pods"),
    ("node-evicts-by-the-last-facts", "51 s; pods-rank-by-their-facts has a process that hangs, without a containerd"),
    ("node-core-dies-at-each-step", "minutes; kill-points-core has the same steps in cgroups that are no pods"),
    ("node-pod-is-gone-before-its-kill", "cgroup-gone has the same without a containerd"),
    (
        "node-victim-waits-uninterruptibly",
        "it waits for 60 s; uninterruptible-victim has the same without a containerd",
    ),
    ("node-files-of-the-victim-stay", "meets-a-file-that-stays has the same without a containerd"),
    ("node-clock-is-stepped", "clock-stepped has the same without a containerd"),
    ("node-state-directory-can-only-be-read", "state-directory-can-only-be-read has the same without a containerd"),
    ("node-hostile-services-have-a-runtime", "a connection a second; unit tests have which calls are let through"),
];
/// What runs once more from an ext4 root, on the kernel on which everything runs: there the agent's own program and
/// libraries are pages of a file, which the kernel may drop when memory is short.
const FROM_EXT4: [&str; 1] = ["is-before-the-oom-killer"];
/// What runs on machines that are booted in a special way, on the kernel on which everything runs: the
/// parameters on its command line, whether it has two nodes, and the tests that belong there and run nowhere else.
const SPECIAL: [(Option<&str>, bool, &[&str]); 3] = [
    (Some("psi=0"), false, &["without-pressure-polls"]),
    (Some("cgroup_disable=memory"), false, &["without-memory-controller"]),
    (None, true, &["act-folds-counters", "sense-oom-in-a-cpuset-is-named", "numa-exhaustion-evicts-nothing"]),
];
/// What runs on arm64: all that senses, what runs on every kernel, and what depends on that processor's system calls.
const ON_ARM64: [&str; 32] = [
    "sense-kernel-facts",
    "sense-every-hook-attaches",
    "sense-verifier-takes-no-more",
    "sense-bare-wake-arrives",
    "sense-kprobe-carries-the-threshold",
    "sense-full-ring-is-counted",
    "sense-node-threshold-submits-one-event",
    "sense-far-thresholds-are-met-in-time",
    "sense-readings-agree-with-proc",
    "sense-slice-threshold-submits-an-event",
    "sense-refused-huge-page-submits-no-event",
    "sense-received-data-names-its-receiver",
    "sense-oom-in-a-cgroup-is-named",
    "sense-stall-bursts",
    "sense-task-threshold-submits-an-event",
    "sense-cgroups-come-and-go",
    "sense-kernel-brake-is-undone",
    "sense-kernel-brake-runs-out",
    "sense-deep-cgroups-are-compared-and-stopped",
    "sense-kernel-brake-stops-again",
    "sense-psi-trigger-fires",
    "sense-root-cgroup-is-seen",
    "act-frozen-victim-dies",
    "act-process-without-its-first-thread",
    "meets-every-kind-of-growth",
    "meets-a-slice-at-its-own-limit",
    "core-or-reporter-dies",
    "hostile-reporter-spoils-the-queues",
    "hostile-reporter-tries-to-become-root",
    "hostile-services-try-to-become-root",
    "least-privilege",
    "check-finds-all",
];
/// A kernel from before what the agent works best with, and what holds there all the same; the others need what it lacks.
const OLDER: &str = "5.10";
const ON_OLDER: [&str; 14] = [
    "sense-kernel-facts",
    "sense-psi-trigger-fires",
    "act-reads-this-kernel",
    "act-brake-holds-and-is-undone",
    "act-removed-cgroup-is-gone",
    "act-reclaim",
    "act-next-one-undoes",
    "bad-configuration-is-refused",
    "meets-every-kind-of-growth",
    "names-a-hog-in-the-root-cgroup",
    "meets-a-file-that-stays",
    "meets-a-nested-cgroup",
    "cgroup-version-1-is-refused",
    "hybrid-cgroups-are-watched-only",
];
/// The kernels on which pods are made through CRI, and what of Debian makes them: its containerd, which brings runc; and disks
/// for them.
pub(super) const NODE_KERNELS: [&str; 2] = ["6.1", WHOLE];
const NODE_PACKAGES: [&str; 2] = ["containerd", "e2fsprogs"];
/// The parts that a gate divides the suite into, as the guest names them. The halves run on two machines at a time; the
/// races, in which the agent has to be faster than what grows, on a machine beside which no other one runs.
const HALVES: [&str; 2] = ["first", "second"];
const RACES: &str = "races";
/// A machine's last row: whether its suite came to its end, whatever came of the tests.
const END: &str = "the suite came to its end";
/// A machine that has not ended by then hangs.
const MACHINE_SECONDS: u64 = 3600;

/// One machine's worth of the suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Boot {
    kernel: &'static str,
    /// The tests by name; none means all there are.
    names: &'static [&'static str],
    /// What of all there are is left to long runs, with the reason.
    left_out: &'static [(&'static str, &'static str)],
    /// The part of the tests; all of them where absent.
    part: Option<&'static str>,
    root: Root,
    /// Packages of Debian that its root has besides.
    packages: &'static [&'static str],
    /// More parameters on the kernel's command line.
    append: Option<&'static str>,
    /// With two NUMA nodes.
    numa: bool,
    /// No other machine may run beside it.
    alone: bool,
}

/// The machines of a gate with this kernel, in the order in which they run.
pub(super) fn gate(kernel: &'static str) -> Vec<Boot> {
    if kernel == WHOLE {
        let usual = Boot { left_out: &LEFT_TO_LONG, ..usual(kernel) };
        let halves = HALVES.map(|half| Boot { part: Some(half), ..usual.clone() });
        let races = Boot { part: Some(RACES), alone: true, ..usual };
        halves.into_iter().chain(special(kernel)).chain([races]).collect()
    } else {
        vec![Boot { names: &EVERYWHERE, ..usual(kernel) }]
    }
}

/// The machines in which the whole suite runs with this kernel, or what of it holds there.
pub(super) fn whole(kernel: &'static str) -> Vec<Boot> {
    let names: &[&str] = match Processor::of(kernel) {
        Processor::Aarch64 => &ON_ARM64,
        Processor::X86_64 if kernel == OLDER => &ON_OLDER,
        Processor::X86_64 => &[],
    };
    let mut boots = vec![Boot { names, ..usual(kernel) }];
    if kernel == WHOLE {
        boots.extend(special(kernel));
    }
    boots
}

const fn usual(kernel: &'static str) -> Boot {
    Boot {
        kernel,
        names: &[],
        left_out: &[],
        part: None,
        root: Root::Initramfs,
        packages: &[],
        append: None,
        numa: false,
        alone: false,
    }
}

fn special(kernel: &'static str) -> impl Iterator<Item = Boot> {
    let ext4 = Boot { names: &FROM_EXT4, root: Root::Ext4, alone: true, ..usual(kernel) };
    let special = SPECIAL.into_iter().map(move |(append, numa, names)| Boot { names, append, numa, ..usual(kernel) });
    [ext4].into_iter().chain(special)
}

/// The machine with systemd and this kernel: it has tests of its own.
pub(super) const fn systemd(kernel: &'static str) -> Boot {
    Boot { root: Root::Systemd, ..usual(kernel) }
}

/// The machine with systemd, containerd and this kernel: it has tests of its own, too.
pub(super) const fn node(kernel: &'static str) -> Boot {
    Boot { packages: &NODE_PACKAGES, ..systemd(kernel) }
}

/// The same in a gate.
pub(super) const fn gate_node(kernel: &'static str) -> Boot {
    Boot { left_out: &NODE_LEFT_TO_LONG, ..node(kernel) }
}

/// What the machines of [`node`] need.
pub(super) fn node_needs(kernels: &[&str]) -> anyhow::Result<Vec<install::Need>> {
    install::systemd_machines_with(kernels, &NODE_PACKAGES)
}

impl Boot {
    /// The kernel, and what is special about the machine.
    fn name(&self) -> String {
        let mut text = self.kernel.to_owned();
        if let Some(part) = self.part {
            text = text + ", " + part;
        }
        text.push_str(match self.root {
            Root::Initramfs => "",
            Root::Ext4 => " from an ext4 root",
            Root::Systemd => " with systemd",
        });
        for package in self.packages {
            text = text + " and " + package;
        }
        if let Some(words) = self.append {
            text = text + " with " + words;
        }
        if self.numa {
            text.push_str(" with two nodes");
        }
        text
    }

    fn machine(&self, skipped: &[String]) -> vm::Arguments {
        let mut command = vec!["/bin/plimsoll-guest", "suite"];
        command.extend(self.names.iter().flat_map(|name| ["--only", name]));
        command.extend(skipped.iter().flat_map(|name| ["--skip", name]));
        command.extend(self.part.iter().flat_map(|part| ["--part", part]));
        let mut machine = vm::Arguments::of(self.kernel, MACHINE_SECONDS, &command);
        machine.root = self.root;
        machine.packages = debian_root::names(self.packages);
        machine.append = self.append.map(str::to_owned);
        machine.numa = self.numa;
        machine
    }

    /// Whether the suite ended as it has to, whatever came of its tests.
    fn verdict(&self, output: &Output, skipped: usize, ended: anyhow::Result<i32>) -> anyhow::Result<()> {
        let code = ended?;
        let (ran, failed) = (output.ran.len(), output.failed);
        // Of all its boots together.
        let (ended, planned) = (output.ended, output.planned);
        ensure!(ended == planned as usize, "{ended} of {planned} tests came to their ends");
        // The suite counts its tests itself: a machine that ended early must not pass.
        ensure!(output.closed == Some(ran) && (code == 0) != failed, "the suite ended with {code} after {ran} tests");
        // A test that has another name by now must not vanish.
        let named = self.names.len();
        ensure!(
            named == 0 || named == ran + skipped,
            "{named} tests were named and {} have such a name: {:?}",
            ran + skipped,
            self.names
        );
        Ok(())
    }
}

/// Boots these machines: two at a time those that need not be alone, then the others.
pub(super) fn run_side_by_side(boots: Vec<Boot>, report: &mut Report) -> anyhow::Result<()> {
    let (alone, beside): (Vec<Boot>, Vec<Boot>) = boots.into_iter().partition(|boot| boot.alone);
    let (next, shared) = (AtomicUsize::new(0), Mutex::new(&mut *report));
    let work = || {
        while let Some(boot) = beside.get(next.fetch_add(1, Ordering::Relaxed)) {
            run_on(boot, &shared)?;
        }
        anyhow::Ok(())
    };
    thread::scope(|scope| {
        let workers = [(); 2].map(|()| scope.spawn(work));
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    alone.iter().try_for_each(|boot| run(boot, report))
}

/// Boots one machine, runs what did not pass before in the same long run, and reports each test.
pub(super) fn run(boot: &Boot, report: &mut Report) -> anyhow::Result<()> {
    run_on(boot, &Mutex::new(report))
}

/// The same, with a report that another machine writes to meanwhile.
fn run_on(boot: &Boot, shared: &Mutex<&mut Report>) -> anyhow::Result<()> {
    let report = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let on = boot.name();
    let Some(mut skipped) = skipped(boot, &on, &mut report()) else { return Ok(()) };
    let log = Log::begin(&report(), &format!("vm-{on}"))?;
    let mut output = Output::new(&on, log);
    output.skipped = skipped.len();
    let ended = to_the_end(&mut skipped, &mut output, shared, |skipped, lines| vm::boot(&boot.machine(skipped), lines));
    output.close(boot, skipped.len(), ended, &mut report());
    Ok(())
}

/// Boots by `start`, and at most twice again where the emulator ended the machine: without the tests that came to their
/// ends by then, which are skipped from there on.
fn to_the_end(
    skipped: &mut Vec<String>,
    output: &mut Output,
    shared: &Mutex<&mut Report>,
    start: impl Fn(&[String], &mut dyn FnMut(&str)) -> anyhow::Result<i32>,
) -> anyhow::Result<i32> {
    let mut booted_again = 0;
    loop {
        let ended = start(skipped, &mut |line| output.line(line, shared));
        let Some(oops) = output.stale_breakpoint().filter(|_| ended.is_err() && booted_again < vm::BOOTS_AGAIN) else {
            return ended;
        };
        booted_again += 1;
        output.line(&format!("{}{}: {oops}", vm::BOOTED_AGAIN, output.on), shared);
        skipped.append(&mut output.ran);
        (output.failed, output.closed) = (false, None);
        output.log.last.clear();
    }
}

/// The tests that this machine need not run; nothing where that is all of them.
fn skipped(boot: &Boot, on: &str, report: &mut Report) -> Option<Vec<String>> {
    let mut skipped = report.rows_passed_before(&format!(" on {on}"));
    // The suite's own end, without which the machine is booted again.
    let has_ended = skipped.iter().any(|name| name == END);
    skipped.retain(|name| name != END);
    for name in &skipped {
        report.passed_before(&format!("{name} on {on}"));
    }
    if has_ended && !boot.names.is_empty() && skipped.len() == boot.names.len() {
        return None;
    }
    for (name, why) in boot.left_out {
        // Once for all parts.
        if boot.part.is_none_or(|part| part == HALVES[0]) {
            report.not_run(&format!("{name} on {}", boot.kernel), why);
        }
        skipped.push((*name).to_owned());
    }
    Some(skipped)
}

/// How a test in a machine ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Pass,
    Fail(String),
    /// It failed, and passed when it was repeated at once.
    Flaky(String),
    NotRun(String),
}

/// The output of a suite, as far as it was read.
struct Output {
    /// On which machine.
    on: String,
    /// The tests that came to their ends since the machine was booted, and whether one of them failed.
    ran: Vec<String>,
    failed: bool,
    /// How many were skipped when it was first booted.
    skipped: usize,
    /// How many tests came to their ends in all its boots.
    ended: usize,
    /// How many tests the suite itself counted.
    closed: Option<usize>,
    /// How many it was going to run when it was first booted, of how many that it knows.
    planned: u32,
    known: u32,
    progress: Progress,
    log: Log,
}

impl Output {
    fn new(on: &str, log: Log) -> Self {
        let progress = Progress::new(&format!("tests on {on}"), 0);
        Self {
            on: on.to_owned(),
            ran: Vec::new(),
            failed: false,
            skipped: 0,
            ended: 0,
            closed: None,
            planned: 0,
            known: 0,
            progress,
            log,
        }
    }

    /// Reports whether the suite came to its end.
    fn close(&self, boot: &Boot, skipped: usize, ended: anyhow::Result<i32>, report: &mut Report) {
        let on = &self.on;
        report.booted_again(self.log.booted_again());
        // Those that were skipped passed before, or were reported already.
        let before = u32::try_from(self.skipped).unwrap_or(u32::MAX);
        let left = self.known.saturating_sub(self.planned).saturating_sub(before);
        if boot.kernel != WHOLE && !boot.names.is_empty() && left > 0 {
            let with = match boot.kernel {
                OLDER => "they need what it lacks: agent/docs/kernels.md".into(),
                kernel if Processor::of(kernel) == Processor::Aarch64 => "they run on x86-64 alone".into(),
                kernel => format!("`cargo xtask test --long suite-{kernel}` runs them"),
            };
            report.not_run_many(left, &format!("{left} of {} tests on {on}", self.known), &with);
        }
        let name = format!("{END} on {on}");
        match boot.verdict(self, skipped, ended) {
            Ok(()) => report.passed(&name, ""),
            Err(error) => report.failed(&name, &format!("{error:#}"), &self.log.last, Some(self.log.path())),
        }
    }

    /// Takes a line in. A test that came to its end is reported at once: a run that is stopped has its row.
    fn line(&mut self, line: &str, shared: &Mutex<&mut Report>) {
        self.progress.line(&format!("{} | {line}", self.on));
        self.log.line(line);
        let Some((name, outcome)) = self.read(line) else { return };
        self.ran.push(name.clone());
        self.ended += 1;
        self.failed |= matches!(outcome, Outcome::Fail(_));
        self.progress.step();
        let last = std::mem::take(&mut self.log.last);
        let of = format!("{name} on {}", self.on);
        self.progress.above(|| {
            let mut report = shared.lock().unwrap_or_else(PoisonError::into_inner);
            match &outcome {
                Outcome::Pass => report.passed(&of, ""),
                Outcome::Fail(why) => report.failed(&of, why, &last, Some(self.log.path())),
                Outcome::Flaky(outcomes) => report.flaky(&name, &of, outcomes),
                Outcome::NotRun(why) => report.not_run(&of, why),
            }
        });
    }

    /// The line in which the kernel reported a breakpoint that is no more, if it did since the last test ended.
    ///
    /// It patches its own text when programs are attached and static keys change, too, so that a machine whose first
    /// process started can end like one that did not come to it ([`vm::boot`]).
    fn stale_breakpoint(&self) -> Option<String> {
        self.log.last.iter().find(|line| line.contains(vm::STALE_BREAKPOINT)).cloned()
    }

    /// How a test ended, if the line has that.
    fn read(&mut self, line: &str) -> Option<(String, Outcome)> {
        // The firmware clears its screen and ends no line, so its last output precedes the machine's first line.
        let line = match line.find("PLAN ") {
            Some(at) if line[..at].contains('\x1b') => &line[at..],
            _ => line,
        };
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, why) = rest.split_once(": ").unwrap_or((rest.split(' ').next().unwrap_or(""), ""));
        let outcome = match word {
            "PASS" => Outcome::Pass,
            "FAIL" => Outcome::Fail(why.to_owned()),
            "FLAKY" => Outcome::Flaky(why.to_owned()),
            "NOTRUN" => Outcome::NotRun(why.to_owned()),
            "PLAN" => {
                let mut numbers = rest.split(" of ").filter_map(|number| number.parse().ok());
                let numbers = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
                if self.known == 0 {
                    (self.planned, self.known) = numbers;
                    self.progress.expect(self.planned.into());
                }
                return None;
            }
            _ => {
                let numbers: Vec<usize> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
                if let ([passed, flaky, failed, not_run], true) = (&numbers[..], line.ends_with(" not run")) {
                    self.closed = Some(passed + flaky + failed + not_run);
                }
                return None;
            }
        };
        Some((name.to_owned(), outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::super::long::Table;
    use super::*;
    use crate::kernels::SUITES;

    /// A suite that printed these lines and has not ended, with the rows of its table of results by then.
    fn output(lines: &[&str]) -> (tempfile::TempDir, Output, Vec<String>) {
        let place = tempfile::tempdir().expect("a directory");
        let mut report = resumed(&place);
        let log = Log::begin(&report, "log").expect("a log");
        let (mut output, shared) = (Output::new("6.12", log), Mutex::new(&mut report));
        for line in lines {
            output.line(line, &shared);
        }
        let table = std::fs::read_to_string(place.path().join("suite.md")).unwrap_or_default();
        let rows = table.lines().filter(|line| line.contains(" on 6.12")).map(str::to_owned).collect();
        (place, output, rows)
    }

    /// A report with the table of results in this place.
    fn resumed(place: &tempfile::TempDir) -> Report {
        let mut report = Report::new(place.path().join("logs")).expect("a report");
        report.begin_table(Table::of(place.path(), "suite", "2026-01-02", "abc"));
        report
    }

    #[test]
    fn a_named_test_that_is_no_more_fails_the_suite() {
        let boot = Boot { names: &["a", "b"], ..usual("6.1") };
        let closing = "2 passed, 0 flaky, 0 failed, 0 not run";
        for (lines, skipped, code, passes) in [
            (&["PLAN 2 of 9", "PASS a (3 s)", "PASS b (3 s)", closing][..], 0, 0, true),
            (
                &["PLAN 2 of 9", "PASS a (3 s)", "FLAKY b: once (3 s)", "1 passed, 1 flaky, 0 failed, 0 not run"],
                0,
                0,
                true,
            ),
            (&["PLAN 1 of 9", "PASS a (3 s)", "1 passed, 0 flaky, 0 failed, 0 not run"], 0, 0, false),
            (&["PLAN 1 of 9", "PASS a (3 s)", "1 passed, 0 flaky, 0 failed, 0 not run"], 1, 0, true),
            (&["PLAN 2 of 9", "PASS a (3 s)"], 0, 0, false),
            (&["PLAN 2 of 9", "PASS a (3 s)", "PASS b (3 s)", closing], 0, 1, false),
        ] {
            assert_eq!(boot.verdict(&output(lines).1, skipped, Ok(code)).is_ok(), passes, "{lines:?}");
        }
    }

    #[test]
    fn every_kernel_boots_and_one_of_them_in_special_ways_too() {
        let shown = |boots: fn(&'static str) -> Vec<Boot>| -> Vec<(String, bool)> {
            let boots = SUITES.iter().flat_map(|(_, kernel)| boots(kernel));
            boots.map(|boot| (boot.name(), boot.names.is_empty())).collect()
        };
        let special = ["from an ext4 root", "with psi=0", "with cgroup_disable=memory", "with two nodes"];
        let special = special.map(|special| (format!("6.12 {special}"), false));
        for (boots, long, before, after) in [
            (gate as fn(&'static str) -> Vec<Boot>, false, &["6.12, first", "6.12, second"][..], &["6.12, races"][..]),
            (whole, true, &["6.12"], &[]),
        ] {
            let all = |names: &[&str]| names.iter().map(|&name| (name.to_owned(), true)).collect::<Vec<_>>();
            let whole = [all(before), special.to_vec(), all(after)].concat();
            assert_eq!(shown(boots), [vec![("6.1".into(), long)], whole, vec![("7.2".into(), long)]].concat());
        }
        let machines: Vec<_> = gate("6.12").iter().map(|boot| boot.machine(&["x".into()])).collect();
        assert!(machines[2].root == Root::Ext4 && machines[5].numa);
        assert_eq!(machines[3].append.as_deref(), Some("psi=0"));
        assert!(machines[0].command.ends_with(&["--skip", "x", "--part", "first"].map(str::to_owned)));
    }

    #[test]
    fn a_machine_with_systemd_runs_all_that_belongs_there() {
        let boot = systemd("6.1");
        assert_eq!(boot.name(), "6.1 with systemd");
        let machine = boot.machine(&[]);
        assert_eq!(
            (machine.root, &machine.command[..]),
            (Root::Systemd, &["/bin/plimsoll-guest", "suite"].map(str::to_owned)[..])
        );
    }

    #[test]
    fn a_machine_with_containerd_has_its_package_and_a_name_of_its_own() {
        let boot = node("6.12");
        assert_eq!(boot.name(), "6.12 with systemd and containerd and e2fsprogs");
        assert_eq!(
            (boot.machine(&[]).root, boot.machine(&[]).packages),
            (Root::Systemd, debian_root::names(&NODE_PACKAGES))
        );
        let needs = node_needs(&["6.12"]).expect("it is known");
        assert_eq!(needs.last(), Some(&install::Need::DebianRoot("6.12", &NODE_PACKAGES)));
    }

    #[test]
    fn what_runs_on_every_kernel_runs_on_arm64_in_long_runs() {
        let boots = ["6.12-arm64", "6.12-arm64-16k"].map(whole);
        assert!(boots.iter().all(|boots| boots.len() == 1 && boots[0].names == ON_ARM64));
        assert!(EVERYWHERE.iter().all(|name| ON_ARM64.contains(name)));
    }

    #[test]
    fn all_that_senses_on_a_usual_machine_runs_on_arm64() {
        let guest = include_str!("../../../tests/vm/guest/src/suite.rs");
        let names = guest.lines().filter_map(|line| line.trim_start().strip_prefix("test(\"")?.split('"').next());
        let senses: Vec<&str> = names.filter(|name| name.starts_with("sense-")).collect();
        assert!(senses.len() > 10, "{senses:?}");
        let missing: Vec<&&str> = senses.iter().filter(|name| !ON_ARM64.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn only_machines_with_races_are_alone() {
        let alone: Vec<String> = gate("6.12").iter().filter(|boot| boot.alone).map(Boot::name).collect();
        assert_eq!(alone, ["6.12 from an ext4 root", "6.12, races"]);
        assert!(gate("6.1").iter().all(|boot| !boot.alone));
    }

    #[test]
    fn what_is_left_to_long_runs_is_reported_once() {
        let place = tempfile::tempdir().expect("a directory");
        let mut report = Report::new(place.path().join("logs")).expect("a report");
        for boot in gate("6.12") {
            let skipped = skipped(&boot, &boot.name(), &mut report).expect("a machine to run");
            assert_eq!(skipped.len(), boot.left_out.len());
        }
        assert_eq!(report.count_not_run() as usize, LEFT_TO_LONG.len());
        assert_eq!(skipped(&node("6.12"), "6.12", &mut report), Some(vec![]));
        assert_eq!(
            skipped(&gate_node("6.12"), "6.12", &mut report).map(|names| names.len()),
            Some(NODE_LEFT_TO_LONG.len())
        );
        assert_eq!(report.count_not_run() as usize, LEFT_TO_LONG.len() + NODE_LEFT_TO_LONG.len());
    }

    #[test]
    fn what_runs_on_every_kernel_is_left_to_no_long_run() {
        for (name, why) in LEFT_TO_LONG {
            assert!(!EVERYWHERE.contains(&name) && !FROM_EXT4.contains(&name) && !why.is_empty(), "{name}");
        }
        assert!(NODE_LEFT_TO_LONG.iter().all(|(name, why)| name.starts_with("node-") && !why.is_empty()));
    }

    #[test]
    fn the_output_of_a_suite_is_read_test_by_test_and_by_its_own_count() {
        let (_place, output, rows) = output(&[
            "Booting from ROM..\x1bc\x1b[?7l\x1b[2J\x1b[0m.\rPLAN 4 of 9",
            "PASS a (3 s)",
            "FIGURE x",
            "FAIL b: it: broke (1 s)",
            "NOTRUN c: no zram",
            "FLAKY d: it broke; repeated at once, it passed (2 s)",
            "1 passed, 1 flaky, 1 failed, 1 not run",
        ]);
        let expected = [
            "| a on 6.12 | passed |  |",
            "| b on 6.12 | FAILED | it: broke (1 s) |",
            "| c on 6.12 | NOT RUN | no zram |",
            "| d on 6.12 | FLAKY | it broke; repeated at once, it passed (2 s) |",
        ];
        assert_eq!(rows, expected);
        assert_eq!((output.ran.len(), output.failed, output.closed), (4, true, Some(4)));
        assert_eq!((output.planned, output.known), (4, 9));
    }

    #[test]
    fn a_machine_that_the_emulator_ended_is_booted_again_for_the_rest() {
        let boot = Boot { names: &["a", "b", "c"], ..usual("6.12") };
        let oops = "[  330.1] Oops: int3: 0000 [#1] SMP NOPTI";
        let end = "1 passed, 0 flaky, 0 failed, 0 not run";
        for (first, second, passes) in [
            (&["PLAN 2 of 9", "FAIL b: it failed (3 s)", oops][..], &["PLAN 1 of 9", "PASS c (3 s)", end][..], true),
            (&["PLAN 2 of 9", "FAIL b: it failed (3 s)", oops], &["PLAN 1 of 9", "PASS c (3 s)"], false),
            (&["PLAN 2 of 9", oops, "PASS b (3 s)"], &["PLAN 1 of 9", "PASS c (3 s)", end], false),
            (&["PLAN 2 of 9", "FAIL b: it failed (3 s)", oops], &[oops], false),
            (&["PLAN 2 of 9", "FAIL b: it failed (3 s)", oops], &[], false),
            // One of them is in no boot.
            (&["PLAN 3 of 9", "FAIL b: it failed (3 s)", oops], &["PLAN 1 of 9", "PASS c (3 s)", end], false),
        ] {
            let (place, mut output, _) = output(&[]);
            let (mut report, mut skipped) = (resumed(&place), vec!["a".to_owned()]);
            let boots = std::cell::RefCell::new(Vec::new());
            let ended = to_the_end(&mut skipped, &mut output, &Mutex::new(&mut report), |skipped, lines| {
                boots.borrow_mut().push(skipped.to_vec());
                let printed = if boots.borrow().len() == 1 { first } else { second };
                for line in printed {
                    lines(line);
                }
                anyhow::ensure!(printed.contains(&end), "no exit code");
                Ok(0)
            });
            assert_eq!(boot.verdict(&output, skipped.len(), ended).is_ok(), passes, "{first:?} {second:?}");
            let boots = boots.into_inner();
            let expected = if first.ends_with(&["PASS b (3 s)"]) { 1 } else { 2 + usize::from(second == [oops]) };
            assert!(boots.len() == expected && boots.iter().skip(1).all(|skipped| *skipped == ["a", "b"]), "{boots:?}");
            assert_eq!(output.log.booted_again() as usize, boots.len() - 1);
            assert_eq!(output.known, 9);
        }
    }

    #[test]
    fn a_suite_that_was_stopped_has_rows_and_is_resumed_by_them() {
        let (place, output, rows) = output(&["PLAN 3 of 9", "PASS a (3 s)", "FIGURE x"]);
        assert_eq!((rows, output.log.last.len()), (vec!["| a on 6.12 | passed |  |".to_owned()], 1));
        let boot = Boot { names: &["a", "b"], ..usual("6.12") };
        let resume = || skipped(&boot, "6.12", &mut resumed(&place));
        assert_eq!(resume(), Some(vec!["a".to_owned()]));
        resumed(&place).passed("b on 6.12", "");
        assert_eq!(resume(), Some(vec!["a".to_owned(), "b".to_owned()]), "the suite did not come to its end");
        resumed(&place).passed(&format!("{END} on 6.12"), "");
        assert_eq!(resume(), None);
    }
}
