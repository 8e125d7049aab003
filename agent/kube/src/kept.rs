//! What is kept of a pod as the API server has it: what is read of it, on this node.
//!
//! An account that may create pods writes most of a pod, up to one and a half megabytes, and may set `nodeName` to any node. So
//! what is kept is named here field by field, and a field that nothing reads takes no memory.

use crate::ended::OOM_KILLED;
use crate::eviction::REPORTED_AT;
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, EphemeralContainer, GitRepoVolumeSource, Pod, PodSpec, PodStatus,
    SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use plimsoll_policy::message::EVICTED;

/// Annotations that are read: the patch of an eviction, and what a mirror stands for.
const ANNOTATIONS: [&str; 4] =
    [REPORTED_AT, "kubernetes.io/config.mirror", "kubernetes.io/config.source", "kubernetes.io/config.hash"];

/// A pod with what is read of it alone. Of one that has ended that is no part of its specification.
pub fn kept(pod: Pod) -> Pod {
    let has_ended = has_ended(&pod);
    let Pod { metadata, spec, status } = pod;
    Pod {
        metadata: of_metadata(metadata),
        spec: spec.filter(|_| !has_ended).map(of_spec),
        status: status.map(of_status),
    }
}

/// Whether a pod has succeeded or failed and none of its containers runs any more.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let mut found = lists.into_iter().flatten().flatten().filter_map(|it: &ContainerStatus| it.state.as_ref());
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) && !found.any(|state| state.running.is_some())
}

fn of_metadata(metadata: ObjectMeta) -> ObjectMeta {
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.retain(|key, _| ANNOTATIONS.contains(&key.as_str()));
    let owners = metadata.owner_references.into_iter().flatten();
    ObjectMeta {
        namespace: metadata.namespace,
        name: metadata.name,
        uid: metadata.uid,
        deletion_timestamp: metadata.deletion_timestamp,
        owner_references: Some(owners.filter(|owner| owner.controller == Some(true)).take(1).collect()),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    }
}

fn of_spec(spec: PodSpec) -> PodSpec {
    PodSpec {
        containers: spec.containers.into_iter().map(of_container).collect(),
        init_containers: spec.init_containers.map(|them| them.into_iter().map(of_container).collect()),
        ephemeral_containers: spec.ephemeral_containers.map(|them| them.into_iter().map(of_ephemeral).collect()),
        volumes: spec.volumes.map(|them| them.into_iter().map(of_volume).collect()),
        node_name: spec.node_name,
        host_pid: spec.host_pid,
        priority: spec.priority,
        priority_class_name: spec.priority_class_name,
        termination_grace_period_seconds: spec.termination_grace_period_seconds,
        resources: spec.resources,
        overhead: spec.overhead,
        ..PodSpec::default()
    }
}

fn of_container(container: Container) -> Container {
    Container {
        name: container.name,
        resources: container.resources,
        restart_policy: container.restart_policy,
        security_context: of_security(container.security_context),
        volume_mounts: of_mounts(container.volume_mounts),
        ..Container::default()
    }
}

fn of_ephemeral(container: EphemeralContainer) -> EphemeralContainer {
    EphemeralContainer {
        name: container.name,
        security_context: of_security(container.security_context),
        volume_mounts: of_mounts(container.volume_mounts),
        ..EphemeralContainer::default()
    }
}

fn of_security(context: Option<SecurityContext>) -> Option<SecurityContext> {
    let privileged = context?.privileged;
    Some(SecurityContext { privileged, ..SecurityContext::default() })
}

/// How they are propagated.
fn of_mounts(mounts: Option<Vec<VolumeMount>>) -> Option<Vec<VolumeMount>> {
    let propagation = mounts?.into_iter().filter_map(|mount| mount.mount_propagation);
    Some(propagation.map(|it| VolumeMount { mount_propagation: Some(it), ..VolumeMount::default() }).collect())
}

/// Of a kind without a figure, that it is of that kind.
fn of_volume(volume: Volume) -> Volume {
    Volume {
        name: volume.name,
        host_path: volume.host_path,
        empty_dir: volume.empty_dir,
        config_map: volume.config_map.map(|_| ConfigMapVolumeSource::default()),
        git_repo: volume.git_repo.map(|_| GitRepoVolumeSource::default()),
        ..Volume::default()
    }
}

fn of_status(status: PodStatus) -> PodStatus {
    let each =
        |them: Option<Vec<ContainerStatus>>| them.map(|them| them.into_iter().map(of_container_status).collect());
    PodStatus {
        phase: status.phase,
        message: status
            .message
            .as_deref()
            .filter(|_| status.reason.as_deref() == Some(EVICTED))
            .and_then(first_sentence),
        reason: status.reason,
        start_time: status.start_time,
        resources: status.resources,
        allocated_resources: status.allocated_resources,
        container_statuses: each(status.container_statuses),
        init_container_statuses: each(status.init_container_statuses),
        ephemeral_container_statuses: each(status.ephemeral_container_statuses),
        ..PodStatus::default()
    }
}

