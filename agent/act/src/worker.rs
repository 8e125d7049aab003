//! Threads for what opens files or blocks: freezes, thaws and kills of cgroups, signals to single processes, taking a
//! dying process's memory, reclaim, figures that a decision needs anew.
//!
//! Jobs go in and results come out through bounded queues; neither side ever waits for the other.

use crate::journal::StopJournal;
use crate::point::{KillPoint, reached};
use crate::release::release;
use crate::signalling::{Killing, stop, terminate};
use plimsoll_node::Fault;
use plimsoll_node::cgroup::{Activity, Handle, PageCache};
use plimsoll_node::clock::monotonic;
use plimsoll_node::vmstat;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

/// How many processes of a cgroup are opened at a time.
pub(crate) const AT_A_TIME: usize = 256;
/// How often processes are listed at most until no other one is found.
pub(crate) const ROUNDS: usize = 100;

/// The thread's stack, locked with everything else of this process, so no larger than it needs. The tests do each job on
/// three quarters of it, without optimisation, which takes more.
const STACK: usize = if cfg!(test) { 48 << 10 } else { 64 << 10 };

/// A kill that was not written, because the worker came to it too late. That can be decided anew at once.
pub const LATE: Fault = Fault::Write { file: "cgroup.kill", errno: Errno::TIMEDOUT };

/// Something to do.
#[derive(Debug)]
pub enum Job {
    /// Freeze a cgroup (true) or thaw it: a write that waits for a lock of all cgroups.
    Freeze(Arc<Handle>, bool),
    /// Write cgroup.kill, which waits likewise. After that time it is not written any more: what is in the cgroup then may
    /// not be what was killed.
    WriteKill(Arc<Handle>, MonotonicNs),
    /// Send SIGSTOP to the processes of a cgroup whose freeze waits, the largest first, each written down before, and none
    /// after that time.
    Stop(Arc<Handle>, Arc<dyn StopJournal>, MonotonicNs),
    /// Continue what was stopped like this.
    Continue(CgroupId, Arc<dyn StopJournal>),
    /// Send SIGKILL to each process of a cgroup by its descriptor: to those that cgroup.kill does not end, and where there
    /// is no cgroup.kill to all. After that time none is sent, as above.
    Kill(Arc<Handle>, MonotonicNs),
    /// The cgroup was killed: take the memory of its processes while they die, from that time on.
    Release(Arc<Handle>, MonotonicNs),
    /// Measure whether tasks of a cgroup run or end.
    Measure(Arc<Handle>),
    /// Read a cgroup's page cache anew, which was requested at that time.
    ReadCache(Arc<Handle>, MonotonicNs),
    /// Have every CPU fold what it keeps back into the kernel's counters of pages.
    FoldCounters,
    /// Ask each of a cgroup's processes to end by itself: SIGTERM.
    Terminate(Arc<Handle>),
    /// Ask the kernel to take back some of a cgroup's memory.
    Reclaim {
        /// The cgroup.
        handle: Arc<Handle>,
        /// How much.
        amount: Bytes,
    },
}

/// How reclaim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimed {
    /// All that was asked, or more.
    All,
    /// Less, for this reason: the kernel says `EAGAIN` where no more could be had.
    Less(Fault),
}

/// Something done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The freeze or thaw of a cgroup was written, or refused.
    FreezeWritten {
        /// The cgroup.
        cgroup: CgroupId,
        /// Whether it was frozen or thawed.
        is_freeze: bool,
        /// What the kernel answered.
        outcome: Result<(), Fault>,
        /// When it did.
        at: MonotonicNs,
    },
    /// cgroup.kill was written, or that was refused.
    KillWritten {
        /// The cgroup.
        cgroup: CgroupId,
        /// What the kernel answered.
        outcome: Result<(), Fault>,
        /// When it did.
        at: MonotonicNs,
    },
    /// Processes of a cgroup were stopped one by one.
    Stopped {
        /// The cgroup.
        cgroup: CgroupId,
        /// How many.
        processes: u32,
        /// When the last of them was.
        at: MonotonicNs,
    },
    /// Every process of a cgroup was sent SIGKILL by its descriptor, as far as they could be found and opened.
    Killed {
        /// The cgroup.
        cgroup: CgroupId,
        /// How many were sent it.
        sent: u32,
        /// The time for it did not end before all were looked at.
        is_whole: bool,
        /// When the last of them was.
        at: MonotonicNs,
    },
    /// A cgroup's tasks were measured.
    Measured {
        /// The cgroup.
        cgroup: CgroupId,
        /// What they do; absent where that could not be read.
        activity: Option<Activity>,
    },
    /// A cgroup's page cache was read.
    CacheRead {
        /// The cgroup.
        cgroup: CgroupId,
        /// When that was requested: what was read is not older.
        requested: MonotonicNs,
        /// What was read; absent where that could not be done.
        cache: Option<PageCache>,
    },
    /// Every CPU has folded what it kept back into the kernel's counters, or could not be made to.
    CountersFolded(Result<(), Fault>),
    /// A victim's memory was taken.
    Released {
        /// The victim.
        cgroup: CgroupId,
        /// Processes whose memory was taken before they exited.
        released: u32,
        /// Processes that were gone before that.
        gone: u32,
        /// Processes whose memory could not be taken: shared with living ones, or refused.
        kept: u32,
    },
    /// A cgroup was reclaimed from.
    Reclaimed {
        /// The cgroup.
        cgroup: CgroupId,
        /// How much was asked.
        asked: Bytes,
        /// How it ended.
        outcome: Reclaimed,
    },
}

