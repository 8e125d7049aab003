//! What the signals read.

use core::time::Duration;

use plimsoll_policy::kubelet::{Readings, Signal};
use serde::{Deserialize, Serialize};

/// Sent by the watching thread when a reading has changed, and from time to time. A signal that was not read is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadingsRecord {
    /// Of each signal what is left, what there is in all, and when it was read, on the monotonic clock.
    pub readings: Readings,
    /// How long the thread that read a signal took for it, by the signal's place in [`Signal::ALL`].
    pub costs: [Option<Duration>; Signal::ALL.len()],
}
