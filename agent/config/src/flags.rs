//! The scalars of `machine` on the command line and in the environment: they override the file.

use crate::error::Problem;
use crate::machine::Machine;
use crate::model::Origin;
use crate::tree::{Name, Node, Value, nearest};
use schemars::schema_for;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A scalar of `machine`, as a flag and as a variable of the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Its key, with its parents: `machine.brake.mode`.
    pub key: String,
    /// The flag, without dashes: `brake-mode`.
    pub long: String,
    /// The variable: `PLIMSOLL_BRAKE_MODE`.
    pub variable: String,
    /// A sentence for `--help`, with the accepted values where they are few.
    pub help: String,
    /// What stands for the value there.
    pub value_name: &'static str,
    /// It is true or false, and without a value true.
    pub is_switch: bool,
}

/// How the names of all variables begin.
const PREFIX: &str = "PLIMSOLL_";

/// All of them, by the schema of [`Machine`].
pub static FLAGS: LazyLock<Vec<Flag>> = LazyLock::new(|| {
    let schema = schema_for!(Machine).to_value();
    let mut flags = Vec::new();
    collect("machine", &schema, &schema, &mut flags);
    flags
});

fn collect(parent: &str, schema: &Json, root: &Json, flags: &mut Vec<Flag>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let key = format!("{parent}.{name}");
        let definition = property["$ref"].as_str().and_then(|name| root.pointer(name.strip_prefix('#')?));
        if let Some(section) = definition {
            collect(&key, section, root, flags);
        } else if property["type"] != "array" {
            let long = kebab(key.strip_prefix("machine.").unwrap_or(&key));
            let variable = format!("{PREFIX}{}", long.replace('-', "_").to_uppercase());
            let values = property["oneOf"].as_array().into_iter().flatten();
            let values: Vec<&str> = values.filter_map(|value| value["const"].as_str()).collect();
            let help = property["description"].as_str().unwrap_or_default().replace('\n', " ");
            let help = if values.is_empty() { help } else { format!("{help} [{}]", values.join(", ")) };
            let default = match &property["default"] {
                Json::Null => String::new(),
                Json::String(text) => text.clone(),
                value => value.to_string(),
            };
            let help = if default.is_empty() { help } else { format!("{help} [default: {default}]") };
            let is_switch = property["type"] == "boolean";
            let value_name = value_name(&key, property);
            flags.push(Flag { key, long, variable, help, value_name, is_switch });
        }
    }
}

/// By what the schema accepts.
fn value_name(key: &str, property: &Json) -> &'static str {
    let pattern = property["pattern"].as_str().unwrap_or_default();
    match property["type"].as_str() {
        Some("boolean") => "BOOL",
        Some("integer") => "NUMBER",
        _ if property["oneOf"].is_array() => "NAME",
        _ if pattern.contains("(ns|us") => "DURATION",
        _ if pattern.starts_with("^/") || pattern.starts_with("^(/") => "PATH",
        _ if key.ends_with("Name") => "NAME",
        _ if key.ends_with("Address") => "ADDRESS:PORT",
        _ => "VALUE",
    }
}

/// `brake.inKernel` to `brake-in-kernel`.
fn kebab(key: &str) -> String {
    let mut text = String::new();
    for c in key.chars() {
        match c {
            '.' => text.push('-'),
            c if c.is_ascii_uppercase() => text.extend(['-', c.to_ascii_lowercase()]),
            c => text.push(c),
        }
    }
    text
}

/// Variables whose names begin as these do are used by what builds, tests and measures the agent.
const OF_THE_PROJECT: [&str; 11] = [
    "PLIMSOLL_CACHE",
    "PLIMSOLL_DEBIAN_MIRROR",
    "PLIMSOLL_HOSTILE_",
    "PLIMSOLL_KILL_DEVICE",
    "PLIMSOLL_KILL_POINT",
    "PLIMSOLL_LOSE_EVENTS",
    "PLIMSOLL_NO_WATCHDOG",
    "PLIMSOLL_PROGRAM",
    "PLIMSOLL_TEST_",
    "PLIMSOLL_VECTORS",
    "PLIMSOLL_WRITE_SCHEMA",
];

/// Warnings of variables of the environment that have the form of Plimsoll's own and are not among the `known`, of [`FLAGS`] or
/// of the program.
pub fn unknown_variables(names: impl IntoIterator<Item = String>, known: &[&str]) -> Vec<Problem> {
    let known = FLAGS.iter().map(|flag| flag.variable.as_str()).chain(known.iter().copied());
    let known: Vec<&str> = known.filter_map(|name| name.strip_prefix(PREFIX)).collect();
    let is_used = |name: &str| {
        // Kubernetes sets these in pods for a service that is called `plimsoll`, or begins so.
        let is_link = name.ends_with("_SERVICE_HOST")
            || name.contains("_SERVICE_PORT")
            || name.ends_with("_PORT")
            || name.contains("_PORT_");
        is_link || OF_THE_PROJECT.iter().any(|beginning| name.starts_with(beginning))
    };
    let mut names: Vec<String> = names.into_iter().filter(|name| !is_used(name)).collect();
    names.sort_unstable();
    let warning = |name: &String| {
        let own = name.strip_prefix(PREFIX).filter(|own| !known.contains(own))?;
        let expected = match nearest(own, known.iter().copied()) {
            Some(near) => format!("unknown; did you mean {PREFIX}{near}?"),
            None => "unknown, and without effect; `plimsoll run --help` has all variables".to_owned(),
        };
        Some(Problem { file: name.clone(), line: None, key: String::new(), value: None, expected })
    };
    names.iter().filter_map(warning).collect()
}

