//! Graceful shutdown of a node: which pods are ended together, with how much time, and what the login manager is asked
//! for.
//!
//! As the kubelet (1.36) does it, quirks included. Pure: nothing is read, written or killed here. This is not part of
//! the hot path, and it allocates.

use core::fmt;

/// From this priority on a pod counts as critical where two periods are configured.
pub const CRITICAL_PRIORITY: i32 = 2_000_000_000;
/// What the status of every pod that was running says.
pub const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

const SECOND_NS: i64 = 1_000_000_000;

/// Seconds for the pods from a priority on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// The lowest priority of the group.
    pub priority: i32,
    /// Time for it.
    pub seconds: i64,
}

/// The shutdown part of a kubelet's configuration; periods in nanoseconds, as its durations are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShutdownConfig {
    /// `shutdownGracePeriod`.
    pub grace_ns: i64,
    /// `shutdownGracePeriodCriticalPods`, out of that.
    pub critical_ns: i64,
    /// `shutdownGracePeriodByPodPriority`; replaces the two.
    pub by_priority: Vec<Period>,
}

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownConfigError {
    /// More for critical pods than for all.
    CriticalAboveAll {
        /// For critical pods.
        critical_ns: i64,
        /// For all.
        grace_ns: i64,
    },
    /// Below a second and not zero.
    GraceTooShort(i64),
    /// The same for critical pods.
    CriticalTooShort(i64),
    /// Both ways at once.
    Both,
}

impl fmt::Display for ShutdownConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid configuration: ")?;
        match self {
            Self::CriticalAboveAll { critical_ns, grace_ns } => write!(
                f,
                "shutdownGracePeriodCriticalPods {{{}}} must be <= shutdownGracePeriod {{{}}}",
                GoDuration(*critical_ns),
                GoDuration(*grace_ns)
            ),
            Self::GraceTooShort(ns) => {
                write!(f, "shutdownGracePeriod {{{}}} must be either zero or otherwise >= 1 sec", GoDuration(*ns))
            }
            Self::CriticalTooShort(ns) => write!(
                f,
                "shutdownGracePeriodCriticalPods {{{}}} must be either zero or otherwise >= 1 sec",
                GoDuration(*ns)
            ),
            Self::Both => f.write_str(
                "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time",
            ),
        }
    }
}

impl core::error::Error for ShutdownConfigError {}

/// A duration as Go prints it: `1m30s`, `34.576s`, `900ms`.
struct GoDuration(i64);

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let with_fraction = |f: &mut fmt::Formatter<'_>, ns: u64, unit: u64, name: &str| {
            let width = usize::try_from(unit.ilog10()).unwrap_or(0);
            let fraction = format!("{:0width$}", ns % unit);
            let fraction = fraction.trim_end_matches('0');
            let dot = if fraction.is_empty() || unit == 1 { "" } else { "." };
            write!(f, "{}{dot}{}{name}", ns / unit, if unit == 1 { "" } else { fraction })
        };
        match total {
            0 => f.write_str("0s"),
            1..1_000 => with_fraction(f, total, 1, "ns"),
            1_000..1_000_000 => with_fraction(f, total, 1_000, "µs"),
            1_000_000..1_000_000_000 => with_fraction(f, total, 1_000_000, "ms"),
            _ => {
                let minute = 60 * SECOND_NS.unsigned_abs();
                let minutes = total / minute;
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                with_fraction(f, total % minute, 1_000_000_000, "s")
            }
        }
    }
}

impl ShutdownConfig {
    /// Everything that is wrong. The other functions answer whatever is wrong, as the kubelet's code would.
    pub fn problems(&self) -> Vec<ShutdownConfigError> {
        let Self { grace_ns, critical_ns, ref by_priority } = *self;
        let too_short = |ns: i64| ns < 0 || (ns > 0 && ns < SECOND_NS);
        let mut problems = Vec::new();
        if critical_ns > grace_ns {
            problems.push(ShutdownConfigError::CriticalAboveAll { critical_ns, grace_ns });
        }
        if too_short(grace_ns) {
            problems.push(ShutdownConfigError::GraceTooShort(grace_ns));
        }
        if too_short(critical_ns) {
            problems.push(ShutdownConfigError::CriticalTooShort(critical_ns));
        }
        if !by_priority.is_empty() && (grace_ns != 0 || critical_ns != 0) {
            problems.push(ShutdownConfigError::Both);
        }
        problems
    }

    /// The periods in the order they are used; none where graceful shutdown is off.
    ///
    /// Seconds are truncated group by group, so that 30.5 s with 10.2 s for critical pods are 20 and 10. Where critical
    /// pods get more than all, or less than nothing, it is silently off.
    pub fn periods(&self) -> Vec<Period> {
        if !self.by_priority.is_empty() {
            let mut periods = self.by_priority.clone();
            periods.sort_by_key(|period| period.priority);
            return periods;
        }
        // Wraps, as Go's numbers do: what lies that far below zero counts as all the time there is.
        let others = self.grace_ns.wrapping_sub(self.critical_ns);
        if self.grace_ns == 0 || others < 0 || self.critical_ns < 0 {
            return Vec::new();
        }
        vec![
            Period { priority: 0, seconds: others / SECOND_NS },
            Period { priority: CRITICAL_PRIORITY, seconds: self.critical_ns / SECOND_NS },
        ]
    }
}

