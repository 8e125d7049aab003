//! KubeletConfiguration as YAML or JSON: a kubelet's file, a drop-in, its answer to configz, or Plimsoll's own file,
//! which uses the same names.

use super::arguments::{WITHOUT_RESOURCE, is_reservation};
use super::keys::{KEYS, Key, Shape};
use super::settings::{Entry, Layer, Patch, PatchValue};
use crate::model::Origin;
use crate::tree::{Name, Node, Problems, Value, duplicates, nearest, read, unknown_key};
use plimsoll_units::Quantity;
use std::collections::BTreeMap;

/// The reader of a file, and how strict it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Plimsoll. An unknown or repeated key is an error; a number is accepted for a text.
    Own,
    /// The kubelet, its own file. It ignores unknown keys and takes the last of repeated ones.
    File,
    /// The kubelet, a drop-in. It ignores unknown keys and refuses repeated ones; `null` removes what was set before.
    DropIn,
    /// The kubelet's answer to `/configz`.
    Configz,
}

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// Files that belong under another option, recognised by a key and, where that is not enough, by its value.
const MISPLACED: [(&str, Option<&str>, &str); 4] = [
    (
        "kind",
        Some("KubeletConfig"),
        "it is an OpenShift KubeletConfig resource, of which the node's file is made; expected that file, \
         /etc/kubernetes/kubelet.conf of the node",
    ),
    ("kind", Some(KIND), "it is a kubelet's own file; expected it under --kubelet-config"),
    ("kubeletArguments", None, "it is OpenShift's node-config.yaml; expected it under --node-config"),
    ("kubeletconfig", None, "it is a kubelet's answer to /configz; expected it under --configz"),
];

/// Keys of k3s's configuration, whose files have no `kind`. A plus behind one adds to its list.
const OF_K3S: [&str; 16] = [
    "kubelet-arg",
    "write-kubeconfig",
    "write-kubeconfig-mode",
    "tls-san",
    "node-name",
    "node-label",
    "node-taint",
    "node-ip",
    "cluster-init",
    "cluster-cidr",
    "flannel-backend",
    "disable",
    "data-dir",
    "server",
    "token",
    "token-file",
];
const K3S: &str = "it is the configuration of k3s, whose kubelet runs in k3s itself; expected the flags in its kubelet-arg, \
                   if it has one, as a command line, each with two dashes before it";

/// Whether a file belongs under another option, which is reported. `own`: the key or value of files that are read here.
pub(crate) fn is_misplaced(root: &Value, own: &str, problems: &mut Problems) -> bool {
    let Value::Map(entries) = root else { return false };
    // `oc get` prints resources in a list.
    let items = entries.iter().filter(|(name, _)| name.text == "items").flat_map(|(_, items)| match &items.value {
        Value::List(items) => items.as_slice(),
        _ => &[],
    });
    let of_items = items.filter_map(|item| if let Value::Map(entries) = &item.value { Some(entries) } else { None });
    let of_any = std::iter::once(entries).chain(of_items).find_map(|entries| misplaced(entries, own));
    let found = of_any.or_else(|| of_k3s(entries));
    if let Some((line, why)) = found {
        problems.add(Some(line), "", None, why);
    }
    found.is_some()
}

/// The line by which a mapping is recognised, and where it belongs.
fn misplaced(entries: &[(Name, Node)], own: &str) -> Option<(u64, &'static str)> {
    let others = MISPLACED.iter().filter(|(key, says, _)| *key != own && *says != Some(own));
    others.into_iter().find_map(|(key, says, why)| {
        let is_said = |value: &Value| says.is_none_or(|says| matches!(value, Value::Text(text) if text == says));
        let found = entries.iter().find(|(name, value)| name.text == *key && is_said(&value.value));
        found.map(|(name, _)| (name.line, *why))
    })
}

/// The same of a configuration of k3s.
fn of_k3s(entries: &[(Name, Node)]) -> Option<(u64, &'static str)> {
    let named = |key: &str| {
        entries.iter().map(|(name, _)| name).find(|name| name.text.strip_suffix('+').unwrap_or(&name.text) == key)
    };
    let found = OF_K3S.into_iter().find_map(named).filter(|_| named("kind").is_none());
    found.map(|name| (name.line, K3S))
}

/// Reads a whole file of the kubelet's.
pub(crate) fn document(text: &str, dialect: Dialect, problems: &mut Problems) -> Layer {
    let Some(document) = read(text, problems) else { return Layer::new() };
    let own = if dialect == Dialect::Configz { "kubeletconfig" } else { KIND };
    if is_misplaced(&document.value, own, problems) {
        return Layer::new();
    }
    repeated(&document.value, dialect, problems);
    if matches!(document.value, Value::Null) {
        problems.add(None, "", None, "it is empty, and the kubelet refuses an empty file");
        return Layer::new();
    }
    let root = document.entries("", problems);
    let entries = if dialect == Dialect::Configz {
        let Some(answer) = document.get("kubeletconfig") else {
            let missing = "missing; expected the kubelet's answer to /configz";
            problems.add(Some(document.line), "kubeletconfig", None, missing);
            return Layer::new();
        };
        answer.entries("kubeletconfig", problems)
    } else {
        type_of(&document, problems);
        root
    };
    mapping(entries, dialect, &["apiVersion", "kind"], problems)
}

