//! Events of this machine's kernel, as they happen.
//!
//! A [`Source`] wakes its owner: eBPF programs that watch charges, reclaim, stall, OOM kills, forks and cgroups; a PSI
//! trigger; or a timer. [`ladder`] starts the best one that this machine allows and reports why a better one was not
//! taken. A [`Wake`] never carries a decision: it says that a sample is due.
//!
//! Nothing here decides, kills or brakes, and nothing between a wake and the next [`Source::arm`] allocates, opens a
//! file or formats text.

#![deny(unsafe_code)]

#[cfg(feature = "bench")]
pub mod bare;
pub mod btf;
mod config;
#[cfg(feature = "bench")]
pub mod cost;
mod ebpf;
mod error;
pub mod hooks;
mod kind;
mod ladder;
mod layout;
mod mapped;
mod packet_rings;
mod poll;
pub mod probe;
mod psi;
pub mod rules;
mod source;
pub mod stopped;
mod symbols;
mod thresholds;
mod wake;

pub use config::Config;
pub use ebpf::EbpfSource;
pub use error::SenseError;
pub use kind::Kind;
pub use ladder::{SourceAttempt, ladder};
pub use packet_rings::{PacketRing, PacketRings};
pub use poll::Polling;
pub use psi::{PsiTrigger, TriggerSpec};
pub use source::{Descriptor, Health, HealthReader, Hook, HookState, Interest, MAX_DESCRIPTORS, ProgramStats, Source};
pub use thresholds::{
    ArmedThresholds, BrakeMark, CGROUP_PACE, Generation, MAX_BRAKES, MAX_SLICES, NodeThreshold, SliceThreshold,
    TaskThreshold,
};
pub use wake::{
    CgroupChange, CommandName, CrossedThreshold, LINEAGE, OomScope, Reclaimer, WAKES_A_DRAIN, Wake, WakeList,
};
