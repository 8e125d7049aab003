//! When to sample without an event.

use core::time::Duration;

use plimsoll_state::heartbeat;
use plimsoll_units::{Bytes, MonotonicNs};

use super::super::pause;
use super::End;

/// The shortest time between two samples because tasks stall or reclaim: each cgroup may submit the first of these events once a
/// second, and there are many; the second one comes once it is armed, which each sample below a threshold does.
const STALL_PACE: Duration = Duration::from_millis(20);
/// So near to a threshold that the event would come at once, how often to sample.
const NEAR_PACE: Duration = Duration::from_millis(20);
/// Without pressure, samples take one part in so many of a CPU, as far as [`pause`] goes.
const SHARE: u32 = 50;
/// While tasks stall or memory is near a threshold, samples take one part in so many of a CPU.
const NEAR_SHARE: u32 = 5;
/// No slice's page cache is replaced by anonymous memory faster than so many bytes a second.
const REPLACED_A_SECOND: u64 = 4 << 30;
/// A slice's page cache is read anew this often at least, where its replacement can cross a threshold.
const REREAD_PACE: Duration = Duration::from_secs(5);
/// No more than so many tasks are made in a second.
const FORKED_A_SECOND: u64 = 50_000;
/// How often the kernel is asked for what comes by no event.
const ASK_PACE: Duration = Duration::from_secs(1);
/// Below a threshold with nothing left to do, the pace of samples begins here and doubles.
const BELOW_PACE: Duration = Duration::from_millis(4);
/// While a victim dies the pace of samples begins here, since that may need the CPU that a sample takes.
const DYING_PACE: Duration = Duration::from_millis(10);
/// The slowest pace of samples below a threshold.
pub(super) const BELOW_PACE_MOST: Duration = Duration::from_secs(1);

/// Times that were set.
#[derive(Debug)]
pub(super) struct Schedule {
    /// How often to sample in any case.
    slow: Option<Duration>,
    next_slow: Option<MonotonicNs>,
    next_ask: MonotonicNs,
    next_sample: Option<MonotonicNs>,
    /// When to read what was submitted without a wake.
    next_drain: Option<MonotonicNs>,
    below_pace: Duration,
    /// When the last sample was taken because tasks stalled or reclaimed.
    stall_sampled: Option<MonotonicNs>,
    /// What the last sample without pressure cost.
    cost: Duration,
    /// Samples that came later than they would have, because of that.
    delayed: u32,
    /// The core is to end, by then at the latest, and why.
    end: Option<(MonotonicNs, End)>,
}

impl Schedule {
    pub(super) fn new(slow: Option<Duration>, now: MonotonicNs) -> Self {
        Self {
            slow,
            next_slow: slow.map(|slow| now.after(slow)),
            next_ask: now.after(ASK_PACE),
            next_sample: Some(now),
            next_drain: None,
            below_pace: BELOW_PACE,
            stall_sampled: None,
            cost: Duration::ZERO,
            delayed: 0,
            end: None,
        }
    }

    /// Samples at `at` at the latest.
    pub(super) fn sample_by(&mut self, at: MonotonicNs) {
        self.next_sample = Some(self.next_sample.map_or(at, |earlier| earlier.min(at)));
    }

    /// A sample is taken now.
    pub(super) fn sampled(&mut self) {
        self.next_sample = None;
    }

    pub(super) fn is_sample_due(&self, now: MonotonicNs) -> bool {
        self.next_sample.is_some_and(|at| at <= now)
    }

    /// Whether the slow period is over; the next one begins.
    pub(super) fn take_slow(&mut self, now: MonotonicNs) -> bool {
        let is_due = self.next_slow.is_some_and(|at| at <= now);
        if is_due {
            self.next_slow = self.slow.map(|slow| now.after(self.paced(slow, SHARE)));
        }
        is_due
    }

    /// Reads what was submitted without a wake at `at` at the latest.
    pub(super) fn drain_by(&mut self, at: MonotonicNs) {
        self.next_drain.get_or_insert(at);
    }

    /// Whether that is to be read now.
    pub(super) fn take_drain(&mut self, now: MonotonicNs) -> bool {
        self.next_drain.take_if(|at| *at <= now).is_some()
    }

    /// Whether the kernel is to be asked now for what comes by no event. Nothing wakes the thread for that alone: its
    /// heartbeat does, about as often.
    pub(super) fn take_ask(&mut self, now: MonotonicNs) -> bool {
        let is_due = self.next_ask <= now;
        if is_due {
            self.next_ask = now.after(ASK_PACE);
        }
        is_due
    }

