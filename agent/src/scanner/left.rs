//! What is left on the disks that are scanned: where it has hardly moved, pods take what they took.

use std::path::Path;

use plimsoll_policy::kubelet::FsStats;
use plimsoll_storage::{has_moved, left_at};

/// What is left on two disks, which may be one; absent where one could not be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct DisksLeft([Option<FsStats>; 2]);

impl DisksLeft {
    /// Of the disks of these directories.
    pub(super) fn of(directories: [&Path; 2]) -> Self {
        Self(directories.map(|directory| left_at(directory).ok()))
    }

    /// Whether pods may take another amount than then. What cannot be read may have moved.
    pub(super) fn has_moved_since(&self, before: &Self) -> bool {
        self.0.iter().zip(&before.0).any(|pair| match pair {
            (Some(now), Some(before)) => has_moved(before, now),
            _ => true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_disk_moves_and_one_that_is_not_read_always() {
        let of = |first, second| {
            DisksLeft([first, second].map(|available| Some(FsStats { available, ..FsStats::default() })))
        };
        let still = of(Some(0), Some(0));
        assert!(!still.has_moved_since(&still));
        for other in [of(Some(1 << 30), Some(0)), of(Some(0), Some(1 << 30))] {
            assert!(other.has_moved_since(&still) && still.has_moved_since(&other), "{other:?}");
        }
        let nowhere = DisksLeft::of([Path::new("/"), Path::new("/no/such/directory")]);
        assert!(nowhere.has_moved_since(&nowhere));
    }
}
