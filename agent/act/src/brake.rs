//! Frozen cgroups: each with a deadline, each undone.
//!
//! A freeze and a thaw are written by a worker, because both wait for a lock of all cgroups. Where the freeze waits for
//! longer than that, the cgroup's processes are stopped one by one, and continued once it is written.
//!
//! How far a brake has come:
//!
//! | from | when | to |
//! |---|---|---|
//! | | it is requested | `Freezing` |
//! | `Freezing` | 3 ms have passed | `Freezing`, and its processes are stopped one by one |
//! | `Freezing` | the freeze is written | `Frozen` |
//! | `Freezing` | the freeze is refused | over; `Thawing`, refused, where its processes were stopped |
//! | `Frozen`, `Freezing` | its time is over, or a thaw is requested | `Thawing` |
//! | `Thawing` | the thaw is written | over |
//! | `Thawing` | the thaw is refused | `Thawing`, refused: it is tried again 10 ms later |
//! | any | the cgroup was removed | over |
//!
//! While it is `Frozen` its growth is judged: `Unread` at first, `Judged` from the first reading on, `Suspected` where more
//! came than can have been in flight, and `Confirmed` where still more came until the next reading.

mod held;

use crate::journal::{Action, Intent, Journal, JournalFull, Step, StopJournal};
use crate::point::{KillPoint, reached};
use crate::worker::{Done, Job, Workers};
use core::time::Duration;
use plimsoll_node::Fault;
use plimsoll_node::cgroup::Handle;
use plimsoll_node::clock::monotonic;
use plimsoll_units::{Bytes, CgroupId, MEMCG_CHARGE_BATCH, MonotonicNs};
use std::sync::Arc;

/// How long a thaw that the kernel refused is left before it is tried again.
const AGAIN: Duration = Duration::from_millis(10);
/// A freeze that is not written after this long waits for other writers: the processes are stopped one by one.
const WRITES_WITHIN: Duration = Duration::from_millis(3);

/// How brakes behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrakeLimits {
    /// How long a cgroup is frozen at most.
    pub hold: Duration,
    /// How long after the freeze its usage is read for the first time: what was on its way has arrived by then.
    pub settle: Duration,
    /// How often growth is judged after that.
    pub watch: Duration,
    /// What can be in flight when a cgroup is frozen, and arrives afterwards: growth up to this is none.
    pub in_flight: Bytes,
    /// What one CPU charges beforehand. Growth between two readings counts above this alone.
    pub batch: Bytes,
    /// Whether growth is looked for. Without, nothing is read of what is frozen until its time is over.
    pub is_judged: bool,
}

impl BrakeLimits {
    /// Limits for a machine with these sizes: for a hold of two seconds at most.
    ///
    /// A thread is frozen on its way back to user space, so that what the kernel is doing for it then is completed: a page
    /// fault takes one huge page at most. No more threads run at a time than there are CPUs, and each CPU charges a batch
    /// beforehand. More than that is one system call that goes on, or memory that is charged by others: data that is
    /// received for its sockets, for example.
    pub const fn of(cpus: u64, page: Bytes, huge_page: Bytes) -> Self {
        let batch = Bytes(page.0 * MEMCG_CHARGE_BATCH);
        Self {
            hold: Duration::from_secs(2),
            settle: Duration::from_millis(5),
            watch: Duration::from_millis(15),
            in_flight: Bytes(cpus.saturating_mul(huge_page.0.saturating_add(batch.0))),
            batch,
            is_judged: true,
        }
    }

    /// What is known of growth when it is frozen.
    const fn growth(&self, now: MonotonicNs) -> Growth {
        if self.is_judged { Growth::Unread { frozen: now } } else { Growth::Unknown }
    }
}

