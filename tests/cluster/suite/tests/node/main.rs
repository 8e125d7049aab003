//! The agent as it is installed on a real node, beside a kubelet: `cargo xtask test --long
//! cluster-6.12 signals-6.12 outages-6.12 order-6.12 kubelets-6.12 cluster-7.2` runs these.
//!
//! The node is a virtual machine with containerd and a kubelet, without hardware virtualisation, so that times are bounded
//! generously, and what is asserted is what the API has in the end and in which order. There is one node: each test has it
//! for itself ([`turn::Turn`]), from a state that it makes itself, so that they can be run alone and in any order.

mod allocatable;
mod budgets;
mod cache;
mod cost;
mod crowd;
mod daemons;
mod disks;
mod dry_run;
mod eviction;
mod figures;
mod kill_switch;
mod kubelets;
mod limits;
mod many;
mod outages;
mod outside;
mod overlay;
mod pids;
mod priorities;
mod race;
mod refusals;
mod removal;
mod restarts;
mod scheduling;
mod service_manager;
mod shapes;
mod soft;
mod standard;
mod statics;
mod timeline;
mod tokens;
mod turn;
mod upgrade;
mod user_namespaces;
mod view;

use std::time::Duration;

/// The node, as `xtask/src/cluster/control_plane.rs` names it.
const NODE: &str = "node-1";
/// How long the kubelet, containerd and the agent may take for anything.
const PATIENCE: Duration = Duration::from_mins(4);
const CONDITION: &str = "PlimsollMemoryPressure";
const TAINT: &str = "plimsoll.dev/memory-pressure";
