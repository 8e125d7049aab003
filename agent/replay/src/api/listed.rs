//! What a list of pods says of each, for whoever tells it beside what is measured.

use super::{Amount, Pod, Requirements, Resources, Spec, Time, amounts, bits, full_name, key, terminating};
use jiff::Timestamp;
use plimsoll_policy::kubelet::{self, InitContainer, PodSpec, PodStats, QosClass};
use plimsoll_policy::oom_score::{Requests, oom_score_adj, part_of_pod_request};
use plimsoll_policy::{Protected, Uid, Workload};
use plimsoll_units::{Bytes, MonotonicNs};

/// The class of pods without which a node is none.
const NODE_CRITICAL: &str = "system-node-critical";

/// A pod as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPod {
    /// `namespace/name`.
    pub name: String,
    /// By which equals are told apart.
    pub uid: Uid,
    /// By what its cgroup may be called: its UID, and of one that stands for a static pod the UID of that.
    pub uids: Vec<String>,
    /// The node that it was given to; empty for none.
    pub node: String,
    /// It has succeeded or failed: nothing of it runs.
    pub has_ended: bool,
    /// When it was started, on a clock that begins in 1970; absent if the list does not tell.
    pub started: Option<MonotonicNs>,
    /// Its deletion was asked for, and its grace is over then, on the same clock.
    pub ends: Option<MonotonicNs>,
    /// Its priority.
    pub priority: i32,
    /// Its class.
    pub qos: QosClass,
    /// The memory that it asks for.
    pub memory_request: Bytes,
    /// Whether it may use as much memory as it asks for and no more.
    pub request_is_limit: bool,
    /// Why it is never chosen, if so.
    pub protected: Option<Protected>,
    /// It is critical and of the class `system-node-critical`.
    pub is_node_critical: bool,
    /// What it runs, sidecars first.
    pub containers: Vec<ListedContainer>,
}

/// A container of a listed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedContainer {
    /// Its name.
    pub name: String,
    /// The runtime's id of it, where the list tells it.
    pub id: Option<String>,
    /// What decides about its `oom_score_adj`.
    pub requests: Requests,
}

impl ListedPod {
    /// As it is decided about when memory is short, on a clock that begins in 1970. What is measured of it is told:
    /// its working set, and what of its memory is in swap.
    pub fn for_memory(
        &self,
        working_set: Option<Bytes>,
        swapped: Option<Bytes>,
        now: MonotonicNs,
    ) -> Workload<'static> {
        let of_memory = |working_set: Bytes| PodStats { working_set: Some(working_set.0), ..PodStats::default() };
        Workload {
            key: key(self.uid),
            uid: self.uid,
            facts: kubelet::Pod {
                priority: self.priority,
                memory_request: Amount::counted(self.memory_request.0),
                stats: working_set.map(of_memory),
                ..kubelet::Pod::default()
            },
            qos: self.qos,
            protected: self.protected,
            started: self.started.unwrap_or(MonotonicNs(0)),
            swapped,
            terminating: self.ends.map(|end| terminating(end, now)),
            ..Workload::default()
        }
    }

    /// When it was started, in RFC 3339.
    pub fn started_at(&self) -> Option<String> {
        let started = Timestamp::from_nanosecond(self.started?.0.into()).ok()?;
        Some(started.to_string())
    }

    /// What the kubelet writes into `oom_score_adj` of this container's processes.
    pub fn oom_score_adj(&self, container: &ListedContainer, machine: Bytes) -> i32 {
        oom_score_adj(self.qos, self.is_node_critical, container.requests, machine)
    }
}

fn bytes(amount: Amount) -> Bytes {
    Bytes(u64::try_from(amount.rounded_up().max(0)).unwrap_or(u64::MAX))
}

fn memory(resources: &Resources) -> Option<Bytes> {
    resources.get("memory").map(|written| bytes(written.amount()))
}

/// A request that is not written is as large as the limit.
fn is_limited_to_request(Requirements { requests, limits }: &Requirements) -> bool {
    let limit = memory(limits);
    limit.is_some() && memory(requests).or(limit) == limit
}

