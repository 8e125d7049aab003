//! Connects to the container runtime and to the API server for `services`, which may connect to nothing itself. A connection to
//! the runtime is equivalent to root: the broker is handed it, and `services` one to the broker.
//!
//! A request is one byte: which of the sockets that the configuration names, or the API server. `services` is not
//! trusted, so requests are taken at a bounded pace, and nothing here waits: where more connections wait at a socket
//! than it takes, connecting fails at once, and one over the network is handed over while it is under way.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_config::Configuration;
use plimsoll_state::handover;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, socketpair, sockopt};

use super::api_server::ApiServer;
use crate::services;

/// Between two requests that are taken.
const PAUSE: Duration = Duration::from_secs(1);

/// The sockets, and when the next request is taken.
pub(super) struct RuntimeSockets {
    sockets: Vec<PathBuf>,
    api_server: Option<ApiServer>,
    due: Instant,
}

impl RuntimeSockets {
    /// Those of the configuration; none where it names what is no socket, which `services` reports.
    pub(super) fn of(configuration: &Configuration, api_server: Option<ApiServer>) -> Self {
        let mut sockets = Self { sockets: Vec::new(), api_server, due: Instant::now() };
        sockets.follow(configuration);
        sockets
    }

    /// Goes on with the sockets of another configuration.
    pub(super) fn follow(&mut self, configuration: &Configuration) {
        self.sockets = services::runtime_sockets(configuration).unwrap_or_default();
    }

    /// Whether there is a container runtime that may be asked.
    pub(super) fn has_runtime(&self) -> bool {
        !self.sockets.is_empty()
    }

