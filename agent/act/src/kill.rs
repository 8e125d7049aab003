//! Killed cgroups: each written down before, waited for, and reported once it is empty or stuck.
//!
//! cgroup.kill is written by a worker, because it waits for a lock of all cgroups. Another worker sends each process the
//! signal at the same time, which waits for none.
//!
//! How a victim is waited for:
//!
//! | from | when | to |
//! |---|---|---|
//! | | it is killed, sent the signal, or killed again | `Until` its patience is over |
//! | `Until` | that is over, and it was not sent the signal yet | `Until` again, so often in a row; then as below |
//! | `Until` | that is over, and it gave back more than an eighth | `Until` again |
//! | `Until` | that is over, and it gave back less | `Measured` |
//! | `Measured` | its threads run or end | `Until` again, until they used so much of a CPU without giving back |
//! | `Measured` | its threads neither run nor end | `Idle` |
//! | `Measured` | there is no answer in time | `Until` again, so often in a row; then `Stuck` |
//! | `Idle` | it is polled | `Stuck` |
//! | any but `Stuck` | it grew | killed again, so often; then `Stuck` |
//! | any but `Stuck` | a container was started in it, or a part of it was not sent the signal | killed again, so often |
//! | any | none of its processes is left | reported as emptied, and forgotten |

use crate::journal::{Action, Intent, Journal, JournalFull, Step};
use crate::point::{KillPoint, reached};
use crate::release::HEAD_START;
use crate::worker::{Done, Job, Workers};
use core::time::Duration;
use plimsoll_node::Fault;
use plimsoll_node::cgroup::{Activity, Handle, Population};
use plimsoll_node::clock::monotonic;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use std::sync::Arc;

/// How kills behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillLimits {
    /// What has not emptied after this long is stuck, unless its exit makes progress: its memory is not counted on any
    /// more. One that makes progress has the same time again. It does if it gave back more than an eighth of what it
    /// had meanwhile; or else if fewer threads than ever are left of it, or they used a hundredth of the time on a CPU.
    pub patience: Duration,
    /// How many times `patience` of CPU time its threads may use in a row without giving back; each time counts as a tenth
    /// of `patience` at least. It is CPU time because a victim's exit has only a part of a CPU on a machine without memory
    /// or under a CPU limit.
    ///
    /// Also how often in a row it has the same time again while its processes were not sent the signal yet, or while the
    /// worker does not measure its threads. That is no fault of the victim's, and the next one would wait for the same
    /// workers.
    pub extensions: u8,
    /// How often it is killed again because it grew by more than [`REGROWN`], before it is stuck.
    pub again: u8,
    /// Between two polls no more than this counts towards patience: where more time passed, the machine did not run (a
    /// hypervisor paused it, or gave its processors to another one), and a victim could not die either.
    pub pause: Duration,
}

/// The part of its patience that a turn counts as at least, however little its threads used of a CPU: one of so many.
const LEAST_TURN: u32 = 10;

/// A victim that has grown by more than this since it was smallest holds memory that is not what was killed: another
/// process was started in it or moved into it.
pub const REGROWN: Bytes = Bytes::mib(16);

impl Default for KillLimits {
    fn default() -> Self {
        Self { patience: Duration::from_millis(500), extensions: 10, again: 3, pause: Duration::from_millis(50) }
    }
}

/// How long after a kill growth does not count: what was in flight has arrived by then.
const SETTLE: Duration = Duration::from_millis(5);
/// How long the worker has to measure a victim's threads. The decision waits no longer.
const ANSWER: Duration = Duration::from_millis(100);

/// How a kill began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Its processes are sent the signal, by cgroup.kill where the kernel has it, and one by one.
    Requested,
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
    /// The worker has no room for the job.
    #[error("the worker that would kill its processes one by one is busy")]
    WorkerFull,
}

