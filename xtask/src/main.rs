//! The project's own commands: `cargo xtask COMMAND`. One file a command.

#![forbid(unsafe_code)]

mod build_ebpf;
mod install;
mod kernels;
mod run;
mod test;
mod vm;

use clap::{Parser, Subcommand};

/// Builds the kernel side and runs the tests, installing first what is missing.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    /// Install nothing: print what is missing and stop.
    #[arg(long, global = true)]
    no_install: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the kernel programs with the stable toolchain and print each with its instruction count.
    BuildEbpf,
    /// Run the tests: formatting, lints, and every test of the workspace that needs no virtual machine.
    Test,
    /// Boot a Debian kernel under QEMU, run one command in it, and end with its exit code.
    Vm(vm::Arguments),
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mode = if arguments.no_install { install::Mode::CheckOnly } else { install::Mode::Install };
    match arguments.command {
        Command::BuildEbpf => build_ebpf::run(mode),
        Command::Test => test::run(mode),
        Command::Vm(machine) => std::process::exit(vm::run(mode, &machine)?),
    }
}
