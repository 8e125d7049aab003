//! Durations as Kubernetes writes them, not negative.

use crate::kubelet;
use core::fmt::Write as _;
use core::time::Duration;

/// Parses `1m30s`, `1.5h`, `300ms`, `0`; refuses what is below zero or beyond 292 years.
pub fn parse_duration(text: &str) -> Option<Duration> {
    u64::try_from(kubelet::parse_duration(text).ok()?).ok().map(Duration::from_nanos)
}

/// Writes a duration so that [`parse_duration`] reads the same: `1h30m`, `500ms`, `0s`.
pub(crate) fn written(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let mut text = String::new();
    let mut rest = nanos;
    for (unit, name) in [
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
        (1, "ns"),
    ] {
        if rest >= unit {
            // Writing into a String does not fail.
            let _ = write!(text, "{}{name}", rest / unit);
            rest %= unit;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
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

    #[test]
    fn what_is_written_is_read() {
        for (text, millis) in [("0s", 0), ("500ms", 500), ("1m30s", 90_000), ("5m", 300_000), ("1h1s1ms", 3_601_001)] {
            let duration = Duration::from_millis(millis);
            assert_eq!(written(duration), text);
            assert_eq!(parse_duration(text), Some(duration));
        }
    }
}
