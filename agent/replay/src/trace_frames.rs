//! The samples of a trace as observations: memory of the machine, slices, workloads.

use crate::run::{Frame, Slice as OfSlice};
use crate::trace::{
    Entry, Reported, Sample, Swap as SwapCounters, Tasks, Terminating as Ends, Trace, Workload as Seen,
};
use core::time::Duration;
use plimsoll_config::{Configuration, WatchedSlice};
use plimsoll_policy::kubelet::{self, Amount, MemoryStats, NodeStats, PidStats, PodStats, QosClass, StatsTime};
use plimsoll_policy::{
    Key, MemoryReading, Owner, OwnerUid, Protected, Reclaimed, SliceId, SliceSet, Stall, Swap, Terminating, Uid,
    Workload,
};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde_json::Value;
use std::collections::BTreeMap;

/// The verdicts on workloads that a plan evicts, as a reported plan names them.
const VICTIMS: [&str; 2] = ["evicted", "escalated-to-kill"];

/// What its eviction gives back by the kernel's own estimate, which counts cache as available while it lives.
/// Without a figure of that all of its working set.
fn held(seen: &Seen) -> Bytes {
    let all = seen.usage_bytes.unwrap_or(Bytes::ZERO);
    seen.held_bytes.map_or(all, |held| held.min(all))
}

/// A workload. Without pod facts its request is its reservation.
fn observed(seen: &Seen, configuration: &Configuration, slot: u32) -> Workload<'static> {
    let (priority, protected) = configured(seen, configuration);
    let of_usage = |usage: Bytes| PodStats { working_set: Some(usage.0), processes: seen.tasks, ..PodStats::default() };
    let stats = seen.usage_bytes.map(of_usage);
    let has_reservation = seen.reservation_bytes > Bytes::ZERO;
    let slices = (0_u8..).zip(configuration.slices());
    let slices = slices.filter(|(_, slice)| slice.holds(&seen.cgroup, seen.pod.is_some()));
    let of_cgroup = if has_reservation { QosClass::Burstable } else { QosClass::BestEffort };
    let pod = seen.pod.as_ref();
    Workload {
        key: Key { slot, id: seen.id },
        uid: pod.map_or(Uid(seen.id.0.into()), |pod| Uid::of(&pod.uid)),
        owner: seen.owner.map(|owner| Owner { id: owner.id, request: owner.request_bytes }),
        facts: kubelet::Pod {
            priority,
            memory_request: Amount::bytes(seen.reservation_bytes),
            grace_seconds: pod.map_or(Some(configuration.policy.max_pod_grace_seconds), |pod| pod.grace_seconds),
            stats,
            ..kubelet::Pod::default()
        },
        qos: pod.map_or(of_cgroup, |pod| pod.qos),
        daemon_set: pod.and_then(|pod| pod.daemon_set.as_ref()).map(|uid| OwnerUid(Uid::of(uid).0)),
        protected,
        terminating: seen.terminating.map(|ends| match ends {
            Ends::Graceful { until_ns } => {
                Terminating { is_graceful: true, until: Some(until_ns), ..Terminating::default() }
            }
            Ends::Killed => Terminating::default(),
            Ends::Stuck => Terminating { is_stuck: true, ..Terminating::default() },
            Ends::Refused => Terminating { is_stuck: true, is_refused: true, ..Terminating::default() },
        }),
        returns_at_most: seen.returns_at_most_bytes,
        settled: seen.settled_bytes,
        is_empty: seen.empty,
        grows_while_frozen: seen.grows_while_frozen,
        started: seen.started_ns,
        slices: slices.fold(SliceSet::NONE, |set, (index, _)| set.with(SliceId(index))),
        swapped: seen.swapped_bytes,
        ..Workload::default()
    }
}

/// A workload's priority and protection by this configuration; where it has none, those of the recording.
fn configured(workload: &Seen, configuration: &Configuration) -> (i32, Option<Protected>) {
    let path = &workload.cgroup;
    let known = configuration.machine.workloads.iter().find(|known| known.pattern.matches(path));
    let listed = configuration.machine.never.iter().any(|never| never.covers(path)).then_some(Protected::Listed);
    // A pod has its own, whatever patterns say.
    let known = known.filter(|_| workload.pod.is_none());
    (known.map_or(workload.priority, |known| known.priority), workload.protected.or(listed))
}

/// The workloads of a single sample, in its order.
pub fn workloads_of(sample: &Sample, configuration: &Configuration) -> Vec<Workload<'static>> {
    (0..).zip(&sample.workloads).map(|(slot, workload)| observed(workload, configuration, slot)).collect()
}

/// Memory and tasks as statistics of a node have them, read then.
pub fn node_stats(memory: Option<MemoryReading>, tasks: Option<Tasks>, at: MonotonicNs) -> NodeStats {
    let of_memory = |memory: MemoryReading| MemoryStats {
        available: Some(memory.kubelet_available.0),
        working_set: Some(memory.capacity.saturating_sub(memory.kubelet_available).0),
        time: Some(stats_time(at)),
    };
    let of_tasks = |Tasks { count, limit }| PidStats {
        max: i64::try_from(limit).ok(),
        running: i64::try_from(count).ok(),
        time: Some(stats_time(at)),
    };
    NodeStats { memory: memory.map(of_memory), pids: tasks.map(of_tasks), ..NodeStats::default() }
}

