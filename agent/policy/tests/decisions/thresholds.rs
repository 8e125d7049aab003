//! Thresholds, reclaim, victims and their limits.

use crate::rig::{
    Rig, amount, candidate, mib, observed, of, reading, reclaims, secs, stats_time, threshold, unread, victims,
};
use plimsoll_policy::kubelet::{Condition, Signal, Threshold, ThresholdAmount};
use plimsoll_policy::{
    Action, Case, Config, MemoryReading, NoVictim, Observation, Outcome, Plan, Protected, Reclaimed, Scope, SliceId,
    SliceSet, SliceThresholds, Stall, Terminating, Verdict, Why, Workload, decide, text,
};
use plimsoll_units::{Bytes, Percentage};
use std::time::Duration;

#[test]
fn the_four_cases_of_two_readings() {
    for (kubelet, mem_available, case, outcome) in [
        (200, 200, Case::Neither, Outcome::NoPressure),
        (99, 99, Case::Both, Outcome::Evict),
        (99, 200, Case::KubeletOnly, Outcome::Reclaiming),
        (200, 99, Case::MemAvailableOnly, Outcome::Evict),
        // At the threshold is not below it.
        (100, 100, Case::Neither, Outcome::NoPressure),
    ] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        let plan = rig.sample(1, reading(kubelet, mem_available), &[candidate(0, 800)]);
        assert_eq!((plan.thresholds[0].case, plan.outcome), (case, outcome), "{kubelet} {mem_available}");
        assert_eq!(plan.conditions.has(Condition::MemoryPressure), case != Case::Neither);
    }
}

#[test]
fn one_reading_alone_is_enough() {
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    let memory = MemoryReading { mem_available: None, ..reading(50, 0) };
    let plan = rig.sample(1, memory, &[candidate(0, 800)]);
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
    let plan = rig.sample(1, reading(90, 90), &candidates);
    let order: Vec<u32> = plan.ranked.iter().map(|ranked| ranked.workload).collect();
    assert_eq!(order, [5, 2, 1, 3, 0, 4]);
    assert_eq!(victims(plan), [2, 1, 3, 0]);
    assert_eq!(rig.verdict(5), Verdict::Protected(Protected::Listed));
    assert_eq!(rig.verdict(4), Verdict::NoStatistics);
}

#[test]
fn equals_are_ordered_the_same_way_every_time() {
    let young = Workload { started: secs(9), ..candidate(1, 400) };
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    assert_eq!(victims(rig.sample(1, reading(90, 90), &[candidate(0, 400), young])), [1]);
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    assert_eq!(victims(rig.sample(1, reading(90, 90), &[candidate(0, 400), candidate(1, 400)])), [0]);
}

#[test]
fn as_many_victims_as_the_deficit_needs() {
    for (available, min_reclaim, expected) in [(90, 0, 1), (90, 90, 1), (90, 91, 2), (90, 391, 5), (0, 5000, 10)] {
        let candidates: Vec<Workload<'_>> = (0..10).map(|slot| candidate(slot, 100)).collect();
        let mut rig = Rig::with(&[threshold(100, 0, min_reclaim)]);
        let plan = rig.sample(1, reading(available, available), &candidates);
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
        let plan = rig.sample(1, reading(60, 60), &[Workload { is_empty, ..unread(0) }]);
        assert_eq!(victims(plan), evicted, "empty: {is_empty}");
    }
}

