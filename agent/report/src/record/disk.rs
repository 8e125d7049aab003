//! Disks: their thresholds, and the condition that follows.

use core::time::Duration;
use plimsoll_policy::ThresholdStatus;
use plimsoll_policy::kubelet::Signal;
use plimsoll_units::MonotonicNs;
use serde::{Deserialize, Serialize};

/// Sent by the watching thread when something has changed, and from time to time while a disk is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskRecord {
    /// A threshold that is crossed, or was until now.
    Threshold {
        /// What it is on.
        signal: Signal,
        /// How long it is crossed before it is met; zero for a hard one.
        grace: Duration,
        /// Its state. Its place is that among the thresholds on disks.
        status: ThresholdStatus,
    },
    /// The condition `DiskPressure`.
    Pressure {
        /// Whether it is true.
        holds: bool,
        /// Whether there are figures of nodefs, imagefs and containerfs.
        read: [bool; 3],
        /// When this was judged.
        at: MonotonicNs,
    },
}

/// The disks of [`DiskRecord::Pressure`], in that order.
pub const DISKS: [&str; 3] = ["nodefs", "imagefs", "containerfs"];
