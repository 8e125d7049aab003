//! Owners of many workloads.

use crate::rig::{Rig, amount, candidate, mib, observed, of, reading, secs, threshold, unread, victims};
use plimsoll_policy::kubelet::{Amount, StatsTime, ThresholdAmount};
use plimsoll_policy::{
    Action, Config, EvictionPolicy, Observation, Owner, Plan, Protected, Terminating, Uid, Verdict, Workload, decide,
};
use plimsoll_units::{Bytes, CgroupId};
use std::time::Duration;

/// 200 workloads of one owner, and one of another that is larger than each.
fn many_beside_one(request_mib: u64) -> Vec<Workload<'static>> {
    let many = (0..200).map(|slot| of(7, request_mib, &candidate(slot, 60)));
    many.chain([candidate(200, 300)]).collect()
}

#[test]
fn an_owner_of_many_workloads_ranks_by_what_all_of_them_use() {
    // (what is requested for the owner, whether its workloads are evicted before the larger one of another)
    for (request, goes_first) in [(0, true), (11_600, true), (11_800, false), (12_000, false)] {
        let mut rig = Rig::new(Config {
            thresholds: vec![threshold(100, 0, 0)],
            evict_for_unattributed: true,
            ..Config::default()
        });
        // None of them grows.
        rig.sample(1, reading(900, 900), &many_beside_one(request));
        let plan = rig.sample(2, reading(90, 90), &many_beside_one(request));
        assert_eq!(victims(plan), [if goes_first { 0 } else { 200 }], "{request}");
        let [first, .., last] = plan.ranked.as_slice() else { panic!("201 are ranked") };
        assert_eq!([first.workload == 200, last.workload == 200], [!goes_first, goes_first], "{request}");
    }
}

#[test]
fn an_owner_whose_request_is_the_largest_amount_there_is_is_within_it() {
    // `memory.low` of a slice can be `max`.
    let request = Bytes(u64::MAX);
    let reserved = Workload { owner: Some(Owner { id: CgroupId(7), request }), ..candidate(0, 600) };
    let plan = Rig::with(&[threshold(100, 0, 0)]);
    let mut rig = Rig { config: Config { evict_for_unattributed: true, ..plan.config }, ..plan };
    assert_eq!(victims(rig.sample(1, reading(90, 90), &[reserved, candidate(1, 300)])), [1]);
}

#[test]
fn many_workloads_of_one_owner_neither_use_up_the_limit_of_victims_nor_are_protected_by_it() {
    let mut rig = Rig::new(Config {
        thresholds: vec![threshold(100, 0, 0)],
        hard_victims_per_minute: 2,
        evict_for_unattributed: true,
        ..Config::default()
    });
    let workloads = many_beside_one(0);
    assert_eq!(victims(rig.sample(1, reading(90, 90), &workloads[..1])), [0]);
    // 3000 MiB are missing.
    rig.config.thresholds[0].min_reclaim = Some(ThresholdAmount::bytes(mib(3000)));
    let plan = rig.sample(2, reading(90, 90), &workloads[1..]);
    assert_eq!((victims(plan).len(), plan.deficit.expect("reckoned").uncovered()), (51, Amount::ZERO));
    // One more owner may lose a workload, a third may not; and the first one still can.
    let three = |first| [candidate(200, 900), candidate(201, 800), first];
    let plan = rig.sample(3, reading(90, 90), &three(of(8, 0, &candidate(60, 1000))));
    assert_eq!((victims(plan), plan.ranked[1].verdict), (vec![2], Verdict::RateLimited));
    let plan = rig.sample(4, reading(90, 90), &three(of(7, 0, &candidate(61, 400))));
    assert_eq!(victims(plan), [2], "{plan:?}");
}

#[test]
fn an_owner_that_has_lost_a_workload_pays_for_none_of_a_higher_rank_that_the_limit_spares() {
    let config = Config {
        thresholds: vec![threshold(100, 0, 5000)],
        hard_victims_per_minute: 1,
        evict_for_unattributed: true,
        ..Config::default()
    };
    let first = of(7, 100, &candidate(0, 200));
    // Within its request; of higher priority; and not grown, beside a larger one that is none of these.
    let calm = of(7, 100, &candidate(1, 50));
    let important = |mut it: Workload<'static>| {
        it.facts.priority = 1;
        it
    };
    for (second, goes) in
        [(of(7, 100, &candidate(1, 900)), true), (calm, false), (important(of(7, 100, &candidate(1, 900))), false)]
    {
        let mut rig = Rig::new(config.clone());
        assert_eq!(victims(rig.sample(1, reading(90, 90), &[first])), [0]);
        let plan = rig.sample(2, reading(90, 90), &[candidate(9, 1000), second]);
        assert_eq!(victims(plan), if goes { vec![1] } else { vec![] }, "{second:?}");
        assert_eq!(rig.verdict(0), Verdict::RateLimited);
    }
}

