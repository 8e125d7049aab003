//! Decisions as tables: what is seen, and what the plan says.

use plimsoll_policy::kubelet::{
    Amount, Condition, DiskLayout, Line, MemoryStats, NodeStats, Pod, PodStats, Readings, Signal, StatsTime, Threshold,
};
use plimsoll_policy::{
    Action, Case, Config, Key, MemoryReading, NoVictim, Observation, Outcome, Plan, Protected, Reclaimed, Scope,
    SliceId, SliceSet, SliceThresholds, Stage, Stall, State, Terminating, Uid, Verdict, Why, Workload, decide, text,
};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs, Percentage};
use std::time::Duration;

const fn mib(n: u64) -> Bytes {
    Bytes::mib(n)
}

fn amount(mib: u64) -> Amount {
    Amount::counted(mib << 20)
}

const fn secs(n: u64) -> MonotonicNs {
    MonotonicNs(n * 1_000_000_000)
}

fn stats_time(second: u64) -> StatsTime {
    StatsTime(i64::try_from(secs(second).0).expect("small"))
}

fn threshold(threshold_mib: u64, grace: u64, min_reclaim_mib: u64) -> Threshold {
    Threshold {
        grace: Duration::from_secs(grace),
        min_reclaim: Some(Line::bytes(mib(min_reclaim_mib))),
        ..Threshold::hard(Signal::MemoryAvailable, Line::bytes(mib(threshold_mib)))
    }
}

/// A cgroup without pod facts.
fn candidate(slot: u32, usage_mib: u64) -> Workload<'static> {
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

fn unread(slot: u32) -> Workload<'static> {
    Workload { facts: Pod::default(), ..candidate(slot, 0) }
}

fn reading(kubelet: u64, kernel: u64) -> MemoryReading {
    MemoryReading { capacity: mib(1000), kubelet_available: mib(kubelet), mem_available: Some(mib(kernel)) }
}

/// Memory as it is observed in this second.
fn observed(at: u64, memory: Option<MemoryReading>) -> Observation<'static> {
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
struct Rig {
    config: Config,
    state: State,
    plan: Plan,
}

impl Rig {
    fn new(config: Config) -> Self {
        let state = State::with_capacity(&config, 32);
        let plan = Plan::with_capacity(&config, 32, 0);
        Self { config, state, plan }
    }

    fn with(thresholds: &[Threshold]) -> Self {
        Self::new(Config { thresholds: thresholds.to_vec(), ..Config::default() })
    }

    fn look(&mut self, at: u64, memory: MemoryReading, workloads: &[Workload<'_>]) -> &Plan {
        self.observe(at, &Observation { workloads, ..observed(at, Some(memory)) })
    }

    fn observe(&mut self, at: u64, observation: &Observation<'_>) -> &Plan {
        decide(&self.config, &mut self.state, observation, secs(at), &mut self.plan);
        &self.plan
    }

    fn verdict(&self, workload: u32) -> Verdict {
        self.plan.ranked.iter().find(|ranked| ranked.workload == workload).expect("ranked").verdict
    }
}

/// What is reclaimed of memory.
fn reclaims(plan: &Plan) -> Option<Amount> {
    plan.reclaim().map(|order| match order.stage {
        Stage::Memory(amount) => amount,
        stage => panic!("{stage:?}"),
    })
}

fn victims(plan: &Plan) -> Vec<u32> {
    plan.victims().collect()
}

#[test]
fn the_four_cases_of_two_readings() {
    for (kubelet, mem_available, case, outcome) in [
        (200, 200, Case::Neither, Outcome::NoPressure),
        (99, 99, Case::Both, Outcome::Evict),
        (99, 200, Case::KubeletOnly, Outcome::Reclaiming),
        (200, 99, Case::MemAvailableOnly, Outcome::Evict),
        // At the line is not below it.
        (100, 100, Case::Neither, Outcome::NoPressure),
    ] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        let plan = rig.look(1, reading(kubelet, mem_available), &[candidate(0, 800)]);
        assert_eq!((plan.thresholds[0].case, plan.outcome), (case, outcome), "{kubelet} {mem_available}");
        assert_eq!(plan.conditions.has(Condition::MemoryPressure), case != Case::Neither);
    }
}

