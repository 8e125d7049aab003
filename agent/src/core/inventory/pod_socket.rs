//! What another process sends of pods and disks. It is not trusted: it can send anything, as fast as it likes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use plimsoll_inventory::{
    CORE_MESSAGE, ConditionState, CoreMessage, DiskReading, DiskRole, Inventory, MESSAGE, Measurer, Message,
    PodMessage, Receipt, RemovalResult, Sink, Source, StopResult, StorageMessage,
};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// So many messages are taken at a time.
const BATCH: usize = 256;

/// The core's end.
#[derive(Debug)]
pub(in crate::core) struct PodSocket(OwnedFd);

/// What messages say beside what is known of pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Others {
    /// Whether the node's object has the annotation that switches the agent off, where that was sent.
    pub(super) switch: Option<bool>,
    /// The newest reading of each disk, and what it cost.
    pub(super) disks: [Option<(DiskReading, Duration)>; DiskRole::ALL.len()],
    /// The newest result of an order.
    pub(super) removed: Option<RemovalResult>,
    /// Results of orders to stop pods, in their order.
    pub(super) stops: Vec<StopResult>,
    /// Whether each source works, where that was sent.
    pub(super) sources: [Option<bool>; Source::ALL.len()],
    /// What was received of evictions and conditions.
    pub(super) receipts: Vec<Receipt>,
    /// What conditions were before.
    pub(super) conditions: Vec<ConditionState>,
    /// Pods of which the API server has the status, or that it has no more.
    pub(super) recorded: Vec<Uid>,
}

/// Takes the next messages into an inventory, and closes a socket by which no more will come. Gives what else they say;
/// `None`: there was no message.
pub(super) fn learn(pods: &mut Option<PodSocket>, inventory: &mut Inventory, sink: &mut impl Sink) -> Option<Others> {
    let received = pods.as_ref().map(PodSocket::receive).unwrap_or_default();
    if received == Received::default() {
        return None;
    }
    let Received { messages, layers, others, malformed, is_over } = received;
    if malformed > 0 {
        // Once: what sends them could go on.
        sink.trouble("messages", Some("messages of services that cannot be read are left out".to_owned()));
    }
    if !messages.is_empty() {
        inventory.learn(messages.into_iter(), sink);
    }
    if !layers.is_empty() {
        inventory.learn_storage(layers.into_iter(), Measurer::Services, sink);
    }
    if is_over {
        *pods = None;
        // The supervisor keeps the other end open from one services to the next: one of them closed it for all.
        let why = "the way from services is closed: until the core is started again, what it knows of pods is not \
                   renewed, and of disks it knows nothing";
        sink.trouble("way from services", Some(why.to_owned()));
    }
    Some(others)
}

/// Takes what the scanner sends into an inventory, as [`learn`] does. False: there was no message.
pub(super) fn learn_storage(scanner: &mut Option<PodSocket>, inventory: &mut Inventory, sink: &mut impl Sink) -> bool {
    let Some(socket) = scanner else { return false };
    let (mut messages, mut malformed) = (Vec::new(), 0);
    let is_over = socket.each(|bytes| match StorageMessage::decode(bytes) {
        Some(message) if message.may_be_of(Measurer::Scanner) => messages.push(message.by(monotonic())),
        Some(_) | None => malformed += 1,
    });
    if malformed > 0 {
        sink.trouble("figures", Some("figures of the scanner that cannot be read are left out".to_owned()));
    }
    let is_any = is_over || malformed > 0 || !messages.is_empty();
    inventory.learn_storage(messages.into_iter(), Measurer::Scanner, sink);
    if is_over {
        *scanner = None;
        let why = "the way from the scanner is closed: until the core is started again, no pod is evicted for what it \
                   takes of disks";
        sink.trouble("way from the scanner", Some(why.to_owned()));
    }
    is_any
}

/// What was there.
#[derive(Debug, Default, PartialEq, Eq)]
struct Received {
    /// Of pods, in their order.
    messages: Vec<PodMessage>,
    /// Of writable layers, in their order.
    layers: Vec<StorageMessage>,
    /// What is neither.
    others: Others,
    /// How many others.
    malformed: usize,
    /// There will be no more.
    is_over: bool,
}

