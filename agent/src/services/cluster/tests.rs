use super::*;
use crate::log::tests::warnings;
use crate::services::Serving;
use crate::services::journal::{Event, Works};
use plimsoll_inventory::{ConditionState, CoreMessage, IncidentKind, PathEnd};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::kubelet::Signal;
use plimsoll_policy::message::Cause;
use plimsoll_state::durable::{Figures, Moment, PodName, Reason};
use serde_json::json;
use std::time::Duration;

const UID: &str = "01234567-89ab-cdef-0123-456789abcdef";

fn object(name: &str, phase: &str, state: &str) -> Arc<Object> {
    let text = format!(
        r#"{{"metadata": {{"name": "{name}", "namespace": "shop", "uid": "{UID}"}},
        "spec": {{"containers": [{{"name": "c"}}]}}, "status": {{"phase": "{phase}", "containerStatuses":
        [{{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {{"{state}": {{"exitCode": 0}}}}}}]}}}}"#
    );
    Arc::new(serde_json::from_str(&text).expect("a pod"))
}

fn eviction(number: u64, progress: Progress, grace: Option<u32>) -> durable::Eviction {
    durable::Eviction {
        number,
        pod: PodName { uid: UID.to_owned(), ..PodName::default() },
        reason: Reason::Cause(Cause::Signal(Signal::MemoryAvailable)),
        grace_seconds: grace.unwrap_or(0),
        decided: Moment { wall_ms: 1_700_000_000_123, boot_ms: Some(1) },
        progress,
        is_reported: false,
        is_soft: grace.is_some(),
        is_given_up: false,
        figures: Figures { threshold: Some(5 << 20), available: Some(1 << 20), ..Figures::default() },
    }
}

/// A cluster whose tasks are this test.
struct Rig {
    cluster: Cluster,
    decisions: mpsc::UnboundedReceiver<Decision>,
    incidents: mpsc::Receiver<plimsoll_kube::Incident>,
    outcomes: mpsc::UnboundedSender<Outcome>,
    changes: mpsc::Sender<Change>,
}

impl Rig {
    fn new() -> Self {
        let ((changes, of_changes), (send_outcomes, outcomes)) = (mpsc::channel(4), mpsc::unbounded_channel());
        let (decisions, of_decisions) = mpsc::unbounded_channel();
        let (incidents, of_incidents) = mpsc::channel(MOST_INCIDENTS);
        let cluster = Cluster {
            changes: of_changes,
            pods: watch::channel(None).0,
            node: watch::channel(None).1,
            conditions: watch::channel(None).0,
            degraded: watch::channel(Vec::new()).0,
            incidents,
            is_node_followed: watch::channel(true).1,
            decisions,
            outcomes,
            known: BTreeMap::new(),
            reader: PodReader::default(),
            given: HashMap::new(),
            stops: Stops::default(),
            witness: Witness::default(),
            witnessed: None,
            is_followed: false,
            is_lost: false,
        };
        Self { cluster, decisions: of_decisions, incidents: of_incidents, outcomes: send_outcomes, changes }
    }

    /// The node has this pod alone.
    async fn list(&mut self) {
        let pods = Pods::from([(UID.to_owned(), object("web", "Running", "running"))]);
        self.changes.send(Change::Pods(pods)).await.expect("it is received");
        let ClusterEvent::Pods(listed, _) = self.cluster.event().await else { panic!("pods") };
        assert!(listed.pods.contains_key(&Uid::of(UID)));
    }

