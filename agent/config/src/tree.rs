//! YAML of any shape with its lines, so that every problem in it can be reported, not only the first.

use crate::error::Problem;
use core::fmt;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::DuplicateKeyPolicy;
use serde_saphyr::Spanned;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// A value of any shape.
#[derive(Debug)]
pub(crate) enum Value {
    Null,
    /// With the word that it is written as: `off`, `no` and `false` are one value.
    Bool(bool, String),
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Name, Node)>),
}

/// A value and its line.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) line: u64,
    /// In characters, from 1.
    pub(crate) column: u64,
    pub(crate) value: Value,
}

/// A name in a mapping and its line.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) line: u64,
    pub(crate) text: String,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::deserialize(deserializer)?;
        Ok(Self { line: referenced.line(), column: referenced.column(), value })
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::deserialize(deserializer)?;
        Ok(Self { line: referenced.line(), text: value })
    }
}

impl Value {
    /// The value in one line, for an error.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(_, text) | Self::Number(text) | Self::Text(text) => text.clone(),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a mapping".to_owned(),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue;
        impl<'de> Visitor<'de> for AnyValue {
            type Value = Value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any YAML value")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_none<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
                Value::deserialize(deserializer)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(Value::Bool(value, value.to_string()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
                Ok(Value::Number(value.to_string()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
                Ok(Value::Number(value.to_string()))
            }
            fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
                Ok(Value::Number(value.to_string()))
            }
            fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
                Ok(Value::Number(value.to_string()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
                Ok(Value::Number(value.to_string()))
            }
            fn visit_str<E>(self, value: &str) -> Result<Value, E> {
                Ok(Value::Text(value.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = access.next_element()? {
                    list.push(item);
                }
                Ok(Value::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
                let mut map = Vec::new();
                while let Some(entry) = access.next_entry()? {
                    map.push(entry);
                }
                Ok(Value::Map(map))
            }
        }
        deserializer.deserialize_any(AnyValue)
    }
}

/// Reads a whole document; absent where it is not YAML, which is reported.
pub(crate) fn read(text: &str, problems: &mut Problems) -> Option<Node> {
    // `duplicates` finds a key that is repeated, with both lines and together with whatever else is wrong.
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins, with_snippet: false };
    let mut root: Node = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| {
            let error = error.without_snippet();
            let line = error.location().map_or(1, |location| location.line());
            problems.add(Some(line), "", None, &refusal(error));
        })
        .ok()?;
    let lines: Vec<&str> = text.lines().collect();
    name_booleans(&mut root, &lines);
    Some(root)
}

/// Why a text is refused that is no document. What the parser says of its own limits concerns no reader.
fn refusal(error: &serde_saphyr::Error) -> String {
    match error {
        serde_saphyr::Error::MultipleDocuments { .. } => {
            "more than one YAML document (a line `---`); expected one alone".to_owned()
        }
        serde_saphyr::Error::Budget { .. } => {
            "too large, or too deeply nested, for a configuration; expected less".to_owned()
        }
        error => format!("not valid YAML: {}", error.to_string().lines().next().unwrap_or_default()),
    }
}

/// Has each boolean as it is written in these lines.
fn name_booleans(node: &mut Node, lines: &[&str]) {
    let Node { line, column, value } = node;
    match value {
        Value::Null | Value::Number(_) | Value::Text(_) => {}
        Value::Bool(_, text) => {
            let place = |number: u64| usize::try_from(number).ok()?.checked_sub(1);
            let rest = place(*line).zip(place(*column)).and_then(|(line, column)| {
                let line = lines.get(line)?;
                line.char_indices().nth(column).map(|(at, _)| &line[at..])
            });
            let word = rest.map(|rest| rest.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default());
            if let Some(word) = word.filter(|word| !word.is_empty()) {
                word.clone_into(text);
            }
        }
        Value::List(list) => list.iter_mut().for_each(|item| name_booleans(item, lines)),
        Value::Map(map) => map.iter_mut().for_each(|(_, value)| name_booleans(value, lines)),
    }
}

/// A key that a mapping has more than once.
#[derive(Debug)]
pub(crate) struct Duplicate {
    /// With its parents.
    pub(crate) key: String,
    /// The line of the repetition.
    pub(crate) line: u64,
    /// The line of its first place.
    pub(crate) first: u64,
}

/// All repeated keys, at any depth.
pub(crate) fn duplicates(value: &Value) -> Vec<Duplicate> {
    let mut found = Vec::new();
    walk(value, "", &mut found);
    found
}

/// Values are never nested deeper than the parser allows, so that this ends.
fn walk(value: &Value, parent: &str, found: &mut Vec<Duplicate>) {
    match value {
        Value::Null | Value::Bool(..) | Value::Number(_) | Value::Text(_) => {}
        Value::List(list) => {
            for (index, item) in list.iter().enumerate() {
                walk(&item.value, &format!("{parent}[{index}]"), found);
            }
        }
        Value::Map(map) => {
            let mut lines: BTreeMap<&str, u64> = BTreeMap::new();
            for (Name { line, text }, item) in map {
                let key = if parent.is_empty() { text.clone() } else { format!("{parent}.{text}") };
                match lines.entry(text) {
                    Entry::Vacant(entry) => {
                        entry.insert(*line);
                    }
                    Entry::Occupied(first) => {
                        found.push(Duplicate { key: key.clone(), line: *line, first: *first.get() });
                    }
                }
                walk(&item.value, &key, found);
            }
        }
    }
}

/// The problems found so far.
#[derive(Debug)]
pub(crate) struct Problems {
    file: String,
    pub(crate) found: Vec<Problem>,
    /// What is valid and yet probably a mistake.
    pub(crate) warnings: Vec<Problem>,
    /// The keys, with their parents, that misspelt ones were probably meant for. They are not reported as missing.
    meant: BTreeSet<String>,
}

impl Problems {
    pub(crate) fn new(file: &str) -> Self {
        Self { file: file.to_owned(), found: Vec::new(), warnings: Vec::new(), meant: BTreeSet::new() }
    }

    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// Problems from here on are in this file.
    pub(crate) fn turn_to(&mut self, file: &str) {
        file.clone_into(&mut self.file);
    }

    /// Notes that a misspelt key was probably meant for this one, with its parents.
    pub(crate) fn mean(&mut self, key: &str) {
        self.meant.insert(key.to_owned());
    }

    /// Whether a misspelt key was probably meant for this one, with its parents.
    pub(crate) fn is_meant(&self, key: &str) -> bool {
        self.meant.contains(key)
    }

    /// Errors and warnings, by file in the order of the files' first problems, and by line in each.
    pub(crate) fn in_order(self) -> (Vec<Problem>, Vec<Problem>) {
        let sorted = |mut problems: Vec<Problem>| {
            let mut files: Vec<String> = Vec::new();
            for problem in &problems {
                if !files.contains(&problem.file) {
                    files.push(problem.file.clone());
                }
            }
            problems.sort_by_key(|problem| (files.iter().position(|file| *file == problem.file), problem.line));
            problems
        };
        (sorted(self.found), sorted(self.warnings))
    }

    pub(crate) fn warn(&mut self, line: Option<u64>, key: &str, value: Option<&str>, why: &str) {
        self.add(line, key, value, why);
        self.warnings.extend(self.found.pop());
    }

    pub(crate) fn add(&mut self, line: Option<u64>, key: &str, value: Option<&str>, expected: &str) {
        self.found.push(Problem {
            file: self.file.clone(),
            line,
            key: key.to_owned(),
            value: value.map(str::to_owned),
            expected: expected.to_owned(),
        });
    }
}

impl Node {
    /// Reports that this value is refused.
    pub(crate) fn refuse(&self, key: &str, expected: &str, problems: &mut Problems) {
        problems.add(Some(self.line), key, Some(&self.value.shown()), expected);
    }

    /// A scalar's text; a number counts as the text of it.
    pub(crate) fn text(&self, key: &str, expected: &str, problems: &mut Problems) -> Option<&str> {
        match &self.value {
            Value::Text(text) | Value::Number(text) => Some(text),
            Value::Null | Value::Bool(..) | Value::List(_) | Value::Map(_) => {
                self.refuse(key, expected, problems);
                None
            }
        }
    }

    /// The items of a list, each with its key.
    pub(crate) fn list(&self, key: &str, expected: &str, problems: &mut Problems) -> Vec<(String, &Self)> {
        match &self.value {
            Value::List(list) => {
                list.iter().enumerate().map(|(index, item)| (format!("{key}[{index}]"), item)).collect()
            }
            // `key:` with nothing behind it is an empty list.
            Value::Null => Vec::new(),
            Value::Bool(..) | Value::Number(_) | Value::Text(_) | Value::Map(_) => {
                self.refuse(key, expected, problems);
                Vec::new()
            }
        }
    }

    /// The entries of a mapping.
    pub(crate) fn entries(&self, key: &str, problems: &mut Problems) -> &[(Name, Self)] {
        match &self.value {
            Value::Map(map) => map.as_slice(),
            Value::Null => &[],
            Value::Bool(..) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                self.refuse(key, "expected a mapping", problems);
                &[]
            }
        }
    }

    /// The value of a name in a mapping; of a name that is repeated the last counts.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        let Value::Map(map) = &self.value else { return None };
        map.iter().rfind(|(found, _)| found.text == name).map(|(_, node)| node)
    }
}

/// The name that a misspelt one was probably meant for: the nearest, if at most a quarter of its letters are wrong,
/// missing, too many or swapped. Upper and lower case count as the same.
pub(crate) fn nearest<'a>(misspelt: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let misspelt = misspelt.to_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&misspelt, &name.to_lowercase()), name))
        .filter(|(distance, name)| distance * 4 <= name.len())
        .min()
        .map(|(_, name)| name)
}

/// The message for an unknown key: the one that was probably meant, or all that are known.
pub(crate) fn unknown_key(misspelt: &str, known: &[&str]) -> String {
    match nearest(misspelt, known.iter().copied()) {
        Some(near) => format!("unknown key; did you mean {near}?"),
        None => format!("unknown key; expected {}", any_of(known)),
    }
}

/// `a`, `a or b`, `a, b or c`.
pub(crate) fn any_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
