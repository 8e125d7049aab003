//! Times below a threshold: from its crossing, over what grew being stopped, to memory being back. They are reported; no
//! decision depends on them.

use plimsoll_sense::MAX_SLICES;
use plimsoll_units::{Bytes, MonotonicNs};

/// The machine, and slices with thresholds of their own.
pub(super) const SCOPES: usize = 1 + MAX_SLICES;

/// How many of each scope's thresholds memory is below.
pub(super) type Depth = [u8; SCOPES];

/// From the crossing of a threshold to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported {
    /// When the threshold was crossed, by the kernel; absent where it submitted no event.
    pub(super) crossed: Option<MonotonicNs>,
    /// The most that memory was below the threshold.
    pub(super) past_threshold: Bytes,
}

#[derive(Clone, Copy, Debug)]
struct Episode {
    depth: Depth,
    /// When a sample saw it first.
    seen: MonotonicNs,
    crossed: Option<MonotonicNs>,
    past_threshold: Bytes,
    /// How far memory was below the threshold when what grew was first to be stopped, until that is done.
    stopping: Option<Bytes>,
    stopped: bool,
    acted: bool,
}

impl Episode {
    const fn new(seen: MonotonicNs) -> Self {
        Self {
            depth: [0; SCOPES],
            seen,
            crossed: None,
            past_threshold: Bytes::ZERO,
            stopping: None,
            stopped: false,
            acted: false,
        }
    }
}

/// What is remembered of it: one at a time. A deeper threshold that is crossed begins it anew.
#[derive(Debug, Default)]
pub(super) struct Episodes {
    open: Option<Episode>,
}

impl Episodes {
    /// Whether memory is not back yet.
    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// A sample at `now` saw memory this deep; `trigger` is when the kernel saw a crossing, if that woke the core.
    /// Gives whether memory is deeper than at the last sample.
    pub(super) fn sample(&mut self, depth: Depth, trigger: Option<MonotonicNs>, now: MonotonicNs) -> bool {
        let is_deeper = |before: &Depth| depth.iter().zip(before).any(|(now, before)| now > before);
        match &mut self.open {
            Some(open) if !is_deeper(&open.depth) => {
                open.depth = depth;
                // The sample was before the event's own wake. A later event is none of this threshold's.
                open.crossed = open.crossed.or(trigger.filter(|trigger| *trigger <= open.seen));
                false
            }
            open if is_deeper(&[0; SCOPES]) => {
                let acted = open.is_some_and(|open| open.acted);
                *open = Some(Episode { depth, crossed: trigger, acted, ..Episode::new(now) });
                true
            }
            _ => false,
        }
    }

    /// Memory is this far below a threshold.
    pub(super) fn past(&mut self, past_threshold: Bytes) {
        if let Some(open) = &mut self.open {
            open.past_threshold = open.past_threshold.max(past_threshold);
        }
    }

    /// What grew is to be stopped, this far below a threshold.
    pub(super) fn stopping(&mut self, past_threshold: Bytes, now: MonotonicNs) {
        let open = self.open.get_or_insert(Episode { past_threshold, ..Episode::new(now) });
        open.acted = true;
        open.stopping.get_or_insert(past_threshold);
    }

    /// That is done. Gives what is to be reported: the first time after a crossing.
    pub(super) fn stopped(&mut self) -> Option<Reported> {
        let open = self.open.as_mut()?;
        let past_threshold = open.stopping?;
        let crossed = open.crossed;
        (!std::mem::replace(&mut open.stopped, true)).then_some(Reported { crossed, past_threshold })
    }

