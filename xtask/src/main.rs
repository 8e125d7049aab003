//! The project's own commands: `cargo xtask COMMAND`. One file a command.

#![forbid(unsafe_code)]

mod bench;
mod build_ebpf;
mod claim;
mod cluster;
mod command_line;
mod debian_root;
mod demo;
mod dependencies;
mod fuzz;
mod go;
mod image;
mod install;
mod kernels;
mod lock;
mod picture;
mod ports;
mod progress;
mod qemu;
mod release;
mod revision;
mod rounds;
mod run;
mod sbom;
mod scratch;
mod service;
mod share;
mod statistics;
mod test;
mod tunnel;
mod vectors;
mod verified;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, tests, measures and releases Plimsoll, installing first what is missing.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    /// Only check: print all that is missing, install and run nothing, and fail if anything is.
    #[arg(long, global = true)]
    no_install: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure Plimsoll beside what else watches memory on one machine, in virtual machines, and write tables and plots.
    Bench(bench::Arguments),
    /// Build the kernel programs with the stable toolchain and print each with its instruction count.
    BuildEbpf(build_ebpf::Arguments),
    /// Start and end a real Kubernetes on this machine, and reach it with kubectl.
    Cluster(cluster::Arguments),
    /// Write the completions of the agent's command line for each shell into a directory.
    Completions(command_line::Arguments),
    /// Show the same growing process beside a poll, a PSI trigger and Plimsoll, on a real kernel.
    Demo(demo::Arguments),
    /// Run every parser against broken input, made by libFuzzer with the stable toolchain.
    Fuzz(fuzz::Arguments),
    /// Write the agent's man pages into a directory.
    Man(command_line::Arguments),
    /// Build what is published into target/release-files: the agent for each processor, its SBOMs, their image
    /// for containers, what is installed beside the binary (plimsoll-share.tar.gz) and all checksums.
    #[command(visible_alias = "dist")]
    Release,
    /// Run the tests: formatting, lints, every test of the workspace, and those on real kernels in virtual machines.
    Test(test::Arguments),
    /// Run saved decisions of the kubelet against our code: per file how many cases passed and the first differences.
    Vectors(vectors::Arguments),
    /// Write what the verifier takes for each program on each kernel into the table that a test compares with.
    Verified,
    /// Boot a Debian kernel under QEMU, run one command in it, and end with its exit code.
    Vm(Box<vm::Arguments>),
}

impl Command {
    /// What has to be there before it can run.
    fn needs(&self) -> anyhow::Result<Vec<install::Need>> {
        match self {
            Self::Bench(arguments) => arguments.needs(),
            Self::BuildEbpf(_) | Self::Completions(_) | Self::Man(_) => Ok(install::EBPF.to_vec()),
            Self::Cluster(arguments) => cluster::needs(arguments),
            Self::Demo(arguments) => arguments.needs(),
            Self::Fuzz(_) => Ok([&install::FUZZING[..], &install::EBPF].concat()),
            Self::Release => Ok(release::needs()),
            Self::Test(arguments) => arguments.needs(),
            Self::Vectors(arguments) => Ok(arguments.needs()),
            Self::Verified => verified::needs(),
            Self::Vm(machine) => machine.needs(),
        }
    }
}

fn main() -> ExitCode {
    // An error is a sentence: where in this program it arose does not help to mend the checkout.
    execute(Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn execute(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if arguments.no_install {
        install::check(&arguments.command.needs()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    match arguments.command {
        Command::Bench(arguments) => bench::run(&arguments)?,
        Command::BuildEbpf(arguments) => build_ebpf::command(&arguments)?,
        Command::Cluster(arguments) => return cluster::command(&arguments),
        Command::Completions(arguments) => command_line::completions(&arguments)?,
        Command::Demo(arguments) => demo::run(&arguments)?,
        Command::Fuzz(arguments) => fuzz::run(&arguments)?,
        Command::Man(arguments) => command_line::man(&arguments)?,
        Command::Release => release::command()?,
        Command::Test(arguments) => return test::command(&arguments),
        Command::Vectors(arguments) => vectors::run(&arguments)?,
        Command::Verified => verified::command()?,
        // A command's code is a byte, as this program's own is.
        Command::Vm(machine) => return Ok(ExitCode::from(u8::try_from(vm::run(&machine)?).unwrap_or(u8::MAX))),
    }
    Ok(ExitCode::SUCCESS)
}
