//! Pods: their cgroups, the order in which they would be evicted, and why one never is.

use std::path::Path;

use plimsoll_config::Configuration;
use plimsoll_pods::Pod;
use plimsoll_policy::kubelet::{self, Amount, MemoryStats, NodeStats, Readings, Signal, Threshold};
use plimsoll_policy::{
    Config, EvictionPolicy, Observation, Plan, Protected, State, Verdict, Workload, decide, ranking,
};
use plimsoll_replay::trace::Sample;
use plimsoll_units::{Bytes, MonotonicNs};
use serde::Serialize;

use crate::observe::{Figures, Observer};

/// No kubelet puts pods further down.
const DEEPEST: usize = 8;

/// The UID in the name of a pod's cgroup, `pod` and the UID, or `kubepods-...-pod` and the UID with underscores.
pub(crate) fn uid_of(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        Some(name) => name.rsplit_once("-pod")?.1.replace('_', "-"),
        None => name.strip_prefix("pod")?.to_owned(),
    };
    // A UUID, or the hash of a static pod's file.
    let is_uid = matches!(uid.len(), 32 | 36) && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then_some(uid)
}

/// Whether this is a pod's cgroup or inside of one.
pub(super) fn is_in_pod(cgroup: &str) -> bool {
    cgroup.split('/').any(|name| uid_of(name).is_some())
}

/// The pods of a list.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pods: Vec<Pod>,
    /// There is a list.
    pub(super) is_given: bool,
}

impl Listed {
    pub(super) fn of(pods: Option<Vec<Pod>>) -> Self {
        let is_given = pods.is_some();
        Self { pods: pods.unwrap_or_default(), is_given }
    }

    /// The pod in whose cgroup this one is.
    pub(super) fn of_path(&self, cgroup: &str) -> Option<&Pod> {
        let uid = cgroup.split('/').find_map(uid_of)?;
        self.pods.iter().find(|pod| pod.has_uid(&uid))
    }
}

/// A pod's cgroup on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cgroup {
    /// Below the root.
    pub(super) path: String,
    pub(super) figures: Figures,
}

/// Every pod's cgroup, by path.
pub(super) fn cgroups(observer: &Observer) -> Vec<Cgroup> {
    fn walk(observer: &Observer, folder: &Path, path: &str, depth: usize, found: &mut Vec<Cgroup>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            if uid_of(&name).is_some() {
                let figures = observer.figures(path.as_bytes()).unwrap_or_default();
                found.push(Cgroup { path, figures });
            } else if depth < DEEPEST {
                walk(observer, &entry.path(), &path, depth + 1, found);
            }
        }
    }
    let mut found = Vec::new();
    if let Some(root) = observer.folder(b"") {
        walk(observer, &root, "", 1, &mut found);
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// A listed pod beside what is measured of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Reported {
    /// `namespace/name`.
    pub(super) pod: String,
    pub(super) cgroup: String,
    pub(super) priority: i32,
    pub(super) qos: &'static str,
    pub(super) request_bytes: Bytes,
    /// Its working set.
    pub(super) usage_bytes: Option<Bytes>,
    /// What of its memory is in swap: all eviction policies but the kubelet's rank by both together.
    pub(super) swapped_bytes: Option<Bytes>,
    /// In RFC 3339. Of two that are alike, all eviction policies but the kubelet's take the younger one first.
    pub(super) started: Option<String>,
    /// Why it is never evicted.
    pub(super) protected: Option<Protected>,
    /// What the kubelet writes for its containers, the least and the most.
    pub(super) oom_score_adj: Option<(i32, i32)>,
    /// `machine.workloads` selects it or a part of it although it is protected: `run` knows no pods.
    pub(super) is_exposed: bool,
    /// What would become of it if memory were short and all pods were needed.
    pub(super) verdict: String,
}

/// All pods of the list that are here, in the order of eviction, and their requests together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Answer {
    /// Those that run and have a cgroup here.
    pub(super) pods: Vec<Reported>,
    /// How many are on this node, those that have no cgroup yet too.
    pub(super) count: usize,
    /// Their requests together.
    pub(super) requests_bytes: Bytes,
    /// Cgroups of pods that the list does not have.
    pub(super) unlisted: Vec<String>,
}

