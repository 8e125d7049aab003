//! What does not answer, or is gone, while a pod is evicted: the kill waits for nothing, and is recorded once.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::{Answer, Format, Stopped, wait_for};
use serde_json::{Value, json};

use crate::cost;
use crate::eviction::{SETTLED, never_restarted, recorded};
use crate::service_manager::{self, Pipe};
use crate::turn::Turn;
use crate::view::{self, IDLE, NODES, PODS, pod, pod_that_takes, pressure};
use crate::{NODE, PATIENCE, overlay};

/// How long the API server is away after the kill.
const AWAY: Duration = Duration::from_secs(30);
/// And where nothing has the time to notice it.
const SHORTLY_AWAY: Duration = Duration::from_secs(5);
/// And where the kubelet is to try to start the pod again meanwhile.
const LONG_AWAY: Duration = Duration::from_secs(100);
/// Seconds for which there is no kubelet while the agent tries to record an eviction.
const UNSERVED: u32 = 180;
/// How long the container runtime is stopped: the agent asks it once a minute at rest.
const STOPPED: Duration = Duration::from_mins(2);
/// What the agent's log has of a pod whose processes are gone.
const KILLED: &str = "\"kill\":\"emptied\"";
/// The node restarts its kubelet with the next kill where this file is (`tests/vm/guest/src/kubelet.rs`).
const RESTART: &str = "/run/restart-the-kubelet-with-the-next-kill";
/// MiB in a second at which a pod grows that is to be seen running before it is evicted.
const SLOWLY: u32 = 60;

/// The kubelet starts the pod's containers again while the API server is away, and may write its own status over what is
/// reported when both reach it again: in the end the pod is recorded as evicted, and stays so.
#[test]
fn a_pod_is_killed_without_the_api_server_and_recorded_once_when_that_is_back() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    let stopped = killed_without_api_server(&turn, "outage").expect("it is killed");
    thread::sleep(AWAY);
    drop(stopped);
    turn.is_evicted("outage").expect("it is evicted");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    recorded(&turn, "outage").expect("once, and it stays evicted");
    turn.runs("bystander").expect("it runs on");
}

/// The kubelet makes the sandbox of a killed pod anew while the API server is away, after some 40 s. The pod is held down: no
/// container runs a second time, and once it is recorded as evicted the hold ends.
#[test]
fn no_container_of_a_pod_runs_again_without_the_api_server_however_long_that_is_away() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let mut console = turn.console(NODE).expect("it has a console");
    let stopped = killed_without_api_server(&turn, "held").expect("it is killed");
    console.wait(&["\"hold\":\"begun\"", "\"pod\":\"default/held\""], PATIENCE).expect("it is held down");
    thread::sleep(LONG_AWAY);
    drop(stopped);
    turn.is_evicted("held").expect("it is evicted");
    // It may have no name any more: the kubelet removes the cgroup of a pod that has failed.
    let ended = console.wait(&["\"hold\":\"ended\""], PATIENCE).expect("it goes on");
    assert!(ended.contains("\"reason\":\"recorded\"") || ended.contains("\"reason\":\"gone\""), "{ended}");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    recorded(&turn, "held").expect("once, and it stays evicted");
    nothing_ran_again(&turn, "held").expect("it stays dead");
}

/// The API server is away, for seconds and for minutes, as soon as it has the record: the kubelet ends the pod and cannot say so.
#[test]
fn an_eviction_stays_recorded_where_the_api_server_is_away_right_after_it_took_it() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    for (name, away) in [("briefly", SHORTLY_AWAY), ("longer", LONG_AWAY)] {
        turn.create(&pod_that_takes(name, 2600, SLOWLY)).expect("it is accepted");
        turn.runs(name).expect("it runs");
        wait_for("it is recorded", PATIENCE, || Ok(reported_at(&turn, name)?.is_string().then_some(())))
            .expect("it is evicted");
        let stopped = turn.stop("kube-apiserver").expect("it runs");
        thread::sleep(away);
        drop(stopped);
        turn.is_evicted(name).expect("it is evicted");
        turn.pressure_ends().expect("there is room");
        thread::sleep(SETTLED);
        recorded(&turn, name).expect("once, and it stays evicted");
        nothing_ran_again(&turn, name).expect("it stays dead");
    }
}

/// The kubelet has started the pod's only container once. A restart that it counts can be of one that it made and could not start
/// in a sandbox that was killed, or of one that it did not find any more.
fn nothing_ran_again(turn: &Turn, name: &str) -> Result<()> {
    let pod = view::stored(turn, name)?;
    let events = view::events(turn, &pod, "Started")?;
    let started: u64 = events.iter().filter_map(|event| event["count"].as_u64()).sum();
    ensure!(view::ends(&pod) && started == 1, "started {started} times: {}", pod["status"]);
    Ok(())
}

