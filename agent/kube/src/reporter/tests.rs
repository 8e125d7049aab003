use super::*;
use crate::eviction::Eviction;
use crate::node::Kind;
use crate::testing::{Asked, Log, deep, refused, server, slow_server};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus, Node, Pod, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

pub(super) fn eviction(name: &str) -> Eviction {
    Eviction {
        uid: format!("uid-of-{name}"),
        namespace: "shop".into(),
        name: name.into(),
        message: "The node was low on resource: memory. ".into(),
        annotations: [("starved_resource".to_owned(), "memory".to_owned())].into(),
        grace_seconds: 0,
        at: Timestamp::UNIX_EPOCH,
    }
}

fn pods(name: &str, phase: &str, reason: Option<&str>, is_terminated: bool) -> Pods {
    let terminated = is_terminated.then(ContainerStateTerminated::default);
    let running = (!is_terminated).then(ContainerStateRunning::default);
    let state = Some(ContainerState { terminated, running, ..ContainerState::default() });
    let status = PodStatus {
        phase: Some(phase.into()),
        reason: reason.map(Into::into),
        container_statuses: Some(vec![ContainerStatus { state, ..ContainerStatus::default() }]),
        ..PodStatus::default()
    };
    [(format!("uid-of-{name}"), Arc::new(Pod { status: Some(status), ..Pod::default() }))].into()
}

/// The same after all patches.
fn patched(name: &str, phase: &str, reason: Option<&str>, is_terminated: bool) -> Pods {
    let mut pods = pods(name, phase, reason, is_terminated);
    for pod in pods.values_mut() {
        let annotation = (eviction::REPORTED_AT.to_owned(), Timestamp::MAX.to_string());
        Arc::make_mut(pod).metadata.annotations = Some([annotation].into());
    }
    pods
}

/// Answers as an API server that accepts everything.
pub(super) fn accepts(asked: &Asked) -> (u16, Value) {
    let kind = match asked.path.as_str() {
        path if path.contains("/events") => "Event",
        path if path.contains("/nodes/") => "Node",
        _ => "Pod",
    };
    let involved = json!({});
    (200, json!({ "kind": kind, "apiVersion": "v1", "metadata": {}, "involvedObject": involved }))
}

fn lines(log: &Log) -> Vec<String> {
    log.lock().expect("no test failed with it").iter().map(Asked::line).collect()
}

/// One without conditions, that has these to report.
fn reporting(client: Client, entries: impl IntoIterator<Item = impl Into<Entry>>) -> Reporter {
    let mut reporter = Reporter::new(client, "n1".into(), None);
    entries.into_iter().for_each(|entry| reporter.add(entry));
    reporter
}

/// Runs until what is asked for is reached, on a clock that does not wait.
pub(super) async fn until(reporter: &mut Reporter, is_reached: impl Fn(&Reporter) -> bool) {
    for _ in 0..1000 {
        if is_reached(reporter) {
            return;
        }
        let wait = reporter.write_next().await;
        tokio::time::advance(wait).await;
    }
    panic!("it is never reached: {:?}", reporter.outbox);
}

pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(test);
}

/// Time enough for everything.
const LONG_AGO: Progress = Progress::Patched { first: Timestamp::UNIX_EPOCH, last: Timestamp::UNIX_EPOCH };
const PATCH: &str = "PATCH /api/v1/namespaces/shop/pods/web/status";
const DELETE: &str = "DELETE /api/v1/namespaces/shop/pods/web";
const DB: &str = "PATCH /api/v1/namespaces/shop/pods/db/status";
const EVENT: &str = "POST /api/v1/namespaces/shop/events";
const LIST: &str = "GET /api/v1/namespaces/shop/pods";

#[test]
fn an_eviction_is_one_patch_and_one_event_and_a_second_patch_where_the_reason_is_missing_in_the_end() {
    run(async {
        let (client, log) = server(accepts);
        let mut reporter = reporting(client, [eviction("web"), eviction("web")]);
        until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event)).await;
        assert_eq!(lines(&log), [PATCH, EVENT]);
        assert_eq!(log.lock().expect("no test failed with it")[0].body["metadata"]["uid"], "uid-of-web");
        reporter.pods = Some(patched("web", "Failed", None, true));
        until(&mut reporter, |_| lines(&log).len() == 3).await;
        assert_eq!(lines(&log), [PATCH, EVENT, PATCH]);
        assert!(reporter.write_next().await <= Duration::from_secs(20), "it is looked at again");
        reporter.pods = Some(patched("web", "Failed", Some("Evicted"), true));
        reporter.outbox[0].entry.progress = LONG_AGO;
        until(&mut reporter, |it| it.outbox.is_empty()).await;
        assert_eq!(lines(&log), [PATCH, EVENT, PATCH]);
        let [ends, again, Outcome::Over(_)] = &reporter.outcomes[..] else { panic!("{:?}", reporter.outcomes) };
        let expected = Outcome::Ends("uid-of-web".into());
        assert_eq!((ends, again), (&expected, &expected));
    });
}

