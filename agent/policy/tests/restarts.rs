//! What a process goes on with that begins after another one was killed, by each policy.

use plimsoll_policy::kubelet::{
    Condition, DiskLayout, MemoryStats, NodeStats, Pod, PodStats, Readings, Signal, StatsTime, Threshold,
    ThresholdAmount,
};
use plimsoll_policy::{Config, EvictionPolicy, Observation, Outcome, Plan, State, Terminating, Uid, Workload, decide};
use plimsoll_units::{Bytes, MonotonicNs};
use std::time::Duration;

const CAPACITY: u64 = 1000;

const fn at(seconds: u64) -> MonotonicNs {
    MonotonicNs(seconds * 1_000_000_000)
}

/// A soft threshold at 100 with a grace of 20 s, a minimum reclaim of 50 and a transition period of 30 s.
fn config(eviction_policy: EvictionPolicy) -> Config {
    let threshold = Threshold {
        grace: Duration::from_secs(20),
        min_reclaim: Some(ThresholdAmount::bytes(Bytes(50))),
        ..Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(Bytes(100)))
    };
    Config {
        eviction_policy,
        thresholds: vec![threshold],
        pressure_transition: Duration::from_secs(30),
        local_storage_isolation: false,
        ..Config::default()
    }
}

/// A process that decides.
struct Process {
    config: Config,
    state: State,
    plan: Plan,
}

impl Process {
    fn new(config: Config) -> Self {
        let (state, plan) = (State::with_capacity(&config, 4), Plan::with_capacity(&config, 4, 0));
        Self { config, state, plan }
    }

    /// Is killed, and another one begins then.
    fn restarts(self, seconds: u64) -> Self {
        let mut room = [0; 4096];
        let kept = postcard::to_slice(&self.state.keep(&self.config, true), &mut room).expect("there is room");
        let kept = postcard::from_bytes(kept).expect("it can be read");
        let state = State::resume(kept, &self.config, 4, at(seconds)).expect("it is of this configuration");
        Self { state, ..Self::new(self.config) }
    }

    /// Decides with so much available. Gives whether there is `MemoryPressure`, and whether the threshold is met.
    fn sees(&mut self, seconds: u64, available: u64) -> (bool, bool) {
        self.decides(seconds, available, &[]);
        let is_met = self.plan.thresholds.iter().any(|status| status.is_met);
        (self.plan.conditions.has(Condition::MemoryPressure), is_met)
    }

    fn decides(&mut self, seconds: u64, available: u64, workloads: &[Workload<'_>]) -> Outcome {
        let time = Some(StatsTime(i64::try_from(seconds).expect("small")));
        let memory = MemoryStats { available: Some(available), working_set: Some(CAPACITY - available), time };
        let observation = Observation {
            taken: at(seconds),
            layout: Some(DiskLayout::Single),
            readings: Some(Readings::of(&NodeStats { memory: Some(memory), ..NodeStats::default() })),
            mem_available: Some(Bytes(available)),
            mem_available_at: time,
            workloads,
            ..Observation::default()
        };
        decide(&self.config, &mut self.state, &observation, at(seconds), &mut self.plan);
        self.plan.outcome
    }
}

/// It uses half of what there is.
fn pod(uid: u128) -> Workload<'static> {
    let stats = Some(PodStats { working_set: Some(CAPACITY / 2), ..PodStats::default() });
    Workload { uid: Uid(uid), facts: Pod { stats, ..Pod::default() }, ..Workload::default() }
}

#[test]
fn a_grace_goes_on_and_the_time_without_a_process_counts() {
    for policy in EvictionPolicy::ALL {
        let mut process = Process::new(config(policy));
        assert_eq!(process.sees(100, 90), (true, false), "{policy}");
        assert_eq!(process.sees(105, 90), (true, false), "{policy}");
        process = process.restarts(112);
        assert!(
            process.state.conditions(&process.config).has(Condition::MemoryPressure),
            "{policy}: before anything is observed"
        );
        assert_eq!(process.sees(119, 90), (true, false), "{policy}");
        process = process.restarts(119);
        assert_eq!(process.sees(120, 90), (true, true), "{policy}: 20 s after the crossing");
    }
}

#[test]
fn a_threshold_stays_met_until_its_minimum_reclaim() {
    for policy in EvictionPolicy::ALL {
        let mut process = Process::new(config(policy));
        process.sees(100, 90);
        assert_eq!(process.sees(120, 90), (true, true), "{policy}");
        process = process.restarts(121);
        assert_eq!(process.sees(122, 149), (true, true), "{policy}: it is latched");
        assert_eq!(process.sees(123, 151), (true, false), "{policy}");
    }
}

#[test]
fn a_transition_period_goes_on_from_the_last_crossing() {
    for policy in EvictionPolicy::ALL {
        let mut process = Process::new(config(policy));
        process.sees(100, 90);
        process.sees(110, 90);
        process.sees(111, 900);
        process = process.restarts(125);
        assert_eq!(process.sees(139, 900), (true, false), "{policy}: of the crossing at 110 s");
        process = process.restarts(139);
        assert_eq!(process.sees(140, 900), (false, false), "{policy}");
    }
}

#[test]
fn what_was_crossed_when_the_process_was_killed_counts_until_the_next_one_begins() {
    for policy in EvictionPolicy::ALL {
        let mut process = Process::new(config(policy));
        process.sees(100, 90);
        process = process.restarts(200);
        assert_eq!(process.sees(201, 900), (true, false), "{policy}");
        assert_eq!(process.sees(229, 900), (true, false), "{policy}");
        assert_eq!(process.sees(230, 900), (false, false), "{policy}");
    }
}

#[test]
fn a_time_to_come_is_now() {
    for policy in EvictionPolicy::ALL {
        let mut process = Process::new(config(policy));
        process.sees(1000, 90);
        // As in another namespace of times.
        process = process.restarts(100);
        assert_eq!(process.sees(119, 90), (true, false), "{policy}");
        assert_eq!(process.sees(120, 90), (true, true), "{policy}");
    }
}

#[test]
fn victims_of_the_process_that_was_killed_count_for_the_limit_a_minute() {
    let thresholds = vec![Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(Bytes(100)))];
    let config = Config {
        thresholds,
        hard_victims_per_minute: 1,
        evict_for_unattributed: true,
        ..config(EvictionPolicy::Plimsoll)
    };
    let mut process = Process::new(config);
    assert_eq!(process.decides(100, 90, &[pod(1), pod(2)]), Outcome::Evict);
    process = process.restarts(101);
    // The victim is gone.
    assert_eq!(process.decides(102, 90, &[pod(2)]), Outcome::RateLimited);
    process = process.restarts(159);
    assert_eq!(process.decides(161, 90, &[pod(2)]), Outcome::Evict);
}

#[test]
fn the_kubelet_still_waits_for_the_victim_of_the_process_that_was_killed() {
    let thresholds = vec![Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(Bytes(100)))];
    let mut process = Process::new(Config { thresholds, ..config(EvictionPolicy::Kubelet) });
    assert_eq!(process.decides(100, 90, &[pod(1), pod(2)]), Outcome::Evict);
    process = process.restarts(101);
    let dying = Workload { terminating: Some(Terminating::default()), ..pod(1) };
    assert_eq!(process.decides(102, 90, &[dying, pod(2)]), Outcome::ComingBack);
    assert_eq!(process.decides(131, 90, &[dying, pod(2)]), Outcome::Evict);
}
