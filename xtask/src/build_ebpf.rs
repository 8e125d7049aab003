//! `cargo xtask build-ebpf`: the kernel programs, built with the stable toolchain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

use crate::release::{remapped, sha256};
use crate::{install, run};

pub(crate) const TARGET: &str = "bpfel-unknown-none";
/// Bytes of one BPF instruction.
const INSTRUCTION: u64 = 8;

/// The processors that objects are built for, that of virtual machines first.
pub(crate) const PROCESSORS: [&str; 2] = ["x86_64", "aarch64"];
/// The programs: the agent's, and the bare wake that benchmarks compare with.
const NAMES: [&str; 2] = ["plimsoll", "bare"];
/// The options of every build of the kernel side.
const OPTIONS: [&str; 5] = ["--locked", "--release", "--target", TARGET, "-Zbuild-std=core"];

/// How to build it.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// With log lines from inside the kernel, for debugging; an agent built with `--features log` prints them. The next
    /// build without it replaces them.
    #[arg(long)]
    log: bool,
}

/// Builds what was asked for.
pub(crate) fn command(arguments: &Arguments) -> anyhow::Result<()> {
    objects(&PROCESSORS, if arguments.log { &["--features", "log"] } else { &[] })
}

/// Builds both objects (the agent's, and the bare ring-buffer wake of the benchmarks) into `ebpf/target`, for each of
/// these processors: kprobes read their arguments from its registers.
pub(crate) fn run(processors: &[&str]) -> anyhow::Result<()> {
    objects(processors, &[])
}

/// Builds both objects for each processor in the checkout at `root`.
pub(crate) fn release(root: &Path) -> anyhow::Result<()> {
    let linker = linker()?;
    PROCESSORS.iter().try_for_each(|processor| build(&linker, root, processor, &[]))
}

fn objects(processors: &[&str], features: &[&str]) -> anyhow::Result<()> {
    let linker = linker()?;
    processors.iter().try_for_each(|processor| build(&linker, run::root(), processor, features))
}

fn linker() -> anyhow::Result<PathBuf> {
    install::all(&install::EBPF)?;
    install::bpf_linker()
}

/// The linter's rules, for both programs, without and with what only logs.
pub(crate) fn lints() -> anyhow::Result<()> {
    let linker = linker()?;
    for features in [&[][..], &["--all-features"]] {
        run::shown(
            cargo(&linker, run::root(), &run::root().join("ebpf/target/lints"), PROCESSORS[0])?
                .arg("clippy")
                .args(OPTIONS)
                .args(features)
                .args(["--", "-Dwarnings"]),
        )?;
    }
    Ok(())
}

/// Where the object of a program for a processor is left in the checkout at `root`.
fn object(root: &Path, processor: &str, name: &str) -> PathBuf {
    root.join("ebpf/target").join(format!("{name}.{processor}.bpf.o"))
}

/// Cargo for the kernel side of the checkout at `root`; its command and [`OPTIONS`] are still to be added.
fn cargo(linker: &Path, root: &Path, target: &Path, processor: &str) -> anyhow::Result<Command> {
    let mut flags = ["-Ctarget-cpu=v3", "-Clink-arg=--btf"].map(str::to_owned).to_vec();
    flags.push(format!("-Clinker={}", linker.display()));
    flags.extend(remapped(root)?);
    let mut command = Command::new("cargo");
    command
        .current_dir(root.join("ebpf"))
        .env("RUSTC_BOOTSTRAP", "1")
        // Paths may have blanks in them.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env("CARGO_TARGET_DIR", target)
        .env("AYA_BPF_TARGET_ARCH", processor);
    Ok(command)
}

fn build(linker: &Path, root: &Path, processor: &str, features: &[&str]) -> anyhow::Result<()> {
    let target = root.join("ebpf/target").join(processor);
    run::shown(cargo(linker, root, &target, processor)?.arg("build").args(OPTIONS).args(features))?;
    for name in NAMES {
        let built = target.join(TARGET).join("release").join(name);
        let data = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
        write_if_changed(&object(root, processor, name), &data)?;
        println!("{name}.{processor}.bpf.o  sha256 {}", sha256(&data));
        for (program, instructions) in programs(&data)? {
            println!("  {instructions:>6} instructions  {program}");
        }
    }
    Ok(())
}

/// Leaves an equal file alone, so that what embeds it is not built again; replaces another one whole.
fn write_if_changed(path: &Path, data: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|old| old == data) {
        return Ok(());
    }
    let new = path.with_extension("o.new");
    fs::write(&new, data).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, path).with_context(|| format!("cannot replace {}", path.display()))
}

/// Each function of the object with its number of instructions, by name.
fn programs(data: &[u8]) -> anyhow::Result<Vec<(String, u64)>> {
    let file = object::File::parse(data).context("the linker's output is no ELF object")?;
    let mut found = Vec::new();
    for symbol in file.symbols() {
        let Some(section) = symbol.section_index() else { continue };
        if symbol.kind() == SymbolKind::Text && symbol.size() > 0 && symbol.is_global() {
            let section = file.section_by_index(section)?;
            let name = format!("{} ({})", symbol.name()?, section.name()?);
            found.push((name, symbol.size() / INSTRUCTION));
        }
    }
    found.sort();
    Ok(found)
}
