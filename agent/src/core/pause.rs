//! How long work that is done again and again pauses, so that it takes no more than its share of a CPU.

use core::time::Duration;

/// No pause is longer, so that what comes by no event is not seen later than by the kubelet (`evictionMonitoringPeriod`,
/// `pkg/kubelet/kubelet.go`). What the work took is the time that passed: where the machine stood still for some seconds
/// it would otherwise pause for minutes. Work that really takes longer than its share of this takes more than its share.
const MOST: Duration = Duration::from_secs(10);

/// The pause after work that took so long, which is to take one part in `share`.
pub(super) fn after(took: Duration, share: u32) -> Duration {
    took.saturating_mul(share).min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_as_many_times_as_long_as_the_work_and_no_longer_than_the_kubelets() {
        for (took, share, expected) in
            [(0, 50, 0), (3, 50, 150), (200, 50, 10_000), (3000, 50, 10_000), (1000, 5, 5000)]
        {
            let pause = after(Duration::from_millis(took), share);
            assert_eq!(pause, Duration::from_millis(expected), "{took} ms, one part in {share}");
        }
    }
}
