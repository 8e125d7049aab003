//! Whether memory.high throttles a cgroup, by readings of its counters. Arithmetic alone: no clock, no files.
//!
//! That memory.high is exceeded is nothing yet: page cache is reclaimed then, and the cgroup goes on. It is throttled
//! where its tasks wait for memory besides.

use core::time::Duration;

use plimsoll_node::cgroup::Throttling;
use plimsoll_units::MonotonicNs;
use serde::{Deserialize, Serialize};

/// Some of its tasks wait for this part of the time at least, in percent.
const NOTABLE_PERCENT: u32 = 10;
/// Intervals between readings that a share of the time is taken of.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// For so long a wait may be for one excess: the kernel has a task wait for two seconds at most
/// (`MEMCG_MAX_HIGH_DELAY_JIFFIES`, mm/memcontrol.c), and then charges again.
const OF_ONE_EXCESS: Duration = Duration::from_millis(2500);
/// After so long without, it is throttled no more.
const QUIET: Duration = Duration::from_secs(3);

/// How long some tasks waited for memory, of how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// How long they waited.
    pub waited: Duration,
    /// The time within which they waited so long.
    pub within: Duration,
}

impl Stall {
    /// The share of the time, from 0 to 1.
    pub fn share(&self) -> f64 {
        if self.within.is_zero() { 0.0 } else { (self.waited.as_secs_f64() / self.within.as_secs_f64()).min(1.0) }
    }

    fn is_notable(&self) -> bool {
        self.waited * 100 >= self.within * NOTABLE_PERCENT
    }
}

/// What a reading changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is throttled from now on.
    Begins,
    /// It is throttled no more.
    Ends(Ended),
}

/// What it was in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// From the first interval between readings in which it held to the end of the last one.
    pub lasted: Duration,
    /// How long some of its tasks waited for memory meanwhile, if that is known.
    pub stalled: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Begun {
    at: MonotonicNs,
    /// Waited before, in all.
    before: Option<Duration>,
    /// When it held last, and what was waited then, in all.
    held: MonotonicNs,
    waited: Option<Duration>,
}

/// One cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    last: Option<(MonotonicNs, Throttling)>,
    /// When memory.high was last seen to have been exceeded since the reading before.
    exceeded: Option<MonotonicNs>,
    begun: Option<Begun>,
    stall: Option<Stall>,
}

impl Throttle {
    /// That of a cgroup which was made after the last time that cgroups were looked for: all that is counted is new.
    pub fn of_new(now: MonotonicNs) -> Self {
        let none = Throttling { exceeded: 0, stalled: Some(Duration::ZERO) };
        Self { last: Some((now, none)), ..Self::default() }
    }

    /// Takes a reading in. Of one that nothing is known of the first one says nothing but what is counted so far.
    pub fn take(&mut self, now: MonotonicNs, reading: Throttling) -> Option<Change> {
        let Some((at, before)) = self.last else {
            self.last = Some((now, reading));
            return None;
        };
        let (has_risen, within) = (reading.exceeded > before.exceeded, now.since(at));
        if within < SHORTEST && !has_risen {
            return None;
        }
        self.last = Some((now, reading));
        if has_risen {
            self.exceeded = Some(now);
        }
        let is_interval = (SHORTEST..=LONGEST).contains(&within);
        if within >= SHORTEST {
            let waited = reading.stalled.zip(before.stalled).map(|(now, before)| now.saturating_sub(before));
            self.stall = waited.filter(|_| is_interval).map(|waited| Stall { waited: waited.min(within), within });
        }
        let is_throttled = match reading.stalled {
            Some(_) => {
                let is_of_excess = self.exceeded.is_some_and(|at| now.since(at) <= OF_ONE_EXCESS);
                is_interval && is_of_excess && self.stall.is_some_and(|stall| stall.is_notable())
            }
            // Nothing says how long they wait.
            None => has_risen,
        };
        match (&mut self.begun, is_throttled) {
            (None, true) => {
                let at = if is_interval { at } else { now };
                self.begun = Some(Begun { at, before: before.stalled, held: now, waited: reading.stalled });
                Some(Change::Begins)
            }
            (Some(begun), true) => {
                (begun.held, begun.waited) = (now, reading.stalled);
                None
            }
            (Some(begun), false) if now.since(begun.held) >= QUIET => self.end().map(Change::Ends),
            (None | Some(_), false) => None,
        }
    }

    /// It is gone, or is not followed any more: what it was, if it was throttled.
    pub fn end(&mut self) -> Option<Ended> {
        let Begun { at, before, held, waited } = self.begun.take()?;
        self.stall = None;
        let stalled = waited.zip(before).map(|(waited, before)| waited.saturating_sub(before));
        Some(Ended { lasted: held.since(at), stalled })
    }

    /// Whether it is throttled.
    pub const fn is_throttled(&self) -> bool {
        self.begun.is_some()
    }

    /// How long tasks waited between the last two readings; absent where that is not known.
    pub const fn stall(&self) -> Option<Stall> {
        self.stall
    }

