//! What has to hold of all cells that were measured.

use std::collections::BTreeSet;

use super::cells::Cell;
use super::figures::{MEMORY_BACK, bare};
use super::measured::{Failed, Round};
use super::rivals::{self, BRAKE, EBPF, JUDGED, KERNEL};
use super::store::Done;
use crate::claim::{self, Claim};
use crate::revision;
use crate::statistics::{Order, Ratio, Summary, share_at_most};

/// How many times as long as after a bare kill it may take until memory is back.
const BARE_KILLS: f64 = 1.5;

const RACES: &str = "no race is lost";
const WRONG: &str = "no wrong victim";
const NEEDLESS: &str = "no needless kill";
const FIRST: &str = "first or tied with memory back";
const BARE: &str = "memory back beside a bare kill";
/// All that is judged.
const ALL: [&str; 5] = [RACES, WRONG, NEEDLESS, FIRST, BARE];

/// What has to hold in all of these cells, as far as it was measured: where one is missing or is a part, or a round of those
/// that are judged was not measured, it does not hold yet.
pub(super) fn claims(done: &[Done], cells: &[Cell]) -> Vec<Claim> {
    let runs_out: fn(&Cell) -> bool = |cell| !cell.is_enough();
    let claims = [
        (never(RACES, done, can_be_lost, Round::is_lost), runs_out),
        (never(WRONG, done, |_| true, Round::has_wrong_victim), |_| true),
        (never(NEEDLESS, done, |one| one.cell.is_enough(), Round::has_victim), Cell::is_enough),
        (in_every_cell(FIRST, done, behind), runs_out),
        (in_every_cell(BARE, done, slower), runs_out),
    ];
    claims.into_iter().filter_map(|(claim, is_about)| Some(so_far(claim?, done, cells, is_about))).collect()
}

/// The claim, undecided where it holds so far and not all is measured, or not of the same sources. A round that failed
/// before the workload grew might have shown nothing, and was played again.
fn so_far(claim: Claim, done: &[Done], cells: &[Cell], is_about: fn(&Cell) -> bool) -> Claim {
    let cells = || cells.iter().filter(|cell| is_about(cell));
    let of = |cell: &Cell| done.iter().find(|one| one.cell == *cell);
    let missing = cells().filter(|cell| of(cell).is_none_or(|one| one.kept.part().is_some())).count();
    let failed = cells().filter_map(of).flat_map(|one| &one.kept.measured.failed);
    let is_judged = |one: &&Failed| one.rival.as_deref().is_some_and(|rival| JUDGED.contains(&rival));
    let failed = failed.filter(is_judged).filter(|one| one.has_begun).count();
    let revisions = cells().filter_map(of).map(|one| &one.kept.revision[..]).collect::<BTreeSet<_>>();
    let have_changes = revisions.iter().any(|revision| !revision::is_same(revision, revision));
    let all = cells().count();
    let left = [
        (missing > 0).then(|| format!("{missing} of {all} cells are not measured, or in part")),
        (failed > 0).then(|| format!("{failed} rounds failed")),
        (revisions.len() > 1).then(|| format!("cells are of {} revisions", revisions.len())),
        have_changes.then(|| "cells are of sources that no commit has".to_owned()),
    ];
    let left = left.into_iter().flatten().collect::<Vec<_>>();
    if left.is_empty() {
        return claim;
    }
    Claim { found: format!("{}; {}", claim.found, left.join("; ")), holds: claim.holds.filter(|holds| !holds), ..claim }
}

/// What is not judged by these claims.
pub(super) fn not_run(claims: &[Claim]) -> Vec<&'static str> {
    ALL.into_iter().filter(|what| claims.iter().all(|claim| claim.what != *what)).collect()
}

/// The fewest rounds of which a share is given.
const SHARES: usize = 5;

/// `seen` of `n`, and the bound of the share where that is not all.
pub(super) fn share(seen: usize, n: usize) -> String {
    let bound = share_at_most(seen, n)
        .filter(|_| seen < n && n >= SHARES)
        .map(|share| format!(" (at most {:.1} %)", share * 100.0));
    format!("{seen} of {n}{}", bound.unwrap_or_default())
}

