//! Which nodes a pod may run on: `nodeSelector` and node affinity, as the scheduler's shared code and the kubelet
//! (1.36) match them, errors in their words. Pure; not part of the hot path, and it allocates.
//!
//! The types read as the Kubernetes API writes them, so that a saved object can be matched as it is.

use core::fmt;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// What is matched of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`. Without one, terms about fields are not evaluated and match (a quirk of the shared code: its
    /// field set is empty then, and it skips an empty set).
    pub name: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
}

/// `requiredDuringSchedulingIgnoredDuringExecution`: one of the terms has to match. None at all match nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelector {
    /// The alternatives.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub node_selector_terms: Vec<Term>,
}

/// All of its requirements have to match. An empty term matches nothing, although the API's own comment has it the other
/// way round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Term {
    /// About labels.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub match_expressions: Vec<Requirement>,
    /// About fields: `metadata.name` only, any other reads as empty.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub match_fields: Vec<Requirement>,
}

/// One requirement, not checked yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Requirement {
    /// The label or the field.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`, in just this spelling.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub operator: String,
    /// What it is held against.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub values: Vec<String>,
}

/// A term of `preferredDuringSchedulingIgnoredDuringExecution`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Preferred {
    /// What it adds to the score of a node that matches. With zero the term is not even checked.
    #[serde(default)]
    pub weight: i32,
    /// The term.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub preference: Term,
}

/// The API leaves out what is empty, and Go's JSON reads null as empty.
fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Everything that is wrong with the terms, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorError(pub Vec<Flaw>);

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// Where, `nodeSelectorTerms[0].matchExpressions[1].values`.
    pub path: String,
    /// What.
    pub what: Wrong,
}

/// What is wrong with a requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The label's name cannot be one.
    Key(String, Vec<NameFlaw>),
    /// The value cannot be a label's.
    Value(String, Vec<NameFlaw>),
    /// `In` and `NotIn` need a value.
    NoValues,
    /// `Exists` and `DoesNotExist` take none.
    NeedlessValues(Vec<String>),
    /// `Gt` and `Lt` take one.
    NotOneNumber(Vec<String>),
    /// And that is a number.
    NotANumber(String),
    /// About a label: no such operator.
    Operator(String),
    /// About a field: neither `In` nor `NotIn`.
    FieldOperator(String),
    /// About a field: not just one value.
    NotOneElement(Vec<String>),
}

/// Why a text is no label name or value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameFlaw {
    /// More than one slash.
    TooManyParts,
    /// Nothing before the slash.
    PrefixEmpty,
    /// Too much before it.
    PrefixTooLong,
    /// No domain before it.
    PrefixNoSubdomain,
    /// Nothing behind it.
    NameEmpty,
    /// Too much behind it.
    NameTooLong,
    /// Other characters than are allowed.
    NameCharacters,
    /// A value that is too long.
    ValueTooLong,
    /// A value with other characters than are allowed.
    ValueCharacters,
}

const NAME_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;

impl fmt::Display for NameFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
             '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
        match self {
            Self::TooManyParts => write!(
                f,
                "a valid label key {NAME_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ),
            Self::PrefixEmpty => f.write_str("prefix part must be non-empty"),
            Self::PrefixTooLong => write!(f, "prefix part must be no more than {SUBDOMAIN_MAX} bytes"),
            Self::PrefixNoSubdomain => f.write_str(
                "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
                 '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
                 validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            ),
            Self::NameEmpty => f.write_str("name part must be non-empty"),
            Self::NameTooLong => write!(f, "name part must be no more than {NAME_MAX} bytes"),
            Self::NameCharacters => write!(f, "name part {NAME_RULE}"),
            Self::ValueTooLong => write!(f, "must be no more than {NAME_MAX} bytes"),
            Self::ValueCharacters => f.write_str(
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
                 start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
                 for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            ),
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(text, flaws) | Self::Value(text, flaws) => {
                write!(f, "Invalid value: {}: ", Quoted(text))?;
                for (index, flaw) in flaws.iter().enumerate() {
                    write!(f, "{}{flaw}", if index == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
            Self::NoValues => {
                f.write_str("Invalid value: null: for 'in', 'notin' operators, values set can't be empty")
            }
            Self::NeedlessValues(values) => {
                write!(f, "Invalid value: {}: values set must be empty for exists and does not exist", List(values))
            }
            Self::NotOneNumber(values) => {
                write!(f, "Invalid value: {}: for 'Gt', 'Lt' operators, exactly one value is required", List(values))
            }
            Self::NotANumber(value) => {
                write!(f, "Invalid value: {}: for 'Gt', 'Lt' operators, the value must be an integer", Quoted(value))
            }
            Self::Operator(operator) => write!(
                f,
                "Unsupported value: {}: supported values: \"In\", \"NotIn\", \"Exists\", \"DoesNotExist\", \"Gt\", \"Lt\"",
                Json(operator)
            ),
            Self::FieldOperator(operator) => {
                write!(f, "Unsupported value: {}: supported values: \"In\", \"NotIn\"", Json(operator))
            }
            Self::NotOneElement(values) => write!(f, "Invalid value: {}: must have one element", List(values)),
        }
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.what)
    }
}

impl fmt::Display for SelectorError {
    /// One flaw stands alone, several in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return only.fmt(f);
        }
        f.write_str("[")?;
        for (index, flaw) in self.0.iter().enumerate() {
            write!(f, "{}{flaw}", if index == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

impl core::error::Error for SelectorError {}

/// A text between quotes, with the escapes that all of Go has; `other` writes every other character.
fn quoted(
    f: &mut fmt::Formatter<'_>,
    text: &str,
    other: impl Fn(&mut fmt::Formatter<'_>, char) -> fmt::Result,
) -> fmt::Result {
    f.write_str("\"")?;
    for character in text.chars() {
        match character {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\x08' => f.write_str("\\b")?,
            '\x0c' => f.write_str("\\f")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            character => other(f, character)?,
        }
    }
    f.write_str("\"")
}

/// A text as Go's `%q` prints it.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        quoted(f, self.0, |f, character| match character {
            '\x07' => f.write_str("\\a"),
            '\x0b' => f.write_str("\\v"),
            '\0'..' ' | '\x7f' => write!(f, "\\x{:02x}", u32::from(character)),
            '\u{80}'..'\u{a1}' | '\u{ad}' | '\u{2028}' | '\u{2029}' | '\u{feff}' => {
                write!(f, "\\u{:04x}", u32::from(character))
            }
            other => write!(f, "{other}"),
        })
    }
}

