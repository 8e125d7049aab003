//! What commands need beside Rust itself and a linker: prints what is missing, or installs it and prints that. Can be
//! stopped and run again.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::cluster::kube;
use crate::go::{self, Program};
use crate::qemu::Processor;
use crate::{debian_root, kernels, run};

/// The last bpf-linker that reads the bitcode of rustc's own LLVM; later ones need LLVM's libraries.
const BPF_LINKER: &str = "0.10.3";
/// The newest LLVM whose bitcode that bpf-linker reads.
const NEWEST_LLVM: u32 = 22;
const CARGO_DENY: &str = "0.20.2";
const CARGO_CYCLONEDX: &str = "0.5.9";
/// What machines run: static programs.
pub(crate) const GUEST: &str = "x86_64-unknown-linux-musl";
/// The other processor that the agent is built for.
pub(crate) const AARCH64: &str = "aarch64-unknown-linux-musl";
/// A system that is not Linux, for which the agent is checked and not linked.
pub(crate) const OTHER_SYSTEM: &str = "x86_64-unknown-freebsd";

/// Something that a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A rustc whose bitcode bpf-linker reads.
    FittingRust,
    /// A package.
    Package(&'static str),
    /// A component of the toolchain, which brings this file below its folder.
    Component { name: &'static str, file: &'static str },
    /// The standard library for a target.
    Target(&'static str),
    /// A program that cargo installs, kept in the cache.
    Tool { name: &'static str, version: &'static str, options: &'static [&'static str] },
    /// Debian's kernel of this version, kept in the cache.
    Kernel(&'static str),
    /// A root with systemd of the suite that has this kernel, with these packages besides, kept in the cache.
    DebianRoot(&'static str, &'static [&'static str]),
    /// A Go that builds programs of Go modules.
    Go,
    /// A program of another project, built of Go modules, kept in the cache.
    GoProgram(&'static Program),
    /// So many GiB for the checkout's `target`, and on the same disk or another one so many for the caches unless they are
    /// complete, with what both have already.
    Room { target: u64, caches: u64 },
}

const LINKER: Need = Need::Tool { name: "bpf-linker", version: BPF_LINKER, options: &[] };
const DENY: Need = Need::Tool { name: "cargo-deny", version: CARGO_DENY, options: &["--no-default-features"] };
const CYCLONEDX: Need = Need::Tool { name: "cargo-cyclonedx", version: CARGO_CYCLONEDX, options: &[] };
/// What names a Debian mirror where apt itself does not.
const DEBOOTSTRAP: Need = Need::Package("debootstrap");

/// The C compiler for the other processor, and its headers: the agent's TLS has parts in C (`ring`).
const CROSS: [Need; 2] = [Need::Package("gcc-aarch64-linux-gnu"), Need::Package("libc6-dev-arm64-cross")];

/// For the kernel side.
pub(crate) const EBPF: [Need; 3] =
    [Need::FittingRust, Need::Component { name: "rust-src", file: "lib/rustlib/src/rust/library/Cargo.lock" }, LINKER];
/// For static programs of this processor.
pub(crate) const PROGRAMS: [Need; 1] = [Need::Target(GUEST)];
/// For the tests that need no machine.
pub(crate) const CHECKS: [Need; 8] = [
    CROSS[0],
    CROSS[1],
    Need::Component { name: "rustfmt", file: "bin/cargo-fmt" },
    Need::Component { name: "clippy", file: "bin/cargo-clippy" },
    Need::Target(GUEST),
    Need::Target(AARCH64),
    Need::Target(OTHER_SYSTEM),
    DENY,
];
/// For a release, beside the kernel side.
pub(crate) const RELEASE: [Need; 5] = [Need::Target(GUEST), Need::Target(AARCH64), CROSS[0], CROSS[1], CYCLONEDX];
/// For virtual machines, beside their kernels.
const MACHINES: [Need; 3] =
    [Need::Package("xz-utils"), Need::Package("e2fsprogs"), Need::Package("debian-archive-keyring")];
/// For machines with the processor of this project's machines.
const USUAL_MACHINES: [Need; 3] =
    [Need::Package("qemu-system-x86"), Need::Package("busybox-static"), Need::Target(GUEST)];
/// For machines with the other processor, whose busybox comes with the kernel.
const AARCH64_MACHINES: [Need; 4] = [Need::Package("qemu-system-arm"), CROSS[0], CROSS[1], Need::Target(AARCH64)];
/// For machines with a root of Debian.
const MMDEBSTRAP: Need = Need::Package("mmdebstrap");
/// What all groups of the gate leave in `target`, which was 7.3 GiB after the first run in a new checkout, and half as much
/// again: folders of machines come and go. Caches had 9.5 GiB after it.
pub(crate) const GATE_ROOM: Need = Need::Room { target: 12, caches: 10 };
/// For fuzzing: libFuzzer is C++.
pub(crate) const FUZZING: [Need; 1] = [Need::Package("g++")];

/// What formatting, lints and tests without a machine need.
pub(crate) fn checks() -> Vec<Need> {
    [&EBPF[..], &CHECKS].concat()
}

/// What machines with these kernels need, the kernel side included.
pub(crate) fn machines(wanted: &[&str]) -> anyhow::Result<Vec<Need>> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "virtual machines are made on x86-64 alone, and this machine has {}",
        std::env::consts::ARCH
    );
    let mut needs = EBPF.to_vec();
    needs.extend(MACHINES);
    let versions = wanted.iter().map(|wanted| kernels::version(wanted)).collect::<anyhow::Result<Vec<_>>>()?;
    for version in &versions {
        needs.extend(match Processor::of(version) {
            Processor::X86_64 => &USUAL_MACHINES[..],
            Processor::Aarch64 => &AARCH64_MACHINES,
        });
    }
    if versions.iter().any(|version| !kernels::is_there(version).unwrap_or(false)) {
        needs.extend(mirror());
    }
    needs.extend(versions.into_iter().map(Need::Kernel));
    Ok(needs)
}

/// What machines with these kernels and a root with systemd need.
pub(crate) fn systemd_machines(wanted: &[&str]) -> anyhow::Result<Vec<Need>> {
    systemd_machines_with(wanted, &[])
}

/// The same where the root has these packages of Debian besides.
pub(crate) fn systemd_machines_with(wanted: &[&str], packages: &'static [&'static str]) -> anyhow::Result<Vec<Need>> {
    let mut needs = machines(wanted)?;
    needs.extend(mirror());
    needs.push(MMDEBSTRAP);
    for wanted in wanted {
        needs.push(Need::DebianRoot(kernels::version(wanted)?, packages));
    }
    Ok(needs)
}

/// Programs of Go modules, and Go itself where one is still to be built.
pub(crate) fn go_programs(programs: &[&'static Program]) -> anyhow::Result<Vec<Need>> {
    let programs: Vec<Need> = programs.iter().map(|program| Need::GoProgram(program)).collect();
    let go = if missing(&programs)?.is_empty() { None } else { Some(Need::Go) };
    Ok(go.into_iter().chain(programs).collect())
}

/// What names a mirror, where that is not apt.
fn mirror() -> Option<Need> {
    (!kernels::apt_names_a_mirror()).then_some(DEBOOTSTRAP)
}

/// Prints what is missing, all of it, and changes nothing. An error where there is something.
pub(crate) fn check(needs: &[Need]) -> anyhow::Result<()> {
    let missing = missing(needs)?;
    for need in &missing {
        println!("missing: {need}");
    }
    ensure!(missing.is_empty(), "{} missing; run again without --no-install", missing.len());
    println!("nothing is missing");
    Ok(())
}

/// Installs what is missing; how many things that were.
pub(crate) fn all(needs: &[Need]) -> anyhow::Result<usize> {
    let missing = missing(needs)?;
    let packages: Vec<&str> = missing.iter().filter_map(Need::package).collect();
    if !packages.is_empty() {
        through_apt(&packages)?;
    }
    let others: Vec<&Need> = missing.iter().filter(|need| need.package().is_none()).collect();
    for (index, need) in others.iter().enumerate() {
        println!("installing {need} ({} of {})", index + 1, others.len());
        need.install()?;
        ensure!(need.is_there()?, "{need} is not there after it was installed");
    }
    Ok(missing.len())
}

/// Where bpf-linker is once [`EBPF`] is there.
pub(crate) fn bpf_linker() -> anyhow::Result<PathBuf> {
    tool("bpf-linker", BPF_LINKER)
}

/// Where cargo-deny is once [`CHECKS`] is there.
pub(crate) fn cargo_deny() -> anyhow::Result<PathBuf> {
    tool("cargo-deny", CARGO_DENY)
}

/// Where cargo-cyclonedx is once [`RELEASE`] is there.
pub(crate) fn cargo_cyclonedx() -> anyhow::Result<PathBuf> {
    tool("cargo-cyclonedx", CARGO_CYCLONEDX)
}

fn tool(name: &str, version: &str) -> anyhow::Result<PathBuf> {
    Ok(run::cache()?.join(format!("{name}-{version}")).join("bin").join(name))
}

fn missing(needs: &[Need]) -> anyhow::Result<Vec<Need>> {
    let mut missing = Vec::new();
    for need in needs {
        if !missing.contains(need) && !need.is_there()? {
            missing.push(*need);
        }
    }
    Ok(missing)
}

impl Need {
    const fn package(&self) -> Option<&'static str> {
        match self {
            Self::Package(name) => Some(name),
            _ => None,
        }
    }

    fn is_there(&self) -> anyhow::Result<bool> {
        Ok(match self {
            Self::FittingRust => llvm_fits(&rustc(&["-vV"])?).is_ok(),
            Self::Package(name) => is_installed(name)?,
            Self::Component { file, .. } => sysroot()?.join(file).is_file(),
            Self::Target(target) => sysroot()?.join("lib/rustlib").join(target).join("lib").is_dir(),
            Self::Tool { name, version, .. } => tool(name, version)?.is_file(),
            Self::Kernel(version) => kernels::is_there(version)?,
            Self::DebianRoot(version, packages) => debian_root::is_there(version, &debian_root::names(packages))?,
            Self::Go => go::version().is_ok(),
            Self::GoProgram(program) => program.is_there()?,
            Self::Room { target, caches } => has_room(*target, *caches)?,
        })
    }

    fn install(&self) -> anyhow::Result<()> {
        match self {
            Self::FittingRust => llvm_fits(&rustc(&["-vV"])?),
            Self::Package(name) => through_apt(&[name]),
            Self::Component { name, .. } => run::shown(Command::new("rustup").args(["component", "add", name]))
                .with_context(|| format!("without rustup, install the package of {name} of this rustc's own version")),
            Self::Target(target) => run::shown(Command::new("rustup").args(["target", "add", target]))
                .with_context(|| format!("without rustup, install this rustc's standard library for {target}")),
            Self::Tool { name, version, options } => {
                let place = run::cache()?.join(format!("{name}-{version}"));
                // Where a run that was stopped is gone on with.
                let build = place.with_added_extension("build");
                run::shown(
                    Command::new("cargo")
                        .args(["install", "--locked", &format!("{name}@{version}")])
                        .args(*options)
                        .arg("--root")
                        .arg(&place)
                        .arg("--target-dir")
                        .arg(&build),
                )?;
                fs::remove_dir_all(&build).with_context(|| format!("cannot remove {}", build.display()))
            }
            Self::Kernel(version) => kernels::get(version).map(drop),
            Self::DebianRoot(version, packages) => debian_root::get(version, &debian_root::names(packages)).map(drop),
            Self::Go => through_apt(&["golang-go"]).and_then(|()| go::version().map(drop)),
            Self::GoProgram(program) => program.get().map(drop),
            Self::Room { .. } => bail!(
                "too little free space for {} and {}: free some and run again",
                run::root().join("target").display(),
                run::cache()?.display()
            ),
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FittingRust => write!(f, "a rustc with LLVM {NEWEST_LLVM} or older (rustup default 1.95.0)"),
            Self::Package(name) => write!(f, "{name} (apt)"),
            Self::Component { name, .. } => write!(f, "{name} of this toolchain (rustup)"),
            Self::Target(target) => write!(f, "the target {target} (rustup)"),
            Self::Tool { name, version, .. } => write!(f, "{name} {version} (cargo, some minutes, into the cache)"),
            Self::Kernel(version) => {
                let suite = kernels::suite(version);
                write!(f, "the kernel {version} of Debian {suite} (apt download, into the cache)")
            }
            Self::DebianRoot(version, packages) => {
                let (suite, with) = (kernels::suite(version), [&["systemd"][..], *packages].concat().join(", "));
                write!(f, "a root of Debian {suite} with {with} (mmdebstrap, a minute, into the cache)")
            }
            Self::Go => f.write_str("Go 1.21 or later (golang-go, apt; from go.dev where that is older)"),
            Self::GoProgram(program) => {
                let release = program.release().unwrap_or_default();
                write!(f, "{} {release} (go, some {}, into the cache)", program.project, program.takes)
            }
            Self::Room { target, caches } => {
                write!(
                    f,
                    "{target} GiB of disk for the checkout's target folder, and {caches} the first time for caches"
                )
            }
        }
    }
}

/// Whether dpkg has the package, unpacked and configured. A file of it may be of another package that does not do, as that
/// of `busybox`, which is linked dynamically, or be of one whose installation was ended in the middle.
fn is_installed(name: &str) -> anyhow::Result<bool> {
    let mut query = Command::new("dpkg-query");
    let found = query.args(["--show", "--showformat=${db:Status-Status}\n", name]).output();
    let found = found.context("cannot start dpkg-query: packages are those of Debian or Ubuntu")?;
    Ok(String::from_utf8_lossy(&found.stdout).lines().any(|status| status == "installed"))
}

/// Whether the disks of `target` and of the caches have so many GiB free for them, with what is there already. Caches are
/// complete where the programs of Go modules are: what may be missing beside them is small.
fn has_room(target: u64, caches: u64) -> anyhow::Result<bool> {
    let (checkout, cache) = (run::root(), run::cache()?);
    let target = (target << 30).saturating_sub(taken(&checkout.join("target"))?);
    let complete = missing(&[Need::GoProgram(&kube::KUBERNETES), Need::GoProgram(&kube::RBAC_PROXY)])?.is_empty();
    let caches = if complete {
        0
    } else {
        let home = std::env::home_dir().unwrap_or_default();
        let others = [".cache/go-build", "go", ".cargo/registry"].map(|folder| home.join(folder));
        let all = others.iter().chain([&cache]).map(|folder| taken(folder)).sum::<anyhow::Result<u64>>()?;
        (caches << 30).saturating_sub(all)
    };
    let cache = cache.ancestors().find(|folder| folder.is_dir()).context("a cache has a folder above it")?;
    let disk = |folder: &Path| fs::metadata(folder).map(|found| found.dev());
    Ok(if disk(checkout)? == disk(cache)? {
        free(checkout)? >= target + caches
    } else {
        free(checkout)? >= target && free(cache)? >= caches
    })
}

/// Bytes that are free for this user on the disk that has this folder.
fn free(folder: &Path) -> anyhow::Result<u64> {
    let disk =
        rustix::fs::statvfs(folder).with_context(|| format!("cannot ask for the disk of {}", folder.display()))?;
    Ok(disk.f_bavail * disk.f_frsize)
}

/// Bytes that the files below this folder take on their disk; 0 where it is not there. Files may be removed meanwhile, and
/// folders of a root that is being made, or was given up, may be root's alone, which count as empty. Of a file with several
/// names, as cargo gives them, each counts its share.
fn taken(folder: &Path) -> anyhow::Result<u64> {
    let unseen_is_empty = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied => Ok(0),
        _ => Err(error).with_context(|| format!("cannot read {}", folder.display())),
    };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return unseen_is_empty(error),
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        bytes += match entry.metadata() {
            Ok(found) if found.is_dir() => taken(&entry.path())?,
            Ok(found) => found.blocks() * 512 / found.nlink(),
            Err(error) => unseen_is_empty(error)?,
        };
    }
    Ok(bytes)
}

