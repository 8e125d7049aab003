//! From one observation to one plan.

use crate::config::{Config, Threshold};
use crate::observation::{MemoryReading, Observation};
use crate::plan::{Action, Attribution, Case, Deficit, Fate, Judged, NoVictim, Outcome, Plan, Ranked, Readings};
use crate::rank::rank;
use crate::state::{LineKind, ScopeState, State, Watched};
use core::time::Duration;
use plimsoll_units::{Bytes, MonotonicNs};

/// Decides what to do about `observation`, at `now`, and writes it into `plan`.
///
/// `state` remembers what the next decision needs; it was made for the same `config`. Victims named in the plan count
/// as taken: the caller reports them as going from the next observation on. Allocates nothing.
pub fn decide(config: &Config, state: &mut State, observation: &Observation<'_>, now: MonotonicNs, plan: &mut Plan) {
    plan.clear(observation.scope, observation.taken, now);
    let thresholds = config.thresholds_in(observation.scope);
    let Some(scope) = state.scope(observation.scope) else {
        plan.outcome = Outcome::NotObserved;
        return;
    };
    let Some(memory) = observation.memory.filter(|_| !thresholds.is_empty()) else {
        // A threshold that cannot be seen is forgotten: its grace starts anew.
        scope.watched.fill(Watched::default());
        plan.outcome = Outcome::NotObserved;
        plan.conditions.memory_pressure = pressure(config, scope, now);
        return;
    };
    plan.readings = Some(Readings {
        capacity: memory.capacity,
        kubelet: memory.kubelet_available,
        mem_available: memory.mem_available,
    });
    judge(thresholds, scope, &memory, now, plan);
    remember_calm(config, thresholds, scope, &memory, observation, plan);
    // A soft threshold in its grace is pressure too.
    if plan.judged.iter().any(|judged| judged.case != Case::Neither) {
        scope.last_crossed = Some(now);
    }
    plan.conditions.memory_pressure = pressure(config, scope, now);
    let fresh = scope.last_taken.is_none_or(|last| observation.taken > last);
    if fresh {
        scope.last_taken = Some(observation.taken);
    }
    for kind in LineKind::BOTH {
        if relevant(thresholds, plan, kind).all(|judged| judged.case == Case::Neither) {
            scope.reclaim_asked[kind as usize] = None;
        }
    }
    if plan.judged.iter().all(|judged| judged.case == Case::Neither) {
        return;
    }
    let Some(turn) = choose_line(config, thresholds, scope, observation, plan) else {
        plan.outcome = Outcome::InGrace;
        return;
    };
    rank(observation, &scope.baselines[turn.kind as usize], plan);
    if fresh {
        act(config, state, turn, &memory, observation, plan);
    } else {
        plan.outcome = Outcome::Stale;
    }
}

fn pressure(config: &Config, scope: &ScopeState, now: MonotonicNs) -> bool {
    // Crossed right now counts even if the period is zero.
    scope.last_crossed.is_some_and(|last| last == now || now.since(last) < config.pressure_transition)
}

/// Holds every threshold of the scope against the readings.
fn judge(thresholds: &[Threshold], scope: &mut ScopeState, memory: &MemoryReading, now: MonotonicNs, plan: &mut Plan) {
    for (index, (threshold, watched)) in (0_u32..).zip(thresholds.iter().zip(&mut scope.watched)) {
        let line = threshold.line.of(memory.capacity);
        let target = line.saturating_add(threshold.min_reclaim.of(memory.capacity));
        let bar = if watched.latched { target } else { line };
        let case =
            Case::of(memory.kubelet_available < bar, memory.mem_available.map(|mem_available| mem_available < bar));
        let (below_for, met) = if case == Case::Neither {
            *watched = Watched::default();
            (Duration::ZERO, false)
        } else {
            let below_for = now.since(*watched.below_since.get_or_insert(now));
            let met = below_for >= threshold.grace;
            watched.latched |= met;
            if !met {
                plan.recheck_by(now.after(threshold.grace.saturating_sub(below_for)));
            }
            (below_for, met)
        };
        if memory.kubelet_available >= line && memory.mem_available.is_none_or(|mem_available| mem_available >= line) {
            plan.next_line = plan.next_line.max(Some(line));
        }
        plan.judged.push(Judged { threshold: index, line, target, case, below_for, met });
    }
}

/// The lines that what is remembered for a kind of line goes by: hard thresholds go by themselves alone, so that no
/// soft one beside them changes what they do.
fn relevant<'a>(thresholds: &'a [Threshold], plan: &'a Plan, kind: LineKind) -> impl Iterator<Item = &'a Judged> {
    plan.judged.iter().filter(move |judged| LineKind::of(&thresholds[judged.threshold as usize]) <= kind)
}

