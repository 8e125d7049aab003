//! What to do about what was observed.
//!
//! [`decide`] takes an [`Observation`] of the node or a slice and writes a [`Plan`]. It reads no clock and no file,
//! allocates nothing and prints nothing: storage is sized beforehand, reasons are typed, and [`text`] renders them
//! later, on another thread. The same configuration, state and observation always give the same plan.
//!
//! The unit of decision is a [`Workload`]: a cgroup, with pod facts or without. There are two implementations
//! ([`EvictionPolicy`]): the engine, which `plimsoll` and `openshift3` are orders of, and [`kubelet`], decision for
//! decision what the kubelet's eviction manager does. The engine's rules, in short:
//! - Available memory is judged by two readings, the kubelet's formula and the kernel's own estimate ([`Case`]).
//! - A hard threshold acts at once, a soft one when its grace period is over; hard is first.
//! - Victims are ranked as the kubelet ranks them, but by owner: over the request first, then low priority, then those
//!   that grew, then how far over.
//! - As many victims are taken as the deficit needs, never more, and of no more owners a minute than configured.
//! - Memory that is already coming back, from what is terminating and not stuck, is not asked for again.
//! - What is protected is never chosen; growth that no evictable workload caused costs no other ([`Attribution`]).

#![forbid(unsafe_code)]

pub mod admission;
mod config;
mod decide;
mod engine;
mod eviction_policy;
mod kept;
pub mod kubelet;
mod kubelet_policy;
pub mod message;
mod observation;
pub mod oom_score;
mod plan;
mod reason;
pub mod room;
mod scope;
pub mod selector;
pub mod shutdown;
pub mod text;

pub use config::{Config, SliceThresholds, SwapThreshold};
pub use decide::{State, decide, is_unaccounted, ranking};
pub use eviction_policy::EvictionPolicy;
pub use kept::{Keep, Kept};
pub use observation::{
    Image, Key, MemoryReading, Observation, Owner, OwnerUid, Protected, Reclaimed, Stall, Swap, Terminating, Uid,
    Workload,
};
pub use plan::{
    Action, Attribution, Case, ConditionCase, Deficit, Growth, NoVictim, Outcome, Plan, Ranked, ReclaimOrder, Removal,
    Stage, ThresholdStatus, Verdict, Why,
};
pub use scope::{Scope, SliceId, SliceSet};
