//! JSON with the place of what is wrong in it.

use crate::pod::{Pod, full_name};
use crate::spec::FieldError;
use core::fmt;
use k8s_openapi::api::core::v1 as api;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// Why JSON cannot be read: where, which key, what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// The line, from 1.
    pub line: usize,
    /// The key with its parents: `node.memory.time`; a dot for the value as a whole.
    pub key: String,
    /// What is wrong.
    pub why: String,
}

impl ReadError {
    /// An error of the value as a whole.
    pub fn whole(line: usize, why: &str) -> Self {
        Self { line, key: ".".to_owned(), why: why.to_owned() }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, key, why } = self;
        write!(f, "{line}: ")?;
        if key != "." {
            write!(f, "{key}: ")?;
        }
        f.write_str(why)
    }
}

impl core::error::Error for ReadError {}

/// Reads one value, which begins in this line.
pub fn parse<T: DeserializeOwned>(bytes: &[u8], line: usize) -> Result<T, ReadError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        // A key may be empty.
        let key = if path.is_empty() { "\"\"".to_owned() } else { path };
        ReadError { key, ..placed(&error.into_inner(), line) }
    })?;
    deserializer
        .end()
        .map_err(|error| ReadError { why: "something follows the value".into(), ..placed(&error, line) })?;
    Ok(value)
}

/// An error of JSON that begins in this line.
fn placed(error: &serde_json::Error, line: usize) -> ReadError {
    let why = error.to_string();
    // The place is reported beside it, counted from the beginning of the file.
    let why = why.rsplit_once(" at line ").map_or(why.as_str(), |(why, _)| why);
    ReadError::whole(line + error.line().saturating_sub(1), why)
}

/// A list of pods. Each is read by itself, so that an error can name the pod.
#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

/// Reads a list of pods as `kubectl get pods -o json` and a kubelet's `/pods` print it. Each has a name and a UID.
///
/// # Errors
/// Where it is no such list, or where one of the pods cannot be read.
pub fn read_pods(bytes: &[u8]) -> Result<Vec<Pod>, ReadError> {
    pods_of(bytes)?.collect()
}

/// The same, each pod by itself: one that cannot be read leaves the others.
///
/// # Errors
/// Where it is no list of pods.
pub fn pods_of(bytes: &[u8]) -> Result<impl Iterator<Item = Result<Pod, ReadError>>, ReadError> {
    let list: List<'_> = serde_json::from_slice(bytes).map_err(|error| {
        let hint = core::str::from_utf8(bytes).ok().and_then(not_a_list_of_pods);
        hint.map_or_else(|| placed(&error, 1), |hint| ReadError::whole(1, hint))
    })?;
    // Lines are counted once for all pods: a list of thousands has as many errors, if its author likes.
    let (mut before, mut counted) = (0, 0);
    let read = move |(index, raw): (usize, &RawValue)| {
        let (raw, begin) = (raw.get().as_bytes(), raw.get().as_ptr().addr() - bytes.as_ptr().addr());
        before += bytes.iter().take(begin).skip(counted).filter(|byte| **byte == b'\n').count();
        counted = begin;
        pod(raw, 1 + before).map_err(|error| {
            let ReadError { line, key, why } = error;
            let key = if key == "." { format!("items[{index}]") } else { format!("items[{index}].{key}") };
            let why = name(raw).map_or(why.clone(), |name| format!("pod {name}: {why}"));
            ReadError { line, key, why }
        })
    };
    Ok(list.items.into_iter().enumerate().map(read))
}

fn pod(bytes: &[u8], line: usize) -> Result<Pod, ReadError> {
    let pod: api::Pod = parse(bytes, line)?;
    let of_field = |FieldError { path, why }| ReadError { line, key: path, why };
    for (path, text) in [("metadata.name", &pod.metadata.name), ("metadata.uid", &pod.metadata.uid)] {
        if text.as_ref().is_none_or(String::is_empty) {
            return Err(of_field(FieldError {
                path: path.to_owned(),
                why: "missing; every pod of a list has it".into(),
            }));
        }
    }
    Pod::try_from(pod).map_err(of_field)
}

/// The name of a pod that could not be read otherwise.
fn name(bytes: &[u8]) -> Option<String> {
    let pod: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    let of = |field: &str| pod.get("metadata")?.get(field)?.as_str();
    Some(full_name(of("namespace").unwrap_or_default(), of("name")?))
}

