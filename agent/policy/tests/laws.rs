//! Laws that hold for every machine and every workload.

use plimsoll_policy::{
    Action, Candidate, Case, Config, Fate, Going, Key, Line, MemoryReading, Observation, Plan, Protected, Signal,
    Stall, State, Threshold, decide,
};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use proptest::prelude::*;
use std::time::Duration;

const CAPACITY: u64 = 1000;

fn candidate() -> impl Strategy<Value = Candidate> {
    (
        prop::option::weighted(0.9, 0_u64..400),
        0_u64..200,
        -2_i32..3,
        prop::option::weighted(0.2, prop::sample::select(vec![Protected::Critical, Protected::Listed])),
        prop::option::weighted(0.2, (0_u64..200, any::<bool>(), any::<bool>())),
        0_u64..3,
    )
        .prop_map(|(usage, reservation, priority, protected, going, started)| Candidate {
            usage: usage.map(Bytes),
            reservation: Bytes(reservation),
            priority,
            protected,
            going: going.map(|(held, stuck, gentle)| Going { held: Bytes(held), stuck, gentle }),
            started: MonotonicNs(started),
            ..Candidate::default()
        })
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    prop::collection::vec(candidate(), 0..12).prop_map(|mut candidates| {
        for (slot, candidate) in (0_u32..).zip(&mut candidates) {
            candidate.key = Key { slot, id: CgroupId(u64::from(slot) + 1) };
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
    candidates: Vec<Candidate>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (1_u64..40, 0..CAPACITY, prop::option::of(0..CAPACITY), 0_u64..1000, candidates()).prop_map(
        |(after, kubelet, mem_available, stall, candidates)| Step { after, kubelet, mem_available, stall, candidates },
    );
    prop::collection::vec(step, 1..12)
}

fn config() -> impl Strategy<Value = Config> {
    let period = prop::sample::select(vec![0_u64, 10, 30, 300]);
    (50_u64..400, 0_u64..200, 0_u32..20, any::<bool>(), period).prop_map(|(line, min, victims, anyway, period)| {
        Config {
            thresholds: vec![Threshold {
                min_reclaim: Line::Quantity(Bytes(min)),
                ..Threshold::hard(Signal::MemoryAvailable, Line::Quantity(Bytes(line)))
            }],
            victims_per_minute: victims,
            evict_for_unattributed: anyway,
            pressure_transition: Duration::from_secs(period),
            ..Config::default()
        }
    })
}

fn soft(line: u64, grace: u64) -> Threshold {
    Threshold {
        grace: Duration::from_secs(grace),
        ..Threshold::hard(Signal::MemoryAvailable, Line::Quantity(Bytes(line)))
    }
}

/// Plays the steps and gives each plan away with its step.
fn play(config: &Config, steps: &[Step], mut each: impl FnMut(&Step, &Plan)) {
    let mut state = State::with_capacity(config, 12);
    let mut plan = Plan::with_capacity(config, 12);
    let mut now = MonotonicNs(0);
    for step in steps {
        now = now.after(Duration::from_secs(step.after));
        let observation = Observation {
            taken: now,
            memory: Some(MemoryReading {
                capacity: Bytes(CAPACITY),
                kubelet_available: Bytes(step.kubelet),
                mem_available: step.mem_available.map(Bytes),
            }),
            stall: Some(Stall { full: Duration::from_millis(step.stall), window: Duration::from_secs(1) }),
            reclaimed: Some(now),
            candidates: &step.candidates,
            ..Observation::default()
        };
        decide(config, &mut state, &observation, now, &mut plan);
        each(step, &plan);
    }
}

proptest! {
    #[test]
    fn who_is_protected_or_going_is_never_evicted(config in config(), steps in steps()) {
        play(&config, &steps, |step, plan| {
            for action in &plan.actions {
                match *action {
                    Action::Evict { candidate, .. } => {
                        let chosen = &step.candidates[candidate as usize];
                        assert_eq!((chosen.protected, chosen.going), (None, None));
                        assert!(chosen.usage.is_some_and(|usage| usage.0 > 0));
                    }
                    Action::Hasten { candidate, .. } => {
                        let chosen = &step.candidates[candidate as usize];
                        assert!(chosen.protected.is_none() && chosen.going.is_some_and(|g| g.gentle && !g.stuck));
                    }
                    Action::Reclaim { .. } => {}
                }
            }
        });
    }

    #[test]
    fn nobody_is_killed_twice_in_a_plan(config in config(), steps in steps()) {
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
        play(&config, &steps, |step, plan| {
            let Some(last) = plan.victims().last() else { return };
            let deficit = plan.deficit.expect("reckoned where somebody is taken");
            let last = &step.candidates[last as usize];
            let freed = last.going.map_or_else(|| last.usage.expect("read"), |going| going.held);
            let without = deficit.coming.0 + deficit.taken.0 - freed.0;
            assert!(without < deficit.missing.0, "{deficit:?} would do without {freed:?}");
        });
    }

    #[test]
    fn nobody_within_its_reservation_goes_before_one_above(config in config(), steps in steps()) {
        play(&config, &steps, |_, plan| {
            let spared_above = plan.ranked.iter().any(|r| r.exceeds && r.fate == Fate::NotNeeded);
            let taken_within = plan.ranked.iter().any(|r| !r.exceeds && r.fate == Fate::Evicted);
            assert!(!(spared_above && taken_within));
        });
    }

    #[test]
    fn victims_a_minute_are_bounded(config in config(), steps in steps()) {
        let mut times: Vec<MonotonicNs> = Vec::new();
        play(&config, &steps, |_, plan| {
            let evictions = plan.actions.iter().filter(|action| matches!(action, Action::Evict { .. }));
            times.extend(evictions.map(|_| plan.made));
            let recent = times.iter().filter(|time| plan.made.since(**time) < Duration::from_mins(1)).count();
            assert!(recent <= config.victims_per_minute as usize);
        });
    }

    #[test]
    fn above_all_lines_nothing_is_done(config in config(), steps in steps()) {
        play(&config, &steps, |step, plan| {
            let target = plan.judged[0].target.0;
            if step.kubelet >= target && step.mem_available.is_none_or(|mem_available| mem_available >= target) {
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
            if plan.judged.iter().any(|judged| judged.case != Case::Neither) {
                last_crossed = Some(plan.made);
            }
            let expected = last_crossed
                .is_some_and(|last| last == plan.made || plan.made.since(last) < config.pressure_transition);
            assert_eq!(plan.conditions.memory_pressure, expected);
        });
    }

    #[test]
    fn hard_is_not_later_for_a_soft_threshold_beside_it(
        hard in config(), steps in steps(), line in 0_u64..900, grace in 1_u64..60
    ) {
        let mut both = hard.clone();
        both.thresholds.push(soft(line, grace));
        let first_kill = |config: &Config| {
            let mut first = None;
            play(config, &steps, |_, plan| {
                let kills = plan.actions.iter().any(|action| match *action {
                    Action::Evict { threshold, .. } | Action::Hasten { threshold, .. } => threshold == 0,
                    Action::Reclaim { .. } => false,
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