/// Whether memory runs out in it and the OOM killer then kills, by the rounds of the kernel alone, where there are any, or
/// has killed in another one. Where no huge page is left, the kernel ends the process that asks for one (SIGBUS), and the OOM
/// killer is not called.
pub(super) fn can_be_lost(one: &Done) -> bool {
    let is_without_alone = one.kept.measured.of(KERNEL).next().is_none();
    !one.cell.is_enough() && (is_without_alone || one.kept.measured.rounds.iter().any(Round::is_lost))
}

/// That something is in no round of those that are judged, in the cells that it is about. Its bound is of each cell: how
/// probable it is may differ between them.
fn never(what: &'static str, done: &[Done], is_about: fn(&Done) -> bool, is_seen: fn(&Round) -> bool) -> Option<Claim> {
    let (mut found, mut broken, mut holds, mut each) = (Vec::new(), Vec::new(), true, BTreeSet::new());
    for rival in JUDGED {
        let (mut seen, mut all) = (0, 0);
        for one in done.iter().filter(|one| is_about(one)) {
            let here = one.kept.measured.of(rival).filter(|round| is_seen(round)).count();
            if here > 0 {
                broken.push(format!("{here} in {}", one.cell.name()));
            }
            let rounds = one.kept.measured.of(rival).count();
            each.extend((rounds > 0).then_some((rounds, here)));
            seen += here;
            all += rounds;
        }
        holds &= seen == 0;
        if all > 0 {
            found.push(format!("{seen} of {all} rounds against {rival}"));
        }
    }
    let each: Vec<String> = each.into_iter().map(|(rounds, here)| share(here, rounds)).collect();
    let each = if each.is_empty() { String::new() } else { format!("in each cell {}", each.join(" or ")) };
    let found = [found.join(", "), each, broken.join(", ")].into_iter().filter(|part| !part.is_empty());
    let found = found.collect::<Vec<_>>().join("; ");
    (!found.is_empty()).then_some(Claim { what, found, holds: Some(holds) })
}

/// What comes of one cell: whether it holds, which is absent where that is undecided, and what was found. Absent where
/// there is nothing to judge.
type Judged = Option<(Option<bool>, String)>;

/// That something holds in each cell in which memory runs out and which eBPF met.
fn in_every_cell(what: &'static str, done: &[Done], judge: fn(&Done) -> Judged) -> Option<Claim> {
    // By medians of a part nothing is decided.
    let judge = |one: &Done| judge(one).map(|(holds, found)| (holds.filter(|_| one.kept.part().is_none()), found));
    let judged = done.iter().filter(|one| !one.cell.is_enough()).filter_map(judge).collect::<Vec<_>>();
    let of = |verdict| judged.iter().filter(move |(holds, _)| *holds == verdict).map(|(_, found)| &found[..]);
    let list = |before: &str, verdict| {
        let found = of(verdict).collect::<Vec<_>>().join("; ");
        if found.is_empty() { found } else { format!("{before}{found}") }
    };
    let held = of(Some(true)).count();
    let holds = claim::together(judged.iter().map(|(holds, _)| *holds));
    let lists = list(": ", Some(true)) + &list("; not in ", Some(false)) + &list("; undecided in ", None);
    let found = format!("in {held} of {} cells{lists}", judged.len());
    (!judged.is_empty()).then_some(Claim { what, found, holds })
}

/// How long memory takes to be back with eBPF; a verdict where it was not back after a round. Those in which the growth ended
/// above the threshold, and nothing was killed, are left out, and a cell that has no others decides nothing.
fn own(done: &Done) -> Option<Result<Summary, (Option<bool>, String)>> {
    let (name, played) = (done.cell.name(), done.kept.measured.of(EBPF).count());
    let rounds = || done.kept.measured.of(EBPF).filter(|round| round.memory_back_ns().is_some() || round.has_victim());
    let all = rounds().count();
    let summary = Summary::of(rounds().filter_map(|round| round.crossed_to_memory_back_ns));
    let n = summary.as_ref().map_or(0, |summary| summary.n);
    let missing = || match all {
        0 => (None, format!("{name} (the threshold was crossed in 0 of {played} rounds)")),
        _ => (Some(false), format!("{name} (memory was back in {n} of {all} rounds)")),
    };
    (played > 0).then(|| summary.filter(|summary| summary.n == all).ok_or_else(missing))
}