/// What a text is that was given for a list of pods and is none, if that is known.
fn not_a_list_of_pods(text: &str) -> Option<&'static str> {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(value) if value["kind"] == "Pod" => {
            Some("it is a single pod; expected a list, as `kubectl get pods -A -o json` prints it")
        }
        Ok(_) => {
            Some("it has no list named items; expected a list of pods, as `kubectl get pods -A -o json` prints it")
        }
        Err(_) => text
            .lines()
            .any(|line| line.starts_with("apiVersion:") || line.starts_with("kind:"))
            .then_some("it looks like YAML; expected JSON, as `kubectl get pods -A -o json` prints it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_read_names_the_pod_the_field_the_value_and_what_was_expected() {
        let of = |metadata: &str, spec: &str| {
            format!(
                "{{\"items\": [{{\"metadata\": {{\"name\": \"a\", \"uid\": \"1\"}}}},\n{{\"metadata\": {{{metadata}}}, \"spec\":\n{{{spec}}}}}]}}"
            )
        };
        let container = |resources: &str| {
            let spec = format!(r#""containers": [{{"name": "c", "resources": {resources}}}]"#);
            of(r#""name": "web", "namespace": "shop", "uid": "2""#, &spec)
        };
        let expected = "expected a quantity such as 500Mi, not \"1Q\": ";
        for (text, begin) in [
            (container(r#"{"requests": {"memory": "1Q"}}"#), format!("2: items[1].spec.containers[0].resources.requests.memory: pod shop/web: {expected}")),
            (container(r#"{"requests": 7}"#), "3: items[1].spec.containers[0].resources.requests: pod shop/web: invalid type: integer `7`, expected a map".to_owned()),
            (of(r#""name": "web", "uid": "2""#, r#""volumes": [{"emptyDir": {"sizeLimit": "1Q"}}]"#), format!("2: items[1].spec.volumes[0].emptyDir.sizeLimit: pod web: {expected}")),
            (of(r#""name": "web""#, ""), "2: items[1].metadata.uid: pod web: missing; ".to_owned()),
            (of(r#""uid": "2""#, ""), "2: items[1].metadata.name: missing; ".to_owned()),
            (of(r#""name": "b", "uid": "2", "deletionTimestamp": "noon""#, ""), "2: items[1].metadata.deletionTimestamp: pod b: ".to_owned()),
            (r#"{"items": [7]}"#.to_owned(), "1: items[0]: invalid type: integer `7`, expected Pod".to_owned()),
            (r#"{"items": 1}"#.to_owned(), "1: it has no list named items; expected a list of pods".to_owned()),
            ("{}".to_owned(), "1: it has no list named items".to_owned()),
            ("[]".to_owned(), "1: it has no list named items".to_owned()),
            (String::new(), "1: EOF".to_owned()),
            (r#"{"kind": "Pod", "metadata": {"name": "a"}}"#.to_owned(), "1: it is a single pod; expected a list".to_owned()),
            ("apiVersion: v1\nkind: List\nitems: []\n".to_owned(), "1: it looks like YAML; expected JSON".to_owned()),
        ] {
            let error = read_pods(text.as_bytes()).map(drop).expect_err(&text).to_string();
            assert!(error.starts_with(&begin), "{text}\n{error}");
        }
    }

    #[test]
    fn a_pod_that_cannot_be_read_leaves_the_others_and_each_has_its_line() {
        let pod = |uid: &str| format!(r#"{{"metadata": {{"name": "a", "uid": {uid}}}}}"#);
        let text = format!("{{\"items\": [\n{},\n\n{}, {},\n{}]}}", pod("1"), pod("\"2\""), pod("3"), pod("4"));
        let lines: Vec<_> = pods_of(text.as_bytes())
            .expect("a list")
            .map(|read| read.map(|pod| pod.uid).map_err(|error| (error.line, error.key)))
            .collect();
        let wrong = |line, index| Err((line, format!("items[{index}].metadata.uid")));
        assert_eq!(lines, [wrong(2, 0), Ok("2".to_owned()), wrong(4, 2), wrong(5, 3)]);
    }

    #[test]
    fn fields_that_are_not_known_and_empty_lists_of_go_are_accepted() {
        let text = r#"{"kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod", "new": 1, "metadata": {"name": "a", "uid": "1",
            "annotations": null}, "spec": {"containers": null, "newer": {}}, "status": null}]}"#;
        assert_eq!(read_pods(text.as_bytes()).expect("a list").len(), 1);
    }
}
