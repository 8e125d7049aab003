//! What is missing, and which workloads took it.

use super::Ranked;
use crate::kubelet::Amount;
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// How much is missing, and how much of it comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deficit {
    /// Missing to the target.
    pub missing: Amount,
    /// What will be allocated until memory is back, at the rate of the fall. Only workloads that grew pay for it.
    pub expected: Amount,
    /// Held by workloads that are terminating and not stuck.
    pub coming: Amount,
    /// Held by the victims of this plan, those that are escalated to a kill included.
    pub taken: Amount,
}

impl Deficit {
    /// What of [`Self::missing`] is still missing when all of that is back.
    pub fn uncovered(&self) -> Amount {
        (self.missing - self.coming - self.taken).max(Amount::ZERO)
    }

    /// Whether nothing is.
    pub fn is_covered(&self) -> bool {
        self.uncovered().is_zero()
    }

    /// Whether it suffices for what is expected to be allocated meanwhile, too.
    pub(crate) fn covers_expected(&self) -> bool {
        self.missing + self.expected <= self.coming + self.taken
    }

    /// Whether another victim is needed, and this one pays for what is left.
    pub(crate) fn asks(&self, ranked: &Ranked) -> bool {
        !self.is_covered() || ranked.growth.is_large && !self.covers_expected()
    }
}

/// Which workloads took the memory since it was last plentiful. Growth is by owner: what all workloads of one use together
/// now, less what all of them used together then.
///
/// The rule: growth of workloads that may be evicted must be at least
/// [`Config::responsible_percent`](crate::Config::responsible_percent) of all that available memory fell by, and half
/// of that part of the fall which no dead workload holds. Otherwise most of the trouble is elsewhere (tasks in the root
/// cgroup, the kernel, a protected service, memory that outlives its cgroup). Evicting by rank would then cost
/// workloads that are not responsible and help for a moment only, so nothing is evicted and the plan says so, unless
/// [`Config::evict_for_unattributed`](crate::Config::evict_for_unattributed) is set.
///
/// "Last plentiful" is the latest observation with [`Config::plentiful`](crate::Config::plentiful) more available than
/// the highest threshold asks for; for a hard threshold, than the highest hard one does, whatever soft ones there are
/// above it. Where there was none since the start, it is the first observation above all thresholds; where there was
/// none of that either, everything in use counts as grown. A workload without a reading counts as not grown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribution {
    /// By how much available memory fell, in the reading that is below.
    pub fallen: Bytes,
    /// How much of it workloads grew by of which no process is left.
    pub left_behind: Bytes,
    /// By how much those that may be evicted, or are terminating already, grew together.
    pub evictable_grew: Bytes,
    /// By how much protected ones grew together.
    pub protected_grew: Bytes,
}

impl Attribution {
    /// Whether workloads that may be evicted are responsible for enough of the fall.
    pub fn is_evictable(&self, responsible_percent: u8) -> bool {
        let living = self.fallen.saturating_sub(self.left_behind);
        is_share(self.evictable_grew, responsible_percent, self.fallen) && is_share(self.evictable_grew, 50, living)
    }
}

/// Whether `part` is at least so many percent of `whole`.
pub(crate) const fn is_share(part: Bytes, percent: u8, whole: Bytes) -> bool {
    part.0 as u128 * 100 >= whole.0 as u128 * percent as u128
}
