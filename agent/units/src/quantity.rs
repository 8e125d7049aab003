//! Quantities as Kubernetes writes them: `100Mi`, `1.5Gi`, `2e9`, `500m`; exact, never through floating point, and
//! printed as Kubernetes prints them, because that is what its messages and events say.

use crate::{Amount, Bytes};
use core::cmp::Ordering;
use core::fmt;
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// An amount with the form that it is printed in (Kubernetes' `resource.Quantity`). Finer than 10^-9 is rounded up, as
/// Kubernetes rounds it. Exact to 38 digits; Kubernetes keeps more, and here what is behind them is rounded up.
#[derive(Clone, Debug)]
pub struct Quantity {
    /// The amount is `unscaled * 10^exponent`, and the exponent is at least [`NANO`].
    unscaled: i128,
    exponent: i32,
    format: Format,
    /// The text it was parsed from, where Kubernetes would print just that.
    written: Option<Box<str>>,
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
    /// None, printed as `0`: what a request that is not there counts and prints as.
    pub const ZERO: Self = Self::binary(0);

    /// A whole number, to be printed with binary suffixes.
    pub const fn binary(amount: i128) -> Self {
        Self { unscaled: amount, exponent: 0, format: Format::Binary, written: None }
    }

    /// A whole number, to be printed with decimal suffixes.
    pub const fn decimal(amount: i128) -> Self {
        Self { unscaled: amount, exponent: 0, format: Format::Decimal, written: None }
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
        let (unscaled, scale) = match format {
            Format::Exponent | Format::Decimal => {
                let (unscaled, dropped) = number(parts.digits, parts.fraction);
                let scale = dropped - fits(parts.fraction.len());
                round_up_to_nano(unscaled, scale.saturating_add(exponent))
            }
            Format::Binary => shifted(parts.digits, parts.fraction, exponent),
        };
        let mut quantity = Self { unscaled, exponent: scale, format, written: None };
        if format == Format::Binary && quantity.cmp_whole(1) == Ordering::Less && !quantity.is_zero() {
            quantity.format = Format::Decimal;
        }
        if parts.negative {
            quantity.unscaled = -quantity.unscaled;
        }
        Ok(quantity)
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
        let (mantissa, _) = number(digits, parts.fraction);
        let as_written = match format {
            Format::Binary => mantissa & 7 != 0,
            Format::Exponent | Format::Decimal => {
                let all = [digits, parts.fraction].concat();
                scale % 3 == 0 && !all.ends_with("000") && !all.starts_with('0')
            }
        };
        let unscaled = if format == Format::Binary { mantissa << exponent } else { mantissa };
        Some(Self {
            unscaled: if parts.negative { -unscaled } else { unscaled },
            exponent: scale,
            format,
            written: as_written.then(|| text.into()),
        })
    }

    /// Whether it is zero.
    pub const fn is_zero(&self) -> bool {
        self.unscaled == 0
    }

    /// Whether it is below zero.
    pub const fn is_negative(&self) -> bool {
        self.unscaled < 0
    }

    /// The amount with the largest exponent that loses nothing.
    fn plain(&self) -> (i128, i32) {
        if self.is_zero() {
            return (0, 0);
        }
        let (mut unscaled, mut exponent) = (self.unscaled, self.exponent);
        while unscaled % 10 == 0 && exponent < i32::MAX {
            unscaled /= 10;
            exponent += 1;
        }
        (unscaled, exponent)
    }

    /// Rounded up to whole bytes; absent below zero and beyond 64 bits.
    pub fn bytes(&self) -> Option<Bytes> {
        u64::try_from(self.whole()?.0).ok().map(Bytes)
    }

