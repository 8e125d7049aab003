//! What is taken from a pod of the API.

use crate::spec::{Container, FieldError, STORAGE, Spec, bytes};
use core::time::Duration;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use plimsoll_policy::kubelet::{self, Amount, PodSpec, PodStats, QosClass};
use plimsoll_policy::oom_score::oom_score_adj;
use plimsoll_policy::{Key, OwnerUid, Protected, Terminating, Uid, Workload};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The priority class of pods without which a node is none.
const NODE_CRITICAL: &str = "system-node-critical";
/// How long a pod may take to be gone once its grace is over and it is killed; one that takes longer is stuck.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// A pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "api::Pod")]
pub struct Pod {
    /// Its namespace; empty for none.
    pub namespace: String,
    /// Its name within that.
    pub name: String,
    /// Its UID as it is written, by which statistics and cgroups are joined; empty for none.
    pub uid: String,
    /// Of a mirror pod, the UID of the static pod that it stands for (`kubernetes.io/config.hash`). Of a pod without
    /// `kubernetes.io/config.mirror`, which runs by itself, none.
    pub static_uid: Option<String>,
    /// The DaemonSet that is its controller.
    pub daemon_set: Option<DaemonSet>,
    /// The node that it was given to; empty for none.
    pub node: String,
    /// It has succeeded or failed: nothing of it runs.
    pub has_ended: bool,
    /// When it was started, on a clock that begins in 1970; absent if the status does not say.
    pub started: Option<MonotonicNs>,
    /// Its deletion was asked for, and its grace is over then, on the same clock.
    pub ends: Option<MonotonicNs>,
    /// What the kubelet's code computes from the specification; without its lists, which [`Observed`] has.
    ///
    /// [`Observed`]: crate::Observed
    pub facts: kubelet::Pod<'static>,
    /// Its class.
    pub qos: QosClass,
    /// It is critical and of the class `system-node-critical`.
    pub is_node_critical: bool,
    /// Others may wait for it while it is frozen: it is privileged, mounts file systems for them, or is in the machine's PID
    /// namespace.
    is_waited_for: bool,
    /// The directories and files of the machine that it has.
    host_paths: Vec<PathBuf>,
    /// What it requests, with texts for messages.
    pub spec: Spec,
}

/// The owner of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSet {
    /// Its name, in the pod's namespace.
    pub name: String,
    /// Its UID.
    pub uid: OwnerUid,
}

/// On a clock that begins in 1970.
fn since_epoch(Time(time): Time) -> MonotonicNs {
    MonotonicNs(u64::try_from(time.as_nanosecond().max(0)).unwrap_or(u64::MAX))
}

impl TryFrom<api::Pod> for Pod {
    type Error = FieldError;

    fn try_from(api::Pod { metadata, spec, status }: api::Pod) -> Result<Self, FieldError> {
        let (mut spec, mut status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        let (priority, class) = (spec.priority, spec.priority_class_name.take());
        let (node, grace_seconds) = (spec.node_name.take(), spec.termination_grace_period_seconds);
        let (is_waited_for, host_paths) = (is_waited_for(&spec), host_paths(&spec));
        let mut spec = Spec::read(spec)?;
        spec.add_ids(&status);
        let annotations = metadata.annotations.unwrap_or_default();
        let is_mirror = annotations.contains_key("kubernetes.io/config.mirror");
        let qos = spec.with(|spec| spec.qos());
        spec.add_resizes(&status)?;
        let facts = spec.with(|spec| {
            let source = annotations.get("kubernetes.io/config.source").map(String::as_str);
            let spec = PodSpec { priority, source, is_mirror, ..spec };
            kubelet::Pod {
                priority: priority.unwrap_or(0),
                critical: spec.critical(),
                memory_request: spec.memory_request(),
                ephemeral_storage_request: spec.ephemeral_storage_request(),
                ephemeral_storage_limit: spec.ephemeral_storage_limit(),
                grace_seconds,
                ..kubelet::Pod::default()
            }
        });
        let uid = metadata.uid.unwrap_or_default();
        let mut owners = metadata.owner_references.into_iter().flatten();
        // Any other owner is what the pod's author writes: this one's controller takes the pod for its own, and where there is no
        // such object the pod is removed.
        let is_daemon_set = |owner: &OwnerReference| {
            owner.controller == Some(true) && owner.kind == "DaemonSet" && owner.api_version == "apps/v1"
        };
        let daemon_set = owners.find(is_daemon_set);
        Ok(Self {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            static_uid: annotations.get("kubernetes.io/config.hash").filter(|hash| is_mirror && **hash != uid).cloned(),
            uid,
            daemon_set: daemon_set.map(|owner| DaemonSet { uid: OwnerUid(Uid::of(&owner.uid).0), name: owner.name }),
            node: node.unwrap_or_default(),
            has_ended: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            started: status.start_time.take().map(since_epoch),
            ends: metadata.deletion_timestamp.map(since_epoch),
            is_node_critical: facts.critical.is_some() && class.as_deref() == Some(NODE_CRITICAL),
            facts,
            qos,
            is_waited_for,
            host_paths,
            spec,
        })
    }
}

/// The kubelet's directory where no other is named.
const KUBELET: &str = "/var/lib/kubelet";
/// Directories below the kubelet's in which volume plugins have their sockets.
const PLUGINS: [&str; 2] = ["plugins", "plugins_registry"];
/// The device by which a process serves a file system.
const FUSE: &str = "/dev/fuse";

/// Whether others wait for it whatever directories it has.
fn is_waited_for(spec: &api::PodSpec) -> bool {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let containers = containers.map(|it| (&it.security_context, &it.volume_mounts));
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|it| (&it.security_context, &it.volume_mounts));
    let is_bidirectional = |it: &api::VolumeMount| it.mount_propagation.as_deref() == Some("Bidirectional");
    spec.host_pid == Some(true)
        || containers.chain(ephemeral).any(|(security, mounts)| {
            security.as_ref().is_some_and(|it| it.privileged == Some(true))
                || mounts.iter().flatten().any(is_bidirectional)
        })
}

