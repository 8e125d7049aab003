//! Text from outside that is safe to print: a name may hold line ends and control sequences of a terminal.

/// Bytes as text: printable ASCII as it is, everything else escaped.
pub fn escaped(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Text without line ends: what is not printable ASCII is escaped. Escapes that are in it already stay as they are.
pub fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|character| {
            let escapes = character.is_control() || !character.is_ascii();
            let kept = (!escapes).then_some(character);
            kept.into_iter().chain(escapes.then(|| character.escape_default()).into_iter().flatten())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_print_is_escaped_once() {
        assert_eq!(printable("a\nb\u{1b}[1mé\\x2d"), "a\\nb\\u{1b}[1m\\u{e9}\\x2d");
    }
}
