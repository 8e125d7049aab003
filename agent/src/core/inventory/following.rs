//! Figures of containers, and which memory.high throttles, as the inventory thread follows them: figures with the
//! heartbeat, so that it wakes no more at rest, and one that exceeds its memory.high from the moment in which the kernel
//! reports that until it is quiet.

use std::collections::HashMap;
use std::time::Duration;

use plimsoll_inventory::{Change, Containers, FoundContainer, Inventory, ReliefMode, Reliefs, Sink as _};
use plimsoll_node::cgroup::{Handle, Root};
use plimsoll_node::clock::monotonic;
use plimsoll_node::meminfo::page_bytes;
use plimsoll_units::{CgroupId, MonotonicNs};

use super::notices::Notices;
use super::schedule::Schedule;
use super::{Outgoing, PACE, Thread};
use crate::record::{ContainerRecord, REPORTED_CONTAINERS, fitting};

/// How often one is looked at that has just exceeded a limit, so that it is reported within a second what that does.
const AT_FIRST: Duration = Duration::from_millis(250);
const FIRST: Duration = Duration::from_secs(1);
/// How often it is looked at afterwards.
const LATER: Duration = Duration::from_millis(500);
/// For how long at least it is looked at so often: one that is at its limit all the time does not wake this thread more
/// often for that.
const LEAST: Duration = Duration::from_secs(3);
/// So many workloads are looked at at that pace whatever it takes: on a machine without a free CPU, a look at one may last
/// for tens of milliseconds, of which this thread runs few. More take their share of a CPU, as other duties do.
const FEW: usize = 4;
/// One turn begins no other workload after so long: what is more urgent must not wait for all of them.
const TURN: Duration = Duration::from_millis(20);
/// With one that reaches its memory.max by then, figures are read as often as where memory moves.
const NEAR: Duration = Duration::from_mins(10);

/// So many lines that one is throttled, or is no more, within so long: the owner of many cgroups could fill the log, and the
/// queue to the reporter, with theirs. What is left out is in the metrics.
const LINES: u32 = 64;
const LINES_WITHIN: Duration = Duration::from_secs(10);

/// What it keeps.
#[derive(Debug)]
pub(in crate::core) struct Following {
    pub(super) containers: Containers,
    pub(super) reliefs: Reliefs,
    notices: Notices,
    /// Workloads that are looked at, and since when.
    open: HashMap<CgroupId, MonotonicNs>,
    /// Those that are still to be looked at in this round.
    looks: Vec<CgroupId>,
    /// Those of which figures are still to be read in this round.
    round: Vec<CgroupId>,
    /// The inventory as of which workloads are watched.
    revision: Option<u64>,
    named: Named,
}

/// What was reported.
#[derive(Debug, Default)]
struct Named {
    /// When the lines are counted from, and how many there were.
    since: MonotonicNs,
    lines: u32,
    /// The reporter has series of containers, or has had since the last list.
    is_shown: bool,
}

impl Following {
    /// `mode`: what is done at most about those that are throttled.
    pub(in crate::core) fn new(mode: ReliefMode) -> Self {
        Self {
            containers: Containers::default(),
            reliefs: Reliefs::new(mode, page_bytes()),
            notices: Notices::new(),
            open: HashMap::new(),
            looks: Vec::new(),
            round: Vec::new(),
            revision: None,
            named: Named::default(),
        }
    }

    /// Watches and follows the workloads that there are now, and no others.
    fn meet(&mut self, inventory: &Inventory, outgoing: &mut Outgoing, now: MonotonicNs) {
        if self.revision.replace(inventory.revision()) == Some(inventory.revision()) {
            return;
        }
        let is_workload = |id| inventory.handle(id).is_some();
        self.open.retain(|id, _| is_workload(*id));
        self.notices.retain(is_workload);
        let Self { containers, named, .. } = &mut *self;
        let root = &inventory.config().root;
        containers.retain(is_workload, &mut |found| named.send(outgoing, root, &found, now));
        for workload in inventory.handles().filter(|workload| !self.open.contains_key(&workload.id())) {
            self.notices.watch(root, workload);
        }
        let why = self.notices.trouble().map(|errno| {
            format!(
                "the kernel does not report which workloads exceed memory.high: {errno}; those that it throttles are \
                 found late. Raise fs.inotify.max_user_watches and fs.inotify.max_user_instances"
            )
        });
        outgoing.trouble("memory.events", why);
    }