/// The paths of the machine that are its volumes.
fn host_paths(spec: &api::PodSpec) -> Vec<PathBuf> {
    let volumes = spec.volumes.iter().flatten();
    volumes.filter_map(|volume| Some(PathBuf::from(&volume.host_path.as_ref()?.path))).collect()
}

/// A pod of a recording has no cgroup: the end of its UID stands for that.
pub(crate) fn key(uid: Uid) -> Key {
    let [high, low] = [uid.0 >> 64, uid.0].map(|half| u64::try_from(half & u128::from(u64::MAX)).unwrap_or(0));
    Key { slot: 0, id: CgroupId(high ^ low) }
}

pub(crate) fn full_name(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

impl Pod {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        full_name(&self.namespace, &self.name)
    }

    /// Whether a UID in a cgroup's path or in statistics is this pod's. Those of a static pod carry the hash of its
    /// file, which its mirror notes.
    pub fn has_uid(&self, uid: &str) -> bool {
        self.uid == uid || self.static_uid.as_deref() == Some(uid)
    }

    /// Why it is never evicted, if so.
    pub fn protected(&self) -> Option<Protected> {
        self.facts.critical.map(Into::into)
    }

    /// Whether others may wait for it while it is frozen: by what it is, or because it serves them as a volume plugin or through
    /// FUSE, or has a directory above those of plugins or devices. `kubelet`: the kubelet's directory. The usual one counts as
    /// well, which may be a link to it.
    pub fn serves_others(&self, kubelet: &Path) -> bool {
        let roots = [kubelet, Path::new(KUBELET)];
        let plugins = roots.into_iter().flat_map(|root| PLUGINS.map(|name| root.join(name)));
        let served: Vec<_> = plugins.chain([PathBuf::from(FUSE)]).collect();
        let is_served =
            |path: &PathBuf| served.iter().any(|served| path.starts_with(served) || served.starts_with(path));
        self.is_waited_for || self.host_paths.iter().any(is_served)
    }

    /// The memory that it requests.
    pub fn memory_request(&self) -> Bytes {
        bytes(self.facts.memory_request)
    }

    /// The local storage that it requests, and what it may use of it, if any of its containers is limited.
    pub fn storage(&self) -> (Bytes, Option<Bytes>) {
        (bytes(self.facts.ephemeral_storage_request), self.facts.ephemeral_storage_limit.map(bytes))
    }

    /// The limits of its `emptyDir` volumes, by name.
    pub fn volume_limits(&self) -> impl Iterator<Item = (&str, Bytes)> {
        self.spec.volumes.iter().filter_map(|volume| {
            let limit = volume.size_limit.as_ref()?;
            Some((volume.name.as_str(), bytes(limit.amount())))
        })
    }

    /// The limits of its containers' local storage, by name.
    pub fn container_limits(&self) -> impl Iterator<Item = (&str, Bytes)> {
        self.spec.containers.iter().filter_map(|container| {
            let limit = container.resources.limits.get(STORAGE)?;
            Some((container.name.as_str(), bytes(limit.amount())))
        })
    }

    /// How its deletion stands at a time on the clock that begins in 1970.
    pub(crate) fn terminating(&self, now: MonotonicNs) -> Option<Terminating> {
        let of = |end: MonotonicNs| Terminating {
            is_stuck: now > end.after(KILL_PATIENCE),
            is_graceful: end > now,
            until: Some(end),
            ..Terminating::default()
        };
        self.ends.map(of)
    }

    /// As it is decided about when memory is short, on a clock that begins in 1970, with what is measured of it: its
    /// working set, and what of its memory is in swap.
    pub fn for_memory(
        &self,
        working_set: Option<Bytes>,
        swapped: Option<Bytes>,
        now: MonotonicNs,
    ) -> Workload<'static> {
        let uid = Uid::of(&self.uid);
        let of_memory = |working_set: Bytes| PodStats { working_set: Some(working_set.0), ..PodStats::default() };
        Workload {
            key: key(uid),
            uid,
            facts: kubelet::Pod {
                priority: self.facts.priority,
                memory_request: Amount::counted(self.memory_request().0),
                stats: working_set.map(of_memory),
                ..kubelet::Pod::default()
            },
            qos: self.qos,
            protected: self.protected(),
            started: self.started.unwrap_or(MonotonicNs(0)),
            swapped,
            terminating: self.terminating(now),
            ..Workload::default()
        }
    }

    /// When it was started, in RFC 3339.
    pub fn started_at(&self) -> Option<String> {
        let started = Timestamp::from_nanosecond(self.started?.0.into()).ok()?;
        Some(started.to_string())
    }

    /// What the kubelet writes into `oom_score_adj` of a running container's processes.
    pub fn oom_score_adj(&self, container: &Container, machine: Bytes) -> i32 {
        oom_score_adj(self.qos, self.is_node_critical, self.spec.requests(container), machine)
    }
}

#[cfg(test)]
mod tests;