    /// Nothing has to be done any more; `quiet`: and no threshold is crossed. Gives what is to be reported, once where
    /// something was done.
    pub(super) fn over(&mut self, quiet: bool) -> Option<Reported> {
        let Episode { crossed, past_threshold, acted, .. } = *self.open.as_ref()?;
        if quiet {
            self.open = None;
        } else if let Some(open) = &mut self.open {
            open.acted = false;
        }
        acted.then_some(Reported { crossed, past_threshold })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> MonotonicNs {
        MonotonicNs(ms * 1_000_000)
    }

    fn node(depth: u8) -> Depth {
        let mut all = [0; SCOPES];
        all[0] = depth;
        all
    }

    const MIB: Bytes = Bytes::mib(1);

    /// What is reported where what grew is stopped at once.
    fn stop(episodes: &mut Episodes, now: MonotonicNs) -> Option<Reported> {
        episodes.stopping(MIB, now);
        episodes.stopped()
    }

    #[test]
    fn a_hard_threshold_is_reported_from_its_own_crossing_while_a_soft_one_stays_crossed() {
        let mut episodes = Episodes::default();
        episodes.sample(node(1), Some(at(10)), at(11));
        assert_eq!(episodes.over(false), None, "nothing was done yet");
        episodes.sample(node(2), Some(at(9000)), at(9001));
        assert_eq!(stop(&mut episodes, at(9002)), Some(Reported { crossed: Some(at(9000)), past_threshold: MIB }));
        assert_eq!(stop(&mut episodes, at(9003)), None, "once after a crossing");
        // The event of the next step down is no crossing of a threshold.
        episodes.sample(node(2), Some(at(9010)), at(9011));
        assert_eq!(stop(&mut episodes, at(9012)), None);
        episodes.past(Bytes::mib(3));
        episodes.sample(node(1), None, at(9100));
        assert_eq!(episodes.over(false), Some(Reported { crossed: Some(at(9000)), past_threshold: Bytes::mib(3) }));
        assert_eq!(episodes.over(false), None);
        // The hard threshold again.
        episodes.sample(node(2), Some(at(20_000)), at(20_001));
        let reported = stop(&mut episodes, at(20_002)).expect("another crossing");
        assert_eq!(reported.crossed, Some(at(20_000)));
        assert_eq!(episodes.over(true).map(|reported| reported.crossed), Some(Some(at(20_000))));
        assert!(!episodes.is_open());
    }

    #[test]
    fn an_event_that_comes_after_the_sample_is_still_the_crossing() {
        for (trigger, expected) in [(at(5), Some(at(5))), (at(9), None)] {
            let mut episodes = Episodes::default();
            episodes.sample(node(1), None, at(6));
            episodes.sample(node(1), Some(trigger), at(10));
            assert_eq!(stop(&mut episodes, at(10)).expect("the first").crossed, expected);
        }
    }

    #[test]
    fn thresholds_of_slices_count_too() {
        let mut episodes = Episodes::default();
        episodes.sample([0; SCOPES], Some(at(1)), at(1));
        assert!(!episodes.is_open(), "an event without a crossing is none");
        let mut slice = node(1);
        episodes.sample(slice, Some(at(10)), at(11));
        assert!(stop(&mut episodes, at(12)).is_some());
        slice[3] = 1;
        episodes.sample(slice, Some(at(20)), at(21));
        assert_eq!(stop(&mut episodes, at(22)), Some(Reported { crossed: Some(at(20)), past_threshold: MIB }));
    }

    #[test]
    fn what_is_done_late_is_of_the_crossing_that_it_was_requested_for() {
        let mut episodes = Episodes::default();
        episodes.sample(node(1), Some(at(10)), at(11));
        episodes.stopping(MIB, at(12));
        episodes.stopping(Bytes::mib(9), at(13));
        assert_eq!(episodes.stopped(), Some(Reported { crossed: Some(at(10)), past_threshold: MIB }));
        episodes.stopping(MIB, at(14));
        assert!(episodes.over(true).is_some());
        assert_eq!(episodes.stopped(), None, "it is over");
        episodes.sample(node(1), Some(at(20)), at(21));
        assert_eq!(episodes.stopped(), None, "nothing was requested since");
    }
}
