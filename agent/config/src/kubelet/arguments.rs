//! A kubelet's command line, which overrides its files.

use super::flag;
use super::keys::{KEYS, Key, Shape};
use super::read::is_misplaced;
use super::settings::{Entry, Setting, SettingValue, Settings};
use super::typed::place;
use crate::model::Origin;
use crate::tree::{self, Problems, Value, read};
use plimsoll_units::Quantity;
use std::collections::BTreeMap;

/// A word of a command line, and its line in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) file: String,
    pub(crate) line: Option<u64>,
}

/// A flag with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flag {
    /// Without dashes.
    pub(crate) name: String,
    /// Absent for a switch without a value, and for a flag at the end that lacks its value.
    pub(crate) value: Option<String>,
    pub(crate) origin: Origin,
}

/// Parses words as the kubelet does: `--name=value`, `--name value`, and switches alone.
///
/// Words before the first flag are the program and its subcommands. A word behind it that is no flag is reported, since
/// the kubelet refuses it.
pub(crate) fn flags(words: &[Word], problems: &mut Problems) -> Vec<Flag> {
    let mut flags = Vec::new();
    let mut rest = words.iter().skip_while(|word| !word.text.starts_with('-')).peekable();
    while let Some(word) = rest.next() {
        problems.turn_to(&word.file);
        let text = word.text.as_str();
        let (name, given) = match text.strip_prefix("--") {
            Some("") => break,
            Some(long) => match long.split_once('=') {
                Some((name, value)) => (name.replace('_', "-"), Some(value.to_owned())),
                None => (long.replace('_', "-"), None),
            },
            // The only short flag that takes part is the log level: -v=2, -v2, -v 2.
            None => match text.strip_prefix("-v") {
                Some("") => ("v".to_owned(), None),
                Some(level) => ("v".to_owned(), Some(level.strip_prefix('=').unwrap_or(level).to_owned())),
                None => {
                    problems.warn(
                        word.line,
                        text,
                        None,
                        "not a flag, and the kubelet refuses it; expected --NAME=VALUE",
                    );
                    continue;
                }
            },
        };
        let known = Key::of_flag(&name);
        // An unknown flag may be a switch; a word behind it that is no flag is taken as its value.
        let takes_value = known.is_none_or(|key| key.shape != Shape::Bool);
        let follows = rest.peek().is_some_and(|next| known.is_some() || !next.text.starts_with('-'));
        let value = match given {
            Some(value) => Some(value),
            None if takes_value && follows => rest.next().map(|next| next.text.clone()),
            None => None,
        };
        let origin = Origin::KubeletFlag { flag: format!("--{name}"), file: word.file.clone(), line: word.line };
        flags.push(Flag { name, value, origin });
    }
    flags
}

/// The flags in an OpenShift `node-config.yaml`: `kubeletArguments`, each with a list of values.
pub(crate) fn node_config(text: &str, problems: &mut Problems) -> Vec<Flag> {
    let Some(document) = read(text, problems) else { return Vec::new() };
    if is_misplaced(&document.value, "kubeletArguments", problems) {
        return Vec::new();
    }
    for repeated in tree::duplicates(&document.value) {
        let why = format!("the same key is in line {} already", repeated.first);
        problems.add(Some(repeated.line), &repeated.key, None, &why);
    }
    let mut flags = Vec::new();
    document.entries("", problems);
    if let Some(path) = document.get("podManifestConfig").and_then(|section| section.get("path")) {
        let flag = "podManifestConfig.path".to_owned();
        if let Some(text) = path.text(&flag, "expected the path of static pods", problems) {
            let origin = Origin::KubeletFlag { flag, file: problems.file().to_owned(), line: Some(path.line) };
            flags.push(Flag { name: "pod-manifest-path".to_owned(), value: Some(text.to_owned()), origin });
        }
    }
    let key = "kubeletArguments";
    let Some(arguments) = document.get(key) else {
        let missing = "missing; expected the kubelet's flags, each with a list of values";
        problems.warn(Some(document.line), key, None, missing);
        return flags;
    };
    for (name, node) in arguments.entries(key, problems) {
        let full = format!("{key}.{}", name.text);
        for (place, item) in node.list(&full, "expected a list such as [\"memory.available<500Mi\"]", problems) {
            let value = match &item.value {
                Value::Text(text) | Value::Number(text) => text.clone(),
                Value::Bool(truth, _) => truth.to_string(),
                Value::Null | Value::List(_) | Value::Map(_) => {
                    item.refuse(&place, "expected the text of one value", problems);
                    continue;
                }
            };
            let origin =
                Origin::KubeletFlag { flag: full.clone(), file: problems.file().to_owned(), line: Some(item.line) };
            flags.push(Flag { name: name.text.replace('_', "-"), value: Some(value), origin });
        }
    }
    flags
}

