//! Whether what was read of a workload still holds.

use core::time::Duration;

use plimsoll_node::cgroup::Handle;
use plimsoll_units::{Bytes, MonotonicNs};

/// A workload whose usage has changed by less since its figures were read rests: what one CPU charges beforehand (64 pages
/// of 4 KiB), or some ten tasks.
pub(crate) const MOVED: u64 = 256 << 10;
/// The figures of one that rests are read anew after so long: what one container in it takes another may have given back,
/// page cache may have become active, and limits may have changed.
pub(crate) const AT_REST: Duration = Duration::from_mins(30);

/// When figures of a workload were read, and what it used then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) at: MonotonicNs,
    pub(crate) usage: Bytes,
}

impl Seen {
    /// Whether figures would say much what they said: the workload's usage is what it was, by the last reading of any
    /// thread, and they are not old. Reads nothing.
    pub(crate) fn holds(self, workload: &Handle, now: MonotonicNs) -> bool {
        let is_same = |usage: Bytes| usage.0.abs_diff(self.usage.0) < MOVED;
        now.since(self.at) < AT_REST && workload.usage_seen().is_some_and(is_same)
    }
}
