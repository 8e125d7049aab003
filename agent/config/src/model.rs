//! The typed configuration.

use crate::error::Problem;
use crate::kubelet::Kubelet;
use crate::machine::{Machine, Swap};
use crate::scalar::{As, PolicyName};
use core::fmt;
use plimsoll_policy::kubelet::Signal;
use plimsoll_policy::{EvictionPolicy, Scope};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A text, and the file name for problems and origins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// The file's name.
    pub file: String,
    /// Its content.
    pub text: String,
}

/// Everything that `plimsoll run` decides by. Its fields that serde knows are the keys of Plimsoll's own file beside those
/// that a kubelet has too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, expecting = "a mapping")]
pub struct Configuration {
    /// The eviction policy: the order in which workloads are evicted, and how many in a turn.
    #[serde(with = "As::<PolicyName>")]
    pub eviction_policy: EvictionPolicy,
    /// When swap counts as pressure on pods: short, pages coming back from it, and all tasks stalling. Never by default.
    /// For replay and explain only.
    pub swap: Option<Swap>,
    /// What concerns this machine and no kubelet.
    pub machine: Machine,
    /// What the engine decides by. The node's thresholds are those by which `run` evicts, on memory and tasks;
    /// [`Configuration::disk_policy`] has those on disks, and [`Configuration::policy_on`] all.
    #[serde(skip)]
    pub policy: plimsoll_policy::Config,
    /// The configuration of a kubelet here: thresholds, reservations, and what is checked against them.
    #[serde(skip)]
    pub kubelet: Kubelet,
    /// What is valid and yet probably a mistake.
    #[serde(skip)]
    pub warnings: Vec<Problem>,
    /// In which of `evictionHard`, `evictionSoft` and `evictionMinimumReclaim` Plimsoll's own file has `memory.available`.
    #[serde(skip)]
    pub(crate) own_thresholds: Vec<&'static str>,
    /// The origin of each value of the fields above that is not a default, by its key. A list is one value.
    #[serde(skip)]
    pub(crate) origins: BTreeMap<String, Origin>,
}

impl Configuration {
    /// The key of each of its fields that serde knows, with its value.
    pub(crate) fn own(&self) -> serde_json::Map<String, serde_json::Value> {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(map)) => map,
            // Numbers, texts, lists and maps with text for keys: JSON has all of them.
            Ok(_) | Err(_) => serde_json::Map::new(),
        }
    }

    /// The keys of Plimsoll's own file that no kubelet has.
    pub(crate) fn own_keys() -> Vec<String> {
        Self::default().own().into_iter().map(|(key, _)| key).collect()
    }

    /// The kubelet's own directory: `machine.kubeletRoot`, else `--root-dir` on the kubelet's command line, else its default
    /// (`defaultRootDir` in `cmd/kubelet/app/options/options.go`).
    pub fn kubelet_root(&self) -> PathBuf {
        let of_kubelet = || self.of_kubelet("root-dir").map(|(text, _)| text.into());
        self.machine.kubelet_root.clone().or_else(of_kubelet).unwrap_or_else(|| "/var/lib/kubelet".into())
    }

    /// The directory of pods' logs: the kubelet's `podLogsDir`, else its default (`DefaultPodLogsDir` in
    /// `pkg/kubelet/apis/config/v1beta1/defaults.go`). The kubelet takes an absolute path alone (`ValidateKubeletConfiguration`).
    pub fn pod_logs(&self) -> PathBuf {
        let of_kubelet = self.of_kubelet("podLogsDir").map(|(text, _)| PathBuf::from(text));
        of_kubelet.filter(|path| path.is_absolute()).unwrap_or_else(|| "/var/log/pods".into())
    }

    /// The endpoint of the container runtime with its origin: `machine.runtimeSocket`, else the kubelet's
    /// `containerRuntimeEndpoint`; absent where neither is set, so that it has to be found.
    pub fn runtime_endpoint(&self) -> Option<(String, &Origin)> {
        let own = self.machine.runtime_socket.as_ref();
        let own = own.map(|path| (path.to_string_lossy().into_owned(), self.origin("machine.runtimeSocket")));
        own.or_else(|| self.of_kubelet("containerRuntimeEndpoint").map(|(text, origin)| (text.to_owned(), origin)))
    }

    /// Where the manifests of static pods are: `machine.staticPods`, else the kubelet's `staticPodPath`, where that leads to an
    /// absolute path. Absent where nothing says which pods are on this node: then pods are no workloads.
    pub fn static_pods(&self) -> Option<PathBuf> {
        let of_kubelet = || Some(PathBuf::from(&self.kubelet.static_pod_path)).filter(|path| path.is_absolute());
        let path = self.machine.static_pods.clone().or_else(of_kubelet);
        path.filter(|_| self.machine.knows_pods())
    }

    /// The name that the kubelet's command line gives this node (`--hostname-override`), where that is read.
    pub fn hostname_override(&self) -> Option<&str> {
        self.of_kubelet("hostname-override").map(|(name, _)| name)
    }

    /// The cgroup below which the kubelet keeps its pods (`cgroupRoot`); empty for the places that are known.
    pub fn cgroup_root(&self) -> &str {
        self.kubelet.settings.scalar("cgroupRoot").map_or("", |(root, _)| root)
    }

    /// A text of the kubelet's that is not empty.
    fn of_kubelet(&self, key: &str) -> Option<(&str, &Origin)> {
        self.kubelet.settings.scalar(key).filter(|(text, _)| !text.is_empty())
    }

    /// Why `run` evicts nothing for the memory of the whole machine, if so. Thresholds of slices hold nevertheless.
    pub fn unwatched_memory(&self) -> Option<&'static str> {
        let why = "no threshold on memory.available is configured: `run` never evicts for this machine's memory";
        self.policy.thresholds_on(Scope::Node, Signal::MemoryAvailable).next().is_none().then_some(why)
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No source sets it.
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
        /// Its name in that place: `--eviction-hard`, or `kubeletArguments.eviction-hard`.
        flag: String,
        /// The file with the command line.
        file: String,
        /// The line in it; absent where it has none.
        line: Option<u64>,
    },
    /// Plimsoll's own command line: the flag, with its dashes.
    Flag(String),
    /// Plimsoll's environment: the variable.
    Environment(String),
}

impl Origin {
    /// The file and the line, as far as there are any.
    pub fn place(&self) -> (&str, Option<u64>) {
        match self {
            Self::Default => ("default", None),
            Self::File { file, line } | Self::DropIn { file, line } => (file, Some(*line)),
            Self::KubeletFlag { file, line, .. } => (file, *line),
            Self::Flag(flag) => (flag, None),
            Self::Environment(variable) => (variable, None),
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
            Self::Flag(flag) => f.write_str(flag),
            Self::Environment(variable) => write!(f, "{variable} in the environment"),
        }
    }
}
