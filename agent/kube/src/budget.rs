//! How much is written: thousands of nodes may be short of memory at once, and all of them write to one API server.

use core::time::Duration;
use tokio::time::Instant;

/// So many writes may be made at once.
const BURST: u32 = 20;
/// After each of these times there may be another write.
const REFILL: Duration = Duration::from_millis(500);
/// The first pause after a failure. Each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after failures.
const PAUSE_MOST: Duration = Duration::from_mins(1);

/// A bucket of writes: 20 at once and two in a second, so that the first evictions of a node are reported at once.
#[derive(Clone, Debug)]
pub struct Budget {
    left: u32,
    /// When the last one that was added was due.
    filled: Instant,
}

impl Budget {
    /// Full.
    pub fn new(now: Instant) -> Self {
        Self { left: BURST, filled: now }
    }

    /// Adds what has become due.
    pub fn fill(&mut self, now: Instant) {
        while self.left < BURST && now >= self.filled + REFILL {
            self.left += 1;
            self.filled += REFILL;
        }
        if self.left == BURST {
            self.filled = now;
        }
    }

    /// From when on there is one for what can wait: half of the burst is for what cannot. As of the last [`Self::fill`].
    pub fn spare(&self, now: Instant) -> Instant {
        let missing = (BURST / 2 + 1).saturating_sub(self.left);
        if missing == 0 { now } else { self.filled + REFILL * missing }
    }

    /// Takes a write, or gives how long to wait for it.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.fill(now);
        if self.left == 0 {
            return Err((self.filled + REFILL).saturating_duration_since(now));
        }
        self.left -= 1;
        Ok(())
    }
}

/// A watch that ended so soon after it was begun is not begun anew at once: what ends it may end the next one, too.
const SHORT: Duration = Duration::from_secs(5);
/// The pause before the next one is random up to this. It doubles, up to [`PAUSE_MOST`].
const WATCH_PAUSE: Duration = Duration::from_secs(2);

/// How fast watches follow one another that end without an error: kube's watcher goes on at once then.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    begun: Option<Instant>,
    /// So many in a row ended soon.
    short: u32,
}

impl Pace {
    /// A watch was begun.
    pub(crate) const fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    /// How long the next one has to wait. `random` is from 0 to 1.
    pub(crate) fn pause(&mut self, now: Instant, random: f64) -> Duration {
        // Each counts once.
        if self.begun.take().is_none_or(|begun| now - begun >= SHORT) {
            self.short = 0;
            return Duration::ZERO;
        }
        let most = WATCH_PAUSE.saturating_mul(1_u32.checked_shl(self.short).unwrap_or(u32::MAX)).min(PAUSE_MOST);
        self.short += 1;
        most.mul_f64(random.clamp(0.0, 1.0))
    }
}

/// After so long without a failure the next pause is the first one again, as client-go's reflectors have it: a watch of a quiet
/// node may break after hours without an event.
const QUIET: Duration = Duration::from_mins(2);

/// Failures of a watch in a row.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    count: u32,
    last: Option<Instant>,
}

impl Failures {
    /// One more. Gives the pause after it. `random` is from 0 to 1.
    pub(crate) fn add(&mut self, now: Instant, random: f64) -> Duration {
        if self.last.is_some_and(|last| now - last >= QUIET) {
            self.count = 0;
        }
        (self.count, self.last) = (self.count + 1, Some(now));
        pause_after(self.count, random)
    }

    /// It works.
    pub(crate) const fn end(&mut self) {
        self.count = 0;
    }
}

/// The pause after so many failures in a row, one at least: half of it is random, so that nodes that failed together do not
/// try together.
pub(crate) fn pause_after(failures: u32, random: f64) -> Duration {
    let doubled = PAUSE.saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
    spread(doubled.min(PAUSE_MOST), random)
}

/// From half of the duration up to all of it. `random` is from 0 to 1.
pub(crate) fn spread(duration: Duration, random: f64) -> Duration {
    duration.mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_written_at_once_and_then_two_in_a_second() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        // A long rest adds none beyond the burst.
        let begun = start + Duration::from_hours(1);
        assert_eq!((0..100).filter(|_| budget.take(begun).is_ok()).count(), 20);
        assert_eq!(budget.take(begun), Err(REFILL));
        let mut taken = 0;
        for millis in 0..10_000 {
            taken += u32::from(budget.take(begun + Duration::from_millis(millis)).is_ok());
        }
        assert_eq!(taken, 19, "in ten seconds, of which the last half is not over");
    }

    #[test]
    fn half_of_a_burst_is_spare() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        for _ in 0..10 {
            assert_eq!(budget.spare(start), start);
            budget.take(start).expect("a burst");
        }
        assert_eq!(budget.spare(start), start + REFILL);
        budget.take(start).expect("it is no spare one");
        assert_eq!(budget.spare(start), start + 2 * REFILL);
        budget.fill(start + 2 * REFILL);
        assert_eq!(budget.spare(start + 2 * REFILL), start + 2 * REFILL);
    }

    #[test]
    fn pauses_double_up_to_a_minute_and_half_of_each_is_random() {
        let pauses = |random| [1, 2, 3, 7, 100].map(|failures| pause_after(failures, random).as_millis());
        assert_eq!(pauses(1.0), [1000, 2000, 4000, 60_000, 60_000]);
        assert_eq!(pauses(0.0), [500, 1000, 2000, 30_000, 30_000]);
    }

    #[test]
    fn pauses_begin_anew_after_a_quiet_time_and_where_it_works() {
        let start = Instant::now();
        let mut failures = Failures::default();
        let mut at = |seconds| failures.add(start + Duration::from_secs(seconds), 1.0).as_secs();
        assert_eq!([at(0), at(1), at(3), at(122), at(242)], [1, 2, 4, 8, 1]);
        failures.end();
        assert_eq!(failures.add(start + Duration::from_secs(243), 1.0), PAUSE);
    }

    #[test]
    fn a_watch_that_follows_a_short_one_waits_longer_each_time() {
        let start = Instant::now();
        let (mut pace, mut now) = (Pace::default(), start);
        let mut paused = |lived: u64, random| {
            pace.begin(now);
            now += Duration::from_secs(lived);
            let pause = pace.pause(now, random);
            now += pause;
            pause.as_secs()
        };
        assert_eq!([1, 1, 1, 1, 1, 1, 1].map(|lived| paused(lived, 1.0)), [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!([paused(300, 1.0), paused(4, 0.5), paused(5, 1.0), paused(0, 1.0)], [0, 1, 0, 2]);
        assert_eq!(Pace::default().pause(start, 1.0), Duration::ZERO, "the first one");
    }
}
