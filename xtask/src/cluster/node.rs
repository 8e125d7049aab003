//! The cluster's node: a virtual machine with containerd and a kubelet.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::control_plane::NODE;
use super::kube;
use crate::install::{self, Need};
use crate::qemu::Processor;
use crate::vm::Build;
use crate::{image, lock, run, tunnel};

/// Its kernel where none is asked for, with which it is saved, and what its root has of Debian beside systemd.
pub(crate) const KERNEL: &str = "6.12";
pub(super) const PACKAGES: [&str; 2] = ["containerd", "containernetworking-plugins"];
/// A kubelet and a containerd take a quarter of a GiB, and pods are to have room.
const MEMORY: &str = "3G";
/// It runs until the cluster is ended, or so many seconds: a day.
const SECONDS: u32 = 86_400;
/// How the programs are built that it has.
const BUILD: Build = Build::Plain;
/// How long it may take until it has made images of them; some ten seconds on two idle processors.
const PATIENCE: Duration = Duration::from_mins(3);
/// What it answers then.
const READY: &str = "ready\n";

/// What has to be there before it is booted with this kernel.
pub(super) fn needs(kernel: &str) -> anyhow::Result<Vec<Need>> {
    install::systemd_machines_with(&[kernel], &PACKAGES)
}

/// The socket by which the API server reaches the node.
pub(super) fn socket(folder: &Path) -> PathBuf {
    folder.join("node.socket")
}

/// The socket of QEMU's monitor.
pub(super) fn monitor(folder: &Path) -> PathBuf {
    folder.join("monitor.socket")
}

/// Builds the programs that it has.
pub(super) fn build() -> anyhow::Result<()> {
    BUILD.run(Processor::X86_64)
}

/// The command that boots it with this kernel and the certificates of this folder, or restores the one that was saved, and ends
/// with it.
pub(super) fn command(folder: &Path, kernel: &str, saved: Option<&Path>) -> anyhow::Result<Command> {
    // This program, also where a build has put another one in its place since it was started.
    let mut command = Command::new("/proc/self/exe");
    command.args(["vm", "--kernel", kernel, "--root", "systemd", "--memory", MEMORY, "--network", "--agent", "plain"]);
    command.args(["--timeout", &SECONDS.to_string()]);
    command.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    command.arg("--disk").arg(disk()?).arg("--tunnel").arg(socket(folder)).arg("--monitor").arg(monitor(folder));
    if let Some(saved) = saved {
        command.arg("--saved").arg(saved);
    }
    for (file, place) in [("kubelet.conf", "kubelet.conf"), ("pki/ca.crt", "pki/ca.crt")] {
        command.arg("--file").arg(format!("{}:etc/kubernetes/{place}", folder.join(file).display()));
    }
    command.args(["--", "/bin/plimsoll-guest", "node", "--name", NODE]);
    // The checkout that it belongs to, wherever this program lies.
    command.env("CARGO_MANIFEST_DIR", run::root().join("xtask"));
    Ok(command)
}

/// Gives it the programs of this build, and waits until pods can run them. It has the right time then, too.
pub(super) fn hand_over(folder: &Path) -> anyhow::Result<()> {
    let mut node = tunnel::connect(&socket(folder), tunnel::PROGRAMS)?;
    node.set_read_timeout(Some(PATIENCE))?;
    node.set_write_timeout(Some(PATIENCE))?;
    for program in ["plimsoll", "plimsoll-guest"] {
        let file = BUILD.place(Processor::X86_64).join(program);
        let data = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        node.write_all(&(data.len() as u64).to_le_bytes())?;
        node.write_all(&data)?;
    }
    let mut answer = [0; READY.len()];
    node.read_exact(&mut answer).context("the node does not go on with its programs")?;
    ensure!(answer == *READY.as_bytes(), "the node answers {:?}", String::from_utf8_lossy(&answer));
    Ok(())
}

/// A file system with the program of Kubernetes, beside that.
pub(super) fn disk() -> anyhow::Result<PathBuf> {
    let program = kube::program()?;
    let folder = program.parent().context("a folder in the cache")?;
    let image = folder.join("kube.ext4");
    lock::once(
        &image,
        || Ok(image.is_file()),
        || {
            let tree = tempfile::tempdir_in(folder)?;
            let inside = tree.path().join("kube");
            // Not a second copy for the moment in which the image is made.
            fs::hard_link(&program, &inside).with_context(|| format!("cannot link {}", inside.display()))?;
            let unfinished = folder.join("unfinished.ext4");
            let mib = fs::metadata(&program)?.len() / (1 << 20) + 32;
            let mut mke2fs = Command::new(image::MKE2FS);
            mke2fs.args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d"]).arg(tree.path()).arg(&unfinished);
            run::text(mke2fs.arg(format!("{mib}M"))).context("no file system with Kubernetes")?;
            fs::rename(&unfinished, &image).with_context(|| format!("cannot write {}", image.display()))
        },
    )?;
    Ok(image)
}
