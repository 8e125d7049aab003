//! What watchers take while nothing happens, and in a storm.

use std::collections::BTreeMap;

use super::measured::{At, Idle, Window};
use super::table::{head, row};
use crate::bench::figures::{Unit, digits};
use crate::bench::rivals::EBPF;
use crate::claim::{self, Claim};
use crate::picture::float;
use crate::qemu::NS_PER_INSTRUCTION;
use crate::statistics::{Ratio, Summary};

/// What the agent is compared with.
const OTHER: &str = "earlyoom";
/// How often the agent may be woken, in thousandths a second.
const WAKEUPS: u64 = 1000;

/// What has to hold in a cell.
pub(super) struct Goals {
    at_rest: &'static str,
    cpu_beside: &'static str,
    /// With so many workloads its instructions may be so many times those of the other daemon.
    cpu: &'static [(u32, u64)],
    memory: &'static str,
    /// The most that its processes may have in memory.
    pss: u64,
}

impl Goals {
    /// All of them.
    pub(super) const fn all(&self) -> [&'static str; 3] {
        [self.at_rest, self.cpu_beside, self.memory]
    }
}

/// On a machine without pods, with two of its processes besides the core.
pub(super) const ALONE: Goals = Goals {
    at_rest: "one wake-up a second at rest",
    cpu_beside: "instructions at rest beside earlyoom's",
    cpu: &[(0, 2), (500, 1)],
    memory: "12 MiB of memory at rest",
    pss: 12 << 20,
};
/// With more memory, where earlyoom sleeps for as long as it ever does.
pub(super) const LARGE: Goals = Goals {
    at_rest: "one wake-up a second at rest on a large machine",
    cpu_beside: "instructions at rest beside earlyoom's on a large machine",
    cpu: &[(0, 2), (500, 1)],
    memory: "12 MiB of memory at rest on a large machine",
    pss: 12 << 20,
};
/// With pods, a container runtime and a kubelet's disk, for which it has two processes more.
pub(super) const ON_A_NODE: Goals = Goals {
    at_rest: "one wake-up a second at rest beside pods",
    cpu_beside: "instructions at rest beside pods and earlyoom's",
    cpu: &[(500, 1)],
    memory: "24 MiB of memory at rest beside pods",
    pss: 24 << 20,
};

/// One figure over the windows of a watcher in the same surroundings.
fn summary(idle: &Idle, watcher: &str, at: At, figure: impl Fn(&Window) -> Option<u64>) -> Option<Summary> {
    let windows = idle.windows.iter().filter(|window| window.watcher == watcher && window.at() == at);
    Summary::of(windows.filter_map(figure))
}

/// So much in so long as so much in `of_ns`.
fn rate(value: u64, elapsed_ns: u64, of_ns: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(of_ns) / u128::from(elapsed_ns.max(1))).unwrap_or(u64::MAX)
}

/// Thousandths a second.
fn wakeups(window: &Window) -> u64 {
    rate(window.wakeups.values().sum::<u64>() * 1000, window.elapsed_ns, 1_000_000_000)
}

/// Instructions a minute of a processor that runs 500 million a second.
fn cpu(window: &Window) -> u64 {
    rate(window.cpu_ns / NS_PER_INSTRUCTION, window.elapsed_ns, 60_000_000_000)
}

/// In which surroundings something was measured, in their order, those at rest before the storm.
fn surroundings(idle: &Idle) -> Vec<At> {
    let mut all: Vec<At> = idle.windows.iter().map(Window::at).collect();
    all.sort_unstable();
    all.dedup();
    all
}

pub(super) fn name(at: At) -> String {
    format!("{}{} workloads", if at.storm { "a storm, " } else { "" }, at.workloads)
}

