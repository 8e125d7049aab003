//! Killed cgroups: each written down before, waited for, and reported once it is empty or stuck.

use crate::journal::{Action, Intent, Journal, JournalFull, Step};
use crate::point::{KillPoint, reached};
use crate::worker::{Job, Workers};
use core::time::Duration;
use plimsoll_node::Fault;
use plimsoll_node::cgroup::{Activity, Handle};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use std::sync::Arc;

/// How kills behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillLimits {
    /// What has not emptied after this long is stuck, unless its exit makes progress: its memory is not counted on any
    /// more. One that makes progress has the same time again. It does if it gave back more than an eighth of what it
    /// had meanwhile; or else if fewer threads than ever are left of it, or they used a hundredth of the time on a CPU.
    pub patience: Duration,
    /// How often in a row it has the same time again for its threads alone, without giving back.
    pub extensions: u8,
    /// How often it is killed again because it grew by more than [`REGROWN`], before it is stuck.
    pub again: u8,
}

/// A victim that has grown by more than this since it was smallest holds memory that is not what was killed: another
/// process was started in it or moved into it.
pub const REGROWN: Bytes = Bytes::mib(16);

impl Default for KillLimits {
    fn default() -> Self {
        Self { patience: Duration::from_millis(500), extensions: 10, again: 3 }
    }
}

/// How long after a kill growth does not count: what was in flight has arrived by then.
const SETTLE: Duration = Duration::from_millis(5);
/// How long the worker has to measure a victim's threads. The decision waits no longer.
const ANSWER: Duration = Duration::from_millis(100);

/// How a kill began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The kernel sent its processes the signal, as far as cgroup.kill reaches.
    Written,
    /// The kernel has no cgroup.kill: the worker alone kills them.
    OneByOne,
    /// It was gone or empty before: there is no process to kill.
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
    /// It grew, so that not all of it is what was killed, and was killed once more.
    Again {
        /// The victim.
        handle: Arc<Handle>,
        /// By how much.
        grown: Bytes,
        /// What was charged to it then.
        left: Bytes,
    },
    /// It has not emptied in time, or went on growing. Reported once; it is waited for further, and killed again only if
    /// that is decided anew.
    Stuck {
        /// The victim.
        handle: Arc<Handle>,
        /// What is still charged to it.
        left: Option<Bytes>,
    },
}

/// How long a victim is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Until then it has time to give back.
    Until(MonotonicNs),
    /// It gave back too little. What its threads do is being measured; without an answer by then it is stuck.
    Measured(MonotonicNs),
    /// It is stuck, and that was reported.
    Stuck,
}

#[derive(Debug)]
struct Kill {
    handle: Arc<Handle>,
    since: MonotonicNs,
    wait: Wait,
    /// What was charged to it when its patience began; absent where that cannot be read.
    had: Option<Bytes>,
    /// What its threads had done when they were measured last.
    activity: Option<Activity>,
    /// The fewest threads it had at any measurement.
    fewest: usize,
    /// How often in a row it had its patience again for its threads alone.
    extended: u8,
    /// When it was killed last.
    signalled: MonotonicNs,
    /// The least that was charged to it since then; absent before the first reading.
    least: Option<Bytes>,
    /// How often it was killed again because it grew.
    again: u8,
}

impl Kill {
    /// Killed at `since`, with its patience from `now`.
    fn new(handle: Arc<Handle>, since: MonotonicNs, now: MonotonicNs, limits: &KillLimits) -> Self {
        let had = handle.usage().ok();
        Self {
            handle,
            since,
            wait: Wait::Until(now.after(limits.patience)),
            had,
            activity: None,
            fewest: usize::MAX,
            extended: 0,
            signalled: now,
            least: None,
            again: 0,
        }
    }

    /// Gives it its patience from `now`.
    fn begin(&mut self, now: MonotonicNs, patience: Duration) {
        self.wait = Wait::Until(now.after(patience));
        self.had = self.handle.usage().ok();
    }

    /// By how much it has grown and what is charged to it, where that shows that it is not only what was killed.
    fn regrown(&mut self, now: MonotonicNs) -> Option<(Bytes, Bytes)> {
        if now < self.signalled.after(SETTLE) {
            return None;
        }
        let usage = self.handle.usage().ok()?;
        let least = self.least.map_or(usage, |least| least.min(usage));
        self.least = Some(least);
        let grown = usage.saturating_sub(least);
        (grown > REGROWN).then_some((grown, usage))
    }

    fn gives_back(&self) -> bool {
        let left = self.handle.usage().ok();
        self.had.zip(left).is_some_and(|(had, left)| had.saturating_sub(left).0 > had.0 / 8)
    }

