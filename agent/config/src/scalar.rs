//! How single values are written: what is accepted, how it is written again, and its JSON schema.

use crate::duration::{parse_duration, written};
use crate::kubelet::threshold::{min_reclaim, statement};
use core::fmt;
use core::marker::PhantomData;
use core::net::SocketAddr;
use core::time::Duration;
use plimsoll_policy::EvictionPolicy;
use plimsoll_policy::kubelet::{Signal, ThresholdAmount};
use plimsoll_units::{Bytes, Percentage, Quantity};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error, Visitor};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

/// One way to write a value as a text.
pub(crate) trait Scalar {
    type Value: Serialize;

    /// What is accepted, as it follows "expected".
    fn expected() -> String;
    fn parse(text: &str) -> Option<Self::Value>;

    fn write(value: &Self::Value) -> Value {
        json!(value)
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// For `#[serde(with)]`: reads and writes a field as this [`Scalar`] does.
pub(crate) struct As<S>(PhantomData<S>);

impl<S: Scalar> As<S> {
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<S::Value, D::Error> {
        struct Text<S>(PhantomData<S>);
        impl<S: Scalar> Visitor<'_> for Text<S> {
            type Value = S::Value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&S::expected())
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<S::Value, E> {
                S::parse(text).ok_or_else(|| E::custom(format_args!("expected {}", S::expected())))
            }
        }
        deserializer.deserialize_str(Text::<S>(PhantomData))
    }

    pub(crate) fn serialize<R: Serializer>(value: &S::Value, serializer: R) -> Result<R::Ok, R::Error> {
        S::write(value).serialize(serializer)
    }
}

impl<S: Scalar> JsonSchema for As<S> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        S::expected().into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        S::schema()
    }
}

/// A whole number within bounds.
pub(crate) struct Whole<T, const LEAST: i32, const MOST: i32>(PhantomData<T>);

impl<T: TryFrom<i32> + Serialize, const LEAST: i32, const MOST: i32> Scalar for Whole<T, LEAST, MOST> {
    type Value = T;

    fn expected() -> String {
        if LEAST == i32::MIN { "a whole number".to_owned() } else { format!("a whole number from {LEAST} to {MOST}") }
    }

    fn parse(text: &str) -> Option<T> {
        let number = text.parse().ok().filter(|number| (LEAST..=MOST).contains(number))?;
        T::try_from(number).ok()
    }

    fn schema() -> Schema {
        json_schema!({ "type": "integer", "minimum": LEAST, "maximum": MOST })
    }
}

/// How many victims there may be within a minute. None at all is no limit but a dry run.
pub(crate) struct Victims;

impl Scalar for Victims {
    type Value = u32;

    fn expected() -> String {
        format!("{}; machine.shadow: true is a dry run, which evicts nothing", Whole::<u32, 1, 10_000>::expected())
    }

    fn parse(text: &str) -> Option<u32> {
        Whole::<u32, 1, 10_000>::parse(text)
    }

    fn schema() -> Schema {
        Whole::<u32, 1, 10_000>::schema()
    }
}

/// A duration within bounds, in milliseconds.
pub(crate) struct Span<const LEAST: u64 = 0, const MOST: u64 = { u64::MAX }>;

impl<const LEAST: u64, const MOST: u64> Scalar for Span<LEAST, MOST> {
    type Value = Duration;

    fn expected() -> String {
        if MOST == u64::MAX {
            return "a duration such as 30s, 1m30s or 500ms".to_owned();
        }
        let [least, most] = [LEAST, MOST].map(|millis| written(Duration::from_millis(millis)));
        format!("a duration from {least} to {most}")
    }

    fn parse(text: &str) -> Option<Duration> {
        let bounds = Duration::from_millis(LEAST)..=Duration::from_millis(MOST);
        parse_duration(text).filter(|duration| bounds.contains(duration))
    }

    fn write(value: &Duration) -> Value {
        written(*value).into()
    }

