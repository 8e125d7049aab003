//! The tests that need a real kernel, in one table, and what runs them.
//!
//! Each test runs in a process of its own with a time limit. Whatever it leaves behind (processes, cgroups) is killed
//! and removed before the next one starts, so one that fails does not take the others down. A test asserts what
//! happened and in which order, and how long it took only where a document has a bound: latencies are printed as figures.

use crate::{
    act_tests, bad_config_tests, block, blocked_tests, cgroup, container_tests, containerd, cost, counter_tests,
    disks_tests, eviction_tests, hog_tests, hostile_bpf_tests, hostile_facts_tests, hostile_inside_tests,
    hostile_owner_tests, hostile_tests, journal_tests, kill_switch_tests, machine, node_disk_tests, node_fault_tests,
    node_gone_tests, node_holding_tests, node_hostile_tests, node_pods_tests, node_quota_tests, node_runtime_tests,
    node_signal_tests, node_split_tests, node_storage_tests, node_surroundings_tests, node_tests, pods_tests,
    process_tests, running_kubelet_tests, scenarios, scenarios_at_rest, scenarios_of_brakes, scenarios_of_death,
    scenarios_of_memory, sense_tests, soak, surroundings_tests, swap_tests, systemd, systemd_tests, throttled_tests,
    watchdog_tests,
};
use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

/// One test.
struct Test {
    name: &'static str,
    run: fn() -> Result<()>,
    limit: Duration,
    needs: &'static [Need],
    machine: Machine,
    /// The agent has to be faster than what grows, or within a time: nothing else may run on the host meanwhile.
    is_race: bool,
}

/// Where cores keep the pods that are protected (decision 12).
const PROTECTED_PODS: &str = "/run/plimsoll/protected";

/// The parts that the tests of a machine can be divided into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// One half of the tests that are no races.
    First,
    /// The other half.
    Second,
    /// Those in which the agent has to be faster than what grows, or within a time.
    Races,
}

impl Part {
    /// The tests of this part.
    fn of(self, tests: Vec<&Test>) -> Vec<&Test> {
        let (races, others): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| test.is_race);
        match self {
            Self::First => others.into_iter().step_by(2).collect(),
            Self::Second => others.into_iter().skip(1).step_by(2).collect(),
            Self::Races => races,
        }
    }
}

/// How a machine was booted. A test belongs to one kind of boot and is not known to a suite on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Machine {
    /// With nothing special.
    Usual,
    /// With `psi=0`.
    WithoutPressure,
    /// With `cgroup_disable=memory`.
    WithoutMemoryController,
    /// With two NUMA nodes.
    TwoNodes,
    /// With systemd as its first process.
    Systemd,
    /// With that and containerd.
    Node,
}

impl Machine {
    /// This one.
    fn here() -> Result<Self> {
        let line = fs::read_to_string("/proc/cmdline").context("cannot read /proc/cmdline")?;
        let second_node = Path::new("/sys/devices/system/node/node1").exists();
        Ok(match systemd::is_here() {
            true if containerd::is_here() => Self::Node,
            true => Self::Systemd,
            false => Self::without_systemd(&line, second_node),
        })
    }

    fn without_systemd(line: &str, second_node: bool) -> Self {
        let words = || line.split_ascii_whitespace();
        // As for the kernel, the last of several counts.
        if words().rfind(|word| word.starts_with("psi=")) == Some("psi=0") {
            Self::WithoutPressure
        } else if words().any(|word| word == "cgroup_disable=memory") {
            Self::WithoutMemoryController
        } else if second_node {
            Self::TwoNodes
        } else {
            Self::Usual
        }
    }
}

/// What must be there for a test to mean anything. Where it is missing, the test is reported as not run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    /// A file or directory of this kernel, and what it shows to be there.
    Kernel(&'static str, &'static str),
    /// A mount option of cgroup v2.
    MountOption(&'static str),
}

const fn test(name: &'static str, run: fn() -> Result<()>, seconds: u64, needs: &'static [Need]) -> Test {
    Test { name, run, limit: Duration::from_secs(seconds), needs, machine: Machine::Usual, is_race: false }
}

const fn race(name: &'static str, run: fn() -> Result<()>, seconds: u64, needs: &'static [Need]) -> Test {
    Test { is_race: true, ..test(name, run, seconds, needs) }
}

const fn on(machine: Machine, name: &'static str, run: fn() -> Result<()>, seconds: u64) -> Test {
    Test { machine, ..test(name, run, seconds, &[]) }
}

