//! A disk of a node that a containerd fills with images: what is unused is removed, and nothing else.

use crate::agent::tail;
use crate::containerd::{self, Driver, IMAGE, SANDBOX_IMAGE};
use crate::cri::{Client, SOCKET};
use crate::machine::{KernelLog, wait_for};
use crate::node::lines;
use crate::node_tests::{begun_kills, is_whole, logged};
use crate::pod::{Class, Pod};
use crate::scene::{MIB, PATIENCE, held};
use crate::suite::figure;
use crate::systemd::{CONFIGURATION, UNIT, journal, systemctl};
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{statvfs, sync};
use serde_json::Value;
use std::fs;
use std::thread;
use std::time::Duration;

/// Where containerd keeps images, and beside it the kubelet what is its own: one disk.
const IMAGES: &str = "/var/lib/containerd";
/// What the only file of an image takes. The image takes that twice, packed and unpacked.
const FILE_BYTES: u64 = 6 * MIB;
/// An image that was first seen less than this ago is not removed.
const MIN_AGE: Duration = Duration::from_secs(6);
/// How long the condition lasts beyond what causes it.
const TRANSITION: Duration = Duration::from_secs(10);
/// How long the agent may take to have all of it removed. It tries again after pauses of ten seconds and more.
const REMOVED: Duration = Duration::from_mins(2);

/// The name of an image of these tests.
pub(crate) fn name(image: &str) -> String {
    format!("plimsoll.test/{image}:1")
}

/// Gives containerd an image of so many files' size.
pub(crate) fn import(client: &Client, image: &str, files: u64) -> Result<()> {
    // No two have a layer in common.
    let seed = image.bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    let mut file = vec![seed; usize::try_from(files * FILE_BYTES)?];
    file[..image.len()].copy_from_slice(image.as_bytes());
    containerd::import(client, &name(image), &file)
}

/// What is left on the disk of images, with everything written.
pub(crate) fn available() -> Result<u64> {
    sync();
    let left = statvfs(IMAGES).with_context(|| format!("cannot read {IMAGES}"))?;
    Ok(left.f_bavail * left.f_frsize)
}

/// How many inodes are left there.
pub(crate) fn inodes_left() -> Result<u64> {
    Ok(statvfs(IMAGES).with_context(|| format!("cannot read {IMAGES}"))?.f_ffree)
}

/// Images that stay, whatever happens: why stands in their names.
const KEPT: [&str; 4] = ["never-removed", "pinned", "of-the-newest-dead-container", "just-pulled"];
/// Images that go: the last one once its container is gone.
const REMOVED_IMAGES: [&str; 3] = ["unused-1", "unused-2", "of-an-older-dead-container"];

