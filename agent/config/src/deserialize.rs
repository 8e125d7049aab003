//! Typed values from a YAML document, by serde: everything that is refused becomes a problem with its place, not only
//! the first.
//!
//! serde ends at the first error. So what it refused is reported, left out, and the document is read again without it,
//! until nothing is refused.

use crate::model::Origin;
use crate::tree::{Node, Problems, Value, any_of, unknown_key};
use core::fmt::{self, Display};
use serde::de::value::{MapDeserializer, SeqDeserializer, StrDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error, Expected, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use std::collections::{BTreeMap, BTreeSet};

/// A document with the place of each value in it.
pub(crate) struct Document<'a> {
    root: &'a Node,
    file: &'a str,
    /// Values that do not come from the file, by key.
    overrides: &'a BTreeMap<String, Origin>,
    places: BTreeMap<String, Place<'a>>,
    refused: BTreeSet<String>,
}

#[derive(Clone, Copy)]
struct Place<'a> {
    node: &'a Node,
    /// The line of its name.
    name: u64,
}

/// What is refused, and why.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The key, with its parents; absent until the key is known at which serde stopped.
    key: Option<String>,
    /// What is left out because of it, where that is not the value of the key.
    drop: Option<String>,
    /// The name that is unknown or missing in a mapping, until the key is known.
    name: Option<String>,
    /// The name is refused, not its value.
    is_name: bool,
    expected: String,
}

impl Refusal {
    /// The value of a key.
    pub(crate) fn value(key: &str, expected: impl Into<String>) -> Self {
        Self::custom(expected.into()).at(key)
    }

    /// What lacks `key`, which is left out.
    pub(crate) fn missing(of: &str, key: &str, expected: impl Into<String>) -> Self {
        Self { drop: Some(of.to_owned()), ..Self::value(key, expected) }
    }

    fn at(self, key: &str) -> Self {
        if self.key.is_some() { self } else { Self { key: Some(key.to_owned()), ..self } }
    }
}

impl<'a> Document<'a> {
    pub(crate) fn new(root: &'a Node, file: &'a str, overrides: &'a BTreeMap<String, Origin>) -> Self {
        let mut document = Self { root, file, overrides, places: BTreeMap::new(), refused: BTreeSet::new() };
        document.add(String::new(), Place { node: root, name: root.line });
        document
    }

    /// Values are never nested deeper than the parser allows, so that this ends.
    fn add(&mut self, key: String, place: Place<'a>) {
        for (child, _, place) in children(&key, place.node) {
            self.add(child, place);
        }
        self.places.insert(key, place);
    }

    /// The typed value, with the origin of each key outside of lists. Values that `check` or their type refuses are
    /// reported and left out.
    pub(crate) fn read<T: DeserializeOwned + Default>(
        mut self,
        problems: &mut Problems,
        check: impl Fn(&T, &Self) -> Vec<Refusal>,
    ) -> (T, BTreeMap<String, Origin>) {
        loop {
            let (value, refusals) = match T::deserialize(At { document: &self, node: self.root, key: String::new() }) {
                Ok(value) => {
                    let refusals = check(&value, &self);
                    (Some(value), refusals)
                }
                Err(refusal) => (None, vec![refusal.at("")]),
            };
            // Whatever was left out before may be refused again for its absence.
            let refused = refusals.into_iter().filter(|refusal| self.refuse(refusal, problems)).count();
            if refused == 0 {
                return (value.unwrap_or_default(), self.origins());
            }
        }
    }

    /// Reports a refusal and leaves out what it concerns; false where that was left out before.
    fn refuse(&mut self, Refusal { key, drop, is_name, expected, .. }: &Refusal, problems: &mut Problems) -> bool {
        let key = key.as_deref().unwrap_or_default();
        let dropped = drop.as_deref().unwrap_or(key);
        let is_new = self.refused.insert(dropped.to_owned());
        // A value that was refused is not missing.
        let is_reported = drop.is_some() && self.refused.contains(key) && dropped != key;
        if let (true, false, Some(Place { node, name })) = (is_new, is_reported, self.places.get(dropped)) {
            let origin = self.origin(dropped, if *is_name { *name } else { node.line });
            let (file, line) = origin.place();
            problems.turn_to(file);
            let value = (drop.is_none() && !is_name).then(|| node.value.shown());
            problems.add(line, key, value.as_deref(), expected);
        }
        is_new
    }

    fn origin(&self, key: &str, line: u64) -> Origin {
        let of_file = || Origin::File { file: self.file.to_owned(), line };
        self.overrides.get(key).cloned().unwrap_or_else(of_file)
    }

    fn origins(&self) -> BTreeMap<String, Origin> {
        let values = self
            .places
            .iter()
            .filter(|(key, place)| !matches!(place.node.value, Value::Map(_)) && !key.is_empty() && !key.contains('['));
        values.map(|(key, place)| (key.clone(), self.origin(key, place.node.line))).collect()
    }

