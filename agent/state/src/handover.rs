//! Hands descriptors over to another process through a socket, because it may live already when they are made: the queues
//! of a core, and a descriptor of the core, to the process that reads them; to `services`, which may connect to nothing, the
//! ways to the core and to the reporter, connections to the broker and to the API server, and, by a way of their own, the
//! manifests of static pods; to the broker those to the container runtime.

use std::mem::MaybeUninit;
use std::os::unix::net::UnixDatagram;

use rustix::cmsg_space;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recv, recvmsg, sendmsg, socketpair, sockopt,
};

use crate::queue::Descriptors;

/// What a core hands over.
#[derive(Debug)]
pub struct Handover {
    /// Its queues: that of the watching thread, and that of the inventory thread.
    pub queues: [Descriptors; 2],
    /// The core itself: the reader may not open processes, and a core that is killed does not report its end.
    pub process: OwnedFd,
}

/// What the reporter is handed.
#[derive(Debug)]
pub enum ForReporter {
    /// The queues of a new core.
    Core(Handover),
    /// The way on which names of pods come from now on ([`messages_pair`]).
    Names(OwnedFd),
}

/// What `services` is handed.
#[derive(Debug)]
pub enum ForServices {
    /// The way to a new core.
    Core(OwnedFd),
    /// The way on which names of pods are sent from now on.
    Names(OwnedFd),
    /// The answer to a request.
    Runtime {
        /// The number that was asked for.
        number: u8,
        /// A connection to that socket of a container runtime, or to the API server, which may still be under way; or why
        /// there is none.
        connection: Result<OwnedFd, Errno>,
    },
}

/// What the broker is handed.
#[derive(Debug)]
pub enum ForBroker {
    /// The way from a new core.
    Core(OwnedFd),
    /// Both ends of what it is between.
    Connection {
        /// A connection to a container runtime.
        runtime: OwnedFd,
        /// The end of a connection that `services` has the other end of.
        services: OwnedFd,
    },
}

/// What answers a request for the manifests of static pods.
#[derive(Debug)]
pub enum Manifests {
    /// One of them.
    File {
        /// The file's name in its directory: any bytes.
        name: Vec<u8>,
        /// The file, to be read.
        file: OwnedFd,
    },
    /// There are no more.
    End,
}

/// The number by which `services` asks for a connection to the API server; lower ones are those of runtimes' sockets.
pub const API_SERVER: u8 = 0xff;

/// What a message is: its first byte.
const QUEUES: u8 = 0;
const CORE: u8 = 1;
const NAMES: u8 = 2;
const RUNTIME: u8 = 3;
const CONNECTION: u8 = 4;
const MANIFEST: u8 = 5;
const MANIFESTS_END: u8 = 6;
/// What asks for manifests.
const LOOK: u8 = 0;
/// The longest name of a file, in bytes (NAME_MAX).
const NAME: usize = 255;
/// The longest message, in bytes: that of a manifest. One of a connection has the number and, where there is none, the
/// kernel's error.
const TEXT: usize = 1 + NAME;
/// Descriptors in a message.
const DESCRIPTORS: usize = 5;

/// A socket to send from, and one to receive from. Neither side can change the other one's modes; no child inherits
/// them.
pub fn pair() -> std::io::Result<(UnixDatagram, UnixDatagram)> {
    let (send, receive) = UnixDatagram::pair()?;
    // As little as the kernel allows, which is some messages: what waits there unread keeps its queues in memory.
    sockopt::set_socket_send_buffer_size(&send, 1)?;
    Ok((send, receive))
}

/// Sends them without waiting: [`Errno::AGAIN`] where the other side left too many messages unread, another error where
/// it has ended or receives no more.
pub fn send(socket: impl AsFd, handover: &Handover) -> Result<(), Errno> {
    let Handover { queues: [watch, inventory], process } = handover;
    let all = [&watch.frames, &watch.place, &inventory.frames, &inventory.place, process].map(AsFd::as_fd);
    send_all(socket, &[QUEUES], &all)
}

/// Sends `services`, the scanner or the broker the way to a core, as [`send`] does.
pub fn send_core(socket: impl AsFd, way: impl AsFd) -> Result<(), Errno> {
    send_all(socket, &[CORE], &[way.as_fd()])
}

/// Sends `services` or the reporter its end of the way of names, as [`send`] does.
pub fn send_names(socket: impl AsFd, way: impl AsFd) -> Result<(), Errno> {
    send_all(socket, &[NAMES], &[way.as_fd()])
}

/// Sends the broker both ends of what it is between, as [`send`] does.
pub fn send_connection(socket: impl AsFd, runtime: impl AsFd, services: impl AsFd) -> Result<(), Errno> {
    send_all(socket, &[CONNECTION], &[runtime.as_fd(), services.as_fd()])
}

