//! What a hostile `services` sends the core for a while: facts of pods, readings of disks, answers to what the core never
//! asked, and garbage.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use plimsoll_inventory::{
    ConditionState, DiskReading, DiskRole, EvictionNumber, EvictionStep, Limited, MESSAGE, Message, PodFacts,
    PodMessage, Receipt, ReceiptOf, RemovalResult, Room, StopResult, StorageLimit,
};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::{Condition, DiskLayout};
use plimsoll_units::{Bytes, MonotonicNs};

/// Names a FIFO by which `services` is given the UIDs of pods, in one line. From then on it sends for [`FOR`], and writes
/// `plimsoll: hostile: done` to standard error in the end.
const FORGER: &str = "PLIMSOLL_HOSTILE_FORGER";
const FOR: Duration = Duration::from_secs(30);
/// Between two turns, in each of which all is sent once.
const PAUSE: Duration = Duration::from_millis(20);

static FIFO: Mutex<Option<File>> = Mutex::new(None);

fn fifo() -> Option<File> {
    FIFO.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Opens the FIFO, before that is refused.
pub(crate) fn prepare() -> anyhow::Result<()> {
    *FIFO.lock().unwrap_or_else(PoisonError::into_inner) = super::open(FORGER)?;
    Ok(())
}

/// Attacks the core by this socket, once.
pub(crate) fn attack(core: BorrowedFd<'_>) -> anyhow::Result<()> {
    let Some(fifo) = fifo() else { return Ok(()) };
    let core = UnixDatagram::from(core.try_clone_to_owned()?);
    let serve = move || {
        let mut line = String::new();
        if BufReader::new(fifo).read_line(&mut line).is_ok() {
            let pods: Vec<Uid> = line.split_whitespace().map(Uid::of).collect();
            forge(&core, &pods);
            super::print("done");
        }
    };
    std::thread::Builder::new().name("forger".into()).spawn(serve).map(drop).context("cannot start a thread")
}

fn forge(core: &UnixDatagram, pods: &[Uid]) {
    let mut random = fastrand::Rng::with_seed(7);
    let begun = Instant::now();
    while begun.elapsed() < FOR {
        let lies = pods.iter().flat_map(|uid| of_pod(*uid)).chain(of_disks()).chain(of_conditions()).chain(answers());
        for lie in lies {
            let mut buffer = [0; MESSAGE];
            let bytes = lie.encode(&mut buffer).to_vec();
            send(core, &bytes);
            // The same with one byte that is another.
            let mut broken = bytes;
            if let Some(byte) = random.choice(broken.iter_mut()) {
                *byte ^= random.u8(1..);
            }
            send(core, &broken);
        }
        let garbage: Vec<u8> = (0..random.usize(..4 * MESSAGE)).map(|_| random.u8(..)).collect();
        send(core, &garbage);
        std::thread::sleep(PAUSE);
    }
}

/// The pod is the first to be evicted, is over all limits, is gone, and is not protected.
fn of_pod(uid: Uid) -> Vec<Message> {
    let facts = PodFacts {
        uid,
        priority: i32::MIN,
        storage_limit: Some(Bytes(0)),
        grace_seconds: Some(u32::MAX),
        started: Some(MonotonicNs(u64::MAX)),
        ..PodFacts::default()
    };
    let limit = |on| PodMessage::Limit(StorageLimit { uid, on, bytes: Bytes(0) });
    let [volume, container] = [limit(Limited::Volume(1)), limit(Limited::Container(1))];
    let said = [
        PodMessage::Gone(uid),
        PodMessage::Complete,
        PodMessage::Begin,
        PodMessage::Pod(facts),
        volume,
        container,
        PodMessage::Complete,
    ];
    let stop = Message::Stop(StopResult { uid, is_begun: true });
    said.into_iter().map(Message::Pod).chain([stop, Message::Recorded(uid)]).collect()
}

/// Every disk is full, and took for ever to read.
fn of_disks() -> impl Iterator<Item = Message> {
    DiskRole::ALL.into_iter().map(|role| {
        let none = Some(Room { left: 0, all: u64::MAX });
        let layout = Some(DiskLayout::SplitImageFs);
        let reading = DiskReading { role, bytes: none, inodes: none, at: monotonic(), layout };
        Message::Disk(reading, Duration::MAX)
    })
}

/// Every condition holds for ever.
fn of_conditions() -> impl Iterator<Item = Message> {
    Condition::ALL.into_iter().map(|condition| {
        let since = MonotonicNs(u64::MAX);
        Message::Condition(ConditionState { condition, is_true: true, since, wall_ms: 0, observed: Some(since) })
    })
}

/// All evictions are on the disk, and what was ordered is removed.
fn answers() -> impl Iterator<Item = Message> {
    let steps = [EvictionStep::Decided, EvictionStep::Killed, EvictionStep::GivenUp, EvictionStep::Verified];
    let receipts = steps.into_iter().flat_map(|step| {
        (0..4).map(move |number| Receipt { of: ReceiptOf::Eviction(EvictionNumber(number), step), is_durable: true })
    });
    let removed = (0..4).map(|number| RemovalResult {
        number,
        containers: u32::MAX,
        sandboxes: u32::MAX,
        images: u32::MAX,
        freed: Bytes(u64::MAX),
        unused: Some(0),
        error: None,
    });
    receipts.map(Message::Receipt).chain(removed.map(Message::Removed))
}

/// Where the core takes no more, it is left out.
fn send(core: &UnixDatagram, bytes: &[u8]) {
    for _ in 0..10 {
        match core.send(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(_) | Err(_) => return,
        }
    }
}
