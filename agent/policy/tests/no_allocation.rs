//! Deciding allocates nothing, by an allocator that counts.

use plimsoll_policy::kubelet::{
    self, Amount, DiskLayout, FsStats, MemoryStats, NodeStats, QosClass, Readings, Signal, StatsTime, Threshold,
    ThresholdAmount, Usage,
};
use plimsoll_policy::{
    Action, Config, EvictionPolicy, Image, Key, Observation, Outcome, Owner, OwnerUid, Plan, Reclaimed, Scope, SliceId,
    SliceSet, SliceThresholds, Stall, State, Swap, SwapThreshold, Terminating, Uid, Why, Workload, decide,
    is_unaccounted,
};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs, Percentage};

/// No allocation is made in `work`, and none is given back.
fn assert_no_allocation(work: impl FnOnce(), of: &str) {
    let counted = allocation_counter::measure(work);
    assert_eq!((counted.count_total, counted.count_current), (0, 0), "{of}");
}

#[test]
fn an_allocation_and_its_return_are_counted() {
    let vector = vec![1_u8];
    assert_eq!(allocation_counter::measure(|| drop(std::hint::black_box(vector))).count_current, -1);
    assert_eq!(allocation_counter::measure(|| drop(std::hint::black_box(vec![1_u8]))).count_total, 1);
}

/// Memory below a hard threshold, and the node's disk too.
fn crowded(second: u64) -> NodeStats {
    let time = i64::try_from(second).ok().map(StatsTime);
    NodeStats {
        memory: Some(MemoryStats { available: Some(1000), working_set: Some(1 << 40), time }),
        node_fs: Some(FsStats { available: Some(1000), capacity: Some(1 << 40), time, ..FsStats::default() }),
        ..NodeStats::default()
    }
}

/// Cgroups without pod facts and pods of all kinds: some over limits of their own, some terminating, with swap,
/// containers and volumes.
fn workload(index: u32) -> Workload<'static> {
    const USAGE: Usage = Usage { bytes: Some(1000), inodes: Some(10) };
    let is_every = |nth| index.is_multiple_of(nth);
    let working_set = Some(u64::from(index.wrapping_mul(2_654_435_761)) % 10_000_000);
    let cgroup = Workload {
        key: Key { slot: index, id: CgroupId(index.into()) },
        uid: Uid(index.into()),
        owner: is_every(5).then(|| Owner { id: CgroupId(u64::from(index) % 50), request: Bytes(1 << 20) }),
        facts: kubelet::Pod {
            priority: i32::from(is_every(3)),
            stats: Some(kubelet::PodStats { working_set, ..kubelet::PodStats::default() }),
            ..kubelet::Pod::default()
        },
        is_empty: is_every(11),
        terminating: (index < 700 && is_every(7)).then_some(Terminating {
            is_stuck: is_every(21),
            is_graceful: is_every(2),
            ..Terminating::default()
        }),
        slices: if is_every(2) { SliceSet::NONE.with(SliceId(0)) } else { SliceSet::NONE },
        ..Workload::default()
    };
    if is_every(4) {
        return cgroup;
    }
    Workload {
        daemon_set: Some(OwnerUid(u128::from(index % 500))),
        facts: kubelet::Pod {
            volumes: const { &[kubelet::Volume { number: kubelet::Number(0), is_local: true, size_limit: None }] },
            ephemeral_storage_limit: is_every(10).then_some(Amount::whole(100)),
            stats: Some(kubelet::PodStats {
                working_set,
                ephemeral_storage: Some(3000),
                containers: const {
                    &[kubelet::ContainerStats { number: kubelet::Number(0), rootfs: USAGE, logs: USAGE }; 2]
                },
                volumes: const { &[kubelet::VolumeStats { number: kubelet::Number(0), usage: USAGE }] },
                ..kubelet::PodStats::default()
            }),
            ..cgroup.facts
        },
        qos: [QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed][index as usize % 3],
        swapped: Some(Bytes(u64::from(index) % 1000)),
        ..cgroup
    }
}

fn thresholds() -> Vec<Threshold> {
    let gib = |gib: i64| ThresholdAmount::At(Amount::whole(gib << 30));
    let hard = |signal| Threshold {
        min_reclaim: Some(ThresholdAmount::At(Amount::whole(1 << 20))),
        ..Threshold::hard(signal, gib(1))
    };
    let soft =
        Threshold { grace: std::time::Duration::from_nanos(1), ..Threshold::hard(Signal::MemoryAvailable, gib(2)) };
    vec![hard(Signal::NodeFsAvailable), hard(Signal::MemoryAvailable), soft]
}

