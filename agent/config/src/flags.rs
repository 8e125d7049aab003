//! The scalars of `machine` on the command line and in the environment: they override the file.

use crate::machine::Machine;
use crate::model::Origin;
use crate::tree::{Name, Node, Value};
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
    /// It is true or false, and without a value true.
    pub is_switch: bool,
}

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
            let variable = format!("PLIMSOLL_{}", long.replace('-', "_").to_uppercase());
            let values = property["oneOf"].as_array().into_iter().flatten();
            let values: Vec<&str> = values.filter_map(|value| value["const"].as_str()).collect();
            let help = property["description"].as_str().unwrap_or_default().replace('\n', " ");
            let help = if values.is_empty() { help } else { format!("{help} [{}]", values.join(", ")) };
            let is_switch = property["type"] == "boolean";
            flags.push(Flag { key, long, variable, help, is_switch });
        }
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
        assert!(source.help.ends_with("[auto, ebpf, psi, poll]"), "{}", source.help);
        let switches = FLAGS.iter().filter(|flag| flag.is_switch).map(|flag| flag.long.as_str());
        assert_eq!(
            switches.collect::<Vec<_>>(),
            ["cluster-in-cluster", "evict-for-unattributed", "metrics-for-all", "shadow"]
        );
    }
}
