//! Growth since memory was plentiful, and which workloads pay for it.

use crate::rig::{Rig, amount, candidate, mib, observed, of, reading, stats_time, threshold, unread, victims};
use plimsoll_policy::kubelet::{Amount, StatsTime};
use plimsoll_policy::{
    Config, Key, MemoryReading, NoVictim, Observation, Outcome, Protected, Terminating, Verdict, Workload, decide,
};
use plimsoll_units::{CgroupId, MonotonicNs};

#[test]
fn memory_that_is_added_or_taken_away_is_no_growth() {
    let at = |capacity: u64, available: u64| MemoryReading { capacity: mib(capacity), ..reading(available, available) };
    for (what, capacity, available, used, fallen, outcome) in [
        // Of 1000 MiB 500 were available.
        ("400 MiB were taken away, and it grew by 40", 600, 60, 140, 40, Outcome::Evict),
        ("it did not grow", 600, 90, 100, 10, Outcome::Unattributed),
        ("nothing grew", 590, 90, 100, 0, Outcome::Evict),
        ("400 MiB were added, and it grew by 810", 1400, 90, 910, 810, Outcome::Evict),
        ("what is outside grew by as much as was added", 1400, 90, 500, 810, Outcome::Unattributed),
    ] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        assert_eq!(rig.sample(1, at(1000, 500), &[candidate(0, 100)]).outcome, Outcome::NoPressure);
        let plan = rig.sample(2, at(capacity, available), &[candidate(0, used)]);
        assert_eq!((plan.attribution.map(|it| it.fallen), plan.outcome), (Some(mib(fallen)), outcome), "{what}");
    }
    // Huge pages that are set aside are as before: memory that another took.
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    rig.sample(1, at(1000, 500), &[candidate(0, 100)]);
    let observation = Observation { huge_page_pool: mib(410), ..observed(2, Some(reading(500, 90))) };
    let workloads = [candidate(0, 100)];
    let plan = rig.observe(2, &Observation { workloads: &workloads, ..observation });
    assert_eq!(plan.outcome, Outcome::Unattributed);
}

#[test]
fn what_is_read_into_page_cache_is_growth_of_none_up_to_half_of_the_fall() {
    // The kernel's own estimate falls by 60, of which page cache is some, and a workload grew.
    for (what, withheld, grew, fallen, outcome) in [
        ("no page cache was read", 50, 28, 60, Outcome::Unattributed),
        ("of the rest it took half", 54, 28, 56, Outcome::Evict),
        ("of the rest it took less than half", 54, 27, 56, Outcome::Unattributed),
        ("all of it is page cache, and what grew by little pays for no such", 110, 14, 30, Outcome::Unattributed),
        ("all of it is page cache, and one grew by half as much as may be", 110, 15, 30, Outcome::Evict),
        ("there was more page cache before", 20, 28, 60, Outcome::Unattributed),
    ] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        let (before, now) = ([candidate(0, 100)], [candidate(0, 100 + grew)]);
        let at = |seconds, available, withheld| Observation {
            withheld: Some(mib(withheld)),
            ..observed(seconds, Some(reading(500, available)))
        };
        rig.observe(1, &Observation { workloads: &before, ..at(1, 150, 50) });
        let plan = rig.observe(2, &Observation { workloads: &now, ..at(2, 90, withheld) });
        assert_eq!((plan.attribution.map(|it| it.fallen), plan.outcome), (Some(mib(fallen)), outcome), "{what}");
    }
}

