//! Frozen cgroups: each with an owner and a deadline, each undone.

use crate::journal::{Action, Intent, Journal, JournalFull, Step};
use crate::point::{KillPoint, reached};
use core::time::Duration;
use plimsoll_node::Fault;
use plimsoll_node::cgroup::Handle;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use std::sync::Arc;

/// How long a thaw that the kernel refused is left before it is tried again.
const AGAIN: Duration = Duration::from_millis(10);

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
}

/// Pages that a CPU charges beforehand (`MEMCG_CHARGE_BATCH`, include/linux/memcontrol.h).
const CHARGE_BATCH: u64 = 64;

impl BrakeLimits {
    /// Limits for a machine with these sizes: for a hold of two seconds at most.
    ///
    /// A thread is frozen on its way back to user space, so that what the kernel is doing for it then is completed: a page
    /// fault takes one huge page at most. No more threads run at a time than there are CPUs, and each CPU charges a batch
    /// beforehand. More than that is one system call that goes on, or memory that is charged by others: data that is
    /// received for its sockets, for example.
    pub const fn of(cpus: u64, page: Bytes, huge_page: Bytes) -> Self {
        let batch = Bytes(page.0 * CHARGE_BATCH);
        Self {
            hold: Duration::from_secs(2),
            settle: Duration::from_millis(5),
            watch: Duration::from_millis(15),
            in_flight: Bytes(cpus.saturating_mul(huge_page.0.saturating_add(batch.0))),
            batch,
        }
    }
}

/// The purpose of a brake. The meaning is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(pub u32);

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
    /// The kernel refused, or the cgroup is gone.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// What became of a brake. Each gives the handle back, so that the caller chooses where its descriptors are closed.
#[derive(Clone, Debug)]
pub enum BrakeEvent {
    /// Its time was over and it goes on.
    Thawed {
        /// The cgroup.
        handle: Arc<Handle>,
        /// What it was frozen for.
        owner: Owner,
        /// How long it was frozen.
        held: Duration,
    },
    /// It is frozen and grows nevertheless, beyond what was in flight and at two readings in a row. Reported once; it
    /// stays frozen, and [`Brakes::growing`] names it.
    StillGrows {
        /// The cgroup.
        handle: Arc<Handle>,
        /// What it was frozen for.
        owner: Owner,
        /// By how much it grew.
        grown: Bytes,
    },
    /// It was removed meanwhile.
    Gone {
        /// The cgroup.
        handle: Arc<Handle>,
        /// What it was frozen for.
        owner: Owner,
    },
    /// The kernel refused to thaw it; it is tried again shortly, and the journal still has it.
    ThawFailed {
        /// The cgroup.
        handle: Arc<Handle>,
        /// What it was frozen for.
        owner: Owner,
        /// What the kernel answered.
        fault: Fault,
    },
}

#[derive(Clone, Copy, Debug)]
enum Growth {
    /// Its usage was not read since it was frozen.
    Unread,
    /// Read at this time, with the first reading.
    Judged(MonotonicNs, Bytes),
    /// Likewise, and it had grown too much by then, to this.
    Suspected(MonotonicNs, Bytes, Bytes),
    /// It grows.
    Confirmed,
    /// It has no usage of its own.
    Unknown,
}

#[derive(Debug)]
struct Brake {
    handle: Arc<Handle>,
    owner: Owner,
    since: MonotonicNs,
    deadline: MonotonicNs,
    growth: Growth,
}

/// All cgroups that this process holds.
#[derive(Debug)]
pub struct Brakes {
    limits: BrakeLimits,
    table: Vec<Brake>,
}

impl Brakes {
    /// Room for `count` at a time.
    pub fn with_capacity(limits: BrakeLimits, count: usize) -> Self {
        Self { limits, table: Vec::with_capacity(count) }
    }

