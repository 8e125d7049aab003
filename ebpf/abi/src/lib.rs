//! The wire format between the kernel programs and the agent, byte by byte.
//!
//! The kernel side writes these structs into ring buffers and maps; the agent reads them back with
//! [`ThresholdRecord::decode`] and [`Event::decode`], which check length and discriminant and need no unsafe code.
//! Layout is asserted at compile time. Nothing here depends on anything, and nothing here touches a map.

#![no_std]
#![forbid(unsafe_code)]

use core::mem::{offset_of, size_of};

/// An amount that the kernel side could not read. Absent is not zero.
pub const ABSENT: u64 = u64::MAX;

/// A member of a kernel struct that this kernel does not have.
pub const NO_OFFSET: u32 = u32::MAX;

/// Slots for slices in the table of thresholds.
pub const SLICES: usize = 16;

/// Slots for marks of the in-kernel brake in the table of thresholds.
pub const BRAKES: usize = 16;

/// The shortest time between two wakes by events of cgroups, in nanoseconds.
pub const CGROUP_WAKE_PACE_NS: u64 = 10_000_000;

/// The largest [`ThresholdRecord::threshold`]: the last slot's index plus one.
pub const LAST_THRESHOLD: u32 = 16;

/// How many pages are charged at once as a rule (`MEMCG_CHARGE_BATCH`, include/linux/memcontrol.h). An attempt may be for
/// more, as for a huge page.
pub const CHARGE_BATCH: u64 = 64;

/// How many cgroups a crossing carries: the charged one, and those above it.
pub const LINEAGE: usize = 9;

/// Slots of the per-CPU counter map.
pub mod counter {
    /// Records that found the threshold ring buffer full.
    pub const LOST_THRESHOLD_EVENTS: u32 = 0;
    /// Records that found the event ring buffer full.
    pub const LOST_EVENTS: u32 = 1;
    /// Processes stopped by the in-kernel brake.
    pub const BRAKES_APPLIED: u32 = 2;
    /// Brakes left out because their undo record could not be written.
    pub const BRAKES_REFUSED: u32 = 3;
    /// Signals to processes that went on although the brake had stopped them.
    pub const BRAKES_REPEATED: u32 = 4;
    /// How many slots there are.
    pub const COUNT: u32 = 5;
}

/// A slice's threshold. Levels are pages.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SliceSlot {
    /// The armed generation; zero while disarmed. The kernel side takes it by exchange.
    pub generation: u64,
    /// Submit an event at or above this many charged pages.
    pub usage: u64,
    /// The slice's cgroup id.
    pub cgroup: u64,
    /// How many levels the slice is below the root cgroup.
    pub level: u64,
}

/// Everything the threshold programs compare with: one mapped page that the agent writes word by word.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ThresholdTable {
    /// The armed generation of the node's threshold; zero while disarmed.
    pub node_generation: u64,
    /// Submit an event below this many pages by the kubelet's reading, the drift counted in.
    pub node_kubelet: u64,
    /// Submit an event below this many pages by `MemAvailable`, the drift counted in.
    pub node_mem_available: u64,
    /// `MemTotal` in pages.
    pub total: u64,
    /// Pages that the kernel keeps for itself.
    pub reserve: u64,
    /// The sum of all low watermarks in pages.
    pub low_watermark: u64,
    /// The armed generation of "reclaim began".
    pub reclaim_generation: u64,
    /// The armed generation of the threshold of tasks.
    pub task_generation: u64,
    /// Submit an event at or above this many tasks.
    pub task_count: u64,
    /// How many of the slots are in use, from the first on.
    pub slice_count: u64,
    /// How many of the marks are in use, from the first on; zero: no brake.
    pub brake_count: u64,
    /// Until when the marks hold, in nanoseconds of the monotonic clock: afterwards the brake stops nothing. The agent
    /// renews it for as long as it runs.
    pub brake_until: u64,
    /// Not zero once the program at the charge hook ran. The agent clears it to see whether it still runs.
    pub charge_ran: u64,
    /// Changes whenever a level does: what CPUs may charge without a comparison, by what was found before, has ended.
    pub arming: u64,
    /// Below this many pages by the kubelet's reading every charge is compared, for the node's threshold or the marks.
    pub near_kubelet: u64,
    /// The same by `MemAvailable`.
    pub near_mem_available: u64,
    /// The slices' thresholds.
    pub slices: [SliceSlot; SLICES],
    /// The slices that are marked for the brake.
    pub brakes: [BrakeSlot; BRAKES],
}