/// A text as Go's JSON has it, which is safe inside HTML.
struct Json<'a>(&'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        quoted(f, self.0, |f, character| match character {
            '\0'..' ' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => write!(f, "\\u{:04x}", u32::from(character)),
            other => write!(f, "{other}"),
        })
    }
}

/// Values as Go's JSON has them; none are null.
struct List<'a>(&'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("null");
        }
        for (index, value) in self.0.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "[" } else { "," }, Json(value))?;
        }
        f.write_str("]")
    }
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_at_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    is_at_edge(bytes.first())
        && is_at_edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn is_subdomain(text: &str) -> bool {
    let is_lower = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.split('.').all(|part| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(is_lower)
            && bytes.last().is_some_and(is_lower)
            && bytes.iter().all(|byte| is_lower(byte) || *byte == b'-')
    })
}

fn key_flaws(key: &str) -> Vec<NameFlaw> {
    let mut flaws = Vec::new();
    let name = match key.split_once('/') {
        None => key,
        Some((_, name)) if name.contains('/') => return vec![NameFlaw::TooManyParts],
        Some((prefix, name)) => {
            if prefix.is_empty() {
                flaws.push(NameFlaw::PrefixEmpty);
            } else {
                if prefix.len() > SUBDOMAIN_MAX {
                    flaws.push(NameFlaw::PrefixTooLong);
                }
                if !is_subdomain(prefix) {
                    flaws.push(NameFlaw::PrefixNoSubdomain);
                }
            }
            name
        }
    };
    if name.is_empty() {
        flaws.push(NameFlaw::NameEmpty);
    } else if name.len() > NAME_MAX {
        flaws.push(NameFlaw::NameTooLong);
    }
    if !is_name(name) {
        flaws.push(NameFlaw::NameCharacters);
    }
    flaws
}

fn value_flaws(value: &str) -> Vec<NameFlaw> {
    let mut flaws = Vec::new();
    if value.len() > NAME_MAX {
        flaws.push(NameFlaw::ValueTooLong);
    }
    if !value.is_empty() && !is_name(value) {
        flaws.push(NameFlaw::ValueCharacters);
    }
    flaws
}

/// A number as Go reads it in base ten.
fn number(text: &str) -> Option<i64> {
    text.parse().ok()
}

/// What a label or a field is held to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

