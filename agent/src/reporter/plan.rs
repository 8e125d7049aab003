//! A plan, put together from its parts: one line for people, and every number as a field for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_config::Configuration;
use plimsoll_policy::{Action, Attribution, Conditions, Deficit, Judged, Plan, Ranked, Readings, Scope, text};
use plimsoll_units::MonotonicNs;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::kernel_log::Figures;
use crate::log::escaped;
use crate::record::{Cause, Record};

/// A plan of which parts are still to come.
pub(super) struct Draft {
    number: u64,
    cause: Cause,
    crossed: Option<MonotonicNs>,
    awake: MonotonicNs,
    pub(super) shadow: bool,
    pub(super) plan: Plan,
    /// Candidates' paths, escaped.
    paths: BTreeMap<u32, String>,
}

impl Draft {
    /// Begins with what `record` says of the plan as a whole; `None` for any other record.
    pub(super) fn begin(record: &Record<'_>) -> Option<Self> {
        let Record::Plan {
            number,
            cause,
            crossed,
            awake,
            shadow,
            scope,
            taken,
            made,
            outcome,
            readings,
            conditions,
            deficit,
            attribution,
            overlooked,
        } = *record
        else {
            return None;
        };
        let mut plan = Plan::default();
        plan.scope = scope;
        plan.taken = taken;
        plan.made = made;
        plan.outcome = outcome;
        plan.readings = readings;
        plan.conditions = conditions;
        plan.deficit = deficit;
        plan.attribution = attribution;
        plan.overlooked = overlooked;
        Some(Self { number, cause, crossed, awake, shadow, plan, paths: BTreeMap::new() })
    }

    pub(super) fn judged(&mut self, judged: Judged, acting: bool) {
        if acting {
            self.plan.acting = u32::try_from(self.plan.judged.len()).ok();
        }
        self.plan.judged.push(judged);
    }

    pub(super) fn ranked(&mut self, ranked: Ranked, path: &[u8]) {
        self.paths.insert(ranked.candidate, escaped(path));
        self.plan.ranked.push(ranked);
    }

