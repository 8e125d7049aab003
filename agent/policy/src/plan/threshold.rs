//! Thresholds held against an observation, and by which readings they are crossed.

use crate::kubelet::{Amount, Limit};
use plimsoll_units::MonotonicNs;
use serde::{Deserialize, Serialize};

/// Which of the two readings of available memory are below a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Case {
    /// None is: nothing is done.
    Neither,
    /// Both are, or the only one that there is: evict.
    Both,
    /// Only the kubelet's is. Cache that could be dropped is in the way: reclaim first, and evict only if that did not
    /// help and tasks stall.
    KubeletOnly,
    /// Only the kernel's own is. The kubelet's figure rises while memory runs out, because reclaim turns active file
    /// pages inactive, and this is where the OOM killer is first: evict.
    MemAvailableOnly,
}

impl Case {
    /// The case of two readings, where the kernel's may be missing.
    pub const fn of(kubelet_below: bool, kernel_below: Option<bool>) -> Self {
        match (kubelet_below, kernel_below) {
            (true, Some(true) | None) => Self::Both,
            (true, Some(false)) => Self::KubeletOnly,
            (false, Some(true)) => Self::MemAvailableOnly,
            (false, Some(false) | None) => Self::Neither,
        }
    }
}

/// What an action is done for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// This threshold of the scope is met.
    Threshold(u32),
    /// Swap is short, pages come back from it, and all tasks stall.
    Swap,
    /// The pod is over this limit of its own.
    Limit(Limit),
}

/// A threshold held against the observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThresholdStatus {
    /// Which: a threshold, or swap.
    pub why: Why,
    /// Where it is.
    pub at: Amount,
    /// The threshold and its minimum reclaim: what should be available once it was met.
    pub target: Amount,
    /// What is available, by the lowest reading that is below; the kubelet's where none is.
    pub available: Amount,
    /// Which readings are below the threshold, or below the target if it was met before and is not resolved. Only
    /// memory has two.
    pub case: Case,
    /// Since when without a break; absent above the threshold.
    pub since: Option<MonotonicNs>,
    /// It is below, and its grace period is over.
    pub is_met: bool,
}

impl ThresholdStatus {
    /// What is missing to the target.
    pub fn missing(&self) -> Amount {
        (self.target - self.available).max(Amount::ZERO)
    }
}

/// By which readings the thresholds behind a condition are crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum ConditionCase {
    /// At least one threshold by both, or by the only one that there is.
    Both,
    /// All by the kubelet's alone.
    KubeletOnly,
    /// All by the kernel's own alone.
    MemAvailableOnly,
    /// Some by the kubelet's alone and others by the kernel's alone: nothing is below by both.
    Mixed,
}
