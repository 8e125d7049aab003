//! Plans in words, for the log, for events, for `explain` and `replay`. Allocates as it likes; never called while
//! deciding.

use crate::config::Config;
use crate::eviction_policy::EvictionPolicy;
use crate::kubelet::{Condition, Critical, Limit, Resource, Signal};
use crate::observation::{MemoryReading, Protected};
use crate::plan::{
    Action, Attribution, Case, ConditionCase, NoVictim, Outcome, Plan, Ranked, Stage, ThresholdStatus, Verdict, Why,
};
use crate::reason::{Measured, Promise, Reason};
use core::fmt::{self, Write as _};
use plimsoll_units::counted;

/// The plan as one line, with every number that led to it. `slice`: what the slice is called that it is about; `name`
/// gives a workload's name from its index in the observation.
pub fn line<D: fmt::Display>(config: &Config, plan: &Plan, slice: Option<&str>, name: impl Fn(u32) -> D) -> String {
    let mut text = String::new();
    // Writing into a String does not fail.
    let _ = write(&mut text, config, plan, slice, name);
    text
}

fn write<D: fmt::Display>(
    f: &mut String,
    config: &Config,
    plan: &Plan,
    slice: Option<&str>,
    name: impl Fn(u32) -> D,
) -> fmt::Result {
    if plan.outcome == Outcome::NotObserved && config.thresholds_in(plan.scope).is_empty() {
        write!(f, "no threshold on {} is configured", Signal::MemoryAvailable)?;
    } else {
        write!(f, "{}", plan.outcome)?;
    }
    if let Some(slice) = slice {
        write!(f, " in slice {slice}")?;
    }
    if let Some(MemoryReading { capacity, kubelet_available, mem_available }) = plan.memory {
        write!(f, ": {kubelet_available} {} by the kubelet's formula", config.memory_signal(plan.scope))?;
        if let Some(own) = mem_available {
            write!(f, ", {own} by the kernel's estimate,")?;
        }
        write!(f, " of {capacity}")?;
    }
    // The threshold that is acted on, or all that are crossed.
    for status in &plan.thresholds {
        if plan.acting().map_or(status.since.is_some(), |acting| acting == status) {
            threshold(f, config, plan, status)?;
        }
    }
    if let (Some(deficit), Some(acting)) = (plan.deficit, plan.acting()) {
        let of = |amount| Measured { amount, is_bytes: is_bytes(config, plan, acting.why) };
        if deficit.expected.is_positive() {
            write!(f, ", and {} are expected to be allocated until memory is back", of(deficit.expected))?;
        }
        write!(f, "; coming back {}, taken {}", of(deficit.coming), of(deficit.taken))?;
        if !deficit.is_covered() {
            write!(f, ", not covered {}", of(deficit.uncovered()))?;
        }
    }
    if plan.is_futile {
        write!(f, "; evicting does not help: all that may be evicted hold less than is missing")?;
    }
    if let Some(Attribution { fallen, left_behind, evictable_grew, protected_grew }) = plan.attribution {
        write!(
            f,
            "; since memory was plentiful it fell by {fallen}, workloads that may be evicted grew by {evictable_grew} and \
             protected ones by {protected_grew}"
        )?;
        if left_behind > plimsoll_units::Bytes::ZERO {
            write!(f, ", and {left_behind} are left by those that have ended")?;
        }
    }
    for action in &plan.actions {
        match *action {
            Action::Reclaim(order) => match order.stage {
                Stage::Memory(amount) => write!(f, "; reclaim {}", Measured { amount, is_bytes: true })?,
                Stage::Containers => write!(f, "; remove dead containers")?,
                Stage::Images if config.eviction_policy == EvictionPolicy::Kubelet => {
                    write!(f, "; remove unused images")?;
                }
                Stage::Images => {
                    write!(f, "; remove {}", counted(plan.images.len(), "unused image", "unused images"))?;
                }
                Stage::ContainersAndImages => write!(f, "; remove dead containers and unused images")?,
            },
            Action::EscalateToKill { workload, .. } => {
                write!(f, "; kill {} in its grace period", name(workload))?;
                write_keys(f, config, plan, workload)?;
            }
            Action::Evict { workload, why, grace_seconds } => {
                write!(f, "; evict {} within {} s", name(workload), grace_seconds.max(1))?;
                match why {
                    Why::Limit(limit) => write!(f, ", {limit}")?,
                    Why::Threshold(_) | Why::Swap => write_keys(f, config, plan, workload)?,
                }
            }
        }
    }
    if plan.overlooked > 0 {
        let overlooked = counted(plan.overlooked, "workload was", "workloads were");
        write!(f, "; {overlooked} left out for want of room")?;
    }
    Ok(())
}