fn rustc(arguments: &[&str]) -> anyhow::Result<String> {
    run::text(Command::new("rustc").args(arguments))
}

fn sysroot() -> anyhow::Result<PathBuf> {
    Ok(rustc(&["--print", "sysroot"])?.trim().into())
}

fn through_apt(packages: &[&str]) -> anyhow::Result<()> {
    println!("installing {} through apt", packages.join(", "));
    update_lists();
    let install = || run::seen(apt_get().args(["install", "-y", "-q", "--no-install-recommends"]).args(packages));
    install().or_else(|_| {
        // apt refuses to work while a package is half installed, as one is whose installation was killed.
        run::seen(without_questions("dpkg").args(["--configure", "-a"]))?;
        install()
    })
}

/// Gets the lists of packages. A source that fails may be of no concern: what it lacks is missed by the installation.
fn update_lists() {
    const TRIES: u32 = 12;
    const PAUSE: Duration = Duration::from_secs(10);
    for left in (0..TRIES).rev() {
        let Err(error) = run::seen(apt_get().args(["update", "-q"])) else { return };
        eprintln!("warning: {error:#}");
        // apt waits for no other one that gets lists, as on a machine that was just installed.
        if left > 0 {
            eprintln!("trying again in {} s, at most {left} times", PAUSE.as_secs());
            thread::sleep(PAUSE);
        }
    }
}

