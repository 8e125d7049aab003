//! The instructions of each hook.

use super::measured::{Hooks, Program, Ran, Storms};
use super::storms;
use super::table::{head, row};
use crate::bench::figures::digits;
use crate::picture::float;
use crate::qemu::NS_PER_INSTRUCTION;
use crate::statistics::Summary;

/// Some runs of one load.
struct Load<'h> {
    name: &'h str,
    /// Its instructions, without the kernel's statistics and with them.
    without: Summary,
    with: Summary,
    /// Over all runs with statistics.
    ran: Ran,
    runs: u64,
}

/// Instructions in so many nanoseconds.
const fn instructions(ns: u64) -> u64 {
    ns / NS_PER_INSTRUCTION
}

/// The mean of so many calls, in instructions. Absent without calls.
fn mean(ran: Ran) -> Option<f64> {
    (ran.calls > 0).then(|| float(ran.ns) / float(NS_PER_INSTRUCTION) / float(ran.calls))
}

fn sum(all: impl Iterator<Item = Ran>) -> Ran {
    all.fold(Ran::default(), |sum, ran| Ran { calls: sum.calls + ran.calls, ns: sum.ns + ran.ns })
}

/// In all loads.
fn of_program(hooks: &Hooks, name: &str) -> Ran {
    sum(hooks.loads.iter().filter_map(|run| run.programs.get(name)).copied())
}

/// The least of the means of its runs.
fn least(hooks: &Hooks, name: &str) -> Option<f64> {
    hooks.loads.iter().filter_map(|run| mean(*run.programs.get(name)?)).min_by(f64::total_cmp)
}

fn loads(hooks: &Hooks) -> Vec<Load<'_>> {
    let mut names: Vec<&str> = Vec::new();
    for run in &hooks.loads {
        if !names.contains(&&run.load[..]) {
            names.push(&run.load);
        }
    }
    let load = |name| {
        let runs = |counted: bool| hooks.loads.iter().filter(move |run| run.load == name && run.statistics == counted);
        let took = |counted| Summary::of(runs(counted).map(|run| instructions(run.elapsed_ns)));
        let ran = sum(runs(true).flat_map(|run| run.programs.values()).copied());
        Some(Load { name, without: took(false)?, with: took(true)?, ran, runs: runs(true).count() as u64 })
    };
    names.into_iter().filter_map(load).collect()
}

