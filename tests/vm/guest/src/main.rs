//! What runs inside a test machine, as root and as a child of its first process.
//!
//! `suite` runs the tests that need a real kernel, `hog` is one growing process, `idle` is one that does not grow.
//! Everything here changes the machine it runs on (cgroups, swap, the clock): it is never run on a machine that
//! is in use, and refuses to run tests where cgroup v2 is not mounted at its usual place.

mod act_tests;
mod agent;
mod attacker;
mod bad_config_tests;
mod bench;
mod block;
mod blocked_tests;
mod breathe;
mod cgroup;
mod container;
mod container_tests;
mod containerd;
mod cost;
mod counter_tests;
mod cri;
mod cri_proxy;
mod demo;
mod disks_tests;
mod eviction_tests;
mod hog;
mod hog_tests;
mod hostile_bpf_tests;
mod hostile_facts_tests;
mod hostile_inside_tests;
mod hostile_owner_tests;
mod hostile_tests;
mod journal_tests;
mod kill_switch_tests;
mod kubelet;
mod machine;
#[expect(unsafe_code, reason = "mapping memory in every way the kernel offers is what a hog is for")]
mod map;
mod measure;
mod node;
mod node_console;
mod node_disk_tests;
mod node_fault_tests;
mod node_gone_tests;
mod node_holding_tests;
mod node_hostile_tests;
mod node_pods_tests;
mod node_quota_tests;
mod node_runtime_tests;
mod node_signal_tests;
mod node_split_tests;
mod node_storage_tests;
mod node_surroundings_tests;
mod node_tests;
mod node_watch;
mod observer;
mod pod;
mod pod_logs;
mod pod_tree;
mod pods_tests;
mod process_tests;
mod reach;
mod record;
mod running_kubelet_tests;
mod scenarios;
mod scenarios_at_rest;
mod scenarios_of_brakes;
mod scenarios_of_death;
mod scenarios_of_memory;
mod scene;
mod sense_tests;
mod soak;
mod suite;
mod surroundings_tests;
mod swap_tests;
mod systemd;
mod systemd_tests;
mod throttled_tests;
mod watchdog_tests;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "plimsoll-guest", about, version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the tests, one after another, each in a process of its own.
    Suite(suite::Arguments),
    /// Measure: the same growing process met by one watcher after another.
    Demo(demo::Arguments),
    /// Measure: one workload met by one rival after another, on a machine with systemd.
    Bench(bench::Arguments),
    /// Measure: what the agent costs, by counted instructions.
    Cost(cost::Arguments),
    /// Cross a slice's threshold again and again, and compare what the agent holds at the beginning and at the end.
    Soak(soak::Arguments),
    /// Grow in one way, to a size, at a rate.
    Hog(hog::Arguments),
    /// Fill and give back, one step for each byte on standard input.
    Breathe(breathe::Arguments),
    /// Join a cgroup and become another program in it.
    Within(hog::WithinArguments),
    /// Be root in a container that is not privileged.
    Contained(container::Arguments),
    /// Try to reach the agent and other workloads.
    Reach(reach::Arguments),
    /// Do a fixed amount of work of one kind, and print how long it took.
    Storm(cost::storm::Arguments),
    /// Use memory within a reservation again and again, and note the longest time without.
    Survivor(bench::survivor::Arguments),
    /// Be a node of a cluster.
    Node(kubelet::Arguments),
    /// Go on as a node of a cluster with this build.
    NodeConsole,
    /// Make pods through CRI, and write what their cgroups are like into /out.
    PodTree,
    /// Listen as a kubelet does, and do nothing else.
    ListenAsKubelet(running_kubelet_tests::Arguments),
    /// Hold a little memory and do nothing: a bystander that must survive.
    Idle(hog::IdleArguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Suite(arguments) => suite::main(&arguments),
        Command::Demo(arguments) => demo::main(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Bench(arguments) => bench::main(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Cost(arguments) => cost::main(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Soak(arguments) => soak::main(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Hog(arguments) => hog::main(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Breathe(arguments) => breathe::main(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Within(arguments) => hog::within(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Contained(arguments) => container::main(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Reach(arguments) => reach::main(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Storm(arguments) => cost::storm::main(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Survivor(arguments) => bench::survivor::main(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Node(arguments) => kubelet::main(&arguments).map(|()| ExitCode::SUCCESS),
        Command::NodeConsole => node_console::main().map(|()| ExitCode::SUCCESS),
        Command::ListenAsKubelet(arguments) => running_kubelet_tests::listen(&arguments).map(|()| ExitCode::SUCCESS),
        Command::PodTree => pod_tree::main().map(|()| ExitCode::SUCCESS),
        Command::Idle(arguments) => hog::idle(&arguments).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("plimsoll-guest: {error:#}");
        ExitCode::from(3)
    })
}