    /// What is to be reported next.
    async fn given(&mut self) -> Eviction {
        match self.decisions.recv().await {
            Some(Decision::Evicted(eviction)) => eviction,
            other => panic!("{other:?}"),
        }
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

/// An order that may be begun for so long.
fn stop_within(time: Duration) -> StopOrder {
    StopOrder { uid: Uid::of(UID), grace_seconds: 30, until: monotonic().after(time) }
}

fn outbox(evictions: Vec<durable::Eviction>) -> Outbox {
    let mut outbox = Outbox::new(true, true);
    outbox.restore(super::super::outbox::Reports { evictions, conditions: Vec::new() });
    outbox
}

#[test]
fn a_pod_is_reported_once_it_was_killed_and_at_once_where_its_kubelet_is_to_end_it() {
    for (progress, grace, is_reported) in [
        (Progress::Decided, None, false),
        (Progress::Killed, None, true),
        (Progress::Verified, None, true),
        (Progress::Decided, Some(30), true),
        (Progress::Decided, Some(0), false),
    ] {
        assert_eq!(is_for_cluster(&eviction(1, progress, grace)), is_reported, "{progress:?} {grace:?}");
    }
}

#[test]
fn an_eviction_is_given_once_with_what_the_pod_is_called_and_what_came_of_it_is_known_by_its_number() {
    run(async {
        let mut rig = Rig::new();
        let outbox = outbox(vec![eviction(7, Progress::Killed, None)]);
        assert_eq!(rig.cluster.report(&outbox), [], "no pod is known yet");
        assert!(rig.decisions.try_recv().is_err());
        rig.list().await;
        for _ in 0..2 {
            assert_eq!(rig.cluster.report(&outbox), []);
        }
        let given = rig.given().await;
        assert!(rig.decisions.try_recv().is_err(), "once");
        assert_eq!((given.namespace.as_str(), given.name.as_str(), given.uid.as_str()), ("shop", "web", UID));
        assert_eq!(given.at.as_millisecond(), 1_700_000_000_123);
        assert!(given.message.contains("Threshold quantity: 5Mi, available: 1Mi"), "{}", given.message);
        rig.outcomes.send(Outcome::Over(given.into())).expect("it is received");
        let ClusterEvent::Reported(number, uid) = rig.cluster.event().await else { panic!("it is reported") };
        assert_eq!((number, uid), (EvictionNumber(7), Uid::of(UID)));
        // One of which nothing is known but its UID cannot be reported.
        rig.changes.send(Change::Pods(Pods::new())).await.expect("it is received");
        let ClusterEvent::Pods(..) = rig.cluster.event().await else { panic!("pods") };
        assert_eq!(rig.cluster.report(&outbox), [(EvictionNumber(7), Uid::of(UID))]);
    });
}

#[test]
fn what_is_given_up_before_anything_was_killed_is_not_to_be_reported_any_more_and_again_once_it_has_ended() {
    run(async {
        let mut rig = Rig::new();
        rig.list().await;
        rig.cluster.report(&outbox(vec![eviction(7, Progress::Decided, Some(30))]));
        rig.given().await;
        for (progress, expected) in [(Progress::Killed, None), (Progress::Decided, Some(Uid::of(UID)))] {
            let given_up = durable::Eviction { is_given_up: true, ..eviction(7, progress, Some(30)) };
            for _ in 0..2 {
                rig.cluster.report(&outbox(vec![given_up.clone()]));
            }
            assert_eq!(rig.decisions.try_recv().ok(), expected.map(Decision::GivenUp), "{progress:?}");
            assert!(rig.decisions.try_recv().is_err(), "once");
        }
        rig.cluster.report(&outbox(vec![eviction(7, Progress::Verified, Some(30))]));
        assert_eq!(rig.given().await.uid, UID);
        for is_given_up in [false, true] {
            let later = durable::Eviction { is_given_up, ..eviction(8, Progress::Decided, Some(30)) };
            rig.cluster.report(&outbox(vec![later]));
            assert!(rig.decisions.try_recv().is_err(), "the one before was carried out, and is still to be reported");
        }
    });
}

#[test]
fn a_pod_is_ended_by_its_kubelet_once_the_api_server_has_taken_that_and_not_when_it_is_to_be_asked() {
    run(async {
        let mut rig = Rig::new();
        let order = stop_within(Duration::from_mins(1));
        assert_eq!(rig.cluster.stop(order), Stopping::ByRuntime, "it is not followed");
        rig.list().await;
        assert_eq!(rig.cluster.stop(order), Stopping::ByRuntime, "it is not asked");
        rig.cluster.report(&outbox(vec![eviction(7, Progress::Decided, Some(30))]));
        assert_eq!(rig.cluster.stop(order), Stopping::Held);
        rig.outcomes.send(Outcome::Ends(UID.into())).expect("it is received");
        let ClusterEvent::Ends { uid, is_ordered } = rig.cluster.event().await else { panic!("it is answered") };
        assert!(uid == order.uid && is_ordered);
        // The patch was sent again: no order waits for it, and the core is to know.
        rig.outcomes.send(Outcome::Ends(UID.into())).expect("it is received");
        let ClusterEvent::Ends { uid, is_ordered } = rig.cluster.event().await else { panic!("it is recorded") };
        assert!(uid == order.uid && !is_ordered);
        assert_eq!(rig.cluster.stop(order), Stopping::ByKubelet, "it is asked for again");
        rig.changes.send(Change::Pods(Pods::new())).await.expect("it is received");
        let ClusterEvent::Pods(..) = rig.cluster.event().await else { panic!("pods") };
        assert!(!rig.cluster.stops.ends(order.uid), "it is gone from there");
    });
}

#[test]
fn a_pod_is_stopped_by_the_runtime_where_the_api_server_does_not_answer_in_half_of_the_time_or_refuses() {
    run(async {
        let mut rig = Rig::new();
        rig.list().await;
        rig.cluster.report(&outbox(vec![eviction(7, Progress::Decided, Some(30))]));
        let time = Duration::from_millis(200);
        let order = stop_within(time);
        let begun = monotonic();
        assert_eq!(rig.cluster.stop(order), Stopping::Held);
        let ClusterEvent::Unanswered(given_up) = rig.cluster.event().await else { panic!("it is given up") };
        let passed = monotonic().since(begun);
        assert!(given_up == order && passed >= time * 2 / 5, "{passed:?}");
        let order = stop_within(Duration::from_mins(10));
        assert_eq!(rig.cluster.stop(order), Stopping::Held);
        let given = rig.given().await;
        rig.outcomes.send(Outcome::Over(given.into())).expect("it is received");
        let (mut is_over, mut given_up) = (false, None);
        while !is_over || given_up.is_none() {
            match rig.cluster.event().await {
                ClusterEvent::Reported(number, _) => is_over = number == EvictionNumber(7),
                ClusterEvent::Unanswered(order) => given_up = Some(order),
                _ => panic!("neither"),
            }
        }
        assert_eq!(given_up, Some(order), "no kubelet ends it");
    });
}

#[test]
fn a_failed_pod_is_known_until_its_containers_have_ended() {
    for (phase, state, has_ended) in
        [("Running", "running", false), ("Failed", "running", false), ("Failed", "terminated", true)]
    {
        let mut object = (*object("web", phase, state)).clone();
        assert_eq!(read(&object).expect("a pod").has_ended, has_ended, "{phase} {state}");
        // The same of one that was added to look into the pod.
        let status = object.status.as_mut().expect("it has one");
        status.ephemeral_container_statuses = status.container_statuses.take();
        assert_eq!(read(&object).expect("a pod").has_ended, has_ended, "ephemeral, {phase} {state}");
    }
}

#[test]
fn a_pod_that_cannot_be_read_is_in_the_log_until_it_can_be() {
    let with = |memory: &str| {
        let mut object = (*object("web", "Running", "running")).clone();
        let container = &mut object.spec.as_mut().expect("it has one").containers[0];
        container.resources = serde_json::from_value(json!({ "requests": { "memory": memory } })).expect("resources");
        Pods::from([(UID.to_owned(), Arc::new(object))])
    };
    let mut cluster = Rig::new().cluster;
    let mut learned = |memory: &str| {
        let (pods, mut unread) = (with(memory), None);
        let log = warnings(|| unread = cluster.learn(pods).map(|listed| listed.unread));
        (
            unread,
            log.lines().map(|line| line.contains("pod shop/web cannot be read and is never evicted: spec.")).collect(),
        )
    };
    assert_eq!(learned("5Mi"), (Some(0), vec![]));
    assert_eq!(learned("much"), (Some(1), vec![true]));
    assert_eq!(learned("more"), (Some(1), vec![]), "once, however often it changes");
    assert_eq!(learned("6Mi"), (Some(0), vec![]));
    assert_eq!(learned("much"), (Some(1), vec![true]));
}

#[test]
fn what_is_kept_of_a_pod_says_the_same_of_it_as_all_of_it() {
    let container = |name: &str| {
        json!({ "name": name, "image": "i", "env": [{ "name": "E", "value": "v" }], "restartPolicy": "Always",
            "resources": { "requests": { "memory": "5Mi", "cpu": "1" }, "limits": { "ephemeral-storage": "1Gi" } },
            "securityContext": { "privileged": name == "privileged" },
            "volumeMounts": [{ "name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional" }] })
    };
    let status = |name: &str| {
        json!({ "name": name, "image": "i", "imageID": "i", "ready": true, "restartCount": 1,
            "containerID": format!("containerd://{name}"), "state": { "running": {} },
            "allocatedResources": { "memory": "4Mi" }, "resources": { "limits": { "memory": "6Mi" } } })
    };
    let ended = json!({ "name": "ended", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
        "state": { "terminated": { "exitCode": 0 } } });
    let plain = json!({ "name": "plain", "image": "i" });
    let text = json!({
        "metadata": { "name": "web", "namespace": "shop", "uid": UID, "labels": { "a": "b" },
            "deletionTimestamp": "2023-11-14T22:13:20Z", "deletionGracePeriodSeconds": 30,
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "9", "controller": true }],
            "annotations": { "kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h",
                "kubernetes.io/config.source": "api", "another": "one" } },
        "spec": { "nodeName": "n1", "priority": 7, "priorityClassName": "system-node-critical", "hostPID": true,
            "terminationGracePeriodSeconds": 30, "overhead": { "memory": "1Mi" },
            "resources": { "requests": { "memory": "20Mi" } },
            "containers": [container("main"), plain], "initContainers": [container("sidecar")],
            "ephemeralContainers": [container("debug"), container("ended")],
            "volumes": [{ "name": "c", "configMap": { "name": "n" } }, { "name": "g", "gitRepo": { "repository": "r" } },
                { "name": "e", "emptyDir": { "sizeLimit": "3Mi" } }, { "name": "m", "emptyDir": { "medium": "Memory" } },
                { "name": "h", "hostPath": { "path": "/dev" } }, { "name": "s", "secret": { "secretName": "n" } }] },
        "status": { "phase": "Running", "startTime": "2023-11-14T22:13:20Z", "allocatedResources": { "memory": "18Mi" },
            "resources": { "limits": { "memory": "21Mi" } }, "conditions": [{ "type": "Ready", "status": "True" }],
            "containerStatuses": [status("main")], "initContainerStatuses": [status("sidecar")],
            "ephemeralContainerStatuses": [status("debug"), ended] }
    });
    for (field, value) in [("/metadata/name", "web"), ("/status/phase", "Failed"), ("/spec/priorityClassName", "other")]
    {
        let mut text = text.clone();
        *text.pointer_mut(field).expect("it is there") = json!(value);
        for is_mirror in [true, false] {
            if !is_mirror {
                text["metadata"]["annotations"] = json!({});
                text["spec"]["hostPID"] = json!(false);
            }
            let object: Object = serde_json::from_value(text.clone()).expect("a pod");
            let all = read(&object).expect("it can be read");
            let of_kept = read(&plimsoll_kube::kept(object)).expect("it can be read");
            assert_eq!(format!("{of_kept:?}"), format!("{all:?}"), "{field}");
        }
    }
}

