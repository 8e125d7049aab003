//! Counts with the noun that they count.

use core::fmt;

/// A count with its noun, in the singular of one and in the plural of any other: `1 inode`, `0 inodes`. The nouns may have
/// a verb behind them.
pub fn counted<N>(count: N, one: &str, many: &str) -> impl fmt::Display
where
    N: fmt::Display + PartialEq + From<u8>,
{
    fmt::from_fn(move |f| write!(f, "{count} {}", if count == N::from(1) { one } else { many }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_any_other_count_is_plural() {
        for (count, text) in [(0_usize, "0 processes"), (1, "1 process"), (2, "2 processes"), (11, "11 processes")] {
            assert_eq!(counted(count, "process", "processes").to_string(), text);
        }
        assert_eq!(counted(-1_i128, "inode", "inodes").to_string(), "-1 inodes");
    }
}
