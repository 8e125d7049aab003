//! Plans in words, for the log, for events and for `explain`. Allocates as it likes; never called while deciding.

use super::config::Config;
use super::plan::{Action, ConditionCase, Fate, Judged, NoVictim, Outcome, Plan, Ranked, Stage, Why};
use crate::kubelet::{Condition, Critical, Limit};
use crate::plan::Case;
use crate::reason::{Measured, Promise, Reason};
use core::fmt::{self, Write as _};

/// The plan as one line; `name` gives a pod's name from its index in the observation.
pub fn line<D: fmt::Display>(config: &Config, plan: &Plan, name: impl Fn(u32) -> D) -> String {
    let mut text = plan.outcome.to_string();
    // Writing into a String does not fail.
    if let Some(judged) = plan.acting() {
        let _ = write!(text, ": {}", Line { config, judged });
    }
    if let (Some(deficit), Some(judged)) = (plan.deficit, plan.acting()) {
        let of = |amount| Measured { amount, is_bytes: is_bytes(config, judged.line) };
        let _ = write!(text, "; coming back {}, taken {}", of(deficit.coming), of(deficit.taken));
    }
    for action in &plan.actions {
        let _ = match *action {
            Action::Reclaim(order) => match order.stage {
                Stage::Memory(amount) => write!(text, "; reclaim {}", Measured { amount, is_bytes: true }),
                Stage::Containers => write!(text, "; remove dead containers"),
                Stage::Images => write!(text, "; remove {} unused images", plan.images.len()),
            },
            Action::Hasten { pod, .. } => write!(text, "; hasten {}", name(pod)),
            Action::Evict { pod, why, grace_seconds } => {
                let _ = write!(text, "; evict {} within {} s", name(pod), grace_seconds.max(1));
                match why {
                    Why::Limit(limit) => write!(text, ", {limit}"),
                    Why::Threshold(_) | Why::Swap => Ok(()),
                }
            }
        };
    }
    if plan.overlooked > 0 {
        let _ = write!(text, "; {} pods were not looked at for want of room", plan.overlooked);
    }
    text
}

/// All pods of a plan, one a line, who would go first on top.
pub fn ranking<D: fmt::Display>(config: &Config, plan: &Plan, name: impl Fn(u32) -> D) -> String {
    let mut text = String::new();
    for ranked in &plan.ranked {
        let _ = writeln!(text, "{}: {}; {}", name(ranked.pod), ranked.fate, keys(config, plan, ranked));
    }
    text
}

fn is_bytes(config: &Config, line: Why) -> bool {
    match line {
        Why::Threshold(index) => {
            config.thresholds.get(index as usize).is_none_or(|threshold| threshold.signal.is_bytes())
        }
        Why::Swap | Why::Limit(_) => true,
    }
}

/// A condition as it is told: with the reading that says so, where only one does.
pub fn condition(config: &Config, plan: &Plan, condition: Condition) -> String {
    let readings = match plan.condition_case(config, condition) {
        Some(ConditionCase::KubeletOnly) => one_reading(Case::KubeletOnly),
        Some(ConditionCase::MemAvailableOnly) => one_reading(Case::MemAvailableOnly),
        Some(ConditionCase::Mixed) => Some("one line by the kubelet's reading only, another by the kernel's only"),
        Some(ConditionCase::Both) | None => None,
    };
    match readings {
        Some(readings) => format!("{} ({readings})", condition.name()),
        None => condition.name().to_owned(),
    }
}

const fn one_reading(case: Case) -> Option<&'static str> {
    match case {
        Case::KubeletOnly => Some("by the kubelet's reading only"),
        Case::MemAvailableOnly => Some("by the kernel's reading only"),
        Case::Both | Case::Neither => None,
    }
}

/// A line that is crossed.
struct Line<'a> {
    config: &'a Config,
    judged: &'a Judged,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, judged } = self;
        let of = |amount| Measured { amount, is_bytes: is_bytes(config, judged.line) };
        match judged.line {
            Why::Threshold(index) => match config.thresholds.get(index as usize) {
                Some(threshold) => {
                    let kind = if threshold.is_hard() { "hard" } else { "soft" };
                    write!(f, "{} below its {kind} threshold {}", threshold.signal, of(judged.at))?;
                }
                None => return Ok(()),
            },
            Why::Swap => write!(f, "free swap below its threshold {}, pages come back and tasks stall", of(judged.at))?,
            Why::Limit(_) => return Ok(()),
        }
        if let Some(reading) = one_reading(judged.case) {
            write!(f, " {reading}")?;
        }
        write!(f, "; missing {}", of(judged.missing))
    }
}

/// The keys that ranked a pod.
pub fn keys(config: &Config, plan: &Plan, ranked: &Ranked) -> impl fmt::Display + use<> {
    let is_bytes = plan.acting().is_none_or(|judged| is_bytes(config, judged.line));
    let of = |amount| Measured { amount, is_bytes };
    Reason {
        is_measured: ranked.is_measured,
        usage: Some(of(ranked.usage)),
        promise: ranked.request.map(|_| Promise::Of {
            name: "request",
            over: of(ranked.over),
            exceeds: ranked.exceeds,
        }),
        priority: ranked.priority,
        qos: Some(ranked.qos),
        grew: None,
        returns: ranked.returns,
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Calm => "calm",
            Self::NoLayout => "the runtime did not tell which disks there are",
            Self::NoStatistics => "there are no statistics, so everything stays as it was",
            Self::OverLimits => "evicting who is over limits of its own",
            Self::InGrace => "in the grace period",
            Self::Stale => "nothing new was read, so nothing is done",
            Self::Reclaiming => "cleaning up before anybody is evicted",
            Self::CacheInUse => "cache in use, nobody stalls, nobody is evicted",
            Self::ComingBack => "enough is coming back from who is going",
            Self::Evict => "evicting",
            Self::Bounded => "the bound of victims a minute is reached",
            Self::NoVictim(NoVictim::NoPods) => "nobody to evict: there are no pods",
            Self::NoVictim(NoVictim::AllProtected) => "nobody to evict: all are protected or going without an end",
            Self::NoVictim(NoVictim::NoStatistics) => "nobody to evict: those who could go have no statistics",
            Self::NoVictim(NoVictim::NoUsableRanking) => "nobody to evict: nothing says whose going would help",
            Self::NoVictim(NoVictim::OnlyLoops) => {
                "nobody to evict: one that returns at once is left alone for a while"
            }
        })
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Evicted => "evicted",
            Self::Hastened => "was terminating in its grace period, is killed now",
            Self::OverLimit => "evicted: over a limit of its own",
            Self::NotNeeded => "not needed, those before it are enough",
            Self::Protected(why) => return write!(f, "never evicted: {why}"),
            Self::Going => "going already, counted as coming back",
            Self::Stuck => "going already, but stuck",
            Self::NoStatistics => "no statistics, and nobody is taken blindly",
            Self::NothingToFree => "its going would give back nothing of what is short",
            Self::Looping(_) => "returned at once after its eviction and is over again, left alone for a while",
            Self::SparedByLoop => "spared: within its request, it does not pay for one that returns at once",
            Self::ClassRemains => "spared: guaranteed, while another class remains",
            Self::Bounded => "spared by the bound of victims a minute",
        })
    }
}

impl fmt::Display for Critical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "a static pod",
            Self::Mirror => "the mirror of a static pod",
            Self::Priority => "critical priority",
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EmptyDir(_) => "over the size limit of a volume",
            Self::Pod => "over the sum of its containers' storage limits",
            Self::Container(_) => "over the storage limit of a container",
        })
    }
}