/// Why a cgroup was not frozen. Nothing was left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrakeRefused {
    /// It is held already.
    #[error("it is braked already")]
    Already,
    /// Another program froze it, and will thaw it.
    #[error("another program has frozen it")]
    ByOther,
    /// As many are held as there is room for.
    #[error("as many cgroups are braked as there is room for")]
    Full,
    /// The journal is full.
    #[error(transparent)]
    Journal(#[from] JournalFull),
    /// The worker has no room for the job.
    #[error("the worker that would freeze it is busy")]
    WorkerFull,
    /// What it is cannot be read, or the cgroup is gone.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// What became of a brake. Each gives the handle back, so that the caller chooses where its descriptors are closed.
#[derive(Clone, Debug)]
pub enum BrakeEvent {
    /// It is frozen.
    Frozen {
        /// The cgroup.
        handle: Arc<Handle>,
        /// When that was written.
        at: MonotonicNs,
    },
    /// Its freeze waits, and its processes are stopped. [`Self::Frozen`] follows, unless it is thawed first.
    Stopped {
        /// The cgroup.
        handle: Arc<Handle>,
        /// How many processes.
        processes: u32,
        /// When the last of them was stopped.
        at: MonotonicNs,
    },
    /// The kernel refused to freeze it. Nothing was left behind.
    Refused {
        /// The cgroup.
        handle: Arc<Handle>,
        /// What the kernel answered.
        fault: Fault,
    },
    /// Its time was over and it goes on.
    Thawed {
        /// The cgroup.
        handle: Arc<Handle>,
        /// How long it was frozen.
        held: Duration,
    },
    /// It is frozen and grows nevertheless, beyond what was in flight and at two readings in a row. Reported once; it
    /// stays frozen, and [`Brakes::growing`] names it.
    StillGrows {
        /// The cgroup.
        handle: Arc<Handle>,
        /// By how much it grew.
        grown: Bytes,
    },
    /// It was removed meanwhile.
    Gone {
        /// The cgroup.
        handle: Arc<Handle>,
        /// When that was requested.
        since: MonotonicNs,
    },
    /// The kernel refused to thaw it; it is tried again shortly, and the journal still has it.
    ThawFailed {
        /// The cgroup.
        handle: Arc<Handle>,
        /// What the kernel answered.
        fault: Fault,
    },
}

#[derive(Clone, Copy, Debug)]
enum Growth {
    /// Its usage was not read since it was frozen.
    Unread { frozen: MonotonicNs },
    /// It has not grown too much since the first reading.
    Judged { read: MonotonicNs, first: Bytes },
    /// It had grown too much at the last reading.
    Suspected { read: MonotonicNs, first: Bytes, last: Bytes },
    /// It grows.
    Confirmed,
    /// It has no usage of its own.
    Unknown,
}

/// How far a brake has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The freeze is not written yet.
    Freezing,
    /// It is.
    Frozen,
    /// The thaw is not written yet; where it was refused, until it is tried again at the deadline.
    Thawing { is_refused: bool },
}

#[derive(Debug)]
struct Brake {
    handle: Arc<Handle>,
    since: MonotonicNs,
    deadline: MonotonicNs,
    stage: Stage,
    /// Its processes are stopped one by one, and not continued yet.
    is_stopped: bool,
    growth: Growth,
}

/// All cgroups that this process holds.
#[derive(Debug)]
pub struct Brakes {
    limits: BrakeLimits,
    table: Vec<Brake>,
    stopped: Arc<dyn StopJournal>,
}

impl Brakes {
    /// Room for `count` at a time. `stopped`: where processes are written down that are stopped one by one.
    pub fn with_capacity(limits: BrakeLimits, count: usize, stopped: Arc<dyn StopJournal>) -> Self {
        Self { limits, table: Vec::with_capacity(count), stopped }
    }

    /// Has a cgroup frozen until it is thawed or its time is over. What came of that is an event of [`Self::done`].
    pub fn brake(
        &mut self,
        handle: &Arc<Handle>,
        now: MonotonicNs,
        journal: &mut impl Journal,
        workers: &mut Workers,
    ) -> Result<(), BrakeRefused> {
        if self.holds(handle.id()) {
            return Err(BrakeRefused::Already);
        }
        if self.table.len() == self.table.capacity() {
            return Err(BrakeRefused::Full);
        }
        // Never while a write to it waits: that would be waited for, too.
        if handle.freeze_asked()? {
            return Err(BrakeRefused::ByOther);
        }
        journal.write(Intent::of(Step::Freezing, handle, now))?;
        reached(KillPoint::BrakeIntentWritten);
        if workers.write.submit(Job::Freeze(Arc::clone(handle), true)).is_err() {
            journal.clear(handle.id(), Action::Brake);
            return Err(BrakeRefused::WorkerFull);
        }
        self.table.push(Brake {
            handle: Arc::clone(handle),
            since: now,
            deadline: now.after(self.limits.hold),
            stage: Stage::Freezing,
            is_stopped: false,
            growth: self.limits.growth(now),
        });
        Ok(())
    }

    /// Has a cgroup thawed before its time is over. One that is not held is fine.
    pub fn thaw(&mut self, cgroup: CgroupId, now: MonotonicNs, workers: &mut Workers) {
        if let Some(brake) = self.table.iter_mut().find(|brake| brake.handle.id() == cgroup) {
            brake.thaw(now, workers, &self.stopped);
        }
    }

    /// Has all of them thawed.
    pub fn thaw_all(&mut self, now: MonotonicNs, workers: &mut Workers) {
        self.table.iter_mut().for_each(|brake| brake.thaw(now, workers, &self.stopped));
    }

    /// Whether this process holds it, or is about to, or has not thawed it yet.
    pub fn holds(&self, cgroup: CgroupId) -> bool {
        self.table.iter().any(|brake| brake.handle.id() == cgroup)
    }