const HUGETLB: Need = Need::Kernel("/sys/kernel/mm/hugepages/hugepages-2048kB", "2 MiB pages of hugetlb");

const CHARGED_HUGETLB: Need = Need::MountOption(cgroup::HUGETLB_ACCOUNTING);

const ZRAM: Need = Need::Kernel(block::ZRAM, "module zram");
const NULL_BLOCK: Need = Need::Kernel(block::NULL_BLOCK, "module null_blk with configfs mounted");

/// Every test there is. Limits are for a busy machine without hardware virtualisation.
const TESTS: &[Test] = &[
    // First of the races: what others leave in the page cache is some of what it is about.
    race("meets-what-replaces-page-cache", scenarios_of_memory::replaced_page_cache, 180, &[NULL_BLOCK]),
    // First of all: huge pages need memory in one piece, which becomes rare.
    test("meets-hugetlb", scenarios_of_memory::hugetlb, 120, &[HUGETLB]),
    test("meets-charged-hugetlb", scenarios_of_memory::charged_hugetlb, 120, &[HUGETLB, CHARGED_HUGETLB]),
    test("hogs-are-charged-to-their-cgroup", hog_tests::charged, 120, &[]),
    test("hog-takes-surplus-huge-pages", hog_tests::surplus_huge_pages, 60, &[HUGETLB]),
    test("hog-names-are-reclaimable-slab", hog_tests::names_are_reclaimable, 60, &[]),
    test("fork-bomb-is-bounded", hog_tests::bounded_fork_bomb, 120, &[]),
    test("act-reads-this-kernel", act_tests::reads_this_kernel, 60, &[]),
    test("act-discovers", act_tests::discovers, 60, &[]),
    test("act-brake-holds-and-is-undone", act_tests::brake_holds_and_is_undone, 120, &[]),
    race("act-what-still-grows-is-seen", act_tests::what_still_grows_is_seen, 120, &[]),
    test("act-frozen-victim-dies", act_tests::frozen_victim_dies_and_its_memory_comes_back, 120, &[]),
    test("act-process-without-its-first-thread", act_tests::process_without_its_first_thread_dies, 120, &[]),
    test("act-large-tree", act_tests::large_tree_is_walked_once_and_killed_in_turns, 180, &[]),
    test("act-removed-cgroup-is-gone", act_tests::removed_cgroup_is_gone, 60, &[]),
    test("act-removed-cgroups-leave-nothing", act_tests::removed_cgroups_leave_nothing, 60, &[]),
    test("act-uninterruptible-is-stuck", act_tests::uninterruptible_is_stuck_then_empty, 120, &[NULL_BLOCK]),
    test("act-exit-on-a-cpu-is-not-stuck", act_tests::exit_on_a_cpu_is_not_stuck, 180, &[]),
    test("act-refilled-victim-is-killed-again", act_tests::refilled_victim_is_killed_again, 120, &[NULL_BLOCK]),
    test("act-fork-bomb-dies", act_tests::fork_bomb_dies_at_once, 120, &[]),
    test("act-reclaim", act_tests::reclaim_takes_what_it_can, 60, &[]),
    test("act-reclaim-swaps-nothing", act_tests::reclaim_takes_page_cache_alone, 120, &[NULL_BLOCK, ZRAM]),
    test("hostile-writes-to-many-cgroups", blocked_tests::many_cgroups, 600, &[]),
    test("act-next-one-undoes", act_tests::next_one_undoes, 120, &[NULL_BLOCK]),
    // First of the agent's: it also asserts that nothing was made yet.
    test("bad-configuration-is-refused", bad_config_tests::refused, 60, &[]),
    race("meets-every-kind-of-growth", scenarios::every_growth, 300, &[]),
    test("what-is-traced-replays-alike", scenarios::replayed, 300, &[]),
    test("names-what-holds-packet-rings", scenarios_of_memory::packet_rings, 120, &[]),
    test("names-a-hog-in-the-root-cgroup", scenarios_of_memory::root_cgroup, 120, &[]),
    test("reclaims-slab", scenarios_of_memory::slab, 300, &[]),
    test("names-pinned-slab", scenarios_of_memory::pinned_slab, 300, &[]),
    test("meets-a-file-that-stays", scenarios_of_memory::kept_file, 180, &[]),
    race("is-before-the-oom-killer", scenarios_of_memory::tight, 180, &[]),
    test("meets-a-nested-cgroup", scenarios::nested, 120, &[]),
    test("meets-a-slice-at-its-own-limit", scenarios::under_slice_limit, 120, &[]),
    test("meets-with-swap", scenarios_of_memory::with_swap, 300, &[ZRAM]),
    test("meets-ten-small-ones", scenarios::ten_small_ones, 180, &[]),
    test("spares-the-disk-bound", scenarios::disk_bound, 180, &[NULL_BLOCK]),
    test("spares-page-cache", scenarios_of_memory::page_cache, 400, &[NULL_BLOCK]),
    test("pods-rank-by-their-facts", pods_tests::ranked_by_facts, 400, &[]),
    test("pods-are-known-without-their-source", pods_tests::known_without_their_source, 200, &[]),
    test("pods-are-bounded-together", pods_tests::bounded_together, 240, &[]),
    race("throttled-container-is-named", throttled_tests::named_with_its_stall, 300, &[]),
    race("swap-is-observed", swap_tests::is_observed, 240, &[ZRAM]),
    test("protection-outlives-the-core", pods_tests::protection_outlives_the_core, 300, &[]),
    test("journal-without-its-disk", journal_tests::without_its_disk, 500, &[]),
    test("state-directory-can-only-be-read", journal_tests::state_directory_can_only_be_read, 240, &[]),
    test("evictions-outlive-all-processes", eviction_tests::outlive_all_processes, 300, &[]),
    test("pods-of-crio-end-by-their-containers", pods_tests::end_by_their_containers, 300, &[]),
    test("disk-pressure-is-reported", disks_tests::pressure, 300, &[]),
    test("periods-outlive-the-core", disks_tests::periods_outlive_the_core, 400, &[]),
    test("pods-are-evicted-for-what-they-take-of-disks", disks_tests::local_storage, 300, &[]),
    test("pods-are-evicted-for-the-inodes-they-take", disks_tests::inodes, 300, &[]),
    race("second-agent-shadows", scenarios::second_agent, 240, &[]),
    test("kill-switch-stops-every-action", kill_switch_tests::thrown_and_taken_back, 240, &[]),
    test("dry-run-does-nothing", kill_switch_tests::dry_run, 240, &[]),
    test("follows-the-kubelet", running_kubelet_tests::followed, 240, &[]),
    test("costs-little-at-rest", scenarios_at_rest::at_rest, 400, &[]),
    test("watches-no-more-workloads-than-rows", scenarios_at_rest::more_than_rows, 600, &[]),
    test("clock-stepped", scenarios::clock_stepped, 240, &[]),
    test("uninterruptible-victim", scenarios::uninterruptible, 240, &[NULL_BLOCK]),
    test("fork-bomb-as-victim", scenarios::fork_bomb, 180, &[]),
    race("fork-bomb-takes-all-tasks", process_tests::fork_bomb, 240, &[]),
    test("cgroup-gone", scenarios_of_death::cgroup_gone, 180, &[]),
    test("records-lost", scenarios::records_lost, 240, &[]),
    test("core-or-reporter-dies", scenarios::core_dies, 240, &[]),
    test("hostile-reporter-spoils-the-queues", hostile_tests::reporter_spoils_the_queues, 240, &[]),
    test("hostile-holder-of-bpf-detaches-and-edits", hostile_bpf_tests::detaches_and_edits, 120, &[]),
    test("hostile-owner-of-a-subtree", hostile_owner_tests::user, 180, &[]),
    test("hostile-owner-of-a-subtree-at-length", hostile_owner_tests::user_at_length, 400, &[]),
    test("hostile-container", hostile_owner_tests::container, 180, &[]),
    test("hostile-container-at-length", hostile_owner_tests::container_at_length, 300, &[]),
    test("meets-a-new-workload-among-many", hostile_tests::new_among_many, 180, &[]),
    test("hostile-broker-tries-to-become-root", hostile_inside_tests::broker_tries_to_become_root, 180, &[]),
    test("hostile-reporter-tries-to-become-root", hostile_inside_tests::reporter_tries_to_become_root, 180, &[]),
    test("hostile-services-forge-facts", hostile_facts_tests::services_forges_facts, 180, &[]),
    test("hostile-services-try-to-become-root", hostile_inside_tests::services_tries_to_become_root, 180, &[]),
    test("agents-in-containers-see-the-machine", container_tests::agents_in_containers, 240, &[]),
    test("commands-in-containers-see-the-machine", container_tests::commands_see_the_machine, 60, &[]),
    test("containers-that-hide-the-machine-are-refused", container_tests::refused, 60, &[]),
    test("core-that-is-stopped-is-replaced", watchdog_tests::stopped, 180, &[]),
    test("core-that-cannot-die-holds-nothing", watchdog_tests::uninterruptible, 240, &[NULL_BLOCK]),
    test("threshold-events-lost", scenarios::threshold_events_lost, 120, &[]),
    test("evictions-outlive-random-moments", eviction_tests::outlive_random_moments, 1500, &[]),
    test("kill-points-core", scenarios_of_death::core, 1200, &[]),
    test("kill-points-supervisor", scenarios_of_death::supervisor, 1200, &[]),
    test("kill-points-all", scenarios_of_death::all, 1200, &[]),
    test("asked-to-end-finishes-first", scenarios_of_death::asked_to_end, 120, &[]),
    test("all-killed-and-undone", scenarios_of_death::undone_by_command, 240, &[]),
    test("three-hundred-cycles", soak::three_hundred, 600, &[]),
    test("least-privilege", surroundings_tests::least_privilege, 180, &[]),
    test("check-finds-all", surroundings_tests::check_finds_all, 60, &[]),
    test("an-upgrade-takes-its-program-away", surroundings_tests::replaced, 120, &[]),
    test("hidden-symbols-fall-to-pressure", surroundings_tests::hidden_symbols, 120, &[]),
    test("cgroup-version-1-is-refused", surroundings_tests::version_1, 60, &[]),
    test("hybrid-cgroups-are-watched-only", surroundings_tests::hybrid, 120, &[]),
    race("brake-in-the-kernel", scenarios_of_brakes::past_the_threshold, 480, &[]),
    test("brake-in-the-kernel-holds-again", scenarios_of_brakes::holds_again, 240, &[]),
    test("brake-in-the-kernel-event-lost", scenarios_of_brakes::stop_lost, 240, &[]),
    test("sense-kernel-facts", sense_tests::facts, 120, &[]),
    test("sense-every-hook-attaches", sense_tests::attached, 120, &[]),
    test("sense-verifier-takes-no-more", cost::verified::takes_no_more, 120, &[]),
    test("sense-bare-wake-arrives", sense_tests::bare_wake_arrives, 120, &[]),
    test("sense-kprobe-carries-the-threshold", sense_tests::kprobe_carries_the_threshold, 180, &[]),
    test("sense-full-ring-is-counted", sense_tests::full_ring_is_counted, 240, &[]),
    test("sense-node-threshold-submits-one-event", sense_tests::node_threshold_submits_one_event, 180, &[]),
    test("sense-far-thresholds-are-met-in-time", sense_tests::far_thresholds_are_met_in_time, 180, &[]),
    test("sense-readings-agree-with-proc", sense_tests::readings_agree, 120, &[]),
    test("sense-slice-threshold-submits-an-event", sense_tests::slice_threshold_submits_an_event, 180, &[]),
    test("sense-refused-huge-page-submits-no-event", sense_tests::refused_huge_page_submits_no_event, 180, &[]),
    test("sense-received-data-names-its-receiver", sense_tests::received_data_names_its_receiver, 120, &[]),
    test("sense-oom-in-a-cgroup-is-named", sense_tests::oom_in_a_cgroup_is_named, 180, &[]),
    test("sense-stall-bursts", sense_tests::stall_bursts, 180, &[]),
    test("sense-task-threshold-submits-an-event", sense_tests::tasks_threshold_submits_an_event, 120, &[]),
    test("sense-cgroups-come-and-go", sense_tests::cgroups_come_and_go, 180, &[]),
    test("sense-kernel-brake-is-undone", sense_tests::kernel_brake_stops_and_is_undone, 180, &[]),
    test("sense-kernel-brake-runs-out", sense_tests::kernel_brake_runs_out, 120, &[]),
    test("sense-deep-cgroups-are-compared-and-stopped", sense_tests::deep_cgroups, 120, &[]),
    test("sense-kernel-brake-stops-again", sense_tests::kernel_brake_stops_again, 120, &[]),
    test("sense-psi-trigger-fires", sense_tests::psi_trigger_fires, 180, &[]),
    test("sense-root-cgroup-is-seen", sense_tests::root_cgroup_is_seen, 180, &[]),
    on(Machine::WithoutPressure, "without-pressure-polls", surroundings_tests::without_pressure, 180),
    on(Machine::WithoutMemoryController, "without-memory-controller", surroundings_tests::without_controller, 180),
    on(Machine::TwoNodes, "act-folds-counters", counter_tests::folds_counters, 60),
    on(Machine::TwoNodes, "sense-oom-in-a-cpuset-is-named", sense_tests::oom_in_a_cpuset_is_named, 240),
    on(Machine::TwoNodes, "numa-exhaustion-evicts-nothing", scenarios_of_memory::exhausted_numa_node, 240),
    on(Machine::Systemd, "systemd-unit-is-confined", systemd_tests::confined, 180),
    on(Machine::Systemd, "systemd-unit-evicts-a-delegated-scope", systemd_tests::delegated_scope, 240),
    on(Machine::Systemd, "systemd-unit-supervisor-killed", systemd_tests::killed, 240),
    on(Machine::Systemd, "systemd-unit-supervisor-stopped", systemd_tests::stopped, 240),
    on(Machine::Systemd, "systemd-unit-supervisor-crashes", systemd_tests::crashes, 240),
    on(Machine::Node, "node-evicts-a-growing-pod", node_tests::evicts_a_growing_pod, 300),
    on(Machine::Node, "node-evicts-while-containerd-is-stopped", node_tests::evicts_while_the_runtime_is_stopped, 300),
    on(Machine::Node, "node-evicts-what-outlives-sigterm", node_tests::evicts_what_outlives_sigterm, 300),
    on(Machine::Node, "node-evicted-pods-are-held-down", node_holding_tests::evicted_pods_are_held_down, 300),
    on(Machine::Node, "node-held-pods-go-on", node_holding_tests::held_pods_go_on_without_the_core, 300),
    on(Machine::Node, "node-removes-what-is-unused", node_disk_tests::removes_what_is_unused, 300),
    on(Machine::Node, "node-inodes-of-nodefs", node_storage_tests::inodes_of_nodefs, 400),
    on(Machine::Node, "node-minimum-reclaim-of-nodefs", node_storage_tests::minimum_reclaim_of_nodefs, 500),
    on(Machine::Node, "node-imagefs-of-its-own", node_storage_tests::imagefs_of_its_own, 600),
    on(Machine::Node, "node-inodes-of-imagefs", node_storage_tests::inodes_of_imagefs, 500),
    on(
        Machine::Node,
        "node-directories-of-a-pod-that-is-gone",
        node_gone_tests::directories_of_a_pod_that_is_gone,
        900,
    ),
    on(Machine::Node, "node-pods-show-what-the-runtime-says", node_pods_tests::what_the_runtime_says, 300),
    on(Machine::Node, "node-split-layout", node_split_tests::split_layout, 600),
    on(Machine::Node, "node-inodes-of-containerfs", node_split_tests::inodes_of_containerfs, 600),
    on(Machine::Node, "node-limits-of-local-storage", node_storage_tests::limits_of_local_storage, 500),
    on(Machine::Node, "node-project-quotas", node_quota_tests::project_quotas, 600),
    on(Machine::Node, "node-soft-memory", node_signal_tests::soft_threshold_has_its_grace_period, 300),
    on(
        Machine::Node,
        "node-soft-victims-have-the-lesser-grace",
        node_signal_tests::soft_victims_have_the_lesser_grace,
        300,
    ),
    on(Machine::Node, "node-soft-victims-end-in-order", node_runtime_tests::soft_victims_end_in_order, 300),
    on(Machine::Node, "node-throttled-is-relaxed", node_runtime_tests::throttled_is_relaxed, 300),
    on(Machine::Node, "node-throttled-is-evicted", node_runtime_tests::throttled_is_evicted, 300),
    on(Machine::Node, "node-runtime-is-never-evicted", node_runtime_tests::runtime_is_never_evicted, 400),
    on(Machine::Node, "node-static-pod-survives", node_signal_tests::static_and_critical_pods_survive, 300),
    on(Machine::Node, "node-fork-bomb", node_signal_tests::fork_bomb, 300),
    on(Machine::Node, "node-allocatable", node_signal_tests::allocatable_memory, 300),
    on(Machine::Node, "node-minimum-reclaim", node_signal_tests::minimum_reclaim, 300),
    on(Machine::Node, "node-openshift3", node_surroundings_tests::openshift3, 300),
    on(Machine::Node, "node-shadow-replays-alike", node_surroundings_tests::shadow_replays_alike, 300),
    on(Machine::Node, "node-dry-run-replays-alike", node_surroundings_tests::dry_run_replays_alike, 300),
    on(Machine::Node, "node-oom-scores", node_surroundings_tests::oom_scores_are_the_kubelets, 300),
    on(Machine::Node, "node-evicts-by-the-last-facts", node_surroundings_tests::by_the_last_facts, 400),
    on(Machine::Node, "node-core-dies-at-each-step", node_fault_tests::core_dies_at_each_step, 900),
    on(Machine::Node, "node-pod-is-gone-before-its-kill", node_fault_tests::pod_is_gone_before_its_kill, 300),
    Test {
        needs: &[NULL_BLOCK],
        ..on(Machine::Node, "node-victim-waits-uninterruptibly", node_fault_tests::victim_waits_uninterruptibly, 300)
    },
    on(Machine::Node, "node-files-of-the-victim-stay", node_fault_tests::files_of_the_victim_stay, 300),
    on(Machine::Node, "node-clock-is-stepped", node_fault_tests::clock_is_stepped, 300),
    on(Machine::Node, "node-state-directory-can-only-be-read", node_fault_tests::state_directory_can_only_be_read, 300),
    on(Machine::Node, "node-hostile-services-have-a-runtime", node_hostile_tests::services_has_a_runtime, 400),
];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Run only these; part of a name is enough. Can be given more than once.
    #[arg(long)]
    only: Vec<String>,
    /// Leave out the test with this name. Can be given more than once.
    #[arg(long, value_name = "NAME")]
    skip: Vec<String>,
    /// Run only one part of them.
    #[arg(long)]
    part: Option<Part>,
    /// Print the names and do not run anything.
    #[arg(long)]
    list: bool,
    /// Run one test in this very process and write how it ended to a file (what the runner starts).
    #[arg(long, hide = true, num_args = 2, value_names = ["NAME", "FILE"])]
    one: Option<Vec<String>>,
}