/// The kubelet does not run, the API server is away at first, and another program takes the record back as often as it is made: the
/// pod is deleted once that has lasted for a minute, by its UID.
#[test]
fn a_pod_whose_record_is_taken_back_for_a_minute_is_deleted() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let pipe = Pipe::make(&turn).expect("it is made");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.create(&pipe.held(pod_that_takes("denied", 2600, 0))).expect("it is accepted");
    for name in ["bystander", "denied"] {
        turn.runs(name).expect("it runs");
    }
    let running = view::stored(&turn, "denied").expect("it is there");
    let script = format!(
        "PATH=/usr/bin; sleep 30; systemctl stop kubelet.service; {}; sleep {UNSERVED}; systemctl start kubelet.service",
        pipe.opening()
    );
    service_manager::start(&turn, "stops-the-kubelet", &["/usr/bin/sh", "-c", &script]).expect("it is started");
    let mut console = turn.console(NODE).expect("it has a console");
    let stopped = turn.stop("kube-apiserver").expect("it runs");
    console.wait(&[KILLED, "\"pod\":\"default/denied\""], PATIENCE).expect("it is killed");
    thread::sleep(SHORTLY_AWAY);
    drop(stopped);
    let (mut first, mut reports) = (None, BTreeSet::new());
    let taken_back = json!({"status": {"phase": "Running", "reason": null}});
    let deleted = wait_for("it is deleted", PATIENCE, || {
        let pod = view::stored(&turn, "denied")?;
        if pod["metadata"]["deletionTimestamp"].is_string() {
            return Ok(Some(pod));
        }
        if pod["status"]["phase"] == "Failed" {
            first.get_or_insert_with(Instant::now);
            reports.insert(pod["metadata"]["annotations"]["plimsoll.dev/eviction-reported-at"].to_string());
            let status = format!("{PODS}/denied/status");
            turn.api.request("PATCH", &status, Format::Strategic, &taken_back)?.object()?;
        }
        Ok(None)
    })
    .expect("by the agent");
    assert!(first.is_some_and(|first| first.elapsed() >= Duration::from_secs(55)), "too soon");
    assert!(reports.len() > 1, "{reports:?}");
    assert_eq!(deleted["metadata"]["uid"], running["metadata"]["uid"]);
    assert_eq!(deleted["metadata"]["deletionGracePeriodSeconds"], 1, "{deleted}");
    wait_for("it is gone", PATIENCE, || Ok((turn.api.get(&format!("{PODS}/denied"))?.status == 404).then_some(())))
        .expect("its kubelet runs again");
    let events = view::events(&turn, &running, "Evicted").expect("a list");
    assert_eq!(events.iter().map(|event| &event["count"]).collect::<Vec<_>>(), [1], "{events:?}");
    turn.pressure_ends().expect("there is room");
    turn.runs("bystander").expect("it runs on");
}

/// A pod of the same name that is made before the eviction of the first one is reported is another pod.
#[test]
fn a_second_pod_of_the_same_name_is_untouched() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let stopped = killed_without_api_server(&turn, "twin").expect("it is killed");
    drop(stopped);
    let now = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
    let deleted = turn.api.request("DELETE", &format!("{PODS}/twin"), Format::Json, &now);
    deleted.and_then(Answer::object).expect("it is deleted");
    turn.create(&pod("twin", &IDLE)).expect("it is accepted");
    turn.runs("twin").expect("it runs");
    turn.pressure_ends().expect("there is room");
    turn.runs("twin").expect("it runs on");
    let second = view::stored(&turn, "twin").expect("it is there");
    assert_eq!(second["metadata"]["annotations"], Value::Null, "{second}");
    assert_eq!(view::events(&turn, &second, "Evicted").expect("a list"), [Value::Null; 0]);
}

