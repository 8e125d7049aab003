//! The disk of the kubelet's directory: a pod that takes what is left of it is evicted, and the condition comes and goes.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use plimsoll_cluster_suite::wait_for;
use serde_json::{Value, json};

use crate::eviction::{SETTLED, never_restarted, recorded_for};
use crate::turn::Turn;
use crate::view::{self, IDLE, pod};
use crate::{NODE, PATIENCE, overlay, service_manager};

pub(crate) const CONDITION: &str = "PlimsollDiskPressure";
/// How far the thresholds are below what is left before, in MiB and inodes: more than a node writes by itself meanwhile.
const ROOM: u64 = 256;
const ROOM_INODES: u64 = 4000;
/// MiB that the pod writes, and of the directories that it makes, each of which counts as one KiB.
const WRITTEN: &str = "400";
const MADE: &str = "8";
/// The grace of a soft threshold, and how late the condition may be seen.
const GRACE: Duration = Duration::from_secs(40);
const SEEN: Duration = Duration::from_secs(10);
/// An image that no pod uses, and MiB of its only file.
const UNUSED: &str = "plimsoll.test/unused:1";
const IMAGE_MIB: u64 = 100;
/// What else takes room on the disk, in MiB: too much beside the image, and not without it.
const FILLER: &str = "/var/lib/filler";
const FILLED: u64 = ROOM + IMAGE_MIB / 2;

#[test]
fn a_pod_that_fills_the_disk_is_evicted_and_the_condition_ends() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let threshold = threshold(&turn);
    let writer = in_volume("writer", &["tmpfs", "--keep", "--mib", WRITTEN]);
    evicted_for(&turn, "nodefs.available", &threshold, &writer, "ephemeral-storage");
}

#[test]
fn a_pod_that_takes_the_inodes_of_the_disk_is_evicted_and_the_condition_ends() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let writer = in_volume("writer", &["dirs", "--mib", MADE]);
    evicted_for(&turn, "nodefs.inodesFree", &inodes(&turn), &writer, "inodes");
}

/// The layer of a container that has ended stays until the container runtime is asked to remove it.
#[test]
fn a_pod_that_takes_the_inodes_of_the_disk_in_its_containers_layer_is_evicted_and_the_condition_ends() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let writer = pod("writer", &["hog", "dirs", "--mib", MADE, "--path", "/"]);
    let mut console = turn.console(NODE).expect("it is there");
    evicted_for(&turn, "nodefs.inodesFree", &inodes(&turn), &writer, "inodes");
    let lines = console.read().expect("it is read");
    let killed = lines.iter().position(|line| line.contains("\"kill\":\"begun\"")).expect("it is logged");
    let is_of_layers =
        |line: &String| line.contains("\"message\":\"removed ") && !line.contains("removed 0 containers");
    assert!(lines[killed..].iter().any(is_of_layers), "the agent had no container removed after the kill");
}

/// The condition is there before the grace is over, and the pod goes after it.
#[test]
fn a_pod_that_fills_the_disk_is_evicted_once_the_grace_of_a_soft_threshold_is_over() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let threshold = threshold(&turn);
    let soft = format!(
        "evictionSoft: {{nodefs.available: {threshold}}}\nevictionSoftGracePeriod: {{nodefs.available: {}s}}\n\
         evictionMaxPodGracePeriod: 5",
        GRACE.as_secs()
    );
    let configuration = overlay::AS_THE_KUBELET.replacen('\n', &format!("\n{soft}\n"), 1);
    turn.install(&keeping(&configuration)).expect("it is installed");
    turn.becomes(CONDITION, "False").expect("there is room");
    turn.create(&in_volume("writer", &["tmpfs", "--keep", "--mib", WRITTEN])).expect("it is accepted");
    turn.becomes(CONDITION, "True").expect("there is no room");
    let short = Instant::now();
    turn.is_evicted("writer").expect("it is evicted");
    assert!(short.elapsed() + SEEN > GRACE, "it was evicted {:?} after the condition", short.elapsed());
    recorded_for(&turn, "writer", "ephemeral-storage", &threshold).expect("as the kubelet does");
    turn.becomes(CONDITION, "False").expect("its volume went with it");
    never_restarted(&turn, "writer").expect("it stays dead");
}

/// Where that is enough, nothing else goes.
#[test]
fn an_unused_image_is_removed_and_no_pod_is_evicted() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    service_manager::start(&turn, "imports", &["/usr/bin/sh", "-c", &import()]).expect("it is started");
    has_image(&turn, true).expect("containerd takes it in");
    // What it was imported from is gone in what the kubelet has read by then.
    thread::sleep(SETTLED);
    let threshold = threshold(&turn);
    let configuration = format!("imageMinimumGCAge: 5s\n{}", with_threshold("imagefs.available", &threshold));
    turn.install(&configuration).expect("it is installed");
    turn.becomes(CONDITION, "False").expect("there is room");
    turn.create(&in_volume("bystander", &["tmpfs", "--keep", "--mib", "8"])).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    let fill = format!("PATH=/usr/bin; fallocate -l {FILLED}M {FILLER}; sleep 120; rm {FILLER}");
    service_manager::start(&turn, "fills", &["/usr/bin/sh", "-c", &fill]).expect("it is started");
    turn.becomes(CONDITION, "True").expect("there is no room");
    has_image(&turn, false).expect("it is removed");
    turn.becomes(CONDITION, "False").expect("there is room");
    turn.runs("bystander").expect("it runs on");
    let bystander = view::stored(&turn, "bystander").expect("it is there");
    assert_eq!(view::events(&turn, &bystander, "Evicted").expect("a list"), [Value::Null; 0]);
}

