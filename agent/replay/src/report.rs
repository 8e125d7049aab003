//! A turn as text, and every number of it as JSON. Names come from outside: what is not printable ASCII is escaped.

use core::time::Duration;
use plimsoll_policy::kubelet::{Amount, Condition, Signal};
use plimsoll_policy::message::{Cause, Message, SIGNAL_LABEL};
use plimsoll_policy::{
    Action, Attribution, Config, MemoryReading, Outcome, Plan, Ranked, Scope, Stage, ThresholdStatus, Verdict, Why,
    text,
};
use plimsoll_units::MonotonicNs;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What was decided on one sample.
pub struct Turn<'a> {
    /// When, on the clock of the recording.
    pub at: MonotonicNs,
    /// What that clock's zero is in nanoseconds since 1970, if that is known.
    pub epoch_ns: Option<i64>,
    /// What the agent itself reported at that time, where the recording has it.
    pub reported: Option<&'a str>,
    pub(crate) names: &'a [String],
    /// The messages of evicted workloads, by the workload's index.
    pub(crate) messages: &'a [(u32, Message)],
    pub(crate) config: &'a Config,
    /// The plan.
    pub plan: &'a Plan,
    pub(crate) slice: Option<&'a str>,
}

impl Turn<'_> {
    /// When, in RFC 3339; seconds on the recording's clock where the wall clock is not known.
    pub fn time(&self) -> String {
        let since = i128::from(self.at.0);
        let known = self.epoch_ns.and_then(|epoch| jiff::Timestamp::from_nanosecond(since + i128::from(epoch)).ok());
        known.map_or_else(
            || format!("{}.{:03} s", since / 1_000_000_000, since / 1_000_000 % 1000),
            |time| format!("{time:.3}"),
        )
    }

    /// The slice that the turn is about; absent for the machine.
    pub fn scope(&self) -> Option<&str> {
        self.slice
    }

    /// Whether the plan has an action.
    pub fn acts(&self) -> bool {
        !self.plan.actions.is_empty()
    }

    /// Outcome and conditions, to be compared with those of the turn before.
    pub fn state(&self) -> String {
        format!("{:?} {:?}", self.plan.outcome, self.plan.conditions)
    }

    /// The decision as one line.
    pub fn line(&self) -> String {
        let line = text::line(self.config, self.plan, |index| self.name(index));
        let condition = |condition| text::condition(self.config, self.plan, condition);
        let conditions: Vec<String> = self.plan.conditions.iter().map(condition).collect();
        if conditions.is_empty() { line } else { format!("{line}; conditions {}", conditions.join(", ")) }
    }

    /// All workloads in the order of eviction: name, verdict, and the keys that ranked it. Empty where nothing had to be
    /// evicted.
    pub fn candidates(&self) -> Vec<[String; 3]> {
        let row = |ranked: &Ranked| {
            let keys = text::keys(self.config, self.plan, ranked).to_string();
            [self.name(ranked.workload), ranked.verdict.to_string(), keys]
        };
        self.plan.ranked.iter().map(row).collect()
    }

    /// The message of the event of each evicted workload: name and message.
    pub fn messages(&self) -> Vec<[String; 2]> {
        let reported = |(pod, message): &(u32, Message)| [self.name(*pod), printable(message.to_string().trim_end())];
        self.messages.iter().map(reported).collect()
    }

    /// Every number.
    pub fn json(&self) -> Value {
        let mut fields = plan_fields(self.config, self.plan, self.slice, |index| self.name(index));
        fields.insert("evictions".to_owned(), self.evictions().into());
        fields.insert("at_ns".to_owned(), self.at.0.into());
        fields.insert("time".to_owned(), self.time().into());
        fields.insert("line".to_owned(), self.line().into());
        fields.insert("reported".to_owned(), self.reported.map(printable).into());
        Value::Object(fields)
    }

    /// The evicted workloads, each with its grace and its message.
    fn evictions(&self) -> Vec<Value> {
        let evictions = self.plan.actions.iter().filter_map(|action| match *action {
            Action::Evict { workload, grace_seconds, .. } => Some((workload, grace_seconds)),
            Action::EscalateToKill { workload, .. } => Some((workload, 0)),
            Action::Reclaim(_) => None,
        });
        let reported = |(workload, grace_seconds)| {
            let message = self.messages.iter().find(|(of, _)| *of == workload).map(|(_, message)| message);
            let annotations = message.into_iter().flat_map(Message::annotations);
            json!({
                "pod": self.name(workload),
                "grace_seconds": grace_seconds,
                "message": message.map(|message| printable(&message.to_string())),
                "annotations": annotations.map(|(key, text)| (key, printable(&text))).collect::<BTreeMap<_, _>>(),
                SIGNAL_LABEL: message.and_then(Message::cause).map(Cause::label),
            })
        };
        evictions.map(reported).collect()
    }

    fn name(&self, index: u32) -> String {
        self.names.get(index as usize).map_or_else(|| "?".to_owned(), |name| printable(name))
    }
}

