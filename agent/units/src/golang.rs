//! Numbers and durations as Go's standard library reads them, with its error texts.

/// Why a text is no floating-point number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FloatError {
    /// It is not written as one.
    #[error("strconv.ParseFloat: parsing {}: invalid syntax", quoted(.0))]
    Syntax(String),
    /// It is beyond what 32 bits hold.
    #[error("strconv.ParseFloat: parsing {}: value out of range", quoted(.0))]
    Range(String),
}

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// It is not written as one, or is too long for 64 bits of nanoseconds.
    #[error("time: invalid duration {}", quoted_by_time(.0))]
    Invalid(String),
    /// A number has no unit.
    #[error("time: missing unit in duration {}", quoted_by_time(.0))]
    MissingUnit(String),
    /// A number is followed by something else than a unit.
    #[error("time: unknown unit {} in duration {}", quoted_by_time(.unit), quoted_by_time(.text))]
    UnknownUnit {
        /// What stands there.
        unit: String,
        /// The whole text.
        text: String,
    },
}

/// `text` between quotation marks, as `strconv.Quote` has it: what does not print is escaped, by its code point.
fn quoted(text: &str) -> String {
    use core::fmt::Write as _;
    let mut out = String::from('"');
    for c in text.chars() {
        let code = u32::from(c);
        // Writing into a String does not fail.
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            '\x07' => write!(out, "\\a"),
            '\x08' => write!(out, "\\b"),
            '\x0c' => write!(out, "\\f"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            '\x0b' => write!(out, "\\v"),
            _ if prints(c) => write!(out, "{c}"),
            '\0'..='\x7f' => write!(out, "\\x{code:02x}"),
            '\u{80}'..='\u{ffff}' => write!(out, "\\u{code:04x}"),
            '\u{10000}'.. => write!(out, "\\U{code:08x}"),
        };
    }
    out.push('"');
    out
}

/// Whether a character prints: it is no control, no format, and no space but ASCII's. Rust escapes the same ones, and
/// those that combine with the character before, unless there is one before.
fn prints(c: char) -> bool {
    c == '\'' || format!("a{c}").escape_debug().nth(1) == Some(c)
}

/// `text` between quotation marks, as the package `time` has it in its own way: of a character that is no ASCII, or is
/// a control below the space, each byte is escaped.
fn quoted_by_time(text: &str) -> String {
    use core::fmt::Write as _;
    let mut out = String::from('"');
    for c in text.chars() {
        // Writing into a String does not fail.
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            ' '..='\x7f' => write!(out, "{c}"),
            c => c.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| write!(out, "\\x{byte:02x}")),
        };
    }
    out.push('"');
    out
}

/// Reads a 32-bit number: decimal or hexadecimal, with exponent, with underscores between digits, infinite or none.
pub fn parse_float32(text: &str) -> Result<f32, FloatError> {
    let syntax = || FloatError::Syntax(text.to_owned());
    let negative = text.starts_with('-');
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let lower = unsigned.to_ascii_lowercase();
    let value = match lower.as_str() {
        "inf" | "infinity" => return Ok(if negative { f32::NEG_INFINITY } else { f32::INFINITY }),
        // It takes no sign.
        "nan" if unsigned.len() == text.len() => return Ok(f32::NAN),
        number => {
            let plain = without_underscores(number).ok_or_else(syntax)?;
            match plain.strip_prefix("0x") {
                Some(hexadecimal) => parse_hexadecimal(hexadecimal).ok_or_else(syntax)?,
                // One sign was taken off already.
                None if plain.starts_with(['+', '-']) => return Err(syntax()),
                None if plain.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'+' | b'-')) => {
                    plain.parse::<f32>().map_err(|_| syntax())?
                }
                None => return Err(syntax()),
            }
        }
    };
    if value.is_infinite() {
        return Err(FloatError::Range(text.to_owned()));
    }
    Ok(if negative { -value } else { value })
}