/// Answers a request of `services`, as [`send`] does.
pub fn send_runtime(socket: impl AsFd, number: u8, connection: &Result<OwnedFd, Errno>) -> Result<(), Errno> {
    let errno = connection.as_ref().err().map_or(0, |errno| errno.raw_os_error());
    let [a, b, c, d] = errno.to_ne_bytes();
    let descriptors: Vec<_> = connection.iter().map(AsFd::as_fd).collect();
    send_all(socket, &[RUNTIME, number, a, b, c, d], &descriptors)
}

/// Asks for the manifests of static pods, by a way of their own ([`messages_pair`]). What it asks is under way when this
/// returns; without waiting, as [`send`]. By `sendto`, the one call for that which `services` may make.
pub fn ask_for_manifests(way: impl AsFd) -> Result<(), Errno> {
    rustix::net::send(way, &[LOOK], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

/// Answers with a manifest that is not the last one, as [`send`] does.
pub fn send_manifest(way: impl AsFd, name: &[u8], file: impl AsFd) -> Result<(), Errno> {
    send_all(way, &[&[MANIFEST], name].concat(), &[file.as_fd()])
}

/// Answers that there are no more, as [`send`] does.
pub fn send_manifests_end(way: impl AsFd) -> Result<(), Errno> {
    send_all(way, &[MANIFESTS_END], &[])
}

/// The next part of the answer, without waiting: [`Errno::AGAIN`] where there is none yet, [`Errno::PIPE`] where there will be
/// none, [`Errno::BADMSG`] for what is none.
pub fn receive_manifests(way: impl AsFd) -> Result<Manifests, Errno> {
    let (text, descriptors) = receive_all(way)?;
    match text[..] {
        [MANIFEST, ref name @ ..] => exactly(descriptors).map(|[file]| Manifests::File { name: name.to_vec(), file }),
        [MANIFESTS_END] => Ok(Manifests::End),
        [] => Err(Errno::PIPE),
        _ => Err(Errno::BADMSG),
    }
}

/// The number that `services` asks for, without waiting: [`Errno::AGAIN`] where it asks for none, [`Errno::BADMSG`] for what
/// is not one byte. Descriptors that come with it are closed.
pub fn receive_request(socket: impl AsFd) -> Result<u8, Errno> {
    let mut buffer = [0; 2];
    match recv(socket, &mut buffer[..], RecvFlags::DONTWAIT)? {
        (1, _) => Ok(buffer[0]),
        _ => Err(Errno::BADMSG),
    }
}

/// The ends of a new way for messages, to a core or to the reporter, from the process that knows pods: whole messages, in
/// order, and neither end waits.
pub fn messages_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// No more than [`DESCRIPTORS`].
fn send_all(socket: impl AsFd, text: &[u8], all: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // There is room for as many.
    let fits = all.is_empty() || control.push(SendAncillaryMessage::ScmRights(all));
    debug_assert!(fits, "the space is computed from the same number");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(text)], &mut control, flags).map(drop)
}

/// Receives the next one of a core without waiting: [`Errno::AGAIN`] where there is none yet, [`Errno::BADMSG`] for a message
/// that is none of [`send`]'s.
pub fn receive(socket: impl AsFd) -> Result<Handover, Errno> {
    match receive_for_reporter(socket)? {
        ForReporter::Core(handover) => Ok(handover),
        ForReporter::Names(_) => Err(Errno::BADMSG),
    }
}

/// The same of what is for the reporter.
pub fn receive_for_reporter(socket: impl AsFd) -> Result<ForReporter, Errno> {
    let (text, descriptors) = receive_all(socket)?;
    match text[..] {
        [QUEUES] => {
            let [watch, watch_place, inventory, inventory_place, process] = exactly(descriptors)?;
            let queue = |frames, place| Descriptors { frames, place };
            let queues = [queue(watch, watch_place), queue(inventory, inventory_place)];
            Ok(ForReporter::Core(Handover { queues, process }))
        }
        [NAMES] => exactly(descriptors).map(|[way]| ForReporter::Names(way)),
        _ => Err(Errno::BADMSG),
    }
}

/// The same of what is for `services`.
pub fn receive_for_services(socket: impl AsFd) -> Result<ForServices, Errno> {
    let (text, descriptors) = receive_all(socket)?;
    match text[..] {
        [CORE] => exactly(descriptors).map(|[way]| ForServices::Core(way)),
        [NAMES] => exactly(descriptors).map(|[way]| ForServices::Names(way)),
        [RUNTIME, number, a, b, c, d] => {
            let connection = match i32::from_ne_bytes([a, b, c, d]) {
                0 => exactly(descriptors).map(|[connection]| Ok(connection))?,
                errno => Err(Errno::from_raw_os_error(errno)),
            };
            Ok(ForServices::Runtime { number, connection })
        }
        _ => Err(Errno::BADMSG),
    }
}

