//! Plans in words. Allocates as it likes and never runs on the thread that decides.

use crate::config::{Config, Signal};
use crate::kubelet::Amount;
use crate::observation::Protected;
use crate::plan::{Action, Case, Fate, Judged, NoVictim, Outcome, Plan, Ranked};
use crate::reason::{Measured, Promise, Reason};
use crate::scope::Scope;
use core::fmt::{self, Write as _};
use core::time::Duration;

/// A plan that prints as one line, with every number that led to it.
pub struct Line<'a, N> {
    plan: &'a Plan,
    config: &'a Config,
    name: N,
}

/// The plan as one line; `name` gives a candidate's name from its index in the observation.
pub fn line<'a, N, D>(config: &'a Config, plan: &'a Plan, name: N) -> Line<'a, N>
where
    N: Fn(u32) -> D,
    D: fmt::Display,
{
    Line { plan, config, name }
}

impl<N: Fn(u32) -> D, D: fmt::Display> fmt::Display for Line<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, config: _, name } = self;
        write!(f, "{}", Headline(plan.outcome))?;
        if let Scope::Slice(slice) = plan.scope {
            write!(f, " in slice {}", slice.0)?;
        }
        if let Some(readings) = plan.readings {
            write!(f, ": {} {}", readings.kubelet, Signal::MemoryAvailable)?;
            if let Some(mem_available) = readings.mem_available {
                write!(f, " as the kubelet reckons, {mem_available} as the kernel does,")?;
            }
            write!(f, " of {}", readings.capacity)?;
        }
        // The threshold that is acted on, or whichever is crossed.
        for judged in &plan.judged {
            if plan.acting().map_or(judged.case != Case::Neither, |acting| acting == judged) {
                self.threshold(f, judged)?;
            }
        }
        if let Some(deficit) = plan.deficit {
            write!(f, "; missing {}, coming back {}, taken {}", deficit.missing, deficit.coming, deficit.taken)?;
            if deficit.uncovered().0 > 0 {
                write!(f, ", not covered {}", deficit.uncovered())?;
            }
        }
        if let Some(grown) = plan.attribution {
            write!(
                f,
                "; since memory was plentiful {} went, of that {} to who may be evicted and {} to who is protected",
                grown.fallen, grown.evictable_grew, grown.protected_grew
            )?;
            if let Some(outside) = grown.outside {
                write!(f, "; {outside} is held outside all workloads")?;
            }
        }
        for action in &plan.actions {
            match *action {
                Action::Reclaim { amount } => write!(f, "; reclaim {amount}")?,
                Action::Hasten { candidate, .. } => write!(f, "; hasten {}", name(candidate))?,
                Action::Evict { candidate, grace, .. } => {
                    write!(f, "; evict {}", name(candidate))?;
                    if !grace.is_zero() {
                        write!(f, " within {grace:?}")?;
                    }
                }
            }
            if let Action::Hasten { candidate, .. } | Action::Evict { candidate, .. } = *action
                && let Some(ranked) = plan.ranked.iter().find(|ranked| ranked.candidate == candidate)
            {
                write!(f, " ({})", Keys(ranked))?;
            }
        }
        if plan.overlooked > 0 {
            write!(f, "; {} workloads were not looked at for want of room", plan.overlooked)?;
        }
        Ok(())
    }
}

impl<N> Line<'_, N> {
    fn threshold(&self, f: &mut fmt::Formatter<'_>, judged: &Judged) -> fmt::Result {
        let grace = self
            .config
            .thresholds_in(self.plan.scope)
            .get(judged.threshold as usize)
            .map_or(Duration::ZERO, |threshold| threshold.grace);
        write!(f, "; {} threshold {}", if grace.is_zero() { "hard" } else { "soft" }, judged.line)?;
        if judged.target > judged.line {
            write!(f, " (wanted again: {})", judged.target)?;
        }
        write!(f, ", {}", CaseText(judged.case))?;
        if !grace.is_zero() {
            write!(f, ", for {:?} of {grace:?}", judged.below_for)?;
        }
        Ok(())
    }
}

struct Headline(Outcome);

impl fmt::Display for Headline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Outcome::Calm => "calm",
            Outcome::NotObserved => "memory could not be read",
            Outcome::Stale => "nothing new was read, so nothing is done",
            Outcome::InGrace => "in the grace period",
            Outcome::Reclaiming => "reclaiming before anybody is evicted",
            Outcome::CacheInUse => "cache in use, nobody stalls, nobody is evicted",
            Outcome::ComingBack => "memory is coming back",
            Outcome::Evict => "evicting",
            Outcome::Bounded => "the bound of victims a minute is reached",
            Outcome::Unattributed => "most of the growth is outside what may be evicted, nobody pays for it",
            Outcome::NoVictim(NoVictim::NoCandidates) => "nobody to evict: there are no workloads here",
            Outcome::NoVictim(NoVictim::AllProtected) => "nobody to evict: all are protected or already going",
            Outcome::NoVictim(NoVictim::NoStatistics) => "nobody to evict: no workload could be read",
            Outcome::NoVictim(NoVictim::NothingToFree) => "nobody to evict: the workloads hold nothing",
        })
    }
}

struct CaseText(Case);

impl fmt::Display for CaseText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Case::Neither => "not crossed",
            Case::Both => "crossed",
            Case::KubeletOnly => "crossed by the kubelet's reading only",
            Case::MemAvailableOnly => "crossed by the kernel's reading only",
        })
    }
}

/// The keys that ranked somebody, as text.
pub struct Keys<'a>(pub &'a Ranked);

impl fmt::Display for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |amount| Measured { amount, is_bytes: true };
        let Self(ranked) = self;
        let over = Amount::nanos(ranked.over().unwrap_or(0).saturating_mul(1_000_000_000));
        let reason = Reason {
            is_measured: ranked.usage.is_some(),
            usage: ranked.usage.map(|usage| of(Amount::nanos(i128::from(usage.0) * 1_000_000_000))),
            promise: Some(Promise::Of { name: "reservation", over: of(over), exceeds: ranked.exceeds }),
            priority: ranked.priority,
            qos: None,
            grew: ranked.grew,
            returns: 0,
        };
        reason.fmt(f)
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Evicted => "evicted",
            Self::Hastened => "was terminating in its grace period, is killed now",
            Self::NotNeeded => "not needed",
            Self::Protected(why) => return write!(f, "never chosen: {why}"),
            Self::Going => "already going",
            Self::Stuck => "could not be ended",
            Self::NoStatistics => "could not be read",
            Self::NothingToFree => "holds nothing",
            Self::OutsideScope => "outside the slice",
            Self::Bounded => "spared by the bound of victims a minute",
            Self::Innocent => "spared: the growth is elsewhere",
        })
    }
}

impl fmt::Display for Protected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Init => "the machine's init",
            Self::Agent => "this agent",
            Self::Listed => "listed by the owner",
            Self::Critical => "critical priority",
            Self::Static => "a static pod",
            Self::Mirror => "a mirror pod",
        })
    }
}

/// All candidates of a plan, one a line, who would go first on top: what `explain` and a debug log print.
pub fn ranking<D: fmt::Display>(plan: &Plan, name: impl Fn(u32) -> D) -> String {
    let mut text = String::new();
    for ranked in &plan.ranked {
        // Writing into a String does not fail.
        let _ = writeln!(text, "{}: {}; {}", name(ranked.candidate), ranked.fate, Keys(ranked));
    }
    text
}
