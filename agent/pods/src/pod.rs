//! What is taken from a pod of the API.

use crate::spec::{Container, FieldError, STORAGE, Spec, bytes};
use core::time::Duration;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use plimsoll_policy::kubelet::{self, Amount, PodSpec, PodStats, QosClass};
use plimsoll_policy::oom_score::oom_score_adj;
use plimsoll_policy::{Key, OwnerUid, Protected, Terminating, Uid, Workload};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde::Deserialize;
use std::path::Path;

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
    /// The DaemonSet that owns it.
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
    /// Others may wait for it while it is frozen: it is privileged, mounts file systems for them, serves them as a
    /// volume plugin or through FUSE, has a directory above that of plugins or devices, or is in the machine's PID namespace.
    pub serves_others: bool,
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
        let serves_others = serves_others(&spec);
        let mut spec = Spec::read(spec)?;
        spec.add_ids(&status);
        let annotations = metadata.annotations.unwrap_or_default();
        let is_mirror = annotations.contains_key("kubernetes.io/config.mirror");
        let (qos, facts) = spec.with(|spec| {
            let source = annotations.get("kubernetes.io/config.source").map(String::as_str);
            let spec = PodSpec { priority, source, is_mirror, ..spec };
            let facts = kubelet::Pod {
                priority: priority.unwrap_or(0),
                critical: spec.critical(),
                memory_request: spec.memory_request(),
                ephemeral_storage_request: spec.ephemeral_storage_request(),
                ephemeral_storage_limit: spec.ephemeral_storage_limit(),
                grace_seconds,
                ..kubelet::Pod::default()
            };
            (spec.qos(), facts)
        });
        let uid = metadata.uid.unwrap_or_default();
        let mut owners = metadata.owner_references.into_iter().flatten();
        let daemon_set = owners.find(|owner| owner.kind == "DaemonSet");
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
            serves_others,
            spec,
        })
    }
}

/// Directories and files of the machine by which a pod serves others.
const SERVED: [&str; 3] = ["/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry", "/dev/fuse"];

fn serves_others(spec: &api::PodSpec) -> bool {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let containers = containers.map(|it| (&it.security_context, &it.volume_mounts));
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|it| (&it.security_context, &it.volume_mounts));
    let mut containers = containers.chain(ephemeral);
    let is_bidirectional = |it: &api::VolumeMount| it.mount_propagation.as_deref() == Some("Bidirectional");
    let mut volumes = spec.volumes.iter().flatten();
    spec.host_pid == Some(true)
        || containers.any(|(security, mounts)| {
            security.as_ref().is_some_and(|it| it.privileged == Some(true))
                || mounts.iter().flatten().any(is_bidirectional)
        })
        || volumes.any(|volume| {
            let path = volume.host_path.as_ref().map(|host| Path::new(&host.path));
            path.is_some_and(|path| {
                SERVED.iter().any(|served| path.starts_with(served) || Path::new(served).starts_with(path))
            })
        })
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
mod tests {
    use super::*;
    use crate::read_pods;

