//! What was measured, as Markdown: a short table, and one of counts and one of figures for each cell.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::cells::Cell;
use super::figures::{self, FIGURES, Figure, MEMORY_BACK, PAST, STOPPED, Unit, digits};
use super::measured::{Failed, Measured, Round};
use super::rivals::{self, KERNEL};
use super::store::{Done, Kept};
use super::verdicts::{self, share};
use crate::claim::{self, Claim};
use crate::statistics::{NEVER, Summary};

/// The cell whose times are in the short table.
const SHORT: &str = "anon";
/// What the short table has of it.
const SHORT_FIGURES: [Figure; 3] = [STOPPED, MEMORY_BACK, PAST];

const NOT_RUN: &str = "NOT RUN";
const BARE_KILL: &str = "a bare kill";
const LEGEND: &str = "Times are in ms from the crossing of the threshold, and sizes in MiB: the median [its 95 % interval within \
    these boots], the p99 of 100 rounds or more (which has no bound below 368 rounds), and the most. One processor is emulated: \
    what works is in instructions of 2 ns each, and what sleeps is in the time of its timers, so that rows of one cell can be \
    compared. A round ends after 45 s, of huge pages after 20, and where nothing may be killed after 35: `> 45 s (5 of 6)` is what \
    had not happened by then in 5 of 6 rounds, which count as later than any in medians. `≤` is before a bound: the workload \
    notes each piece that it has filled, of 64 KiB, of sockets and slabs 208 KiB, of huge pages 2 MiB, and at most one piece of \
    each process was filled after the crossing. `explain` was right where it had named the cgroup of the OOM killer's first \
    victim. `-` is what was not seen in any round.";

/// A cell that was not measured, and why.
pub(super) struct Missing {
    pub(super) cell: Cell,
    pub(super) why: String,
}

