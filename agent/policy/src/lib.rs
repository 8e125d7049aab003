//! What to do about what was seen.
//!
//! [`decide`] takes an [`Observation`] and writes a [`Plan`]. It reads no clock and no file, allocates nothing and
//! prints nothing: storage is sized beforehand, reasons are typed, and [`text`] renders them later, on another thread.
//! The same configuration, state and observation always give the same plan.
//!
//! The rules, in short:
//! - Available memory is judged by two readings, the kubelet's formula and the kernel's own estimate ([`Case`]).
//! - A hard threshold acts at once, a soft one when its grace period is over; hard goes first.
//! - Victims are ranked as the kubelet ranks them: over the reservation first, then low priority, then how far over.
//! - As many victims are taken as the deficit needs, never more, and never more a minute than configured.
//! - Memory that is already coming back, from who is going and not stuck, is not asked for again.
//! - Who is protected is never chosen; growth that no evictable workload caused costs no innocent ([`Attribution`]).
//!
//! That is the machine's side: cgroups, memory, within milliseconds. Where there are pods and their statistics, a rule
//! book decides once a turn over all of the kubelet's signals ([`EvictionPolicy`]): [`kubelet`], [`plimsoll`] or
//! [`openshift3`].

#![forbid(unsafe_code)]

pub mod admission;
mod config;
mod decide;
mod eviction_policy;
pub mod kubelet;
pub mod message;
mod observation;
pub mod oom_score;
pub mod openshift3;
mod plan;
pub mod plimsoll;
mod rank;
mod reason;
mod scope;
pub mod selector;
pub mod shutdown;
mod state;
pub mod text;

pub use config::{Config, InvalidPercentage, Line, Percentage, Signal, SliceThresholds, Threshold};
pub use decide::decide;
pub use eviction_policy::EvictionPolicy;
pub use observation::{Candidate, Going, Key, MemoryReading, Observation, Protected, Stall};
pub use plan::{
    Action, Attribution, Case, Conditions, Deficit, Fate, Judged, NoVictim, Outcome, Plan, Ranked, Readings,
};
pub use rank::ranking;
pub use scope::{Scope, SliceId, SliceSet};
pub use state::State;