/// Reports keys that are repeated.
pub(crate) fn repeated(document: &Value, dialect: Dialect, problems: &mut Problems) {
    for repeated in duplicates(document) {
        let before = format!("the same key is in line {} already", repeated.first);
        match dialect {
            Dialect::Own => problems.add(Some(repeated.line), &repeated.key, None, &before),
            Dialect::DropIn => {
                let refused = format!("{before}, and the kubelet refuses a drop-in for that");
                problems.add(Some(repeated.line), &repeated.key, None, &refused);
            }
            Dialect::File | Dialect::Configz => {
                let taken = format!("{before}; the kubelet takes the last");
                problems.warn(Some(repeated.line), &repeated.key, None, &taken);
            }
        }
    }
}

fn type_of(document: &Node, problems: &mut Problems) {
    for (key, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let expected = format!("expected {wanted}");
        match document.get(key) {
            None => problems.add(Some(document.line), key, None, &format!("missing; {expected}")),
            Some(node) => {
                if node.text(key, &expected, problems).is_some_and(|text| text != wanted) {
                    node.refuse(key, &expected, problems);
                }
            }
        }
    }
}

/// Reads the keys of a mapping. `others` are keys that are read elsewhere.
pub(crate) fn mapping(
    entries: &[(Name, Node)],
    dialect: Dialect,
    others: &[impl AsRef<str>],
    problems: &mut Problems,
) -> Layer {
    let mut layer = Layer::new();
    for (name, item) in entries.iter().filter(|(name, _)| !others.iter().any(|other| other.as_ref() == name.text)) {
        let known = Key::named(&name.text).filter(|key| dialect != Dialect::Own || key.is_own());
        let Some(key) = known else {
            unknown(name, dialect, others, problems);
            continue;
        };
        let patch = Reader { dialect, key, problems }.patch(item);
        match (patch, &item.value) {
            (Some(value), _) => {
                let origin = origin(dialect, problems.file(), item.line);
                layer.insert(key.name, Some(Patch { value, origin }));
            }
            (None, Value::Null) => {
                layer.insert(key.name, None);
            }
            // It is reported.
            (None, _) => {}
        }
    }
    layer
}

fn unknown(name: &Name, dialect: Dialect, others: &[impl AsRef<str>], problems: &mut Problems) {
    let line = Some(name.line);
    let is_own = dialect == Dialect::Own;
    let of_kubelet = KEYS.iter().filter(|key| !is_own || key.is_own()).map(|key| key.name);
    let mut names: Vec<&str> = of_kubelet.chain(others.iter().map(AsRef::as_ref)).collect();
    names.sort_unstable();
    let near = nearest(&name.text, names.iter().copied());
    if let Some(near) = near {
        problems.mean(near);
    }
    if is_own {
        problems.add(line, &name.text, None, &unknown_key(&name.text, &names));
    } else {
        let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        problems.warn(line, &name.text, None, &format!("unknown key; a kubelet of 1.36 ignores it{hint}"));
    }
}

fn origin(dialect: Dialect, file: &str, line: u64) -> Origin {
    let file = file.to_owned();
    match dialect {
        Dialect::Own | Dialect::File | Dialect::Configz => Origin::File { file, line },
        Dialect::DropIn => Origin::DropIn { file, line },
    }
}

/// Reads the value of one key.
struct Reader<'a> {
    dialect: Dialect,
    key: &'static Key,
    problems: &'a mut Problems,
}

