//! What tests of a cluster share: where it is ([`Cluster`]), requests to its API server by whichever user ([`Api`]), and
//! what is installed into it.
//!
//! The client is not the agent's own, so that no mistake is made on both sides. Nothing here waits longer than it says.

#![forbid(unsafe_code)]

mod api;
mod cluster;

pub use api::{Answer, Api, Format};
pub use cluster::{Cluster, wait_for};