fn write_keys(f: &mut String, config: &Config, plan: &Plan, workload: u32) -> fmt::Result {
    match plan.ranked.iter().find(|ranked| ranked.workload == workload) {
        Some(ranked) => write!(f, " ({})", keys(config, plan, ranked)),
        None => Ok(()),
    }
}

fn threshold(f: &mut String, config: &Config, plan: &Plan, status: &ThresholdStatus) -> fmt::Result {
    let of = |amount| Measured { amount, is_bytes: is_bytes(config, plan, status.why) };
    let mut grace = core::time::Duration::ZERO;
    match status.why {
        Why::Threshold(index) => {
            let Some(threshold) = config.thresholds_in(plan.scope).get(index as usize) else { return Ok(()) };
            let kind = if threshold.is_hard() { "hard" } else { "soft" };
            grace = threshold.grace;
            write!(f, "; {} {}, below its {kind} threshold {}", threshold.signal, of(status.available), of(status.at))?;
        }
        Why::Swap => {
            write!(f, "; free swap {}, below its threshold {}", of(status.available), of(status.at))?;
            f.write_str(", pages come back and tasks stall")?;
        }
        Why::Limit(_) => return Ok(()),
    }
    if let Some(reading) = one_reading(status.case) {
        write!(f, " {reading}")?;
    }
    if status.target > status.at {
        write!(f, ", with minimum reclaim {}", of(status.target))?;
    }
    if let (Some(since), false) = (status.since, grace.is_zero()) {
        write!(f, ", for {:?} of {grace:?}", plan.made.since(since))?;
    }
    write!(f, "; missing {}", of(status.missing()))
}

/// All workloads of a plan, one a line, the one that would be evicted first on top.
pub fn ranking<D: fmt::Display>(config: &Config, plan: &Plan, name: impl Fn(u32) -> D) -> String {
    let mut text = String::new();
    for ranked in &plan.ranked {
        let _ = writeln!(text, "{}: {}; {}", name(ranked.workload), ranked.verdict, keys(config, plan, ranked));
    }
    text
}

/// What is short: what the acting threshold measures, or memory.
fn signal(config: &Config, plan: &Plan, why: Why) -> Signal {
    config.signal_of(plan.scope, why).unwrap_or(Signal::MemoryAvailable)
}

fn is_bytes(config: &Config, plan: &Plan, why: Why) -> bool {
    signal(config, plan, why).is_bytes()
}

