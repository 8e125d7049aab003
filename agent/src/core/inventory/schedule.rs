//! When the inventory thread does what. Each duty has a pace, and none takes more than a fiftieth of a CPU by itself
//! as far as [`pause`] goes. Where events name what happens, duties that would only find what these missed are done
//! much less often while there is none, and memory does not move either.

use core::time::Duration;

use plimsoll_units::MonotonicNs;

use super::super::pause;
use super::{PACE, Request};

/// The part of a CPU that a duty may take: one in so many.
const SHARE: u32 = 50;
/// Walks and the handling of cgroup events are at least so far apart.
const PAUSE: Duration = Duration::from_millis(20);
/// How long after an event the tree is walked where events name new cgroups: the walk finds what they missed, and
/// reservations that changed.
const WALK_PACE: Duration = Duration::from_secs(15);
/// How often the tree is walked, and slow figures and what the inventory costs are read, while nothing happens.
const AT_REST: Duration = Duration::from_mins(15);
/// How often it is reported that the core lives, while nothing happens.
const BEAT_AT_REST: Duration = Duration::from_mins(1);
/// How often the slow figures are read near a threshold; at most so many times slower far from one.
const REFRESH_PACE: Duration = Duration::from_secs(5);
const REFRESH_SLOWEST: u32 = 12;

/// A duty with its pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Duty {
    /// When it was done.
    ended: MonotonicNs,
    /// It is not done before this, even if it is asked for.
    not_before: MonotonicNs,
    /// It is done then even if it is not asked for.
    by: MonotonicNs,
}

impl Duty {
    fn new(now: MonotonicNs, pace: Duration) -> Self {
        Self { ended: now, not_before: now, by: now.after(pace) }
    }

    /// It was done.
    pub(super) fn done(&mut self, begun: MonotonicNs, ended: MonotonicNs, pace: Duration) {
        let pause = PAUSE.max(pause::after(ended.since(begun), SHARE));
        *self = Self { ended, not_before: ended.after(pause), by: ended.after(pace.max(pause)) };
    }

    /// It is done now, whatever it cost last.
    pub(super) fn hurry(&mut self, now: MonotonicNs) {
        (self.not_before, self.by) = (now, now);
    }

    /// It is done by then, if its pause is over.
    pub(super) fn bring_forward(&mut self, by: MonotonicNs) {
        self.by = self.by.min(by.max(self.not_before));
    }

    pub(super) fn is_overdue(&self, now: MonotonicNs) -> bool {
        self.by <= now
    }

    /// Until when it is not done, if it is in its pause.
    pub(super) fn paused(&self, now: MonotonicNs) -> Option<MonotonicNs> {
        Some(self.not_before).filter(|until| now < *until)
    }

    fn next(&self, is_asked: bool) -> MonotonicNs {
        if is_asked { self.not_before } else { self.by }
    }
}

/// How often to read the slow figures with so much memory available, in percent of the nearest threshold: the less often,
/// the further it is to that.
pub(super) fn refresh_pace(headroom: u32) -> Duration {
    REFRESH_PACE * (headroom / 200).clamp(1, REFRESH_SLOWEST)
}

/// All duties.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) walk: Duty,
    walk_pace: Duration,
    /// What happens is named by events.
    has_events: bool,
    /// Slow figures are needed as often as ever: slices have thresholds that depend on them.
    has_slices: bool,
    pub(super) events: Duty,
    pub(super) refresh: Duty,
    /// Taking in what is known of pods and disks.
    pub(super) pods: Duty,
    /// Reading what containers take; beside this, with the heartbeat.
    pub(super) figures: Duty,
    /// Looking at those that exceeded a limit.
    pub(super) looks: Duty,
    /// Taking in what pods take of disks.
    pub(super) storage: Duty,
    /// Reading what the inventory leaves out and costs.
    pub(super) coverage: Duty,
    /// Reporting that the core lives, and reading what rarely changes.
    pub(super) beat: Duty,
    /// Doing what is done rarely at rest, because memory has moved.
    moved: Duty,
    /// How many events were lost.
    lost: u64,
    /// The source's programs were found not to run.
    pub(super) is_source_lost: bool,
    pub(super) suspects: Duty,
    /// Informing `services` that cgroups came or went.
    pub(super) informed: Duty,
    /// How often the watching thread had woken, and when that was seen to change.
    pub(super) turned: (u32, MonotonicNs),
}

impl Schedule {
    /// `has_events`: new cgroups and crossings are named by events. `has_slices`: slices have thresholds of their own.
    pub(super) fn new(has_events: bool, has_slices: bool, now: MonotonicNs) -> Self {
        let walk_pace = if has_events { WALK_PACE } else { PACE };
        Self {
            walk: Duty::new(now, walk_pace),
            walk_pace,
            has_events,
            has_slices,
            events: Duty::new(now, Duration::MAX),
            refresh: Duty::new(now, REFRESH_PACE),
            pods: Duty::new(now, Duration::MAX),
            figures: Duty::new(now, Duration::MAX),
            looks: Duty::new(now, Duration::MAX),
            storage: Duty::new(now, Duration::MAX),
            coverage: Duty::new(now, Duration::ZERO),
            beat: Duty::new(now, PACE),
            moved: Duty::new(now, Duration::MAX),
            lost: 0,
            is_source_lost: false,
            suspects: Duty::new(now, Duration::ZERO),
            informed: Duty::new(now, Duration::ZERO),
            turned: (0, now),
        }
    }