    fn pod(annotations: &str, spec: &str, status: &str) -> Pod {
        let text = format!(
            r#"{{"items": [{{"metadata": {{"name": "a", "namespace": "n", "uid": "u", "annotations": {annotations}}},
            "spec": {spec}, "status": {status}}}]}}"#
        );
        read_pods(text.as_bytes()).expect("it is a list").remove(0)
    }

    #[test]
    fn a_pod_has_its_class_its_requests_and_why_it_is_never_evicted() {
        let container = |requests: &str, limits: &str| {
            format!(
                r#"{{"containers": [{{"name": "c", "resources": {{"requests": {requests}, "limits": {limits}}}}}],
                "priority": 7, "nodeName": "x"}}"#
            )
        };
        for (requests, limits, qos, request, is_limit) in [
            ("{}", "{}", QosClass::BestEffort, 0, false),
            (r#"{"memory": "1Mi"}"#, r#"{"memory": "2Mi"}"#, QosClass::Burstable, 1 << 20, false),
            (r#"{"memory": "2Mi"}"#, r#"{"memory": "2Mi"}"#, QosClass::Burstable, 2 << 20, true),
            ("{}", r#"{"memory": "2Mi"}"#, QosClass::Burstable, 0, true),
            (r#"{"memory": "2Mi", "cpu": 1}"#, r#"{"memory": "2Mi", "cpu": 1}"#, QosClass::Guaranteed, 2 << 20, true),
        ] {
            let pod = pod("null", &container(requests, limits), "{}");
            assert_eq!((pod.qos, pod.memory_request()), (qos, Bytes(request)), "{requests} {limits}");
            assert_eq!(pod.spec.is_limited_to_request(), is_limit, "{requests} {limits}");
            assert_eq!((&*pod.full_name(), &*pod.node, pod.facts.priority, pod.has_ended), ("n/a", "x", 7, false));
            assert_eq!((pod.has_uid("u"), pod.static_uid.clone(), pod.protected()), (true, None, None));
        }
        let mirror = r#"{"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"}"#;
        let mirror = pod(mirror, r#"{"priorityClassName": "system-node-critical"}"#, r#"{"phase": "Failed"}"#);
        assert_eq!(
            (mirror.protected(), mirror.is_node_critical, mirror.has_ended),
            (Some(Protected::Mirror), true, true)
        );
        assert_eq!(["u", "h", "a"].map(|uid| mirror.has_uid(uid)), [true, true, false]);
        let no_mirror = pod(r#"{"kubernetes.io/config.hash": "h"}"#, "{}", "{}");
        assert!(!no_mirror.has_uid("h"), "its author would have it taken for another");
        let of_file = r#"{"kubernetes.io/config.source": "file"}"#;
        assert_eq!(pod(of_file, "{}", "{}").protected(), Some(Protected::Static));
        let critical = pod("{}", r#"{"priority": 2000001000, "priorityClassName": "system-node-critical"}"#, "{}");
        assert_eq!((critical.protected(), critical.is_node_critical), (Some(Protected::Critical), true));
        let classed = pod("{}", r#"{"priorityClassName": "system-node-critical"}"#, "{}");
        assert!(!classed.is_node_critical, "the class alone makes no pod critical");
    }

    #[test]
    fn a_pod_that_others_wait_for_is_known() {
        let mounts = |propagation: &str| {
            format!(
                r#"{{"containers": [{{"name": "c", "volumeMounts": [{{"name": "v", "mountPath": "/v",
                "mountPropagation": "{propagation}"}}]}}]}}"#
            )
        };
        let privileged =
            |of: &str, is| format!(r#"{{"{of}": [{{"name": "c", "securityContext": {{"privileged": {is}}}}}]}}"#);
        let host = |path: &str| format!(r#"{{"volumes": [{{"name": "v", "hostPath": {{"path": "{path}"}}}}]}}"#);
        for (spec, serves) in [
            ("{}".to_owned(), false),
            (r#"{"hostPID": true}"#.to_owned(), true),
            (r#"{"hostNetwork": true}"#.to_owned(), false),
            (mounts("Bidirectional"), true),
            (mounts("HostToContainer"), false),
            (host("/var/lib/kubelet/plugins/ebs.csi.aws.com/"), true),
            (host("/dev/fuse"), true),
            (host("/var/log"), false),
            (host("/dev/"), true),
            (host("/var/lib/kubelet"), true),
            (host("/"), true),
            (host("/var/lib/kubelet/pods"), false),
            (privileged("containers", true), true),
            (privileged("containers", false), false),
            (privileged("initContainers", true), true),
            (privileged("ephemeralContainers", true), true),
            (privileged("ephemeralContainers", false), false),
            (mounts("Bidirectional").replace("containers", "ephemeralContainers"), true),
        ] {
            assert_eq!(pod("null", &spec, "null").serves_others, serves, "{spec}");
        }
    }

    #[test]
    fn each_container_has_its_own_oom_score_adj() {
        let asks = |name: &str, memory: &str, more: &str| {
            format!(r#"{{"name": "{name}", "resources": {{"requests": {{"memory": "{memory}"}}}}{more}}}"#)
        };
        let spec = format!(
            r#"{{"containers": [{}, {}], "initContainers": [{}, {}]}}"#,
            asks("big", "400", ""),
            asks("small", "100", ""),
            asks("beside", "0", r#", "restartPolicy": "Always""#),
            asks("before", "10", ""),
        );
        let status = r#"{"containerStatuses": [{"name": "big", "containerID": "containerd://abc"}],
                         "initContainerStatuses": [{"name": "beside"}]}"#;
        let scores = |pod: &Pod| -> Vec<i32> {
            pod.spec.running().map(|container| pod.oom_score_adj(container, Bytes(1000))).collect()
        };
        let in_parts = pod("null", &spec, status);
        let running: Vec<_> = in_parts.spec.running().map(|it| (it.name.as_str(), it.id.as_deref())).collect();
        assert_eq!(running, [("beside", None), ("big", Some("abc")), ("small", None)]);
        assert_eq!(scores(&in_parts), [900, 600, 900]);
        let level = spec.replacen('{', r#"{"resources": {"requests": {"memory": "900"}}, "#, 1);
        let level = scores(&pod("null", &level, "{}"));
        assert_eq!(level, [800, 500, 800], "a quarter of the 400 that the pod asks for beyond them");
    }

    #[test]
    fn ephemeral_containers_request_nothing_and_run_until_they_end() {
        let spec = r#"{"containers": [{"name": "web", "resources": {"requests": {"memory": "500"}}}],
            "ephemeralContainers": [{"name": "debugger-1"}, {"name": "debugger-2"}, {"name": "debugger-3"}]}"#;
        let status = r#"{"ephemeralContainerStatuses": [
            {"name": "debugger-1", "containerID": "containerd://1", "state": {"terminated": {"exitCode": 0}}},
            {"name": "debugger-2", "containerID": "containerd://2", "state": {"running": {}}}]}"#;
        let pod = pod("null", spec, status);
        let running: Vec<_> = pod.spec.running().map(|it| (it.name.as_str(), it.id.as_deref())).collect();
        assert_eq!(running, [("web", None), ("debugger-2", Some("2")), ("debugger-3", None)]);
        assert_eq!((pod.memory_request(), pod.qos), (Bytes(500), QosClass::Burstable));
        let scores: Vec<_> = pod.spec.running().map(|it| pod.oom_score_adj(it, Bytes(1000))).collect();
        assert_eq!(scores, [500, 999, 999]);
    }

    #[test]
    fn overhead_widens_a_limit_that_is_not_zero() {
        for (limits, printed) in
            [(&["0"][..], Some("0")), (&["0", "1Mi"], Some("1025Mi")), (&["1Mi", "0"], Some("1025Mi")), (&[], None)]
        {
            let limit = |limit: &&str| format!(r#"{{"resources": {{"limits": {{"ephemeral-storage": "{limit}"}}}}}}"#);
            let containers = limits.iter().map(limit).collect::<Vec<_>>().join(",");
            let spec = format!(r#"{{"containers": [{containers}], "overhead": {{"ephemeral-storage": "1Gi"}}}}"#);
            let limit = pod("null", &spec, "null").spec.storage_limit();
            assert_eq!(limit.map(|limit| limit.to_string()).as_deref(), printed);
        }
    }
}
