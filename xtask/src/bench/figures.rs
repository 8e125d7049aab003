//! The figures of a round, and how they are printed.

use super::measured::{Measured, Round};
use crate::picture::{MIB, float};
use crate::statistics::Summary;

/// What a figure is printed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Of nanoseconds.
    Milliseconds,
    /// Of bytes.
    Mebibytes,
}

impl Unit {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Mebibytes => "MiB",
        }
    }

    /// The value in this unit.
    pub(super) fn of(self, value: u64) -> f64 {
        float(value)
            / match self {
                Self::Milliseconds => 1e6,
                Self::Mebibytes => MIB,
            }
    }

    /// The value in this unit, in three digits or more.
    pub(super) fn text(self, value: u64) -> String {
        digits(self.of(value))
    }

    /// A median with its interval.
    pub(super) fn median(self, summary: &Summary) -> String {
        summary.text(|value| self.text(value))
    }
}

/// A number in three digits or more.
pub(super) fn digits(value: f64) -> String {
    let after = match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.after$}")
}

/// One figure of a round.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    pub(super) of: fn(&Round) -> Option<u64>,
}

impl Figure {
    const fn time(name: &'static str, of: fn(&Round) -> Option<u64>) -> Self {
        Self { name, unit: Unit::Milliseconds, of }
    }

    /// Over the rounds against this rival that have it.
    pub(super) fn summary(&self, measured: &Measured, rival: &str) -> Option<Summary> {
        Summary::of(measured.of(rival).filter_map(self.of))
    }
}

pub(super) const AWAKE: Figure = Figure::time("awake", |round| round.crossed_to_awake_ns);
pub(super) const DECIDED: Figure = Figure::time("decided", |round| round.crossed_to_decided_ns);
pub(super) const STOPPED: Figure = Figure::time("stopped", |round| round.crossed_to_stopped_ns);
pub(super) const MEMORY_BACK: Figure = Figure::time("memory back", |round| round.crossed_to_memory_back_ns);
pub(super) const PAST: Figure =
    Figure { name: "past the threshold", unit: Unit::Mebibytes, of: |round| round.past_threshold_bytes };
pub(super) const STALL: Figure = Figure::time("survivor's longest stall", |round| round.survivor_longest_stall_ns);

/// All of them, in the order of the tables.
pub(super) const FIGURES: [Figure; 6] = [AWAKE, DECIDED, STOPPED, MEMORY_BACK, PAST, STALL];

/// How long memory took to be back after a bare kill.
pub(super) fn bare(measured: &Measured) -> Option<Summary> {
    Summary::of(measured.bare_kills.iter().filter_map(|kill| kill.memory_back_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits_in_their_unit() {
        for (ns, expected) in [(0, "0.00"), (612_345, "0.61"), (39_840_000, "39.8"), (1_234_567_890, "1235")] {
            assert_eq!(Unit::Milliseconds.text(ns), expected);
        }
        assert_eq!(Unit::Mebibytes.text(3 << 19), "1.50");
        let summary = Summary::of(1..=3).expect("values");
        assert_eq!(Unit::Mebibytes.median(&Summary { median: 5 << 20, ..summary.clone() }), "5.00");
        let interval = Some((4 << 20, 12 << 20));
        assert_eq!(Unit::Mebibytes.median(&Summary { median: 5 << 20, interval, ..summary }), "5.00 [4.00, 12.0]");
    }
}
