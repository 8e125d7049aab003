//! What of the end of a pod or container was not the agent's doing, as the pod's status has it.

use crate::eviction::REPORTED_AT;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use plimsoll_policy::message::{EVICTED, EvictedFor, PHASE};

/// The reason of a container's end that a runtime gives after an OOM kill in its cgroup.
pub(crate) const OOM_KILLED: &str = "OOMKilled";

/// For what the kubelet evicted a pod; absent for one that it did not evict, or did not admit.
pub fn evicted_by_kubelet(pod: &Pod) -> Option<EvictedFor> {
    let status = pod.status.as_ref()?;
    let is_evicted = status.phase.as_deref() == Some(PHASE) && status.reason.as_deref() == Some(EVICTED);
    let is_ours = pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(REPORTED_AT));
    (is_evicted && !is_ours).then(|| EvictedFor::of_message(status.message.as_deref().unwrap_or_default()))?
}

/// The containers of a pod that ended by an OOM kill: their names, and the runtime's ids.
pub fn oom_killed(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let lists = pod.status.as_ref().map(|status| {
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses]
    });
    let containers = lists.into_iter().flatten().flatten().flatten();
    containers.flat_map(|container: &ContainerStatus| {
        let ends = [&container.state, &container.last_state].into_iter().flatten();
        ends.filter_map(|state| killed_id(state.terminated.as_ref()?)).map(|id| (container.name.as_str(), id))
    })
}

fn killed_id(end: &ContainerStateTerminated) -> Option<&str> {
    let id = end.container_id.as_deref().unwrap_or_default();
    (end.reason.as_deref() == Some(OOM_KILLED)).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept;
    use plimsoll_policy::kubelet::Resource;
    use serde_json::{Value, json};

    fn pod(annotations: &Value, status: &Value) -> Pod {
        let metadata = json!({ "name": "web", "namespace": "shop", "uid": "u", "annotations": annotations });
        // As it is known to what looks at it.
        kept(serde_json::from_value(json!({ "metadata": metadata, "status": status })).expect("a pod"))
    }

    #[test]
    fn a_pod_that_the_kubelet_evicted_is_distinguished_from_ours_and_from_one_that_was_not_admitted() {
        let low = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 97Mi. Container main was \
                   using 1Gi, request is 0, has larger consumption of memory. ";
        let memory = Some(EvictedFor::Resource(Resource::Memory));
        let (none, ours) = (json!({}), json!({ REPORTED_AT: "at" }));
        for (annotations, phase, reason, message, expected) in [
            (&none, "Failed", "Evicted", low, memory),
            (&ours, "Failed", "Evicted", low, None),
            (&none, "Failed", "Evicted", "Because. ", Some(EvictedFor::Unknown)),
            (&none, "Failed", "Evicted", "The node had condition: [DiskPressure]. ", None),
            (&none, "Failed", "OOMKilled", low, None),
            (&none, "Running", "Evicted", low, None),
        ] {
            let pod = pod(annotations, &json!({ "phase": phase, "reason": reason, "message": message }));
            assert_eq!(evicted_by_kubelet(&pod), expected, "{annotations} {phase} {reason} {message}");
        }
    }

    #[test]
    fn containers_that_an_oom_kill_ended_are_those_that_are_over_and_those_that_run_again() {
        let ended =
            |reason: &str, id: &str| json!({ "terminated": { "exitCode": 137, "reason": reason, "containerID": id } });
        let container = |name: &str, state: Value, last: Value| {
            json!({ "name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 1, "state": state,
                "lastState": last })
        };
        let pod = pod(
            &json!({}),
            &json!({
                "phase": "Running",
                "containerStatuses": [
                    container("app", json!({ "running": {} }), ended("OOMKilled", "containerd://1")),
                    container("side", ended("Error", "containerd://2"), ended("OOMKilled", "containerd://3")),
                ],
                "initContainerStatuses": [container("init", ended("OOMKilled", "containerd://4"), json!({}))],
            }),
        );
        let found: Vec<_> = oom_killed(&pod).collect();
        assert_eq!(found, [("app", "containerd://1"), ("side", "containerd://3"), ("init", "containerd://4")]);
    }
}
