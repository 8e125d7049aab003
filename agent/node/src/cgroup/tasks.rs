//! Tasks of a cgroup and of all below it: listed, counted, opened.

use super::walk::{Bound, Walk};
use super::{Handle, limit, number, open_in};
use crate::clock::monotonic;
use crate::file::KeptFile;
use crate::process::{self, Opened, OpenedTasks, Pid};
use crate::{Fault, parse};
use core::cmp::Reverse;
use core::time::Duration;
use plimsoll_units::MonotonicNs;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::HashSet;

/// Which of a cgroup's two lists of tasks is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskList {
    /// `cgroup.procs`: a process by its first thread, in that one's cgroup. A process whose first thread has exited
    /// stays listed while others of its threads live; one whose threads have all exited is not, also before its parent
    /// waits for it. (`css_task_iter_advance` with `CSS_TASK_ITER_PROCS`, kernel/cgroup/cgroup.c, since c03cd7738a83 in
    /// Linux 5.2.)
    ///
    /// An exited first thread cannot be moved: where the others were moved on since, their process is listed in the
    /// cgroup that they left (`cgroup_migrate_add_task` passes over `PF_EXITING`), and nowhere once that one was
    /// removed.
    Processes,
    /// `cgroup.threads`: every live thread, in its own cgroup, whatever became of the first one.
    Threads,
}

/// How many tasks a cgroup has, those below it included. What is not there or cannot be read is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pids {
    /// How many there are, those too that have ended and were not waited for yet: `pids.current`.
    pub current: Option<u64>,
    /// How many there may be: `pids.max`, which a kubelet with `podPidsLimit` sets for each pod. Absent for no limit.
    pub limit: Option<u64>,
}

impl Handle {
    /// How many tasks it has and may have, as far as that can be read. Opens files: for a helper thread.
    pub fn pids(&self) -> Pids {
        let open = |name| self.open_file(name, OFlags::RDONLY);
        let limit = open("pids.max").and_then(|file| limit(&file)).ok().map(|limit| limit.0);
        let current = open("pids.current").and_then(|file| number(&file)).ok().map(|count| count.0);
        Pids { current, limit: limit.filter(|limit| *limit != u64::MAX) }
    }
}

impl TaskList {
    const fn file(self) -> &'static str {
        match self {
            Self::Processes => "cgroup.procs",
            Self::Threads => "cgroup.threads",
        }
    }

    /// The list of the cgroup whose directory is open; `None` where it was removed.
    fn of(self, dir: BorrowedFd<'_>) -> Result<Option<KeptFile>, Fault> {
        match open_in(dir, self.file(), OFlags::RDONLY) {
            Ok(file) => Ok(file),
            Err(Errno::NODEV) => Ok(None),
            Err(errno) => Err(Fault::Read { file: self.file(), errno }),
        }
    }

    /// Opens what it lists: the process itself, or the process of a thread.
    fn open(self, task: Pid) -> Result<OwnedFd, Errno> {
        match self {
            Self::Processes => process::open(task),
            Self::Threads => process::open_by_thread(task),
        }
    }

    /// Opens up to `most` of the tasks that it names in the cgroup whose directory is open, without those below it and
    /// those for which `skip` holds. Each is given only if it was still in that list after it was opened, so that no
    /// number used again leads astray. Allocates and opens: for a helper thread.
    pub fn open_in(
        self,
        dir: BorrowedFd<'_>,
        most: usize,
        skip: &mut dyn FnMut(Pid) -> bool,
    ) -> Result<OpenedTasks, Fault> {
        let Some(list) = self.of(dir)? else { return Ok(OpenedTasks::default()) };
        let (mut listed, mut more) = (Vec::new(), false);
        gone_is_empty(each_pid(&list, MonotonicNs(u64::MAX), &mut |pid| {
            if !skip(pid) {
                more = listed.len() == most;
                if !more {
                    listed.push(pid);
                }
            }
            !more
        }))?;
        // One that ended meanwhile is not missed.
        let open = |pid| self.open(pid).ok().map(|fd| Opened { pid, fd });
        let mut tasks: Vec<Opened> = listed.into_iter().filter_map(open).collect();
        if !tasks.is_empty() {
            let all: HashSet<Pid> = tasks.iter().map(|one| one.pid).collect();
            let mut still = HashSet::with_capacity(all.len());
            gone_is_empty(each_pid(&list, MonotonicNs(u64::MAX), &mut |pid| {
                still.extend(all.contains(&pid).then_some(pid));
                still.len() < all.len()
            }))?;
            tasks.retain(|one| still.contains(&one.pid));
        }
        Ok(OpenedTasks { tasks, more })
    }
}

/// Threads are counted in so many cgroups of a tree, and for so long: the answer is waited for.
const COUNTED: (usize, Duration) = (256, Duration::from_millis(50));

/// What shows that tasks of a cgroup run or end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// CPU time that was used in it and below it since it was made, by tasks that are gone as well; to about a timer
    /// tick for those that run.
    pub cpu: Duration,
    /// Threads in it and below it that have not exited; absent where the tree is too large to count them in time.
    pub threads: Option<usize>,
}

impl Handle {
    /// A walk through it and all below it, without what is spared. Opens: for a helper thread.
    pub fn walk(&self) -> Result<Walk, Fault> {
        let walk = Walk::begin(self.dir.as_fd()).map_err(|errno| Fault::Read { file: "its directory", errno })?;
        Ok(walk.sparing(self.spares))
    }

