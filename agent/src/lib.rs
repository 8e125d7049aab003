//! `plimsoll`: sees memory pressure the moment it happens, and evicts the right workload before the OOM killer kills
//! another process.
//!
//! One binary, six processes. `plimsoll run` is the supervisor; it starts the core, which senses, decides and acts
//! and must never stall, the reporter, which logs and serves metrics and may, and, where that is configured, `services`,
//! which reads what is known of pods, the scanner, which measures what they take of disks, and the broker, which has the
//! container runtime do no more than the core ordered.

#![deny(unsafe_code)]
// On another system the program prints that and ends: `main.rs`.
#![cfg(target_os = "linux")]

mod acting;
mod answering;
mod apart;
mod broker;
mod check;
mod child;
mod cluster_cleanup;
mod cluster_client;
mod config_command;
mod confine;
mod core;
mod explain;
#[cfg(feature = "fault-injection")]
mod fault_injection;
#[cfg(feature = "fault-injection")]
mod hostile;
mod inherit;
mod inherited_config;
mod kill_switch;
mod log;
mod manifests;
mod node_services;
mod observe;
mod options;
mod pods_command;
mod replay;
mod reporter;
mod running_kubelet;
mod scanner;
mod service_manager;
mod services;
mod signals;
mod state_directory;
mod supervisor;
mod undo;
mod watchdog;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use plimsoll_report::record;

use crate::options::Options;

/// Watches a node's memory, tasks and disks, and evicts by the kubelet's rules before the OOM killer does.
#[derive(Parser)]
#[command(name = "plimsoll", version, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Exit code: the agent cannot run on this machine.
pub const NOT_HERE: u8 = 3;

/// Exit codes, as `--help` has them.
pub const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed while running; 2 wrong arguments or configuration, nothing was \
opened; 3 this machine cannot be served, and a sentence says why.";

#[derive(Subcommand)]
enum Command {
    /// Watch this machine, and act when a threshold is crossed, until SIGTERM.
    Run(Options),
    /// Print what this machine can and cannot do, why, and what is lost. Changes nothing.
    Check(check::Arguments),
    /// Print a configuration with where each value came from, turn one form of it into another, or check it. Changes
    /// nothing.
    Config(config_command::Arguments),
    /// Print how far this machine is from each threshold, which workload would be evicted first and why, and which process
    /// the OOM killer would select instead. Changes nothing.
    Explain(explain::Arguments),
    /// List the pods of this machine in the order in which they would be evicted, with what each requests and uses, and why
    /// one never is evicted. Changes nothing.
    Pods(pods_command::Arguments),
    /// Run what was recorded through a configuration and print what would have been decided. Changes nothing.
    Replay(replay::Arguments),
    /// Remove Plimsoll's conditions and taints from the objects of nodes in a cluster, and change nothing else: for when the
    /// agent was uninstalled.
    ClusterCleanup(cluster_cleanup::Arguments),
    /// Release what an agent left behind whose processes were all killed: thaw frozen cgroups, and continue stopped
    /// processes. Can remove what agents keep on the machine as well.
    Undo(undo::Arguments),
    /// Do nothing until asked to end, as the pods of a DaemonSet have to that have done what they are for.
    #[command(hide = true)]
    Stay,
    /// Print the names of all kill points, one a line.
    #[cfg(feature = "fault-injection")]
    KillPoints,
    /// Sense, decide, act. Started by `run`.
    #[command(hide = true)]
    Core(core::Arguments),
    /// Report what the core does in logs and metrics. Started by `run`.
    #[command(hide = true)]
    Reporter(child::ChildArguments),
    /// Send the core what is known of pods and disks. Started by `run`.
    #[command(hide = true)]
    Services(child::ChildArguments),
    /// Measure what pods take of disks, and send the core that. Started by `run`.
    #[command(hide = true)]
    Scanner(child::ChildArguments),
    /// Pass what services asks the container runtime on, as far as the core ordered it. Started by `run`.
    #[command(hide = true)]
    Broker(child::ChildArguments),
}

/// The command line as the program takes it.
fn whole() -> clap::Command {
    options::listing_what_counts(Arguments::command())
}

/// The command line as users type it: without the commands that `run` starts itself. For completions and man pages; the
/// program takes more.
pub fn command_line() -> clap::Command {
    let whole = whole();
    let shown = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    clap::Command::new("plimsoll")
        .version(env!("CARGO_PKG_VERSION"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .after_help(EXIT_CODES)
        .subcommand_required(true)
        .subcommands(shown)
}

/// The program.
pub fn main() -> ExitCode {
    let command = match Arguments::from_arg_matches(&whole().get_matches()) {
        Ok(arguments) => arguments.command,
        Err(error) => error.format(&mut whole()).exit(),
    };
    let is_child = matches!(
        command,
        Command::Core(_) | Command::Reporter(_) | Command::Services(_) | Command::Scanner(_) | Command::Broker(_)
    );
    // The supervisor answers SIGHUP, which a service manager may send to all processes. None of its own ends by it.
    if is_child && let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::default()) {
        log::complain(&format!("SIGHUP ends this process: {error}"));
    }
    let result = match command {
        Command::Run(options) => supervisor::main(&options),
        Command::Check(arguments) => check::main(&arguments),
        Command::Config(arguments) => config_command::main(&arguments),
        Command::Explain(arguments) => explain::main(&arguments),
        Command::Pods(arguments) => pods_command::main(&arguments),
        Command::Replay(arguments) => replay::main(&arguments),
        Command::ClusterCleanup(arguments) => cluster_cleanup::main(&arguments),
        Command::Undo(arguments) => undo::main(&arguments),
        // In a pod that sees the processes of the machine: it is not the first of its namespace, so that SIGTERM ends it.
        Command::Stay => loop {
            std::thread::park();
        },
        #[cfg(feature = "fault-injection")]
        Command::KillPoints => {
            for point in plimsoll_act::KillPoint::ALL {
                println!("{}", point.name());
            }
            Ok(0)
        }
        Command::Core(arguments) => core::main(&arguments),
        Command::Reporter(arguments) => reporter::main(&arguments).map(|()| 0),
        Command::Services(arguments) => services::main(&arguments),
        Command::Scanner(arguments) => scanner::main(&arguments),
        Command::Broker(arguments) => broker::main(&arguments).map(|()| 0),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            log::complain(&format!("{error:#}"));
            // A wrong configuration is reported before anything is opened.
            if error.is::<plimsoll_config::ConfigError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
