//! What was measured, as Markdown: a short table, and one of counts and one of figures for each cell.

use std::fmt::Write as _;

use super::cells::Cell;
use super::figures::{self, AWAKE, FIGURES, Figure, MEMORY_BACK, PAST, STOPPED, Unit};
use super::measured::{Failed, Measured, Round};
use super::rivals::{self, KERNEL};
use super::store::{Done, Kept};
use super::verdicts::{self, share};
use crate::claim::{self, Claim};
use crate::statistics::Summary;

/// The cell whose times are in the short table.
const SHORT: &str = "anon";
/// What the short table has of it.
const SHORT_FIGURES: [Figure; 4] = [AWAKE, STOPPED, MEMORY_BACK, PAST];

const NOT_RUN: &str = "NOT RUN";
const LEGEND: &str = "Times are in ms from the crossing of the threshold, and sizes in MiB: the median [its 95 % interval], \
    the p99 of 100 rounds or more, and the most. A time is a number of instructions, 2 ns each, on one emulated \
    processor: compare rows of one cell. `-` is what was not seen in any round.";

/// A cell that was not measured, and why.
pub(super) struct Missing {
    pub(super) cell: Cell,
    pub(super) why: String,
}

/// All that is known of one kernel. `plots` is the folder of the plots, beside the text.
pub(super) fn whole(kernel: &str, done: &[Done], missing: &[Missing], claims: &[Claim], plots: &str) -> String {
    let mut text = format!("# Results of `cargo xtask bench` on Linux {kernel}\n\n{LEGEND}\n\n## In short\n\n");
    text.push_str(&short(done));
    let _ = writeln!(text, "\n## What has to hold\n\n{}", judged(claims));
    for Done { cell, kept, again } in done {
        let _ = writeln!(text, "## {}\n\nIn this cell {}.\n\n{}.\n", cell.name(), cell.what(), origin(kept));
        if let Some(why) = again {
            let _ = writeln!(text, "Measuring it again failed: {}.\n", one_line(why));
        }
        if super::plots::is_drawn(&kept.measured) {
            let _ = writeln!(text, "![each rival's rounds]({plots}/{}.svg)\n", cell.name());
        }
        if let Some(part) = kept.part() {
            let _ = writeln!(text, "A part: {}.\n", one_line(&part));
        }
        let _ = writeln!(text, "{}\n{}", counts(kept), times(&kept.measured));
        for Round { rival, number, oom_kills, .. } in kept.measured.rounds.iter().filter(|round| round.panicked) {
            let _ = writeln!(
                text,
                "- The kernel gave up: round against {rival}, number {}: the OOM killer had killed {oom_kills} processes, \
                 and found no other one.",
                number + 1
            );
        }
        for Failed { rival, number, has_begun, why } in &kept.measured.failed {
            let of = rival.as_ref().map_or("bare kill".into(), |rival| format!("round against {rival}"));
            let when = if *has_begun { "" } else { " before the workload grew" };
            let _ = writeln!(text, "- Failed{when}: {of}, number {}: {}", number + 1, one_line(why));
        }
        if !text.ends_with("\n\n") {
            text.push('\n');
        }
    }
    if !missing.is_empty() {
        text.push_str("## What was not measured\n\n| cell | | why |\n|---|---|---|\n");
        for Missing { cell, why } in missing {
            let _ = writeln!(text, "| {} | {NOT_RUN} | {} |", cell.name(), one_line(why));
        }
    }
    text.trim_end().to_owned() + "\n"
}

/// A reason as it can be a cell of a table.
pub(super) fn one_line(why: &str) -> String {
    why.replace(['|', '\n'], "/")
}

