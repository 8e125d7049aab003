//! What the watching thread must not do between a wake and its next wait, checked: in builds for tests only.

#[cfg(feature = "fault-injection")]
pub(super) use crate::fault_injection::{begin, end, filter, loses};

/// A wake: allocations count from here.
#[cfg(not(feature = "fault-injection"))]
#[inline]
pub(super) fn begin() {}

/// Back to waiting: there must have been none.
#[cfg(not(feature = "fault-injection"))]
#[inline]
pub(super) fn end() {}

/// Whether a wake is taken for one that never came.
#[cfg(not(feature = "fault-injection"))]
#[inline]
pub(super) fn loses(_: &plimsoll_sense::Wake) -> bool {
    false
}

/// Bars the calling thread from every system call that it does not need any more.
#[cfg(not(feature = "fault-injection"))]
#[expect(clippy::unnecessary_wraps, reason = "with the feature it can fail")]
pub(super) fn filter() -> anyhow::Result<()> {
    Ok(())
}