/// A slice marked for the brake.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BrakeSlot {
    /// The slice's cgroup id.
    pub cgroup: u64,
    /// How many levels the slice is below the root cgroup.
    pub level: u64,
    /// Stop below this many pages by the kubelet's reading; zero: not by this one.
    pub kubelet: u64,
    /// Stop below this many pages by `MemAvailable`; zero: not by this one.
    pub mem_available: u64,
}

/// What undoes a stop, by process id: written before the signal is sent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StoppedSlot {
    /// When the process started, in nanoseconds since boot, which distinguishes it from a later one with the same id.
    pub start_ns: u64,
    /// The marked slice.
    pub slice: u64,
    /// When it was stopped, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
}

/// What a cgroup's tasks waited for memory within a window, by cgroup id.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StallSlot {
    /// When the window began, in nanoseconds of the monotonic clock.
    pub window_at: u64,
    /// In this window, in nanoseconds.
    pub window_ns: u64,
    /// Whether an event was submitted for this window.
    pub trigger: u64,
}

/// A crossed threshold, on the threshold ring buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThresholdRecord {
    /// [`kind::THRESHOLD`].
    pub kind: u32,
    /// 0 for the node, the slot's index plus one for a slice.
    pub threshold: u32,
    /// The generation that this answers.
    pub generation: u64,
    /// When, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Available pages by the kubelet's reading.
    pub kubelet: u64,
    /// Available pages by `MemAvailable`.
    pub mem_available: u64,
    /// The slice's charged pages, [`ABSENT`] for the node.
    pub usage: u64,
    /// The charged cgroup, then its ancestors, itself included, from level 1 below the root on. Where memory is reclaimed
    /// and nothing is charged, those of the running task, if it is the task that allocates. Zero beyond the last one, and
    /// throughout where neither is known. On kernels whose cgroups do not list their ancestors (before Linux 6.1), those
    /// of a cgroup that the running task is not in are its parent, the parent of that, and so on.
    pub lineage: [u64; LINEAGE],
    /// The running thread.
    pub pid: u32,
    /// Its process.
    pub tgid: u32,
}

/// Reclaim began.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimRecord {
    /// [`kind::RECLAIM`].
    pub kind: u32,
    /// One of [`reclaimer`].
    pub by: u32,
    /// When, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The memory node, [`ABSENT`] where unknown.
    pub node: u64,
}

/// A cgroup's stall burst.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallRecord {
    /// [`kind::STALL`].
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// When, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The cgroup.
    pub cgroup: u64,
    /// Nanoseconds stalled in the window.
    pub stalled_ns: u64,
}

/// An OOM kill.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomRecord {
    /// [`kind::OOM`].
    pub kind: u32,
    /// One of [`scope`].
    pub scope: u32,
    /// When, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The victim's process id, or [`ABSENT`].
    pub victim: u64,
    /// The victim's cgroup, or [`ABSENT`].
    pub cgroup: u64,
    /// Mapped pages, or [`ABSENT`].
    pub mapped: u64,
    /// Resident pages, or [`ABSENT`].
    pub resident: u64,
    /// The memory cgroup whose limit was reached, [`ABSENT`] where none was or it is not known.
    pub limit: u64,
    /// The victim's command name, ended by a zero byte unless it is as long as this; zero where it is not known.
    pub name: [u64; 2],
    /// The victim's memory cgroup, then its ancestors, as in [`ThresholdRecord::lineage`].
    pub lineage: [u64; LINEAGE],
}

/// The threshold of tasks was crossed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRecord {
    /// [`kind::TASKS`].
    pub kind: u32,
    /// Tasks now.
    pub count: u32,
    /// The generation that this answers.
    pub generation: u64,
    /// When, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The forking process.
    pub tgid: u64,
    /// Its cgroup.
    pub cgroup: u64,
}