    /// The tree was walked.
    pub(super) fn walked(&mut self, begun: MonotonicNs, ended: MonotonicNs) {
        self.walk.done(begun, ended, if self.has_events { AT_REST } else { self.walk_pace });
    }

    /// The slow figures were read, with so much memory available.
    pub(super) fn refreshed(&mut self, begun: MonotonicNs, ended: MonotonicNs, headroom: u32) {
        let is_rare = self.has_events && !self.has_slices;
        self.refresh.done(begun, ended, if is_rare { AT_REST } else { refresh_pace(headroom) });
    }

    /// It was reported that the core lives. `is_done`: nothing else is tried again with it.
    pub(super) fn beaten(&mut self, now: MonotonicNs, is_done: bool) {
        self.beat.done(now, now, if self.has_events && is_done { BEAT_AT_REST } else { PACE });
    }

    /// What the inventory leaves out and costs was read.
    pub(super) fn covered(&mut self, begun: MonotonicNs, ended: MonotonicNs) {
        self.coverage.done(begun, ended, if self.has_events { AT_REST } else { PACE });
    }

    /// So many events were lost so far. Gives whether there are more than before: the tree is to be walked for what they
    /// named.
    pub(super) const fn has_lost(&mut self, lost: u64) -> bool {
        std::mem::replace(&mut self.lost, lost) < lost
    }

    /// These were asked: what is done rarely at rest is done as often as where something happens, once. What is only
    /// handed on to `services`, which may be the same again, says of nothing that happens.
    pub(super) fn stir(&mut self, asked: u32, headroom: u32, now: MonotonicNs) {
        let is_asked = |what: Request| asked & what as u32 != 0;
        if asked & !(Request::Inform as u32) == 0 {
            return;
        }
        self.beat.bring_forward(self.beat.ended.after(PACE));
        self.coverage.bring_forward(self.coverage.ended.after(PACE));
        if is_asked(Request::Moved) {
            self.walk.bring_forward(self.walk.ended.after(self.walk_pace));
            self.refresh.bring_forward(self.refresh.ended.after(refresh_pace(headroom)));
            self.moved.done(now, now, Duration::MAX);
            self.moved.not_before = now.after(PACE);
        }
        if is_asked(Request::Events) || is_asked(Request::Crossing) {
            // What is set of a new cgroup is set soon after it was made.
            self.walk.bring_forward(now.after(self.walk_pace));
        }
    }

    /// The requests that may be taken at `now`. Those for a walk, for events and for figures after a shortage wait for
    /// their pace; on the way to one the slow figures are read as soon as that is asked. That for the source is answered
    /// once it was followed.
    pub(super) fn due(&self, now: MonotonicNs) -> u32 {
        let mut due = !(Request::Source as u32);
        for (duty, request) in [
            (&self.walk, Request::Discover),
            (&self.events, Request::Events),
            (&self.refresh, Request::RefreshAll),
            (&self.moved, Request::Moved),
        ] {
            if now < duty.not_before {
                due &= !(request as u32);
            }
        }
        due
    }

