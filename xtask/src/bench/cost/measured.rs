//! What the guest measured in one of these cells, as it writes it: nanoseconds and bytes, and null where there is no
//! figure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bench::rivals::EBPF;

/// The watchers of the cells about windows, of which those beside more memory and beside pods have the first two.
const WATCHERS: [&str; 3] = [EBPF, "earlyoom", "systemd-oomd"];
/// The storms of the cell about them.
const STORMS: [&str; 4] = ["allocation", "fork", "page-cache", "page-cache-at-limit"];

/// All of one boot.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "cell", rename_all = "kebab-case")]
pub(super) enum Measured {
    Hooks(Hooks),
    Storms(Storms),
    Idle(Idle),
    Large(Idle),
    Pods(Idle),
    Start(Start),
}

impl Measured {
    /// The cell, as the guest knows it.
    pub(super) const fn cell(&self) -> &'static str {
        match self {
            Self::Hooks(_) => "hooks",
            Self::Storms(_) => "storms",
            Self::Idle(_) => "idle",
            Self::Large(_) => "large",
            Self::Pods(_) => "pods",
            Self::Start(_) => "start",
        }
    }

    /// How many rounds, pairs or windows there are of each.
    pub(super) fn rounds(&self) -> usize {
        fn least<K: Ord>(keys: impl Iterator<Item = K>) -> usize {
            let mut counts = BTreeMap::new();
            for key in keys {
                *counts.entry(key).or_insert(0) += 1;
            }
            counts.into_values().min().unwrap_or(0)
        }
        match self {
            Self::Hooks(hooks) => least(hooks.loads.iter().map(|run| (&run.load, run.statistics))),
            Self::Storms(storms) => least(storms.runs.iter().map(|run| (&run.storm, run.agent))),
            Self::Idle(idle) | Self::Large(idle) | Self::Pods(idle) => {
                least(idle.windows.iter().map(|window| (&window.watcher, window.at())))
            }
            Self::Start(start) => start.pairs.len(),
        }
    }

    /// Of what has to be measured with these numbers of workloads, such as `0,100`, there is nothing.
    pub(super) fn missing(&self, workloads: &str) -> Vec<String> {
        let (idle, watchers, storms): (_, _, &[bool]) = match self {
            Self::Hooks(_) | Self::Start(_) => return Vec::new(),
            Self::Storms(storms) => {
                let is_there = |storm, agent| storms.runs.iter().any(|run| run.storm == storm && run.agent == agent);
                let all = STORMS.into_iter().flat_map(|storm| [(storm, false), (storm, true)]);
                let missing = all.filter(|(storm, agent)| !is_there(*storm, *agent));
                return missing.map(|(storm, agent)| format!("{storm} with agent={agent}")).collect();
            }
            Self::Idle(idle) => (idle, &WATCHERS[..], &[false, true]),
            Self::Large(idle) | Self::Pods(idle) => (idle, &WATCHERS[..2], &[false]),
        };
        let counts = workloads.split(',').filter_map(|count| count.parse().ok());
        let at = counts.flat_map(|workloads| storms.iter().map(move |storm| At { storm: *storm, workloads }));
        let all = at.flat_map(|at| watchers.iter().map(move |watcher| (*watcher, at)));
        let is_there = |watcher, at| idle.windows.iter().any(|window| window.watcher == watcher && window.at() == at);
        let missing = all.filter(|(watcher, at)| !is_there(*watcher, *at));
        missing.map(|(watcher, at)| format!("{watcher} with {}", super::idle::name(at))).collect()
    }

    /// The machine.
    pub(super) const fn machine(&self) -> &Machine {
        match self {
            Self::Hooks(Hooks { machine, .. })
            | Self::Storms(Storms { machine, .. })
            | Self::Idle(Idle { machine, .. })
            | Self::Large(Idle { machine, .. })
            | Self::Pods(Idle { machine, .. })
            | Self::Start(Start { machine, .. }) => machine,
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Machine {
    pub(super) kernel: String,
    pub(super) cpus: u32,
    pub(super) page_bytes: u64,
    pub(super) memory_bytes: u64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Hooks {
    #[serde(flatten)]
    pub(super) machine: Machine,
    pub(super) programs: Vec<Program>,
    pub(super) loads: Vec<LoadRun>,
    /// What the kernel counts for a program that does nothing.
    pub(super) empty: Ran,
    /// What the verifier takes for each program of every alternative, with the brake in the kernel.
    pub(super) verified: BTreeMap<String, u64>,
}

/// A program as the agent loaded it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) verified_instructions: Option<u64>,
    pub(super) translated_bytes: Option<u64>,
    pub(super) machine_code_bytes: u64,
}

/// One load, with or without the kernel's statistics.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LoadRun {
    pub(super) load: String,
    pub(super) number: u32,
    pub(super) statistics: bool,
    pub(super) elapsed_ns: u64,
    pub(super) programs: BTreeMap<String, Ran>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Ran {
    pub(super) calls: u64,
    pub(super) ns: u64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Storms {
    #[serde(flatten)]
    pub(super) machine: Machine,
    pub(super) runs: Vec<StormRun>,
}

/// One storm.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct StormRun {
    pub(super) storm: String,
    pub(super) pair: u32,
    /// Whether the agent ran.
    pub(super) agent: bool,
    pub(super) elapsed_ns: u64,
    /// What the storm's own cgroup ran.
    pub(super) own_ns: u64,
    pub(super) idle_ns: u64,
    /// What the agent's processes ran meanwhile.
    pub(super) agent_ns: u64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Idle {
    #[serde(flatten)]
    pub(super) machine: Machine,
    pub(super) versions: BTreeMap<String, String>,
    pub(super) windows: Vec<Window>,
}

/// What one watcher took in one window.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Window {
    pub(super) watcher: String,
    pub(super) workloads: u32,
    pub(super) storm: bool,
    pub(super) elapsed_ns: u64,
    /// By process and thread.
    pub(super) wakeups: BTreeMap<String, u64>,
    pub(super) cpu_ns: u64,
    /// By process and thread; by process. Results of 2026-11-26 lack both.
    #[serde(default)]
    pub(super) threads_cpu_ns: BTreeMap<String, u64>,
    pub(super) pss_bytes: u64,
    #[serde(default)]
    pub(super) processes_pss_bytes: BTreeMap<String, u64>,
    pub(super) kernel_bytes: Option<u64>,
    pub(super) charged_bytes: u64,
    pub(super) descriptors: u64,
}

impl Window {
    /// In which surroundings.
    pub(super) const fn at(&self) -> At {
        At { storm: self.storm, workloads: self.workloads }
    }
}

/// What happens beside a watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) storm: bool,
    pub(super) workloads: u32,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Start {
    #[serde(flatten)]
    pub(super) machine: Machine,
    pub(super) pairs: Vec<Pair>,
}

/// One start, and one load just before it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Pair {
    pub(super) bare: Bare,
    pub(super) ready_ns: u64,
    /// The parts of the core's start, by the agent's names of them.
    pub(super) start: BTreeMap<String, u64>,
}

/// A bare load.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[expect(clippy::struct_field_names, reason = "they end with the unit")]
pub(super) struct Bare {
    pub(super) layout_ns: u64,
    pub(super) types_ns: u64,
    pub(super) maps_ns: u64,
    pub(super) verify_ns: u64,
    pub(super) attach_ns: u64,
    /// All but what finds the layout.
    pub(super) total_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cost::CELLS;
    use serde_json::{Value, json};

    fn measured(cell: &str, more: &Value) -> Measured {
        let mut all = json!({"cell": cell, "kernel": "6.12", "cpus": 1, "page_bytes": 4096, "memory_bytes": 1,
            "versions": {}});
        all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        serde_json::from_value(all).expect("the guest's form")
    }

    #[test]
    fn each_watcher_is_measured_in_each_of_its_surroundings() {
        let window = |watcher: &str, workloads: u32, storm: bool| {
            json!({"watcher": watcher, "workloads": workloads, "storm": storm, "elapsed_ns": 1, "wakeups": {},
                "cpu_ns": 1, "pss_bytes": 1, "kernel_bytes": 1, "charged_bytes": 1, "descriptors": 1})
        };
        let missing = |name: &str, windows: &[Value]| {
            let cell = CELLS.iter().find(|cell| cell.guest == name).expect("a cell");
            measured(name, &json!({"windows": windows})).missing(cell.workloads)
        };
        let mut large: Vec<Value> =
            [0, 500].map(|count| [EBPF, "earlyoom"].map(|it| window(it, count, false))).concat();
        assert_eq!(missing("large", &large), [""; 0]);
        large.remove(2);
        assert_eq!(missing("large", &large), ["plimsoll-ebpf with 500 workloads"]);
        assert_eq!(missing("pods", &large), ["plimsoll-ebpf with 500 workloads"]);
        let counts = [0, 100, 500, 4000];
        let mut idle = Vec::new();
        for (count, storm) in counts.into_iter().flat_map(|count| [(count, false), (count, true)]) {
            idle.extend([EBPF, "earlyoom", "systemd-oomd"].map(|watcher| window(watcher, count, storm)));
        }
        assert_eq!(missing("idle", &idle), [""; 0]);
        idle.retain(|window| !(window["watcher"] == "systemd-oomd" && window["storm"] == true));
        let expected = counts.map(|count| format!("systemd-oomd with a storm, {count} workloads"));
        assert_eq!(missing("idle", &idle), expected);
    }

    #[test]
    fn each_storm_is_measured_with_the_agent_and_without() {
        let run = |storm: &str, agent: bool| {
            json!({"storm": storm, "pair": 0, "agent": agent,
                "elapsed_ns": 1, "own_ns": 1, "idle_ns": 0, "agent_ns": 0})
        };
        let mut runs: Vec<Value> = STORMS.map(|storm| [run(storm, false), run(storm, true)]).concat();
        let missing = |runs: &[Value]| measured("storms", &json!({"runs": runs})).missing("0");
        assert_eq!(missing(&runs), [""; 0]);
        runs.truncate(7);
        assert_eq!(missing(&runs), ["page-cache-at-limit with agent=true"]);
    }
}
