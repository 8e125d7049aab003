//! The cluster's node: a virtual machine with containerd and a kubelet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::control_plane::NODE;
use super::kube;
use crate::install::{self, Need};
use crate::run;

/// Its kernel, and what its root has of Debian beside systemd.
pub(super) const KERNEL: &str = "6.12";
pub(super) const PACKAGES: [&str; 2] = ["containerd", "containernetworking-plugins"];
/// A kubelet and a containerd take a quarter of a GiB, and pods are to have room.
const MEMORY: &str = "3G";
/// It runs until the cluster is ended, or so many seconds: a day.
const SECONDS: u32 = 86_400;

/// What has to be there before.
pub(super) fn needs() -> anyhow::Result<Vec<Need>> {
    install::systemd_machines_with(&[KERNEL], &PACKAGES)
}

/// The socket by which the API server reaches the node.
pub(super) fn tunnel(folder: &Path) -> PathBuf {
    folder.join("node.socket")
}

/// The command that boots it with the certificates of this folder, and ends with it.
pub(super) fn command(folder: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["vm", "--kernel", KERNEL, "--root", "systemd", "--memory", MEMORY, "--network", "--agent", "plain"]);
    command.args(["--timeout", &SECONDS.to_string()]);
    command.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    command.arg("--disk").arg(disk()?).arg("--tunnel").arg(tunnel(folder));
    for (file, place) in [("kubelet.conf", "kubelet.conf"), ("pki/ca.crt", "pki/ca.crt")] {
        command.arg("--file").arg(format!("{}:etc/kubernetes/{place}", folder.join(file).display()));
    }
    command.args(["--", "/bin/plimsoll-guest", "node", "--name", NODE]);
    // The checkout that it belongs to, wherever this program lies.
    command.env("CARGO_MANIFEST_DIR", run::root().join("xtask"));
    Ok(command)
}

/// A file system with the program of Kubernetes, beside that.
fn disk() -> anyhow::Result<PathBuf> {
    let program = kube::program()?;
    let folder = program.parent().context("a folder in the cache")?;
    let image = folder.join("kube.ext4");
    if !image.is_file() {
        let tree = tempfile::tempdir_in(folder)?;
        let inside = tree.path().join("kube");
        // Not a second copy for the moment in which the image is made.
        fs::hard_link(&program, &inside).with_context(|| format!("cannot link {}", inside.display()))?;
        let unfinished = folder.join("unfinished.ext4");
        let mib = fs::metadata(&program)?.len() / (1 << 20) + 32;
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d"]).arg(tree.path()).arg(&unfinished);
        run::text(mke2fs.arg(format!("{mib}M"))).context("no file system with Kubernetes")?;
        fs::rename(&unfinished, &image)?;
    }
    ensure!(image.is_file(), "{} is gone", image.display());
    Ok(image)
}
