//! The thread that walks directories, opens files and allocates, so that the watching thread need not.
//!
//! It finds workloads and opens their handles, reads the slow figures (page cache, reservations, watermarks), closes
//! what is gone, names who grew outside all workloads, and tells the reporter how the source fares.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use plimsoll_node::cgroup::{Handle, Root};
use plimsoll_node::clock::monotonic;
use plimsoll_node::discover::{Bounds, Discovery, Found, Protected, discover};
use plimsoll_node::patterns::Patterns;
use plimsoll_node::process::Memory;
use plimsoll_policy::{SliceId, SliceSet};
use plimsoll_sense::{HealthReader, Hook, HookState, MAX_BRAKES, SourceAttempt};
use plimsoll_state::queue::Producer;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs, Pattern};
use rtrb::{Consumer, Producer as Updates};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::suspects;
use super::table::{Facts, SLOTS, SliceFacts, SliceFigures, Update};
use super::thresholds::Machine;
use crate::record::{Record, StartParts};

/// How often the slow figures are read and the reporter hears that the core lives.
const PACE: Duration = Duration::from_secs(5);
/// A watching thread that has not woken for so long is stuck, and the reporter hears nothing good of it any more.
const STUCK: Duration = Duration::from_mins(1);
/// Discoveries are at least so far apart, and at least ten times as long as the last one took.
const DISCOVERY_PAUSE: Duration = Duration::from_millis(20);
/// Suspects are named at most so often.
const SUSPECTS_PAUSE: Duration = Duration::from_secs(5);

/// Names in the path of a slice that the kernel brakes: as deep as its program looks.
const MARK_DEPTH: usize = 8;

/// What the watching thread asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Request {
    /// Look for workloads that came or went.
    Discover = 1,
    /// Read the slow figures now.
    Refresh = 2,
    /// Name who holds much memory outside all workloads.
    Suspects = 4,
    /// End.
    End = 8,
    /// Say that this agent acts from now on.
    TakeOver = 16,
}

/// The watching thread's way to ask: a word and a descriptor.
#[derive(Clone, Debug)]
pub(super) struct InventoryHandle {
    asked: Arc<AtomicU32>,
    /// How often the watching thread woke.
    turns: Arc<AtomicU32>,
    wake: Arc<OwnedFd>,
}

impl InventoryHandle {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self { asked: Arc::default(), turns: Arc::default(), wake: Arc::new(eventfd()?) })
    }

    /// Asks; what is asked already is not asked twice.
    pub(super) fn request(&self, what: Request) {
        if self.asked.fetch_or(what as u32, Ordering::AcqRel) & what as u32 == 0 {
            ring(&self.wake);
        }
    }

    /// The watching thread woke.
    pub(super) fn turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) -> u32 {
        clear(&self.wake);
        self.asked.swap(0, Ordering::AcqRel)
    }
}

