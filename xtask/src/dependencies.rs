//! What the workspace may depend on: checked by `cargo deny`, and for the core by its own list of what it must not know.

use std::process::Command;

use anyhow::ensure;

use crate::{install, run};

/// The crates that the core uses.
const CORE: [&str; 9] = [
    "plimsoll-units",
    "plimsoll-node",
    "plimsoll-inventory",
    "plimsoll-sense",
    "plimsoll-policy",
    "plimsoll-act",
    "plimsoll-state",
    "plimsoll-config",
    "plimsoll-report",
];
/// What has no place in them: runtimes, networks, TLS, types of Kubernetes.
const FORBIDDEN: [&str; 9] =
    ["k8s-openapi", "tokio", "async-std", "smol", "hyper", "h2", "rustls", "openssl", "native-tls"];

/// None of the core's crates depends on a runtime, a network or TLS.
pub(crate) fn core_is_small() -> anyhow::Result<()> {
    for name in CORE {
        let tree = run::text(
            Command::new("cargo")
                .args(["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}", "-p", name])
                .current_dir(run::root()),
        )?;
        let names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        ensure!(names.contains(&name), "cargo tree does not name {name} itself");
        let found: Vec<&&str> = FORBIDDEN.iter().filter(|other| names.contains(other)).collect();
        ensure!(found.is_empty(), "{name} depends on {found:?}");
    }
    Ok(())
}

/// The workspaces whose packages are published, and what each is.
pub(crate) const PUBLISHED: [(&str, &str); 2] = [(".", "the workspace"), ("ebpf", "the kernel side")];

/// What checks licences, sources and bans of the workspace in this folder.
pub(crate) fn deny(folder: &str) -> anyhow::Result<Command> {
    cargo_deny(folder, &["check", "--hide-inclusion-graph", "bans", "licenses", "sources"])
}

/// Gets the database of advisories (RustSec's, from its git host). An error where it cannot be reached.
pub(crate) fn fetch_advisories() -> anyhow::Result<()> {
    run::text(&mut cargo_deny(".", &["fetch", "db"])?).map(drop)
}

/// What checks the workspace in this folder by the database that was got before.
pub(crate) fn advisories(folder: &str) -> anyhow::Result<Command> {
    cargo_deny(folder, &["--offline", "check", "--hide-inclusion-graph", "advisories"])
}

fn cargo_deny(folder: &str, arguments: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(install::cargo_deny()?);
    command.args(arguments).current_dir(run::root().join(folder));
    Ok(command)
}