    fn schema() -> Schema {
        json_schema!({
            "type": ["string", "number"],
            "pattern": "^[+]?(0|([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|ms|s|m|h))+$",
        })
    }
}

/// How long a pod is held down at most, or an empty text for what follows from the rest of the configuration.
pub(crate) struct Hold;

impl Scalar for Hold {
    type Value = Option<Duration>;

    fn expected() -> String {
        format!("{}, or nothing", HoldSpan::expected())
    }

    fn parse(text: &str) -> Option<Option<Duration>> {
        if text.is_empty() { Some(None) } else { HoldSpan::parse(text).map(Some) }
    }

    fn write(value: &Option<Duration>) -> Value {
        value.as_ref().map_or_else(|| json!(""), HoldSpan::write)
    }

    fn schema() -> Schema {
        json_schema!({
            "type": ["string", "number"],
            "pattern": "^([+]?(0|([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|ms|s|m|h))+)?$",
        })
    }
}

/// Up to an hour.
type HoldSpan = Span<0, 3_600_000>;

/// A quantity or a percentage. Which amounts are accepted depends on their purpose: [`amount`].
pub(crate) struct Amount;

impl Scalar for Amount {
    type Value = String;

    fn expected() -> String {
        "a quantity such as 100Mi or a percentage such as 5%".to_owned()
    }

    fn parse(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn schema() -> Schema {
        json_schema!({
            "type": ["string", "number"],
            "pattern": "^[+-]?[0-9.]+([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$|^[+]?[0-9.]+%$",
        })
    }
}

/// An address with a port.
pub(crate) struct Address;

impl Scalar for Address {
    type Value = SocketAddr;

    fn expected() -> String {
        "an address with a port, such as 127.0.0.1:9464 or [::1]:9464".to_owned()
    }

    fn parse(text: &str) -> Option<SocketAddr> {
        text.parse().ok()
    }
}

/// An absolute path of a directory.
pub(crate) struct Directory;

impl Scalar for Directory {
    type Value = PathBuf;

    fn expected() -> String {
        "an absolute path of a directory".to_owned()
    }

    fn parse(text: &str) -> Option<PathBuf> {
        Some(PathBuf::from(text)).filter(|path| path.is_absolute())
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^/" })
    }
}

/// An absolute path, or an empty text for none.
pub(crate) struct Place;

impl Scalar for Place {
    type Value = Option<PathBuf>;

    fn expected() -> String {
        "an absolute path".to_owned()
    }

    fn parse(text: &str) -> Option<Option<PathBuf>> {
        let path = Some(PathBuf::from(text)).filter(|_| !text.is_empty());
        path.iter().all(|path| path.is_absolute()).then_some(path)
    }

    fn write(path: &Option<PathBuf>) -> Value {
        path.as_ref().map_or_else(|| json!(""), |path| json!(path))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^(/.*)?$" })
    }
}

/// The name of a node's object, or an empty text for that in the environment.
pub(crate) struct NodeName;

impl Scalar for NodeName {
    type Value = String;

    fn expected() -> String {
        "the name of a node, such as worker-1.example".to_owned()
    }