    /// How long a cgroup is frozen at most.
    pub fn hold(&self) -> Duration {
        self.limits.hold
    }

    /// How many are held.
    pub fn count(&self) -> usize {
        self.table.len()
    }

    /// Whether a freeze or a thaw is not written yet: while there are any, poll the worker every few milliseconds.
    pub fn awaits_write(&self) -> bool {
        self.table.iter().any(|brake| matches!(brake.stage, Stage::Freezing | Stage::Thawing { is_refused: false }))
    }

    /// When the next thing is due.
    pub fn next_due(&self) -> Option<MonotonicNs> {
        self.table.iter().filter_map(|brake| brake.due(&self.limits)).min()
    }

    /// The next thing that happened up to `now`; call until `None`.
    pub fn poll(&mut self, now: MonotonicNs, journal: &mut impl Journal, workers: &mut Workers) -> Option<BrakeEvent> {
        for index in 0..self.table.len() {
            let brake = &mut self.table[index];
            if brake.due(&self.limits).is_none_or(|due| now < due) {
                continue;
            }
            if brake.deadline <= now {
                brake.thaw(now, workers, &self.stopped);
            } else if brake.stage == Stage::Freezing {
                // What the worker comes to later than that is not held any more.
                let by = monotonic().after(brake.deadline.since(now));
                let stop = Job::Stop(Arc::clone(&brake.handle), Arc::clone(&self.stopped), by);
                // Without room for the job it is the freeze alone that will hold it.
                let _ = workers.kill.submit(stop);
                brake.is_stopped = true;
            } else if let Some(event) = self.judge(index, now, journal) {
                return Some(event);
            }
        }
        None
    }

    /// Takes a worker's result in. One that is about no brake is passed over.
    pub fn done(
        &mut self,
        done: Done,
        now: MonotonicNs,
        journal: &mut impl Journal,
        workers: &mut Workers,
    ) -> Option<BrakeEvent> {
        let index_of = |cgroup| self.table.iter().position(|brake| brake.handle.id() == cgroup);
        match done {
            Done::FreezeWritten { cgroup, is_freeze: true, outcome, at } => {
                let index = index_of(cgroup)?;
                // The freezer holds the processes from here on, also those that are continued.
                self.table[index].resume(workers, &self.stopped);
                let is_frozen = self.frozen(index, outcome, now, journal)?;
                Some(is_frozen.map_or_else(|event| event, |handle| BrakeEvent::Frozen { handle, at }))
            }
            Done::FreezeWritten { cgroup, is_freeze: false, outcome, at: _ } => {
                self.thawed(index_of(cgroup)?, outcome, now, journal)
            }
            Done::Stopped { cgroup, processes, at } if processes > 0 => {
                let brake = &self.table[index_of(cgroup)?];
                // Otherwise they are continued by now.
                let waits = brake.stage == Stage::Freezing;
                waits.then(|| BrakeEvent::Stopped { handle: Arc::clone(&brake.handle), processes, at })
            }
            _ => None,
        }
    }

