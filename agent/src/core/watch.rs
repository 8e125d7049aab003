//! The thread that waits, looks, decides and acts.
//!
//! After a wake it reads and writes descriptors that are open already and BPF maps that are mapped; it opens nothing,
//! allocates nothing, formats nothing and logs nothing. What it did goes into a queue as typed records; what blocks
//! goes to the workers; what opens files is asked of the inventory thread.

use core::time::Duration;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use plimsoll_act::{Brakes, Done, KillPoint, Kills, Reclaimed, Worker, Workers, reached};
use plimsoll_node::cgroup::Handle;
use plimsoll_node::clock::monotonic;
use plimsoll_node::limits::TaskLimits;
use plimsoll_node::meminfo::MemInfo;
use plimsoll_node::pressure::MemoryPressure;
use plimsoll_policy::kubelet::{
    Condition, DiskLayout, MemoryStats, NodeStats, Readings as Signals, StatsTime, Threshold,
};
use plimsoll_policy::{
    Config as Policy, EvictionPolicy, Key, MemoryReading, Observation, Outcome, Plan, Reclaimed as ReclaimEnd, Scope,
    SliceId, SliceSet, Stall, State, decide,
};
use plimsoll_sense::{ArmedThresholds, Interest, Kind, MAX_SLICES, Source, TaskThreshold, Wake, WakeList};
use plimsoll_state::Record as RunRecord;
use plimsoll_state::queue::Producer;
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use rtrb::Consumer;
use rustix::event::{Timespec, epoll, poll};
use rustix::io::Errno;

use super::episode::{Depth, Episodes, Reported, SCOPES};
use super::inventory::{InventoryHandle, Request};
use super::kernel_brake::KernelBrake;
use super::resume::Resumer;
use super::table::{Table, Update};
use super::thresholds::{self, Machine};
use crate::record::{Cause, OomScope, Record, fitting};

mod enforcement;
#[cfg(test)]
mod tests;

/// While somebody is dying, how often that is looked at.
const KILL_PACE: Duration = Duration::from_millis(2);
/// While reclaim runs on its worker, how often its end is looked for.
const RECLAIM_PACE: Duration = Duration::from_millis(20);
/// So near to a line that the ring would come at once, how often to look.
const NEAR_PACE: Duration = Duration::from_millis(20);
/// The shortest time between two looks because tasks stall: each cgroup may say so once a second, and there are many.
const STALL_PACE: Duration = Duration::from_millis(20);
/// Below a line with nothing left to do, the pace of looking begins here and doubles,
const BELOW_PACE: Duration = Duration::from_millis(4);
/// up to this.
const BELOW_PACE_MOST: Duration = Duration::from_secs(1);
/// A plan that stays the same is told again after this long.
const REPORT_AGAIN: Duration = Duration::from_secs(30);
/// How many candidates are told beside those that are acted on.
const REPORTED: usize = 8;
/// After the line of tasks rang, it is quiet for so long.
const TASKS_QUIET: Duration = Duration::from_mins(1);

/// An agent that is asked to end finishes what it began, but for no longer than this.
pub(super) const END_MOST: Duration = Duration::from_secs(10);
/// From so many drains on that find nothing although there is something, this thread lets others run
const EMPTY_DRAINS: u32 = 2;
/// for so long each time.
const BUSY_NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Tokens beyond those of the source.
const TOKEN_INVENTORY: u64 = 1 << 32;
const TOKEN_TERM: u64 = TOKEN_INVENTORY + 1;
const TOKEN_PARENT: u64 = TOKEN_INVENTORY + 2;

// What the configuration allows is what the kernel side has room for, and what the tables here are made for.
const _: () = assert!(SliceSet::MAX_SLICES == MAX_SLICES);

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// SIGTERM.
    Asked,
    /// The supervisor is gone.
    Orphaned,
}

impl End {
    /// The exit code that tells the supervisor.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Asked => 0,
            Self::Orphaned => 1,
        }
    }
}

/// What is done, where this agent acts. Without it, plans are only told.
pub(super) struct Enforcer {
    pub(super) record: RunRecord,
    pub(super) brakes: Brakes,
    pub(super) kills: Kills,
    /// Kills that an earlier process had perhaps not done: decided about again where the victim does not empty.
    pub(super) doubtful: Vec<CgroupId>,
    pub(super) workers: Workers,
    pub(super) reclaim: Worker,
    /// Whether what grows is frozen while deciding.
    pub(super) freeze: bool,
}

