//! What the API server refuses of an eviction: the status of the pod for good, so that it is deleted; or each request for a
//! time, so that it is recorded later.

use std::collections::BTreeSet;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use plimsoll_cluster_suite::{Answer, Api, Format, RIGHTS, Unfinished, wait_for};
use serde_json::{Value, json};

use crate::eviction::{SETTLED, never_restarted, recorded};
use crate::service_manager::Pipe;
use crate::turn::Turn;
use crate::view::{self, IDLE, PODS, pod, pod_that_takes};
use crate::{NODE, PATIENCE, overlay};

/// The user that the agents are.
const NAMESPACE: &str = "plimsoll";
const ACCOUNT: &str = "plimsoll";
/// The name of all that a test makes here.
const NAME: &str = "test-refuses";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const EVENTS: &str = "/api/v1/namespaces/default/events";
/// The right that the agent uses only where the API server does not list pods as the beginning of a watch, and after a conflict.
const LIST: &str = "list /pods";
/// What the policy says.
const WHY: &str = "a test refuses it";

/// By 422, which no later try can change.
#[test]
fn a_pod_whose_status_is_refused_as_invalid_is_deleted() {
    drop(deleted_where_its_status_is_refused("Invalid", 422));
}

/// By 403, which an API server answers for a time after its own start, too: the agent waits for two minutes. With an eviction that
/// is recorded each of its rights was used then.
#[test]
fn a_pod_whose_status_is_forbidden_is_deleted() {
    let turn = deleted_where_its_status_is_refused("Forbidden", 403);
    turn.create(&pod_that_takes("recorded", 2600, 0)).expect("it is accepted");
    turn.is_evicted("recorded").expect("it is evicted");
    turn.pressure_ends().expect("there is room");
    every_right_is_used(&turn).expect("each is for something");
}

/// The agent has one place at the API server, and another request of its user keeps that: all of its own are answered with 429.
#[test]
fn a_pod_is_recorded_once_when_the_api_server_has_a_place_for_the_agents_requests_again() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    let pipe = Pipe::make(&turn).expect("it is made");
    turn.create(&pipe.held(pod_that_takes("grower", 2600, 0))).expect("it is accepted");
    for name in ["bystander", "grower"] {
        turn.runs(name).expect("it runs");
    }
    let running = view::stored(&turn, "grower").expect("it is there");
    let mut console = turn.console(NODE).expect("it is there");
    // The API server waits for the rest of a request for a minute: the place is kept when all else is under way.
    pipe.open(&turn).expect("it is opened");
    let busy = busy(&turn).expect("each of its requests is answered with 429");
    console.wait(&["\"kill\":\"begun\"", "\"pod\":\"default/grower\""], PATIENCE).expect("it is killed");
    console.wait(&["does not take what is reported", " 429 "], PATIENCE).expect("the record is refused");
    let unrecorded = view::stored(&turn, "grower").expect("it is there");
    drop(busy);
    assert_eq!(unrecorded["metadata"]["annotations"], running["metadata"]["annotations"], "it was recorded meanwhile");
    turn.is_evicted("grower").expect("it is evicted");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    recorded(&turn, "grower").expect("once, and it stays evicted");
    never_restarted(&turn, "grower").expect("it stays dead");
    turn.runs("bystander").expect("it runs on");
}

/// The pod is deleted with a grace of a second, by its UID, and has its one event; its status is never the agent's.
fn deleted_where_its_status_is_refused(reason: &str, status: u16) -> Turn {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    let policy = policy(&turn, reason, status).expect("it is enforced");
    let mut console = turn.console(NODE).expect("it is there");
    turn.create(&pod_that_takes("refused", 2600, 60)).expect("it is accepted");
    turn.runs("refused").expect("it runs");
    let running = view::stored(&turn, "refused").expect("it is there");
    let deletes = ["the status of pod default/refused cannot be set, and it is deleted", WHY];
    console.wait(&deletes, PATIENCE).expect("the refusal is taken as one for good");
    wait_for("it is gone", PATIENCE, || Ok((turn.api.get(&format!("{PODS}/refused"))?.status == 404).then_some(())))
        .expect("it is deleted");
    drop(policy);
    deleted_once(&turn, &running).expect("by the agent");
    turn.pressure_ends().expect("there is room");
    turn.runs("bystander").expect("it runs on");
    turn
}

/// Each right of the agent was used, and nothing else was carried out for it.
fn every_right_is_used(turn: &Turn) -> Result<()> {
    let rights = RIGHTS
        .iter()
        .flat_map(|(group, resource, verbs)| verbs.iter().map(move |verb| format!("{verb} {group}/{resource}")));
    let (mut used, rights) = (turn.carried_out()?, rights.collect::<BTreeSet<String>>());
    used.insert(LIST.to_owned());
    ensure!(used == rights, "{used:?}");
    Ok(())
}

