//! Durations as Kubernetes writes them: `1m30s`, `1.5h`, `300ms`, `0`.

use core::time::Duration;

const UNITS: [(&str, u128); 7] = [
    // Longer names first, so that `ms` is not taken for minutes.
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a duration: numbers, each with its unit, one after the other. Negative ones are refused.
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(number_end);
        let (unit, nanos) = UNITS.iter().find(|(unit, _)| tail.starts_with(unit))?;
        total = total.checked_add(scaled(number, *nanos)?)?;
        rest = &tail[unit.len()..];
    }
    // As long as a signed 64-bit count of nanoseconds can tell, which is 292 years.
    let nanos = u64::try_from(total).ok().filter(|nanos| i64::try_from(*nanos).is_ok())?;
    (!text.is_empty()).then(|| Duration::from_nanos(nanos))
}

/// `number`, which may have a fraction, times `unit`, rounded down.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut nanos = whole.checked_mul(unit)?;
    let mut place = unit;
    // Digits beyond 10^-13 of an hour are below a nanosecond.
    for digit in fraction.bytes().take(18) {
        place *= 10;
        nanos = nanos.checked_mul(10)?.checked_add(u128::from(digit - b'0').checked_mul(unit)?)?;
    }
    Some(nanos / (place / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_as_kubernetes_writes_them() {
        for (text, nanos) in [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("2s", Some(2_000_000_000)),
            ("1m30s", Some(90_000_000_000)),
            ("5m0s", Some(300_000_000_000)),
            ("1.5h", Some(5_400_000_000_000)),
            (".5s", Some(500_000_000)),
            ("1.s", Some(1_000_000_000)),
            ("300ms", Some(300_000_000)),
            ("7us", Some(7_000)),
            ("7µs", Some(7_000)),
            ("1.9999999999999999999999s", Some(1_999_999_999)),
            ("2562047h47m16.854775807s", Some(i64::MAX as u64)),
            ("2562047h47m16.854775808s", None),
            ("", None),
            ("s", None),
            ("5", None),
            ("-5s", None),
            ("5 s", None),
            ("5d", None),
            ("1..5s", None),
            (".s", None),
            ("99999999999999999999999999999999999999999s", None),
        ] {
            assert_eq!(parse_duration(text), nanos.map(Duration::from_nanos), "{text}");
        }
    }
}
