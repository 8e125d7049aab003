//! `cargo xtask build-ebpf`: the kernel programs, built with the stable toolchain.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use sha2::{Digest, Sha256};

use crate::{install, run};

const TARGET: &str = "bpfel-unknown-none";
/// Bytes of one BPF instruction.
const INSTRUCTION: u64 = 8;

/// The processors that objects are built for.
const PROCESSORS: [&str; 2] = ["x86_64", "aarch64"];

/// Builds both objects (the agent's, and the bare ring-buffer wake of the benchmarks) into `ebpf/target`, for each
/// processor: kprobes read their arguments from its registers.
pub(crate) fn run(mode: install::Mode) -> anyhow::Result<()> {
    let linker = install::for_ebpf(mode)?;
    PROCESSORS.into_iter().try_for_each(|processor| build(&linker, processor))
}

fn build(linker: &Path, processor: &str) -> anyhow::Result<()> {
    let ebpf = run::root().join("ebpf");
    let target = ebpf.join("target").join(processor);
    // The checkout's own path stays out of the debug information, so that two checkouts give the same object.
    let flags = format!(
        "-Ctarget-cpu=v3 -Clinker={} -Clink-arg=--btf --remap-path-prefix={}=plimsoll",
        linker.display(),
        run::root().display()
    );
    run::shown(
        Command::new("cargo")
            .args(["build", "--locked", "--release", "--target", TARGET, "-Zbuild-std=core"])
            .current_dir(&ebpf)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_RUSTFLAGS", flags)
            .env("CARGO_TARGET_DIR", &target)
            .env("AYA_BPF_TARGET_ARCH", processor)
            .env_remove("RUSTFLAGS"),
    )?;
    for name in ["plimsoll", "bare"] {
        let built = target.join(TARGET).join("release").join(name);
        let data = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
        let object = ebpf.join("target").join(format!("{name}.{processor}.bpf.o"));
        write_if_changed(&object, &data)?;
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
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes all");
        text
    })
}
