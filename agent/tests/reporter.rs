//! The reporter as a process: where its port is in use and its log is not read, it goes on trying, and ends when asked;
//! its log's level is changed by signals.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use plimsoll_report::record::{HealthRecord, ThresholdRecord};
use plimsoll_state::handover::{self, Handover};
use plimsoll_state::queue;
use plimsoll_units::MonotonicNs;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};

/// Held by the test that runs: a process that is being started has the ports and sockets of another test until its exec.
static RUNNING: Mutex<()> = Mutex::new(());

/// A pipe that has no room, its reading end first.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    fcntl_setfl(&writer, OFlags::NONBLOCK).expect("it is ours");
    while writer.write(&[b'.'; 4096]).is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).expect("it is ours");
    (reader, writer)
}

/// The program of this checkout, by cargo's variable at run time: a test may have been copied after it was built.
fn program() -> std::ffi::OsString {
    std::env::var_os("CARGO_BIN_EXE_plimsoll").expect("cargo sets it")
}

fn start(address: SocketAddr, queues: &impl AsRawFd, log: std::io::PipeWriter, trace: Option<&Path>) -> Child {
    let mut command = Command::new(program());
    command.args(["reporter", "--log-format", "json", "--metrics-address"]).arg(address.to_string());
    if let Some(folder) = trace {
        command.arg("--trace").arg(folder);
    }
    command.arg("--queues").arg(queues.as_raw_fd().to_string());
    command.stdin(Stdio::null()).stdout(log).spawn().expect("it starts")
}

/// In place of a core's.
fn own_process() -> OwnedFd {
    plimsoll_node::process::open(rustix::process::getpid()).expect("it runs")
}

/// The answer at `path`, once the server answers.
fn ask(address: SocketAddr, path: &str, child: &mut Child) -> String {
    let mut stream = loop {
        assert!(child.try_wait().expect("it is ours").is_none(), "the reporter ended");
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    write!(stream, "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers and closes");
    answer
}

#[test]
fn it_goes_on_without_port_or_reader_and_ends_when_asked() {
    let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it has one");
    let (socket, its) = handover::pair().expect("sockets");
    fcntl_setfd(&its, FdFlags::empty()).expect("it is ours");
    let (mut reader, writer) = full_pipe();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut child = start(address, &its, writer, Some(&folder.path().join("trace")));
    drop(its);

    // Its warning that the port is taken finds no room in the pipe. What is no record is read and counted all the same,
    // of each core that hands queues over.
    for records in [2, 3] {
        let ((mut watch, first), (_inventory, second)) =
            (queue::create(4).expect("memory"), queue::create(4).expect("memory"));
        handover::send(&socket, &Handover { queues: [first, second], process: own_process() }).expect("room");
        for _ in 0..records {
            watch.push(b"\xff\xff\xff\xff\xff\xff");
        }
    }
    drop(taken);
    for (path, status) in [("/livez", "200"), ("/readyz", "503")] {
        let answer = ask(address, path, &mut child);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
    }
    while !ask(address, "/metrics", &mut child).contains("plimsoll_malformed_records_total{side=\"agent\"} 5\n") {
        std::thread::sleep(Duration::from_millis(20));
    }

    // Its trace has begun, and there is no observation yet.
    let trace = fs::read_to_string(folder.path().join("trace/trace.jsonl")).expect("it was opened at the start");
    assert_eq!(trace.lines().count(), 1, "{trace}");

    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        let held = status.lines().find_map(|line| line.strip_prefix(set)).expect("the kernel has it");
        assert_eq!(held.trim_start_matches([':', '\t', '0']), "", "{set} is not empty");
    }

    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), rustix::process::PidfdFlags::empty());
    let pidfd = pidfd.expect("not waited for yet");
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).expect("it ends");
    assert!(child.wait().expect("it is ours").success());
    // The only writer has exited, so this ends. The warning that was not read is lost with it.
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("readable");
    assert_eq!(text.trim_start_matches('.'), "");
}

#[test]
fn the_level_of_the_log_is_debug_from_one_signal_to_the_other() {
    let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let (socket, its) = handover::pair().expect("sockets");
    fcntl_setfd(&its, FdFlags::empty()).expect("it is ours");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut child = start(([127, 0, 0, 1], 0).into(), &its, writer, None);
    drop(its);
    let ((mut watch, first), (_inventory, second)) =
        (queue::create(8).expect("memory"), queue::create(8).expect("memory"));
    handover::send(&socket, &Handover { queues: [first, second], process: own_process() }).expect("room");

    let mut lines = BufReader::new(reader).lines().map(|line| line.expect("readable"));
    // Whether a record that is logged at that level is, before one that always is.
    let mut logs_crossings = || {
        ThresholdRecord::Crossed { crossed: MonotonicNs(1), awake: MonotonicNs(2) }.send(&mut watch);
        HealthRecord::Trouble { what: "test", text: Some("the next record"), is_logged: false }.send(&mut watch);
        let mut is_logged = false;
        loop {
            let line = lines.next().expect("it runs");
            is_logged |= line.contains(r#""level":"debug""#) && line.contains(r#""crossed_ns":1"#);
            if line.contains("the next record") {
                return is_logged;
            }
        }
    };
    assert!(!logs_crossings());
    for (signal, logs) in [(Signal::USR1, true), (Signal::USR2, false), (Signal::USR1, true)] {
        kill_process(Pid::from_child(&child), signal).expect("it runs");
        while logs_crossings() != logs {}
    }
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it is ours").success());
}