    /// Tasks stall or reclaim. Gives whether to sample now; otherwise it is done a little later.
    pub(super) fn stalls(&mut self, now: MonotonicNs) -> bool {
        match self.stall_sampled.map(|at| (at, at.after(STALL_PACE.max(pause::after(self.cost, NEAR_SHARE))))) {
            Some((at, next)) if now < next => {
                self.delayed = self.delayed.wrapping_add(u32::from(now >= at.after(STALL_PACE)));
                self.sample_by(next);
                false
            }
            _ => {
                self.stall_sampled = Some(now);
                true
            }
        }
    }

    /// No threshold is crossed, as a sample found that took so long.
    pub(super) fn is_quiet(&mut self, cost: Duration) {
        self.below_pace = BELOW_PACE;
        self.cost = cost;
    }

    /// A sample at `now` read no workloads: however long it takes to read them, the next one may follow, with the next
    /// beat, so that nothing wakes the thread more often than that.
    pub(super) fn rests(&mut self, now: MonotonicNs) {
        self.next_slow = self.slow.map(|slow| now.after(slow.max(heartbeat::PERIOD)));
    }

    /// A decision waits, above the threshold and with none armed: no event shows that memory is below, from where on what
    /// grows is frozen. The sample that found that took so long.
    pub(super) fn awaits(&mut self, cost: Duration, now: MonotonicNs) {
        self.sample_by(now.after(BELOW_PACE.max(pause::after(cost, NEAR_SHARE))));
    }

    /// Memory is near a threshold.
    pub(super) fn is_near(&mut self, now: MonotonicNs) {
        let pace = self.paced(NEAR_PACE, NEAR_SHARE);
        self.sample_by(now.after(pace));
    }

    /// A pace, or a slower one where samples cost so much that they would take more than their share of a CPU.
    fn paced(&mut self, pace: Duration, share: u32) -> Duration {
        let least = pause::after(self.cost, share);
        self.delayed = self.delayed.wrapping_add(u32::from(least > pace));
        pace.max(least)
    }

    /// How many samples came later than they would have, because they cost much.
    pub(super) const fn delayed(&self) -> u32 {
        self.delayed
    }

    /// How soon the page cache of a slice is read anew, of which so much can be taken without an event.
    pub(super) fn reread_pace(&self, room: Bytes) -> Duration {
        let taken = Duration::from_millis(room.0 / (REPLACED_A_SECOND / 1000));
        taken.clamp(NEAR_PACE, REREAD_PACE).max(pause::after(self.cost, NEAR_SHARE))
    }

    /// Without an event for it: so many tasks more, and a threshold on them is crossed.
    pub(super) fn fork_room(&mut self, room: u64, now: MonotonicNs) {
        let forked = Duration::from_millis(room.saturating_mul(1000) / FORKED_A_SECOND);
        let pace = self.paced(forked.max(NEAR_PACE), NEAR_SHARE);
        self.sample_by(now.after(pace));
    }

    /// A threshold is crossed: the next sample is due even without an event. `is_new`: one was just crossed.
    /// `is_under_way`: victims die.
    pub(super) fn is_below(&mut self, is_new: bool, is_under_way: bool, now: MonotonicNs) {
        self.cost = Duration::ZERO;
        if is_under_way {
            self.below_pace = DYING_PACE;
        } else if is_new {
            self.below_pace = BELOW_PACE;
        }
        self.sample_by(now.after(self.below_pace));
        self.below_pace = (self.below_pace * 2).min(BELOW_PACE_MOST);
    }

    /// The core is to end, by `at` at the latest.
    pub(super) fn end_by(&mut self, at: MonotonicNs, end: End) {
        self.end.get_or_insert((at, end));
    }

    pub(super) const fn end(&self) -> Option<(MonotonicNs, End)> {
        self.end
    }

    /// The earliest of the times that were set.
    pub(super) fn due(&self) -> Option<MonotonicNs> {
        [self.next_sample, self.next_slow, self.next_drain, self.end.map(|(by, _)| by)].into_iter().flatten().min()
    }

    #[cfg(test)]
    pub(super) fn set_slow(&mut self, slow: Duration, now: MonotonicNs) {
        (self.slow, self.next_slow) = (Some(slow), Some(now));
    }

