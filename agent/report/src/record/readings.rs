//! What the signals read.

use plimsoll_policy::kubelet::Readings;
use serde::{Deserialize, Serialize};

/// Sent by the watching thread when a reading has changed, and from time to time. A signal that was not read is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadingsRecord {
    /// Of each signal what is left, and what there is in all.
    pub readings: Readings,
}