    /// The amount without its form; the nearest that fits where it is beyond, which no machine has.
    pub fn amount(&self) -> Amount {
        let beyond = if self.is_negative() { i128::MIN } else { i128::MAX };
        let nanos =
            ten_to(i64::from(self.exponent) - i64::from(NANO)).and_then(|scale| self.unscaled.checked_mul(scale));
        Amount::nanos(if self.is_zero() { 0 } else { nanos.unwrap_or(beyond) })
    }

    /// Rounded up to a whole number, and whether that lost anything; absent beyond 128 bits.
    fn whole(&self) -> Option<(i128, bool)> {
        if self.exponent >= 0 {
            let whole = ten_to(self.exponent.into()).and_then(|scale| self.unscaled.checked_mul(scale));
            return if self.is_zero() { Some((0, false)) } else { Some((whole?, false)) };
        }
        let divisor = ten_to(-i64::from(self.exponent))?;
        let (quotient, lost) = (self.unscaled / divisor, self.unscaled % divisor != 0);
        Some((quotient + i128::from(lost && !self.is_negative()), lost))
    }

    fn cmp_whole(&self, other: i128) -> Ordering {
        match self.whole() {
            None => self.unscaled.cmp(&0),
            Some((whole, lost)) => {
                // What was rounded up to `other` is still below it.
                whole.cmp(&other).then(if lost { Ordering::Less } else { Ordering::Equal })
            }
        }
    }

