//! `services` as a process, behind its filter of system calls, beside a real API server: what that says of pods reaches the
//! core, and what the core decides reaches it, also where it was away. `cargo xtask test cluster` runs this.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use plimsoll_cluster_suite::{Answer, Cluster, Format, wait_for};
use plimsoll_inventory::{
    CORE_MESSAGE, ConditionState, CoreMessage, Eviction, EvictionCause, EvictionNumber, EvictionStep, Exhausted,
    Incident, IncidentKind, IncidentOf, MESSAGE, Message, PodMessage, Source,
};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::{Condition, Signal as Threshold};
use plimsoll_state::handover::{self, API_SERVER};
use plimsoll_units::{Bytes, CgroupId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_mins(1);
const NODE: &str = "services";

/// `services`, with this test as its supervisor and its core.
struct Services {
    child: Child,
    supervisor: UnixDatagram,
    core: OwnedFd,
    address: SocketAddr,
    /// Whether it is given connections.
    is_reached: bool,
}

impl Services {
    fn start(kubeconfig: &Path, journal: &Path, address: SocketAddr) -> Self {
        let (supervisor, its): (UnixDatagram, UnixDatagram) = handover::pair().expect("sockets");
        fcntl_setfd(&its, FdFlags::empty()).expect("it is ours");
        let program = std::env::var_os("CARGO_BIN_EXE_plimsoll").expect("cargo sets it");
        let mut command = Command::new(program);
        command.args([
            "services",
            "--cluster-node-name",
            NODE,
            "--cluster-taint",
            "NoSchedule",
            "--cluster-kubeconfig",
        ]);
        command.arg(kubeconfig).arg("--journal-directory").arg(journal).arg("--queues");
        command.arg(its.as_raw_fd().to_string()).stdin(Stdio::null());
        let child = command.spawn().expect("it starts");
        let (core, way) = handover::messages_pair().expect("sockets");
        handover::send_core(&supervisor, &way).expect("room");
        Self { child, supervisor, core, address, is_reached: true }
    }

    /// Answers requests for connections as the supervisor does, and gives the next message to the core, within this time.
    fn next(&self, most: Duration) -> Option<Message> {
        let most = Timespec::try_from(most).expect("it fits");
        let mut both = [PollFd::new(&self.supervisor, PollFlags::IN), PollFd::new(&self.core, PollFlags::IN)];
        poll(&mut both, Some(&most)).expect("it waits");
        if let Ok(number) = handover::receive_request(&self.supervisor)
            && number == API_SERVER
        {
            handover::send_runtime(&self.supervisor, number, &self.connection()).expect("room");
        }
        let mut buffer = [0; MESSAGE];
        let (length, _) = recv(&self.core, &mut buffer[..], RecvFlags::DONTWAIT).ok()?;
        Some(Message::decode(&buffer[..length]).expect("a message"))
    }

    fn connection(&self) -> Result<OwnedFd, Errno> {
        if !self.is_reached {
            return Err(Errno::CONNREFUSED);
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        match connect(&socket, &self.address) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(errno) => Err(errno),
        }
    }

    /// Goes on until this is there.
    fn until<T>(&self, what: &str, mut seen: impl FnMut(Option<Message>) -> Option<T>) -> T {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(found) = seen(self.next(Duration::from_millis(200))) {
                return found;
            }
        }
        panic!("within a minute it does not hold that {what}");
    }

    fn send(&self, message: CoreMessage) {
        let mut buffer = [0; CORE_MESSAGE];
        send(&self.core, message.encode(&mut buffer), SendFlags::NOSIGNAL).expect("it runs");
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

fn add_pod(cluster: &Cluster, name: &str) -> String {
    let container = json!({ "name": "app", "image": "none", "resources": { "requests": { "memory": "100Mi" } } });
    let spec = json!({ "nodeName": NODE, "automountServiceAccountToken": false, "containers": [container] });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec });
    // The account that each pod has is made a while after its namespace.
    let made = wait_for("the pod is accepted", PATIENCE, || {
        Ok(cluster.api.create("/api/v1/namespaces/default/pods", &pod)?.object().ok())
    });
    made.expect("it is")["metadata"]["uid"].as_str().expect("it has one").to_owned()
}

fn wall_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    u64::try_from(now.as_millis()).expect("it fits")
}

fn eviction(uid: &str) -> Eviction {
    let (threshold, available) = (300 << 20, 100 << 20);
    Eviction {
        number: EvictionNumber::default().next(monotonic()),
        uid: Uid::of(uid),
        cgroup: CgroupId(1),
        step: EvictionStep::Killed,
        cause: EvictionCause::Threshold { signal: Threshold::MemoryAvailable, threshold, available },
        is_soft: false,
        grace_seconds: 0,
        used: Some(Bytes::mib(700)),
        decided: monotonic(),
        wall_ms: wall_ms(),
    }
}

fn lost_race(uid: &str) -> Incident {
    let mut name = [0; 16];
    name[..3].copy_from_slice(b"hog");
    let what = IncidentKind::OomKill { pid: 77, name, resident: None, exhausted: Exhausted::Machine };
    Incident { what, of: IncidentOf::Pod(Uid::of(uid)), wall_ms: wall_ms() }
}

fn condition(is_true: bool) -> CoreMessage {
    let condition = Condition::MemoryPressure;
    let since = monotonic();
    CoreMessage::Condition(ConditionState { condition, is_true, since, wall_ms: wall_ms(), observed: None })
}

