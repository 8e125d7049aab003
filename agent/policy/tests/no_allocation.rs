//! Deciding allocates nothing: a counting allocator looks on.

#![expect(unsafe_code, reason = "a global allocator cannot be had without")]

use plimsoll_policy::kubelet::{self, Amount, DiskLayout, FsStats, MemoryStats, NodeStats, QosClass, StatsTime, Usage};
use plimsoll_policy::plimsoll::{self, Action, Why};
use plimsoll_policy::{
    Candidate, Config, Key, Line, MemoryReading, Observation, Outcome, Plan, Signal, Stall, State, Threshold, decide,
};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // The thread's storage may be gone already while it ends.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call is handed on to the system's allocator unchanged; counting touches a thread-local cell that is
// initialised without allocating.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of this very function.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn calls() -> usize {
    CALLS.with(Cell::get)
}

#[test]
fn deciding_allocates_nothing_however_many_there_are() {
    for count in [0_u32, 1, 100, 1_000, 10_000] {
        let config = Config {
            thresholds: vec![
                Threshold::hard(Signal::MemoryAvailable, Line::Quantity(Bytes(1 << 30))),
                Threshold {
                    grace: std::time::Duration::from_secs(1),
                    ..Threshold::hard(Signal::MemoryAvailable, Line::Quantity(Bytes(2 << 30)))
                },
            ],
            victims_per_minute: 100,
            ..Config::default()
        };
        // More candidates than room, so that what finds none is met too.
        let candidates: Vec<Candidate> = (0..count + 10)
            .map(|slot| Candidate {
                key: Key { slot, id: CgroupId(u64::from(slot)) },
                usage: Some(Bytes(u64::from(slot.wrapping_mul(2_654_435_761)) % 10_000_000)),
                priority: i32::from(slot % 3 == 0),
                ..Candidate::default()
            })
            .collect();
        let mut state = State::with_capacity(&config, count as usize);
        let mut plan = Plan::with_capacity(&config, count as usize);
        let before = calls();
        let mut outcomes = [Outcome::Calm; 4];
        for (second, available) in (1_u64..).zip([8_u64 << 30, 0, 1 << 29, 3 << 29]) {
            let now = MonotonicNs(second * 1_000_000_000);
            let memory = MemoryReading {
                capacity: Bytes(8 << 30),
                kubelet_available: Bytes(available),
                mem_available: Some(Bytes(available)),
            };
            let observation =
                Observation { taken: now, memory: Some(memory), candidates: &candidates, ..Observation::default() };
            decide(&config, &mut state, &observation, now, &mut plan);
            outcomes[usize::try_from(second).expect("small") - 1] = plan.outcome;
        }
        assert_eq!(calls() - before, 0, "{count} candidates: {outcomes:?}");
        assert_eq!(outcomes[0], Outcome::Calm);
        assert!(outcomes[1] != Outcome::Calm, "{count} candidates");
    }
    // The counter counts.
    let before = calls();
    drop(std::hint::black_box(vec![1_u8]));
    assert!(calls() >= before + 2);
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

/// Pods of all kinds: some over limits of their own, some on the way out, with swap, containers and volumes.
fn pod(index: u32) -> plimsoll::Pod<'static> {
    const USAGE: Usage = Usage { bytes: Some(1000), inodes: Some(10) };
    let is_every = |nth| index.is_multiple_of(nth);
    plimsoll::Pod {
        uid: plimsoll::PodUid(u128::from(index)),
        daemon_set: Some(plimsoll::OwnerUid(u128::from(index % 500))),
        facts: kubelet::Pod {
            priority: i32::from(is_every(3)),
            volumes: const { &[kubelet::Volume { name: "v", is_local: true, size_limit: None }] },
            ephemeral_storage_limit: is_every(10).then_some(Amount::whole(100)),
            stats: Some(kubelet::PodStats {
                working_set: Some(u64::from(index.wrapping_mul(2_654_435_761)) % 10_000_000),
                ephemeral_storage: Some(3000),
                containers: const { &[kubelet::ContainerStats { name: "c", rootfs: USAGE, logs: USAGE }; 2] },
                volumes: const { &[kubelet::VolumeStats { name: "v", usage: USAGE }] },
                ..kubelet::PodStats::default()
            }),
            ..kubelet::Pod::default()
        },
        qos: [QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed][index as usize % 3],
        swapped: Some(Bytes(u64::from(index) % 1000)),
        going: is_every(7).then_some(plimsoll::Going { is_stuck: is_every(21), is_gentle: is_every(2) }),
        ..plimsoll::Pod::default()
    }
}

fn thresholds() -> Vec<kubelet::Threshold> {
    [kubelet::Signal::NodeFsAvailable, kubelet::Signal::MemoryAvailable]
        .map(|signal| kubelet::Threshold {
            signal,
            line: Some(kubelet::Line::At(Amount::whole(1 << 30))),
            grace: std::time::Duration::ZERO,
            min_reclaim: Some(kubelet::Line::At(Amount::whole(1 << 20))),
            origin: kubelet::Origin::Configured,
        })
        .to_vec()
}