#[test]
fn one_reading_alone_is_enough() {
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    let memory = MemoryReading { mem_available: None, ..reading(50, 0) };
    let plan = rig.look(1, memory, &[candidate(0, 800)]);
    assert_eq!((plan.thresholds[0].case, victims(plan)), (Case::Both, vec![0]));
}

#[test]
fn cache_in_the_way_is_reclaimed_and_only_a_stall_evicts() {
    let stall = |millis| Some(Stall { full: Duration::from_millis(millis), window: Duration::from_secs(1) });
    let candidates = [candidate(0, 800)];
    // (second, the reclaim that ended and when, stall, what the plan says)
    let story = [
        (1, None, stall(900), Outcome::Reclaiming),
        (2, None, stall(900), Outcome::Reclaiming),
        (3, Some((1, 2)), None, Outcome::CacheInUse),
        (4, Some((1, 2)), stall(0), Outcome::CacheInUse),
        (5, Some((1, 2)), stall(199), Outcome::CacheInUse),
        (11, Some((1, 2)), stall(0), Outcome::Reclaiming),
        (12, Some((1, 2)), stall(900), Outcome::Reclaiming),
        (13, Some((2, 12)), stall(200), Outcome::Evict),
        // What the victim leaves behind is reclaimed before another is evicted.
        (14, Some((2, 12)), stall(200), Outcome::Reclaiming),
    ];
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    for (at, reclaimed, stall, outcome) in story {
        let plan = rig.observe(
            at,
            &Observation {
                stall,
                reclaimed: reclaimed.map(|(order, second)| Reclaimed { order, at: stats_time(second) }),
                workloads: &candidates,
                ..observed(at, Some(reading(90, 500)))
            },
        );
        assert_eq!(plan.outcome, outcome, "second {at}");
        let asked = reclaims(plan) == Some(amount(10));
        assert_eq!(asked, [1, 11, 14].contains(&at), "second {at}: {:?}", plan.actions);
    }
}

#[test]
fn stall_alone_never_kills() {
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    let full = Stall { full: Duration::from_secs(1), window: Duration::from_secs(1) };
    let plan = rig.observe(
        1,
        &Observation { stall: Some(full), workloads: &[candidate(0, 800)], ..observed(1, Some(reading(300, 300))) },
    );
    assert_eq!((plan.outcome, plan.actions.len()), (Outcome::NoPressure, 0));
}

#[test]
fn ranking_is_over_reservation_then_priority_then_amount() {
    let with = |slot, usage, reservation: u64, priority| {
        let mut workload = candidate(slot, usage);
        (workload.facts.memory_request, workload.facts.priority) = (amount(reservation), priority);
        workload
    };
    let candidates = [
        with(0, 300, 400, -5), // within its reservation, however low its priority
        with(1, 100, 50, 0),   // 50 over
        with(2, 90, 10, 0),    // 80 over
        with(3, 200, 0, 10),   // 200 over, but more important
        unread(4),
        Workload { protected: Some(Protected::Listed), ..candidate(5, 900) },
    ];
    let mut rig = Rig::with(&[threshold(100, 0, 500)]);
    let plan = rig.look(1, reading(90, 90), &candidates);
    let order: Vec<u32> = plan.ranked.iter().map(|ranked| ranked.workload).collect();
    assert_eq!(order, [5, 2, 1, 3, 0, 4]);
    assert_eq!(victims(plan), [2, 1, 3, 0]);
    assert_eq!(rig.verdict(5), Verdict::Protected(Protected::Listed));
    assert_eq!(rig.verdict(4), Verdict::NoStatistics);
}