/// Its tables. With the storms that were measured of the same sources, as far as there are any.
pub(super) fn table(hooks: &Hooks, storms: Option<&Storms>) -> String {
    let counting = mean(hooks.empty).unwrap_or(0.0);
    let mut text = format!(
        "Instructions a call are the mean of all calls, and beside it the least mean of a run. What preempts a program is \
         counted as its own: on a kernel that preempts itself, the agent that it wakes. A program that does nothing is \
         counted with {} instructions a call: that is the counting's own part of each figure, and is taken away in the \
         column `without the counting`. What is not in them is the way from the kernel's \
         function into the program and back, which `whole cost a call` has: how much more the storm's own cgroup ran with the \
         agent in `cost-storms` of this revision, by the calls that are counted here; `-` where that was not measured.\n\n",
        digits(counting)
    );
    let heads = [
        "program",
        "calls in all loads",
        "instructions a call",
        "least of a run",
        "without the counting",
        "verified instructions",
        "bytes of eBPF",
        "bytes of machine code",
    ];
    text.push_str(&head(&heads.map(str::to_owned)));
    for program in &hooks.programs {
        let Program { name, verified_instructions, translated_bytes, machine_code_bytes } = program;
        let ran = of_program(hooks, name);
        let number = |number: Option<f64>| number.map_or("-".into(), digits);
        let count = |count: &Option<u64>| count.map_or("-".into(), |count| count.to_string());
        text.push_str(&row(&[
            format!("`{name}`"),
            ran.calls.to_string(),
            number(mean(ran)),
            number(least(hooks, name)),
            number(mean(ran).map(|mean| (mean - counting).max(0.0))),
            count(verified_instructions),
            count(translated_bytes),
            machine_code_bytes.to_string(),
        ]));
    }
    let heads = [
        "load",
        "million instructions",
        "with the kernel's statistics",
        "calls of hooks",
        "in hooks, without the counting",
        "of the load",
        "whole cost a call",
    ];
    text.push('\n');
    text.push_str(&head(&heads.map(str::to_owned)));
    for load in loads(hooks) {
        let million = |instructions: u64| digits(float(instructions) / 1e6);
        let calls = load.ran.calls / load.runs.max(1);
        let each = mean(load.ran).map_or(0.0, |mean| (mean - counting).max(0.0));
        let inside = each * float(calls);
        let added = storms.and_then(|storms| storms::added(storms, load.name)).filter(|_| calls > 0);
        text.push_str(&row(&[
            load.name.to_owned(),
            million(load.without.median),
            million(load.with.median),
            calls.to_string(),
            format!("{:.3}", inside / 1e6),
            format!("{:.3} %", inside / float(load.without.median.max(1)) * 100.0),
            added.map_or("-".into(), |added| format!("{:.0}", added / float(calls))),
        ]));
    }
    text.push_str(
        "\nWhat the verifier goes through for each program of every alternative, with the brake in the kernel:\n\n",
    );
    text.push_str(&head(&["program", "verified instructions"].map(str::to_owned)));
    for (name, count) in &hooks.verified {
        text.push_str(&row(&[format!("`{name}`"), count.to_string()]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn hooks() -> Hooks {
        let run = |load: &str, statistics: bool, elapsed_ns: u64, calls: u64, ns: u64| {
            json!({"load": load, "number": 0, "statistics": statistics, "elapsed_ns": elapsed_ns,
                "programs": {"charge_fentry": {"calls": calls, "ns": ns}, "fork": {"calls": 0, "ns": 0}}})
        };
        let hooks = json!({"kernel": "6.12", "cpus": 1, "page_bytes": 4096, "memory_bytes": 1,
            "programs": [
                {"name": "charge_fentry", "verified_instructions": 700, "translated_bytes": 2000, "machine_code_bytes": 1500},
                {"name": "fork", "verified_instructions": null, "translated_bytes": null, "machine_code_bytes": 90}],
            "loads": [run("allocation", false, 2_000_000_000, 0, 0), run("allocation", true, 2_000_400_000, 1000, 500_000),
                run("cgroups", false, 1_000_000, 0, 0), run("cgroups", true, 1_000_000, 0, 0)],
            "empty": {"calls": 10, "ns": 1000}, "verified": {"charge_kprobe": 900}});
        serde_json::from_value(hooks).expect("the guest's form")
    }

    #[test]
    fn a_mean_is_of_calls_and_in_instructions() {
        assert_eq!(mean(Ran { calls: 4, ns: 800 }), Some(100.0));
        assert_eq!(mean(Ran { calls: 0, ns: 0 }), None);
    }

    #[test]
    fn a_run_in_which_something_preempts_a_program_is_not_the_least() {
        let mut hooks = hooks();
        let run = |hooks: &Hooks| hooks.loads.iter().position(|run| run.statistics).expect("one with statistics");
        let (first, other) = (run(&hooks), hooks.loads.len() - 1);
        hooks.loads[other].programs.insert("charge_fentry".into(), Ran { calls: 10, ns: 2_000_000 });
        assert_eq!(least(&hooks, "charge_fentry"), mean(hooks.loads[first].programs["charge_fentry"]));
        assert_eq!(least(&hooks, "fork"), None);
    }

    #[test]
    fn the_counting_is_taken_away_once_a_call() {
        let run = |agent: bool, own_ns: u64| {
            json!({"storm": "allocation", "pair": 0, "agent": agent, "elapsed_ns": 1, "own_ns": own_ns, "idle_ns": 0,
                "agent_ns": 0})
        };
        let storms = json!({"kernel": "6.12", "cpus": 1, "page_bytes": 4096, "memory_bytes": 1,
            "runs": [run(false, 900_000_000), run(true, 900_900_000)]});
        let storms: Storms = serde_json::from_value(storms).expect("the guest's form");
        let text = table(&hooks(), Some(&storms));
        for line in [
            // 250 instructions a call, of which 50 are the counting's.
            "| `charge_fentry` | 1000 | 250 | 250 | 200 | 700 | 2000 | 1500 |",
            "| `fork` | 0 | - | - | - | - | - | 90 |",
            // 200 thousand of a thousand million; the storm took 450 thousand more with the agent, for a thousand calls.
            "| allocation | 1000 | 1000 | 1000 | 0.200 | 0.020 % | 450 |",
            "| cgroups | 0.50 | 0.50 | 0 | 0.000 | 0.000 % | - |",
            "| `charge_kprobe` | 900 |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        let without = table(&hooks(), None);
        assert!(without.contains("\n| allocation | 1000 | 1000 | 1000 | 0.200 | 0.020 % | - |\n"), "{without}");
        assert!(text.contains("A program that does nothing is counted with 50.0 instructions a call"), "{text}");
    }
}
