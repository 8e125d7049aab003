//! The shipped JSON schema: of [`Configuration`] and of the keys that it shares with a kubelet.

use crate::Configuration;
use crate::kubelet::{KEYS, Key, RESERVABLE, Shape};
use crate::scalar::{Amount, Scalar, Span};
use plimsoll_policy::kubelet::Signal;
use schemars::Schema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// From this package's folder, in which cargo runs its tests.
const SHIPPED: &str = "../deploy/plimsoll.schema.json";
/// The same as a table for readers.
const TABLE: &str = "../docs/keys.md";

const DESCRIPTIONS: [(&str, &str); 12] = [
    ("evictionHard", "Less than this is available: evict at once. One threshold here replaces all defaults."),
    (
        "evictionSoft",
        "Less than this is available for as long as the grace period: evict, with a grace for each victim.",
    ),
    ("evictionSoftGracePeriod", "How long a soft threshold must be met. Every soft threshold needs one."),
    ("evictionMinimumReclaim", "Once a threshold was met: reclaim until this much more than it is available."),
    (
        "evictionPressureTransitionPeriod",
        "How long a pressure condition stays after a threshold was last met. 5m by default.",
    ),
    ("evictionMaxPodGracePeriod", "The longest grace for a victim of a soft threshold, in seconds. 0 by default."),
    ("mergeDefaultEvictionSettings", "Add the default thresholds that evictionHard does not set. Not by default."),
    ("enforceNodeAllocatable", "What a kubelet enforces: pods by default. In `run` with podFacts or a cluster alone."),
    ("kubeReserved", "Reserved for the kubelet and the runtime. For replay and explain only."),
    ("systemReserved", "Reserved for the rest of the system. For replay and explain only."),
    ("imageMinimumGCAge", "Images that were first seen less than this ago are not removed for a disk. 2m by default."),
    ("localStorageCapacityIsolation", "Evict pods over their limits of local storage. True by default."),
];

fn signal(signal: Signal) -> &'static str {
    match signal {
        Signal::MemoryAvailable => "Memory of the machine.",
        Signal::AllocatableMemoryAvailable => {
            "Memory that all pods together can have. In `run` with podFacts or a cluster alone."
        }
        Signal::NodeFsAvailable => "Bytes of the file system of the kubelet's directory.",
        Signal::NodeFsInodesFree => "Inodes of the file system of the kubelet's directory.",
        Signal::ImageFsAvailable => {
            "Bytes of the file system of images. `run` evicts for it where it knows their directory (machine.imageRoot)."
        }
        Signal::ImageFsInodesFree => {
            "Inodes of the file system of images. `run` evicts for it where it knows their directory (machine.imageRoot)."
        }
        Signal::ContainerFsAvailable => {
            "Bytes of the file system of containers' writable layers. Ignored: it is derived."
        }
        Signal::ContainerFsInodesFree => {
            "Inodes of the file system of containers' writable layers. Ignored: it is derived."
        }
        Signal::PidAvailable => "Tasks (threads) that the machine can still have.",
    }
}

