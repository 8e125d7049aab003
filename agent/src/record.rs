//! What the core tells the reporter: typed records, one a frame, encoded in place without allocating.
//!
//! Two queues carry them. The watching thread writes what it did and why into the first; the inventory thread, which
//! may open files and allocate, writes how the machine and the source fare into the second. A record is complete in
//! itself, except for a plan, which is told in parts between [`Record::Plan`] and [`Record::PlanEnd`].

use core::time::Duration;

use plimsoll_policy::kubelet::Conditions;
use plimsoll_policy::{
    Action, Attribution, Deficit, MemoryReading, Outcome, Owner, Ranked, Reclaimed, Scope, Stall, Terminating,
    ThresholdStatus,
};
use plimsoll_state::queue::{FRAME, Producer};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde::{Deserialize, Serialize};

/// The longest path in a record; of a longer one its end is told, which names the workload.
pub(crate) const PATH: usize = 320;

/// Why the core looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Cause {
    /// The kernel rang: a threshold was crossed.
    Line,
    /// Reclaim began.
    Reclaim,
    /// The pressure trigger fired.
    Psi,
    /// The poll's period was over.
    Poll,
    /// The slow timer, which looks whether or not anything rang.
    Timer,
    /// Something that was done is over, or a time that was set has come.
    FollowUp,
}

/// Where memory was short when the OOM killer chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum OomScope {
    /// On the whole machine: a race that was lost.
    Global,
    /// In a cgroup, at its own limit.
    Cgroup,
    /// On the memory nodes of a cpuset.
    Cpuset,
    /// On the memory nodes of a task's policy.
    NumaNode,
}

/// How long the start took, part by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartParts {
    /// Reading and checking the configuration.
    pub(crate) configuration: Duration,
    /// Undoing what an earlier process left.
    pub(crate) undo: Duration,
    /// Starting the source: for eBPF, reading types, loading and attaching.
    pub(crate) source: Duration,
    /// Finding and opening the workloads.
    pub(crate) workloads: Duration,
    /// Locking memory and raising the priority.
    pub(crate) lock: Duration,
    /// All of it, until the first thresholds were armed.
    pub(crate) armed: Duration,
}