#[test]
fn equals_are_told_apart_the_same_way_every_time() {
    let young = Workload { started: secs(9), ..candidate(1, 400) };
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    assert_eq!(victims(rig.look(1, reading(90, 90), &[candidate(0, 400), young])), [1]);
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    assert_eq!(victims(rig.look(1, reading(90, 90), &[candidate(0, 400), candidate(1, 400)])), [0]);
}

#[test]
fn as_many_victims_as_the_deficit_needs() {
    for (available, min_reclaim, expected) in [(90, 0, 1), (90, 90, 1), (90, 91, 2), (90, 391, 5), (0, 5000, 10)] {
        let candidates: Vec<Workload<'_>> = (0..10).map(|slot| candidate(slot, 100)).collect();
        let mut rig = Rig::with(&[threshold(100, 0, min_reclaim)]);
        let plan = rig.look(1, reading(available, available), &candidates);
        assert_eq!(victims(plan).len(), expected, "{available} {min_reclaim}: {:?}", plan.deficit);
    }
}

#[test]
fn an_empty_cgroup_that_cannot_be_read_is_not_evicted_blindly() {
    for (is_empty, evicted) in [(false, vec![0]), (true, vec![])] {
        let mut rig = Rig::new(Config {
            thresholds: vec![threshold(100, 0, 0)],
            evict_for_unattributed: true,
            ..Config::default()
        });
        let plan = rig.look(1, reading(60, 60), &[Workload { is_empty, ..unread(0) }]);
        assert_eq!(victims(plan), evicted, "empty: {is_empty}");
    }
}

#[test]
fn memory_on_its_way_back_is_not_asked_for_twice() {
    let going = |held: u64, is_stuck, is_graceful| Workload {
        terminating: Some(Terminating { is_stuck, is_graceful, ..Terminating::default() }),
        ..candidate(0, held)
    };
    for (first, outcome, expected) in [
        (going(50, false, false), Outcome::ComingBack, vec![]),
        (going(10, false, false), Outcome::Evict, vec![1]),
        (going(700, true, false), Outcome::Evict, vec![1]),
        // A hard threshold does not wait for somebody's grace period: whom the soft threshold chose goes now.
        (going(50, false, true), Outcome::Evict, vec![0]),
        (going(10, false, true), Outcome::Evict, vec![0, 1]),
    ] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        let plan = rig.look(1, reading(60, 60), &[first, candidate(1, 800)]);
        assert_eq!((plan.outcome, victims(plan)), (outcome, expected), "{first:?}");
        let evicts_who_goes = plan.actions.iter().any(|action| matches!(action, Action::Evict { workload: 0, .. }));
        assert!(!evicts_who_goes);
    }
}

#[test]
fn soft_waits_for_its_grace_and_hard_does_not() {
    let mut rig = Rig::new(Config {
        thresholds: vec![threshold(100, 0, 0), threshold(200, 30, 0)],
        max_pod_grace_seconds: 5,
        evict_for_unattributed: true,
        ..Config::default()
    });
    let mut patient = [candidate(0, 800)];
    patient[0].facts.grace_seconds = Some(60);
    let plan = rig.look(1, reading(150, 150), &patient);
    assert_eq!((plan.outcome, plan.recheck_at), (Outcome::InGrace, Some(secs(31))));
    // Pressure is reported from the first moment on.
    assert!(plan.conditions.has(Condition::MemoryPressure));
    // A break starts the grace anew.
    rig.look(20, reading(250, 250), &patient);
    assert_eq!(rig.look(31, reading(150, 150), &patient).outcome, Outcome::InGrace);
    // So does not being able to look.
    rig.observe(60, &observed(60, None));
    assert_eq!(rig.look(61, reading(150, 150), &patient).outcome, Outcome::InGrace);
    let plan = rig.look(91, reading(150, 150), &patient);
    assert_eq!(plan.actions, [Action::Evict { workload: 0, why: Why::Threshold(1), grace_seconds: 5 }]);
    // Hard, at once, whatever the soft one is doing.
    let mut rig = Rig::new(rig.config.clone());
    let plan = rig.look(1, reading(50, 50), &patient);
    assert_eq!(plan.actions, [Action::Evict { workload: 0, why: Why::Threshold(0), grace_seconds: 1 }]);
}