/// All that is known of one kernel, `short` the short table. Plots are in the folder with the kernel's name, beside the text.
pub(super) fn whole(kernel: &str, short: &str, done: &[Done], missing: &[Missing], claims: &[Claim]) -> String {
    let mut text = format!("# Results of `cargo xtask bench` on Linux {kernel}\n\n{LEGEND}\n\n## In short\n\n{short}");
    let _ = writeln!(text, "\n## What has to hold\n\n{}", judged(claims));
    for Done { cell, kept, again } in done {
        let _ = writeln!(
            text,
            "## {}\n\nIn this cell {}.\n\n{}.\n",
            cell.name(),
            filled(cell, &kept.measured),
            origin(kept)
        );
        if let Some(why) = again {
            let _ = writeln!(text, "Measuring it again failed: {}.\n", one_line(why));
        }
        if super::plots::is_drawn(&kept.measured) {
            let _ = writeln!(text, "![each rival's rounds]({kernel}/{}.svg)\n", cell.name());
        }
        if let Some(part) = kept.part() {
            let _ = writeln!(text, "A part: {}.\n", one_line(&part));
        }
        let _ = writeln!(text, "{}\n{}", counts(kept), times(&kept.measured));
        for rival in rivals::names() {
            let (died, n) =
                (kept.measured.of(rival).filter(|round| round.rival_died).count(), kept.measured.of(rival).count());
            if died > 0 {
                let _ = writeln!(text, "- {rival} itself lost a process in {died} of {n} rounds.");
            }
        }
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

/// What happens in a cell, and how fast.
fn filled(cell: &Cell, measured: &Measured) -> String {
    let rate =
        |rate: Summary| format!("; at the crossing at {} MiB/s (median)", digits(Unit::Mebibytes.of(rate.median)));
    cell.what() + &figures::rate(measured).map(rate).unwrap_or_default()
}

/// The table that may be read alone: counts over all cells, and times of one; and how many of the cells are measured.
pub(super) fn short(done: &[Done], cells: usize, claims: &[Claim]) -> String {
    let timed = done.iter().find(|one| one.cell.name() == SHORT);
    let mut text = match timed {
        Some(Done { cell, kept, .. }) => format!("Times: {}. {}.\n\n", cell.what(), origin(kept)),
        None => format!("Times: {NOT_RUN}.\n\n"),
    };
    let figures = SHORT_FIGURES.map(|figure| format!("{}, {}", figure.name, figure.unit.name()));
    let heads = ["", "races lost", "its own wrong victims", "the OOM killer's wrong victims", "needless kills"];
    let heads: Vec<String> = heads.map(str::to_owned).into_iter().chain(figures).collect();
    text.push_str(&head(&heads));
    for rival in rivals::names() {
        let enough: Vec<&Done> = done.iter().filter(|one| one.cell.is_enough()).collect();
        let races: Vec<&Done> = done.iter().filter(|one| verdicts::can_be_lost(one)).collect();
        let all: Vec<&Done> = done.iter().collect();
        let mut cells = vec![
            rival.to_owned(),
            of_rounds(&races, rival, Round::is_lost),
            if rival == KERNEL { "-".into() } else { of_rounds(&all, rival, Round::has_wrong_victim_of_rival) },
            of_rounds(&all, rival, Round::has_wrong_victim_of_oom_killer),
            of_rounds(&enough, rival, Round::has_victim),
        ];
        let median = |figure: &Figure| {
            let Some(timed) = timed.filter(|one| one.kept.measured.of(rival).next().is_some()) else {
                return NOT_RUN.into();
            };
            let measured = &timed.kept.measured;
            let summary = figure.summary(measured, rival);
            summary.map_or("-".into(), |summary| with_most(figure.text(measured, rival), &summary))
        };
        cells.extend(SHORT_FIGURES.iter().map(median));
        text.push_str(&row(&cells));
    }
    if let Some(back) = timed.and_then(|one| figures::bare(&one.kept.measured)) {
        let of = |figure: &Figure| match figure.name {
            name if name == MEMORY_BACK.name => with_most(|value| figure.unit.text(value), &back),
            _ => "-".into(),
        };
        let cells = [BARE_KILL, "-", "-", "-", "-"].map(str::to_owned).into_iter();
        text.push_str(&row(&cells.chain(SHORT_FIGURES.iter().map(of)).collect::<Vec<_>>()));
    }
    text + "\n" + &status(done, cells, claims)
}

/// How much is measured, of which sources, and what comes of it, in a line.
fn status(done: &[Done], cells: usize, claims: &[Claim]) -> String {
    let parts = done.iter().filter(|one| one.kept.part().is_some()).count();
    let in_part = if parts > 0 { format!(", {parts} of these in part") } else { String::new() };
    let revisions: Vec<&str> =
        done.iter().map(|one| &one.kept.revision[..]).collect::<BTreeSet<_>>().into_iter().collect();
    let of = match revisions[..] {
        [] => String::new(),
        [one] => format!(", revision {one}"),
        _ => format!(", revisions {}", revisions.join(", ")),
    };
    let judged = claims.iter().map(|claim| format!("{}: {}", claim.what, claim.verdict()));
    let not_run = verdicts::not_run(claims).into_iter().map(|what| format!("{what}: {NOT_RUN}"));
    let verdicts = judged.chain(not_run).collect::<Vec<_>>().join("; ");
    format!("Status: {} of {cells} cells measured{in_part}{of}. {verdicts}.\n", done.len())
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

/// How often something was seen in the rounds against a rival in these cells, and in how many of them. It has no bound: how
/// probable it is differs from cell to cell, and there are as many rounds of each as were planned.
fn of_rounds(done: &[&Done], rival: &str, is_seen: fn(&Round) -> bool) -> String {
    let rounds = |one: &&Done| one.kept.measured.of(rival).count();
    let seen = |one: &&Done| one.kept.measured.of(rival).filter(|round| is_seen(round)).count();
    let cells = |count: &dyn Fn(&&Done) -> usize| done.iter().filter(|one| count(one) > 0).count();
    match (done.iter().map(seen).sum::<usize>(), done.iter().map(rounds).sum::<usize>()) {
        (_, 0) => NOT_RUN.into(),
        (0, all) => format!("0 of {all}"),
        (found, all) => format!("{found} of {all}, in {} of {} cells", cells(&seen), cells(&rounds)),
    }
}

/// What was killed in one cell, and by what.
fn counts(kept: &Kept) -> String {
    let measured = &kept.measured;
    let heads = [
        "",
        "version",
        "rounds",
        "killed alone",
        "OOM killer killed",
        "its own wrong victims",
        "the OOM killer's",
        "`explain` was right",
    ];
    let mut text = head(&heads.map(str::to_owned));
    for rival in rivals::names() {
        let rounds = || measured.of(rival);
        let n = rounds().count();
        let version = measured.versions.get(package(rival)).map_or("-", |version| &version[..]);
        if n == 0 {
            text.push_str(&row(&[rival, version, NOT_RUN, "-", "-", "-", "-", "-"].map(str::to_owned)));
            continue;
        }
        let seen = |is_seen: fn(&Round) -> bool| share(rounds().filter(|round| is_seen(round)).count(), n);
        let said = rounds().filter_map(|round| round.predicted);
        let right = match said.clone().count() {
            0 => "-".into(),
            all => format!("{} of {all}", said.filter(|right| *right).count()),
        };
        let by_itself = format!("{} of {n}", rounds().filter(|round| round.has_acted()).count());
        let of_rival = seen(Round::has_wrong_victim_of_rival);
        // What the kernel alone does is the OOM killer's.
        let (by_itself, of_rival) = if rival == KERNEL { ("-".into(), "-".into()) } else { (by_itself, of_rival) };
        let (lost, of_oom_killer) = (seen(Round::is_lost), seen(Round::has_wrong_victim_of_oom_killer));
        let planned = kept.plan.get(rival).map_or(n, |planned| *planned as usize);
        let n = if n < planned { format!("{n} of {planned}") } else { n.to_string() };
        text.push_str(&row(&[rival.into(), version.into(), n, by_itself, lost, of_rival, of_oom_killer, right]));
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
            let never = measured.of(rival).filter_map(figure.of).filter(|value| *value == NEVER).count();
            let text = figure.text(measured, rival);
            found.map_or(none.into(), |found| of_all(text, &found, never, measured.of(rival).count()))
        };
        text.push_str(&row(&[rival.to_owned()].into_iter().chain(FIGURES.iter().map(cell)).collect::<Vec<_>>()));
    }
    let text_of = |value| MEMORY_BACK.unit.text(value);
    let back = figures::bare(measured).map(|found| of_all(text_of, &found, 0, measured.bare_kills.len()));
    if let Some(back) = back {
        let of = |figure: &Figure| if figure.name == MEMORY_BACK.name { back.clone() } else { "-".into() };
        text.push_str(&row(&[BARE_KILL.into()].into_iter().chain(FIGURES.iter().map(of)).collect::<Vec<_>>()));
    }
    text
}

/// A summary in full, with its number of values where not every round has one, and in how many it never happened.
fn of_all(text: impl Fn(u64) -> String, summary: &Summary, never: usize, rounds: usize) -> String {
    let Summary { n, p99, most, .. } = summary;
    let never_of = if never > 0 { format!(" ({never} of {n})") } else { String::new() };
    let part = if *n < rounds { format!(" in {n} of {rounds}") } else { String::new() };
    if never == *n {
        return text(*most) + &never_of + &part;
    }
    let p99 = p99.map(|p99| format!(", p99 {}", text(p99))).unwrap_or_default();
    format!("{}{p99}, most {}{never_of}{part}", summary.text(&text), text(*most))
}

/// The median with its interval, and the most.
fn with_most(text: impl Fn(u64) -> String, summary: &Summary) -> String {
    format!("{}, most {}", summary.text(&text), text(summary.most))
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
        let text = short(&[sample()], 28, &[]);
        assert!(text.starts_with(
            "Times: one process fills anonymous memory as fast as it can, without swap, 100 MiB of room. Linux 6.12.0-made-up, \
             967 MiB, pages of 4096 bytes; 2026-01-02, revision abc, seed 1.\n"
        ));
        let times = "2.50 [2.00, 3.00], most 3.00 | 40.5 [38.0, 43.0], most 43.0 | 0.75 [0.50, 1.00], most 1.00";
        assert_eq!(
            line(&text, "| plimsoll-ebpf |"),
            format!("| plimsoll-ebpf | 0 of 6 | 0 of 6 | 0 of 6 | NOT RUN | {times} |")
        );
        assert_eq!(line(&text, "| nohang |"), "| nohang |".to_owned() + &" NOT RUN |".repeat(7));
        let bare = "| a bare kill | - | - | - | - | - | 30.0 [29.0, 31.0], most 31.0 | - |";
        assert_eq!(line(&text, "| a bare kill |"), bare);
        assert_eq!(text.lines().filter(|line| line.starts_with("| ")).count(), 3 + rivals::names().len());
        assert!(
            line(&text, "| oom-killer |")
                .starts_with("| oom-killer | 6 of 6, in 1 of 1 cells | - | 1 of 6, in 1 of 1 cells | NOT RUN |")
        );
        let status =
            "Status: 1 of 28 cells measured, revision abc. no race is lost: NOT RUN; no wrong victim: NOT RUN; ";
        assert!(line(&text, "Status").starts_with(status), "{text}");
        let mut part = sample();
        (part.kept.revision, part.kept.ended) = ("abd".into(), Some("it broke".into()));
        part.kept.measured.rounds.pop();
        let claims = [Claim { what: "no race is lost", found: "1 of 20".into(), holds: Some(false) }];
        let text = short(&[sample(), part], 28, &claims);
        let status = "Status: 2 of 28 cells measured, 1 of these in part, revisions abc, abd. no race is lost: DOES NOT HOLD; \
                      no wrong victim: NOT RUN; ";
        assert!(line(&text, "Status").starts_with(status), "{text}");
        assert!(short(&[], 28, &[]).starts_with("Times: NOT RUN.\n"));
    }

    #[test]
    fn what_never_happened_counts_as_later_than_any() {
        let mut done = sample();
        for round in done.kept.measured.rounds.iter_mut().filter(|round| round.rival == "earlyoom" && round.number > 2)
        {
            (round.crossed_to_memory_back_ns, round.crossed_to_stopped_ns) = (None, None);
        }
        for round in done.kept.measured.rounds.iter_mut().filter(|round| round.rival == "oom-killer") {
            round.crossed_to_memory_back_ns = None;
        }
        let text = times(&done.kept.measured);
        assert!(line(&text, "| earlyoom |").contains(" | > 45 s [155, > 45 s], most > 45 s (3 of 6) | "), "{text}");
        assert!(line(&text, "| oom-killer |").contains(" | > 45 s (6 of 6) | "), "{text}");
        let short = short(&[done], 1, &[]);
        assert!(line(&short, "| earlyoom |").contains(" | > 45 s [155, > 45 s], most > 45 s | "), "{short}");
    }

    #[test]
    fn a_cell_has_what_was_killed_by_what_and_how_long_it_took() {
        let text = counts(&sample().kept);
        let lost = "6 of 6";
        assert_eq!(
            line(&text, "| oom-killer |"),
            format!("| oom-killer | - | 6 | - | {lost} | - | 1 of 6 (at most 58.2 %) | 5 of 6 |")
        );
        let none = "0 of 6 (at most 39.3 %)";
        let earlyoom = format!("| earlyoom | 1.8.2-1 | 6 | 3 of 6 | 3 of 6 (at most 84.7 %) | {none} | {none} | - |");
        assert_eq!(line(&text, "| earlyoom |"), earlyoom);
        assert_eq!(line(&text, "| nohang |"), "| nohang | 0.2.0-1 | NOT RUN | - | - | - | - | - |");
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
        let text = whole("6.12", "", &[done, sample()], &[], &[]);
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
        done.kept.measured.rounds[0].rival_died = true;
        let text = whole("6.12", "", &[done], &[], &[]);
        assert_eq!(line(&text, "- oom-killer"), "- oom-killer itself lost a process in 1 of 6 rounds.");
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
            least: 1_000_000,
            most: 3_000_000,
        };
        let of = |summary, rounds| of_all(|value| Unit::Milliseconds.text(value), summary, 0, rounds);
        assert_eq!(of(&summary, 120), "1.00, p99 2.00, most 3.00 in 100 of 120");
        assert_eq!(of(&Summary { p99: None, ..summary }, 100), "1.00, most 3.00");
    }

    #[test]
    fn the_whole_says_what_does_not_hold_and_what_was_not_run() {
        let claims = [Claim { what: "no race is lost", found: "1 of 20".into(), holds: Some(false) }];
        let missing = cells::all().into_iter().filter(|cell| cell.name() == "tmpfs-zram");
        let missing: Vec<Missing> =
            missing.map(|cell| Missing { cell, why: "the guest ended with 1: a | b".into() }).collect();
        let text = whole("6.12", "the short table\n", &[sample()], &missing, &claims);
        for expected in [
            "# Results of `cargo xtask bench` on Linux 6.12\n",
            "\n- DOES NOT HOLD: no race is lost: 1 of 20\n- NOT RUN: no wrong victim\n",
            "\n\nthe short table\n\n## What has to hold\n",
            "\n## anon\n\nIn this cell one process fills",
            " MiB of room; at the crossing at 400 MiB/s (median).\n\nLinux ",
            "; 2026-01-02, revision abc, seed 1.\n\n![each rival's rounds](6.12/anon.svg)\n\n| ",
            "\n| tmpfs-zram | NOT RUN | the guest ended with 1: a / b |\n",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert!(!whole("6.12", "", &[], &[], &[]).contains("not measured"));
    }
}
