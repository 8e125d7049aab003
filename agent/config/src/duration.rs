//! Durations as Kubernetes writes them, not negative.

use crate::kubelet;
use core::time::Duration;

/// Parses `1m30s`, `1.5h`, `300ms`, `0`; refuses what is below zero or beyond 292 years.
pub fn parse_duration(text: &str) -> Option<Duration> {
    u64::try_from(kubelet::parse_duration(text).ok()?).ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_not_negative() {
        for (text, millis) in [("0", Some(0)), ("1m0.5s", Some(60_500)), ("-1s", None), ("-0s", Some(0)), ("5", None)] {
            assert_eq!(parse_duration(text), millis.map(Duration::from_millis), "{text}");
        }
    }
}