/// One thing to tell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Record<'a> {
    // Of the watching thread.
    /// A plan begins; its parts follow, then [`Record::PlanEnd`].
    Plan {
        /// Counts up from 1.
        number: u64,
        /// Why the core looked.
        cause: Cause,
        /// When the kernel saw the crossing, if that woke the core.
        crossed: Option<MonotonicNs>,
        /// When the core was awake.
        awake: MonotonicNs,
        /// The plan is only told, not carried out: another agent acts, or this machine can only be watched.
        shadow: bool,
        /// What it is about.
        scope: Scope,
        /// When its observation was taken.
        taken: MonotonicNs,
        /// When it was made.
        made: MonotonicNs,
        /// In one word.
        outcome: Outcome,
        /// What was read.
        memory: Option<MemoryReading>,
        /// Conditions to report.
        conditions: Conditions,
        /// What is missing.
        deficit: Option<Deficit>,
        /// Evicting does not help.
        is_futile: bool,
        /// Who grew.
        attribution: Option<Attribution>,
        /// Candidates for which there was no room.
        overlooked: u32,
        /// When it decides again even without an event.
        recheck_at: Option<MonotonicNs>,
    },
    /// A threshold of the plan.
    PlanThreshold {
        /// How it stands.
        status: ThresholdStatus,
        /// The outcome is about this one.
        acting: bool,
    },
    /// A candidate of the plan: all who are acted on, and the next few in order.
    PlanRanked {
        /// With the keys that ranked it.
        ranked: Ranked,
        /// Its cgroup's path below the root.
        path: &'a [u8],
    },
    /// A thing to do; workloads by the index that their `PlanRanked` carries.
    PlanAction(Action),
    /// The plan is complete.
    PlanEnd,
    /// What is decided on next; its parts follow, then [`Record::ObservedEnd`]. Only where a trace is written.
    Observed {
        /// When it was taken.
        taken: MonotonicNs,
        /// When it is decided on.
        made: MonotonicNs,
        /// Memory of the machine, with the huge page pool.
        memory: MemoryReading,
        /// The huge page pool.
        huge_page_pool: Bytes,
        /// Stall; absent if the kernel does not say.
        stall: Option<Stall>,
    },
    /// Memory of a slice of the observation.
    ObservedSlice {
        /// Its index in the configuration.
        index: u8,
        /// What was read.
        memory: MemoryReading,
    },
    /// The last reclaim of a scope that ended before the observation.
    ObservedReclaim {
        /// The scope.
        scope: Scope,
        /// Which, and when it ended.
        reclaimed: Reclaimed,
    },
    /// A workload of the observation.
    ObservedWorkload {
        /// Its cgroup.
        id: CgroupId,
        /// What it belongs to; absent where that is the workload itself.
        owner: Option<Owner>,
        /// Its working set; absent if it could not be read.
        usage: Option<Bytes>,
        /// Its reservation.
        reservation: Bytes,
        /// Its priority.
        priority: i32,
        /// When it was first seen.
        started: MonotonicNs,
        /// Set while it ends.
        terminating: Option<Terminating>,
        /// No process is left in it.
        empty: bool,
        /// It is frozen and its memory grows nevertheless.
        grows_while_frozen: bool,
        /// Its cgroup's path below the root.
        path: &'a [u8],
    },
    /// The observation is complete.
    ObservedEnd {
        /// How many workloads it has.
        workloads: u32,
    },
    /// A line rang. Told for each ring, also where nothing had to be done.
    Crossed {
        /// When, by the kernel.
        crossed: MonotonicNs,
        /// When the core was awake.
        awake: MonotonicNs,
    },
    /// A cgroup was frozen, or to go on; or that was refused.
    Brake {
        /// Its path.
        path: &'a [u8],
        /// When.
        at: MonotonicNs,
        /// What became of it.
        what: Braked,
    },
    /// A cgroup was killed; or that was refused.
    Kill {
        /// The plan that named it, or zero where a brake did not hold.
        plan: u64,
        /// Its path.
        path: &'a [u8],
        /// Its usage when that was decided.
        usage: Option<Bytes>,
        /// When.
        at: MonotonicNs,
        /// What became of it.
        what: Killed,
    },
    /// What grew was stopped, by brake or kill: the first time after a crossing.
    Stopped {
        /// When the threshold was crossed, by the kernel; absent where it did not ring.
        crossed: Option<MonotonicNs>,
        /// When what grew was told to stop.
        at: MonotonicNs,
        /// How far below the threshold memory was then.
        past_threshold: Bytes,
    },
    /// The in-kernel brake stopped a process.
    StoppedInKernel {
        /// The process.
        pid: u32,
        /// The marked slice.
        slice: CgroupId,
        /// When, by the kernel.
        at: MonotonicNs,
    },
    /// Memory is above the threshold again after something was done.
    MemoryBack {
        /// When the threshold was crossed, by the kernel; absent where it did not ring.
        crossed: Option<MonotonicNs>,
        /// When it was seen to be back.
        at: MonotonicNs,
        /// The most that memory was below the threshold, as far as the core looked.
        past_threshold: Bytes,
    },
    /// The OOM killer chose somebody.
    Oom {
        /// When.
        at: MonotonicNs,
        /// The victim's process.
        pid: u32,
        /// The victim's cgroup.
        cgroup: Option<CgroupId>,
        /// What it had resident.
        resident: Option<Bytes>,
        /// Where memory was short.
        scope: OomScope,
    },
    /// Reclaim that was asked for is over.
    Reclaimed {
        /// The cgroup.
        cgroup: CgroupId,
        /// How much was asked.
        asked: Bytes,
        /// All of it was had.
        all: bool,
    },
    /// The memory of a victim's processes was taken while they died.
    Released {
        /// The cgroup.
        cgroup: CgroupId,
        /// Processes whose memory was taken before they exited.
        released: u32,
        /// Processes that had gone before that.
        gone: u32,
        /// Processes whose memory could not be taken.
        kept: u32,
    },
    /// The number of tasks crossed its line.
    Tasks {
        /// Tasks then.
        count: u32,
        /// When.
        at: MonotonicNs,
        /// The process that forked.
        pid: u32,
    },
    /// A call that should not fail did.
    Failed {
        /// What was tried.
        what: &'a str,
        /// The kernel's error number, where there is one.
        errno: Option<i32>,
    },

    // Of the inventory thread.
    /// The core is armed. Told again whenever the reporter is new.
    Armed {
        /// The core's process.
        pid: u32,
        /// The source in use: `ebpf`, `psi` or `poll`.
        source: &'a str,
        /// Why this agent only watches; absent where it acts.
        shadow: Option<&'a str>,
        /// Workloads found.
        workloads: u32,
        /// How long the start took.
        start: StartParts,
    },
    /// A better source that was not taken.
    SourceFailed {
        /// Which.
        source: &'a str,
        /// Why not.
        why: &'a str,
    },
    /// A hook in the kernel.
    Hook {
        /// The hook family's name.
        name: &'a str,
        /// Whether it is attached.
        attached: bool,
        /// Where and how, or why not.
        how: &'a str,
    },
    /// What an earlier process left was undone at the start.
    Undone {
        /// Cgroups thawed.
        thawed: u32,
        /// Processes continued that the kernel side had stopped.
        continued: u32,
        /// What could not be undone; it is tried again at the next start.
        failed: u32,
        /// Kills that are waited for.
        kills: u32,
    },
    /// The core lives. Every few seconds; without it for long, the reporter is not ready.
    Beat {
        /// When.
        at: MonotonicNs,
        /// Workloads known.
        workloads: u32,
        /// Records of the kernel side that were none of those agreed on.
        malformed: u64,
        /// Processes that the in-kernel brake stopped.
        brakes_applied: u64,
        /// In-kernel brakes refused because their undo could not be written.
        brakes_refused: u64,
    },
    /// What the inventory leaves out, and what it costs. With each heartbeat.
    Inventory {
        /// Workloads for which there is no row in the table: they are not watched.
        without_row: u32,
        /// Memory that is charged to cgroups and to no workload that is watched.
        outside: Bytes,
        /// Descriptors that are kept open for workloads.
        descriptors: u32,
        /// Memory of the kernel's own that is charged to the agent's cgroup. Absent: the kernel does not say.
        kernel_memory: Option<Bytes>,
        /// How long the watching thread's last sample took, to which its pace is adapted.
        sample_cost: Duration,
    },
    /// Records that found a ring full in the kernel, so far.
    Lost {
        /// The ring.
        ring: &'a str,
        /// How many.
        count: u64,
    },
    /// How a program in the kernel fares, so far. Absent: the kernel does not count it.
    Program {
        /// Its name.
        name: &'a str,
        /// How often it ran.
        runs: Option<u64>,
        /// For how long, over all CPUs, in nanoseconds.
        run_time_ns: Option<u64>,
        /// How often it was left out because it was running already.
        recursion_misses: Option<u64>,
    },
    /// A process that holds much memory outside all workloads, or in huge pages, named because nobody who may be
    /// evicted grew.
    Suspect {
        /// The process.
        pid: u32,
        /// Its command name.
        name: &'a [u8],
        /// What it has resident.
        resident: Bytes,
        /// What it holds of the huge page pool, which is in no cgroup's usage.
        huge_pages: Bytes,
    },
    /// Something in calm times did not work; the agent goes on.
    Trouble {
        /// What, in words.
        text: &'a str,
    },
}