/// Puts flags over the settings of files. For a map or a list, the first flag replaces the setting and later ones add to
/// it; for anything else the last counts.
pub(crate) fn apply(flags: &[Flag], settings: &mut Settings, problems: &mut Problems) {
    let mut given: BTreeMap<&'static str, Setting> = BTreeMap::new();
    for flag in flags {
        let (file, line) = flag.origin.place();
        problems.turn_to(file);
        let place = place("", None, &flag.origin);
        let Some(key) = Key::of_flag(&flag.name) else {
            let near = tree::nearest(&flag.name, KEYS.iter().filter_map(|key| key.flag));
            if let Some(key) = near.and_then(Key::of_flag) {
                problems.mean(key.name);
            }
            let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            let why = format!("unknown flag; a kubelet of 1.36 refuses it{hint}");
            problems.warn(line, &place, flag.value.as_deref(), &why);
            continue;
        };
        if let Some(reason) = key.deprecated {
            problems.warn(line, &place, flag.value.as_deref(), &format!("deprecated: {reason}"));
        }
        let Some(value) = flag.value.as_deref().or((key.shape == Shape::Bool).then_some("true")) else {
            problems.add(line, &place, None, "expected a value");
            continue;
        };
        match key.shape {
            Shape::Map(separator) => pairs(key, flag, value, separator, &mut given, settings, problems),
            Shape::Switches => pairs(key, flag, value, '=', &mut given, settings, problems),
            Shape::List => {
                let values = value.split(',').filter(|value| !value.is_empty()).map(str::to_owned);
                let setting = given
                    .entry(key.name)
                    .or_insert_with(|| Setting { value: SettingValue::List(Vec::new()), origin: flag.origin.clone() });
                if let SettingValue::List(list) = &mut setting.value {
                    list.extend(values);
                }
            }
            Shape::Number | Shape::Duration | Shape::Bool | Shape::Text | Shape::Any => {
                let text = match (key.shape, truth(value)) {
                    (Shape::Bool, None) => {
                        problems.add(line, &place, Some(value), "expected true or false");
                        continue;
                    }
                    (Shape::Bool, Some(truth)) => truth.to_string(),
                    (Shape::Number, _) => number(value).map_or_else(|| value.to_owned(), |number| number.to_string()),
                    _ => value.to_owned(),
                };
                let setting = Setting { value: SettingValue::Scalar(text), origin: flag.origin.clone() };
                if let Some(before) = given.insert(key.name, setting) {
                    let taken = format!("given before at {}; the last counts", before.origin);
                    problems.warn(line, &place, Some(value), &taken);
                }
            }
        }
    }
    for (name, setting) in given {
        if let Some(key) = KEYS.iter().find(|key| key.name == name) {
            settings.set(key, setting);
        }
    }
}