/// The same time on the clock of statistics.
pub fn stats_time(at: MonotonicNs) -> StatsTime {
    StatsTime(i64::try_from(at.0).unwrap_or(i64::MAX))
}

/// The samples of a trace, in order, each with what the agent reported of it.
fn samples(trace: &Trace) -> impl Iterator<Item = (&Sample, &[Entry])> {
    let mut rest = trace.entries.as_slice();
    core::iter::from_fn(move || {
        loop {
            let (first, after) = rest.split_first()?;
            rest = after;
            if let Entry::Sample(sample) = first {
                let reported = rest.iter().take_while(|entry| matches!(entry, Entry::Reported(_))).count();
                let (reported, after) = rest.split_at(reported);
                rest = after;
                return Some((sample, reported));
            }
        }
    })
}

/// The most workloads that a sample of the trace has.
pub(crate) fn most_workloads(trace: &Trace) -> usize {
    samples(trace).map(|(sample, _)| sample.workloads.len()).max().unwrap_or(0)
}

fn reported_of(entry: &Entry) -> Option<(Option<&str>, &str)> {
    match entry {
        Entry::Reported(Reported { slice, line, .. }) => Some((slice.as_deref(), line)),
        Entry::Sample(_) | Entry::Disks(_) => None,
    }
}

/// The workloads that a reported plan evicts.
fn victims_of(reported: &Reported) -> Vec<CgroupId> {
    let candidates = reported.plan.get("candidates").and_then(Value::as_array).into_iter().flatten();
    let is_victim =
        |candidate: &&Value| candidate["verdict"].as_str().is_some_and(|verdict| VICTIMS.contains(&verdict));
    candidates.filter(is_victim).filter_map(|candidate| candidate["cgroup_id"].as_u64().map(CgroupId)).collect()
}

/// What the agent's own plans evicted, sample by sample.
#[derive(Default)]
struct Evicted<'a> {
    /// By slice, of the last plan that was reported: one that is carried out always is, and of an agent that shadows one
    /// that is the same again is not.
    by_slice: BTreeMap<Option<&'a str>, Vec<CgroupId>>,
}

impl<'a> Evicted<'a> {
    /// Those of this sample, and whether each is still there in the next one, and not terminating.
    fn then(&mut self, reported: &'a [Entry], next: Option<&Sample>) -> BTreeMap<CgroupId, bool> {
        for entry in reported {
            if let Entry::Reported(reported) = entry {
                self.by_slice.insert(reported.slice.as_deref(), victims_of(reported));
            }
        }
        let goes_on = |id: CgroupId| {
            let mut workloads = next.into_iter().flat_map(|next| &next.workloads);
            workloads.any(|it| it.id == id && it.terminating.is_none() && !it.empty)
        };
        self.by_slice.values().flatten().map(|id| (*id, goes_on(*id))).collect()
    }
}

/// Each sample of a trace as a frame.
pub(crate) fn each_frame(trace: &Trace, configuration: &Configuration, mut each: impl FnMut(Frame<'_>)) {
    let (mut evicted, mut all) = (Evicted::default(), samples(trace).peekable());
    while let Some((sample, reported)) = all.next() {
        let evicted_then = evicted.then(reported, all.peek().map(|(next, _)| *next));
        let Sample {
            at_ns: at,
            made_ns,
            memory,
            withheld_bytes,
            huge_page_pool_bytes,
            tasks,
            stall,
            swap,
            slices,
            reclaimed,
            workloads,
            ..
        } = sample;
        let of_slice = |known: WatchedSlice<'_>| {
            let slice = slices.iter().find(|slice| slice.path == known.name())?;
            let memory = MemoryReading {
                capacity: slice.capacity_bytes,
                kubelet_available: slice.available_bytes,
                mem_available: slice.mem_available_bytes,
            };
            Some(OfSlice { memory })
        };
        let scopes = core::iter::once(None).chain(configuration.slices().map(|slice| Some(slice.name())));
        let ended = |scope: Option<&str>| {
            let reclaimed = reclaimed.iter().find(|reclaimed| reclaimed.slice.as_deref() == scope)?;
            Some(Reclaimed { order: reclaimed.order, at: stats_time(reclaimed.at_ns) })
        };
        let of_swap = |SwapCounters { total_bytes: total, free_bytes: free, refaults }| Swap { total, free, refaults };
        each(Frame {
            at: *at,
            made: made_ns.unwrap_or(*at),
            // Such a sample has the reclaims that have ended.
            reclaimed: made_ns.map(|_| scopes.map(ended).collect()),
            evicted_then: made_ns.map_or_else(BTreeMap::new, |_| evicted_then),
            epoch_ns: trace.header.epoch_ns,
            reported: reported.iter().filter_map(reported_of).collect(),
            node: node_stats(memory.map(Into::into), *tasks, *at),
            mem_available: memory.and_then(|memory| memory.mem_available_bytes),
            pods_mem_available: None,
            withheld: *withheld_bytes,
            huge_page_pool: *huge_page_pool_bytes,
            stall: stall.map(|stall| Stall {
                full: Duration::from_nanos(stall.full_ns),
                window: Duration::from_nanos(stall.window_ns),
            }),
            swap: swap.map(of_swap),
            slices: configuration.slices().map(of_slice).collect(),
            names: workloads.iter().map(|workload| workload.cgroup.clone()).collect(),
            workloads: workloads.iter().map(|workload| observed(workload, configuration, 0)).collect(),
            held: workloads.iter().map(held).collect(),
            pods: vec![None; workloads.len()],
        });
    }
}