/// What became of a victim.
#[derive(Clone, Debug)]
pub enum KillEvent {
    /// The first of the two ways in which its processes are sent the signal is done, at this time.
    Signalled {
        /// The victim.
        handle: Arc<Handle>,
        /// When.
        at: MonotonicNs,
    },
    /// Its last process is gone. Comes after `Stuck` too, if it does in the end.
    Emptied {
        /// The victim.
        handle: Arc<Handle>,
        /// How long it took.
        took: Duration,
        /// What is still charged to it: page cache, tmpfs. Absent where the cgroup was removed at once.
        left: Option<Bytes>,
    },
    /// The kernel refused cgroup.kill, and no process was found that could be sent the signal. Nothing was left behind.
    Refused {
        /// The victim.
        handle: Arc<Handle>,
        /// What the kernel answered.
        fault: Fault,
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

/// What lives in a victim that was killed by its parts: none of those that are kept open is populated, and something else
/// in it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Unknown,
    /// A worker counts its threads.
    Asked,
    /// It has so many besides what is spared.
    Threads(usize),
}

/// How long a victim is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Until then it has time to give back.
    Until(MonotonicNs),
    /// It gave back too little. What its threads do is being measured, until then.
    Measured(MonotonicNs),
    /// Its threads neither run nor end: the next poll reports that it is stuck.
    Idle,
    /// It is stuck, and that was reported.
    Stuck,
}

/// Which of a victim's processes were sent the signal one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    /// All that could be found, or it is not known yet.
    All,
    /// Some: the time for that ended before.
    Some,
    /// None.
    None,
}

#[derive(Debug)]
struct Kill {
    handle: Arc<Handle>,
    since: MonotonicNs,
    /// Its processes were sent the signal, and the journal has that.
    is_signalled: bool,
    /// What the kernel answered where it refused cgroup.kill.
    refusal: Option<Fault>,
    /// Which processes were sent the signal one by one.
    reached: Reached,
    wait: Wait,
    /// What was charged to it when its patience began; absent where that cannot be read.
    had: Option<Bytes>,
    /// The worker has answered to the kill itself what its threads did.
    is_measured: bool,
    /// What its threads had done when they were measured last.
    activity: Option<Activity>,
    /// The fewest threads it had at any measurement.
    fewest: usize,
    /// CPU time that its threads used in turns for them alone, since it gave back last.
    spent: Duration,
    /// How often in a row it had its patience again for the workers' sake.
    extended: u8,
    /// When it was sent the signal last; when that was requested where it was not sent yet.
    signalled: MonotonicNs,
    /// The least that was charged to it since then; absent before the first reading.
    least: Option<Bytes>,
    /// How often it was killed again because it grew, or because a part of it came later.
    again: u8,
    rest: Rest,
}

impl Kill {
    /// Killed at `since`, with its patience from `now`.
    fn new(handle: Arc<Handle>, since: MonotonicNs, now: MonotonicNs, limits: &KillLimits) -> Self {
        let had = handle.usage().ok();
        Self {
            handle,
            since,
            is_signalled: false,
            refusal: None,
            reached: Reached::All,
            wait: Wait::Until(now.after(limits.patience)),
            had,
            is_measured: false,
            activity: None,
            fewest: usize::MAX,
            spent: Duration::ZERO,
            extended: 0,
            signalled: now,
            least: None,
            again: 0,
            rest: Rest::Unknown,
        }
    }

    /// Gives it so much more time.
    fn put_off(&mut self, by: Duration) {
        if let Wait::Until(over) | Wait::Measured(over) = &mut self.wait {
            *over = over.after(by);
        }
    }

    /// Gives it its patience from `now`.
    fn begin(&mut self, now: MonotonicNs, patience: Duration) {
        self.wait = Wait::Until(now.after(patience));
        self.had = self.handle.usage().ok();
    }

    /// By how much it has grown and what is charged to it, where that shows that it is not only what was killed.
    fn regrown(&mut self, now: MonotonicNs) -> Option<(Bytes, Bytes)> {
        // Until it was sent the signal it goes on as before: what it takes is not refilled.
        if !self.is_signalled || now < self.signalled.after(SETTLE) {
            return None;
        }
        let usage = self.handle.usage().ok()?;
        let least = self.least.map_or(usage, |least| least.min(usage));
        self.least = Some(least);
        let grown = usage.saturating_sub(least);
        (grown > REGROWN).then_some((grown, usage))
    }