fn object(description: &str, properties: impl Iterator<Item = (&'static str, Value)>) -> Value {
    let properties: Map<String, Value> = properties.map(|(name, schema)| (name.to_owned(), schema)).collect();
    json!({ "type": "object", "description": description, "properties": properties, "additionalProperties": false })
}

/// The schemas that keys of a kubelet refer to.
fn definitions() -> [(&'static str, Value); 3] {
    let by_signal = |schema: fn() -> Schema| {
        Signal::ALL.into_iter().map(move |of| {
            let mut schema = schema().to_value();
            schema["description"] = signal(of).into();
            (of.name(), schema)
        })
    };
    let quantity = json!({
        "type": ["string", "number"],
        "pattern": "^[+]?[0-9.]+([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$",
    });
    let reserved = RESERVABLE.into_iter().map(|resource| (resource, quantity.clone()));
    [
        (
            "Amounts",
            object("Quantities such as 100Mi or percentages such as 5%, by signal.", by_signal(Amount::schema)),
        ),
        ("GracePeriods", object("Durations such as 1m30s, by signal.", by_signal(Span::<0, { u64::MAX }>::schema))),
        ("Reservations", object("Quantities such as 500Mi, by resource.", reserved)),
    ]
}

fn of_kubelet(key: &Key) -> Value {
    let mut schema = match (key.name, key.shape) {
        ("evictionSoftGracePeriod", _) => json!({ "$ref": "#/$defs/GracePeriods" }),
        ("kubeReserved" | "systemReserved", _) => json!({ "$ref": "#/$defs/Reservations" }),
        (_, Shape::Map(_)) => json!({ "$ref": "#/$defs/Amounts" }),
        (_, Shape::Number) => json!({ "type": "integer", "minimum": 0, "maximum": i32::MAX }),
        (_, Shape::Duration) => Span::<0, { u64::MAX }>::schema().to_value(),
        (_, Shape::Bool) => json!({ "type": "boolean" }),
        (_, Shape::List) => json!({ "type": "array", "items": { "type": "string" } }),
        (name, Shape::Switches | Shape::Text | Shape::Any) => panic!("{name} has a shape without a schema"),
    };
    let (_, description) = DESCRIPTIONS.iter().find(|(name, _)| *name == key.name).expect("each has a description");
    schema["description"] = (*description).into();
    schema
}

fn generated() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Configuration>().to_value();
    for key in KEYS.iter().filter(|key| key.is_own()) {
        schema["properties"][key.name] = of_kubelet(key);
    }
    for (name, definition) in definitions() {
        schema["$defs"][name] = definition;
    }
    schema["title"] = "Plimsoll".into();
    schema["description"] = "The configuration of Plimsoll. Thresholds have the names of KubeletConfiguration.".into();
    schema["additionalProperties"] = false.into();
    schema
}

/// To write it anew: `PLIMSOLL_WRITE_SCHEMA=1 cargo test -p plimsoll-config schema`.
#[test]
fn the_shipped_schema_is_that_of_the_configuration() {
    let text = format!("{}\n", serde_json::to_string_pretty(&generated()).expect("it is JSON"));
    if std::env::var_os("PLIMSOLL_WRITE_SCHEMA").is_some() {
        std::fs::write(SHIPPED, &text).expect("written");
    }
    let shipped = std::fs::read_to_string(SHIPPED).expect("the shipped schema");
    assert!(shipped == text, "{SHIPPED} is stale: set PLIMSOLL_WRITE_SCHEMA=1 and run this test again");
}

/// The table before its rows.
const TABLE_HEAD: &str = "\
# Keys

All keys of Plimsoll's own file, each with the flag and the variable of the environment that override it. The value of a
flag that is `true` or `false` follows `=`, and is `true` without one (`--shadow`, `--shadow=false`). The table is
made from the code: a test fails where it is stale, and `PLIMSOLL_WRITE_SCHEMA=1 cargo test -p plimsoll-config schema`
writes it anew. [plimsoll.yaml](../deploy/plimsoll.yaml) has what each key means,
[CONFIGURATION.md](CONFIGURATION.md#sources) where values come from, and `plimsoll config show` prints what holds on a
machine.

SIGNAL is `memory.available`, `allocatableMemory.available`, `nodefs.available`, `nodefs.inodesFree`,
`imagefs.available`, `imagefs.inodesFree`, `containerfs.available`, `containerfs.inodesFree` or `pid.available`;
RESOURCE is `cpu`, `ephemeral-storage`, `memory` or `pid`. `[]` is an entry of a list. A key without a default is unset
or empty.

| key | value | default | flag | variable |
|---|---|---|---|---|
";

/// The keys of the schema, a row each.
fn table() -> String {
    let shown = crate::rows(&crate::parse("", "f").expect("an empty file is in order"));
    let (root, mut rows) = (generated(), String::new());
    add_rows(&mut rows, "", &root, &root, &shown);
    format!("{TABLE_HEAD}{rows}")
}

/// Adds the keys of `section`, and of the sections and entries of lists in it.
fn add_rows(rows: &mut String, parent: &str, section: &Value, root: &Value, shown: &[crate::Row]) {
    for (name, property) in section["properties"].as_object().expect("an object") {
        let key = if parent.is_empty() { name.clone() } else { format!("{parent}.{name}") };
        let definition = |schema: &Value| Some(schema.get("$ref")?.as_str()?.strip_prefix("#/$defs/")?.to_owned());
        let options = property["anyOf"].as_array().into_iter().flatten();
        let within = definition(property).or_else(|| options.clone().find_map(definition));
        let (key, value) = match (within.as_deref(), definition(&property["items"])) {
            (Some("Amounts"), _) => (format!("{key}.SIGNAL"), "a quantity or a percentage".to_owned()),
            (Some("GracePeriods"), _) => (format!("{key}.SIGNAL"), "a duration".to_owned()),
            (Some("Reservations"), _) => (format!("{key}.RESOURCE"), "a quantity".to_owned()),
            (Some(within), _) => {
                add_rows(rows, &key, &root["$defs"][within], root, shown);
                continue;
            }
            (None, Some(entry)) => {
                add_rows(rows, &format!("{key}[]"), &root["$defs"][entry], root, shown);
                continue;
            }
            (None, None) => {
                let value = accepted(&key, property);
                (key, value)
            }
        };
        let flag = crate::FLAGS.iter().find(|flag| flag.key == key);
        let (long, variable) =
            flag.map_or_else(Default::default, |flag| (format!("`--{}`", flag.long), format!("`{}`", flag.variable)));
        let default = default(&key, property, shown);
        writeln!(rows, "| `{key}` | {value} | {default} | {long} | {variable} |").expect("a String takes all");
    }
}

/// What holds where the file has no such key; nothing where that is empty.
fn default(key: &str, property: &Value, shown: &[crate::Row]) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if let Some(map) = key.strip_suffix("SIGNAL") {
        let of_signals = shown.iter().filter_map(|row| Some((row.key.strip_prefix(map)?, &row.value)));
        return of_signals.map(|(signal, value)| format!("`{signal}: {}`", text(value))).collect::<Vec<_>>().join(", ");
    }
    let value = shown.iter().find(|row| row.key == key).map_or(&property["default"], |row| &row.value);
    match value {
        Value::Null => String::new(),
        value if text(value).is_empty() => String::new(),
        value => format!("`{}`", text(value)),
    }
}

/// What a key takes: by the schema where that has all of it, else in the words in which the reader refuses what is none.
fn accepted(key: &str, property: &Value) -> String {
    let names = |of: &Value| {
        let names = of.as_array().into_iter().flatten().filter_map(|it| it["const"].as_str().or(it.as_str()));
        names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    let refused = || {
        // No duration, path, address, quantity or name.
        let document = key.split('.').rev().fold("'- -'".to_owned(), |inner, name| format!("{{{name}: {inner}}}"));
        let error = crate::parse(&document, "f").expect_err("it is refused").to_string();
        let line = error.lines().find(|line| line.contains("- -")).expect("it names the value");
        line.split_once("expected ").expect("it names what is accepted").1.to_owned()
    };
    match property["type"].as_str() {
        Some("boolean") => "`true`, `false`".to_owned(),
        Some("array") => "a list of texts".to_owned(),
        Some("integer") if property["minimum"] == i32::MIN => "a whole number".to_owned(),
        Some("integer") => format!("a whole number from {} to {}", property["minimum"], property["maximum"]),
        _ if property["oneOf"].is_array() => names(&property["oneOf"]),
        _ if property["enum"].is_array() => names(&property["enum"]),
        _ => match key.rsplit_once("[].") {
            None => refused(),
            Some((_, "path")) => "a path of a cgroup".to_owned(),
            Some((_, "match")) => "a pattern of paths of cgroups".to_owned(),
            Some((_, within)) if within.starts_with("evictionSoftGracePeriod") => "a duration".to_owned(),
            Some(_) => "a quantity or a percentage".to_owned(),
        },
    }
}

/// To write it anew: `PLIMSOLL_WRITE_SCHEMA=1 cargo test -p plimsoll-config schema`.
#[test]
fn the_table_of_keys_is_that_of_the_schema() {
    let text = table();
    if std::env::var_os("PLIMSOLL_WRITE_SCHEMA").is_some() {
        std::fs::write(TABLE, &text).expect("written");
    }
    let written = std::fs::read_to_string(TABLE).expect("the table of keys");
    assert!(written == text, "{TABLE} is stale: set PLIMSOLL_WRITE_SCHEMA=1 and run this test again");
    for key in crate::FLAGS.iter().map(|flag| flag.key.as_str()).chain(["machine.workloads[].match", "swap.grace"]) {
        assert!(text.contains(&format!("| `{key}` |")), "{key}");
    }
    for signal in Signal::ALL {
        assert!(text.contains(&format!("`{}`", signal.name())), "{}", signal.name());
    }
    for resource in RESERVABLE {
        assert!(text.contains(&format!("`{resource}`")), "{resource}");
    }
}

/// A definition in the schema.
fn defined<'a>(root: &'a Value, name: &str) -> &'a Value {
    if name.is_empty() { root } else { &root["$defs"][name] }
}

