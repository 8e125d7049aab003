//! A plan, in parts.

use plimsoll_policy::kubelet::Conditions;
use plimsoll_policy::{Action, Attribution, Deficit, MemoryReading, Outcome, Ranked, Scope, ThresholdStatus};
use plimsoll_units::MonotonicNs;
use serde::{Deserialize, Serialize};

/// Why the core took a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// An event of the kernel side: an armed threshold was crossed.
    Threshold,
    /// Reclaim began.
    Reclaim,
    /// The pressure trigger fired.
    Psi,
    /// The poll's period was over.
    Poll,
    /// The slow timer, which samples with or without events.
    Timer,
    /// An action ended, or a time that was set has come.
    FollowUp,
}

/// A part of a plan, sent by the watching thread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum PlanRecord<'a> {
    /// A plan begins; its parts follow, then [`PlanRecord::End`].
    Begin {
        /// Counts up from 1.
        number: u64,
        /// Why the core took a sample.
        cause: Cause,
        /// When the kernel saw the crossing, if that woke the core.
        crossed: Option<MonotonicNs>,
        /// When the core was awake.
        awake: MonotonicNs,
        /// The plan is only reported, not carried out: another agent acts, or this machine can only be watched.
        shadow: bool,
        /// What it is about.
        scope: Scope,
        /// When its observation was taken.
        taken: MonotonicNs,
        /// When it was made.
        made: MonotonicNs,
        /// In one word.
        outcome: Outcome,
        /// What was read.
        memory: Option<MemoryReading>,
        /// Conditions of its scope.
        conditions: Conditions,
        /// Conditions of the node after it, with what all pods together lack.
        of_node: Conditions,
        /// What is missing.
        deficit: Option<Deficit>,
        /// Evicting does not help.
        is_futile: bool,
        /// What grew, inside and outside of workloads.
        attribution: Option<Attribution>,
        /// Candidates for which there was no room.
        overlooked: u32,
        /// When it decides again even without an event.
        recheck_at: Option<MonotonicNs>,
    },
    /// A threshold.
    Threshold {
        /// Its state.
        status: ThresholdStatus,
        /// The outcome is about this one.
        acting: bool,
    },
    /// A candidate: each one that is acted on, and the next few in order.
    Ranked {
        /// With the keys that ranked it.
        ranked: Ranked,
        /// Its cgroup's path below the root.
        path: &'a [u8],
    },
    /// A thing to do; workloads by the index that their [`PlanRecord::Ranked`] carries.
    Action(Action),
    /// The plan is complete.
    End,
}
