//! How many go: as many as the deficit needs, chosen as a set.

use super::config::{Config, MemoryOrder};
use super::observation::{Observation, Pod};
use super::plan::{Action, Deficit, Fate, NoVictim, Outcome, Plan, Ranked, Why};
use super::ranking::Short;
use super::state::{State, Taken};
use crate::kubelet::{AT_ONCE_SECONDS, Amount, QosClass, Resource};
use plimsoll_units::MonotonicNs;

/// What the victims are taken for.
#[derive(Clone, Copy)]
pub(super) struct Need {
    pub(super) line: Why,
    pub(super) short: Short,
    pub(super) missing: Amount,
    /// Comes back from those who are going, critical ones too, and from those who go for limits of their own.
    pub(super) coming: Amount,
    pub(super) is_soft: bool,
}

/// Takes pods in the order of the plan's ranked list until what is missing is covered.
pub(super) fn take(
    config: &Config,
    state: &mut State,
    observation: &Observation<'_>,
    need: Need,
    now: MonotonicNs,
    plan: &mut Plan,
) -> Outcome {
    let pods = observation.pods;
    let is_hastened = |pod: u32| !need.is_soft && pods[pod as usize].going.is_some_and(|going| going.is_gentle);
    let for_limits = plan.actions.len();
    let mut deficit = Deficit { missing: need.missing, coming: need.coming, ..Deficit::default() };
    // A hard threshold does not wait for the grace of those a soft one chose; they were chosen already.
    for ranked in plan.ranked.iter_mut().filter(|ranked| ranked.fate == Fate::Going && is_hastened(ranked.pod)) {
        if deficit.is_covered() {
            break;
        }
        if ranked.frees.is_positive() {
            ranked.fate = Fate::Hastened;
            deficit.taken = deficit.taken + ranked.frees;
            plan.actions.push(Action::Hasten { pod: ranked.pod, why: need.line });
        }
    }
    let mut is_bounded = false;
    if !deficit.is_covered() {
        is_bounded = choose(config, state, pods, need, now, &mut deficit, plan);
    }
    if !deficit.is_covered() && !need.is_soft && plan.actions.len() == for_limits {
        hasten_blindly(pods, need, plan);
    }
    plan.deficit = Some(deficit);
    if plan.actions.len() > for_limits {
        Outcome::Evict
    } else if deficit.is_covered() {
        Outcome::ComingBack
    } else if is_bounded {
        Outcome::Bounded
    } else if deficit.coming.is_positive() {
        Outcome::ComingBack
    } else {
        Outcome::NoVictim(why_nobody(plan))
    }
}

/// Where nobody else is taken, the first that a soft threshold chose and of whom nothing is known has its grace cut
/// short. What it gives back is not known either: one at a time, and the next when that one is gone or stuck.
fn hasten_blindly(pods: &[Pod<'_>], need: Need, plan: &mut Plan) {
    let is_going = |ranked: &Ranked, gently: bool| {
        let going = pods[ranked.pod as usize].going;
        ranked.fate == Fate::Going && !ranked.is_measured && going.is_some_and(|going| going.is_gentle == gently)
    };
    let is_awaited = plan.ranked.iter().any(|ranked| is_going(ranked, false));
    if is_awaited || !may_be_blind(need.short) {
        return;
    }
    if let Some(ranked) = plan.ranked.iter_mut().find(|ranked| is_going(ranked, true)) {
        ranked.fate = Fate::Hastened;
        plan.actions.push(Action::Hasten { pod: ranked.pod, why: need.line });
    }
}

/// Takes new victims. Says whether the bound stood in the way.
fn choose(
    config: &Config,
    state: &mut State,
    pods: &[Pod<'_>],
    need: Need,
    now: MonotonicNs,
    deficit: &mut Deficit,
    plan: &mut Plan,
) -> bool {
    let classes_count = need.short.resource() == Resource::Memory && config.memory_order == MemoryOrder::OpenShift3;
    let blind = picks_blindly(pods, need.short, plan);
    let Taken { victims, loops } = state.taken(need.is_soft);
    let mut left = victims.left(now);
    let (mut is_bounded, mut one_loops, mut lesser_class_remains) = (false, false, false);
    for ranked in &mut plan.ranked {
        if deficit.is_covered() {
            break;
        }
        let pod = &pods[ranked.pod as usize];
        let is_lesser = ranked.qos != QosClass::Guaranteed;
        if ranked.fate != Fate::NotNeeded && !(blind && ranked.fate == Fate::NoStatistics) {
            lesser_class_remains |= is_lesser && ranked.fate == Fate::NoStatistics;
            continue;
        }
        let alone_until = loops.left_alone_until(pod, config).filter(|until| ranked.exceeds && *until > now);
        ranked.fate = if let Some(until) = alone_until {
            one_loops = true;
            plan.recheck_at = Some(plan.recheck_at.map_or(until, |earlier| earlier.min(until)));
            Fate::Looping(until)
        } else if one_loops && !ranked.exceeds {
            Fate::SparedByLoop
        } else if classes_count && !is_lesser && lesser_class_remains {
            Fate::ClassRemains
        } else if left == 0 {
            is_bounded = true;
            Fate::Bounded
        } else {
            Fate::Evicted
        };
        if ranked.fate != Fate::Evicted {
            lesser_class_remains |= is_lesser;
            continue;
        }
        left -= 1;
        victims.took(now);
        loops.took(pod, now);
        deficit.taken = deficit.taken + ranked.frees;
        let most = config.max_pod_grace_seconds;
        let grace_seconds =
            if need.is_soft { pod.facts.grace_seconds.map_or(most, |own| own.min(most)) } else { AT_ONCE_SECONDS };
        plan.actions.push(Action::Evict { pod: ranked.pod, why: need.line, grace_seconds });
        if blind {
            // What it gives back is not known: one at a time.
            break;
        }
    }
    if is_bounded && let Some(at) = victims.next_at() {
        plan.recheck_by(at);
    }
    is_bounded
}

/// Whether somebody is taken without statistics: only when nobody at all has any, and nobody is going already.
fn picks_blindly(pods: &[Pod<'_>], short: Short, plan: &Plan) -> bool {
    let is_coming = |ranked: &Ranked| pods[ranked.pod as usize].going.is_some_and(|going| !going.is_stuck);
    let is_known = plan.ranked.iter().any(|ranked| ranked.is_measured || is_coming(ranked));
    !is_known && may_be_blind(short)
}

/// Whether somebody can be taken of whom nothing is known: of memory and processes. A disk that nothing is known about
/// costs nobody.
fn may_be_blind(short: Short) -> bool {
    matches!(short.resource(), Resource::Memory | Resource::Pids)
}

fn why_nobody(plan: &Plan) -> NoVictim {
    let has = |is: fn(Fate) -> bool| plan.ranked.iter().any(|ranked| is(ranked.fate));
    if plan.ranked.is_empty() {
        NoVictim::NoPods
    } else if has(|fate| matches!(fate, Fate::Looping(_))) {
        NoVictim::OnlyLoops
    } else if has(|fate| fate == Fate::NoStatistics) && plan.ranked.iter().any(|ranked| ranked.is_measured) {
        NoVictim::NoStatistics
    } else if has(|fate| matches!(fate, Fate::NoStatistics | Fate::NothingToFree)) {
        NoVictim::NoUsableRanking
    } else {
        NoVictim::AllProtected
    }
}