#[test]
fn an_incident_is_reported_of_its_pod_as_far_as_any_source_names_it_and_else_of_the_node() {
    run(async {
        let mut rig = Rig::new();
        let (what, wall_ms) = (IncidentKind::Stopped, 1);
        let of_pod = Incident { what, of: IncidentOf::Pod(Uid::of(UID)), wall_ms };
        let of_cgroup = Incident { of: IncidentOf::Cgroup { id: None, path: PathEnd::default() }, ..of_pod };
        let named = |_| ("shop".to_owned(), "by-runtime".to_owned());
        let not_named = |_| (String::new(), String::new());
        rig.cluster.happened(&of_pod, not_named);
        rig.cluster.happened(&of_pod, named);
        rig.list().await;
        rig.cluster.happened(&of_pod, named);
        rig.cluster.happened(&of_cgroup, named);
        let mut pods = Vec::new();
        while let Ok(incident) = rig.incidents.try_recv() {
            pods.push(incident.pod.map(|pod| (pod.uid, pod.name)));
        }
        let by = |name: &str| Some((UID.to_owned(), name.to_owned()));
        assert_eq!(pods, [None, by("by-runtime"), by("web"), None]);
    });
}

#[test]
fn sources_that_do_not_work_are_events_of_the_node_but_for_the_api_server() {
    let rig = Rig::new();
    let degraded = rig.cluster.degraded.subscribe();
    let mut feed = super::super::feed::Feed::default();
    let mut after = |source, works| {
        feed.note(source, works);
        rig.cluster.degrade(feed.failing());
        degraded.borrow().iter().map(|it| it.what).collect::<Vec<_>>()
    };
    assert_eq!(after(Source::ApiServer, false), [""; 0]);
    assert_eq!(after(Source::Journal, true), [""; 0]);
    assert_eq!(after(Source::Runtime, false), ["container runtime"]);
    assert_eq!(after(Source::Journal, false), ["container runtime", "journal"]);
    assert_eq!(after(Source::Runtime, true), ["journal"]);
}

