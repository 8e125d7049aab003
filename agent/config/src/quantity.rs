//! Quantities as Kubernetes writes them: `100Mi`, `1.5Gi`, `2e9`, `500m`; exact, never through floating point, and
//! printed as Kubernetes prints them, because that is what its messages and events say.

use core::cmp::Ordering;
use core::fmt;
use num_bigint::{BigInt, Sign};
use plimsoll_units::Bytes;

/// An exact amount. Finer than 10^-9 is rounded up, as Kubernetes rounds it.
#[derive(Clone, Debug)]
pub struct Quantity {
    /// The amount is `unscaled * 10^exponent`.
    unscaled: BigInt,
    exponent: i32,
    format: Format,
    /// The text it was parsed from, where Kubernetes would print just that.
    written: Option<String>,
}

impl PartialEq for Quantity {
    /// Equal amounts are equal, however they were written.
    fn eq(&self, other: &Self) -> bool {
        self.plain() == other.plain()
    }
}

impl Eq for Quantity {}

/// How an amount is printed unless it comes back as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `e3`, `e6`.
    Exponent,
    /// `k`, `M`, `m`.
    Decimal,
    /// `Ki`, `Mi`.
    Binary,
}

/// Why a text is no quantity, in Kubernetes' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It does not begin with a number, or something follows the suffix.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// The number is followed by letters that are no suffix.
    #[error("unable to parse quantity's suffix")]
    Suffix,
    /// The part before the suffix has no digit.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
}

/// The finest that is kept: 10^-9.
const NANO: i32 = -9;
/// Up to this many decimal digits are sure to fit into a signed 64-bit number.
const DIGITS_OF_INT64: i32 = 18;

/// Suffixes and their exponents, of ten and of two.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY: [(&str, i32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

impl Quantity {
    /// A whole number, to be printed with binary suffixes.
    pub fn binary(amount: i128) -> Self {
        Self { unscaled: BigInt::from(amount), exponent: 0, format: Format::Binary, written: None }
    }

    /// A whole number, to be printed with decimal suffixes.
    pub fn decimal(amount: i128) -> Self {
        Self { format: Format::Decimal, ..Self::binary(amount) }
    }

