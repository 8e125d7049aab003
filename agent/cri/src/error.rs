//! What can go wrong with a runtime, and what to do about it.

use crate::connection::Call;
use crate::sockets::usual;
use core::time::Duration;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// Why the runtime did not do what it was asked. Text that came from it is printed escaped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// None of the usual sockets has a runtime behind it.
    #[error("no container runtime found; tried {tried}; name its socket if it is elsewhere")]
    NotFound {
        /// Each socket, with what was wrong with it.
        tried: String,
    },
    /// Several runtimes answer. Which one is the kubelet's cannot be known here.
    #[error(
        "several container runtimes answer: {found}; name the socket of the one that the kubelet uses \
         (containerRuntimeEndpoint in its configuration)"
    )]
    Ambiguous {
        /// The sockets of those.
        found: String,
    },
    /// The endpoint is not the path of a socket.
    #[error("{text:?} is no socket of a container runtime: expected an absolute path, or unix:// before one")]
    Endpoint {
        /// As it was written.
        text: String,
    },
    /// The socket does not take connections.
    #[error("cannot connect to the container runtime at {socket:?}: {source}; {}", hint(.source))]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What listens there does not answer as a runtime does.
    #[error(
        "what listens at {socket:?} does not answer as a container runtime does: {why:?}; usual sockets: {}",
        usual()
    )]
    NotCri {
        /// The socket.
        socket: PathBuf,
        /// What came instead of an answer.
        why: String,
    },
    /// It speaks gRPC, but not this version of the interface.
    #[error(
        "what listens at {socket:?} has no CRI v1: {why:?}; expected containerd 1.6 or later with its CRI plugin enabled \
         (disabled_plugins in its configuration), CRI-O 1.20 or later, or cri-dockerd"
    )]
    NoV1 {
        /// The socket.
        socket: PathBuf,
        /// What it answered.
        why: String,
    },
    /// No answer in time. The connection is closed; the next call makes a new one.
    #[error(
        "the container runtime at {socket:?} did not answer {call} within {limit:?}; whether it carries it out is unknown"
    )]
    TimedOut {
        /// The socket.
        socket: PathBuf,
        /// What it was asked, or `Version` where it did not even answer that on a new connection.
        call: Call,
        /// The time that the call had.
        limit: Duration,
    },
    /// The connection was lost, also a new one. Whether the call was carried out is unknown.
    #[error("the connection to the container runtime at {socket:?} was lost during {call}: {why:?}")]
    Lost {
        /// The socket.
        socket: PathBuf,
        /// What it was asked.
        call: Call,
        /// How.
        why: String,
    },
    /// The answer is larger than it may be.
    #[error("the container runtime at {socket:?} answered {call} with more than the limit: {why:?}")]
    TooLarge {
        /// The socket.
        socket: PathBuf,
        /// What it was asked.
        call: Call,
        /// Both numbers, in bytes.
        why: String,
    },
    /// It answered with an error, or with what is no message.
    #[error("the container runtime at {socket:?} failed {call}: {code:?}: {why:?}")]
    Failed {
        /// The socket.
        socket: PathBuf,
        /// What it was asked.
        call: Call,
        /// gRPC's code.
        code: tonic::Code,
        /// What it said.
        why: String,
    },
    /// Something essential is missing in the answer. The answer as a whole is refused: a container that cannot be read
    /// may use an image, or be the last of a sandbox.
    #[error("the container runtime at {socket:?} answered {call} with {what}")]
    Malformed {
        /// The socket.
        socket: PathBuf,
        /// What it was asked.
        call: Call,
        /// What is missing.
        what: String,
    },
}

fn hint(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => format!("the socket does not exist; usual sockets: {}", usual()),
        ErrorKind::PermissionDenied => {
            "the socket is for root, or for the group that owns it; run with that group, or as root".to_owned()
        }
        ErrorKind::ConnectionRefused => "nothing listens there; is the runtime running?".to_owned(),
        ErrorKind::WouldBlock => "more connections wait there than it takes; is the runtime hanging?".to_owned(),
        _ => format!("usual sockets: {}", usual()),
    }
}
