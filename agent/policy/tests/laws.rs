//! Laws that hold for every machine and every workload.

use plimsoll_policy::kubelet::{
    Amount, Condition, DiskLayout, MemoryStats, NodeStats, Pod, PodStats, QosClass, Readings, Signal, StatsTime,
    Threshold, ThresholdAmount,
};
use plimsoll_policy::{
    Action, Case, Config, EvictionPolicy, Key, Observation, Owner, Plan, Protected, Ranked, Reclaimed, Stall, State,
    Terminating, Uid, Verdict, Why, Workload, decide,
};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

const CAPACITY: u64 = 1000;
const SLOTS: usize = 24;

/// So many runs of a law, of a hundred, have to see an eviction.
const BITES: u32 = 20;

thread_local! {
    /// How many runs there were, and how many of them saw an eviction.
    static RUNS: Cell<(u32, u32)> = Cell::default();
}

/// Laws for generated cases, each a test that fails as well if hardly a case sees an eviction: it would hold whatever
/// the code does.
macro_rules! laws {
    ($(#[test] fn $name:ident($($case:tt)*) $law:block)*) => {
        $(
            #[test]
            fn $name() {
                proptest!(|($($case)*)| $law);
                let (all, with_evictions) = RUNS.get();
                assert!(all > 0 && with_evictions * 100 >= all * BITES, "{with_evictions} of {all} see an eviction");
            }
        )*
    };
}

/// A cgroup without pod facts.
fn candidate() -> impl Strategy<Value = Workload<'static>> {
    (
        prop::option::weighted(0.9, 0_u64..400),
        0_i64..200,
        -2_i32..3,
        prop::option::weighted(0.2, prop::sample::select(vec![Protected::Critical, Protected::Listed])),
        prop::option::weighted(0.2, (any::<bool>(), any::<bool>())),
        (prop::bool::weighted(0.1), prop::bool::weighted(0.05)),
        0_u64..3,
        owner(),
    )
        .prop_map(|(usage, reservation, priority, protected, terminating, frozen, started, owner)| Workload {
            facts: Pod {
                priority,
                memory_request: Amount::whole(reservation),
                stats: usage.map(|usage| PodStats { working_set: Some(usage), ..PodStats::default() }),
                ..Pod::default()
            },
            protected,
            terminating: terminating.map(|(is_stuck, is_graceful)| Terminating {
                is_stuck,
                is_graceful,
                ..Terminating::default()
            }),
            is_empty: frozen.0,
            grows_while_frozen: frozen.1,
            started: MonotonicNs(started),
            owner,
            ..Workload::default()
        })
}

/// One of three, each with a request of its own, or none.
fn owner() -> impl Strategy<Value = Option<Owner>> {
    prop::option::of((1_u64..4).prop_map(|id| Owner { id: CgroupId(id), request: Bytes((id - 1) * 150) }))
}

fn candidates() -> impl Strategy<Value = Vec<Workload<'static>>> {
    prop::collection::vec(candidate(), 0..12).prop_map(|mut candidates| {
        for (slot, candidate) in (0_u32..).zip(&mut candidates) {
            candidate.key = Key { slot, id: CgroupId(u64::from(slot) + 1) };
            candidate.uid = Uid(u128::from(slot) + 1);
        }
        candidates
    })
}

#[derive(Clone, Debug)]
struct Step {
    after: u64,
    kubelet: u64,
    mem_available: Option<u64>,
    stall: u64,
    candidates: Vec<Workload<'static>>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (1_u64..40, 0..CAPACITY, prop::option::of(0..CAPACITY), 0_u64..1000, candidates()).prop_map(
        |(after, kubelet, mem_available, stall, candidates)| Step { after, kubelet, mem_available, stall, candidates },
    );
    prop::collection::vec(step, 1..12)
}

fn config() -> impl Strategy<Value = Config> {
    let period = prop::sample::select(vec![0_u64, 10, 30, 300]);
    let policy = prop::sample::select(vec![EvictionPolicy::Plimsoll, EvictionPolicy::OpenShift3]);
    (policy, 50_u64..400, 0_u64..200, 0_u32..20, any::<bool>(), period).prop_map(
        |(eviction_policy, threshold, min, victims, anyway, period)| Config {
            eviction_policy,
            thresholds: vec![Threshold {
                min_reclaim: Some(ThresholdAmount::bytes(Bytes(min))),
                ..Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(Bytes(threshold)))
            }],
            hard_victims_per_minute: victims,
            soft_victims_per_minute: victims,
            evict_for_unattributed: anyway,
            pressure_transition: Duration::from_secs(period),
            ..Config::default()
        },
    )
}