#[test]
fn growth_elsewhere_costs_no_bystander() {
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
        ("a new one", vec![], vec![candidate(0, 300)], Some(0)),
        (
            "a new one in an old slot",
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
        ("one that could not be read before", vec![unread(0)], vec![candidate(0, 400)], None),
    ] {
        for evict_anyway in [false, true] {
            let mut rig = Rig::new(Config {
                thresholds: vec![threshold(100, 0, 0)],
                evict_for_unattributed: evict_anyway,
                ..Config::default()
            });
            assert_eq!(rig.sample(1, reading(500, 500), &before).outcome, Outcome::NoPressure);
            let plan = rig.sample(2, reading(90, 90), &now);
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
fn what_a_dead_workload_left_is_no_reason_to_evict_it_and_hides_no_growth() {
    let left = |usage| Workload { is_empty: true, ..candidate(0, usage) };
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    assert_eq!(rig.sample(1, reading(500, 500), &[candidate(0, 0), candidate(1, 10)]).outcome, Outcome::NoPressure);
    // 300 MiB of the fall are files that the first one left; the second one took the rest.
    let plan = rig.sample(2, reading(90, 90), &[left(300), candidate(1, 120)]);
    let attribution = plan.attribution.expect("reckoned");
    assert_eq!(
        (attribution.fallen, attribution.left_behind, attribution.evictable_grew),
        (mib(410), mib(300), mib(110))
    );
    assert_eq!(victims(plan), [1]);
    assert_eq!(rig.verdict(0), Verdict::NothingToFree);
    // It spends none of the bound of victims either.
    let plan = rig.sample(3, reading(90, 90), &[left(300)]);
    assert_eq!(plan.outcome, Outcome::NoVictim(NoVictim::NothingToFree));
}

#[test]
fn for_what_a_dead_workload_left_only_those_pay_that_grew() {
    let left = |usage| Workload { is_empty: true, ..candidate(0, usage) };
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    let calm = [candidate(0, 0), candidate(1, 10), candidate(2, 10)];
    assert_eq!(rig.sample(1, reading(200, 200), &calm).outcome, Outcome::NoPressure);
    // None that is alive grew: the rest below the threshold is what the first one left.
    let plan = rig.sample(2, reading(95, 95), &[left(105), candidate(1, 10), candidate(2, 10)]);
    assert_eq!((plan.outcome, victims(plan)), (Outcome::Unattributed, vec![]));
    // One grows and is evicted; what is missing then is not asked of the other.
    let plan = rig.sample(3, reading(60, 60), &[left(105), candidate(1, 45), candidate(2, 10)]);
    assert_eq!(victims(plan), [1]);
    let plan = rig.sample(4, reading(50, 50), &[left(105), candidate(1, 45), candidate(2, 10)]);
    assert_eq!(victims(plan), [1]);
    assert_eq!(rig.verdict(2), Verdict::NotResponsible);
}

#[test]
fn many_that_grow_together_are_evicted_before_larger_ones_that_did_not() {
    // Two that have been there all along, and eight smaller ones that take 20 MiB each.
    let growing = |usage| (2..10).map(move |slot| candidate(slot, usage));
    let at = |usage| [candidate(0, 300), candidate(1, 100)].into_iter().chain(growing(usage)).collect::<Vec<_>>();
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    rig.sample(1, reading(240, 240), &at(10));
    let plan = rig.sample(2, reading(80, 80), &at(30));
    assert_eq!(plan.attribution.expect("reckoned").evictable_grew, mib(160));
    // 20 MiB are missing, and at 160 MiB a second 80 MiB more are allocated until memory is back.
    assert_eq!(plan.deficit.expect("reckoned").expected, amount(80));
    assert_eq!(victims(plan), [2, 3, 4, 5]);
    let order: Vec<u32> = plan.ranked.iter().map(|ranked| ranked.workload).collect();
    assert_eq!(order, [2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
    // Not before one of lower priority, nor where it is within its reservation.
    let mut workloads = at(30);
    workloads[1].facts.priority = -1;
    workloads[2].facts.memory_request = amount(50);
    assert_eq!(
        rig.sample(3, reading(80, 80), &workloads).ranked.iter().map(|it| it.workload).collect::<Vec<_>>(),
        [1, 3, 4, 5, 6, 7, 8, 9, 0, 2]
    );
}

#[test]
fn what_is_allocated_until_memory_is_back_is_missing_too_and_only_workloads_that_grew_pay_for_it() {
    let grows = |usage| [candidate(0, 300), candidate(1, usage), candidate(2, usage)];
    // (since when it falls, at what second, what is expected): half a second of the fall, and never more than it.
    for (since, second, expected) in [(1, 2, 80), (1, 3, 40), (1, 17, 5), (2, 2, 160)] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        rig.sample(since, reading(240, 240), &grows(10));
        let taken = Observation { workloads: &grows(90), ..observed(second, Some(reading(80, 80))) };
        // The figures are newer, even if it is the same second.
        let plan = rig.observe(second, &Observation { mem_available_at: Some(stats_time(second + 1)), ..taken });
        assert_eq!(plan.deficit.map(|deficit| deficit.expected), Some(amount(expected)), "{since} {second}");
        let both = amount(20 + expected) > amount(90);
        assert_eq!(victims(plan), if both { vec![1, 2] } else { vec![1] }, "{since} {second}");
        assert_eq!(rig.verdict(0), Verdict::NotNeeded, "{since} {second}");
    }
    // Since when it falls is not known, or a soft threshold has time for another turn.
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    assert_eq!(rig.sample(1, reading(80, 80), &grows(90)).deficit.expect("reckoned").expected, Amount::ZERO);
    let mut rig = Rig::with(&[threshold(100, 1, 0)]);
    rig.sample(1, reading(240, 240), &grows(10));
    rig.sample(2, reading(80, 80), &grows(90));
    let plan = rig.sample(3, reading(80, 80), &grows(90));
    assert_eq!((plan.deficit.expect("reckoned").expected, victims(plan)), (Amount::ZERO, vec![1]));
}

#[test]
fn memory_that_was_plentiful_at_rest_falls_since_then_and_growth_counts_from_when_workloads_were_read() {
    let grows = |usage| [candidate(0, 300), candidate(1, usage), candidate(2, usage)];
    // (what was available at the last decision and at rest, what is expected). From 130 MiB on it is plentiful.
    for (decided, rested, expected) in [(240, 240, 80), (240, 130, 80), (240, 129, 5), (129, 130, 5)] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        rig.sample(1, reading(240, 240), &grows(10));
        if decided != 240 {
            rig.sample(2, reading(decided, decided), &grows(60));
        }
        rig.rest(16, reading(rested, rested));
        let plan = rig.sample(17, reading(80, 80), &grows(90));
        let (attribution, deficit) = (plan.attribution.expect("reckoned"), plan.deficit.expect("reckoned"));
        assert_eq!((attribution.fallen, attribution.evictable_grew), (mib(160), mib(160)), "{decided} {rested}");
        assert_eq!(deficit.expected, amount(expected), "{decided} {rested}");
        assert_eq!(victims(plan), if expected == 80 { vec![1, 2] } else { vec![1] }, "{decided} {rested}");
    }
    // Nothing was remembered yet.
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    rig.rest(1, reading(240, 240));
    assert_eq!(rig.sample(2, reading(80, 80), &grows(90)).deficit.expect("reckoned").expected, Amount::ZERO);
}

/// A machine on which workloads grow, and evicted ones give their memory back some time after.
struct Machine {
    available: u64,
    /// (what it uses, what it takes in a twentieth of a second, when its memory is back)
    workloads: Vec<(u64, u64, Option<u64>)>,
    /// What a cgroup without a process leaves behind when the others begin to grow.
    left_behind: u64,
}

impl Machine {
    /// Runs for so many twentieths of a second. Gives which were evicted in order, and the least that was available.
    fn run(&mut self, config: Config, ticks: u64, grows_from: u64) -> (Vec<u32>, u64) {
        let mut rig = Rig::new(config);
        let (mut evicted, mut least) = (Vec::new(), self.available);
        for tick in 0..ticks {
            let left_behind = if tick < grows_from { 0 } else { self.left_behind };
            if tick == grows_from {
                self.available -= left_behind;
            }
            for (usage, grows, ends) in &mut self.workloads {
                if *ends == Some(tick) {
                    self.available += *usage;
                    (*usage, *grows) = (0, 0);
                } else if ends.is_none() && tick >= grows_from {
                    self.available = self.available.saturating_sub(*grows);
                    *usage += *grows;
                }
            }
            least = least.min(self.available);
            let now = MonotonicNs(1_000_000_000 + tick * 50_000_000);
            let of = |slot: u32, (usage, _, ends): (u64, u64, Option<u64>)| Workload {
                terminating: ends.is_some_and(|at| at > tick).then_some(Terminating::default()),
                is_empty: ends.is_some_and(|at| at <= tick),
                ..candidate(slot, usage)
            };
            let left = Workload { is_empty: true, ..candidate(200, left_behind) };
            let workloads: Vec<_> = (0..).zip(&self.workloads).map(|(slot, it)| of(slot, *it)).chain([left]).collect();
            let memory = MemoryReading { capacity: mib(4000), ..reading(self.available, self.available) };
            let at = StatsTime(i64::try_from(now.0).expect("small"));
            let base = observed(0, Some(memory));
            let observation = Observation { taken: now, mem_available_at: Some(at), workloads: &workloads, ..base };
            decide(&rig.config, &mut rig.state, &observation, now, &mut rig.plan);
            for victim in victims(&rig.plan) {
                // A kill takes two tenths of a second.
                self.workloads[victim as usize].2 = Some(tick + 4);
                evicted.push(victim);
            }
        }
        (evicted, least)
    }
}

#[test]
fn many_workloads_that_grow_fast_are_all_evicted_before_any_other_and_memory_does_not_run_out() {
    for left_behind in [0, 150, 280] {
        // 32 take 8 MiB a second each; two larger ones have been there all along.
        let growing = (0..32).map(|place| (10, u64::from(place % 5 < 2), None));
        let workloads = growing.chain([(600, 0, None), (300, 0, None)]).collect();
        let mut machine = Machine { available: 400, workloads, left_behind };
        let config = Config { thresholds: vec![threshold(100, 0, 0)], ..Config::default() };
        let (evicted, least) = machine.run(config, 1200, 20);
        assert!(!evicted.is_empty() && evicted.iter().all(|victim| *victim < 32), "{left_behind}: {evicted:?}");
        assert!(least > 20, "{left_behind}: {least} MiB were left");
    }
}

#[test]
fn a_workload_that_grows_while_frozen_ranks_with_those_that_grew() {
    let frozen = |usage| Workload { grows_while_frozen: true, ..candidate(2, usage) };
    let calm = [candidate(0, 10), candidate(1, 300), candidate(2, 100)];
    // It grew by less than a tenth of what the other grew by.
    for (third, order, expected) in [
        (candidate(2, 102), [0, 1, 2], vec![0]),
        (frozen(102), [0, 2, 1], vec![0]),
        // Within its reservation it is still last.
        (of(7, 200, &frozen(102)), [0, 1, 2], vec![0]),
        (Workload { protected: Some(Protected::Listed), ..frozen(102) }, [0, 2, 1], vec![0]),
    ] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        rig.sample(1, reading(500, 500), &calm);
        let plan = rig.sample(2, reading(95, 95), &[candidate(0, 410), calm[1], third]);
        let ranked: Vec<u32> = plan.ranked.iter().map(|it| it.workload).collect();
        assert_eq!((ranked, victims(plan)), (order.to_vec(), expected), "{third:?}");
        let marked = plan.ranked.iter().find(|it| it.workload == 2).expect("ranked").grew;
        assert_eq!(marked, third.grows_while_frozen && third.protected.is_none());
    }
    // Where the rest of the growth is elsewhere only this one pays, and the limit of victims holds.
    for (hard_victims_per_minute, expected) in [(1, vec![2]), (0, vec![])] {
        let thresholds = vec![threshold(100, 0, 0)];
        let mut rig = Rig::new(Config { thresholds, hard_victims_per_minute, ..Config::default() });
        rig.sample(1, reading(500, 500), &calm);
        assert_eq!(victims(rig.sample(2, reading(95, 95), &[calm[0], calm[1], frozen(102)])), expected);
    }
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
        rig.sample(1, reading(before, before), &[candidate(0, 0), candidate(1, 63)]);
        let now = [left(held), candidate(1, 63 + grew)];
        let plan = rig.sample(2, reading(95, 95), &now);
        let expected: &[u32] = if pays { &[1] } else { &[] };
        assert_eq!(victims(plan), expected, "{fallen} {held} {grew}: {:?}", plan.attribution);
        // Another share can be configured.
        let responsible_percent = 0;
        let thresholds = vec![threshold(100, 0, 0)];
        let mut rig = Rig::new(Config { thresholds, responsible_percent, ..Config::default() });
        rig.sample(1, reading(before, before), &[candidate(0, 0), candidate(1, 63)]);
        assert_eq!(victims(rig.sample(2, reading(95, 95), &now)).is_empty(), held == 0, "{fallen} {held} {grew}");
    }
}

#[test]
fn growth_is_reckoned_from_when_memory_was_last_plentiful() {
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    // Three per cent of 1000 MiB above the threshold is plentiful; between that and the threshold nothing new is
    // remembered, so that the workload that took the last of it is not forgotten for a little growth elsewhere.
    for (at, available, usage) in [(1, 500, 100), (2, 129, 470), (3, 105, 470)] {
        assert_eq!(rig.sample(at, reading(available, available), &[candidate(0, usage)]).outcome, Outcome::NoPressure);
    }
    assert_eq!(victims(rig.sample(4, reading(99, 99), &[candidate(0, 470)])), [0]);
    // The first sample counts until memory was plentiful for the first time.
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    rig.sample(1, reading(110, 110), &[candidate(0, 600)]);
    assert_eq!(rig.sample(2, reading(90, 90), &[candidate(0, 600)]).outcome, Outcome::Unattributed);
    // Started below the threshold: all that is in use counts as grown.
    for (usage, outcome) in [(500, Outcome::Evict), (400, Outcome::Unattributed)] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        assert_eq!(rig.sample(1, reading(90, 90), &[candidate(0, usage)]).outcome, outcome);
    }
}
