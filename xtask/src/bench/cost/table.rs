//! What was measured of these cells, as Markdown.

use std::fmt::Write as _;

use super::binary::Binary;
use super::measured::{Machine, Measured};
use super::{Kept, Known, idle, programs, start, storms};
use crate::bench::figures::{Unit, digits};
use crate::claim::{self, Claim};

use crate::bench::table::one_line;
pub(super) use crate::bench::table::{head, row};

const LEGEND: &str = "One processor, emulated, whose clock follows the instructions that it runs: figures do not depend on \
    what else the host does. Instructions are those of the emulated processor, of which each counts as much as any other: \
    a cache that misses costs nothing. Times are of a processor that runs 500 million a second. [The 95 % interval of a \
    median.] On silicon with many processors none of this was measured.";

/// All that is known of one kernel.
pub(super) fn whole(kernel: &str, known: &[Known], claims: &[Claim]) -> String {
    let mut text = format!(
        "# What the agent costs, by `cargo xtask bench` on Linux {kernel}\n\n{LEGEND}\n\n## What has to hold\n\n"
    );
    text.push_str(&judged(claims));
    for Known { cell, kept, again } in known {
        let _ = writeln!(text, "\n## {}\n\nIn this cell it is measured {}.\n", cell.name, cell.what);
        match kept {
            Ok(kept) => {
                let again = again.as_ref().map(|why| format!("Measuring it again failed: {}.\n\n", one_line(why)));
                let again = again.unwrap_or_default();
                let _ = writeln!(text, "{}.\n\n{again}{}", origin(kept), figures(kept, known).trim_end());
            }
            Err(why) => {
                let _ = writeln!(text, "NOT RUN: {}", one_line(why));
            }
        }
    }
    text
}

/// The claims as a list, and what is not claimed for want of measurements.
fn judged(claims: &[Claim]) -> String {
    claim::list(claims, &super::not_run(claims))
}

fn origin(kept: &Kept) -> String {
    let Machine { kernel, cpus, page_bytes, memory_bytes } = kept.measured.machine();
    let (memory, date, revision) = (memory_bytes >> 20, &kept.date, &kept.revision);
    format!("Linux {kernel}, {cpus} processor, {memory} MiB, pages of {page_bytes} bytes; {date}, revision {revision}")
}

fn figures(kept: &Kept, known: &[Known]) -> String {
    match &kept.measured {
        Measured::Hooks(hooks) => {
            let storms = known.iter().filter_map(|known| known.kept.as_ref().ok()).find_map(|other| {
                let Measured::Storms(storms) = &other.measured else { return None };
                (other.revision == kept.revision).then_some(storms)
            });
            programs::table(hooks, storms) + "\n" + &size(&kept.binary)
        }
        Measured::Storms(storms) => storms::table(storms),
        Measured::Idle(idle) | Measured::Large(idle) | Measured::Pods(idle) => idle::table(idle),
        Measured::Start(start) => start::table(start),
    }
}

/// How large the agent is.
fn size(binary: &Binary) -> String {
    let mib = |bytes| digits(Unit::Mebibytes.of(bytes));
    let sections: Vec<String> =
        binary.sections.iter().map(|(name, bytes)| format!("`{name}` {}", mib(*bytes))).collect();
    format!(
        "The agent's program is {} MiB without symbols and what debuggers need, with which it is shipped as {} MiB. Its \
         largest sections, in MiB: {}.\n",
        mib(binary.stripped_bytes),
        mib(binary.file_bytes),
        sections.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::super::CELLS;
    use super::*;
    use serde_json::json;

    #[test]
    fn the_whole_says_what_does_not_hold_and_what_was_not_run() {
        let measured = json!({"cell": "storms", "kernel": "6.12.0-made-up", "cpus": 1, "page_bytes": 4096,
            "memory_bytes": 967 << 20, "runs": []});
        let measured = serde_json::from_value(measured).expect("the guest's form");
        let (date, revision) = ("2026-01-02".into(), "abc".into());
        let kept = Kept { date, revision, rounds: 10, binary: Binary::default(), measured };
        let known = [
            Known { cell: &CELLS[1], kept: Ok(kept), again: Some("it failed".into()) },
            Known { cell: &CELLS[5], kept: Err("it\nbroke".into()), again: None },
        ];
        let claims = [Claim { what: "it is small", found: "not small".into(), holds: Some(false) }];
        let text = whole("6.12", &known, &claims);
        for expected in [
            "\n- DOES NOT HOLD: it is small: not small\n",
            "\n- NOT RUN: storms slowed down by 1 % at most\n",
            "\n- NOT RUN: 24 MiB of memory at rest beside pods\n",
            "\n- NOT RUN: start to ready within twice a bare load\n",
            "\n## cost-storms\n\nIn this cell it is measured how much longer",
            "\nLinux 6.12.0-made-up, 1 processor, 967 MiB, pages of 4096 bytes; 2026-01-02, revision abc.\n",
            "\nMeasuring it again failed: it failed.\n",
            "\n## cost-start\n",
            "\nNOT RUN: it/broke\n",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }

    #[test]
    fn a_call_costs_what_storms_of_the_same_sources_took_more() {
        let kept = |revision: &str, more: serde_json::Value| {
            let mut all = json!({"kernel": "6.12", "cpus": 1, "page_bytes": 4096, "memory_bytes": 1});
            all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            let measured = serde_json::from_value(all).expect("the guest's form");
            Kept {
                date: "2026-01-02".into(),
                revision: revision.into(),
                rounds: 1,
                binary: Binary::default(),
                measured,
            }
        };
        let load = |statistics: bool| {
            json!({"load": "fork", "number": 0, "statistics": statistics, "elapsed_ns": 2_000_000,
                "programs": {"fork": {"calls": 10, "ns": 1000}}})
        };
        let run = |agent: bool, own_ns: u64| {
            json!({"storm": "fork", "pair": 0, "agent": agent, "elapsed_ns": 1, "own_ns": own_ns, "idle_ns": 0,
                "agent_ns": 0})
        };
        let text = |revision: &str| {
            let hooks = json!({"cell": "hooks", "programs": [], "loads": [load(false), load(true)],
                "empty": {"calls": 0, "ns": 0}, "verified": {}});
            let storms = json!({"cell": "storms", "runs": [run(false, 1_000_000), run(true, 1_006_000)]});
            let known = [("abc", hooks), (revision, storms)].map(|(revision, measured)| Known {
                cell: &CELLS[0],
                kept: Ok(kept(revision, measured)),
                again: None,
            });
            whole("6.12", &known, &[])
        };
        assert!(text("abc").contains("\n| fork | 1.00 | 1.00 | 10 | 0.001 | 0.050 % | 300 |\n"), "{}", text("abc"));
        assert!(text("abd").contains("\n| fork | 1.00 | 1.00 | 10 | 0.001 | 0.050 % | - |\n"), "{}", text("abd"));
    }

    #[test]
    fn a_size_is_that_without_symbols() {
        let sections = vec![(".text".to_owned(), 3 << 20)];
        let text = size(&Binary { file_bytes: 8 << 20, stripped_bytes: 5 << 20, sections });
        assert!(text.starts_with("The agent's program is 5.00 MiB without symbols"), "{text}");
        assert!(text.contains("shipped as 8.00 MiB") && text.ends_with("in MiB: `.text` 3.00.\n"), "{text}");
    }
}