impl Requirement {
    fn operator(&self) -> Option<Operator> {
        Some(match self.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::Gt,
            "Lt" => Operator::Lt,
            _ => return None,
        })
    }

    /// About a label. Of an unknown operator nothing else is said.
    fn check_expression(&self, path: &str, flaws: &mut Vec<Flaw>) {
        let Self { key, operator, values } = self;
        let mut add = |child: String, what| flaws.push(Flaw { path: format!("{path}.{child}"), what });
        let Some(known) = self.operator() else {
            add("operator".into(), Wrong::Operator(operator.clone()));
            return;
        };
        let of_key = key_flaws(key);
        if !of_key.is_empty() {
            add("key".into(), Wrong::Key(key.clone(), of_key));
        }
        match known {
            Operator::In | Operator::NotIn => {
                if values.is_empty() {
                    add("values".into(), Wrong::NoValues);
                }
            }
            Operator::Exists | Operator::DoesNotExist => {
                if !values.is_empty() {
                    add("values".into(), Wrong::NeedlessValues(values.clone()));
                }
            }
            Operator::Gt | Operator::Lt => {
                if values.len() != 1 {
                    add("values".into(), Wrong::NotOneNumber(values.clone()));
                }
                for (index, value) in values.iter().enumerate() {
                    if number(value).is_none() {
                        add(format!("values[{index}]"), Wrong::NotANumber(value.clone()));
                    }
                }
            }
        }
        // Every value has to be one that a label can have, those of `Gt` and `Lt` too: no number below zero passes.
        for (index, value) in values.iter().enumerate() {
            let of_value = value_flaws(value);
            if !of_value.is_empty() {
                add(format!("values[{index}][{key}]"), Wrong::Value(value.clone(), of_value));
            }
        }
    }

    /// About a field. The key may be anything.
    fn check_field(&self, path: &str, flaws: &mut Vec<Flaw>) {
        match self.operator() {
            Some(Operator::In | Operator::NotIn) => {
                if self.values.len() != 1 {
                    let what = Wrong::NotOneElement(self.values.clone());
                    flaws.push(Flaw { path: format!("{path}.values"), what });
                }
            }
            Some(Operator::Exists | Operator::DoesNotExist | Operator::Gt | Operator::Lt) | None => {
                let what = Wrong::FieldOperator(self.operator.clone());
                flaws.push(Flaw { path: format!("{path}.operator"), what });
            }
        }
    }

    fn matches_label(&self, labels: &BTreeMap<String, String>) -> bool {
        let label = labels.get(&self.key);
        let is_in = label.is_some_and(|label| self.values.contains(label));
        // A label that is no number does not match, and that is no error.
        let numbers = || number(label?).zip(number(self.values.first()?));
        match self.operator() {
            Some(Operator::In) => is_in,
            Some(Operator::NotIn) => !is_in,
            Some(Operator::Exists) => label.is_some(),
            Some(Operator::DoesNotExist) => label.is_none(),
            Some(Operator::Gt) => numbers().is_some_and(|(label, value)| label > value),
            Some(Operator::Lt) => numbers().is_some_and(|(label, value)| label < value),
            None => false,
        }
    }

    fn matches_field(&self, name: &str) -> bool {
        let field = if self.key == "metadata.name" { name } else { "" };
        let is_in = self.values.iter().any(|value| value == field);
        if self.operator() == Some(Operator::NotIn) { !is_in } else { is_in }
    }
}

impl Term {
    fn is_empty(&self) -> bool {
        self.match_expressions.is_empty() && self.match_fields.is_empty()
    }

    fn check(&self, path: &str, flaws: &mut Vec<Flaw>) {
        for (index, requirement) in self.match_expressions.iter().enumerate() {
            requirement.check_expression(&format!("{path}.matchExpressions[{index}]"), flaws);
        }
        for (index, requirement) in self.match_fields.iter().enumerate() {
            requirement.check_field(&format!("{path}.matchFields[{index}]"), flaws);
        }
    }

    fn matches(&self, node: &Node) -> bool {
        self.match_expressions.iter().all(|requirement| requirement.matches_label(&node.labels))
            && (node.name.is_empty()
                || self.match_fields.iter().all(|requirement| requirement.matches_field(&node.name)))
    }
}

impl NodeSelector {
    /// The terms that say anything, with their place.
    fn terms(&self) -> impl Iterator<Item = (String, &Term)> {
        self.node_selector_terms
            .iter()
            .enumerate()
            .filter(|(_, term)| !term.is_empty())
            .map(|(index, term)| (format!("nodeSelectorTerms[{index}]"), term))
    }

    /// Whether a node matches, in the lenient form that the scheduler and the kubelet use: a bad term is passed over,
    /// and is an error only if no other term matches. No node matches nothing.
    pub fn matches(&self, node: Option<&Node>) -> Result<bool, SelectorError> {
        let Some(node) = node else { return Ok(false) };
        let mut flaws = Vec::new();
        for (path, term) in self.terms() {
            let before = flaws.len();
            term.check(&path, &mut flaws);
            if flaws.len() == before && term.matches(node) {
                return Ok(true);
            }
        }
        if flaws.is_empty() { Ok(false) } else { Err(SelectorError(flaws)) }
    }

    /// Whether a node matches, in the strict form: any bad term is an error.
    pub fn matches_strictly(&self, node: Option<&Node>) -> Result<bool, SelectorError> {
        let mut flaws = Vec::new();
        for (path, term) in self.terms() {
            term.check(&path, &mut flaws);
        }
        if flaws.is_empty() { self.matches(node) } else { Err(SelectorError(flaws)) }
    }
}