#[test]
fn a_pod_that_is_as_it_should_be_is_left_alone() {
    run(async {
        let (client, log) = server(accepts);
        let mut reporter = reporting(client, [eviction("web")]);
        until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event)).await;
        reporter.pods = Some(patched("web", "Failed", Some("Evicted"), true));
        reporter.write_next().await;
        assert_eq!(reporter.outbox.len(), 1, "it has to stay so for a time");
        reporter.outbox[0].entry.progress = LONG_AGO;
        until(&mut reporter, |it| it.outbox.is_empty()).await;
        assert_eq!(lines(&log), [PATCH, EVENT]);
    });
}

#[test]
fn a_reason_that_is_taken_away_before_the_containers_have_ended_is_written_again_at_once_and_then_with_pauses() {
    run(async {
        let (client, log) = server(accepts);
        let mut reporter = reporting(client, [eviction("web")]);
        until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event)).await;
        reporter.pods = Some(patched("web", "Failed", None, false));
        until(&mut reporter, |_| lines(&log).len() == 3).await;
        assert_eq!(lines(&log), [PATCH, EVENT, PATCH]);
        let wait = reporter.write_next().await;
        assert!(
            wait > Duration::from_millis(500) && wait <= Duration::from_secs(1),
            "a kubelet is not fought: {wait:?}"
        );
        assert_eq!(lines(&log).len(), 3);
        // As if four seconds had passed from the first to the second patch, and three since.
        let now = Timestamp::now();
        let ago = |seconds| now - Duration::from_secs(seconds);
        reporter.outbox[0].entry.progress = Progress::Patched { first: ago(7), last: ago(3) };
        let wait = reporter.write_next().await;
        assert!(wait > Duration::from_millis(500) && wait <= Duration::from_secs(1), "as long as before: {wait:?}");
        reporter.outbox[0].entry.progress = Progress::Patched { first: ago(8), last: ago(4) };
        reporter.write_next().await;
        assert_eq!(lines(&log), [PATCH, EVENT, PATCH, PATCH]);
        let Progress::Patched { first, .. } = reporter.outbox[0].entry.progress else { panic!("it was patched") };
        assert!(first <= ago(8), "pauses count from the first one: {first}");
    });
}

#[test]
fn a_pod_that_its_kubelet_evicted_first_has_no_second_status_and_event() {
    run(async {
        let (client, log) = server(accepts);
        let mut reporter = reporting(client, [eviction("web")]);
        reporter.pods = Some(pods("web", "Failed", Some("Evicted"), false));
        reporter.write_next().await;
        assert_eq!(lines(&log), [""; 0]);
        let [Outcome::Ends(uid), Outcome::Over(_)] = &reporter.outcomes[..] else { panic!("{:?}", reporter.outcomes) };
        assert_eq!(uid, "uid-of-web");
        for (phase, reason) in [("Failed", None), ("Failed", Some("Shutdown")), ("Running", Some("Evicted"))] {
            let mut reporter = reporting(server(accepts).0, [eviction("web")]);
            reporter.pods = Some(pods("web", phase, reason, false));
            reporter.write_next().await;
            assert_ne!(reporter.outbox[0].entry.progress, Progress::Unreported, "{phase}");
        }
    });
}

#[test]
fn a_pod_that_runs_on_and_one_whose_patch_is_refused_are_deleted_by_their_uid() {
    run(async {
        let running = patched("web", "Running", None, false);
        let (client, log) = server(accepts);
        let patched = Entry { progress: LONG_AGO, ..eviction("web").into() };
        let mut reporter = reporting(client, [patched]);
        reporter.pods = Some(running.clone());
        until(&mut reporter, |it| it.outbox.is_empty()).await;
        assert_eq!(lines(&log), [DELETE, EVENT]);
        assert_eq!(reporter.outcomes.first(), Some(&Outcome::Ends("uid-of-web".into())));
        let body = log.lock().expect("no test failed with it")[0].body.clone();
        assert_eq!((&body["preconditions"]["uid"], &body["gracePeriodSeconds"]), (&json!("uid-of-web"), &json!(1)));

        let invalid =
            |asked: &Asked| if asked.line() == PATCH { refused(422, "Invalid", "no") } else { accepts(asked) };
        let (client, log) = server(invalid);
        let soft = Eviction { grace_seconds: 30, ..eviction("web") };
        let mut reporter = reporting(client, [soft]);
        reporter.pods = Some(running);
        until(&mut reporter, |it| it.outbox.is_empty()).await;
        assert_eq!(lines(&log), [PATCH, DELETE, EVENT]);
        let body = log.lock().expect("no test failed with it")[1].body.clone();
        assert_eq!(body["gracePeriodSeconds"], 30, "that of a soft threshold is not cut short");
    });
}

