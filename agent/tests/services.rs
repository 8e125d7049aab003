//! `services` as a process, behind its filter of system calls: it asks for a connection to the container runtime, lists pods
//! over the one that it is handed, and sends their names; and it goes on without the directory of a list of pods. And the broker,
//! which is between it and the runtime.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use plimsoll_cri::{ContainerId, Dial, Limits, Runtime};
use plimsoll_inventory::{CORE_MESSAGE, CoreMessage, StopOrder};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use plimsoll_report::{NAME_MESSAGE, NameMessage, PodNames};
use plimsoll_state::handover;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};

const UID: &str = "01234567-89ab-cdef-0123-456789abcdee";
const CONTAINER: &str = "abababababababababababababababababababababababababababababababab";

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("it is short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A field of a message of protobuf that has a length.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(content.len()).expect("it is short")], content].concat()
}

/// A header that is written out (RFC 7541, section 6.2.2).
fn header(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).expect("it is short")], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// What gRPC answers to the request of this stream with.
fn answer(stream: u32, message: &[u8]) -> Vec<u8> {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const END_HEADERS: u8 = 4;
    const END_STREAM: u8 = 1;
    // `:status: 200` by its number.
    let headers = [&[0x88][..], &header("content-type", "application/grpc")].concat();
    let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
    let data = [&[0][..], &length, message].concat();
    let end = header("grpc-status", "0");
    let frames = [(HEADERS, END_HEADERS, headers), (DATA, 0, data), (HEADERS, END_HEADERS | END_STREAM, end)];
    frames.into_iter().flat_map(|(kind, flags, payload)| frame(kind, flags, stream, &payload)).collect()
}

/// A runtime with one pod and one container, as it answers when it is asked for its version, pods and containers.
fn lists() -> [Vec<u8>; 3] {
    let version = [field(2, b"fake"), field(3, b"1"), field(4, b"v1")].concat();
    let metadata = [field(1, b"web"), field(2, UID.as_bytes()), field(3, b"default")].concat();
    let sandbox = [field(1, b"sandbox"), field(2, &metadata)].concat();
    // It runs.
    let state = [6 << 3, 1];
    let container =
        [&field(1, CONTAINER.as_bytes())[..], &field(2, b"sandbox"), &field(3, &field(1, b"main")), &state].concat();
    [version, field(1, &sandbox), field(1, &container)]
}

/// Reads frames, and answers the requests in their order with these messages.
fn serve(mut stream: UnixStream, answers: &[Vec<u8>]) {
    const SETTINGS: u8 = 4;
    const ACKNOWLEDGED: u8 = 1;
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).expect("it begins");
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).expect("it reads");
    let mut answers = answers.iter();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).is_ok() {
        let [high, middle, low, kind, flags, stream_number @ ..] = head;
        let mut payload = vec![0; usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low)];
        stream.read_exact(&mut payload).expect("a whole frame");
        match kind {
            SETTINGS if flags & ACKNOWLEDGED == 0 => {
                stream.write_all(&frame(SETTINGS, ACKNOWLEDGED, 0, &[])).expect("it reads");
            }
            // The data of a request, with its end.
            0 if flags & 1 != 0 => {
                let message = answers.next().expect("no more calls");
                stream.write_all(&answer(u32::from_be_bytes(stream_number), message)).expect("it reads");
            }
            _ => {}
        }
    }
}

/// Waits until there is something to read.
fn wait(socket: &impl std::os::fd::AsFd) {
    let most = Timespec::try_from(Duration::from_mins(1)).expect("it fits");
    let ready = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&most)).expect("it waits");
    assert_eq!(ready, 1, "nothing came within a minute");
}

fn receive(socket: &OwnedFd) -> Vec<u8> {
    wait(socket);
    let mut buffer = [0; NAME_MESSAGE];
    let (length, _) = rustix::net::recv(socket, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT).expect("a message");
    buffer[..length].to_vec()
}

