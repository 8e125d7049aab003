//! How long the agent takes to start.

use super::measured::{Bare, Pair, Start};
use super::table::{head, row};
use crate::bench::figures::{Unit, digits};
use crate::claim::Claim;
use crate::picture::float;
use crate::statistics::Summary;

/// How many times as long as a bare load it may take, in thousandths.
const MOST: u64 = 2000;
/// The part of a start that the agent's log has for all of the core's.
const ARMED: &str = "armed_ns";

/// One part of a bare load, in nanoseconds.
type PartOf = fn(&Bare) -> u64;

/// In thousandths.
fn ratio(pair: &Pair) -> u64 {
    u64::try_from(u128::from(pair.ready_ns) * 1000 / u128::from(pair.bare.total_ns.max(1))).unwrap_or(u64::MAX)
}

fn times(summary: &Summary) -> String {
    summary.text(|value| digits(float(value) / 1000.0))
}

/// What has to hold.
pub(super) const GOAL: &str = "start to ready within twice a bare load";

/// That it takes so many times a bare load at most. Absent without pairs.
pub(super) fn claims(start: &Start) -> Option<Claim> {
    let summary = Summary::of(start.pairs.iter().map(ratio))?;
    let found = format!("{} times in {} pairs", times(&summary), summary.n);
    Some(Claim { what: GOAL, found, holds: summary.is_at_most(MOST) })
}

/// Its table.
pub(super) fn table(start: &Start) -> String {
    let Some(claim) = Summary::of(start.pairs.iter().map(ratio)) else { return String::new() };
    let mut text = head(&["", "ms"].map(str::to_owned));
    let mut add = |what: &str, of: &dyn Fn(&Pair) -> Option<u64>| {
        let summary = Summary::of(start.pairs.iter().filter_map(of));
        text.push_str(&row(&[what.to_owned(), summary.map_or("-".into(), |it| Unit::Milliseconds.median(&it))]));
    };
    let bare: [(&str, PartOf); 5] = [
        ("a bare load", |bare| bare.total_ns),
        ("- the library reads the kernel's types", |bare| bare.types_ns),
        ("- the object is read, its maps are made", |bare| bare.maps_ns),
        ("- the kernel verifies and compiles", |bare| bare.verify_ns),
        ("- the programs are attached", |bare| bare.attach_ns),
    ];
    for (what, of) in bare {
        add(what, &|pair| Some(of(&pair.bare)));
    }
    add("finding the layout in the kernel's types, beside it", &|pair| Some(pair.bare.layout_ns));
    add("the agent, from its start to ready", &|pair| Some(pair.ready_ns));
    let parts = [
        ("configuration_ns", "- the core's configuration"),
        ("undo_ns", "- undoing what an earlier one left"),
        ("source_ns", "- the source: types, load, attach"),
        ("workloads_ns", "- the inventory"),
        ("lock_ns", "- locking memory, priority"),
    ];
    for (part, what) in parts {
        add(what, &|pair| pair.start.get(part).copied());
    }
    add("- the core's other steps until it is armed", &|pair| {
        let known: u64 = parts.iter().filter_map(|(part, _)| pair.start.get(*part)).sum();
        Some(pair.start.get(ARMED)?.saturating_sub(known))
    });
    add("- before the core's first step, and from armed to ready", &|pair| {
        Some(pair.ready_ns.saturating_sub(*pair.start.get(ARMED)?))
    });
    text + &format!("\nThe agent takes {} times as long as a bare load.\n", times(&claim))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn start(ready_ms: impl Fn(u64) -> u64, pairs: u64) -> Start {
        let ms = 1_000_000;
        let pair = |number: u64| {
            json!({"bare": {"layout_ns": 50 * ms, "types_ns": 10 * ms, "maps_ns": 20 * ms, "verify_ns": 60 * ms,
                "attach_ns": 10 * ms, "total_ns": 100 * ms}, "ready_ns": ready_ms(number) * ms,
                "start": {"configuration_ns": ms, "undo_ns": ms, "source_ns": 140 * ms, "workloads_ns": 2 * ms,
                    "lock_ns": 3 * ms, "armed_ns": 150 * ms}})
        };
        let start = json!({"kernel": "6.12", "cpus": 1, "page_bytes": 4096, "memory_bytes": 1,
            "pairs": (0..pairs).map(pair).collect::<Vec<_>>()});
        serde_json::from_value(start).expect("the guest's form")
    }

    #[test]
    fn twice_a_bare_load_is_the_most_of_the_whole_interval() {
        let holds = |ready: fn(u64) -> u64, pairs| claims(&start(ready, pairs)).and_then(|claim| claim.holds);
        assert_eq!((holds(|_| 200, 6), holds(|_| 201, 6)), (Some(true), Some(false)));
        assert_eq!(holds(|number| if number == 0 { 300 } else { 100 }, 6), None, "the bound is within the interval");
        assert_eq!((holds(|_| 100, 5), holds(|_| 100, 0)), (None, None));
    }

    #[test]
    fn a_start_is_broken_down_without_a_rest() {
        let text = table(&start(|_| 180, 6));
        for line in [
            "| a bare load | 100 [100, 100] |",
            "| the agent, from its start to ready | 180 [180, 180] |",
            "| - the source: types, load, attach | 140 [140, 140] |",
            "| - the core's other steps until it is armed | 3.00 [3.00, 3.00] |",
            "| - before the core's first step, and from armed to ready | 30.0 [30.0, 30.0] |",
            "The agent takes 1.80 [1.80, 1.80] times as long as a bare load.",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(table(&start(|_| 1, 0)).is_empty());
    }
}