    /// Freezes a cgroup until it is thawed or its time is over.
    pub fn brake(
        &mut self,
        handle: &Arc<Handle>,
        owner: Owner,
        now: MonotonicNs,
        journal: &mut impl Journal,
    ) -> Result<(), BrakeRefused> {
        if self.holds(handle.id()) {
            return Err(BrakeRefused::Already);
        }
        if self.table.len() == self.table.capacity() {
            return Err(BrakeRefused::Full);
        }
        if handle.freeze_asked()? {
            return Err(BrakeRefused::ByOther);
        }
        let intent = |step| Intent { step, cgroup: handle.id(), path: handle.path(), since: now };
        journal.write(intent(Step::Freezing))?;
        reached(KillPoint::BrakeIntentWritten);
        if let Err(fault) = handle.freeze(true) {
            journal.clear(handle.id(), Action::Brake);
            return Err(fault.into());
        }
        reached(KillPoint::FreezeWritten);
        // The entry is there, so there is room for its next step.
        journal.write(intent(Step::Frozen))?;
        reached(KillPoint::FreezeRecorded);
        self.table.push(Brake {
            handle: Arc::clone(handle),
            owner,
            since: now,
            deadline: now.after(self.limits.hold),
            growth: Growth::Unread,
        });
        Ok(())
    }

    /// Lets a cgroup go on before its time is over. `None` where it is not held.
    pub fn thaw(&mut self, cgroup: CgroupId, now: MonotonicNs, journal: &mut impl Journal) -> Option<BrakeEvent> {
        let index = self.table.iter().position(|brake| brake.handle.id() == cgroup)?;
        Some(self.thaw_at(index, now, journal))
    }

    /// Lets one of them go on; call until `None` to let all go. One that the kernel refuses to thaw ends it too.
    pub fn thaw_any(&mut self, now: MonotonicNs, journal: &mut impl Journal) -> Option<BrakeEvent> {
        (!self.table.is_empty()).then(|| self.thaw_at(self.table.len() - 1, now, journal))
    }

    /// Whether this process holds it.
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

    /// When the next thing is due.
    pub fn next_due(&self) -> Option<MonotonicNs> {
        self.table.iter().map(|brake| brake.due(&self.limits)).min()
    }

    /// The next thing that happened up to `now`; call until `None`.
    pub fn poll(&mut self, now: MonotonicNs, journal: &mut impl Journal) -> Option<BrakeEvent> {
        for index in 0..self.table.len() {
            if self.table[index].deadline <= now {
                return Some(self.thaw_at(index, now, journal));
            }
            if let Some(event) = self.judge(index, now, journal) {
                return Some(event);
            }
        }
        None
    }

    /// The cgroups that grow although they are frozen.
    pub fn growing(&self) -> impl Iterator<Item = CgroupId> + '_ {
        let growing = self.table.iter().filter(|brake| matches!(brake.growth, Growth::Confirmed));
        growing.map(|brake| brake.handle.id())
    }

    /// Reads the usage of the cgroup at `index` where that is due.
    fn judge(&mut self, index: usize, now: MonotonicNs, journal: &mut impl Journal) -> Option<BrakeEvent> {
        let brake = &mut self.table[index];
        if now < brake.due(&self.limits) {
            return None;
        }
        let before = brake.growth;
        let usage = match brake.handle.usage() {
            Ok(usage) => usage,
            Err(Fault::Gone) => {
                let brake = self.table.swap_remove(index);
                journal.clear(brake.handle.id(), Action::Brake);
                return Some(BrakeEvent::Gone { handle: brake.handle, owner: brake.owner });
            }
            // Growth cannot be seen; the deadline stays.
            Err(_) => {
                brake.growth = Growth::Unknown;
                return None;
            }
        };
        brake.growth = brake.growth.with(usage, now, &self.limits);
        let (Growth::Suspected(_, first, _), Growth::Confirmed) = (before, brake.growth) else { return None };
        let grown = usage.saturating_sub(first);
        Some(BrakeEvent::StillGrows { handle: Arc::clone(&brake.handle), owner: brake.owner, grown })
    }

    fn thaw_at(&mut self, index: usize, now: MonotonicNs, journal: &mut impl Journal) -> BrakeEvent {
        let outcome = self.table[index].handle.freeze(false);
        if let Err(fault) = outcome
            && fault != Fault::Gone
        {
            let brake = &mut self.table[index];
            brake.deadline = now.after(AGAIN);
            return BrakeEvent::ThawFailed { handle: Arc::clone(&brake.handle), owner: brake.owner, fault };
        }
        reached(KillPoint::ThawWritten);
        let Brake { handle, owner, since, .. } = self.table.swap_remove(index);
        journal.clear(handle.id(), Action::Brake);
        reached(KillPoint::ThawRecorded);
        match outcome {
            Ok(()) => BrakeEvent::Thawed { handle, owner, held: now.since(since) },
            Err(_) => BrakeEvent::Gone { handle, owner },
        }
    }
}