impl Reader<'_> {
    /// The value; absent where it is `null` or refused.
    fn patch(&mut self, item: &Node) -> Option<PatchValue> {
        if matches!(item.value, Value::Null) {
            return None;
        }
        let name = self.key.name;
        match self.key.shape {
            Shape::Map(_) | Shape::Switches => self.map(item).map(PatchValue::Map),
            Shape::Number => {
                let expected = "expected a whole number";
                match &item.value {
                    Value::Number(text) => Some(PatchValue::Scalar(text.clone())),
                    Value::Text(text) if self.dialect == Dialect::Own => Some(PatchValue::Scalar(text.clone())),
                    Value::Text(_) => self.refuse(name, item, &format!("{expected}, without quotes")),
                    Value::Null | Value::Bool(..) | Value::List(_) | Value::Map(_) => self.refuse(name, item, expected),
                }
            }
            Shape::Bool => match truth(&item.value, self.dialect) {
                Some(truth) => Some(PatchValue::Scalar(truth.to_string())),
                None => self.refuse(name, item, "expected true or false"),
            },
            Shape::Duration => {
                self.text(name, item, "expected a duration such as 30s, 1m30s or 500ms").map(PatchValue::Scalar)
            }
            Shape::Text => self.text(name, item, "expected a text").map(PatchValue::Scalar),
            Shape::List => {
                let expected = "expected a list of texts, such as [pods]";
                let mut list = Vec::new();
                if !matches!(item.value, Value::List(_)) {
                    return self.refuse(name, item, expected);
                }
                for (key, item) in item.list(name, expected, self.problems) {
                    list.push(self.text(&key, item, "expected a text")?);
                }
                Some(PatchValue::List(list))
            }
            Shape::Any => Some(PatchValue::Any(json(&item.value))),
        }
    }

    fn map(&mut self, item: &Node) -> Option<BTreeMap<String, Option<Entry>>> {
        let entries = match &item.value {
            Value::Map(entries) => entries,
            Value::Text(text) | Value::Number(text) if is_reservation(self.key) && Quantity::parse(text).is_ok() => {
                return self.without_resource(item, text);
            }
            Value::Null | Value::Bool(..) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                return self.refuse(self.key.name, item, "expected a mapping");
            }
        };
        let mut map = BTreeMap::new();
        for (name, item) in entries {
            let full = format!("{}.{}", self.key.name, name.text);
            let text = match &item.value {
                Value::Null if self.dialect == Dialect::DropIn => {
                    map.insert(name.text.clone(), None);
                    continue;
                }
                value if self.key.shape == Shape::Switches => match truth(value, self.dialect) {
                    Some(truth) => Some(truth.to_string()),
                    None => self.refuse(&full, item, "expected true or false"),
                },
                // `null` is read as an empty text, which is reported as such.
                Value::Null => Some(String::new()),
                _ => self.text(&full, item, expected_in(self.key.name)),
            };
            if let Some(text) = text {
                let origin = origin(self.dialect, self.problems.file(), item.line);
                map.insert(name.text.clone(), Some(Entry { text, origin }));
            }
        }
        Some(map)
    }

    /// `systemReserved: 1.5Gi`, as in old documents.
    fn without_resource(&mut self, item: &Node, text: &str) -> Option<BTreeMap<String, Option<Entry>>> {
        if self.dialect == Dialect::Own {
            return self.refuse(self.key.name, item, "expected a mapping, such as {memory: 1.5Gi}");
        }
        self.problems.warn(Some(item.line), self.key.name, Some(text), WITHOUT_RESOURCE);
        let origin = origin(self.dialect, self.problems.file(), item.line);
        Some([("memory".to_owned(), Some(Entry { text: text.to_owned(), origin }))].into())
    }

    /// A text. The kubelet does not take a number for one.
    fn text(&mut self, key: &str, item: &Node, expected: &str) -> Option<String> {
        match &item.value {
            Value::Number(_) if self.dialect != Dialect::Own => {
                self.refuse(key, item, &format!("{expected}, between quotes: the kubelet takes no bare number here"))
            }
            Value::Null | Value::Bool(..) | Value::Number(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => {
                item.text(key, expected, self.problems).map(str::to_owned)
            }
        }
    }

    fn refuse<T>(&mut self, key: &str, item: &Node, expected: &str) -> Option<T> {
        item.refuse(key, expected, self.problems);
        None
    }
}

/// What is expected of the values of a map.
pub(crate) fn expected_in(map: &str) -> &'static str {
    match map {
        "evictionSoftGracePeriod" => "expected a duration such as 1m30s",
        "evictionHard" | "evictionSoft" | "evictionMinimumReclaim" => {
            "expected a quantity such as 100Mi or a percentage such as 5%"
        }
        "kubeReserved" | "systemReserved" => "expected a quantity such as 500Mi",
        _ => "expected a text",
    }
}

/// The kubelet reads YAML 1.1, where these words are booleans.
fn truth(value: &Value, dialect: Dialect) -> Option<bool> {
    match value {
        Value::Bool(truth, _) => Some(*truth),
        Value::Text(word) if dialect != Dialect::Own => match word.as_str() {
            "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
            "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
            _ => None,
        },
        Value::Null | Value::Number(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => None,
    }
}

fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(truth, _) => (*truth).into(),
        Value::Number(text) => {
            let whole = text.parse::<i64>().map(Into::into).or_else(|_| text.parse::<u64>().map(Into::into));
            let number = whole.ok().or_else(|| serde_json::Number::from_f64(text.parse().ok()?));
            number.map_or_else(|| text.clone().into(), serde_json::Value::Number)
        }
        Value::Text(text) => text.clone().into(),
        Value::List(list) => list.iter().map(|item| json(&item.value)).collect(),
        Value::Map(map) => map.iter().map(|(name, item)| (name.text.clone(), json(&item.value))).collect(),
    }
}
