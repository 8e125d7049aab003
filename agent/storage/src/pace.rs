//! When to look at a file system again.

use core::time::Duration;
use plimsoll_policy::kubelet::{FsStats, StatsTime};

/// How often a file system is looked at. One reading is one `statfs`, some microseconds on a local disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Never sooner than this.
    pub least: Duration,
    /// Where the threshold is near but nothing is written: how long the beginning of a write may go unseen.
    pub calm: Duration,
    /// Never later than this.
    pub most: Duration,
    /// Bytes, or inodes, that can be used up in a second at most.
    pub fastest: u64,
}

impl Pace {
    /// For bytes. Nothing that a node has today writes a file system full at more than 8 GiB in a second for long.
    pub const BYTES: Self = Self { fastest: 8 << 30, ..Self::BOUNDS };
    /// For inodes: what several processors make of empty files in a second.
    pub const INODES: Self = Self { fastest: 500_000, ..Self::BOUNDS };

    /// As late as the kubelet, which looks every ten seconds; five times a second at most.
    const BOUNDS: Self = Self {
        least: Duration::from_millis(200),
        calm: Duration::from_secs(1),
        most: Duration::from_secs(10),
        fastest: 1,
    };
}

/// What was left, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Bytes or inodes.
    pub left: u64,
    /// When it was read, in nanoseconds.
    pub at: StatsTime,
}

/// How long after `last` to read again, where `threshold` is what must be left.
///
/// - Not before the fastest writer could get there: reading sooner cannot show a crossing.
/// - Else after half the time that is left at the rate since `before`, so that a steady writer is met by ever closer
///   readings; after [`Pace::calm`] at most, because a writer may begin at any moment. A rate that is not known is the
///   fastest.
/// - Always within [`Pace::least`] and [`Pace::most`].
///
/// So a crossing goes unseen for [`Pace::calm`] at most, or [`Pace::least`] where the writer was seen before.
pub fn next_reading(pace: &Pace, threshold: u64, last: Left, before: Option<Left>) -> Duration {
    let distance = last.left.saturating_sub(threshold);
    let soonest = time_for(distance, pace.fastest);
    let rate = before.map_or(Some(pace.fastest), |before| rate_per_second(before, last));
    // Where nothing was used up there is no end in sight.
    let half = rate.map_or(Duration::MAX, |rate| time_for(distance, rate) / 2);
    soonest.max(half.min(pace.calm)).clamp(pace.least, pace.most.max(pace.least))
}

/// Less than this is written on any node all the time.
const BYTES: u64 = 1 << 20;
const INODES: u64 = 256;

/// Whether what is left on a file system is so much another amount than before that what takes room there may take another
/// one. Bytes that are not known may have moved. Inodes count where there are as many as before: xfs makes them as they are
/// needed, so that their number moves with the free bytes.
pub fn has_moved(before: &FsStats, now: &FsStats) -> bool {
    let bytes = before.available.zip(now.available).map(|(before, now)| before.abs_diff(now));
    let inodes = before.inodes_free.zip(now.inodes_free).filter(|_| before.inodes == now.inodes);
    bytes.is_none_or(|bytes| bytes >= BYTES) || inodes.is_some_and(|(before, now)| before.abs_diff(now) >= INODES)
}

/// What was used up in a second; `None` where nothing was, and all that can be where both are of the same time.
fn rate_per_second(before: Left, last: Left) -> Option<u64> {
    let used = before.left.checked_sub(last.left).filter(|used| *used > 0)?;
    let nanoseconds = u128::try_from(i128::from(last.at.0) - i128::from(before.at.0)).unwrap_or(0).max(1);
    Some(u64::try_from(u128::from(used) * 1_000_000_000 / nanoseconds).unwrap_or(u64::MAX).max(1))
}

