//! Times of pods, which the API has by the wall clock, on this boot's monotonic clock.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use plimsoll_units::MonotonicNs;

/// Each as it was found first: a clock that is set does not change it, so that what is known of a pod stays the same.
#[derive(Debug, Default)]
pub(crate) struct PodTimes(HashMap<(Uid, MonotonicNs), MonotonicNs>);

/// Both clocks at one time.
#[derive(Clone, Copy)]
pub(super) struct Clocks {
    monotonic: MonotonicNs,
    since_epoch: Duration,
}

impl Clocks {
    pub(super) fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { monotonic: monotonic(), since_epoch }
    }

    /// A time on a clock that begins in 1970, before this boot as zero.
    fn convert(self, MonotonicNs(written): MonotonicNs) -> MonotonicNs {
        let now = u64::try_from(self.since_epoch.as_nanos()).unwrap_or(u64::MAX);
        let (ago, ahead) = (now.saturating_sub(written), written.saturating_sub(now));
        MonotonicNs(self.monotonic.0.saturating_sub(ago).saturating_add(ahead))
    }
}

impl PodTimes {
    /// A pod's time, written on a clock that begins in 1970.
    pub(super) fn of(&mut self, uid: Uid, written: MonotonicNs, clocks: Clocks) -> MonotonicNs {
        *self.0.entry((uid, written)).or_insert_with(|| clocks.convert(written))
    }

    /// Forgets the pods that are not known any more.
    pub(super) fn retain(&mut self, is_known: impl Fn(&Uid) -> bool) {
        self.0.retain(|(uid, _), _| is_known(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Clocks = Clocks { monotonic: MonotonicNs(1000), since_epoch: Duration::from_nanos(500_000) };

    #[test]
    fn a_time_is_converted_once_whatever_the_clock_is_set_to() {
        let (mut times, uid) = (PodTimes::default(), Uid(7));
        let later = Clocks { monotonic: MonotonicNs(2000), since_epoch: Duration::ZERO };
        for (written, expected) in [(499_900, 900), (500_000, 1000), (500_030, 1030), (400_000, 0)] {
            for clocks in [NOW, later] {
                assert_eq!(times.of(uid, MonotonicNs(written), clocks), MonotonicNs(expected), "{written}");
            }
        }
        times.retain(|known| *known != uid);
        assert_eq!(times.of(uid, MonotonicNs(500_000), later), MonotonicNs(502_000), "it was forgotten");
    }
}