/// Waits for another apt that installs, as that of automatic upgrades.
fn apt_get() -> Command {
    let mut command = without_questions("apt-get");
    command.args(["-o", "DPkg::Lock::Timeout=600"]);
    command
}

/// As root, with no question asked. sudo hands on no variable, so that `env` sets it.
fn without_questions(program: &str) -> Command {
    let mut command = run::as_root("env");
    command.args(["DEBIAN_FRONTEND=noninteractive", program]);
    command
}

/// Refuses a rustc whose bitcode bpf-linker cannot read; `version` is what `rustc -vV` prints.
fn llvm_fits(version: &str) -> anyhow::Result<()> {
    let field = |name: &str| version.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let release = field("release:").unwrap_or("unknown");
    let major: u32 = field("LLVM version:")
        .and_then(|llvm| llvm.split('.').next()?.parse().ok())
        .with_context(|| format!("rustc {release} does not name its LLVM"))?;
    ensure!(
        major <= NEWEST_LLVM,
        "rustc {release} has LLVM {major}; bpf-linker {BPF_LINKER} reads LLVM up to {NEWEST_LLVM}, as in rustc 1.95 \
         to 1.98: choose one with `rustup default 1.95.0`"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{
        AARCH64, CHECKS, EBPF, FUZZING, GUEST, MMDEBSTRAP, Need, PROGRAMS, RELEASE, all, check, llvm_fits, machines,
        missing, systemd_machines, systemd_machines_with, taken,
    };

    const ABSENT: [Need; 2] = [Need::Package("no-such-package"), Need::Component { name: "two", file: "nowhere/two" }];

    #[test]
    fn all_that_is_missing_is_named_once_and_what_is_there_is_not() {
        let there = Need::Package("dpkg");
        let needs = [ABSENT[0], there, ABSENT[1], ABSENT[0]];
        assert_eq!(missing(&needs).expect("a rustc"), ABSENT);
        assert_eq!(check(&needs).expect_err("two").to_string(), "2 missing; run again without --no-install");
        check(&[there]).expect("nothing is missing");
    }

    #[test]
    fn a_disk_has_room_with_what_is_taken_already_or_it_is_named_as_missing() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(taken(&folder.path().join("absent")).expect("not there is nothing"), 0);
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).expect("a folder in it");
        std::fs::write(inner.join("file"), [1; 8192]).expect("a file");
        std::fs::hard_link(inner.join("file"), folder.path().join("again")).expect("a second name of it");
        let bytes = taken(folder.path()).expect("it can be read");
        assert!((1..16384).contains(&bytes), "{bytes}");

        check(&[Need::Room { target: 0, caches: 0 }]).expect("any disk has that");
        let too_much = [Need::Room { target: 1 << 30, caches: 0 }];
        assert!(!too_much[0].is_there().expect("a disk"));
        assert_eq!(check(&too_much).expect_err("an EiB").to_string(), "1 missing; run again without --no-install");
        let error = all(&too_much).expect_err("nothing can install it").to_string();
        assert!(error.starts_with("too little free space for ") && error.ends_with("run again"), "{error}");
    }

    #[test]
    fn machines_need_their_kernels_and_no_kernel_is_made_up() {
        let needs = machines(&["6.1", "forky"]).expect("both are known");
        let kernels: Vec<&Need> = needs.iter().filter(|need| matches!(need, Need::Kernel(_))).collect();
        assert_eq!(kernels, [&Need::Kernel("6.1"), &Need::Kernel("7.2")]);
        assert!(!needs.iter().any(|need| need.package() == Some("qemu-system-arm")));
        assert!(machines(&["4.19"]).is_err());
        let needs = machines(&["6.12-arm64"]).expect("it is known");
        assert!(needs.contains(&Need::Target(AARCH64)) && !needs.contains(&Need::Target(GUEST)), "{needs:?}");
    }

    #[test]
    fn a_root_with_systemd_is_made_for_its_kernel_alone() {
        let needs = systemd_machines(&["6.1"]).expect("it is known");
        assert!(needs.contains(&MMDEBSTRAP) && needs.ends_with(&[Need::DebianRoot("6.1", &[])]), "{needs:?}");
        let kernels = machines(&["6.1"]).expect("it is known");
        assert!(kernels.iter().all(|need| needs.contains(need) && *need != MMDEBSTRAP));
        let with = systemd_machines_with(&["6.1"], &["earlyoom"]).expect("it is known");
        let root = with.last().expect("a root");
        assert_eq!((with.len(), *root), (needs.len(), Need::DebianRoot("6.1", &["earlyoom"])));
        assert!(root.to_string().contains("with systemd, earlyoom (mmdebstrap"), "{root}");
    }

    #[test]
    fn what_is_missing_is_said_with_what_installs_it() {
        for need in EBPF.iter().chain(&PROGRAMS).chain(&CHECKS).chain(&FUZZING).chain(&RELEASE) {
            let text = need.to_string();
            assert!(["(apt", "(rustup", "(cargo"].iter().any(|program| text.contains(program)), "{text}");
        }
    }

    #[test]
    fn a_toolchain_with_a_later_llvm_is_named_with_those_that_fit() {
        assert!(llvm_fits("rustc 1.95.0\nrelease: 1.95.0\nLLVM version: 22.1.2\n").is_ok());
        let error = llvm_fits("release: 1.99.0\nLLVM version: 23.0.1\n").expect_err("LLVM 23 cannot be read");
        let text = error.to_string();
        assert!(text.contains("rustc 1.99.0 has LLVM 23") && text.contains("1.95"), "{text}");
        assert!(llvm_fits("release: 1.95.0\n").is_err());
    }
}
