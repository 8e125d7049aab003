//! Figures of containers, and of workloads that are no pods.

use plimsoll_inventory::{ContainerFigures, Ended};
use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};

/// Sent by the inventory thread. From `Begin` to `End` come the figures of those that are reported: all others have none.
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
