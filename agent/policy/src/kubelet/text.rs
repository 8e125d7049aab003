//! Turns in words, for `explain` and `replay`. Allocates as it likes; never called while deciding.

use super::amount::Amount;
use super::manager::{Config, Outcome, Plan, Why};
use super::ranking::{Fate, Ranked};
use super::signals::{Reading, Readings, Resource, Signal};
use crate::reason::{Measured, Promise, Reason};
use core::fmt::{self, Write as _};

/// The turn as one line, with what was read of what is short; `name` gives a pod's name from its index.
pub fn line<D: fmt::Display>(config: &Config, readings: &Readings, plan: &Plan, name: impl Fn(u32) -> D) -> String {
    let mut text = plan.outcome.to_string();
    // Writing into a String does not fail.
    if let Some(threshold) = plan.acting.and_then(|index| config.thresholds.get(index as usize)) {
        let kind = if threshold.is_hard() { "hard" } else { "soft" };
        let _ = write!(text, ": {}", threshold.signal);
        if let Some((Reading { available, capacity, .. }, line)) = readings.get(threshold.signal).zip(threshold.line) {
            let of = |amount| Measured { amount, is_bytes: threshold.signal.is_bytes() };
            let _ =
                write!(text, " {}, below its {kind} threshold {}", of(Amount::whole(available)), of(line.of(capacity)));
        }
    }
    for (is_wanted, what) in
        [(plan.reclaim.containers, "remove dead containers"), (plan.reclaim.images, "remove unused images")]
    {
        if is_wanted {
            let _ = write!(text, "; {what}");
        }
    }
    for eviction in &plan.evictions {
        let _ = write!(text, "; evict {} within {} s", name(eviction.pod), eviction.grace_seconds.max(1));
        if let Why::Limit(limit) = eviction.why {
            let _ = write!(text, ", {limit}");
        }
    }
    if plan.overlooked > 0 {
        let _ = write!(text, "; {} pods were not looked at for want of room", plan.overlooked);
    }
    text
}

/// All pods of a turn, one a line, who would go first on top.
pub fn ranking<D: fmt::Display>(config: &Config, plan: &Plan, name: impl Fn(u32) -> D) -> String {
    let mut text = String::new();
    for ranked in &plan.ranked {
        let _ = writeln!(text, "{}: {}; {}", name(ranked.pod), ranked.fate, keys(config, plan, ranked));
    }
    text
}

/// The keys that ranked a pod.
pub fn keys(config: &Config, plan: &Plan, ranked: &Ranked) -> impl fmt::Display + use<> {
    let acting = plan.acting.and_then(|index| config.thresholds.get(index as usize));
    let signal = acting.map_or(Signal::MemoryAvailable, |threshold| threshold.signal);
    let Ranked { pod: _, is_measured, exceeds, priority, over, processes, fate: _ } = *ranked;
    let of = |amount| Measured { amount, is_bytes: signal.is_bytes() };
    let counts = signal.resource() == Resource::Pids;
    let promise = match signal.resource() {
        Resource::Memory | Resource::EphemeralStorage => Some(Promise::Of { name: "request", over: of(over), exceeds }),
        Resource::Inodes => Some(Promise::InodesLessBytes(of(over))),
        Resource::Pids => None,
    };
    Reason {
        is_measured,
        usage: counts.then(|| of(Amount::counted(processes))),
        promise,
        priority,
        qos: None,
        grew: None,
        returns: 0,
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "there is nothing to watch",
            Self::NoLayout => "the runtime did not tell which disks there are",
            Self::NoStatistics => "there are no statistics, so everything stays as it was",
            Self::OverLimits => "evicting who is over limits of its own",
            Self::Calm => "calm, in the grace period, or nothing new was read",
            Self::Reclaim => "cleaning up before anybody is evicted",
            Self::Relieved => "cleaning up was enough",
            Self::NoPods => "nobody to evict: there are no pods",
            Self::AllCritical => "nobody to evict: all are static, mirrors or critical",
            Self::Evict => "evicting",
        })
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Evicted => "evicted",
            Self::PassedOver(why) => return write!(f, "never evicted: {why}"),
            Self::NotNeeded => "not needed, one goes a turn",
        })
    }
}
