//! What the watching thread must not do between a wake and its next wait, checked: in builds for tests only.

#[cfg(feature = "fault-injection")]
pub(super) use crate::fault_injection::{filter, lease_from, loses, without_allocation};

/// Runs what the thread does between a wake and its next wait, which must not allocate.
#[cfg(not(feature = "fault-injection"))]
#[inline]
pub(super) fn without_allocation<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Whether an event is dropped as if the kernel had lost it.
#[cfg(not(feature = "fault-injection"))]
#[inline]
pub(super) fn loses(_: &plimsoll_sense::Wake) -> bool {
    false
}

/// Until when the marks of the in-kernel brake hold, renewed now.
#[cfg(not(feature = "fault-injection"))]
#[inline]
pub(super) fn lease_from(now: plimsoll_units::MonotonicNs) -> plimsoll_units::MonotonicNs {
    now.after(super::BRAKE_LEASE)
}

/// Bars the calling thread from every system call that it does not need any more.
#[cfg(not(feature = "fault-injection"))]
#[expect(clippy::unnecessary_wraps, reason = "with the feature it can fail")]
pub(super) fn filter() -> anyhow::Result<()> {
    Ok(())
}
