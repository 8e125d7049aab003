//! containerd as tests use it: configured as a node's is, with an image of this very program, which sandboxes and
//! containers run.

use crate::agent::PROGRAM as AGENT;
use crate::cri::{Client, api};
use crate::machine::{now_ns, wait_for};
use crate::pod;
use crate::scene::PATIENCE;
use crate::suite::figure;
use crate::systemd::{property, run, systemctl};
use anyhow::{Context as _, Result};
use plimsoll_oci::{Agent, File, Image, Layer};
use rustix::process::Pid;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Its unit.
pub(crate) const UNIT: &str = "containerd.service";
/// The image.
pub(crate) const IMAGE: &str = "plimsoll.test/guest:1";
/// The same for sandboxes, with an id of its own.
pub(crate) const SANDBOX_IMAGE: &str = "plimsoll.test/sandbox:1";
/// What a sandbox runs: its process keeps the namespaces and does nothing.
const PAUSE: [&str; 3] = ["idle", "--mib", "1"];
/// The program itself.
pub(crate) const PROGRAM: &str = "/usr/bin/containerd";
const CONFIGURATION: &str = "/etc/containerd/config.toml";
const ARCHIVE: &str = "/run/test-image.tar";
/// Where this program is in its image.
pub(crate) const GUEST: &str = "/plimsoll-guest";
/// The namespace of containerd in which CRI keeps images and containers.
const NAMESPACE: &str = "k8s.io";

/// What makes the cgroups of containers: systemd, or runc itself in the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Scopes of systemd, in the slices that the kubelet makes.
    Systemd,
    /// Directories.
    Cgroupfs,
}

/// Whether it is installed on this machine.
pub(crate) fn is_here() -> bool {
    Path::new(PROGRAM).exists()
}

/// Where it keeps images, and where writable layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) images: &'static str,
    /// With the layers of images, unpacked, from which they are made.
    pub(crate) layers: &'static str,
}

/// Starts it with this driver, unless it runs, and gives a client of it that finds the image.
pub(crate) fn start(driver: Driver) -> Result<Client> {
    start_at(driver, None)
}

/// The same with directories that are not the usual ones.
pub(crate) fn start_at(driver: Driver, places: Option<Places>) -> Result<Client> {
    launch(driver, places)?;
    let client = Client::new()?;
    // It may be active before its CRI is.
    wait_for("CRI answers", PATIENCE, || Ok(client.has_image(IMAGE).is_ok()))?;
    if !client.has_image(IMAGE)? || !client.has_image(SANDBOX_IMAGE)? {
        let begun = now_ns();
        let program = fs::read(std::env::current_exe()?).context("cannot read this program")?;
        import(&client, IMAGE, &program)?;
        import(&client, SANDBOX_IMAGE, &program)?;
        figure("image", &[("bytes", &program.len()), ("ms", &((now_ns() - begun) / 1_000_000))]);
    }
    Ok(client)
}

/// Starts it, unless it runs, and leaves it without an image.
pub(crate) fn launch(driver: Driver, places: Option<Places>) -> Result<()> {
    if property(UNIT, "ActiveState")? != "active" {
        let hosts = Path::new("/etc/hosts");
        if !hosts.exists() {
            // Each sandbox gets a copy.
            fs::write(hosts, "127.0.0.1 localhost\n")?;
        }
        fs::write(CONFIGURATION, configuration(driver, places))
            .with_context(|| format!("cannot write {CONFIGURATION}"))?;
        systemctl(&["start", UNIT])?;
    }
    Ok(())
}

/// Gives it an image with this name and of that title, so that no other one has its id, whose only file is this program.
pub(crate) fn import(client: &Client, name: &str, program: &[u8]) -> Result<()> {
    let files = vec![File { path: GUEST, data: program, is_program: true }];
    let image = Image { architecture: "amd64", files, program: GUEST, arguments: &PAUSE, labels: &[("title", name)] };
    import_archive(client, name, &plimsoll_oci::archive(name, &[image], Layer::Plain)?)
}

