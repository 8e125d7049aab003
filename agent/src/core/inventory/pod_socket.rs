//! What another process sends of pods and disks. It is not trusted: it can send anything, as fast as it likes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use plimsoll_inventory::{DiskReading, DiskRole, Inventory, MESSAGE, Message, PodMessage, Sink};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// So many messages are taken at a time.
const BATCH: usize = 256;

/// The core's end.
#[derive(Debug)]
pub(in crate::core) struct PodSocket(OwnedFd);

/// The newest reading of each disk.
pub(super) type DiskReadings = [Option<DiskReading>; DiskRole::ALL.len()];

/// Takes the next messages into an inventory, and closes a socket by which no more will come. Gives what they say of
/// disks; `None`: there was no message.
pub(super) fn learn(
    pods: &mut Option<PodSocket>,
    inventory: &mut Inventory,
    sink: &mut impl Sink,
) -> Option<DiskReadings> {
    let received = pods.as_ref().map(PodSocket::receive).unwrap_or_default();
    if received == Received::default() {
        return None;
    }
    let Received { messages, disks, malformed, is_over } = received;
    if malformed > 0 {
        // Once: what sends them could go on.
        sink.trouble("messages", Some("messages of services that cannot be read are left out".to_owned()));
    }
    if !messages.is_empty() {
        inventory.learn(messages.into_iter(), sink);
    }
    if is_over {
        *pods = None;
        // The supervisor keeps the other end open from one services to the next: one of them closed it for all.
        let why = "the way from services is closed: until the core is started again, what it knows of pods is not \
                   renewed, and of disks it knows nothing";
        sink.trouble("way from services", Some(why.to_owned()));
    }
    Some(disks)
}

/// What was there.
#[derive(Debug, Default, PartialEq, Eq)]
struct Received {
    /// Of pods, in their order.
    messages: Vec<PodMessage>,
    disks: DiskReadings,
    /// How many others.
    malformed: usize,
    /// There will be no more.
    is_over: bool,
}

impl PodSocket {
    pub(in crate::core) const fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Whether nothing can be sent to it any more.
    fn is_closed(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::RDHUP)];
        !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0) | Err(Errno::INTR))
    }

    /// Takes the next messages, without waiting for any.
    fn receive(&self) -> Received {
        let mut received = Received::default();
        // What is longer than a message is seen to be.
        let mut buffer = [0; MESSAGE + 1];
        for _ in 0..BATCH {
            match recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT) {
                // A message may be empty, too.
                Ok((0, _)) if self.is_closed() => received.is_over = true,
                Ok((length, _)) => match Message::decode(&buffer[..length]) {
                    Some(Message::Pod(message)) => received.messages.push(message),
                    Some(Message::Disk(reading)) => received.disks[reading.role as usize] = Some(reading),
                    None => received.malformed += 1,
                },
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => received.is_over = true,
            }
            if received.is_over {
                break;
            }
        }
        received
    }
}

impl AsFd for PodSocket {
    /// Readable when there is a message.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_inventory::Room;
    use plimsoll_policy::Uid;
    use plimsoll_state::handover;
    use plimsoll_units::MonotonicNs;
    use rustix::net::{SendFlags, send};

    #[test]
    fn messages_are_taken_some_at_a_time_and_what_is_none_is_counted() {
        let (core, services) = handover::messages_pair().expect("sockets");
        let socket = PodSocket::new(core);
        let put = |bytes: &[u8]| send(&services, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok();
        let gone = PodMessage::Gone(Uid(7));
        let mut buffer = [0; MESSAGE];
        let bytes = Message::Pod(gone).encode(&mut buffer);
        assert_eq!(socket.receive(), Received::default());
        assert!(put(&[255; 9]) && put(&[]) && put(bytes) && put(&[&[0; MESSAGE][..], bytes].concat()));
        assert_eq!(socket.receive(), Received { messages: vec![gone], malformed: 3, ..Received::default() });
        let sent = (0..10_000).take_while(|_| put(bytes)).count();
        let taken = std::iter::repeat_with(|| socket.receive().messages.len()).take_while(|count| *count > 0);
        let taken: Vec<_> = taken.collect();
        assert!(taken.iter().all(|count| *count <= BATCH) && taken.iter().sum::<usize>() == sent, "{sent} {taken:?}");
        drop(services);
        assert_eq!(socket.receive(), Received { is_over: true, ..Received::default() });
    }

    #[test]
    fn of_each_disk_the_newest_reading_counts_whatever_is_sent_of_pods() {
        let (core, services) = handover::messages_pair().expect("sockets");
        let reading =
            |role, left| DiskReading { role, bytes: Some(Room { left, all: 9 }), inodes: None, at: MonotonicNs(left) };
        let (old, new, other) = (reading(DiskRole::Node, 1), reading(DiskRole::Node, 2), reading(DiskRole::Image, 3));
        let pod = Message::Pod(PodMessage::Complete);
        for message in [Message::Disk(old), Message::Disk(other), pod, Message::Disk(new)] {
            let mut buffer = [0; MESSAGE];
            send(&services, message.encode(&mut buffer), SendFlags::NOSIGNAL).expect("room");
        }
        let received = PodSocket::new(core).receive();
        assert_eq!((received.messages, received.disks), (vec![PodMessage::Complete], [Some(new), Some(other), None]));
    }

    #[derive(Default)]
    struct Said(Vec<&'static str>);

    impl Sink for Said {
        fn update(&mut self, _: plimsoll_inventory::Update) {}

        fn protect(&mut self, _: &plimsoll_state::Protected, _: &[plimsoll_policy::Uid]) -> bool {
            true
        }

        fn trouble(&mut self, tried: &'static str, text: Option<String>) {
            self.0.extend(text.map(|_| tried));
        }
    }

    #[test]
    fn a_way_that_is_closed_is_reported_once() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let mut inventory = Inventory::new(plimsoll_inventory::Config {
            root: plimsoll_node::cgroup::Root::open(tree.path()).expect("it is there"),
            patterns: plimsoll_inventory::Patterns::default(),
            priorities: Vec::new(),
            protected: plimsoll_inventory::Protected::default(),
            slices: Vec::new(),
            brakes: None,
            max_brakes: 0,
            max_workloads: 9,
            counts_tasks: false,
        });
        let (core, services) = handover::messages_pair().expect("sockets");
        let (mut pods, mut said) = (Some(PodSocket::new(core)), Said::default());
        assert!(learn(&mut pods, &mut inventory, &mut said).is_none() && pods.is_some());
        // The supervisor has the same end, and cannot undo this.
        rustix::net::shutdown(&services, rustix::net::Shutdown::Both).expect("it is connected");
        assert!(learn(&mut pods, &mut inventory, &mut said).is_some() && pods.is_none());
        assert!(learn(&mut pods, &mut inventory, &mut said).is_none());
        assert_eq!(said.0, ["way from services"]);
    }
}