/// Joins the list with the cgroups that are here; nothing without a list.
pub(super) fn answer(
    configuration: &Configuration,
    listed: &Listed,
    cgroups: &[Cgroup],
    sample: &Sample,
    machine: Bytes,
    now: MonotonicNs,
) -> Option<Answer> {
    if !listed.is_given {
        return None;
    }
    let all = || cgroups.iter().filter_map(|cgroup| Some((cgroup, listed.of_path(&cgroup.path)?)));
    // What is left of the cgroup of a pod that has ended has no process that could be evicted.
    let found: Vec<(&Cgroup, &Pod)> = all().filter(|(_, pod)| !pod.has_ended).collect();
    let unlisted = cgroups.iter().filter(|cgroup| listed.of_path(&cgroup.path).is_none());
    let is_found = |pod: &Pod| found.iter().any(|(_, other)| std::ptr::eq(*other, pod));
    let is_same_node = |pod: &Pod| !pod.node.is_empty() && all().any(|(_, other)| other.node == pod.node);
    let here: Vec<&Pod> =
        listed.pods.iter().filter(|pod| !pod.has_ended && (is_found(pod) || is_same_node(pod))).collect();
    let mut pods: Vec<Option<Reported>> =
        found.iter().map(|(cgroup, pod)| Some(reported(cgroup, pod, sample, machine))).collect();
    let order = order(configuration, &found, now);
    let in_order = |(pod, verdict): (u32, String)| Some(Reported { verdict, ..pods.get_mut(pod as usize)?.take()? });
    Some(Answer {
        pods: order.into_iter().filter_map(in_order).collect(),
        count: here.len(),
        requests_bytes: here.iter().map(|pod| pod.memory_request()).fold(Bytes::ZERO, Bytes::saturating_add),
        unlisted: unlisted.map(|cgroup| cgroup.path.clone()).collect(),
    })
}

fn reported(cgroup: &Cgroup, pod: &Pod, sample: &Sample, machine: Bytes) -> Reported {
    let scores = || pod.spec.running().map(|container| pod.oom_score_adj(container, machine));
    let holds =
        |inner: &str| inner.strip_prefix(&cgroup.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let within = |outer: &str| cgroup.path.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
    let mut taken = sample.workloads.iter().filter(|workload| workload.protected.is_none());
    Reported {
        pod: pod.full_name(),
        cgroup: cgroup.path.clone(),
        priority: pod.facts.priority,
        qos: pod.qos.name(),
        request_bytes: pod.memory_request(),
        usage_bytes: cgroup.figures.working_set(),
        swapped_bytes: cgroup.figures.swapped,
        started: pod.started_at(),
        protected: pod.protected(),
        oom_score_adj: scores().min().zip(scores().max()),
        is_exposed: pod.protected().is_some() && taken.any(|it| holds(&it.cgroup) || within(&it.cgroup)),
        verdict: String::new(),
    }
}

/// The order of the configured policy when memory is short, and what would become of each if all were needed.
fn order(configuration: &Configuration, found: &[(&Cgroup, &Pod)], now: MonotonicNs) -> Vec<(u32, String)> {
    let pods: Vec<Workload<'_>> = found
        .iter()
        .map(|(cgroup, pod)| pod.for_memory(cgroup.figures.working_set(), cgroup.figures.swapped, now))
        .collect();
    let plan = all_needed(&configuration.policy, &pods);
    plan.ranked.iter().map(|ranked| (ranked.workload, words(ranked.verdict))).collect()
}

/// Whether a pod would be evicted if memory were short and no other were before it.
pub(crate) const fn may_be_evicted(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Evicted | Verdict::NotNeeded)
}

/// What would become of a pod, in words.
pub(crate) fn words(verdict: Verdict) -> String {
    match verdict {
        verdict if may_be_evicted(verdict) => "may be evicted".to_owned(),
        // Its grace is not cut short now.
        Verdict::EscalatedToKill => Verdict::Terminating.to_string(),
        verdict => verdict.to_string(),
    }
}

