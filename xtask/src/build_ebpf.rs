//! `cargo xtask build-ebpf`: the kernel programs, built with the stable toolchain.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use sha2::{Digest, Sha256};

use crate::{install, run};

const TARGET: &str = "bpfel-unknown-none";
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

fn objects(processors: &[&str], features: &[&str]) -> anyhow::Result<()> {
    let linker = linker()?;
    processors.iter().try_for_each(|processor| build(&linker, processor, features))
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

/// The same sources built from nothing in another folder give the objects that [`run`] left here.
pub(crate) fn reproducible() -> anyhow::Result<()> {
    let linker = linker()?;
    let place = tempfile::tempdir()?;
    let root = place.path().join("another");
    copy(run::root(), &root)?;
    let target = root.join("ebpf/target");
    run::shown(cargo(&linker, &root, &target, PROCESSORS[0])?.arg("build").args(OPTIONS))?;
    for name in NAMES {
        let [here, there] = [object(PROCESSORS[0], name), target.join(TARGET).join("release").join(name)]
            .map(|path| fs::read(&path).with_context(|| format!("cannot read {}", path.display())));
        let (here, there) = (hex(&Sha256::digest(here?)), hex(&Sha256::digest(there?)));
        ensure!(here == there, "{name} has sha256 {here} here and {there} when built in {}", root.display());
    }
    Ok(())
}

/// Copies a checkout, without what was built in it and its history.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if kind.is_dir() && name != "target" && name != ".git" {
            copy(&entry.path(), &to.join(name))?;
        } else if kind.is_file() {
            fs::copy(entry.path(), to.join(&name)).with_context(|| format!("cannot copy {}", name.display()))?;
        }
    }
    Ok(())
}

/// Where the object of a program for a processor is left.
fn object(processor: &str, name: &str) -> PathBuf {
    run::root().join("ebpf/target").join(format!("{name}.{processor}.bpf.o"))
}

/// Cargo for the kernel side of the checkout at `root`; its command and [`OPTIONS`] are still to be added.
fn cargo(linker: &Path, root: &Path, target: &Path, processor: &str) -> anyhow::Result<Command> {
    let sysroot = run::text(Command::new("rustc").args(["--print", "sysroot"]))?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    // Paths of this machine stay out of the debug information, so that two checkouts give the same object.
    let mut flags = format!("-Ctarget-cpu=v3 -Clinker={} -Clink-arg=--btf", linker.display());
    let paths = [(Some(root.to_owned()), "plimsoll"), (home, "cargo"), (Some(sysroot.trim().into()), "rust")];
    for (path, name) in paths {
        let Some(path) = path else { continue };
        write!(flags, " --remap-path-prefix={}={name}", path.display())?;
    }
    let mut command = Command::new("cargo");
    command
        .current_dir(root.join("ebpf"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_RUSTFLAGS", flags)
        .env("CARGO_TARGET_DIR", target)
        .env("AYA_BPF_TARGET_ARCH", processor)
        .env_remove("RUSTFLAGS");
    Ok(command)
}

fn build(linker: &Path, processor: &str, features: &[&str]) -> anyhow::Result<()> {
    let target = run::root().join("ebpf/target").join(processor);
    run::shown(cargo(linker, run::root(), &target, processor)?.arg("build").args(OPTIONS).args(features))?;
    for name in NAMES {
        let built = target.join(TARGET).join("release").join(name);
        let data = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
        write_if_changed(&object(processor, name), &data)?;
        println!("{name}.{processor}.bpf.o  sha256 {}", hex(&Sha256::digest(&data)));
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes all");
        text
    })
}