/// The same of what is for the broker.
pub fn receive_for_broker(socket: impl AsFd) -> Result<ForBroker, Errno> {
    let (text, descriptors) = receive_all(socket)?;
    match text[..] {
        [CORE] => exactly(descriptors).map(|[way]| ForBroker::Core(way)),
        [CONNECTION] => exactly(descriptors).map(|[runtime, services]| ForBroker::Connection { runtime, services }),
        _ => Err(Errno::BADMSG),
    }
}

fn exactly<const COUNT: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; COUNT], Errno> {
    descriptors.try_into().map_err(|_| Errno::BADMSG)
}

fn receive_all(socket: impl AsFd) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // What is longer than a message is seen to be.
    let mut text = [0; TEXT + 1];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let length = recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut control, flags)?.bytes;
    let mut all: Vec<OwnedFd> = Vec::with_capacity(DESCRIPTORS);
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            all.extend(descriptors);
        }
    }
    Ok((text[..length].to_vec(), all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{self, Consumer, FRAME};
    use plimsoll_node::process;
    use std::net::Shutdown;

    fn own_process() -> OwnedFd {
        process::open(rustix::process::getpid()).expect("it runs")
    }

    #[test]
    fn queues_are_read_where_they_were_received() {
        let (ours, theirs) = pair().expect("sockets");
        assert_eq!(receive(&theirs).err(), Some(Errno::AGAIN), "there are none yet");
        let ((mut watch, first), (mut inventory, second)) =
            (queue::create(2).expect("memory"), queue::create(3).expect("memory"));
        send(&ours, &Handover { queues: [first, second], process: own_process() }).expect("room");
        let Handover { queues: [first, second], process } = receive(&theirs).expect("a message");
        rustix::process::pidfd_send_signal(process, rustix::process::Signal::CONT).expect("it is this process");
        for (producer, descriptors, text) in
            [(&mut watch, first, &b"watch"[..]), (&mut inventory, second, b"inventory")]
        {
            producer.push(text);
            let mut consumer = Consumer::attach(&descriptors).expect("a queue");
            assert_eq!(consumer.pop(&mut [0; FRAME]), Some(text));
        }
    }

    #[test]
    fn sending_never_waits_for_a_reader() {
        let queues = [queue::create(1).expect("memory").1, queue::create(1).expect("memory").1];
        let handover = Handover { queues, process: own_process() };
        let (ours, theirs) = pair().expect("sockets");
        let sent = (0..100).find_map(|_| send(&ours, &handover).err());
        assert_eq!(sent, Some(Errno::AGAIN));
        drop(theirs);
        assert_eq!(send(&ours, &handover).err(), Some(Errno::CONNREFUSED));
        let (ours, theirs) = pair().expect("sockets");
        theirs.shutdown(Shutdown::Both).expect("it is connected");
        assert_eq!(send(&ours, &handover).err(), Some(Errno::PIPE));
    }

    #[test]
    fn messages_arrive_whole_through_a_socket_that_was_handed_over() {
        let (ours, theirs) = pair().expect("sockets");
        let (core, services) = messages_pair().expect("sockets");
        send_core(&ours, &services).expect("room");
        drop(services);
        let Ok(ForServices::Core(services)) = receive_for_services(&theirs) else { panic!("the way to a core") };
        for text in [&b"one"[..], b"another"] {
            rustix::net::send(&services, text, SendFlags::NOSIGNAL).expect("room");
        }
        let mut buffer = [0; 32];
        let mut next = || rustix::net::recv(&core, &mut buffer[..], RecvFlags::empty()).map(|(length, _)| length);
        assert_eq!((next(), next(), next()), (Ok(3), Ok(7), Err(Errno::AGAIN)));
    }

    #[test]
    fn a_connection_is_asked_for_by_number_and_handed_over_or_the_error_is() {
        let (supervisor, services) = pair().expect("sockets");
        assert_eq!(receive_request(&supervisor), Err(Errno::AGAIN));
        services.send(&[7]).expect("room");
        assert_eq!(receive_request(&supervisor), Ok(7));
        let (end, other) = messages_pair().expect("sockets");
        send_runtime(&supervisor, 7, &Ok(end)).expect("room");
        send_runtime(&supervisor, 8, &Err(Errno::CONNREFUSED)).expect("room");
        let Ok(ForServices::Runtime { number: 7, connection: Ok(end) }) = receive_for_services(&services) else {
            panic!("a connection")
        };
        rustix::net::send(&end, b"x", SendFlags::NOSIGNAL).expect("it is connected");
        assert_eq!(recv(&other, &mut [0; 2][..], RecvFlags::empty()).map(|(length, _)| length), Ok(1));
        let refused = receive_for_services(&services).expect("a message");
        let expected = matches!(refused, ForServices::Runtime { number: 8, connection: Err(Errno::CONNREFUSED) });
        assert!(expected, "{refused:?}");
        // What is no request, and what comes with descriptors that are not wanted.
        for bytes in [&b""[..], b"longer than a byte"] {
            services.send(bytes).expect("room");
            assert_eq!(receive_request(&supervisor), Err(Errno::BADMSG));
        }
        send_names(&services, &end).expect("room");
        assert_eq!(receive_request(&supervisor), Ok(NAMES));
    }

    #[test]
    fn manifests_come_with_their_names_and_their_end_once_they_were_asked_for() {
        let (services, supervisor) = messages_pair().expect("sockets");
        assert_eq!(receive_manifests(&services).err(), Some(Errno::AGAIN));
        ask_for_manifests(&services).expect("room");
        assert_eq!(receive_request(&supervisor), Ok(LOOK));
        let (end, other) = messages_pair().expect("sockets");
        let longest = [0xff; NAME];
        send_manifest(&supervisor, &longest, &end).expect("room");
        send_manifests_end(&supervisor).expect("room");
        let Ok(Manifests::File { name, file }) = receive_manifests(&services) else { panic!("a file") };
        assert_eq!(name, longest);
        rustix::net::send(&file, b"x", SendFlags::NOSIGNAL).expect("it is connected");
        assert_eq!(recv(&other, &mut [0; 2][..], RecvFlags::empty()).map(|(length, _)| length), Ok(1));
        assert!(matches!(receive_manifests(&services), Ok(Manifests::End)));
        send_all(&supervisor, &[MANIFEST, b'a'], &[]).expect("room");
        send_core(&supervisor, &end).expect("room");
        for what in ["without a file", "something else"] {
            assert_eq!(receive_manifests(&services).err(), Some(Errno::BADMSG), "{what}");
        }
        drop(supervisor);
        assert_eq!(receive_manifests(&services).err(), Some(Errno::PIPE));
        assert!(ask_for_manifests(&services).is_err());
    }

    #[test]
    fn the_broker_is_handed_both_ends_and_knows_which_is_which() {
        let (ours, theirs) = pair().expect("sockets");
        let [(runtime, of_runtime), (services, of_services)] = [(); 2].map(|()| messages_pair().expect("sockets"));
        send_connection(&ours, &runtime, &services).expect("room");
        let Ok(ForBroker::Connection { runtime, services }) = receive_for_broker(&theirs) else { panic!("both ends") };
        for (end, other, text) in [(runtime, of_runtime, b"r"), (services, of_services, b"s")] {
            rustix::net::send(&end, text, SendFlags::NOSIGNAL).expect("room");
            let mut buffer = [0; 1];
            assert_eq!(recv(&other, &mut buffer[..], RecvFlags::DONTWAIT).map(|(length, _)| length), Ok(1));
            assert_eq!(&buffer, text);
        }
        send_core(&ours, &theirs).expect("room");
        assert!(matches!(receive_for_broker(&theirs), Ok(ForBroker::Core(_))));
    }

    #[test]
    fn other_messages_are_refused() {
        let (ours, theirs) = pair().expect("sockets");
        let (way, _other) = messages_pair().expect("sockets");
        let refused = || {
            [
                receive(&theirs).err(),
                receive_for_reporter(&theirs).err(),
                receive_for_services(&theirs).err(),
                receive_for_broker(&theirs).err(),
            ]
        };
        for bytes in
            [&b"x"[..], b"", b"longer than a byte", &[CORE], &[NAMES], &[CONNECTION], &[RUNTIME, 0, 0, 0, 0, 0]]
        {
            for _ in 0..4 {
                ours.send(bytes).expect("room");
            }
            assert_eq!(refused(), [Some(Errno::BADMSG); 4], "{bytes:?}");
        }
        send_core(&ours, &way).expect("room");
        assert_eq!(receive_for_reporter(&theirs).err(), Some(Errno::BADMSG));
        send_all(&ours, &[NAMES], &[way.as_fd(); 2]).expect("room");
        assert_eq!(receive_for_services(&theirs).err(), Some(Errno::BADMSG), "one too many");
        send_names(&ours, &way).expect("room");
        assert!(matches!(receive_for_reporter(&theirs), Ok(ForReporter::Names(_))));
    }
}
