//! Figures of containers, and of workloads that are no pods, and what is done about those that are throttled.

use core::time::Duration;

use plimsoll_inventory::{ContainerFigures, Ended};
use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};

/// Sent by the inventory thread, but for [`Self::Victim`]. From `Begin` to `End` come the figures of those that are
/// reported: all others have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerRecord<'a> {
    /// memory.high throttles it from now on.
    Throttled {
        /// Its cgroup.
        path: &'a [u8],
        /// When that was seen.
        at: MonotonicNs,
        /// Its memory.high; absent where it could not be read.
        high: Option<Bytes>,
        /// Its figures.
        figures: ContainerFigures,
    },
    /// It is throttled no more.
    Relieved {
        /// Its cgroup.
        path: &'a [u8],
        /// When that was seen.
        at: MonotonicNs,
        /// What it was in all.
        ended: Ended,
        /// The cgroup was removed, or is watched no more.
        is_gone: bool,
    },
    /// Its memory.high is ordered to be raised.
    Raising {
        /// Its cgroup.
        path: &'a [u8],
        /// What it was.
        from: Bytes,
        /// What it becomes.
        to: Bytes,
        /// It is not ordered, because this agent does not act.
        shadow: bool,
        /// When.
        at: MonotonicNs,
    },
    /// Its memory.high was raised, by the kernel's word.
    Raised {
        /// Its cgroup.
        path: &'a [u8],
        /// To this.
        high: Bytes,
        /// So long after it was ordered.
        took: Duration,
        /// When that was seen.
        at: MonotonicNs,
    },
    /// Its memory.high was ordered to be raised, and is not.
    NotRaised {
        /// Its cgroup.
        path: &'a [u8],
        /// When that was seen.
        at: MonotonicNs,
    },
    /// It is throttled although its memory.high is as high as it may be.
    InVain {
        /// Its cgroup.
        path: &'a [u8],
        /// For so long without a break.
        lasted: Duration,
        /// When that was seen.
        at: MonotonicNs,
    },
    /// Its pod is evicted for that.
    Victim {
        /// The number by which its kill is reported.
        plan: u64,
        /// The pod's cgroup.
        path: &'a [u8],
        /// How long one of its containers is throttled.
        lasted: Duration,
        /// It is only reported, because this agent does not act.
        shadow: bool,
        /// When.
        at: MonotonicNs,
    },
    /// Figures follow.
    Begin {
        /// How many containers are throttled, those too of which no figures follow.
        throttled: u32,
    },
    /// Of one.
    Figures {
        /// Its cgroup.
        path: &'a [u8],
        /// Its figures.
        figures: ContainerFigures,
    },
    /// These were all.
    End,
}

/// The most containers of which figures are reported at a time.
pub const REPORTED_CONTAINERS: usize = 16;
