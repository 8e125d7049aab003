//! How fast a cgroup grows, and when it reaches its own limit if it goes on so. Arithmetic alone: no clock, no files.

use core::time::Duration;

use plimsoll_units::{Bytes, MonotonicNs};

/// Readings that are closer together say more of the pages that CPUs charge beforehand than of the cgroup.
const LEAST: Duration = Duration::from_millis(100);
/// An interval of this length counts as much as all before it together.
const SMOOTHING: Duration = Duration::from_secs(5);
/// What is further away than this is no forecast: any rate will have changed by then.
const FURTHEST: Duration = Duration::from_hours(24);

/// A smoothed rate, in bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    last: Option<(MonotonicNs, Bytes)>,
    rate: Option<i64>,
}

impl Rate {
    /// Takes a reading in. One at the time of the last one, or before it, or shortly after it, changes nothing.
    pub fn take(&mut self, at: MonotonicNs, amount: Bytes) {
        let Some((before, was)) = self.last else {
            self.last = Some((at, amount));
            return;
        };
        let elapsed = at.since(before);
        if elapsed < LEAST {
            return;
        }
        self.last = Some((at, amount));
        let change = i128::from(amount.0) - i128::from(was.0);
        let now = saturated(change * nanoseconds(Duration::from_secs(1)) / nanoseconds(elapsed));
        self.rate = Some(self.rate.map_or(now, |rate| smoothed(rate, now, elapsed)));
    }

    /// Nothing is known any more.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// In bytes a second, below zero where it shrinks. Absent before the second reading.
    pub const fn bytes_per_second(&self) -> Option<i64> {
        self.rate
    }

    /// How long until so much more is taken at this rate, to the millisecond. Absent where the rate is not known, where
    /// nothing grows, and where that is more than a day.
    pub fn time_until(&self, more: Bytes) -> Option<Duration> {
        let rate = u64::try_from(self.rate?).ok().filter(|rate| *rate > 0)?;
        let millis = u64::try_from(u128::from(more.0) * 1000 / u128::from(rate)).ok()?;
        Some(Duration::from_millis(millis)).filter(|time| *time <= FURTHEST)
    }
}

/// The weight of an interval follows from its length, so that readings may come at any pace.
fn smoothed(rate: i64, now: i64, elapsed: Duration) -> i64 {
    let (elapsed, smoothing) = (nanoseconds(elapsed.min(FURTHEST)), nanoseconds(SMOOTHING));
    let difference = i128::from(now) - i128::from(rate);
    saturated(i128::from(rate) + difference * elapsed / (elapsed + smoothing))
}

fn saturated(rate: i128) -> i64 {
    i64::try_from(rate).unwrap_or(if rate < 0 { i64::MIN } else { i64::MAX })
}

fn nanoseconds(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn after(readings: &[(u64, u64)]) -> Rate {
        let mut rate = Rate::default();
        for (at, amount) in readings {
            rate.take(MonotonicNs(*at), Bytes(*amount));
        }
        rate
    }

    #[test]
    fn a_rate_is_that_of_the_readings_and_smoothed_by_their_distance() {
        for (readings, expected) in [
            (&[][..], None),
            (&[(SECOND, 7)], None),
            (&[(SECOND, 0), (2 * SECOND, 100)], Some(100)),
            (&[(SECOND, 100), (3 * SECOND, 0)], Some(-50)),
            (&[(SECOND, 100), (2 * SECOND, 100)], Some(0)),
            // Five seconds count half.
            (&[(0, 0), (SECOND, 100), (6 * SECOND, 100)], Some(50)),
            // After minutes what was before hardly counts.
            (&[(0, 0), (SECOND, 1_000_000), (301 * SECOND, 1_000_000)], Some(16_394)),
        ] {
            assert_eq!(after(readings).bytes_per_second(), expected, "{readings:?}");
        }
    }

    #[test]
    fn time_that_stands_still_or_goes_back_changes_nothing() {
        let known = [(SECOND, 0), (2 * SECOND, 100)];
        for at in [2 * SECOND, SECOND, 0, 2 * SECOND + SECOND / 20] {
            assert_eq!(after(&[known[0], known[1], (at, 1 << 40)]), after(&known), "{at}");
        }
        let mut rate = after(&known);
        rate.forget();
        assert_eq!(rate, Rate::default());
    }

    #[test]
    fn the_largest_amounts_saturate() {
        let (up, down) = ([(0, 0), (SECOND / 10, u64::MAX)], [(0, u64::MAX), (SECOND / 10, 0)]);
        assert_eq!(after(&up).bytes_per_second(), Some(i64::MAX));
        assert_eq!(after(&down).bytes_per_second(), Some(i64::MIN));
        let back = [up[0], up[1], (u64::MAX, 0)];
        assert!(
            after(&back).bytes_per_second().is_some_and(|rate| rate < i64::MAX),
            "584 years count more than before"
        );
        let swings: Vec<_> =
            (0..9).map(|turn| (turn * (u64::MAX / 9), if turn % 2 == 0 { 0 } else { u64::MAX })).collect();
        assert!(after(&swings).bytes_per_second().is_some());
    }

    #[test]
    fn a_forecast_is_absent_where_nothing_grows_and_never_zero_for_what_is_unknown() {
        let growing = after(&[(0, 0), (SECOND, 100)]);
        for (rate, more, expected) in [
            (Rate::default(), 0, None),
            (after(&[(0, 0), (SECOND, 0)]), 0, None),
            (after(&[(0, 9), (SECOND, 0)]), 1000, None),
            (growing, 1000, Some(Duration::from_secs(10))),
            (growing, 150, Some(Duration::from_millis(1500))),
            (growing, 0, Some(Duration::ZERO)),
            (growing, 100 * 86_400, Some(FURTHEST)),
            (growing, 100 * 86_401, None),
            (growing, u64::MAX, None),
        ] {
            assert_eq!(rate.time_until(Bytes(more)), expected, "{more} at {rate:?}");
        }
    }

    proptest! {
        /// Whatever is read, the rate lies between the slowest and the fastest interval.
        #[test]
        fn a_rate_lies_between_those_of_its_intervals(
            steps in proptest::collection::vec((100_000_000_u64..u64::from(u32::MAX), 0_u64..1 << 40), 2..20)
        ) {
            let (mut at, mut readings) = (0, Vec::new());
            for (step, amount) in steps {
                at += step;
                readings.push((at, amount));
            }
            let rates: Vec<i64> =
                readings.windows(2).filter_map(|two| after(two).bytes_per_second()).collect();
            let rate = after(&readings).bytes_per_second().expect("two readings");
            let (least, most) = (rates.iter().min().expect("one"), rates.iter().max().expect("one"));
            prop_assert!((*least..=*most).contains(&rate), "{rate} of {rates:?}");
        }
    }
}
