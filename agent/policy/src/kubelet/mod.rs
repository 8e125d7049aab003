//! The policy `kubelet`: decision for decision what the eviction manager of Kubernetes 1.36.3 does on linux/amd64.
//!
//! Where that code has a quirk, the quirk is kept, and the comment beside it names the function it comes from. What it
//! leaves to chance (it walks hash maps) is always decided in the same way here, by one of its own possible answers:
//! hard before soft, then the order of the configuration.
//!
//! Nothing here reads a file or a clock or kills, and nothing renders a text.

mod limits;
mod manager;
mod pod;
mod ranking;
mod reclaim;
mod signals;
mod threshold;

pub use limits::{Limit, over_limit};
pub use manager::AT_ONCE_SECONDS;
pub(crate) use manager::Kept;
pub use manager::{Conditions, Config, Eviction, Observation, Outcome, Plan, State, Why, after_reclaim, decide};
pub use plimsoll_units::Amount;
pub use pod::{
    Amounts, ContainerLimit, ContainerStats, Critical, InitContainer, Manages, Number, Pod, PodSpec, PodStats,
    QosClass, Requirements, Usage, Volume, VolumeStats,
};
pub(crate) use ranking::Measured;
pub use ranking::{DiskLayout, Ranked, Verdict, compare, rank};
pub use reclaim::Reclaim;
pub use signals::{
    Condition, FsStats, MemoryStats, NodeStats, PidStats, Reading, Readings, Resource, Signal, StatsTime,
};
pub use threshold::{Origin, Threshold, ThresholdAmount};
