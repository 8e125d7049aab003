//! Threads for what opens files or blocks: freezes, thaws and kills of cgroups, signals to single processes, taking a
//! dying process's memory, reclaim, figures that a decision needs anew.
//!
//! Jobs go in and results come out through bounded queues; neither side ever waits for the other.

use crate::journal::{StopJournal, StoppedProcess};
use crate::point::{KillPoint, reached};
use core::time::Duration;
use plimsoll_node::Fault;
use plimsoll_node::cgroup::{Activity, Handle, PageCache, TaskList};
use plimsoll_node::clock::monotonic;
use plimsoll_node::process::{self, OpenedProcesses, Released, Stat};
use plimsoll_node::vmstat;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use rtrb::{Consumer, Producer, RingBuffer};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

/// How many processes of a victim are opened at a time.
const AT_A_TIME: usize = 256;
/// How often a victim's processes are listed before its memory is left to the kernel.
const ROUNDS: usize = 100;
/// The pause between two of these.
const PAUSE: Duration = Duration::from_millis(2);

/// The thread's stack, locked with everything else of this process, so no larger than it needs. The tests do each job on
/// three quarters of it, without optimisation, which takes more.
const STACK: usize = if cfg!(test) { 48 << 10 } else { 64 << 10 };

/// Something to do.
#[derive(Debug)]
pub enum Job {
    /// Freeze a cgroup (true) or thaw it: a write that waits for a lock of all cgroups.
    Freeze(Arc<Handle>, bool),
    /// Write cgroup.kill, which waits likewise.
    WriteKill(Arc<Handle>),
    /// Send SIGSTOP to the processes of a cgroup whose freeze waits, the largest first, each written down before.
    Stop(Arc<Handle>, Arc<dyn StopJournal>),
    /// Continue what was stopped like this.
    Continue(CgroupId, Arc<dyn StopJournal>),
    /// Send SIGKILL to each process of a cgroup by its descriptor: to those that cgroup.kill does not end, and where there
    /// is no cgroup.kill to all. After that time none is sent: what is in the cgroup then may not be what was killed.
    Kill(Arc<Handle>, MonotonicNs),
    /// The cgroup was killed: take the memory of its processes while they die.
    Release(Arc<Handle>),
    /// Measure whether tasks of a cgroup run or end.
    Measure(Arc<Handle>),
    /// Read a cgroup's page cache anew.
    ReadCache(Arc<Handle>),
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

/// A running worker, by the ends of its queues. Dropping it lets the thread end after its job.
#[derive(Debug)]
pub struct Worker {
    jobs: Producer<Job>,
    done: Consumer<Done>,
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
        let (jobs, take) = RingBuffer::new(capacity);
        let (give, done) = RingBuffer::new(capacity);
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let serve = move || {
            prepare();
            work(take, give, &seen);
        };
        let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(serve)?;
        Ok(Self { jobs, done, thread: thread.thread().clone(), stop })
    }

    /// Hands over a job. Where the queue is full the job comes back: the caller must not lose what it holds.
    pub fn submit(&mut self, job: Job) -> Result<(), Job> {
        self.jobs.push(job).map_err(|rtrb::PushError::Full(job)| job)?;
        self.thread.unpark();
        Ok(())
    }

