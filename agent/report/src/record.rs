//! What the core reports: typed records by domain, one a frame, encoded in place without allocating.
//!
//! Two queues carry them. The watching thread writes what it observed, decided and did into the first; the inventory
//! thread, which may open files and allocate, writes the state of the machine and of the source into the second. A
//! record is complete in itself, except for a plan and an observation, which are sent in parts from `Begin` to `End`.

mod container;
mod disk;
mod enforcement;
mod health;
mod machine;
mod observation;
mod plan;
mod readings;
mod startup;
mod threshold;

pub use container::{ContainerRecord, REPORTED_CONTAINERS};
pub use disk::{DISKS, DiskCause, DiskRecord, Judged};
pub use enforcement::{Braked, EnforcementRecord, Held, HoldEnd, Killed, Refused};
pub use health::{HealthRecord, Tampered};
pub use machine::{MachineRecord, OomScope};
pub use observation::{ObservationRecord, ObservedPod, ObservedTasks};
pub use plan::{Cause, PlanRecord};
pub use readings::ReadingsRecord;
pub use startup::{StartParts, StartupRecord};
pub use threshold::ThresholdRecord;

use plimsoll_state::queue::{FRAME, Producer};
use serde::{Deserialize, Serialize};

/// The longest path in a record, in bytes; of a longer one the end is kept, which names the workload.
pub const PATH: usize = 320;

/// The end of `path` that fits a record.
pub fn fitting(path: &[u8]) -> &[u8] {
    &path[path.len().saturating_sub(PATH)..]
}

