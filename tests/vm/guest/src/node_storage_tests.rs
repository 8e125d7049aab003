//! What pods that a containerd runs take of disks, and the disks that it is on. Where the kubelet's directory has a file
//! system of its own, images and writable layers are apart from nodefs.

use crate::agent::tail;
use crate::containerd;
use crate::machine::wait_for;
use crate::node::{Node, await_metric, kills, lines, number};
use crate::node_disk_tests::{available, import, inodes_left, name};
use crate::node_tests::logged;
use crate::pod::{Class, Pod, container_cgroup};
use crate::scene::{MIB, PATIENCE};
use crate::systemd::journal;
use anyhow::{Context as _, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;
use std::ffi::CStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The kubelet's directory.
pub(crate) const KUBELET: &str = "/var/lib/kubelet";
/// What is written to cross a threshold of images.
const FILLER: &str = "/var/lib/filler";
/// A hard threshold on memory that is not reached.
pub(crate) const FAR: u64 = 32 * MIB;
/// The usual priority and grace of a pod.
const USUAL: (i32, i64) = (0, 30);
/// How long the agent may take to evict for a disk: containerd says within a minute what writable layers take, and what is
/// unused is removed first.
pub(crate) const EVICTED: Duration = Duration::from_mins(3);
/// containerd counts writable layers every ten seconds.
pub(crate) const COUNTED: Duration = Duration::from_secs(12);

/// A file system of its own as the kubelet's directory.
pub(crate) struct OwnNodeFs;

impl OwnNodeFs {
    /// A tmpfs with these bounds.
    pub(crate) fn mount(bounds: &CStr) -> Result<Self> {
        fs::create_dir_all(KUBELET)?;
        mount("tmpfs", KUBELET, "tmpfs", MountFlags::empty(), bounds)
            .context("cannot mount the kubelet's directory")?;
        Ok(Self)
    }
}

impl Drop for OwnNodeFs {
    fn drop(&mut self) {
        // Containers have volumes in it until they are removed.
        let _ = unmount(KUBELET, UnmountFlags::DETACH);
    }
}

/// A file that is removed in any case.
pub(crate) struct Filler;

impl Filler {
    pub(crate) fn write(mib: u64) -> Result<Self> {
        fill(Path::new(FILLER), mib)?;
        rustix::fs::sync();
        Ok(Self)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = fs::remove_file(FILLER);
    }
}

fn fill(file: &Path, mib: u64) -> Result<()> {
    fs::write(file, vec![1; usize::try_from(mib * MIB)?]).with_context(|| format!("cannot write {}", file.display()))
}

/// A pod that does nothing, with so much in its volume and in its container's writable layer.
pub(crate) struct Filled {
    pub(crate) pod: Pod,
    /// The root directory of its container.
    pub(crate) root: PathBuf,
}

impl Filled {
    pub(crate) fn make(node: &mut Node, name: &str, sizes: [u64; 2]) -> Result<Self> {
        Self::with_priority(node, name, USUAL.0, sizes)
    }

    fn with_priority(node: &mut Node, name: &str, priority: i32, [volume, layer]: [u64; 2]) -> Result<Self> {
        let pod = node.pod(name, Class::BestEffort, (priority, USUAL.1))?;
        let container = pod.start(&node.client, "main", &["idle", "--mib", "1"])?;
        let scope = container_cgroup(&pod, &container)?;
        let mut process = String::new();
        wait_for("the container runs", PATIENCE, || {
            scope.read("cgroup.procs")?.lines().next().unwrap_or_default().clone_into(&mut process);
            Ok(!process.is_empty())
        })?;
        let filled = Self { pod, root: Path::new("/proc").join(process).join("root") };
        if volume > 0 {
            filled.fill_volume(volume)?;
        }
        if layer > 0 {
            fill(&filled.root.join("file"), layer)?;
        }
        Ok(filled)
    }

    pub(crate) fn fill_volume(&self, mib: u64) -> Result<()> {
        fill(&self.pod.volume().join("file"), mib)
    }

    /// Waits until nothing of it runs, and its eviction is reported with this message.
    pub(crate) fn await_eviction(&self, message: &str) -> Result<()> {
        let cgroup = self.pod.cgroup()?;
        wait_for("the pod is evicted", EVICTED, || Ok(!cgroup.populated()?))
            .with_context(|| format!("of {}, for {message:?}; {}", self.pod.name, logged()))?;
        let line = format!("evict {} (pod {}): {message}", self.pod.path(), self.pod.full_name());
        let is_said = || Ok(lines()?.iter().any(|it| it["message"].as_str().is_some_and(|it| it.starts_with(&line))));
        wait_for("the eviction is reported", PATIENCE, is_said).with_context(|| format!("{line}; {}", logged()))
    }

    /// Removes its volume, as the kubelet does once the pod is deleted.
    pub(crate) fn lose_volume(&self) -> Result<()> {
        fs::remove_dir_all(self.pod.volume()).with_context(|| format!("the volume of {}", self.pod.name))
    }
}

/// The pod that takes inodes of the kubelet's disk is evicted, and the one that takes bytes is not. The condition is over
/// once its volume is gone.
pub(crate) fn inodes_of_nodefs() -> Result<()> {
    let disk = OwnNodeFs::mount(c"size=64M,nr_inodes=4000")?;
    let mut node = Node::new()?;
    let bytes = Filled::make(&mut node, "bytes", [24, 0])?;
    let many = Filled::make(&mut node, "inodes", [0, 0])?;
    node.start_agent(&format!(
        "evictionHard: {{memory.available: \"{FAR}\", nodefs.inodesFree: \"1000\"}}\n\
         evictionPressureTransitionPeriod: 5s\n"
    ))?;
    await_metric("plimsoll_disk_read{disk=\"nodefs\"} 1", PATIENCE)?;
    await_metric("plimsoll_disk_pressure 0", PATIENCE)?;
    for number in 0..3_500 {
        File::create(many.pod.volume().join(number.to_string()))?;
    }
    many.await_eviction("The node was low on resource: inodes. Threshold quantity: 1k, available: ")?;
    await_metric("plimsoll_disk_pressure 1", PATIENCE)?;
    many.lose_volume()?;
    await_metric("plimsoll_disk_pressure 0", PATIENCE)?;
    node.expect_room()?;
    let ended = node.end(&[&many.pod], &[&bytes.pod]);
    drop(disk);
    ended
}

/// For the kubelet's disk pods rank by their priority, and then by volumes and logs, not by a writable layer that is
/// elsewhere, and are evicted until the threshold and its minimum reclaim are available, where the first victim alone is
/// enough for the threshold.
pub(crate) fn minimum_reclaim_of_nodefs() -> Result<()> {
    let disk = OwnNodeFs::mount(c"size=128M")?;
    let mut node = Node::new()?;
    let layered = Filled::make(&mut node, "layered", [0, 48])?;
    let spared = Filled::with_priority(&mut node, "spared", 1000, [34, 0])?;
    let second = Filled::make(&mut node, "second", [26, 0])?;
    let first = Filled::make(&mut node, "first", [0, 0])?;
    node.start_agent(&format!(
        "evictionHard: {{memory.available: \"{FAR}\", nodefs.available: 40Mi}}\n\
         evictionMinimumReclaim: {{nodefs.available: 40Mi}}\nevictionPressureTransitionPeriod: 5s\n"
    ))?;
    await_metric("plimsoll_disk_read{disk=\"nodefs\"} 1", PATIENCE)?;
    // 30 of 128 MiB are left.
    first.fill_volume(38)?;
    let low = "The node was low on resource: ephemeral-storage. Threshold quantity: 40Mi, available: ";
    first.await_eviction(low)?;
    // 68 MiB are left, less than the threshold and its minimum reclaim.
    first.lose_volume()?;
    second.await_eviction(low)?;
    second.lose_volume()?;
    await_metric("plimsoll_disk_pressure 0", PATIENCE)?;
    node.expect_room()?;
    let ended = node.end(&[&first.pod, &second.pod], &[&layered.pod, &spared.pod]);
    drop(disk);
    ended
}

/// Images and writable layers have another disk than the kubelet's directory, and that is short: what is unused is removed
/// first, and is not enough. Then pods are evicted by their writable layers, and not the one with the largest volume, until
/// the threshold and its minimum reclaim are available.
pub(crate) fn imagefs_of_its_own() -> Result<()> {
    let disk = OwnNodeFs::mount(c"size=96M")?;
    let mut node = Node::new()?;
    let imported = import(&node.client, UNUSED, 2).and_then(|()| evict_for_imagefs(&mut node));
    let killed = match imported {
        Ok(pods) => node.end(&[&pods[0].pod, &pods[1].pod], &[&pods[2].pod]),
        Err(error) => Err(error),
    };
    drop(disk);
    killed
}

/// An image that no container uses. It takes some 24 MiB, packed and unpacked.
const UNUSED: &str = "unused-apart";

fn evict_for_imagefs(node: &mut Node) -> Result<[Filled; 3]> {
    let first = Filled::make(node, "first", [0, 40])?;
    let second = Filled::make(node, "second", [0, 32])?;
    let in_volume = Filled::make(node, "in-volume", [56, 0])?;
    thread::sleep(COUNTED);
    let hard = available()? - 20 * MIB;
    node.start_agent(&format!(
        "evictionHard: {{memory.available: \"{FAR}\", imagefs.available: \"{hard}\"}}\n\
         evictionMinimumReclaim: {{imagefs.available: 40Mi}}\nevictionPressureTransitionPeriod: 5s\n\
         imageMinimumGCAge: 2s\n",
    ))?;
    let known = "the container runtime has 3 writable layers";
    wait_for("writable layers are known", EVICTED, || Ok(journal()?.contains(known))).with_context(logged)?;
    await_metric("plimsoll_disk_read{disk=\"imagefs\"} 1", PATIENCE)?;
    // Some 40 MiB below the threshold, and 16 once the image is gone, whatever was freed since that was computed.
    let filler = Filler::write((available()? + 40 * MIB).saturating_sub(hard) / MIB)?;
    first.await_eviction("The node was low on resource: ephemeral-storage. Threshold quantity: ")?;
    expect_images_first(&lines()?).with_context(logged)?;
    ensure!(!node.client.has_image(&name(UNUSED))?, "the unused image is still there; {}", logged());
    // As a kubelet does with a pod that is gone. The threshold itself is available again then.
    containerd::remove_sandbox(&node.client, &first.pod.sandbox)?;
    second.await_eviction("The node was low on resource: ephemeral-storage. Threshold quantity: ")?;
    containerd::remove_sandbox(&node.client, &second.pod.sandbox)?;
    await_metric("plimsoll_disk_pressure 0", EVICTED)?;
    node.expect_room()?;
    drop(filler);
    Ok([first, second, in_volume])
}

/// Images and writable layers have another disk than the kubelet's directory, and that is short of inodes: the pod whose
/// writable layer has many is evicted, and not the one whose layer has many bytes.
pub(crate) fn inodes_of_imagefs() -> Result<()> {
    let disk = OwnNodeFs::mount(c"size=64M")?;
    let mut node = Node::new()?;
    let bytes = Filled::make(&mut node, "bytes", [0, 40])?;
    let many = Filled::make(&mut node, "inodes", [0, 0])?;
    make_files(&many.root.join("files"), MANY)?;
    thread::sleep(COUNTED);
    let left = inodes_left()?;
    let hard = left - u64::from(MANY / 3);
    node.start_agent(&format!(
        "evictionHard: {{memory.available: \"{FAR}\", imagefs.inodesFree: \"{hard}\"}}\n\
         evictionPressureTransitionPeriod: 5s\n"
    ))?;
    let known = "the container runtime has 2 writable layers";
    wait_for("writable layers are known", EVICTED, || Ok(journal()?.contains(known))).with_context(logged)?;
    await_metric("plimsoll_disk_read{disk=\"imagefs\"} 1", PATIENCE)?;
    await_metric("plimsoll_disk_pressure 0", PATIENCE)?;
    make_files(Path::new(FILLER), MANY / 2)?;
    many.await_eviction("The node was low on resource: inodes. Threshold quantity: ")?;
    containerd::remove_sandbox(&node.client, &many.pod.sandbox)?;
    await_metric("plimsoll_disk_pressure 0", EVICTED)?;
    node.expect_room()?;
    fs::remove_dir_all(FILLER)?;
    let ended = node.end(&[&many.pod], &[&bytes.pod]);
    drop(disk);
    ended
}

/// How many inodes a pod takes.
pub(crate) const MANY: u32 = 3000;

pub(crate) fn make_files(directory: &Path, files: u32) -> Result<()> {
    fs::create_dir(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    for number in 0..files {
        File::create(directory.join(number.to_string()))?;
    }
    Ok(())
}

/// By the log an image was removed, and only then a pod evicted for imagefs.
fn expect_images_first(lines: &[Value]) -> Result<()> {
    let place = |is: &dyn Fn(&Value) -> bool| lines.iter().position(is);
    let removed = place(&|line| line["images"].as_u64().is_some_and(|images| images > 0) && line["order"].is_u64());
    let evicted = place(&|line| line["cause"] == "imagefs.available");
    ensure!(removed.is_some() && removed < evicted, "images at line {removed:?}, a pod at {evicted:?}");
    Ok(())
}

/// On one disk: a pod over the limit of its only container by a writable layer, which is the sum of its containers' limits
/// and is held against the pod first, one over that sum by a layer and its volume together, and one over the limit of its
/// volume are evicted, each with the kubelet's message, and one that is below all of them is not.
pub(crate) fn limits_of_local_storage() -> Result<()> {
    let mut node = Node::new()?;
    let mut make = |name, sizes, container, volume| {
        let filled = Filled::make(&mut node, name, sizes)?;
        node.limit_storage(&filled.pod, container, volume)?;
        Ok::<_, anyhow::Error>(filled)
    };
    let over_container = make("over-container", [0, 12], Some("8Mi"), None)?;
    let over_pod = make("over-pod", [16, 16], Some("24Mi"), None)?;
    let over_volume = make("over-volume", [8, 0], None, Some("4Mi"))?;
    let below = make("below", [8, 12], Some("24Mi"), Some("16Mi"))?;
    thread::sleep(COUNTED);
    node.start_agent(&format!("evictionHard: {{memory.available: \"{FAR}\"}}\n"))?;
    over_volume.await_eviction("Usage of EmptyDir volume \"volume\" exceeds the limit \"4Mi\".")?;
    over_container.await_eviction("Pod ephemeral local storage usage exceeds the total limit of containers 8Mi.")?;
    over_pod.await_eviction("Pod ephemeral local storage usage exceeds the total limit of containers 24Mi.")?;
    let mut killed = vec![&over_container.pod, &over_pod.pod, &over_volume.pod];
    node.expect_room()?;
    let at = |pod: &&Pod| kills(pod, "begun").ok().and_then(|kills| number(kills.first()?, "at_ns").ok());
    killed.sort_by_key(at);
    ensure!(killed.iter().all(|pod| at(pod).is_some()), "{}", tail(&journal()?));
    node.end(&killed, &[&below.pod])
}