    #[cfg(test)]
    pub(super) const fn next_sample(&self) -> Option<MonotonicNs> {
        self.next_sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> MonotonicNs {
        MonotonicNs(0).after(Duration::from_millis(ms))
    }

    #[test]
    fn samples_below_a_threshold_become_rarer_until_something_happens() {
        let mut schedule = Schedule::new(None, at(0));
        let new = (true, false);
        let (dying, left) = ((false, true), (false, false));
        for ((is_new, is_under_way), gap) in
            [(new, 4), (left, 8), (left, 16), (new, 4), (dying, 10), (dying, 10), (left, 20), ((true, true), 10)]
        {
            schedule.sampled();
            schedule.is_below(is_new, is_under_way, at(100));
            assert_eq!(schedule.due(), Some(at(100 + gap)));
        }
        for _ in 0..20 {
            schedule.sampled();
            schedule.is_below(false, false, at(100));
        }
        assert_eq!(schedule.due(), Some(at(1100)), "the slowest pace");
        schedule.sampled();
        schedule.is_quiet(Duration::ZERO);
        assert_eq!(schedule.due(), None);
    }

    #[test]
    fn samples_that_cost_much_are_rarer_until_a_threshold_is_crossed() {
        let mut schedule = Schedule::new(Some(Duration::from_secs(1)), at(0));
        schedule.sampled();
        schedule.is_quiet(Duration::from_millis(1));
        schedule.is_near(at(0));
        assert!(schedule.stalls(at(0)) && !schedule.stalls(at(19)) && schedule.stalls(at(20)));
        assert_eq!(schedule.delayed(), 0, "a sample of a millisecond is within its share");
        schedule = Schedule { cost: Duration::from_millis(100), ..Schedule::new(Some(Duration::from_secs(1)), at(0)) };
        assert!(schedule.stalls(at(0)) && !schedule.stalls(at(19)) && !schedule.stalls(at(499)));
        assert_eq!(schedule.delayed(), 1, "the second one would be late anyway");
        schedule.sampled();
        schedule.is_near(at(0));
        assert_eq!(
            schedule.next_sample(),
            Some(at(500)),
            "soon, since no event may come before the threshold is crossed"
        );
        assert!(schedule.take_slow(at(1000)) && !schedule.take_slow(at(5999)) && schedule.take_slow(at(6000)));
        assert_eq!(schedule.delayed(), 4);
        schedule.is_below(true, false, at(6000));
        assert!(schedule.stalls(at(6020)), "below a threshold nothing is spared");
        schedule = Schedule { cost: Duration::from_secs(3), ..Schedule::new(Some(Duration::from_secs(1)), at(0)) };
        assert!(schedule.take_slow(at(1000)) && schedule.take_slow(at(11_000)), "the machine stood still");
        schedule = Schedule { cost: Duration::from_millis(100), ..Schedule::new(Some(Duration::from_secs(1)), at(0)) };
        assert!(schedule.take_slow(at(1000)));
        schedule.rests(at(1000));
        let beat = at(1000).after(heartbeat::PERIOD);
        assert!(!schedule.take_slow(MonotonicNs(beat.0 - 1)), "the beat wakes the thread anyway");
        assert!(schedule.take_slow(beat), "that sample cost next to nothing");
    }

    #[test]
    fn while_a_decision_waits_samples_go_on_at_a_pace_that_follows_their_cost() {
        for (cost, pace) in [(0, 4), (1, 5), (10, 50)] {
            let mut schedule = Schedule::new(None, at(0));
            schedule.sampled();
            schedule.awaits(Duration::from_millis(cost), at(100));
            assert_eq!(schedule.next_sample(), Some(at(100 + pace)), "{cost}");
        }
    }

    #[test]
    fn page_cache_is_read_the_less_often_the_more_memory_can_be_taken_unseen() {
        let mut schedule = Schedule::new(None, at(0));
        for (mib, ms) in [(0, 20), (64, 20), (1024, 250), (16 << 10, 4000), (1 << 20, 5000)] {
            assert_eq!(schedule.reread_pace(Bytes::mib(mib)), Duration::from_millis(ms), "{mib}");
        }
        schedule.is_quiet(Duration::from_millis(100));
        assert_eq!(schedule.reread_pace(Bytes::ZERO), Duration::from_millis(500), "samples cost much");
    }

    #[test]
    fn without_its_event_the_number_of_tasks_is_read_the_more_often_the_nearer_a_threshold_is() {
        let mut schedule = Schedule::new(None, at(0));
        for (room, ms) in [(0, 20), (1000, 20), (30_000, 600), (4_000_000, 80_000)] {
            schedule.sampled();
            schedule.fork_room(room, at(100));
            assert_eq!(schedule.next_sample(), Some(at(100 + ms)), "{room}");
        }
    }

    #[test]
    fn what_comes_without_a_wake_is_read_by_the_first_time_that_was_set_and_once() {
        let mut schedule = Schedule::new(None, at(0));
        schedule.sampled();
        schedule.drain_by(at(10));
        schedule.drain_by(at(12));
        assert_eq!(schedule.due(), Some(at(10)));
        assert!(!schedule.take_drain(at(9)) && schedule.take_drain(at(10)) && !schedule.take_drain(at(20)));
    }

    #[test]
    fn many_cgroups_that_stall_cause_one_sample_in_a_while() {
        let mut schedule = Schedule::new(None, at(0));
        schedule.sampled();
        assert!(schedule.stalls(at(100)));
        assert!(!schedule.stalls(at(101)) && !schedule.stalls(at(119)));
        assert_eq!(schedule.due(), Some(at(120)), "the sample is delayed, not left out");
        assert!(schedule.stalls(at(120)));
    }
}
