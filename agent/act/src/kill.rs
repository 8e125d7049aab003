//! Killed cgroups: each written down before, waited for, and told about once it is empty or stuck.

use crate::journal::{Action, Intent, Journal, JournalFull, Step};
use crate::point::{KillPoint, reached};
use crate::worker::{Job, Workers};
use core::time::Duration;
use plimsoll_node::Fault;
use plimsoll_node::cgroup::Handle;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use std::sync::Arc;

/// How kills behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillLimits {
    /// What has not emptied after this long, and gave back less than an eighth of what it had meanwhile, is stuck: its
    /// memory is not counted on any more. One that gives back has the same time again: on a slow machine a large
    /// process takes longer to end, and somebody else would pay for it.
    pub patience: Duration,
}

impl Default for KillLimits {
    fn default() -> Self {
        Self { patience: Duration::from_millis(500) }
    }
}

/// How a kill began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The kernel sent its processes the signal, as far as cgroup.kill reaches.
    Written,
    /// The kernel has no cgroup.kill: the worker alone kills them.
    OneByOne,
    /// It was gone or empty before: there is nobody to kill.
    Gone,
}

/// Why nothing was killed. Nothing was left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KillRefused {
    /// It was killed just now and is waited for.
    #[error("it was killed already")]
    Already,
    /// As many are waited for as there is room for.
    #[error("as many victims are waited for as there is room for")]
    Full,
    /// The journal is full.
    #[error(transparent)]
    Journal(#[from] JournalFull),
    /// There is no cgroup.kill, and the worker has no room for the job.
    #[error("the worker that would kill its processes one by one is busy")]
    WorkerFull,
    /// The kernel refused.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// What became of a victim.
#[derive(Clone, Debug)]
pub enum KillEvent {
    /// Its last process is gone. Comes after `Stuck` too, if it does in the end.
    Emptied {
        /// The victim.
        handle: Arc<Handle>,
        /// How long it took.
        took: Duration,
        /// What is still charged to it: page cache, tmpfs. Absent where the cgroup was removed at once.
        left: Option<Bytes>,
    },
    /// It has not emptied in time. Told once; it is waited for further, and killed again only if that is decided anew.
    Stuck {
        /// The victim.
        handle: Arc<Handle>,
        /// What is still charged to it.
        left: Option<Bytes>,
    },
}

#[derive(Debug)]
struct Kill {
    handle: Arc<Handle>,
    since: MonotonicNs,
    /// When it counts as stuck unless it gives back; `None` once it was told.
    patience: Option<MonotonicNs>,
    /// What was charged to it when its patience began; absent where that cannot be read.
    had: Option<Bytes>,
}

impl Kill {
    /// Gives it its patience from `now`.
    fn begin(&mut self, now: MonotonicNs, patience: Duration) {
        self.patience = Some(now.after(patience));
        self.had = self.handle.usage().ok();
    }

    fn gives_back(&self) -> bool {
        let left = self.handle.usage().ok();
        self.had.zip(left).is_some_and(|(had, left)| had.saturating_sub(left).0 > had.0 / 8)
    }
}

/// All victims that are waited for.
#[derive(Debug)]
pub struct Kills {
    limits: KillLimits,
    table: Vec<Kill>,
    /// Where the next `poll` looks, so that each call reads each victim once.
    next: usize,
}

impl Kills {
    /// Room for `count` at a time.
    pub fn with_capacity(limits: KillLimits, count: usize) -> Self {
        Self { limits, table: Vec::with_capacity(count), next: 0 }
    }

    /// Kills all of a cgroup: by cgroup.kill, and by a worker that sends each of its processes the signal once more,
    /// since cgroup.kill does not end all of them ([`Job::Kill`]). Where a brake holds it, thaw it when
    /// [`Done::Killed`] says that this was done: until then a process that cgroup.kill has missed would go on. Those
    /// that it has met die in the frozen cgroup as well.
    ///
    /// [`Done::Killed`]: crate::Done::Killed
    pub fn begin(
        &mut self,
        handle: &Arc<Handle>,
        now: MonotonicNs,
        journal: &mut impl Journal,
        workers: &mut Workers,
    ) -> Result<Begun, KillRefused> {
        let before = self.table.iter().position(|kill| kill.handle.id() == handle.id());
        if before.is_some_and(|index| self.table[index].patience.is_some()) {
            return Err(KillRefused::Already);
        }
        if before.is_none() && self.table.len() == self.table.capacity() {
            return Err(KillRefused::Full);
        }
        if matches!(handle.populated(), Ok(false) | Err(Fault::Gone)) {
            return Ok(Begun::Gone);
        }
        let intent = |step| Intent { step, cgroup: handle.id(), path: handle.path(), since: now };
        journal.write(intent(Step::Killing))?;
        reached(KillPoint::KillIntentWritten);
        let begun = match strike(handle, workers) {
            Ok(Begun::Gone) => {
                journal.clear(handle.id(), Action::Kill);
                return Ok(Begun::Gone);
            }
            Ok(begun) => begun,
            Err(refused) => {
                journal.clear(handle.id(), Action::Kill);
                return Err(refused);
            }
        };
        reached(KillPoint::KillWritten);
        // The entry is there, so there is room for its next step; and the deed is done in any case.
        let _ = journal.write(intent(Step::KillWritten));
        reached(KillPoint::KillRecorded);
        match before {
            // It was stuck, and is killed anew.
            Some(index) => {
                self.table[index].since = now;
                self.table[index].begin(now, self.limits.patience);
            }
            None => self.wait_for(handle, now, now),
        }
        Ok(begun)
    }

    /// Waits for a victim that an earlier process killed, or was about to: it has its patience from `now`, and nothing
    /// is written to it. False where there is no room.
    pub fn adopt(&mut self, handle: &Arc<Handle>, since: MonotonicNs, now: MonotonicNs) -> bool {
        if self.waits_for(handle.id()) {
            return true;
        }
        if self.table.len() == self.table.capacity() {
            return false;
        }
        self.wait_for(handle, since, now);
        true
    }

    /// Gives up waiting for a victim.
    pub fn forget(&mut self, cgroup: CgroupId, journal: &mut impl Journal) -> Option<Arc<Handle>> {
        let index = self.table.iter().position(|kill| kill.handle.id() == cgroup)?;
        journal.clear(cgroup, Action::Kill);
        self.next = 0;
        Some(self.table.swap_remove(index).handle)
    }

    /// Gives up waiting for the victim that has been stuck for the longest time, to make room for another one. `None`
    /// where all are hopeful.
    pub fn give_up(&mut self, journal: &mut impl Journal) -> Option<Arc<Handle>> {
        let stuck = self.table.iter().filter(|kill| kill.patience.is_none());
        let oldest = stuck.min_by_key(|kill| kill.since)?.handle.id();
        self.forget(oldest, journal)
    }

    /// Whether this cgroup was killed and is waited for.
    pub fn waits_for(&self, cgroup: CgroupId) -> bool {
        self.table.iter().any(|kill| kill.handle.id() == cgroup)
    }

    /// How many are waited for, the stuck ones included.
    pub fn count(&self) -> usize {
        self.table.len()
    }

    /// How many are waited for that are not stuck: while there are any, poll every few milliseconds.
    pub fn hopeful(&self) -> usize {
        self.table.iter().filter(|kill| kill.patience.is_some()).count()
    }

    /// The next thing that happened up to `now`; call until `None`. Each victim's `cgroup.events` is read once.
    pub fn poll(&mut self, now: MonotonicNs, journal: &mut impl Journal) -> Option<KillEvent> {
        while let Some(kill) = self.table.get_mut(self.next) {
            let empty = match kill.handle.populated() {
                Ok(populated) => !populated,
                Err(Fault::Gone) => true,
                // What cannot be read is not taken for success: it will count as stuck.
                Err(_) => false,
            };
            if empty {
                let Kill { handle, since, .. } = self.table.swap_remove(self.next);
                reached(KillPoint::VictimEmptied);
                journal.clear(handle.id(), Action::Kill);
                reached(KillPoint::KillCleared);
                let left = handle.usage().ok();
                return Some(KillEvent::Emptied { handle, took: now.since(since), left });
            }
            self.next += 1;
            if kill.patience.is_some_and(|patience| patience <= now) {
                if kill.gives_back() {
                    kill.begin(now, self.limits.patience);
                    continue;
                }
                kill.patience = None;
                return Some(KillEvent::Stuck { handle: Arc::clone(&kill.handle), left: kill.handle.usage().ok() });
            }
        }
        self.next = 0;
        None
    }

    fn wait_for(&mut self, handle: &Arc<Handle>, since: MonotonicNs, now: MonotonicNs) {
        let mut kill = Kill { handle: Arc::clone(handle), since, patience: None, had: None };
        kill.begin(now, self.limits.patience);
        self.table.push(kill);
    }
}

fn strike(handle: &Arc<Handle>, workers: &mut Workers) -> Result<Begun, KillRefused> {
    let begun = match handle.kill() {
        Ok(()) => Begun::Written,
        Err(Fault::Gone) => return Ok(Begun::Gone),
        Err(Fault::Absent { .. }) => Begun::OneByOne,
        Err(fault) => return Err(fault.into()),
    };
    // Clones only: whatever is dropped here, the caller still holds, so nothing is closed on this thread.
    let (victim, dying) = (Arc::clone(handle), Arc::clone(handle));
    if workers.kill.submit(Job::Kill(victim)).is_err() && begun == Begun::OneByOne {
        return Err(KillRefused::WorkerFull);
    }
    // Without room for the job the memory only comes back a little later.
    let _ = workers.release.submit(Job::Release(dying));
    Ok(begun)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Book, Fake, ms};

    fn kills() -> (Kills, Workers) {
        let workers = Workers::start(4).expect("threads start");
        (Kills::with_capacity(KillLimits::default(), 2), workers)
    }

    #[test]
    fn a_victim_is_written_down_killed_and_seen_to_be_empty() {
        let fake = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        let begun = kills.begin(&fake.handle, ms(0), &mut book, &mut workers);
        assert_eq!(begun, Ok(Begun::Written));
        assert_eq!(fake.text("cgroup.kill"), "1");
        assert_eq!(book.steps(), [Step::Killing, Step::KillWritten]);
        assert!(kills.poll(ms(499), &mut book).is_none());
        let again = kills.begin(&fake.handle, ms(1), &mut book, &mut workers);
        assert_eq!(again, Err(KillRefused::Already));
        fake.write("cgroup.events", "populated 0\nfrozen 0\n");
        fake.write("memory.current", "4096\n");
        let event = kills.poll(ms(499), &mut book);
        let Some(KillEvent::Emptied { took, left, .. }) = event else { panic!("{event:?}") };
        assert_eq!((took, left), (Duration::from_millis(499), Some(Bytes(4096))));
        assert!(book.is_clear());
        assert!(kills.poll(ms(600), &mut book).is_none());
    }

    #[test]
    fn what_does_not_empty_is_stuck_once_and_not_killed_again_by_itself() {
        let fake = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        kills.begin(&fake.handle, ms(0), &mut book, &mut workers).expect("it fits");
        fake.write("cgroup.kill", "");
        assert!(matches!(kills.poll(ms(500), &mut book), Some(KillEvent::Stuck { left: Some(_), .. })));
        assert_eq!((kills.hopeful(), kills.count()), (0, 1));
        assert!(kills.poll(ms(501), &mut book).is_none());
        assert!(kills.poll(ms(60_000), &mut book).is_none());
        assert_eq!(fake.text("cgroup.kill"), "");
        assert!(!book.is_clear(), "whoever comes next must know");
        fake.write("cgroup.events", "populated 0\nfrozen 0\n");
        assert!(matches!(kills.poll(ms(60_001), &mut book), Some(KillEvent::Emptied { .. })));
        assert!(book.is_clear());
    }

    #[test]
    fn a_victim_that_gives_back_is_not_stuck_and_one_that_hardly_does_is() {
        let fake = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        fake.write("memory.current", "800000\n");
        kills.begin(&fake.handle, ms(0), &mut book, &mut workers).expect("it fits");
        for (at, left) in [(500, "699999\n"), (1000, "600000\n")] {
            fake.write("memory.current", left);
            assert!(kills.poll(ms(at), &mut book).is_none(), "{at}");
            assert!(kills.poll(ms(at + 499), &mut book).is_none(), "{at}");
            assert_eq!(kills.hopeful(), 1);
        }
        // Exactly an eighth is too little.
        fake.write("memory.current", "525000\n");
        let event = kills.poll(ms(1500), &mut book);
        assert!(matches!(event, Some(KillEvent::Stuck { left: Some(Bytes(525_000)), .. })), "{event:?}");
        assert_eq!(kills.hopeful(), 0);
    }

    #[test]
    fn what_is_stuck_can_be_killed_anew_and_makes_room() {
        let fakes = ["a", "b", "c"].map(Fake::new);
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        for (fake, at) in fakes.iter().zip([0, 1]) {
            kills.begin(&fake.handle, ms(at), &mut book, &mut workers).expect("it fits");
        }
        assert!(kills.give_up(&mut book).is_none(), "both are hopeful");
        while kills.poll(ms(501), &mut book).is_some() {}
        assert_eq!(kills.hopeful(), 0);
        // Somebody was started in it meanwhile.
        fakes[0].write("cgroup.kill", "");
        let again = kills.begin(&fakes[0].handle, ms(600), &mut book, &mut workers);
        assert_eq!((again, fakes[0].text("cgroup.kill").as_str()), (Ok(Begun::Written), "1"));
        assert_eq!((kills.count(), kills.hopeful()), (2, 1));
        let again = kills.begin(&fakes[0].handle, ms(601), &mut book, &mut workers);
        assert_eq!(again, Err(KillRefused::Already));
        assert_eq!(kills.begin(&fakes[2].handle, ms(601), &mut book, &mut workers), Err(KillRefused::Full));
        assert_eq!(kills.give_up(&mut book).map(|handle| handle.id()), Some(fakes[1].handle.id()));
        assert_eq!(kills.begin(&fakes[2].handle, ms(601), &mut book, &mut workers), Ok(Begun::Written));
    }

    #[test]
    fn an_adopted_victim_is_waited_for_but_not_written_to() {
        let fake = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        assert!(kills.adopt(&fake.handle, ms(0), ms(10_000)));
        assert_eq!(fake.text("cgroup.kill"), "");
        let begun = kills.begin(&fake.handle, ms(10_001), &mut book, &mut workers);
        assert_eq!(begun, Err(KillRefused::Already));
        assert!(kills.poll(ms(10_499), &mut book).is_none());
        assert!(matches!(kills.poll(ms(10_500), &mut book), Some(KillEvent::Stuck { .. })));
        assert!(kills.forget(fake.handle.id(), &mut book).is_some());
        assert_eq!(kills.count(), 0);
    }

    #[test]
    fn nothing_is_killed_that_is_not_written_down() {
        let fake = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::with_room(0));
        let begun = kills.begin(&fake.handle, ms(0), &mut book, &mut workers);
        assert_eq!(begun, Err(KillRefused::Journal(JournalFull)));
        assert_eq!(fake.text("cgroup.kill"), "");
    }

    #[test]
    fn where_nobody_is_left_nobody_is_killed() {
        let fake = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        fake.write("cgroup.events", "populated 0\nfrozen 0\n");
        let begun = kills.begin(&fake.handle, ms(0), &mut book, &mut workers);
        assert_eq!(begun, Ok(Begun::Gone));
        assert_eq!((fake.text("cgroup.kill").as_str(), kills.count(), book.steps().len()), ("", 0, 0));
    }

    #[test]
    fn room_is_bounded_and_each_victim_is_looked_at() {
        let fakes = ["a", "b", "c"].map(Fake::new);
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        for fake in &fakes[..2] {
            kills.begin(&fake.handle, ms(0), &mut book, &mut workers).expect("it fits");
            fake.write("cgroup.events", "populated 0\nfrozen 0\n");
        }
        let begun = kills.begin(&fakes[2].handle, ms(0), &mut book, &mut workers);
        assert_eq!(begun, Err(KillRefused::Full));
        for _ in 0..2 {
            assert!(matches!(kills.poll(ms(1), &mut book), Some(KillEvent::Emptied { .. })));
        }
        assert!(kills.poll(ms(1), &mut book).is_none());
        assert!(book.is_clear());
    }
}
