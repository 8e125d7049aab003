//! Signals to single processes of a cgroup. Its owner chooses the shape of the tree below it and how many tasks are in
//! it, so each has a bound, and the longest of them, a kill, is done in slices between which other jobs have
//! their turn.

use crate::journal::{StopJournal, StoppedProcess};
use crate::worker::{AT_A_TIME, Done, ROUNDS};
use core::time::Duration;
use plimsoll_node::cgroup::{Bound, Handle, TaskList, Walk};
use plimsoll_node::clock::monotonic;
use plimsoll_node::process::{self, Opened, Pid, Stat};
use plimsoll_units::MonotonicNs;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// How long a kill goes on before other jobs have their turn.
const SLICE: Duration = Duration::from_millis(5);
/// In how many cgroups a kill goes on before other jobs have their turn.
const SLICE_STEPS: usize = 256;
/// How long at most a walk takes that is not done in slices.
const WALK_MOST: Duration = Duration::from_millis(50);
/// How many cgroups at most a walk goes to that is not done in slices.
const WALK_CGROUPS: usize = 1024;
/// For so many processes that were signalled last a thread is known as theirs without opening it.
const RECENT: usize = 16;

/// SIGKILL to each process of a cgroup until no task is listed whose process was not sent it. A process that was sent it
/// forks no more (`copy_process` fails where a fatal signal is pending), so what one pass over the tree missed the next
/// one finds.
///
/// This is needed beside cgroup.kill: that may have to wait, and directs the signal at the first thread of each process
/// alone (`send_sig` in `__cgroup_kill`, kernel/cgroup/cgroup.c, which is `PIDTYPE_PID` to `complete_signal`,
/// kernel/signal.c). A first thread that has exited (`PF_EXITING`) wants no signal, and one that is meant for it alone
/// is passed on to no other thread of its process: those run on. A signal to the process (`PIDTYPE_TGID`) goes to any
/// thread that wants it, and SIGKILL from there to all. The list of threads finds processes that the list of processes
/// has lost.
///
/// Nothing is sent after `by`, and nothing to processes more than [`DEPTH`](plimsoll_node::cgroup::DEPTH) levels below:
/// those have cgroup.kill alone.
#[derive(Debug)]
pub(crate) struct Killing {
    handle: Arc<Handle>,
    by: MonotonicNs,
    list: TaskList,
    /// The pass that is under way.
    walk: Option<Walk>,
    /// Over the present list, that one included.
    passes: usize,
    /// It found a process.
    has_found: bool,
    /// Processes that were sent it, and threads by which they were found.
    known: HashSet<Pid>,
    recent: VecDeque<Pid>,
    sent: u32,
}

impl Killing {
    pub(crate) fn new(handle: Arc<Handle>, by: MonotonicNs) -> Self {
        Self {
            handle,
            by,
            list: TaskList::Processes,
            walk: None,
            passes: 0,
            has_found: false,
            known: HashSet::new(),
            recent: VecDeque::with_capacity(RECENT),
            sent: 0,
        }
    }

    /// Goes on for a slice. The result, once it is done.
    pub(crate) fn go_on(&mut self) -> Option<Done> {
        let until = monotonic().after(SLICE);
        if matches!(self.handle.populated_now(), Ok(true)) {
            for _ in 0..SLICE_STEPS {
                let now = monotonic();
                if now > self.by {
                    return Some(self.done(false));
                }
                if !self.step() {
                    return Some(self.done(true));
                }
                if now >= until {
                    break;
                }
            }
            return None;
        }
        Some(self.done(true))
    }

    fn done(&self, is_whole: bool) -> Done {
        Done::Killed { cgroup: self.handle.id(), sent: self.sent, is_whole, at: monotonic() }
    }

    /// Kills up to [`AT_A_TIME`] processes of one cgroup, or goes on to the next one. False: nothing is left to do.
    fn step(&mut self) -> bool {
        let Some(walk) = &mut self.walk else { return self.begin_pass() };
        let Some(dir) = walk.dir() else {
            self.walk = None;
            if self.list == TaskList::Processes {
                // What it missed is listed here, too.
                (self.list, self.passes) = (TaskList::Threads, 0);
                return true;
            }
            return self.has_found && self.passes < ROUNDS;
        };
        let (known, recent, by_thread) = (&self.known, &self.recent, self.list == TaskList::Threads);
        let mut skip = |task| {
            let is_of = |process: &Pid| process::has_thread(*process, task);
            known.contains(&task) || by_thread && recent.iter().any(is_of)
        };
        let opened = self.list.open_in(dir, AT_A_TIME, &mut skip).unwrap_or_default();
        if !opened.more || opened.tasks.is_empty() {
            walk.advance();
        }
        for one in &opened.tasks {
            self.kill(one);
        }
        true
    }

    fn begin_pass(&mut self) -> bool {
        let Ok(mut walk) = self.handle.walk() else { return false };
        walk.advance();
        (self.walk, self.has_found) = (Some(walk), false);
        self.passes += 1;
        true
    }

    fn kill(&mut self, one: &Opened) {
        self.has_found = true;
        let process = match self.list {
            TaskList::Processes => one.pid,
            TaskList::Threads => process::of_thread(&one.fd, one.pid).unwrap_or(one.pid),
        };
        // A zombie takes no signal, and a process that does not end is reported as stuck.
        if self.known.insert(process) && process::kill(&one.fd).is_ok() {
            self.sent += 1;
        }
        self.known.insert(one.pid);
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(process);
    }
}

/// Asks the processes of a cgroup to end. One that is not asked, because it came meanwhile or there are too many, is
/// killed when the grace is over.
pub(crate) fn terminate(handle: &Handle) {
    let by = monotonic().after(WALK_MOST);
    let Ok(mut walk) = handle.walk() else { return };
    let mut left = AT_A_TIME;
    for _ in 0..WALK_CGROUPS {
        let Some(dir) = walk.advance() else { return };
        if left == 0 || monotonic() > by {
            return;
        }
        let opened = TaskList::Processes.open_in(dir, left, &mut |_| false).unwrap_or_default();
        left -= opened.tasks.len();
        for one in &opened.tasks {
            let _ = process::terminate(&one.fd);
        }
    }
}

/// Stops the processes of a cgroup, the largest first, until no other one is found, there is no room to write one down,
/// or the time is over: what is left then runs until the freeze is written. Gives how many. A stopped process forks no
/// more, so what one round missed the next one finds. One that is stopped already is left alone: it is not this agent's to
/// continue.
pub(crate) fn stop(handle: &Handle, journal: &dyn StopJournal, by: MonotonicNs) -> u32 {
    let bound = Bound { cgroups: WALK_CGROUPS, by: by.min(monotonic().after(WALK_MOST)) };
    let mut seen = HashSet::new();
    let mut stopped = 0;
    for _ in 0..ROUNDS {
        if monotonic() > bound.by {
            break;
        }
        let opened = handle.open_largest(AT_A_TIME, &seen, bound).unwrap_or_default();
        if opened.is_empty() {
            break;
        }
        for one in opened {
            seen.insert(one.pid);
            // Not by the bound of the walk: what it found is to be stopped.
            if monotonic() > by {
                return stopped;
            }
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

#[cfg(test)]
mod tests;