/// A text that stays on its line: what is not printable ASCII is escaped.
pub fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|character| {
            let escapes = character.is_control() || !character.is_ascii();
            let kept = (!escapes).then_some(character);
            kept.into_iter().chain(escapes.then(|| character.escape_default()).into_iter().flatten())
        })
        .collect()
}

/// A plan: every number by its name. What is always in bytes or nanoseconds says so in its name; figures of thresholds
/// and candidates are in what the signal counts. `name` gives a workload's name from its index.
pub fn plan_fields(
    config: &Config,
    plan: &Plan,
    slice: Option<&str>,
    name: impl Fn(u32) -> String,
) -> Map<String, Value> {
    let reason = match plan.outcome {
        Outcome::NoVictim(why) => Some(variant(&why).0),
        _ => None,
    };
    let case = |condition: Condition| {
        let case = plan.condition_case(config, condition);
        (condition.name().to_owned(), case.map(|case| variant(&case).0).into())
    };
    let thresholds = (0..).zip(&plan.thresholds).map(|(index, status)| threshold(config, plan, index, status));
    let acting_line = plan.acting().filter(|status| signal_of(config, plan, status.line).is_none_or(Signal::is_bytes));
    object(json!({
        "eviction_policy": config.eviction_policy.name(),
        "taken_ns": plan.taken,
        "made_ns": plan.made,
        "scope": match plan.scope {
            Scope::Node => "node",
            Scope::Slice(_) => "slice",
        },
        "slice": slice.map(printable),
        "outcome": variant(&plan.outcome).0,
        "reason": reason,
        "memory_pressure": plan.conditions.has(Condition::MemoryPressure),
        "conditions": plan.conditions.iter().map(Condition::name).collect::<Vec<_>>(),
        "condition_cases": plan.conditions.iter().map(case).collect::<Map<_, _>>(),
        "readings": plan.memory.map(|MemoryReading { capacity, kubelet_available, mem_available }| json!({
            "capacity_bytes": capacity,
            "kubelet_bytes": kubelet_available,
            "mem_available_bytes": mem_available,
        })),
        "line_bytes": acting_line.map(|status| whole(status.at)),
        "thresholds": thresholds.collect::<Vec<_>>(),
        "deficit": plan.deficit.map(|deficit| json!({
            "missing": whole(deficit.missing),
            "expected": whole(deficit.expected),
            "coming": whole(deficit.coming),
            "taken": whole(deficit.taken),
            "uncovered": whole(deficit.uncovered()),
        })),
        "futile": plan.is_futile,
        "attribution": plan.attribution.map(|Attribution { fallen, left_behind, evictable_grew, protected_grew }| json!({
            "fallen_bytes": fallen,
            "left_behind_bytes": left_behind,
            "evictable_grew_bytes": evictable_grew,
            "protected_grew_bytes": protected_grew,
        })),
        "actions": plan.actions.iter().map(|action| done(action, &name)).collect::<Vec<_>>(),
        "candidates": plan.ranked.iter().map(|ranked| candidate(config, plan, ranked, &name)).collect::<Vec<_>>(),
        "overlooked": plan.overlooked,
        "recheck_at_ns": plan.recheck_at,
    }))
}