#[test]
fn a_pod_is_patched_and_deleted_once_whatever_its_author_wrote_into_managed_fields() {
    run(async {
        let managed_fields = json!([{ "manager": "author", "fieldsV1": deep(200) }]);
        let metadata = json!({ "name": "web", "managedFields": managed_fields });
        let pod = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": metadata });
        let (client, log) =
            server(move |asked| if asked.path.contains("/pods/") { (200, pod.clone()) } else { accepts(asked) });
        let mut reporter = reporting(client, [eviction("web")]);
        until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event)).await;
        reporter.outbox[0].entry.progress = LONG_AGO;
        reporter.pods = Some(patched("web", "Running", None, false));
        until(&mut reporter, |it| it.outbox.is_empty()).await;
        assert_eq!(lines(&log), [PATCH, EVENT, DELETE]);
        let ends = Outcome::Ends("uid-of-web".into());
        assert_eq!(reporter.outcomes[..2], [ends.clone(), ends], "the kubelet ends it");
    });
}

#[test]
fn a_pod_is_not_judged_by_what_a_watch_said_that_was_lost_before_the_patch() {
    run(async {
        let (client, log) = server(accepts);
        let patched = Entry { progress: LONG_AGO, ..eviction("web").into() };
        let mut reporter = reporting(client, [patched]);
        reporter.pods = Some(pods("web", "Running", None, false));
        until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event)).await;
        for _ in 0..10 {
            let wait = reporter.write_next().await;
            tokio::time::advance(wait).await;
        }
        assert_eq!(lines(&log), [EVENT], "it is neither deleted nor patched again");
    });
}

#[test]
fn a_clock_that_is_set_back_does_not_hold_up_what_follows_a_patch() {
    run(async {
        for progress in [Progress::Unreported, Progress::Patched { first: Timestamp::MAX, last: Timestamp::MAX }] {
            let (client, log) = server(accepts);
            let entry = Entry { progress, has_event: true, ..eviction("web").into() };
            let mut reporter = reporting(client, [entry]);
            reporter.pods = Some(patched("web", "Failed", Some("Evicted"), true));
            assert!(reporter.write_next().await <= Duration::from_secs(20), "it has to stay so for a time");
            let seen = reporter.outbox[0].entry.progress;
            let Progress::Patched { last, .. } = seen else { panic!("{seen:?}") };
            assert!(last <= Timestamp::now());
            reporter.write_next().await;
            assert_eq!(reporter.outbox[0].entry.progress, seen, "that time passes");
            assert!(lines(&log).is_empty());
        }
    });
}

#[test]
fn another_pod_of_the_same_name_and_one_that_is_gone_are_left_alone() {
    run(async {
        let other = |asked: &Asked| match asked.line().as_str() {
            PATCH => refused(409, "Conflict", "the UID in the precondition does not match"),
            LIST => {
                assert!(asked.query.contains("fieldSelector=metadata.name%3Dweb"), "{}", asked.query);
                (200, json!({ "metadata": {}, "items": [{ "metadata": { "uid": "another" } }] }))
            }
            _ => accepts(asked),
        };
        let (client, log) = server(other);
        let mut reporter = reporting(client, [eviction("web")]);
        until(&mut reporter, |it| it.outbox.is_empty()).await;
        assert_eq!(lines(&log), [PATCH, LIST, EVENT]);

        let gone = |asked: &Asked| if asked.line() == PATCH { refused(404, "NotFound", "") } else { accepts(asked) };
        let (client, log) = server(gone);
        let mut reporter = reporting(client, [eviction("web")]);
        until(&mut reporter, |it| it.outbox.is_empty()).await;
        assert_eq!(lines(&log), [PATCH, EVENT], "it was evicted all the same");
        assert!(matches!(reporter.outcomes[..], [Outcome::Over(_)]), "no kubelet ends it: {:?}", reporter.outcomes);
    });
}

#[test]
fn what_cannot_be_written_now_is_written_later_and_an_event_once() {
    run(async {
        let counts = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let (client, log) = server(move |asked| {
            let is_event = asked.line() == EVENT;
            match (is_event, counts[usize::from(is_event)].fetch_add(1, Ordering::Relaxed)) {
                (false, 0) => refused(503, "ServiceUnavailable", ""),
                (false, 1) => refused(429, "TooManyRequests", ""),
                (false, 2) => refused(401, "Unauthorized", "the token has expired"),
                // Its answer is lost on the way.
                (true, 0) => refused(504, "Timeout", ""),
                (true, 1) => refused(409, "AlreadyExists", ""),
                _ => accepts(asked),
            }
        });
        let begun = Instant::now();
        let mut reporter = reporting(client, [eviction("web")]);
        let is_patched = |open: &Open| matches!(open.entry.progress, Progress::Patched { .. });
        until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event && is_patched(open))).await;
        let all = lines(&log);
        let of = |line: &str| all.iter().filter(|it| *it == line).count();
        assert_eq!((of(PATCH), of(EVENT), all.len()), (4, 2, 6), "{all:?}");
        // Half of 1 s, 2 s and 4 s.
        assert!(begun.elapsed() >= Duration::from_millis(3500), "{:?}", begun.elapsed());
    });
}

