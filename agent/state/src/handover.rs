//! Hands descriptors over to another process through a socket, because it may live already when they are made: the queues
//! of a core, and a descriptor of the core, to the process that reads them; and a socket to a core to the process that
//! sends it what is known of pods.

use std::mem::MaybeUninit;
use std::os::unix::net::UnixDatagram;

use rustix::cmsg_space;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair, sockopt,
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
    send_all(socket, &[&watch.frames, &watch.place, &inventory.frames, &inventory.place, process].map(AsFd::as_fd))
}

/// Sends one descriptor, as [`send`] does.
pub fn send_one(socket: impl AsFd, descriptor: impl AsFd) -> Result<(), Errno> {
    send_all(socket, &[descriptor.as_fd()])
}

/// Receives the next one, as [`receive`] does.
pub fn receive_one(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    let [descriptor] = receive_all(socket)?;
    Ok(descriptor)
}

/// The ends of a new way from the process that knows pods to a core: whole messages, in order, and neither end waits.
pub fn facts_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// No more than [`DESCRIPTORS`].
fn send_all(socket: impl AsFd, all: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // There is room for as many.
    let fits = control.push(SendAncillaryMessage::ScmRights(all));
    debug_assert!(fits, "the space is computed from the same number");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    // Descriptors go with at least one byte.
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, flags).map(drop)
}

/// Receives the next ones without waiting: [`Errno::AGAIN`] where there are none yet, [`Errno::BADMSG`] for a message
/// that is none of [`send`]'s.
pub fn receive(socket: impl AsFd) -> Result<Handover, Errno> {
    let [watch, watch_place, inventory, inventory_place, process] = receive_all(socket)?;
    let queue = |frames, place| Descriptors { frames, place };
    Ok(Handover { queues: [queue(watch, watch_place), queue(inventory, inventory_place)], process })
}

fn receive_all<const COUNT: usize>(socket: impl AsFd) -> Result<[OwnedFd; COUNT], Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    let mut all: Vec<OwnedFd> = Vec::with_capacity(DESCRIPTORS);
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            all.extend(descriptors);
        }
    }
    all.try_into().map_err(|_| Errno::BADMSG)
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
        let (core, services) = facts_pair().expect("sockets");
        send_one(&ours, &services).expect("room");
        drop(services);
        let services = receive_one(&theirs).expect("a message");
        for text in [&b"one"[..], b"another"] {
            rustix::net::send(&services, text, SendFlags::NOSIGNAL).expect("room");
        }
        let mut buffer = [0; 32];
        let mut next = || rustix::net::recv(&core, &mut buffer[..], RecvFlags::empty()).map(|(length, _)| length);
        assert_eq!((next(), next(), next()), (Ok(3), Ok(7), Err(Errno::AGAIN)));
    }

    #[test]
    fn other_messages_are_refused() {
        let (ours, theirs) = pair().expect("sockets");
        for bytes in [&b"x"[..], b"longer than a byte"] {
            ours.send(bytes).expect("room");
            assert_eq!(receive(&theirs).err(), Some(Errno::BADMSG));
        }
    }
}
