//! How long a decision takes over 100, 1,000 and 10,000 pods of all classes, in each eviction policy, for a hard
//! threshold on memory, a soft one, and a hard one on a disk, beside a stable sort of as many records of the size of a
//! ranked pod in the same run. Ends with 1 if 1,000 pods take longer than four such sorts, or if growth is worse than
//! that of n log n (twice over, for what caches do), and panics if a decision allocates.
//!
//! `cargo bench -p plimsoll-benches`.

use plimsoll_policy::kubelet::{
    self, Amount, DiskLayout, FsStats, MemoryStats, NodeStats, QosClass, Readings, StatsTime, Usage,
};
use plimsoll_policy::{
    Config, EvictionPolicy, Key, Observation, Outcome, Owner, OwnerUid, Plan, Ranked, Reclaimed, State, Uid, Workload,
    decide,
};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const COUNTS: [usize; 3] = [100, 1_000, 10_000];
/// The shortest of so many runs counts: what else the machine does, and what that takes of its caches, only adds.
const RUNS: usize = 201;
/// So many sorts of 1,000 records a decision over 1,000 pods may take.
const SORTS: u32 = 4;
/// So much more than n log n the time may grow, for what caches do.
const CACHES: f64 = 2.0;

/// The threshold that is crossed.
#[derive(Clone, Copy, Debug)]
enum Crossed {
    /// On memory, without a grace period.
    Memory,
    /// On memory, higher up, with a grace period.
    Soft,
    /// On the node's disk, where there is nothing to reclaim.
    Disk,
}

impl Crossed {
    const ALL: [Self; 3] = [Self::Memory, Self::Soft, Self::Disk];

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Soft => "soft",
            Self::Disk => "disk",
        }
    }
}

/// So many numbers of a fixed sequence, in no order.
fn numbers(count: usize) -> impl Iterator<Item = u64> {
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    std::iter::repeat_with(move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    })
    .take(count)
}

/// One container a pod, up to 64 MiB of its own on the disk.
fn containers(count: usize) -> Vec<kubelet::ContainerStats> {
    let layer = |number: u64| Usage { bytes: Some((number >> 20) % (64 << 20)), inodes: Some(number % 1000) };
    numbers(count)
        .map(|number| kubelet::ContainerStats { rootfs: layer(number), ..kubelet::ContainerStats::default() })
        .collect()
}

/// Pods of all three classes, some of them within their requests.
fn pods(containers: &[kubelet::ContainerStats]) -> Vec<Workload<'_>> {
    (0_u32..)
        .zip(numbers(containers.len()))
        .zip(containers.chunks(1))
        .map(|((index, number), containers)| {
            let qos = [QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed][index as usize % 3];
            let request = if qos == QosClass::BestEffort { 0 } else { i64::from(1 + index % 64) << 20 };
            Workload {
                key: Key { slot: index, id: CgroupId(number) },
                uid: Uid(u128::from(number)),
                qos,
                started: MonotonicNs(number % 1000),
                owner: (index % 4 == 0)
                    .then(|| Owner { id: CgroupId(number % 100), request: Bytes(request.unsigned_abs()) }),
                daemon_set: (index % 20 == 0).then_some(OwnerUid(u128::from(number))),
                facts: kubelet::Pod {
                    priority: i32::from(number % 3 == 0),
                    memory_request: Amount::whole(request),
                    ephemeral_storage_request: Amount::whole(request),
                    stats: Some(kubelet::PodStats {
                        working_set: Some(number % (64 << 20)),
                        containers,
                        ..kubelet::PodStats::default()
                    }),
                    ..kubelet::Pod::default()
                },
                ..Workload::default()
            }
        })
        .collect()
}

const HARD: u64 = 1 << 30;
const SOFT: u64 = 2 << 30;

fn thresholds() -> Vec<kubelet::Threshold> {
    use kubelet::Signal::{MemoryAvailable, NodeFsAvailable};
    let second = Duration::from_secs(1);
    [(MemoryAvailable, HARD, Duration::ZERO), (MemoryAvailable, SOFT, second), (NodeFsAvailable, HARD, Duration::ZERO)]
        .map(|(signal, at, grace)| kubelet::Threshold {
            signal,
            amount: Some(kubelet::ThresholdAmount::At(Amount::counted(at))),
            grace,
            min_reclaim: None,
            origin: kubelet::Origin::Configured,
        })
        .to_vec()
}