#[test]
fn what_an_api_server_forbids_that_has_just_started_is_written_once_it_has_read_the_roles() {
    run(async {
        let begun = Instant::now();
        let (client, log) = server(move |asked| match asked.line() {
            _ if begun.elapsed() < Duration::from_mins(1) => refused(403, "Forbidden", "there is no role yet"),
            line if line.contains("/nodes/") => (200, json!({ "metadata": {} })),
            _ => accepts(asked),
        });
        let mut reporter = reporting(client, [eviction("web")]);
        let holds = Condition { kind: Kind::Memory, holds: true, since: Timestamp::UNIX_EPOCH };
        reporter.set_conditions(vec![holds]);
        let is_patched = |open: &Open| matches!(open.entry.progress, Progress::Patched { .. });
        let is_written = |it: &Reporter| it.due == Due::Nothing && it.notes.due().next().is_none();
        until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event && is_patched(open))).await;
        until(&mut reporter, is_written).await;
        assert!(begun.elapsed() < HEARTBEAT / 2, "conditions do not wait for it: {:?}", begun.elapsed());
        let all = lines(&log);
        assert!(!all.contains(&DELETE.to_owned()), "{all:?}");
        assert!(all.len() < 50, "with pauses: {all:?}");
        assert_eq!(reporter.outcomes, [Outcome::Ends("uid-of-web".into())], "one patch was accepted");
    });
}

#[test]
fn what_is_forbidden_for_good_is_left_after_minutes_and_holds_up_no_other() {
    run(async {
        let (client, log) = server(|asked| {
            let is_of_web = asked.path.contains("/pods/web") || asked.body["involvedObject"]["name"] == "web";
            if is_of_web { refused(403, "Forbidden", "a policy") } else { accepts(asked) }
        });
        let begun = Instant::now();
        let mut reporter = reporting(client, ["web", "db"].map(eviction));
        let is_patched = |open: &Open| matches!(open.entry.progress, Progress::Patched { .. });
        until(&mut reporter, |it| is_patched(&it.outbox[1]) && it.outbox[1].entry.has_event).await;
        assert!(begun.elapsed() < Duration::from_millis(500), "nothing has waited: {:?}", begun.elapsed());
        until(&mut reporter, |it| it.outbox[0].entry.progress == Progress::Over).await;
        // Two minutes each for the patch and the deletion, and the pauses in which they end.
        let passed = begun.elapsed();
        assert!(passed >= Duration::from_mins(4) && passed < Duration::from_mins(6), "{passed:?}");
        reporter.write_next().await;
        assert!(matches!(&reporter.outcomes[..], [Outcome::Ends(_), Outcome::Over(of)] if of.eviction.name == "web"));
        let all = lines(&log);
        let of = |line: &str| all.iter().filter(|it| *it == line).count();
        assert!([of(PATCH), of(DELETE)].iter().all(|tries| (4..12).contains(tries)), "{all:?}");
    });
}

#[test]
fn what_was_given_up_before_it_was_written_is_not_written() {
    run(async {
        let is_up = Arc::new(AtomicBool::new(false));
        let of_server = Arc::clone(&is_up);
        let (client, log) = server(move |asked| {
            let is_up = of_server.load(Ordering::Relaxed);
            if is_up { accepts(asked) } else { refused(503, "ServiceUnavailable", "") }
        });
        let mut reporter = reporting(client, ["web", "db"].map(eviction));
        until(&mut reporter, |_| lines(&log).len() >= 2).await;
        reporter.outbox[1].entry.progress = Progress::ToDelete;
        let given_up = |name: &str| Decision::GivenUp(Uid::of(&eviction(name).uid));
        reporter.take(given_up("db"));
        assert_eq!(reporter.outbox.len(), 1, "its patch was refused, and it is not deleted any more");
        reporter.add(eviction("cache"));
        reporter.outbox[1].entry.progress = LONG_AGO;
        for name in ["web", "cache"] {
            reporter.take(given_up(name));
        }
        is_up.store(true, Ordering::Relaxed);
        let asked = lines(&log).len();
        until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event)).await;
        assert_eq!(lines(&log)[asked..], [EVENT], "the one that was patched is the kubelet's");
        assert_eq!(reporter.outbox[0].entry.eviction, eviction("cache"));
        assert!(reporter.outcomes.is_empty(), "of what was given up nothing came: {:?}", reporter.outcomes);
    });
}