    /// Parses what Kubernetes accepts, with its quirks: a suffix alone is zero up to `Ti` and no number above; zero
    /// comes back as `0` however it was written.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let parts = Parts::of(text)?;
        let (exponent, format) = interpret(parts.suffix).ok_or(QuantityError::Suffix)?;
        if let Some(quantity) = Self::small(text, &parts, exponent, format) {
            return Ok(quantity);
        }
        // Kubernetes takes the numeric part as it stands here, without the zero that it fills in for small ones.
        if !parts.value.bytes().any(|byte| byte.is_ascii_digit()) {
            return Err(QuantityError::Numeric);
        }
        let mut unscaled = number(parts.digits, parts.fraction);
        let mut scale = -fits(parts.fraction.len());
        let mut format = format;
        match format {
            Format::Exponent | Format::Decimal => scale = scale.saturating_add(exponent),
            Format::Binary => unscaled <<= exponent.unsigned_abs(),
        }
        let (unscaled, scale) = round_up_to_nano(unscaled, scale);
        let mut quantity = Self { unscaled, exponent: scale, format, written: None };
        if format == Format::Binary {
            if quantity.cmp_whole(i64::MAX.into()) == Ordering::Greater {
                quantity = Self { unscaled: i64::MAX.into(), exponent: 0, ..quantity };
            }
            if quantity.cmp_whole(1) == Ordering::Less && !quantity.is_zero() {
                format = Format::Decimal;
            }
        }
        if parts.negative {
            quantity.unscaled = -quantity.unscaled;
        }
        Ok(Self { format, ..quantity })
    }

    /// Amounts that fit 64 bits for sure. They come back as they were written, if that is near enough to the canonical
    /// form, by a test that only Kubernetes' authors could explain: `+1Gi` and `00100` pass it, `1000` does not.
    fn small(text: &str, parts: &Parts<'_>, exponent: i32, format: Format) -> Option<Self> {
        let digits = if parts.digits.is_empty() { "0" } else { parts.digits };
        let (precision, scale) = match format {
            Format::Exponent | Format::Decimal => {
                (DIGITS_OF_INT64 - fits(digits.len() + parts.fraction.len()), exponent)
            }
            Format::Binary if parts.fraction.is_empty() => (15 - fits(digits.len()) - exponent * 3 / 10 - 1, 0),
            Format::Binary => return None,
        };
        let scale = scale.wrapping_sub(fits(parts.fraction.len()));
        if precision < 0 || scale < NANO {
            return None;
        }
        let mantissa = number(digits, parts.fraction);
        let as_written = match format {
            Format::Binary => mantissa.iter_u32_digits().next().is_some_and(|low| low & 7 != 0),
            Format::Exponent | Format::Decimal => {
                let all = [digits, parts.fraction].concat();
                scale % 3 == 0 && !all.ends_with("000") && !all.starts_with('0')
            }
        };
        let unscaled = if format == Format::Binary { mantissa << exponent.unsigned_abs() } else { mantissa };
        Some(Self {
            unscaled: if parts.negative { -unscaled } else { unscaled },
            exponent: scale,
            format,
            written: as_written.then(|| text.to_owned()),
        })
    }

    /// Whether it is zero.
    pub fn is_zero(&self) -> bool {
        self.unscaled.sign() == Sign::NoSign
    }

    /// Whether it is below zero.
    pub fn is_negative(&self) -> bool {
        self.unscaled.sign() == Sign::Minus
    }

    /// The amount with the largest exponent that loses nothing.
    fn plain(&self) -> (BigInt, i32) {
        if self.is_zero() {
            return (BigInt::ZERO, 0);
        }
        let (mut unscaled, mut exponent) = (self.unscaled.clone(), self.exponent);
        while (&unscaled % 10_u32).sign() == Sign::NoSign && exponent < i32::MAX {
            unscaled /= 10_u32;
            exponent += 1;
        }
        (unscaled, exponent)
    }

    /// Rounded up to whole bytes; absent below zero and beyond 64 bits.
    pub fn bytes(&self) -> Option<Bytes> {
        u64::try_from(self.whole()?.0).ok().map(Bytes)
    }

    /// The amount in billionths, the finest that is kept; the nearest that 128 bits hold where it is beyond them, which no
    /// machine has.
    pub fn nanos(&self) -> i128 {
        let beyond = if self.is_negative() { i128::MIN } else { i128::MAX };
        let Ok(exponent @ 0..=64) = u32::try_from(i64::from(self.exponent) - i64::from(NANO)) else {
            return if self.is_zero() { 0 } else { beyond };
        };
        i128::try_from(&self.unscaled * BigInt::from(10).pow(exponent)).unwrap_or(beyond)
    }

    /// Rounded up to a whole number, and whether that lost anything; absent beyond a hundred digits.
    fn whole(&self) -> Option<(BigInt, bool)> {
        if self.is_zero() {
            return Some((BigInt::ZERO, false));
        }
        match u32::try_from(self.exponent) {
            Ok(exponent) if exponent <= 100 => Some((&self.unscaled * BigInt::from(10).pow(exponent), false)),
            Ok(_) => None,
            Err(_) => {
                let divisor = BigInt::from(10).pow(self.exponent.unsigned_abs());
                let quotient = &self.unscaled / &divisor;
                let lost = &quotient * &divisor != self.unscaled;
                let up = lost && !self.is_negative();
                Some((quotient + i32::from(up), lost))
            }
        }
    }

    fn cmp_whole(&self, other: i128) -> Ordering {
        match self.whole() {
            None => self.unscaled.sign().cmp(&Sign::NoSign),
            Some((whole, lost)) => {
                // What was rounded up to `other` is still below it.
                whole.cmp(&other.into()).then(if lost { Ordering::Less } else { Ordering::Equal })
            }
        }
    }

    /// The amount as a plain decimal number, `1181116006.4`; with an exponent where it would have more than a thousand
    /// zeros, because `1e2000000000` is a quantity, too.
    pub fn to_decimal(&self) -> String {
        let digits = self.unscaled.magnitude().to_string();
        let sign = if self.is_negative() { "-" } else { "" };
        let Ok(places) = usize::try_from(-i64::from(self.exponent)) else {
            return match usize::try_from(self.exponent) {
                _ if self.is_zero() => "0".to_owned(),
                Ok(zeros @ 0..=1000) => format!("{sign}{digits}{}", "0".repeat(zeros)),
                _ => format!("{sign}{digits}e{}", self.exponent),
            };
        };
        let padded = format!("{digits:0>width$}", width = places + 1);
        let (whole, fraction) = padded.split_at(padded.len() - places);
        let fraction = fraction.trim_end_matches('0');
        if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
    }
}