/// A condition as it is reported: with the reading that says so, where only one does.
pub fn condition(config: &Config, plan: &Plan, condition: Condition) -> String {
    let readings = match plan.condition_case(config, condition) {
        Some(ConditionCase::KubeletOnly) => one_reading(Case::KubeletOnly),
        Some(ConditionCase::MemAvailableOnly) => one_reading(Case::MemAvailableOnly),
        Some(ConditionCase::Mixed) => Some("one threshold by the kubelet's reading only, another by the kernel's only"),
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

/// The keys that ranked a workload.
pub fn keys(config: &Config, plan: &Plan, ranked: &Ranked) -> impl fmt::Display + use<> {
    let signal = plan.acting().map_or(Signal::MemoryAvailable, |status| signal(config, plan, status.why));
    let of = |amount| Measured { amount, is_bytes: signal.is_bytes() };
    let is_kubelet = config.eviction_policy == EvictionPolicy::Kubelet;
    let promise = if is_kubelet && signal.resource() == Resource::Inodes {
        Some(Promise::InodesLessBytes(of(ranked.over)))
    } else {
        let name = if ranked.owner.is_some() { "owner's request" } else { "request" };
        ranked.request.map(|_| Promise::Of { name, over: of(ranked.over), exceeds: ranked.exceeds })
    };
    Reason {
        is_measured: ranked.is_measured,
        usage: Some(of(ranked.usage)),
        promise,
        priority: ranked.priority,
        qos: Some(ranked.qos),
        growth: ranked.growth.own,
        owner_growth: ranked.owner.and(ranked.growth.owner),
        returns: ranked.returns,
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoPressure => "no pressure",
            Self::NotObserved => "no threshold could be held against a reading",
            Self::NoLayout => "the runtime did not say which disks there are",
            Self::NoStatistics => "there are no statistics, so everything stays as it was",
            Self::OverLimits => "evicting pods over limits of their own",
            Self::InGrace => "in the grace period",
            Self::Stale => "nothing new was read, so nothing is done",
            Self::Reclaiming => "reclaiming before anything is evicted",
            Self::Relieved => "reclaiming was enough",
            Self::CacheInUse => "page cache is in use and tasks do not stall, so nothing is evicted",
            Self::ComingBack => "enough is coming back from workloads that are terminating",
            Self::Evict => "evicting",
            Self::RateLimited => "the limit of victims a minute is reached",
            Self::Unattributed => "most of the growth is in nothing that may be evicted, so nothing is evicted",
            Self::NoVictim(NoVictim::NoCandidates) => "nothing to evict: there are no workloads here",
            Self::NoVictim(NoVictim::AllProtected) => "nothing to evict: all are protected or terminating already",
            Self::NoVictim(NoVictim::NoStatistics) => "nothing to evict: those that may be evicted could not be read",
            Self::NoVictim(NoVictim::NothingToFree) => {
                "nothing to evict: those that may be evicted hold nothing of what is short"
            }
            Self::NoVictim(NoVictim::TooLittle) => {
                "nothing to evict: no eviction would free a hundredth of what is missing"
            }
            Self::NoVictim(NoVictim::NoUsableRanking) => "nothing to evict: nothing says which eviction would help",
            Self::NoVictim(NoVictim::OnlyLoops) => {
                "nothing to evict: a pod that returns at once is left alone for a while"
            }
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Evicted => "evicted",
            Self::EscalatedToKill => "was terminating in its grace, is killed now",
            Self::OverLimit => "evicted: over a limit of its own",
            Self::NotNeeded => "not needed, those before it are enough",
            Self::Protected(why) => return write!(f, "never evicted: {why}"),
            Self::Terminating => "terminating already, counted as coming back",
            Self::Stuck => "terminating already, but stuck",
            Self::NoStatistics => "could not be read, and nothing is evicted blindly",
            Self::NothingToFree => "its eviction would give back nothing of what is short",
            Self::Looping(_) => "returned at once after its eviction and is over again, left alone for a while",
            Self::SparedByLoop => {
                "spared: within its request or more important, it does not pay for one that returns at once"
            }
            Self::ClassRemains => "spared: guaranteed, while another class remains",
            Self::TooLittle => "spared: its eviction would free less than a hundredth of what is missing",
            Self::RateLimited => "spared by the limit of victims a minute",
            Self::NotResponsible => "spared: it is not responsible for the growth",
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
            Self::Mirror => "the mirror of a static pod",
            Self::Unknown => "a pod of which nothing is known",
            Self::Node => "the kubelet or the container runtime",
        })
    }
}

impl fmt::Display for Critical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Protected::from(*self).fmt(f)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ReclaimOrder;

    #[test]
    fn what_is_counted_is_singular_or_plural() {
        let config = Config::default();
        let stage = Stage::Images;
        for (count, images, overlooked) in [
            (1, "remove 1 unused image", "1 workload was left out for want of room"),
            (2, "remove 2 unused images", "2 workloads were left out for want of room"),
        ] {
            let mut plan = Plan::with_capacity(&config, 0, 0);
            plan.actions = vec![Action::Reclaim(ReclaimOrder { order: 1, stage, why: Why::Threshold(0) })];
            plan.images = (0..count).collect();
            plan.overlooked = count;
            let text = line(&config, &plan, None, |workload| workload);
            assert!(text.ends_with(&format!("; {images}; {overlooked}")), "{text}");
        }
    }
}
