//! Values that all crates use: numbers with their unit in the type, so that bytes and pages, or two clocks, cannot
//! be mixed up; quantities and percentages as Kubernetes writes and computes them; patterns of cgroups.
//!
//! Nothing here reads a clock, a file or a system call: values come in from `node`, `sense` and `config`.

#![forbid(unsafe_code)]

mod amount;
mod counted;
mod golang;
mod pattern;
mod percentage;
mod quantity;

pub use amount::Amount;
pub use counted::counted;
pub use golang::{DurationError, FloatError, parse_duration, parse_float32};
pub use pattern::{Match, Pattern, PatternError};
pub use percentage::Percentage;
pub use quantity::{Quantity, QuantityError};

use core::fmt;
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// How many pages a CPU charges to a cgroup at once, where that many fit; later charges are taken from those first
/// (`MEMCG_CHARGE_BATCH`, include/linux/memcontrol.h).
pub const MEMCG_CHARGE_BATCH: u64 = 64;

/// An amount of memory or disk, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes at all.
    pub const ZERO: Self = Self(0);

    /// `n` mebibytes (2^20 bytes each).
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `self - other`, or zero where `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `self + other`, or the largest amount where that overflows.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Bytes {
    /// Prints with one decimal in the largest binary unit that keeps the number at least one: `512 B`, `1.5 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut unit = 0;
        while unit + 1 < UNITS.len() && self.0 >> (10 * (unit + 2)) > 0 {
            unit += 1;
        }
        let shift = 10 * (unit + 1);
        let tenths = (u128::from(self.0) * 10) >> shift;
        write!(f, "{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
    }
}

/// A number of pages of the running kernel's base page size (4096 bytes on `x86_64`; 4, 16 or 64 KiB on arm64).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pages(pub u64);

impl Pages {
    /// The same amount in bytes, where one page has `page_bytes` bytes; saturates.
    pub const fn to_bytes(self, page_bytes: u64) -> Bytes {
        Bytes(self.0.saturating_mul(page_bytes))
    }

    /// The pages that hold `bytes`, rounded down.
    pub const fn from_bytes(bytes: Bytes, page_bytes: u64) -> Self {
        Self(bytes.0 / page_bytes)
    }
}

/// The inode number of a cgroup's directory, which is what the kernel's own programs call a cgroup's id.
///
/// Unique for the life of a boot on a 64-bit kernel: a cgroup made again at the same path has another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CgroupId(pub u64);

/// A point of `CLOCK_MONOTONIC`, in nanoseconds: the clock of `bpf_ktime_get_ns`, which no one can step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MonotonicNs(pub u64);

impl MonotonicNs {
    /// How long after `earlier` this is; zero where it is not after it.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The point `later` after this one; saturates.
    #[must_use]
    pub fn after(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_print_in_the_largest_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1023.9 KiB"),
            (100 << 20, "100.0 MiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn time_does_not_run_backwards() {
        assert_eq!(MonotonicNs(5).since(MonotonicNs(7)), Duration::ZERO);
        assert_eq!(MonotonicNs(u64::MAX).after(Duration::MAX), MonotonicNs(u64::MAX));
    }
}