#[test]
fn minimum_reclaim_latches() {
    let mut rig = Rig::new(Config {
        thresholds: vec![threshold(100, 0, 100)],
        evict_for_unattributed: true,
        ..Config::default()
    });
    let candidates = [candidate(0, 400), candidate(1, 300)];
    for (at, available, expected) in [
        (1, 150, vec![]), // above the threshold, nothing was met yet
        (2, 99, vec![0]),
        (3, 150, vec![0]), // met before: 200 are wanted
        (4, 200, vec![]),
        (5, 150, vec![]), // resolved
    ] {
        assert_eq!(victims(rig.look(at, reading(available, available), &candidates)), expected, "second {at}");
    }
}

#[test]
fn stale_figures_do_nothing() {
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    let candidates = [candidate(0, 400), candidate(1, 400)];
    assert_eq!(victims(rig.look(5, reading(50, 50), &candidates)), [0]);
    for taken in [5, 4] {
        let plan = rig.look(taken, reading(50, 50), &candidates);
        assert_eq!((plan.outcome, plan.actions.len()), (Outcome::Stale, 0));
        assert!(plan.conditions.has(Condition::MemoryPressure));
    }
}

#[test]
fn conditions_last_for_the_transition_period() {
    for (period, at, expected) in [(10, 5, true), (10, 11, true), (10, 12, false), (0, 3, false)] {
        let mut rig = Rig::new(Config {
            thresholds: vec![threshold(100, 0, 0)],
            pressure_transition: Duration::from_secs(period),
            ..Config::default()
        });
        // Reported while it is met even if the period is zero.
        assert!(rig.look(2, reading(50, 50), &[]).conditions.has(Condition::MemoryPressure));
        assert_eq!(
            rig.look(at, reading(500, 500), &[]).conditions.has(Condition::MemoryPressure),
            expected,
            "{period} {at}"
        );
    }
}

#[test]
fn soft_victims_do_not_use_up_what_hard_ones_need() {
    let mut rig = Rig::new(Config {
        thresholds: vec![threshold(100, 0, 0), threshold(500, 1, 0)],
        hard_victims_per_minute: 1,
        soft_victims_per_minute: 1,
        evict_for_unattributed: true,
        ..Config::default()
    });
    let candidates = [candidate(0, 20), candidate(1, 10)];
    rig.look(1, reading(400, 400), &candidates);
    assert_eq!(victims(rig.look(2, reading(400, 400), &candidates)), [0]);
    let plan = rig.look(3, reading(400, 400), &candidates[1..]);
    assert_eq!((plan.outcome, plan.recheck_at), (Outcome::RateLimited, Some(secs(62))));
    assert_eq!(victims(rig.look(4, reading(50, 50), &candidates[1..])), [0]);
    assert_eq!(rig.look(5, reading(50, 50), &candidates[1..]).outcome, Outcome::RateLimited);
}

#[test]
fn a_soft_line_that_evicts_does_not_keep_a_hard_one_from_reclaiming() {
    let mut rig = Rig::new(Config {
        thresholds: vec![threshold(100, 0, 0), threshold(500, 1, 0)],
        evict_for_unattributed: true,
        ..Config::default()
    });
    rig.look(1, reading(400, 400), &[candidate(0, 20)]);
    let plan = rig.look(2, reading(50, 400), &[candidate(0, 20)]);
    assert_eq!((reclaims(plan), plan.actions.len()), (Some(amount(50)), 1));
    // While that is waited for the soft one acts, and the hard one asks again in its own time.
    let plan = rig.look(3, reading(50, 400), &[candidate(0, 20)]);
    assert_eq!((victims(plan), plan.recheck_at), (vec![0], Some(secs(12))));
    let plan = rig.look(12, reading(50, 400), &[candidate(0, 20)]);
    assert_eq!((reclaims(plan), plan.actions.len()), (Some(amount(50)), 1));
    // Both readings are below by now: nothing waits any more, and nothing is looked at for what is over.
    let plan = rig.look(30, reading(50, 50), &[candidate(0, 20)]);
    assert_eq!((victims(plan), plan.recheck_at), (vec![0], None));
}

