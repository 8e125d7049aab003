//! `cargo xtask release`: the agent for each processor with its SBOMs, the image of both for containers, what else an installation
//! takes, and all their checksums. The same sources give the same bytes in any folder, with the same toolchain.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use plimsoll_oci::{Agent, Layer};
use sha2::{Digest, Sha256};

use crate::qemu::Processor;
use crate::{build_ebpf, install, run, sbom, share};

/// Where a release is left, in the checkout that it was built from.
const PLACE: &str = "target/release-files";
/// The image: an OCI image layout for both processors.
const IMAGE: &str = "plimsoll-image.tar";
/// Man pages, completions, documents, the unit, the configuration with its schema, and the kustomizations, to be unpacked below
/// a prefix such as /usr/local.
const SHARE: &str = "plimsoll-share.tar.gz";
/// The file with the checksum of each other one, as `sha256sum --check` reads it.
const CHECKSUMS: &str = "SHA256SUMS";

/// What it needs.
pub(crate) fn needs() -> Vec<install::Need> {
    [&install::EBPF[..], &install::RELEASE].concat()
}

/// Builds the release of this checkout.
pub(crate) fn command() -> anyhow::Result<()> {
    install::all(&needs())?;
    print!("{}", build(run::root(), &epoch()?)?);
    println!("in {PLACE}");
    Ok(())
}

/// The same sources built from nothing in another folder give the release that they give here.
pub(crate) fn reproducible() -> anyhow::Result<()> {
    let epoch = epoch()?;
    let here = build(run::root(), &epoch)?;
    let place = tempfile::tempdir()?;
    let another = place.path().join("another");
    copy(run::root(), &another)?;
    let there = build(&another, &epoch)?;
    let differ: Vec<_> = here.lines().filter(|line| !there.lines().any(|other| other == *line)).collect();
    ensure!(here == there, "built in {}, these are others: {}", another.display(), differ.join(", "));
    Ok(())
}

/// Builds the release of the checkout at `root`; gives the content of [`CHECKSUMS`].
fn build(root: &Path, epoch: &str) -> anyhow::Result<String> {
    build_ebpf::release(root)?;
    let place = root.join(PLACE);
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    let kernel_side = ("plimsoll-ebpf.cdx.json".to_owned(), sbom::kernel_side(root, epoch)?.into_bytes());
    let mut agents = Vec::new();
    for processor in [Processor::X86_64, Processor::Aarch64] {
        let name = format!("plimsoll-{}", processor.target());
        let sbom = (name.clone() + ".cdx.json", sbom::agent(root, processor, epoch)?.into_bytes());
        agents.push((processor, (name, agent(root, processor)?), sbom));
    }
    let mut files = vec![(IMAGE.to_owned(), image(&agents, &kernel_side)?), kernel_side];
    files.push((SHARE.to_owned(), share::archive(root, &command_line(root)?)?));
    files.extend(agents.into_iter().flat_map(|(_, program, sbom)| [program, sbom]));
    files.sort();
    let mut checksums = String::new();
    for (name, data) in &files {
        writeln!(checksums, "{}  {name}", sha256(data))?;
    }
    files.push((CHECKSUMS.to_owned(), checksums.clone().into_bytes()));
    for (name, data) in files {
        fs::write(place.join(&name), data).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(checksums)
}

/// A file that is published.
type Published = (String, Vec<u8>);

/// The image of these agents, each with its SBOM and that of the kernel programs in it.
fn image(agents: &[(Processor, Published, Published)], kernel_side: &Published) -> anyhow::Result<Vec<u8>> {
    let agents: Vec<Agent<'_>> = agents
        .iter()
        .map(|(processor, (_, program), sbom)| Agent {
            architecture: processor.debian(),
            program,
            sboms: [sbom, kernel_side].map(|(name, data)| (name.clone(), &data[..])).to_vec(),
        })
        .collect();
    Ok(plimsoll_oci::agent(env!("CARGO_PKG_VERSION"), &agents, Layer::Compressed)?)
}

/// The agent of the checkout at `root`.
fn agent(root: &Path, processor: Processor) -> anyhow::Result<Vec<u8>> {
    let built = cargo_build(root, processor, &[])?.join("plimsoll");
    fs::read(&built).with_context(|| format!("cannot read {}", built.display()))
}

/// The program that writes man pages and completions, for this machine.
fn command_line(root: &Path) -> anyhow::Result<PathBuf> {
    const EXAMPLE: &str = "command_line";
    let native = [Processor::X86_64, Processor::Aarch64].into_iter().find(|it| it.name() == std::env::consts::ARCH);
    let native = native.context("man pages are written by a program for x86_64 or aarch64")?;
    Ok(cargo_build(root, native, &["--example", EXAMPLE])?.join("examples").join(EXAMPLE))
}

/// Builds of the agent's package in the checkout at `root`; gives the folder of what is built.
fn cargo_build(root: &Path, processor: Processor, what: &[&str]) -> anyhow::Result<PathBuf> {
    let (target, folder) = (processor.target(), root.join("target"));
    // Added to what the checkout's configuration has for the target.
    let flags = serde_json::to_string(&remapped(root)?)?;
    run::shown(
        Command::new("cargo")
            .args(["build", "--release", "--locked", "-p", "plimsoll", "--target", target, "--target-dir"])
            .arg(&folder)
            .args(["--config", &format!("target.{target}.rustflags={flags}")])
            .args(what)
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .current_dir(root),
    )?;
    Ok(folder.join(target).join("release"))
}

/// Flags of rustc that keep the folders of this machine out of what it builds from the checkout at `root`.
pub(crate) fn remapped(root: &Path) -> anyhow::Result<Vec<String>> {
    let sysroot = run::text(Command::new("rustc").args(["--print", "sysroot"]))?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let paths = [(Some(root.to_owned()), "plimsoll"), (home, "cargo"), (Some(sysroot.trim().into()), "rust")];
    let known = paths.into_iter().filter_map(|(path, name)| Some((path?, name)));
    Ok(known.map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display())).collect())
}

/// The time that SBOMs bear, in seconds since 1970: `SOURCE_DATE_EPOCH`, else that of the last commit.
fn epoch() -> anyhow::Result<String> {
    if let Ok(set) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(set);
    }
    let time = run::text(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(run::root()));
    let time = time.context("set SOURCE_DATE_EPOCH where there is no git history")?;
    Ok(time.trim().to_owned())
}

/// Copies a checkout, without what was built in it and its history.
pub(crate) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
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

/// In hexadecimal digits.
pub(crate) fn sha256(data: &[u8]) -> String {
    Sha256::digest(data).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes all");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::{Processor, image};

    #[test]
    fn the_image_is_made_of_both_agents_and_all_sboms() {
        let file = |name: &str| (name.to_owned(), name.as_bytes().to_vec());
        let agents = [Processor::X86_64, Processor::Aarch64].map(|processor| {
            let name = processor.name();
            (processor, file(name), file(&format!("{name}.cdx.json")))
        });
        let made = |kernel_side| image(&agents, &file(kernel_side)).expect("an archive");
        assert_eq!(made("ebpf.cdx.json"), made("ebpf.cdx.json"));
        assert_ne!(made("ebpf.cdx.json"), made("other.cdx.json"));
    }
}
