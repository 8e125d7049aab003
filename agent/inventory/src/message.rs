//! What another process sends of this node: messages of numbers alone, none of which is trusted.

use core::time::Duration;

use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::{DiskLayout, FsStats, Signal, StatsTime};
use plimsoll_units::MonotonicNs;
use serde::{Deserialize, Serialize};

use crate::core_message::{ConditionState, Receipt};
use crate::pods::PodMessage;
use crate::removal::RemovalResult;
use crate::runtime_order::StopResult;
use crate::storage::StorageMessage;

/// No message is longer, in bytes.
pub const MESSAGE: usize = 128;

/// A message to the process that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// What is known of pods.
    Pod(PodMessage),
    /// What is left on a disk, and how long the thread that read it took for that.
    Disk(DiskReading, Duration),
    /// What came of an order to remove.
    Removed(RemovalResult),
    /// Whether a source of what is sent works.
    Source(Source, bool),
    /// What was received of evictions and conditions.
    Receipt(Receipt),
    /// What a condition was before this process began, by the journal: with times of this boot's clock, of an earlier boot
    /// the earliest that there is.
    Condition(ConditionState),
    /// What came of an order to stop a pod.
    Stop(StopResult),
    /// What writable layers of containers take.
    Layer(StorageMessage),
    /// Whether the node's object has the annotation that switches the agent off.
    KillSwitch(bool),
    /// The API server has this pod as failed, or as one that is being deleted, or has it no more.
    Recorded(Uid),
}

/// What the other process reads what it sends from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The file that `podFacts` names.
    PodFacts,
    /// The container runtime.
    Runtime,
    /// The journal, in which what is known of pods, evictions, conditions and the use of images outlive the process.
    Journal,
    /// The API server of a cluster.
    ApiServer,
}

impl Source {
    /// All of them; the place of each is its number.
    pub const ALL: [Self; 4] = [Self::PodFacts, Self::Runtime, Self::Journal, Self::ApiServer];

    /// In the metric's label, and in the answer to whether the agent is ready.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PodFacts => "podFacts",
            Self::Runtime => "container runtime",
            Self::Journal => "journal",
            Self::ApiServer => "API server",
        }
    }

    /// What is lost without it.
    pub const fn lost(self) -> &'static str {
        match self {
            Self::PodFacts => "what is known of pods is not renewed: services cannot read the file, or some pods in it",
            Self::Runtime => "pods have no names but those that are known, and nothing is removed from disks",
            Self::Journal => {
                "what is known of pods, evictions, conditions and the use of images does not outlive a restart"
            }
            Self::ApiServer => {
                "what is known of pods, or whether the node has the annotation of the kill switch, is not renewed, and the \
                 cluster may get to know of evictions and conditions later"
            }
        }
    }
}

impl Message {
    /// Writes it into a buffer, and gives what it takes of that.
    pub fn encode<'b>(&self, buffer: &'b mut [u8; MESSAGE]) -> &'b [u8] {
        // A test holds that the longest one fits.
        postcard::to_slice(self, buffer).map_or(&[], |bytes| bytes)
    }

    /// Reads one. `None` for what is no message, or has something after it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::take_from_bytes(bytes).ok().filter(|(_, rest)| rest.is_empty()).map(|(message, _)| message)
    }
}

/// What a file system is to the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DiskRole {
    /// `nodefs`.
    Node,
    /// `imagefs`.
    Image,
    /// `containerfs`.
    Container,
}

impl DiskRole {
    /// All of them; the place of each is its number.
    pub const ALL: [Self; 3] = [Self::Node, Self::Image, Self::Container];

    /// That which a signal measures; absent for what is no disk.
    pub const fn of(signal: Signal) -> Option<Self> {
        Some(match signal {
            Signal::NodeFsAvailable | Signal::NodeFsInodesFree => Self::Node,
            Signal::ImageFsAvailable | Signal::ImageFsInodesFree => Self::Image,
            Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree => Self::Container,
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => return None,
        })
    }

    /// As the signals begin.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "nodefs",
            Self::Image => "imagefs",
            Self::Container => "containerfs",
        }
    }
}

/// How much there is of something, and how much of that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// What is left.
    pub left: u64,
    /// All of it.
    pub all: u64,
}

/// A file system as it was read. What could not be read, or is not counted there, is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskReading {
    /// What it is.
    pub role: DiskRole,
    /// Bytes.
    pub bytes: Option<Room>,
    /// Inodes.
    pub inodes: Option<Room>,
    /// When it was asked for, on the monotonic clock.
    pub at: MonotonicNs,
    /// Which disks there are; absent where the container runtime does not say where its own are.
    pub layout: Option<DiskLayout>,
}

impl DiskReading {
    /// What statistics say; nothing where they have no time.
    pub fn of(role: DiskRole, stats: &FsStats, layout: Option<DiskLayout>) -> Option<Self> {
        let FsStats { available, capacity, inodes_free, inodes, time } = *stats;
        let room = |(left, all)| Room { left, all };
        Some(Self {
            role,
            bytes: available.zip(capacity).map(room),
            inodes: inodes_free.zip(inodes).map(room),
            at: MonotonicNs(u64::try_from(time?.0).ok()?),
            layout,
        })
    }