/// How long `amount` lasts at so much in a second.
fn time_for(amount: u64, per_second: u64) -> Duration {
    let nanoseconds = u128::from(amount) * 1_000_000_000 / u128::from(per_second.max(1));
    u64::try_from(nanoseconds).map_or(Duration::MAX, Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: i64 = 1_000_000_000;

    const fn left(left: u64, second: i64) -> Left {
        Left { left, at: StatsTime(second * SECOND) }
    }

    #[test]
    fn the_pace_follows_the_distance_and_the_rate() {
        let pace = Pace { fastest: 1000, ..Pace::BYTES };
        for (threshold, last, before, milliseconds) in [
            // Far away: even the fastest writer needs 90 s.
            (10_000, left(100_000, 10), Some(left(100_000, 0)), 10_000),
            // The fastest writer needs 3 s.
            (10_000, left(13_000, 10), Some(left(13_000, 0)), 3_000),
            (10_000, left(13_000, 10), None, 3_000),
            // Near and at rest, or growing.
            (10_000, left(10_100, 10), Some(left(10_100, 0)), 1_000),
            (10_000, left(10_100, 10), Some(left(10_000, 0)), 1_000),
            // Near: 800 a second, and then 100 a second, with 400 to go.
            (10_000, left(10_400, 10), Some(left(18_400, 0)), 400),
            (10_000, left(10_400, 10), Some(left(10_500, 9)), 1_000),
            // Nearer, and unknown.
            (10_000, left(10_100, 10), Some(left(10_500, 9)), 200),
            (10_000, left(10_100, 10), None, 200),
            // Below the threshold, and with clocks that stand or run back.
            (10_000, left(5, 10), Some(left(5, 9)), 1_000),
            (10_000, left(5, 10), Some(left(6, 9)), 200),
            (10_000, left(10_100, 10), Some(left(10_200, 10)), 200),
            (10_000, left(10_100, 10), Some(left(10_200, 11)), 200),
        ] {
            let wait = next_reading(&pace, threshold, last, before);
            assert_eq!(wait, Duration::from_millis(milliseconds), "{threshold} {last:?} {before:?}");
        }
    }

    #[test]
    fn a_file_system_moves_by_bytes_or_inodes_in_either_direction_and_one_that_is_not_known_always() {
        let of = |available, inodes_free| FsStats { available, inodes_free, ..FsStats::default() };
        let before = of(Some(BYTES), Some(INODES));
        for (now, expected) in [
            (before, false),
            (of(Some(BYTES * 2 - 1), Some(1)), false),
            (of(Some(BYTES * 2), Some(INODES)), true),
            (of(Some(0), Some(INODES)), true),
            (of(Some(BYTES), Some(INODES * 2)), true),
            (of(Some(BYTES), None), false),
            (FsStats { inodes: Some(9), ..of(Some(BYTES), Some(INODES * 2)) }, false),
            (of(None, Some(INODES)), true),
        ] {
            assert_eq!(has_moved(&before, &now), expected, "{now:?}");
            assert_eq!(has_moved(&now, &before), expected, "{now:?}");
        }
        assert!(has_moved(&of(None, None), &of(None, None)));
        assert!(!has_moved(&of(Some(1), None), &of(Some(1), None)), "it has no inodes");
    }

    proptest! {
        /// A writer as fast as can be gets no further past the threshold than in the calm pause, and where it was seen
        /// before, no further than in the least.
        #[test]
        fn a_crossing_is_unseen_for_a_bounded_time(
            threshold in any::<u64>(), last: u64, before: u64, at: i64, earlier: i64, fastest in 1_u64..,
        ) {
            let pace = Pace { fastest, ..Pace::BYTES };
            let last = Left { left: last, at: StatsTime(at) };
            let before = Left { left: before, at: StatsTime(earlier) };
            let soonest = time_for(last.left.saturating_sub(threshold), fastest);
            for before in [None, Some(before)] {
                let wait = next_reading(&pace, threshold, last, before);
                prop_assert!(wait >= pace.least && wait <= pace.most);
                let unseen = if before.is_none() { pace.least } else { pace.calm };
                prop_assert!(wait <= soonest.max(unseen), "{wait:?} {soonest:?}");
                prop_assert!(wait >= soonest.min(pace.most), "{wait:?} {soonest:?}");
            }
        }
    }
}