#[test]
fn what_the_api_server_says_reaches_the_core_and_what_the_core_decides_reaches_it_also_after_it_was_away() {
    let cluster = Cluster::of_environment().expect("a cluster to test");
    cluster.add_node(NODE).expect("a new name");
    let kubeconfig = PathBuf::from(std::env::var_os("PLIMSOLL_TEST_KUBECONFIG").expect("it was found"));
    let text = fs::read_to_string(&kubeconfig).expect("readable");
    let server = text.lines().find_map(|line| line.trim().strip_prefix("server: https://")).expect("it has a server");
    let address: SocketAddr = server.parse().expect("an address of the loopback");
    let get = |path: &str| cluster.api.get(path).and_then(Answer::object).expect("it is there");
    let place = tempfile::tempdir().expect("a directory");
    let mut services = Services::start(&kubeconfig, &place.path().join("journal"), address);

    let uid = add_pod(&cluster, "victim");
    let facts = services.until("the core knows the pod", |message| match message {
        Some(Message::Pod(PodMessage::Pod(facts))) if facts.uid == Uid::of(&uid) => Some(facts),
        _ => None,
    });
    assert_eq!(facts.memory_request, Bytes::mib(100));

    // The journal has it within the five seconds between two writes.
    let known = Instant::now();
    while known.elapsed() < Duration::from_secs(7) {
        services.next(Duration::from_millis(200));
    }
    // The API server is away when the pod is evicted: what there is of its connections ends with the process that has it.
    drop(services);
    services = Services::start(&kubeconfig, &place.path().join("journal"), address);
    services.is_reached = false;
    let (mut kept, mut is_lost) = (None, false);
    services.until("the core knows the pod by the journal, and that the API server does not answer", |message| {
        match message {
            Some(Message::Pod(PodMessage::Pod(facts))) if facts.uid == Uid::of(&uid) => kept = Some(facts),
            Some(Message::Source(Source::ApiServer, false)) => is_lost = true,
            _ => {}
        }
        (kept.is_some() && is_lost).then_some(())
    });
    assert_eq!(kept.map(|facts| facts.memory_request), Some(Bytes::mib(100)));
    services.send(CoreMessage::Eviction(eviction(&uid)));
    services.send(condition(true));
    for _ in 0..10 {
        services.next(Duration::from_millis(200));
    }
    let phase = get("/api/v1/namespaces/default/pods/victim")["status"]["phase"].clone();
    assert_ne!(phase, "Failed", "it is not reached");

    services.is_reached = true;
    let status = services.until("the pod's status says that it was evicted", |_| {
        let status = get("/api/v1/namespaces/default/pods/victim")["status"].clone();
        (status["phase"] == "Failed").then_some(status)
    });
    assert_eq!(status["reason"], "Evicted");
    assert_eq!(
        status["message"],
        "The node was low on resource: memory. Threshold quantity: 300Mi, available: 100Mi. Container app was using \
         700Mi, request is 100Mi, has larger consumption of memory. "
    );
    let of_pod = |reason: &str| {
        let events = get(&format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid={uid}"));
        events["items"].as_array()?.iter().find(|event| event["reason"] == reason).cloned()
    };
    let event = services.until("there is an event", |_| of_pod("Evicted"));
    assert_eq!(event["metadata"]["annotations"]["offending_containers"], "app");
    services.send(CoreMessage::Incident(lost_race(&uid)));
    let event = services.until("there is an event of what the OOM killer did", |_| of_pod("PlimsollLostRace"));
    let message = event["message"].as_str().unwrap_or_default();
    assert!(message.contains("process 77 (hog) of the pod"), "{event}");
    let node = || get(&format!("/api/v1/nodes/{NODE}"));
    let has = |node: &Value, is_true: bool| {
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let status = if is_true { "True" } else { "False" };
        let condition = conditions.iter().any(|it| it["type"] == "PlimsollMemoryPressure" && it["status"] == status);
        let taint = node["spec"]["taints"].to_string().contains("plimsoll.dev/memory-pressure");
        condition && taint == is_true
    };
    services.until("the node has the condition and the taint", |_| has(&node(), true).then_some(()));
    let events = services.until("there is an event of the node", |_| {
        let path =
            "/api/v1/namespaces/default/events?fieldSelector=involvedObject.kind=Node,involvedObject.name=services";
        let events = get(path)["items"].as_array().cloned().unwrap_or_default();
        let met: Vec<_> = events.into_iter().filter(|event| event["reason"] == "EvictionThresholdMet").collect();
        (!met.is_empty()).then_some(met)
    });
    assert_eq!(
        (events.len(), &events[0]["count"], &events[0]["source"]["component"]),
        (1, &json!(1), &json!("plimsoll"))
    );
    services.send(condition(false));
    services.until("both have ended", |_| has(&node(), false).then_some(()));

    let annotate = |value: Value| {
        let body = json!({ "metadata": { "annotations": { "plimsoll.dev/kill-switch": value } } });
        cluster.api.request("PATCH", &format!("/api/v1/nodes/{NODE}"), Format::Merge, &body).and_then(Answer::object)
    };
    for (value, is_there) in [(json!("by a person"), true), (Value::Null, false)] {
        annotate(value).expect("it is accepted");
        let annotated = Instant::now();
        services.until("the core knows of the annotation", |message| {
            (message == Some(Message::KillSwitch(is_there))).then_some(())
        });
        assert!(annotated.elapsed() < Duration::from_secs(5), "{:?}", annotated.elapsed());
    }
    annotate(json!("")).expect("it is accepted");
    services.until("it is there", |message| (message == Some(Message::KillSwitch(true))).then_some(()));
    let (core, way) = handover::messages_pair().expect("sockets");
    handover::send_core(&services.supervisor, &way).expect("room");
    services.core = core;
    services.until("the next core knows of it", |message| (message == Some(Message::KillSwitch(true))).then_some(()));
}