/// A value from the command line or the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The key, with its parents.
    pub key: String,
    /// The value as it is written.
    pub text: String,
    /// The flag or the variable.
    pub origin: Origin,
}

/// What overrides the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Values of [`FLAGS`].
    pub values: Vec<Override>,
    /// The outermost cgroup that is the agent's alone, below the root: no workload may hold it.
    pub own_cgroup: Option<String>,
}

impl Overrides {
    pub(crate) fn origins(&self) -> BTreeMap<String, Origin> {
        self.values.iter().map(|value| (value.key.clone(), value.origin.clone())).collect()
    }

    /// Puts the values into a document.
    pub(crate) fn apply(&self, root: &mut Node) {
        for Override { key, text, .. } in &self.values {
            put(root, &key.split('.').collect::<Vec<_>>(), text);
        }
    }
}

/// Where the document has a scalar or a list for a section, that is refused when it is read.
fn put(node: &mut Node, path: &[&str], text: &str) {
    let Some((name, rest)) = path.split_first() else {
        node.value = Value::Text(text.to_owned());
        return;
    };
    if matches!(node.value, Value::Null) {
        node.value = Value::Map(Vec::new());
    }
    if let Value::Map(map) = &mut node.value {
        let index = map.iter().rposition(|(found, _)| found.text == *name).unwrap_or_else(|| {
            map.push((Name { line: 0, text: (*name).to_owned() }, Node { line: 0, column: 0, value: Value::Null }));
            map.len() - 1
        });
        put(&mut map[index].1, rest, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_none_is_warned_of_with_the_one_that_was_probably_meant() {
        let warned = |name: &str| {
            let warnings = unknown_variables([name.to_owned()], &["PLIMSOLL_CONFIG"]);
            warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        for (name, expected) in [
            ("PLIMSOLL_SHADW", "PLIMSOLL_SHADW: unknown; did you mean PLIMSOLL_SHADOW?"),
            ("PLIMSOLL_CONFG", "PLIMSOLL_CONFG: unknown; did you mean PLIMSOLL_CONFIG?"),
            (
                "PLIMSOLL_COLOUR",
                "PLIMSOLL_COLOUR: unknown, and without effect; `plimsoll run --help` has all variables",
            ),
            ("PLIMSOLL_SHADOW", ""),
            ("PLIMSOLL_CONFIG", ""),
            ("PLIMSOLL_CACHE", ""),
            ("PLIMSOLL_TEST_ROUNDS", ""),
            ("PLIMSOLL_SERVICE_HOST", ""),
            ("PLIMSOLL_METRICS_SERVICE_PORT_HTTP", ""),
            ("PLIMSOLL_PORT", ""),
            ("PLIMSOLL_PORT_9464_TCP_ADDR", ""),
            ("SHADW", ""),
        ] {
            assert_eq!(warned(name), expected);
        }
    }

    #[test]
    fn every_scalar_of_the_machine_is_a_flag() {
        let longs: Vec<&str> = FLAGS.iter().map(|flag| flag.long.as_str()).collect();
        assert_eq!(
            longs,
            [
                "brake-deadline",
                "brake-mode",
                "cluster-in-cluster",
                "cluster-kubeconfig",
                "cluster-node-name",
                "cluster-standard-conditions",
                "cluster-taint",
                "container-root",
                "evict-for-unattributed",
                "hold-down",
                "image-root",
                "journal-directory",
                "kill-switch",
                "kubelet-root",
                "log-format",
                "metrics-address",
                "metrics-for-all",
                "pod-facts",
                "poll-period",
                "reclaim-pause",
                "responsible-percent",
                "runtime-socket",
                "shadow",
                "source",
                "stall-percent",
                "state-directory",
                "static-pods",
                "throttled",
                "victims-per-minute",
            ]
        );
        let source = FLAGS.iter().find(|flag| flag.long == "source").expect("it is there");
        assert_eq!((source.key.as_str(), source.variable.as_str()), ("machine.source", "PLIMSOLL_SOURCE"));
        assert!(source.help.ends_with("[auto, ebpf, psi, poll] [default: auto]"), "{}", source.help);
        assert!(FLAGS.iter().all(|flag| flag.value_name != "VALUE"), "{:?}", *FLAGS);
        let of = |long: &str| FLAGS.iter().find(|flag| flag.long == long).expect("it is there");
        for (long, value_name, default) in [
            ("brake-deadline", "DURATION", "[default: 2s]"),
            ("hold-down", "DURATION", "where it is a pause before the pod runs again."),
            ("kill-switch", "PATH", "[default: /etc/plimsoll/kill-switch]"),
            ("metrics-address", "ADDRESS:PORT", "[default: 127.0.0.1:9464]"),
            ("shadow", "BOOL", "[default: false]"),
            ("victims-per-minute", "NUMBER", "[default: 30]"),
        ] {
            assert_eq!(of(long).value_name, value_name);
            assert!(of(long).help.ends_with(default), "{}", of(long).help);
        }
        let switches = FLAGS.iter().filter(|flag| flag.is_switch).map(|flag| flag.long.as_str());
        assert_eq!(
            switches.collect::<Vec<_>>(),
            ["cluster-in-cluster", "evict-for-unattributed", "metrics-for-all", "shadow"]
        );
    }
}