/// A cgroup came, went, filled or emptied.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupRecord {
    /// [`kind::CGROUP`].
    pub kind: u32,
    /// One of [`change`].
    pub change: u32,
    /// When, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Which.
    pub id: u64,
}

/// The in-kernel brake stopped a process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoppedRecord {
    /// [`kind::STOPPED`].
    pub kind: u32,
    /// The process.
    pub tgid: u32,
    /// When, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The marked slice.
    pub slice: u64,
}

/// The bare wake that the benchmarks measure the real one against.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BareRecord {
    /// [`kind::BARE`].
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// When, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
}

/// A packet socket with ring buffers, which are charged to no cgroup, and a process that has it open.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRingRecord {
    /// [`kind::PACKET_RING`].
    pub kind: u32,
    /// The process.
    pub tgid: u32,
    /// What distinguishes the socket: several descriptors may be of the same one.
    pub socket: u64,
    /// Both rings, in pages.
    pub pages: u64,
}

/// The first word of every record.
pub mod kind {
    /// [`ThresholdRecord`](super::ThresholdRecord)
    pub const THRESHOLD: u32 = 1;
    /// [`ReclaimRecord`](super::ReclaimRecord)
    pub const RECLAIM: u32 = 2;
    /// [`StallRecord`](super::StallRecord)
    pub const STALL: u32 = 3;
    /// [`OomRecord`](super::OomRecord)
    pub const OOM: u32 = 4;
    /// [`TaskRecord`](super::TaskRecord)
    pub const TASKS: u32 = 5;
    /// [`CgroupRecord`](super::CgroupRecord)
    pub const CGROUP: u32 = 6;
    /// [`StoppedRecord`](super::StoppedRecord)
    pub const STOPPED: u32 = 7;
    /// [`BareRecord`](super::BareRecord)
    pub const BARE: u32 = 8;
    /// [`PacketRingRecord`](super::PacketRingRecord)
    pub const PACKET_RING: u32 = 9;
}

/// The context that reclaims.
pub mod reclaimer {
    /// kswapd was woken.
    pub const KSWAPD: u32 = 0;
    /// The allocating task.
    pub const DIRECT: u32 = 1;
}

/// Where an OOM kill's shortage was.
pub mod scope {
    /// The machine.
    pub const GLOBAL: u32 = 0;
    /// A memory cgroup.
    pub const CGROUP: u32 = 1;
    /// A cpuset.
    pub const CPUSET: u32 = 2;
    /// A memory policy's nodes.
    pub const NUMA_NODE: u32 = 3;
}

/// What happened to a cgroup.
pub mod change {
    /// Made.
    pub const CREATED: u32 = 0;
    /// Removed.
    pub const REMOVED: u32 = 1;
    /// The last task left.
    pub const EMPTIED: u32 = 2;
    /// The first task came.
    pub const POPULATED: u32 = 3;
}

const _: () = {
    assert!(LAST_THRESHOLD as usize == SLICES);
    assert!(size_of::<SliceSlot>() == 32);
    assert!(size_of::<ThresholdTable>() == 8 * 16 + 32 * SLICES + 32 * BRAKES);
    assert!(size_of::<ThresholdTable>() <= 4096, "the table is mapped as one page");
    assert!(offset_of!(ThresholdTable, reclaim_generation) == 48);
    assert!(offset_of!(ThresholdTable, brake_count) == 80);
    assert!(offset_of!(ThresholdTable, slices) == 128);
    assert!(size_of::<BrakeSlot>() == 32);
    assert!(size_of::<StoppedSlot>() == 24);
    assert!(size_of::<StallSlot>() == 24);
    assert!(size_of::<ThresholdRecord>() == 128);
    assert!(offset_of!(ThresholdRecord, lineage) == 48);
    assert!(offset_of!(ThresholdRecord, tgid) == 124);
    assert!(size_of::<ReclaimRecord>() == 24);
    assert!(size_of::<StallRecord>() == 32);
    assert!(size_of::<OomRecord>() == 144);
    assert!(size_of::<TaskRecord>() == 40);
    assert!(size_of::<CgroupRecord>() == 24);
    assert!(size_of::<StoppedRecord>() == 24);
    assert!(size_of::<BareRecord>() == 16);
    assert!(size_of::<PacketRingRecord>() == 24);
};

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Not as long as its kind is.
    Length {
        /// The kind that the first word names.
        kind: u32,
        /// How long it is.
        length: usize,
    },
    /// A kind that this ring buffer does not carry, or too short to name one.
    Kind(u32),
    /// A discriminant within the record is none of the known ones.
    Discriminant {
        /// The record's kind.
        kind: u32,
        /// What was found.
        value: u32,
    },
}

