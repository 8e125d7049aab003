//! What a decision is about: the machine, or one of its slices.

use serde::{Deserialize, Serialize};

/// What an observation is about, and so which thresholds apply and which workloads can be victims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// The whole machine.
    #[default]
    Node,
    /// A slice with its own memory limit: capacity is the limit, available is the limit less the working set.
    Slice(SliceId),
}

/// The index of a slice in [`Config::slices`](crate::Config::slices); stays the same when the slice's cgroup is made
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SliceId(pub u8);

/// Which slices with own thresholds something is in; slices may be nested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SliceSet(u16);

impl SliceSet {
    /// How many slices can have own thresholds: as many as the kernel side watches beside the machine's.
    pub const MAX_SLICES: usize = 15;
    /// In no slice with own thresholds.
    pub const NONE: Self = Self(0);

    /// This set with `slice` in it. A slice beyond [`Self::MAX_SLICES`] is never in a set.
    #[must_use]
    pub const fn with(self, slice: SliceId) -> Self {
        if (slice.0 as usize) < Self::MAX_SLICES { Self(self.0 | 1 << slice.0) } else { self }
    }

    /// Whether `slice` is in the set.
    pub const fn contains(self, slice: SliceId) -> bool {
        (slice.0 as usize) < Self::MAX_SLICES && self.0 & (1 << slice.0) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_sets_hold_what_was_put_in() {
        let set = SliceSet::NONE.with(SliceId(0)).with(SliceId(14)).with(SliceId(15));
        for (slice, inside) in [(0, true), (1, false), (14, true), (15, false), (255, false)] {
            assert_eq!(set.contains(SliceId(slice)), inside, "{slice}");
        }
    }
}