#[test]
fn memory_on_its_way_back_is_not_asked_for_twice() {
    let terminating = |held: u64, is_stuck, is_graceful| Workload {
        terminating: Some(Terminating { is_stuck, is_graceful, ..Terminating::default() }),
        ..candidate(0, held)
    };
    for (first, outcome, expected) in [
        (terminating(50, false, false), Outcome::ComingBack, vec![]),
        (terminating(10, false, false), Outcome::Evict, vec![1]),
        (terminating(700, true, false), Outcome::Evict, vec![1]),
        // A hard threshold does not wait for a grace period: the soft one's victim is killed at once.
        (terminating(50, false, true), Outcome::Evict, vec![0]),
        (terminating(10, false, true), Outcome::Evict, vec![0, 1]),
    ] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        let plan = rig.sample(1, reading(60, 60), &[first, candidate(1, 800)]);
        assert_eq!((plan.outcome, victims(plan)), (outcome, expected), "{first:?}");
        let evicts_it_again = plan.actions.iter().any(|action| matches!(action, Action::Evict { workload: 0, .. }));
        assert!(!evicts_it_again);
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
    let plan = rig.sample(1, reading(150, 150), &patient);
    assert_eq!((plan.outcome, plan.recheck_at), (Outcome::InGrace, Some(secs(31))));
    // Pressure is reported from the first moment on.
    assert!(plan.conditions.has(Condition::MemoryPressure));
    // A break starts the grace anew.
    rig.sample(20, reading(250, 250), &patient);
    assert_eq!(rig.sample(31, reading(150, 150), &patient).outcome, Outcome::InGrace);
    // So does memory that could not be read.
    rig.observe(60, &observed(60, None));
    assert_eq!(rig.sample(61, reading(150, 150), &patient).outcome, Outcome::InGrace);
    let plan = rig.sample(91, reading(150, 150), &patient);
    assert_eq!(plan.actions, [Action::Evict { workload: 0, why: Why::Threshold(1), grace_seconds: 5 }]);
    // Hard, at once, whatever the soft one is doing.
    let mut rig = Rig::new(rig.config.clone());
    let plan = rig.sample(1, reading(50, 50), &patient);
    assert_eq!(plan.actions, [Action::Evict { workload: 0, why: Why::Threshold(0), grace_seconds: 1 }]);
}

#[test]
fn that_nothing_is_done_is_said_with_its_reason() {
    let mut rig = Rig::with(&[threshold(100, 30, 0)]);
    let candidates = [candidate(0, 400)];
    let started = [
        (1, 500, "no pressure: "),
        (2, 50, "in the grace period: "),
        // The grace is over, and the figures are those of before.
        (2, 50, "nothing new was read, so nothing is done: "),
    ];
    for ((taken, available, text), now) in started.into_iter().zip([1, 2, 60]) {
        let observation =
            Observation { workloads: &candidates, ..observed(taken, Some(reading(available, available))) };
        decide(&rig.config, &mut rig.state, &observation, secs(now), &mut rig.plan);
        let line = text::line(&rig.config, &rig.plan, None, |workload| workload);
        assert!(line.starts_with(text), "{line}");
        assert_eq!(rig.plan.actions, []);
    }
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
        assert_eq!(victims(rig.sample(at, reading(available, available), &candidates)), expected, "second {at}");
    }
}