fn pairs(
    key: &'static Key,
    flag: &Flag,
    value: &str,
    separator: char,
    given: &mut BTreeMap<&'static str, Setting>,
    settings: &Settings,
    problems: &mut Problems,
) {
    let line = flag.origin.place().1;
    let place = place("", None, &flag.origin);
    let setting = given.entry(key.name).or_insert_with(|| {
        // Feature gates of the file stay beside those of the flag; other maps are replaced.
        let before = settings.map(key.name).filter(|_| key.shape == Shape::Switches);
        let map = before.map(|(name, entry)| (name.clone(), entry.clone())).collect();
        Setting { value: SettingValue::Map(map), origin: flag.origin.clone() }
    });
    let SettingValue::Map(map) = &mut setting.value else { return };
    for (pair, read) in flag::pairs(value, separator) {
        let (name, text) = match read {
            Some(read) => read,
            None if is_reservation(key) && Quantity::parse(pair.trim()).is_ok() => {
                problems.warn(line, &place, Some(pair), WITHOUT_RESOURCE);
                ("memory", pair.trim())
            }
            None => {
                problems.add(line, &place, Some(pair), expected_pair(key));
                continue;
            }
        };
        let text = match (key.shape, truth(text)) {
            (Shape::Switches, None) => {
                problems.add(line, &place, Some(pair), "expected true or false");
                continue;
            }
            (Shape::Switches, Some(truth)) => truth.to_string(),
            _ => text.to_owned(),
        };
        let entry = Entry { text, origin: flag.origin.clone() };
        if let Some(before) = map.insert(name.to_owned(), entry)
            && matches!(before.origin, Origin::KubeletFlag { .. })
        {
            let why = format!("{name} was given before, as {}; the last counts", before.text);
            problems.warn(line, &place, Some(pair), &why);
        }
    }
}

/// The message for a reservation without its resource.
pub(crate) const WITHOUT_RESOURCE: &str = "a resource is missing, and the kubelet refuses it; taken for memory, as \
                                           `plimsoll config convert` writes it";

pub(crate) fn is_reservation(key: &Key) -> bool {
    matches!(key.name, "kubeReserved" | "systemReserved")
}

fn expected_pair(key: &Key) -> &'static str {
    match key.name {
        "evictionHard" | "evictionSoft" => "expected SIGNAL<QUANTITY such as memory.available<1Gi",
        "evictionSoftGracePeriod" => "expected SIGNAL=DURATION such as memory.available=1m30s",
        "evictionMinimumReclaim" => "expected SIGNAL=QUANTITY such as imagefs.available=2Gi",
        "kubeReserved" | "systemReserved" => "expected RESOURCE=QUANTITY such as memory=1.5Gi",
        _ => "expected NAME=VALUE",
    }
}

/// What Go parses as true and false.
fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A whole number as Go parses one without a base: 10, 0x10, 0b1, 0o7, 010, 1_000.
fn number(text: &str) -> Option<i64> {
    let negative = text.starts_with('-');
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let lower = unsigned.to_ascii_lowercase();
    let (digits, base) = match lower.get(..2) {
        Some("0x") => (&lower[2..], 16),
        Some("0b") => (&lower[2..], 2),
        Some("0o") => (&lower[2..], 8),
        _ if lower.len() > 1 && lower.starts_with('0') => (&lower[1..], 8),
        _ => (lower.as_str(), 10),
    };
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let number = i64::from_str_radix(&digits.replace('_', ""), base).ok()?;
    Some(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        for (text, read) in [
            ("10", Some(10)),
            ("-1", Some(-1)),
            ("+7", Some(7)),
            ("0x10", Some(16)),
            ("010", Some(8)),
            ("0b11", Some(3)),
            ("1_000", Some(1000)),
            ("0", Some(0)),
            ("", None),
            ("--1", None),
            ("1.5", None),
            ("ten", None),
            ("9223372036854775808", None),
            ("ä1", None),
        ] {
            assert_eq!(number(text), read, "{text}");
        }
    }
}