#[test]
fn conditions_are_reported_while_a_core_of_this_agent_acts_and_not_before_and_after() {
    run(async {
        let mut rig = Rig::new();
        let reported = rig.cluster.conditions.subscribe();
        let mut serving = Serving::new(true, true);
        let is_reported = |serving: &mut Serving, rig: &mut Rig| {
            serving.report(Some(&mut rig.cluster));
            reported.borrow().is_some()
        };
        let (condition, since) = (kubelet::Condition::MemoryPressure, monotonic());
        let state = ConditionState { condition, is_true: true, since, wall_ms: 9, observed: None };
        // As the journal has it.
        serving.outbox.conclude(state);
        assert!(!is_reported(&mut serving, &mut rig), "another agent acts");
        serving.end_core();
        assert_eq!(serving.orphaned, None);
        for _ in 0..2 {
            serving.take_of_core(CoreMessage::Condition(state), None);
            assert!(is_reported(&mut serving, &mut rig) && serving.orphaned.is_none());
            serving.end_core();
            assert!(
                is_reported(&mut serving, &mut rig) && serving.orphaned.is_some(),
                "the next core may go on with it"
            );
            let later = serving.orphaned;
            let (way, _of_core) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
            way.set_nonblocking(true).expect("a socket");
            serving.begin_core(way.into());
            assert!(serving.orphaned < later, "one that does not is not waited for as long");
            serving.leave(Some(&rig.cluster));
            assert!(!is_reported(&mut serving, &mut rig) && serving.orphaned.is_none());
        }
    });
}