#[test]
fn rule_books_over_pods_allocate_nothing_however_many_there_are() {
    for count in [0_u32, 1, 100, 1_000, 10_000] {
        // More pods than room, so that what finds none is met too.
        let pods: Vec<plimsoll::Pod<'_>> = (0..count + 10).map(pod).collect();
        let images = [plimsoll::Image { is_unused: true, usage: Usage::default(), ..plimsoll::Image::default() }; 3];
        for memory_order in [plimsoll::MemoryOrder::Plimsoll, plimsoll::MemoryOrder::OpenShift3] {
            let config = plimsoll::Config {
                thresholds: thresholds(),
                swap: Some(plimsoll::SwapThreshold {
                    free: kubelet::Line::Share(1.0),
                    grace: std::time::Duration::ZERO,
                }),
                memory_order,
                hard_victims_per_minute: 10_000,
                ..plimsoll::Config::default()
            };
            let mut state = plimsoll::State::with_capacity(&config, count as usize);
            let mut plan = plimsoll::Plan::with_capacity(&config, count as usize, 2);
            let before = calls();
            let (mut for_lines, mut for_limits, mut hastened, mut swapping, mut cleaned) = (0, 0, 0, 0, 0);
            for second in 1..9 {
                let node = match second {
                    1..4 => crowded(second),
                    // Memory is not read, and the disk is cleaned up; then nothing is but swap.
                    4..6 => NodeStats { memory: None, ..crowded(second) },
                    _ => NodeStats::default(),
                };
                let seconds = std::time::Duration::from_secs;
                let observation = plimsoll::Observation {
                    layout: Some(DiskLayout::Single),
                    node: Some(node),
                    swap: Some(plimsoll::Swap { total: Bytes(1 << 40), free: Bytes(0), refaults: second }),
                    stall: Some(Stall { full: seconds(u64::from(second > 5)), window: seconds(1) }),
                    dead_containers: Some(u32::from(second == 4)),
                    reclaimed: (second > 4).then_some(plimsoll::Reclaimed { order: 1, at: StatsTime(0) }),
                    images: &images,
                    pods: &pods,
                    ..plimsoll::Observation::default()
                };
                plimsoll::decide(&config, &mut state, &observation, MonotonicNs(second), &mut plan);
                for action in &plan.actions {
                    *match action {
                        Action::Evict { why: Why::Limit(_), .. } => &mut for_limits,
                        Action::Evict { why: Why::Swap, .. } => &mut swapping,
                        Action::Evict { .. } => &mut for_lines,
                        Action::Hasten { .. } => &mut hastened,
                        Action::Reclaim(_) => &mut cleaned,
                    } += 1;
                }
            }
            assert_eq!(calls() - before, 0, "{count} pods");
            let all = [for_lines, for_limits, hastened, swapping, cleaned];
            assert!(count < 100 || all.iter().all(|done| *done > 0), "{count} pods: {all:?}");
        }

        let config =
            kubelet::Config { thresholds: thresholds(), local_storage_isolation: true, ..kubelet::Config::default() };
        let limited: Vec<kubelet::Pod<'_>> = pods.iter().map(|pod| pod.facts).collect();
        let facts: Vec<kubelet::Pod<'_>> =
            limited.iter().map(|pod| kubelet::Pod { ephemeral_storage_limit: None, ..*pod }).collect();
        let mut state = kubelet::State::new(&config);
        let mut plan = kubelet::Plan::with_capacity(count as usize);
        let before = calls();
        let observation =
            kubelet::Observation { layout: Some(DiskLayout::Single), node: Some(crowded(1)), pods: &facts };
        kubelet::decide(&config, &mut state, &observation, MonotonicNs(1), &mut plan);
        assert_eq!(calls() - before, 0, "{count} pods");
        assert_eq!(plan.evictions.len(), usize::from(count > 0));
        let mut state = kubelet::State::new(&config);
        let before = calls();
        kubelet::decide(
            &config,
            &mut state,
            &kubelet::Observation { pods: &limited, ..observation },
            MonotonicNs(1),
            &mut plan,
        );
        assert_eq!(calls() - before, 0, "{count} pods");
        assert!(plan.outcome == kubelet::Outcome::OverLimits || count == 0);

        // A turn of two parts.
        let config = kubelet::Config { thresholds: thresholds()[..1].to_vec(), ..config };
        let mut state = kubelet::State::new(&config);
        let before = calls();
        kubelet::decide(&config, &mut state, &observation, MonotonicNs(1), &mut plan);
        assert_eq!(plan.outcome, kubelet::Outcome::Reclaim);
        kubelet::after_reclaim(&config, &state, &observation, Some(&crowded(2)), &mut plan);
        assert_eq!(calls() - before, 0, "{count} pods");
        assert_eq!(plan.evictions.len(), usize::from(count > 0));
    }
}
