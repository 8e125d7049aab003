//! From every form that a configuration is found in to one typed [`Configuration`], with where each value came from.
//!
//! Thresholds carry the names that KubeletConfiguration gives them; what is the machine's own is under `machine`. They
//! are read from Plimsoll's own YAML, and from what a kubelet goes by, so that one truth is kept: its file and drop-ins,
//! its flags, its answer to configz, OpenShift's `node-config.yaml` ([`Sources`]). Every error is reported, not the first
//! only, and each names the key, the value and what was expected. Nothing here opens anything but the files it was told
//! to read and those that a command line names, and nothing is guessed: an unknown key of our own is an error.
//!
//! ```
//! let text = "evictionHard: {memory.available: 5%}\nmachine: {workloads: [{match: 'system.slice/*'}]}";
//! let configuration = plimsoll_config::parse(text, "example.yaml").expect("it is in order");
//! assert_eq!(configuration.workloads[0].pattern.as_str(), "system.slice/*");
//! ```

#![forbid(unsafe_code)]

mod check;
mod convert;
mod document;
mod duration;
mod error;
mod files;
mod idle;
pub mod kubelet;
mod load;
mod model;
mod pods;
mod show;
mod snapshot;
mod sources;
mod tree;

pub use check::{
    Findings, Headroom, Node, Pod, StaticPod, check, not_a_list_of_pods, parse_pods, parse_static_pod, shown,
};
pub use convert::{Converted, Form, Lost, convert};
pub use duration::parse_duration;
pub use error::{ConfigError, Problem};
pub use load::Overrides;
pub use model::{Brake, BrakeMode, Configuration, LogFormat, Origin, Slice, SourceChoice, Text, Workload};
pub use show::{Row, rows};
pub use snapshot::Snapshot;
pub use sources::{Report, Sources, Texts, examine, examine_and_keep, examine_texts, load, load_kept, parse};
