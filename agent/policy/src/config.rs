//! Lines and bounds, already parsed and checked: what [`decide`](crate::decide) goes by.

use crate::scope::Scope;
use core::fmt;
use core::time::Duration;
use plimsoll_units::Bytes;

/// What is measured against a line, under the kubelet's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Memory of the machine, or of a slice with its own limit.
    MemoryAvailable,
}

impl Signal {
    /// The kubelet's name of it, as configuration files spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A share of a capacity, as the kubelet keeps it: a 32-bit fraction.
///
/// The kubelet divides the written number by 100 in 32 bits and multiplies in 64, so that 10 % of 10 GiB is
/// 1,073,741,840 bytes. Whoever compares our decisions with its own needs the same sixteen bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentage(f32);

/// A percentage was negative, above 100, or no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPercentage;

impl fmt::Display for InvalidPercentage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a percentage from 0 to 100 is expected")
    }
}

impl core::error::Error for InvalidPercentage {}

impl Percentage {
    /// `percent` of a hundred.
    pub fn new(percent: f32) -> Result<Self, InvalidPercentage> {
        if (0.0..=100.0).contains(&percent) { Ok(Self(percent / 100.0)) } else { Err(InvalidPercentage) }
    }

    /// The share as a fraction of one.
    pub const fn fraction(self) -> f32 {
        self.0
    }

    /// The share of `capacity`, rounded down.
    pub fn of(self, capacity: Bytes) -> Bytes {
        #[expect(
            clippy::cast_precision_loss,
            reason = "the kubelet multiplies in 64-bit floats; equal lines are wanted"
        )]
        let share = capacity.0 as f64 * f64::from(self.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "truncation is the rule; a share of at most one cannot be negative"
        )]
        let bytes = share as u64;
        Bytes(bytes)
    }
}

/// Where a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Line {
    /// At this many bytes.
    Quantity(Bytes),
    /// At this share of the capacity.
    Percentage(Percentage),
}

impl Line {
    /// No bytes.
    pub const ZERO: Self = Self::Quantity(Bytes::ZERO);

    /// The line in bytes, on something with this `capacity`.
    pub fn of(self, capacity: Bytes) -> Bytes {
        match self {
            Self::Quantity(bytes) => bytes,
            Self::Percentage(percentage) => percentage.of(capacity),
        }
    }
}

/// One line with its grace period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// What is measured.
    pub signal: Signal,
    /// The threshold is met while less than this is available.
    pub line: Line,
    /// How long it must be met before anything is done. Zero makes the threshold a hard one.
    pub grace: Duration,
    /// How much above the threshold must be available again before a threshold that was met is left alone.
    pub min_reclaim: Line,
}

impl Threshold {
    /// A hard threshold without minimum reclaim.
    pub const fn hard(signal: Signal, line: Line) -> Self {
        Self { signal, line, grace: Duration::ZERO, min_reclaim: Line::ZERO }
    }

    /// Whether this is a hard threshold: one without a grace period.
    pub const fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }
}

/// The lines of a slice that has its own memory limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SliceThresholds {
    /// Lines below the slice's limit.
    pub thresholds: Vec<Threshold>,
}

/// Everything [`decide`](crate::decide) goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The machine's lines.
    pub thresholds: Vec<Threshold>,
    /// Slices with thresholds of their own, at most [`SliceSet::MAX_SLICES`](crate::SliceSet::MAX_SLICES);
    /// [`SliceId`](crate::SliceId) is the index.
    pub slices: Vec<SliceThresholds>,
    /// How long a condition stays after a line behind it was last crossed, in its grace or beyond.
    pub pressure_transition: Duration,
    /// The longest time that a victim of a soft threshold gets for an orderly end.
    pub max_grace: Duration,
    /// At most this many victims of hard thresholds within any sixty seconds, and as many of soft ones: counted apart,
    /// so that these never use up what hard ones need.
    pub victims_per_minute: u32,
    /// Evict by rank even where most of the growth was in nothing that may be evicted.
    pub evict_for_unattributed: bool,
    /// Where only the kubelet's reading is below a threshold: at least this much of a window, in percent, must all
    /// tasks have been waiting for memory before somebody is evicted.
    pub stall_percent: u8,
    /// Where only the kubelet's reading is below a threshold: how long after a reclaim that did not help the next is
    /// asked.
    pub reclaim_pause: Duration,
    /// Memory is plentiful while this much more than the highest line is available; growth is reckoned from there.
    pub plentiful: Line,
}

impl Config {
    /// The thresholds of a scope; none for a slice that is not configured.
    pub fn thresholds_in(&self, scope: Scope) -> &[Threshold] {
        match scope {
            Scope::Node => &self.thresholds,
            Scope::Slice(slice) => {
                self.slices.get(slice.0 as usize).map_or(&[][..], |lines| lines.thresholds.as_slice())
            }
        }
    }
}

impl Default for Config {
    /// The kubelet's default for memory, a hard threshold at 100 MiB, and bounds that suit most machines.
    fn default() -> Self {
        Self {
            thresholds: vec![Threshold::hard(Signal::MemoryAvailable, Line::Quantity(Bytes::mib(100)))],
            slices: Vec::new(),
            pressure_transition: Duration::from_mins(5),
            max_grace: Duration::ZERO,
            victims_per_minute: 30,
            evict_for_unattributed: false,
            stall_percent: 20,
            reclaim_pause: Duration::from_secs(10),
            plentiful: Line::Percentage(Percentage(0.03)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_the_kubelets_to_the_byte() {
        for (percent, capacity, bytes) in [
            (10.0, 10 << 30, 1_073_741_840),
            (29.0, 100, 28),
            (57.0, 100, 56),
            (0.0, 1 << 40, 0),
            (100.0, 1 << 40, 1 << 40),
        ] {
            let percentage = Percentage::new(percent).expect("in range");
            assert_eq!(percentage.of(Bytes(capacity)), Bytes(bytes), "{percent} % of {capacity}");
        }
        for percent in [-0.1, 100.1, f32::NAN, f32::INFINITY] {
            assert_eq!(Percentage::new(percent), Err(InvalidPercentage), "{percent}");
        }
    }
}