    /// How long no request is taken.
    pub(super) fn pause(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Takes the next request, if there is one and its time has come, and answers it; `broker`: by which that is handed
    /// connections to the runtime, while it runs.
    pub(super) fn answer(&mut self, services: &UnixDatagram, broker: Option<&UnixDatagram>) {
        if !self.pause().is_zero() {
            return;
        }
        let request = handover::receive_request(services);
        if request == Err(Errno::AGAIN) {
            return;
        }
        self.due = Instant::now() + PAUSE;
        let Ok(number) = request else { return };
        let connection = match (number, &self.api_server) {
            (handover::API_SERVER, Some(server)) => server.address().ok_or(Errno::HOSTUNREACH).and_then(begun),
            _ => match self.sockets.get(usize::from(number)) {
                Some(path) => broker.ok_or(Errno::NOTCONN).and_then(|broker| through(broker, &connected(path)?)),
                None => return,
            },
        };
        // One that does not read its answers goes without.
        let _ = handover::send_runtime(services, number, &connection);
    }
}

/// A connection to this address, which is there once it can be written to.
fn begun(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // Requests are small, and each is waited for.
    sockopt::set_tcp_nodelay(&socket, true)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// A connection to the broker, which is handed this one to the runtime.
fn through(broker: &UnixDatagram, runtime: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (of_services, of_broker) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    handover::send_connection(broker, runtime, &of_broker)?;
    Ok(of_services)
}

/// A connection to the socket at this path, without waiting for one.
fn connected(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_state::handover::{ForBroker, ForServices};
    use rustix::net::{bind, listen};
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::{UnixListener, UnixStream};

    fn ask_by(
        broker: Option<&UnixDatagram>,
        sockets: &mut RuntimeSockets,
        number: &[u8],
    ) -> Result<ForServices, Errno> {
        let (ours, theirs) = handover::pair().expect("sockets");
        theirs.send(number).expect("room");
        sockets.due = Instant::now();
        sockets.answer(&ours, broker);
        handover::receive_for_services(&theirs)
    }

    fn ask(sockets: &mut RuntimeSockets, number: &[u8]) -> Result<ForServices, Errno> {
        ask_by(None, sockets, number)
    }

    #[test]
    fn the_broker_has_the_connection_to_the_runtime_and_services_one_to_the_broker() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let [runtime, none, full] = ["runtime", "none", "full"].map(|name| folder.path().join(name));
        let listener = UnixListener::bind(&runtime).expect("a socket");
        // A runtime that hangs: nothing accepts, and no more than one connection may wait.
        let hanging =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
        bind(&hanging, &SocketAddrUnix::new(&full).expect("a path")).expect("it is new");
        listen(&hanging, 0).expect("it is bound");
        let _waiting = UnixStream::connect(&full).expect("there is room for one");
        let too_long = folder.path().join("x".repeat(200));
        let mut sockets =
            RuntimeSockets { sockets: vec![runtime, none, full, too_long], api_server: None, due: Instant::now() };
        let refused = ask(&mut sockets, &[0]);
        let is_missing = matches!(refused, Ok(ForServices::Runtime { number: 0, connection: Err(Errno::NOTCONN) }));
        assert!(is_missing, "without a broker there is no way to the runtime: {refused:?}");
        let (to_broker, its) = handover::pair().expect("sockets");
        let answer = ask_by(Some(&to_broker), &mut sockets, &[0]);
        let Ok(ForServices::Runtime { number: 0, connection: Ok(connection) }) = answer else { panic!("{answer:?}") };
        let Ok(ForBroker::Connection { runtime, services }) = handover::receive_for_broker(&its) else {
            panic!("both ends")
        };
        let (accepted, _) = listener.accept().expect("it was connected");
        for (from, mut to) in [(connection, UnixStream::from(services)), (runtime, accepted)] {
            UnixStream::from(from).write_all(b"x").expect("it is connected");
            to.set_nonblocking(false).expect("it is ours");
            to.read_exact(&mut [0]).expect("it was sent");
        }
        for (number, expected) in [(1, Errno::NOENT), (2, Errno::AGAIN), (3, Errno::NAMETOOLONG)] {
            let answer = ask_by(Some(&to_broker), &mut sockets, &[number]);
            let Ok(ForServices::Runtime { number: of, connection: Err(errno) }) = answer else { panic!("{answer:?}") };
            assert_eq!((of, errno), (number, expected));
        }
        for none in [&[4][..], &[255], &[], &[0, 0]] {
            assert_eq!(ask(&mut sockets, none).err(), Some(Errno::AGAIN), "{none:?} is answered");
        }
    }

    #[test]
    fn a_connection_to_the_api_server_is_handed_over_while_it_is_under_way_and_to_no_other_address() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it has one");
        let mut sockets = RuntimeSockets { sockets: Vec::new(), api_server: Some(address.into()), due: Instant::now() };
        let Ok(ForServices::Runtime { number: handover::API_SERVER, connection: Ok(connection) }) =
            ask(&mut sockets, &[handover::API_SERVER])
        else {
            panic!("a connection")
        };
        let stream = std::net::TcpStream::from(connection);
        assert_eq!(stream.peer_addr().expect("the loopback is at once"), address);
        stream.set_nonblocking(false).expect("it is ours");
        let (mut accepted, _) = listener.accept().expect("it was connected");
        (&stream).write_all(b"x").expect("it is connected");
        accepted.read_exact(&mut [0]).expect("it was sent");
        // Nothing answers there (RFC 5737), so that only a connection that is under way is an answer at once.
        sockets.api_server = Some(SocketAddr::from(([192, 0, 2, 1], 443)).into());
        let begun = Instant::now();
        assert!(ask(&mut sockets, &[handover::API_SERVER]).is_ok(), "it, or the error that there is no way to it");
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert_eq!(ask(&mut sockets, &[0]).err(), Some(Errno::AGAIN), "there is no such socket");
        sockets.api_server = Some(ApiServer::default());
        let Ok(ForServices::Runtime { connection: Err(errno), .. }) = ask(&mut sockets, &[handover::API_SERVER]) else {
            panic!("an error")
        };
        assert_eq!(errno, Errno::HOSTUNREACH, "it is still looked up");
    }

    #[test]
    fn requests_are_taken_with_pauses_and_what_is_none_counts_as_one() {
        let mut sockets = RuntimeSockets { sockets: vec!["/nowhere".into()], api_server: None, due: Instant::now() };
        let (ours, theirs) = handover::pair().expect("sockets");
        sockets.answer(&ours, None);
        assert!(sockets.pause().is_zero(), "nothing was asked");
        for (request, answers) in [(&[0][..], true), (b"garbage", false)] {
            theirs.send(request).expect("room");
            theirs.send(request).expect("room");
            let begun = Instant::now();
            sockets.answer(&ours, None);
            assert_eq!(handover::receive_for_services(&theirs).is_ok(), answers);
            assert!(sockets.due >= begun + PAUSE);
            // However slow the machine is.
            sockets.due += Duration::from_mins(1);
            sockets.answer(&ours, None);
            assert_eq!(handover::receive_for_services(&theirs).err(), Some(Errno::AGAIN), "its time has not come");
            sockets.due = Instant::now();
            sockets.answer(&ours, None);
            assert_eq!(handover::receive_for_services(&theirs).is_ok(), answers, "its time has come");
            sockets.due = Instant::now();
        }
    }
}