/// Remembers who has how much while memory is plentiful, or at least for the first time above all thresholds; for each
/// kind of line by itself.
fn remember_calm(
    config: &Config,
    thresholds: &[Threshold],
    scope: &mut ScopeState,
    memory: &MemoryReading,
    observation: &Observation<'_>,
    plan: &Plan,
) {
    let lowest = memory
        .mem_available
        .map_or(memory.kubelet_available, |mem_available| mem_available.min(memory.kubelet_available));
    for (kind, baseline) in LineKind::BOTH.into_iter().zip(&mut scope.baselines) {
        let is_needed = thresholds.iter().any(|threshold| LineKind::of(threshold) == kind);
        if !is_needed || relevant(thresholds, plan, kind).any(|judged| judged.case != Case::Neither) {
            continue;
        }
        let highest = relevant(thresholds, plan, kind).map(|judged| judged.target).max().unwrap_or(Bytes::ZERO);
        let is_plentiful = lowest >= highest.saturating_add(config.plentiful.of(memory.capacity));
        if baseline.is_wanted(is_plentiful) {
            baseline.take(is_plentiful, memory.kubelet_available, memory.mem_available, observation.candidates);
        }
    }
}

/// What one met threshold asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    Evict,
    Reclaim,
    AwaitReclaim,
    LeaveCache,
}

fn wish(
    config: &Config,
    asked: Option<MonotonicNs>,
    observation: &Observation<'_>,
    now: MonotonicNs,
    case: Case,
) -> Wish {
    match case {
        Case::Both | Case::MemAvailableOnly => Wish::Evict,
        // Never met; kept so that a new case cannot be forgotten.
        Case::Neither => Wish::LeaveCache,
        Case::KubeletOnly => match asked {
            None => Wish::Reclaim,
            Some(asked) => {
                let tried = observation.reclaimed.is_some_and(|ended| ended >= asked && observation.taken >= ended);
                if tried && observation.stall.is_some_and(|stall| stall.is_at_least(config.stall_percent)) {
                    Wish::Evict
                } else if now.since(asked) >= config.reclaim_pause {
                    Wish::Reclaim
                } else if tried {
                    Wish::LeaveCache
                } else {
                    Wish::AwaitReclaim
                }
            }
        },
    }
}

/// The line to act on, and what it asks for.
#[derive(Clone, Copy)]
struct Turn {
    /// Its index in [`Plan::judged`].
    acting: u32,
    kind: LineKind,
    wish: Wish,
}

/// Chooses among the lines that are met: what can be done before what is waited for; hard before soft, so that no soft
/// line ever delays a hard one; evicting before reclaiming; the higher target first.
fn choose_line(
    config: &Config,
    thresholds: &[Threshold],
    scope: &ScopeState,
    observation: &Observation<'_>,
    plan: &Plan,
) -> Option<Turn> {
    (0_u32..)
        .zip(&plan.judged)
        .filter(|(_, judged)| judged.met)
        .map(|(index, judged)| {
            let kind = LineKind::of(&thresholds[judged.threshold as usize]);
            let wish = wish(config, scope.reclaim_asked[kind as usize], observation, plan.made, judged.case);
            let waits = matches!(wish, Wish::AwaitReclaim | Wish::LeaveCache);
            (waits, kind, wish, core::cmp::Reverse(judged.target), index)
        })
        .min()
        .map(|(_, kind, wish, _, acting)| Turn { acting, kind, wish })
}

fn act(
    config: &Config,
    state: &mut State,
    turn: Turn,
    memory: &MemoryReading,
    observation: &Observation<'_>,
    plan: &mut Plan,
) {
    let Turn { acting, kind, wish } = turn;
    let now = plan.made;
    let Some(scope) = state.scope(observation.scope) else { return };
    plan.acting = Some(acting);
    let judged = plan.judged[acting as usize];
    let reading = match judged.case {
        Case::MemAvailableOnly => memory.mem_available.unwrap_or(memory.kubelet_available),
        Case::KubeletOnly => memory.kubelet_available,
        Case::Both | Case::Neither => memory
            .mem_available
            .map_or(memory.kubelet_available, |mem_available| mem_available.min(memory.kubelet_available)),
    };
    let missing = judged.target.saturating_sub(reading);
    if wish == Wish::Reclaim {
        scope.reclaim_asked[kind as usize..].fill(Some(now));
    }
    // A line that waits meanwhile may ask anew then.
    for asked in scope.reclaim_asked.into_iter().flatten() {
        let again = asked.after(config.reclaim_pause);
        if again > now {
            plan.recheck_by(again);
        }
    }
    match wish {
        Wish::Reclaim => {
            plan.actions.push(Action::Reclaim { amount: missing });
            plan.outcome = Outcome::Reclaiming;
        }
        Wish::AwaitReclaim => plan.outcome = Outcome::Reclaiming,
        Wish::LeaveCache => plan.outcome = Outcome::CacheInUse,
        Wish::Evict => {
            let mem_available = memory.mem_available == Some(reading);
            let baseline = &scope.baselines[kind as usize];
            attribute(plan, observation, baseline.available(mem_available, memory.capacity).saturating_sub(reading));
            choose(config, state, observation, missing, kind, plan);
        }
    }
}