/// A running worker, by the ends of its queues. Dropping it lets the thread end after its jobs.
#[derive(Debug)]
pub struct Worker {
    jobs: Producer<Job>,
    /// One item for each job, also for one without a result.
    done: Consumer<Option<Done>>,
    /// Jobs that were handed over and whose items were not taken yet: never more than either queue has room for, so that
    /// no result is lost.
    in_flight: usize,
    capacity: usize,
    thread: Thread,
    stop: Arc<AtomicBool>,
}

impl Worker {
    /// Starts a thread of this name with room for `capacity` jobs. Whatever the calling thread has locked, dropped or
    /// raised for itself holds for the new one as threads inherit it.
    pub fn start(name: &str, capacity: usize) -> io::Result<Self> {
        Self::start_with(name, capacity, || {})
    }

    /// Likewise; the new thread does `prepare` first.
    pub fn start_with(name: &str, capacity: usize, prepare: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        Self::start_thread(name, capacity, prepare, None)
    }

    /// Likewise, for what is waited for: `news`, an eventfd, is made readable as soon as there are results and nothing more
    /// to do.
    pub fn start_with_news(
        name: &str,
        capacity: usize,
        prepare: impl FnOnce() + Send + 'static,
        news: OwnedFd,
    ) -> io::Result<Self> {
        Self::start_thread(name, capacity, prepare, Some(news))
    }

    fn start_thread(
        name: &str,
        capacity: usize,
        prepare: impl FnOnce() + Send + 'static,
        news: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let (jobs, take) = RingBuffer::new(capacity);
        let (give, done) = RingBuffer::new(capacity);
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let serve = move || {
            prepare();
            work(take, give, news.as_ref(), &seen);
        };
        let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(serve)?;
        Ok(Self { jobs, done, in_flight: 0, capacity, thread: thread.thread().clone(), stop })
    }

    /// Hands over a job. Where as many are in flight as there is room for, the job comes back: the caller must not lose
    /// what it holds.
    pub fn submit(&mut self, job: Job) -> Result<(), Job> {
        // One order may ask any number of workloads to end; half of the room is left for brakes and kills.
        let most = if matches!(job, Job::Terminate(_)) { self.capacity / 2 } else { self.capacity };
        if self.in_flight >= most {
            return Err(job);
        }
        self.jobs.push(job).map_err(|rtrb::PushError::Full(job)| job)?;
        self.in_flight += 1;
        self.thread.unpark();
        Ok(())
    }

    /// The next result, if there is one.
    pub fn poll(&mut self) -> Option<Done> {
        while let Ok(done) = self.done.pop() {
            self.in_flight -= 1;
            if done.is_some() {
                return done;
            }
        }
        None
    }
}

/// The workers that brakes and kills need. What one does must not wait for the others: a write to a cgroup's files waits
/// for a lock that all cgroups share, a signal is sent in no time, and taking the memory of a large process can take long.
#[derive(Debug)]
pub struct Workers {
    /// Writes cgroup.freeze and cgroup.kill, in the order of the requests.
    pub write: Worker,
    /// Sends signals, and measures what comes of them.
    pub kill: Worker,
    /// Takes the memory of the dying.
    pub release: Worker,
}

impl Workers {
    /// Starts all, each with room for `capacity` jobs.
    pub fn start(capacity: usize) -> io::Result<Self> {
        Self::beside(Worker::start("write", capacity)?, capacity)
    }

    /// Starts the others beside one that writes.
    pub fn beside(write: Worker, capacity: usize) -> io::Result<Self> {
        Ok(Self { write, kill: Worker::start("kill", capacity)?, release: Worker::start("release", capacity)? })
    }