/// What became of a brake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Braked {
    /// It is frozen.
    Frozen,
    /// It was thawed after so long.
    Thawed(Duration),
    /// It grew by so much although it was frozen; it is killed.
    StillGrows(Bytes),
    /// It was removed meanwhile.
    Gone,
    /// It could not be frozen.
    Refused(Refused),
    /// It could not be thawed; it is tried again shortly.
    ThawFailed,
}

/// What became of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Killed {
    /// All its processes were sent the signal.
    Begun,
    /// It was asked to end by itself within so long.
    Asked(Duration),
    /// It was gone or empty before.
    Gone,
    /// It grew by so much since, so that not all of it is what was killed, and was killed once more.
    Again(Bytes),
    /// Its last process is gone: how long that took, and what is still charged to it.
    Emptied(Duration, Option<Bytes>),
    /// It has not emptied in time, or went on growing; what is still charged to it.
    Stuck(Option<Bytes>),
    /// It was not killed.
    Refused(Refused),
}

/// Why nothing was done. Nothing was left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refused {
    /// That is under way already.
    Already,
    /// Somebody else froze it.
    ByOther,
    /// There is no room for another.
    Full,
    /// The bound of victims a minute is used up.
    Bounded,
    /// The kernel refused, with this error number where there is one.
    Kernel(Option<i32>),
}