#[test]
fn a_decision_is_taken_in_before_the_next_write_and_a_condition_is_written_before_an_eviction() {
    run(async {
        let (client, log) = server(accepts);
        let ((decide, decisions), (outcomes, _came)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        for decision in [Decision::Evicted(eviction("web")), Decision::GivenUp(Uid::of(&eviction("web").uid))] {
            decide.send(decision).expect("it is received");
        }
        let memory = Condition { kind: Kind::Memory, holds: true, since: Timestamp::UNIX_EPOCH };
        let (_of_conditions, conditions) = watch::channel(Some(vec![memory]));
        let report = Report {
            decisions,
            conditions,
            pods: watch::channel(None).1,
            node: watch::channel(None).1,
            degraded: watch::channel(Vec::new()).1,
            incidents: mpsc::channel(1).1,
        };
        let _ = timeout(Duration::from_mins(1), reporting(client, [eviction("db")]).run(report, outcomes)).await;
        let writes: Vec<_> = lines(&log).into_iter().filter(|line| !line.starts_with("GET")).take(4).collect();
        let (of_node, of_pod) = ("PATCH /api/v1/nodes/n1/status".to_owned(), DB.to_owned());
        assert_eq!(writes, [of_node, of_pod, EVENT.to_owned(), EVENT.replace("shop", "default")]);
    });
}

#[test]
fn a_pod_that_fails_always_holds_up_no_other_and_so_do_the_conditions() {
    run(async {
        let (client, log) = server(move |asked| match asked.line().as_str() {
            PATCH => refused(500, "InternalError", "a webhook has failed"),
            line if line.contains("/nodes/") => refused(500, "InternalError", "another one"),
            _ => accepts(asked),
        });
        let begun = Instant::now();
        let mut reporter = reporting(client, ["web", "db"].map(eviction));
        let holds = Condition { kind: Kind::Memory, holds: true, since: Timestamp::UNIX_EPOCH };
        reporter.set_conditions(vec![holds]);
        until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event)).await;
        let all = lines(&log);
        assert!(all.contains(&DB.to_owned()), "{all:?}");
        assert!(begun.elapsed() < Duration::from_millis(500), "nothing has waited: {:?}", begun.elapsed());
        until(&mut reporter, |_| lines(&log).iter().filter(|line| *line == PATCH).count() == 6).await;
        // Half of 1, 2, 4, 8 and 16 s.
        assert!(begun.elapsed() > Duration::from_secs(15), "{:?}", begun.elapsed());
    });
}

/// An API server of which a webhook takes 30 s for each request about such a path, and then fails.
fn with_a_webhook_that_hangs(path: &'static str) -> (Client, Log) {
    let fails = move |asked: &Asked| asked.path.contains(path);
    let slow = move |asked: &Asked| if fails(asked) { Duration::from_secs(30) } else { Duration::ZERO };
    slow_server(
        slow,
        move |asked| {
            if fails(asked) { refused(500, "InternalError", "a webhook has failed") } else { accepts(asked) }
        },
    )
}

#[test]
fn pods_whose_patches_take_long_and_fail_always_hold_up_no_other_and_no_event() {
    run(async {
        let (client, log) = with_a_webhook_that_hangs("/pods/hook-");
        let begun = Instant::now();
        let mut reporter = reporting(client, ["hook-1", "hook-2", "hook-3", "web"].map(eviction));
        until(&mut reporter, |_| lines(&log).contains(&PATCH.to_owned())).await;
        assert!(begun.elapsed() < Duration::from_secs(91), "after one try of each: {:?}", begun.elapsed());
        reporter.set_conditions(memory(true));
        until(&mut reporter, |it| it.due == Due::Nothing).await;
        assert!(begun.elapsed() < Duration::from_secs(122), "after one more: {:?}", begun.elapsed());
        until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event)).await;
        assert!(begun.elapsed() < Duration::from_mins(4), "after two or three of each: {:?}", begun.elapsed());
        until(&mut reporter, |_| lines(&log).len() >= 60).await;
        let tries = |name: &str| lines(&log).iter().filter(|line| line.contains(name)).count();
        let tries = ["hook-1", "hook-2", "hook-3"].map(tries);
        assert!(tries.iter().max() <= tries.iter().min().map(|least| least + 2).as_ref(), "each in turn: {tries:?}");
    });
}

#[test]
fn what_the_node_has_holds_up_no_eviction_where_it_takes_long_and_fails_always() {
    run(async {
        let (client, log) = with_a_webhook_that_hangs("/nodes/");
        let mut reporter = reporting(client, ["web", "db"].map(eviction)).with_standard(Some(Standard::Lead));
        reporter.set_conditions(memory(false));
        reporter.set_conditions(memory(true));
        let begun = Instant::now();
        until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event)).await;
        let of_pods: Vec<_> = lines(&log).into_iter().filter(|line| !line.contains("/nodes/")).collect();
        assert_eq!(of_pods, [PATCH, DB, EVENT, EVENT]);
        assert!(begun.elapsed() < Duration::from_secs(130), "one of the node's before each: {:?}", begun.elapsed());
    });
}

#[test]
fn an_event_goes_behind_a_patch_that_is_due_later_but_not_much_later() {
    for (later, expected) in
        [(EVENT_YIELDS / 2, [PATCH, DB, EVENT, EVENT]), (EVENT_YIELDS * 2, [PATCH, EVENT, DB, EVENT])]
    {
        run(async {
            let (client, log) = server(accepts);
            let mut reporter = reporting(client, [eviction("web")]);
            tokio::time::advance(later).await;
            reporter.add(eviction("db"));
            until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event)).await;
            assert_eq!(lines(&log), expected, "{later:?}");
        });
    }
}

#[test]
fn an_answer_that_is_none_is_tried_a_few_times_and_counts_as_refused_then() {
    run(async {
        let broken = |asked: &Asked| if asked.line() == PATCH { (200, json!([])) } else { accepts(asked) };
        let (client, log) = server(broken);
        let mut reporter = reporting(client, [eviction("web")]);
        until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.progress == Progress::Over)).await;
        let all = lines(&log);
        assert_eq!(all.iter().filter(|line| *line == PATCH).count(), 5, "{all:?}");
        assert_eq!(all.last().map(String::as_str), Some(DELETE));
    });
}

