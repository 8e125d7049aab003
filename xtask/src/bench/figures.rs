//! The figures of a round, and how they are printed.

use super::measured::{Measured, Round};
use crate::picture::{MIB, float};
use crate::statistics::{NEVER, Summary};

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
    /// Up to which value it is no more than a bound.
    resolution: fn(&Round) -> Option<u64>,
}

impl Figure {
    const fn time(name: &'static str, of: fn(&Round) -> Option<u64>) -> Self {
        Self { name, unit: Unit::Milliseconds, of, resolution: |_| None }
    }

    /// Over the rounds against this rival that have it.
    pub(super) fn summary(&self, measured: &Measured, rival: &str) -> Option<Summary> {
        Summary::of(measured.of(rival).filter_map(self.of))
    }

    /// How its values against this rival are printed: what did not happen in a round as after that, and what is within the
    /// resolution as at most so much.
    pub(super) fn text(&self, measured: &Measured, rival: &str) -> impl Fn(u64) -> String + use<> {
        let resolution = measured.of(rival).filter_map(self.resolution).max();
        let (unit, limit_ns) = (self.unit, measured.limit_ns);
        move |value| match value {
            NEVER => format!("> {} s", limit_ns / 1_000_000_000),
            value if resolution.is_some_and(|resolution| value <= resolution) => format!("≤ {}", unit.text(value)),
            value => unit.text(value),
        }
    }
}

pub(super) const AWAKE: Figure = Figure::time("awake", |round| round.crossed_to_awake_ns);
pub(super) const DECIDED: Figure = Figure::time("decided", |round| round.crossed_to_decided_ns);
pub(super) const STOPPED: Figure = Figure::time("stopped", Round::stopped_ns);
pub(super) const MEMORY_BACK: Figure = Figure::time("memory back", Round::memory_back_ns);
pub(super) const PAST: Figure = Figure {
    name: "past the threshold",
    unit: Unit::Mebibytes,
    of: |round| round.past_threshold_bytes,
    resolution: |round| round.past_resolution_bytes,
};
pub(super) const STALL: Figure = Figure::time("survivor's longest stall", |round| round.survivor_longest_stall_ns);

/// All of them, in the order of the tables.
pub(super) const FIGURES: [Figure; 6] = [AWAKE, DECIDED, STOPPED, MEMORY_BACK, PAST, STALL];

/// How fast memory was filled when it crossed the threshold, whatever the rival: bytes a second.
pub(super) fn rate(measured: &Measured) -> Option<Summary> {
    Summary::of(measured.rounds.iter().filter_map(|round| round.rate_bytes_per_s))
}

/// How long memory took to be back after a bare kill.
pub(super) fn bare(measured: &Measured) -> Option<Summary> {
    Summary::of(measured.bare_kills.iter().filter_map(|kill| kill.memory_back_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_printed_as_one() {
        let mut measured = crate::bench::sample().kept.measured;
        measured.limit_ns = 20_000_000_000;
        for round in &mut measured.rounds {
            round.past_resolution_bytes = Some(if round.number == 2 { 64 << 10 } else { 32 << 10 });
        }
        let past = PAST.text(&measured, "plimsoll-ebpf");
        assert_eq!([64 << 10, (64 << 10) + 7000].map(past), ["≤ 0.06", "0.07"]);
        let back = MEMORY_BACK.text(&measured, "plimsoll-ebpf");
        assert_eq!([0, 7_000_000, NEVER].map(back), ["0.00", "7.00", "> 20 s"]);
    }

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