/// The agent's pod is removed right after an eviction: the next one goes on with the condition, and reports nothing again.
#[test]
fn the_next_agent_goes_on_with_the_condition_and_reports_nothing_again() {
    // Another agent may take a minute on a machine that is busy, and the condition is to hold for longer.
    let longer = overlay::SENSITIVE.replace("TransitionPeriod: 45s", "TransitionPeriod: 150s");
    let turn = Turn::with_agent(&longer).expect("it is installed");
    turn.create(&pod_that_takes("grower", 2600, 0)).expect("it is accepted");
    turn.pressure_begins().expect("memory is short");
    let mut console = turn.console(NODE).expect("it has a console");
    let since = transition(&turn).expect("it has a time");
    let (name, uid) = agent(&turn).expect("it runs");
    turn.kubectl(&["--namespace", "plimsoll", "delete", "pod", &name, "--grace-period=1", "--wait=false"])
        .expect("it is deleted");
    wait_for("another agent's pod is there", PATIENCE, || Ok((agent(&turn)?.1 != uid).then_some(())))
        .expect("the DaemonSet makes one");
    let armed = console.wait(&["\"message\":\"armed with source ebpf", "; acts\""], PATIENCE).expect("it acts");
    assert!(!armed.contains(&name), "{armed}");
    let condition = pressure(&turn).expect("a node").expect("it is kept");
    assert_eq!((&condition["status"], &condition["lastTransitionTime"]), (&json!("True"), &since), "{condition}");
    turn.is_evicted("grower").expect("it is evicted");
    let reported = reported_at(&turn, "grower").expect("it is there");
    turn.pressure_ends().expect("it ends in time");
    recorded(&turn, "grower").expect("once");
    assert_eq!(reported_at(&turn, "grower").expect("it is there"), reported);
}

/// The kubelet is restarted between a kill and its record.
#[test]
fn an_eviction_is_recorded_where_the_kubelet_is_restarted_in_the_middle() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let mut console = turn.console(NODE).expect("it has a console");
    let mut asks = pod("asks", &["hog", "anon", "--mib", "1", "--once", RESTART]);
    view::mount_run(&mut asks["spec"]);
    turn.create(&asks).expect("it is accepted");
    turn.runs("asks").expect("it runs");
    turn.create(&pod_that_takes("grower", 2600, 0)).expect("it is accepted");
    console.wait(&["NODE kubelet restarted"], PATIENCE).expect("it is restarted");
    turn.is_evicted("grower").expect("it is evicted");
    turn.pressure_ends().expect("there is room");
    recorded(&turn, "grower").expect("once");
    never_restarted(&turn, "grower").expect("it stays dead");
    turn.runs("asks").expect("it runs on");
}

/// The agent is killed as soon as it has killed a pod, while the API server, which is to get the record, is away. The kubelet
/// starts it again, and it goes on by what is in its journal.
#[test]
fn an_eviction_is_recorded_once_by_the_next_agent_where_the_first_one_is_killed_in_the_middle() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let pipe = Pipe::make(&turn).expect("it is made");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.create(&pipe.held(pod_that_takes("orphan", 2600, 0))).expect("it is accepted");
    for name in ["bystander", "orphan"] {
        turn.runs(name).expect("it runs");
    }
    let orphan = view::stored(&turn, "orphan").expect("it is there");
    let script = kills_the_agent(&turn, &orphan, &pipe).expect("there is an agent");
    service_manager::start(&turn, "kills-the-agent", &["/usr/bin/sh", "-c", &script]).expect("it is started");
    let mut console = turn.console(NODE).expect("it has a console");
    let stopped = turn.stop("kube-apiserver").expect("it runs");
    console.wait(&["NODE agent killed"], PATIENCE).expect("it is killed after the pod");
    console.wait(&["\"message\":\"armed with source ebpf", "; acts\""], PATIENCE).expect("the next one acts");
    drop(stopped);
    turn.is_evicted("orphan").expect("it is evicted");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    turn.is_evicted("orphan").expect("it stays evicted");
    let events = view::events(&turn, &orphan, "Evicted").expect("a list");
    let [event] = &events[..] else { panic!("{} events: {events:?}", events.len()) };
    assert_eq!((&event["reason"], &event["count"]), (&json!("Evicted"), &json!(1)), "{event}");
    assert_eq!(event["involvedObject"]["uid"], orphan["metadata"]["uid"], "{event}");
    assert_eq!(event["metadata"]["annotations"]["starved_resource"], "memory", "{event}");
    turn.runs("bystander").expect("it runs on");
}