impl core::ops::Add for &Quantity {
    type Output = Quantity;

    /// The sum, printed in the form of the first, or of the second if the first is zero; never as either was written.
    fn add(self, other: Self) -> Quantity {
        let unscaled = BigInt::from(self.nanos()) + BigInt::from(other.nanos());
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { unscaled, exponent: NANO, format, written: None }
    }
}

impl fmt::Display for Quantity {
    /// As Kubernetes 1.36 prints it. Beyond `E` it has no suffix and prints none, so that 10^21 reads as `1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(written) = &self.written {
            return f.write_str(written);
        }
        if self.is_zero() {
            return f.write_str("0");
        }
        if self.format == Format::Binary
            && (self.cmp_whole(1024) != Ordering::Less || self.cmp_whole(-1024) != Ordering::Greater)
            && let Some((mut whole, false)) = self.whole()
        {
            let mut power = 0;
            // Kubernetes negates a 64-bit number here, and there is one that has no opposite.
            let has_opposite = whole != i64::MIN.into();
            while has_opposite && (&whole % 1024_u32).sign() == Sign::NoSign {
                whole /= 1024_u32;
                power += 10;
            }
            let suffix = BINARY.iter().find(|(_, exponent)| *exponent == power).map_or("", |(suffix, _)| suffix);
            return write!(f, "{whole}{suffix}");
        }
        let (mut amount, mut exponent) = self.plain();
        while exponent % 3 != 0 {
            amount *= 10_u32;
            exponent -= 1;
        }
        match self.format {
            Format::Exponent if exponent == 0 => write!(f, "{amount}"),
            Format::Exponent => write!(f, "{amount}e{exponent}"),
            Format::Decimal | Format::Binary => {
                let suffix = DECIMAL.iter().find(|(_, known)| *known == exponent).map_or("", |(suffix, _)| suffix);
                write!(f, "{amount}{suffix}")
            }
        }
    }
}

/// A text taken apart.
struct Parts<'a> {
    negative: bool,
    /// Sign, digits and dot as they stand.
    value: &'a str,
    /// Digits before the dot, without leading zeros.
    digits: &'a str,
    /// Digits after the dot.
    fraction: &'a str,
    suffix: &'a str,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Result<Self, QuantityError> {
        let negative = text.starts_with('-');
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let count = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = unsigned.split_at(count(unsigned));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(count(rest)),
            None => ("", rest),
        };
        let letters = suffix.bytes().take_while(|byte| b"eEinumkKMGTP".contains(byte)).count();
        let exponent = &suffix[letters..];
        if !exponent.strip_prefix(['-', '+']).unwrap_or(exponent).bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(QuantityError::Format);
        }
        let value = &text[..text.len() - suffix.len()];
        Ok(Self { negative, value, digits: digits.trim_start_matches('0'), fraction, suffix })
    }
}

