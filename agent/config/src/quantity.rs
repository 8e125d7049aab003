//! Quantities as Kubernetes writes them: `100Mi`, `1.5Gi`, `2e9`, `500m`; exact, never through floating point.

use plimsoll_units::Bytes;

/// An exact amount, in units of 10^-9, which is the finest that Kubernetes keeps. Finer input is rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity(i128);

/// Why a text is no quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It does not begin with a number, or something follows the suffix.
    #[error("it is not a number with a suffix")]
    Format,
    /// The number is followed by letters that are no suffix.
    #[error("its suffix is none of n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei or an exponent")]
    Suffix,
    /// It is beyond any amount that a machine has.
    #[error("it is too large")]
    TooLarge,
}

const NANO: i128 = 1_000_000_000;
/// Where Kubernetes caps an amount with a binary suffix.
const BINARY_CAP: i128 = i64::MAX as i128 * NANO;

impl Quantity {
    /// Parses what Kubernetes accepts: a sign, digits with a dot in them, and a suffix or an exponent.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = unsigned.split_at(digits(unsigned));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(QuantityError::Format);
        }
        let amount = match Multiplier::of(suffix)? {
            Multiplier::Binary(shift) => decimal(whole, fraction, 1_i128 << shift, 9)?.min(BINARY_CAP),
            Multiplier::Decimal(exponent) => decimal(whole, fraction, 1, exponent.saturating_add(9))?,
        };
        Ok(Self(if negative { -amount } else { amount }))
    }

    /// Whether it is below zero.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Rounded up to whole bytes; absent below zero and beyond 64 bits.
    pub fn bytes(self) -> Option<Bytes> {
        let whole = self.0.div_euclid(NANO) + i128::from(self.0.rem_euclid(NANO) > 0);
        u64::try_from(whole).ok().map(Bytes)
    }

    /// The amount in units of 10^-9.
    pub const fn nanos(self) -> i128 {
        self.0
    }
}

enum Multiplier {
    Binary(u32),
    Decimal(i32),
}

impl Multiplier {
    fn of(suffix: &str) -> Result<Self, QuantityError> {
        Ok(match suffix {
            "n" => Self::Decimal(-9),
            "u" => Self::Decimal(-6),
            "m" => Self::Decimal(-3),
            "" => Self::Decimal(0),
            "k" => Self::Decimal(3),
            "M" => Self::Decimal(6),
            "G" => Self::Decimal(9),
            "T" => Self::Decimal(12),
            "P" => Self::Decimal(15),
            "E" => Self::Decimal(18),
            "Ki" => Self::Binary(10),
            "Mi" => Self::Binary(20),
            "Gi" => Self::Binary(30),
            "Ti" => Self::Binary(40),
            "Pi" => Self::Binary(50),
            "Ei" => Self::Binary(60),
            _ => return Self::exponent(suffix),
        })
    }

    /// `e3`, `E-6`: an exponent, where what follows the letter is a number.
    fn exponent(suffix: &str) -> Result<Self, QuantityError> {
        let letters = suffix.bytes().take_while(u8::is_ascii_alphabetic).count();
        let tail = &suffix[letters..];
        let unsigned = tail.strip_prefix(['+', '-']).unwrap_or(tail);
        if !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(QuantityError::Format);
        }
        if !matches!(&suffix[..letters], "e" | "E") || unsigned.is_empty() {
            return Err(QuantityError::Suffix);
        }
        // Beyond this everything is either zero, rounded up, or too large.
        let exponent = tail.parse::<i64>().unwrap_or(if tail.starts_with('-') { -1000 } else { 1000 });
        Ok(Self::Decimal(i32::try_from(exponent.clamp(-1000, 1000)).expect("clamped")))
    }
}