impl PodSocket {
    pub(in crate::core) const fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Sends a message, without waiting.
    pub(super) fn send(&self, message: &CoreMessage) -> Result<(), Errno> {
        let mut buffer = [0; CORE_MESSAGE];
        send(&self.0, message.encode(&mut buffer), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
    }

    /// Whether nothing can be sent to it any more.
    fn is_closed(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::RDHUP)];
        !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0) | Err(Errno::INTR))
    }

    /// Takes the next messages, without waiting for any.
    fn receive(&self) -> Received {
        let mut received = Received::default();
        received.is_over = self.each(|bytes| match Message::decode(bytes) {
            Some(Message::Pod(message)) => received.messages.push(message),
            Some(Message::Disk(reading, cost)) => received.others.disks[reading.role as usize] = Some((reading, cost)),
            Some(Message::KillSwitch(is_there)) => received.others.switch = Some(is_there),
            Some(Message::Removed(result)) => received.others.removed = Some(result),
            Some(Message::Stop(result)) => received.others.stops.push(result),
            Some(Message::Source(source, works)) => received.others.sources[source as usize] = Some(works),
            Some(Message::Receipt(receipt)) => received.others.receipts.push(receipt),
            Some(Message::Recorded(uid)) => received.others.recorded.push(uid),
            Some(Message::Condition(state)) => received.others.conditions.push(state),
            Some(Message::Layer(layer)) if layer.may_be_of(Measurer::Services) => {
                received.layers.push(layer.by(monotonic()));
            }
            Some(Message::Layer(_)) | None => received.malformed += 1,
        });
        received
    }

    /// Hands each of the next messages on, without waiting for any. Gives whether there will be no more.
    fn each(&self, mut take: impl FnMut(&[u8])) -> bool {
        // What is longer than a message is seen to be.
        let mut buffer = [0; MESSAGE + 1];
        for _ in 0..BATCH {
            match recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT) {
                // A message may be empty, too.
                Ok((0, _)) if self.is_closed() => return true,
                Ok((length, _)) => take(&buffer[..length]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return true,
            }
        }
        false
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
    use plimsoll_inventory::{PartUsage, RemovalOrder, Room, StoragePart};
    use plimsoll_policy::kubelet::Reclaim;
    use plimsoll_state::handover;
    use plimsoll_units::{Bytes, MonotonicNs};
    use rustix::net::{Shutdown, shutdown};

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
        // Its descriptor may be open for a moment longer, in a child that another test has just forked.
        shutdown(&services, Shutdown::Both).expect("it is open");
        assert_eq!(socket.receive(), Received { is_over: true, ..Received::default() });
    }

    #[test]
    fn of_each_disk_the_newest_reading_counts_whatever_is_sent_of_pods() {
        let (core, services) = handover::messages_pair().expect("sockets");
        let reading = |role, left| {
            let bytes = Some(Room { left, all: 9 });
            DiskReading { role, bytes, inodes: None, at: MonotonicNs(left), layout: None }
        };
        let (old, new, other) = (reading(DiskRole::Node, 1), reading(DiskRole::Node, 2), reading(DiskRole::Image, 3));
        let pod = Message::Pod(PodMessage::Complete);
        let of = |number| RemovalResult { number, ..RemovalResult::default() };
        let removed = [1, 2].map(|number| Message::Removed(of(number)));
        let sources = [false, true].map(|works| Message::Source(Source::Runtime, works));
        let cost = Duration::from_micros(7);
        let disks = [(old, Duration::MAX), (other, Duration::ZERO), (new, cost)];
        let disks = disks.map(|(reading, cost)| Message::Disk(reading, cost));
        let switch = [true, false, true].map(Message::KillSwitch);
        for message in [&disks[..2], &[removed[0], pod], &disks[2..], &[removed[1]], &sources, &switch].concat() {
            let mut buffer = [0; MESSAGE];
            send(&services, message.encode(&mut buffer), SendFlags::NOSIGNAL).expect("room");
        }
        let received = PodSocket::new(core).receive();
        assert_eq!(received.messages, [PodMessage::Complete]);
        let others = Others {
            switch: Some(true),
            disks: [Some((new, cost)), Some((other, Duration::ZERO)), None],
            removed: Some(of(2)),
            sources: [None, Some(true), None, None],
            ..Others::default()
        };
        assert_eq!(received.others, others);
    }

    #[test]
    fn services_says_what_writable_layers_take_and_not_what_the_scanner_measures() {
        let (core, services) = handover::messages_pair().expect("sockets");
        let part = |part, at| PartUsage { uid: Uid(7), part, used: Some((1, 1)), begun: at, ended: at };
        let later = MonotonicNs(u64::MAX);
        let of = |name, at| Message::Layer(StorageMessage::Part(part(name, at)));
        let round = Message::Layer(StorageMessage::Round);
        for message in [of(StoragePart::Layer(1), later), of(StoragePart::Logs(1), MonotonicNs(1)), round] {
            let mut buffer = [0; MESSAGE];
            send(&services, message.encode(&mut buffer), SendFlags::NOSIGNAL).expect("room");
        }
        let received = PodSocket::new(core).receive();
        let [StorageMessage::Part(first), StorageMessage::Round] = received.layers[..] else {
            panic!("{:?}", received.layers)
        };
        assert!(first.part == StoragePart::Layer(1) && first.ended < later, "nothing is of later: {first:?}");
        assert_eq!(received.malformed, 1, "logs are the scanner's");
    }

    #[test]
    fn what_is_sent_is_one_message_and_is_refused_where_none_is_received() {
        let (core, services) = handover::messages_pair().expect("sockets");
        let (socket, mut buffer) = (PodSocket::new(core), [0; MESSAGE]);
        let what = Reclaim { containers: true, images: true };
        let order = CoreMessage::Remove(RemovalOrder { number: 7, what, bytes: Bytes(9), until: MonotonicNs(8) });
        socket.send(&order).expect("room");
        let (length, _) = recv(&services, &mut buffer[..], RecvFlags::DONTWAIT).expect("it was sent");
        assert_eq!(CoreMessage::decode(&buffer[..length]), Some(order));
        let full = (0..100_000).find_map(|_| socket.send(&order).err());
        assert_eq!(full, Some(Errno::AGAIN), "it waits for no reader");
        shutdown(&services, Shutdown::Both).expect("it is open");
        assert!(matches!(socket.send(&order), Err(Errno::PIPE | Errno::CONNRESET)));
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
        shutdown(&services, Shutdown::Both).expect("it is connected");
        assert!(learn(&mut pods, &mut inventory, &mut said).is_some() && pods.is_none());
        assert!(learn(&mut pods, &mut inventory, &mut said).is_none());
        assert_eq!(said.0, ["way from services"]);
    }
}