#[test]
fn what_an_owner_writes_below_its_cgroup_protects_none_of_its_workloads() {
    use EvictionPolicy::{OpenShift3, Plimsoll};
    // One grew, and reserves all memory for itself; the other has been as large all along.
    let with = |reserved: u64, usage| {
        let mut workload = candidate(0, usage);
        workload.facts.memory_request = amount(reserved);
        workload
    };
    // (what is requested for the owner, which is evicted first); OpenShift 3 evicts best effort before burstable.
    for (eviction_policy, request, expected) in
        [(Plimsoll, 0, 0), (Plimsoll, 100, 0), (Plimsoll, 500, 1), (OpenShift3, 0, 0), (OpenShift3, 100, 1)]
    {
        for reserved in [0, 1 << 40] {
            let thresholds = vec![threshold(100, 0, 0)];
            let mut rig = Rig::new(Config { thresholds, eviction_policy, ..Config::default() });
            rig.sample(1, reading(500, 500), &[of(7, request, &with(reserved, 10)), candidate(1, 200)]);
            let plan = rig.sample(2, reading(90, 90), &[of(7, request, &with(reserved, 420)), candidate(1, 200)]);
            assert_eq!(victims(plan)[0], expected, "{request} {reserved} {eviction_policy}");
        }
    }
}

#[test]
fn what_an_owner_moves_between_its_workloads_is_no_growth() {
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    let before = [of(7, 0, &candidate(0, 400)), of(7, 0, &candidate(1, 0)), candidate(2, 10)];
    rig.sample(1, reading(200, 200), &before);
    // Its second workload takes over from the first; a new one does from one that is gone.
    for (second, now) in [
        (2, vec![of(7, 0, &candidate(0, 0)), of(7, 0, &candidate(1, 400)), candidate(2, 100)]),
        (3, vec![of(7, 0, &candidate(3, 300)), of(7, 0, &candidate(1, 100)), candidate(2, 100)]),
    ] {
        let plan = rig.sample(second, reading(95, 95), &now);
        assert_eq!(plan.attribution.expect("reckoned").evictable_grew, mib(90), "{second}");
        assert_eq!(victims(plan), [2], "{second}");
        assert_eq!(plan.ranked.iter().map(|it| it.grew).collect::<Vec<_>>(), [true, false, false]);
    }
    // One that could not be read then has not grown, and one that cannot be read now hides none of another's growth.
    let unread = |slot| of(7, 0, &unread(slot));
    rig.sample(4, reading(200, 200), &[unread(0), of(7, 0, &candidate(1, 100)), of(7, 0, &candidate(2, 10))]);
    let now = [of(7, 0, &candidate(0, 400)), unread(1), of(7, 0, &candidate(2, 100))];
    let plan = rig.sample(5, reading(95, 95), &now);
    assert_eq!(plan.attribution.expect("reckoned").evictable_grew, mib(90));
}

#[test]
fn an_owner_whose_workloads_become_one_or_several_has_not_grown_by_that() {
    let several = vec![of(7, 0, &candidate(3, 300)), of(7, 0, &candidate(4, 100)), candidate(2, 10)];
    let mut one = candidate(5, 400);
    (one.key.id, one.uid) = (CgroupId(7), Uid(7));
    let one = vec![one, candidate(2, 10)];
    for (before, mut now) in [(several.clone(), one.clone()), (one, several)] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        rig.sample(1, reading(200, 200), &before);
        *now.last_mut().expect("it is there") = candidate(2, 100);
        let plan = rig.sample(2, reading(95, 95), &now);
        assert_eq!(plan.attribution.expect("reckoned").evictable_grew, mib(90));
        assert_eq!(plan.ranked.iter().map(|it| it.growth.owner).max(), Some(Some(mib(90))));
        let grew = plan.ranked.iter().filter(|it| it.grew).map(|it| it.key.slot);
        assert_eq!(grew.collect::<Vec<_>>(), [2]);
    }
}

#[test]
fn memory_of_a_process_that_was_moved_is_its_owners_growth_while_one_of_its_processes_lives() {
    for (lives, others, expected) in [(true, 12, vec![1]), (true, 9, vec![1]), (false, 12, vec![])] {
        let mut rig = Rig::with(&[threshold(100, 0, 0)]);
        rig.sample(1, reading(200, 200), &[of(7, 0, &candidate(0, 0)), candidate(1, 5)]);
        let left = Workload { is_empty: true, ..of(7, 0, &candidate(0, 95)) };
        let entered = Workload { is_empty: !lives, ..of(7, 0, &candidate(2, 3)) };
        let plan = rig.sample(2, reading(95, 95), &[left, entered, candidate(1, others)]);
        assert_eq!(victims(plan), expected, "{lives} {others}");
    }
}