    /// Looks at some of those that exceeded a limit. Gives when that is due again.
    fn look(&mut self, inventory: &Inventory, outgoing: &mut Outgoing, now: MonotonicNs) -> Duration {
        let Self { containers, notices, open, looks, named, .. } = self;
        let root = &inventory.config().root;
        if looks.is_empty() {
            looks.extend(open.keys());
        }
        while let Some(id) = looks.pop() {
            let Some((since, workload)) = open.get(&id).copied().zip(inventory.handle(id)) else {
                open.remove(&id);
                continue;
            };
            let mut look =
                |at| containers.read(root, workload, at, false, &mut |found| named.send(outgoing, root, &found, at));
            let mut stays = look(now) || now.since(since) < LEAST;
            if !stays {
                // What it exceeds from here on is reported again, and what it has exceeded until then is seen here.
                notices.watch(root, workload);
                stays = look(monotonic());
            }
            if !stays {
                open.remove(&id);
            }
            if !looks.is_empty() && monotonic().since(now) >= TURN {
                return Duration::ZERO;
            }
        }
        let is_first = open.values().any(|since| now.since(*since) < FIRST);
        match (open.is_empty(), is_first) {
            (true, _) => Duration::MAX,
            (false, true) => AT_FIRST,
            (false, false) => LATER,
        }
    }

    /// Reads figures of some workloads, but of those that rest. Gives whether all were read.
    fn read(&mut self, inventory: &Inventory, outgoing: &mut Outgoing, now: MonotonicNs) -> bool {
        if self.round.is_empty() {
            let due = inventory.handles().filter(|workload| !self.rests(workload, now));
            self.round = due.map(Handle::id).collect();
        }
        let Self { containers, open, round, named, .. } = self;
        let root = &inventory.config().root;
        while let Some(id) = round.pop() {
            let Some(workload) = inventory.handle(id) else { continue };
            let mut report = |found: FoundContainer<'_>| named.send(outgoing, root, &found, now);
            if containers.read(root, workload, now, true, &mut report) {
                // One that is not watched, or whose event is still to come.
                open.entry(id).or_insert(now);
            }
            if monotonic().since(now) >= TURN {
                break;
            }
        }
        let why = || "figures of containers are left out: there are more cgroups than there is room for".to_owned();
        outgoing.trouble("containers", containers.is_full().then(why));
        round.is_empty()
    }

    /// Whether figures of a workload may stay as they are. Of one that is not watched nothing else says that it is throttled.
    fn rests(&self, workload: &Handle, now: MonotonicNs) -> bool {
        self.notices.is_watched(workload.id()) && self.containers.rests(workload, now)
    }

    /// Reports the containers that are throttled or near their memory.max. Gives whether there are any for which that is
    /// due again soon.
    fn report(&mut self, outgoing: &mut Outgoing) -> bool {
        let foremost = self.containers.foremost(REPORTED_CONTAINERS);
        let was_shown = std::mem::replace(&mut self.named.is_shown, !foremost.is_empty());
        if foremost.is_empty() && !was_shown {
            return false;
        }
        let throttled = u32::try_from(self.containers.throttled()).unwrap_or(u32::MAX);
        outgoing.report(ContainerRecord::Begin { throttled });
        for container in &foremost {
            let (path, figures) = (fitting(container.path()), container.figures());
            outgoing.report(ContainerRecord::Figures { path, figures });
        }
        outgoing.report(ContainerRecord::End);
        let is_near = |time: Duration| time <= NEAR;
        let figures = foremost.iter().map(|container| container.figures());
        figures.into_iter().any(|figures| figures.is_throttled || figures.forecast.is_some_and(is_near))
    }
}