impl core::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Length { kind, length } => write!(f, "a record of kind {kind} with {length} bytes"),
            Self::Kind(kind) => write!(f, "a record of unknown kind {kind}"),
            Self::Discriminant { kind, value } => {
                write!(f, "a record of kind {kind} with unknown discriminant {value}")
            }
        }
    }
}

impl core::error::Error for DecodeError {}

/// Takes words off the front of a record whose length was checked.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn u32(&mut self) -> u32 {
        self.0.split_first_chunk().map_or(0, |(word, rest)| {
            self.0 = rest;
            u32::from_ne_bytes(*word)
        })
    }

    fn u64(&mut self) -> u64 {
        self.0.split_first_chunk().map_or(0, |(word, rest)| {
            self.0 = rest;
            u64::from_ne_bytes(*word)
        })
    }
}

fn kind_of(bytes: &[u8]) -> u32 {
    Words(bytes).u32()
}

fn words(bytes: &[u8], kind: u32, size: usize) -> Result<Words<'_>, DecodeError> {
    if bytes.len() == size { Ok(Words(bytes)) } else { Err(DecodeError::Length { kind, length: bytes.len() }) }
}

fn checked(kind: u32, value: u32, largest: u32) -> Result<u32, DecodeError> {
    if value <= largest { Ok(value) } else { Err(DecodeError::Discriminant { kind, value }) }
}

impl ThresholdRecord {
    /// Reads a record of the threshold ring buffer.
    ///
    /// # Errors
    /// Bytes of another kind or length, or a threshold that does not exist.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let kind = kind_of(bytes);
        if kind != kind::THRESHOLD {
            return Err(DecodeError::Kind(kind));
        }
        let mut words = words(bytes, kind, size_of::<Self>())?;
        let record = Self {
            kind: words.u32(),
            threshold: words.u32(),
            generation: words.u64(),
            at_ns: words.u64(),
            kubelet: words.u64(),
            mem_available: words.u64(),
            usage: words.u64(),
            lineage: core::array::from_fn(|_| words.u64()),
            pid: words.u32(),
            tgid: words.u32(),
        };
        checked(kind, record.threshold, LAST_THRESHOLD)?;
        Ok(record)
    }
}

impl BareRecord {
    /// Reads a record of the bare ring buffer.
    ///
    /// # Errors
    /// Bytes of another kind or length.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let kind = kind_of(bytes);
        if kind != kind::BARE {
            return Err(DecodeError::Kind(kind));
        }
        let mut words = words(bytes, kind, size_of::<Self>())?;
        Ok(Self { kind: words.u32(), reserved: words.u32(), at_ns: words.u64() })
    }
}

impl PacketRingRecord {
    /// Reads a record that the iterator has written.
    ///
    /// # Errors
    /// Bytes of another kind or length.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let kind = kind_of(bytes);
        if kind != kind::PACKET_RING {
            return Err(DecodeError::Kind(kind));
        }
        let mut words = words(bytes, kind, size_of::<Self>())?;
        Ok(Self { kind: words.u32(), tgid: words.u32(), socket: words.u64(), pages: words.u64() })
    }
}

/// A record of the event ring buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Reclaim began.
    Reclaim(ReclaimRecord),
    /// A stall burst.
    Stall(StallRecord),
    /// An OOM kill.
    Oom(OomRecord),
    /// The threshold of tasks was crossed.
    Tasks(TaskRecord),
    /// A cgroup changed.
    Cgroup(CgroupRecord),
    /// The in-kernel brake stopped a process.
    Stopped(StoppedRecord),
}