/// The states that a pod had from this one on are those of a pod that was deleted and not of one that was evicted.
fn deleted_once(turn: &Turn, running: &Value) -> Result<()> {
    let states = view::states_since(turn, view::PODS, running)?;
    ensure!(states.iter().all(|it| it["metadata"]["uid"] == running["metadata"]["uid"]), "{states:?}");
    ensure!(states.iter().all(|it| it["status"]["reason"] != "Evicted"), "{states:?}");
    let deleted = states.iter().find(|it| it["metadata"]["deletionTimestamp"].is_string());
    let grace = &deleted.context("it was marked as deleted")?["metadata"]["deletionGracePeriodSeconds"];
    ensure!(*grace == 1, "it had a grace of {grace} seconds");
    let events = view::events(turn, running, "Evicted")?;
    let [event] = &events[..] else { bail!("{} events: {events:?}", events.len()) };
    ensure!(event["count"] == 1 && event["source"] == json!({"component": "plimsoll", "host": NODE}), "{event}");
    Ok(())
}

/// Objects of the cluster that are removed when this is dropped.
struct Made<'a> {
    turn: &'a Turn,
    paths: Vec<&'static str>,
}

impl<'a> Made<'a> {
    /// Makes an object of each kind, all with the same name.
    fn make(turn: &'a Turn, objects: [(&'static str, &str, Value); 2]) -> Result<Self> {
        let mut made = Self { turn, paths: Vec::new() };
        for (path, kind, spec) in objects {
            let group = path.trim_start_matches("/apis/").rsplit_once('/').context("a path")?.0;
            let object = json!({"apiVersion": group, "kind": kind, "metadata": {"name": NAME}, "spec": spec});
            turn.api.create(path, &object).and_then(Answer::object)?;
            made.paths.push(path);
        }
        Ok(made)
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        for path in &self.paths {
            let removed = self.turn.api.request("DELETE", &format!("{path}/{NAME}"), Format::Json, &Value::Null);
            if let Err(error) = removed.and_then(Answer::object) {
                eprintln!("{path}/{NAME} is left: {error:#}");
            }
        }
    }
}

/// A policy that refuses what the agent writes of any pod's status. It is enforced: a request of the agent's, of which nothing
/// would be kept, is answered so.
fn policy<'a>(turn: &'a Turn, reason: &str, status: u16) -> Result<Made<'a>> {
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/status"], "operations": ["UPDATE"],
    });
    let user = format!("request.userInfo.username == 'system:serviceaccount:{NAMESPACE}:{ACCOUNT}'");
    let policy = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "agent", "expression": user}],
        "validations": [{"expression": "false", "message": WHY, "reason": reason}],
    });
    let binding = json!({"policyName": NAME, "validationActions": ["Deny"]});
    let policy = (POLICIES, "ValidatingAdmissionPolicy", policy);
    let made = Made::make(turn, [policy, (BINDINGS, "ValidatingAdmissionPolicyBinding", binding)])?;
    let agent = of_agent(turn)?;
    let evicted = json!({"status": {"phase": "Failed", "reason": "Evicted"}});
    wait_for("the policy is enforced", PATIENCE, || {
        let path = format!("{PODS}/bystander/status?dryRun=All");
        let answer = agent.request("PATCH", &path, Format::Strategic, &evicted)?;
        Ok((answer.status == status && answer.message().ends_with(WHY)).then_some(()))
    })?;
    Ok(made)
}

/// One place at the API server for all requests of the agent's user, without a queue, and a request that keeps it.
fn busy(turn: &Turn) -> Result<(Unfinished, Made<'_>)> {
    // None of its own and none that it may borrow: a request is carried out where no other one is.
    let none = json!({
        "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Reject"},
    });
    let account = json!({"kind": "ServiceAccount", "serviceAccount": {"name": ACCOUNT, "namespace": NAMESPACE}});
    let all = json!({
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true,
    });
    // The first one is reserved.
    let schema = json!({
        "matchingPrecedence": 2,
        "priorityLevelConfiguration": {"name": NAME},
        "rules": [{"subjects": [account], "resourceRules": [all]}],
    });
    let level = (LEVELS, "PriorityLevelConfiguration", json!({"type": "Limited", "limited": none}));
    let made = Made::make(turn, [level, (SCHEMAS, "FlowSchema", schema)])?;
    let agent = of_agent(turn)?;
    let kept = wait_for("another request is answered with 429", PATIENCE, || {
        let unfinished = agent.begin(EVENTS)?;
        let answer = agent.get(&format!("/api/v1/nodes/{NODE}"))?;
        Ok((answer.status == 429).then_some(unfinished))
    })?;
    Ok((kept, made))
}

/// The API server as the node's agent uses it.
fn of_agent(turn: &Turn) -> Result<Api> {
    turn.api.by_token(&turn.agent_token(NODE)?)
}
