//! What is left on the disks that are scanned: where it has hardly moved, pods take what they took.

use std::path::Path;

use plimsoll_policy::kubelet::FsStats;
use plimsoll_storage::left_at;

/// Less than this is written on any node all the time.
const BYTES: u64 = 1 << 20;
const INODES: u64 = 256;

/// Bytes and inodes that are left on two disks, which may be one; absent where one could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DisksLeft([Option<(u64, u64)>; 2]);

impl DisksLeft {
    /// Of the disks of these directories.
    pub(super) fn of(directories: [&Path; 2]) -> Self {
        let left = |FsStats { available, inodes_free, .. }: FsStats| Some((available?, inodes_free.unwrap_or(0)));
        Self(directories.map(|directory| left_at(directory).ok().and_then(left)))
    }

    /// Whether pods may take another amount than then. What cannot be read may have moved.
    pub(super) fn has_moved_since(&self, before: &Self) -> bool {
        self.0.iter().zip(before.0).any(|(now, before)| {
            let moved = now.zip(before).map(|(now, before)| (now.0.abs_diff(before.0), now.1.abs_diff(before.1)));
            moved.is_none_or(|(bytes, inodes)| bytes >= BYTES || inodes >= INODES)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_disk_moves_by_bytes_or_inodes_in_either_direction_and_one_that_is_not_read_always() {
        let of = |first, second| DisksLeft([first, second]);
        let still = of(Some((BYTES, INODES)), Some((0, 0)));
        for (other, has_moved) in [
            (still, false),
            (of(Some((BYTES * 2 - 1, 1)), Some((BYTES - 1, INODES - 1))), false),
            (of(Some((BYTES * 2, INODES)), Some((0, 0))), true),
            (of(Some((0, INODES)), Some((0, 0))), true),
            (of(Some((BYTES, INODES)), Some((0, INODES))), true),
            (of(None, Some((0, 0))), true),
        ] {
            assert_eq!(other.has_moved_since(&still), has_moved, "{other:?}");
            assert_eq!(still.has_moved_since(&other), has_moved, "{other:?}");
        }
        let nowhere = DisksLeft::of([Path::new("/"), Path::new("/no/such/directory")]);
        assert!(nowhere.has_moved_since(&nowhere));
    }
}
