//! Which cgroups' page cache counts as used in the kubelet's figure, which slices are above their reservation, and what
//! of the machine is promised.

use std::collections::BTreeMap;

use plimsoll_config::Configuration;
use plimsoll_node::meminfo::MemReading;
use plimsoll_pods::Pod;
use plimsoll_policy::Scope;
use plimsoll_policy::kubelet::{QosClass, Signal};
use plimsoll_replay::trace::Sample;
use plimsoll_units::Bytes;
use serde::Serialize;

use super::oom::class_of;
use super::pods::{Answer as Pods, Cgroup, Listed};
use crate::observe::{Figures, Observer};

/// Less active cache than this in a cgroup is left out.
const CACHE: Bytes = Bytes::mib(16);

/// What to do about page cache that counts as used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Advice {
    /// A pod whose request is its limit already.
    RequestIsLimit,
    /// A pod that requests less than it may use.
    RaiseRequest,
    /// A pod without requests and limits.
    SetBoth,
    /// A pod of which neither request nor limit is known.
    RequestUnknown,
    /// A service whose reservation is its limit already.
    PromiseIsLimit,
    /// A service whose reservation is less than its limit.
    RaisePromise,
    /// Several of them together.
    LookInside,
}

/// A cgroup with much page cache in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Cache {
    pub(super) cgroup: String,
    pub(super) pod: Option<String>,
    pub(super) active_file_bytes: Bytes,
    pub(super) working_set_bytes: Bytes,
    pub(super) peak_bytes: Option<Bytes>,
    pub(super) max_bytes: Option<Bytes>,
    pub(super) advice: Advice,
}

/// A cgroup next to what is reserved for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Kept {
    pub(super) cgroup: String,
    /// By what: `memory.low and memory.min`, `systemReserved`, `kubeReserved`.
    pub(super) by: &'static str,
    pub(super) reserved_bytes: Bytes,
    pub(super) working_set_bytes: Bytes,
}

/// What the machine has and what of it is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Capacity {
    #[serde(rename = "capacity_bytes")]
    pub(super) whole: Bytes,
    /// The capacity less what is reserved and the hard threshold.
    #[serde(rename = "allocatable_bytes")]
    pub(super) allocatable: Bytes,
    /// The requests of the pods here together; not known without a list that has some.
    #[serde(rename = "requests_bytes")]
    pub(super) requests: Option<Bytes>,
    /// The sum of what workloads were promised by `memory.low` and `memory.min`.
    #[serde(rename = "promised_bytes")]
    pub(super) promised: Bytes,
}

/// Names of folders at the top of the tree.
fn top(observer: &Observer) -> Vec<String> {
    let Some(root) = observer.folder(b"") else { return Vec::new() };
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut names: Vec<String> = folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Workloads, pods, and what stands at the top of the tree: most first.
pub(super) fn cache(observer: &Observer, sample: &Sample, pods: &[Cgroup], listed: &Listed) -> Vec<Cache> {
    let of = |path: &str| observer.figures(path.as_bytes()).unwrap_or_default();
    let mut all: BTreeMap<String, (Figures, Advice)> = BTreeMap::new();
    for name in top(observer) {
        all.insert(name.clone(), (of(&name), Advice::LookInside));
    }
    for workload in &sample.workloads {
        let figures = of(&workload.cgroup);
        let is_limit = figures.max.is_some_and(|max| figures.reservation >= max);
        let advice = match (listed.of_path(&workload.cgroup), class_of(&workload.cgroup)) {
            (None, None) if is_limit => Advice::PromiseIsLimit,
            (None, None) => Advice::RaisePromise,
            (_, class) => of_pod(listed, &workload.cgroup, class),
        };
        all.insert(workload.cgroup.clone(), (figures, advice));
    }
    for Cgroup { path, figures } in pods {
        all.insert(path.clone(), (*figures, of_pod(listed, path, class_of(path))));
    }
    let reported = |(cgroup, (figures, advice)): (String, (Figures, Advice))| {
        Some(Cache {
            active_file_bytes: figures.active_file.filter(|active| *active >= CACHE)?,
            working_set_bytes: figures.working_set()?,
            peak_bytes: figures.peak,
            max_bytes: figures.max,
            pod: listed.of_path(&cgroup).map(Pod::full_name),
            advice,
            cgroup,
        })
    };
    let mut cache: Vec<Cache> = all.into_iter().filter_map(reported).collect();
    cache.sort_by_key(|cache| std::cmp::Reverse(cache.active_file_bytes));
    cache
}

/// By the list where the pod is on it; without, only a guaranteed pod is known to request just what it may use.
fn of_pod(listed: &Listed, path: &str, class: Option<QosClass>) -> Advice {
    match (listed.of_path(path), class) {
        (Some(pod), _) if pod.spec.is_limited_to_request() => Advice::RequestIsLimit,
        (Some(pod), _) if pod.qos == QosClass::BestEffort => Advice::SetBoth,
        (Some(_), _) => Advice::RaiseRequest,
        // The slices of the classes hold many pods.
        (None, _) if !super::pods::is_in_pod(path) => Advice::LookInside,
        (None, Some(QosClass::Guaranteed)) => Advice::RequestIsLimit,
        (None, Some(QosClass::BestEffort)) => Advice::SetBoth,
        (None, Some(QosClass::Burstable) | None) => Advice::RequestUnknown,
    }
}

/// Slices at the top of the tree that have something reserved, and what a kubelet's configuration reserves.
pub(super) fn reserved(configuration: &Configuration, observer: &Observer) -> Vec<Kept> {
    let mut reserved = Vec::new();
    let mut add = |cgroup: &str, by: &'static str, bytes: Option<Bytes>| {
        let Some(figures) = observer.figures(cgroup.trim_matches('/').as_bytes()) else { return };
        let reserved_bytes = bytes.unwrap_or(figures.reservation);
        if let (true, Some(working_set_bytes)) = (reserved_bytes > Bytes::ZERO, figures.working_set()) {
            reserved.push(Kept { cgroup: cgroup.to_owned(), by, reserved_bytes, working_set_bytes });
        }
    };
    for name in &top(observer) {
        add(name, "memory.low and memory.min", None);
    }
    let kubelet = &configuration.kubelet;
    for (by, key, usual, amounts) in [
        ("systemReserved", "systemReservedCgroup", "system.slice", &kubelet.system_reserved),
        ("kubeReserved", "kubeReservedCgroup", "", &kubelet.kube_reserved),
    ] {
        let cgroup = kubelet.settings.scalar(key).map_or(usual, |(path, _)| path);
        let bytes = amounts.get("memory").and_then(plimsoll_units::Quantity::bytes);
        if let (Some(bytes), false) = (bytes, cgroup.is_empty()) {
            add(cgroup, by, Some(bytes));
        }
    }
    reserved
}

