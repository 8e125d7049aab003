//! Exact amounts.

use crate::Bytes;
use core::ops::{Add, Sub};
use serde::{Deserialize, Serialize};

const NANOS_PER_UNIT: i128 = 1_000_000_000;

/// An exact amount of bytes, inodes or processes, to the billionth: the finest that a Kubernetes quantity can say. A
/// threshold of `1.1Gi` is no whole number of bytes, and the kubelet compares it as it is written.
///
/// Sums and differences saturate where 128 bits end, far beyond what a machine can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Amount(i128);

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// A whole number.
    pub const fn whole(amount: i64) -> Self {
        // Cannot overflow: 2^63 * 10^9 is below 2^127.
        Self(amount as i128 * NANOS_PER_UNIT)
    }

    /// So many billionths.
    pub const fn nanos(nanos: i128) -> Self {
        Self(nanos)
    }

    /// In billionths.
    pub const fn as_nanos(self) -> i128 {
        self.0
    }

    /// The least whole number that is not below it.
    pub const fn rounded_up(self) -> i128 {
        self.0.div_euclid(NANOS_PER_UNIT) + (self.0.rem_euclid(NANOS_PER_UNIT) != 0) as i128
    }

    /// An amount of memory as it is, also where it does not fit a signed 64-bit number, as `max` of a cgroup's file.
    pub const fn bytes(amount: Bytes) -> Self {
        // Cannot overflow: 2^64 * 10^9 is below 2^127.
        Self(amount.0 as i128 * NANOS_PER_UNIT)
    }

    /// A counter as the kubelet takes it: cut to a signed 64-bit number, so that counts from 2^63 on are negative
    /// (`int64(*stats.UsedBytes)` in its `helpers.go`).
    pub const fn counted(count: u64) -> Self {
        Self::whole(count.cast_signed())
    }

    /// The same in bytes, rounded up; none where it is less than none.
    pub fn to_bytes(self) -> Bytes {
        let whole = self.rounded_up();
        Bytes(u64::try_from(whole).unwrap_or(if whole < 0 { 0 } else { u64::MAX }))
    }

    /// Whether there is none.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Whether it is more than nothing.
    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Amount {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl core::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Self::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact_at_both_ends() {
        assert!(Amount::whole(i64::MIN) < Amount::whole(i64::MIN + 1));
        assert_eq!(Amount::bytes(Bytes(u64::MAX)).as_nanos(), i128::from(u64::MAX) * 1_000_000_000);
        assert_eq!(Amount::counted(u64::MAX), Amount::whole(-1));
        assert_eq!(Amount::counted(1 << 63), Amount::whole(i64::MIN));
        assert_eq!(Amount::whole(i64::MAX) + Amount::whole(1), Amount::nanos((1_i128 << 63) * 1_000_000_000));
        assert!(Amount::whole(1) - Amount::nanos(1) < Amount::whole(1));
        for (nanos, whole) in [(0, 0), (1, 1), (1_000_000_000, 1), (-1, 0), (-1_000_000_000, -1), (-1_000_000_001, -1)]
        {
            assert_eq!(Amount::nanos(nanos).rounded_up(), whole);
        }
        assert_eq!([Amount::whole(2), Amount::nanos(5)].into_iter().sum::<Amount>(), Amount::nanos(2_000_000_005));
    }
}