    /// The next result, if there is one.
    pub fn poll(&mut self) -> Option<Done> {
        self.done.pop().ok()
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

fn work(mut jobs: Consumer<Job>, mut done: Producer<Done>, stop: &AtomicBool) {
    loop {
        while let Ok(job) = jobs.pop() {
            if let Some(result) = perform(job) {
                // A queue that is full is not read: the result can be seen of the cgroup, too.
                let _ = done.push(result);
            }
        }
        if stop.load(Ordering::Acquire) {
            return;
        }
        thread::park();
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
        Job::WriteKill(handle) => {
            let outcome = handle.kill();
            let at = monotonic();
            reached(KillPoint::KillWritten);
            Some(Done::KillWritten { cgroup: handle.id(), outcome, at })
        }
        Job::Stop(handle, journal) => {
            let processes = stop(&handle, &*journal);
            Some(Done::Stopped { cgroup: handle.id(), processes, at: monotonic() })
        }
        Job::Continue(cgroup, journal) => {
            journal.continue_in(cgroup);
            None
        }
        Job::Kill(handle, by) => {
            let sent = if monotonic() <= by { kill(&handle) } else { 0 };
            Some(Done::Killed { cgroup: handle.id(), sent, at: monotonic() })
        }
        Job::Release(handle) => Some(release(&handle)),
        Job::Measure(handle) => Some(Done::Measured { cgroup: handle.id(), activity: handle.activity().ok() }),
        Job::ReadCache(handle) => Some(Done::CacheRead { cgroup: handle.id(), cache: handle.page_cache().ok() }),
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
    }
}

/// A process that is not asked, because it came meanwhile or there are too many at a time, is killed when the grace is
/// over.
fn terminate(handle: &Handle) {
    let Ok(opened) = handle.open_processes(TaskList::Processes, AT_A_TIME, &HashSet::new()) else { return };
    for one in &opened.processes {
        let _ = process::terminate(&one.fd);
    }
}

/// Sends SIGKILL to each process of a cgroup until no task is listed whose process was not sent it. A process that was
/// sent it forks no more (`copy_process` fails where a fatal signal is pending), so what one round missed the next one
/// finds.
///
/// This is needed beside cgroup.kill: that may have to wait, and directs the signal at the first thread of each process
/// alone (`send_sig` in `__cgroup_kill`, kernel/cgroup/cgroup.c, which is `PIDTYPE_PID` to `complete_signal`,
/// kernel/signal.c). A first thread that has exited (`PF_EXITING`) wants no signal, and one that is meant for it alone
/// is passed on to no other thread of its process: those run on. A signal to the process (`PIDTYPE_TGID`) goes to any
/// thread that wants it, and SIGKILL from there to all. The list of threads finds processes that the list of processes
/// has lost.
///
/// Gives how many took it.
fn kill(handle: &Handle) -> u32 {
    let mut sent = HashSet::new();
    let mut taken = 0;
    for list in [TaskList::Processes, TaskList::Threads] {
        for _ in 0..ROUNDS {
            if !matches!(handle.populated(), Ok(true)) {
                return taken;
            }
            match handle.open_processes(list, AT_A_TIME, &sent) {
                Ok(opened) if !opened.processes.is_empty() => {
                    for one in opened.processes {
                        // A zombie takes no signal, and a process that does not end is reported as stuck.
                        taken += u32::from(process::kill(&one.fd).is_ok());
                        sent.insert(one.pid);
                    }
                }
                _ => break,
            }
        }
    }
    taken
}

/// Stops the processes of a cgroup, the largest first, until no other one is listed or there is no room to write one
/// down. Gives how many. A stopped process forks no more, so what one round missed the next one finds. One that is stopped
/// already is left alone: it is not this agent's to continue.
fn stop(handle: &Handle, journal: &dyn StopJournal) -> u32 {
    let mut seen = HashSet::new();
    let mut stopped = 0;
    for _ in 0..ROUNDS {
        let opened = handle.open_largest(AT_A_TIME, &seen).unwrap_or_default();
        if opened.is_empty() {
            break;
        }
        for one in opened {
            seen.insert(one.pid);
            let Some(stat) = Stat::read(one.pid).filter(|stat| !stat.is_stopped) else { continue };
            let process = StoppedProcess { pid: one.pid, start_ticks: stat.start_ticks, cgroup: handle.id() };
            if journal.write(process).is_err() {
                return stopped;
            }
            // One that is gone keeps its row until the others are continued.
            stopped += u32::from(process::stop(&one.fd).is_ok());
        }
    }
    stopped
}

/// What was done to each process so far.
#[derive(Default)]
struct Tally {
    released: u32,
    gone: u32,
    kept: u32,
    /// Processes whose memory was taken: they may still be listed for a while.
    over: HashSet<process::Pid>,
}

impl Tally {
    /// Gives whether something is left to try.
    fn take(&mut self, opened: &OpenedProcesses) -> bool {
        let mut left = opened.more;
        for one in &opened.processes {
            let count = match process::release(&one.fd) {
                Released::Yes => &mut self.released,
                Released::Gone => &mut self.gone,
                Released::Refused(_) => &mut self.kept,
                Released::Busy | Released::NotDying => {
                    left = true;
                    continue;
                }
            };
            *count += 1;
            self.over.insert(one.pid);
        }
        left
    }
}

fn release(handle: &Handle) -> Done {
    reached(KillPoint::ReleaseStarted);
    let mut tally = Tally::default();
    let mut unfinished = 0;
    for round in 0..ROUNDS {
        // A removed cgroup, or an empty one, has nothing left to take.
        if !matches!(handle.populated(), Ok(true)) {
            break;
        }
        if round > 0 {
            thread::sleep(PAUSE);
        }
        let Ok(opened) = handle.open_processes(TaskList::Processes, AT_A_TIME, &tally.over) else { break };
        let left = tally.take(&opened);
        unfinished = opened.processes.iter().filter(|one| !tally.over.contains(&one.pid)).count();
        if !left {
            break;
        }
    }
    let unfinished = u32::try_from(unfinished).unwrap_or(u32::MAX);
    reached(KillPoint::ReleaseFinished);
    Done::Released {
        cgroup: handle.id(),
        released: tally.released,
        gone: tally.gone,
        kept: tally.kept.saturating_add(unfinished),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fake, StopList};
    use std::process::{Child, Command};

    fn wait(worker: &mut Worker) -> Done {
        loop {
            if let Some(done) = worker.poll() {
                return done;
            }
            thread::yield_now();
        }
    }

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().expect("sleep starts")
    }

    #[test]
    fn reclaim_is_asked_and_answered() {
        let fake = Fake::with_files("w", &[("memory.reclaim", "")]);
        let mut worker = Worker::start("test", 4).expect("a thread starts");
        let (handle, amount) = (Arc::clone(&fake.handle), Bytes::mib(3));
        worker.submit(Job::Reclaim { handle, amount }).expect("there is room");
        let cgroup = fake.handle.id();
        assert_eq!(wait(&mut worker), Done::Reclaimed { cgroup, asked: amount, outcome: Reclaimed::All });
        assert_eq!(fake.text("memory.reclaim"), "3145728");

        let old = Fake::new("w");
        let handle = Arc::clone(&old.handle);
        worker.submit(Job::Reclaim { handle, amount }).expect("there is room");
        let outcome = Reclaimed::Less(Fault::Absent { file: "memory.reclaim" });
        assert_eq!(wait(&mut worker), Done::Reclaimed { cgroup: old.handle.id(), asked: amount, outcome });
    }

    #[test]
    fn each_process_of_either_list_is_killed() {
        let fake = Fake::with_files("w", &[]);
        let mut children = [sleeper(), sleeper(), sleeper()];
        let list: Vec<String> = children.iter().map(|child| child.id().to_string()).collect();
        fake.write("cgroup.procs", &(list[..2].join("\n") + "\n"));
        fake.write("cgroup.threads", &(list[1..].join("\n") + "\n"));
        let mut worker = Worker::start("test", 4).expect("a thread starts");
        worker.submit(Job::Kill(Arc::clone(&fake.handle), monotonic())).expect("there is room");
        assert!(matches!(wait(&mut worker), Done::Killed { sent: 0, .. }), "the worker comes to it too late");
        worker.submit(Job::Kill(Arc::clone(&fake.handle), MonotonicNs(u64::MAX))).expect("there is room");
        for child in &mut children {
            let status = child.wait().expect("it is ours");
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        }
        assert!(matches!(wait(&mut worker), Done::Killed { cgroup, .. } if cgroup == fake.handle.id()));
    }

    #[test]
    fn processes_are_stopped_as_far_as_they_can_be_written_down_and_others_stay_stopped() {
        let fake = Fake::new("w");
        let mut children = [sleeper(), sleeper(), sleeper(), sleeper()];
        let pids = children.each_ref().map(process::Pid::from_child);
        let stopped = || pids.map(|pid| Stat::read(pid).is_some_and(|stat| stat.is_stopped));
        let wait_for = |expected: usize| {
            while stopped().iter().filter(|is_stopped| **is_stopped).count() != expected {
                thread::yield_now();
            }
        };
        process::stop(process::open(pids[0]).expect("it runs")).expect("it is ours");
        wait_for(1);
        fake.write("cgroup.procs", &pids.map(|pid| pid.as_raw_nonzero().to_string() + "\n").concat());
        let mut worker = Worker::start("test", 4).expect("a thread starts");
        let list: Arc<dyn StopJournal> = Arc::new(StopList::default());
        worker.submit(Job::Stop(Arc::clone(&fake.handle), Arc::clone(&list))).expect("there is room");
        let Done::Stopped { processes, .. } = wait(&mut worker) else { panic!("another result") };
        assert_eq!(processes, 2);
        wait_for(3);
        worker.submit(Job::Continue(fake.handle.id(), list)).expect("there is room");
        wait_for(1);
        assert!(stopped()[0], "the one that another program stopped");
        for child in &mut children {
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
        }
    }

    #[test]
    fn activity_is_measured_or_absent() {
        let mut worker = Worker::start("test", 4).expect("a thread starts");
        for (files, activity) in [
            (&[("cpu.stat", "usage_usec 7\n")][..], Some(Activity { cpu: Duration::from_micros(7), threads: Some(0) })),
            (&[], None),
        ] {
            let fake = Fake::with_files("w", files);
            worker.submit(Job::Measure(Arc::clone(&fake.handle))).expect("there is room");
            assert_eq!(wait(&mut worker), Done::Measured { cgroup: fake.handle.id(), activity });
        }
    }

    #[test]
    fn living_processes_keep_their_memory() {
        let fake = Fake::new("w");
        let mut child = sleeper();
        fake.write("cgroup.procs", &format!("{}\n", child.id()));
        let opened = fake.handle.open_processes(TaskList::Processes, 4, &HashSet::new()).expect("readable");
        assert_eq!(opened.processes.len(), 1);
        let mut tally = Tally::default();
        assert!(tally.take(&opened), "it is not dying: to be tried again");
        assert_eq!((tally.released, tally.gone, tally.kept), (0, 0, 0));
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert!(!tally.take(&opened));
        assert_eq!(tally.gone, 1);
    }

    #[test]
    fn a_full_queue_gives_the_job_back() {
        let fake = Fake::new("w");
        let (jobs, _keep) = RingBuffer::new(1);
        let (_give, done) = RingBuffer::new(1);
        let stop = Arc::new(AtomicBool::new(false));
        let mut worker = Worker { jobs, done, thread: thread::current(), stop };
        assert!(worker.submit(Job::Release(Arc::clone(&fake.handle))).is_ok());
        assert!(matches!(worker.submit(Job::Release(Arc::clone(&fake.handle))), Err(Job::Release(_))));
    }
}