impl Event {
    /// Reads a record of the event ring buffer.
    ///
    /// # Errors
    /// A kind that this ring buffer does not carry, a length that is not the kind's, or an unknown discriminant.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let kind = kind_of(bytes);
        match kind {
            kind::RECLAIM => {
                let mut words = words(bytes, kind, size_of::<ReclaimRecord>())?;
                Ok(Self::Reclaim(ReclaimRecord {
                    kind: words.u32(),
                    by: checked(kind, words.u32(), reclaimer::DIRECT)?,
                    at_ns: words.u64(),
                    node: words.u64(),
                }))
            }
            kind::STALL => {
                let mut words = words(bytes, kind, size_of::<StallRecord>())?;
                Ok(Self::Stall(StallRecord {
                    kind: words.u32(),
                    reserved: words.u32(),
                    at_ns: words.u64(),
                    cgroup: words.u64(),
                    stalled_ns: words.u64(),
                }))
            }
            kind::OOM => {
                let mut words = words(bytes, kind, size_of::<OomRecord>())?;
                Ok(Self::Oom(OomRecord {
                    kind: words.u32(),
                    scope: checked(kind, words.u32(), scope::NUMA_NODE)?,
                    at_ns: words.u64(),
                    victim: words.u64(),
                    cgroup: words.u64(),
                    mapped: words.u64(),
                    resident: words.u64(),
                    limit: words.u64(),
                    name: [words.u64(), words.u64()],
                    lineage: core::array::from_fn(|_| words.u64()),
                }))
            }
            kind::TASKS => {
                let mut words = words(bytes, kind, size_of::<TaskRecord>())?;
                Ok(Self::Tasks(TaskRecord {
                    kind: words.u32(),
                    count: words.u32(),
                    generation: words.u64(),
                    at_ns: words.u64(),
                    tgid: words.u64(),
                    cgroup: words.u64(),
                }))
            }
            kind::CGROUP => {
                let mut words = words(bytes, kind, size_of::<CgroupRecord>())?;
                Ok(Self::Cgroup(CgroupRecord {
                    kind: words.u32(),
                    change: checked(kind, words.u32(), change::POPULATED)?,
                    at_ns: words.u64(),
                    id: words.u64(),
                }))
            }
            kind::STOPPED => {
                let mut words = words(bytes, kind, size_of::<StoppedRecord>())?;
                Ok(Self::Stopped(StoppedRecord {
                    kind: words.u32(),
                    tgid: words.u32(),
                    at_ns: words.u64(),
                    slice: words.u64(),
                }))
            }
            unknown => Err(DecodeError::Kind(unknown)),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    /// Bytes as the kernel side writes them: two words of 32 bits, then words of 64 bits.
    fn bytes(kind: u32, second: u32, rest: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(kind.to_ne_bytes());
        out.extend(second.to_ne_bytes());
        out.extend(rest.iter().flat_map(|word| word.to_ne_bytes()));
        out
    }

    #[test]
    fn a_threshold_record_reads_back_field_by_field() {
        let last = u64::from_ne_bytes({
            let mut pair = [0; 8];
            pair[..4].copy_from_slice(&14_u32.to_ne_bytes());
            pair[4..].copy_from_slice(&15_u32.to_ne_bytes());
            pair
        });
        let lineage = [7, 8, 9, 10, 11, 12, 13, 14, 15];
        let words = [&[2, 3, 4, 5, ABSENT][..], &lineage, &[last]].concat();
        let record = ThresholdRecord::decode(&bytes(kind::THRESHOLD, 16, &words)).expect("a threshold");
        assert_eq!(
            record,
            ThresholdRecord {
                kind: kind::THRESHOLD,
                threshold: 16,
                generation: 2,
                at_ns: 3,
                kubelet: 4,
                mem_available: 5,
                usage: ABSENT,
                lineage,
                pid: 14,
                tgid: 15,
            }
        );
    }

    #[test]
    fn events_read_back_field_by_field() {
        for (bytes, event) in [
            (
                bytes(kind::RECLAIM, reclaimer::DIRECT, &[7, ABSENT]),
                Event::Reclaim(ReclaimRecord { kind: kind::RECLAIM, by: reclaimer::DIRECT, at_ns: 7, node: ABSENT }),
            ),
            (
                bytes(kind::STALL, 0, &[7, 8, 9]),
                Event::Stall(StallRecord { kind: kind::STALL, reserved: 0, at_ns: 7, cgroup: 8, stalled_ns: 9 }),
            ),
            (
                bytes(kind::OOM, scope::CGROUP, &[7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]),
                Event::Oom(OomRecord {
                    kind: kind::OOM,
                    scope: scope::CGROUP,
                    at_ns: 7,
                    victim: 8,
                    cgroup: 9,
                    mapped: 10,
                    resident: 11,
                    limit: 12,
                    name: [13, 14],
                    lineage: [15, 16, 17, 18, 19, 20, 21, 22, 23],
                }),
            ),
            (
                bytes(kind::TASKS, 6, &[7, 8, 9, 10]),
                Event::Tasks(TaskRecord { kind: kind::TASKS, count: 6, generation: 7, at_ns: 8, tgid: 9, cgroup: 10 }),
            ),
            (
                bytes(kind::CGROUP, change::POPULATED, &[7, 8]),
                Event::Cgroup(CgroupRecord { kind: kind::CGROUP, change: change::POPULATED, at_ns: 7, id: 8 }),
            ),
            (
                bytes(kind::STOPPED, 6, &[7, 8]),
                Event::Stopped(StoppedRecord { kind: kind::STOPPED, tgid: 6, at_ns: 7, slice: 8 }),
            ),
        ] {
            assert_eq!(Event::decode(&bytes), Ok(event));
        }
    }

    #[test]
    fn wrong_kinds_lengths_and_discriminants_are_refused() {
        let length = |kind, length| DecodeError::Length { kind, length };
        let discriminant = |kind, value| DecodeError::Discriminant { kind, value };
        for (bytes, error) in [
            (Vec::new(), DecodeError::Kind(0)),
            (std::vec![1, 0, 0], DecodeError::Kind(0)),
            (bytes(kind::THRESHOLD, 0, &[0; 15]), DecodeError::Kind(kind::THRESHOLD)),
            (bytes(99, 0, &[]), DecodeError::Kind(99)),
            (bytes(kind::CGROUP, 0, &[1]), length(kind::CGROUP, 16)),
            (bytes(kind::CGROUP, 0, &[1, 2, 3]), length(kind::CGROUP, 32)),
            (bytes(kind::CGROUP, 4, &[1, 2]), discriminant(kind::CGROUP, 4)),
            (bytes(kind::OOM, 4, &[1; 17]), discriminant(kind::OOM, 4)),
            (bytes(kind::RECLAIM, 2, &[1; 2]), discriminant(kind::RECLAIM, 2)),
        ] {
            assert_eq!(Event::decode(&bytes), Err(error), "{bytes:?}");
        }
        assert_eq!(ThresholdRecord::decode(&bytes(kind::THRESHOLD, 0, &[0; 12])), Err(length(kind::THRESHOLD, 104)));
        assert_eq!(
            ThresholdRecord::decode(&bytes(kind::THRESHOLD, 17, &[0; 15])),
            Err(discriminant(kind::THRESHOLD, 17))
        );
        assert_eq!(ThresholdRecord::decode(&bytes(kind::STALL, 0, &[0; 3])), Err(DecodeError::Kind(kind::STALL)));
        assert_eq!(BareRecord::decode(&bytes(kind::BARE, 0, &[])), Err(length(kind::BARE, 8)));
        assert_eq!(PacketRingRecord::decode(&bytes(kind::BARE, 0, &[1, 2])), Err(DecodeError::Kind(kind::BARE)));
        assert_eq!(PacketRingRecord::decode(&bytes(kind::PACKET_RING, 7, &[8, 9])), {
            Ok(PacketRingRecord { kind: kind::PACKET_RING, tgid: 7, socket: 8, pages: 9 })
        });
    }
}
