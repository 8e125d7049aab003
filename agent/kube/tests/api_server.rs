//! What this crate writes and follows, beside a real API server. `cargo xtask test cluster` runs these, and sets
//! `PLIMSOLL_TEST_KUBECONFIG`; without that they fail. No kubelet runs there, so that nothing else writes a pod's status.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_cluster_suite::{Cluster, Format, wait_for};
use plimsoll_kube::{
    Access, Change, Client, Condition, Decision, Eviction, Kind, Outcome, Pods, Progress, Report, Reporter, Standard,
    TaintEffect, Timestamp, client, dial_to, list, node, stale, watch, watch_node,
};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch as latest};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_mins(1);

/// The API server, a node of the test's own, and where this crate's own connections go.
struct Scene {
    cluster: Cluster,
    node: String,
    address: SocketAddr,
}

impl Scene {
    fn set(node: &str) -> Self {
        let cluster = Cluster::of_environment().expect("a cluster to test");
        cluster.add_node(node).expect("a new name");
        let address = access().resolve().expect("it is an address");
        Self { cluster, node: node.to_owned(), address }
    }

    fn client(&self) -> Client {
        client(access(), dial_to(self.address)).0
    }

    fn node_path(&self) -> String {
        format!("/api/v1/nodes/{}", self.node)
    }

    /// A pod that was given to the node by hand; gives its UID.
    fn add_pod(&self, name: &str) -> String {
        let spec = json!({
            "nodeName": self.node, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "c", "image": "none" }],
        });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec });
        // The account that each pod has is made a while after its namespace.
        let made = wait_for("the pod is accepted", PATIENCE, || {
            Ok(self.cluster.api.create("/api/v1/namespaces/default/pods", &pod)?.object().ok())
        });
        made.expect("it is")["metadata"]["uid"].as_str().expect("it has one").to_owned()
    }

    fn pod(&self, name: &str) -> Option<Value> {
        self.cluster.api.get(&format!("/api/v1/namespaces/default/pods/{name}")).expect("an answer").object().ok()
    }

    fn object(&self, path: &str) -> Value {
        self.cluster.api.get(path).and_then(plimsoll_cluster_suite::Answer::object).expect("it is there")
    }

    /// Reports these until nothing of them is left to be written; gives how far each came.
    async fn report(&self, evictions: &[Eviction], pods: Option<Pods>) -> Vec<Progress> {
        let (send, decisions) = mpsc::unbounded_channel();
        let ((_conditions, conditions), (_pods, pods)) = (latest::channel(None), latest::channel(pods));
        let ((_node, node), (_degraded, degraded)) = (latest::channel(None), latest::channel(Vec::new()));
        let (outcomes, mut came) = mpsc::unbounded_channel();
        for eviction in evictions {
            send.send(Decision::Evicted(eviction.clone())).expect("it is received");
        }
        let reporter = Reporter::new(self.client(), self.node.clone(), None);
        let (_incidents, incidents) = mpsc::channel(1);
        let report = Report { decisions, conditions, pods, node, degraded, incidents };
        let task = tokio::spawn(reporter.run(report, outcomes));
        let mut entries = Vec::new();
        while entries.len() < evictions.len() {
            let outcome = timeout(PATIENCE, came.recv()).await.expect("it is reported").expect("it runs");
            let Outcome::Over(entry) = outcome else { continue };
            assert!(entry.has_event);
            entries.push(entry.progress);
        }
        task.abort();
        entries
    }
}

fn access() -> Access {
    let kubeconfig = std::env::var_os("PLIMSOLL_TEST_KUBECONFIG").expect("`cargo xtask test cluster` sets it");
    Access::of_kubeconfig(Path::new(&kubeconfig)).expect("a kubeconfig")
}

fn eviction(name: &str, uid: &str) -> Eviction {
    Eviction {
        uid: uid.to_owned(),
        namespace: "default".into(),
        name: name.to_owned(),
        message: "The node was low on resource: memory. ".into(),
        annotations: [("starved_resource".to_owned(), "memory".to_owned())].into(),
        grace_seconds: 0,
        at: Timestamp::now(),
    }
}