    /// Calls `each` with the tasks in it and below it, until `each` says no, or there are no more, or to this bound.
    /// False: to the bound, or there was more that could not be read. Opens: for a helper thread.
    pub fn each_task(&self, list: TaskList, bound: Bound, each: &mut dyn FnMut(Pid) -> bool) -> Result<bool, Fault> {
        let mut walk = self.walk()?;
        let (mut cgroups, mut is_refused) = (0, false);
        while let Some(dir) = walk.advance() {
            if cgroups == bound.cgroups || monotonic() > bound.by {
                return Ok(false);
            }
            cgroups += 1;
            let Some(tasks) = list.of(dir)? else { continue };
            let is_all = gone_is_empty(each_pid(&tasks, bound.by, &mut |pid| {
                is_refused = !each(pid);
                !is_refused
            }))?;
            if !is_all {
                return Ok(is_refused);
            }
        }
        Ok(walk.is_whole())
    }

    /// Opens up to `most` of its processes that are not in `except`, those with the most resident memory and in that
    /// order, of those that are found to this bound. Each is given only if it was still in the cgroup after it was opened.
    /// Opens and allocates: for a helper thread.
    pub fn open_largest(&self, most: usize, except: &HashSet<Pid>, bound: Bound) -> Result<Vec<Opened>, Fault> {
        let mut sizes = Vec::with_capacity(2 * most);
        let keep = |sizes: &mut Vec<(u64, Pid)>| {
            sizes.sort_unstable_by_key(|(resident, _)| Reverse(*resident));
            sizes.truncate(most);
        };
        self.each_task(TaskList::Processes, bound, &mut |pid| {
            if except.contains(&pid) {
                return true;
            }
            sizes.push((process::Stat::read(pid).map_or(0, |stat| stat.resident), pid));
            if sizes.len() == 2 * most {
                keep(&mut sizes);
            }
            // Reading what a process holds takes longer than reading a list.
            monotonic() <= bound.by
        })?;
        keep(&mut sizes);
        let open = |(_, pid)| process::open(pid).ok().map(|fd| Opened { pid, fd });
        let mut opened: Vec<Opened> = sizes.into_iter().filter_map(open).collect();
        if !opened.is_empty() {
            let all: HashSet<Pid> = opened.iter().map(|one| one.pid).collect();
            let mut still = HashSet::with_capacity(all.len());
            // The same way again, which is a shorter one.
            let bound = Bound { by: MonotonicNs(u64::MAX), ..bound };
            self.each_task(TaskList::Processes, bound, &mut |pid| {
                still.extend(all.contains(&pid).then_some(pid));
                still.len() < all.len()
            })?;
            opened.retain(|one| still.contains(&one.pid));
        }
        Ok(opened)
    }

    /// Whether its tasks run or end. Opens files, and makes the kernel add up its per-processor figures: for a helper
    /// thread.
    pub fn activity(&self) -> Result<Activity, Fault> {
        const STAT: &str = "cpu.stat";
        let stat = open_in(self.dir.as_fd(), STAT, OFlags::RDONLY);
        let stat = stat.map_err(|errno| Fault::Read { file: STAT, errno })?.ok_or(Fault::Absent { file: STAT })?;
        let mut buffer = [0; 1024];
        let used = parse::field(stat.read(&mut buffer)?, b"usage_usec").ok_or(stat.malformed("usage_usec"))?;
        let mut threads = 0;
        let (cgroups, within) = COUNTED;
        let is_all =
            self.each_task(TaskList::Threads, Bound { cgroups, by: monotonic().after(within) }, &mut |_| {
                threads += 1;
                true
            })?;
        Ok(Activity { cpu: Duration::from_micros(used), threads: is_all.then_some(threads) })
    }
}

/// A cgroup that was removed has no tasks.
fn gone_is_empty(read: Result<bool, Fault>) -> Result<bool, Fault> {
    if read == Err(Fault::Gone) { Ok(true) } else { read }
}

/// One list of tasks. False: `each` has said no, or the time is over.
fn each_pid(tasks: &KeptFile, by: MonotonicNs, each: &mut dyn FnMut(Pid) -> bool) -> Result<bool, Fault> {
    let mut buffer = [0; 4096];
    let mut offset = 0;
    loop {
        let piece = match tasks.read_piece(&mut buffer, offset) {
            // A threaded cgroup has no processes of its own: they are listed where its threads' domain begins, above
            // it.
            Err(Fault::Read { errno: Errno::OPNOTSUPP, .. }) => return Ok(true),
            piece => piece?,
        };
        // The kernel cuts between lines unless the buffer is shorter than one; take whole lines only.
        let Some(end) = piece.iter().rposition(|byte| *byte == b'\n') else { return Ok(true) };
        for line in parse::lines(&piece[..end]) {
            let number = parse::u64_after_blanks(line).and_then(|number| i32::try_from(number).ok());
            // Zero stands for a process of another pid namespace.
            let Some(pid) = number.and_then(Pid::from_raw) else { continue };
            if !each(pid) {
                return Ok(false);
            }
        }
        if monotonic() > by {
            return Ok(false);
        }
        offset += end as u64 + 1;
    }
}