/// What the thread is given at its start.
pub(super) struct Context {
    pub(super) policy: Policy,
    /// What is observed is told too.
    pub(super) is_traced: bool,
    pub(super) source: Box<dyn Source>,
    pub(super) enforcer: Option<Enforcer>,
    pub(super) meminfo: MemInfo,
    pub(super) pressure: Option<MemoryPressure>,
    pub(super) machine: Machine,
    /// How many tasks there can be; absent where the kernel does not say.
    pub(super) tasks: Option<TaskLimits>,
    pub(super) updates: Consumer<Update>,
    /// Handles that are not needed any more.
    pub(super) give_back: rtrb::Producer<Arc<Handle>>,
    pub(super) inventory: InventoryHandle,
    /// Continues what the in-kernel brake stopped; absent where that stops nobody.
    pub(super) resumer: Option<Resumer>,
    /// How long the in-kernel brake may hold anybody.
    pub(super) hold: Duration,
    /// Rung by the inventory thread when there is news.
    pub(super) news: OwnedFd,
    pub(super) queue: Producer,
    /// How often to look where nothing rings; absent where only the source's own pace counts.
    pub(super) slow: Option<Duration>,
    /// Readable when this process was asked to end.
    pub(super) term: OwnedFd,
    /// Readable when the supervisor is gone.
    pub(super) parent: OwnedFd,
    /// What this agent needs to act, once that is its turn; `news` is rung for it.
    pub(super) means: Consumer<Means>,
}

/// What an agent that shadowed acts with from its turn on.
pub(super) struct Means {
    pub(super) enforcer: Enforcer,
    pub(super) resumer: Option<Resumer>,
}

/// Memory of the machine, then of each slice; absent where it could not be read.
type Readings = [Option<MemoryReading>; SCOPES];

/// What was told last of a scope.
#[derive(Clone, Copy, Debug)]
struct Last {
    outcome: Outcome,
    pressure: bool,
    at: MonotonicNs,
    /// Whether something that was told there is not so any more.
    is_outdated: bool,
}

/// A reclaim that a plan asked for.
#[derive(Clone, Copy, Debug)]
struct Reclaiming {
    /// How many jobs of it are not done.
    jobs: usize,
    scope: usize,
    order: u64,
}

/// A wake, added up over one drain.
#[derive(Clone, Copy, Debug, Default)]
struct Trigger {
    cause: Option<Cause>,
    crossed: Option<MonotonicNs>,
    growers: [Option<Key>; 4],
    line: bool,
}

impl Trigger {
    fn because(&mut self, cause: Cause) {
        // A line goes before whatever else woke the thread at the same time.
        if self.cause.is_none() || cause == Cause::Line {
            self.cause = Some(cause);
        }
    }
}

pub(super) struct Watch {
    context: Context,
    kind: Kind,
    epoll: OwnedFd,
    table: Table,
    state: State,
    plan: Plan,
    plans: u64,
    wakes: WakeList,
    node_threshold: Option<plimsoll_sense::NodeThreshold>,
    next_sample: Option<MonotonicNs>,
    next_slow: Option<MonotonicNs>,
    below_pace: Duration,
    episodes: Episodes,
    reported: [Option<Last>; SCOPES],
    /// The last reclaim of each scope that ended.
    reclaimed: [Option<ReclaimEnd>; SCOPES],
    /// The reclaim under way.
    reclaiming: Option<Reclaiming>,
    stall: [(MonotonicNs, Duration); 2],
    /// When the thread last looked because tasks stalled.
    stall_sampled: Option<MonotonicNs>,
    kernel_brake: KernelBrake,
    tasks_quiet: Option<MonotonicNs>,
    /// Where the line of tasks is.
    task_threshold: Option<TaskThreshold>,
    /// It was asked to end, and does so by then at the latest.
    end_by: Option<MonotonicNs>,
    /// Drains in a row that found nothing although the source was readable.
    empty_drains: u32,
}

