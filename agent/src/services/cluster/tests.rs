use super::*;
use plimsoll_policy::kubelet::Signal;
use plimsoll_policy::message::Cause;
use plimsoll_state::durable::{Figures, Moment, PodName, Reason};

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
        cgroups: Vec::new(),
        reason: Reason::Cause(Cause::Signal(Signal::MemoryAvailable)),
        message: String::new(),
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
    evictions: mpsc::UnboundedReceiver<Eviction>,
    over: mpsc::UnboundedSender<Entry>,
    changes: mpsc::Sender<Change>,
}

impl Rig {
    fn new() -> Self {
        let ((changes, of_changes), (send_over, over)) = (mpsc::channel(4), mpsc::unbounded_channel());
        let (evictions, of_evictions) = mpsc::unbounded_channel();
        let cluster = Cluster {
            changes: of_changes,
            pods: watch::channel(None).0,
            conditions: watch::channel(None).0,
            evictions,
            over,
            known: BTreeMap::new(),
            reader: PodReader::default(),
            given: HashMap::new(),
            is_followed: false,
        };
        Self { cluster, evictions: of_evictions, over: send_over, changes }
    }
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
    let Rig { mut cluster, mut evictions, over, changes } = Rig::new();
    let outbox = outbox(vec![eviction(7, Progress::Killed, None)]);
    assert_eq!(cluster.report(&outbox), [], "no pod is known yet");
    assert!(evictions.try_recv().is_err());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let pods = Pods::from([(UID.to_owned(), object("web", "Running", "running"))]);
        changes.send(Change::Pods(pods)).await.expect("it is received");
        let ClusterEvent::Pods(listed) = cluster.event().await else { panic!("pods") };
        assert!(listed.pods.contains_key(&Uid::of(UID)));
        for _ in 0..2 {
            assert_eq!(cluster.report(&outbox), []);
        }
        let given = evictions.recv().await.expect("it is given");
        assert!(cluster.ends(Uid::of(UID)) && !cluster.ends(Uid(7)));
        assert!(evictions.try_recv().is_err(), "once");
        assert_eq!((given.namespace.as_str(), given.name.as_str(), given.uid.as_str()), ("shop", "web", UID));
        assert_eq!(given.at.as_millisecond(), 1_700_000_000_123);
        assert!(given.message.contains("Threshold quantity: 5Mi, available: 1Mi"), "{}", given.message);
        over.send(given.into()).expect("it is received");
        let ClusterEvent::Reported(number) = cluster.event().await else { panic!("it is reported") };
        assert_eq!(number, EvictionNumber(7));
        assert!(!cluster.ends(Uid::of(UID)), "it is over");
        // One of which nothing is known but its UID cannot be reported.
        changes.send(Change::Pods(Pods::new())).await.expect("it is received");
        let ClusterEvent::Pods(_) = cluster.event().await else { panic!("pods") };
        assert_eq!(cluster.report(&outbox), [EvictionNumber(7)]);
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
