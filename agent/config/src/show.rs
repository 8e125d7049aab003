//! A configuration row by row, each value with where it came from.

use crate::convert::json;
use crate::document::{Document, Swap};
use crate::kubelet::{EvictionSignal, Role, SettingValue};
use crate::model::{Configuration, Origin};
use serde_json::Value;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its full key.
    pub key: String,
    /// The value; nothing where nothing is said and there is no default.
    pub value: Value,
    /// Where it came from.
    pub origin: Origin,
    /// Whether anything is decided by it.
    pub role: Role,
}

/// Everything that is said, and every default that matters.
pub fn rows(configuration: &Configuration) -> Vec<Row> {
    let mut rows = Vec::new();
    for key in crate::kubelet::KEYS {
        let Some(setting) = configuration.kubelet.settings.get(key.name) else {
            if key.role == Role::Used {
                rows.push(Row {
                    key: key.name.to_owned(),
                    value: Value::Null,
                    origin: Origin::Default,
                    role: role(key.name, None, key.role),
                });
            }
            continue;
        };
        match &setting.value {
            SettingValue::Map(map) if !map.is_empty() => rows.extend(map.iter().map(|(name, entry)| Row {
                key: format!("{}.{name}", key.name),
                value: Value::String(entry.text.clone()),
                origin: entry.origin.clone(),
                role: role(key.name, Some(name), key.role),
            })),
            value => rows.push(Row {
                key: key.name.to_owned(),
                value: json(key, value),
                origin: setting.origin.clone(),
                role: role(key.name, None, key.role),
            }),
        }
    }
    let ours = [
        ("evictionPolicy", Value::String(configuration.policy.eviction_policy.to_string()), Role::Used),
        ("swap", serde_json::to_value(Swap::of(configuration)).unwrap_or_default(), Role::Offline),
    ];
    for (key, value, role) in ours {
        let origin = configuration.origins.get(key).cloned().unwrap_or(Origin::Default);
        rows.push(Row { key: key.to_owned(), value, origin, role });
    }
    let machine = serde_json::to_value(Document::machine(configuration)).unwrap_or_default();
    flatten("machine", &machine, configuration, &mut rows);
    rows
}

/// What is made of a key, or of an entry in its map. `run` has lines on memory alone, and knows nothing of what is kept
/// from pods.
fn role(key: &str, entry: Option<&str>, of_key: Role) -> Role {
    let is_of_pods = matches!(key, "enforceNodeAllocatable" | "kubeReserved" | "systemReserved");
    let is_of_other_signal =
        LINES.contains(&key) && entry.is_some_and(|name| name != EvictionSignal::MemoryAvailable.name());
    if of_key == Role::Used && (is_of_pods || is_of_other_signal) { Role::Offline } else { of_key }
}

/// Maps by signal.
pub(crate) const LINES: [&str; 4] =
    ["evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim"];

/// Rows for what has an origin of its own; lists are one value.
fn flatten(key: &str, value: &Value, configuration: &Configuration, rows: &mut Vec<Row>) {
    if let (Some(origin), false) = (configuration.origins.get(key), value.is_object()) {
        rows.push(Row { key: key.to_owned(), value: value.clone(), origin: origin.clone(), role: Role::Used });
    } else if let Value::Object(map) = value {
        for (name, value) in map {
            flatten(&format!("{key}.{name}"), value, configuration, rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_run_does_nothing_by_is_not_said_to_be_used() {
        let text = "evictionHard: {memory.available: 1Gi, nodefs.available: 10%}\nkubeReserved: {memory: 1Gi}\n\
                    swap: {free: 10%}\n";
        let rows = rows(&crate::parse(text, "f").expect("it is in order"));
        for (key, role) in [
            ("evictionHard.memory.available", Role::Used),
            ("evictionHard.nodefs.available", Role::Offline),
            ("evictionSoft", Role::Used),
            ("evictionPressureTransitionPeriod", Role::Used),
            ("enforceNodeAllocatable", Role::Offline),
            ("kubeReserved.memory", Role::Offline),
            ("systemReserved", Role::Offline),
            ("localStorageCapacityIsolation", Role::Replay),
            ("evictionPolicy", Role::Used),
            ("swap", Role::Offline),
            ("failSwapOn", Role::Shown),
            ("machine.brake.mode", Role::Used),
        ] {
            let row = rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("{key} is missing"));
            assert_eq!(row.role, role, "{key}");
        }
    }
}
