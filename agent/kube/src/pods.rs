//! The pods of one node, followed through any gap.

use crate::budget::{Failures, spread};
use crate::error::{Refusal, chain};
use crate::kept::{has_ended, kept};
use crate::received::Received;
use core::pin::pin;
use core::time::Duration;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

/// So many pods are known: a kubelet runs 110 of them by default (`maxPods`). Pods that have ended give way to others.
pub const MOST_PODS: usize = 4096;
/// How long it is, less a random part of up to half, until pods are listed again that were more.
const MANY_PAUSE: Duration = Duration::from_mins(1);

/// The pods by their UIDs as they are written.
pub type Pods = BTreeMap<String, Arc<Pod>>;

/// What has changed.
#[derive(Clone, Debug)]
pub enum Change {
    /// These are all pods of the node now.
    Pods(Pods),
    /// The API server is not followed, and why. What it said last holds until [`Change::Pods`] comes.
    Lost(String),
}

/// Follows the pods of this node, by a client and what is notified with it ([`crate::client`]), until nothing receives what
/// changed. They are listed by the watch itself where the API server can do that (streaming lists, 1.32), which is a read
/// from its cache, and otherwise at once, from there too. A watch that ends goes on from where it was; after an error there
/// is a pause that doubles, with a random part. After an event that cannot be read all are listed again. Of a pod that cannot be
/// read in that list either nothing is known, where the watch lists pods; without streaming lists there is no list until it
/// is gone. Of more than [`MOST_PODS`] that have not
/// ended, what was said before holds.
pub async fn watch((client, watching): (Client, Arc<Notify>), node: &str, changes: mpsc::Sender<Change>) {
    let api = Api::<Received>::all(client);
    // Not in pages, which would be read from etcd: a node has few.
    let config = Config { page_size: None, ..Config::default() };
    let listed_first = config.fields(&format!("spec.nodeName={node}")).any_semantic();
    let mut config = listed_first.clone().streaming_lists();
    let mut unread = Failures::default();
    loop {
        match follow(watcher(api.clone(), config.clone()), &watching, &changes, &mut unread).await {
            Next::End => return,
            Next::Anew => {}
            Next::ListFirst => {
                tracing::info!("this API server does not list by a watch (WatchList): pods are listed first");
                config = listed_first.clone();
            }
        }
    }
}

/// The pods of this node once, for a command: the API server's list as it prints it, in JSON, from its cache.
pub async fn list(client: &Client, node: &str) -> kube::Result<String> {
    // The name of a node has no character that a query could not have.
    let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}&resourceVersion=0");
    client.request_text(Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?).await
}

enum Next {
    End,
    ListFirst,
    Anew,
}

async fn follow(
    events: impl Stream<Item = Result<Event<Received>, watcher::Error>>,
    watching: &Notify,
    changes: &mpsc::Sender<Change>,
    // Events that cannot be read, of all watches: those that can be read in between do not end the pause, as one pod may go on
    // to send such events.
    unread: &mut Failures,
) -> Next {
    let (mut events, mut known) = (pin!(events), Known::default());
    let (mut failures, mut is_lost) = (Failures::default(), false);
    loop {
        let received = tokio::select! {
            event = events.next() => event,
            () = watching.notified() => {
                // What is known is as it is there, unless a list is under way.
                known.is_changed |= is_lost && known.listed.is_none();
                None
            }
            () = changes.closed() => return Next::End,
        };
        // What is there already is one change.
        let mut next = received;
        let (mut failed, mut is_behind) = (None, false);
        while let Some(event) = next.take() {
            match event {
                Ok(event) => {
                    // A list begins before it is asked for.
                    if !matches!(event, Event::Init) {
                        failures.end();
                    }
                    known.take_in(event);
                    // It is followed again, also where that brings nothing new.
                    known.is_changed |= is_lost && known.listed.is_none();
                    if known.are_too_many {
                        let why = format!("more than {MOST_PODS} pods that have not ended have the name of this node");
                        if changes.send(Change::Lost(why)).await.is_err() {
                            return Next::End;
                        }
                        tokio::time::sleep(spread(MANY_PAUSE, fastrand::f64())).await;
                        return Next::Anew;
                    }
                }
                Err(watcher::Error::WatchStartFailed(error)) if is_not_streamed(&error) => return Next::ListFirst,
                Err(error) => {
                    // The watcher goes on with the next event. While it lists pods, to begin anew would only meet this one again.
                    is_behind = is_unread(&error) && known.listed.is_none();
                    let what = if is_unread(&error) { "an event cannot be read: " } else { "" };
                    failed = Some(format!("{what}{}", chain(&error)));
                    break;
                }
            }
            next = events.next().now_or_never().flatten();
        }
        if let Some(pods) = known.changed() {
            is_lost = false;
            if changes.send(Change::Pods(pods)).await.is_err() {
                return Next::End;
            }
        }
        if let Some(why) = failed {
            is_lost = true;
            if changes.send(Change::Lost(why)).await.is_err() {
                return Next::End;
            }
            let failures = if is_behind { &mut *unread } else { &mut failures };
            tokio::time::sleep(failures.add(Instant::now(), fastrand::f64())).await;
            if is_behind {
                return Next::Anew;
            }
        }
    }
}

