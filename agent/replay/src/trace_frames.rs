//! The looks of a trace as observations: memory of the machine, slices, workloads.

use crate::run::{Frame, Slice as OfSlice};
use crate::trace::{Entry, Look, Memory, Swap as SwapCounters, Trace, Workload as Seen};
use core::time::Duration;
use plimsoll_config::{Configuration, Pattern};
use plimsoll_policy::kubelet::{self, Amount, MemoryStats, NodeStats, PodStats, QosClass, StatsTime};
use plimsoll_policy::{Key, MemoryReading, Protected, SliceId, SliceSet, Stall, Swap, Uid, Workload};
use plimsoll_units::{Bytes, MonotonicNs};

impl Seen {
    /// What its eviction gives back by the kernel's own estimate, which counts cache as available while it lives.
    /// Without a figure of that all of its working set.
    fn held(&self) -> Bytes {
        let all = self.usage_bytes.unwrap_or(Bytes::ZERO);
        self.held_bytes.map_or(all, |held| held.min(all))
    }

    /// What of its working set is cache.
    fn cache(&self) -> Bytes {
        self.usage_bytes.unwrap_or(Bytes::ZERO).saturating_sub(self.held())
    }

    /// A workload without pod facts: its request is its reservation.
    fn observed(&self, configuration: &Configuration, slot: u32) -> Workload<'static> {
        let (priority, protected) = judged_anew(self, configuration);
        let stats = self.usage_bytes.map(|usage| PodStats { working_set: Some(usage.0), ..PodStats::default() });
        let has_reservation = self.reservation_bytes > Bytes::ZERO;
        let within = |slice: &Pattern| slice.matches(&self.cgroup) || slice.matches_parent_of(&self.cgroup);
        let slices = (0_u8..).zip(&configuration.slices).filter(|(_, slice)| within(&slice.path));
        Workload {
            key: Key { slot, id: self.id },
            uid: Uid(self.id.0.into()),
            facts: kubelet::Pod {
                priority,
                memory_request: Amount::counted(self.reservation_bytes.0),
                grace_seconds: Some(configuration.policy.max_pod_grace_seconds),
                stats,
                ..kubelet::Pod::default()
            },
            qos: if has_reservation { QosClass::Burstable } else { QosClass::BestEffort },
            protected,
            is_empty: self.empty,
            started: self.started_ns,
            slices: slices.fold(SliceSet::NONE, |set, (index, _)| set.with(SliceId(index))),
            swapped: self.swapped_bytes,
            ..Workload::default()
        }
    }
}

/// A workload's priority and protection, as this configuration has them: where it says nothing of it, as they were.
fn judged_anew(workload: &Seen, configuration: &Configuration) -> (i32, Option<Protected>) {
    let path = &workload.cgroup;
    let known = configuration.workloads.iter().find(|known| known.pattern.matches(path));
    let is_never = |never: &Pattern| never.matches(path) || never.matches_parent_of(path);
    let listed = configuration.never.iter().any(is_never).then_some(Protected::Listed);
    (known.map_or(workload.priority, |known| known.priority), workload.protected.or(listed))
}

/// The workloads of a single look, in its order.
pub fn workloads_of(look: &Look, configuration: &Configuration) -> Vec<Workload<'static>> {
    (0..).zip(&look.workloads).map(|(slot, workload)| workload.observed(configuration, slot)).collect()
}

impl From<Memory> for MemoryReading {
    fn from(memory: Memory) -> Self {
        let Memory { capacity_bytes, kubelet_bytes, mem_available_bytes } = memory;
        Self { capacity: capacity_bytes, kubelet_available: kubelet_bytes, mem_available: mem_available_bytes }
    }
}

/// Memory as statistics of a node have it, read then.
pub fn node_stats(memory: Option<MemoryReading>, at: MonotonicNs) -> NodeStats {
    let of_memory = |memory: MemoryReading| MemoryStats {
        available: Some(memory.kubelet_available.0),
        working_set: Some(memory.capacity.saturating_sub(memory.kubelet_available).0),
        time: Some(stats_time(at)),
    };
    NodeStats { memory: memory.map(of_memory), ..NodeStats::default() }
}

/// The same time on the clock of statistics.
pub fn stats_time(at: MonotonicNs) -> StatsTime {
    StatsTime(i64::try_from(at.0).unwrap_or(i64::MAX))
}