/// A process of owner 7 was moved from cgroup to cgroup, which kept 90 MiB. Beside the one that it is in now, with its
/// usage: one of the owner's that did not change, and one of another that grew by little more than a tenth of that.
fn moved(entered: &[Workload<'static>]) -> Vec<Workload<'static>> {
    let left = [(0, 60), (3, 30)].map(|(slot, usage)| Workload { is_empty: true, ..of(7, 0, &candidate(slot, usage)) });
    let others = [of(7, 0, &candidate(1, 40)), candidate(2, 15)];
    left.into_iter().chain(others).chain(entered.iter().copied()).collect()
}

/// The same, when memory was plentiful. Slot 9 had no process.
fn before_moved() -> Vec<Workload<'static>> {
    let empty = Workload { is_empty: true, ..of(7, 0, &candidate(9, 1)) };
    vec![of(7, 0, &candidate(0, 0)), of(7, 0, &candidate(1, 40)), candidate(2, 5), empty]
}

#[test]
fn what_a_process_left_charged_comes_back_with_the_workloads_that_may_hold_it() {
    let new = |slot, usage| of(7, 0, &candidate(slot, usage));
    // (where the process may be now, what is evicted)
    for (entered, expected) in [
        (vec![new(4, 0)], vec![4]),
        (vec![new(4, 3)], vec![4]),
        (vec![new(9, 1)], vec![4]),
        // Which of several holds it is not known.
        (vec![new(4, 0), new(5, 1), new(6, 0)], vec![5, 4, 6]),
        // No other could hold it.
        (vec![], vec![2]),
        (vec![Workload { protected: Some(Protected::Listed), ..new(4, 0) }], vec![2]),
    ] {
        let mut rig = Rig::with(&[threshold(100, 0, 40)]);
        rig.sample(1, reading(200, 200), &before_moved());
        let plan = rig.sample(21, reading(95, 95), &moved(&entered));
        assert_eq!(victims(plan), expected, "{entered:?}");
        let deficit = plan.deficit.expect("reckoned");
        assert!(deficit.is_covered() && deficit.taken >= amount(89), "{deficit:?}");
    }
}

#[test]
fn a_workload_that_grew_by_more_than_its_owners_empty_ones_is_first() {
    let mut rig = Rig::with(&[threshold(100, 0, 40)]);
    rig.sample(1, reading(300, 300), &before_moved());
    let mut now = moved(&[of(7, 0, &candidate(4, 0))]);
    now[2] = of(7, 0, &candidate(1, 140));
    let plan = rig.sample(21, reading(95, 95), &now);
    assert_eq!((victims(plan), plan.ranked[0].frees), (vec![2], amount(140)));
}

#[test]
fn no_other_pays_while_what_a_process_left_charged_comes_back_and_all_do_that_grew_if_it_does_not() {
    let entered = of(7, 0, &candidate(4, 0));
    let killed = Workload { terminating: Some(Terminating::default()), ..entered };
    let another = of(7, 0, &candidate(5, 0));
    // (milliseconds after the first eviction, where the process may be, what is evicted)
    for (after, now, expected) in [
        (30, killed, vec![]),
        // It was gone before the kill.
        (30, another, vec![4]),
        (499, another, vec![4]),
        // Files in tmpfs: they came back with none of those.
        (501, another, vec![4, 2, 3]),
        (501, killed, vec![2, 3]),
    ] {
        let mut rig = Rig::with(&[threshold(100, 0, 75)]);
        rig.sample(1, reading(200, 200), &before_moved());
        assert_eq!(victims(rig.sample(21, reading(95, 95), &moved(&[entered]))), [4]);
        let at = secs(21).after(Duration::from_millis(after));
        let workloads = moved(&[now]);
        let observation = Observation {
            taken: at,
            mem_available_at: Some(StatsTime(i64::try_from(at.0).expect("small"))),
            workloads: &workloads,
            ..observed(21, Some(reading(95, 95)))
        };
        decide(&rig.config, &mut rig.state, &observation, at, &mut rig.plan);
        assert_eq!(victims(&rig.plan), expected, "{after} {now:?}");
    }
}

#[test]
fn what_comes_back_slowly_of_what_a_process_left_charged_is_waited_for() {
    let mut rig = Rig::with(&[threshold(100, 0, 60)]);
    rig.sample(1, reading(200, 200), &before_moved());
    assert_eq!(victims(rig.sample(21, reading(95, 95), &moved(&[of(7, 0, &candidate(4, 0))]))), [4]);
    let mut now = moved(&[of(7, 0, &candidate(5, 0))]);
    // (what is left of 60 MiB, what is evicted): an eighth of all 90 is enough for as much time again.
    for (second, left, expected) in [(22, 48, vec![4]), (23, 48, vec![4, 2, 3])] {
        now[0] = Workload { is_empty: true, ..of(7, 0, &candidate(0, left)) };
        assert_eq!(victims(rig.sample(second, reading(95, 95), &now)), expected, "{second}");
    }
}

#[test]
fn a_workload_in_its_grace_that_may_hold_what_a_process_left_charged_is_killed_for_a_hard_threshold() {
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    rig.sample(1, reading(200, 200), &before_moved());
    let asked = Terminating { is_graceful: true, until: Some(secs(30)), ..Terminating::default() };
    let asked = Workload { terminating: Some(asked), ..of(7, 0, &candidate(4, 0)) };
    let plan = rig.sample(21, reading(95, 95), &moved(&[asked]));
    assert_eq!((plan.escalated().collect::<Vec<_>>(), plan.evicted().count()), (vec![4], 0));
}

#[test]
fn what_an_owners_victim_may_have_become_has_no_more_grace_than_the_victim() {
    let workload = |slot, started, mib| Workload { started: secs(started), ..of(7, 0, &candidate(slot, mib)) };
    let grace = |plan: &Plan| match plan.actions[..] {
        [Action::Evict { workload: 0, grace_seconds, .. }] => grace_seconds,
        _ => panic!("{plan:?}"),
    };
    // (when a workload was started and is chosen, its owner, the seconds that it has)
    for (started, at, owner, expected) in [
        (3, 5, 7, 27),
        (3, 32, 7, 0),
        (3, 41, 7, 0),
        // It was there before: the victim may have been moved into it, until it was killed.
        (1, 5, 7, 27),
        (1, 33, 7, 30),
        // It is no victim's any more, or is another's.
        (3, 43, 7, 30),
        (3, 5, 8, 30),
    ] {
        let mut rig = Rig::new(Config {
            thresholds: vec![threshold(100, 1, 0)],
            max_pod_grace_seconds: 30,
            evict_for_unattributed: true,
            ..Config::default()
        });
        rig.sample(1, reading(90, 90), &[workload(0, 1, 50)]);
        assert_eq!(grace(rig.sample(2, reading(90, 90), &[workload(0, 1, 50)])), 30);
        let second = Workload { owner: of(owner, 0, &candidate(1, 0)).owner, ..workload(1, started, 50) };
        assert_eq!(grace(rig.sample(at, reading(90, 90), &[second])), expected, "{started} {at} {owner}");
    }
}

#[test]
fn what_a_terminating_workload_holds_is_no_more_above_its_owners_request() {
    let first = |is_stuck| Workload {
        terminating: Some(Terminating { is_stuck, ..Terminating::default() }),
        ..of(7, 100, &candidate(0, 80))
    };
    for (is_stuck, expected) in [(false, 2), (true, 1)] {
        let mut rig = Rig::new(Config {
            thresholds: vec![threshold(200, 0, 0)],
            evict_for_unattributed: true,
            ..Config::default()
        });
        let workloads = [first(is_stuck), of(7, 100, &candidate(1, 80)), candidate(2, 50)];
        rig.sample(1, reading(900, 900), &workloads);
        assert_eq!(victims(rig.sample(2, reading(90, 90), &workloads))[0], expected);
    }
}

#[test]
fn of_an_owner_that_grew_the_workload_that_grew_most_is_first_and_only_those_that_grew_are_marked() {
    let mut rig = Rig::with(&[threshold(100, 0, 0)]);
    let owner = |usages: [u64; 3]| {
        let workloads = (0..).zip(usages).map(|(slot, usage)| of(7, 0, &candidate(slot, usage)));
        workloads.chain([candidate(9, 300)]).collect::<Vec<_>>()
    };
    rig.sample(1, reading(400, 400), &owner([200, 10, 10]));
    let plan = rig.sample(2, reading(95, 95), &owner([210, 300, 100]));
    let order: Vec<_> = plan.ranked.iter().map(|it| (it.workload, it.growth.is_large, it.grew)).collect();
    assert_eq!(order, [(1, true, true), (2, true, true), (0, true, false), (3, false, false)]);
    assert_eq!(plan.ranked[0].growth.owner, Some(mib(390)));
}
