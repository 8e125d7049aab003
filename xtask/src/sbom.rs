//! Software bills of materials (SBOMs) in CycloneDX, of the agent and of its kernel side.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use crate::qemu::Processor;
use crate::{build_ebpf, install, release, run};

/// What stands for the folder of the checkout.
const ROOT: &str = "/plimsoll";

/// Of the agent for a processor, at this time in seconds since 1970.
pub(crate) fn agent(root: &Path, processor: Processor, epoch: &str) -> anyhow::Result<String> {
    of(root, "agent", "plimsoll", processor.target(), epoch)
}

/// Of the kernel programs, which are the same packages for every processor.
pub(crate) fn kernel_side(root: &Path, epoch: &str) -> anyhow::Result<String> {
    of(root, "ebpf", "plimsoll-ebpf", build_ebpf::TARGET, epoch)
}

/// Of the package in this folder of the checkout.
fn of(root: &Path, folder: &str, package: &str, target: &str, epoch: &str) -> anyhow::Result<String> {
    // The tool writes a file beside each manifest of the workspace, so it works on a copy.
    let place = tempfile::tempdir()?;
    let copy = place.path().join("copy");
    release::copy(root, &copy)?;
    let manifest = copy.join(folder).join("Cargo.toml");
    run::shown(
        Command::new(install::cargo_cyclonedx()?)
            .args(["cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5", "--target", target])
            .arg("--manifest-path")
            .arg(&manifest)
            .env("SOURCE_DATE_EPOCH", epoch)
            .current_dir(&copy),
    )?;
    let written = manifest.with_file_name(package).with_added_extension("cdx.json");
    let text = fs::read_to_string(&written).with_context(|| format!("cannot read {}", written.display()))?;
    // Packages of the checkout are named by where they lie.
    Ok(text.replace(&copy.display().to_string(), ROOT))
}

/// The part of an SBOM that is checked.
#[derive(Deserialize)]
struct Bill {
    components: Vec<Component>,
}

#[derive(Deserialize)]
struct Component {
    name: String,
    version: String,
    licenses: Option<serde_json::Value>,
}

/// Every package that cargo compiles into the agent and the kernel programs is in their SBOMs with its licence, and no
/// path of this machine is.
///
/// They may name more: the tool also follows features that only another package of the workspace switches on.
pub(crate) fn name_what_is_built() -> anyhow::Result<()> {
    let root = run::root();
    check(&kernel_side(root, "0")?, &built_from("ebpf", build_ebpf::TARGET)?)?;
    for processor in [Processor::X86_64, Processor::Aarch64] {
        check(&agent(root, processor, "0")?, &built_from("agent", processor.target())?)?;
    }
    Ok(())
}

/// The packages that are compiled into the one in this folder, as `name version`.
fn built_from(folder: &str, target: &str) -> anyhow::Result<BTreeSet<String>> {
    let tree = run::text(
        Command::new("cargo")
            .args(["tree", "--locked", "--edges", "normal,no-proc-macro", "--target", target])
            .args(["--prefix", "none", "--format", "{p}"])
            .current_dir(run::root().join(folder)),
    )?;
    // The first is the package itself.
    let packages = tree.lines().skip(1).filter_map(|line| {
        let mut words = line.split(' ');
        Some(format!("{} {}", words.next()?, words.next()?.strip_prefix('v')?))
    });
    let packages: BTreeSet<String> = packages.collect();
    ensure!(!packages.is_empty(), "cargo names nothing that {folder} is built from");
    Ok(packages)
}

fn check(text: &str, built: &BTreeSet<String>) -> anyhow::Result<()> {
    let Bill { components } = serde_json::from_str(text).context("an SBOM has another form")?;
    if let Some(component) = components.iter().find(|component| component.licenses.is_none()) {
        bail!("{} has no licence in an SBOM", component.name);
    }
    let named: BTreeSet<String> = components.iter().map(|it| format!("{} {}", it.name, it.version)).collect();
    let missing: Vec<&String> = built.difference(&named).collect();
    ensure!(missing.is_empty(), "an SBOM does not name {missing:?}");
    let folder = std::env::temp_dir().display().to_string();
    ensure!(!text.contains(&format!("{folder}/")), "an SBOM has a path below {folder}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn an_sbom_names_each_package_with_its_licence_and_no_folder_of_this_machine() {
        let built = ["a 1.0".to_owned()].into();
        let bill = |component: &str| format!("{{\"components\": [{{{component}}}]}}");
        let whole = "\"name\": \"a\", \"version\": \"1.0\", \"licenses\": []";
        check(&bill(whole), &built).expect("it is whole");
        let here = whole.to_owned() + &format!(", \"bom-ref\": \"path+file://{}/x\"", std::env::temp_dir().display());
        for (component, why) in [
            (whole.replace("1.0", "1.1"), "does not name [\"a 1.0\"]"),
            (whole.replace("licenses", "other"), "a has no licence"),
            (here, "has a path"),
        ] {
            let error = check(&bill(&component), &built).expect_err("something is wrong").to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
