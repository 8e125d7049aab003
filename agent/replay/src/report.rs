//! A turn in words, and every number of it for programs. Names come from outside: what does not print is escaped.

use core::fmt;
use core::time::Duration;
use plimsoll_policy::kubelet::{self, Amount, Condition, Conditions, Readings};
use plimsoll_policy::message::{Cause, Message, SIGNAL_LABEL};
use plimsoll_policy::{Action, Attribution, Config, Deficit, Judged, Plan, Ranked, Scope, plimsoll, text};
use plimsoll_units::MonotonicNs;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What was decided on one look.
pub struct Turn<'a> {
    /// When, on the clock of the recording.
    pub at: MonotonicNs,
    /// What that clock's zero is in nanoseconds since 1970, if that is known.
    pub epoch_ns: Option<i64>,
    /// What the agent itself told at that time, where the recording has it.
    pub reported: Option<&'a str>,
    pub(crate) names: &'a [String],
    /// What is said of whom, by the pod's index.
    pub(crate) messages: &'a [(u32, Message)],
    pub(crate) decided: Decided<'a>,
}

/// By whom.
pub(crate) enum Decided<'a> {
    Machine { policy: &'a Config, plan: &'a Plan, slice: Option<&'a str> },
    Kubelet { config: &'a kubelet::Config, plan: &'a kubelet::Plan, readings: &'a Readings, conditions: Conditions },
    Plimsoll { config: &'a plimsoll::Config, plan: &'a plimsoll::Plan },
}

impl Turn<'_> {
    /// When, as people know it; seconds on the recording's clock where nothing better is known.
    pub fn time(&self) -> String {
        let since = i128::from(self.at.0);
        let known = self.epoch_ns.and_then(|epoch| jiff::Timestamp::from_nanosecond(since + i128::from(epoch)).ok());
        known.map_or_else(
            || format!("{}.{:03} s", since / 1_000_000_000, since / 1_000_000 % 1000),
            |time| format!("{time:.3}"),
        )
    }

    /// What the turn is about: the machine, or a slice.
    pub fn scope(&self) -> Option<&str> {
        match &self.decided {
            Decided::Machine { slice, .. } => *slice,
            Decided::Kubelet { .. } | Decided::Plimsoll { .. } => None,
        }
    }

    /// Whether anything is done.
    pub fn acts(&self) -> bool {
        match &self.decided {
            Decided::Machine { plan, .. } => !plan.actions.is_empty(),
            Decided::Kubelet { plan, .. } => !plan.evictions.is_empty(),
            Decided::Plimsoll { plan, .. } => !plan.actions.is_empty(),
        }
    }

    /// Whether no line is crossed, or nothing that can be told.
    pub fn is_quiet(&self) -> bool {
        match &self.decided {
            Decided::Machine { plan, .. } => {
                matches!(plan.outcome, plimsoll_policy::Outcome::Calm | plimsoll_policy::Outcome::NotObserved)
            }
            Decided::Kubelet { plan, .. } => {
                matches!(plan.outcome, kubelet::Outcome::Calm | kubelet::Outcome::Idle)
            }
            Decided::Plimsoll { plan, .. } => plan.outcome == plimsoll::Outcome::Calm,
        }
    }

    /// What stays the same while there is no news.
    pub fn state(&self) -> String {
        match &self.decided {
            Decided::Machine { plan, .. } => format!("{:?} {:?}", plan.outcome, plan.conditions),
            Decided::Kubelet { plan, conditions, .. } => format!("{:?} {conditions:?}", plan.outcome),
            Decided::Plimsoll { plan, .. } => format!("{:?} {:?}", plan.outcome, plan.conditions),
        }
    }

    /// The decision as one line.
    pub fn line(&self) -> String {
        let name = |index: u32| self.name(index);
        let line = match &self.decided {
            Decided::Machine { policy, plan, .. } => return text::line(policy, plan, name).to_string(),
            Decided::Kubelet { config, plan, readings, .. } => kubelet::text::line(config, readings, plan, name),
            Decided::Plimsoll { config, plan } => plimsoll::text::line(config, plan, name),
        };
        let conditions: Vec<String> = self.conditions().iter().map(|condition| self.condition(condition)).collect();
        if conditions.is_empty() { line } else { format!("{line}; conditions {}", conditions.join(", ")) }
    }

    /// A condition with its case, where there are two readings.
    fn condition(&self, condition: Condition) -> String {
        match &self.decided {
            Decided::Plimsoll { config, plan } => plimsoll::text::condition(config, plan, condition),
            Decided::Machine { .. } | Decided::Kubelet { .. } => condition.name().to_owned(),
        }
    }

    fn conditions(&self) -> Conditions {
        match &self.decided {
            Decided::Machine { .. } => Conditions::default(),
            Decided::Kubelet { conditions, .. } => *conditions,
            Decided::Plimsoll { plan, .. } => plan.conditions,
        }
    }

    /// Everybody in the order in which they would go: name, what becomes of it, and the keys that ranked it. Empty
    /// where nobody had to be looked for.
    pub fn candidates(&self) -> Vec<[String; 3]> {
        fn row(name: String, fate: &dyn fmt::Display, keys: &dyn fmt::Display) -> [String; 3] {
            [name, fate.to_string(), keys.to_string()]
        }
        match &self.decided {
            Decided::Machine { plan, .. } => plan
                .ranked
                .iter()
                .map(|ranked| row(self.name(ranked.candidate), &ranked.fate, &text::Keys(ranked)))
                .collect(),
            Decided::Kubelet { config, plan, .. } => plan
                .ranked
                .iter()
                .map(|ranked| row(self.name(ranked.pod), &ranked.fate, &kubelet::text::keys(config, plan, ranked)))
                .collect(),
            Decided::Plimsoll { config, plan } => plan
                .ranked
                .iter()
                .map(|ranked| row(self.name(ranked.pod), &ranked.fate, &plimsoll::text::keys(config, plan, ranked)))
                .collect(),
        }
    }

    /// What the event of each pod that goes says: name and message. Without an eviction policy over pods there is none.
    pub fn messages(&self) -> Vec<[String; 2]> {
        let reported = |(pod, message): &(u32, Message)| [self.name(*pod), printable(message.to_string().trim_end())];
        self.messages.iter().map(reported).collect()
    }

    /// Every number.
    pub fn json(&self) -> Value {
        let mut fields = match &self.decided {
            Decided::Machine { policy, plan, slice } => {
                machine_plan(policy, plan, *slice, |candidate| self.name(candidate))
            }
            Decided::Kubelet { config, plan, readings, .. } => self.kubelet_plan(config, plan, readings),
            Decided::Plimsoll { config, plan } => self.plimsoll_plan(config, plan),
        };
        fields.insert("at_ns".to_owned(), self.at.0.into());
        fields.insert("time".to_owned(), self.time().into());
        fields.insert("line".to_owned(), self.line().into());
        fields.insert("told".to_owned(), self.reported.map(printable).into());
        Value::Object(fields)
    }

    fn kubelet_plan(&self, config: &kubelet::Config, plan: &kubelet::Plan, readings: &Readings) -> Map<String, Value> {
        let thresholds = config.thresholds.iter().map(|threshold| {
            let reading = readings.get(threshold.signal);
            json!({
                "signal": threshold.signal.name(),
                "grace_ns": nanoseconds(threshold.grace),
                "line": threshold.line.zip(reading).map(|(line, reading)| whole(line.of(reading.capacity))),
                "available": reading.map(|reading| reading.available),
            })
        });
        let evictions = plan.evictions.iter().map(|eviction| (eviction.pod, eviction.grace_seconds));
        let keys = plan.ranked.iter().map(|ranked| {
            json!({
                "measured": ranked.is_measured,
                "exceeds": ranked.exceeds,
                "priority": ranked.priority,
                "over": whole(ranked.over),
                "processes": ranked.processes,
            })
        });
        object(json!({
            "eviction_policy": "kubelet",
            "outcome": plan.outcome.to_string(),
            "conditions": self.conditions().iter().map(Condition::name).collect::<Vec<_>>(),
            "thresholds": thresholds.collect::<Vec<_>>(),
            "acting": plan.acting,
            "reclaim_containers": plan.reclaim.containers,
            "reclaim_images": plan.reclaim.images,
            "evictions": self.evictions(evictions),
            "candidates": self.with_fates(keys),
            "overlooked": plan.overlooked,
        }))
    }

    /// Who goes, how long each has for an orderly end, and what is said of it.
    fn evictions(&self, evictions: impl Iterator<Item = (u32, i64)>) -> Vec<Value> {
        let reported = |(pod, grace_seconds)| {
            let message = self.messages.iter().find(|(of, _)| *of == pod).map(|(_, message)| message);
            let annotations = message.into_iter().flat_map(Message::annotations);
            json!({
                "pod": self.name(pod),
                "grace_seconds": grace_seconds,
                "message": message.map(|message| printable(&message.to_string())),
                "annotations": annotations.map(|(key, text)| (key, printable(&text))).collect::<BTreeMap<_, _>>(),
                SIGNAL_LABEL: message.and_then(Message::cause).map(Cause::label),
            })
        };
        evictions.map(reported).collect()
    }

    /// Every candidate: the keys that ranked it, with its name and what becomes of it.
    fn with_fates(&self, keys: impl Iterator<Item = Value>) -> Vec<Value> {
        let reported = |(keys, [name, fate, reason]): (Value, [String; 3])| {
            let mut fields = object(keys);
            fields.extend(
                [("pod", name), ("fate", fate), ("reason", reason)].map(|(key, it)| (key.to_owned(), it.into())),
            );
            Value::Object(fields)
        };
        keys.zip(self.candidates()).map(reported).collect()
    }

    fn plimsoll_plan(&self, config: &plimsoll::Config, plan: &plimsoll::Plan) -> Map<String, Value> {
        let thresholds = plan.judged.iter().map(|judged| {
            let threshold = match judged.line {
                plimsoll::Why::Threshold(index) => config.thresholds.get(index as usize),
                plimsoll::Why::Swap | plimsoll::Why::Limit(_) => None,
            };
            json!({
                "signal": threshold.map_or("swap", |threshold| threshold.signal.name()),
                "grace_ns": threshold.map(|threshold| nanoseconds(threshold.grace)),
                "line": whole(judged.at),
                "target": whole(judged.target),
                "missing": whole(judged.missing),
                "case": variant(&judged.case).0,
                "since_ns": judged.since,
                "met": judged.is_met,
            })
        });
        let evictions = plan.actions.iter().filter_map(|action| match *action {
            plimsoll::Action::Evict { pod, grace_seconds, .. } => Some((pod, grace_seconds)),
            plimsoll::Action::Hasten { pod, .. } => Some((pod, 0)),
            plimsoll::Action::Reclaim(_) => None,
        });
        let keys = plan.ranked.iter().map(|ranked| {
            json!({
                "measured": ranked.is_measured,
                "exceeds": ranked.exceeds,
                "priority": ranked.priority,
                "qos": ranked.qos.name(),
                "usage": whole(ranked.usage),
                "over": whole(ranked.over),
                "frees": whole(ranked.frees),
                "started_ns": ranked.started,
                "returns": ranked.returns,
            })
        });
        let case = |condition: Condition| {
            let case = plan.condition_case(config, condition);
            (condition.name().to_owned(), case.map(|case| variant(&case).0).into())
        };
        object(json!({
            "eviction_policy": match config.memory_order {
                plimsoll::MemoryOrder::Plimsoll => "plimsoll",
                plimsoll::MemoryOrder::OpenShift3 => "openshift3",
            },
            "outcome": plan.outcome.to_string(),
            "conditions": self.conditions().iter().map(Condition::name).collect::<Vec<_>>(),
            "condition_cases": self.conditions().iter().map(case).collect::<Map<_, _>>(),
            "thresholds": thresholds.collect::<Vec<_>>(),
            "acting": plan.acting,
            "deficit": plan.deficit.map(|plimsoll::Deficit { missing, coming, taken }| json!({
                "missing": whole(missing),
                "coming": whole(coming),
                "taken": whole(taken),
            })),
            "evictions": self.evictions(evictions),
            "candidates": self.with_fates(keys),
            "overlooked": plan.overlooked,
        }))
    }

    fn name(&self, index: u32) -> String {
        self.names.get(index as usize).map_or_else(|| "?".to_owned(), |name| printable(name))
    }
}