    /// Whether the document has a value for this key, refused or not.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// The keys of a list's items, without those that were left out.
    pub(crate) fn items(&self, list: &str) -> Vec<String> {
        let items = self.places.get(list).map(|place| children(list, place.node)).unwrap_or_default();
        items.into_iter().map(|(key, ..)| key).filter(|key| !self.refused.contains(key)).collect()
    }
}

/// What is in a list or a mapping, each with its key. Of a name that is repeated the last counts.
fn children<'a>(parent: &str, node: &'a Node) -> Vec<(String, &'a str, Place<'a>)> {
    match &node.value {
        Value::Null | Value::Bool(..) | Value::Number(_) | Value::Text(_) => Vec::new(),
        Value::List(list) => {
            let place = |node: &'a Node| Place { node, name: node.line };
            list.iter().enumerate().map(|(index, node)| (format!("{parent}[{index}]"), "", place(node))).collect()
        }
        Value::Map(map) => {
            let last: BTreeMap<&str, Place<'_>> =
                map.iter().map(|(name, node)| (name.text.as_str(), Place { node, name: name.line })).collect();
            let key = |name: &str| if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
            last.into_iter().map(|(name, place)| (key(name), name, place)).collect()
        }
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.expected)
    }
}

impl core::error::Error for Refusal {}

impl Error for Refusal {
    fn custom<T: Display>(expected: T) -> Self {
        Self { key: None, drop: None, name: None, is_name: false, expected: expected.to_string() }
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("expected {expected}"))
    }

    fn unknown_variant(_: &str, variants: &'static [&'static str]) -> Self {
        Self::custom(format_args!("expected {}", any_of(variants)))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        let mut known = known.to_vec();
        known.sort_unstable();
        Self { name: Some(name.to_owned()), is_name: true, ..Self::custom(unknown_key(name, &known)) }
    }

    fn missing_field(name: &'static str) -> Self {
        Self { name: Some(name.to_owned()), ..Self::custom("missing") }
    }
}

/// A value of the document, to be read by its type.
struct At<'a> {
    document: &'a Document<'a>,
    node: &'a Node,
    key: String,
}

impl<'a> At<'a> {
    /// What is in it, with the names in a mapping, without what was left out.
    fn children(&self) -> impl Iterator<Item = (&'a str, Self)> {
        let document = self.document;
        let kept = children(&self.key, self.node).into_iter().filter(|(key, ..)| !document.refused.contains(key));
        kept.map(|(key, name, place)| (name, Self { document, node: place.node, key }))
    }

    /// Gives the value to the visitor by its own shape.
    fn visit<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value, _) => visitor.visit_bool(*value),
            Value::Number(text) | Value::Text(text) => visitor.visit_str(text),
            Value::List(_) => visitor.visit_seq(SeqDeserializer::new(self.children().map(|(_, child)| child))),
            Value::Map(_) => visitor.visit_map(MapDeserializer::new(self.children())),
        }
    }
}

impl IntoDeserializer<'_, Refusal> for At<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for At<'_> {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.visit(visitor).map_err(|refusal| refusal.at(&self.key))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match (&self.node.value, self.document.overrides.contains_key(&self.key)) {
            (Value::Bool(value, _), _) => visitor.visit_bool(*value),
            (Value::Text(text), true) if text == "true" => visitor.visit_bool(true),
            (Value::Text(text), true) if text == "false" => visitor.visit_bool(false),
            _ => Err(Refusal::value(&self.key, "expected true or false")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        if matches!(self.node.value, Value::Null) { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        let read = match &self.node.value {
            Value::Text(text) => visitor.visit_enum(StrDeserializer::new(text)),
            // YAML takes an unquoted `off`, and `no`, for a boolean.
            Value::Bool(false, _) => match variants.iter().find(|name| matches!(**name, "off" | "none")) {
                Some(off) => visitor.visit_enum(StrDeserializer::new(off)),
                None => Err(Refusal::unknown_variant("", variants)),
            },
            _ => Err(Refusal::unknown_variant("", variants)),
        };
        read.map_err(|refusal| refusal.at(&self.key))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.node.value {
            // `key:` with nothing behind it is an empty list.
            Value::Null | Value::List(_) => {
                visitor.visit_seq(SeqDeserializer::new(self.children().map(|(_, child)| child)))
            }
            _ => Err(Refusal::value(&self.key, "expected a list")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        let expected = format!("expected {}", &visitor as &dyn Expected);
        if !matches!(self.node.value, Value::Map(_) | Value::Null) {
            return Err(Refusal::value(&self.key, expected));
        }
        visitor.visit_map(MapDeserializer::new(self.children())).map_err(|refusal| match refusal {
            Refusal { key: Some(_), .. } => refusal,
            Refusal { name: Some(name), is_name: true, .. } => {
                Refusal { key: Some(format!("{}.{name}", self.key)), name: None, ..refusal }
            }
            Refusal { name, .. } => {
                let missing = format!("{}.{}", self.key, name.unwrap_or_default());
                Refusal::missing(&self.key, &missing, format!("missing; {expected}"))
            }
        })
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct
        tuple tuple_struct map identifier ignored_any
    }
}