impl Watch {
    pub(super) fn new(context: Context) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |fd: rustix::fd::BorrowedFd<'_>, token: u64, flags| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), flags)
        };
        for descriptor in context.source.descriptors() {
            let flags = match descriptor.interest {
                Interest::Readable => epoll::EventFlags::IN,
                Interest::Priority => epoll::EventFlags::PRI,
            };
            add(descriptor.fd, u64::from(descriptor.token), flags)?;
        }
        add(context.news.as_fd(), TOKEN_INVENTORY, epoll::EventFlags::IN)?;
        add(context.term.as_fd(), TOKEN_TERM, epoll::EventFlags::IN)?;
        add(context.parent.as_fd(), TOKEN_PARENT, epoll::EventFlags::IN)?;
        let now = monotonic();
        Ok(Self {
            kind: context.source.kind(),
            epoll,
            table: Table::new(),
            state: State::with_capacity(&context.policy, super::table::SLOTS),
            plan: Plan::with_capacity(&context.policy, super::table::SLOTS, 0),
            plans: 0,
            wakes: WakeList::new(),
            node_threshold: None,
            next_sample: Some(now),
            next_slow: context.slow.map(|slow| now.after(slow)),
            below_pace: BELOW_PACE,
            episodes: Episodes::default(),
            reported: [None; SCOPES],
            reclaimed: [None; SCOPES],
            reclaiming: None,
            stall: [(now, Duration::ZERO); 2],
            stall_sampled: None,
            kernel_brake: KernelBrake::new(context.hold),
            tasks_quiet: None,
            task_threshold: None,
            end_by: None,
            empty_drains: 0,
            context,
        })
    }

    /// Looks for the first time and arms the lines.
    pub(super) fn begin(&mut self) {
        self.take_updates();
        self.sample_stall(monotonic());
        self.set_task_threshold();
        let awake = monotonic();
        self.sample(Trigger { cause: Some(Cause::Timer), ..Trigger::default() }, awake);
    }

    /// Waits and acts until it is asked to end.
    pub(super) fn run(&mut self) -> End {
        loop {
            let mut events =
                [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 8];
            let timeout = self.timeout();
            let count = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    self.report(&Record::Failed { what: "wait", errno: Some(errno.raw_os_error()) });
                    0
                }
            };
            let awake = monotonic();
            self.context.inventory.turn();
            super::fault_injection::begin();
            if let Some(end) = self.turn(&events[..count], awake) {
                return end;
            }
            super::fault_injection::end();
            self.let_others_run();
        }
    }

    /// Sleeps for a moment where the source stays readable and has nothing to read. A program of the kernel's was
    /// interrupted between reserving a record and submitting it, perhaps on this CPU: it cannot go on while this
    /// thread, which is before all ordinary ones, asks again and again. Nothing is due earlier than this ends but by
    /// that much.
    fn let_others_run(&self) {
        if self.empty_drains >= EMPTY_DRAINS {
            let _ = poll(&mut [], Some(&BUSY_NAP));
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let now = monotonic();
        let mut due = [self.next_sample, self.next_slow, self.table.next_overdue().map(|(at, ..)| at)]
            .into_iter()
            .flatten()
            .min();
        let mut by = |at: MonotonicNs| due = Some(due.map_or(at, |earlier| earlier.min(at)));
        if let Some(enforcer) = &self.context.enforcer {
            enforcer.brakes.next_due().map(&mut by);
            if enforcer.kills.hopeful() > 0 {
                by(now.after(KILL_PACE));
            } else if enforcer.kills.count() > 0 {
                by(now.after(BELOW_PACE_MOST));
            }
            if self.reclaiming.is_some() {
                by(now.after(RECLAIM_PACE));
            }
        }
        self.kernel_brake.due().map(&mut by);
        self.end_by.map(&mut by);
        // A time too far away to be said is never.
        due.and_then(|due| due.since(now).try_into().ok())
    }

    fn turn(&mut self, events: &[epoll::Event], awake: MonotonicNs) -> Option<End> {
        let mut trigger = Trigger::default();
        let empty_drains = self.empty_drains;
        for event in events {
            match event.data.u64() {
                TOKEN_TERM => {
                    super::inventory::clear(&self.context.term);
                    self.end_by.get_or_insert(awake.after(END_MOST));
                    // A line may have been crossed just now.
                    trigger.because(Cause::FollowUp);
                }
                TOKEN_PARENT => return Some(End::Orphaned),
                TOKEN_INVENTORY => {
                    super::inventory::clear(&self.context.news);
                    // Somebody who was not known may be the one that grows.
                    if self.take_updates() && self.episodes.is_open() {
                        trigger.because(Cause::FollowUp);
                    }
                    if self.take_means() {
                        trigger.because(Cause::FollowUp);
                    }
                }
                token => self.drain(u32::try_from(token).unwrap_or(u32::MAX), awake, &mut trigger),
            }
        }
        if self.empty_drains == empty_drains {
            // Nothing was readable without something to read.
            self.empty_drains = 0;
        }
        self.follow_up(awake, &mut trigger);
        if self.next_slow.is_some_and(|at| at <= awake) {
            self.next_slow = self.context.slow.map(|slow| awake.after(slow));
            self.sample_stall(awake);
            self.find_stopped();
            self.report_unresumed();
            self.set_task_threshold();
            trigger.because(Cause::Timer);
        }
        if self.next_sample.is_some_and(|at| at <= awake) {
            trigger.because(Cause::FollowUp);
        }
        if trigger.cause.is_some() {
            self.sample(trigger, awake);
        }
        self.end_by.is_some_and(|by| by <= awake || !self.is_under_way()).then_some(End::Asked)
    }

    /// Whether a victim is dying or something is held: an end now would leave an eviction half done.
    fn is_under_way(&self) -> bool {
        let acts = |enforcer: &Enforcer| enforcer.kills.hopeful() > 0 || enforcer.brakes.count() > 0;
        self.kernel_brake.holds() || self.context.enforcer.as_ref().is_some_and(acts)
    }

    /// Acts from here on, if the agent that acted is gone. Gives whether it does.
    fn take_means(&mut self) -> bool {
        let Ok(Means { enforcer, resumer }) = self.context.means.pop() else { return false };
        self.context.enforcer = Some(enforcer);
        self.context.resumer = resumer;
        self.context.inventory.request(Request::TakeOver);
        true
    }

    /// Lets go of everything, for the end.
    pub(super) fn release(&mut self) {
        let _ = self.context.source.disarm();
        self.kernel_brake.let_go(&mut *self.context.source);
        let now = monotonic();
        self.thaw_all(now);
        if let Some(resumer) = &self.context.resumer {
            resumer.end();
        }
    }

    /// Whether whoever was stopped goes on, after [`Self::release`].
    pub(super) fn has_released(&self) -> bool {
        self.context.resumer.as_ref().is_none_or(Resumer::has_ended)
    }

    fn drain(&mut self, token: u32, awake: MonotonicNs, trigger: &mut Trigger) {
        let mut wakes = std::mem::take(&mut self.wakes);
        wakes.clear();
        if self.context.source.drain(token, &mut wakes).is_err() {
            self.report(&Record::Failed { what: "read the source", errno: None });
        }
        self.empty_drains = if wakes.is_empty() { self.empty_drains.saturating_add(1) } else { 0 };
        if self.empty_drains == 1 {
            // What cannot be read yet may be word of a line.
            trigger.because(Cause::FollowUp);
        }
        for wake in &wakes {
            if !super::fault_injection::loses(wake) {
                self.notice(wake, awake, trigger);
            }
        }
        self.wakes = wakes;
    }

    fn notice(&mut self, wake: &Wake, awake: MonotonicNs, trigger: &mut Trigger) {
        match *wake {
            Wake::ThresholdCrossed { crossed, charged, ref ancestors, .. } => {
                trigger.because(Cause::Line);
                trigger.line = true;
                trigger.crossed = Some(trigger.crossed.map_or(crossed, |earlier| earlier.min(crossed)));
                if let Some(key) = self.table.of(ancestors, charged)
                    && !trigger.growers.contains(&Some(key))
                    && let Some(place) = trigger.growers.iter_mut().find(|place| place.is_none())
                {
                    *place = Some(key);
                }
                self.report(&Record::Crossed { crossed, awake });
            }
            Wake::ReclaimStarted { .. } => trigger.because(Cause::Reclaim),
            Wake::StallBurst { .. } | Wake::Psi { .. } => match self.stall_sampled.map(|at| at.after(STALL_PACE)) {
                Some(next) if awake < next => self.sample_by(next),
                _ => {
                    self.stall_sampled = Some(awake);
                    trigger.because(Cause::Psi);
                }
            },
            Wake::Tick { .. } => {
                self.sample_stall(awake);
                trigger.because(Cause::Poll);
            }
            Wake::Oom { at, victim, victim_cgroup, resident, scope, .. } => {
                let scope = match scope {
                    plimsoll_sense::OomScope::Global => OomScope::Global,
                    plimsoll_sense::OomScope::Cgroup => OomScope::Cgroup,
                    plimsoll_sense::OomScope::Cpuset => OomScope::Cpuset,
                    plimsoll_sense::OomScope::NumaNode => OomScope::NumaNode,
                };
                let resident = resident.map(|pages| pages.to_bytes(self.context.machine.page_bytes));
                self.report(&Record::Oom { at, pid: victim, cgroup: victim_cgroup, resident, scope });
                trigger.because(Cause::FollowUp);
            }
            Wake::Tasks { count, at, tgid, .. } => {
                self.tasks_quiet = Some(awake.after(TASKS_QUIET));
                self.report(&Record::Tasks { count, at, pid: tgid });
            }
            Wake::Cgroup { .. } => self.context.inventory.request(Request::Discover),
            Wake::Stopped { tgid, slice, at } => {
                self.kernel_brake.stopped(at);
                reached(KillPoint::KernelStopSeen);
                self.report(&Record::StoppedInKernel { pid: tgid, slice, at });
                trigger.because(Cause::Line);
            }
        }
    }

    /// Takes the inventory thread's news in. Gives whether there was any.
    fn take_updates(&mut self) -> bool {
        let mut any = false;
        while let Ok(update) = self.context.updates.pop() {
            any = true;
            if let Update::Mark(index, mark) = update {
                self.kernel_brake.mark(index, mark);
                continue;
            }
            if let Update::Machine(machine) = update {
                self.context.machine = machine;
                // The line is where it was by the old figures until the next look.
                self.sample_by(MonotonicNs(0));
                continue;
            }
            if let Some(old) = self.table.take(update) {
                self.close(old);
            }
        }
        any
    }

    /// Gives a handle back to the inventory thread, who opened it: this may be the last one, and closing can block.
    fn close(&mut self, handle: Arc<Handle>) {
        // The inventory thread takes them whenever it sends news, of which most come. Only where it is frozen for long,
        // because a directory does not answer, is there no room, and then it is closed here after all.
        let _ = self.context.give_back.push(handle);
    }

    /// What became of brakes, kills and jobs.
    fn follow_up(&mut self, now: MonotonicNs, trigger: &mut Trigger) {
        if self.context.enforcer.is_none() {
            return;
        }
        while let Some((at, key, plan)) = self.table.next_overdue()
            && at <= now
        {
            self.kill(plan, key, None, now);
        }
        while let Some(event) = self.brake_event(now) {
            self.braked(event, now, trigger);
        }
        while let Some(event) = self.kill_event(now) {
            trigger.because(Cause::FollowUp);
            self.killed(event, now);
        }
        while let Some(done) = self.job_done() {
            match done {
                Done::Killed { cgroup } => self.thaw(cgroup, now),
                Done::Measured { cgroup, activity } => {
                    if let Some(enforcer) = &mut self.context.enforcer {
                        enforcer.kills.measured(cgroup, activity, now);
                    }
                }
                Done::Released { cgroup, released, gone, kept } => {
                    self.report(&Record::Released { cgroup, released, gone, kept });
                }
                Done::Reclaimed { cgroup, asked, outcome } => {
                    self.job_reclaimed(now);
                    self.report(&Record::Reclaimed { cgroup, asked, all: outcome == Reclaimed::All });
                    trigger.because(Cause::FollowUp);
                }
            }
        }
        if self.kernel_brake.due().is_some_and(|due| due <= now) {
            // Whether or not memory is back; the marks come back when it is.
            self.continue_stopped();
        }
    }

    /// The word that the kernel stopped somebody may be lost; what it wrote down before is not.
    fn find_stopped(&mut self) {
        if self.context.resumer.is_some()
            && !self.kernel_brake.holds()
            && let Some(at) = self.context.source.first_stopped()
        {
            self.kernel_brake.stopped(at);
        }
    }

    /// What the thread could not continue it keeps in its record, for the next time.
    fn report_unresumed(&mut self) {
        if self.context.resumer.as_ref().is_some_and(Resumer::has_failed) {
            self.report(&Record::Failed { what: "continue a process that the kernel stopped", errno: None });
        }
    }

    fn continue_stopped(&mut self) {
        self.kernel_brake.let_go(&mut *self.context.source);
        if let Some(resumer) = &self.context.resumer {
            resumer.request();
        }
    }

    /// One job of a reclaim is done. With the last one the reclaim has ended.
    fn job_reclaimed(&mut self, now: MonotonicNs) {
        let Some(reclaiming) = &mut self.reclaiming else { return };
        reclaiming.jobs = reclaiming.jobs.saturating_sub(1);
        let Reclaiming { jobs, scope, order } = *reclaiming;
        if jobs == 0 {
            self.reclaiming = None;
            self.reclaimed[scope] = Some(ReclaimEnd { order, at: stats_time(now) });
            self.context.inventory.request(Request::Refresh);
        }
    }

    /// Memory of the machine, with the huge page pool still in it.
    fn read_meminfo(&self) -> Option<MachineMemory> {
        let reading = self.context.meminfo.read().ok()?;
        Some(MachineMemory {
            reading: MemoryReading {
                capacity: reading.total,
                kubelet_available: reading.kubelet_available(),
                mem_available: Some(reading.mem_available()),
            },
            huge_page_pool: reading.hugetlb.unwrap_or(Bytes::ZERO),
        })
    }

    fn read(&self) -> Option<MemoryReading> {
        self.read_meminfo().map(|memory| memory.decided_by(self.context.policy.eviction_policy))
    }

    /// Memory of a scope now.
    fn reading(&self, scope: usize) -> Option<MemoryReading> {
        match scope.checked_sub(1) {
            None => self.read(),
            Some(index) => self.table.slice_reading(index),
        }
    }

    fn readings(&self, memory: MemoryReading) -> Readings {
        let mut readings = [None; SCOPES];
        readings[0] = Some(memory);
        for (index, reading) in readings[1..].iter_mut().enumerate().take(self.context.policy.slices.len()) {
            *reading = self.table.slice_reading(index);
        }
        readings
    }

    /// Whether a scope is below a hard threshold by the kernel's own reading.
    fn is_short(&self, scope: usize, memory: &MemoryReading) -> bool {
        past(memory, self.hard_threshold(scope, memory.capacity)) > Bytes::ZERO
    }

    /// The highest hard threshold of a scope.
    fn hard_threshold(&self, scope: usize, capacity: Bytes) -> Bytes {
        let hard = self.context.policy.thresholds_in(scope_of(scope)).iter().filter(|threshold| threshold.is_hard());
        hard.filter_map(|threshold| threshold.bytes(capacity)).max().unwrap_or(Bytes::ZERO)
    }

    /// How many lines of each scope memory is below, by either reading.
    fn depth(&self, readings: &Readings) -> Depth {
        let mut depth = [0; SCOPES];
        for (scope, reading) in readings.iter().enumerate() {
            let Some(memory) = reading else { continue };
            let is_below =
                |threshold: &&Threshold| threshold.bytes(memory.capacity).is_some_and(|at| memory.lowest() < at);
            let below = self.context.policy.thresholds_in(scope_of(scope)).iter().filter(is_below).count();
            depth[scope] = u8::try_from(below).unwrap_or(u8::MAX);
        }
        depth
    }

    /// The most that any scope is below its hard threshold.
    fn past_hard_threshold(&self, readings: &Readings) -> Bytes {
        let each = readings.iter().enumerate().filter_map(|(scope, reading)| {
            let memory = (*reading)?;
            Some(past(&memory, self.hard_threshold(scope, memory.capacity)))
        });
        each.max().unwrap_or(Bytes::ZERO)
    }

    fn sample(&mut self, trigger: Trigger, awake: MonotonicNs) {
        let cause = trigger.cause.unwrap_or(Cause::FollowUp);
        self.next_sample = None;
        let taken = monotonic();
        let Some(machine) = self.read_meminfo() else {
            self.report(&Record::Failed { what: "read /proc/meminfo", errno: None });
            self.next_sample = Some(awake.after(BELOW_PACE_MOST));
            return;
        };
        let memory = machine.decided_by(self.context.policy.eviction_policy);
        let readings = self.readings(memory);
        self.episodes.sample(self.depth(&readings), trigger.crossed, taken);
        self.hold(&trigger, &readings);
        let now = monotonic();
        self.table.observe(self.context.policy.max_pod_grace_seconds, now);
        let stall = self.stalled(now);
        if self.context.is_traced {
            self.tell_observed(&machine, &readings, stall, taken, now);
        }
        let mut hold_on = false;
        let mut quiet = true;
        let mut met = false;
        for (scope, reading) in readings.iter().enumerate().take(1 + self.context.policy.slices.len()) {
            // The pool is a part of what the statistics say, as in the kubelet's.
            let (memory, huge_page_pool) = match scope {
                0 => (Some(machine.reading), machine.huge_page_pool),
                _ => (*reading, Bytes::ZERO),
            };
            let observation = Observation {
                taken,
                scope: scope_of(scope),
                // No disk is read here, so that which there are makes no difference.
                layout: Some(DiskLayout::Single),
                readings: Some(signals(memory, taken)),
                mem_available: memory.and_then(|memory| memory.mem_available),
                mem_available_at: Some(stats_time(taken)),
                huge_page_pool,
                stall,
                reclaimed: self.reclaimed[scope],
                workloads: self.table.observed(),
                ..Observation::default()
            };
            decide(&self.context.policy, &mut self.state, &observation, now, &mut self.plan);
            self.plans += 1;
            let outcome = self.plan.outcome;
            hold_on |= matches!(outcome, Outcome::Evict | Outcome::ComingBack);
            quiet &= is_quiet(outcome);
            met |= self.plan.thresholds.iter().any(|status| status.is_met);
            self.carry_out(scope, now);
            self.report_plan(scope, cause, trigger.crossed, awake, now);
            if outcome == Outcome::Unattributed {
                self.context.inventory.request(Request::Suspects);
            }
            if let Some(at) = self.plan.recheck_at {
                self.sample_by(at);
            }
        }
        self.episodes.past(self.past_hard_threshold(&readings));
        if !met && let Some(Reported { crossed, past_threshold }) = self.episodes.over(quiet) {
            self.report(&Record::MemoryBack { crossed, at: now, past_threshold });
        }
        if !hold_on {
            self.thaw_all(now);
        }
        self.mark_slices(&memory, quiet, hold_on);
        self.rearm(&trigger, &memory, quiet, now);
        self.pace(quiet, hold_on, &trigger, now);
    }

    fn sample_by(&mut self, at: MonotonicNs) {
        self.next_sample = Some(self.next_sample.map_or(at, |earlier| earlier.min(at)));
    }

    /// When to look again if nothing rings.
    fn pace(&mut self, quiet: bool, hold_on: bool, trigger: &Trigger, now: MonotonicNs) {
        if quiet {
            self.below_pace = BELOW_PACE;
            return;
        }
        if hold_on || trigger.line {
            self.below_pace = BELOW_PACE;
        }
        self.sample_by(now.after(self.below_pace));
        self.below_pace = (self.below_pace * 2).min(BELOW_PACE_MOST);
    }

    /// Marks the slices that the kernel brakes while memory is above the threshold, and lets go of whom it stopped as
    /// soon as nobody is dying for it.
    fn mark_slices(&mut self, memory: &MemoryReading, quiet: bool, hold_on: bool) {
        if self.kernel_brake.holds() && !hold_on {
            self.continue_stopped();
        }
        let line = self.hard_threshold(0, memory.capacity);
        let acts = self.context.enforcer.is_some();
        if acts && quiet && self.kernel_brake.set(&mut *self.context.source, line).is_err() {
            self.report(&Record::Failed { what: "mark slices for the in-kernel brake", errno: None });
        }
    }

    /// Draws the lines anew, and looks whether memory passed one before it was drawn.
    fn rearm(&mut self, trigger: &Trigger, memory: &MemoryReading, quiet: bool, now: MonotonicNs) {
        if self.kind != Kind::Ebpf {
            return;
        }
        let thresholds = &self.context.policy.thresholds;
        let node = thresholds::node(thresholds, memory, &self.context.machine);
        let mut near = !thresholds.is_empty() && thresholds::is_near(thresholds, memory, &self.context.machine);
        let mut armed = ArmedThresholds { node, ..ArmedThresholds::default() };
        for (index, slice) in self.table.slices() {
            let Some(own) = self.context.policy.slices.get(index) else { continue };
            let Some(reading) = self.table.slice_reading(index) else { continue };
            match thresholds::slice(slice.handle.id(), &own.thresholds, &reading, slice.figures.inactive_file) {
                Some(line) if slice.handle.usage().is_ok_and(|usage| usage < line.usage) => armed.slices.push(line),
                Some(_) => near = true,
                None => {}
            }
        }
        if self.tasks_quiet.is_none_or(|until| until <= now) {
            self.tasks_quiet = None;
            armed.tasks = self.task_threshold;
        }
        if near {
            self.sample_by(now.after(NEAR_PACE));
        }
        // Reclaim rings once for each arming: arming for its sake alone would let it ring without end.
        let reclaim_alone = matches!(trigger.cause, Some(Cause::Reclaim | Cause::Psi)) && node == self.node_threshold;
        if reclaim_alone && quiet {
            return;
        }
        self.node_threshold = node;
        if self.context.source.arm(&armed).is_err() {
            self.report(&Record::Failed { what: "arm the lines", errno: None });
        }
        if let (Some(after), Some(line)) = (self.read(), node)
            && (after.kubelet_available < line.kubelet
                || after.mem_available.is_some_and(|own| own < line.mem_available))
        {
            self.sample_by(now);
        }
    }

    /// The limits can be changed at any time. Where they cannot be read, the line stays.
    fn set_task_threshold(&mut self) {
        let Some(Ok(reading)) = self.context.tasks.as_ref().map(TaskLimits::read) else { return };
        let limit = reading.limit();
        self.task_threshold = Some(TaskThreshold { count: u32::try_from(limit - limit / 20).unwrap_or(u32::MAX) });
    }

    fn sample_stall(&mut self, now: MonotonicNs) {
        let Some(pressure) = &self.context.pressure else { return };
        if let Ok(read) = pressure.read()
            && let Some(full) = read.full
            && now.since(self.stall[1].0) >= Duration::from_millis(500)
        {
            self.stall = [self.stall[1], (now, full.total)];
        }
    }

    /// The stall since the sample before last.
    fn stalled(&self, now: MonotonicNs) -> Option<Stall> {
        let total = self.context.pressure.as_ref()?.read().ok()?.full?.total;
        let (since, before) = self.stall[0];
        Some(Stall { full: total.saturating_sub(before), window: now.since(since) })
    }

    /// Tells what is decided on, for the trace.
    fn tell_observed(
        &mut self,
        machine: &MachineMemory,
        readings: &Readings,
        stall: Option<Stall>,
        taken: MonotonicNs,
        made: MonotonicNs,
    ) {
        let queue = &mut self.context.queue;
        let mut report = |record: Record<'_>| {
            record.send(queue);
        };
        let MachineMemory { reading: memory, huge_page_pool } = *machine;
        report(Record::Observed { taken, made, memory, huge_page_pool, stall });
        for (index, reading) in (0..).zip(&readings[1..]) {
            if let Some(memory) = *reading {
                report(Record::ObservedSlice { index, memory });
            }
        }
        for (scope, reclaimed) in self.reclaimed.iter().enumerate() {
            if let Some(reclaimed) = *reclaimed {
                report(Record::ObservedReclaim { scope: scope_of(scope), reclaimed });
            }
        }
        for observed in self.table.observed() {
            let path = self.table.get(observed.key).map_or(&b""[..], |workload| workload.facts.handle.path());
            report(Record::ObservedWorkload {
                id: observed.key.id,
                usage: observed.working_set(),
                reservation: observed.facts.memory_request.to_bytes(),
                priority: observed.facts.priority,
                started: observed.started,
                terminating: observed.terminating,
                empty: observed.is_empty,
                path: fitting(path),
            });
        }
        let workloads = u32::try_from(self.table.observed().len()).unwrap_or(u32::MAX);
        report(Record::ObservedEnd { workloads });
    }

    /// Tells a plan if there is news in it.
    fn report_plan(
        &mut self,
        scope: usize,
        cause: Cause,
        crossed: Option<MonotonicNs>,
        awake: MonotonicNs,
        now: MonotonicNs,
    ) {
        let plan = &self.plan;
        let pressure = plan.conditions.has(Condition::MemoryPressure);
        let shadow = self.context.enforcer.is_none();
        let last = self.reported[scope];
        let same = last.is_some_and(|last| last.outcome == plan.outcome && last.pressure == pressure);
        let stale = last.is_some_and(|last| last.is_outdated || now.since(last.at) >= REPORT_AGAIN);
        let calm = is_quiet(plan.outcome);
        let first_calm = last.is_none() && calm && !pressure;
        let idle = plan.actions.is_empty() || shadow && same;
        if first_calm || idle && same && (calm || !stale) {
            return;
        }
        self.reported[scope] = Some(Last { outcome: plan.outcome, pressure, at: now, is_outdated: false });
        let queue = &mut self.context.queue;
        let mut report = |record: Record<'_>| {
            record.send(queue);
        };
        report(Record::Plan {
            number: self.plans,
            cause,
            crossed,
            awake,
            shadow,
            scope: plan.scope,
            taken: plan.taken,
            made: plan.made,
            outcome: plan.outcome,
            memory: plan.memory,
            conditions: plan.conditions,
            deficit: plan.deficit,
            is_futile: plan.is_futile,
            attribution: plan.attribution,
            overlooked: plan.overlooked,
            recheck_at: plan.recheck_at,
        });
        for (index, status) in (0..).zip(&plan.thresholds) {
            report(Record::PlanThreshold { status: *status, acting: plan.acting == Some(index) });
        }
        let mut others = 0;
        for ranked in &plan.ranked {
            let acted = plan.victims().any(|victim| victim == ranked.workload);
            others += usize::from(!acted);
            if !acted && others > REPORTED && !self.context.is_traced {
                continue;
            }
            let path = self.table.get(ranked.key).map_or(&b""[..], |workload| workload.facts.handle.path());
            report(Record::PlanRanked { ranked: *ranked, path: fitting(path) });
        }
        for action in &plan.actions {
            report(Record::PlanAction(*action));
        }
        report(Record::PlanEnd);
    }

    fn report(&mut self, record: &Record<'_>) {
        record.send(&mut self.context.queue);
    }
}