/// Whether a pod may run on a node: its `nodeSelector` and its required affinity both have to match. The first is compared
/// as it stands, never checked; where it fails, the second is not evaluated, bad or not.
pub fn pod_matches(
    selector: &BTreeMap<String, String>,
    required: Option<&NodeSelector>,
    node: &Node,
) -> Result<bool, SelectorError> {
    if selector.iter().any(|(key, value)| node.labels.get(key) != Some(value)) {
        return Ok(false);
    }
    required.map_or(Ok(true), |required| required.matches(Some(node)))
}

/// The sum of the weights of those preferred terms that match. All errors are given, with the term's own place and without
/// a name before it.
pub fn score(preferred: &[Preferred], node: &Node) -> Result<i64, SelectorError> {
    let mut flaws = Vec::new();
    let mut sum = 0;
    for (index, Preferred { weight, preference }) in preferred.iter().enumerate() {
        if *weight == 0 || preference.is_empty() {
            continue;
        }
        preference.check(&format!("[{index}]"), &mut flaws);
        if flaws.is_empty() && preference.matches(node) {
            sum += i64::from(*weight);
        }
    }
    if flaws.is_empty() { Ok(sum) } else { Err(SelectorError(flaws)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirement(key: &str, operator: &str, values: &[&str]) -> Requirement {
        Requirement {
            key: key.into(),
            operator: operator.into(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        }
    }

    #[test]
    fn names_and_values_of_labels() {
        let long = "a".repeat(64);
        let long_prefix = format!("{}/x", "a".repeat(254));
        for (key, flaws) in [
            ("zone", vec![]),
            ("example.com/zone", vec![]),
            ("A_b-c.d", vec![]),
            ("/zone", vec![NameFlaw::PrefixEmpty]),
            ("example.com/", vec![NameFlaw::NameEmpty, NameFlaw::NameCharacters]),
            ("-a.b/x", vec![NameFlaw::PrefixNoSubdomain]),
            ("a..b/x", vec![NameFlaw::PrefixNoSubdomain]),
            (long_prefix.as_str(), vec![NameFlaw::PrefixTooLong]),
            (long.as_str(), vec![NameFlaw::NameTooLong]),
            ("a/b/c", vec![NameFlaw::TooManyParts]),
            ("zone\n", vec![NameFlaw::NameCharacters]),
        ] {
            assert_eq!(key_flaws(key), flaws, "{key}");
        }
        for (value, flaws) in [
            ("", vec![]),
            ("04", vec![]),
            ("-4", vec![NameFlaw::ValueCharacters]),
            ("+4", vec![NameFlaw::ValueCharacters]),
            (long.as_str(), vec![NameFlaw::ValueTooLong]),
        ] {
            assert_eq!(value_flaws(value), flaws, "{value}");
        }
    }

    #[test]
    fn texts_print_as_go_prints_them() {
        for (text, quoted, json) in [
            ("a b", "\"a b\"", "\"a b\""),
            ("a\"\\", "\"a\\\"\\\\\"", "\"a\\\"\\\\\""),
            ("<é>\n", "\"<é>\\n\"", "\"\\u003cé\\u003e\\n\""),
            ("\x01\x7f", "\"\\x01\\x7f\"", "\"\\u0001\x7f\""),
        ] {
            assert_eq!(
                (Quoted(text).to_string().as_str(), Json(text).to_string().as_str()),
                (quoted, json),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_label_is_compared_as_a_number_only_if_it_is_one() {
        let node = |value: &str| Node { name: "n".into(), labels: BTreeMap::from([("n".into(), value.into())]) };
        for (label, operator, value, matches) in [
            ("5", "Gt", "4", true),
            ("5", "Gt", "5", false),
            ("0206", "Gt", "0204", true),
            ("-3", "Lt", "0", true),
            ("9223372036854775808", "Gt", "1", false),
            ("x", "Lt", "1", false),
            ("", "Lt", "1", false),
        ] {
            let selector = NodeSelector {
                node_selector_terms: vec![Term {
                    match_expressions: vec![requirement("n", operator, &[value])],
                    match_fields: vec![],
                }],
            };
            assert_eq!(selector.matches(Some(&node(label))), Ok(matches), "{label} {operator} {value}");
        }
    }

    #[test]
    fn without_a_node_nothing_matches() {
        let selector = NodeSelector {
            node_selector_terms: vec![Term {
                match_expressions: vec![requirement("n", "DoesNotExist", &[])],
                match_fields: vec![],
            }],
        };
        assert_eq!(selector.matches(None), Ok(false));
        assert_eq!(selector.matches(Some(&Node::default())), Ok(true));
    }
}