/// Adds up who grew.
fn attribute(plan: &mut Plan, observation: &Observation<'_>, fallen: Bytes) {
    let mut attribution = Attribution { fallen, outside: observation.unattributed, ..Attribution::default() };
    for ranked in &plan.ranked {
        let grew = ranked.grew.unwrap_or(Bytes::ZERO);
        if observation.candidates[ranked.candidate as usize].empty && ranked.fate != Fate::OutsideScope {
            // Nobody's growth any more, so it must not hide who grows now.
            attribution.fallen = attribution.fallen.saturating_sub(grew);
            continue;
        }
        let sum = match ranked.fate {
            Fate::OutsideScope => continue,
            Fate::Protected(_) => &mut attribution.protected_grew,
            _ => &mut attribution.evictable_grew,
        };
        *sum = sum.saturating_add(grew);
    }
    plan.attribution = Some(attribution);
}

/// Takes victims in order until the missing memory is covered.
fn choose(
    config: &Config,
    state: &mut State,
    observation: &Observation<'_>,
    missing: Bytes,
    kind: LineKind,
    plan: &mut Plan,
) {
    let soft = kind == LineKind::Soft;
    let threshold = plan.acting().map_or(0, |judged| judged.threshold);
    let mut deficit = Deficit { missing, ..Deficit::default() };
    for ranked in &plan.ranked {
        if let (Fate::Going, Some(going)) = (ranked.fate, observation.candidates[ranked.candidate as usize].going)
            && (soft || !going.gentle)
        {
            deficit.coming = deficit.coming.saturating_add(going.held);
        }
    }
    // A hard threshold does not wait for the grace of those a soft one chose; they were chosen already.
    if !soft {
        for ranked in &mut plan.ranked {
            if deficit.uncovered() == Bytes::ZERO {
                break;
            }
            if let (Fate::Going, Some(going)) = (ranked.fate, observation.candidates[ranked.candidate as usize].going)
                && going.gentle
            {
                ranked.fate = Fate::Hastened;
                deficit.taken = deficit.taken.saturating_add(going.held);
                plan.actions.push(Action::Hasten { candidate: ranked.candidate, threshold });
            }
        }
    }
    if deficit.uncovered() == Bytes::ZERO {
        plan.outcome = if plan.actions.is_empty() { Outcome::ComingBack } else { Outcome::Evict };
        plan.deficit = Some(deficit);
        return;
    }
    let spare =
        !config.evict_for_unattributed && plan.attribution.is_some_and(|attribution| !attribution.is_evictable());
    let left_behind = left_behind(observation, plan);
    let mut left = state.victims_of(kind).left(plan.made);
    let mut bounded = false;
    let mut innocent = false;
    for ranked in plan.ranked.iter_mut().filter(|ranked| ranked.fate == Fate::NotNeeded) {
        let uncovered = deficit.uncovered();
        if uncovered == Bytes::ZERO {
            break;
        }
        // What the dead left comes back by ending nobody: for that much, only who grew pays.
        let grew = ranked.grew.unwrap_or(Bytes::ZERO);
        let bystander = uncovered <= left_behind && grew.0.saturating_mul(2) < uncovered.0;
        if spare || bystander && !config.evict_for_unattributed {
            ranked.fate = Fate::Innocent;
            innocent = true;
        } else if left == 0 {
            ranked.fate = Fate::Bounded;
            bounded = true;
        } else {
            left -= 1;
            state.took(kind, plan.made);
            ranked.fate = Fate::Evicted;
            deficit.taken = deficit.taken.saturating_add(ranked.usage.unwrap_or(Bytes::ZERO));
            let wanted = observation.candidates[ranked.candidate as usize].grace;
            let grace = if soft { wanted.min(config.max_grace) } else { Duration::ZERO };
            plan.actions.push(Action::Evict { candidate: ranked.candidate, threshold, grace });
        }
    }
    plan.deficit = Some(deficit);
    plan.outcome = if !plan.actions.is_empty() {
        Outcome::Evict
    } else if innocent {
        Outcome::Unattributed
    } else if bounded {
        Outcome::Bounded
    } else if deficit.coming > Bytes::ZERO {
        Outcome::ComingBack
    } else {
        Outcome::NoVictim(why_nobody(plan))
    };
    if bounded && let Some(at) = state.victims_of(kind).next_at() {
        plan.recheck_by(at);
    }
}

/// How much those grew of whom no process is left.
fn left_behind(observation: &Observation<'_>, plan: &Plan) -> Bytes {
    let empty =
        |ranked: &&Ranked| observation.candidates[ranked.candidate as usize].empty && ranked.fate != Fate::OutsideScope;
    let grew = plan.ranked.iter().filter(empty).map(|ranked| ranked.grew.unwrap_or(Bytes::ZERO));
    grew.fold(Bytes::ZERO, Bytes::saturating_add)
}

fn why_nobody(plan: &Plan) -> NoVictim {
    let has = |wanted: fn(Fate) -> bool| plan.ranked.iter().any(|ranked| wanted(ranked.fate));
    if has(|fate| fate == Fate::NoStatistics) {
        NoVictim::NoStatistics
    } else if has(|fate| fate == Fate::NothingToFree) {
        NoVictim::NothingToFree
    } else if has(|fate| matches!(fate, Fate::Protected(_) | Fate::Stuck)) {
        NoVictim::AllProtected
    } else {
        NoVictim::NoCandidates
    }
}