#[test]
fn deciding_allocates_nothing_however_many_there_are() {
    for (count, eviction_policy) in
        [0_u32, 1, 100, 1_000, 10_000].into_iter().flat_map(|count| EvictionPolicy::ALL.map(|policy| (count, policy)))
    {
        // More workloads than room, so that what finds none is met too.
        let workloads: Vec<Workload<'_>> = (0..count + 10).map(workload).collect();
        let images = [Image { is_unused: true, usage: Usage::default(), ..Image::default() }; 3];
        let config = Config {
            eviction_policy,
            thresholds: thresholds(),
            slices: vec![SliceThresholds { thresholds: thresholds()[1..].to_vec() }],
            swap: Some(SwapThreshold {
                free: ThresholdAmount::Share(Percentage::of_one(1.0)),
                grace: std::time::Duration::ZERO,
            }),
            hard_victims_per_minute: 10_000,
            evict_for_unattributed: true,
            ..Config::default()
        };
        let mut state = State::with_capacity(&config, count as usize);
        let mut plan = Plan::with_capacity(&config, count as usize, 2);
        let (mut for_thresholds, mut for_limits, mut escalated, mut swapping, mut reclaimed, mut reported) =
            (0, 0, 0, 0, 0, None);
        let (mut in_slice, mut unaccounted) = (false, false);
        let turns = || {
            for second in 0..12 {
                let plenty = MemoryStats { available: Some(1 << 39), working_set: Some(1 << 39), time: None };
                let node = match second {
                    0 => NodeStats { memory: Some(plenty), ..crowded(second) },
                    1..4 => crowded(second),
                    // Memory is not read, and the disk is reclaimed; then nothing is but swap.
                    4..8 => NodeStats { memory: None, ..crowded(second) },
                    _ => NodeStats::default(),
                };
                let seconds = std::time::Duration::from_secs;
                let observation = Observation {
                    layout: Some(DiskLayout::Single),
                    readings: Some(Readings::of(&node)),
                    mem_available: (second < 3).then_some(Bytes(500)),
                    swap: Some(Swap { total: Bytes(1 << 40), free: Bytes(0), refaults: second }),
                    stall: Some(Stall { full: seconds(u64::from(second > 7)), window: seconds(1) }),
                    dead_containers: Some(u32::from(second == 4)),
                    reclaimed: reported,
                    images: &images,
                    workloads: &workloads,
                    ..Observation::default()
                };
                unaccounted |= is_unaccounted(&config, &state, &observation, MonotonicNs(second));
                decide(&config, &mut state, &observation, MonotonicNs(second), &mut plan);
                state.rest(&config, &Observation { workloads: &[], ..observation });
                for action in &plan.actions {
                    *match action {
                        Action::Evict { why: Why::Limit(_), .. } => &mut for_limits,
                        Action::Evict { why: Why::Swap, .. } => &mut swapping,
                        Action::Evict { .. } => &mut for_thresholds,
                        Action::EscalateToKill { .. } => &mut escalated,
                        Action::Reclaim(_) => &mut reclaimed,
                    } += 1;
                }
                let at = StatsTime(i64::try_from(second).expect("small"));
                reported = plan.reclaim().map(|order| Reclaimed { order: order.order, at }).or(reported);
                let of_slice = Observation { scope: Scope::Slice(SliceId(0)), reclaimed: None, ..observation };
                decide(&config, &mut state, &of_slice, MonotonicNs(second), &mut plan);
                in_slice |= plan.outcome == Outcome::Evict;
            }
        };
        assert_no_allocation(turns, &format!("{count} workloads, {eviction_policy}"));
        let is_engine = eviction_policy != EvictionPolicy::Kubelet;
        assert_eq!(unaccounted, is_engine);
        let all = [
            for_thresholds,
            for_limits,
            reclaimed,
            i32::from(!is_engine) + escalated,
            i32::from(!is_engine) + swapping,
        ];
        assert!(count < 100 || is_engine == in_slice, "{count} {eviction_policy}");
        // Pods over limits of their own keep the kubelet from all else.
        let expected = if is_engine { &all[..] } else { &all[1..2] };
        assert!(count < 100 || expected.iter().all(|done| *done > 0), "{count} workloads, {eviction_policy}: {all:?}");
    }
}

#[test]
fn turns_of_the_kubelet_allocate_nothing_where_no_pod_is_over_a_limit() {
    for count in [0_u32, 1, 100, 1_000, 10_000] {
        let workloads: Vec<Workload<'_>> = (0..count)
            .map(|index| {
                let one = workload(index);
                let facts = kubelet::Pod { ephemeral_storage_limit: None, ..one.facts };
                Workload { facts, terminating: None, is_empty: false, ..one }
            })
            .collect();
        for thresholds in [&thresholds()[..1], &thresholds()[1..]] {
            let config = Config {
                eviction_policy: EvictionPolicy::Kubelet,
                thresholds: thresholds.to_vec(),
                ..Config::default()
            };
            let mut state = State::with_capacity(&config, count as usize);
            let mut plan = Plan::with_capacity(&config, count as usize, 0);
            // On disks a turn has two parts.
            let mut reported = None;
            let mut evicted = 0;
            let turns = || {
                for second in 1..3 {
                    let observation = Observation {
                        layout: Some(DiskLayout::Single),
                        readings: Some(Readings::of(&crowded(second))),
                        reclaimed: reported,
                        workloads: &workloads,
                        ..Observation::default()
                    };
                    decide(&config, &mut state, &observation, MonotonicNs(second), &mut plan);
                    reported = plan.reclaim().map(|order| Reclaimed { order: order.order, at: StatsTime(0) });
                    evicted += plan.evicted().count();
                }
            };
            assert_no_allocation(turns, &format!("{count} pods"));
            assert!(evicted > 0 || count == 0, "{count} pods: {:?}", plan.outcome);
        }
    }
}