/// What has to hold of them.
pub(super) fn claims(idle: &Idle, goals: &Goals) -> Vec<Claim> {
    let at_rest: Vec<At> = surroundings(idle).into_iter().filter(|at| !at.storm).collect();
    let each = |what, figure: fn(&Window) -> u64, most: u64, text: fn(&Summary) -> String| {
        let all: Vec<(At, Summary)> =
            at_rest.iter().filter_map(|at| Some((*at, summary(idle, EBPF, *at, |it| Some(figure(it)))?))).collect();
        let found: Vec<String> =
            all.iter().map(|(at, summary)| format!("{} with {}", text(summary), name(*at))).collect();
        let holds = claim::together(all.iter().map(|(_, summary)| summary.is_at_most(most)));
        (!all.is_empty()).then(|| Claim { what, found: found.join(", "), holds })
    };
    let claims = [
        each(goals.at_rest, wakeups, WAKEUPS, a_second),
        beside(idle, goals),
        each(
            goals.memory,
            |window| window.pss_bytes,
            goals.pss,
            |summary| format!("{} MiB", Unit::Mebibytes.median(summary)),
        ),
    ];
    claims.into_iter().flatten().collect()
}

/// The agent's instructions as so many times the other daemon's, each with its interval.
fn beside(idle: &Idle, goals: &Goals) -> Option<Claim> {
    let (mut found, mut holds) = (Vec::new(), Vec::new());
    for &(workloads, most) in goals.cpu {
        let of = |watcher| summary(idle, watcher, At { storm: false, workloads }, |window| Some(cpu(window)));
        let (own, other) = (of(EBPF)?, of(OTHER)?);
        let ratio = Ratio::of(&own, &other);
        holds.push(ratio.is_at_most(float(most)));
        found.push(format!(
            "{} million a minute of {} with {workloads} workloads, {} times, of {most} at most",
            million(&own),
            million(&other),
            digits(ratio.value)
        ));
    }
    Some(Claim { what: goals.cpu_beside, found: found.join("; "), holds: claim::together(holds) })
}

fn a_second(summary: &Summary) -> String {
    summary.text(|value| digits(float(value) / 1000.0))
}

fn million(summary: &Summary) -> String {
    summary.text(|value| digits(float(value) / 1e6))
}

/// Its tables.
pub(super) fn table(idle: &Idle) -> String {
    let mut watchers: Vec<&str> = Vec::new();
    for window in &idle.windows {
        if !watchers.contains(&&window.watcher[..]) {
            watchers.push(&window.watcher);
        }
    }
    let heads = [
        "",
        "",
        "wake-ups a second",
        "million instructions a minute",
        "PSS, MiB",
        "kernel memory, MiB",
        "charged, MiB",
        "descriptors",
    ];
    let mut text = format!("Windows {}.\n\n{}", lengths(idle), head(&heads.map(str::to_owned)));
    for at in surroundings(idle) {
        for watcher in &watchers {
            let of = |figure: fn(&Window) -> Option<u64>| summary(idle, watcher, at, figure);
            let cell = |found: Option<Summary>, text: fn(&Summary) -> String| found.map_or("-".into(), |it| text(&it));
            let mib = |summary: &Summary| digits(Unit::Mebibytes.of(summary.median));
            text.push_str(&row(&[
                name(at),
                (*watcher).to_owned(),
                cell(of(|window| Some(wakeups(window))), a_second),
                cell(of(|window| Some(cpu(window))), million),
                cell(of(|window| Some(window.pss_bytes)), mib),
                cell(of(|window| window.kernel_bytes), mib),
                cell(of(|window| Some(window.charged_bytes)), mib),
                cell(of(|window| Some(window.descriptors)), |summary| summary.median.to_string()),
            ]));
        }
    }
    text.push_str("\nThe same of the agent by process and thread, the mean of all windows:\n\n");
    text.push_str(&head(&["", "", heads[2], heads[3]].map(str::to_owned)));
    for at in surroundings(idle) {
        for Thread { name: thread, woken, instructions } in threads(idle, at) {
            let instructions = instructions.map_or("-".to_owned(), |count| digits(count / 1e6));
            text.push_str(&row(&[name(at), format!("`{thread}`"), digits(woken), instructions]));
        }
    }
    let mut processes = String::new();
    for at in surroundings(idle) {
        let windows = u64::try_from(of_agent(idle, at).count()).unwrap_or(u64::MAX).max(1);
        for (process, bytes) in sums(idle, at, |window| &window.processes_pss_bytes) {
            processes += &row(&[name(at), format!("`{process}`"), digits(Unit::Mebibytes.of(bytes / windows))]);
        }
    }
    if !processes.is_empty() {
        text.push_str("\nPSS of the agent's processes, the mean of all windows:\n\n");
        text = text + &head(&["", "", heads[4]].map(str::to_owned)) + &processes;
    }
    let versions: Vec<String> = idle.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    text + "\nVersions: " + &versions.join(", ") + ".\n"
}