    /// Takes what its threads have done by now, and gives whether they are on their way out. All of them were sent
    /// SIGKILL: those that run, run towards their end. Page tables are given back last of all, so usage alone does not
    /// say so.
    fn goes_on(&mut self, activity: Option<Activity>, limits: &KillLimits) -> bool {
        let before = std::mem::replace(&mut self.activity, activity);
        let Some(now) = activity else { return false };
        let fewest = self.fewest;
        self.fewest = fewest.min(now.threads);
        before.is_some_and(|before| now.threads < fewest || now.cpu.saturating_sub(before.cpu) >= limits.patience / 100)
    }
}

/// All victims that are waited for.
#[derive(Debug)]
pub struct Kills {
    limits: KillLimits,
    table: Vec<Kill>,
    /// Where the next `poll` goes on, so that each call reads each victim once.
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
        if before.is_some_and(|index| self.table[index].wait != Wait::Stuck) {
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
        // The entry is there, so there is room for its next step; and the kill is done in any case.
        let _ = journal.write(intent(Step::KillWritten));
        reached(KillPoint::KillRecorded);
        match before {
            // It was stuck, and is killed anew.
            Some(index) => {
                let handle = Arc::clone(&self.table[index].handle);
                self.table[index] = Kill::new(handle, now, now, &self.limits);
            }
            None => self.table.push(Kill::new(Arc::clone(handle), now, now, &self.limits)),
        }
        Ok(begun)
    }

    /// Waits for a victim that an earlier process killed, or was about to: it has its patience from `now`, and nothing
    /// is written to it, also where it grows: then it is stuck. False where there is no room.
    pub fn adopt(&mut self, handle: &Arc<Handle>, since: MonotonicNs, now: MonotonicNs) -> bool {
        if self.waits_for(handle.id()) {
            return true;
        }
        if self.table.len() == self.table.capacity() {
            return false;
        }
        self.table.push(Kill { again: self.limits.again, ..Kill::new(Arc::clone(handle), since, now, &self.limits) });
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
        let stuck = self.table.iter().filter(|kill| kill.wait == Wait::Stuck);
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
        self.table.iter().filter(|kill| kill.wait != Wait::Stuck).count()
    }

    /// Takes what [`Done::Measured`](crate::Done::Measured) says of a cgroup. One that is no victim is passed over.
    pub fn measured(&mut self, cgroup: CgroupId, activity: Option<Activity>, now: MonotonicNs) {
        let Some(kill) = self.table.iter_mut().find(|kill| kill.handle.id() == cgroup) else { return };
        let goes_on = kill.goes_on(activity, &self.limits);
        if let Wait::Measured(_) = kill.wait {
            if goes_on && kill.extended < self.limits.extensions {
                kill.extended += 1;
                kill.begin(now, self.limits.patience);
            } else {
                kill.wait = Wait::Measured(now);
            }
        }
    }

    /// The next thing that happened up to `now`; call until `None`. Each victim's `cgroup.events` is read once.
    pub fn poll(&mut self, now: MonotonicNs, journal: &mut impl Journal, workers: &mut Workers) -> Option<KillEvent> {
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
            if kill.wait == Wait::Stuck {
                continue;
            }
            if let Some((grown, left)) = kill.regrown(now) {
                if kill.again < self.limits.again && strike(&kill.handle, workers).is_ok() {
                    kill.again += 1;
                    (kill.signalled, kill.least) = (now, None);
                    kill.begin(now, self.limits.patience);
                    return Some(KillEvent::Again { handle: Arc::clone(&kill.handle), grown, left });
                }
                kill.wait = Wait::Stuck;
                return Some(KillEvent::Stuck { handle: Arc::clone(&kill.handle), left: Some(left) });
            }
            match kill.wait {
                Wait::Until(over) if over <= now => {
                    if kill.gives_back() {
                        kill.extended = 0;
                        kill.begin(now, self.limits.patience);
                        continue;
                    }
                    if workers.kill.submit(Job::Measure(Arc::clone(&kill.handle))).is_ok() {
                        kill.wait = Wait::Measured(now.after(ANSWER));
                        continue;
                    }
                }
                Wait::Measured(over) if over <= now => {}
                Wait::Until(_) | Wait::Measured(_) | Wait::Stuck => continue,
            }
            kill.wait = Wait::Stuck;
            return Some(KillEvent::Stuck { handle: Arc::clone(&kill.handle), left: kill.handle.usage().ok() });
        }
        self.next = 0;
        None
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
    let [victim, measured, dying] = [(); 3].map(|()| Arc::clone(handle));
    if workers.kill.submit(Job::Kill(victim)).is_err() && begun == Begun::OneByOne {
        return Err(KillRefused::WorkerFull);
    }
    // Without what it was at first, its threads' progress is not seen, and it is stuck the sooner.
    let _ = workers.kill.submit(Job::Measure(measured));
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

