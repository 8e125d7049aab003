//! Disks: their thresholds, the condition that follows, what is removed for them, and pods that are evicted.

use core::time::Duration;
use plimsoll_inventory::{DiskReading, DiskRole, Limited, OrphanedPods, RemovalResult};
use plimsoll_policy::kubelet::{Amount, DiskLayout, Reclaim, Signal};
use plimsoll_policy::{Outcome, ReclaimOrder, Reclaimed, ThresholdStatus};
use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};

/// Sent by the watching thread when something has changed, and from time to time while a disk is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskRecord<'a> {
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
    /// What is dead or unused is to be removed.
    Order {
        /// The order's number; absent in shadow, where it is reported alone.
        number: Option<u64>,
        /// What for.
        signal: Signal,
        /// What.
        what: Reclaim,
        /// Images until they made up for so much; absent for all that are unused.
        bytes: Option<Bytes>,
        /// The last one removed nothing.
        is_repeated: bool,
        /// When.
        at: MonotonicNs,
    },
    /// What came of an order.
    Removed {
        /// What was removed, as it was reported.
        result: RemovalResult,
        /// How long it took.
        took: Duration,
        /// As the one before, it removed nothing.
        is_repeated: bool,
    },
    /// What the thresholds were held against, and what followed; only where a trace is written.
    Judged {
        /// All of it.
        judged: Judged,
        /// When.
        at: MonotonicNs,
    },
    /// Directories that are left of pods that are gone for good.
    Orphaned {
        /// What there is.
        pods: OrphanedPods,
        /// Their number or the first of them is another than at the last time.
        is_new: bool,
    },
    /// A pod is evicted for a disk, or for a limit of its own.
    Victim {
        /// The number that its kill is reported with.
        plan: u64,
        /// The pod's cgroup.
        path: &'a [u8],
        /// Why.
        cause: DiskCause,
        /// What of its local storage was measured.
        used: Option<Bytes>,
        /// What of it the pod requests.
        request: Bytes,
        /// It is reported only, not carried out.
        shadow: bool,
        /// When that was decided.
        at: MonotonicNs,
    },
}

/// What the thresholds on disks were held against, and what followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// What was left of each disk, by its role; absent where there was no figure, or one that is too old.
    pub figures: [Option<DiskReading>; DiskRole::ALL.len()],
    /// Which disks there are, as it was said last.
    pub layout: Option<DiskLayout>,
    /// How many images may be removed, as far as the policy was given them (`Image::MOST_UNUSED`).
    pub unused: u16,
    /// The last reclaim that had ended.
    pub reclaimed: Option<Reclaimed>,
    /// The plan in one word.
    pub outcome: Outcome,
    /// Whether the condition `DiskPressure` is true.
    pub has_pressure: bool,
    /// What the plan asks for.
    pub reclaim: Option<ReclaimOrder>,
}

/// Why a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskCause {
    /// A threshold, on the core's own figure.
    Threshold {
        /// What it is on.
        signal: Signal,
        /// What was left.
        available: Amount,
        /// Where it is.
        threshold: Amount,
    },
    /// A limit of the pod's own.
    Limit {
        /// What it is on; absent for the pod as a whole.
        on: Option<Limited>,
        /// The limit.
        limit: Amount,
    },
}

/// The disks of [`DiskRecord::Pressure`], in that order.
pub const DISKS: [&str; 3] = ["nodefs", "imagefs", "containerfs"];
