//! YAML as it stands, with lines, so that every problem in it can be told and not the first only.

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
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Spanned<Value>>),
    Map(Vec<(Spanned<String>, Spanned<Value>)>),
}

impl Value {
    /// The value in one line, for an error.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Number(text) | Self::Text(text) => text.clone(),
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
                Ok(Value::Bool(value))
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
                let mut map: Vec<(Spanned<String>, Spanned<Value>)> = Vec::new();
                while let Some((key, value)) = access.next_entry::<Spanned<String>, _>()? {
                    map.push((key, value));
                }
                Ok(Value::Map(map))
            }
        }
        deserializer.deserialize_any(AnyValue)
    }
}

/// Reads a whole document; absent where it is no YAML, which is told.
pub(crate) fn read(text: &str, problems: &mut Problems) -> Option<Spanned<Value>> {
    // A key that stands twice is told by `duplicates`, with both lines and whatever else is wrong.
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins, with_snippet: false };
    let read = serde_saphyr::from_str_with_options::<Spanned<Value>>(text, options);
    read.map_err(|error| {
        let error = error.without_snippet();
        let line = error.location().map_or(1, |location| location.line());
        let message = error.to_string();
        let message = message.lines().next().unwrap_or_default();
        problems.add(Some(line), "the file", None, &format!("it is not the YAML that was expected: {message}"));
    })
    .ok()
}

/// A key that stands in a mapping more than once.
#[derive(Debug)]
pub(crate) struct Duplicate {
    /// With its parents.
    pub(crate) key: String,
    /// Where it stands again.
    pub(crate) line: u64,
    /// Where it stands first.
    pub(crate) first: u64,
}

/// All keys that stand more than once, at any depth.
pub(crate) fn duplicates(value: &Value) -> Vec<Duplicate> {
    let mut found = Vec::new();
    walk(value, "", &mut found);
    found
}

/// Values are never nested deeper than the parser allows, so that this ends.
fn walk(value: &Value, parent: &str, found: &mut Vec<Duplicate>) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => {}
        Value::List(list) => {
            for (index, item) in list.iter().enumerate() {
                walk(&item.value, &format!("{parent}[{index}]"), found);
            }
        }
        Value::Map(map) => {
            let mut lines: BTreeMap<&str, u64> = BTreeMap::new();
            for (name, item) in map {
                let key = if parent.is_empty() { name.value.clone() } else { format!("{parent}.{}", name.value) };
                let line = name.referenced.line();
                match lines.entry(&name.value) {
                    Entry::Vacant(entry) => {
                        entry.insert(line);
                    }
                    Entry::Occupied(first) => found.push(Duplicate { key: key.clone(), line, first: *first.get() }),
                }
                walk(&item.value, &key, found);
            }
        }
    }
}

/// Problems collected on the way.
#[derive(Debug)]
pub(crate) struct Problems {
    file: String,
    pub(crate) found: Vec<Problem>,
    /// What is in order and yet hardly what was meant.
    pub(crate) warnings: Vec<Problem>,
    /// Full keys that misspelt ones were probably meant for. That they are missing need not be told.
    meant: BTreeSet<String>,
}

impl Problems {
    pub(crate) fn new(file: &str) -> Self {
        Self { file: file.to_owned(), found: Vec::new(), warnings: Vec::new(), meant: BTreeSet::new() }
    }

    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// Goes on with another file.
    pub(crate) fn turn_to(&mut self, file: &str) {
        file.clone_into(&mut self.file);
    }

    /// Takes it that a misspelt key was meant for this one, with its parents.
    pub(crate) fn mean(&mut self, key: &str) {
        self.meant.insert(key.to_owned());
    }

    /// Whether a misspelt key was probably meant for this one, with its parents.
    pub(crate) fn is_meant(&self, key: &str) -> bool {
        self.meant.contains(key)
    }

    /// Whether something is wrong at this place already.
    pub(crate) fn has(&self, line: Option<u64>, key: &str) -> bool {
        self.found.iter().any(|problem| problem.file == self.file && problem.line == line && problem.key == key)
    }