/// An eventfd for a wake between two threads or processes.
pub(super) fn eventfd() -> Result<OwnedFd, Errno> {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Wakes whoever waits for an eventfd.
pub(super) fn ring(fd: &OwnedFd) {
    // A full counter is readable already.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Makes an eventfd wait for its next ring.
pub(super) fn clear(fd: &OwnedFd) {
    let mut count = [0; 8];
    while let Err(Errno::INTR) = rustix::io::read(fd, &mut count) {}
}

/// What the inventory thread says of the core whenever the reporter is new, and when this agent takes over.
#[derive(Clone, Debug)]
pub(super) struct StartupReport {
    pub(super) source: &'static str,
    pub(super) shadow: Option<&'static str>,
    pub(super) attempts: Vec<SourceAttempt>,
    pub(super) start: StartParts,
    pub(super) undone: Option<(u32, u32, u32, u32)>,
    pub(super) troubles: Vec<String>,
}

/// What an agent found when it took over.
#[derive(Debug)]
pub(super) struct TakenOver {
    pub(super) undone: Option<(u32, u32, u32, u32)>,
    pub(super) troubles: Vec<String>,
}

/// What the inventory thread is given at its start.
pub(super) struct Context {
    pub(super) root: Root,
    pub(super) patterns: Patterns,
    /// The slices that the kernel brakes, and what is never touched; absent where there are none.
    pub(super) brakes: Option<Patterns>,
    /// By the place of its pattern in the list.
    pub(super) priorities: Vec<i32>,
    pub(super) protected: Protected,
    pub(super) slices: Vec<Pattern>,
    pub(super) health: HealthReader,
    pub(super) updates: Updates<Update>,
    /// Handles that the watching thread does not need any more.
    pub(super) returned: Consumer<Arc<Handle>>,
    /// As it was read at the start.
    pub(super) machine: Machine,
    /// Rung when there are updates.
    pub(super) news: OwnedFd,
    pub(super) handle: InventoryHandle,
    /// Readable when the reporter is new.
    pub(super) reporter_restarted: OwnedFd,
    pub(super) queue: Producer,
    pub(super) max_workloads: usize,
    /// Comes before [`Request::TakeOver`].
    pub(super) taken_over: Receiver<TakenOver>,
    /// The watching thread wakes by itself from time to time: if it does not, the core is not well.
    pub(super) turns: bool,
}

struct Known {
    slot: u32,
    handle: Arc<Handle>,
    priority: i32,
    started: MonotonicNs,
    slices: SliceSet,
    /// What was told last.
    reported: (Bytes, Bytes),
    seen: u64,
}

pub(super) struct Inventory {
    context: Context,
    known: HashMap<CgroupId, Known>,
    free: Vec<u32>,
    slices: Vec<Option<(Arc<Handle>, SliceFigures)>>,
    marks: [Option<(CgroupId, u8)>; MAX_BRAKES],
    walk: u64,
    news: bool,
    next_discovery: MonotonicNs,
    next_suspects: MonotonicNs,
    /// How often the watching thread had woken, and when that was seen to change.
    turned: (u32, MonotonicNs),
    /// What went wrong last, by what was tried, so that it is told once.
    troubles: HashMap<&'static str, String>,
}

impl Inventory {
    pub(super) fn new(context: Context) -> Self {
        let end = u32::try_from(SLOTS.min(context.max_workloads)).unwrap_or(0);
        Self {
            known: HashMap::with_capacity(256),
            free: (0..end).rev().collect(),
            slices: context.slices.iter().map(|_| None).collect(),
            marks: [None; MAX_BRAKES],
            walk: 0,
            news: false,
            next_discovery: MonotonicNs(0),
            next_suspects: MonotonicNs(0),
            turned: (0, monotonic()),
            troubles: HashMap::new(),
            context,
        }
    }

    /// Finds and opens everything for the first time, on the caller's thread.
    pub(super) fn first(&mut self) {
        self.discover();
        self.publish();
    }

    /// How many workloads there are.
    pub(super) fn workloads(&self) -> u32 {
        u32::try_from(self.known.len()).unwrap_or(u32::MAX)
    }

    /// Serves until it is asked to end.
    pub(super) fn serve(mut self, mut startup_report: StartupReport) {
        self.report_startup(&mut startup_report, true);
        let mut next = monotonic().after(PACE);
        let mut pending = false;
        loop {
            let now = monotonic();
            let due = if pending { next.min(self.next_discovery) } else { next };
            let left = due.since(now);
            let timeout = Timespec::try_from(left).ok();
            let mut fds = [
                PollFd::from_borrowed_fd(self.context.handle.wake.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.context.reporter_restarted.as_fd(), PollFlags::IN),
            ];
            let _ = poll(&mut fds, timeout.as_ref());
            let reporter_restarted = !fds[1].revents().is_empty();
            let asked = self.context.handle.take();
            let is_asked = |what: Request| asked & what as u32 != 0;
            if is_asked(Request::End) {
                return;
            }
            pending |= is_asked(Request::Discover);
            let now = monotonic();
            let slow = next <= now;
            if slow {
                next = now.after(PACE);
                self.read_machine();
            }
            self.close_returned();
            if (pending || slow) && self.next_discovery <= now {
                pending = false;
                self.discover();
            } else if is_asked(Request::Refresh) {
                self.find_slices();
                self.refresh();
            }
            self.publish();
            if is_asked(Request::Suspects) && self.next_suspects <= now {
                self.next_suspects = now.after(SUSPECTS_PAUSE);
                self.name_suspects();
            }
            if is_asked(Request::TakeOver)
                && let Ok(TakenOver { undone, troubles }) = self.context.taken_over.try_recv()
            {
                startup_report = StartupReport { shadow: None, undone, troubles, ..startup_report };
                self.report_startup(&mut startup_report, true);
            }
            if reporter_restarted {
                clear(&self.context.reporter_restarted);
                self.report_startup(&mut startup_report, false);
            }
            if slow || reporter_restarted {
                self.report();
            }
        }
    }

    fn publish(&mut self) {
        if std::mem::take(&mut self.news) {
            ring(&self.context.news);
        }
    }

    /// Sends an update. Where the watching thread has not taken the earlier ones, it waits: on this thread that is
    /// fine.
    fn update(&mut self, update: Update) {
        let mut update = update;
        self.news = true;
        self.close_returned();
        while let Err(rtrb::PushError::Full(back)) = self.context.updates.push(update) {
            if self.context.updates.is_abandoned() {
                return;
            }
            update = back;
            ring(&self.context.news);
            self.close_returned();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Closes what the watching thread gave back.
    fn close_returned(&mut self) {
        while self.context.returned.pop().is_ok() {}
    }

    /// Watermarks and the drift of counters change with `vm.min_free_kbytes`, processors and memory.
    fn read_machine(&mut self) {
        match super::machine() {
            Ok(read) => {
                if let Some(machine) = self.context.machine.renewed(read) {
                    self.context.machine = machine;
                    self.update(Update::Machine(machine));
                }
            }
            Err(error) => self.complain("machine", format!("the lines go by older figures: {error:#}")),
        }
    }

    fn discover(&mut self) {
        let begun = monotonic();
        let bounds = Bounds { count: self.context.max_workloads.min(SLOTS), ..Bounds::default() };
        let found = discover(&self.context.root, &self.context.patterns, &self.context.protected, bounds);
        match found {
            Ok(discovery) => {
                if discovery.cut_off {
                    self.complain(
                        "count",
                        format!("there are more than {} workloads; the rest is not watched", bounds.count),
                    );
                }
                self.walk += 1;
                for one in discovery.workloads {
                    self.meet(&one);
                }
                self.forget();
            }
            Err(error) => self.complain("look", format!("cannot look for workloads: {error}")),
        }
        self.find_slices();
        self.find_marks();
        self.refresh();
        let now = monotonic();
        self.next_discovery = now.after(DISCOVERY_PAUSE.max(now.since(begun) * 10));
    }

    fn meet(&mut self, found: &Found) {
        if let Some(known) = self.known.get_mut(&found.id) {
            known.seen = self.walk;
            return;
        }
        let handle = match Handle::open(&self.context.root, &found.path) {
            // It went, or another one came in its place: the next walk sees.
            Ok(None) => return,
            Ok(Some(handle)) if handle.id() != found.id => return,
            Ok(Some(handle)) => handle,
            Err(error) => return self.complain("open", format!("cannot watch a workload: {error}")),
        };
        let Some(slot) = self.free.pop() else { return };
        let slices = (0_u8..).zip(&self.context.slices).filter(|(_, slice)| slice.covers(&found.path));
        let slices = slices.fold(SliceSet::NONE, |set, (index, _)| set.with(SliceId(index)));
        let known = Known {
            slot,
            handle: Arc::new(handle),
            priority: self.context.priorities.get(found.pattern).copied().unwrap_or(0),
            started: monotonic(),
            slices,
            reported: (Bytes(u64::MAX), Bytes(u64::MAX)),
            seen: self.walk,
        };
        self.known.insert(found.id, known);
    }

    /// Lets go of those that the last walk did not see.
    fn forget(&mut self) {
        let gone: Vec<(CgroupId, u32)> = self
            .known
            .iter()
            .filter(|(_, known)| known.seen != self.walk)
            .map(|(id, known)| (*id, known.slot))
            .collect();
        for (id, slot) in gone {
            self.update(Update::Gone(slot));
            self.known.remove(&id);
            self.free.push(slot);
        }
    }

    /// Reads the slow figures of all, and tells those that changed.
    fn refresh(&mut self) {
        let mut updates = Vec::new();
        for known in self.known.values_mut() {
            // Without a figure nothing is taken off its usage, and nothing was promised to it.
            let inactive_file = known.handle.inactive_file().unwrap_or(Bytes::ZERO);
            let reservation = known.handle.reservation().unwrap_or(Bytes::ZERO);
            if known.reported == (inactive_file, reservation) {
                continue;
            }
            known.reported = (inactive_file, reservation);
            let facts = Facts {
                handle: Arc::clone(&known.handle),
                reservation,
                inactive_file,
                priority: known.priority,
                started: known.started,
                slices: known.slices,
            };
            updates.push(Update::Workload(known.slot, facts));
        }
        for update in updates {
            self.update(update);
        }
    }

    fn find_slices(&mut self) {
        for index in 0..self.context.slices.len() {
            let path = self.context.slices[index].as_str().to_owned();
            let handle = match &self.slices[index] {
                Some((handle, ..)) if handle.usage().is_ok() => Some(Arc::clone(handle)),
                _ => Handle::open(&self.context.root, path.as_bytes()).ok().flatten().map(Arc::new),
            };
            // A slice without a limit of its own has no line below it.
            let now = handle.and_then(|handle| {
                let max = handle.max().ok()??;
                let inactive = handle.inactive_file().unwrap_or(Bytes::ZERO);
                let reclaimable = handle.reclaimable().ok();
                Some((handle, SliceFigures { max, inactive_file: inactive, reclaimable }))
            });
            let same = match (&self.slices[index], &now) {
                (Some(before), Some(after)) => before.0.id() == after.0.id() && before.1 == after.1,
                (None, None) => true,
                _ => false,
            };
            if !same {
                let facts =
                    now.as_ref().map(|(handle, figures)| SliceFacts { handle: Arc::clone(handle), figures: *figures });
                self.slices[index] = now;
                self.update(Update::Slice(u8::try_from(index).unwrap_or(u8::MAX), facts));
            }
        }
    }

    /// Finds the slices that the kernel brakes.
    fn find_marks(&mut self) {
        let Some(patterns) = &self.context.brakes else { return };
        let bounds = Bounds { depth: MARK_DEPTH, count: MAX_BRAKES };
        let discovery = match discover(&self.context.root, patterns, &self.context.protected, bounds) {
            Ok(discovery) => discovery,
            Err(error) => return self.complain("mark", format!("cannot look for slices to mark: {error}")),
        };
        if let Some(text) = unmarked(&discovery) {
            self.complain("mark", text);
        } else {
            self.troubles.remove("mark");
        }
        let depth = |path: &[u8]| u8::try_from(path.split(|byte| *byte == b'/').count()).unwrap_or(u8::MAX);
        let mut marks = discovery.workloads.iter().map(|found| (found.id, depth(&found.path)));
        for index in 0..MAX_BRAKES {
            let mark = marks.next();
            if self.marks[index] != mark {
                self.marks[index] = mark;
                self.update(Update::Mark(u8::try_from(index).unwrap_or(u8::MAX), mark));
            }
        }
    }

    fn name_suspects(&mut self) {
        for suspect in suspects::largest(&self.context.patterns, &self.context.root, &self.context.protected) {
            let Memory { pid, name, resident, huge_pages, .. } = suspect;
            Record::Suspect { pid: pid.cast_unsigned(), name: name.as_bytes(), resident, huge_pages }
                .send(&mut self.context.queue);
        }
    }

    fn report_startup(&mut self, startup_report: &mut StartupReport, first: bool) {
        let StartupReport { source, shadow, attempts, start, undone, troubles } = startup_report;
        let queue = &mut self.context.queue;
        let workloads = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
        for attempt in attempts.iter() {
            if let Some(why) = &attempt.error {
                Record::SourceFailed { source: attempt.kind.name(), why: clip(why) }.send(queue);
            }
        }
        for Hook { name, state } in &self.context.health.read().hooks {
            let (attached, how) = match state {
                HookState::Attached(how) => (true, how),
                HookState::Missing(why) => (false, why),
            };
            Record::Hook { name, attached, how: clip(how) }.send(queue);
        }
        // Last, so that readiness never lacks a reason that is on its way.
        Record::Armed { pid: std::process::id(), source, shadow: *shadow, workloads, start: *start }.send(queue);
        if first {
            if let Some((thawed, continued, failed, kills)) = undone.take() {
                Record::Undone { thawed, continued, failed, kills }.send(queue);
            }
            for text in troubles.drain(..) {
                Record::Trouble { text: clip(&text) }.send(queue);
            }
        }
        self.report();
    }

    fn report(&mut self) {
        let health = self.context.health.read();
        let workloads = self.workloads();
        let queue = &mut self.context.queue;
        let now = monotonic();
        let turns = self.context.handle.turns.load(Ordering::Relaxed);
        if turns != self.turned.0 || !self.context.turns {
            self.turned = (turns, now);
        }
        if now.since(self.turned.1) < STUCK {
            Record::Beat {
                at: now,
                workloads,
                malformed: health.malformed,
                brakes_applied: health.brakes_applied,
                brakes_refused: health.brakes_refused,
            }
            .send(queue);
        }
        for (ring, count) in health.lost {
            Record::Lost { ring, count }.send(queue);
        }
        for program in health.programs {
            Record::Program {
                name: program.name,
                runs: program.runs,
                run_time_ns: program.run_time_ns,
                recursion_misses: program.recursion_misses,
            }
            .send(queue);
        }
    }

    /// Tells of a trouble, once until another one comes where the same was tried.
    fn complain(&mut self, tried: &'static str, text: String) {
        if self.troubles.get(tried) != Some(&text) {
            Record::Trouble { text: clip(&text) }.send(&mut self.context.queue);
            self.troubles.insert(tried, text);
        }
    }
}

/// What is to be said of slices that the kernel could brake, were it allowed.
fn unmarked(discovery: &Discovery) -> Option<String> {
    const WHY: &str = "would stop what must not be touched: it holds this agent, init, or what `never` names";
    if let Some(path) = discovery.refused.first() {
        let others = match discovery.refused.len() - 1 {
            0 => String::new(),
            others => format!("; so would {others} more"),
        };
        return Some(format!("the kernel does not brake {}: that {WHY}{others}", path.escape_ascii()));
    }
    if discovery.cut_off {
        return Some(format!("the kernel brakes at most {MAX_BRAKES} slices; the rest is not marked"));
    }
    discovery.workloads.is_empty().then(|| "the kernel brakes nothing: no slice of `inKernel` is there".to_owned())
}

/// The beginning of a text that fits a record.
fn clip(text: &str) -> &str {
    const MOST: usize = 400;
    let mut end = text.len().min(MOST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_clipped_between_characters() {
        let text = "é".repeat(300);
        assert!(clip(&text).len() <= 400 && clip(&text).chars().all(|c| c == 'é'));
        assert_eq!(clip("short"), "short");
    }

    #[test]
    fn slices_that_are_not_braked_are_told() {
        let found = |path: &str| Found { path: path.into(), id: CgroupId(1), pattern: 0 };
        let discovery = |workloads: &[&str], refused: &[&str], cut_off| Discovery {
            workloads: workloads.iter().map(|path| found(path)).collect(),
            refused: refused.iter().map(|path| path.as_bytes().to_vec()).collect(),
            cut_off,
        };
        for (discovery, expected) in [
            (discovery(&["a"], &[], false), None),
            (discovery(&[], &[], false), Some("no slice of `inKernel` is there")),
            (discovery(&["a"], &["system.slice"], false), Some("does not brake system.slice: that would stop")),
            (discovery(&[], &["a", "b", "c"], false), Some("so would 2 more")),
            (discovery(&["a"], &[], true), Some("at most 16")),
        ] {
            let reported = unmarked(&discovery);
            assert_eq!(reported.is_some(), expected.is_some(), "{reported:?}");
            assert!(reported.unwrap_or_default().contains(expected.unwrap_or_default()), "{expected:?}");
        }
    }

    #[test]
    fn what_is_asked_twice_before_it_is_taken_is_done_once() {
        let handle = InventoryHandle::new().expect("an eventfd");
        handle.request(Request::Discover);
        handle.request(Request::Discover);
        handle.request(Request::End);
        assert_eq!(handle.take(), Request::Discover as u32 | Request::End as u32);
        assert_eq!(handle.take(), 0);
    }
}