#[test]
fn a_soft_line_in_its_grace_hides_nobody_from_a_hard_one() {
    for thresholds in [&[threshold(100, 0, 0)][..], &[threshold(100, 0, 0), threshold(300, 60, 0)]] {
        let mut rig = Rig::with(thresholds);
        rig.look(1, reading(900, 900), &[candidate(0, 10)]);
        // First somebody else takes much, which ends above the hard threshold; then one takes the rest.
        rig.look(2, reading(250, 250), &[candidate(0, 10)]);
        let plan = rig.look(3, reading(90, 90), &[candidate(0, 170)]);
        assert_eq!(plan.attribution.expect("reckoned").fallen, mib(160), "{thresholds:?}");
        assert_eq!(victims(plan), [0], "{thresholds:?}");
    }
    // A soft threshold itself reckons from when memory was above all thresholds.
    let mut rig = Rig::with(&[threshold(100, 0, 0), threshold(300, 1, 0)]);
    for (at, available, usage) in [(1, 900, 10), (2, 250, 10), (3, 200, 60)] {
        rig.look(at, reading(available, available), &[candidate(0, usage)]);
    }
    assert_eq!((rig.plan.outcome, rig.plan.attribution.expect("reckoned").fallen), (Outcome::Unattributed, mib(700)));
}

#[test]
fn what_a_soft_line_had_reclaimed_is_not_the_hard_ones() {
    let mut rig = Rig::with(&[threshold(100, 0, 0), threshold(300, 1, 0)]);
    rig.look(1, reading(250, 400), &[candidate(0, 20)]);
    let reclaimed = |plan: &Plan| reclaims(plan) == Some(amount(50));
    assert!(reclaimed(rig.look(2, reading(250, 400), &[candidate(0, 20)])));
    assert!(reclaimed(rig.look(3, reading(50, 400), &[candidate(0, 20)])), "for the hard threshold, without its pause");
    // What was asked for the hard threshold serves the soft one too.
    assert_eq!(rig.look(4, reading(50, 400), &[candidate(0, 20)]).actions, []);
}

#[test]
fn victims_a_minute_are_bounded() {
    let mut rig = Rig::new(Config {
        thresholds: vec![threshold(100, 0, 0)],
        hard_victims_per_minute: 2,
        evict_for_unattributed: true,
        ..Config::default()
    });
    let candidates: Vec<Workload<'_>> = (0..5).map(|slot| candidate(slot, 20)).collect();
    let plan = rig.look(10, reading(0, 0), &candidates);
    assert_eq!(victims(plan), [0, 1]);
    assert_eq!(plan.deficit.expect("reckoned").uncovered(), amount(60));
    assert_eq!(plan.recheck_at, Some(secs(70)));
    assert_eq!(rig.verdict(2), Verdict::RateLimited);
    assert_eq!(rig.look(69, reading(0, 0), &candidates).outcome, Outcome::RateLimited);
    assert_eq!(victims(rig.look(70, reading(0, 0), &candidates)), [0, 1]);
    let mut none =
        Rig::new(Config { thresholds: vec![threshold(100, 0, 0)], hard_victims_per_minute: 0, ..Config::default() });
    assert_eq!(none.look(1, reading(0, 0), &[candidate(0, 900)]).outcome, Outcome::RateLimited);
}