#[test]
fn a_patch_that_is_in_conflict_is_tried_again_with_pauses_and_within_the_budget_and_not_for_ever() {
    run(async {
        let (client, log) = server(|asked| match asked.line().as_str() {
            PATCH => refused(409, "Conflict", "the object has been modified"),
            LIST => (200, json!({ "metadata": {}, "items": [{ "metadata": { "uid": "uid-of-web" } }] })),
            _ => accepts(asked),
        });
        let begun = Instant::now();
        let mut reporter = reporting(client, [eviction("web")]);
        until(&mut reporter, |it| it.outbox.is_empty()).await;
        let all = lines(&log);
        let of = |line: &str| all.iter().filter(|it| *it == line).count();
        assert_eq!((of(PATCH), of(LIST), of(DELETE), of(EVENT)), (5, 5, 1, 1), "{all:?}");
        // Half of 1, 2, 4 and 8 s.
        assert!(begun.elapsed() >= Duration::from_millis(7500), "{:?}", begun.elapsed());
        reporter.add(eviction("db"));
        while reporter.budget.take(Instant::now()).is_ok() {}
        reporter.outbox[0].is_in_conflict = true;
        let asked = lines(&log).len();
        assert!(reporter.write_next().await > Duration::ZERO, "it waits for the budget");
        assert_eq!(lines(&log).len(), asked);
    });
}

#[test]
fn conditions_come_before_evictions_and_again_with_each_heartbeat_and_a_taint_in_conflict_is_read_again() {
    run(async {
        let gets = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&gets);
        let other = json!({ "key": "other", "effect": "NoSchedule" });
        let ours = json!({ "key": "plimsoll.dev/memory-pressure", "effect": "NoSchedule" });
        let (client, log) = server(move |asked| match asked.line().as_str() {
            "GET /api/v1/nodes/n1" => {
                let version = count.fetch_add(1, Ordering::Relaxed);
                let taints = if version < 3 { json!([other]) } else { json!([other, ours]) };
                (200, json!({ "metadata": { "resourceVersion": version.to_string() }, "spec": { "taints": taints } }))
            }
            "PATCH /api/v1/nodes/n1" if asked.body["metadata"]["resourceVersion"] == "1" => {
                refused(409, "Conflict", "the object has been modified")
            }
            line if line.contains("nodes") => (200, json!({ "metadata": {} })),
            _ => accepts(asked),
        });
        let mut reporter = Reporter { effect: Some(TaintEffect::NoSchedule), ..reporting(client, [eviction("web")]) };
        let holds = Condition { kind: Kind::Memory, holds: true, since: Timestamp::UNIX_EPOCH };
        reporter.set_conditions(vec![holds]);
        until(&mut reporter, |it| it.due == Due::Nothing).await;
        let (apply, get, patch) = ("PATCH /api/v1/nodes/n1/status", "GET /api/v1/nodes/n1", "PATCH /api/v1/nodes/n1");
        // The conflict has a pause of its own.
        let of_node = "POST /api/v1/namespaces/default/events";
        let first = [get, apply, get, patch, PATCH, EVENT, of_node, get, patch];
        assert_eq!(lines(&log), first);
        let written = log.lock().expect("no test failed with it")[8].clone();
        assert_eq!(written.body["spec"]["taints"][0]["key"], "other");
        assert_eq!(written.body["spec"]["taints"][1]["key"], "plimsoll.dev/memory-pressure");
        assert!(log.lock().expect("no test failed with it")[1].query.contains("fieldManager=plimsoll"));
        let begun = Instant::now();
        until(&mut reporter, |_| lines(&log).len() >= first.len() + 2).await;
        assert_eq!(lines(&log)[first.len()..], [apply, get], "the taint is there");
        assert!((HEARTBEAT / 2..=HEARTBEAT).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        let later = Instant::now() + 3 * HEARTBEAT;
        reporter.forget_conditions();
        assert!(reporter.next(Timestamp::now(), later).is_err(), "an agent without a core has no heartbeat");
        reporter.set_conditions(vec![holds]);
        assert_eq!(
            reporter.next(Timestamp::now(), later),
            Ok(Write::Compare),
            "another agent may have written meanwhile"
        );
    });
}

/// One whose node has this condition of an earlier process, as far as the API server says.
fn node_with(status: &str) -> (u16, Value) {
    let since = "2026-11-01T10:00:00Z";
    let condition = json!({ "type": "PlimsollMemoryPressure", "status": status, "lastTransitionTime": since });
    (200, json!({ "metadata": {}, "status": { "conditions": [condition] } }))
}

const APPLY: &str = "PATCH /api/v1/nodes/n1/status";
const GET: &str = "GET /api/v1/nodes/n1";
const TAINTS: &str = "PATCH /api/v1/nodes/n1";
const OF_NODE: &str = "POST /api/v1/namespaces/default/events";