    /// The same as statistics of the node have it.
    pub fn stats(&self) -> FsStats {
        let Self { role: _, bytes, inodes, at, layout: _ } = self;
        FsStats {
            available: bytes.map(|room| room.left),
            capacity: bytes.map(|room| room.all),
            inodes_free: inodes.map(|room| room.left),
            inodes: inodes.map(|room| room.all),
            time: Some(StatsTime(i64::try_from(at.0).unwrap_or(i64::MAX))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_message::{EvictionNumber, EvictionStep, ReceiptOf};
    use crate::pods::PodFacts;
    use crate::removal::RemovalError;
    use crate::storage::{PartUsage, StoragePart};
    use plimsoll_policy::OwnerUid;
    use plimsoll_policy::kubelet::{Condition, Critical};
    use plimsoll_units::Bytes;

    const MOST: Room = Room { left: u64::MAX, all: u64::MAX };

    #[test]
    fn the_longest_message_fits_and_only_a_whole_one_is_read() {
        let pod = PodFacts {
            uid: Uid(u128::MAX),
            priority: i32::MIN,
            critical: Some(Critical::Priority),
            memory_request: Bytes(u64::MAX),
            storage_request: Bytes(u64::MAX),
            storage_limit: Some(Bytes(u64::MAX)),
            grace_seconds: Some(u32::MAX),
            daemon_set: Some(OwnerUid(u128::MAX)),
            started: Some(MonotonicNs(u64::MAX)),
            serves_others: true,
            ends: Some(MonotonicNs(u64::MAX)),
        };
        let pods = [
            PodMessage::Pod(pod),
            PodMessage::Begin,
            PodMessage::Gone(Uid(u128::MAX)),
            PodMessage::Complete,
            PodMessage::Ended(Uid(u128::MAX)),
            PodMessage::NoOthers,
        ];
        let disk = DiskReading {
            role: DiskRole::Container,
            bytes: Some(MOST),
            inodes: Some(MOST),
            at: MonotonicNs(u64::MAX),
            layout: Some(DiskLayout::SplitImageFs),
        };
        let disks = [disk, DiskReading { bytes: None, inodes: None, layout: None, ..disk }];
        let removed = RemovalResult {
            number: u64::MAX,
            containers: u32::MAX,
            sandboxes: u32::MAX,
            images: u32::MAX,
            freed: Bytes(u64::MAX),
            unused: Some(u32::MAX),
            error: Some(RemovalError::Stopped),
        };
        let sources = Source::ALL.map(|source| Message::Source(source, false));
        let layer = Message::Layer(StorageMessage::Part(PartUsage {
            uid: Uid(u128::MAX),
            part: StoragePart::Layer(u32::MAX),
            used: Some((u64::MAX, u64::MAX)),
            begun: MonotonicNs(u64::MAX),
            ended: MonotonicNs(u64::MAX),
        }));
        let recorded = Message::Recorded(Uid(u128::MAX));
        let condition = ConditionState {
            condition: Condition::PidPressure,
            is_true: true,
            since: MonotonicNs(u64::MAX),
            wall_ms: u64::MAX,
            observed: Some(MonotonicNs(u64::MAX)),
        };
        let eviction = ReceiptOf::Eviction(EvictionNumber(u64::MAX), EvictionStep::Verified);
        let receipts = [eviction, ReceiptOf::Condition(condition)].map(|of| Receipt { of, is_durable: true });
        let others = disks
            .map(|disk| Message::Disk(disk, Duration::MAX))
            .into_iter()
            .chain([Message::Removed(removed), layer, recorded, Message::KillSwitch(true)])
            .chain(sources);
        let others = others.chain(receipts.map(Message::Receipt)).chain([Message::Condition(condition)]);
        for message in pods.map(Message::Pod).into_iter().chain(others) {
            let mut buffer = [0; MESSAGE];
            let bytes = message.encode(&mut buffer).to_vec();
            assert_eq!(Message::decode(&bytes), Some(message));
            assert_eq!(Message::decode(&bytes[..bytes.len() - 1]), None, "a part of {message:?}");
            assert_eq!(Message::decode(&[&bytes[..], &[0]].concat()), None, "more than {message:?}");
        }
        assert_eq!(Message::decode(&[255; MESSAGE]), None);
    }

    #[test]
    fn a_reading_has_what_was_read_and_no_zero_for_the_rest() {
        let stats = FsStats {
            available: Some(3),
            capacity: Some(9),
            inodes: Some(5),
            time: Some(StatsTime(7)),
            ..FsStats::default()
        };
        let reading = DiskReading::of(DiskRole::Image, &stats, None).expect("it has a time");
        assert_eq!((reading.bytes, reading.inodes, reading.at), (Some(Room { left: 3, all: 9 }), None, MonotonicNs(7)));
        assert_eq!(
            reading.stats(),
            FsStats { inodes: None, ..stats },
            "five inodes of which no number is free say nothing"
        );
        assert_eq!(DiskReading::of(DiskRole::Image, &FsStats { time: None, ..stats }, None), None);
    }
}