/// How far memory is below `line`, by the kernel's own reading or by the only one there is.
fn past(memory: &MemoryReading, line: Bytes) -> Bytes {
    line.saturating_sub(memory.kernel())
}

/// Memory of the machine as it is read.
#[derive(Clone, Copy, Debug)]
struct MachineMemory {
    reading: MemoryReading,
    /// It is no memory that anything but its own users could have.
    huge_page_pool: Bytes,
}

impl MachineMemory {
    /// As it is decided by: the kubelet takes the huge page pool for available and knows one reading.
    fn decided_by(&self, policy: EvictionPolicy) -> MemoryReading {
        let Self { reading, huge_page_pool } = *self;
        match policy {
            EvictionPolicy::Kubelet => MemoryReading { mem_available: None, ..reading },
            EvictionPolicy::Plimsoll | EvictionPolicy::OpenShift3 => MemoryReading {
                capacity: reading.capacity.saturating_sub(huge_page_pool),
                kubelet_available: reading.kubelet_available.saturating_sub(huge_page_pool),
                ..reading
            },
        }
    }
}

/// Memory as the statistics of a node have it. What could not be read is absent.
fn signals(memory: Option<MemoryReading>, taken: MonotonicNs) -> Signals {
    let of_memory = |memory: MemoryReading| MemoryStats {
        available: Some(memory.kubelet_available.0),
        working_set: Some(memory.capacity.saturating_sub(memory.kubelet_available).0),
        time: Some(stats_time(taken)),
    };
    Signals::of(&NodeStats { memory: memory.map(of_memory), ..NodeStats::default() })
}

/// The same time on the clock of statistics.
fn stats_time(at: MonotonicNs) -> StatsTime {
    StatsTime(i64::try_from(at.0).unwrap_or(i64::MAX))
}

/// Whether nothing is wrong, as far as can be read.
const fn is_quiet(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::NoPressure | Outcome::NotObserved)
}

/// The machine, then the slices in their order.
fn scope_of(index: usize) -> Scope {
    match index.checked_sub(1) {
        None => Scope::Node,
        Some(slice) => Scope::Slice(SliceId(u8::try_from(slice).unwrap_or(u8::MAX))),
    }
}
