//! What the guest measured in one of these cells, as it writes it: nanoseconds and bytes, and null where there is no
//! figure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