/// The end of `path` that fits a record.
pub(crate) fn fitting(path: &[u8]) -> &[u8] {
    &path[path.len().saturating_sub(PATH)..]
}

impl<'a> Record<'a> {
    /// Writes it into a queue. False: it was dropped, and the queue counts that.
    pub(crate) fn send(&self, queue: &mut Producer) -> bool {
        let mut frame = [0; FRAME];
        // What does not fit is pushed as too long, so that it is counted with the dropped ones.
        match postcard::to_slice(self, &mut frame) {
            Ok(bytes) => queue.push(bytes),
            Err(_) => queue.push(&[0; FRAME + 1]),
        }
    }

    /// Reads one from a frame. `None` for what is no record of this version.
    pub(crate) fn read(frame: &'a [u8]) -> Option<Self> {
        postcard::from_bytes(frame).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::kubelet::{Amount, Limit, QosClass};
    use plimsoll_policy::{Case, Growth, Key, SliceId, Uid, Verdict, Why};

    #[test]
    fn the_largest_records_fit_a_frame_and_are_read_back() {
        let path = [b'x'; PATH];
        let most = Amount::nanos(i128::MAX);
        let status = ThresholdStatus {
            line: Why::Limit(Limit::Container(u32::MAX)),
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
        let plan = Record::Plan {
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
            deficit: Some(Deficit { missing: most, expected: most, coming: most, taken: most }),
            is_futile: true,
            attribution: Some(Attribution {
                fallen: Bytes(u64::MAX),
                left_behind: Bytes(u64::MAX),
                evictable_grew: Bytes(u64::MAX),
                protected_grew: Bytes(u64::MAX),
            }),
            overlooked: u32::MAX,
            recheck_at: Some(MonotonicNs(u64::MAX)),
        };
        let observed = Record::ObservedWorkload {
            id: CgroupId(u64::MAX),
            owner: Some(Owner { id: CgroupId(u64::MAX), request: Bytes(u64::MAX) }),
            usage: Some(Bytes(u64::MAX)),
            reservation: Bytes(u64::MAX),
            priority: i32::MIN,
            started: MonotonicNs(u64::MAX),
            terminating: Some(Terminating {
                is_stuck: true,
                is_refused: true,
                is_graceful: true,
                until: Some(MonotonicNs(u64::MAX)),
            }),
            empty: true,
            grows_while_frozen: true,
            path: &path,
        };
        let kill = Record::Kill {
            plan: u64::MAX,
            path: &path,
            usage: Some(Bytes(u64::MAX)),
            at: MonotonicNs(u64::MAX),
            what: Killed::Emptied(Duration::MAX, Some(Bytes(u64::MAX))),
        };
        for record in [
            plan,
            observed,
            Record::PlanThreshold { status, acting: true },
            Record::PlanRanked { ranked, path: &path },
            kill,
        ] {
            let mut frame = [0; FRAME];
            let bytes = postcard::to_slice(&record, &mut frame).expect("it fits");
            assert_eq!(Record::read(bytes), Some(record));
        }
    }

    #[test]
    fn of_a_long_path_its_end_is_told() {
        let mut path = vec![b'a'; PATH];
        path.extend_from_slice(b"/end");
        assert_eq!(fitting(&path).len(), PATH);
        assert!(fitting(&path).ends_with(b"/end"));
        assert_eq!(fitting(b"short"), b"short");
    }

    #[test]
    fn what_is_no_record_is_none() {
        assert_eq!(Record::read(&[]), None);
        assert_eq!(Record::read(&[255; 64]), None);
    }
}
