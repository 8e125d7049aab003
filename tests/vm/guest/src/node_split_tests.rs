//! A node whose writable layers are on the kubelet's disk and whose images are on another one: the split layout of
//! KEP-4191, which no containerd reports. Here one keeps its content store on the root's disk and its snapshots below the
//! kubelet's directory, which has a file system of its own, and a proxy says so to the agent.

use crate::agent::{PROGRAM as AGENT, tail};
use crate::containerd::{self, Driver, Places};
use crate::cri::SOCKET as RUNTIME;
use crate::cri_proxy::{self, Proxy};
use crate::machine::wait_for;
use crate::node::{Node, await_metric, await_read, lines};
use crate::node_disk_tests::{import, name};
use crate::node_storage_tests::{COUNTED, EVICTED, FAR, Filled, Filler, KUBELET, MANY, OwnNodeFs, make_files};
use crate::node_tests::logged;
use crate::scene::{MIB, PATIENCE};
use crate::systemd::{CONFIGURATION, journal};
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{statvfs, sync};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

/// On the root's disk, and on the kubelet's.
const IMAGES: &str = "/var/lib/test-images";
const LAYERS: &str = "/var/lib/kubelet/test-layers";
/// An image that no container uses: twelve MiB packed, and as much unpacked.
const UNUSED: &str = "unused-split";
/// What an `evictionHard` would have of containerfs. It would be crossed at all times.
const CUSTOM: &str = "100Gi";

/// The layout is found as split. Where the disk of images is short, images that are unused are removed, and no pod is
/// evicted, whatever it has in its writable layer: that is elsewhere. Where the kubelet's disk is short, pods rank by logs,
/// volumes and writable layers together, so that the one with the largest layer is evicted and not the one with the largest
/// volume. A threshold of containerfs is ignored, which the log says.
pub(crate) fn split_layout() -> Result<()> {
    on_split_disks(short_of_bytes)
}

/// In the same layout the kubelet's disk is short of inodes, for the threshold of nodefs and that which the kubelet derives
/// from it for containerfs: the pod whose writable layer has many is evicted, and not the one whose layer has many bytes.
pub(crate) fn inodes_of_containerfs() -> Result<()> {
    on_split_disks(short_of_inodes)
}

fn on_split_disks(test: fn(Node) -> Result<()>) -> Result<()> {
    containerd::stop()?;
    let disk = OwnNodeFs::mount(c"size=256M,nr_inodes=40000")?;
    let done = with_split_disks(test);
    // The next test starts it with its usual directories.
    let cleaned = containerd::clean().and_then(|()| containerd::stop());
    let _ = fs::remove_dir_all(IMAGES);
    drop(disk);
    done.and(cleaned)
}

fn with_split_disks(test: fn(Node) -> Result<()>) -> Result<()> {
    let places = Places { images: IMAGES, layers: LAYERS };
    let client = containerd::start_at(Driver::Systemd, Some(places))?;
    let _proxy = Proxy::start(RUNTIME.trim_start_matches("unix://"), places)?;
    let keys = format!("  imageRoot: {IMAGES}\n  containerRoot: {LAYERS}\n");
    test(Node::with(client)?.behind(cri_proxy::SOCKET, &keys))
}

fn short_of_inodes(mut node: Node) -> Result<()> {
    let bytes = Filled::make(&mut node, "bytes", [0, 36])?;
    let many = Filled::make(&mut node, "inodes", [0, 0])?;
    make_files(&many.root.join("files"), MANY)?;
    thread::sleep(COUNTED);
    let hard = statvfs(KUBELET)?.f_ffree - u64::from(MANY / 3);
    node.start_agent(&format!(
        "evictionHard: {{memory.available: \"{FAR}\", nodefs.inodesFree: \"{hard}\"}}\n\
         evictionPressureTransitionPeriod: 5s\n"
    ))?;
    expect_layers(2)?;
    await_metric("plimsoll_disk_read{disk=\"containerfs\"} 1", PATIENCE)?;
    await_metric("plimsoll_disk_pressure 0", PATIENCE)?;
    await_read(&[
        "memory.available",
        "pid.available",
        "nodefs.available",
        "nodefs.inodesFree",
        "imagefs.available",
        "imagefs.inodesFree",
        "containerfs.available",
        "containerfs.inodesFree",
    ])?;
    let others = Path::new(KUBELET).join("others");
    make_files(&others, MANY / 2)?;
    many.await_eviction("The node was low on resource: inodes. Threshold quantity: ")?;
    expect_causes(["nodefs.inodesFree", "containerfs.inodesFree"])?;
    containerd::remove_sandbox(&node.client, &many.pod.sandbox)?;
    await_metric("plimsoll_disk_pressure 0", EVICTED)?;
    node.expect_room()?;
    fs::remove_dir_all(others)?;
    node.end(&[&many.pod], &[&bytes.pod])
}

