//! The forms of configuration, Plimsoll's own and a kubelet's, read into one typed [`Configuration`] with the origin of
//! each value.
//!
//! Thresholds have the names of KubeletConfiguration; what concerns this machine and no kubelet is under `machine`. They
//! are read from Plimsoll's own YAML and from a kubelet's sources ([`Sources`]): its file and drop-ins, its flags, its
//! answer to configz, OpenShift's `node-config.yaml`. Every error is reported, not only the first; each names the key,
//! the value and what was expected. No file is opened but those that are named and those that a kubelet's command line
//! names. An unknown key in Plimsoll's own file is an error.
//!
//! ```
//! let text = "evictionHard: {memory.available: 5%}\nmachine: {workloads: [{match: 'system.slice/*'}]}";
//! let configuration = plimsoll_config::parse(text, "example.yaml").expect("it is valid");
//! assert_eq!(configuration.machine.workloads[0].pattern.as_str(), "system.slice/*");
//! ```

#![forbid(unsafe_code)]

mod check;
mod cluster;
mod convert;
mod deserialize;
mod duration;
mod error;
mod files;
mod flags;
mod idle;
pub mod kubelet;
mod load;
mod machine;
mod model;
mod policy;
mod scalar;
#[cfg(test)]
mod schema_tests;
mod show;
mod slices;
mod snapshot;
mod sources;
mod tree;

pub use check::{
    Findings, Headroom, Node, Plausible, Pod, StaticPod, check, implausible_thresholds, parse_static_pod, shown,
};
pub use cluster::{Cluster, StandardConditions, Taint};
pub use convert::{Converted, Form, Lost, convert};
pub use duration::parse_duration;
pub use error::{ConfigError, Problem};
pub use files::unreadable;
pub use flags::{FLAGS, Flag, Override, Overrides, unknown_variables};
pub use machine::{
    Brake, BrakeMode, GraceOfMemory, LogFormat, Machine, OfMemory, Slice, SourceChoice, Swap, Throttled, Workload,
};
pub use model::{Configuration, Origin, Text};
pub use scalar::is_node_name;
pub use show::{Row, rows};
pub use slices::WatchedSlice;
pub use snapshot::Snapshot;
pub use sources::{
    Report, RunningKubelet, Sources, Texts, examine, examine_and_keep, examine_anew, examine_texts, load_kept, parse,
};