/// What an event said that cannot be read is lost: of which pod it was, and whether that is gone. To the kube client a line that
/// is JSON and no event is a status, of which every field may be absent (`request_events`).
const fn is_unread(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchFailed(kube::Error::SerdeError(_) | kube::Error::Api(_)))
}

/// `sendInitialEvents` is refused as not valid where the server has no `WatchList` (validation of `ListOptions`).
fn is_not_streamed(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 422))
        && matches!(Refusal::of(error), Refusal::Never(why) if why.contains("sendInitialEvents"))
}

/// What was received.
#[derive(Default)]
struct Known {
    pods: Pods,
    /// A list that is under way. What was known before holds until its end.
    listed: Option<Pods>,
    is_changed: bool,
    /// There is no room for one that has not ended.
    are_too_many: bool,
}

impl Known {
    fn take_in(&mut self, event: Event<Received>) {
        match event {
            Event::Init => self.listed = Some(Pods::new()),
            Event::InitApply(Received(pod)) => {
                self.are_too_many |= !insert(self.listed.get_or_insert_default(), kept(pod));
            }
            Event::InitDone => {
                self.pods = self.listed.take().unwrap_or_default();
                self.is_changed = true;
            }
            Event::Apply(Received(pod)) => {
                let pod = kept(pod);
                let known = pod.metadata.uid.as_ref().and_then(|uid| self.pods.get(uid));
                // Most events are of what nothing reads: conditions, readiness, annotations of others.
                if known.is_none_or(|known| **known != pod) {
                    self.are_too_many |= !insert(&mut self.pods, pod);
                    self.is_changed = true;
                }
            }
            Event::Delete(Received(pod)) => {
                self.is_changed |= pod.metadata.uid.is_some_and(|uid| self.pods.remove(&uid).is_some());
            }
        }
    }

    /// All of them, where that is other than what was taken last.
    fn changed(&mut self) -> Option<Pods> {
        core::mem::take(&mut self.is_changed).then(|| self.pods.clone())
    }
}