#[test]
fn growth_elsewhere_costs_no_innocent() {
    let protected = |slot, usage| Workload { protected: Some(Protected::Listed), ..candidate(slot, usage) };
    // Before, when 500 MiB were available, and now, when 90 are: 410 went.
    for (name, before, now, expected) in [
        ("a task of the root cgroup", vec![candidate(0, 100)], vec![candidate(0, 100)], None),
        (
            "a protected service",
            vec![candidate(0, 100), protected(1, 10)],
            vec![candidate(0, 100), protected(1, 420)],
            None,
        ),
        ("just less than half", vec![candidate(0, 100)], vec![candidate(0, 304)], None),
        ("half", vec![candidate(0, 100)], vec![candidate(0, 305)], Some(0)),
        ("somebody new", vec![], vec![candidate(0, 300)], Some(0)),
        (
            "somebody new in an old place",
            vec![candidate(0, 300)],
            vec![Workload { key: Key { slot: 0, id: CgroupId(7) }, ..candidate(0, 300) }],
            Some(0),
        ),
        (
            "one shrank, another grew",
            vec![candidate(0, 300), candidate(1, 0)],
            vec![candidate(0, 0), candidate(1, 700)],
            Some(1),
        ),
        ("somebody who could not be read before", vec![unread(0)], vec![candidate(0, 400)], None),
    ] {
        for evict_anyway in [false, true] {
            let mut rig = Rig::new(Config {
                thresholds: vec![threshold(100, 0, 0)],
                evict_for_unattributed: evict_anyway,
                ..Config::default()
            });
            assert_eq!(rig.look(1, reading(500, 500), &before).outcome, Outcome::NoPressure);
            let plan = rig.look(2, reading(90, 90), &now);
            assert_eq!(plan.attribution.expect("reckoned").fallen, mib(410), "{name}");
            match expected {
                Some(victim) => assert_eq!(victims(plan), [victim], "{name}"),
                None if evict_anyway => assert_eq!(plan.outcome, Outcome::Evict, "{name}"),
                None => {
                    assert_eq!((plan.outcome, plan.actions.len()), (Outcome::Unattributed, 0), "{name}");
                    assert_eq!(rig.verdict(0), Verdict::NotResponsible, "{name}");
                }
            }
        }
    }
}

#[test]
fn what_the_dead_left_is_no_reason_to_choose_them_and_hides_nobody() {
    let left = |usage| Workload { is_empty: true, ..candidate(0, usage) };
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    assert_eq!(rig.look(1, reading(500, 500), &[candidate(0, 0), candidate(1, 10)]).outcome, Outcome::NoPressure);
    // 300 MiB of the fall are files that the first one left; the second one took the rest.
    let plan = rig.look(2, reading(90, 90), &[left(300), candidate(1, 120)]);
    let attribution = plan.attribution.expect("reckoned");
    assert_eq!(
        (attribution.fallen, attribution.left_behind, attribution.evictable_grew),
        (mib(410), mib(300), mib(110))
    );
    assert_eq!(victims(plan), [1]);
    assert_eq!(rig.verdict(0), Verdict::NothingToFree);
    // It spends none of the bound of victims either.
    let plan = rig.look(3, reading(90, 90), &[left(300)]);
    assert_eq!(plan.outcome, Outcome::NoVictim(NoVictim::NothingToFree));
}

#[test]
fn for_what_the_dead_left_only_those_pay_who_grew() {
    let left = |usage| Workload { is_empty: true, ..candidate(0, usage) };
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    let calm = [candidate(0, 0), candidate(1, 10), candidate(2, 10)];
    assert_eq!(rig.look(1, reading(200, 200), &calm).outcome, Outcome::NoPressure);
    // Nobody lives who grew: the rest below the threshold is what the first one left.
    let plan = rig.look(2, reading(95, 95), &[left(105), candidate(1, 10), candidate(2, 10)]);
    assert_eq!((plan.outcome, victims(plan)), (Outcome::Unattributed, vec![]));
    // One grows and goes; what is missing then is not asked of the other.
    let plan = rig.look(3, reading(60, 60), &[left(105), candidate(1, 45), candidate(2, 10)]);
    assert_eq!(victims(plan), [1]);
    let plan = rig.look(4, reading(50, 50), &[left(105), candidate(1, 45), candidate(2, 10)]);
    assert_eq!(victims(plan), [1]);
    assert_eq!(rig.verdict(2), Verdict::NotResponsible);
}

