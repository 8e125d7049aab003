//! Events as a kubelet writes them (client-go's tools/record), with this program as their source.

use crate::MANAGER;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

/// The longest name of an object.
const MOST_NAME: usize = 253;
/// Where events of objects without a namespace are.
const NAMESPACE: &str = "default";

/// A pod that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodReference {
    /// Its UID as it is written.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What an event has of its own.
pub(crate) struct Content<'a> {
    /// What it is about; absent for the node.
    pub(crate) pod: Option<&'a PodReference>,
    pub(crate) reason: &'a str,
    pub(crate) message: String,
    /// `Normal` or `Warning`.
    pub(crate) kind: &'a str,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    /// How many there were from the first to the last.
    pub(crate) count: i32,
}

/// Where events are that are about this pod, or without one about the node.
pub(crate) fn namespace(pod: Option<&PodReference>) -> &str {
    pod.map_or(NAMESPACE, |pod| &pod.namespace)
}

/// The event of this node's agent. Its name is that of what it is about and a time, as client-go's recorder makes it: that of
/// the first, which stays while more are counted, so that the same is refused where it is sent again.
pub(crate) fn event(content: Content<'_>, node: &str) -> Event {
    let Content { pod, reason, message, kind, first, last, count } = content;
    let about = match pod {
        Some(PodReference { uid, namespace, name }) => ObjectReference {
            kind: Some("Pod".into()),
            name: Some(name.clone()),
            namespace: Some(namespace.clone()),
            uid: Some(uid.clone()),
            ..ObjectReference::default()
        },
        // As a kubelet has it: the UID of its node is the node's name.
        None => ObjectReference {
            kind: Some("Node".into()),
            name: Some(node.into()),
            uid: Some(node.into()),
            ..ObjectReference::default()
        },
    };
    Event {
        metadata: ObjectMeta {
            name: Some(name_of(pod.map_or(node, |pod| &pod.name), first)),
            namespace: Some(namespace(pod).into()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference { api_version: Some("v1".into()), ..about },
        reason: Some(reason.into()),
        message: Some(message),
        type_: Some(kind.into()),
        source: Some(EventSource { component: Some(MANAGER.into()), host: Some(node.into()) }),
        first_timestamp: Some(Time(first)),
        last_timestamp: Some(Time(last)),
        count: Some(count),
        reporting_component: Some(MANAGER.into()),
        reporting_instance: Some(node.into()),
        ..Event::default()
    }
}

fn name_of(object: &str, at: Timestamp) -> String {
    let suffix = format!(".{:x}", at.as_nanosecond());
    let prefix: String = object.chars().take(MOST_NAME - suffix.len()).collect();
    // A part of a name begins and ends with a letter or a digit.
    format!("{}{suffix}", prefix.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_whatever_it_is_made_of() {
        let at = Timestamp::from_nanosecond(1_700_000_000_123_456_789).expect("a time");
        assert_eq!(name_of("web", at), "web.17979cfe3d85cd15");
        let long = name_of(&"a".repeat(MOST_NAME), at);
        assert_eq!(long.len(), MOST_NAME);
        assert!(long.ends_with("a.17979cfe3d85cd15"), "{long}");
        // Cut behind the dash, or the dot, and in front of "tail".
        for end in ["-", ".", "-.", "--"] {
            let cut = "a".repeat(MOST_NAME - ".17979cfe3d85cd15".len() - end.len());
            assert_eq!(name_of(&format!("{cut}{end}tail"), at), format!("{cut}.17979cfe3d85cd15"), "{end}");
        }
    }
}
