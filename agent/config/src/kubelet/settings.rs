//! A kubelet's settings from all its sources, before they are typed: texts with their origins.

use super::keys::{DEFAULT_EVICTION_HARD, KEYS, Key, Shape};
use super::parse_duration;
use crate::model::Origin;
use std::collections::BTreeMap;

/// A text in a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As it is written.
    pub text: String,
    /// Its origin.
    pub origin: Origin,
}

/// A value as it is written.
#[derive(Clone, Debug, PartialEq)]
pub enum SettingValue {
    /// A text, number, duration, or `true` and `false`.
    Scalar(String),
    /// Several texts.
    List(Vec<String>),
    /// Texts by name.
    Map(BTreeMap<String, Entry>),
    /// A structure that is kept as it is written.
    Any(serde_json::Value),
}

/// A value and its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The value.
    pub value: SettingValue,
    /// Its origin.
    pub origin: Origin,
}

/// All settings, by the name of their [`Key`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    settings: BTreeMap<&'static str, Setting>,
}

/// The settings of one file. An absent patch (`null`) removes what was set before.
pub(crate) type Layer = BTreeMap<&'static str, Option<Patch>>;

/// The setting of a key in one file.
#[derive(Clone, Debug)]
pub(crate) struct Patch {
    pub(crate) value: PatchValue,
    pub(crate) origin: Origin,
}

#[derive(Clone, Debug)]
pub(crate) enum PatchValue {
    Scalar(String),
    List(Vec<String>),
    Map(BTreeMap<String, Option<Entry>>),
    Any(serde_json::Value),
}

impl Settings {
    /// The setting of a key, defaults included.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.settings.get(name)
    }

    /// All of it, in the order of [`KEYS`].
    pub fn iter(&self) -> impl Iterator<Item = (&'static Key, &Setting)> {
        KEYS.iter().filter_map(|key| Some((key, self.settings.get(key.name)?)))
    }

    /// The text of a scalar.
    pub fn scalar(&self, name: &str) -> Option<(&str, &Origin)> {
        match self.get(name)? {
            Setting { value: SettingValue::Scalar(text), origin } => Some((text, origin)),
            Setting { .. } => None,
        }
    }

    /// The texts of a map; none where it is not set.
    pub fn map(&self, name: &str) -> impl Iterator<Item = (&String, &Entry)> {
        let map = self.get(name).and_then(|setting| match &setting.value {
            SettingValue::Map(map) => Some(map),
            SettingValue::Scalar(_) | SettingValue::List(_) | SettingValue::Any(_) => None,
        });
        map.into_iter().flatten()
    }

    /// The texts of a list; none where it is not set.
    pub fn list(&self, name: &str) -> &[String] {
        match self.get(name) {
            Some(Setting { value: SettingValue::List(list), .. }) => list,
            Some(Setting { .. }) | None => &[],
        }
    }

    pub(crate) fn set(&mut self, key: &'static Key, setting: Setting) {
        self.settings.insert(key.name, setting);
    }

    /// Merges a file into the settings, as the kubelet merges a drop-in into its file (a JSON merge patch): maps are
    /// merged name by name, everything else is replaced, and `null` removes.
    pub(crate) fn merge(&mut self, layer: Layer) {
        for (name, patch) in layer {
            let Some(Patch { value, origin }) = patch else {
                self.settings.remove(name);
                continue;
            };
            let before = self.settings.remove(name).map(|setting| setting.value);
            let value = match (value, before) {
                (PatchValue::Map(patch), before) => {
                    let mut map = if let Some(SettingValue::Map(map)) = before { map } else { BTreeMap::new() };
                    for (name, entry) in patch {
                        match entry {
                            Some(entry) => map.insert(name, entry),
                            None => map.remove(&name),
                        };
                    }
                    SettingValue::Map(map)
                }
                (PatchValue::Any(patch), before) => {
                    let mut value =
                        if let Some(SettingValue::Any(value)) = before { value } else { serde_json::Value::Null };
                    // What is read is never nested deeper than its parser allows, so that this ends.
                    json_patch::merge(&mut value, &patch);
                    SettingValue::Any(value)
                }
                (PatchValue::Scalar(text), _) => SettingValue::Scalar(text),
                (PatchValue::List(list), _) => SettingValue::List(list),
            };
            self.settings.insert(name, Setting { value, origin });
        }
    }

    /// Puts a file over the settings, key by key: a key in the file replaces its setting.
    pub(crate) fn replace(&mut self, layer: Layer) {
        for name in layer.iter().filter(|(_, patch)| patch.is_some()).map(|(name, _)| *name) {
            self.settings.remove(name);
        }
        self.merge(layer.into_iter().filter(|(_, patch)| patch.is_some()).collect());
    }

    /// Removes what counts as not set in a file: a duration of zero where there is a default.
    pub(crate) fn drop_zeros(&mut self) {
        for key in KEYS.iter().filter(|key| key.default.is_some() && key.shape == Shape::Duration) {
            if self.scalar(key.name).is_some_and(|(text, _)| parse_duration(text) == Ok(0)) {
                self.settings.remove(key.name);
            }
        }
    }

    /// Removes empty lists, which the kubelet loses when it merges drop-ins into its file.
    pub(crate) fn drop_empty_lists(&mut self) {
        self.settings.retain(|_, setting| setting.value != SettingValue::List(Vec::new()));
    }

    /// Fills `evictionHard` as the kubelet does once it has read its file: with all defaults if it is not set, with
    /// those that are missing if `mergeDefaultEvictionSettings` asks for it, and not at all otherwise.
    pub(crate) fn default_eviction_hard(&mut self) {
        let merge = self.scalar("mergeDefaultEvictionSettings").is_some_and(|(text, _)| text == "true");
        let setting = self
            .settings
            .entry("evictionHard")
            .and_modify(|setting| {
                if let (SettingValue::Map(map), true) = (&mut setting.value, merge) {
                    for (signal, line) in DEFAULT_EVICTION_HARD {
                        map.entry(signal.to_owned()).or_insert_with(|| default_entry(line));
                    }
                }
            })
            .or_insert_with(|| Setting { value: SettingValue::Map(BTreeMap::new()), origin: Origin::Default });
        if let (SettingValue::Map(map), Origin::Default) = (&mut setting.value, &setting.origin) {
            map.extend(DEFAULT_EVICTION_HARD.map(|(signal, line)| (signal.to_owned(), default_entry(line))));
        }
    }

    /// Fills in every other default that matters.
    pub(crate) fn defaults(&mut self) {
        for key in KEYS {
            let Some(text) = key.default else { continue };
            let value = match key.shape {
                Shape::List => SettingValue::List(vec![text.to_owned()]),
                Shape::Number | Shape::Duration | Shape::Bool | Shape::Text => SettingValue::Scalar(text.to_owned()),
                Shape::Map(_) | Shape::Switches | Shape::Any => continue,
            };
            self.settings.entry(key.name).or_insert(Setting { value, origin: Origin::Default });
        }
    }
}

fn default_entry(line: &str) -> Entry {
    Entry { text: line.to_owned(), origin: Origin::Default }
}
