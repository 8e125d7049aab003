//! What tests of a cluster share: where it is ([`Cluster`]), requests to its API server by whichever user ([`Api`]), and
//! what is installed into it, with which rights ([`RIGHTS`]); of one that has a node, its console ([`Console`]), its kubelet,
//! and processes that are stopped for a time ([`Stopped`]).
//!
//! The client is not the agent's own, so that no mistake is made on both sides. Nothing here waits longer than it says.

#![forbid(unsafe_code)]

mod api;
mod cluster;
mod host;
mod rights;

pub use api::{Answer, Api, Format, Unfinished};
pub use cluster::{Cluster, wait_for};
pub use host::{Console, Stopped};
pub use rights::{RIGHTS, Right};
