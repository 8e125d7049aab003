//! Nodes matched by selectors, by pods, and by preferred terms.

use plimsoll_policy::selector::{Node, NodeSelector, Preferred, SelectorError, pod_matches, score};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Case {
    Selector {
        node: Option<ApiNode>,
        selector: Option<NodeSelector>,
        #[serde(rename = "match", default)]
        is_match: bool,
        error: Option<String>,
        strict_match: Option<bool>,
        strict_error: Option<String>,
    },
    Pod {
        node: ApiNode,
        pod: Pod,
        #[serde(rename = "match", default)]
        is_match: bool,
        error: Option<String>,
    },
    Preferred {
        node: ApiNode,
        preferred: Option<Vec<Preferred>>,
        score: Option<i64>,
        error: Option<String>,
    },
}

#[derive(Deserialize)]
pub(crate) struct ApiNode {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
struct Metadata {
    name: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

impl From<ApiNode> for Node {
    fn from(ApiNode { metadata: Metadata { name, labels } }: ApiNode) -> Self {
        Self { name: name.unwrap_or_default(), labels: labels.unwrap_or_default() }
    }
}

#[derive(Deserialize)]
pub(crate) struct Pod {
    #[serde(default)]
    spec: PodSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    node_selector: Option<BTreeMap<String, String>>,
    affinity: Option<Affinity>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Affinity {
    node_affinity: Option<NodeAffinity>,
}

#[derive(Deserialize)]
struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<NodeSelector>,
}

/// Nothing matches where there is an error.
fn lenient(result: Result<bool, SelectorError>) -> (bool, Option<String>) {
    match result {
        Ok(is_match) => (is_match, None),
        Err(error) => (false, Some(error.to_string())),
    }
}

impl crate::Case for Case {
    fn difference(self) -> Option<String> {
        match self {
            Self::Selector { node, selector, is_match, error, strict_match, strict_error } => {
                let node = node.map(Node::from);
                let selector = selector.unwrap_or_default();
                let strict = match selector.matches_strictly(node.as_ref()) {
                    Ok(is_match) => (Some(is_match), None),
                    Err(error) => (None, Some(error.to_string())),
                };
                let ours = (lenient(selector.matches(node.as_ref())), strict);
                let theirs = ((is_match, error), (strict_match, strict_error));
                (ours != theirs).then(|| crate::both(&ours, &theirs))
            }
            Self::Pod { node, pod: Pod { spec }, is_match, error } => {
                let required = spec.affinity.and_then(|affinity| affinity.node_affinity?.required);
                let selector = spec.node_selector.unwrap_or_default();
                let ours = lenient(pod_matches(&selector, required.as_ref(), &node.into()));
                let theirs = (is_match, error);
                (ours != theirs).then(|| crate::both(&ours, &theirs))
            }
            Self::Preferred { node, preferred, score: sum, error } => {
                let ours = score(&preferred.unwrap_or_default(), &node.into()).map_err(|error| error.to_string());
                let theirs = match error {
                    Some(error) => Err(error),
                    None => Ok(sum.unwrap_or_default()),
                };
                (ours != theirs).then(|| crate::both(&ours, &theirs))
            }
        }
    }
}