/// A text that stays on its line: what does not print is escaped.
pub fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|character| {
            let escapes = character.is_control() || !character.is_ascii();
            let kept = (!escapes).then_some(character);
            kept.into_iter().chain(escapes.then(|| character.escape_default()).into_iter().flatten())
        })
        .collect()
}

/// A plan of the core: every number by its name and unit. `name` gives a candidate's cgroup from its index.
pub fn machine_plan(
    policy: &Config,
    plan: &Plan,
    slice: Option<&str>,
    name: impl Fn(u32) -> String,
) -> Map<String, Value> {
    let (outcome, reason) = variant(&plan.outcome);
    let plimsoll_policy::Conditions { memory_pressure } = plan.conditions;
    let thresholds: Vec<Value> = (0..)
        .zip(&plan.judged)
        .map(|(index, judged)| {
            let Judged { threshold, line, target, case, below_for, met } = *judged;
            let grace = policy.thresholds_in(plan.scope).get(threshold as usize);
            json!({
                "threshold": threshold,
                "line_bytes": line,
                "target_bytes": target,
                "case": variant(&case).0,
                "below_for_ns": nanoseconds(below_for),
                "grace_ns": grace.map(|threshold| nanoseconds(threshold.grace)),
                "met": met,
                "acting": plan.acting == Some(index),
            })
        })
        .collect();
    object(json!({
        "taken_ns": plan.taken,
        "made_ns": plan.made,
        "scope": match plan.scope {
            Scope::Node => "node",
            Scope::Slice(_) => "slice",
        },
        "slice": slice.map(printable),
        "outcome": outcome,
        "reason": reason.map(|reason| variant(&reason).0),
        "memory_pressure": memory_pressure,
        "readings": plan.readings.map(|plimsoll_policy::Readings { capacity, kubelet, mem_available }| json!({
            "capacity_bytes": capacity,
            "kubelet_bytes": kubelet,
            "mem_available_bytes": mem_available,
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
        "actions": plan.actions.iter().map(|action| done(action, &name)).collect::<Vec<_>>(),
        "candidates": plan.ranked.iter().map(|ranked| candidate(ranked, &name)).collect::<Vec<_>>(),
        "overlooked": plan.overlooked,
    }))
}

fn done(action: &Action, name: &impl Fn(u32) -> String) -> Value {
    match *action {
        Action::Reclaim { amount } => json!({"action": "reclaim", "amount_bytes": amount}),
        Action::Hasten { candidate, threshold } => {
            json!({"action": "hasten", "cgroup": name(candidate), "threshold": threshold, "grace_ns": 0})
        }
        Action::Evict { candidate, threshold, grace } => json!({
            "action": "evict",
            "cgroup": name(candidate),
            "threshold": threshold,
            "grace_ns": nanoseconds(grace),
        }),
    }
}

fn candidate(ranked: &Ranked, name: &impl Fn(u32) -> String) -> Value {
    let Ranked { candidate, key, usage, reservation, exceeds, priority, started, grew, fate } = *ranked;
    let reason = text::Keys(ranked).to_string();
    let (fate, why) = variant(&fate);
    json!({
        "cgroup": name(candidate),
        "cgroup_id": key.id,
        "usage_bytes": usage,
        "reservation_bytes": reservation,
        "exceeds": exceeds,
        "priority": priority,
        "started_ns": started,
        "grew_bytes": grew,
        "fate": fate,
        "protected_as": why.map(|why| variant(&why).0),
        "reason": reason,
    })
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The least whole number that is not below it, as far as JSON's readers have room.
fn whole(amount: Amount) -> Value {
    i64::try_from(amount.rounded_up()).map_or(Value::Null, Value::from)
}

/// Nanoseconds, as a number that every reader of JSON has room for.
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The name of an enumeration's variant in lower case with hyphens, and what the variant holds.
pub fn variant(value: &impl Serialize) -> (String, Option<Value>) {
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
        assert_eq!(variant(&plimsoll_policy::Case::KubeletOnly).0, "kubelet-only");
        assert_eq!(variant(&Scope::Slice(SliceId(1))).0, "slice");
        let (name, inner) = variant(&Outcome::NoVictim(NoVictim::AllProtected));
        assert_eq!(name, "no-victim");
        assert_eq!(variant(&inner).0, "all-protected");
    }

    #[test]
    fn names_stay_on_their_line() {
        assert_eq!(printable("a\nb\u{1b}[1mé\\x2d"), "a\\nb\\u{1b}[1m\\u{e9}\\x2d");
    }
}