    pub(super) fn action(&mut self, action: Action) {
        self.plan.actions.push(action);
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Everybody who is acted on is named: no part of that was lost.
    pub(super) fn is_whole(&self) -> bool {
        self.plan.victims().all(|victim| self.paths.contains_key(&victim))
    }

    /// What its kills are told with.
    pub(super) fn figures(&self) -> Option<Figures> {
        let Readings { capacity: _, kubelet, honest } = self.plan.readings?;
        Some(Figures { kubelet, honest, line: self.plan.acting().map(|judged| judged.line) })
    }

    fn name(&self, candidate: u32) -> String {
        self.paths.get(&candidate).map_or("?", String::as_str).to_owned()
    }

    /// One line, with every number that led to it.
    pub(super) fn line(&self, configuration: &Configuration) -> String {
        let done = if self.shadow { "shadow, not done: " } else { "" };
        let line = text::line(&configuration.policy, &self.plan, |candidate| self.name(candidate));
        let why = match self.cause {
            Cause::Line => "a line rang",
            Cause::Reclaim => "reclaim began",
            Cause::Psi => "the pressure trigger fired",
            Cause::Poll => "it was time to poll",
            Cause::Timer => "the slow timer",
            Cause::FollowUp => "a follow-up was due",
        };
        let woke = self.woke().map_or_else(String::new, |woke| format!(", awake {woke:?} after the crossing"));
        format!("{done}{line}; looked because: {why}{woke}, decided after {:?}", self.plan.made.since(self.awake))
    }

    fn woke(&self) -> Option<Duration> {
        self.crossed.map(|crossed| self.awake.since(crossed))
    }

    /// Every number by its name and unit.
    pub(super) fn fields(&self, configuration: &Configuration) -> Map<String, Value> {
        let Self { number, cause, crossed, awake, shadow, plan, paths: _ } = self;
        let (outcome, reason) = variant(&plan.outcome);
        let slice = match plan.scope {
            Scope::Node => None,
            Scope::Slice(slice) => {
                configuration.slices.get(usize::from(slice.0)).map(|slice| escaped(slice.path.as_str().as_bytes()))
            }
        };
        let Conditions { memory_pressure } = plan.conditions;
        let thresholds: Vec<Value> = (0..)
            .zip(&plan.judged)
            .map(|(index, judged)| {
                let Judged { threshold, line, target, case, below_for, met } = *judged;
                let grace = configuration.policy.thresholds_in(plan.scope).get(threshold as usize);
                json!({
                    "threshold": threshold,
                    "line_bytes": line,
                    "target_bytes": target,
                    "case": variant(&case).0,
                    "below_for_ns": ns(below_for),
                    "grace_ns": grace.map(|threshold| ns(threshold.grace)),
                    "met": met,
                    "acting": plan.acting == Some(index),
                })
            })
            .collect();
        let value = json!({
            "plan": number,
            "cause": variant(cause).0,
            "crossed_ns": crossed,
            "awake_ns": awake,
            "crossed_to_awake_ns": self.woke().map(ns),
            "taken_ns": plan.taken,
            "made_ns": plan.made,
            "shadow": shadow,
            "scope": variant(&plan.scope).0,
            "slice": slice,
            "outcome": outcome,
            "reason": reason.map(|reason| variant(&reason).0),
            "memory_pressure": memory_pressure,
            "readings": plan.readings.map(|Readings { capacity, kubelet, honest }| json!({
                "capacity_bytes": capacity,
                "kubelet_bytes": kubelet,
                "honest_bytes": honest,
            })),
            "line_bytes": plan.acting().map(|judged| judged.line),
            "thresholds": thresholds,
            "deficit": plan.deficit.map(|deficit| {
                let Deficit { missing, coming, taken } = deficit;
                json!({
                    "missing_bytes": missing,
                    "coming_bytes": coming,
                    "taken_bytes": taken,
                    "uncovered_bytes": deficit.uncovered(),
                })
            }),
            "attribution": plan.attribution.map(|Attribution { fallen, evictable_grew, protected_grew, outside }| json!({
                "fallen_bytes": fallen,
                "evictable_grew_bytes": evictable_grew,
                "protected_grew_bytes": protected_grew,
                "outside_bytes": outside,
            })),
            "actions": plan.actions.iter().map(|action| self.done(action)).collect::<Vec<_>>(),
            "candidates": plan.ranked.iter().map(|ranked| self.candidate(ranked)).collect::<Vec<_>>(),
            "overlooked": plan.overlooked,
        });
        match value {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }

    fn done(&self, action: &Action) -> Value {
        match *action {
            Action::Reclaim { amount } => json!({"action": "reclaim", "amount_bytes": amount}),
            Action::Hasten { candidate, threshold } => {
                json!({"action": "hasten", "cgroup": self.name(candidate), "threshold": threshold, "grace_ns": 0})
            }
            Action::Evict { candidate, threshold, grace } => json!({
                "action": "evict",
                "cgroup": self.name(candidate),
                "threshold": threshold,
                "grace_ns": ns(grace),
            }),
        }
    }

    fn candidate(&self, ranked: &Ranked) -> Value {
        let Ranked { candidate, key, usage, reservation, exceeds, priority, started, grew, fate } = *ranked;
        let (fate, why) = variant(&fate);
        json!({
            "cgroup": self.name(candidate),
            "cgroup_id": key.id,
            "usage_bytes": usage,
            "reservation_bytes": reservation,
            "exceeds": exceeds,
            "priority": priority,
            "started_ns": started,
            "grew_bytes": grew,
            "fate": fate,
            "protected_as": why.map(|why| variant(&why).0),
        })
    }
}

/// Nanoseconds, as a number that every reader of JSON has room for.
pub(super) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The name of an enumeration's variant in lower case with hyphens, and what the variant holds.
pub(super) fn variant(value: &impl Serialize) -> (String, Option<Value>) {
    let (name, inner) = match serde_json::to_value(value) {
        Ok(Value::String(name)) => (name, None),
        Ok(Value::Object(map)) => map.into_iter().next().map_or_else(Default::default, |(name, it)| (name, Some(it))),
        _ => Default::default(),
    };
    let mut words = String::with_capacity(name.len() + 4);
    for character in name.chars() {
        if character.is_ascii_uppercase() && !words.is_empty() {
            words.push('-');
        }
        words.push(character.to_ascii_lowercase());
    }
    (words, inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::{NoVictim, Outcome, SliceId};

    #[test]
    fn variants_have_names() {
        assert_eq!(variant(&Outcome::Evict), ("evict".into(), None));
        assert_eq!(variant(&Cause::FollowUp).0, "follow-up");
        assert_eq!(variant(&Scope::Slice(SliceId(1))).0, "slice");
        let (name, inner) = variant(&Outcome::NoVictim(NoVictim::AllProtected));
        assert_eq!(name, "no-victim");
        assert_eq!(variant(&inner).0, "all-protected");
    }
}