    /// The amount as a plain decimal number, `1181116006.4`; with an exponent where it would have more than a thousand
    /// zeros, because `1e2000000000` is a quantity, too.
    pub fn to_decimal(&self) -> String {
        let digits = self.unscaled.unsigned_abs().to_string();
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
        let sum = self.amount() + other.amount();
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { unscaled: sum.as_nanos(), exponent: NANO, format, written: None }
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
            while has_opposite && whole % 1024 == 0 {
                whole /= 1024;
                power += 10;
            }
            let suffix = BINARY.iter().find(|(_, exponent)| *exponent == power).map_or("", |(suffix, _)| suffix);
            return write!(f, "{whole}{suffix}");
        }
        let (amount, exponent) = self.plain();
        // Suffixes are three digits apart.
        let zeros = exponent.rem_euclid(3);
        let exponent = exponent - zeros;
        write!(f, "{amount}{:0<width$}", "", width = usize::try_from(zeros).unwrap_or(0))?;
        match self.format {
            Format::Exponent if exponent == 0 => Ok(()),
            Format::Exponent => write!(f, "e{exponent}"),
            Format::Decimal | Format::Binary => {
                f.write_str(DECIMAL.iter().find(|(_, known)| *known == exponent).map_or("", |(suffix, _)| suffix))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// From a text. The API takes a number for one too.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as 500Mi")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Quantity, E> {
                Quantity::parse(text).map_err(|error| E::custom(format!("expected a quantity such as 500Mi: {error}")))
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }
        }
        deserializer.deserialize_any(Text)
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

/// `10^exponent`, where it fits.
fn ten_to(exponent: i64) -> Option<i128> {
    10_i128.checked_pow(u32::try_from(exponent).ok()?)
}

/// The digits as a number, and how many were left off behind those that fit; these are rounded up.
fn number(digits: &str, fraction: &str) -> (i128, i32) {
    let (mut number, mut dropped, mut lost) = (0_i128, 0, false);
    for digit in digits.bytes().chain(fraction.bytes()).map(|byte| i128::from(byte - b'0')) {
        match number.checked_mul(10).and_then(|number| number.checked_add(digit)) {
            Some(longer) if dropped == 0 && longer < i128::MAX => number = longer,
            _ => {
                dropped += 1;
                lost |= digit != 0;
            }
        }
    }
    (number + i128::from(lost), dropped)
}

/// The number times two to the power of `exponent`, in billionths rounded up; at most the largest signed 64-bit number,
/// where Kubernetes caps what has a binary suffix.
fn shifted(digits: &str, fraction: &str, exponent: i32) -> (i128, i32) {
    let most = i128::from(i64::MAX);
    let mut whole = digits.parse::<i128>().unwrap_or(if digits.is_empty() { 0 } else { most }).min(most);
    let mut fraction: Vec<u32> = fraction.bytes().map(|byte| u32::from(byte - b'0')).collect();
    for _ in 0..exponent / 10 {
        let mut carry = 0;
        for digit in fraction.iter_mut().rev() {
            let product = *digit * 1024 + carry;
            (carry, *digit) = (product / 10, product % 10);
        }
        whole = whole.saturating_mul(1024).saturating_add(carry.into()).min(most + 1);
    }
    let (kept, rest) = fraction.split_at(fraction.len().min(9));
    let nanos = (0..9).fold(0, |nanos, at| nanos * 10 + i128::from(kept.get(at).copied().unwrap_or(0)));
    let nanos = nanos + i128::from(rest.iter().any(|digit| *digit != 0));
    if whole > most || whole == most && nanos > 0 { (most, 0) } else { (whole * 1_000_000_000 + nanos, NANO) }
}

/// A length as the 32-bit number that scales are; no text is that long.
fn fits(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

fn round_up_to_nano(unscaled: i128, exponent: i32) -> (i128, i32) {
    if exponent >= NANO || unscaled == 0 {
        return (unscaled, exponent.max(NANO));
    }
    // A number that fits is below any power of ten that does not: all of it is below the finest that is kept.
    let Some(divisor) = ten_to(i64::from(NANO) - i64::from(exponent)) else { return (1, NANO) };
    (unscaled / divisor + i128::from(unscaled % divisor != 0), NANO)
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
    fn numbers_print_as_kubernetes_prints_them() {
        for (number, binary, decimal) in [
            (0_i64, "0", "0"),
            (1, "1", "1"),
            (1000, "1k", "1k"),
            (1023, "1023", "1023"),
            (1024, "1Ki", "1024"),
            (1500, "1500", "1500"),
            (-500, "-500", "-500"),
            (-2048, "-2Ki", "-2048"),
            (100_000, "100000", "100k"),
            (1_572_864_000, "1500Mi", "1572864k"),
            (1_073_741_825, "1073741825", "1073741825"),
            (1 << 60, "1Ei", "1152921504606846976"),
            (i64::MAX, "9223372036854775807", "9223372036854775807"),
            (i64::MIN, "-9223372036854775808", "-9223372036854775808"),
        ] {
            let number = i128::from(number);
            let (binary, decimal) = (binary.to_owned(), decimal.to_owned());
            let printed = |quantity: fn(i128) -> Quantity| quantity(number).to_string();
            assert_eq!((printed(Quantity::binary), printed(Quantity::decimal)), (binary, decimal));
        }
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
            ("0.00000000001Ki", 11),
            ("0.000000000000000000000000000000000000000001Ei", 1),
            ("1.000000000000000000000000001Ei", (1 << 60) * 1_000_000_000 + 2),
            ("7.9999999999999999999999999999999999Ei", i128::from(i64::MAX) * 1_000_000_000),
            ("-1500m", -1_500_000_000),
            ("1.1Gi", 1_181_116_006_400_000_000),
            ("1e-50", 1),
            ("1000E", 10_i128.pow(30)),
            ("1e2000000000", i128::MAX),
            ("-1e60", i128::MIN),
            ("0e2000000000", 0),
        ] {
            assert_eq!(Quantity::parse(text).expect(text).amount(), Amount::nanos(nanos), "{text}");
        }
    }

    #[test]
    fn digits_beyond_those_that_fit_are_rounded_up() {
        let many = format!("1{}", "0".repeat(60));
        assert_eq!(Quantity::parse(&many), Quantity::parse("1e60"));
        let more = Quantity::parse(&format!("{many}1")).expect("a number");
        assert_eq!(more.to_decimal(), format!("1{}1{}", "0".repeat(37), "0".repeat(23)));
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
