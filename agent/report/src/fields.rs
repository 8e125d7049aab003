//! A plan with every number as a field, for the log in JSON, traces, and `replay`.

use core::time::Duration;

use plimsoll_policy::kubelet::{Amount, Condition, Signal};
use plimsoll_policy::{
    Action, Attribution, Config, MemoryReading, Outcome, Plan, Ranked, Scope, Stage, ThresholdStatus, Verdict, Why,
    text,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::text::printable;

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
    let acting_bytes =
        plan.acting().filter(|status| config.signal_of(plan.scope, status.why).is_none_or(Signal::is_bytes));
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
        "threshold_bytes": acting_bytes.map(|status| whole(status.at)),
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

fn threshold(config: &Config, plan: &Plan, index: u32, status: &ThresholdStatus) -> Value {
    let place = match status.why {
        Why::Threshold(index) => Some(index),
        Why::Swap | Why::Limit(_) => None,
    };
    let threshold = place.and_then(|index| config.thresholds_in(plan.scope).get(index as usize));
    let ThresholdStatus { why: _, at, target, available, case, since, is_met } = *status;
    json!({
        "threshold": place,
        "signal": threshold.map_or("swap", |threshold| threshold.signal.name()),
        "grace_ns": threshold.map(|threshold| nanoseconds(threshold.grace)),
        "at": whole(at),
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
        "verdict": variant(&ranked.verdict).0,
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
}