/// Takes underscores out, which may stand between digits, or after `0x`, and nowhere else.
fn without_underscores(number: &str) -> Option<String> {
    let bytes = number.as_bytes();
    let hexadecimal = number.starts_with("0x");
    let is_digit = |byte: u8| if hexadecimal { byte.is_ascii_hexdigit() } else { byte.is_ascii_digit() };
    for (index, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'_') {
        let before = index.checked_sub(1).and_then(|at| bytes.get(at)).copied()?;
        let after = bytes.get(index + 1).copied()?;
        let after_prefix = hexadecimal && index == 2;
        if !(is_digit(before) || after_prefix) || !is_digit(after) {
            return None;
        }
    }
    Some(number.replace('_', ""))
}

/// `10p0`, `1.8p-3`: the exponent of two is not optional.
fn parse_hexadecimal(text: &str) -> Option<f32> {
    let (mantissa, exponent) = text.split_once('p')?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    if (whole.is_empty() && fraction.is_empty()) || digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // Beyond this it is zero or infinite whatever the digits are.
    let limit = 100_000;
    let mut exponent: i32 =
        exponent.parse().unwrap_or(if exponent.starts_with('-') { -limit } else { limit }).clamp(-limit, limit);
    let mut bits: u64 = 0;
    for (digit, is_fraction) in whole.chars().map(|c| (c, false)).chain(fraction.chars().map(|c| (c, true))) {
        let digit = u64::from(digit.to_digit(16)?);
        if bits >> 59 == 0 {
            bits = bits << 4 | digit;
            exponent = exponent.saturating_sub(if is_fraction { 4 } else { 0 });
        } else {
            // Enough digits: the rest only decides how half is rounded.
            bits |= u64::from(digit != 0);
            exponent = exponent.saturating_add(if is_fraction { 0 } else { 4 });
        }
    }
    Some(scaled(bits, exponent))
}

/// `bits * 2^exponent`, rounded to the nearest, half to even.
fn scaled(bits: u64, exponent: i32) -> f32 {
    if bits == 0 {
        return 0.0;
    }
    // The place of the lowest bit that a 32-bit number of this size keeps; the smallest ones end at 2^-149.
    let width = 64 - i32::try_from(bits.leading_zeros()).expect("at most 64");
    let lowest = (exponent + width - 24).max(-149);
    let drop = lowest - exponent;
    let kept = match u32::try_from(drop) {
        Ok(0) | Err(_) => bits,
        Ok(drop) if drop > 64 => 0,
        Ok(drop) => {
            let wide = u128::from(bits);
            let half = 1_u128 << (drop - 1);
            let rest = wide & ((1 << drop) - 1);
            let kept = wide >> drop;
            let up = rest > half || (rest == half && kept & 1 == 1);
            u64::try_from(kept + u128::from(up)).expect("no more bits than before")
        }
    };
    let power = if drop > 0 { lowest } else { exponent };
    #[expect(clippy::cast_precision_loss, reason = "at most 25 bits are left, and the 25th is zero")]
    let kept = kept as f64;
    #[expect(clippy::cast_possible_truncation, reason = "it was rounded to what 32 bits hold; more is infinite")]
    let value = (kept * 2.0_f64.powi(power.clamp(-1000, 1000))) as f32;
    value
}

const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    // The Greek letter, which looks the same.
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a duration such as `1m30s` or `-1.5h`, in nanoseconds.
pub fn parse_duration(text: &str) -> Result<i64, DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    // The most negative one is further from zero than the most positive one.
    let limit = 1_u128 << 63;
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (whole, after) = rest.split_at(end);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => after.split_at(after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len())),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        if whole > limit {
            return Err(invalid());
        }
        let unit_end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        if unit.is_empty() {
            return Err(DurationError::MissingUnit(text.to_owned()));
        }
        let Some((_, nanos)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(DurationError::UnknownUnit { unit: unit.to_owned(), text: text.to_owned() });
        };
        let mut amount = whole.checked_mul(*nanos).filter(|amount| *amount <= limit).ok_or_else(invalid)?;
        amount += part_of_unit(fraction, *nanos);
        total += amount;
        if total > limit {
            return Err(invalid());
        }
        rest = after;
    }
    let total = i128::try_from(total).map_err(|_| invalid())?;
    i64::try_from(if negative { -total } else { total }).map_err(|_| invalid())
}

