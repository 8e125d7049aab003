//! Numbers out of bytes, in place: no UTF-8 check, no allocation, no panic on any input.

/// The decimal number that `text` begins with, and what follows it. `None` without a digit, or where it overflows.
pub(crate) fn leading_u64(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    let value = text[..digits]
        .iter()
        .try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))?;
    Some((value, &text[digits..]))
}

/// The decimal number that `text` begins with, after blanks.
pub(crate) fn u64_after_blanks(text: &[u8]) -> Option<u64> {
    leading_u64(text.trim_ascii_start()).map(|(value, _)| value)
}

/// Lines without their line end.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

/// The value of the line `key value`, where the key stands first and whole.
pub(crate) fn field(text: &[u8], key: &[u8]) -> Option<u64> {
    lines(text).find_map(|line| {
        let rest = line.strip_prefix(key)?;
        rest.first().filter(|byte| byte.is_ascii_whitespace())?;
        u64_after_blanks(rest)
    })
}

/// A cgroup limit: a number of bytes, or `max`, which is the largest number there is.
pub(crate) fn limit(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    if text == b"max" {
        return Some(u64::MAX);
    }
    leading_u64(text).filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = b"inactive_file_x 1\ninactive_file 42\nfile 7\n";
        for (key, value) in [("inactive_file", Some(42)), ("file", Some(7)), ("inactive", None), ("anon", None)] {
            assert_eq!(field(text, key.as_bytes()), value, "{key}");
        }
    }

    #[test]
    fn a_limit_is_a_number_or_max() {
        for (text, value) in [
            ("max\n", Some(u64::MAX)),
            ("0\n", Some(0)),
            ("104857600\n", Some(104_857_600)),
            ("18446744073709551616\n", None),
            ("1M\n", None),
            ("", None),
        ] {
            assert_eq!(limit(text.as_bytes()), value, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_number_comes_back(value: u64, tail in "[^0-9]*") {
            let text = format!("{value}{tail}");
            prop_assert_eq!(leading_u64(text.as_bytes()), Some((value, tail.as_bytes())));
        }

        #[test]
        fn no_input_panics(text: Vec<u8>, key: Vec<u8>) {
            let _ = (field(&text, &key), limit(&text), u64_after_blanks(&text));
        }
    }
}