fn memory(holds: bool) -> Vec<Condition> {
    vec![Condition { kind: Kind::Memory, holds, since: Timestamp::now() }]
}

#[test]
fn what_the_node_has_is_asked_for_until_it_is_read_and_a_condition_that_goes_on_is_no_news() {
    for (status, is_news) in [("True", false), ("False", true)] {
        run(async {
            let asked_before = AtomicU32::new(0);
            let (client, log) = server(move |asked| match asked.line().as_str() {
                GET if asked_before.fetch_add(1, Ordering::Relaxed) < 3 => {
                    refused(503, "ServiceUnavailable", "it starts")
                }
                GET => node_with(status),
                _ => accepts(asked),
            });
            let mut reporter = reporting(client, None::<Entry>);
            reporter.set_conditions(memory(true));
            until(&mut reporter, |it| it.due == Due::Nothing && it.notes.due().next().is_none()).await;
            let all = lines(&log);
            assert_eq!(all[..5], [GET, GET, GET, GET, APPLY], "{status}");
            assert_eq!(all.iter().any(|line| line == OF_NODE), is_news, "{status}: {all:?}");
            let written = log.lock().expect("no test failed with it")[4].body["status"]["conditions"][0].clone();
            assert_eq!(written["lastTransitionTime"] == "2026-11-01T10:00:00Z", !is_news, "{written}");
        });
    }
}

#[test]
fn what_changes_before_the_nodes_conditions_are_read_is_news_once() {
    run(async {
        let (client, log) = server(|asked| if asked.line() == GET { node_with("False") } else { accepts(asked) });
        let mut reporter = reporting(client, None::<Entry>);
        reporter.set_conditions(memory(false));
        reporter.set_conditions(memory(true));
        until(&mut reporter, |it| it.due == Due::Nothing && it.notes.due().next().is_none()).await;
        let all = lines(&log);
        assert_eq!(all.iter().filter(|line| *line == OF_NODE).count(), 1, "{all:?}");
        let written = log.lock().expect("no test failed with it")[1].body["status"]["conditions"][0].clone();
        assert!(written["status"] == "True" && written["lastTransitionTime"] != "2026-11-01T10:00:00Z", "{written}");
    });
}

#[test]
fn a_heartbeat_that_fails_has_pauses_and_holds_up_no_eviction() {
    run(async {
        let is_broken = Arc::new(AtomicBool::new(false));
        let breaks = Arc::clone(&is_broken);
        let (client, log) = server(move |asked| match asked.line().as_str() {
            APPLY if breaks.load(Ordering::Relaxed) => refused(500, "InternalError", "a webhook has failed"),
            _ => accepts(asked),
        });
        let mut reporter = reporting(client, None::<Entry>);
        reporter.set_conditions(memory(false));
        until(&mut reporter, |it| it.due == Due::Nothing).await;
        is_broken.store(true, Ordering::Relaxed);
        let applied = || lines(&log).iter().filter(|line| *line == APPLY).count();
        until(&mut reporter, |_| applied() == 2).await;
        let begun = Instant::now();
        reporter.add(eviction("web"));
        until(&mut reporter, |it| it.outbox.iter().all(|open| open.entry.has_event)).await;
        assert!(begun.elapsed() < Duration::from_millis(500), "nothing has waited: {:?}", begun.elapsed());
        until(&mut reporter, |_| applied() == 7).await;
        // Half of 1, 2, 4, 8 and 16 s.
        assert!(begun.elapsed() > Duration::from_secs(15), "{:?}", begun.elapsed());
    });
}

#[test]
fn taints_that_fail_hold_up_no_heartbeat() {
    run(async {
        let (client, log) = server(|asked| match asked.line().as_str() {
            "PATCH /api/v1/nodes/n1" => refused(500, "InternalError", "a webhook has failed"),
            _ => accepts(asked),
        });
        let mut reporter = Reporter { effect: Some(TaintEffect::NoSchedule), ..reporting(client, None::<Entry>) };
        reporter.set_conditions(memory(true));
        let begun = Instant::now();
        until(&mut reporter, |_| lines(&log).iter().filter(|line| *line == APPLY).count() == 4).await;
        assert!(begun.elapsed() <= 3 * HEARTBEAT + Duration::from_secs(1), "{:?}", begun.elapsed());
    });
}