/// How long they are, by their median.
fn lengths(idle: &Idle) -> String {
    let of = |storm: bool| {
        let windows = idle.windows.iter().filter(|window| window.storm == storm);
        let seconds = Summary::of(windows.map(|window| window.elapsed_ns))?.median / 1_000_000_000;
        Some(format!("of {seconds} s {}", if storm { "in a storm" } else { "at rest" }))
    };
    [of(false), of(true)].into_iter().flatten().collect::<Vec<_>>().join(", and ")
}

/// What a thread of the agent did.
struct Thread<'i> {
    name: &'i str,
    /// How often it was woken, a second.
    woken: f64,
    /// A minute. Absent where that was not measured.
    instructions: Option<f64>,
}

/// The threads of the agent that were woken at all, the most often woken first.
fn threads(idle: &Idle, at: At) -> Vec<Thread<'_>> {
    let elapsed_ns = float(of_agent(idle, at).map(|window| window.elapsed_ns).sum::<u64>().max(1));
    let ran = sums(idle, at, |window| &window.threads_cpu_ns);
    let mut threads: Vec<_> = sums(idle, at, |window| &window.wakeups)
        .into_iter()
        .filter(|(_, woken)| *woken > 0)
        .map(|(name, woken)| Thread {
            name,
            woken: float(woken) * 1e9 / elapsed_ns,
            instructions: ran.get(name).map(|ns| float(ns / NS_PER_INSTRUCTION) * 60e9 / elapsed_ns),
        })
        .collect();
    threads.sort_by(|one, other| other.woken.total_cmp(&one.woken));
    threads
}

/// The agent's windows in these surroundings.
fn of_agent(idle: &Idle, at: At) -> impl Iterator<Item = &Window> {
    idle.windows.iter().filter(move |window| window.watcher == EBPF && window.at() == at)
}