fn soft(threshold: u64, grace: u64) -> Threshold {
    Threshold {
        grace: Duration::from_secs(grace),
        ..Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(Bytes(threshold)))
    }
}

/// Plays the steps and gives each plan away with its step. What a plan kills goes on as if it had not been killed.
fn play(config: &Config, steps: &[Step], each: impl FnMut(&Step, &Plan)) {
    play_with(config, steps, false, each);
}

/// The same, where what a plan kills may be terminating in the next step.
fn play_with(config: &Config, steps: &[Step], kills: bool, mut each: impl FnMut(&Step, &Plan)) {
    let mut state = State::with_capacity(config, SLOTS);
    let mut plan = Plan::with_capacity(config, SLOTS, 0);
    let mut killed: Vec<Uid> = Vec::new();
    let mut now = MonotonicNs(0);
    let mut reclaimed = None;
    let mut has_evictions = false;
    for step in steps {
        let mut step = step.clone();
        for candidate in step.candidates.iter_mut().filter(|candidate| kills && killed.contains(&candidate.uid)) {
            candidate.terminating = candidate.terminating.or(Some(Terminating::default()));
        }
        now = now.after(Duration::from_secs(step.after));
        let at = StatsTime(i64::try_from(now.0).expect("small"));
        let memory =
            MemoryStats { available: Some(step.kubelet), working_set: Some(CAPACITY - step.kubelet), time: Some(at) };
        let observation = Observation {
            taken: now,
            layout: Some(DiskLayout::Single),
            readings: Some(Readings::of(&NodeStats { memory: Some(memory), ..NodeStats::default() })),
            mem_available: step.mem_available.map(Bytes),
            stall: Some(Stall { full: Duration::from_millis(step.stall), window: Duration::from_secs(1) }),
            reclaimed,
            workloads: &step.candidates,
            ..Observation::default()
        };
        decide(config, &mut state, &observation, now, &mut plan);
        has_evictions |= plan.actions.iter().any(|action| matches!(action, Action::Evict { .. }));
        // It has ended before the next step.
        reclaimed = plan.reclaim().map(|order| Reclaimed { order: order.order, at }).or(reclaimed);
        killed = plan.victims().map(|victim| step.candidates[victim as usize].uid).collect();
        each(&step, &plan);
    }
    let (all, with_evictions) = RUNS.get();
    RUNS.set((all + 1, with_evictions + u32::from(has_evictions)));
}

