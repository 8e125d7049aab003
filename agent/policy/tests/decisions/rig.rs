//! What the tests share: workloads, figures, and a policy that is driven second by second.

use plimsoll_policy::kubelet::{
    Amount, DiskLayout, MemoryStats, NodeStats, Pod, PodStats, Readings, Signal, StatsTime, Threshold, ThresholdAmount,
};
use plimsoll_policy::{
    Config, Key, MemoryReading, Observation, Owner, Plan, Stage, State, Uid, Verdict, Workload, decide,
};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use std::time::Duration;

pub(crate) const SLOTS: usize = 256;

pub(crate) const fn mib(n: u64) -> Bytes {
    Bytes::mib(n)
}

pub(crate) fn amount(mib: u64) -> Amount {
    Amount::counted(mib << 20)
}

pub(crate) const fn secs(n: u64) -> MonotonicNs {
    MonotonicNs(n * 1_000_000_000)
}

pub(crate) fn stats_time(second: u64) -> StatsTime {
    StatsTime(i64::try_from(secs(second).0).expect("small"))
}

pub(crate) fn threshold(threshold_mib: u64, grace: u64, min_reclaim_mib: u64) -> Threshold {
    Threshold {
        grace: Duration::from_secs(grace),
        min_reclaim: Some(ThresholdAmount::bytes(mib(min_reclaim_mib))),
        ..Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(mib(threshold_mib)))
    }
}

/// A cgroup without pod facts.
pub(crate) fn candidate(slot: u32, usage_mib: u64) -> Workload<'static> {
    let id = u64::from(slot) + 1000;
    let stats = PodStats { working_set: Some(mib(usage_mib).0), ..PodStats::default() };
    Workload {
        key: Key { slot, id: CgroupId(id) },
        uid: Uid(id.into()),
        facts: Pod { stats: Some(stats), ..Pod::default() },
        started: secs(1),
        ..Workload::default()
    }
}

pub(crate) fn unread(slot: u32) -> Workload<'static> {
    Workload { facts: Pod::default(), ..candidate(slot, 0) }
}

pub(crate) fn reading(kubelet: u64, kernel: u64) -> MemoryReading {
    MemoryReading { capacity: mib(1000), kubelet_available: mib(kubelet), mem_available: Some(mib(kernel)) }
}

/// Memory as it is observed in this second.
pub(crate) fn observed(at: u64, memory: Option<MemoryReading>) -> Observation<'static> {
    let of_memory = |memory: MemoryReading| MemoryStats {
        available: Some(memory.kubelet_available.0),
        working_set: Some(memory.capacity.saturating_sub(memory.kubelet_available).0),
        time: Some(stats_time(at)),
    };
    let node = NodeStats { memory: memory.map(of_memory), ..NodeStats::default() };
    Observation {
        taken: secs(at),
        layout: Some(DiskLayout::Single),
        readings: Some(Readings::of(&node)),
        mem_available: memory.and_then(|memory| memory.mem_available),
        mem_available_at: Some(stats_time(at)),
        ..Observation::default()
    }
}

/// A policy with its state and plan, driven second by second.
pub(crate) struct Rig {
    pub(crate) config: Config,
    pub(crate) state: State,
    pub(crate) plan: Plan,
}

impl Rig {
    pub(crate) fn new(config: Config) -> Self {
        let state = State::with_capacity(&config, SLOTS);
        let plan = Plan::with_capacity(&config, SLOTS, 0);
        Self { config, state, plan }
    }

    pub(crate) fn with(thresholds: &[Threshold]) -> Self {
        Self::new(Config { thresholds: thresholds.to_vec(), ..Config::default() })
    }

    pub(crate) fn sample(&mut self, at: u64, memory: MemoryReading, workloads: &[Workload<'_>]) -> &Plan {
        self.observe(at, &Observation { workloads, ..observed(at, Some(memory)) })
    }

    pub(crate) fn observe(&mut self, at: u64, observation: &Observation<'_>) -> &Plan {
        decide(&self.config, &mut self.state, observation, secs(at), &mut self.plan);
        &self.plan
    }

    /// Memory is observed without workloads.
    pub(crate) fn rest(&mut self, at: u64, memory: MemoryReading) {
        self.state.rest(&self.config, &observed(at, Some(memory)));
    }

    pub(crate) fn verdict(&self, workload: u32) -> Verdict {
        self.plan.ranked.iter().find(|ranked| ranked.workload == workload).expect("ranked").verdict
    }
}

/// What is reclaimed of memory.
pub(crate) fn reclaims(plan: &Plan) -> Option<Amount> {
    plan.reclaim().map(|order| match order.stage {
        Stage::Memory(amount) => amount,
        stage => panic!("{stage:?}"),
    })
}

pub(crate) fn victims(plan: &Plan) -> Vec<u32> {
    plan.victims().collect()
}

/// One of an owner's workloads.
pub(crate) fn of(owner: u64, request_mib: u64, workload: &Workload<'static>) -> Workload<'static> {
    Workload { owner: Some(Owner { id: CgroupId(owner), request: mib(request_mib) }), ..*workload }
}