/// Where it is no longer than those of the kubelet's messages, which name a resource, or a limit.
fn first_sentence(message: &str) -> Option<String> {
    const MOST: usize = 512;
    let end = message.find(". ").map(|at| at + 2).filter(|end| *end <= MOST)?;
    Some(message[..end].to_owned())
}

fn of_container_status(status: ContainerStatus) -> ContainerStatus {
    let state = |state: ContainerState| ContainerState {
        running: state.running.map(|_| ContainerStateRunning::default()),
        // A container writes the message of its end itself.
        terminated: state.terminated.map(of_end),
        waiting: state.waiting.map(|_| ContainerStateWaiting::default()),
    };
    ContainerStatus {
        name: status.name,
        container_id: status.container_id,
        state: status.state.map(state),
        last_state: status
            .last_state
            .and_then(|last| last.terminated)
            .map(of_end)
            .map(|end| ContainerState { terminated: Some(end), ..ContainerState::default() }),
        resources: status.resources,
        allocated_resources: status.allocated_resources,
        ..ContainerStatus::default()
    }
}

/// That it was an OOM kill, and of which container.
fn of_end(end: ContainerStateTerminated) -> ContainerStateTerminated {
    if end.reason.as_deref() != Some(OOM_KILLED) {
        return ContainerStateTerminated::default();
    }
    ContainerStateTerminated {
        reason: end.reason,
        container_id: end.container_id,
        ..ContainerStateTerminated::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(phase: &str, state: &str) -> Pod {
        let long = "x".repeat(1000);
        let container = json!({ "name": "c", "image": long, "args": [long], "command": [long],
            "env": [{ "name": "E", "value": long }], "lifecycle": { "preStop": { "exec": { "command": [long] } } },
            "securityContext": { "privileged": true, "seLinuxOptions": { "level": long } },
            "volumeMounts": [{ "name": "v", "mountPath": long, "mountPropagation": "Bidirectional" }] });
        let text = json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "u", "labels": { "a": long },
                "finalizers": [long], "managedFields": [{ "manager": long }],
                "annotations": { REPORTED_AT: "at", "b": long },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "ReplicaSet", "name": long, "uid": "r" },
                    { "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "s", "controller": true }] },
            "spec": { "nodeName": "n1", "priority": 7, "hostname": long, "nodeSelector": { "a": long },
                "containers": [container], "initContainers": [container], "ephemeralContainers": [container],
                "volumes": [{ "name": "v", "configMap": { "name": long } },
                    { "name": "s", "secret": { "secretName": long } }],
                "tolerations": [{ "key": long }] },
            "status": { "phase": phase, "reason": "Evicted", "message": long,
                "conditions": [{ "type": "Ready", "status": "True", "message": long }],
                "containerStatuses": [{ "name": "c", "image": long, "imageID": long, "ready": false, "restartCount": 3,
                    "containerID": "containerd://1", "state": { state: { "exitCode": 0, "message": long } },
                    "lastState": { "terminated": { "exitCode": 1, "message": long } } }] }
        });
        serde_json::from_value(text).expect("a pod")
    }

    #[test]
    fn of_a_pod_what_nothing_reads_takes_no_memory() {
        let kept = kept(pod("Running", "running"));
        let text = serde_json::to_string(&kept).expect("an object");
        assert!(!text.contains("xxx"), "{text}");
        let (metadata, spec, status) =
            (kept.metadata, kept.spec.expect("it has one"), kept.status.expect("it has one"));
        assert_eq!(metadata.annotations, Some([(REPORTED_AT.to_owned(), "at".to_owned())].into()));
        assert_eq!(metadata.owner_references.into_iter().flatten().next().map(|owner| owner.uid), Some("s".into()));
        assert_eq!((spec.node_name.as_deref(), spec.priority), (Some("n1"), Some(7)));
        let container = spec.containers.into_iter().next().expect("it has one");
        assert_eq!(container.security_context.and_then(|it| it.privileged), Some(true));
        let mount = container.volume_mounts.into_iter().flatten().next().expect("it has one");
        assert_eq!(mount.mount_propagation.as_deref(), Some("Bidirectional"));
        assert!(spec.volumes.into_iter().flatten().any(|it| it.name == "v" && it.config_map.is_some()));
        let container = status.container_statuses.into_iter().flatten().next().expect("it has one");
        assert_eq!(container.container_id.as_deref(), Some("containerd://1"));
        assert!(container.state.is_some_and(|state| state.running.is_some()));
    }

    #[test]
    fn of_a_pod_that_has_ended_no_specification_is_kept() {
        for (phase, state, has_ended) in
            [("Running", "terminated", false), ("Failed", "running", false), ("Failed", "terminated", true)]
        {
            let kept = serde_json::to_value(kept(pod(phase, state))).expect("an object");
            assert_eq!(kept.get("spec").is_none_or(|spec| *spec == Value::Null), has_ended, "{phase} {state}");
            assert_eq!((&kept["metadata"]["uid"], &kept["status"]["phase"]), (&json!("u"), &json!(phase)));
        }
    }
}