/// `whole.fraction * factor * 10^exponent`, rounded up.
fn decimal(whole: &str, fraction: &str, factor: i128, exponent: i32) -> Result<i128, QuantityError> {
    let mut mantissa: i128 = 0;
    let mut exponent = exponent;
    let mut lost = false;
    for (digit, is_fraction) in whole.bytes().map(|d| (d, false)).chain(fraction.bytes().map(|d| (d, true))) {
        // Digits that no longer fit can only matter behind the dot, where they are below what is kept.
        match mantissa.checked_mul(10).and_then(|shifted| shifted.checked_add(i128::from(digit - b'0'))) {
            Some(next) if next.checked_mul(factor).is_some() => {
                mantissa = next;
                exponent -= i32::from(is_fraction);
            }
            _ if is_fraction => lost |= digit != b'0',
            _ => return Err(QuantityError::TooLarge),
        }
    }
    let mut amount = mantissa.checked_mul(factor).ok_or(QuantityError::TooLarge)?;
    while exponent > 0 && amount != 0 {
        amount = amount.checked_mul(10).ok_or(QuantityError::TooLarge)?;
        exponent -= 1;
    }
    while exponent < 0 && amount != 0 {
        lost |= amount % 10 != 0;
        amount /= 10;
        exponent += 1;
    }
    Ok(amount + i128::from(lost))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_exact() {
        for (text, nanos) in [
            ("0", 0),
            ("100Mi", (100 << 20) * NANO),
            ("1.5Gi", (3 << 29) * NANO),
            ("1.1Gi", 1_181_116_006_400_000_000),
            ("+1Gi", (1 << 30) * NANO),
            ("-1", -NANO),
            ("1.Gi", (1 << 30) * NANO),
            (".5k", 500 * NANO),
            ("00100", 100 * NANO),
            ("1E3", 1000 * NANO),
            ("1e+3", 1000 * NANO),
            ("5e-1", NANO / 2),
            ("2E", 2_000_000_000_000_000_000 * NANO),
            ("500m", NANO / 2),
            ("1n", 1),
            ("0.1n", 1),
            ("1e-50", 1),
            ("1u", 1000),
            ("9223372036854775807", i128::from(i64::MAX) * NANO),
            ("9223372036854775808", (1_i128 << 63) * NANO),
            ("8Ei", BINARY_CAP),
            ("7Ei", (7_i128 << 60) * NANO),
            ("0.00000000000000000000000000000000000000000000001", 1),
        ] {
            assert_eq!(Quantity::parse(text), Ok(Quantity(nanos)), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_says_why() {
        for (text, error) in [
            ("", QuantityError::Format),
            ("Mi", QuantityError::Format),
            (".", QuantityError::Format),
            ("-", QuantityError::Format),
            ("100 Mi", QuantityError::Format),
            ("1.2.3", QuantityError::Format),
            ("5%", QuantityError::Format),
            ("1ki", QuantityError::Suffix),
            ("1K", QuantityError::Suffix),
            ("1MB", QuantityError::Suffix),
            ("1e", QuantityError::Suffix),
            ("1Gi5", QuantityError::Suffix),
            ("1e99", QuantityError::TooLarge),
            ("999999999999999999999999999999999999999999", QuantityError::TooLarge),
        ] {
            assert_eq!(Quantity::parse(text), Err(error), "{text}");
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
        ] {
            assert_eq!(Quantity::parse(text).expect(text).bytes(), bytes.map(Bytes), "{text}");
        }
    }

    proptest! {
        #[test]
        fn whole_numbers_come_back(number: u64) {
            prop_assert_eq!(Quantity::parse(&number.to_string()).expect("a number").bytes(), Some(Bytes(number)));
        }

        #[test]
        fn any_text_is_answered(text in "[+-]?[0-9.]{0,40}[a-zA-Z]{0,3}[+-]?[0-9]{0,12}") {
            if let Ok(quantity) = Quantity::parse(&text) {
                prop_assert!(text.starts_with('-') || !quantity.is_negative());
            }
        }
    }
}