/// Declares the record of all domains, and how the record of each domain is sent.
macro_rules! records {
    ($($(#[$attribute:meta])* $domain:ident($record:ty),)*) => {
        /// A record of one of the domains.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Record<'a> {
            $($(#[$attribute])* $domain($record),)*
        }

        $(
            impl<'a> From<$record> for Record<'a> {
                fn from(record: $record) -> Self {
                    Self::$domain(record)
                }
            }

            impl<'a> $record {
                /// Writes it into a queue. False: it was dropped, and the queue counts that.
                pub fn send(&self, queue: &mut Producer) -> bool {
                    Record::$domain(*self).send(queue)
                }
            }
        )*
    };
}

records! {
    /// How the core started.
    #[serde(borrow)]
    Startup(StartupRecord<'a>),
    /// What the next plan is decided on; only where a trace is written.
    #[serde(borrow)]
    Observation(ObservationRecord<'a>),
    /// What was decided.
    #[serde(borrow)]
    Plan(PlanRecord<'a>),
    /// What the signals read.
    Readings(ReadingsRecord),
    /// A threshold was crossed, or memory is back.
    Threshold(ThresholdRecord),
    /// What is left on disks against its thresholds, and what follows.
    #[serde(borrow)]
    Disk(DiskRecord<'a>),
    /// What was done to a cgroup or a process.
    #[serde(borrow)]
    Enforcement(EnforcementRecord<'a>),
    /// What the kernel did, or another process holds.
    #[serde(borrow)]
    Machine(MachineRecord<'a>),
    /// Figures of containers, and which memory.high throttles.
    #[serde(borrow)]
    Container(ContainerRecord<'a>),
    /// How the core and its source fare.
    #[serde(borrow)]
    Health(HealthRecord<'a>),
}

impl<'a> Record<'a> {
    /// Writes it into a queue. False: it was dropped, and the queue counts that.
    pub fn send(&self, queue: &mut Producer) -> bool {
        let mut frame = [0; FRAME];
        // What does not fit is pushed as too long, so that it is counted with the dropped ones.
        match postcard::to_slice(self, &mut frame) {
            Ok(bytes) => queue.push(bytes),
            Err(_) => queue.push(&[0; FRAME + 1]),
        }
    }

    /// Reads one from a frame. `None` for what is no record of this version.
    pub fn read(frame: &'a [u8]) -> Option<Self> {
        postcard::from_bytes(frame).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use plimsoll_inventory::{ContainerFigures, DiskReading, DiskRole, Room, Stall};
    use plimsoll_policy::kubelet::{
        Amount, Conditions, DiskLayout, FsStats, Limit, MemoryStats, NodeStats, PidStats, QosClass, Readings, Signal,
        StatsTime,
    };
    use plimsoll_policy::{
        Attribution, Case, Deficit, Growth, Key, MemoryReading, NoVictim, Outcome, Owner, OwnerUid, Protected, Ranked,
        ReclaimOrder, Reclaimed, Scope, SliceId, Stage, Terminating, ThresholdStatus, Uid, Verdict, Why,
    };
    use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

    const POD: ObservedPod = ObservedPod {
        uid: Uid(u128::MAX),
        qos: QosClass::Guaranteed,
        protected: Some(Protected::Unknown),
        grace_seconds: Some(i64::MIN),
        daemon_set: Some(OwnerUid(u128::MAX)),
    };

    const FIGURES: ContainerFigures = ContainerFigures {
        working_set: Some(Bytes(u64::MAX)),
        rate: Some(i64::MIN),
        distance: Some(Bytes(u64::MAX)),
        forecast: Some(Duration::MAX),
        stall: Some(Stall { waited: Duration::MAX, within: Duration::MAX }),
        is_throttled: true,
        swapped: Some(Bytes(u64::MAX)),
        swap_limit: Some(Bytes(u64::MAX)),
        zswap: Some(Bytes(u64::MAX)),
        tasks: Some(u64::MAX),
        task_limit: Some(u64::MAX),
    };

    const READING: DiskReading = DiskReading {
        role: DiskRole::Container,
        bytes: Some(Room { left: u64::MAX, all: u64::MAX }),
        inodes: Some(Room { left: u64::MAX, all: u64::MAX }),
        at: MonotonicNs(u64::MAX),
        layout: Some(DiskLayout::SplitImageFs),
    };

    const JUDGED: Judged = Judged {
        figures: [Some(READING); 3],
        layout: Some(DiskLayout::SplitImageFs),
        unused: u16::MAX,
        reclaimed: Some(Reclaimed { order: u64::MAX, at: StatsTime(i64::MIN) }),
        outcome: Outcome::NoVictim(NoVictim::NothingToFree),
        has_pressure: true,
        reclaim: Some(ReclaimOrder { order: u64::MAX, stage: Stage::Containers, why: Why::Threshold(u32::MAX) }),
    };

    const FS: FsStats = FsStats {
        available: Some(1 << 63),
        capacity: Some(1 << 63),
        inodes_free: Some(1 << 63),
        inodes: Some(1 << 63),
        time: Some(StatsTime(i64::MIN)),
    };

    const MEMORY: MemoryStats =
        MemoryStats { available: Some(1 << 63), working_set: Some(0), time: Some(StatsTime(i64::MIN)) };

    /// Each signal reads the number that takes most room.
    const NODE: NodeStats = NodeStats {
        memory: Some(MEMORY),
        pods: Some(MEMORY),
        node_fs: Some(FS),
        image_fs: Some(FS),
        container_fs: Some(FS),
        pids: Some(PidStats { max: Some(i64::MIN), running: Some(0), time: Some(StatsTime(i64::MIN)) }),
    };

    const ATTRIBUTION: Attribution = Attribution {
        fallen: Bytes(u64::MAX),
        left_behind: Bytes(u64::MAX),
        evictable_grew: Bytes(u64::MAX),
        protected_grew: Bytes(u64::MAX),
    };

    #[test]
    fn the_largest_records_fit_a_frame_and_are_read_back() {
        let path = [b'x'; PATH];
        let most = Amount::nanos(i128::MAX);
        let status = ThresholdStatus {
            why: Why::Limit(Limit::Container(u32::MAX)),
            at: most,
            target: most,
            available: most,
            case: Case::MemAvailableOnly,
            since: Some(MonotonicNs(u64::MAX)),
            is_met: true,
        };
        let ranked = Ranked {
            workload: u32::MAX,
            key: Key { slot: u32::MAX, id: CgroupId(u64::MAX) },
            uid: Uid(u128::MAX),
            owner: Some(CgroupId(u64::MAX)),
            qos: QosClass::Guaranteed,
            is_measured: true,
            request: Some(most),
            exceeds: true,
            priority: i32::MIN,
            usage: most,
            over: most,
            frees: most,
            started: MonotonicNs(u64::MAX),
            growth: Growth { own: Some(Bytes(u64::MAX)), owner: Some(Bytes(u64::MAX)), is_large: true },
            grew: true,
            returns: u32::MAX,
            verdict: Verdict::Looping(MonotonicNs(u64::MAX)),
        };
        let plan = PlanRecord::Begin {
            number: u64::MAX,
            cause: Cause::FollowUp,
            crossed: Some(MonotonicNs(u64::MAX)),
            awake: MonotonicNs(u64::MAX),
            shadow: true,
            scope: Scope::Slice(SliceId(u8::MAX)),
            taken: MonotonicNs(u64::MAX),
            made: MonotonicNs(u64::MAX),
            outcome: Outcome::Evict,
            memory: Some(MemoryReading {
                capacity: Bytes(u64::MAX),
                kubelet_available: Bytes(u64::MAX),
                mem_available: Some(Bytes(u64::MAX)),
            }),
            conditions: Conditions::default(),
            of_node: Conditions::default(),
            deficit: Some(Deficit { missing: most, expected: most, coming: most, taken: most }),
            is_futile: true,
            attribution: Some(ATTRIBUTION),
            overlooked: u32::MAX,
            recheck_at: Some(MonotonicNs(u64::MAX)),
        };
        let observed = ObservationRecord::Workload {
            id: CgroupId(u64::MAX),
            owner: Some(Owner { id: CgroupId(u64::MAX), request: Bytes(u64::MAX) }),
            usage: Some(Bytes(u64::MAX)),
            settled: Some(Bytes(u64::MAX)),
            tasks: Some(u64::MAX),
            reservation: Bytes(u64::MAX),
            priority: i32::MIN,
            started: MonotonicNs(u64::MAX),
            terminating: Some(Terminating {
                is_stuck: true,
                is_refused: true,
                is_graceful: true,
                until: Some(MonotonicNs(u64::MAX)),
            }),
            returns_at_most: Some(Bytes(u64::MAX)),
            empty: true,
            grows_while_frozen: true,
            pod: Some(POD),
            path: &path,
        };
        let kill = EnforcementRecord::Kill {
            plan: u64::MAX,
            path: &path,
            usage: Some(Bytes(u64::MAX)),
            at: MonotonicNs(u64::MAX),
            what: Killed::Emptied(Duration::MAX, Some(Bytes(u64::MAX))),
        };
        let (at, high) = (MonotonicNs(u64::MAX), Some(Bytes(u64::MAX)));
        let readings = Readings::of(&NODE);
        for record in [
            Record::from(plan),
            ContainerRecord::Throttled { path: &path, at, high, figures: FIGURES }.into(),
            observed.into(),
            PlanRecord::Threshold { status, acting: true }.into(),
            DiskRecord::Threshold { signal: Signal::PidAvailable, grace: Duration::MAX, status }.into(),
            DiskRecord::Judged { judged: JUDGED, at }.into(),
            ReadingsRecord { readings, costs: [Some(Duration::MAX); Signal::ALL.len()] }.into(),
            PlanRecord::Ranked { ranked, path: &path }.into(),
            kill.into(),
        ] {
            let mut frame = [0; FRAME];
            let bytes = postcard::to_slice(&record, &mut frame).expect("it fits");
            assert_eq!(Record::read(bytes), Some(record));
        }
    }

    #[test]
    fn the_end_of_a_long_path_is_kept() {
        let mut path = vec![b'a'; PATH];
        path.extend_from_slice(b"/end");
        assert_eq!(fitting(&path).len(), PATH);
        assert!(fitting(&path).ends_with(b"/end"));
        assert_eq!(fitting(b"short"), b"short");
    }

    #[test]
    fn bytes_that_are_no_record_give_none() {
        assert_eq!(Record::read(&[]), None);
        assert_eq!(Record::read(&[255; 64]), None);
    }
}