/// What would be decided about these pods if no memory at all were left and no limit stood in the way.
pub(crate) fn all_needed(policy: &Config, pods: &[Workload<'_>]) -> Plan {
    let config = Config {
        eviction_policy: policy.eviction_policy,
        thresholds: vec![Threshold::hard(
            Signal::MemoryAvailable,
            kubelet::ThresholdAmount::At(Amount::whole(i64::MAX)),
        )],
        hard_victims_per_minute: u32::try_from(pods.len()).unwrap_or(u32::MAX),
        evict_for_unattributed: true,
        // One sample shows no growth: all that a pod uses must not count as such.
        responsible_percent: 0,
        ..Config::default()
    };
    let memory = MemoryStats { available: Some(0), working_set: Some(0), time: None };
    let readings = Readings::of(&NodeStats { memory: Some(memory), ..NodeStats::default() });
    let observation = Observation {
        // The disks do not matter for memory.
        layout: Some(kubelet::DiskLayout::Single),
        readings: Some(readings),
        workloads: pods,
        ..Observation::default()
    };
    let mut plan = Plan::with_capacity(&config, pods.len(), 0);
    if config.eviction_policy == EvictionPolicy::Kubelet {
        // It takes one a turn.
        ranking(&config, &observation, &mut plan);
    } else {
        let mut state = State::with_capacity(&config, pods.len());
        decide(&config, &mut state, &observation, MonotonicNs(0), &mut plan);
    }
    plan
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::observe::tests::tree;

    pub(crate) const UID: &str = "01234567-89ab-cdef-0123-456789abcdef";
    const HASH: &str = "0123456789abcdef0123456789abcdef";
    const MIB: u64 = 1 << 20;
    /// 2026-01-02T00:00:00Z.
    const NOW: MonotonicNs = MonotonicNs(1_767_312_000_000_000_000);

    /// A list of one pod whose container has this id: `abc`.
    pub(crate) fn listed(requests: &str, limits: &str) -> Listed {
        listed_pods(&format!(
            "[{}]",
            pod("a", UID, "null", 0, &format!("\"requests\": {{{requests}}}, \"limits\": {{{limits}}}"))
        ))
    }

    pub(crate) fn pod(name: &str, uid: &str, annotations: &str, priority: i32, resources: &str) -> String {
        format!(
            r#"{{"metadata": {{"name": "{name}", "namespace": "n", "uid": "{uid}", "annotations": {annotations}}},
            "spec": {{"nodeName": "here", "priority": {priority},
                      "containers": [{{"name": "c", "resources": {{{resources}}}}}]}},
            "status": {{"containerStatuses": [{{"name": "c", "containerID": "containerd://abc"}}]}}}}"#
        )
    }

    pub(crate) fn listed_pods(items: &str) -> Listed {
        let text = format!(r#"{{"items": {items}}}"#);
        Listed::of(Some(plimsoll_pods::read_pods(text.as_bytes()).expect("it is a list")))
    }

    #[test]
    fn a_pod_is_known_by_its_cgroup_under_both_drivers() {
        let pods = listed("", "");
        let underscored = UID.replace('-', "_");
        for (path, is_known) in [
            (format!("kubepods/burstable/pod{UID}"), true),
            (format!("kubepods/pod{UID}/abc"), true),
            (format!("kubepods.slice/kubepods-pod{underscored}.slice"), true),
            (
                format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{underscored}.slice/c.scope"),
                true,
            ),
            (format!("outer-kubepods.slice/outer-kubepods-pod{underscored}.slice"), true),
            (format!("kubepods/pod{HASH}"), false),
            ("kubepods/podman".to_owned(), false),
            ("kubepods.slice".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(pods.of_path(&path).is_some(), is_known, "{path}");
        }
    }

    #[test]
    fn pods_are_ranked_and_protected_ones_have_a_reason() {
        let uid = |last: char| format!("{}{last}", &UID[..35]);
        let path = |last: char| format!("kubepods.slice/kubepods-pod{}.slice", uid(last).replace('-', "_"));
        let static_path = format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{HASH}.slice");
        let dir = tree(&[
            (&path('1'), 300 * MIB, 0, 0, 0, 0),
            (&path('2'), 400 * MIB, 0, 100 * MIB, 0, 0),
            (&path('3'), 50 * MIB, 0, 0, 0, 0),
            (&path('4'), 5 * MIB, 0, 0, 0, 0),
            (&path('7'), 700 * MIB, 0, 0, 0, 0),
            (&static_path, 60 * MIB, 0, 0, 0, 0),
        ]);
        let asks = |memory: &str| format!(r#""requests": {{"memory": "{memory}"}}"#);
        let mirror = format!(
            r#"{{"kubernetes.io/config.mirror": "{HASH}", "kubernetes.io/config.hash": "{HASH}",
                                  "kubernetes.io/config.source": "file"}}"#
        );
        let listed = listed_pods(&format!(
            "[{}, {}, {}, {}, {}, {}, {}]",
            pod("within", &uid('1'), "null", 0, &asks("500Mi")),
            pod("over", &uid('2'), "null", 9, &asks("100Mi")),
            pod("critical", &uid('3'), "null", 2_000_000_000, &asks("10Mi")),
            pod("static", "ffffffff-0000-0000-0000-000000000000", &mirror, 0, &asks("20Mi")),
            pod("pending", &uid('5'), "null", 0, &asks("1Mi")),
            pod("over already", &uid('7'), "null", 0, &asks("1Mi"))
                .replace("\"status\": {", "\"status\": {\"phase\": \"Failed\", "),
            pod("elsewhere", &uid('6'), "null", 0, &asks("7Gi")).replace("here", "there"),
        ));
        let text = "machine: {workloads: [{match: 'kubepods.slice/**'}]}";
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        let observer = Observer::new(&configuration, Some(dir.path()), &crate::observe::Own::default());
        let sample = observer.sample();
        let cgroups = cgroups(&observer);
        assert_eq!(cgroups.len(), 6);
        let answer =
            super::answer(&configuration, &listed, &cgroups, &sample, Bytes(1000 * MIB), NOW).expect("there is a list");
        let reported: Vec<_> = answer
            .pods
            .iter()
            .map(|it| (it.pod.as_str(), it.protected, it.usage_bytes, it.oom_score_adj, it.is_exposed))
            .collect();
        let mib = |mib: u64| Some(Bytes(mib * MIB));
        assert_eq!(
            reported,
            [
                ("n/static", Some(Protected::Static), mib(60), Some((980, 980)), true),
                ("n/over", None, mib(300), Some((900, 900)), false),
                ("n/critical", Some(Protected::Critical), mib(50), Some((990, 990)), true),
                ("n/within", None, mib(300), Some((500, 500)), false),
            ]
        );
        assert_eq!((answer.count, answer.requests_bytes), (5, Bytes(631 * MIB)));
        assert_eq!(answer.unlisted, [path('4')]);
        assert_eq!(super::answer(&configuration, &Listed::default(), &cgroups, &sample, Bytes(1), NOW), None);
    }

    #[test]
    fn what_a_pod_uses_is_not_taken_for_growth() {
        let other = format!("{}0", &UID[..35]);
        let paths = [UID, &other].map(|uid| format!("kubepods.slice/kubepods-pod{}.slice", uid.replace('-', "_")));
        let dir = tree(&[(&paths[0], 1000 * MIB, 0, 0, 0, 0), (&paths[1], 90 * MIB, 0, 0, 0, 0)]);
        let asks = r#""requests": {"memory": "990Mi"}"#;
        let (large, small) = (pod("large", UID, "null", 0, asks), pod("small", &other, "null", 0, ""));
        let listed = listed_pods(&format!("[{large}, {small}]"));
        let configuration = Configuration::default();
        let observer = Observer::new(&configuration, Some(dir.path()), &crate::observe::Own::default());
        let answer =
            super::answer(&configuration, &listed, &cgroups(&observer), &observer.sample(), Bytes(1000 * MIB), NOW);
        let order: Vec<_> = answer.expect("there is a list").pods.into_iter().map(|it| it.pod).collect();
        assert_eq!(order, ["n/small", "n/large"], "the one that is furthest over its request is first");
    }

    #[test]
    fn pods_stand_in_the_order_of_the_configured_eviction_policy() {
        let uid = |last: char| format!("{}{last}", &UID[..35]);
        let path = |last: char| format!("kubepods.slice/kubepods-pod{}.slice", uid(last).replace('-', "_"));
        // The paths are in another order than the starts.
        let dir = tree(&[
            (&path('1'), 300 * MIB, 0, 0, 0, 0),
            (&path('2'), 300 * MIB, 0, 0, 0, 0),
            (&path('3'), 300 * MIB, 0, 0, 0, 0),
            (&path('4'), 900 * MIB, 0, 0, 0, 0),
            (&path('5'), 500 * MIB, 0, 0, 0, 0),
            (&path('6'), 500 * MIB, 0, 0, 0, 0),
        ]);
        let pod = |name: &str, last: char, resources: &str, more: &str, start: &str| {
            pod(name, &uid(last), "null", 0, resources)
                .replace("\"namespace\"", &format!("{more}\"namespace\""))
                .replace("\"status\": {", &format!("\"status\": {{\"startTime\": \"2026-01-01T{start}Z\", "))
        };
        let all = |memory: &str| {
            let amounts = format!(r#"{{"memory": "{memory}", "cpu": "1"}}"#);
            format!(r#""requests": {amounts}, "limits": {amounts}"#)
        };
        let deleted = |time: &str| format!(r#""deletionTimestamp": "{time}", "#);
        let asks = r#""requests": {"memory": "100Mi"}"#;
        let listed = listed_pods(&format!(
            "[{}, {}, {}, {}, {}, {}]",
            pod("old", '1', asks, "", "01:00:00"),
            pod("young", '2', asks, "", "03:00:00"),
            pod("middle", '3', asks, "", "02:00:00"),
            pod("guaranteed", '4', &all("500Mi"), "", "00:00:00"),
            pod("going", '5', asks, &deleted("2026-01-02T00:00:00Z"), "00:00:00"),
            pod("stuck", '6', asks, &deleted("2026-01-01T23:00:00Z"), "00:00:00"),
        ));
        let (may, going, stuck) =
            ("may be evicted", "terminating already, counted as coming back", "terminating already, but stuck");
        for (book, expected) in [
            (
                "plimsoll",
                [
                    ("n/guaranteed", may),
                    ("n/going", going),
                    ("n/stuck", stuck),
                    ("n/young", may),
                    ("n/middle", may),
                    ("n/old", may),
                ],
            ),
            (
                "openshift3",
                [
                    ("n/going", going),
                    ("n/stuck", stuck),
                    ("n/young", may),
                    ("n/middle", may),
                    ("n/old", may),
                    ("n/guaranteed", may),
                ],
            ),
            // Equals stay as they come.
            (
                "kubelet",
                [
                    ("n/guaranteed", may),
                    ("n/going", may),
                    ("n/stuck", may),
                    ("n/old", may),
                    ("n/young", may),
                    ("n/middle", may),
                ],
            ),
        ] {
            let configuration =
                plimsoll_config::parse(&format!("evictionPolicy: {book}"), "f").expect("it is in order");
            let observer = Observer::new(&configuration, Some(dir.path()), &crate::observe::Own::default());
            let sample = observer.sample();
            let cgroups = cgroups(&observer);
            let answer = super::answer(&configuration, &listed, &cgroups, &sample, Bytes(1000 * MIB), NOW);
            let answer = answer.expect("there is a list");
            let reported: Vec<_> = answer.pods.iter().map(|it| (it.pod.as_str(), it.verdict.as_str())).collect();
            assert_eq!(reported, expected, "{book}");
            let young = answer.pods.iter().find(|it| it.pod == "n/young").expect("it is there");
            assert_eq!(young.started.as_deref(), Some("2026-01-01T03:00:00Z"));
        }
    }
}