    /// Whether another reading is due soon: it is throttled, or memory.high was exceeded so shortly before that tasks may
    /// wait for it still.
    pub fn is_open(&self, now: MonotonicNs) -> bool {
        self.begun.is_some() || self.exceeded.is_some_and(|at| now.since(at) <= OF_ONE_EXCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> MonotonicNs {
        MonotonicNs(0).after(Duration::from_millis(ms))
    }

    fn reading(exceeded: u64, stalled_ms: Option<u64>) -> Throttling {
        Throttling { exceeded, stalled: stalled_ms.map(Duration::from_millis) }
    }

    /// What each of these readings changes: the time in ms, the count, and the time waited in ms.
    fn changes(throttle: &mut Throttle, readings: &[(u64, u64, Option<u64>)]) -> Vec<Option<Change>> {
        readings.iter().map(|(ms, exceeded, stalled)| throttle.take(at(*ms), reading(*exceeded, *stalled))).collect()
    }

    fn ends(lasted_ms: u64, stalled_ms: Option<u64>) -> Change {
        let lasted = Duration::from_millis(lasted_ms);
        Change::Ends(Ended { lasted, stalled: stalled_ms.map(Duration::from_millis) })
    }

    #[test]
    fn one_that_waits_for_what_it_exceeds_is_throttled_until_it_does_not() {
        let mut throttle = Throttle::default();
        let found = changes(
            &mut throttle,
            &[(0, 5, Some(100)), (60_000, 6, Some(200)), (60_250, 7, Some(400)), (60_750, 8, Some(800))],
        );
        assert_eq!(found, [None, None, Some(Change::Begins), None]);
        let stall = Stall { waited: Duration::from_millis(400), within: Duration::from_millis(500) };
        assert_eq!(throttle.stall(), Some(stall));
        assert!((stall.share() - 0.8).abs() < 1e-9 && throttle.is_throttled() && throttle.is_open(at(60_750)));
        // The last wait goes on for two seconds without another charge.
        let found =
            changes(&mut throttle, &[(62_000, 8, Some(2050)), (63_000, 8, Some(3050)), (64_500, 8, Some(3060))]);
        assert_eq!(found, [None, None, None]);
        assert_eq!(changes(&mut throttle, &[(66_000, 8, Some(3060))]), [Some(ends(3000, Some(2850)))]);
        assert!(!throttle.is_throttled() && throttle.stall().is_none() && !throttle.is_open(at(66_000)));
    }

    #[test]
    fn one_that_is_reclaimed_without_waiting_or_waits_for_something_else_is_not() {
        for (name, second) in [("reclaimed", (250, 9, Some(120))), ("waits for a disk", (250, 5, Some(350)))] {
            let mut throttle = Throttle::default();
            let found = changes(&mut throttle, &[(0, 5, Some(100)), second]);
            assert_eq!(found, [None, None], "{name}");
            assert_eq!(throttle.is_open(at(250)), second.1 == 9, "{name}");
            assert!(!throttle.is_open(at(2751)), "{name}");
        }
    }

    #[test]
    fn a_new_one_counts_from_nothing_and_one_that_was_there_from_the_first_reading() {
        let readings = [(1000, 3, Some(900)), (1250, 3, Some(1100))];
        assert_eq!(changes(&mut Throttle::of_new(at(1000)), &readings), [None, Some(Change::Begins)]);
        assert_eq!(changes(&mut Throttle::default(), &readings), [None, None]);
    }

    #[test]
    fn time_and_counters_that_stand_still_or_go_back_are_no_stall() {
        for second in [(0, 9, Some(500)), (50, 9, Some(500)), (250, 1, Some(0)), (9000, 9, Some(9000))] {
            let mut throttle = Throttle::default();
            assert_eq!(changes(&mut throttle, &[(0, 5, Some(100)), second]), [None, None], "{second:?}");
            assert_eq!(throttle.stall().map_or(Duration::ZERO, |stall| stall.waited), Duration::ZERO, "{second:?}");
        }
        let none = Stall { waited: Duration::ZERO, within: Duration::ZERO };
        assert!(none.share().abs() < f64::EPSILON, "no division by zero");
    }

    #[test]
    fn without_pressure_stall_information_the_count_alone_says_it_and_the_stall_is_absent() {
        let mut throttle = Throttle::default();
        let found = changes(&mut throttle, &[(0, 5, None), (500, 6, None), (1000, 6, None), (3500, 6, None)]);
        assert_eq!(found, [None, Some(Change::Begins), None, Some(ends(500, None))]);
        assert_eq!(throttle.stall(), None);
    }

    #[test]
    fn what_is_gone_ends_where_it_held_last() {
        let mut throttle = Throttle::default();
        changes(&mut throttle, &[(0, 5, Some(0)), (250, 6, Some(250)), (500, 7, Some(500))]);
        assert_eq!(throttle.end().map(Change::Ends), Some(ends(500, Some(500))));
        assert_eq!(throttle.end(), None);
    }
}
