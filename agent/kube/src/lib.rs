//! What the Kubernetes API server says of a node's pods, and what is reported to it of evictions, conditions and taints.
//!
//! The only crate that knows the kube client. [`Access`] has where the API server is and by what it is trusted, [`client`]
//! makes one HTTP/2 connection over TLS out of it, which [`Dial`] opens: the process that uses it may connect to nothing.
//! [`watch`] follows the pods of one node through any gap, [`list`] has them once, [`watch_node`] follows the node's object.
//! [`Reporter`] writes what was done there: each eviction in the order that the kubelet lets stand ([`eviction`]), conditions
//! and taints of Plimsoll's own ([`node`]), the kubelet's own conditions where that is configured ([`Standard`]), and other
//! events of the node and its pods ([`Incident`]), within a budget of writes ([`Budget`]). [`stale`] finds and removes what agents
//! that are gone have left. [`missing_rights`] says what the token may not do of that. Nothing here decides anything, and nothing
//! waits for what is written
//! ([decision 16](../../docs/decisions/0016-the-api-server-beside-the-kubelet.md)).
//!
//! # What is trusted
//!
//! The API server is, once its certificate is that of the configured authority. Names and annotations that it passes on
//! were written by the authors of pods.

#![forbid(unsafe_code)]

mod access;
mod budget;
mod connection;
mod dial;
mod ended;
mod error;
mod event;
pub mod eviction;
mod kept;
pub mod node;
mod own_node;
mod pods;
mod received;
mod reporter;
mod rights;
pub mod stale;
mod standard;
#[cfg(test)]
mod testing;

pub use access::{Access, SERVICE_ACCOUNT};
pub use budget::Budget;
pub use connection::client;
pub use dial::{Dial, dial_to};
pub use ended::{evicted_by_kubelet, oom_killed};
pub use error::{AccessError, Refusal, is_gone};
pub use event::PodReference;
pub use eviction::{Eviction, Progress};
pub use jiff::Timestamp;
pub use k8s_openapi::api::core::v1::Pod;
pub use kept::kept;
pub use kube::{Client, Result};
pub use node::{Condition, Kind, TaintEffect};
pub use own_node::{KILL_SWITCH, NodeView, watch_node};
pub use pods::{Change, MOST_PODS, Pods, list, watch};
pub use reporter::{Decision, Degraded, Entry, HEARTBEAT, Incident, IncidentReason, Outcome, Report, Reporter};
pub use rights::{Right, missing_rights};
pub use standard::Standard;

/// The name under which Plimsoll owns fields of objects (`metadata.managedFields`) and reports events.
pub const MANAGER: &str = "plimsoll";

/// The domain of annotations and taints.
pub const DOMAIN: &str = "plimsoll.dev";