/// The table that may be read alone: counts over all cells, and times of one.
pub(super) fn short(done: &[Done]) -> String {
    let timed = done.iter().find(|one| one.cell.name() == SHORT);
    let mut text = match timed {
        Some(Done { cell, kept, .. }) => format!("Times: {}. {}.\n\n", cell.what(), origin(kept)),
        None => format!("Times: {NOT_RUN}.\n\n"),
    };
    let figures = SHORT_FIGURES.map(|figure| format!("{}, {}", figure.name, figure.unit.name()));
    let mut heads = vec![String::new(), "races lost".into(), "wrong victims".into(), "needless kills".into()];
    heads.extend(figures);
    text.push_str(&head(&heads));
    for rival in rivals::names() {
        let (enough, grown): (Vec<&Done>, Vec<&Done>) = done.iter().partition(|one| one.cell.is_enough());
        let all: Vec<&Done> = done.iter().collect();
        let mut cells = vec![
            rival.to_owned(),
            of_rounds(&grown, rival, Round::is_lost),
            of_rounds(&all, rival, Round::has_wrong_victim),
            of_rounds(&enough, rival, Round::has_victim),
        ];
        let summary = |figure: &Figure| figure.summary(&timed?.kept.measured, rival);
        let has_rounds = timed.is_some_and(|one| one.kept.measured.of(rival).next().is_some());
        let none = if has_rounds { "-" } else { NOT_RUN };
        let median = |figure: &Figure| summary(figure).map_or(none.into(), |summary| figure.unit.median(&summary));
        cells.extend(SHORT_FIGURES.iter().map(median));
        text.push_str(&row(&cells));
    }
    text
}

/// The claims as a list, and what is not claimed for want of cells.
pub(super) fn judged(claims: &[Claim]) -> String {
    claim::list(claims, &verdicts::not_run(claims))
}

/// Where figures are from.
fn origin(kept: &Kept) -> String {
    let Measured { kernel, page_bytes, memory_bytes, .. } = &kept.measured;
    format!(
        "Linux {kernel}, {} MiB, pages of {page_bytes} bytes; {}, revision {}, seed {}",
        memory_bytes >> 20,
        kept.date,
        kept.revision,
        kept.seed
    )
}

/// How often something was seen in the rounds against a rival in these cells.
fn of_rounds(done: &[&Done], rival: &str, is_seen: fn(&Round) -> bool) -> String {
    let rounds = || done.iter().flat_map(|one| one.kept.measured.of(rival));
    match rounds().count() {
        0 => NOT_RUN.into(),
        n => share(rounds().filter(|round| is_seen(round)).count(), n),
    }
}

/// What was killed in one cell, and by what.
fn counts(kept: &Kept) -> String {
    let measured = &kept.measured;
    let heads = ["", "version", "rounds", "killed alone", "OOM killer killed", "wrong victims", "`explain` was right"];
    let mut text = head(&heads.map(str::to_owned));
    for rival in rivals::names() {
        let rounds = || measured.of(rival);
        let n = rounds().count();
        let version = measured.versions.get(package(rival)).map_or("-", |version| &version[..]);
        if n == 0 {
            text.push_str(&row(&[rival, version, NOT_RUN, "-", "-", "-", "-"].map(str::to_owned)));
            continue;
        }
        let seen = |is_seen: fn(&Round) -> bool| share(rounds().filter(|round| is_seen(round)).count(), n);
        let said = rounds().filter_map(|round| round.predicted);
        let right = match said.clone().count() {
            0 => "-".into(),
            all => format!("{} of {all}", said.filter(|right| *right).count()),
        };
        let by_itself = format!("{} of {n}", rounds().filter(|round| round.has_acted()).count());
        let by_itself = if rival == KERNEL { "-".into() } else { by_itself };
        let (lost, wrong) = (seen(Round::is_lost), seen(Round::has_wrong_victim));
        let planned = kept.plan.get(rival).map_or(n, |planned| *planned as usize);
        let n = if n < planned { format!("{n} of {planned}") } else { n.to_string() };
        text.push_str(&row(&[rival.into(), version.into(), n, by_itself, lost, wrong, right]));
    }
    text
}