    /// When something is due next.
    pub(super) fn next(&self, is_asked: impl Fn(Request) -> bool) -> MonotonicNs {
        let walk = self.walk.next(is_asked(Request::Discover));
        let events = self.events.next(is_asked(Request::Events));
        let refresh = self.refresh.next(is_asked(Request::RefreshAll));
        let moved = self.moved.next(is_asked(Request::Moved));
        walk.min(events).min(refresh).min(moved).min(self.beat.by).min(self.figures.by).min(self.looks.by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> MonotonicNs {
        MonotonicNs(0).after(Duration::from_millis(ms))
    }

    #[test]
    fn a_duty_takes_a_fiftieth_of_a_cpu_at_most() {
        let mut schedule = Schedule::new(true, false, at(0));
        schedule.walk.done(at(0), at(100), Duration::ZERO);
        for (ms, due) in [(500, false), (5099, false), (5100, true)] {
            assert_eq!(schedule.due(at(ms)) & Request::Discover as u32 != 0, due, "{ms}");
            assert_eq!(schedule.walk.is_overdue(at(ms)), due, "{ms}");
        }
        schedule.walk.done(at(0), at(3000), Duration::ZERO);
        assert!(
            !schedule.walk.is_overdue(at(12_999)) && schedule.walk.is_overdue(at(13_000)),
            "the machine stood still"
        );
        schedule.walk.done(at(0), at(1), WALK_PACE);
        assert!(schedule.due(at(51)) & Request::Discover as u32 != 0, "asked for, it is done after its pause");
        assert!(!schedule.walk.is_overdue(at(15_000)) && schedule.walk.is_overdue(at(15_001)));
        assert_eq!(schedule.due(at(0)) & Request::Crossing as u32, Request::Crossing as u32, "it never waits");
    }

    #[test]
    fn a_walk_that_a_decision_waits_for_does_not_wait_for_its_pace() {
        let mut schedule = Schedule::new(false, false, at(0));
        schedule.walk.done(at(0), at(400), WALK_PACE);
        assert_eq!(schedule.due(at(400)) & Request::Discover as u32, 0);
        assert_eq!(schedule.due(at(400)) & Request::Walk as u32, Request::Walk as u32);
    }

    #[test]
    fn what_is_known_of_pods_is_taken_in_with_pauses() {
        let mut schedule = Schedule::new(true, false, at(0));
        assert_eq!(schedule.pods.paused(at(0)), None);
        for (ended, until) in [(0, 20), (2, 102)] {
            schedule.pods.done(at(0), at(ended), Duration::MAX);
            assert_eq!((schedule.pods.paused(at(until - 1)), schedule.pods.paused(at(until))), (Some(at(until)), None));
        }
    }

    #[test]
    fn what_finds_what_events_missed_is_rare_until_something_happens() {
        let minutes = |minutes: u64| minutes * 60_000;
        let done = |has_events: bool, has_slices: bool| {
            let mut schedule = Schedule::new(has_events, has_slices, at(0));
            schedule.walked(at(0), at(0));
            schedule.refreshed(at(0), at(0), 1000);
            schedule.beaten(at(0), true);
            schedule.covered(at(0), at(0));
            schedule
        };
        let due = |schedule: &Schedule| {
            [&schedule.walk, &schedule.refresh, &schedule.beat, &schedule.coverage].map(|duty| duty.by)
        };
        let at_rest = [minutes(15), minutes(15), minutes(1), minutes(15)];
        assert_eq!(due(&done(true, false)), at_rest.map(at));
        let with_slices = [minutes(15), 25_000, minutes(1), minutes(15)];
        assert_eq!(due(&done(true, true)), with_slices.map(at), "thresholds depend on figures");
        assert_eq!(due(&done(false, false)), [5000, 25_000, 5000, 5000].map(at), "no event says what happens");
        let mut schedule = done(true, false);
        schedule.stir(Request::Moved as u32, 1000, at(20_000));
        assert_eq!(due(&schedule), [15_000, 25_000, 5000, 5000].map(at));
        let mut schedule = done(true, false);
        schedule.stir(Request::Events as u32, 1000, at(20_000));
        let stirred = [35_000, minutes(15), 5000, 5000];
        assert_eq!(due(&schedule), stirred.map(at), "the walk sees what is set after the event");
        let mut schedule = done(true, false);
        schedule.stir(Request::Inform as u32, 1000, at(20_000));
        assert_eq!(due(&schedule), due(&done(true, false)), "what is named to services again is nothing new");
        assert_eq!([0, 2, 2, 3].map(|lost| schedule.has_lost(lost)), [false, true, false, true]);
        schedule.beaten(at(30_000), false);
        assert_eq!(schedule.beat.by, at(35_000), "what could not be thawed is tried again");
    }

    #[test]
    fn memory_that_moves_all_the_time_wakes_the_thread_as_often_as_ever() {
        let mut schedule = Schedule::new(true, false, at(0));
        let is_due = |schedule: &Schedule, ms: u64| schedule.due(at(ms)) & Request::Moved as u32 != 0;
        assert!(is_due(&schedule, 0));
        for task in [&mut schedule.walk, &mut schedule.refresh, &mut schedule.beat] {
            task.done(at(1000), at(1000), AT_REST);
        }
        schedule.stir(Request::Moved as u32, u32::MAX, at(1000));
        assert!(!is_due(&schedule, 5999) && is_due(&schedule, 6000));
        assert_eq!(schedule.next(|what| what == Request::Moved), at(6000), "with the heartbeat");
    }

    #[test]
    fn the_thread_wakes_for_what_is_asked_when_it_is_due() {
        let mut schedule = Schedule::new(true, false, at(0));
        assert_eq!(schedule.next(|_| false), at(5000), "the slow figures and the heartbeat");
        schedule.events.done(at(0), at(2), Duration::MAX);
        assert_eq!(schedule.next(|what| what == Request::Events), at(102));
        schedule.refresh.done(at(0), at(4), REFRESH_PACE);
        assert_eq!(schedule.next(|what| what == Request::RefreshAll), at(204));
        let requests = Request::Refresh as u32 | Request::RefreshAll as u32;
        assert_eq!(schedule.due(at(203)) & requests, Request::Refresh as u32, "it never waits");
        assert_eq!(schedule.due(at(204)) & requests, requests);
        assert_eq!(schedule.due(at(5000)) & Request::Source as u32, 0, "it stays asked until it is answered");
    }

    #[test]
    fn slow_figures_are_read_the_less_often_the_further_a_threshold_is() {
        for (headroom, seconds) in [(0, 5), (150, 5), (399, 5), (400, 10), (1000, 25), (2400, 60), (u32::MAX, 60)] {
            assert_eq!(refresh_pace(headroom), Duration::from_secs(seconds), "{headroom}");
        }
    }
}