/// A script that has the pod begin once the API server is away, and kills the agent when nothing of the pod runs any more.
fn kills_the_agent(turn: &Turn, pod: &Value, pipe: &Pipe) -> Result<String> {
    let uid = pod["metadata"]["uid"].as_str().context("each pod has one")?.replace('-', "_");
    let script = format!(
        "set -e
agent=$(container)
events=$(echo /sys/fs/cgroup/kubepods.slice/*/*-pod{uid}.slice/cgroup.events)
sleep 30
{}
timeout 300 sh -c \"while grep -qs 'populated 1' $events; do sleep 0.1; done\"
echo 1 > $agent/cgroup.kill
echo NODE agent killed > /dev/console",
        pipe.opening()
    );
    cost::script(turn, &script)
}

/// A person deletes a pod in the moment in which it is killed: it is gone in the end, and not reported more than once.
#[test]
fn a_pod_that_is_deleted_while_it_is_evicted_is_gone_and_reported_once_at_most() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    let mut console = turn.console(NODE).expect("it has a console");
    turn.create(&pod_that_takes("deleted", 2600, SLOWLY)).expect("it is accepted");
    turn.runs("deleted").expect("it runs");
    let pod = view::stored(&turn, "deleted").expect("it is there");
    console.wait(&["\"kill\":\"begun\"", "\"pod\":\"default/deleted\""], PATIENCE).expect("it is killed");
    delete(&turn, "deleted").expect("it is deleted");
    goes(&turn, &pod).expect("it is gone");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    assert!(view::events(&turn, &pod, "Evicted").expect("a list").len() <= 1, "it is reported once at most");
    turn.runs("bystander").expect("it runs on");
}

/// A pod that was deleted before has ten minutes to end, outlives SIGTERM and grows: its grace does not delay the kill, and with its
/// processes it is gone long before that is over.
#[test]
fn a_pod_that_grows_while_it_ends_is_killed_and_gone() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    let mut console = turn.console(NODE).expect("it has a console");
    let mut ends =
        pod("ends", &["hog", "anon", "--mib", "2600", "--rate", &SLOWLY.to_string(), "--outlive", "/outlived"]);
    ends["spec"]["terminationGracePeriodSeconds"] = 600.into();
    turn.create(&ends).expect("it is accepted");
    turn.runs("ends").expect("it runs");
    delete(&turn, "ends").expect("it is deleted");
    let pod = view::stored(&turn, "ends").expect("it is still there");
    assert!(pod["metadata"]["deletionTimestamp"].is_string(), "{pod}");
    console.wait(&[KILLED, "\"pod\":\"default/ends\""], PATIENCE).expect("it is killed");
    goes(&turn, &pod).expect("it is gone");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    assert!(view::events(&turn, &pod, "Evicted").expect("a list").len() <= 1, "it is reported once at most");
    turn.runs("bystander").expect("it runs on");
}

/// The node's card is down: neither the agent nor the kubelet reaches the API server, and no connection of theirs is closed.
#[test]
fn a_pod_is_killed_without_a_network_and_recorded_once_when_that_is_back() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    let begin = format!("/run/plimsoll-test-begin-{}", std::process::id());
    // A pipe with which the pod begins to grow once the network is gone; what starts it has ended before.
    let script = format!(
        "PATH=/usr/bin; mkfifo {begin}; sleep 60; busybox ip link set eth0 down; timeout 60 sh -c ': > {begin}'; sleep {}; \
         busybox ip link set eth0 up; busybox ip route add default via 10.0.2.2",
        LONG_AWAY.as_secs()
    );
    service_manager::start(&turn, "unplugs", &["/usr/bin/sh", "-c", &script]).expect("it is started");
    let mut console = turn.console(NODE).expect("it has a console");
    let mut cut = pod("cut", &["hog", "anon", "--mib", "2600", "--begin", &begin]);
    view::mount_run(&mut cut["spec"]);
    turn.create(&cut).expect("it is accepted");
    turn.runs("cut").expect("it runs");
    console.wait(&[KILLED, "\"pod\":\"default/cut\""], PATIENCE).expect("it is killed");
    let before = view::stored(&turn, "cut").expect("it is there");
    assert_eq!(before["status"]["phase"], "Running", "the network was there: {before}");
    turn.is_evicted("cut").expect("it is evicted");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    recorded(&turn, "cut").expect("once, and it stays evicted");
    nothing_ran_again(&turn, "cut").expect("it stays dead");
    turn.runs("bystander").expect("it runs on");
}

/// The node's container runtime is stopped for longer than the agent asks it for nothing: the node's events say that it does not
/// work, and that it does again.
#[test]
fn a_container_runtime_that_is_stopped_is_reported_and_that_it_is_back() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    let of_runtime = |reason: &str, message: &str| {
        let events = view::events_of_node(&turn, reason)?;
        let is_about = |it: &&Value| it["message"].as_str().is_some_and(|text| text.starts_with(message));
        Ok(events.iter().filter(is_about).filter_map(|it| it["count"].as_u64()).sum::<u64>())
    };
    let ended = || of_runtime("PlimsollRecovered", "No trouble with container runtime any more");
    let begun = || of_runtime("PlimsollDegraded", "Trouble with container runtime: ");
    let before: [Result<u64>; 2] = [begun(), ended()];
    let [begun_before, ended_before] = before.map(|count| count.expect("a list"));
    let script = format!(
        "sleep 30; systemctl stop containerd.service; sleep {}; systemctl start containerd.service",
        STOPPED.as_secs()
    );
    service_manager::start(&turn, "stops-containerd", &["/usr/bin/sh", "-c", &script]).expect("it is started");
    wait_for("it is reported", PATIENCE, || Ok((begun()? > begun_before).then_some(()))).expect("it does not work");
    wait_for("its return is reported", PATIENCE, || Ok((ended()? > ended_before).then_some(()))).expect("it works");
    wait_for("the kubelet is ready", PATIENCE, || {
        Ok(view::condition(&turn, "Ready")?.is_some_and(|it| it["status"] == "True").then_some(()))
    })
    .expect("it has its runtime again");
    turn.create(&pod_that_takes("grower", 2600, 0)).expect("it is accepted");
    turn.is_evicted("grower").expect("it is evicted");
    turn.pressure_ends().expect("there is room");
    recorded(&turn, "grower").expect("once");
    turn.runs("bystander").expect("it runs on");
}

/// The node's object is deleted and made anew, as a person does that gives it back what it should have: conditions are there
/// again, and evictions are recorded.
#[test]
fn a_nodes_object_that_is_made_anew_has_the_conditions_and_evictions_are_recorded() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let node = turn.api.get(&format!("{NODES}/{NODE}")).and_then(Answer::object).expect("it is there");
    let labels = &node["metadata"]["labels"];
    let anew = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}, "spec": {"taints": []},
    });
    let deleted = turn.api.request("DELETE", &format!("{NODES}/{NODE}"), Format::Json, &Value::Null);
    deleted.and_then(Answer::object).expect("it is deleted");
    turn.api.create(NODES, &anew).and_then(Answer::object).expect("it is made anew");
    wait_for("the kubelet is ready", PATIENCE, || {
        Ok(view::condition(&turn, "Ready")?.is_some_and(|it| it["status"] == "True").then_some(()))
    })
    .expect("it finds its object");
    turn.pressure_ends().expect("the condition is there again");
    turn.create(&pod_that_takes("grower", 2600, 0)).expect("it is accepted");
    turn.pressure_begins().expect("memory is short");
    turn.is_evicted("grower").expect("it is evicted");
    turn.pressure_ends().expect("there is room");
    recorded(&turn, "grower").expect("once");
}

/// Deletes a pod, which has its own time to end.
fn delete(turn: &Turn, name: &str) -> Result<()> {
    let deleted = turn.api.request("DELETE", &format!("{PODS}/{name}"), Format::Json, &Value::Null)?;
    // The kubelet can have been faster.
    ensure!([200, 202, 404].contains(&deleted.status), "{}", deleted.message());
    Ok(())
}

/// Waits until this pod is gone.
fn goes(turn: &Turn, pod: &Value) -> Result<()> {
    let name = pod["metadata"]["name"].as_str().context("it has a name")?;
    wait_for(&format!("{name} is gone"), PATIENCE, || {
        Ok((turn.api.get(&format!("{PODS}/{name}"))?.status == 404).then_some(()))
    })
}

/// Makes a pod that grows, stops the API server once it runs, and waits until the agent has killed it.
fn killed_without_api_server(turn: &Turn, name: &str) -> Result<Stopped> {
    turn.create(&pod_that_takes(name, 2600, SLOWLY))?;
    turn.runs(name)?;
    let mut console = turn.console(NODE)?;
    let stopped = turn.stop("kube-apiserver")?;
    console.wait(&[KILLED, &format!("\"pod\":\"default/{name}\"")], PATIENCE)?;
    Ok(stopped)
}

/// The name and the UID of the agent's pod.
fn agent(turn: &Turn) -> Result<(String, String)> {
    let pod = turn.agent_on(NODE)?;
    let text = |key: &str| pod["metadata"][key].as_str().map(str::to_owned).context("each pod has it");
    Ok((text("name")?, text("uid")?))
}

fn transition(turn: &Turn) -> Result<Value> {
    Ok(pressure(turn)?.context("it is there")?["lastTransitionTime"].clone())
}

/// When the pod's status was patched last.
fn reported_at(turn: &Turn, name: &str) -> Result<Value> {
    Ok(view::stored(turn, name)?["metadata"]["annotations"]["plimsoll.dev/eviction-reported-at"].clone())
}