    /// What happened up to `at`, after whatever is being measured was measured.
    fn poll_measured(kills: &mut Kills, workers: &mut Workers, book: &mut Book, at: u64) -> Option<KillEvent> {
        let event = kills.poll(ms(at), book, workers);
        let asked =
            |kills: &Kills| kills.table.iter().filter(|kill| kill.wait == Wait::Measured(ms(at).after(ANSWER))).count();
        if event.is_some() || asked(kills) == 0 {
            return event;
        }
        while asked(kills) > 0 {
            if let Some(crate::Done::Measured { cgroup, activity }) = workers.poll() {
                kills.measured(cgroup, activity, ms(at));
            }
        }
        kills.poll(ms(at), book, workers)
    }

    #[test]
    fn a_victim_is_written_down_killed_and_seen_to_be_empty() {
        let fake = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        let begun = kills.begin(&fake.handle, ms(0), &mut book, &mut workers);
        assert_eq!(begun, Ok(Begun::Written));
        assert_eq!(fake.text("cgroup.kill"), "1");
        assert_eq!(book.steps(), [Step::Killing, Step::KillWritten]);
        assert!(kills.poll(ms(499), &mut book, &mut workers).is_none());
        let again = kills.begin(&fake.handle, ms(1), &mut book, &mut workers);
        assert_eq!(again, Err(KillRefused::Already));
        fake.write("cgroup.events", "populated 0\nfrozen 0\n");
        fake.write("memory.current", "4096\n");
        let event = kills.poll(ms(499), &mut book, &mut workers);
        let Some(KillEvent::Emptied { took, left, .. }) = event else { panic!("{event:?}") };
        assert_eq!((took, left), (Duration::from_millis(499), Some(Bytes(4096))));
        assert!(book.is_clear());
        assert!(kills.poll(ms(600), &mut book, &mut workers).is_none());
    }

