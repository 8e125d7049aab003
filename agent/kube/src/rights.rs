//! What a token has to be allowed for what this crate asks for, and what is lost without it.
//!
//! The API server answers that itself (SelfSubjectAccessReview), which every authenticated user may ask. It knows the rules of
//! its authorizers, and nothing of admission: what that refuses is seen where it is tried.

use crate::error::chain;
use core::fmt;
use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldSelectorRequirement;
use kube::api::PostParams;
use kube::{Api, Client};

/// Something that a token may do, or may not.
#[derive(Debug, PartialEq, Eq)]
pub struct Right {
    verb: &'static str,
    resource: &'static str,
    subresource: Option<&'static str>,
    of: Of,
    /// What is lost without it.
    pub lost: &'static str,
}

/// Of which objects it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// Those of this node, by a field selector.
    PodsHere,
    /// Those of any namespace.
    Any,
    /// The node's own.
    Node,
    /// The same, for a taint alone.
    Taint,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, resource, subresource, .. } = self;
        write!(f, "{verb} {resource}")?;
        subresource.map_or(Ok(()), |subresource| write!(f, "/{subresource}"))
    }
}

const fn right(
    verb: &'static str,
    (resource, subresource): (&'static str, Option<&'static str>),
    of: Of,
    lost: &'static str,
) -> Right {
    Right { verb, resource, subresource, of, lost }
}

const PODS: (&str, Option<&str>) = ("pods", None);
const NODES: (&str, Option<&str>) = ("nodes", None);

/// All that is asked for ([`crate::watch`], [`crate::watch_node`], [`crate::Reporter`]).
static RIGHTS: [Right; 9] = [
    right("list", PODS, Of::PodsHere, "nothing is known of pods, so that none is evicted"),
    right("watch", PODS, Of::PodsHere, "what is known of pods is not renewed, and new ones are never evicted"),
    right("patch", ("pods", Some("status")), Of::Any, "an evicted pod is deleted, and its status does not say why"),
    right("delete", PODS, Of::Any, "a pod that cannot be marked as evicted is started again by its kubelet"),
    right("create", ("events", None), Of::Any, "evictions have no events"),
    right(
        "get",
        NODES,
        Of::Node,
        "the node is not followed: the annotation of the kill switch is not seen, and a condition that did not change has a new \
         time after each start",
    ),
    right(
        "watch",
        NODES,
        Of::Node,
        "the annotation of the kill switch is seen up to a minute late, and a standard condition that the kubelet takes back not at all",
    ),
    right("patch", ("nodes", Some("status")), Of::Node, "the node has no conditions of Plimsoll's"),
    right("patch", NODES, Of::Taint, "the taint is not set"),
];

impl Right {
    /// All of them, a taint's included.
    pub const fn all() -> &'static [Self] {
        &RIGHTS
    }

    fn review(&self, node: &str) -> SelfSubjectAccessReview {
        let selector = FieldSelectorRequirement {
            key: "spec.nodeName".into(),
            operator: "In".into(),
            values: Some(vec![node.to_owned()]),
        };
        let field_selector = (self.of == Of::PodsHere)
            .then(|| FieldSelectorAttributes { requirements: Some(vec![selector]), raw_selector: None });
        let attributes = ResourceAttributes {
            verb: Some(self.verb.to_owned()),
            resource: Some(self.resource.to_owned()),
            subresource: self.subresource.map(str::to_owned),
            name: matches!(self.of, Of::Node | Of::Taint).then(|| node.to_owned()),
            field_selector,
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), non_resource_attributes: None };
        SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() }
    }
}

/// What of it the client may not do on this node. `taints`: a taint is to be set.
///
/// # Errors
/// Where the API server does not answer, or does not know the client, in a sentence.
pub async fn missing_rights(client: &Client, node: &str, taints: bool) -> Result<Vec<&'static Right>, String> {
    let api = Api::<SelfSubjectAccessReview>::all(client.clone());
    let mut missing = Vec::new();
    for right in RIGHTS.iter().filter(|right| taints || right.of != Of::Taint) {
        let answer = api.create(&PostParams::default(), &right.review(node)).await.map_err(|error| chain(&error))?;
        let is_allowed = answer.status.is_some_and(|status| status.allowed);
        missing.extend((!is_allowed).then_some(right));
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Asked, refused, server};
    use serde_json::{Value, json};

    /// Allows all but what has one of these verbs on one of these resources.
    fn answer(asked: &Asked, denied: &[(&str, &str)]) -> (u16, Value) {
        let attributes = &asked.body["spec"]["resourceAttributes"];
        let is_of =
            |(verb, resource): &(&str, &str)| attributes["verb"] == *verb && attributes["resource"] == *resource;
        let mut review = asked.body.clone();
        review["status"] = json!({ "allowed": !denied.iter().any(is_of) });
        (201, review)
    }

    #[tokio::test]
    async fn what_a_token_may_not_do_is_named_with_what_is_lost() {
        for (denied, taints, expected) in [
            (&[][..], true, &[][..]),
            (&[("watch", "pods"), ("create", "events")], true, &["watch pods", "create events"]),
            (&[("patch", "nodes")], true, &["patch nodes/status", "patch nodes"]),
            (&[("patch", "nodes")], false, &["patch nodes/status"]),
        ] {
            let (client, log) = server(move |asked| answer(asked, denied));
            let missing = missing_rights(&client, "n1", taints).await.expect("it answers");
            let names: Vec<_> = missing.iter().map(ToString::to_string).collect();
            assert_eq!(names, expected);
            assert!(missing.iter().all(|right| !right.lost.is_empty()));
            let log = log.lock().expect("no test failed with it");
            assert_eq!(log.len(), RIGHTS.len() - usize::from(!taints));
            assert!(log.iter().all(|it| it.line() == "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"));
        }
    }

    #[tokio::test]
    async fn pods_are_asked_for_by_the_node_and_nodes_by_name() {
        let (client, log) = server(|asked| answer(asked, &[]));
        missing_rights(&client, "n1", true).await.expect("it answers");
        let log = log.lock().expect("no test failed with it");
        let of = |at: usize| log[at].body["spec"]["resourceAttributes"].clone();
        let here = json!([{ "key": "spec.nodeName", "operator": "In", "values": ["n1"] }]);
        assert_eq!(of(0)["fieldSelector"]["requirements"], here);
        assert_eq!((&of(2)["subresource"], &of(2)["name"]), (&json!("status"), &Value::Null));
        assert_eq!(of(7)["name"], "n1");
    }

    #[tokio::test]
    async fn a_server_that_does_not_know_the_token_is_an_error() {
        let (client, _) = server(|_| refused(401, "Unauthorized", "Unauthorized"));
        let error = missing_rights(&client, "n1", true).await.expect_err("it is refused");
        assert!(error.contains("Unauthorized"), "{error}");
    }
}