/// Looks of a trace, in order: a plan that was told counts as a look at those it told of.
fn looks(trace: &Trace) -> impl Iterator<Item = (Look, Option<&str>)> {
    let mut last = Look::default();
    trace.entries.iter().filter_map(move |entry| match entry {
        Entry::Look(look) => {
            last = look.clone();
            Some((look.clone(), None))
        }
        Entry::Reported(reported) => {
            let mut look = Look { at_ns: reported.at_ns, memory: Some(reported.memory?), ..last.clone() };
            for workload in &reported.workloads {
                match look.workloads.iter_mut().find(|known| known.id == workload.id) {
                    // A plan does not tell what of them is in swap, nor what of them is cache: what grew since is not.
                    Some(known) => {
                        let cache = known.held_bytes.map(|_| known.cache());
                        let usage_less_cache = || Some(workload.usage_bytes?.saturating_sub(cache?));
                        *known = Seen {
                            held_bytes: workload.held_bytes.or_else(usage_less_cache),
                            swapped_bytes: workload.swapped_bytes.or(known.swapped_bytes),
                            ..workload.clone()
                        };
                    }
                    None => look.workloads.push(workload.clone()),
                }
            }
            Some((look, Some(reported.line.as_str())))
        }
    })
}

/// The most workloads that a look of the trace has.
pub(crate) fn most_workloads(trace: &Trace) -> usize {
    let count = |entry: &Entry| match entry {
        Entry::Look(look) => look.workloads.len(),
        Entry::Reported(reported) => reported.workloads.len(),
    };
    // A plan may tell of some that the last look did not see.
    2 * trace.entries.iter().map(count).max().unwrap_or(0)
}

/// Swap from look to look. A plan that was told between two does not tell of it: the last look's figures hold, and if
/// pages came back up to there they still do.
#[derive(Default)]
struct SwapSeen {
    last: Option<SwapCounters>,
    /// How many came back between the last two looks.
    came_back: u64,
    /// The counter as it is decided by.
    refaults: u64,
}

impl SwapSeen {
    fn at(&mut self, swap: Option<SwapCounters>, is_reported: bool) -> Option<Swap> {
        if !is_reported {
            let before = core::mem::replace(&mut self.last, swap);
            let counters = before.zip(swap).map(|(before, swap)| swap.refaults.saturating_sub(before.refaults));
            self.came_back = counters.unwrap_or(0);
        }
        let SwapCounters { total_bytes, free_bytes, refaults: _ } = self.last?;
        self.refaults = self.refaults.saturating_add(self.came_back);
        Some(Swap { total: total_bytes, free: free_bytes, refaults: self.refaults })
    }
}

/// Each look of a trace as a frame.
pub(crate) fn each_frame(trace: &Trace, configuration: &Configuration, mut each: impl FnMut(Frame<'_>)) {
    let mut swap_seen = SwapSeen::default();
    for (look, reported) in looks(trace) {
        let swap = swap_seen.at(look.swap, reported.is_some());
        let Look { at_ns: at, memory, stall, slices, workloads, swap: _ } = &look;
        let of_slice = |known: &plimsoll_config::Slice| {
            let slice = slices.iter().find(|slice| slice.path == known.path.as_str())?;
            Some(OfSlice {
                memory: MemoryReading {
                    capacity: slice.capacity_bytes,
                    kubelet_available: slice.available_bytes,
                    mem_available: slice.mem_available_bytes,
                },
            })
        };
        each(Frame {
            at: *at,
            epoch_ns: trace.header.epoch_ns,
            reported,
            node: node_stats(memory.map(Into::into), *at),
            mem_available: memory.and_then(|memory| memory.mem_available_bytes),
            pods_mem_available: None,
            stall: stall.map(|stall| Stall {
                full: Duration::from_nanos(stall.full_ns),
                window: Duration::from_nanos(stall.window_ns),
            }),
            swap,
            slices: configuration.slices.iter().map(of_slice).collect(),
            names: workloads.iter().map(|workload| workload.cgroup.clone()).collect(),
            workloads: workloads.iter().map(|workload| workload.observed(configuration, 0)).collect(),
            held: workloads.iter().map(Seen::held).collect(),
            seen: vec![None; workloads.len()],
        });
    }
}