    #[test]
    fn what_does_not_empty_is_stuck_once_and_not_killed_again_by_itself() {
        let fake = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        kills.begin(&fake.handle, ms(0), &mut book, &mut workers).expect("it fits");
        fake.write("cgroup.kill", "");
        let event = poll_measured(&mut kills, &mut workers, &mut book, 500);
        assert!(matches!(event, Some(KillEvent::Stuck { left: Some(_), .. })), "{event:?}");
        assert_eq!((kills.hopeful(), kills.count()), (0, 1));
        assert!(kills.poll(ms(501), &mut book, &mut workers).is_none());
        assert!(kills.poll(ms(60_000), &mut book, &mut workers).is_none());
        assert_eq!(fake.text("cgroup.kill"), "");
        assert!(!book.is_clear(), "the next process must know");
        fake.write("cgroup.events", "populated 0\nfrozen 0\n");
        assert!(matches!(kills.poll(ms(60_001), &mut book, &mut workers), Some(KillEvent::Emptied { .. })));
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
            assert!(kills.poll(ms(at), &mut book, &mut workers).is_none(), "{at}");
            assert!(kills.poll(ms(at + 499), &mut book, &mut workers).is_none(), "{at}");
            assert_eq!(kills.hopeful(), 1);
        }
        // Exactly an eighth is too little.
        fake.write("memory.current", "525000\n");
        let event = poll_measured(&mut kills, &mut workers, &mut book, 1500);
        assert!(matches!(event, Some(KillEvent::Stuck { left: Some(Bytes(525_000)), .. })), "{event:?}");
        assert_eq!(kills.hopeful(), 0);
    }

    #[test]
    fn a_victim_whose_threads_run_or_end_is_not_stuck_yet() {
        let page_tables = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        let does = |used_us: u64, threads: usize| {
            page_tables.write("cpu.stat", &format!("usage_usec {used_us}\n"));
            page_tables.write("cgroup.threads", &"7\n".repeat(threads));
        };
        does(1_000_000, 3);
        kills.begin(&page_tables.handle, ms(0), &mut book, &mut workers).expect("it fits");
        // What it did by the time of the kill.
        while kills.table[0].activity.is_none() {
            if let Some(crate::Done::Measured { cgroup, activity }) = workers.poll() {
                kills.measured(cgroup, activity, ms(1));
            }
        }
        let mut at = 500;
        // A hundredth of the time on a CPU, then one thread less; without either it is stuck.
        for (used_us, threads, goes_on) in [(1_005_000, 3, true), (1_009_999, 2, true), (1_014_998, 2, false)] {
            does(used_us, threads);
            let event = poll_measured(&mut kills, &mut workers, &mut book, at);
            assert_eq!(event.is_none(), goes_on, "{used_us} us, {threads} threads: {event:?}");
            at += 500;
        }
        assert_eq!(kills.hopeful(), 0);
    }

    #[test]
    fn threads_that_run_for_ever_are_not_waited_for_without_end() {
        let fake = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        let mut used = 0;
        let mut runs = || {
            used += 500_000;
            fake.write("cpu.stat", &format!("usage_usec {used}\n"));
        };
        runs();
        kills.begin(&fake.handle, ms(0), &mut book, &mut workers).expect("it fits");
        while kills.table[0].activity.is_none() {
            if let Some(crate::Done::Measured { cgroup, activity }) = workers.poll() {
                kills.measured(cgroup, activity, ms(1));
            }
        }
        for round in 1..=u64::from(KillLimits::default().extensions) {
            runs();
            assert!(poll_measured(&mut kills, &mut workers, &mut book, round * 500).is_none(), "{round}");
        }
        runs();
        let event = poll_measured(&mut kills, &mut workers, &mut book, 5500);
        assert!(matches!(event, Some(KillEvent::Stuck { .. })), "{event:?}");
    }

    #[test]
    fn a_victim_that_is_refilled_is_killed_again_and_in_the_end_stuck() {
        let fake = Fake::new("w");
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        let uses = |mib: u64| fake.write("memory.current", &format!("{}\n", mib << 20));
        uses(100);
        kills.begin(&fake.handle, ms(0), &mut book, &mut workers).expect("it fits");
        // What was on its way arrives, then it dies to 40 MiB; up to 16 MiB more is nothing yet.
        for (at, mib) in [(4, 200), (5, 200), (6, 40), (7, 56)] {
            fake.write("cgroup.kill", "");
            uses(mib);
            assert!(kills.poll(ms(at), &mut book, &mut workers).is_none(), "{mib} MiB");
        }
        for (at, mib) in [(8, 57), (108, 74), (208, 91)] {
            uses(mib);
            let event = kills.poll(ms(at), &mut book, &mut workers);
            let Some(KillEvent::Again { grown, left, .. }) = event else { panic!("{mib} MiB: {event:?}") };
            assert_eq!((grown, left), (Bytes::mib(17), Bytes::mib(mib)));
            assert_eq!(fake.text("cgroup.kill"), "1");
            fake.write("cgroup.kill", "");
            assert!(kills.poll(ms(at), &mut book, &mut workers).is_none());
            assert!(kills.poll(ms(at + 5), &mut book, &mut workers).is_none());
        }
        // Its time began anew with the last of them.
        assert!(kills.poll(ms(707), &mut book, &mut workers).is_none());
        assert_eq!(kills.table[0].again, KillLimits::default().again);
        uses(108);
        let event = kills.poll(ms(707), &mut book, &mut workers);
        assert!(
            matches!(event, Some(KillEvent::Stuck { left: Some(left), .. }) if left == Bytes::mib(108)),
            "{event:?}"
        );
        assert_eq!(fake.text("cgroup.kill"), "");
    }

    #[test]
    fn what_is_stuck_can_be_killed_anew_and_makes_room() {
        let fakes = ["a", "b", "c"].map(Fake::new);
        let ((mut kills, mut workers), mut book) = (kills(), Book::default());
        for (fake, at) in fakes.iter().zip([0, 1]) {
            kills.begin(&fake.handle, ms(at), &mut book, &mut workers).expect("it fits");
        }
        assert!(kills.give_up(&mut book).is_none(), "both are hopeful");
        while poll_measured(&mut kills, &mut workers, &mut book, 501).is_some() {}
        assert_eq!(kills.hopeful(), 0);
        // A process was started in it meanwhile.
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
        assert!(kills.poll(ms(10_499), &mut book, &mut workers).is_none());
        assert!(kills.poll(ms(10_500), &mut book, &mut workers).is_none());
        // No word from the worker.
        assert!(matches!(kills.poll(ms(10_600), &mut book, &mut workers), Some(KillEvent::Stuck { .. })));
        assert!(kills.forget(fake.handle.id(), &mut book).is_some());
        assert_eq!(kills.count(), 0);
        // It may not have been killed at all: that is not done unasked.
        assert!(kills.adopt(&fake.handle, ms(0), ms(20_000)));
        assert!(kills.poll(ms(20_005), &mut book, &mut workers).is_none());
        fake.write("memory.current", "1000000000\n");
        assert!(matches!(kills.poll(ms(20_006), &mut book, &mut workers), Some(KillEvent::Stuck { .. })));
        assert_eq!(fake.text("cgroup.kill"), "");
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
    fn an_empty_cgroup_is_not_killed() {
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
            assert!(matches!(kills.poll(ms(1), &mut book, &mut workers), Some(KillEvent::Emptied { .. })));
        }
        assert!(kills.poll(ms(1), &mut book, &mut workers).is_none());
        assert!(book.is_clear());
    }
}
