//! Which rights the agent's token has, as the API server's authorizers answer.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use plimsoll_cluster_suite::{Api, RIGHTS, Right};
use serde_json::{Value, json};

use crate::{NODES, agent};

/// Every verb for objects.
const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
/// What every authenticated user may ask of itself (the cluster role `system:basic-user`).
const OF_EVERY_USER: [Right; 3] = [
    ("authentication.k8s.io", "selfsubjectreviews", &["create"]),
    ("authorization.k8s.io", "selfsubjectaccessreviews", &["create"]),
    ("authorization.k8s.io", "selfsubjectrulesreviews", &["create"]),
];
/// Resources beside those, of which each verb is asked for: what a stolen token would be used for next.
const REFUSED: [(&str, &str); 8] = [
    ("", "secrets"),
    ("", "serviceaccounts/token"),
    ("", "pods/exec"),
    ("", "pods/eviction"),
    ("", "pods/binding"),
    ("", "nodes/proxy"),
    ("apps", "daemonsets"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
];

#[test]
fn each_verb_that_is_left_out_is_refused_and_each_that_is_kept_is_granted() {
    let agent = agent(NODES[0]);
    let refused = REFUSED.iter().map(|&(group, resource)| (group, resource, &[][..]));
    let mut wrong = Vec::new();
    for (group, resource, kept) in RIGHTS.into_iter().chain(refused) {
        for verb in VERBS {
            let granted = is_granted(&agent, group, resource, verb).expect("an answer");
            if granted != kept.contains(&verb) {
                wrong.push(format!("{verb} {resource}: {}", if granted { "granted" } else { "refused" }));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn there_is_no_other_right() {
    let granted = rules(&agent(NODES[0])).expect("the list of rules");
    let expected = RIGHTS
        .into_iter()
        .chain(OF_EVERY_USER)
        .flat_map(|(group, resource, verbs)| verbs.iter().map(move |verb| format!("{verb} {group}/{resource}")));
    assert_eq!(granted, expected.collect());
}

fn is_granted(agent: &Api, group: &str, resource: &str, verb: &str) -> Result<bool> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes = json!({"group": group, "resource": resource, "subresource": subresource, "verb": verb});
    let review = review("SelfSubjectAccessReview", &json!({"resourceAttributes": attributes}));
    let answer = agent.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review)?.object()?;
    answer["status"]["allowed"].as_bool().with_context(|| format!("no answer in {answer}"))
}

/// Every rule that grants this user something in the agent's namespace or in all of the cluster, a line for each verb.
fn rules(agent: &Api) -> Result<BTreeSet<String>> {
    let review = review("SelfSubjectRulesReview", &json!({"namespace": "plimsoll"}));
    let answer = agent.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", &review)?.object()?;
    let rules = answer["status"]["resourceRules"].as_array().context("no rules")?;
    let each = |rule: &Value, key: &str| -> Vec<String> {
        rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut lines = BTreeSet::new();
    for rule in rules {
        for group in each(rule, "apiGroups") {
            for resource in each(rule, "resources") {
                lines.extend(each(rule, "verbs").iter().map(|verb| format!("{verb} {group}/{resource}")));
            }
        }
    }
    Ok(lines)
}

fn review(kind: &str, spec: &Value) -> Value {
    json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec})
}
