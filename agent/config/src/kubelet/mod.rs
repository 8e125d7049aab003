//! Eviction thresholds as the kubelet (1.36) parses them: equal thresholds, and errors in its own words, since users
//! look for these words. Where the kubelet has a quirk, it is kept and said.
//!
//! Signals beyond those that are acted on can be parsed: what a kubelet's configuration says is to be understood whole.

mod containerfs;
mod flag;
mod golang;
mod keys;
mod threshold;

pub use containerfs::{DiskLayout, derive_containerfs};
pub use flag::{MalformedPair, parse_map_flag};
pub use golang::{DurationError, FloatError, parse_duration, parse_float32};
pub use keys::{DEFAULT_EVICTION_HARD, KEYS, Key, Role, Shape};
pub use threshold::{
    EvictionSettings, EvictionSignal, EvictionThreshold, Operator, SettingError, ThresholdError, ThresholdValue,
    parse_all_thresholds, parse_thresholds,
};