#[test]
fn many_that_grow_together_go_before_larger_ones_that_did_not() {
    // Two that have been there all along, and eight smaller ones that take 20 MiB each.
    let growing = |usage| (2..10).map(move |slot| candidate(slot, usage));
    let at = |usage| [candidate(0, 300), candidate(1, 100)].into_iter().chain(growing(usage)).collect::<Vec<_>>();
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    rig.look(1, reading(240, 240), &at(10));
    let plan = rig.look(2, reading(80, 80), &at(30));
    assert_eq!(plan.attribution.expect("reckoned").evictable_grew, mib(160));
    assert_eq!(victims(plan), [2]);
    let order: Vec<u32> = plan.ranked.iter().map(|ranked| ranked.workload).collect();
    assert_eq!(order, [2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
    // Not before one of lower priority, nor where it is within its reservation.
    let mut workloads = at(30);
    workloads[1].facts.priority = -1;
    workloads[2].facts.memory_request = amount(50);
    assert_eq!(
        rig.look(3, reading(80, 80), &workloads).ranked.iter().map(|it| it.workload).collect::<Vec<_>>(),
        [1, 3, 4, 5, 6, 7, 8, 9, 0, 2]
    );
}

#[test]
fn little_growth_beside_what_another_left_costs_nothing() {
    let left = |usage| Workload { is_empty: true, ..candidate(0, usage) };
    // (what the fall is, what a dead workload holds of it, what a living one of 63 MiB grew by, whether that one pays)
    for (fallen, held, grew, pays) in [
        // A database beside 400 MiB of another.
        (400, 399, 1, false),
        (60, 57, 3, false),
        // From a tenth of the whole fall on.
        (400, 361, 39, false),
        (400, 360, 40, true),
        // What outlives its cgroup is in no cgroup at all.
        (400, 0, 40, false),
    ] {
        let before = 95 + fallen;
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        rig.look(1, reading(before, before), &[candidate(0, 0), candidate(1, 63)]);
        let now = [left(held), candidate(1, 63 + grew)];
        let plan = rig.look(2, reading(95, 95), &now);
        let expected: &[u32] = if pays { &[1] } else { &[] };
        assert_eq!(victims(plan), expected, "{fallen} {held} {grew}: {:?}", plan.attribution);
        // Another share can be configured.
        let responsible_percent = 0;
        let thresholds = vec![threshold(100, 0, 0)];
        let mut rig = Rig::new(Config { thresholds, responsible_percent, ..Config::default() });
        rig.look(1, reading(before, before), &[candidate(0, 0), candidate(1, 63)]);
        assert_eq!(victims(rig.look(2, reading(95, 95), &now)).is_empty(), held == 0, "{fallen} {held} {grew}");
    }
}

#[test]
fn growth_is_reckoned_from_when_memory_was_last_plentiful() {
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    // Three per cent of 1000 MiB above the threshold is plentiful; between that and the line nothing new is remembered,
    // so that who took the last of it is not forgotten for a little growth elsewhere.
    for (at, available, usage) in [(1, 500, 100), (2, 129, 470), (3, 105, 470)] {
        assert_eq!(rig.look(at, reading(available, available), &[candidate(0, usage)]).outcome, Outcome::NoPressure);
    }
    assert_eq!(victims(rig.look(4, reading(99, 99), &[candidate(0, 470)])), [0]);
    // The first look counts until memory was plentiful for the first time.
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    rig.look(1, reading(110, 110), &[candidate(0, 600)]);
    assert_eq!(rig.look(2, reading(90, 90), &[candidate(0, 600)]).outcome, Outcome::Unattributed);
    // Started below the threshold: all that is in use counts as grown.
    for (usage, outcome) in [(500, Outcome::Evict), (400, Outcome::Unattributed)] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        assert_eq!(rig.look(1, reading(90, 90), &[candidate(0, usage)]).outcome, outcome);
    }
}

#[test]
fn nobody_to_evict_has_a_reason() {
    for (candidates, why) in [
        (vec![], NoVictim::NoCandidates),
        (vec![Workload { protected: Some(Protected::Init), ..candidate(0, 900) }], NoVictim::AllProtected),
        (vec![unread(0)], NoVictim::NoStatistics),
        (vec![candidate(0, 0)], NoVictim::NothingToFree),
    ] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        let plan = rig.look(1, reading(50, 50), &candidates);
        assert_eq!((plan.outcome, plan.actions.len()), (Outcome::NoVictim(why), 0));
    }
}