/// Prints a measured value: a figure, not a verdict.
pub(crate) fn figure(name: &str, values: &[(&str, &dyn fmt::Display)]) {
    let values: Vec<String> = values.iter().map(|(key, value)| format!("{key}={value}")).collect();
    println!("FIGURE {name} {}", values.join(" "));
}

/// How many failed tests are repeated: more are no accident, and a broken machine is to end soon.
const REPEATS: u32 = 3;

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Pass,
    Fail(String),
    /// It failed, and passed when it was repeated at once; never what one run of a test gives.
    Flaky(String),
    NotRun(String),
}

impl Outcome {
    /// One line: how it ended and, where it did not pass, why.
    fn to_line(&self) -> String {
        match self {
            Self::Pass => "PASS".to_owned(),
            Self::Fail(why) | Self::Flaky(why) => format!("FAIL {}", one_line(why)),
            Self::NotRun(why) => format!("NOTRUN {}", one_line(why)),
        }
    }

    fn from_line(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            None if line == "PASS" => Some(Self::Pass),
            Some(("FAIL", why)) => Some(Self::Fail(why.to_owned())),
            Some(("NOTRUN", why)) => Some(Self::NotRun(why.to_owned())),
            _ => None,
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode> {
    if let Some([name, file]) = arguments.one.as_deref() {
        return run_here(name, Path::new(file));
    }
    if let Some(unknown) = arguments.skip.iter().find(|name| TESTS.iter().all(|test| test.name != **name)) {
        bail!("no test is called {unknown}; `suite --list` prints the names");
    }
    let is_named =
        |test: &&Test| arguments.only.is_empty() || arguments.only.iter().any(|part| test.name.contains(part));
    let tests: Vec<&Test> = TESTS.iter().filter(is_named).collect();
    if arguments.list {
        for test in without(tests, &arguments.skip) {
            println!("{}", test.name);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if tests.is_empty() && arguments.skip.is_empty() {
        bail!("no test's name contains any of {:?}; `suite --list` prints them", arguments.only);
    }
    let here = Machine::here()?;
    let tests: Vec<&Test> = tests.into_iter().filter(|test| test.machine == here).collect();
    let tests = arguments.part.map_or(tests.clone(), |part| part.of(tests));
    // After the division: a suite that goes on in another machine has the same parts.
    let tests = without(tests, &arguments.skip);
    if tests.is_empty() && arguments.skip.is_empty() {
        bail!("none of the tests that {:?} names belongs to a machine such as this: {here:?}", arguments.only);
    }
    let known = TESTS.iter().filter(|test| test.machine == here).count();
    run_all(&tests, known)
}

/// The tests but for those with these names.
fn without<'a>(mut tests: Vec<&'a Test>, names: &[String]) -> Vec<&'a Test> {
    tests.retain(|test| names.iter().all(|name| test.name != *name));
    tests
}

fn run_all(tests: &[&Test], known: usize) -> Result<ExitCode> {
    if !Path::new(cgroup::ROOT).join("cgroup.controllers").exists() {
        bail!("cgroup v2 is not mounted at {}: run this inside a test machine", cgroup::ROOT);
    }
    set_child_subreaper(Some(getpid())).context("cannot become the parent of what tests leave behind")?;
    println!("PLAN {} of {}", tests.len(), known);
    let (mut passed, mut flaky, mut failed, mut not_run) = (0, 0, 0, 0);
    let mut repeats = 0;
    for test in tests {
        let started = Instant::now();
        let outcome = match run_one(test) {
            Outcome::Fail(why) if repeats < REPEATS => {
                repeats += 1;
                println!("REPEATED {}: {why}", test.name);
                repeated(&why, run_one(test))
            }
            outcome => outcome,
        };
        let seconds = started.elapsed().as_secs();
        match outcome {
            Outcome::Pass => {
                passed += 1;
                println!("PASS {} ({seconds} s)", test.name);
            }
            Outcome::Flaky(outcomes) => {
                flaky += 1;
                println!("FLAKY {}: {outcomes} ({seconds} s)", test.name);
            }
            Outcome::Fail(why) => {
                failed += 1;
                println!("FAIL {}: {why} ({seconds} s)", test.name);
            }
            Outcome::NotRun(why) => {
                not_run += 1;
                println!("NOTRUN {}: {why}", test.name);
            }
        }
    }
    println!("{passed} passed, {flaky} flaky, {failed} failed, {not_run} not run");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What came of a test that failed for this reason and was repeated at once.
fn repeated(why: &str, again: Outcome) -> Outcome {
    match again {
        Outcome::Pass => Outcome::Flaky(format!("{why}; repeated at once, it passed")),
        Outcome::Fail(then) => Outcome::Fail(format!("{why}; repeated at once: {then}")),
        Outcome::NotRun(then) => Outcome::Fail(format!("{why}; repeated at once, it was not run: {then}")),
        // One run of a test never gives it.
        Outcome::Flaky(outcomes) => Outcome::Flaky(outcomes),
    }
}

fn missing(need: Need) -> Option<String> {
    match need {
        Need::Kernel(path, what) => (!Path::new(path).exists()).then(|| format!("this kernel has no {what} ({path})")),
        Need::MountOption(name) => {
            (!cgroup::has_mount_option(name)).then(|| format!("this kernel has no mount option {name} of cgroup v2"))
        }
    }
}

fn run_one(test: &Test) -> Outcome {
    if let Some(why) = test.needs.iter().find_map(|need| missing(*need)) {
        return Outcome::NotRun(why);
    }
    let before = cgroup::all();
    let file = PathBuf::from(format!("/run/plimsoll-guest-{}", test.name));
    let outcome = supervise(test, &file).unwrap_or_else(|error| Outcome::Fail(format!("{error:#}")));
    // Best effort: the file is in memory and of a few bytes.
    let _ = fs::remove_file(&file);
    // Of pods that an agent has protected until the next boot the next test has others, with the same UIDs.
    let _ = fs::remove_file(PROTECTED_PODS);
    let cleaned = reap_all().and_then(|()| match test.machine {
        Machine::Systemd => systemd::clean(),
        Machine::Node => systemd::clean().and_then(|()| containerd::clean()),
        _ => cgroup::restore(&before),
    });
    match (outcome, cleaned) {
        (Outcome::Fail(why), _) => Outcome::Fail(why),
        (outcome, Ok(())) => outcome,
        (_, Err(error)) => Outcome::Fail(format!("what it left behind cannot be removed: {error:#}")),
    }
}

fn supervise(test: &Test, file: &Path) -> Result<Outcome> {
    let file_name = file.to_str().context("a path that is not UTF-8")?;
    let mut child = Command::new("/proc/self/exe")
        .args(["suite", "--one", test.name, file_name])
        .spawn()
        .context("cannot start the test")?;
    let Some(status) = wait_within(&mut child, test.limit)? else {
        child.kill()?;
        child.wait()?;
        return Ok(Outcome::Fail(format!("not done within {} s", test.limit.as_secs())));
    };
    let said = fs::read_to_string(file).unwrap_or_default();
    Ok(Outcome::from_line(said.trim_end())
        .unwrap_or_else(|| Outcome::Fail(format!("ended without a verdict: {status}"))))
}

fn wait_within(child: &mut Child, limit: Duration) -> Result<Option<std::process::ExitStatus>> {
    let started = Instant::now();
    while started.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(None)
}

/// Kills what the test left running, children of children included: they became this process's own when it ended.
fn reap_all() -> Result<()> {
    let started = Instant::now();
    loop {
        for pid in children()? {
            if let Some(pid) = Pid::from_raw(pid) {
                // It may be gone, or stopped: SIGKILL ends a stopped process too. A frozen one dies with its cgroup.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        match waitpid(None, WaitOptions::NOHANG) {
            Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error).context("cannot wait for what the test left behind"),
            Ok(Some(_)) => {}
            Ok(None) if started.elapsed() > Duration::from_secs(10) => return Ok(()),
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn children() -> Result<Vec<i32>> {
    let text = fs::read_to_string("/proc/thread-self/children").context("this kernel does not list children")?;
    Ok(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// What runs in the test's own process.
fn run_here(name: &str, file: &Path) -> Result<ExitCode> {
    let test = TESTS.iter().find(|test| test.name == name).with_context(|| format!("no test is called {name}"))?;
    let for_panic = file.to_path_buf();
    // A panic may abort: the verdict is written before that.
    std::panic::set_hook(Box::new(move |panic| {
        let _ = fs::write(&for_panic, Outcome::Fail(panic.to_string()).to_line());
    }));
    let started = machine::now_ns();
    let outcome = match (test.run)() {
        Ok(()) => Outcome::Pass,
        Err(error) => Outcome::Fail(format!("{error:#}")),
    };
    figure("test-time", &[("name", &name), ("ms", &((machine::now_ns() - started) / 1_000_000))]);
    fs::write(file, outcome.to_line())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_plain() {
        let names: BTreeSet<&str> = TESTS.iter().map(|test| test.name).collect();
        assert_eq!(names.len(), TESTS.len());
        for name in names {
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{name}");
        }
    }

    #[test]
    fn each_test_is_in_one_part() {
        let all: Vec<&Test> = TESTS.iter().collect();
        let parts = [Part::First, Part::Second, Part::Races].map(|part| part.of(all.clone()));
        let names: BTreeSet<&str> = parts.iter().flatten().map(|test| test.name).collect();
        assert_eq!((names.len(), parts.iter().map(Vec::len).sum()), (all.len(), all.len()));
        assert!(parts[0].len().abs_diff(parts[1].len()) <= 1 && !parts[2].is_empty());
    }

    #[test]
    fn a_machine_without_systemd_is_known_by_its_command_line_and_its_nodes() {
        for (line, second_node, machine) in [
            ("quiet psi=1\n", false, Machine::Usual),
            ("quiet psi=1 psi=0\n", false, Machine::WithoutPressure),
            ("psi=0 psi=1", false, Machine::Usual),
            ("psi=1 cgroup_disable=memory", false, Machine::WithoutMemoryController),
            ("psi=1", true, Machine::TwoNodes),
        ] {
            assert_eq!(Machine::without_systemd(line, second_node), machine, "{line}");
        }
    }

    #[test]
    fn a_repeated_test_is_flaky_only_where_it_passes_then() {
        for (again, expected) in [
            (Outcome::Pass, Outcome::Flaky("a; repeated at once, it passed".into())),
            (Outcome::Fail("b".into()), Outcome::Fail("a; repeated at once: b".into())),
            (Outcome::NotRun("c".into()), Outcome::Fail("a; repeated at once, it was not run: c".into())),
        ] {
            assert_eq!(repeated("a", again), expected);
        }
    }

    #[test]
    fn an_outcome_survives_its_line() {
        for outcome in [Outcome::Pass, Outcome::Fail("a b".into()), Outcome::NotRun("no zram".into())] {
            assert_eq!(Outcome::from_line(&outcome.to_line()), Some(outcome));
        }
        assert_eq!(Outcome::from_line(&Outcome::Fail("a\n  b".into()).to_line()), Some(Outcome::Fail("a b".into())));
        assert_eq!(Outcome::from_line(""), None);
    }
}
