//! What a hostile `services` asks of the container runtime: to change, stop and remove all that there is, by the calls that
//! the agent's client has, by others, and by garbage.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes as Body;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll_cri::{Container, ContainerId, Dial, Error, Limits, Runtime};
use plimsoll_units::Bytes;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Names a FIFO by which `services` is given a program that all containers have, in one line. It then tries all and writes
/// to standard error what came of each kind of call, and `plimsoll: hostile: done` in the end.
const ORDERER: &str = "PLIMSOLL_HOSTILE_RUNTIME";
/// What a container may take that is as good as stopped.
const HIGH: Bytes = Bytes(16 << 10);
/// An id of which containerd is given so much knows what it belongs to.
const PART_OF_AN_ID: usize = 16;
/// For each call by hand.
const LIMIT: Duration = Duration::from_secs(20);
/// Statuses of gRPC with which a call is refused: PERMISSION_DENIED and UNIMPLEMENTED. Others are a runtime's own.
const REFUSALS: [i32; 2] = [7, 12];
const GARBAGE: usize = 64 << 10;

static FIFO: Mutex<Option<File>> = Mutex::new(None);

fn fifo() -> Option<File> {
    FIFO.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Opens the FIFO, before that is refused.
pub(crate) fn prepare() -> anyhow::Result<()> {
    *FIFO.lock().unwrap_or_else(PoisonError::into_inner) = super::open(ORDERER)?;
    Ok(())
}

/// Attacks the first of these sockets, once, by connections that are made so.
pub(crate) fn attack(sockets: &[PathBuf], dial: &Dial) -> anyhow::Result<()> {
    let Some((fifo, socket)) = fifo().zip(sockets.first().cloned()) else { return Ok(()) };
    let (given, received) = oneshot::channel();
    let wait = move || {
        let mut program = String::new();
        if BufReader::new(fifo).read_line(&mut program).is_ok() {
            // Nothing waits for it where all is about to end.
            let _ = given.send(program);
        }
    };
    std::thread::Builder::new().name("orderer".into()).spawn(wait).context("cannot start a thread")?;
    let dial = dial.clone();
    tokio::spawn(async move {
        let Ok(program) = received.await else { return };
        let mut tried = Tried::default();
        let ended = try_all(&socket, &dial, program.trim_end(), &mut tried).await;
        tried.print();
        if let Err(error) = ended {
            super::print(&format!("cut short: {}", short(&format!("{error:#}"))));
        }
        super::print("done");
    });
    Ok(())
}

/// What came of the calls of each kind.
#[derive(Default)]
struct Tried(BTreeMap<&'static str, Outcomes>);

#[derive(Default)]
struct Outcomes {
    done: u32,
    refused: u32,
    failed: u32,
    /// The last failure.
    why: String,
}

impl Tried {
    fn note(&mut self, name: &'static str, status: i32, why: impl Display) {
        let outcomes = self.0.entry(name).or_default();
        match status {
            0 => outcomes.done += 1,
            refusal if REFUSALS.contains(&refusal) => outcomes.refused += 1,
            _ => {
                outcomes.failed += 1;
                outcomes.why = format!(": {}", short(&why.to_string()));
            }
        }
    }

    /// Takes note of a call of the agent's client.
    fn note_call(&mut self, name: &'static str, outcome: Result<(), Error>) {
        match outcome {
            Ok(()) => self.note(name, 0, ""),
            Err(Error::Failed { code, why, .. }) => self.note(name, code.into(), format!("{code:?}: {why}")),
            Err(error) => self.note(name, -1, error),
        }
    }

    /// One line for each kind.
    fn print(&self) {
        for (name, Outcomes { done, refused, failed, why }) in &self.0 {
            super::print(&format!("{name}: {done} carried out, {refused} refused, {failed} failed{why}"));
        }
    }
}

/// As much of a text as a line of the log is to have.
fn short(text: &str) -> String {
    text.chars().flat_map(char::escape_debug).take(300).collect()
}

async fn try_all(socket: &Path, dial: &Dial, program: &str, tried: &mut Tried) -> anyhow::Result<()> {
    let mut runtime = Runtime::at(socket, Limits::default()).through(dial.clone());
    let (sandboxes, containers) = (runtime.sandboxes().await?, runtime.containers().await?);
    let images = runtime.images().await?;
    by_hand(socket, dial, &containers, program, tried).await.context("by hand")?;
    for Container { id, .. } in &containers {
        tried.note_call("set-memory-high", runtime.set_memory_high(id, HIGH).await);
        let part = ContainerId::try_from(id.as_str().chars().take(PART_OF_AN_ID).collect::<String>())?;
        tried.note_call("stop-by-a-part-of-the-id", runtime.stop_container(&part, Duration::ZERO).await);
        tried.note_call("stop-container", runtime.stop_container(id, Duration::ZERO).await);
    }
    // All at once.
    let pods = runtime.running_pod(|_| true).await?;
    tried.note_call("stop-pods", runtime.stop_pod(&pods, Duration::ZERO).await);
    for Container { id, .. } in &containers {
        tried.note_call("remove-container", runtime.remove_container(id).await);
    }
    for sandbox in &sandboxes {
        tried.note_call("stop-sandbox", runtime.stop_sandbox(&sandbox.id).await);
        tried.note_call("remove-sandbox", runtime.remove_sandbox(&sandbox.id).await);
    }
    for image in &images {
        tried.note_call("remove-image", runtime.remove_image(&image.id).await);
    }
    let garbage: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(GARBAGE).collect();
    let mut stream = dial.connect(socket).await.context("the connection for garbage")?;
    // It may be closed before all is written, or not be read.
    let _ = timeout(LIMIT, stream.write_all(&garbage)).await;
    let after = runtime.containers().await.context("after garbage")?;
    super::print(&format!("listed: {} of {} containers", after.len(), containers.len()));
    Ok(())
}

/// Calls that the agent's client does not have, of each container: a program is run in it, it is killed by containerd's own
/// interface at the same socket, and stopped by the interface before the first version.
async fn by_hand(
    socket: &Path,
    dial: &Dial,
    containers: &[Container],
    program: &str,
    tried: &mut Tried,
) -> anyhow::Result<()> {
    let stream = dial.connect(socket).await?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    for Container { id, .. } in containers {
        let id = field(1, id.as_str());
        // The signal is its third field.
        let (run, kill) = ([&id[..], &field(2, program)].concat(), [&id[..], &[3 << 3, 9]].concat());
        for (name, method, message) in [
            ("run-a-program", "runtime.v1.RuntimeService/ExecSync", &run),
            ("kill-by-containerd", "containerd.services.tasks.v1.Tasks/Kill", &kill),
            ("stop-by-the-older-interface", "runtime.v1alpha2.RuntimeService/StopContainer", &id),
        ] {
            // Not compressed, and its length.
            let mut body = vec![0];
            body.extend(u32::try_from(message.len())?.to_be_bytes());
            body.extend(message);
            let request = Request::post(format!("http://localhost/{method}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("containerd-namespace", "k8s.io")
                .body(Full::new(Body::from(body)))?;
            let answer = async {
                let (head, body) = sender.send_request(request).await?.into_parts();
                let trailers = body.collect().await?.trailers().cloned().unwrap_or_default();
                Ok::<_, hyper::Error>([head.headers, trailers])
            };
            match timeout(LIMIT, answer).await {
                Ok(Ok(headers)) => {
                    let status = headers.iter().find_map(|all| all.get("grpc-status")?.to_str().ok()?.parse().ok());
                    tried.note(name, status.unwrap_or(-1), format_args!("{headers:?}"));
                }
                Ok(Err(error)) => tried.note(name, -1, error),
                Err(_) => tried.note(name, -1, "no answer"),
            }
        }
    }
    Ok(())
}

/// A text as the field of a message with this number.
fn field(number: u8, text: &str) -> Vec<u8> {
    let text: Vec<u8> = text.bytes().take(127).collect();
    [&[number << 3 | 2, u8::try_from(text.len()).unwrap_or(0)], &text[..]].concat()
}
