//! From a YAML file and flags to one typed [`Configuration`], with where each value came from.
//!
//! Thresholds carry the names that KubeletConfiguration gives them; what is the machine's own is under `machine`. Every
//! error is reported, not the first only, and each names the key, the value and what was expected. Nothing here opens
//! anything but the file it was told to read, and nothing is guessed: an unknown key is an error.
//!
//! ```
//! let text = "evictionHard: {memory.available: 5%}\nmachine: {workloads: [{match: 'system.slice/*'}]}";
//! let configuration = plimsoll_config::parse(text, "example.yaml").expect("it is in order");
//! assert_eq!(configuration.workloads[0].pattern.as_str(), "system.slice/*");
//! ```

#![forbid(unsafe_code)]

mod duration;
mod error;
pub mod kubelet;
mod load;
mod model;
mod pattern;
mod quantity;
mod tree;

pub use duration::parse_duration;
pub use error::{ConfigError, Problem};
pub use load::{Overrides, load, parse};
pub use model::{Brake, BrakeMode, Configuration, LogFormat, Origin, Slice, SourceChoice, Workload};
pub use pattern::{Pattern, PatternError};
pub use quantity::{Quantity, QuantityError};
