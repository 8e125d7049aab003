//! A kubelet's (1.36) configuration in all its forms, and its thresholds: equal to the kubelet's own, with errors in its
//! own words, since users search for these words. Where the kubelet has a quirk, it is kept and documented.
//!
//! `read` takes files, `words` and `arguments` take command lines; both fill `settings`, which `typed` types.
//! Nothing here opens a file. Settings that Plimsoll does not use are read too, so that a configuration is understood
//! whole.

pub(crate) mod arguments;
mod containerfs;
mod flag;
mod keys;
pub(crate) mod read;
pub(crate) mod settings;
pub(crate) mod threshold;
pub(crate) mod typed;
pub(crate) mod words;

pub(crate) use containerfs::room;
pub use containerfs::{DiskLayout, derive_containerfs};
pub use flag::{MalformedPair, parse_map_flag};
pub(crate) use keys::IGNORE_EVICTION;
pub use keys::{DEFAULT_EVICTION_HARD, KEYS, Key, Role, Shape};
pub use plimsoll_units::{DurationError, FloatError, parse_duration, parse_float32};
pub use settings::{Entry, Setting, SettingValue, Settings};
pub use threshold::{EvictionSettings, SettingError, ThresholdError, parse_all_thresholds, parse_thresholds};
pub use typed::{Kubelet, RESERVABLE};