    fn parse(text: &str) -> Option<String> {
        (text.is_empty() || is_node_name(text)).then(|| text.to_owned())
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", "maxLength": 253 })
    }
}

/// Whether an object may have this name (RFC 1123; `IsDNS1123Subdomain`). Nothing of it has a meaning in a selector or a path.
pub fn is_node_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let is_ends = |end: Option<&u8>| end.is_some_and(|byte| is_inner(*byte));
        is_ends(bytes.first()) && is_ends(bytes.last()) && bytes.iter().all(|byte| is_inner(*byte) || *byte == b'-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// A file that is read or looked for while the agent runs. What reads it reaches all of its directory, which so is not
/// the root's.
pub(crate) struct Source;

impl Scalar for Source {
    type Value = Option<PathBuf>;

    fn expected() -> String {
        "an absolute path of a file that is not in /, without ..".to_owned()
    }

    fn parse(text: &str) -> Option<Option<PathBuf>> {
        let path = Some(PathBuf::from(text)).filter(|_| !text.is_empty());
        let is_below_root =
            |path: &Path| path != Path::new("/") && !path.components().any(|part| part == Component::ParentDir);
        let is_file = |path: &PathBuf| path.is_absolute() && path.file_name().is_some();
        path.iter().all(|path| is_file(path) && path.parent().is_some_and(is_below_root)).then_some(path)
    }

    fn write(path: &Option<PathBuf>) -> Value {
        path.as_ref().map_or_else(|| json!(""), |path| json!(path))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^(/+[^/]+/.*)?$" })
    }
}

/// An eviction policy by its name.
pub(crate) struct PolicyName;

impl Scalar for PolicyName {
    type Value = EvictionPolicy;

    fn expected() -> String {
        crate::tree::any_of(&EvictionPolicy::ALL.map(EvictionPolicy::name))
    }

    fn parse(text: &str) -> Option<EvictionPolicy> {
        EvictionPolicy::parse(text)
    }

    fn write(value: &EvictionPolicy) -> Value {
        value.name().into()
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "enum": EvictionPolicy::ALL.map(EvictionPolicy::name) })
    }
}

/// The value of an [`Amount`] by the kubelet's rules, or what was expected. Absent where it switches a threshold off.
pub(crate) fn value(text: &str, is_reclaim: bool) -> Result<Option<ThresholdAmount<Quantity>>, &'static str> {
    let signal = Signal::MemoryAvailable;
    let value = if is_reclaim { min_reclaim(signal, text).map(Some) } else { statement(signal, text) };
    value.map_err(|error| error.expected(text).unwrap_or_default())
}

/// The same as an amount, without what only a kubelet accepts.
pub(crate) fn amount(text: &str, is_reclaim: bool) -> Result<Option<ThresholdAmount>, &'static str> {
    value(text, is_reclaim)?.map(|value| amount_of(&value).map_err(|odd| odd.expected)).transpose()
}

/// An amount that no machine has and that the kubelet accepts.
pub(crate) struct Odd {
    /// An amount with the same effect; absent where it has none.
    effect: Option<ThresholdAmount>,
    /// The reason for a warning.
    pub(crate) why: &'static str,
    /// What was expected in its place.
    pub(crate) expected: &'static str,
}

/// The amount that `run` takes a value as; absent where it has no effect.
pub(crate) fn effect(value: &ThresholdAmount<Quantity>) -> Option<ThresholdAmount> {
    amount_of(value).map_or_else(|odd| odd.effect, Some)
}

/// Where the threshold of a value is.
pub(crate) fn amount_of(value: &ThresholdAmount<Quantity>) -> Result<ThresholdAmount, Odd> {
    let expected = "expected a percentage from 0% to 100%";
    match value {
        ThresholdAmount::Share(share) if share.fraction().is_nan() => {
            let why = "not a number, which the kubelet accepts: it has no effect";
            Err(Odd { effect: None, why, expected })
        }
        ThresholdAmount::Share(share) if share.fraction() > 1.0 => {
            let why = "above 100%, which the kubelet accepts; taken as 100%";
            Err(Odd { effect: Some(ThresholdAmount::Share(Percentage::of_one(1.0))), why, expected })
        }
        ThresholdAmount::At(quantity) if quantity.bytes().is_none() => Err(Odd {
            effect: Some(ThresholdAmount::bytes(Bytes(u64::MAX))),
            why: "more than any machine has, which the kubelet accepts; taken as the greatest amount",
            expected: "expected a quantity of at most 18446744073709551615",
        }),
        ThresholdAmount::Share(_) | ThresholdAmount::At(_) => Ok(value.exact()),
    }
}
