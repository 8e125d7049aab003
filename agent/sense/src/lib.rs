//! What the kernel says about this machine, as it happens.
//!
//! A [`Source`] wakes its owner: eBPF programs that watch charges, reclaim, stall, OOM kills, forks and cgroups; a PSI
//! trigger; or a timer. [`ladder`] starts the best one that this machine allows and says why a better one was not
//! taken. A [`Wake`] never carries a decision: it says "look now".
//!
//! Nothing here decides, kills or brakes, and nothing between a wake and the next [`Source::arm`] allocates, opens a
//! file or formats text.

#![deny(unsafe_code)]

#[cfg(feature = "bench")]
pub mod bare;
pub mod btf;
mod config;
mod ebpf;
mod error;
mod ladder;
mod layout;
mod mapped;
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
pub use ladder::{SourceAttempt, ladder};
pub use poll::Polling;
pub use psi::{PsiTrigger, TriggerSpec};
pub use source::{
    Descriptor, Health, HealthReader, Hook, HookState, Interest, Kind, MAX_DESCRIPTORS, ProgramStats, Source,
};
pub use thresholds::{
    ArmedThresholds, BrakeMark, Generation, MAX_BRAKES, MAX_SLICES, NodeThreshold, SliceThreshold, TaskThreshold,
};
pub use wake::{ANCESTOR_LEVELS, CgroupChange, CrossedThreshold, OomScope, Reclaimer, WAKES_A_DRAIN, Wake, WakeList};