    /// The cgroups that grow although they are frozen.
    pub fn growing(&self) -> impl Iterator<Item = CgroupId> + '_ {
        let growing = self.table.iter().filter(|brake| matches!(brake.growth, Growth::Confirmed));
        growing.map(|brake| brake.handle.id())
    }

    /// The freeze at `index` was written, or refused, while no thaw was requested: gives the cgroup, or why it is not
    /// frozen.
    fn frozen(
        &mut self,
        index: usize,
        outcome: Result<(), Fault>,
        now: MonotonicNs,
        journal: &mut impl Journal,
    ) -> Option<Result<Arc<Handle>, BrakeEvent>> {
        let brake = &mut self.table[index];
        if outcome.is_ok() {
            // The entry is there, so there is room for its next step.
            let _ = journal.write(Intent::of(Step::Frozen, &brake.handle, brake.since));
            reached(KillPoint::FreezeRecorded);
        }
        if brake.stage != Stage::Freezing {
            return None;
        }
        Some(match outcome {
            Ok(()) => {
                (brake.stage, brake.growth) = (Stage::Frozen, self.limits.growth(now));
                Ok(Arc::clone(&brake.handle))
            }
            Err(fault) if brake.is_stopped && fault != Fault::Gone => {
                // Forgotten, nothing would continue what was stopped one by one.
                (brake.stage, brake.deadline) = (Stage::Thawing { is_refused: true }, now.after(AGAIN));
                Err(BrakeEvent::Refused { handle: Arc::clone(&brake.handle), fault })
            }
            Err(fault) => {
                let Brake { handle, since, .. } = self.take(index, journal);
                Err(match fault {
                    Fault::Gone => BrakeEvent::Gone { handle, since },
                    fault => BrakeEvent::Refused { handle, fault },
                })
            }
        })
    }

    /// The thaw at `index` was written, or refused.
    fn thawed(
        &mut self,
        index: usize,
        outcome: Result<(), Fault>,
        now: MonotonicNs,
        journal: &mut impl Journal,
    ) -> Option<BrakeEvent> {
        let brake = &mut self.table[index];
        let Stage::Thawing { is_refused } = &mut brake.stage else { return None };
        if let Err(fault) = outcome
            && fault != Fault::Gone
        {
            *is_refused = true;
            brake.deadline = now.after(AGAIN);
            return Some(BrakeEvent::ThawFailed { handle: Arc::clone(&brake.handle), fault });
        }
        let Brake { handle, since, .. } = self.take(index, journal);
        reached(KillPoint::ThawRecorded);
        Some(match outcome {
            Ok(()) => BrakeEvent::Thawed { handle, held: now.since(since) },
            Err(_) => BrakeEvent::Gone { handle, since },
        })
    }

    /// Forgets the brake at `index`, which is over.
    fn take(&mut self, index: usize, journal: &mut impl Journal) -> Brake {
        let brake = self.table.swap_remove(index);
        journal.clear(brake.handle.id(), Action::Brake);
        brake
    }

    /// Reads the usage of the cgroup at `index`, which is due.
    fn judge(&mut self, index: usize, now: MonotonicNs, journal: &mut impl Journal) -> Option<BrakeEvent> {
        let brake = &mut self.table[index];
        let before = brake.growth;
        let usage = match brake.handle.usage() {
            Ok(usage) => usage,
            Err(Fault::Gone) => {
                let Brake { handle, since, .. } = self.take(index, journal);
                return Some(BrakeEvent::Gone { handle, since });
            }
            // Growth cannot be seen; the deadline stays.
            Err(_) => {
                brake.growth = Growth::Unknown;
                return None;
            }
        };
        brake.growth = brake.growth.with(usage, now, &self.limits);
        let (Growth::Suspected { first, .. }, Growth::Confirmed) = (before, brake.growth) else { return None };
        let grown = usage.saturating_sub(first);
        Some(BrakeEvent::StillGrows { handle: Arc::clone(&brake.handle), grown })
    }
}

impl Brake {
    /// When the next thing is due; `None` while a thaw is being written.
    fn due(&self, limits: &BrakeLimits) -> Option<MonotonicNs> {
        let next = match (self.stage, self.growth) {
            (Stage::Thawing { is_refused: false }, _) => return None,
            (Stage::Freezing, _) if self.is_stopped => self.deadline,
            (Stage::Freezing, _) => self.since.after(WRITES_WITHIN),
            (Stage::Frozen, Growth::Unread { frozen }) => frozen.after(limits.settle),
            (Stage::Frozen, Growth::Judged { read, .. } | Growth::Suspected { read, .. }) => read.after(limits.watch),
            (Stage::Thawing { .. }, _) | (Stage::Frozen, Growth::Confirmed | Growth::Unknown) => self.deadline,
        };
        Some(next.min(self.deadline))
    }

    /// Has it thawed, after the freeze where that is not written yet. Without room for the jobs that is tried again.
    fn thaw(&mut self, now: MonotonicNs, workers: &mut Workers, stopped: &Arc<dyn StopJournal>) {
        if self.stage == (Stage::Thawing { is_refused: false }) {
            return;
        }
        self.resume(workers, stopped);
        // Thawed, it is forgotten, and nothing would continue them.
        let is_submitted =
            !self.is_stopped && workers.write.submit(Job::Freeze(Arc::clone(&self.handle), false)).is_ok();
        self.stage = Stage::Thawing { is_refused: !is_submitted };
        self.deadline = now.after(AGAIN);
    }

    /// Has the processes continued that were stopped one by one.
    fn resume(&mut self, workers: &mut Workers, stopped: &Arc<dyn StopJournal>) {
        if self.is_stopped {
            // The queue has room for all brakes and kills many times over; else that is tried again.
            self.is_stopped = workers.kill.submit(Job::Continue(self.handle.id(), Arc::clone(stopped))).is_err();
        }
    }
}

impl Growth {
    /// What another reading makes of it.
    fn with(self, usage: Bytes, now: MonotonicNs, limits: &BrakeLimits) -> Self {
        let (first, suspected) = match self {
            Self::Unread { .. } => return Self::Judged { read: now, first: usage },
            Self::Judged { first, .. } => (first, None),
            Self::Suspected { first, last, .. } => (first, Some(last)),
            Self::Confirmed | Self::Unknown => return self,
        };
        if suspected.is_some_and(|last| usage.saturating_sub(last) > limits.batch) {
            Self::Confirmed
        } else if usage.saturating_sub(first) > limits.in_flight {
            Self::Suspected { read: now, first, last: usage }
        } else {
            Self::Judged { read: now, first }
        }
    }
}

#[cfg(test)]
mod tests;
