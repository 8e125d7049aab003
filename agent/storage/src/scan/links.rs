//! Files with several names, each of which is to count once.
//!
//! 16,384 inodes are remembered, which takes 300 KiB at most. Of a file that finds no room each name counts its share: a
//! third of its blocks where it has three names. That comes to the same where all names are in the tree, and for a volume
//! they are: no container can link across a mount (`link(2)`: EXDEV, even within one file system).

use super::Count;
use std::collections::HashSet;

/// How many inodes are remembered.
pub(super) const MAX_LINKS: usize = 1 << 14;

/// Bits behind the point of a share.
const FRACTION_BITS: u32 = 32;

/// What is known of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It was not counted before.
    First,
    /// It was.
    Again,
    /// There was no room to remember it.
    Unknown,
}

#[derive(Debug, Default)]
pub(super) struct Links {
    inodes: HashSet<u64>,
    /// Sums of shares, with [`FRACTION_BITS`].
    bytes: u128,
    files: u128,
}

impl Links {
    /// An inode with so many names.
    pub(super) fn see(&mut self, inode: u64, names: u32) -> Seen {
        if names <= 1 {
            Seen::First
        } else if self.inodes.contains(&inode) {
            Seen::Again
        } else if self.inodes.len() < MAX_LINKS {
            self.inodes.insert(inode);
            Seen::First
        } else {
            Seen::Unknown
        }
    }

    /// Counts the share of one name.
    pub(super) fn share(&mut self, bytes: u64, names: u32) {
        self.bytes = self.bytes.saturating_add((u128::from(bytes) << FRACTION_BITS) / u128::from(names.max(1)));
        self.files = self.files.saturating_add((1 << FRACTION_BITS) / u128::from(names.max(1)));
    }

    /// All shares, rounded to the nearest.
    pub(super) fn shared(&self) -> Count {
        let whole = |sum: u128| u64::try_from((sum + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS).unwrap_or(u64::MAX);
        Count { bytes: whole(self.bytes), inodes: whole(self.files) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_bound_count_their_share_and_come_to_the_same() {
        let mut links = Links::default();
        let first: Vec<u64> = (0..MAX_LINKS as u64).collect();
        assert!(first.iter().all(|inode| links.see(*inode, 2) == Seen::First));
        assert!(first.iter().all(|inode| links.see(*inode, 2) == Seen::Again));
        assert_eq!(links.see(1 << 40, 1), Seen::First, "one name needs no room");
        let mut expected = Count::default();
        for (inode, names, bytes) in [(1_u64 << 41, 3_u32, 4096_u64), (1 << 42, 7, 512), (1 << 43, 64_999, 1 << 40)] {
            expected = expected.plus(Count { bytes, inodes: 1 });
            for _ in 0..names {
                assert_eq!(links.see(inode, names), Seen::Unknown);
                links.share(bytes, names);
            }
        }
        assert_eq!(links.shared(), expected);
        assert_eq!(links.inodes.len(), MAX_LINKS);
    }
}
