//! From the crossing of a threshold until memory is back.

use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};

/// Sent by the watching thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ThresholdRecord {
    /// An event: an armed threshold was crossed. Sent for each event, also where nothing had to be done.
    Crossed {
        /// When, by the kernel.
        crossed: MonotonicNs,
        /// When the core was awake.
        awake: MonotonicNs,
    },
    /// What grew was stopped, by brake or kill: the first time after a crossing.
    Stopped {
        /// When the threshold was crossed, by the kernel; absent where there was no event.
        crossed: Option<MonotonicNs>,
        /// When what grew was asked to stop.
        at: MonotonicNs,
        /// How far below the threshold memory was then.
        past_threshold: Bytes,
    },
    /// Memory is above the threshold again after something was done.
    MemoryBack {
        /// When the threshold was crossed, by the kernel; absent where there was no event.
        crossed: Option<MonotonicNs>,
        /// When it was seen to be back.
        at: MonotonicNs,
        /// The most that memory was below the threshold in any sample.
        past_threshold: Bytes,
    },
}