/// Gives it the image with this name that is in an archive.
pub(crate) fn import_archive(client: &Client, name: &str, archive: &[u8]) -> Result<()> {
    fs::write(ARCHIVE, archive).with_context(|| format!("cannot write {ARCHIVE}"))?;
    run(ctr().args(["images", "import", ARCHIVE]))?;
    fs::remove_file(ARCHIVE)?;
    // It sees the image by an event.
    wait_for("CRI has the image", PATIENCE, || client.has_image(name))
}

/// Gives it the agent's image as it is shipped, of the agent that this machine has.
pub(crate) fn import_agent(client: &Client) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let program = fs::read(AGENT).context("cannot read the agent")?;
    let agent = Agent { architecture: "amd64", program: &program, sboms: Vec::new() };
    let archive = plimsoll_oci::agent(version, &[agent], Layer::Plain)?;
    import_archive(client, &format!("{}:{version}", plimsoll_oci::NAME), &archive)
}

/// Has it keep an image, as it does its own for sandboxes.
pub(crate) fn pin(name: &str) -> Result<()> {
    run(ctr().args(["images", "label", name, "io.cri-containerd.pinned=pinned"])).map(drop)
}

/// Whether its version is one that reports which images are pinned: 1.7 or later.
pub(crate) fn reports_pinned() -> Result<bool> {
    Ok(!run(Command::new(PROGRAM).arg("--version"))?.contains(" 1.6."))
}

fn ctr() -> Command {
    let mut ctr = Command::new("ctr");
    ctr.args(["--namespace", NAMESPACE]);
    ctr
}

/// One runtime, and what pulls no image: there is no network.
fn configuration(driver: Driver, places: Option<Places>) -> String {
    let cri = "plugins.\"io.containerd.grpc.v1.cri\"";
    let (root, layers) = places.map_or_else(Default::default, |Places { images, layers }| {
        let snapshotter = "plugins.\"io.containerd.snapshotter.v1.overlayfs\"";
        (format!("root = \"{images}\"\n"), format!("[{snapshotter}]\nroot_path = \"{layers}\"\n"))
    });
    format!(
        "version = 2\n{root}{layers}[{cri}]\nsandbox_image = \"{SANDBOX_IMAGE}\"\n[{cri}.containerd.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n[{cri}.containerd.runtimes.runc.options]\nSystemdCgroup = {}\n",
        driver == Driver::Systemd
    )
}

/// Its main process.
pub(crate) fn main_process() -> Result<Pid> {
    Pid::from_raw(property(UNIT, "MainPID")?.parse()?).context("containerd does not run")
}

/// Ends it, so that it can be started with another driver. What it runs goes on.
pub(crate) fn stop() -> Result<()> {
    systemctl(&["stop", UNIT]).map(drop)
}

/// Removes a sandbox with its containers. It fails while what was killed is still on its way out; a kubelet tries again, too.
pub(crate) fn remove_sandbox(client: &Client, id: &str) -> Result<()> {
    let mut last = None;
    let removed = wait_for("containerd removes a sandbox", PATIENCE, || {
        last = client.remove_sandbox(id).err();
        Ok(last.is_none())
    });
    removed.with_context(|| format!("{last:?}"))
}

/// Removes all pods with what a kubelet would have made for them, and all images that one test alone needed, so that the next
/// one finds the disk as it was. Tests may have stopped containerd's process.
pub(crate) fn clean() -> Result<()> {
    if property(UNIT, "ActiveState")? == "active" {
        systemctl(&["kill", "--signal=CONT", UNIT])?;
        let client = Client::new()?;
        for sandbox in client.sandboxes()? {
            remove_sandbox(&client, &sandbox)?;
        }
        let stays =
            |image: &api::Image| image.repo_tags.iter().any(|tag| [IMAGE, SANDBOX_IMAGE].contains(&tag.as_str()));
        for image in client.images()?.iter().filter(|image| !stays(image)) {
            client.remove_image(&image.id)?;
        }
    }
    pod::clean()
}
