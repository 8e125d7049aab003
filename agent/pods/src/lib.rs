//! Pods, and a kubelet's statistics of them, as the Kubernetes API writes them.
//!
//! Each is read once, by the API's own types, into what decisions, messages and reports take from it: [`Pod`] from the
//! API's object or from the manifest of a static pod, [`Summary`] from a kubelet's `/stats/summary`, [`Observed`] from both
//! of the API's. Unknown fields are accepted, because newer API servers write more of them; a value that cannot be used is an
//! error with its place.
//!
//! The core does not depend on this crate, and nothing here opens a file or reads a clock.

#![forbid(unsafe_code)]

mod json;
mod manifest;
mod observed;
mod pod;
mod spec;
mod stats;

pub use json::{ReadError, parse, pods_of, read_pods};
pub use manifest::read_manifest;
pub use observed::{Observed, observed};
pub use pod::{DaemonSet, Pod};
pub use spec::{Container, FieldError, Requirements, Resources, Spec, Volume};
pub use stats::{Summary, Time};