#[test]
fn a_slice_has_its_own_line_and_its_own_candidates() {
    let mut rig = Rig::new(Config {
        slices: vec![SliceThresholds::default(), SliceThresholds { thresholds: vec![threshold(50, 0, 0)] }],
        ..Config::default()
    });
    let inside = SliceSet::NONE.with(SliceId(1));
    let candidates = [candidate(0, 900), Workload { slices: inside, ..candidate(1, 200) }];
    let memory = MemoryReading { capacity: mib(256), kubelet_available: mib(40), mem_available: None };
    let slice =
        |id| Observation { scope: Scope::Slice(SliceId(id)), workloads: &candidates, ..observed(1, Some(memory)) };
    assert_eq!(victims(rig.observe(1, &slice(1))), [1]);
    assert_eq!(rig.plan.ranked.len(), 1, "the other is outside of it");
    // A slice without lines, and one that is not configured.
    assert_eq!(rig.observe(1, &slice(0)).outcome, Outcome::NotObserved);
    assert_eq!(rig.observe(1, &slice(9)).outcome, Outcome::NotObserved);
}

#[test]
fn a_line_can_be_a_percentage() {
    let ten = Line::Share(Percentage::of_one(0.1));
    let mut rig = Rig::with(&[Threshold::hard(Signal::MemoryAvailable, ten)]);
    let plan = rig.look(1, reading(99, 99), &[candidate(0, 800)]);
    assert_eq!((plan.thresholds[0].at.to_bytes(), victims(plan)), (Bytes(104_857_601), vec![0]));
}

#[test]
fn who_finds_no_room_is_counted() {
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    rig.plan = Plan::with_capacity(&rig.config, 1, 0);
    let plan = rig.look(1, reading(50, 50), &[candidate(0, 600), candidate(1, 700), candidate(2, 1)]);
    assert_eq!((plan.overlooked, victims(plan)), (2, vec![0]));
}

#[test]
fn a_plan_reads_as_one_line() {
    let mut rig = Rig::with(&[threshold(100, 0, 20)]);
    let name = |index: u32| ["db", "hog"][index as usize];
    let protected = |usage| Workload { protected: Some(Protected::Listed), ..candidate(0, usage) };
    rig.look(1, reading(500, 500), &[protected(200), candidate(1, 30)]);
    rig.look(2, reading(95, 90), &[protected(200), candidate(1, 440)]);
    assert_eq!(
        text::line(&rig.config, &rig.plan, name),
        "evicting: 95.0 MiB memory.available by the kubelet's formula, 90.0 MiB by the kernel's estimate, of 1000.0 MiB; \
         memory.available 90.0 MiB, below its hard threshold 100.0 MiB, with minimum reclaim 120.0 MiB; missing 30.0 MiB; \
         coming back 0 B, taken 440.0 MiB; since memory was plentiful it fell by 410.0 MiB, workloads that may be evicted \
         grew by 410.0 MiB and protected ones by 0 B; evict hog within 1 s (uses 440.0 MiB, 440.0 MiB over its request, \
         priority 0, BestEffort, grew 410.0 MiB)"
    );
    assert_eq!(
        text::ranking(&rig.config, &rig.plan, name),
        "hog: evicted; uses 440.0 MiB, 440.0 MiB over its request, priority 0, BestEffort, grew 410.0 MiB\n\
         db: never evicted: listed by the owner; uses 200.0 MiB, 200.0 MiB over its request, priority 0, BestEffort, grew \
         0 B\n"
    );
}
