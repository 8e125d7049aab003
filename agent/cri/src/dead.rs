//! Which containers and sandboxes are dead, so that they may be removed.
//!
//! These are the rules by which a kubelet collects them before it evicts (`DeleteAllUnusedContainers`, that is
//! `GarbageCollect` with `evictNonDeletedPods` in `kuberuntime_gc.go`), with its `minimumGCAge` and
//! `maxPerPodContainerCount`. Removal is in two steps, as there: containers, then a new listing, then sandboxes.
//!
//! Of two the newer is the one with the higher attempt, and only then the one that was made later: the clock may have been
//! set in between.

use crate::id::SandboxId;
use crate::listed::{Container, ContainerState, Sandbox, SandboxState};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

/// Where the kubelet writes a container's pod (`pkg/kubelet/types/labels.go`).
const POD_UID: &str = "io.kubernetes.pod.uid";

/// A container that may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dead<'a> {
    /// The container.
    pub container: &'a Container,
    /// The runtime has lost track of it: it may run, and is to be stopped first. Where that fails it is kept.
    pub is_to_be_stopped: bool,
}

/// The containers that may be removed, oldest first: those that do not run, were made at least `min_age` ago, and are of a
/// pod that is over; of other pods all but the newest of each name, which the kubelet keeps for its log.
///
/// `is_over` says of a pod's UID that the pod is deleted, or has ended so that none of its containers starts again. It must
/// say no where that is not known. A container without a pod is kept, and one in a state that is not known here.
pub fn dead_containers<'a>(
    containers: &'a [Container],
    sandboxes: &[Sandbox],
    is_over: impl Fn(&str) -> bool,
    (min_age, now): (Duration, SystemTime),
) -> Vec<Dead<'a>> {
    let pods: BTreeMap<&SandboxId, &str> = sandboxes.iter().map(|it| (&it.id, it.uid.as_str())).collect();
    let mut units: BTreeMap<(&str, &str), Vec<&Container>> = BTreeMap::new();
    for container in containers {
        let is_dead = match container.state {
            ContainerState::Created | ContainerState::Exited | ContainerState::Unknown => true,
            ContainerState::Running | ContainerState::Other(_) => false,
        };
        // One from the future has no age; one without a time was made in 1970, for the kubelet too.
        let is_old = container.created.is_none_or(|made| now.duration_since(made).is_ok_and(|age| age >= min_age));
        let pod = container.labels.get(POD_UID).map(String::as_str).or_else(|| pods.get(&container.sandbox).copied());
        if let Some(pod) = pod.filter(|pod| is_dead && is_old && !pod.is_empty()) {
            units.entry((pod, &container.name)).or_default().push(container);
        }
    }
    let mut dead: Vec<&Container> = Vec::new();
    for ((pod, _), mut unit) in units {
        unit.sort_by_key(|it| (it.attempt, it.created));
        if !is_over(pod) {
            unit.pop();
        }
        dead.append(&mut unit);
    }
    dead.sort_by_key(|it| it.created);
    dead.into_iter()
        .map(|container| Dead { container, is_to_be_stopped: container.state == ContainerState::Unknown })
        .collect()
}

/// The sandboxes that may be removed, oldest first: those that are not ready, have no containers, and are of a pod that is
/// over, or not the newest of their pod. Each is to be stopped before it is removed, for its network. `is_over` is as
/// above.
pub fn dead_sandboxes<'a>(
    sandboxes: &'a [Sandbox],
    containers: &[Container],
    is_over: impl Fn(&str) -> bool,
) -> Vec<&'a Sandbox> {
    let occupied: BTreeSet<&SandboxId> = containers.iter().map(|it| &it.sandbox).collect();
    let mut pods: BTreeMap<&str, Vec<&Sandbox>> = BTreeMap::new();
    for sandbox in sandboxes.iter().filter(|it| !it.uid.is_empty()) {
        pods.entry(&sandbox.uid).or_default().push(sandbox);
    }
    let mut dead: Vec<&Sandbox> = Vec::new();
    for (pod, mut of_pod) in pods {
        of_pod.sort_by_key(|it| (it.attempt, it.created));
        if !is_over(pod) {
            of_pod.pop();
        }
        dead.extend(of_pod.into_iter().filter(|it| it.state == SandboxState::NotReady && !occupied.contains(&it.id)));
    }
    dead.sort_by_key(|it| it.created);
    dead
}