/// Pods were evicted, each for one of these signals.
fn expect_causes(of_layers: [&str; 2]) -> Result<()> {
    let causes: Vec<_> = lines()?.iter().filter_map(|line| line["cause"].as_str().map(str::to_owned)).collect();
    let is_of_layers = |cause: &String| of_layers.contains(&cause.as_str());
    ensure!(!causes.is_empty() && causes.iter().all(is_of_layers), "evicted for {causes:?}; {}", logged());
    Ok(())
}

/// Waits until the agent knows so many writable layers.
fn expect_layers(count: usize) -> Result<()> {
    let known = format!("the container runtime has {count} writable layers");
    wait_for("writable layers are known", EVICTED, || Ok(journal()?.contains(&known))).with_context(logged)
}

fn short_of_bytes(mut node: Node) -> Result<()> {
    import(&node.client, UNUSED, 2)?;
    let layered = Filled::make(&mut node, "layered", [0, 36])?;
    let in_volume = Filled::make(&mut node, "in-volume", [12, 0])?;
    let small = Filled::make(&mut node, "small", [4, 4])?;
    thread::sleep(COUNTED);
    let [images, layers] = [left(IMAGES)?, left(KUBELET)?];
    // Their disks are two, whose sizes differ.
    ensure!(statvfs(IMAGES)?.f_blocks != statvfs(KUBELET)?.f_blocks, "there is one disk");
    node.start_agent(&format!(
        "evictionHard: {{memory.available: \"{FAR}\", nodefs.available: \"{}\", imagefs.available: \"{}\", \
         containerfs.available: {CUSTOM}}}\n\
         evictionPressureTransitionPeriod: 5s\nimageMinimumGCAge: 2s\n",
        layers - 4 * MIB,
        images - 20 * MIB
    ))?;
    expect_split().with_context(logged)?;
    short_of_images(&node).context("imagefs is short")?;
    // Four MiB below the threshold, although the unused image has given twelve back. The pod's volume is 32 MiB now, less
    // than the writable layer of the other one.
    in_volume.fill_volume(32)?;
    layered.await_eviction("The node was low on resource: ephemeral-storage. Threshold quantity: ")?;
    expect_causes(["nodefs.available", "containerfs.available"])?;
    // As a kubelet does with a pod that is gone: its writable layer goes, and the disk of layers has room again.
    containerd::remove_sandbox(&node.client, &layered.pod.sandbox)?;
    await_metric("plimsoll_disk_pressure 0", EVICTED)?;
    node.expect_room()?;
    node.end(&[&layered.pod], &[&in_volume.pod, &small.pod])
}

/// The disk of images is short, and is not any more once the unused image is gone.
fn short_of_images(node: &Node) -> Result<()> {
    // Six MiB below the threshold.
    let filler = Filler::write(26)?;
    await_metric("plimsoll_disk_pressure 1", EVICTED)?;
    wait_for("the unused image is removed", EVICTED, || Ok(!node.client.has_image(&name(UNUSED))?))
        .with_context(logged)?;
    await_metric("plimsoll_disk_pressure 0", EVICTED)?;
    drop(filler);
    let evicts = |line: &serde_json::Value| line["cause"].is_string();
    ensure!(!lines()?.iter().any(evicts), "a pod was evicted for the disk of images; {}", logged());
    Ok(())
}

/// The agent and its `check` have found the layout, read all three disks, and ignore the threshold of containerfs.
fn expect_split() -> Result<()> {
    for disk in ["nodefs", "imagefs", "containerfs"] {
        await_metric(&format!("plimsoll_disk_read{{disk=\"{disk}\"}} 1"), PATIENCE)?;
    }
    expect_layers(3)?;
    let log = journal()?;
    let layout = format!("nodefs at {KUBELET}, imagefs at /, containerfs at {KUBELET}");
    ensure!(log.contains(&layout), "another layout than {layout}; {}", tail(&log));
    let ignored = |line: &str| line.contains("containerfs.available") && line.contains("ignored");
    ensure!(log.lines().any(ignored), "no warning that a threshold is ignored; {}", tail(&log));
    ensure!(!log.contains("unsupported layout"), "a layout that is supported is named; {}", tail(&log));
    // Its exit code says that something else of this machine is missing.
    let checked = Command::new(AGENT).args(["check", "--config", CONFIGURATION]).output().context("cannot check")?;
    let checked = String::from_utf8_lossy(&checked.stdout);
    let row = checked.lines().find(|line| line.contains("disk layout")).context("check has no layout")?;
    ensure!(row.contains("split"), "check has another layout: {row}");
    Ok(())
}

/// What is left on the disk of a directory, with everything written.
fn left(directory: &str) -> Result<u64> {
    sync();
    let left = statvfs(directory).with_context(|| format!("cannot read {directory}"))?;
    Ok(left.f_bavail * left.f_frsize)
}
