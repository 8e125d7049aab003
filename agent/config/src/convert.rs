//! One form of configuration into another.

use crate::kubelet::{IGNORE_EVICTION, KEYS, Key, Setting, SettingValue, Settings, Shape, parse_duration};
use crate::model::{Configuration, Origin};
use core::fmt::Write as _;
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// A form that a configuration can be turned into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Plimsoll's own file.
    Plimsoll,
    /// A kubelet's file.
    Kubelet,
    /// A kubelet's flags, one a line.
    Flags,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The text in its new form.
    pub text: String,
    /// What the new form cannot hold, with the reason.
    pub lost: Vec<Lost>,
}

/// Something that the new form cannot hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its name.
    pub key: String,
    /// Why.
    pub why: &'static str,
}

/// Converts a configuration into another form. Read again, the new text gives the same thresholds, reservations and
/// periods; defaults are left out where they are the default there too.
pub fn convert(configuration: &Configuration, form: Form) -> Converted {
    let settings = &configuration.kubelet.settings;
    let mut lost = Vec::new();
    let mut machine = |why| {
        lost.extend(configuration.origins.keys().map(|key| Lost { key: key.clone(), why }));
    };
    let text = match form {
        Form::Plimsoll => {
            let shown = said(settings).filter(|(key, _)| !key.is_own() && key.name != IGNORE_EVICTION);
            let why = "Plimsoll decides nothing by it";
            lost.extend(shown.map(|(key, _)| Lost { key: key.name.to_owned(), why }));
            let why = "what pods can request is less by the hard threshold there";
            let is_lost = configuration.kubelet.ignore_eviction_for_allocatable;
            lost.extend(is_lost.then(|| Lost { key: IGNORE_EVICTION.to_owned(), why }));
            yaml(&Ordered(own(configuration)))
        }
        Form::Kubelet => {
            machine("a kubelet has no such key");
            yaml(&Ordered(kubelet(settings, &mut lost)))
        }
        Form::Flags => {
            machine("a kubelet has no such key");
            flags(settings, &mut lost)
        }
    };
    Converted { text, lost }
}

fn yaml(value: &impl Serialize) -> String {
    let options = serde_saphyr::ser_options! { quote_all: true };
    // Maps, lists and scalars with text for keys: YAML has all of them.
    serde_saphyr::to_string_with_options(value, options).unwrap_or_else(|error| format!("# {error}\n"))
}

/// A mapping in an order of its own.
struct Ordered(Vec<(String, Value)>);

