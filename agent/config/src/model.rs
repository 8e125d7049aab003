//! The typed configuration.

use crate::error::Problem;
use crate::kubelet::Kubelet;
use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use plimsoll_units::Pattern;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A text, and how problems and origins call it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// The file's name.
    pub file: String,
    /// What stands in it.
    pub text: String,
}

/// Everything `plimsoll run` goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// The eviction policy, thresholds, grace, bounds: what the deciding part needs. The node's thresholds are those on
    /// memory, which `run` reads; [`Configuration::policy_on`] has all.
    pub policy: plimsoll_policy::Config,
    /// What a kubelet here would go by: every line, reservations, and what is checked against them.
    pub kubelet: Kubelet,
    /// What is in order and yet hardly what was meant.
    pub warnings: Vec<Problem>,
    /// Which cgroups may be evicted. The first pattern that matches gives the priority.
    pub workloads: Vec<Workload>,
    /// Which of these are never chosen. Init and the agent itself never are, whatever is written.
    pub never: Vec<Pattern>,
    /// How growth is held while deciding.
    pub brake: Brake,
    /// Slices with thresholds of their own, in the order of `policy.slices`.
    pub slices: Vec<Slice>,
    /// How to watch.
    pub source: SourceChoice,
    /// How often the slowest way to watch looks.
    pub poll_period: Duration,
    /// Where metrics and health are served.
    pub metrics_address: SocketAddr,
    /// Where the run record is.
    pub state_directory: PathBuf,
    /// How the log is written.
    pub log_format: LogFormat,
    /// Where each value came from, by its full key, `machine.brake.mode`. Every key is in it but those
    /// inside lists.
    pub origins: BTreeMap<String, Origin>,
}

impl Configuration {
    /// Why `run` evicts nothing for this machine's memory as a whole, if so. Slices with thresholds of their own are
    /// watched all the same.
    pub fn unwatched_memory(&self) -> Option<&'static str> {
        let why = "no threshold on memory.available is configured: `run` never evicts for this machine's memory";
        self.policy.thresholds.is_empty().then_some(why)
    }
}

/// Some cgroups that may be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Which.
    pub pattern: Pattern,
    /// Lower goes first.
    pub priority: i32,
}

/// A slice with its own memory limit and its own lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Its path below the cgroup root, without wildcards.
    pub path: Pattern,
}

/// How growth is held while deciding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brake {
    /// From user space, once awake.
    pub mode: BrakeMode,
    /// Cgroups that the kernel side may stop in their own context, before anyone is awake. None unless configured.
    pub in_kernel: Vec<Pattern>,
    /// No brake lasts longer.
    pub deadline: Duration,
}

/// How the woken agent holds a growing cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrakeMode {
    /// By `cgroup.freeze`.
    Freeze,
    /// Not at all.
    None,
}

/// How to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceChoice {
    /// The best that this kernel can do.
    Auto,
    /// Programs in the kernel.
    Ebpf,
    /// Pressure stall triggers.
    Psi,
    /// Looking from time to time.
    Poll,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs, one object a line.
    Json,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// A file's line, from 1.
    File {
        /// The file, as it was named.
        file: String,
        /// The line.
        line: u64,
    },
    /// A line in a file of the kubelet's drop-in directory.
    DropIn {
        /// The file.
        file: String,
        /// The line.
        line: u64,
    },
    /// A flag of the kubelet.
    KubeletFlag {
        /// How its place calls it: `--eviction-hard`, or `kubeletArguments.eviction-hard`.
        flag: String,
        /// The file with the command line.
        file: String,
        /// The line in it; absent where it has none.
        line: Option<u64>,
    },
    /// Plimsoll's own command line or its environment.
    Flag,
}

impl Origin {
    /// The file and the line, as far as there are any.
    pub fn place(&self) -> (&str, Option<u64>) {
        match self {
            Self::Default => ("default", None),
            Self::File { file, line } | Self::DropIn { file, line } => (file, Some(*line)),
            Self::KubeletFlag { file, line, .. } => (file, *line),
            Self::Flag => ("flag", None),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line } => write!(f, "{file}:{line}"),
            Self::DropIn { file, line } => write!(f, "drop-in {file}:{line}"),
            Self::KubeletFlag { flag, file, line: Some(line) } => write!(f, "{flag} in {file}:{line}"),
            Self::KubeletFlag { flag, file, line: None } => write!(f, "{flag} in {file}"),
            Self::Flag => f.write_str("flag"),
        }
    }
}
