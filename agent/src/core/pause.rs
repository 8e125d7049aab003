//! How long work that is done again and again pauses, so that it takes no more than its share of a CPU.

use core::time::Duration;

/// What it took counts up to this. It is the time that passed: where the thread waited for a CPU, or the machine stood still,
/// that says nothing of what it costs, and many times as long a pause would leave unseen whatever comes by no event. So
/// a pause that takes one part in 50 is no longer than the ten seconds in which the kubelet looks
/// (`evictionMonitoringPeriod`, `pkg/kubelet/kubelet.go`).
const COUNTED_MOST: Duration = Duration::from_millis(200);

/// The pause after work that took so long, which is to take one part in `share`.
pub(super) fn pause(took: Duration, share: u32) -> Duration {
    took.min(COUNTED_MOST) * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_as_many_times_as_long_as_the_work_and_no_longer_than_the_kubelet_s() {
        for (took, share, expected) in
            [(0, 50, 0), (3, 50, 150), (200, 50, 10_000), (3000, 50, 10_000), (3000, 5, 1000)]
        {
            let paused = pause(Duration::from_millis(took), share);
            assert_eq!(paused, Duration::from_millis(expected), "{took} ms, one part in {share}");
        }
    }
}