    /// The next result of any, if there is one.
    pub fn poll(&mut self) -> Option<Done> {
        self.write.poll().or_else(|| self.kill.poll()).or_else(|| self.release.poll())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

fn work(mut jobs: Consumer<Job>, mut done: Producer<Option<Done>>, news: Option<&OwnedFd>, stop: &AtomicBool) {
    let unread = Cell::new(false);
    // There is room for the result of each job that is in flight.
    let mut give = |result| {
        let _ = done.push(result);
        unread.set(true);
    };
    let mut queue = Queue::default();
    loop {
        while let Ok(job) = jobs.pop() {
            queue.take(job, &mut give);
        }
        if queue.go_on(&mut give) {
            continue;
        }
        if let Some(news) = news.filter(|_| unread.take()) {
            // A full counter is readable already.
            let _ = rustix::io::write(news, &1_u64.to_ne_bytes());
        }
        if stop.load(Ordering::Acquire) {
            return;
        }
        thread::park();
    }
}

/// Jobs whose length is for the owner of a cgroup to choose wait here, so that others pass them: what was stopped is
/// continued in time, and what a decision waits for is measured.
#[derive(Default)]
struct Queue {
    /// Bounded in time each.
    walks: VecDeque<Job>,
    /// Each has a slice in its turn.
    kills: VecDeque<Killing>,
}

impl Queue {
    fn take(&mut self, job: Job, give: &mut impl FnMut(Option<Done>)) {
        match job {
            // At once: what is measured behind it may have to wait for a lock.
            Job::Kill(handle, by) => self.kill(Killing::new(handle, by), give),
            Job::Stop(..) | Job::Terminate(_) => self.walks.push_back(job),
            Job::Continue(cgroup, journal) => {
                // Processes that were stopped after this would not be continued.
                self.walks.retain(|job| {
                    let is_over = matches!(job, Job::Stop(handle, ..) if handle.id() == cgroup);
                    if is_over {
                        give(None);
                    }
                    !is_over
                });
                journal.continue_in(cgroup);
                give(None);
            }
            job => give(perform(job)),
        }
    }

    fn kill(&mut self, mut kill: Killing, give: &mut impl FnMut(Option<Done>)) {
        match kill.go_on() {
            None => self.kills.push_back(kill),
            done => give(done),
        }
    }

    /// Goes on with what waits, for a bounded time. False: nothing does.
    fn go_on(&mut self, give: &mut impl FnMut(Option<Done>)) -> bool {
        let is_idle = self.kills.is_empty() && self.walks.is_empty();
        if let Some(kill) = self.kills.pop_front() {
            self.kill(kill, give);
        }
        if let Some(job) = self.walks.pop_front() {
            give(perform(job));
        }
        !is_idle
    }
}

fn perform(job: Job) -> Option<Done> {
    match job {
        Job::Freeze(handle, is_freeze) => {
            let outcome = handle.freeze(is_freeze);
            let at = monotonic();
            reached(if is_freeze { KillPoint::FreezeWritten } else { KillPoint::ThawWritten });
            Some(Done::FreezeWritten { cgroup: handle.id(), is_freeze, outcome, at })
        }
        Job::WriteKill(handle, by) => {
            let outcome = if monotonic() <= by { handle.kill() } else { Err(LATE) };
            let at = monotonic();
            reached(KillPoint::KillWritten);
            Some(Done::KillWritten { cgroup: handle.id(), outcome, at })
        }
        Job::Stop(handle, journal, by) => {
            let processes = stop(&handle, &*journal, by);
            Some(Done::Stopped { cgroup: handle.id(), processes, at: monotonic() })
        }
        Job::Release(handle, from) => Some(release(&handle, from)),
        Job::Measure(handle) => Some(Done::Measured { cgroup: handle.id(), activity: handle.activity().ok() }),
        Job::ReadCache(handle, requested) => {
            Some(Done::CacheRead { cgroup: handle.id(), requested, cache: handle.page_cache().ok() })
        }
        Job::FoldCounters => Some(Done::CountersFolded(vmstat::fold())),
        Job::Reclaim { handle, amount } => Some(Done::Reclaimed {
            cgroup: handle.id(),
            asked: amount,
            outcome: handle.reclaim(amount).map_or_else(Reclaimed::Less, |()| Reclaimed::All),
        }),
        Job::Terminate(handle) => {
            terminate(&handle);
            None
        }
        // Taken by the queue.
        Job::Kill(..) | Job::Continue(..) => None,
    }
}

#[cfg(test)]
mod tests;