impl Brake {
    fn due(&self, limits: &BrakeLimits) -> MonotonicNs {
        let reading = match self.growth {
            Growth::Unread => self.since.after(limits.settle),
            Growth::Judged(read, _) | Growth::Suspected(read, ..) => read.after(limits.watch),
            Growth::Confirmed | Growth::Unknown => return self.deadline,
        };
        reading.min(self.deadline)
    }
}

impl Growth {
    /// What another reading makes of it.
    fn with(self, usage: Bytes, now: MonotonicNs, limits: &BrakeLimits) -> Self {
        let (first, suspected) = match self {
            Self::Unread => return Self::Judged(now, usage),
            Self::Judged(_, first) => (first, None),
            Self::Suspected(_, first, last) => (first, Some(last)),
            Self::Confirmed | Self::Unknown => return self,
        };
        if suspected.is_some_and(|last| usage.saturating_sub(last) > limits.batch) {
            Self::Confirmed
        } else if usage.saturating_sub(first) > limits.in_flight {
            Self::Suspected(now, first, usage)
        } else {
            Self::Judged(now, first)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Book, Fake, ms};

    const MIB: u64 = 1 << 20;

    /// Two CPUs: 4.5 MiB can be in flight.
    fn limits() -> BrakeLimits {
        BrakeLimits::of(2, Bytes(4096), Bytes::mib(2))
    }

    fn brakes() -> Brakes {
        Brakes::with_capacity(limits(), 2)
    }

    #[test]
    fn a_brake_is_undone_at_its_deadline() {
        let fake = Fake::new("w");
        let (mut brakes, mut book) = (brakes(), Book::default());
        brakes.brake(&fake.handle, Owner(7), ms(100), &mut book).expect("it fits");
        assert_eq!(fake.text("cgroup.freeze"), "1");
        assert_eq!(book.steps(), [Step::Freezing, Step::Frozen]);
        for at in [100, 105, 120, 2099] {
            assert!(brakes.poll(ms(at), &mut book).is_none(), "{at}");
        }
        let event = brakes.poll(ms(2100), &mut book);
        assert!(
            matches!(&event, Some(BrakeEvent::Thawed { owner: Owner(7), held, .. }) if *held == Duration::from_secs(2)),
            "{event:?}"
        );
        assert_eq!(fake.text("cgroup.freeze"), "0");
        assert!(book.is_clear());
        assert!(brakes.poll(ms(9000), &mut book).is_none());
    }

    #[test]
    fn what_can_be_in_flight_is_a_huge_page_and_a_batch_for_each_cpu() {
        assert_eq!(limits().in_flight, Bytes(2 * (2 * MIB + 64 * 4096)));
        let of_64_kib = BrakeLimits::of(1, Bytes(65_536), Bytes::mib(512));
        assert_eq!((of_64_kib.in_flight, of_64_kib.batch), (Bytes::mib(516), Bytes::mib(4)));
    }

    /// Freezes a cgroup of 100 MiB and reads it at these times with these usages in KiB more. Gives when growth was
    /// reported, and by how much.
    fn judged(readings: &[(u64, u64)]) -> Vec<(u64, Bytes)> {
        let fake = Fake::new("w");
        let (mut brakes, mut book) = (brakes(), Book::default());
        brakes.brake(&fake.handle, Owner(0), ms(0), &mut book).expect("it fits");
        let mut reported = Vec::new();
        for (at, kib) in readings {
            fake.write("memory.current", &format!("{}\n", 100 * MIB + (kib << 10)));
            if let Some(BrakeEvent::StillGrows { grown, .. }) = brakes.poll(ms(*at), &mut book) {
                reported.push((*at, grown));
                assert!(brakes.growing().eq([fake.handle.id()]));
            }
            assert_eq!(fake.text("cgroup.freeze"), "1");
        }
        assert_eq!(brakes.growing().count(), reported.len());
        reported
    }

    #[test]
    fn growth_while_frozen_is_reported_once_beyond_what_was_in_flight_and_at_two_readings() {
        let in_flight = 4608;
        // Growth before the first reading was in flight as well.
        assert_eq!(judged(&[(5, 90_000), (20, 90_000 + in_flight), (35, 90_000 + in_flight)]), []);
        // It grows on, and is read no more once that is known.
        let grows = [(5, 0), (20, in_flight + 1), (35, in_flight + 258), (50, 90_000), (65, 180_000)];
        assert_eq!(judged(&grows), [(35, Bytes((in_flight + 258) << 10))]);
        // One leap, and no more than one batch after it.
        assert_eq!(judged(&[(5, 0), (20, 9000), (35, 9256), (50, 9256), (65, 9256)]), []);
        // Slow growth adds up.
        assert_eq!(judged(&[(5, 0), (20, 3000), (35, 6000), (50, 9000)]), [(50, Bytes(9000 << 10))]);
        // One that is read early is judged at the same distance.
        assert_eq!(judged(&[(5, 0), (19, 90_000), (20, 90_000), (34, 180_000)]), []);
    }

    #[test]
    fn a_late_reading_is_judged_by_its_own_time() {
        let fake = Fake::new("w");
        let (mut brakes, mut book) = (brakes(), Book::default());
        brakes.brake(&fake.handle, Owner(0), ms(0), &mut book).expect("it fits");
        fake.write("memory.current", "900000000\n");
        assert_eq!(brakes.next_due(), Some(ms(5)));
        assert!(brakes.poll(ms(300), &mut book).is_none());
        assert_eq!(brakes.next_due(), Some(ms(315)));
    }

    #[test]
    fn a_freeze_by_another_program_is_left_alone() {
        let fake = Fake::new("w");
        fake.write("cgroup.freeze", "1\n");
        let (mut brakes, mut book) = (brakes(), Book::default());
        assert_eq!(brakes.brake(&fake.handle, Owner(0), ms(0), &mut book), Err(BrakeRefused::ByOther));
        assert!(book.is_clear());
        assert!(brakes.thaw(fake.handle.id(), ms(1), &mut book).is_none());
        assert_eq!(fake.text("cgroup.freeze"), "1");
    }

    #[test]
    fn nothing_is_frozen_that_is_not_written_down() {
        let fake = Fake::new("w");
        let (mut brakes, mut book) = (brakes(), Book::with_room(0));
        let refused = brakes.brake(&fake.handle, Owner(0), ms(0), &mut book);
        assert_eq!(refused, Err(BrakeRefused::Journal(JournalFull)));
        assert_eq!(fake.text("cgroup.freeze"), "0");
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let fakes = ["a", "b", "c"].map(Fake::new);
        let (mut brakes, mut book) = (brakes(), Book::default());
        for fake in &fakes[..2] {
            brakes.brake(&fake.handle, Owner(0), ms(0), &mut book).expect("it fits");
        }
        assert_eq!(brakes.brake(&fakes[0].handle, Owner(0), ms(0), &mut book), Err(BrakeRefused::Already));
        assert_eq!(brakes.brake(&fakes[2].handle, Owner(0), ms(0), &mut book), Err(BrakeRefused::Full));
        assert!(brakes.thaw(fakes[0].handle.id(), ms(1), &mut book).is_some());
        brakes.brake(&fakes[2].handle, Owner(0), ms(1), &mut book).expect("it fits again");
        while brakes.thaw_any(ms(2), &mut book).is_some() {}
        assert!(book.is_clear());
        assert_eq!(brakes.count(), 0);
    }
}
