//! A configuration row by row, each value with where it came from.

use crate::convert::json;
use crate::document::{Document, Swap};
use crate::kubelet::{Role, SettingValue};
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
                    role: key.role,
                });
            }
            continue;
        };
        match &setting.value {
            SettingValue::Map(map) if !map.is_empty() => rows.extend(map.iter().map(|(name, entry)| Row {
                key: format!("{}.{name}", key.name),
                value: Value::String(entry.text.clone()),
                origin: entry.origin.clone(),
                role: key.role,
            })),
            value => rows.push(Row {
                key: key.name.to_owned(),
                value: json(key, value),
                origin: setting.origin.clone(),
                role: key.role,
            }),
        }
    }
    let ours = [
        ("ruleBook", Value::String(configuration.rule_book.to_string())),
        ("swap", serde_json::to_value(Swap::of(configuration)).unwrap_or_default()),
    ];
    for (key, value) in ours {
        let origin = configuration.origins.get(key).cloned().unwrap_or(Origin::Default);
        rows.push(Row { key: key.to_owned(), value, origin, role: Role::Used });
    }
    let machine = serde_json::to_value(Document::machine(configuration)).unwrap_or_default();
    flatten("machine", &machine, configuration, &mut rows);
    rows
}

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