impl Serialize for Ordered {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// Plimsoll's own file. No threshold at all has to be written: a file without `evictionHard` has the defaults.
fn own(configuration: &Configuration) -> Vec<(String, Value)> {
    let settings = &configuration.kubelet.settings;
    let mut file: Vec<(String, Value)> = said(settings)
        .filter(|(key, _)| key.is_own())
        .map(|(key, setting)| (key.name.to_owned(), json(key, &setting.value)))
        .collect();
    if settings.get("evictionHard").is_none() {
        file.insert(0, ("evictionHard".to_owned(), Value::Object(serde_json::Map::new())));
    }
    // There is no other word for it there: it means that no threshold follows for what all pods have together.
    if configuration.kubelet.ignore_eviction_for_allocatable {
        file.retain(|(key, _)| key != "enforceNodeAllocatable");
        file.push(("enforceNodeAllocatable".to_owned(), Value::Array(vec!["none".into()])));
    }
    for (key, value) in &mut file {
        // Below zero is a second in the kubelet's code, and so is zero.
        if key == "evictionMaxPodGracePeriod" {
            *value = configuration.kubelet.max_pod_grace_seconds.max(0).into();
        }
    }
    for (key, mut value) in configuration.own() {
        if without_defaults(&key, &mut value, configuration) {
            file.push((key, value));
        }
    }
    file
}

/// Removes the values that no source sets; whether any is left.
fn without_defaults(key: &str, value: &mut Value, configuration: &Configuration) -> bool {
    if let Value::Object(map) = value {
        map.retain(|name, value| without_defaults(&format!("{key}.{name}"), value, configuration));
        return !map.is_empty();
    }
    *configuration.origin(key) != Origin::Default
}

/// The settings that a source sets. Thresholds that were merged are among them.
fn said(settings: &Settings) -> impl Iterator<Item = (&'static Key, &Setting)> {
    let is_merged = |key: &Key| key.name == "mergeDefaultEvictionSettings";
    settings.iter().filter(move |(key, setting)| setting.origin != Origin::Default && !is_merged(key))
}

fn kubelet(settings: &Settings, lost: &mut Vec<Lost>) -> Vec<(String, Value)> {
    let mut file: BTreeMap<&str, Value> = BTreeMap::new();
    let mut parts = Vec::new();
    for (key, setting) in said(settings) {
        let value = json(key, &setting.value);
        if key.in_file {
            let is_zero = |text: &str| key.shape == Shape::Duration && parse_duration(text) == Ok(0);
            if key.default.is_some() && value.as_str().is_some_and(is_zero) {
                let why = "a kubelet's file cannot set zero, which counts as not set there; the flag can";
                lost.push(Lost { key: key.name.to_owned(), why });
            } else {
                file.insert(key.name, value);
            }
        } else if key.name.contains('.') {
            parts.push((key.name, value));
        } else {
            lost.push(Lost { key: key.name.to_owned(), why: "a kubelet's file has no key for this flag" });
        }
    }
    // Some forms have no thresholds by default; a file has to set that.
    if settings.get("evictionHard").is_none() {
        file.insert("evictionHard", Value::Object(serde_json::Map::new()));
    }
    for (name, value) in parts {
        let (root, rest) = name.split_once('.').unwrap_or((name, ""));
        let mut at = file.entry(root).or_insert(Value::Null);
        for part in rest.split('.') {
            if !at.is_object() {
                *at = Value::Object(serde_json::Map::new());
            }
            let Value::Object(map) = at else { break };
            at = map.entry(part).or_insert(Value::Null);
        }
        *at = value;
    }
    let head = [("apiVersion", "kubelet.config.k8s.io/v1beta1"), ("kind", "KubeletConfiguration")];
    let mut ordered: Vec<(String, Value)> =
        head.map(|(key, value)| (key.to_owned(), Value::String(value.to_owned()))).to_vec();
    for key in KEYS {
        ordered.extend(file.remove(key.name).map(|value| (key.name.to_owned(), value)));
    }
    ordered
}

pub(crate) fn json(key: &Key, value: &SettingValue) -> Value {
    match value {
        SettingValue::Any(value) => value.clone(),
        SettingValue::List(list) => list.iter().map(|text| Value::String(text.clone())).collect(),
        SettingValue::Map(map) => {
            let value = |text: &str| match key.shape {
                Shape::Switches => Value::Bool(text == "true"),
                _ => Value::String(text.to_owned()),
            };
            map.iter().map(|(name, entry)| (name.clone(), value(&entry.text))).collect()
        }
        SettingValue::Scalar(text) => match key.shape {
            Shape::Bool => Value::Bool(text == "true"),
            Shape::Number => text.parse::<i64>().map_or_else(|_| Value::String(text.clone()), Into::into),
            Shape::Map(_) | Shape::Switches | Shape::Duration | Shape::List | Shape::Text | Shape::Any => {
                Value::String(text.clone())
            }
        },
    }
}

/// A kubelet with flags alone has no default thresholds: they are all written.
fn flags(settings: &Settings, lost: &mut Vec<Lost>) -> String {
    let mut text = String::new();
    let mut line = |flag: &str, value: &str| {
        let value = if value.contains(|c: char| c.is_whitespace() || "'\"\\".contains(c)) {
            format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
        } else {
            value.to_owned()
        };
        // Writing into a String does not fail.
        let _ = writeln!(text, "--{flag}={value}");
    };
    let hard = settings.iter().filter(|(key, setting)| key.name == "evictionHard" && setting.origin == Origin::Default);
    for (key, setting) in hard.chain(said(settings)) {
        let Some(flag) = key.flag else {
            lost.push(Lost { key: key.name.to_owned(), why: "the kubelet has no flag for it" });
            continue;
        };
        match &setting.value {
            SettingValue::Scalar(value) => line(flag, value),
            SettingValue::List(texts) => line(flag, &texts.join(",")),
            SettingValue::Map(map) => {
                let separator = if let Shape::Map(separator) = key.shape { separator } else { '=' };
                let pairs: Vec<String> =
                    map.iter().map(|(name, entry)| format!("{name}{separator}{}", entry.text)).collect();
                line(flag, &pairs.join(","));
            }
            SettingValue::Any(_) => {
                lost.push(Lost { key: key.name.to_owned(), why: "a flag cannot hold a structure" });
            }
        }
    }
    text
}