/// 100 MiB below the threshold, so that a few victims are enough. Below the hard threshold on memory is below the soft one
/// too.
fn node(turn: u64, crossed: Crossed) -> NodeStats {
    const BELOW: u64 = 100 << 20;
    let time = i64::try_from(turn).ok().map(StatsTime);
    let (memory, disk) = match crossed {
        Crossed::Memory => (HARD - BELOW, 2 * HARD),
        Crossed::Soft => (SOFT - BELOW, 2 * HARD),
        Crossed::Disk => (2 * SOFT, HARD - BELOW),
    };
    NodeStats {
        memory: Some(MemoryStats { available: Some(memory), working_set: Some(1 << 40), time }),
        node_fs: Some(FsStats { available: Some(disk), capacity: Some(1 << 40), time, ..FsStats::default() }),
        ..NodeStats::default()
    }
}

/// The shortest time of many decisions, which allocate nothing. In the turn before them a soft threshold's grace begins.
fn shortest_decision(mut decide: impl FnMut(u64) -> bool) -> Duration {
    decide(0);
    shortest(|turn| {
        let mut evicts = false;
        let counted = allocation_counter::measure(|| evicts = decide(turn));
        assert!(evicts, "a workload is evicted");
        assert_eq!((counted.count_total, counted.count_current), (0, 0), "deciding allocates");
    })
}

/// The shortest time of many runs, each in a minute of its own.
fn shortest(mut run: impl FnMut(u64)) -> Duration {
    let times = (1..).take(RUNS).map(|turn| {
        let start = Instant::now();
        run(turn);
        start.elapsed()
    });
    times.min().unwrap_or_default()
}

const fn minutes(turn: u64) -> MonotonicNs {
    MonotonicNs(turn * 60_000_000_000)
}

fn decision(eviction_policy: EvictionPolicy, crossed: Crossed, workloads: &[Workload<'_>]) -> Duration {
    let config =
        Config { eviction_policy, thresholds: thresholds(), evict_for_unattributed: true, ..Config::default() };
    let mut state = State::with_capacity(&config, workloads.len());
    let mut plan = Plan::with_capacity(&config, workloads.len(), 0);
    shortest_decision(|turn| {
        let readings = Some(Readings::of(&node(turn, crossed)));
        let mut observation = Observation {
            layout: Some(DiskLayout::Single),
            readings,
            dead_containers: Some(0),
            workloads,
            ..Observation::default()
        };
        decide(&config, &mut state, black_box(&observation), minutes(turn), &mut plan);
        if let Some(order) = plan.reclaim() {
            // It reclaimed nothing, and the kubelet's turn goes on.
            observation.reclaimed = Some(Reclaimed { order: order.order, at: StatsTime(0) });
            decide(&config, &mut state, black_box(&observation), minutes(turn), &mut plan);
        }
        plan.outcome == Outcome::Evict
    })
}

/// A record of the size of a ranked pod.
#[derive(Clone, Copy)]
struct Record {
    key: u64,
    _rest: [u64; size_of::<Ranked>() / size_of::<u64>() - 1],
}

fn stable_sort(count: usize) -> Duration {
    let rest = [0; size_of::<Ranked>() / size_of::<u64>() - 1];
    let unsorted: Vec<Record> = numbers(count).map(|key| Record { key, _rest: rest }).collect();
    let mut records = unsorted.clone();
    shortest(|_| {
        records.copy_from_slice(&unsorted);
        black_box(&mut records).sort_by_key(|record| record.key);
    })
}

fn n_log_n(count: usize) -> f64 {
    let count = f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    count * count.log2()
}

fn main() -> ExitCode {
    let mut is_within = true;
    let sorts = COUNTS.map(stable_sort);
    println!("{:<18} {:>14} {:>14} {:>14}", "", "100", "1,000", "10,000");
    let row = |name: &str, times: [Duration; 3]| {
        let [few, some, many] = times.map(|time| format!("{time:?}"));
        println!("{name:<18} {few:>14} {some:>14} {many:>14}");
    };
    row("stable sort", sorts);
    for (policy, crossed) in
        EvictionPolicy::ALL.into_iter().flat_map(|policy| Crossed::ALL.map(|crossed| (policy, crossed)))
    {
        let name = format!("{policy} {}", crossed.name());
        let times = COUNTS.map(|count| decision(policy, crossed, &pods(&containers(count))));
        row(&name, times);
        if times[1] > sorts[1] * SORTS {
            println!("  {name}: 1,000 pods took longer than {SORTS} stable sorts");
            is_within = false;
        }
        for (step, growth) in times.windows(2).zip(COUNTS.windows(2)) {
            let allowed = CACHES * n_log_n(growth[1]) / n_log_n(growth[0]);
            if step[1].as_secs_f64() > step[0].as_secs_f64() * allowed {
                println!("  {name}: {} pods took more than {allowed:.0} times as long as {}", growth[1], growth[0]);
                is_within = false;
            }
        }
    }
    if is_within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
