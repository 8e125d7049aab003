//! Whether the observed workloads account for what is short.

use crate::rig::{Rig, candidate, observed, reading, secs, stats_time, threshold};
use plimsoll_policy::kubelet::{Amount, DiskLayout, NodeStats, PidStats, Readings, Signal, Threshold, ThresholdAmount};
use plimsoll_policy::{
    Config, EvictionPolicy, Observation, Protected, Scope, SliceId, SliceSet, SliceThresholds, Workload, is_unaccounted,
};
use std::time::Duration;

fn asks(rig: &Rig, at: u64, observation: &Observation<'_>) -> bool {
    is_unaccounted(&rig.config, &rig.state, observation, secs(at))
}

#[test]
fn memory_is_accounted_for_where_what_workloads_grew_by_leaves_no_large_part_of_the_fall() {
    let new = |usage| candidate(7, usage);
    let protected = |usage| Workload { protected: Some(Protected::Listed), ..candidate(1, usage) };
    // Before, 500 MiB were available and two workloads used 100 each.
    for (name, available, now, expected) in [
        ("nothing is short", 200, vec![candidate(0, 100), candidate(1, 100)], false),
        ("none grew", 90, vec![candidate(0, 100), candidate(1, 100)], true),
        ("one grew by all of it", 90, vec![candidate(0, 510), candidate(1, 100)], false),
        ("one grew by more than nine tenths", 90, vec![candidate(0, 470), candidate(1, 100)], false),
        ("one grew by less than nine tenths", 90, vec![candidate(0, 468), candidate(1, 100)], true),
        ("two grew", 90, vec![candidate(0, 305), candidate(1, 305)], false),
        ("a protected one grew", 90, vec![candidate(0, 100), protected(510)], false),
        ("a new one took it", 90, vec![candidate(0, 100), candidate(1, 100), new(410)], false),
        // What was given back hides what is elsewhere as little as what took its place.
        ("one is gone, and a new one took less", 90, vec![candidate(0, 100), new(410)], true),
        ("one is gone, and a new one took that, too", 90, vec![candidate(0, 100), new(510)], false),
    ] {
        for evict_for_unattributed in [false, true] {
            let thresholds = vec![threshold(100, 0, 0)];
            let mut rig = Rig::new(Config { thresholds, evict_for_unattributed, ..Config::default() });
            rig.sample(1, reading(500, 500), &[candidate(0, 100), candidate(1, 100)]);
            let memory = Some(reading(available, available));
            let observation = Observation { workloads: &now, ..observed(2, memory) };
            assert_eq!(asks(&rig, 2, &observation), expected, "{name}");
        }
    }
}

#[test]
fn a_soft_threshold_is_asked_about_when_its_grace_is_over() {
    let mut rig = Rig::with(&[threshold(100, 10, 0)]);
    rig.sample(1, reading(500, 500), &[]);
    for (at, expected) in [(2, false), (11, false), (12, true)] {
        assert_eq!(asks(&rig, at, &observed(at, Some(reading(90, 90)))), expected, "{at}");
        rig.sample(at, reading(90, 90), &[]);
    }
}

#[test]
fn in_a_slice_its_own_workloads_count() {
    let in_slice = |workload| Workload { slices: SliceSet::NONE.with(SliceId(0)), ..workload };
    // In the cgroup of all pods that is what is allocatable.
    let allocatable = Threshold { signal: Signal::AllocatableMemoryAvailable, ..threshold(100, 0, 0) };
    let thresholds = [threshold(100, 0, 0), allocatable];
    for (threshold, is_inside) in thresholds.iter().flat_map(|threshold| [(threshold, true), (threshold, false)]) {
        let slices = vec![SliceThresholds { thresholds: vec![*threshold] }];
        let rig = Rig::new(Config { thresholds: vec![], slices, ..Config::default() });
        let hog = if is_inside { in_slice(candidate(0, 900)) } else { candidate(0, 900) };
        let observation =
            Observation { scope: Scope::Slice(SliceId(0)), workloads: &[hog], ..observed(1, Some(reading(90, 90))) };
        assert_eq!(asks(&rig, 1, &observation), !is_inside, "{:?}", threshold.signal);
    }
}

/// A workload of so many processes.
fn of_processes(slot: u32, processes: u64, priority: i32) -> Workload<'static> {
    let mut workload = candidate(slot, 1);
    workload.facts.priority = priority;
    workload.facts.stats.as_mut().expect("some").processes = Some(processes);
    workload
}

/// So many processes of the 2000 that there can be.
fn running<'w>(at: u64, running: i64, workloads: &'w [Workload<'w>]) -> Observation<'w> {
    let pids = PidStats { max: Some(2000), running: Some(running), time: Some(stats_time(at)) };
    let readings = Some(Readings::of(&NodeStats { pids: Some(pids), ..NodeStats::default() }));
    Observation { readings, workloads, layout: Some(DiskLayout::Single), ..Observation::default() }
}

fn on_processes(eviction_policy: EvictionPolicy) -> Rig {
    let thresholds = vec![Threshold::hard(Signal::PidAvailable, ThresholdAmount::At(Amount::whole(100)))];
    Rig::new(Config { thresholds, eviction_policy, ..Config::default() })
}

#[test]
fn processes_are_accounted_for_where_the_first_victim_has_more_than_are_in_no_workload() {
    let protected = |workload| Workload { protected: Some(Protected::Listed), ..workload };
    for (name, count, workloads, expected) in [
        ("they are not short", 1800, vec![of_processes(0, 3, 0)], false),
        ("a workload has most", 1950, vec![of_processes(0, 1600, 0), of_processes(1, 3, 0)], false),
        ("none has many", 1950, vec![of_processes(0, 3, 0)], true),
        ("there is none", 1950, vec![], true),
        ("a protected one has most", 1950, vec![protected(of_processes(0, 1600, 0)), of_processes(1, 3, 0)], true),
        ("another one would be first", 1950, vec![of_processes(0, 1600, 1), of_processes(1, 3, 0)], true),
        ("the first has less than are missing", 1950, vec![of_processes(0, 49, 0), of_processes(1, 1900, 1)], true),
        ("the first has as many as are missing", 1950, vec![of_processes(0, 50, 0), of_processes(1, 1900, 1)], false),
    ] {
        let rig = on_processes(EvictionPolicy::Plimsoll);
        assert_eq!(asks(&rig, 1, &running(1, count, &workloads)), expected, "{name}");
    }
    let rig = on_processes(EvictionPolicy::Kubelet);
    assert!(!asks(&rig, 1, &running(1, 1950, &[])), "the kubelet decides as it does");
}

#[test]
fn what_victims_leave_to_be_waited_for_is_in_no_unknown_workload() {
    let mut rig = on_processes(EvictionPolicy::Plimsoll);
    let both = [of_processes(0, 1200, 0), of_processes(1, 450, 0)];
    rig.observe(1, &running(1, 1950, &both));
    let rest = &both[1..];
    assert!(!asks(&rig, 2, &running(2, 1950, rest)), "300 were in none before");
    assert!(asks(&rig, 2, &running(2, 1950, &[of_processes(1, 299, 0)])));
    let later = 1 + Duration::from_secs(10).as_secs();
    assert!(asks(&rig, later, &running(later, 1950, rest)), "they are not waited for any more");
}
