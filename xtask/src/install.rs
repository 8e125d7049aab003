//! What a build needs beside Rust itself: the standard library's sources and bpf-linker. Installs what is missing,
//! saying so, and can be stopped and run again.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::run;

/// The last bpf-linker that reads the bitcode of rustc's own LLVM; later ones need LLVM's libraries.
const BPF_LINKER: &str = "0.10.3";
/// The newest LLVM whose bitcode that bpf-linker reads.
const NEWEST_LLVM: u32 = 22;

/// Whether missing things may be installed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Install what is missing.
    Install,
    /// Only name what is missing.
    CheckOnly,
}

/// Checks the toolchain, installs the rest, and returns the path of bpf-linker.
pub(crate) fn for_ebpf(mode: Mode) -> anyhow::Result<PathBuf> {
    llvm_fits(&run::text(Command::new("rustc").arg("-vV"))?)?;
    let linker_root = run::cache()?.join(format!("bpf-linker-{BPF_LINKER}"));
    let linker = linker_root.join("bin/bpf-linker");
    let sysroot = run::text(Command::new("rustc").args(["--print", "sysroot"]))?;
    let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/Cargo.lock");

    let mut missing = Vec::new();
    if !sources.is_file() {
        missing.push(("rust-src of this toolchain", rust_src as fn(&Path) -> anyhow::Result<()>));
    }
    if !linker.is_file() {
        missing.push(("bpf-linker", bpf_linker));
    }
    if mode == Mode::CheckOnly && !missing.is_empty() {
        for (name, _) in &missing {
            println!("missing: {name}");
        }
        bail!("{} missing; run again without --no-install", missing.len());
    }
    let count = missing.len();
    for (index, (name, install)) in missing.into_iter().enumerate() {
        println!("installing {name} ({} of {count})", index + 1);
        install(&linker_root)?;
    }
    ensure!(sources.is_file(), "{} is not there after rust-src was installed", sources.display());
    Ok(linker)
}

fn rust_src(_: &Path) -> anyhow::Result<()> {
    run::shown(Command::new("rustup").args(["component", "add", "rust-src"])).context(
        "rust-src is needed to build core for the kernel; without rustup, install the package rust-src of this \
         rustc's own version",
    )
}

fn bpf_linker(linker_root: &Path) -> anyhow::Result<()> {
    println!("bpf-linker {BPF_LINKER} goes to {} (about two minutes)", linker_root.display());
    let version = format!("bpf-linker@{BPF_LINKER}");
    run::shown(Command::new("cargo").args(["install", "--locked", &version, "--root"]).arg(linker_root))
}

/// The other processor that the agent is built for, and not run on here.
pub(crate) const AARCH64: &str = "aarch64-unknown-linux-musl";

/// What machines need beside Rust: a program, and the package that has it.
const PROGRAMS: [(&str, &str); 5] = [
    ("/usr/bin/qemu-system-x86_64", "qemu-system-x86"),
    ("/bin/busybox", "busybox-static"),
    ("/usr/bin/xz", "xz-utils"),
    ("/sbin/mke2fs", "e2fsprogs"),
    ("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"),
];

/// Installs what virtual machines need: QEMU and a few tools through apt, and the target of static programs.
pub(crate) fn for_machines(mode: Mode) -> anyhow::Result<()> {
    let packages: Vec<&str> =
        PROGRAMS.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, package)| *package).collect();
    let sysroot = run::text(Command::new("rustc").args(["--print", "sysroot"]))?;
    let targets: Vec<&str> = [crate::vm::TARGET, AARCH64]
        .into_iter()
        .filter(|target| !Path::new(sysroot.trim()).join("lib/rustlib").join(target).join("lib").is_dir())
        .collect();
    if mode == Mode::CheckOnly && !(packages.is_empty() && targets.is_empty()) {
        for package in &packages {
            println!("missing: {package} (apt)");
        }
        for target in &targets {
            println!("missing: {target} (rustup)");
        }
        bail!("{} missing; run again without --no-install", packages.len() + targets.len());
    }
    if !targets.is_empty() {
        println!("installing {} through rustup", targets.join(", "));
        run::shown(Command::new("rustup").args(["target", "add"]).args(targets))?;
    }
    if packages.is_empty() { Ok(()) } else { through_apt(&packages) }
}

/// Installs what fuzzing needs: libFuzzer is C++.
pub(crate) fn for_fuzzing(mode: Mode) -> anyhow::Result<()> {
    if Path::new("/usr/bin/c++").exists() {
        return Ok(());
    }
    if mode == Mode::CheckOnly {
        println!("missing: g++ (apt)");
        bail!("1 missing; run again without --no-install");
    }
    through_apt(&["g++"])
}

fn through_apt(packages: &[&str]) -> anyhow::Result<()> {
    println!("installing {} through apt", packages.join(", "));
    run::shown(apt_get().args(["update", "-q"]))?;
    run::shown(apt_get().args(["install", "-y", "-q", "--no-install-recommends"]).args(packages))
}

/// apt-get, as root or with sudo.
fn apt_get() -> Command {
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let mut command = Command::new(if root { "apt-get" } else { "sudo" });
    if !root {
        command.arg("apt-get");
    }
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Refuses a rustc whose bitcode bpf-linker cannot read; `version` is what `rustc -vV` prints.
fn llvm_fits(version: &str) -> anyhow::Result<()> {
    let field = |name: &str| version.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let release = field("release:").unwrap_or("unknown");
    let major: u32 = field("LLVM version:")
        .and_then(|llvm| llvm.split('.').next()?.parse().ok())
        .with_context(|| format!("rustc {release} does not say which LLVM it has"))?;
    ensure!(
        major <= NEWEST_LLVM,
        "rustc {release} has LLVM {major}; bpf-linker {BPF_LINKER} reads LLVM up to {NEWEST_LLVM}, as in rustc 1.95 \
         to 1.98: choose one with `rustup default 1.95.0`"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::llvm_fits;

    #[test]
    fn a_toolchain_with_a_later_llvm_is_named_with_those_that_fit() {
        assert!(llvm_fits("rustc 1.95.0\nrelease: 1.95.0\nLLVM version: 22.1.2\n").is_ok());
        let error = llvm_fits("release: 1.99.0\nLLVM version: 23.0.1\n").expect_err("LLVM 23 cannot be read");
        let text = error.to_string();
        assert!(text.contains("rustc 1.99.0 has LLVM 23") && text.contains("1.95"), "{text}");
        assert!(llvm_fits("release: 1.95.0\n").is_err());
    }
}