/// The digits behind the dot, in nanoseconds, by Go's own floating-point steps.
fn part_of_unit(fraction: &str, unit: u128) -> u128 {
    let mut value: u64 = 0;
    let mut scale = 1.0_f64;
    for digit in fraction.bytes() {
        match value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit - b'0'))) {
            Some(next) if i64::try_from(next).is_ok() => {
                value = next;
                scale *= 10.0;
            }
            // What no longer fits is below a nanosecond.
            _ => break,
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "Go computes this in 64-bit floats, and equal results are wanted")]
    let nanos = value as f64 * (unit as f64 / scale);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "truncation is the rule")]
    let nanos = nanos as u128;
    nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_read_as_go_reads_them() {
        for (text, value) in [
            ("10", 10.0),
            ("+5", 5.0),
            ("-0", 0.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e1", 10.0),
            ("1_0", 10.0),
            ("0x10p0", 16.0),
            ("0x_1.8p1", 3.0),
            ("0x1.ffffffp0", 2.0),
            ("0x1.000001p0", 1.0),
            ("0x1.0000011p0", 1.000_000_1),
            ("0x1p-149", f32::from_bits(1)),
            ("0x1p-151", 0.0),
            ("Inf", f32::INFINITY),
            ("-infinity", f32::NEG_INFINITY),
        ] {
            assert_eq!(parse_float32(text), Ok(value), "{text}");
        }
        assert!(parse_float32("NaN").is_ok_and(f32::is_nan));
        for text in [
            "", "abc", " 1", "1 ", "_1", "1_", "1__0", "1_.5", "+nan", "0x10", "0xp1", "1e", "--1", "0x1p", "1,5",
            "infinite",
        ] {
            assert_eq!(parse_float32(text), Err(FloatError::Syntax(text.to_owned())), "{text}");
        }
        for text in ["1e400", "-1e39", "0x1p200"] {
            assert_eq!(parse_float32(text), Err(FloatError::Range(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn texts_are_quoted_as_each_of_two_packages_quotes_them() {
        for (text, by_strconv, by_time) in [
            ("a b", r#""a b""#, r#""a b""#),
            ("\t\"\\'", r#""\t\"\\'""#, r#""\x09\"\\'""#),
            ("\u{1}\u{7f}", r#""\x01\x7f""#, "\"\\x01\u{7f}\""),
            ("5µs", r#""5µs""#, r#""5\xc2\xb5s""#),
            ("e\u{301}", "\"e\u{301}\"", r#""e\xcc\x81""#),
            ("\u{85}\u{a0}\u{200b}", r#""\u0085\u00a0\u200b""#, r#""\xc2\x85\xc2\xa0\xe2\x80\x8b""#),
            ("\u{fffd}", "\"\u{fffd}\"", r#""\xef\xbf\xbd""#),
            ("😀\u{e0001}", r#""😀\U000e0001""#, r#""\xf0\x9f\x98\x80\xf3\xa0\x80\x81""#),
        ] {
            let reported = FloatError::Syntax(text.to_owned()).to_string();
            assert_eq!(reported, format!("strconv.ParseFloat: parsing {by_strconv}: invalid syntax"));
            assert_eq!(
                DurationError::Invalid(text.to_owned()).to_string(),
                format!("time: invalid duration {by_time}")
            );
        }
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, nanos) in [
            ("0", 0),
            ("1m30s", 90_000_000_000),
            ("-1.5h", -5_400_000_000_000),
            ("+5ns", 5),
            (".5s", 500_000_000),
            ("2562047h47m16.854775807s", i64::MAX),
            ("-2562047h47m16.854775808s", i64::MIN),
        ] {
            assert_eq!(parse_duration(text), Ok(nanos), "{text}");
        }
        for (text, error) in [
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            ("abc", "time: invalid duration \"abc\""),
            ("5", "time: missing unit in duration \"5\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("5s ", "time: unknown unit \"s \" in duration \"5s \""),
            ("5\u{e9}", r#"time: unknown unit "\xc3\xa9" in duration "5\xc3\xa9""#),
            ("2562047h47m16.854775808s", "time: invalid duration \"2562047h47m16.854775808s\""),
        ] {
            assert_eq!(parse_duration(text).expect_err(text).to_string(), error);
        }
    }
}