impl Pod {
    /// What it asks for and how it is marked, to be looked at.
    pub(super) fn with_spec<T>(&self, look: impl FnOnce(&PodSpec<'_>) -> T) -> T {
        let Self { metadata, spec, status: _ } = self;
        let containers: Vec<_> = spec.containers.iter().map(|container| (&container.resources).into()).collect();
        let init_containers: Vec<_> = spec
            .init_containers
            .iter()
            .map(|container| InitContainer {
                requirements: (&container.resources).into(),
                is_sidecar: container.restart_policy.as_deref() == Some("Always"),
            })
            .collect();
        look(&PodSpec {
            containers: &containers,
            init_containers: &init_containers,
            overhead: amounts(&spec.overhead),
            pod_level: spec.resources.as_ref().map(Into::into),
            priority: spec.priority,
            source: metadata.annotations.get("kubernetes.io/config.source").map(String::as_str),
            is_mirror: metadata.annotations.contains_key("kubernetes.io/config.mirror"),
        })
    }

    /// What the list says of it.
    pub fn listed(&self) -> ListedPod {
        let Self { metadata, spec, status } = self;
        let hash = metadata.annotations.get("kubernetes.io/config.hash").filter(|hash| **hash != metadata.uid);
        let (qos, request, critical) = self.with_spec(|spec| (spec.qos(), spec.memory_request(), spec.critical()));
        let protected = critical.map(Protected::from);
        let levels = spec.resources.as_ref();
        let levels = levels.filter(|levels| memory(&levels.limits).is_some());
        let all_are_limited = || spec.containers.iter().all(|container| is_limited_to_request(&container.resources));
        let of_containers = || !spec.containers.is_empty() && all_are_limited();
        let request_is_limit = levels.map_or_else(of_containers, is_limited_to_request);
        ListedPod {
            name: full_name(&metadata.namespace, &metadata.name),
            uid: Uid(bits(&metadata.uid)),
            uids: std::iter::once(&metadata.uid).chain(hash).cloned().collect(),
            node: spec.node_name.clone(),
            has_ended: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
            started: status.start_time.map(Time::monotonic),
            ends: metadata.deletion_timestamp.map(Time::monotonic),
            priority: spec.priority.unwrap_or(0),
            qos,
            memory_request: bytes(request),
            request_is_limit,
            protected,
            is_node_critical: protected.is_some() && spec.priority_class_name == NODE_CRITICAL,
            containers: self.listed_containers(),
        }
    }

    fn listed_containers(&self) -> Vec<ListedContainer> {
        let Spec { containers, init_containers, resources, .. } = &self.spec;
        let own = |requirements: &Requirements| memory(&requirements.requests).unwrap_or(Bytes::ZERO);
        let of_pod = match resources.as_ref().and_then(|level| memory(&level.requests)) {
            None => Bytes::ZERO,
            Some(level) => {
                let of_containers = self.with_spec(|spec| {
                    PodSpec { pod_level: None, overhead: super::Amounts::default(), ..*spec }.memory_request()
                });
                let count = u64::try_from(containers.len() + init_containers.len()).unwrap_or(u64::MAX);
                part_of_pod_request(level, bytes(of_containers), count)
            }
        };
        let least_regular = containers.iter().map(|container| own(&container.resources)).min();
        let sidecars = init_containers.iter().filter(|it| it.restart_policy.as_deref() == Some("Always"));
        let sidecars = sidecars.map(|container| (container, least_regular));
        let statuses = &self.status;
        let id = |name: &str| {
            let mut all = statuses.container_statuses.iter().chain(&statuses.init_container_statuses);
            let id = &all.find(|status| status.name == name)?.container_id;
            Some(id.split_once("://").map_or(id.as_str(), |(_, id)| id).to_owned()).filter(|id| !id.is_empty())
        };
        sidecars
            .chain(containers.iter().map(|container| (container, None)))
            .map(|(container, least_regular)| ListedContainer {
                name: container.name.clone(),
                id: id(&container.name),
                requests: Requests { own: own(&container.resources), of_pod, least_regular },
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_pods;

    fn pod(annotations: &str, spec: &str, status: &str) -> ListedPod {
        let text = format!(
            r#"{{"items": [{{"metadata": {{"name": "a", "namespace": "n", "uid": "u", "annotations": {annotations}}},
            "spec": {spec}, "status": {status}}}]}}"#
        );
        read_pods(text.as_bytes()).expect("it is a list").remove(0).listed()
    }

    #[test]
    fn a_pod_is_told_with_its_class_its_requests_and_why_it_is_passed_over() {
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
            (r#"{"memory": "2Mi", "cpu": 1}"#, r#"{"memory": "2Mi", "cpu": 1}"#, QosClass::Guaranteed, 2 << 20, true),
        ] {
            // Numbers are written as texts by the API.
            let spec = container(&requests.replace(": 1}", ": \"1\"}"), &limits.replace(": 1}", ": \"1\"}"));
            let reported = pod("null", &spec, "{}");
            assert_eq!(
                (reported.qos, reported.memory_request, reported.request_is_limit),
                (qos, Bytes(request), is_limit)
            );
            assert_eq!(
                (reported.name.as_str(), reported.node.as_str(), reported.priority, reported.has_ended),
                ("n/a", "x", 7, false)
            );
            assert_eq!((reported.uids, reported.protected), (vec!["u".to_owned()], None));
        }
        let mirror = r#"{"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"}"#;
        let reported = pod(mirror, r#"{"priorityClassName": "system-node-critical"}"#, r#"{"phase": "Failed"}"#);
        assert_eq!(
            (reported.protected, reported.is_node_critical, reported.has_ended),
            (Some(Protected::Mirror), true, true)
        );
        assert_eq!(reported.uids, ["u", "h"]);
        let of_file = r#"{"kubernetes.io/config.source": "file"}"#;
        assert_eq!(pod(of_file, "{}", "{}").protected, Some(Protected::Static));
        let critical = pod("{}", r#"{"priority": 2000001000, "priorityClassName": "system-node-critical"}"#, "{}");
        assert_eq!((critical.protected, critical.is_node_critical), (Some(Protected::Critical), true));
        let classed = pod("{}", r#"{"priorityClassName": "system-node-critical"}"#, "{}");
        assert!(!classed.is_node_critical, "the class alone makes nobody critical");
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
        let reported = pod("null", &spec, status);
        let scores: Vec<_> = reported
            .containers
            .iter()
            .map(|it| (it.name.as_str(), it.id.as_deref(), reported.oom_score_adj(it, Bytes(1000))))
            .collect();
        assert_eq!(scores, [("beside", None, 900), ("big", Some("abc"), 600), ("small", None, 900)]);
        let level = spec.replacen('{', r#"{"resources": {"requests": {"memory": "900"}}, "#, 1);
        let reported = pod("null", &level, "{}");
        let scores: Vec<_> = reported.containers.iter().map(|it| reported.oom_score_adj(it, Bytes(1000))).collect();
        assert_eq!(scores, [800, 500, 800], "a quarter of the 400 that the pod asks for beyond them");
    }
}