/// How long memory took to be back in the rounds in which a rival acted, which may be never: no time where it acted before the
/// crossing.
fn acted(done: &Done, rival: &str) -> Option<Summary> {
    let acted = done.kept.measured.of(rival).filter(|round| round.has_acted());
    Summary::of(acted.filter_map(|round| if round.is_before_crossing() { Some(0) } else { (MEMORY_BACK.of)(round) }))
}

/// Whether memory is back first, or tied, beside each rival that acted, and which of them is nearest.
fn behind(done: &Done) -> Judged {
    let own = match own(done)? {
        Ok(own) => own,
        Err(judged) => return Some(judged),
    };
    let text = |summary: &Summary, rival| summary.text(MEMORY_BACK.text(&done.kept.measured, rival));
    let others = rivals::names().into_iter().filter(|name| ![EBPF, BRAKE].contains(name));
    let others: Vec<_> = others.filter_map(|name| Some((name, acted(done, name)?))).collect();
    let named = |(name, other): &(&'static str, Summary)| format!("{name} {} (n = {})", text(other, name), other.n);
    let of = |place| {
        let those = others.iter().filter(|(_, other)| own.order(other) == place).map(named);
        Some(those.collect::<Vec<_>>().join(" and ")).filter(|those| !those.is_empty())
    };
    let (sooner, unknown, tied) = (of(Some(Order::Behind)), of(None), of(Some(Order::Tied)));
    let nearest = others.iter().min_by_key(|(_, other)| other.median).map(named);
    let holds = if sooner.is_some() { Some(false) } else { unknown.is_none().then_some(true) };
    let place = [("behind", sooner), ("undecided beside", unknown), ("tied with", tied)];
    let place: Vec<String> =
        place.into_iter().filter_map(|(place, those)| Some(format!("{place} {}", those?))).collect();
    let place = if place.is_empty() {
        format!("first, {}", nearest.map_or("no rival acted".into(), |nearest| format!("before {nearest}")))
    } else {
        place.join(", ")
    };
    Some((holds, format!("{} {} ms, {place}", done.cell.name(), text(&own, EBPF))))
}

/// How many times as long it takes as after a bare kill.
fn slower(done: &Done) -> Judged {
    let own = match own(done)? {
        Ok(own) => own,
        Err(judged) => return Some(judged),
    };
    let Some(bare) = bare(&done.kept.measured) else {
        return Some((None, format!("{} (no bare kill was measured)", done.cell.name())));
    };
    let ratio = Ratio::of(&own, &bare);
    let interval = ratio.interval.map(|(low, high)| format!(" [{low:.2}, {high:.2}]")).unwrap_or_default();
    Some((ratio.is_at_most(BARE_KILLS), format!("{} {:.2}{interval} times", done.cell.name(), ratio.value)))
}

#[cfg(test)]
mod tests {
    use super::super::measured::{Failed, KilledBy};
    use super::super::{cells, sample};
    use super::*;
    use crate::claim::broken;

    /// The sample, and the same as a cell in which nothing may be killed.
    fn both(change: &dyn Fn(&mut Round)) -> Vec<Done> {
        let (mut grown, mut enough) = (sample(), sample());
        enough.cell = cells::all().into_iter().find(Cell::is_enough).expect("a cell");
        for round in &mut enough.kept.measured.rounds {
            (round.killed_by, round.oom_kills) = (None, 0);
            round.victims.clear();
        }
        for one in [&mut grown, &mut enough] {
            one.kept.measured.rounds.iter_mut().for_each(change);
        }
        vec![grown, enough]
    }

    /// What holds of these cells alone.
    fn claims(done: &[Done]) -> Vec<Claim> {
        super::claims(done, &done.iter().map(|one| one.cell.clone()).collect::<Vec<_>>())
    }

    fn broken_by(change: &dyn Fn(&mut Round)) -> Vec<&'static str> {
        broken(&claims(&both(change)))
    }

    fn is(round: &Round, rival: &str) -> bool {
        round.rival == rival && round.number == 1
    }

    #[test]
    fn each_claim_can_break_and_only_by_what_it_is_about() {
        assert_eq!(broken_by(&|_| ()), [""; 0]);
        for rival in JUDGED {
            assert_eq!(broken_by(&|round| round.oom_kills += u64::from(is(round, rival))), [RACES, NEEDLESS]);
            let wrong = |round: &mut Round| {
                if is(round, rival) {
                    round.wrong_victims.push("survivor".into());
                }
            };
            assert_eq!(broken_by(&wrong), [WRONG]);
            let killed = |round: &mut Round| {
                if is(round, rival) {
                    round.killed_by = Some(KilledBy::Rival);
                }
            };
            assert_eq!(broken_by(&killed), [NEEDLESS]);
        }
        let others = |round: &mut Round| {
            if round.rival == "earlyoom" {
                round.oom_kills += 1;
                round.wrong_victims.push("survivor".into());
            }
        };
        assert_eq!(broken_by(&others), [""; 0]);
    }

    #[test]
    fn a_round_in_which_nothing_is_crossed_and_nothing_killed_decides_nothing() {
        let of = |crossed: bool, killed: bool| {
            let claims = claims(&both(&|round| {
                if is(round, EBPF) {
                    round.past_threshold_bytes = crossed.then_some(1);
                    (round.crossed_to_memory_back_ns, round.killed_by) = (None, killed.then_some(KilledBy::Rival));
                    round.victims.clear();
                }
            }));
            claims.iter().find(|claim| claim.what == FIRST).and_then(|claim| claim.holds)
        };
        assert_eq!(of(false, false), Some(true));
        assert_eq!(of(true, false), Some(false), "memory was never back");
        assert_eq!(of(false, true), Some(false), "it was killed above the threshold");
    }

    #[test]
    fn a_cell_in_which_nothing_is_crossed_decides_nothing() {
        let claims = claims(&both(&|round| {
            if round.rival == EBPF {
                (round.past_threshold_bytes, round.crossed_to_memory_back_ns, round.killed_by) = (None, None, None);
                round.victims.clear();
            }
        }));
        for what in [FIRST, BARE] {
            let claim = claims.iter().find(|claim| claim.what == what).expect("a claim");
            let expected = "in 0 of 1 cells; undecided in anon (the threshold was crossed in 0 of 6 rounds)";
            assert_eq!((claim.holds, &claim.found[..]), (None, expected));
        }
    }

    #[test]
    fn a_race_counts_where_the_kernel_alone_kills() {
        let found = |kills: bool, lost: u64| {
            let mut done = both(&|_| ());
            for round in &mut done[0].kept.measured.rounds {
                round.oom_kills = if is(round, EBPF) { lost } else { u64::from(kills && round.rival == KERNEL) };
            }
            claims(&done).into_iter().find(|claim| claim.what == RACES).map(|claim| claim.found)
        };
        assert!(found(true, 0).expect("a claim").starts_with("0 of 6 rounds"));
        assert_eq!(found(false, 0), None);
        assert!(found(false, 1).expect("a claim").starts_with("1 of 6 "), "what is lost counts in any case");
    }

    fn times(change: impl Fn(&Round) -> Option<u64>) -> Vec<&'static str> {
        broken_by(&|round| {
            if let Some(ms) = change(round) {
                round.crossed_to_memory_back_ns = Some(ms * 1_000_000);
            }
        })
    }

    #[test]
    fn a_rival_that_acted_may_be_tied_and_not_before() {
        // With eBPF it takes 38 to 43 ms.
        let earlyoom = |ms: u64| {
            broken_by(&|round| {
                if round.rival == "earlyoom" {
                    (round.killed_by, round.oom_kills) = (Some(KilledBy::Rival), 0);
                    round.crossed_to_memory_back_ns = Some(ms * 1_000_000);
                }
            })
        };
        assert_eq!((earlyoom(38), earlyoom(37)), (vec![], vec![FIRST]));
        assert_eq!(times(|round| (round.rival == BRAKE).then_some(1)), [""; 0]);
        // What did not act was not before.
        let idle = |round: &mut Round| {
            if round.rival == "earlyoom" {
                (round.killed_by, round.crossed_to_memory_back_ns) = (Some(KilledBy::OomKiller), Some(1));
            }
        };
        assert_eq!(broken_by(&idle), [""; 0]);
        // One that acted before the crossing was sooner than any.
        let early = |round: &mut Round| {
            if round.rival == "earlyoom" {
                (round.killed_by, round.oom_kills) = (Some(KilledBy::Rival), 0);
                (round.crossed_to_memory_back_ns, round.past_threshold_bytes) = (None, None);
            }
        };
        assert_eq!(broken_by(&early), [FIRST]);
        let gave_up = |round: &mut Round| {
            if round.rival == rivals::KERNEL {
                *round = Round::of_panic(round.rival.clone(), round.number, round.threshold_bytes, String::new());
            }
        };
        assert_eq!(broken_by(&gave_up), [""; 0], "a kernel that gave up was not sooner");
        // One round beside six decides nothing.
        let mut once = both(&|round| {
            if round.rival == "earlyoom" && round.number > 0 {
                (round.killed_by, round.oom_kills) = (Some(KilledBy::OomKiller), 1);
            } else if round.rival == "earlyoom" {
                (round.killed_by, round.crossed_to_memory_back_ns) = (Some(KilledBy::Rival), Some(1));
            }
        });
        let first = |done: &[Done]| claims(done).into_iter().find(|claim| claim.what == FIRST).expect("a claim").holds;
        assert_eq!(first(&once), None);
        once[0].kept.measured.rounds.retain(|round| round.rival != EBPF || round.number != 1);
        assert_eq!(first(&once), None, "of a part");
        let missing = |round: &mut Round| {
            if is(round, EBPF) {
                round.crossed_to_memory_back_ns = None;
            }
        };
        assert_eq!(broken_by(&missing), [FIRST, BARE]);
    }

    #[test]
    fn one_and_a_half_times_a_bare_kill_is_the_most_as_far_as_that_can_be_decided() {
        // A bare kill takes 29 to 31 ms.
        let found = |ms: u64| {
            let mut done = sample();
            for round in done.kept.measured.rounds.iter_mut().filter(|round| round.rival == EBPF) {
                round.crossed_to_memory_back_ns = Some(ms * 1_000_000);
            }
            let claim = claims(&[done]).into_iter().find(|claim| claim.what == BARE).expect("a claim");
            (claim.holds, claim.found)
        };
        assert_eq!(found(43), (Some(true), "in 1 of 1 cells: anon 1.43 [1.39, 1.48] times".into()));
        assert_eq!(found(45), (None, "in 0 of 1 cells; undecided in anon 1.50 [1.45, 1.55] times".into()));
        assert_eq!(found(47), (Some(false), "in 0 of 1 cells; not in anon 1.57 [1.52, 1.62] times".into()));
    }

    #[test]
    fn nothing_holds_that_is_measured_in_part() {
        let holds = |done: &[Done], cells: &[Cell]| {
            let claims = super::claims(done, cells);
            claims.iter().map(|claim| claim.holds).collect::<Vec<_>>()
        };
        let (all, done) = (cells::all(), both(&|_| ()));
        let own: Vec<Cell> = done.iter().map(|one| one.cell.clone()).collect();
        assert_eq!(holds(&done, &own), [Some(true); 5]);
        assert_eq!(holds(&done, &all), [None; 5], "cells are missing");
        let mut part = both(&|_| ());
        part[0].kept.measured.rounds.retain(|round| !is(round, "earlyoom"));
        let expected = [None, None, Some(true), None, None];
        assert_eq!(holds(&part, &own), expected, "of those that fill memory");
        let mut failed = both(&|_| ());
        let (rival, why) = (Some(EBPF.into()), "it broke".into());
        failed[0].kept.measured.failed.push(Failed { rival, number: 0, has_begun: true, why });
        assert_eq!(holds(&failed, &own), expected);
        failed[0].kept.measured.failed[0].has_begun = false;
        assert_eq!(holds(&failed, &own), [Some(true); 5], "nothing could be seen in it");
        let (rival, why) = (Some("earlyoom".into()), "it broke".into());
        failed[0].kept.measured.failed[0] = Failed { rival, number: 0, has_begun: true, why };
        assert_eq!(holds(&failed, &own), [Some(true); 5]);
        let mut older = both(&|_| ());
        older[1].kept.revision = "older".into();
        let expected = [Some(true), None, Some(true), Some(true), Some(true)];
        assert_eq!(holds(&older, &own), expected, "what is about both is of no sources as they are");
        let mut changed = both(&|_| ());
        for one in &mut changed {
            one.kept.revision.push_str(" with changes");
        }
        assert_eq!(holds(&changed, &own), [None; 5], "no commit has what was measured");
        let mut broken = both(&|round| round.oom_kills += u64::from(is(round, EBPF)));
        broken.pop();
        assert_eq!(holds(&broken, &all)[0], Some(false));
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        assert_eq!(not_run(&claims(&both(&|_| ()))), [""; 0]);
        assert_eq!(not_run(&claims(&[sample()])), [NEEDLESS]);
        assert_eq!(not_run(&claims(&[])), ALL);
        let mut without = sample();
        without.kept.measured.bare_kills.clear();
        let claims = claims(&[without]);
        assert_eq!(not_run(&claims), [NEEDLESS]);
        let bare = claims.iter().find(|claim| claim.what == BARE).expect("a claim");
        assert_eq!(
            (bare.holds, &bare.found[..]),
            (None, "in 0 of 1 cells; undecided in anon (no bare kill was measured)")
        );
    }

    #[test]
    fn what_was_found_has_its_bounds() {
        let claims = claims(&[sample()]);
        let found: Vec<&str> = claims.iter().map(|claim| &claim.found[..]).collect();
        let none = "0 of 6 rounds against plimsoll-ebpf, 0 of 6 rounds against plimsoll-ebpf-brake; in each cell 0 of 6 (at most \
                    39.3 %)";
        assert_eq!(
            found,
            [
                none,
                none,
                "in 1 of 1 cells: anon 40.5 [38.0, 43.0] ms, first, before earlyoom 235 (n = 3)",
                "in 1 of 1 cells: anon 1.35 [1.23, 1.48] times"
            ]
        );
        let mut more = both(&|_| ());
        more[1].kept.measured.rounds.retain(|round| round.rival != EBPF || round.number < 4);
        let needless = super::claims(&more, &[]).into_iter().find(|claim| claim.what == NEEDLESS).expect("a claim");
        assert!(needless.found.ends_with("; in each cell 0 of 4 or 0 of 6 (at most 39.3 %)"), "{}", needless.found);
    }

    #[test]
    fn few_rounds_in_which_a_rival_acted_decide_only_where_all_are_apart() {
        // With eBPF it takes 38 to 43 ms.
        let found = |times: &[Option<u64>]| {
            let mut done = sample();
            for round in done.kept.measured.rounds.iter_mut().filter(|round| round.rival == "earlyoom") {
                (round.killed_by, round.oom_kills) = (Some(KilledBy::OomKiller), 1);
                if let Some(ms) = times.get(round.number as usize) {
                    (round.killed_by, round.oom_kills) = (Some(KilledBy::Rival), 0);
                    round.crossed_to_memory_back_ns = ms.map(|ms| ms * 1_000_000);
                }
            }
            let claim = claims(&[done]).into_iter().find(|claim| claim.what == FIRST).expect("a claim");
            let (_, place) = claim.found.split_once(" ms, ").expect("its place");
            (claim.holds, place.to_owned())
        };
        assert_eq!(found(&[Some(1), Some(2)]), (Some(false), "behind earlyoom 1.50 (n = 2)".into()));
        assert_eq!(found(&[Some(1)]), (None, "undecided beside earlyoom 1.00 (n = 1)".into()));
        assert_eq!(found(&[Some(90)]), (None, "undecided beside earlyoom 90.0 (n = 1)".into()));
        assert_eq!(found(&[Some(40), Some(50)]), (None, "undecided beside earlyoom 45.0 (n = 2)".into()));
        assert_eq!(found(&[Some(90), None]), (Some(true), "first, before oom-killer 275 [250, 300] (n = 6)".into()));
        let tied = found(&[40; 6].map(Some));
        assert_eq!(tied, (Some(true), "tied with earlyoom 40.0 [40.0, 40.0] (n = 6)".into()));
    }
}