#[test]
fn stale_figures_do_nothing() {
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    let candidates = [candidate(0, 400), candidate(1, 400)];
    assert_eq!(victims(rig.sample(5, reading(50, 50), &candidates)), [0]);
    for taken in [5, 4] {
        let plan = rig.sample(taken, reading(50, 50), &candidates);
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
        assert!(rig.sample(2, reading(50, 50), &[]).conditions.has(Condition::MemoryPressure));
        assert_eq!(
            rig.sample(at, reading(500, 500), &[]).conditions.has(Condition::MemoryPressure),
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
    let candidates = [candidate(0, 20), candidate(1, 10), candidate(2, 5)];
    rig.sample(1, reading(400, 400), &candidates);
    assert_eq!(victims(rig.sample(2, reading(400, 400), &candidates)), [0]);
    let plan = rig.sample(3, reading(400, 400), &candidates[1..]);
    assert_eq!((plan.outcome, plan.recheck_at), (Outcome::RateLimited, Some(secs(62))));
    assert_eq!(victims(rig.sample(4, reading(50, 50), &candidates[1..])), [0]);
    assert_eq!(rig.sample(5, reading(50, 50), &candidates[2..]).outcome, Outcome::RateLimited);
}

#[test]
fn a_soft_threshold_that_evicts_does_not_keep_a_hard_one_from_reclaiming() {
    let mut rig = Rig::new(Config {
        thresholds: vec![threshold(100, 0, 0), threshold(500, 1, 0)],
        evict_for_unattributed: true,
        ..Config::default()
    });
    rig.sample(1, reading(400, 400), &[candidate(0, 20)]);
    let plan = rig.sample(2, reading(50, 400), &[candidate(0, 20)]);
    assert_eq!((reclaims(plan), plan.actions.len()), (Some(amount(50)), 1));
    // While that is waited for the soft one acts, and the hard one asks again in its own time.
    let plan = rig.sample(3, reading(50, 400), &[candidate(0, 20)]);
    assert_eq!((victims(plan), plan.recheck_at), (vec![0], Some(secs(12))));
    let plan = rig.sample(12, reading(50, 400), &[candidate(0, 20)]);
    assert_eq!((reclaims(plan), plan.actions.len()), (Some(amount(50)), 1));
    // Both readings are below by now: nothing waits any more, and no sample is due for what is over.
    let plan = rig.sample(30, reading(50, 50), &[candidate(0, 20)]);
    assert_eq!((victims(plan), plan.recheck_at), (vec![0], None));
}

#[test]
fn a_soft_threshold_in_its_grace_hides_no_growth_from_a_hard_one() {
    for thresholds in [&[threshold(100, 0, 0)][..], &[threshold(100, 0, 0), threshold(300, 60, 0)]] {
        let mut rig = Rig::with(thresholds);
        rig.sample(1, reading(900, 900), &[candidate(0, 10)]);
        // First another takes much, which ends above the hard threshold; then this one takes the rest.
        rig.sample(2, reading(250, 250), &[candidate(0, 10)]);
        let plan = rig.sample(3, reading(90, 90), &[candidate(0, 170)]);
        assert_eq!(plan.attribution.expect("reckoned").fallen, mib(160), "{thresholds:?}");
        assert_eq!(victims(plan), [0], "{thresholds:?}");
    }
    // A soft threshold itself reckons from when memory was above all thresholds.
    let mut rig = Rig::with(&[threshold(100, 0, 0), threshold(300, 1, 0)]);
    for (at, available, usage) in [(1, 900, 10), (2, 250, 10), (3, 200, 60)] {
        rig.sample(at, reading(available, available), &[candidate(0, usage)]);
    }
    assert_eq!((rig.plan.outcome, rig.plan.attribution.expect("reckoned").fallen), (Outcome::Unattributed, mib(700)));
}

#[test]
fn what_a_soft_threshold_had_reclaimed_is_not_the_hard_ones() {
    let mut rig = Rig::with(&[threshold(100, 0, 0), threshold(300, 1, 0)]);
    rig.sample(1, reading(250, 400), &[candidate(0, 20)]);
    let reclaimed = |plan: &Plan| reclaims(plan) == Some(amount(50));
    assert!(reclaimed(rig.sample(2, reading(250, 400), &[candidate(0, 20)])));
    assert!(
        reclaimed(rig.sample(3, reading(50, 400), &[candidate(0, 20)])),
        "for the hard threshold, without its pause"
    );
    // What was asked for the hard threshold serves the soft one too.
    assert_eq!(rig.sample(4, reading(50, 400), &[candidate(0, 20)]).actions, []);
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
    let plan = rig.sample(10, reading(0, 0), &candidates);
    assert_eq!(victims(plan), [0, 1]);
    assert_eq!(plan.deficit.expect("reckoned").uncovered(), amount(60));
    assert_eq!(plan.recheck_at, Some(secs(70)));
    assert_eq!(rig.verdict(2), Verdict::RateLimited);
    assert_eq!(rig.sample(69, reading(0, 0), &candidates[2..]).outcome, Outcome::RateLimited);
    assert_eq!(victims(rig.sample(70, reading(0, 0), &candidates[2..])), [0, 1]);
    let mut none =
        Rig::new(Config { thresholds: vec![threshold(100, 0, 0)], hard_victims_per_minute: 0, ..Config::default() });
    assert_eq!(none.sample(1, reading(0, 0), &[candidate(0, 900)]).outcome, Outcome::RateLimited);
}

#[test]
fn where_none_can_be_evicted_the_plan_says_why() {
    for (candidates, why) in [
        (vec![], NoVictim::NoCandidates),
        (vec![Workload { protected: Some(Protected::Init), ..candidate(0, 900) }], NoVictim::AllProtected),
        (vec![unread(0)], NoVictim::NoStatistics),
        (vec![candidate(0, 0)], NoVictim::NothingToFree),
    ] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        let plan = rig.sample(1, reading(50, 50), &candidates);
        assert_eq!((plan.outcome, plan.actions.len()), (Outcome::NoVictim(why), 0));
    }
}

#[test]
fn a_slice_has_its_own_thresholds_and_its_own_workloads() {
    // All that pods have together is the memory of the slice that they are in.
    for signal in [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable] {
        let thresholds = vec![Threshold { signal, ..threshold(50, 0, 0) }];
        let slices = vec![SliceThresholds::default(), SliceThresholds { thresholds }];
        let mut rig = Rig::new(Config { slices, ..Config::default() });
        let inside = SliceSet::NONE.with(SliceId(1));
        let candidates = [candidate(0, 900), Workload { slices: inside, ..candidate(1, 200) }];
        let slice = |id, at, kubelet, kernel: Option<u64>| Observation {
            scope: Scope::Slice(SliceId(id)),
            workloads: &candidates,
            ..observed(
                at,
                Some(MemoryReading {
                    capacity: mib(256),
                    kubelet_available: mib(kubelet),
                    mem_available: kernel.map(mib),
                }),
            )
        };
        assert_eq!(victims(rig.observe(1, &slice(1, 1, 40, None))), [1]);
        assert_eq!(rig.plan.ranked.len(), 1, "the other is outside of it");
        let line = text::line(&rig.config, &rig.plan, Some("work.slice"), |index| index);
        assert!(
            line.contains(&format!(" in slice work.slice: 40.0 MiB {signal} by the kubelet's formula of 256.0 MiB")),
            "{line}"
        );
        assert_eq!(victims(rig.observe(2, &slice(1, 2, 200, Some(40)))), [1], "by the kernel's estimate");
        assert_eq!(rig.plan.acting().map(|status| status.case), Some(Case::MemAvailableOnly));
        // A slice without thresholds, and one that is not configured.
        for id in [0, 9] {
            assert_eq!(rig.observe(2, &slice(id, 2, 40, None)).outcome, Outcome::NotObserved);
        }
    }
}

#[test]
fn a_threshold_can_be_a_percentage() {
    let ten = ThresholdAmount::Share(Percentage::of_one(0.1));
    let mut rig = Rig::with(&[Threshold::hard(Signal::MemoryAvailable, ten)]);
    let plan = rig.sample(1, reading(99, 99), &[candidate(0, 800)]);
    assert_eq!((plan.thresholds[0].at.to_bytes(), victims(plan)), (Bytes(104_857_601), vec![0]));
}

#[test]
fn workloads_without_room_in_the_plan_are_counted() {
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    rig.plan = Plan::with_capacity(&rig.config, 1, 0);
    let plan = rig.sample(1, reading(50, 50), &[candidate(0, 600), candidate(1, 700), candidate(2, 1)]);
    assert_eq!((plan.overlooked, victims(plan)), (2, vec![0]));
}

#[test]
fn a_plan_reads_as_one_line() {
    let mut rig = Rig::with(&[threshold(100, 0, 20)]);
    let name = |index: u32| ["db", "batch"][index as usize];
    let protected = |usage| Workload { protected: Some(Protected::Listed), ..candidate(0, usage) };
    rig.sample(1, reading(500, 500), &[protected(200), candidate(1, 30)]);
    rig.sample(2, reading(95, 90), &[protected(200), candidate(1, 440)]);
    assert_eq!(
        text::line(&rig.config, &rig.plan, None, name),
        "evicting: 95.0 MiB memory.available by the kubelet's formula, 90.0 MiB by the kernel's estimate, of 1000.0 MiB; \
         memory.available 90.0 MiB, below its hard threshold 100.0 MiB, with minimum reclaim 120.0 MiB; missing 30.0 MiB, \
         and 205.0 MiB are expected to be allocated until memory is back; coming back 0 B, taken 440.0 MiB; since memory \
         was plentiful it fell by 410.0 MiB, workloads that may be evicted grew by 410.0 MiB and protected ones by 0 B; \
         evict batch within 1 s (uses 440.0 MiB, 440.0 MiB over its request, \
         priority 0, BestEffort, grew 410.0 MiB)"
    );
    assert_eq!(
        text::ranking(&rig.config, &rig.plan, name),
        "batch: evicted; uses 440.0 MiB, 440.0 MiB over its request, priority 0, BestEffort, grew 410.0 MiB\n\
         db: never evicted: listed by the owner; uses 200.0 MiB, 200.0 MiB over its request, priority 0, BestEffort, grew \
         0 B\n"
    );
    let batches = [of(7, 100, &candidate(0, 300)), of(7, 100, &candidate(1, 200))];
    rig.sample(3, reading(95, 90), &batches);
    assert_eq!(
        text::ranking(&rig.config, &rig.plan, name),
        "batch: evicted; uses 200.0 MiB, 400.0 MiB over its owner's request, priority 0, Burstable, grew 170.0 MiB, its \
         owner 270.0 MiB\n\
         db: not needed, those before it are enough; uses 300.0 MiB, 400.0 MiB over its owner's request, priority 0, \
         Burstable, grew 100.0 MiB, its owner 270.0 MiB\n"
    );
}