/// Waits until the kubelet reports the image, or reports it no more.
fn has_image(turn: &Turn, expected: bool) -> Result<()> {
    wait_for(&format!("whether the node has {UNUSED} is {expected}"), PATIENCE, || {
        let node = turn.api.get(&format!("/api/v1/nodes/{NODE}"))?.object()?;
        let images = node["status"]["images"].to_string();
        Ok((images.contains(UNUSED) == expected).then_some(()))
    })
}

/// A script that has containerd import an image which no pod uses, and which takes twice what its only file does: as it came,
/// and unpacked.
fn import() -> String {
    format!(
        "set -e; PATH=/usr/bin; rm -rf /var/lib/import; mkdir /var/lib/import; cd /var/lib/import
busybox dd if=/dev/zero of=file bs=1M count={IMAGE_MIB}
busybox tar -cf layer.tar file
sum=$(busybox sha256sum layer.tar | busybox cut -d ' ' -f 1)
echo '{{\"architecture\":\"amd64\",\"os\":\"linux\",\"config\":{{}},' > config.json
echo '\"rootfs\":{{\"type\":\"layers\",\"diff_ids\":[\"sha256:'$sum'\"]}}}}' >> config.json
echo '[{{\"Config\":\"config.json\",\"RepoTags\":[\"{UNUSED}\"],\"Layers\":[\"layer.tar\"]}}]' > manifest.json
busybox tar -cf image.tar manifest.json config.json layer.tar
ctr --namespace k8s.io images import image.tar
rm -r /var/lib/import"
    )
}

/// Some bytes less than the kubelet has left now, as a quantity.
pub(crate) fn threshold(turn: &Turn) -> String {
    let left = left(turn, "availableBytes").expect("the kubelet reads it") >> 20;
    // Odd, so that it is printed as it is written.
    format!("{}Mi", (left - ROOM) | 1)
}

/// Some inodes less than the kubelet has left now, as a quantity.
fn inodes(turn: &Turn) -> String {
    ((left(turn, "inodesFree").expect("the kubelet reads it") - ROOM_INODES) | 1).to_string()
}

/// This pod, named `writer`, takes so much that less than the threshold is left.
fn evicted_for(turn: &Turn, signal: &str, threshold: &str, writer: &Value, resource: &str) {
    turn.install(&with_threshold(signal, threshold)).expect("it is installed");
    turn.becomes(CONDITION, "False").expect("there is room");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    turn.create(writer).expect("it is accepted");
    turn.becomes(CONDITION, "True").expect("there is no room");
    turn.is_evicted("writer").expect("it is evicted");
    turn.becomes(CONDITION, "False").expect("what it took went with it");
    recorded_for(turn, "writer", resource, threshold).expect("as the kubelet does");
    never_restarted(turn, "writer").expect("it stays dead");
    turn.runs("bystander").expect("it runs on");
    // Without the taint.
    turn.pressure_ends().expect("there is room");
    turn.create(&pod("next", &IDLE)).expect("it is accepted");
    turn.runs("next").expect("there is room");
}

/// [`overlay::SENSITIVE`] with this threshold instead.
pub(crate) fn with_threshold(signal: &str, threshold: &str) -> String {
    keeping(&overlay::SENSITIVE.replace("memory.available: 1200Mi", &format!("{signal}: \"{threshold}\"")))
}

/// With the image of the tests' programs kept, which the node could not get again, also where no pod uses it.
fn keeping(configuration: &str) -> String {
    configuration.replace("machine:\n", "machine:\n  imagesNeverRemoved: [\"plimsoll.test/guest*\"]\n")
}

/// What the kubelet has left on the disk.
fn left(turn: &Turn, key: &str) -> Result<u64> {
    let summary = turn.api.get(&format!("/api/v1/nodes/{NODE}/proxy/stats/summary"))?.object()?;
    summary["node"]["fs"][key].as_u64().with_context(|| format!("no {key} in {}", summary["node"]["fs"]))
}

/// A pod that takes this in an emptyDir.
pub(crate) fn in_volume(name: &str, takes: &[&str]) -> Value {
    let mut pod = pod(name, &[&["hog"], takes, &["--path", "/cache"]].concat());
    view::mount(&mut pod["spec"], &json!({"name": "cache", "emptyDir": {}}), "/cache");
    pod
}