#[test]
fn an_agent_that_keeps_no_journal_by_its_configuration_has_no_trouble_with_it() {
    let mut rig = Rig::new();
    let degraded = rig.cluster.degraded.subscribe();
    for (shadow, expected) in [("true", vec![]), ("false", vec!["journal"])] {
        let text = format!("machine: {{shadow: {shadow}, podFacts: /any/pods.json}}\n");
        let configuration = plimsoll_config::parse(&text, "f").expect("in order");
        let mut serving = Serving::of(&configuration, false);
        serving.lacks_journal();
        serving.report(Some(&mut rig.cluster));
        assert_eq!(serving.feed.failing().any(|source| source == Source::Journal), !expected.is_empty(), "{shadow}");
        assert_eq!(degraded.borrow().iter().map(|it| it.what).collect::<Vec<_>>(), expected, "{shadow}");
    }
}

#[test]
fn a_journal_that_another_agent_has_is_no_event_of_the_node_and_one_that_does_not_work_is() {
    let mut rig = Rig::new();
    let degraded = rig.cluster.degraded.subscribe();
    let mut serving = Serving::new(true, true);
    let mut after = |works| {
        serving.take_kept(Event::Works(works));
        serving.report(Some(&mut rig.cluster));
        let failing: Vec<_> = serving.feed.failing().map(Source::name).collect();
        (failing, degraded.borrow().iter().map(|it| it.what).collect::<Vec<_>>())
    };
    let held = Works { is_held: true, ..Works::default() };
    assert_eq!(after(held), (vec!["journal", "API server"], vec![]), "the core is to know of it");
    assert_eq!(after(Works { all: true, reports: true, ..Works::default() }), (vec!["API server"], vec![]));
    assert_eq!(after(Works::default()), (vec!["journal", "API server"], vec!["journal"]));
}
