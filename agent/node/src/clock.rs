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

/// Nanoseconds since 1970 at the monotonic clock's zero, by what the clock of the wall shows now: added to a time of
/// [`monotonic`] they are Unix time. Absent where a clock is beyond 2262.
pub fn epoch_ns() -> Option<i64> {
    let now = clock_gettime(ClockId::Realtime);
    let since_1970 = now.tv_sec.checked_mul(1_000_000_000)?.checked_add(now.tv_nsec)?;
    since_1970.checked_sub(i64::try_from(monotonic().0).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn it_does_not_run_backwards() {
        let earlier = monotonic();
        assert!(earlier.0 > 0);
        assert!(monotonic() >= earlier);
    }

    #[test]
    fn a_time_of_the_monotonic_clock_is_one_of_the_wall() {
        let now = i64::try_from(monotonic().0).expect("it fits") + epoch_ns().expect("it is before 2262");
        let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(now.cast_unsigned());
        let apart = SystemTime::now().duration_since(time).unwrap_or_else(|error| error.duration());
        assert!(apart < Duration::from_mins(1), "{apart:?}");
    }
}