#[test]
fn schema_and_reader_know_the_same_keys() {
    let root = generated();
    for (definition, key, text) in [
        ("", "unknown", "unknown: 1"),
        ("Machine", "machine.unknown", "machine: {unknown: 1}"),
        ("Swap", "swap.unknown", "swap: {free: 1Gi, unknown: 1}"),
        ("Brake", "machine.brake.unknown", "machine: {brake: {unknown: 1}}"),
        ("Cluster", "machine.cluster.unknown", "machine: {cluster: {unknown: 1}}"),
        (
            "Slice",
            "machine.slices[0].unknown",
            "machine: {slices: [{path: a, evictionHard: {memory.available: 1Mi}, unknown: 1}]}",
        ),
        ("Workload", "machine.workloads[0].unknown", "machine: {workloads: [{match: a, unknown: 1}]}"),
    ] {
        let schema = defined(&root, definition);
        let mut names: Vec<&str> =
            schema["properties"].as_object().expect("an object").keys().map(String::as_str).collect();
        names.sort_unstable();
        // The reader names what it knows.
        let known = format!("f:1: {key}: unknown key; expected {}", crate::tree::any_of(&names));
        let error = crate::parse(text, "f").expect_err("it is unknown").to_string();
        assert_eq!(error, known);
        assert_eq!(schema["additionalProperties"], Value::Bool(false));
    }
}

/// A key that is added to a struct is in the schema with its default, in `config show`, and a flag if it is a scalar.
#[test]
fn every_key_of_the_machine_has_a_description_and_is_shown() {
    let root = generated();
    let machine = defined(&root, "Machine");
    let shown: Vec<String> = crate::rows(&Configuration::default()).into_iter().map(|row| row.key).collect();
    for (name, property) in machine["properties"].as_object().expect("an object") {
        assert!(property["description"].as_str().is_some_and(|text| !text.is_empty()), "{name}");
        assert!(property.get("default").is_some(), "{name}");
        let key = format!("machine.{name}");
        assert!(shown.iter().any(|shown| *shown == key || shown.starts_with(&format!("{key}."))), "{key}");
    }
}