/// A figure of each of its processes or threads, of all these windows together.
fn sums(idle: &Idle, at: At, of: impl Fn(&Window) -> &BTreeMap<String, u64>) -> BTreeMap<&str, u64> {
    let mut sums = BTreeMap::new();
    for (name, value) in of_agent(idle, at).flat_map(&of) {
        *sums.entry(&name[..]).or_default() += value;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::broken;
    use serde_json::{Value, json};

    /// Windows of 20 s: the agent is woken once a second and takes as much as earlyoom.
    fn idle(mut change: impl FnMut(&mut Value)) -> Idle {
        let mut windows = Vec::new();
        for watcher in [EBPF, OTHER, "systemd-oomd"] {
            for (workloads, storm) in [(0, true), (0, false), (500, false)] {
                for _ in 0..6 {
                    let mut window = json!({"watcher": watcher, "workloads": workloads, "storm": storm,
                        "elapsed_ns": 20_000_000_000_u64, "wakeups": {"core core": 15, "run watchdog": 5, "core write": 0},
                        "cpu_ns": 40_000_000, "pss_bytes": 12 << 20, "kernel_bytes": 3 << 20, "charged_bytes": 30 << 20,
                        "descriptors": 40});
                    change(&mut window);
                    windows.push(window);
                }
            }
        }
        let idle = json!({"kernel": "6.12", "cpus": 1, "page_bytes": 4096, "memory_bytes": 1,
            "versions": {"earlyoom": "1.8"}, "windows": windows});
        serde_json::from_value(idle).expect("the guest's form")
    }

    fn broken_by(watcher: &str, workloads: u32, storm: bool, key: &str, value: &Value) -> Vec<&'static str> {
        broken(&claims(
            &idle(|window| {
                if window["watcher"] == watcher && window["workloads"] == workloads && window["storm"] == storm {
                    window[key] = value.clone();
                }
            }),
            &ALONE,
        ))
    }

    #[test]
    fn each_claim_can_break_and_only_at_rest_and_by_the_agent() {
        assert_eq!(broken(&claims(&idle(|_| ()), &ALONE)), [""; 0]);
        for (key, value, expected) in [
            ("wakeups", json!({"core core": 21}), ALONE.at_rest),
            ("pss_bytes", json!((12 << 20) + 1), ALONE.memory),
            ("cpu_ns", json!(80_000_100), ALONE.cpu_beside),
        ] {
            for workloads in [0, 500] {
                assert_eq!(broken_by(EBPF, workloads, false, key, &value), [expected], "{key} {workloads}");
            }
            assert_eq!(broken_by(EBPF, 0, true, key, &value), [""; 0], "{key} in a storm");
            assert_eq!(broken_by("systemd-oomd", 0, false, key, &value), [""; 0], "{key} of another");
        }
        // What lies within the interval is undecided.
        let mut windows = 0;
        let undecided = idle(|window| {
            if window["watcher"] == EBPF && window["workloads"] == 500 {
                windows += 1;
                window["cpu_ns"] = json!(if windows % 2 == 0 { 39_000_000 } else { 41_000_000 });
            }
        });
        let of_cpu = claims(&undecided, &ALONE).into_iter().find(|claim| claim.what == ALONE.cpu_beside);
        assert_eq!(of_cpu.expect("it is measured").holds, None);
        // Twice as much with none, and as much with 500.
        assert_eq!(broken_by(EBPF, 0, false, "cpu_ns", &json!(80_000_000)), [""; 0]);
        assert_eq!(broken_by(EBPF, 500, false, "cpu_ns", &json!(40_000_100)), [ALONE.cpu_beside]);
    }

    #[test]
    fn on_a_node_twice_the_memory_may_be_taken_and_no_more_instructions() {
        let of = |key: &str, value: Value| {
            broken(&claims(
                &idle(|window| {
                    if window["watcher"] == EBPF && window["workloads"] == 500 {
                        window[key] = value.clone();
                    }
                }),
                &ON_A_NODE,
            ))
        };
        assert_eq!(of("pss_bytes", json!(24 << 20)), [""; 0]);
        assert_eq!(of("pss_bytes", json!((24 << 20) + 1)), [ON_A_NODE.memory]);
        assert_eq!(of("cpu_ns", json!(40_000_100)), [ON_A_NODE.cpu_beside]);
        assert_eq!(of("wakeups", json!({"services plimsoll": 21})), [ON_A_NODE.at_rest]);
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        let mut without = idle(|_| ());
        without.windows.retain(|window| window.watcher != OTHER);
        let what: Vec<&str> = claims(&without, &ALONE).iter().map(|claim| claim.what).collect();
        assert_eq!(what, [ALONE.at_rest, ALONE.memory]);
        without.windows.clear();
        assert!(claims(&without, &ALONE).is_empty());
    }

    /// How a row on a part of the agent in a storm begins.
    const STORM: &str = "| a storm, 0 workloads | `";

    #[test]
    fn figures_are_of_a_second_and_of_a_minute() {
        let text = table(&idle(|_| ()));
        let expected =
            "| 0 workloads | plimsoll-ebpf | 1.00 [1.00, 1.00] | 60.0 [60.0, 60.0] | 12.0 | 3.00 | 30.0 | 40 |";
        assert!(text.lines().any(|line| line == expected), "{text}");
        let threads: Vec<&str> = text.lines().filter(|line| line.starts_with(STORM)).collect();
        let expected = ["core core` | 0.75 | - |", "run watchdog` | 0.25 | - |"];
        assert_eq!(threads, expected.map(|rest| format!("{STORM}{rest}")));
        let text = table(&idle(|window| {
            window["threads_cpu_ns"] = json!({"core core": 30_000_000});
            window["processes_pss_bytes"] = json!({"core": 8 << 20, "run": 4 << 20});
        }));
        let of_parts: Vec<&str> = text.lines().filter(|line| line.starts_with(STORM)).collect();
        let expected = ["core core` | 0.75 | 45.0 |", "run watchdog` | 0.25 | - |", "core` | 8.00 |", "run` | 4.00 |"];
        assert_eq!(of_parts, expected.map(|rest| format!("{STORM}{rest}")));
        assert!(text.ends_with("\nVersions: earlyoom 1.8.\n"), "{text}");
    }
}