#[test]
fn names_come_over_a_connection_that_was_handed_in() {
    let (supervisor, its): (UnixDatagram, UnixDatagram) = handover::pair().expect("sockets");
    fcntl_setfd(&its, FdFlags::empty()).expect("it is ours");
    let program = std::env::var_os("CARGO_BIN_EXE_plimsoll").expect("cargo sets it");
    let mut command = Command::new(program);
    command.args(["services", "--runtime-socket", "/run/plimsoll-test/runtime.sock", "--queues"]);
    command.arg(its.as_raw_fd().to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    drop(its);
    let (names, way) = handover::messages_pair().expect("sockets");
    handover::send_names(&supervisor, &way).expect("room");
    drop(way);
    wait(&supervisor);
    assert_eq!(handover::receive_request(&supervisor), Ok(0), "the first socket of one");
    let (stream, peer) = UnixStream::pair().expect("sockets");
    stream.set_nonblocking(true).expect("it is ours");
    handover::send_runtime(&supervisor, 0, &Ok(stream.into())).expect("room");
    let server = std::thread::spawn(move || serve(peer, &lists()));
    let mut pod = PodNames::new(Uid::of(UID), "default", "web");
    pod.add_container(CONTAINER, "main");
    for expected in [NameMessage::Begin, NameMessage::Pod(pod), NameMessage::Complete] {
        assert_eq!(receive(&names), expected.encode(&mut [0; NAME_MESSAGE]), "{expected:?}");
    }
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it is ours").success());
    server.join().expect("its peer has ended");
    let mut log = String::new();
    child.stdout.take().expect("it is piped").read_to_string(&mut log).expect("it has ended");
    assert!(log.contains("the container runtime names 1 pod"), "{log}");
}

/// What the core orders reaches the broker by a way of its own: what `services` asks for passes with that alone.
#[test]
fn the_broker_passes_on_what_was_ordered_and_nothing_else() {
    let (supervisor, its): (UnixDatagram, UnixDatagram) = handover::pair().expect("sockets");
    fcntl_setfd(&its, FdFlags::empty()).expect("it is ours");
    let mut command = Command::new(std::env::var_os("CARGO_BIN_EXE_plimsoll").expect("cargo sets it"));
    command.args(["broker", "--queues"]).arg(its.as_raw_fd().to_string());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
    drop(its);
    let (core, way) = handover::messages_pair().expect("sockets");
    handover::send_core(&supervisor, &way).expect("room");
    drop(way);
    let [version, pods, containers] = lists();
    // Before a change passes, it is looked up what that is about, each time on the same connection.
    let looked_up = [pods, containers];
    let answers = [&[version][..], &looked_up, &looked_up, &[Vec::new()]].concat();
    let [(runtime, peer), (near, far)] = [(); 2].map(|()| UnixStream::pair().expect("sockets"));
    for stream in [&runtime, &near, &far] {
        stream.set_nonblocking(true).expect("it is ours");
    }
    handover::send_connection(&supervisor, &runtime, &far).expect("room");
    drop((runtime, far));
    let served = std::thread::spawn(move || serve(peer, &answers));
    let stream = Mutex::new(Some(near));
    let dial = Dial::by(move |_: &Path| {
        let next = stream.lock().expect("no panic").take();
        async move { tokio::net::UnixStream::from_std(next.ok_or(std::io::ErrorKind::NotConnected)?) }
    });
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio.block_on(async {
        let mut client = Runtime::at("/nowhere", Limits::default()).through(dial);
        let container = ContainerId::try_from(CONTAINER.to_owned()).expect("an id");
        let error = client.stop_container(&container, Duration::ZERO).await.expect_err("nothing was ordered");
        assert!(error.to_string().contains("PermissionDenied"), "{error}");
        let until = monotonic().after(Duration::from_mins(1));
        let order = CoreMessage::Stop(StopOrder { uid: Uid::of(UID), grace_seconds: 0, until });
        let mut buffer = [0; CORE_MESSAGE];
        rustix::net::send(&core, order.encode(&mut buffer), rustix::net::SendFlags::NOSIGNAL).expect("room");
        client.stop_container(&container, Duration::ZERO).await.expect("it was ordered");
    });
    drop(tokio);
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it is ours").success());
    served.join().expect("its peer has ended");
    let log = line_with(&lines_of(&mut child), "what is refused");
    assert!(log.contains("StopContainer"), "{log}");
}

/// The lines of a log, as they come.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (send, lines) = channel();
    let log = BufReader::new(child.stdout.take().expect("it is piped"));
    std::thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    lines
}

/// The next line that has this, within a minute.
fn line_with(lines: &Receiver<String>, text: &str) -> String {
    loop {
        let line = lines.recv_timeout(Duration::from_mins(1)).unwrap_or_else(|error| panic!("no {text}: {error}"));
        if line.contains(text) {
            return line;
        }
    }
}

/// It reaches no directory that was not there at its start: as soon as there is one it ends, for the next one to read it.
#[test]
fn a_directory_of_pod_facts_that_is_missing_is_waited_for() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    // Its user may look whether it is there.
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
    let directory = folder.path().join("pods");
    let start = || {
        let (supervisor, its): (UnixDatagram, UnixDatagram) = handover::pair().expect("sockets");
        fcntl_setfd(&its, FdFlags::empty()).expect("it is ours");
        let mut command = Command::new(std::env::var_os("CARGO_BIN_EXE_plimsoll").expect("cargo sets it"));
        command.arg("services").arg("--pod-facts").arg(directory.join("pods.json"));
        command.arg("--journal-directory").arg(folder.path().join("journal"));
        command.arg("--queues").arg(its.as_raw_fd().to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let log = lines_of(&mut child);
        (child, log, supervisor)
    };
    let (mut child, log, _supervisor) = start();
    let line = line_with(&log, "is not renewed");
    assert!(line.contains("pods.json: its directory cannot be opened: No such file"), "{line}");
    assert_eq!(child.try_wait().expect("it is ours"), None, "it goes on without");
    std::fs::create_dir(&directory).expect("writable");
    std::fs::write(directory.join("pods.json"), r#"{"items": []}"#).expect("writable");
    line_with(&log, "begins anew");
    assert!(child.wait().expect("it is ours").success());
    let (mut child, log, _supervisor) = start();
    line_with(&log, "0 pods are known");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it is ours").success());
}