    /// Whether none of its processes is left that is not spared. What cannot be read is not taken for success: it will
    /// count as stuck.
    fn is_empty(&mut self, workers: &mut Workers) -> bool {
        match self.handle.population() {
            Ok(Population::Empty) | Err(Fault::Gone) => true,
            Ok(Population::PerhapsSpared) => {
                if self.rest == Rest::Unknown && workers.kill.submit(Job::Measure(Arc::clone(&self.handle))).is_ok() {
                    self.rest = Rest::Asked;
                }
                self.rest == Rest::Threads(0)
            }
            Ok(Population::Populated) | Err(_) => false,
        }
    }

    /// Has it killed once more. False: it was killed as often as it may be, or the workers have no room.
    fn kill_again(&mut self, now: MonotonicNs, limits: &KillLimits, workers: &mut Workers) -> bool {
        if self.again >= limits.again || !submit_kill(&self.handle, limits.patience, workers) {
            return false;
        }
        self.again += 1;
        (self.signalled, self.least) = (now, None);
        self.begin(now, limits.patience);
        true
    }

    fn gives_back(&self) -> bool {
        let left = self.handle.usage().ok();
        self.had.zip(left).is_some_and(|(had, left)| had.saturating_sub(left).0 > had.0 / 8)
    }

    /// Takes what its threads have done by now. Where they are on their way out, gives what that turn counts as. Once all
    /// of them were sent SIGKILL, those that run, run towards their end. Page tables are given back last of all, so usage
    /// alone does not say so.
    fn goes_on(&mut self, activity: Option<Activity>, limits: &KillLimits) -> Option<Duration> {
        let before = std::mem::replace(&mut self.activity, activity);
        let (now, fewest) = (activity?, self.fewest);
        self.fewest = now.threads.map_or(fewest, |threads| threads.min(fewest));
        let used = now.cpu.saturating_sub(before?.cpu);
        let does = self.is_signalled && (self.fewest < fewest || used >= limits.patience / 100);
        does.then(|| used.max(limits.patience / LEAST_TURN))
    }

    /// Gives it its patience from `now` for the workers' sake. False: it had it as often as it may.
    fn extend(&mut self, now: MonotonicNs, limits: &KillLimits) -> bool {
        let may = self.extended < limits.extensions;
        if may {
            self.extended += 1;
            self.begin(now, limits.patience);
        }
        may
    }
}

/// All victims that are waited for.
#[derive(Debug)]
pub struct Kills {
    limits: KillLimits,
    table: Vec<Kill>,
    /// Where the next `poll` goes on, so that each call reads each victim once.
    next: usize,
    /// When it was polled last, or the first of those that are waited for was killed.
    polled: MonotonicNs,
}

impl Kills {
    /// Room for `count` at a time.
    pub fn with_capacity(limits: KillLimits, count: usize) -> Self {
        Self { limits, table: Vec::with_capacity(count), next: 0, polled: MonotonicNs(0) }
    }