pub(super) fn capacity(
    configuration: &Configuration,
    sample: &Sample,
    reading: &MemReading,
    pods: Option<&Pods>,
) -> Capacity {
    let kubelet = &configuration.kubelet;
    let kept = [&kubelet.kube_reserved, &kubelet.system_reserved].into_iter();
    let kept = kept.filter_map(|amounts| amounts.get("memory")?.bytes()).fold(Bytes::ZERO, Bytes::saturating_add);
    let capacity = sample.memory.map_or(reading.total, |memory| memory.capacity_bytes);
    let capacity = capacity.saturating_sub(sample.huge_page_pool_bytes);
    let hard = configuration.policy.thresholds_on(Scope::Node, Signal::MemoryAvailable);
    let hard = hard.filter(|threshold| threshold.is_hard());
    // What pods can request is the kubelet's own sum, and it takes a percentage of all memory, huge pages too.
    let hard = hard.filter_map(|threshold| threshold.bytes(reading.total)).max().unwrap_or(Bytes::ZERO);
    let hard = kubelet.taken_from_allocatable(hard);
    // `max` promises all there is.
    let promised = sample.workloads.iter().map(|workload| workload.reservation_bytes.min(capacity));
    Capacity {
        whole: capacity,
        allocatable: capacity.saturating_sub(kept).saturating_sub(hard),
        requests: pods.filter(|pods| pods.count > 0).map(|pods| pods.requests_bytes),
        promised: promised.fold(Bytes::ZERO, Bytes::saturating_add),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_config::{Headroom, Node};
    use plimsoll_replay::trace::Memory;

    #[test]
    fn what_pods_can_request_is_what_config_check_says() {
        let text = "evictionHard: {memory.available: 50%}\nsystemReserved: {memory: 100Mi}";
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        let (total, huge_pages) = (Bytes::mib(1000), Bytes::mib(200));
        let file = plimsoll_node::meminfo::MemInfo::open().expect("there is a /proc");
        let reading = file.read().expect("readable");
        let memory = Memory { capacity_bytes: total, kubelet_bytes: Bytes::ZERO, mem_available_bytes: None };
        let sample = Sample { memory: Some(memory), huge_page_pool_bytes: huge_pages, ..Sample::default() };
        let reported = capacity(&configuration, &sample, &MemReading { total, ..reading }, None);
        let node = Node { memory: Some(total), huge_pages, ..Node::default() };
        let checked = Headroom::of(&configuration.kubelet, &node).expect("its memory is known");
        assert_eq!((reported.allocatable, checked.allocatable), (Bytes::mib(200), Bytes::mib(200)));
    }
}