impl Named {
    /// Reports that one is throttled, or is no more.
    fn send(&mut self, outgoing: &mut Outgoing, root: &Root, found: &FoundContainer<'_>, at: MonotonicNs) {
        self.is_shown = true;
        if !self.has_room(at) {
            return;
        }
        let path = fitting(found.path);
        match found.change {
            Change::Begins => {
                let cgroup = Handle::open_to_read(root, found.path).ok().flatten();
                let high = cgroup.and_then(|cgroup| cgroup.high().ok().flatten());
                outgoing.report(ContainerRecord::Throttled { path, at, high, figures: found.figures });
            }
            Change::Ends(ended) => {
                outgoing.report(ContainerRecord::Relieved { path, at, ended, is_gone: found.is_gone });
            }
        }
    }

    /// Whether there may be another line, which is counted.
    fn has_room(&mut self, now: MonotonicNs) -> bool {
        if now.since(self.since) >= LINES_WITHIN {
            (self.since, self.lines) = (now, 0);
        }
        self.lines = self.lines.saturating_add(1);
        self.lines <= LINES
    }
}

impl Thread {
    /// Follows containers as far as that is due; `is_slow`: this thread has woken for its heartbeat.
    pub(super) fn follow_containers(&mut self, schedule: &mut Schedule, is_slow: bool) {
        let Self { inventory, outgoing, following, .. } = self;
        let begun = monotonic();
        following.meet(inventory, outgoing, begun);
        for id in following.notices.take() {
            following.open.entry(id).or_insert(begun);
            schedule.looks.bring_forward(begun);
        }
        let is_looked_at = schedule.looks.is_overdue(begun);
        if is_looked_at {
            let pace = following.look(inventory, outgoing, begun);
            let ended = monotonic();
            let counted_from = if following.open.len() <= FEW { ended } else { begun };
            schedule.looks.done(counted_from, ended, pace);
            if following.named.is_shown {
                // What became of them is in the next list, also where no line says so.
                schedule.figures.bring_forward(begun.after(PACE));
            }
        }
        let is_due = schedule.figures.is_overdue(begun) || is_slow && schedule.figures.paused(begun).is_none();
        if is_due {
            let is_whole = following.read(inventory, outgoing, monotonic());
            if !following.open.is_empty() {
                schedule.looks.bring_forward(begun.after(AT_FIRST));
            }
            let pace = match is_whole {
                true if following.report(outgoing) => PACE,
                true => Duration::MAX,
                false => Duration::ZERO,
            };
            schedule.figures.done(begun, monotonic(), pace);
        }
        if is_looked_at {
            self.relieve(begun);
        }
    }

    /// Readable when a workload exceeded a limit.
    pub(super) fn notices(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.following.notices.descriptor()
    }

    /// Reports to a reporter that is new.
    pub(super) fn report_containers(&mut self) {
        self.following.named.is_shown = true;
        self.following.report(&mut self.outgoing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_workload_that_rests_are_not_read_unless_it_may_be_throttled() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join("a")).expect("writable");
        let write = |file: &str, text: &str| std::fs::write(dir.path().join("a").join(file), text).expect("writable");
        for (file, text) in
            [("cgroup.events", "populated 1\n"), ("memory.current", "4096\n"), ("memory.events", "high 0\n")]
        {
            write(file, text);
        }
        let root = Root::open(dir.path()).expect("it is there");
        let workload = Handle::open_to_read(&root, b"a").expect("readable").expect("it is there");
        workload.usage().expect("it is there");
        let (mut following, now) = (Following::new(ReliefMode::Report), MonotonicNs(1));
        assert!(following.notices.watch(&root, &workload));
        assert!(!following.rests(&workload, now), "it was not read yet");
        following.containers.read(&root, &workload, now, true, &mut |_| ());
        assert!(following.rests(&workload, now));
        write("memory.events", "high 1\n");
        assert_eq!(following.notices.take(), [workload.id()]);
        assert!(!following.rests(&workload, now), "it is watched no more");
    }

    #[test]
    fn the_owner_of_many_cgroups_does_not_fill_the_log() {
        let mut named = Named::default();
        let at = |seconds| MonotonicNs(0).after(Duration::from_secs(seconds));
        let lines = |named: &mut Named, now| (0..1000).filter(|_| named.has_room(now)).count();
        assert_eq!([9, 10, 19, 20].map(|seconds| lines(&mut named, at(seconds))), [64, 64, 0, 64]);
    }
}
