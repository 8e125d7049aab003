//! The one clock that decisions are taken by.

use plimsoll_units::MonotonicNs;
use rustix::time::{ClockId, clock_gettime};

/// Now, by `CLOCK_MONOTONIC`: the clock of the kernel side's own timestamps, which cannot be set.
pub fn monotonic() -> MonotonicNs {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither part is ever negative for this clock.
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
    MonotonicNs(seconds * 1_000_000_000 + nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_not_run_backwards() {
        let earlier = monotonic();
        assert!(earlier.0 > 0);
        assert!(monotonic() >= earlier);
    }
}