    /// Errors and warnings, file by file as they were come upon, and by line in each.
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

/// One value of the document, with its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    pub(crate) line: u64,
    pub(crate) value: &'a Value,
}

impl<'a> Item<'a> {
    pub(crate) fn new(spanned: &'a Spanned<Value>) -> Self {
        Self { line: spanned.referenced.line(), value: &spanned.value }
    }

    /// Says that this value will not do.
    pub(crate) fn refuse(&self, key: &str, expected: &str, problems: &mut Problems) {
        problems.add(Some(self.line), key, Some(&self.value.shown()), expected);
    }

    /// A scalar's text; a number counts as the text of it.
    pub(crate) fn text(&self, key: &str, expected: &str, problems: &mut Problems) -> Option<&'a str> {
        match self.value {
            Value::Text(text) | Value::Number(text) => Some(text),
            Value::Null | Value::Bool(_) | Value::List(_) | Value::Map(_) => {
                self.refuse(key, expected, problems);
                None
            }
        }
    }

    pub(crate) fn list(&self, key: &str, expected: &str, problems: &mut Problems) -> Vec<(String, Item<'a>)> {
        match self.value {
            Value::List(list) => {
                list.iter().enumerate().map(|(index, item)| (format!("{key}[{index}]"), Item::new(item))).collect()
            }
            // `key:` with nothing behind it is an empty list.
            Value::Null => Vec::new(),
            Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::Map(_) => {
                self.refuse(key, expected, problems);
                Vec::new()
            }
        }
    }

    pub(crate) fn section(&self, key: &str, problems: &mut Problems) -> Section<'a> {
        let entries = match self.value {
            Value::Map(map) => map.as_slice(),
            Value::Null => &[],
            Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                self.refuse(if key.is_empty() { "the file" } else { key }, "a mapping is expected", problems);
                &[]
            }
        };
        Section { key: key.to_owned(), line: self.line, entries, known: BTreeSet::new() }
    }
}

/// A mapping of which each key is asked for once; what was never asked for is unknown.
#[derive(Debug)]
pub(crate) struct Section<'a> {
    key: String,
    pub(crate) line: u64,
    entries: &'a [(Spanned<String>, Spanned<Value>)],
    known: BTreeSet<&'static str>,
}

impl<'a> Section<'a> {
    pub(crate) const fn entries(&self) -> &'a [(Spanned<String>, Spanned<Value>)] {
        self.entries
    }

    /// The full key of something in this section.
    pub(crate) fn full(&self, key: &str) -> String {
        if self.key.is_empty() { key.to_owned() } else { format!("{}.{key}", self.key) }
    }

    pub(crate) fn take(&mut self, key: &'static str) -> Option<(String, Item<'a>)> {
        self.known.insert(key);
        let (_, value) = self.entries.iter().rfind(|(name, _)| name.value == key)?;
        Some((self.full(key), Item::new(value)))
    }

    /// Names the keys that nobody asked for.
    pub(crate) fn finish(self, problems: &mut Problems) {
        for (name, _) in self.entries.iter().filter(|(name, _)| !self.known.contains(name.value.as_str())) {
            let known: Vec<&str> = self.known.iter().copied().collect();
            if let Some(near) = nearest(&name.value, known.iter().copied()) {
                problems.mean(&self.full(near));
            }
            problems.add(
                Some(name.referenced.line()),
                &self.full(&name.value),
                None,
                &unknown_key(&name.value, &known),
            );
        }
    }
}

/// The name that a misspelt one was probably meant for: the nearest, if at most a quarter of its letters are wrong,
/// missing, too many or swapped. Upper and lower case are not told apart.
pub(crate) fn nearest<'a>(misspelt: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let misspelt = misspelt.to_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&misspelt, &name.to_lowercase()), name))
        .filter(|(distance, name)| distance * 4 <= name.len())
        .min()
        .map(|(_, name)| name)
}

/// What is said of an unknown key: the one that was probably meant, or all that there are.
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