fn configure(threshold_bytes: u64) -> Result<()> {
    let text = format!(
        "evictionHard: {{imagefs.available: \"{threshold_bytes}\", memory.available: 16Mi}}
evictionPressureTransitionPeriod: {}s
imageMinimumGCAge: {}s
machine:
  workloads:
    - {{match: kubepods.slice/*/kubepods-*, priority: 0}}
  imagesNeverRemoved: [plimsoll.test/never-*]
  kubeletRoot: /var/lib/kubelet
  runtimeSocket: {}
  logFormat: json
",
        TRANSITION.as_secs(),
        MIN_AGE.as_secs(),
        SOCKET.trim_start_matches("unix://")
    );
    fs::write(CONFIGURATION, text).with_context(|| format!("cannot write {CONFIGURATION}"))
}

/// What the log says of the condition, in order, each once.
fn conditions() -> Result<Vec<bool>> {
    let lines = lines()?;
    let of = lines.iter().filter(|line| line["condition"] == "DiskPressure");
    let mut said: Vec<bool> = of.filter_map(|line| line["status"].as_bool()).collect();
    said.dedup();
    Ok(said)
}

/// Images are pulled until the disk is short: dead containers, sandboxes that have ended, and then unused images are removed,
/// those that are pinned, used, just pulled or never to be removed stay, and no pod is evicted. The condition ends with its
/// transition period.
pub(crate) fn removes_what_is_unused() -> Result<()> {
    let client = &containerd::start(Driver::Systemd)?;
    let before = available()?;
    let (fresh, others) = (KEPT[3], KEPT[..3].iter().chain(&REMOVED_IMAGES));
    for image in others {
        import(client, image, 1)?;
    }
    containerd::pin(&name("pinned"))?;
    let reports_pinned = containerd::reports_pinned()?;
    wait_for("the image is pinned", PATIENCE, || {
        Ok(!reports_pinned || client.image(&name("pinned"))?.is_some_and(|image| image.pinned))
    })?;
    // A pinned image that is not reported as such is unused, too, and may be the first to go.
    let unused = if reports_pinned { 3 } else { 4 };
    let image_bytes = (before - available()?) / 6;
    figure("image", &[("on-disk-bytes", &image_bytes)]);
    let pod = Pod::make(client, Driver::Systemd, "bystander", Class::Burstable)?;
    pod.start(client, "main", &["idle", "--mib", "16"])?;
    let old = pod.create(client, ("dead", 0), &name("of-an-older-dead-container"), &[])?;
    let newest = pod.create(client, ("dead", 1), &name("of-the-newest-dead-container"), &[])?;
    // Its sandbox has ended, and was made anew: of two the newest is kept.
    let restarted = Pod::make(client, Driver::Systemd, "restarted", Class::BestEffort)?;
    client.stop_sandbox(&restarted.sandbox)?;
    let again = client.run_sandbox(restarted.sandbox_again())?;
    // What is pulled then is as much as all that is unused.
    configure(available()?.saturating_sub(image_bytes / 2))?;
    let mut audit = KernelLog::from_now()?;
    systemctl(&["start", UNIT]).with_context(logged)?;
    let named = "the container runtime names 2 pods";
    wait_for("the runtime answers", PATIENCE, || Ok(journal()?.contains(named))).with_context(logged)?;
    wait_for("the disk is read", PATIENCE, || Ok(conditions()? == [false])).with_context(logged)?;
    // Images are old enough then, since they were listed first.
    thread::sleep(MIN_AGE + Duration::from_secs(3));
    import(client, fresh, unused)?;
    wait_for("the disk is short", PATIENCE, || Ok(conditions()?.contains(&true))).with_context(logged)?;
    wait_for("what is unused is removed", REMOVED, || {
        for image in REMOVED_IMAGES {
            if client.has_image(&name(image))? {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .with_context(logged)?;
    ensure!(client.status(&old).is_err(), "the older dead container is still there");
    client.status(&newest).context("the newest dead container was removed")?;
    let sandboxes = client.sandboxes()?;
    ensure!(!sandboxes.contains(&restarted.sandbox), "the sandbox that has ended is still there");
    ensure!(sandboxes.contains(&again), "the sandbox that was made anew was removed");
    wait_for("the condition is over", PATIENCE, || Ok(conditions()? == [false, true, false])).with_context(logged)?;
    for image in KEPT.map(name).iter().map(String::as_str).chain([IMAGE, SANDBOX_IMAGE]) {
        let is_kept = reports_pinned || image != name("pinned");
        ensure!(client.has_image(image)? == is_kept, "{image} was removed or kept; {}", logged());
    }
    expect_results(&lines()?, unused).with_context(logged)?;
    is_whole(&pod)?;
    systemctl(&["stop", UNIT])?;
    let log = journal()?;
    ensure!(begun_kills(&log).is_empty(), "it killed; {}", tail(&log));
    ensure!(held().is_empty(), "something stays frozen or stopped");
    let mut barred = audit.barred_calls()?;
    barred.retain(|line| line.contains(" uid=65525 "));
    ensure!(barred.is_empty(), "services needs system calls that its filter bars: {barred:?}");
    Ok(())
}

/// By what is reported a container, a sandbox and so many images went, by orders that were carried out one after the other.
fn expect_results(lines: &[Value], images: u64) -> Result<()> {
    let results: Vec<&Value> = lines.iter().filter(|line| line["freed_bytes"].is_u64()).collect();
    let numbers: Vec<u64> = results.iter().filter_map(|line| line["order"].as_u64()).collect();
    ensure!(numbers.len() >= 2 && numbers.is_sorted_by(|one, next| one < next), "results of orders {numbers:?}");
    let sum = |field: &str| results.iter().filter_map(|line| line[field].as_u64()).sum::<u64>();
    let removed = ["containers", "sandboxes", "images"].map(sum);
    ensure!(removed == [1, 1, images], "containers, sandboxes and images removed: {removed:?}");
    let freed = sum("freed_bytes");
    ensure!(freed >= images * FILE_BYTES, "{freed} bytes were freed");
    Ok(())
}
