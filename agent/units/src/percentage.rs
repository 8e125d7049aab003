//! Shares of a capacity, computed as the kubelet computes them.

use crate::golang::{FloatError, parse_float32};
use crate::{Amount, Bytes};
use core::fmt;

/// A share of a capacity, as the kubelet keeps it: a 32-bit fraction. It may be anything that Go reads as a number, `NaN`
/// included: a kubelet runs with such a threshold.
///
/// The kubelet divides the written number by 100 in 32 bits and multiplies in 64, so that 10 % of 10 GiB is
/// 1,073,741,840 bytes. A comparison of decisions with its own needs the same sixteen bytes.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Percentage(f32);

impl Percentage {
    /// From a fraction of one, whatever it is.
    pub const fn of_one(fraction: f32) -> Self {
        Self(fraction)
    }

    /// Parses `10%`. All percent signs at the end are taken off, not one only, and none is needed: `10%%` is ten percent
    /// (`parsePercentage` in the kubelet's `helpers.go`).
    pub fn parse(text: &str) -> Result<Self, FloatError> {
        Ok(Self(parse_float32(text.trim_end_matches('%'))? / 100.0))
    }

    /// The share as a fraction of one.
    pub const fn fraction(self) -> f32 {
        self.0
    }

    /// The share of a capacity (`GetThresholdQuantity`): multiplied in 64-bit floats and truncated. What does not fit a
    /// signed 64-bit number becomes the lowest one, `NaN` included: Go leaves that to the processor, and this is what
    /// amd64 does.
    pub fn of(self, capacity: i64) -> i64 {
        /// 2^63.
        const BEYOND: f64 = 9_223_372_036_854_775_808.0;
        #[expect(clippy::cast_precision_loss, reason = "the kubelet multiplies in 64-bit floats")]
        let share = capacity as f64 * f64::from(self.0);
        #[expect(clippy::cast_possible_truncation, reason = "truncation is the rule")]
        let truncated = share as i64;
        if (-BEYOND..BEYOND).contains(&share) { truncated } else { i64::MIN }
    }

    /// The share of a capacity, as an exact amount.
    pub fn amount_of(self, capacity: i64) -> Amount {
        Amount::whole(self.of(capacity))
    }

    /// The share of so many bytes; none where it is below zero. A capacity beyond a signed 64-bit number counts as the
    /// largest of these.
    pub fn of_bytes(self, capacity: Bytes) -> Bytes {
        Bytes(u64::try_from(self.of(i64::try_from(capacity.0).unwrap_or(i64::MAX))).unwrap_or(0))
    }
}

impl fmt::Display for Percentage {
    /// So that it parses to the same fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.0 * 100.0;
        let is_same = |percent: &f32| (percent / 100.0).to_bits() == self.0.to_bits();
        let near = [percent, percent.next_up(), percent.next_down()];
        write!(f, "{}%", near.into_iter().find(is_same).unwrap_or(percent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentages_are_the_kubelets_to_the_byte() {
        for (percent, capacity, share) in [
            ("10%", 10 << 30, 1_073_741_840),
            ("10%%", 10 << 30, 1_073_741_840),
            ("29%", 100, 28),
            ("57%", 100, 56),
            ("0%", 1 << 40, 0),
            ("100%", 1 << 40, 1 << 40),
            ("150%", 100, 150),
            ("-10%", 100, -10),
            ("100%", i64::MAX, i64::MIN),
            ("+Inf%", 1, i64::MIN),
            ("NaN%", 1, i64::MIN),
        ] {
            let percentage = Percentage::parse(percent).expect(percent);
            assert_eq!(percentage.of(capacity), share, "{percent} of {capacity}");
            let of_bytes = percentage.of_bytes(Bytes(i64::unsigned_abs(capacity)));
            assert_eq!(of_bytes, Bytes(u64::try_from(share).unwrap_or(0)), "{percent} of {capacity} bytes");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_to_the_same(hundredths in 0_u16..=10_000) {
            let text = format!("{}%", f32::from(hundredths) / 100.0);
            let percentage = Percentage::parse(&text).expect("a number");
            let printed = percentage.to_string();
            prop_assert_eq!(Percentage::parse(&printed), Ok(percentage), "{} {}", text, printed);
        }
    }
}