/// The name that versions have for this rival.
fn package(rival: &str) -> &str {
    if rival.starts_with("plimsoll") { "plimsoll" } else { rival }
}

/// All figures of one cell.
fn times(measured: &Measured) -> String {
    let mut heads = vec![String::new()];
    heads.extend(FIGURES.map(|figure| format!("{}, {}", figure.name, figure.unit.name())));
    let mut text = head(&heads);
    for rival in rivals::names() {
        let none = if measured.of(rival).next().is_some() { "-" } else { NOT_RUN };
        let cell = |figure: &Figure| {
            let found = figure.summary(measured, rival);
            found.map_or(none.into(), |found| of_all(figure.unit, &found, measured.of(rival).count()))
        };
        text.push_str(&row(&[rival.to_owned()].into_iter().chain(FIGURES.iter().map(cell)).collect::<Vec<_>>()));
    }
    let back = figures::bare(measured).map(|found| of_all(MEMORY_BACK.unit, &found, measured.bare_kills.len()));
    if let Some(back) = back {
        let of = |figure: &Figure| if figure.name == MEMORY_BACK.name { back.clone() } else { "-".into() };
        text.push_str(&row(&["a bare kill".into()].into_iter().chain(FIGURES.iter().map(of)).collect::<Vec<_>>()));
    }
    text
}

/// A summary in full, with its number of values where not every round has one.
fn of_all(unit: Unit, summary: &Summary, rounds: usize) -> String {
    let p99 = summary.p99.map(|p99| format!(", p99 {}", unit.text(p99))).unwrap_or_default();
    let part = if summary.n < rounds { format!(" in {} of {rounds}", summary.n) } else { String::new() };
    format!("{}{p99}, most {}{part}", unit.median(summary), unit.text(summary.most))
}

pub(super) fn head(cells: &[String]) -> String {
    row(cells) + &row(&vec!["---".into(); cells.len()])
}