fn condition(kind: Kind, holds: bool) -> Condition {
    Condition { kind, holds, since: Timestamp::now() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_pod_is_failed_with_the_kubelets_words_and_has_one_event() {
    let scene = Scene::set("kube-eviction");
    let uid = scene.add_pod("evicted");
    let evicted = eviction("evicted", &uid);
    scene.report(std::slice::from_ref(&evicted), Some(Pods::new())).await;
    let pod = scene.pod("evicted").expect("it is there");
    let status = &pod["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Evicted")));
    assert_eq!(status["message"], evicted.message);
    let conditions = status["conditions"].as_array().expect("it has some");
    let disruption = conditions.iter().find(|it| it["type"] == "DisruptionTarget").expect("it is marked");
    assert_eq!((&disruption["status"], &disruption["reason"]), (&json!("True"), &json!("TerminationByKubelet")));
    assert!(pod["metadata"]["annotations"]["plimsoll.dev/eviction-reported-at"].is_string());
    // Once more, as after a restart that lost the answer.
    scene.report(&[evicted], Some(Pods::new())).await;
    let events = scene.object(&format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid={uid}"));
    let ours: Vec<_> =
        events["items"].as_array().expect("a list").iter().filter(|event| event["reason"] == "Evicted").collect();
    let [event] = ours[..] else { panic!("{ours:?}") };
    assert_eq!((&event["type"], &event["source"]["component"]), (&json!("Warning"), &json!("plimsoll")));
    assert_eq!(event["metadata"]["annotations"]["starved_resource"], "memory");
    assert_eq!(event["source"]["host"], "kube-eviction");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_for_a_command_has_the_pods_of_the_node_alone() {
    let (scene, other) = (Scene::set("kube-list"), Scene::set("kube-list-other"));
    let uid = scene.add_pod("listed");
    other.add_pod("elsewhere");
    // From the API server's cache, which may have it a moment later. A DaemonSet of another test may have a pod here, too.
    let listed = async {
        loop {
            let text = list(&scene.client(), &scene.node).await.expect("it answers");
            let pods: Value = serde_json::from_str(&text).expect("JSON");
            let pods = pods["items"].as_array().expect("a list").clone();
            if pods.iter().any(|pod| pod["metadata"]["uid"] == uid) {
                return pods;
            }
        }
    };
    let listed = timeout(PATIENCE, listed).await.expect("it is listed");
    assert!(listed.iter().all(|pod| pod["spec"]["nodeName"] == scene.node), "{listed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_of_the_same_name_and_another_uid_is_neither_marked_nor_deleted() {
    let scene = Scene::set("kube-uid");
    let uid = scene.add_pod("successor");
    let other = eviction("successor", "01234567-89ab-cdef-0123-456789abcdef");
    let marked = scene.report(std::slice::from_ref(&other), None).await;
    // Longer than a request may be: the patch is refused for good, and the pod is to be deleted.
    let refused = Eviction { message: "x".repeat(4 << 20), ..other };
    let deleted = scene.report(&[refused], None).await;
    assert_eq!([marked, deleted], [[Progress::Over], [Progress::Over]]);
    let pod = scene.pod("successor").expect("it is there");
    assert_eq!((&pod["metadata"]["uid"], &pod["metadata"]["deletionTimestamp"]), (&json!(uid), &Value::Null));
    assert_ne!(pod["status"]["phase"], "Failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_are_ours_alone_and_go_without_a_trace() {
    let scene = Scene::set("kube-conditions");
    let (client, name) = (scene.client(), scene.node.as_str());
    let both = [condition(Kind::Memory, true), condition(Kind::Disk, false)];
    node::write_conditions(&client, name, &both, Timestamp::now()).await.expect("it is accepted");
    let taints = node::wanted(&both, Some(TaintEffect::NoSchedule));
    // The node's controller writes taints at the same time.
    timeout(PATIENCE, async { while node::write_taints(&client, name, &taints).await.is_err() {} })
        .await
        .expect("the same");
    let status = |kind: &str| {
        let node = scene.object(&scene.node_path());
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().find(|it| it["type"] == kind).map(|it| it["status"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(status("PlimsollMemoryPressure").as_deref(), Some("True"));
    assert_eq!(status("PlimsollDiskPressure").as_deref(), Some("False"));
    assert!(status("Ready").is_some(), "that of the kubelet stays");
    let read = node::read_conditions(&client, name).await.expect("they are there");
    assert_eq!(
        read.iter().map(|it| (it.kind, it.holds)).collect::<Vec<_>>(),
        [(Kind::Memory, true), (Kind::Disk, false)]
    );
    node::clean(&client, name).await.expect("it is accepted");
    assert_eq!((status("PlimsollMemoryPressure"), status("PlimsollDiskPressure")), (None, None));
    assert!(status("Ready").is_some());
    let text = scene.object(&scene.node_path())["spec"].to_string();
    assert!(!text.contains("plimsoll.dev"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_agent_that_is_gone_left_is_removed_and_what_others_keep_alive_stays() {
    let (gone, live) = (Scene::set("kube-gone"), Scene::set("kube-live"));
    let client = gone.client();
    let holds = [condition(Kind::Memory, true)];
    let taints = node::wanted(&holds, Some(TaintEffect::PreferNoSchedule));
    let now = Timestamp::now();
    for (scene, heartbeat) in [(&gone, now - stale::STALE - Duration::from_secs(1)), (&live, now)] {
        node::write_conditions(&client, &scene.node, &holds, heartbeat).await.expect("it is accepted");
        timeout(PATIENCE, async { while node::write_taints(&client, &scene.node, &taints).await.is_err() {} })
            .await
            .expect("the same");
    }
    let is_listed = async |name: &str| stale::names(&client).await.expect("listed").contains(&name.to_owned());
    assert!(is_listed("kube-gone").await && !is_listed("kube-live").await);
    assert!(!stale::clean(&client, "kube-live").await.expect("it is read"), "it has an agent");
    assert!(stale::clean(&client, "kube-gone").await.expect("it is accepted"));
    for (scene, expected) in [(&gone, false), (&live, true)] {
        let object = scene.object(&scene.node_path());
        let has = ["status", "spec"].map(|part| object[part].to_string().to_lowercase().contains("plimsoll"));
        assert_eq!(has, [expected; 2], "{object}");
    }
    assert!(!is_listed("kube-gone").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standard_condition_that_is_held_is_set_again_and_taken_back_in_the_end() {
    let scene = Scene::set("kube-standard");
    let (send, decisions) = mpsc::unbounded_channel();
    let (conditions, of_conditions) = latest::channel(Some(vec![condition(Kind::Memory, false)]));
    let ((_pods, pods), (seen, node)) = (latest::channel(None), latest::channel(None));
    let (_degraded, degraded) = latest::channel(Vec::new());
    let (outcomes, _came) = mpsc::unbounded_channel();
    let reporter = Reporter::new(scene.client(), scene.node.clone(), None).with_standard(Some(Standard::Hold));
    let (_incidents, incidents) = mpsc::channel(1);
    let report = Report { decisions, conditions: of_conditions, pods, node, degraded, incidents };
    let reporting = tokio::spawn(reporter.run(report, outcomes));
    let (following, name) = (scene.client(), scene.node.clone());
    let watching =
        tokio::spawn(async move { watch_node(following, &name, seen, tokio::sync::watch::channel(true).0).await });
    let becomes = async |status: &str, reason: &str| {
        timeout(PATIENCE, async {
            loop {
                let node = scene.object(&scene.node_path());
                let mut all = node["status"]["conditions"].as_array().into_iter().flatten();
                let memory = all.find(|it| it["type"] == "MemoryPressure");
                if memory.is_some_and(|it| it["status"] == status && it["reason"] == reason) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("it never is {status} with the reason {reason}"));
    };
    let kubelet_writes = || {
        let written = json!({ "type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory" });
        let body = json!({ "status": { "conditions": [written] } });
        let path = format!("{}/status", scene.node_path());
        scene
            .cluster
            .api
            .request("PATCH", &path, Format::Strategic, &body)
            .and_then(plimsoll_cluster_suite::Answer::object)
            .expect("written");
    };
    kubelet_writes();
    conditions.send_replace(Some(vec![condition(Kind::Memory, true)]));
    for _ in 0..2 {
        becomes("True", "PlimsollThresholdMet").await;
        kubelet_writes();
    }
    becomes("True", "PlimsollThresholdMet").await;
    conditions.send_replace(Some(vec![condition(Kind::Memory, false)]));
    becomes("False", "PlimsollThresholdNotMet").await;
    reporting.abort();
    watching.abort();
    drop(send);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_taint_is_kept_beside_those_that_others_write_at_the_same_time() {
    const OTHERS: usize = 10;
    let scene = Arc::new(Scene::set("kube-taints"));
    let wanted = node::wanted(&[condition(Kind::Memory, true)], Some(TaintEffect::PreferNoSchedule));
    let other = Arc::clone(&scene);
    let others = tokio::task::spawn_blocking(move || {
        for number in 0..OTHERS {
            let added = wait_for("the other's taint is written", PATIENCE, || {
                let node = other.object(&other.node_path());
                let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
                taints.push(json!({ "key": format!("other-{number}"), "effect": "PreferNoSchedule" }));
                let version = &node["metadata"]["resourceVersion"];
                let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
                let answer = other.cluster.api.request("PATCH", &other.node_path(), Format::Merge, &patch)?;
                Ok((answer.status < 300).then_some(()))
            });
            added.expect("it is");
        }
    });
    let (client, mut conflicts) = (scene.client(), 0);
    let mut is_wanted = false;
    // Pauses of many lengths: some are too short for the other's reading and writing, and some are long enough.
    for pause in (0..20).map(|step| Duration::from_millis(10 * step)).cycle() {
        if others.is_finished() {
            break;
        }
        tokio::time::sleep(pause).await;
        is_wanted = !is_wanted;
        let taints = if is_wanted { &wanted[..] } else { &[] };
        match node::write_taints(&client, &scene.node, taints).await {
            Ok(()) => {}
            Err(error) if error.to_string().contains("the object has been modified") => conflicts += 1,
            Err(error) => panic!("{error}"),
        }
    }
    others.await.expect("all are written");
    timeout(PATIENCE, async { while node::write_taints(&client, &scene.node, &wanted).await.is_err() {} })
        .await
        .expect("it is accepted");
    let taints = scene.object(&scene.node_path())["spec"]["taints"].to_string();
    println!("{conflicts} writes were in conflict");
    assert!((0..OTHERS).all(|number| taints.contains(&format!("\"other-{number}\""))), "{taints}");
    assert!(taints.contains("plimsoll.dev/memory-pressure"), "{taints}");
}

/// Passes connections on to the API server, or ends them and takes none.
async fn passage(to: SocketAddr, is_cut: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it has one");
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let is_cut = Arc::clone(&is_cut);
            tokio::spawn(async move {
                if is_cut.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(mut to) = TcpStream::connect(to).await else { return };
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut from, &mut to) => {}
                    () = async {
                        while !is_cut.load(Ordering::Relaxed) {
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                    } => {}
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_followed_through_a_gap_and_what_came_in_it_is_seen() {
    let scene = Scene::set("kube-watch");
    let is_cut = Arc::<AtomicBool>::default();
    let address = passage(scene.address, Arc::clone(&is_cut)).await;
    let (send, mut changes) = mpsc::channel(1);
    let first = scene.add_pod("first");
    let following = client(access(), dial_to(address));
    let task = tokio::spawn(async move { watch(following, "kube-watch", send).await });
    let mut until = async |what: &str, is_seen: &dyn Fn(&Change) -> bool| {
        timeout(PATIENCE, async {
            loop {
                let change = changes.recv().await.expect("it goes on");
                if is_seen(&change) {
                    return;
                }
            }
        })
        .await
        .unwrap_or_else(|_| panic!("never seen: {what}"));
    };
    // A daemon set of another test may have its pod on the node, too.
    let has = |uids: Vec<String>| {
        move |change: &Change| {
            let Change::Pods(pods) = change else { return false };
            let mut nodes = pods.values().map(|pod| pod.spec.as_ref().and_then(|it| it.node_name.as_deref()));
            assert!(nodes.all(|node| node == Some("kube-watch")), "a pod of another node: {pods:?}");
            uids.iter().all(|uid| pods.contains_key(uid))
        }
    };
    until("the first pod", &has(vec![first.clone()])).await;
    is_cut.store(true, Ordering::Relaxed);
    until("that it is lost", &|change| matches!(change, Change::Lost(_))).await;
    let second = scene.add_pod("second");
    is_cut.store(false, Ordering::Relaxed);
    until("the second pod", &has(vec![first, second])).await;
    task.abort();
}