    /// Has all of a cgroup killed: by cgroup.kill, and by a worker that sends each of its processes the signal, since
    /// cgroup.kill does not end all of them ([`Job::Kill`]) and may have to wait. Where a brake holds it, thaw it when
    /// [`Done::Killed`] says that this was done: until then a process that cgroup.kill has missed would go on. Those
    /// that it has met die in the frozen cgroup as well.
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
        journal.write(Intent::of(Step::Killing, handle, now))?;
        reached(KillPoint::KillIntentWritten);
        if !submit_kill(handle, self.limits.patience, workers) {
            journal.clear(handle.id(), Action::Kill);
            return Err(KillRefused::WorkerFull);
        }
        self.leave_out_pause(now);
        match before {
            // It was stuck, and is killed anew.
            Some(index) => {
                let handle = Arc::clone(&self.table[index].handle);
                self.table[index] = Kill::new(handle, now, now, &self.limits);
            }
            None => self.table.push(Kill::new(Arc::clone(handle), now, now, &self.limits)),
        }
        Ok(Begun::Requested)
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
        self.leave_out_pause(now);
        let new = Kill::new(Arc::clone(handle), since, now, &self.limits);
        // Nothing is measured when it is adopted.
        self.table.push(Kill { again: self.limits.again, is_signalled: true, is_measured: true, ..new });
        true
    }

    /// Kills none of the victims again that there are now: one that grows is stuck.
    pub fn kill_none_again(&mut self) {
        self.table.iter_mut().for_each(|kill| kill.again = self.limits.again);
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

    /// Those that are waited for and not stuck.
    pub fn dying(&self) -> impl Iterator<Item = CgroupId> {
        self.table.iter().filter(|kill| kill.wait != Wait::Stuck).map(|kill| kill.handle.id())
    }

    /// Whether a victim's processes were not sent the signal yet: while there is one, poll the workers every few
    /// milliseconds.
    pub fn awaits_signal(&self) -> bool {
        self.table.iter().any(|kill| !kill.is_signalled)
    }

    /// The same of one victim.
    pub fn awaits_signal_of(&self, cgroup: CgroupId) -> bool {
        self.table.iter().any(|kill| kill.handle.id() == cgroup && !kill.is_signalled)
    }

    /// Takes a worker's result in. One that is about no victim is passed over.
    pub fn done(&mut self, done: Done, now: MonotonicNs, journal: &mut impl Journal) -> Option<KillEvent> {
        match done {
            Done::KillWritten { cgroup, outcome, at } => {
                self.find(cgroup)?.refusal = outcome.err().filter(|fault| *fault != Fault::Gone);
                self.signalled(cgroup, outcome.is_ok().then_some(at), now, journal)
            }
            Done::Killed { cgroup, sent, is_whole, at } => {
                let kill = self.find(cgroup)?;
                kill.reached = match sent {
                    0 => Reached::None,
                    _ if is_whole => Reached::All,
                    _ => Reached::Some,
                };
                self.signalled(cgroup, (sent > 0).then_some(at), now, journal)
            }
            Done::Measured { cgroup, activity } => {
                self.measured(cgroup, activity, now);
                None
            }
            _ => None,
        }
    }

    fn find(&mut self, cgroup: CgroupId) -> Option<&mut Kill> {
        self.table.iter_mut().find(|kill| kill.handle.id() == cgroup)
    }

    /// One of the two ways to send the signal is done: `at` is when, where a process was reached.
    fn signalled(
        &mut self,
        cgroup: CgroupId,
        at: Option<MonotonicNs>,
        now: MonotonicNs,
        journal: &mut impl Journal,
    ) -> Option<KillEvent> {
        let patience = self.limits.patience;
        let kill = self.find(cgroup)?;
        if let Some(fault) = kill.refusal
            && kill.reached == Reached::None
            && !kill.is_signalled
        {
            return Some(KillEvent::Refused { handle: self.forget(cgroup, journal)?, fault });
        }
        let at = at?;
        if std::mem::replace(&mut kill.is_signalled, true) {
            return None;
        }
        kill.signalled = now;
        (kill.extended, kill.spent) = (0, Duration::ZERO);
        kill.begin(now, patience);
        // The entry is there, so there is room for its next step; and the kill is done in any case.
        let _ = journal.write(Intent::of(Step::KillWritten, &kill.handle, kill.since));
        reached(KillPoint::KillRecorded);
        Some(KillEvent::Signalled { handle: Arc::clone(&kill.handle), at })
    }

    fn measured(&mut self, cgroup: CgroupId, activity: Option<Activity>, now: MonotonicNs) {
        let limits = self.limits;
        let Some(kill) = self.find(cgroup) else { return };
        // The answer to the kill itself, which a busy worker gives late: the one that is waited for follows.
        let is_first = !std::mem::replace(&mut kill.is_measured, true);
        if kill.rest == Rest::Asked {
            kill.rest = activity.and_then(|activity| activity.threads).map_or(Rest::Unknown, Rest::Threads);
        }
        let turn = kill.goes_on(activity, &limits);
        if let Wait::Measured(_) = kill.wait {
            if let Some(turn) = turn
                && kill.spent < limits.patience * u32::from(limits.extensions)
            {
                kill.spent += turn;
                kill.extended = 0;
                kill.begin(now, limits.patience);
            } else if !is_first {
                kill.wait = Wait::Idle;
            }
        }
    }

    /// Puts off the end of each victim's patience by the time in which the machine did not run since the last poll.
    fn leave_out_pause(&mut self, now: MonotonicNs) {
        let paused = now.since(self.polled).saturating_sub(self.limits.pause);
        self.table.iter_mut().for_each(|kill| kill.put_off(paused));
        self.polled = now;
    }

    /// The next thing that happened up to `now`; call until `None`, and every few milliseconds while a victim is
    /// [hopeful](Self::hopeful). Each victim's `cgroup.events` is read once.
    pub fn poll(&mut self, now: MonotonicNs, journal: &mut impl Journal, workers: &mut Workers) -> Option<KillEvent> {
        self.leave_out_pause(now);
        while let Some(kill) = self.table.get_mut(self.next) {
            if kill.is_empty(workers) {
                let Kill { handle, since, .. } = self.table.swap_remove(self.next);
                reached(KillPoint::VictimEmptied);
                journal.clear(handle.id(), Action::Kill);
                reached(KillPoint::KillCleared);
                let left = handle.usage().ok();
                return Some(KillEvent::Emptied { handle, took: now.since(since), left });
            }
            self.next += 1;
            // A container was started in it meanwhile. Where that may not be killed as well, the victim is stuck.
            let has_newcomer = matches!(kill.rest, Rest::Threads(1..));
            if has_newcomer {
                kill.rest = Rest::Unknown;
            }
            if kill.wait == Wait::Stuck {
                continue;
            }
            // Without cgroup.kill, those that were not reached go on.
            let is_partial = kill.refusal.is_some() && kill.reached == Reached::Some;
            if (has_newcomer || is_partial) && kill.kill_again(now, &self.limits, workers) {
                kill.reached = Reached::All;
            }
            if let Some((grown, left)) = kill.regrown(now) {
                if kill.kill_again(now, &self.limits, workers) {
                    return Some(KillEvent::Again { handle: Arc::clone(&kill.handle), grown, left });
                }
                kill.wait = Wait::Stuck;
                return Some(KillEvent::Stuck { handle: Arc::clone(&kill.handle), left: Some(left) });
            }
            match kill.wait {
                Wait::Until(over) if over <= now => {
                    if !kill.is_signalled && kill.extend(now, &self.limits) {
                        continue;
                    }
                    if kill.gives_back() {
                        (kill.extended, kill.spent) = (0, Duration::ZERO);
                        kill.begin(now, self.limits.patience);
                        continue;
                    }
                    if workers.kill.submit(Job::Measure(Arc::clone(&kill.handle))).is_ok() {
                        kill.wait = Wait::Measured(now.after(ANSWER));
                        continue;
                    }
                    if kill.extend(now, &self.limits) {
                        continue;
                    }
                }
                Wait::Measured(over) if over <= now => {
                    if kill.extend(now, &self.limits) {
                        continue;
                    }
                }
                Wait::Idle => {}
                Wait::Until(_) | Wait::Measured(_) | Wait::Stuck => continue,
            }
            kill.wait = Wait::Stuck;
            return Some(KillEvent::Stuck { handle: Arc::clone(&kill.handle), left: kill.handle.usage().ok() });
        }
        self.next = 0;
        None
    }
}

/// Has the workers kill a cgroup. False: they have no room.
fn submit_kill(handle: &Arc<Handle>, patience: Duration, workers: &mut Workers) -> bool {
    // Clones only: whatever is dropped here, the caller still holds, so nothing is closed on this thread.
    let [written, victim, measured, dying] = [(); 4].map(|()| Arc::clone(handle));
    // A worker may come to it so late that the cgroup was empty meanwhile and is used again.
    let late = monotonic().after(patience);
    // First, because it reaches all at once.
    let is_written = handle.has_kill() && workers.write.submit(Job::WriteKill(written, late)).is_ok();
    // Where nothing else kills it, it is not empty until this has come to it.
    let by = if is_written { late } else { MonotonicNs(u64::MAX) };
    let is_sent = workers.kill.submit(Job::Kill(victim, by)).is_ok();
    if !is_written && !is_sent {
        return false;
    }
    // Without what it was at first, its threads' progress is not seen, and it is stuck the sooner.
    let _ = workers.kill.submit(Job::Measure(measured));
    // Without room for the job the memory only comes back a little later.
    let _ = workers.release.submit(Job::Release(dying, monotonic().after(HEAD_START)));
    true
}

#[cfg(test)]
mod tests;
