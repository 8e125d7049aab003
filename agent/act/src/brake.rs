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
    /// How long after that reading growth is judged.
    pub watch: Duration,
    /// Growth up to this is none: processors charge 64 pages beforehand, and interrupts go on charging a little.
    pub tolerance: Bytes,
}

impl Default for BrakeLimits {
    fn default() -> Self {
        Self {
            hold: Duration::from_secs(2),
            settle: Duration::from_millis(5),
            watch: Duration::from_millis(15),
            tolerance: Bytes::mib(1),
        }
    }
}

/// Who asked for a brake. The meaning is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(pub u32);

/// Why a cgroup was not frozen. Nothing was left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrakeRefused {
    /// It is held already.
    #[error("it is braked already")]
    Already,
    /// Somebody else froze it; whoever did will thaw it.
    #[error("somebody else has frozen it")]
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
        /// Who had asked.
        owner: Owner,
        /// How long it was frozen.
        held: Duration,
    },
    /// It is frozen and takes memory nevertheless: one long system call. Reported once; it stays frozen.
    StillGrows {
        /// The cgroup.
        handle: Arc<Handle>,
        /// Who had asked.
        owner: Owner,
        /// By how much it grew.
        grown: Bytes,
    },
    /// It was removed meanwhile.
    Gone {
        /// The cgroup.
        handle: Arc<Handle>,
        /// Who had asked.
        owner: Owner,
    },
    /// The kernel refused to thaw it; it is tried again shortly, and the journal still has it.
    ThawFailed {
        /// The cgroup.
        handle: Arc<Handle>,
        /// Who had asked.
        owner: Owner,
        /// What the kernel answered.
        fault: Fault,
    },
}

#[derive(Clone, Copy, Debug)]
enum Growth {
    Unread,
    Since(MonotonicNs, Bytes),
    Judged,
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
            if let Some(event) = self.look(index, now, journal) {
                return Some(event);
            }
        }
        None
    }

    /// Whether the cgroup at `index` still grows.
    fn look(&mut self, index: usize, now: MonotonicNs, journal: &mut impl Journal) -> Option<BrakeEvent> {
        let brake = &mut self.table[index];
        if now < brake.due(&self.limits) {
            return None;
        }
        let usage = match brake.handle.usage() {
            Ok(usage) => usage,
            Err(Fault::Gone) => {
                let brake = self.table.swap_remove(index);
                journal.clear(brake.handle.id(), Action::Brake);
                return Some(BrakeEvent::Gone { handle: brake.handle, owner: brake.owner });
            }
            // Without a usage of its own, growth cannot be seen; the deadline stays.
            Err(_) => {
                brake.growth = Growth::Judged;
                return None;
            }
        };
        let Growth::Since(_, before) = brake.growth else {
            brake.growth = Growth::Since(now, usage);
            return None;
        };
        brake.growth = Growth::Judged;
        let grown = usage.saturating_sub(before);
        (grown > self.limits.tolerance).then(|| BrakeEvent::StillGrows {
            handle: Arc::clone(&brake.handle),
            owner: brake.owner,
            grown,
        })
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
        let look = match self.growth {
            Growth::Unread => self.since.after(limits.settle),
            Growth::Since(read, _) => read.after(limits.watch),
            Growth::Judged => return self.deadline,
        };
        look.min(self.deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Book, Fake, ms};

    fn brakes() -> Brakes {
        Brakes::with_capacity(BrakeLimits::default(), 2)
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
    fn what_still_grows_is_told_once() {
        for (grown, reported) in [(0, false), (1 << 20, false), ((1 << 20) + 1, true)] {
            let fake = Fake::new("w");
            let (mut brakes, mut book) = (brakes(), Book::default());
            brakes.brake(&fake.handle, Owner(0), ms(0), &mut book).expect("it fits");
            // Growth before the first reading is what was on its way.
            fake.write("memory.current", "900000000\n");
            assert_eq!(brakes.next_due(), Some(ms(5)));
            assert!(brakes.poll(ms(5), &mut book).is_none());
            fake.write("memory.current", &format!("{}\n", 900_000_000 + grown));
            assert!(brakes.poll(ms(19), &mut book).is_none());
            let event = brakes.poll(ms(20), &mut book);
            assert_eq!(matches!(event, Some(BrakeEvent::StillGrows { grown: by, .. }) if by == Bytes(grown)), reported);
            fake.write("memory.current", "2000000000\n");
            assert!(brakes.poll(ms(40), &mut book).is_none());
            assert_eq!(fake.text("cgroup.freeze"), "1");
        }
    }

    #[test]
    fn a_late_look_is_still_a_fair_one() {
        let fake = Fake::new("w");
        let (mut brakes, mut book) = (brakes(), Book::default());
        brakes.brake(&fake.handle, Owner(0), ms(0), &mut book).expect("it fits");
        fake.write("memory.current", "900000000\n");
        assert!(brakes.poll(ms(300), &mut book).is_none());
        assert_eq!(brakes.next_due(), Some(ms(315)));
    }

    #[test]
    fn a_freeze_of_others_is_left_alone() {
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