#[test]
fn a_taint_that_another_program_removes_or_sets_is_written_again_after_a_pause() {
    run(async {
        let untainted = json!({ "metadata": {} });
        let stored = Arc::new(Mutex::new(untainted.clone()));
        let of_server = Arc::clone(&stored);
        let (client, log) = server(move |asked| {
            let mut node = of_server.lock().expect("no test failed with it");
            match asked.line().as_str() {
                GET => (200, node.clone()),
                TAINTS => {
                    *node = json!({ "metadata": {}, "spec": asked.body["spec"] });
                    (200, node.clone())
                }
                _ => accepts(asked),
            }
        });
        let view = || {
            let node = stored.lock().expect("no test failed with it").clone();
            NodeView::of(&serde_json::from_value(node).expect("a node"))
        };
        let written = || lines(&log).iter().filter(|line| *line == TAINTS).count();
        let mut reporter = Reporter { effect: Some(TaintEffect::NoSchedule), ..reporting(client, None::<Entry>) };
        let is_quiet = |it: &Reporter| it.due == Due::Nothing && it.notes.due().next().is_none();
        let before = view();
        reporter.set_conditions(memory(true));
        until(&mut reporter, is_quiet).await;
        let ours = stored.lock().expect("no test failed with it").clone();
        // What is seen late is no reason for a write.
        reporter.see(&before);
        reporter.see(&view());
        assert!(reporter.write_next().await > ASTRAY && written() == 1, "{:?}", lines(&log));
        for (holds, found, expected) in [(true, &untainted, 2), (false, &ours, 4)] {
            reporter.set_conditions(memory(holds));
            until(&mut reporter, is_quiet).await;
            found.clone_into(&mut stored.lock().expect("no test failed with it"));
            let begun = Instant::now();
            reporter.see(&view());
            until(&mut reporter, |_| written() == expected).await;
            assert!((ASTRAY..ASTRAY * 2).contains(&begun.elapsed()), "{holds}: {:?}", begun.elapsed());
            reporter.see(&view());
            assert!(reporter.write_next().await > ASTRAY && written() == expected, "{:?}", lines(&log));
        }
    });
}

#[test]
fn taints_are_not_written_where_conditions_are_refused() {
    run(async {
        let (client, log) = server(|asked| match asked.line().as_str() {
            APPLY => refused(422, "Invalid", "a policy refuses it"),
            _ => accepts(asked),
        });
        let mut reporter = Reporter { effect: Some(TaintEffect::NoSchedule), ..reporting(client, None::<Entry>) };
        reporter.set_conditions(memory(true));
        until(&mut reporter, |it| it.due == Due::Nothing).await;
        reporter.see(&NodeView::default());
        tokio::time::advance(ASTRAY * 2).await;
        let _ = reporter.write_next().await;
        assert!(lines(&log).iter().all(|line| line != TAINTS), "{:?}", lines(&log));
    });
}

#[test]
fn a_node_object_that_is_made_anew_has_the_conditions_at_once() {
    run(async {
        let (client, log) = server(accepts);
        let mut reporter = reporting(client, None::<Entry>);
        let seen = |uid: &str| {
            let metadata = ObjectMeta { uid: Some(uid.into()), ..ObjectMeta::default() };
            NodeView::of(&Node { metadata, ..Node::default() })
        };
        reporter.see(&seen("one"));
        reporter.set_conditions(memory(false));
        let applied = || lines(&log).iter().filter(|line| *line == APPLY).count();
        until(&mut reporter, |it| it.due == Due::Nothing).await;
        for (uid, expected) in [("one", 1), ("two", 2), ("two", 2)] {
            reporter.see(&seen(uid));
            let begun = Instant::now();
            until(&mut reporter, |it| it.due == Due::Nothing).await;
            assert!(applied() == expected && begun.elapsed() < Duration::from_secs(1), "{uid}: {}", applied());
        }
    });
}

#[test]
fn a_node_that_is_made_after_it_was_asked_for_has_the_conditions_at_once() {
    run(async {
        let is_there = Arc::new(AtomicBool::new(false));
        let there = Arc::clone(&is_there);
        let (client, log) = server(move |asked| match asked.line().as_str() {
            GET if !there.load(Ordering::Relaxed) => refused(404, "NotFound", "there is no such node"),
            _ => accepts(asked),
        });
        let mut reporter = reporting(client, None::<Entry>);
        reporter.set_conditions(memory(false));
        until(&mut reporter, |it| it.due == Due::Nothing).await;
        assert_eq!(lines(&log), [GET]);
        is_there.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        reporter.see(&NodeView::of(&Node::default()));
        until(&mut reporter, |_| lines(&log).iter().any(|line| line == APPLY)).await;
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    });
}

#[test]
fn conditions_are_written_where_the_node_may_never_be_read_and_those_that_go_on_keep_their_time() {
    run(async {
        let (client, log) = server(|asked| match asked.line().as_str() {
            GET => refused(403, "Forbidden", "no right"),
            _ => accepts(asked),
        });
        let mut reporter = reporting(client, None::<Entry>);
        let at = |second| Timestamp::from_second(second).expect("a time");
        reporter.set_conditions(vec![Condition { kind: Kind::Memory, holds: true, since: at(60) }]);
        let begun = Instant::now();
        until(&mut reporter, |_| lines(&log).iter().any(|line| line == APPLY)).await;
        assert!(begun.elapsed() < Duration::from_mins(3), "{:?}", begun.elapsed());
        let disk = Condition { kind: Kind::Disk, holds: false, since: at(120) };
        reporter.set_conditions(vec![Condition { kind: Kind::Memory, holds: true, since: at(120) }, disk]);
        assert_eq!(reporter.conditions.as_ref().map(|all| [all[0].since, all[1].since]), Some([at(60), at(120)]));
    });
}
