//! The one clock that decisions are taken by, and the one that people read.

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

/// Milliseconds since 1970, by the clock of the wall: for what is reported, since it can be set at any time. Zero before 1970.
pub fn wall_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    part(now.tv_sec).saturating_mul(1000).saturating_add(part(now.tv_nsec) / 1_000_000)
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