laws! {
    #[test]
    fn protected_and_terminating_workloads_are_never_evicted(config in config(), steps in steps()) {
        play(&config, &steps, |step, plan| {
            for action in &plan.actions {
                match *action {
                    Action::Evict { workload, .. } => {
                        let chosen = &step.candidates[workload as usize];
                        assert_eq!((chosen.protected, chosen.terminating, chosen.is_empty), (None, None, false));
                        // Blindly only where none at all can be read, and the operator wants evictions by rank.
                        let is_blind = config.evict_for_unattributed && chosen.working_set().is_none();
                        // What it may have left charged to another cgroup of its owner.
                        let is_left = |other: &Workload<'_>| {
                            other.is_empty && chosen.owner.is_some_and(|owner| other.owner.is_some_and(|it| it.id == owner.id))
                        };
                        let has_left = step.candidates.iter().any(is_left);
                        assert!(is_blind || has_left || chosen.working_set().is_some_and(|usage| usage.0 > 0));
                    }
                    Action::EscalateToKill { workload, .. } => {
                        let chosen = &step.candidates[workload as usize];
                        let in_grace = Terminating { is_stuck: false, is_graceful: true, ..Terminating::default() };
                        assert_eq!((chosen.protected, chosen.terminating), (None, Some(in_grace)));
                    }
                    Action::Reclaim(_) => {}
                }
            }
        });
    }

    #[test]
    fn none_is_killed_twice_in_a_plan(config in config(), steps in steps()) {
        play(&config, &steps, |_, plan| {
            let mut victims: Vec<u32> = plan.victims().collect();
            let all = victims.len();
            victims.sort_unstable();
            victims.dedup();
            assert_eq!(victims.len(), all);
        });
    }

    #[test]
    fn no_more_is_taken_than_needed_but_for_the_last_victim(config in config(), steps in steps()) {
        play(&config, &steps, |_, plan| {
            let Some(last) = plan.victims().last() else { return };
            let deficit = plan.deficit.expect("set where a workload is evicted");
            let freed = plan.ranked.iter().find(|it| it.workload == last).expect("it is ranked").frees;
            let without = deficit.coming + deficit.taken - freed;
            assert!(without < deficit.missing + deficit.expected, "{deficit:?} would do without {freed:?}");
        });
    }

    #[test]
    fn none_within_its_reservation_is_evicted_before_one_above(mut config in config(), steps in steps()) {
        // The other goes by class.
        config.eviction_policy = EvictionPolicy::Plimsoll;
        play(&config, &steps, |_, plan| {
            let spared_above = plan.ranked.iter().any(|r| r.exceeds && r.verdict == Verdict::NotNeeded);
            let taken_within = plan.ranked.iter().any(|r| !r.exceeds && r.verdict == Verdict::Evicted);
            assert!(!(spared_above && taken_within));
        });
    }

    #[test]
    fn victims_a_minute_are_bounded(config in config(), steps in steps()) {
        // An owner of many workloads counts once.
        let mut victims: Vec<(MonotonicNs, Result<CgroupId, Uid>)> = Vec::new();
        play_with(&config, &steps, true, |step, plan| {
            victims.extend(plan.evicted().map(|victim| {
                let victim = &step.candidates[victim as usize];
                (plan.made, victim.owner.map(|owner| owner.id).ok_or(victim.uid))
            }));
            let recent = victims.iter().filter(|(time, _)| plan.made.since(*time) < Duration::from_mins(1));
            let owners: BTreeSet<_> = recent.clone().filter_map(|(_, victim)| victim.ok()).collect();
            let others = recent.filter(|(_, victim)| victim.is_err()).count();
            assert!(owners.len() + others <= config.hard_victims_per_minute as usize);
        });
    }

    #[test]
    fn nothing_is_evicted_for_less_growth_than_a_share_of_the_whole_fall(
        mut config in config(), percent in 0_u8..100, steps in steps()
    ) {
        config.responsible_percent = percent;
        config.evict_for_unattributed = false;
        play(&config, &steps, |step, plan| {
            let Some(attribution) = plan.attribution else { return };
            let is_empty = |ranked: &Ranked| step.candidates[ranked.workload as usize].is_empty;
            let may_go = || plan.ranked.iter().filter(|it| !matches!(it.verdict, Verdict::Protected(_)));
            // A process that was moved left its memory in a cgroup of the same owner.
            let lives: BTreeSet<_> = may_go().filter(|it| !is_empty(it)).filter_map(|it| it.owner).collect();
            let grew: u64 = may_go()
                .filter(|it| !is_empty(it) || it.owner.is_some_and(|owner| lives.contains(&owner)))
                .filter_map(|it| Some(it.growth.own?.0))
                .sum();
            if grew * 100 < attribution.fallen.0 * u64::from(percent) {
                // But for those that cannot be held.
                let is_held = |victim: u32| !step.candidates[victim as usize].grows_while_frozen;
                assert!(!plan.evicted().any(is_held), "{attribution:?}");
            }
        });
    }

    #[test]
    fn many_workloads_of_one_owner_are_to_others_as_if_they_were_one(
        config in config(), others in prop::collection::vec((candidate(), 0_u64..400, 0_u64..400), 0..8),
        usage in (0_u64..600, 1_u64..600), parts in prop::collection::vec((0_u64..9, 0_u64..9), 1..9),
        available in (0..CAPACITY, 0..200_u64), after in 1_u64..4, request in 0_u64..300
    ) {
        // The workload in question, first as one and then in parts, beside the same others; before and now.
        let owner = Some(Owner { id: CgroupId(9), request: Bytes(request) });
        let with = |workload: &Workload<'static>, index: usize, usage: u64| {
            let slot = u32::try_from(index).expect("few");
            let mut workload = Workload { key: Key { slot, id: CgroupId(100 + u64::from(slot)) }, ..*workload };
            workload.uid = Uid(workload.key.id.0.into());
            workload.facts.stats = Some(PodStats { working_set: Some(usage), ..PodStats::default() });
            workload
        };
        let at = |of_other: fn(&(Workload<'static>, u64, u64)) -> u64, usage: u64, parts: &[u64]| {
            let sum: u64 = parts.iter().sum();
            let mut left = usage;
            let mut all: Vec<_> = (0..).zip(&others).map(|(index, it)| with(&it.0, index, of_other(it))).collect();
            for (index, part) in (others.len()..).zip(parts) {
                let is_last = index + 1 == others.len() + parts.len();
                let own = if is_last { left } else { left.min(usage * part / sum.max(1)) };
                left -= own;
                all.push(with(&Workload { owner, ..Workload::default() }, index, own));
            }
            all
        };
        let verdicts = |before: &[u64], now: &[u64]| {
            let step = |after, available, candidates| Step { after, kubelet: available, mem_available: None, stall: 0, candidates };
            let steps = [
                step(1, available.0.max(available.1), at(|it| it.1, usage.0, before)),
                step(after, available.1, at(|it| it.2, usage.1, now)),
            ];
            let mut all = Vec::new();
            play(&config, &steps, |_, plan| {
                let mut verdicts: Vec<_> = plan.ranked.iter().map(|it| (it.workload, it.verdict)).collect();
                verdicts.retain(|(workload, _)| (*workload as usize) < others.len());
                all.push(verdicts);
            });
            all
        };
        let (before, now): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        assert_eq!(verdicts(&[1], &[1]), verdicts(&before, &now));
    }

    #[test]
    fn what_owners_write_below_their_cgroups_changes_no_plan(
        config in config(), steps in steps(), written in prop::collection::vec((0_i64..1000, 0_usize..3), 12)
    ) {
        let plans = |steps: &[Step]| {
            let mut all = Vec::new();
            play(&config, steps, |_, plan| all.push(format!("{plan:?}")));
            all
        };
        let mut changed = steps.clone();
        for step in &mut changed {
            for (candidate, (reserved, class)) in step.candidates.iter_mut().zip(&written) {
                if candidate.owner.is_some() {
                    candidate.facts.memory_request = Amount::whole(*reserved);
                    candidate.qos = [QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed][*class];
                }
            }
        }
        assert_eq!(plans(&steps), plans(&changed));
    }

    #[test]
    fn above_all_thresholds_nothing_is_done(config in config(), steps in steps()) {
        play(&config, &steps, |step, plan| {
            let target = plan.thresholds[0].target;
            let is_above = |reading| Amount::counted(reading) >= target;
            if is_above(step.kubelet) && step.mem_available.is_none_or(is_above) {
                assert!(plan.actions.is_empty());
            }
        });
    }

    #[test]
    fn the_same_input_gives_the_same_plan(config in config(), steps in steps()) {
        let plans = || {
            let mut all = Vec::new();
            play(&config, &steps, |_, plan| all.push(format!("{plan:?}")));
            all
        };
        assert_eq!(plans(), plans());
    }

    #[test]
    fn a_condition_does_not_flap_inside_the_transition_period(
        mut config in config(), soft_threshold in 0_u64..600, grace in 0_u64..60, steps in steps()
    ) {
        config.thresholds.push(soft(soft_threshold, grace));
        let mut last_crossed = None;
        play(&config, &steps, |_, plan| {
            // In its grace or beyond.
            if plan.thresholds.iter().any(|status| status.case != Case::Neither) {
                last_crossed = Some(plan.made);
            }
            let expected = last_crossed
                .is_some_and(|last| last == plan.made || plan.made.since(last) < config.pressure_transition);
            assert_eq!(plan.conditions.has(Condition::MemoryPressure), expected);
        });
    }

    #[test]
    fn hard_is_not_later_for_a_soft_threshold_beside_it(
        hard in config(), steps in steps(), threshold in 0_u64..900, grace in 1_u64..60
    ) {
        let mut both = hard.clone();
        both.thresholds.push(soft(threshold, grace));
        let first_kill = |config: &Config| {
            let mut first = None;
            play(config, &steps, |_, plan| {
                let kills = plan.actions.iter().any(|action| match *action {
                    Action::Evict { why, .. } | Action::EscalateToKill { why, .. } => why == Why::Threshold(0),
                    Action::Reclaim(_) => false,
                });
                first = first.or(kills.then_some(plan.made));
            });
            first
        };
        if let Some(alone) = first_kill(&hard) {
            let beside = first_kill(&both);
            assert!(beside.is_some_and(|beside| beside <= alone), "{alone:?} without, {beside:?} with");
        }
    }
}
