//! Who goes first.

use crate::observation::{Candidate, Observation};
use crate::plan::{Fate, Plan, Ranked};
use crate::scope::Scope;
use crate::state::Baseline;
use core::cmp::{Ordering, Reverse};

/// First to go is less: read before unread, over the reservation before within it, low priority before high, much over
/// before little over, young before old, and the caller's order for the rest, so that no two are ever equal.
fn order(a: &Ranked, b: &Ranked) -> Ordering {
    let key = |r: &Ranked| {
        (r.usage.is_none(), !r.exceeds, r.priority, Reverse(r.over()), Reverse(r.started), r.key, r.candidate)
    };
    key(a).cmp(&key(b))
}

/// What is known of a candidate before anybody is chosen.
fn first_fate(candidate: &Candidate, scope: Scope) -> Fate {
    if let Scope::Slice(slice) = scope
        && !candidate.slices.contains(slice)
    {
        return Fate::OutsideScope;
    }
    if let Some(why) = candidate.protected {
        return Fate::Protected(why);
    }
    match (candidate.going, candidate.usage) {
        (Some(going), _) if going.stuck => Fate::Stuck,
        (Some(_), _) => Fate::Going,
        (None, None) => Fate::NoStatistics,
        (None, Some(usage)) if candidate.empty || usage.0 == 0 => Fate::NothingToFree,
        (None, Some(_)) => Fate::NotNeeded,
    }
}

/// Ranks as [`decide`](crate::decide) would if a line were crossed now, for who asks while none is: who would go first, and
/// who never. Nobody has grown, since nothing is remembered.
pub fn ranking(observation: &Observation<'_>, plan: &mut Plan) {
    plan.clear(observation.scope, observation.taken, observation.taken);
    rank(observation, &Baseline::none(), plan);
    for ranked in &mut plan.ranked {
        ranked.grew = None;
    }
}

/// Fills the plan's ranked list: everybody, in order, with a first fate.
pub(crate) fn rank(observation: &Observation<'_>, baseline: &Baseline, plan: &mut Plan) {
    for (index, candidate) in (0_u32..).zip(observation.candidates) {
        if plan.ranked.len() == plan.capacity {
            plan.overlooked = u32::try_from(observation.candidates.len() - plan.capacity).unwrap_or(u32::MAX);
            break;
        }
        plan.ranked.push(Ranked {
            candidate: index,
            key: candidate.key,
            usage: candidate.usage,
            reservation: candidate.reservation,
            exceeds: candidate.usage.is_some_and(|usage| usage > candidate.reservation),
            priority: candidate.priority,
            started: candidate.started,
            grew: candidate.usage.map(|usage| baseline.growth(candidate.key, usage)),
            fate: first_fate(candidate, observation.scope),
        });
    }
    // Unstable sorting allocates nothing, and with no two equal it is as good as stable.
    plan.ranked.sort_unstable_by(order);
}
