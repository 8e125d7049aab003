//! A configuration row by row, each value with its origin.

use crate::convert::json;
use crate::kubelet::{Role, SettingValue};
use crate::model::{Configuration, Origin};
use plimsoll_policy::EvictionPolicy;
use plimsoll_policy::kubelet::{Condition, Signal};
use serde_json::Value;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its full key.
    pub key: String,
    /// The value; null where no source sets it and there is no default.
    pub value: Value,
    /// Its origin.
    pub origin: Origin,
    /// What uses it.
    pub role: Role,
}

/// Every value that a source sets, and every default that has an effect.
pub fn rows(configuration: &Configuration) -> Vec<Row> {
    let mut rows = Vec::new();
    for key in crate::kubelet::KEYS {
        let Some(setting) = configuration.kubelet.settings.get(key.name) else {
            if key.role == Role::Used {
                rows.push(Row {
                    key: key.name.to_owned(),
                    value: Value::Null,
                    origin: Origin::Default,
                    role: role(configuration, key.name, None, key.role),
                });
            }
            continue;
        };
        match &setting.value {
            SettingValue::Map(map) if !map.is_empty() => rows.extend(map.iter().map(|(name, entry)| Row {
                key: format!("{}.{name}", key.name),
                value: Value::String(entry.text.clone()),
                origin: entry.origin.clone(),
                role: role(configuration, key.name, Some(name), key.role),
            })),
            value => rows.push(Row {
                key: key.name.to_owned(),
                value: json(key, value),
                origin: setting.origin.clone(),
                role: role(configuration, key.name, None, key.role),
            }),
        }
    }
    for (key, value) in leaves(&configuration.own()) {
        let role = match &key[..] {
            key if key.starts_with("swap") => Role::Offline,
            "machine.slices" if configuration.eviction_policy == EvictionPolicy::Kubelet => Role::Shown,
            _ => Role::Used,
        };
        rows.push(Row { origin: configuration.origin(&key).clone(), key, value, role });
    }
    rows
}

/// The values that have an origin of their own, by their keys; a list is one value.
pub(crate) fn leaves(map: &serde_json::Map<String, Value>) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for (key, value) in map {
        match value {
            Value::Object(map) => {
                found.extend(leaves(map).into_iter().map(|(name, value)| (format!("{key}.{name}"), value)));
            }
            value => found.push((key.clone(), value.clone())),
        }
    }
    found
}

/// Whether `run` observes a signal.
pub(crate) fn is_observed(configuration: &Configuration, signal: Signal) -> bool {
    configuration.decides_by(signal) || signal.condition() == Condition::DiskPressure
}

/// What uses a key, or an entry in its map. `run` has no reservations.
fn role(configuration: &Configuration, key: &str, entry: Option<&str>, of_key: Role) -> Role {
    let observes = |signal| is_observed(configuration, signal);
    let is_idle = match key {
        "kubeReserved" | "systemReserved" => true,
        "enforceNodeAllocatable" => !observes(Signal::AllocatableMemoryAvailable),
        _ => MAPS_BY_SIGNAL.contains(&key) && entry.is_some_and(|name| !Signal::parse(name).is_some_and(observes)),
    };
    if of_key == Role::Used && is_idle { Role::Offline } else { of_key }
}

/// The maps of thresholds, which have an entry by signal.
pub(crate) const MAPS_BY_SIGNAL: [&str; 4] =
    ["evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_without_effect_in_run_are_not_shown_as_used() {
        let text = "evictionHard: {memory.available: 1Gi, nodefs.available: 10%, pid.available: 5%, \
                    allocatableMemory.available: 1Gi}\nkubeReserved: {memory: 1Gi}\nswap: {free: 10%}\n";
        let rows = rows(&crate::parse(text, "f").expect("it is valid"));
        for (key, role) in [
            ("evictionHard.memory.available", Role::Used),
            ("evictionHard.nodefs.available", Role::Used),
            ("evictionHard.pid.available", Role::Used),
            ("evictionHard.allocatableMemory.available", Role::Offline),
            ("evictionSoft", Role::Used),
            ("evictionPressureTransitionPeriod", Role::Used),
            ("enforceNodeAllocatable", Role::Offline),
            ("kubeReserved.memory", Role::Offline),
            ("systemReserved", Role::Offline),
            ("localStorageCapacityIsolation", Role::Used),
            ("evictionPolicy", Role::Used),
            ("swap.free", Role::Offline),
            ("failSwapOn", Role::Shown),
            ("machine.brake.mode", Role::Used),
        ] {
            let row = rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("{key} is missing"));
            assert_eq!(row.role, role, "{key}");
        }
        for (policy, role) in [("plimsoll", Role::Used), ("kubelet", Role::Shown)] {
            let slices = "machine: {slices: [{path: a, evictionHard: {memory.available: 1Gi}}]}";
            let configuration = crate::parse(&format!("evictionPolicy: {policy}\n{slices}"), "f").expect("it is valid");
            let rows = super::rows(&configuration);
            let row = rows.iter().find(|row| row.key == "machine.slices").expect("it is set");
            assert_eq!(row.role, role, "{policy}");
        }
    }
}
