//! Pods by hand, as many as a dense node has: the cgroups that systemd's driver makes of a sandbox and a container, the
//! directories of a volume and of logs with a file in each, and what the API server has of them. Nothing runs in them.

use crate::block::Slow;
use crate::pods_tests::{FACTS, Pod, write_facts};
use anyhow::{Context as _, Result, ensure};
use rustix::mount::{MountFlags, mount, mount_bind};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

/// As the kubelet has them.
const VOLUMES: &str = "/var/lib/kubelet/pods";
const LOGS: &str = "/var/log/pods";
/// What is on the node's disk, and how large that is: a dense node has no smaller one.
const ON_DISK: [&str; 3] = ["/var/lib/kubelet", "/var/lib/containerd", LOGS];
const DISK_MIB: u64 = 200 << 10;

/// Puts the node's directories on a disk of their own, which is there as long as the result is.
pub(super) fn disk() -> Result<Slow> {
    const PLACE: &str = "/mnt";
    let disk = Slow::in_memory("node", DISK_MIB)?;
    // A file system that is not written in the background.
    let lazily = ["-q", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard"];
    let made =
        Command::new("/usr/sbin/mkfs.ext4").args(lazily).arg(&disk.device).status().context("cannot run mkfs.ext4")?;
    ensure!(made.success(), "mkfs.ext4: {made}");
    mount(&disk.device, PLACE, "ext4", MountFlags::empty(), c"noinit_itable")
        .context("cannot mount the node's disk")?;
    for (number, directory) in ON_DISK.iter().enumerate() {
        let there = Path::new(PLACE).join(number.to_string());
        for made in [Path::new(directory), &there] {
            fs::create_dir_all(made).with_context(|| format!("cannot make {}", made.display()))?;
        }
        mount_bind(&there, *directory).with_context(|| format!("cannot bind {directory}"))?;
    }
    Ok(disk)
}

/// Makes the next one, and adds what is known of it.
pub(super) fn make(number: u32, known: &mut Vec<Value>) -> Result<()> {
    let number = u16::try_from(number).context("too many pods")?;
    let (class, resources) = if number.is_multiple_of(2) {
        ("burstable", json!({"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}))
    } else {
        ("besteffort", json!({}))
    };
    let mut pod = Pod::create(class, number, 0, &resources)?;
    pod.beside("cri-containerd", u16::MAX - number)?;
    add_rest(&mut pod.facts);
    let (name, uid) = (&pod.facts["metadata"]["name"], &pod.facts["metadata"]["uid"]);
    let (name, uid) = (name.as_str().unwrap_or_default(), uid.as_str().unwrap_or_default());
    let volume = Path::new(VOLUMES).join(uid).join("volumes/kubernetes.io~empty-dir/scratch");
    let logs = Path::new(LOGS).join(format!("test_{name}_{uid}/c"));
    for (folder, file) in [(volume, "file"), (logs, "0.log")] {
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::write(folder.join(file), "a line\n")?;
    }
    known.push(pod.facts);
    Ok(())
}

/// Has the agent find them.
pub(super) fn list(known: &[Value]) -> Result<()> {
    write_facts(FACTS, &json!({"items": known}).to_string())
}

/// What a Deployment's pod has besides: the file of all of them is as long as on a node.
fn add_rest(facts: &mut Value) {
    const TIME: &str = "2026-01-01T00:00:00Z";
    let meta = &mut facts["metadata"];
    meta["labels"] = json!({"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "web-production",
        "app.kubernetes.io/version": "1.2.3", "pod-template-hash": "5d8f7c9b6d"});
    meta["annotations"] = json!({"prometheus.io/scrape": "true", "prometheus.io/port": "9102"});
    meta["creationTimestamp"] = TIME.into();
    meta["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d8f7c9b6d",
        "uid": "0c000000-0000-4000-8000-00000000000c", "controller": true, "blockOwnerDeletion": true}]);
    let spec = &mut facts["spec"];
    spec["volumes"] = json!([{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "configuration", "configMap": {"name": "web", "defaultMode": 420}}]);
    spec["tolerations"] = json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]);
    spec["terminationGracePeriodSeconds"] = 30.into();
    let container = &mut spec["containers"][0];
    container["image"] = "registry.example/web:1.2.3".into();
    container["env"] = json!([{"name": "LOG_LEVEL", "value": "info"}, {"name": "POD_NAME",
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}]);
    container["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"},
        {"name": "configuration", "mountPath": "/etc/web", "readOnly": true}]);
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10});
    (container["livenessProbe"], container["readinessProbe"]) = (probe.clone(), probe);
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": TIME});
    let status = &mut facts["status"];
    status["conditions"] =
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"].map(condition).into();
    status["containerStatuses"] = json!([{"name": "c", "ready": true, "restartCount": 0, "started": true,
        "image": "registry.example/web:1.2.3", "state": {"running": {"startedAt": TIME}}}]);
}