pub(super) fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::super::{cells, sample};
    use super::*;

    fn line<'a>(text: &'a str, start: &str) -> &'a str {
        text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("no {start} in {text}"))
    }

    #[test]
    fn the_short_table_has_every_rival_and_says_where_it_is_from() {
        let text = short(&[sample()]);
        assert!(text.starts_with(
            "Times: one process fills anonymous memory as fast as it can, without swap, 100 MiB of room. Linux 6.12.0-made-up, \
             967 MiB, pages of 4096 bytes; 2026-01-02, revision abc, seed 1.\n"
        ));
        assert_eq!(
            line(&text, "| plimsoll-ebpf |"),
            "| plimsoll-ebpf | 0 of 6 (at most 39.3 %) | 0 of 6 (at most 39.3 %) | NOT RUN | 0.65 [0.40, 0.90] | \
             2.50 [2.00, 3.00] | 40.5 [38.0, 43.0] | 0.75 [0.50, 1.00] |"
        );
        assert_eq!(line(&text, "| nohang |"), "| nohang |".to_owned() + &" NOT RUN |".repeat(7));
        assert_eq!(text.lines().filter(|line| line.starts_with("| ")).count(), 2 + rivals::names().len());
        assert!(short(&[]).starts_with("Times: NOT RUN.\n"));
    }

    #[test]
    fn a_cell_has_what_was_killed_by_what_and_how_long_it_took() {
        let text = counts(&sample().kept);
        let lost = "6 of 6";
        assert_eq!(
            line(&text, "| oom-killer |"),
            format!("| oom-killer | - | 6 | - | {lost} | 1 of 6 (at most 58.2 %) | 5 of 6 |")
        );
        let earlyoom = "| earlyoom | 1.8.2-1 | 6 | 3 of 6 | 3 of 6 (at most 84.7 %) | 0 of 6 (at most 39.3 %) | - |";
        assert_eq!(line(&text, "| earlyoom |"), earlyoom);
        assert_eq!(line(&text, "| nohang |"), "| nohang | 0.2.0-1 | NOT RUN | - | - | - | - |");
        let text = times(&sample().kept.measured);
        assert!(line(&text, "| earlyoom |").starts_with("| earlyoom | - | - | 205 [155, 255], most 255 | "), "{text}");
        assert_eq!(
            line(&text, "| a bare kill |"),
            "| a bare kill | - | - | - | 30.0 [29.0, 31.0], most 31.0 | - | - |"
        );
    }

    #[test]
    fn a_cell_that_is_a_part_says_how_much_of_it_there_is_and_what_failed() {
        let mut done = sample();
        done.kept.measured.rounds.retain(|round| round.rival != "earlyoom" || round.number < 4);
        let (rival, why) = (Some("earlyoom".into()), "it\nbroke".into());
        done.kept.measured.failed.push(Failed { rival, number: 4, has_begun: false, why });
        let text = whole("6.12", &[done, sample()], &[], &[], "6.12");
        assert!(line(&text, "| earlyoom | 1.8.2-1 |").starts_with("| earlyoom | 1.8.2-1 | 4 of 6 | "), "{text}");
        assert_eq!(line(&text, "A part"), "A part: 22 of 24 rounds: time was over, and 1 failed.");
        let failed = "- Failed before the workload grew: round against earlyoom, number 5: it/broke";
        assert_eq!(line(&text, "- Failed"), failed);
        assert!(text.contains(&format!("{failed}\n\n## ")), "{text}");
    }

    #[test]
    fn a_round_in_which_the_kernel_gave_up_is_said_and_counts_as_lost() {
        let mut done = sample();
        let log = "Killed process 7 (hog)\nKilled process 8 (sh)\n".to_owned();
        let last = done.kept.measured.rounds.iter_mut().find(|round| round.rival == "earlyoom").expect("a round");
        *last = Round::of_panic("earlyoom".into(), 0, 1, log);
        let text = whole("6.12", &[done], &[], &[], "6.12");
        assert_eq!(
            line(&text, "- The kernel"),
            "- The kernel gave up: round against earlyoom, number 1: the OOM killer had killed 2 processes, and found no \
             other one."
        );
        let earlyoom = line(&text, "| earlyoom | 1.8.2-1 |");
        assert!(earlyoom.contains(" | 1 of 6 (at most 58.2 %) |"), "{earlyoom}");
    }

    #[test]
    fn what_is_in_some_rounds_alone_and_a_p99_are_said() {
        let summary = Summary {
            n: 100,
            median: 1_000_000,
            interval: None,
            p99: Some(2_000_000),
            p99_interval: None,
            most: 3_000_000,
        };
        assert_eq!(of_all(Unit::Milliseconds, &summary, 120), "1.00, p99 2.00, most 3.00 in 100 of 120");
        assert_eq!(of_all(Unit::Milliseconds, &Summary { p99: None, ..summary }, 100), "1.00, most 3.00");
    }

    #[test]
    fn the_whole_says_what_does_not_hold_and_what_was_not_run() {
        let claims = [Claim { what: "no race is lost", found: "1 of 20".into(), holds: Some(false) }];
        let missing = cells::all().into_iter().filter(|cell| cell.name() == "tmpfs-zram");
        let missing: Vec<Missing> =
            missing.map(|cell| Missing { cell, why: "the guest ended with 1: a | b".into() }).collect();
        let text = whole("6.12", &[sample()], &missing, &claims, "6.12");
        for expected in [
            "# Results of `cargo xtask bench` on Linux 6.12\n",
            "\n- DOES NOT HOLD: no race is lost: 1 of 20\n- NOT RUN: no wrong victim\n",
            "\n## anon\n\nIn this cell one process fills",
            "; 2026-01-02, revision abc, seed 1.\n\n![each rival's rounds](6.12/anon.svg)\n\n| ",
            "\n| tmpfs-zram | NOT RUN | the guest ended with 1: a / b |\n",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert!(!whole("6.12", &[], &[], &[], "6.12").contains("not measured"));
    }
}