/// The delay that the login manager is asked for: the sum of all periods, in nanoseconds. What does not fit 64 bits wraps,
/// as Go's numbers do, so that very long periods can ask for a short delay (`periodRequested`).
pub fn requested_delay_ns(periods: &[Period]) -> i64 {
    periods.iter().fold(0, |sum: i64, period| sum.wrapping_add(period.seconds)).wrapping_mul(SECOND_NS)
}

/// A pod that has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownPod {
    /// Its priority; none counts as zero.
    pub priority: Option<i32>,
    /// Its own termination grace period.
    pub grace_seconds: Option<i64>,
}

/// The pods that are ended together. Groups are ended one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownGroup {
    /// The group's period.
    pub period: Period,
    /// Indices of its pods, with the seconds that each gets: its own, if it has any and they are fewer. A zero or a
    /// negative number of its own is passed on as it is.
    pub pods: Vec<(usize, i64)>,
}

/// Puts pods into groups. A pod between two priorities belongs to the lower one, below all to the lowest. Of groups with
/// the same priority, pods of just that priority are put into the first, those above into the last.
pub fn group(periods: &[Period], pods: &[ShutdownPod]) -> Vec<ShutdownGroup> {
    let mut groups: Vec<ShutdownGroup> =
        periods.iter().map(|period| ShutdownGroup { period: *period, pods: Vec::new() }).collect();
    for (index, pod) in pods.iter().enumerate() {
        let priority = pod.priority.unwrap_or(0);
        let at_or_above = periods.partition_point(|period| period.priority < priority);
        let is_between = periods.get(at_or_above).is_none_or(|period| period.priority > priority);
        let Some(group) = groups.get_mut(if is_between { at_or_above.saturating_sub(1) } else { at_or_above }) else {
            continue;
        };
        let seconds = group.period.seconds;
        group.pods.push((index, pod.grace_seconds.map_or(seconds, |own| own.min(seconds))));
    }
    groups
}

/// What to do next about the login manager's delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InhibitStep {
    /// Write a delay of this many nanoseconds, let the login manager read it, and read the delay after this long.
    RaiseAndRead {
        /// The delay to write.
        delay_ns: i64,
        /// How long to wait before the reading.
        wait_ms: u64,
    },
    /// Read again after this long.
    Read {
        /// How long to wait before it.
        wait_ms: u64,
    },
    /// The delay is long enough: take the lock.
    Lock,
    /// It was not raised.
    GiveUp {
        /// What was asked for.
        requested_ns: i64,
        /// What is.
        current_ns: i64,
    },
}

impl InhibitStep {
    /// What the kubelet says when it gives up.
    pub fn error(&self) -> Option<String> {
        match self {
            Self::GiveUp { requested_ns, current_ns } => Some(format!(
                "node shutdown manager was timed out after {READS_AFTER_RAISING} attempts waiting for logind \
                 InhibitDelayMaxSec to update to {} (ShutdownGracePeriod), current value is {}",
                GoDuration(*requested_ns),
                GoDuration(*current_ns)
            )),
            Self::RaiseAndRead { .. } | Self::Read { .. } | Self::Lock => None,
        }
    }
}

const READS_AFTER_RAISING: u32 = 5;
const FIRST_WAIT_MS: u64 = 100;

/// The step after the delay was read for the `reads`th time, from 1, and was `current_ns`.
pub fn inhibit(requested_ns: i64, reads: u32, current_ns: i64) -> InhibitStep {
    if current_ns >= requested_ns {
        return InhibitStep::Lock;
    }
    match reads {
        // Before anything was written.
        0 | 1 => InhibitStep::RaiseAndRead { delay_ns: requested_ns, wait_ms: 0 },
        // Each time twice as long.
        2..=READS_AFTER_RAISING => InhibitStep::Read { wait_ms: FIRST_WAIT_MS << (reads - 2) },
        _ => InhibitStep::GiveUp { requested_ns, current_ns },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_print_as_go_prints_them() {
        for (ns, text) in [
            (0, "0s"),
            (7, "7ns"),
            (1_500, "1.5µs"),
            (900_000_000, "900ms"),
            (1_000_000_000, "1s"),
            (34_576_000_000, "34.576s"),
            (90_000_000_000, "1m30s"),
            (3_600_000_000_000, "1h0m0s"),
            (-10_000_000_000, "-10s"),
        ] {
            assert_eq!(GoDuration(ns).to_string(), text);
        }
    }

    #[test]
    fn sums_beyond_64_bits_wrap() {
        let periods = |seconds: &[i64]| -> Vec<Period> {
            (0..).zip(seconds).map(|(priority, seconds)| Period { priority, seconds: *seconds }).collect()
        };
        for (seconds, requested) in [
            (&[9_223_372_036][..], 9_223_372_036_000_000_000),
            (&[9_223_372_037], -9_223_372_036_709_551_616),
            (&[1 << 62, 1 << 62], 0),
            (&[i64::MAX, 1, 1, i64::MAX], 0),
        ] {
            assert_eq!(requested_delay_ns(&periods(seconds)), requested, "{seconds:?}");
        }
        let config = ShutdownConfig { grace_ns: i64::MIN, critical_ns: 1, by_priority: Vec::new() };
        assert_eq!(config.periods().first().map(|period| period.seconds), Some(i64::MAX / SECOND_NS));
    }
}
