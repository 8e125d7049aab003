//! Recordings run through a configuration: what would have been decided, which workloads would have been evicted, and why.
//!
//! [`read`] takes a trace of `plimsoll run`, or one or more saved answers of a kubelet's `/stats/summary`; [`run`]
//! takes it through the decision that the core makes. What came of a workload that the recorded agent evicted too is in
//! the recording. Another that would have been evicted is absent from everything that follows, and its memory then
//! counts as available. What a clean-up would have brought back is not known; it is taken to have brought nothing.
//!
//! Nothing here opens a file or reads a clock, and whatever is read, nothing panics.

#![forbid(unsafe_code)]

mod disks;
mod give_back;
mod read;
mod report;
mod run;
mod slots;
mod trace_frames;

pub use plimsoll_report::text::printable;
pub use plimsoll_report::{plan_fields, trace};
pub use read::{Recording, read};
pub use report::Turn;
pub use trace_frames::{node_stats, stats_time, workloads_of};

use plimsoll_config::Configuration;
use plimsoll_pods::Pod;
use plimsoll_policy::EvictionPolicy;
use plimsoll_policy::kubelet::DiskLayout;

/// What a recording is run through.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// Thresholds, limits, priorities.
    pub configuration: &'a Configuration,
    /// The eviction policy, in place of the configured one.
    pub eviction_policy: Option<EvictionPolicy>,
    /// Which disks there are, where what the statistics seem to say is wrong.
    pub layout: Option<DiskLayout>,
}

/// Runs a recording and gives each turn to `each`. `pods` are what a list of pods adds to a kubelet's statistics:
/// requests, priorities, protection.
pub fn run(recording: &Recording, pods: Option<&[Pod]>, settings: &Settings<'_>, each: &mut dyn FnMut(&Turn<'_>)) {
    // What follows from the configured eviction policy follows from this one.
    let changed = settings.eviction_policy.map(|policy| settings.configuration.clone().with_eviction_policy(policy));
    let settings = &Settings { configuration: changed.as_ref().unwrap_or(settings.configuration), ..*settings };
    match recording {
        Recording::Trace(trace) => run::run_trace(trace, settings, each),
        Recording::Summaries(summaries) => run::run_summaries(summaries, pods, settings, each),
    }
}
