//! How long a decision takes over 100, 1,000 and 10,000 pods, in each rule book, beside a stable sort of as many records of
//! the size of a ranked pod in the same run. Ends with 1 if 1,000 pods take longer than four such sorts, or if growth is
//! worse than that of n log n (twice over, for what caches do).
//!
//! `cargo bench -p plimsoll-benches`. That none of it allocates is a test, `no_allocation`.

use plimsoll_policy::kubelet::{self, Amount, DiskLayout, MemoryStats, NodeStats, StatsTime};
use plimsoll_policy::{RuleBook, plimsoll};
use plimsoll_units::MonotonicNs;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const COUNTS: [usize; 3] = [100, 1_000, 10_000];
/// The middle of so many runs counts.
const RUNS: usize = 201;
/// So many sorts of 1,000 records a decision over 1,000 pods may take.
const SORTS: u32 = 4;
/// So much more than n log n the time may grow, for what caches do.
const CACHES: f64 = 2.0;

/// As many numbers of a fixed row without order.
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

fn pods(count: usize) -> Vec<plimsoll::Pod<'static>> {
    (0_u32..)
        .zip(numbers(count))
        .map(|(index, number)| plimsoll::Pod {
            uid: plimsoll::PodUid(u128::from(number)),
            started: MonotonicNs(number % 1000),
            daemon_set: (index % 20 == 0).then_some(plimsoll::OwnerUid(u128::from(number))),
            facts: kubelet::Pod {
                priority: i32::from(number % 3 == 0),
                memory_request: Amount::whole(i64::from(index % 7) << 20),
                stats: Some(kubelet::PodStats {
                    working_set: Some(number % (64 << 20)),
                    ..kubelet::PodStats::default()
                }),
                ..kubelet::Pod::default()
            },
            ..plimsoll::Pod::default()
        })
        .collect()
}

fn thresholds() -> Vec<kubelet::Threshold> {
    vec![kubelet::Threshold {
        signal: kubelet::Signal::MemoryAvailable,
        line: Some(kubelet::Line::At(Amount::whole(1 << 30))),
        grace: Duration::ZERO,
        min_reclaim: None,
        origin: kubelet::Origin::Configured,
    }]
}

/// Memory 100 MiB below its line, so that a few victims are enough.
fn node(turn: u64) -> NodeStats {
    let memory = MemoryStats {
        available: Some((1 << 30) - (100 << 20)),
        working_set: Some(1 << 40),
        time: i64::try_from(turn).ok().map(StatsTime),
    };
    NodeStats { memory: Some(memory), ..NodeStats::default() }
}

/// The middle time of many runs, each in a minute of its own.
fn middle(mut run: impl FnMut(u64)) -> Duration {
    let mut times: Vec<Duration> = (1..)
        .take(RUNS)
        .map(|turn| {
            let start = Instant::now();
            run(turn);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[RUNS / 2]
}

const fn minutes(turn: u64) -> MonotonicNs {
    MonotonicNs(turn * 60_000_000_000)
}

fn decision(book: RuleBook, pods: &[plimsoll::Pod<'_>]) -> Duration {
    let Some(memory_order) = book.memory_order() else {
        let config = kubelet::Config { thresholds: thresholds(), ..kubelet::Config::default() };
        let mut state = kubelet::State::new(&config);
        let mut plan = kubelet::Plan::with_capacity(pods.len());
        let facts: Vec<kubelet::Pod<'_>> = pods.iter().map(|pod| pod.facts).collect();
        return middle(|turn| {
            let observation =
                kubelet::Observation { layout: Some(DiskLayout::Single), node: Some(node(turn)), pods: &facts };
            kubelet::decide(&config, &mut state, black_box(&observation), minutes(turn), &mut plan);
            assert_eq!(plan.evictions.len(), 1);
        });
    };
    let config = plimsoll::Config { thresholds: thresholds(), memory_order, ..plimsoll::Config::default() };
    let mut state = plimsoll::State::new(&config);
    let mut plan = plimsoll::Plan::with_capacity(&config, pods.len(), 0);
    middle(|turn| {
        let observation = plimsoll::Observation {
            layout: Some(DiskLayout::Single),
            node: Some(node(turn)),
            pods,
            ..plimsoll::Observation::default()
        };
        plimsoll::decide(&config, &mut state, black_box(&observation), minutes(turn), &mut plan);
        assert_eq!(plan.outcome, plimsoll::Outcome::Evict);
    })
}

/// A record of the size of a ranked pod.
#[derive(Clone, Copy)]
struct Record {
    key: u64,
    _rest: [u64; size_of::<plimsoll::Ranked>() / size_of::<u64>() - 1],
}

fn stable_sort(count: usize) -> Duration {
    let rest = [0; size_of::<plimsoll::Ranked>() / size_of::<u64>() - 1];
    let unsorted: Vec<Record> = numbers(count).map(|key| Record { key, _rest: rest }).collect();
    let mut records = unsorted.clone();
    middle(|_| {
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
    println!("{:<12} {:>14} {:>14} {:>14}", "", "100", "1,000", "10,000");
    let row = |name: &str, times: [Duration; 3]| {
        let [few, some, many] = times.map(|time| format!("{time:?}"));
        println!("{name:<12} {few:>14} {some:>14} {many:>14}");
    };
    row("stable sort", sorts);
    for book in RuleBook::ALL {
        let times = COUNTS.map(|count| decision(book, &pods(count)));
        row(book.name(), times);
        if times[1] > sorts[1] * SORTS {
            println!("  {book}: 1,000 pods took longer than {SORTS} stable sorts");
            is_within = false;
        }
        for (step, growth) in times.windows(2).zip(COUNTS.windows(2)) {
            let allowed = CACHES * n_log_n(growth[1]) / n_log_n(growth[0]);
            if step[1].as_secs_f64() > step[0].as_secs_f64() * allowed {
                println!("  {book}: {} pods took more than {allowed:.0} times as long as {}", growth[1], growth[0]);
                is_within = false;
            }
        }
    }
    if is_within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