/// Where there is no room, one that has ended goes. False: none has.
fn insert(pods: &mut Pods, pod: Pod) -> bool {
    let Some(uid) = pod.metadata.uid.clone() else { return true };
    pods.insert(uid.clone(), Arc::new(pod));
    if pods.len() <= MOST_PODS {
        return true;
    }
    let is_over = |uid: &String| pods.get(uid).is_some_and(|pod| has_ended(pod));
    let over = if is_over(&uid) { Some(uid) } else { pods.keys().find(|uid| is_over(uid)).cloned() };
    over.is_some_and(|uid| pods.remove(&uid).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Asked, deep, refused, server};
    use serde_json::{Value, json};

    fn pod(name: &str, version: u32) -> Value {
        let metadata = json!({ "name": name, "namespace": "shop", "uid": name, "resourceVersion": version.to_string(),
            // Later than any time that can be read here, as its author may write it.
            "managedFields": [{ "manager": "author", "time": "9999-12-31T23:59:59Z" }] });
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata })
    }

    fn event(kind: &str, object: &Value) -> Value {
        json!({ "type": kind, "object": object })
    }

    fn end_of_list(version: u32) -> Value {
        let metadata = json!({ "resourceVersion": version.to_string(),
            "annotations": { "k8s.io/initial-events-end": "true" } });
        event("BOOKMARK", &json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata }))
    }

    /// What is seen of an API server that answers so: the names of pods, or that it is lost.
    async fn seen(answer: impl Fn(&Asked, usize) -> (u16, Value) + Send + Sync + 'static, count: usize) -> Vec<String> {
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let next = move || asked.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        let (client, _) = server(move |asked| answer(asked, next()));
        let (send, mut changes) = mpsc::channel(1);
        let watching = tokio::spawn(async move { watch((client, Arc::default()), "n1", send).await });
        let mut seen = Vec::new();
        while seen.len() < count {
            seen.push(match changes.recv().await.expect("it goes on") {
                Change::Pods(pods) => {
                    assert!(pods.values().all(|pod| pod.metadata.managed_fields.is_none()));
                    pods.into_keys().collect::<Vec<_>>().join(" ")
                }
                Change::Lost(_) => "lost".to_owned(),
            });
        }
        drop(changes);
        watching.await.expect("it ends where nothing receives");
        seen
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(test)
    }

    #[test]
    fn pods_are_listed_by_the_watch_and_one_that_breaks_goes_on_where_it_was() {
        let seen = run(seen(
            |asked, number| {
                assert_eq!(asked.path, "/api/v1/pods");
                assert!(asked.query.contains("fieldSelector=spec.nodeName%3Dn1"), "{}", asked.query);
                let lists = asked.query.contains("sendInitialEvents=true");
                match number {
                    0 => {
                        assert!(lists, "{}", asked.query);
                        let lines = [event("ADDED", &pod("a", 1)), event("ADDED", &pod("b", 2)), end_of_list(3)];
                        (200, json!(lines))
                    }
                    2 => {
                        assert!(!lists && asked.query.contains("resourceVersion=3"), "{}", asked.query);
                        (200, json!([event("DELETED", &pod("a", 4)), event("ADDED", &pod("c", 5))]))
                    }
                    // What it has is newer than all that a watch can begin with.
                    3 => (200, json!([event("ERROR", &refused(410, "Expired", "").1)])),
                    4 => {
                        assert!(lists, "{}", asked.query);
                        (200, json!([event("ADDED", &pod("d", 8)), end_of_list(9)]))
                    }
                    _ => refused(503, "ServiceUnavailable", ""),
                }
            },
            5,
        ));
        assert_eq!(seen, ["a b", "lost", "b c", "lost", "d"]);
    }

    #[test]
    fn a_pod_that_is_deeper_than_is_followed_is_known_and_is_known_to_be_gone() {
        let hostile = |version| {
            let mut object = pod("hostile", version);
            object["metadata"]["managedFields"][0]["fieldsV1"] = deep(200);
            object
        };
        let seen = run(seen(
            move |_, number| match number {
                0 => (200, json!([event("ADDED", &pod("a", 1)), event("ADDED", &hostile(2)), end_of_list(3)])),
                1 => (200, json!([event("DELETED", &hostile(4))])),
                _ => refused(503, "ServiceUnavailable", ""),
            },
            2,
        ));
        assert_eq!(seen, ["a hostile", "a"]);
    }

    #[test]
    fn a_list_is_the_nodes_own_as_it_is_written_and_a_refusal_says_why() {
        run(async {
            let (client, log) = server(|asked| match asked.query.as_str() {
                "fieldSelector=spec.nodeName%3Dn1&resourceVersion=0" => (200, json!({ "items": [pod("a", 1)] })),
                _ => refused(403, "Forbidden", "pods is forbidden"),
            });
            let listed = list(&client, "n1").await.expect("a list");
            let listed: Value = serde_json::from_str(&listed).expect("JSON");
            assert_eq!(listed["items"][0]["metadata"]["name"], "a");
            let error = list(&client, "n2").await.expect_err("it is refused");
            assert!(chain(&error).contains("pods is forbidden"), "{error}");
            assert!(log.lock().expect("no panic").iter().all(|asked| asked.line() == "GET /api/v1/pods"));
        });
    }

    #[test]
    fn so_many_pods_are_known_and_those_that_have_ended_give_way() {
        let object = |name: &str, phase: &str| {
            let mut object = pod(name, 1);
            object["status"] = json!({ "phase": phase });
            serde_json::from_value::<Received>(object).expect("a pod")
        };
        let mut known = Known::default();
        for number in 0..MOST_PODS {
            let phase = if number == 7 { "Failed" } else { "Running" };
            known.take_in(Event::Apply(object(&number.to_string(), phase)));
        }
        known.take_in(Event::Apply(object("ended", "Succeeded")));
        assert_eq!((known.pods.len(), known.pods.contains_key("ended"), known.are_too_many), (MOST_PODS, false, false));
        known.take_in(Event::Apply(object("new", "Running")));
        assert_eq!((known.pods.len(), known.pods.contains_key("7"), known.are_too_many), (MOST_PODS, false, false));
        known.take_in(Event::Apply(object("another", "Running")));
        assert!(known.are_too_many);
    }

    #[test]
    fn what_nothing_reads_is_no_change() {
        let object = |version: u32, annotation: &str, phase: &str| {
            let mut object = pod("a", version);
            object["metadata"]["annotations"] = json!({ annotation: "at" });
            let state = json!({ "running": { "startedAt": "2026-11-01T10:00:00Z" } });
            let container = json!({ "name": "c", "image": "i", "imageID": "", "ready": version.is_multiple_of(2), "restartCount": version,
                "state": state });
            object["status"] = json!({ "phase": phase, "containerStatuses": [container],
                "conditions": [{ "type": "Ready", "status": version.is_multiple_of(2).to_string() }] });
            serde_json::from_value::<Received>(object).expect("a pod")
        };
        let mut known = Known::default();
        let mut is_change = |event| {
            known.take_in(event);
            known.changed().is_some()
        };
        assert!(is_change(Event::Apply(object(1, "of-another", "Running"))), "it is new");
        assert!(!is_change(Event::Apply(object(2, "of-one-more", "Running"))));
        assert!(!is_change(Event::Apply(object(3, "of-another", "Running"))));
        assert!(is_change(Event::Apply(object(4, crate::eviction::REPORTED_AT, "Running"))), "that it was patched");
        assert!(is_change(Event::Apply(object(5, crate::eviction::REPORTED_AT, "Failed"))), "its phase");
        assert!(is_change(Event::Delete(object(6, crate::eviction::REPORTED_AT, "Failed"))), "it is gone");
        assert!(!is_change(Event::Delete(object(6, crate::eviction::REPORTED_AT, "Failed"))));
    }

    #[test]
    fn an_event_that_changes_nothing_shows_that_pods_are_followed_again() {
        let seen = run(seen(
            |_, number| match number {
                0 => (200, json!([event("ADDED", &pod("a", 1)), end_of_list(2)])),
                1 => {
                    let error = event("ERROR", &refused(500, "InternalError", "").1);
                    (200, json!([event("MODIFIED", &pod("a", 3)), error, event("MODIFIED", &pod("a", 4))]))
                }
                _ => refused(503, "ServiceUnavailable", ""),
            },
            4,
        ));
        assert_eq!(seen, ["a", "lost", "a", "lost"]);
    }

    #[test]
    fn of_too_many_pods_what_was_said_before_holds_until_there_are_fewer() {
        let seen = run(seen(
            |_, number| match number {
                0 => (200, json!([event("ADDED", &pod("a", 1)), end_of_list(3)])),
                1 => {
                    let many = (0..=MOST_PODS).map(|number| event("ADDED", &pod(&number.to_string(), 4)));
                    (200, Value::Array(many.collect()))
                }
                _ => (200, json!([event("ADDED", &pod("b", 8)), end_of_list(9)])),
            },
            3,
        ));
        assert_eq!(seen, ["a", "lost", "b"]);
    }

    /// No pod.
    fn unreadable(name: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "uid": 7 } })
    }

    #[test]
    fn after_an_event_that_cannot_be_read_pods_are_listed_again_and_one_that_cannot_be_is_left_out() {
        let seen = run(seen(
            |asked, number| {
                let lists = asked.query.contains("sendInitialEvents=true");
                assert_eq!(lists, matches!(number, 0 | 2), "{number}: {}", asked.query);
                match number {
                    0 => (200, json!([event("ADDED", &pod("a", 1)), event("ADDED", &pod("b", 2)), end_of_list(3)])),
                    1 => (200, json!([event("DELETED", &unreadable("b")), event("ADDED", &pod("c", 5))])),
                    2 => {
                        let [a, c] = [("a", 1), ("c", 5)].map(|(name, version)| event("ADDED", &pod(name, version)));
                        (200, json!([a, event("ADDED", &unreadable("d")), c, end_of_list(6)]))
                    }
                    3 => (200, json!([event("ADDED", &pod("e", 7))])),
                    _ => refused(503, "ServiceUnavailable", ""),
                }
            },
            5,
        ));
        assert_eq!(seen, ["a b", "lost", "lost", "a c", "a c e"]);
    }

    #[test]
    fn an_event_that_is_json_of_another_type_is_unread_and_what_an_api_server_says_itself_is_not() {
        let status = || Box::new(kube::core::Status::default());
        let of_json = serde_json::from_str::<Value>("{]").map_err(kube::Error::SerdeError).expect_err("none");
        for (error, expected) in [
            (watcher::Error::WatchFailed(of_json), true),
            (watcher::Error::WatchFailed(kube::Error::Api(status())), true),
            (watcher::Error::WatchFailed(kube::Error::ReadEvents(std::io::Error::other("it is away"))), false),
            (watcher::Error::WatchStartFailed(kube::Error::Api(status())), false),
            (watcher::Error::WatchError(status()), false),
            (watcher::Error::NoResourceVersion, false),
        ] {
            assert_eq!(is_unread(&error), expected, "{error:?}");
        }
    }

    #[test]
    fn lists_after_events_that_cannot_be_read_have_pauses_that_double() {
        run(async {
            let begun = Instant::now();
            let answer = |asked: &Asked, _| {
                let lists = asked.query.contains("sendInitialEvents=true");
                let lines = [event("ADDED", &pod("a", 1)), end_of_list(2)];
                (200, if lists { json!(lines) } else { json!([event("MODIFIED", &unreadable("b"))]) })
            };
            assert_eq!(seen(answer, 12).await, ["a", "lost"].repeat(6));
            // Half of 1, 2, 4, 8 and 16 s.
            assert!(begun.elapsed() > Duration::from_secs(15), "{:?}", begun.elapsed());
        });
    }

    /// The answer of an API server that does not list by a watch.
    fn not_streamed() -> (u16, Value) {
        let why = "ListOptions.meta.k8s.io is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for \
                   watch unless the WatchList feature gate is enabled";
        refused(422, "Invalid", why)
    }

    #[test]
    fn lists_that_fail_have_pauses_that_double() {
        run(async {
            let begun = Instant::now();
            let answer = |_: &Asked, number| {
                if number == 0 { not_streamed() } else { refused(503, "ServiceUnavailable", "") }
            };
            assert_eq!(seen(answer, 8).await, ["lost"; 8]);
            assert!(begun.elapsed() > Duration::from_secs(40), "{:?}", begun.elapsed());
        });
    }

    #[test]
    fn an_older_api_server_lists_pods_first() {
        let seen = run(seen(
            |asked, number| match number {
                0 => not_streamed(),
                1 => {
                    assert!(!asked.query.contains("watch=true") && asked.query.contains("resourceVersion=0"));
                    let metadata = json!({ "resourceVersion": "7" });
                    (200, json!({ "metadata": metadata, "items": [pod("a", 1)] }))
                }
                2 => {
                    assert!(asked.query.contains("watch=true") && asked.query.contains("resourceVersion=7"));
                    (200, json!([event("ADDED", &pod("b", 8))]))
                }
                _ => refused(503, "ServiceUnavailable", ""),
            },
            2,
        ));
        assert_eq!(seen, ["a", "a b"]);
    }
}