fn interpret(suffix: &str) -> Option<(i32, Format)> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(known, _)| *known == suffix) {
        return Some((*exponent, Format::Decimal));
    }
    if let Some((_, exponent)) = BINARY.iter().find(|(known, _)| *known == suffix) {
        return Some((*exponent, Format::Binary));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?.parse::<i64>().ok()?;
    // Kubernetes cuts the exponent to 32 bits; one that does not fit them is no amount that a machine has.
    Some((i32::try_from(exponent).ok()?, Format::Exponent))
}

fn number(digits: &str, fraction: &str) -> BigInt {
    BigInt::parse_bytes([digits, fraction].concat().as_bytes(), 10).unwrap_or(BigInt::ZERO)
}

/// A length as the 32-bit number that scales are; no text is that long.
fn fits(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

fn round_up_to_nano(unscaled: BigInt, exponent: i32) -> (BigInt, i32) {
    if exponent >= NANO || unscaled.sign() == Sign::NoSign {
        return (unscaled, exponent.max(NANO));
    }
    let excess = NANO.abs_diff(exponent);
    // Fewer digits than are cut off: all of it is below the finest that is kept.
    if unscaled.bits() < u64::from(excess) * 3 {
        return (BigInt::from(1), NANO);
    }
    let divisor = BigInt::from(10).pow(excess);
    let quotient = &unscaled / &divisor;
    let lost = &quotient * &divisor != unscaled;
    (quotient + i32::from(lost), NANO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_exact_and_print_as_kubernetes_prints_them() {
        for (text, value, printed) in [
            ("0", "0", "0"),
            ("-0", "0", "0"),
            ("Gi", "0", "0"),
            (".", "0", "0"),
            ("100Mi", "104857600", "100Mi"),
            ("1.5Gi", "1610612736", "1536Mi"),
            ("1e2000000000", "1e2000000000", "100e1999999998"),
            ("1.1Gi", "1181116006.4", "1181116006400m"),
            ("+1Gi", "1073741824", "+1Gi"),
            ("-1", "-1", "-1"),
            ("1.Gi", "1073741824", "1.Gi"),
            ("00100", "100", "00100"),
            ("1000", "1000", "1k"),
            ("8Gi", "8589934592", "8Gi"),
            ("1024Ki", "1048576", "1Mi"),
            ("1E3", "1000", "1E3"),
            ("1e1", "10", "10"),
            ("1.5e9", "1500000000", "1500e6"),
            ("1000E", "1000000000000000000000", "1"),
            ("5e-1", "0.5", "500e-3"),
            ("500m", "0.5", "500m"),
            ("0.1n", "0.000000001", "1n"),
            ("1e-50", "0.000000001", "1e-9"),
            ("1e-2000000000", "0.000000001", "1e-9"),
            ("8Ei", "9223372036854775807", "9223372036854775807"),
            ("-8Ei", "-9223372036854775807", "-9223372036854775807"),
            ("0.5Ki", "512", "512"),
            ("0.0001Ki", "0.1024", "102400u"),
        ] {
            let quantity = Quantity::parse(text).expect(text);
            assert_eq!((quantity.to_decimal().as_str(), quantity.to_string().as_str()), (value, printed), "{text}");
        }
        assert_eq!(Quantity::binary(3 << 30).to_string(), "3Gi");
        assert_eq!(Quantity::decimal(18_000_000).to_string(), "18M");
        assert_eq!(Quantity::decimal(-500).to_string(), "-500");
        assert_eq!(Quantity::binary(i64::MIN.into()).to_string(), "-9223372036854775808");
    }

    #[test]
    fn sums_are_printed_in_the_form_of_the_first_that_is_not_zero() {
        for (one, other, sum) in [
            ("1Gi", "1Gi", "2Gi"),
            ("1Gi", "1000", "1073742824"),
            ("1000", "1Gi", "1073742824"),
            ("500M", "500M", "1G"),
            ("0", "1Gi", "1Gi"),
            ("0", "1024k", "1024k"),
            ("+1Gi", "0", "1Gi"),
            ("1e3", "1k", "2e3"),
            ("0.1", "0.2", "300m"),
            ("1Ki", "1n", "1024000000001n"),
        ] {
            let quantity = |text| Quantity::parse(text).expect(text);
            assert_eq!((&quantity(one) + &quantity(other)).to_string(), sum, "{one} + {other}");
        }
    }

    #[test]
    fn what_is_no_quantity_says_why() {
        for (text, error) in [
            ("", QuantityError::Format),
            ("100 Mi", QuantityError::Format),
            ("1.2.3", QuantityError::Format),
            ("5%", QuantityError::Format),
            ("1ki", QuantityError::Suffix),
            ("1K", QuantityError::Suffix),
            ("10MB", QuantityError::Format),
            ("1e", QuantityError::Suffix),
            ("1Gi5", QuantityError::Suffix),
            ("--1", QuantityError::Suffix),
            ("1e99999999999", QuantityError::Suffix),
            ("Ei", QuantityError::Numeric),
            ("-Pi", QuantityError::Numeric),
        ] {
            assert_eq!(Quantity::parse(text).map(|quantity| quantity.to_string()), Err(error), "{text}");
        }
    }

    #[test]
    fn equal_amounts_are_equal_however_they_are_written() {
        for (one, other, equal) in [
            ("1Gi", "1024Mi", true),
            ("1000", "1k", true),
            ("0", "0Gi", true),
            ("500m", "0.5", true),
            ("1Gi", "1G", false),
            ("1", "-1", false),
            ("1e2147483647", "10e2147483646", true),
        ] {
            assert_eq!(Quantity::parse(one) == Quantity::parse(other), equal, "{one} {other}");
        }
    }

    #[test]
    fn part_of_a_byte_is_a_byte() {
        for (text, bytes) in [
            ("500m", Some(1)),
            ("1", Some(1)),
            ("-1", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("1e2000000000", None),
        ] {
            assert_eq!(Quantity::parse(text).expect(text).bytes(), bytes.map(Bytes), "{text}");
        }
    }

    #[test]
    fn billionths() {
        for (text, nanos) in [
            ("0", 0),
            ("1n", 1),
            ("-1500m", -1_500_000_000),
            ("1.1Gi", 1_181_116_006_400_000_000),
            ("1e-50", 1),
            ("1000E", 10_i128.pow(30)),
            ("1e2000000000", i128::MAX),
            ("-1e60", i128::MIN),
            ("0e2000000000", 0),
        ] {
            assert_eq!(Quantity::parse(text).expect(text).nanos(), nanos, "{text}");
        }
    }

    proptest! {
        #[test]
        fn whole_numbers_come_back(number: u64) {
            let quantity = Quantity::parse(&number.to_string()).expect("a number");
            prop_assert_eq!(quantity.bytes(), Some(Bytes(number)));
            prop_assert_eq!(quantity.to_decimal(), number.to_string());
        }

        #[test]
        fn what_is_printed_parses_to_the_same(text in "[+-]?[0-9]{0,25}[.]?[0-9]{0,12}(|n|u|m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|Ei|e-?[0-9])") {
            if let Ok(quantity) = Quantity::parse(&text) {
                let printed = quantity.to_string();
                // Beyond 10^20 there may be no suffix left.
                if quantity.to_decimal().len() < 20 {
                    let again = Quantity::parse(&printed).expect("printed");
                    prop_assert_eq!(again.to_decimal(), quantity.to_decimal(), "{} {}", text, printed);
                }
            }
        }

        #[test]
        fn any_text_is_answered(text in "\\PC{0,12}|[+-]?[0-9.]{0,40}[a-zA-Z]{0,3}[+-]?[0-9]{0,9}") {
            if let Ok(quantity) = Quantity::parse(&text) {
                prop_assert!(text.starts_with('-') || !quantity.is_negative());
                prop_assert!(!quantity.to_string().is_empty());
            }
        }
    }
}