fn signal_of(config: &Config, plan: &Plan, line: Why) -> Option<Signal> {
    match line {
        Why::Threshold(index) => Some(config.thresholds_in(plan.scope).get(index as usize)?.signal),
        Why::Swap | Why::Limit(_) => None,
    }
}

fn threshold(config: &Config, plan: &Plan, index: u32, status: &ThresholdStatus) -> Value {
    let place = match status.line {
        Why::Threshold(index) => Some(index),
        Why::Swap | Why::Limit(_) => None,
    };
    let threshold = place.and_then(|index| config.thresholds_in(plan.scope).get(index as usize));
    let ThresholdStatus { line: _, at, target, available, case, since, is_met } = *status;
    json!({
        "threshold": place,
        "signal": threshold.map_or("swap", |threshold| threshold.signal.name()),
        "grace_ns": threshold.map(|threshold| nanoseconds(threshold.grace)),
        "line": whole(at),
        "target": whole(target),
        "available": whole(available),
        "missing": whole(status.missing()),
        "case": variant(&case).0,
        "since_ns": since,
        "met": is_met,
        "acting": plan.acting == Some(index),
    })
}

fn done(action: &Action, name: &impl Fn(u32) -> String) -> Value {
    let threshold = |why| match why {
        Why::Threshold(index) => Some(index),
        Why::Swap | Why::Limit(_) => None,
    };
    match *action {
        Action::Reclaim(order) => {
            let amount = match order.stage {
                Stage::Memory(amount) => Some(whole(amount)),
                Stage::Containers | Stage::Images | Stage::ContainersAndImages => None,
            };
            let stage = variant(&order.stage).0;
            json!({"action": "reclaim", "order": order.order, "stage": stage, "amount_bytes": amount})
        }
        Action::EscalateToKill { workload, why } => json!({
            "action": "escalate-to-kill",
            "cgroup": name(workload),
            "why": variant(&why).0,
            "threshold": threshold(why),
            "grace_seconds": 0,
        }),
        Action::Evict { workload, why, grace_seconds } => json!({
            "action": "evict",
            "cgroup": name(workload),
            "why": variant(&why).0,
            "threshold": threshold(why),
            "grace_seconds": grace_seconds,
        }),
    }
}

fn candidate(config: &Config, plan: &Plan, ranked: &Ranked, name: &impl Fn(u32) -> String) -> Value {
    let protected = match ranked.verdict {
        Verdict::Protected(why) => Some(variant(&why).0),
        _ => None,
    };
    json!({
        "cgroup": name(ranked.workload),
        "cgroup_id": ranked.key.id,
        "owner_id": ranked.owner,
        "qos": ranked.qos.name(),
        "measured": ranked.is_measured,
        "usage": ranked.is_measured.then(|| whole(ranked.usage)),
        "request": ranked.request.map(whole),
        "exceeds": ranked.exceeds,
        "priority": ranked.priority,
        "over": whole(ranked.over),
        "frees": whole(ranked.frees),
        "started_ns": ranked.started,
        "growth_bytes": ranked.growth.own,
        "owner_growth_bytes": ranked.growth.owner,
        "owner_grew": ranked.growth.is_large,
        "grew": ranked.grew,
        "returns": ranked.returns,
        "fate": variant(&ranked.verdict).0,
        "protected_as": protected,
        "reason": text::keys(config, plan, ranked).to_string(),
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
    use plimsoll_policy::{NoVictim, SliceId};

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
