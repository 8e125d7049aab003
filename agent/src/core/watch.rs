//! The thread that waits, samples, decides and acts.
//!
//! After a wake it reads and writes descriptors that are open already and BPF maps that are mapped; it opens nothing,
//! allocates nothing, formats nothing and logs nothing. What it did goes into a queue as typed records; what blocks
//! goes to the workers; what opens files is requested from the inventory thread.
//!
//! Each module has one duty and keeps its own state:
//! - [`triggers`]: what woke the thread, and the source's events.
//! - [`schedule`]: when to sample without an event.
//! - [`sampling`]: readings of the node and the slices, and the observation made of them.
//! - [`deciding`]: the engine, and one sample from its readings to the next arming.
//! - [`disks`]: what follows from what is left on disks: the condition, and orders to remove what is unused.
//! - [`disk_victims`]: pods that are evicted for disks, and for limits of local storage.
//! - [`throttled`]: pods that are evicted because memory.high throttles them.
//! - [`scopes`]: what is kept of the node and of each slice.
//! - [`resting`]: samples without workloads, while nothing moves.
//! - [`arming`]: the thresholds at which the kernel submits the next event.
//! - [`figures`]: figures that a decision rests on, read again before it is taken.
//! - [`walking`]: workloads that are not known yet, found before others would be evicted for what they took.
//! - [`folding`]: the kernel's own counters, made exact near a threshold.
//! - [`enforcement`], [`freezing`], [`reclaiming`]: what is done to cgroups, and the results that come back.
//! - [`holding`]: evicted pods in which nothing is to run until the API server has their status.
//! - [`stopping`]: pods that the container runtime is ordered to stop.
//! - [`evictions`]: pods that are evicted and conditions, named until they are on a disk.
//! - [`reporting`]: the records, and which plan is reported.
//! - [`switching`]: the kill switch.
//! - [`readings`]: what each signal reads, for metrics.
//! - [`incidents`]: what `services` reports to the cluster beside evictions.
//! - [`room`]: storage for workloads that come.
//! - [`keeping`]: what the next core goes on with.

mod arming;
mod deciding;
mod disk_victims;
mod disks;
mod enforcement;
mod evictions;
mod figures;
mod folding;
mod freezing;
mod holding;
mod incidents;
mod keeping;
mod readings;
mod reclaiming;
mod reporting;
mod resting;
mod room;
mod sampling;
mod schedule;
mod scopes;
mod stopping;
mod switching;
#[cfg(test)]
mod testing;
mod throttled;
mod triggers;
mod walking;

use core::time::Duration;
use std::sync::Arc;

use plimsoll_inventory::{Facts, SliceFacts, Table, Termination, Update};
use plimsoll_node::cgroup::Handle;
use plimsoll_node::clock::monotonic;
use plimsoll_node::lock::Locked;
use plimsoll_state::heartbeat::{self, Heart};
use plimsoll_units::{Bytes, MonotonicNs};
use rtrb::{Consumer, Producer};
use rustix::event::{Timespec, epoll, poll};
use rustix::io::Errno;

use super::inventory::{InventoryHandle, News, Request};
use crate::record::{Cause, HealthRecord, Tampered};
pub(super) use arming::Arming;
pub(super) use deciding::Engine;
pub(super) use disk_victims::{DiskVictims, RuntimeRoots};
pub(super) use disks::Disks;
pub(super) use enforcement::{Enforcement, Enforcer, Means};
pub(super) use evictions::{Evictions, MESSAGES, Past as PastEvictions};
pub(super) use figures::FIGURES;
use figures::Figures;
use folding::Folding;
pub(super) use holding::{Holding, MOST_HELD};
use readings::ReadingReports;
pub(super) use reporting::Reporting;
use resting::Resting;
use room::Room;
pub(super) use sampling::Sampler;
use schedule::Schedule;
use scopes::Scopes;
pub(super) use stopping::Stopping;
use throttled::ThrottledVictims;
use triggers::{Ready, Trigger};
pub(super) use triggers::{Signals, Triggers};
pub(super) use walking::Walking;

/// How long the marks of the in-kernel brake hold while this thread does not run; it is killed after the same time.
pub(crate) const BRAKE_LEASE: Duration = Duration::from_secs(5);
/// An agent that is asked to end finishes what it began, but for no longer than this.
pub(super) const END_MOST: Duration = Duration::from_secs(10);
/// After so many drains in a row that found nothing although the source was readable, the thread sleeps.
const EMPTY_DRAINS: u32 = 2;
/// How long it sleeps each time.
const BUSY_NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// SIGTERM.
    Asked,
    /// The supervisor is gone.
    Orphaned,
    /// The source's programs in the kernel do not run any more: the next core attaches them again, or takes another
    /// source.
    SourceLost,
}

impl End {
    /// The exit code by which the supervisor distinguishes them.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Asked => 0,
            Self::Orphaned => 1,
            Self::SourceLost => 4,
        }
    }
}

/// The workloads as the inventory thread last reported them, and the way to that thread.
pub(super) struct Workloads {
    table: Table,
    updates: Consumer<News>,
    /// Handles that are not needed any more.
    give_back: Producer<Arc<Handle>>,
    handle: InventoryHandle,
}

impl Workloads {
    pub(super) fn new(
        table: Table,
        updates: Consumer<News>,
        give_back: Producer<Arc<Handle>>,
        handle: InventoryHandle,
    ) -> Self {
        Self { table, updates, give_back, handle }
    }

    /// Gives a handle back to the inventory thread, which opened it: this may be the last one, and closing can block.
    fn close(&mut self, handle: Arc<Handle>) {
        // The inventory thread takes them whenever it sends updates, which is when most of them come. Only where that
        // thread has been stuck for long, in a directory that does not answer, is the queue full, and the handle stays
        // open until the agent ends: its last end looks names up, which waits for the kernel's locks.
        if let Err(full) = self.give_back.push(handle) {
            core::mem::forget(full);
        }
    }
}

/// The parts of the watching thread.
pub(super) struct Watch {
    /// Beats each time the thread wakes.
    heart: Heart,
    pub(super) triggers: Triggers,
    pub(super) workloads: Workloads,
    pub(super) sampler: Sampler,
    pub(super) arming: Arming,
    pub(super) enforcement: Enforcement,
    pub(super) reporting: Reporting,
    evictions: Evictions,
    disks: Disks,
    /// Absent where no pod is known, or none may be evicted for what it takes of disks.
    disk_victims: Option<DiskVictims>,
    stopping: Stopping,
    throttled: ThrottledVictims,
    schedule: Schedule,
    engine: Engine,
    scopes: Scopes,
    figures: Figures,
    walking: Walking,
    folding: Folding,
    resting: Resting,
    room: Room,
    readings: ReadingReports,
    /// How long the last sample took that read workloads.
    cost: Duration,
}

/// The parts that the caller makes.
pub(super) struct Parts {
    pub(super) heart: Heart,
    pub(super) triggers: Triggers,
    pub(super) workloads: Workloads,
    pub(super) engine: Engine,
    pub(super) sampler: Sampler,
    pub(super) arming: Arming,
    pub(super) enforcement: Enforcement,
    pub(super) reporting: Reporting,
    pub(super) walking: Walking,
    pub(super) evictions: Evictions,
    pub(super) disks: Disks,
    pub(super) disk_victims: Option<DiskVictims>,
    pub(super) stopping: Stopping,
}

impl Watch {
    /// Goes on with what the core before this one has kept. `slow`: how often to sample without an event; absent where only
    /// the source's own period counts.
    pub(super) fn new(parts: Parts, slow: Option<Duration>, locked: &Locked) -> Self {
        let Parts { heart, triggers, workloads, engine, sampler, arming, enforcement, reporting, walking, .. } = parts;
        let Parts { evictions, disks, disk_victims, stopping, .. } = parts;
        let mut watch = Self {
            heart,
            triggers,
            workloads,
            sampler,
            arming,
            enforcement,
            reporting,
            evictions,
            disks,
            disk_victims,
            stopping,
            throttled: ThrottledVictims::new(&engine.policy),
            schedule: Schedule::new(slow, monotonic()),
            scopes: Scopes::new(&engine.policy),
            figures: Figures::new(),
            walking,
            folding: Folding::default(),
            resting: Resting::default(),
            room: Room::default(),
            readings: ReadingReports::default(),
            cost: Duration::ZERO,
            engine,
        };
        locked.reserve(|| watch.resume(monotonic()));
        watch
    }

    /// Takes in what was found, samples for the first time and arms the thresholds.
    pub(super) fn begin(&mut self, found: Vec<News>) {
        for news in found {
            self.take_in(news);
        }
        self.make_room();
        let now = monotonic();
        self.resume_evictions(now);
        self.triggers.source_mut().lease_brakes(super::fault_injection::lease_from(now));
        self.read_task_limit();
        self.sample(&Trigger::of(Cause::Timer, now));
        self.judge_disks(now);
        self.reporting.publish();
    }

    /// Waits and acts until it is asked to end.
    pub(super) fn run(&mut self) -> End {
        self.workloads.handle.set_acts(self.enforcement.acts());
        loop {
            let mut events =
                [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 8];
            let timeout = self.timeout();
            let count = match self.triggers.wait(&mut events, timeout.as_ref()) {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    self.reporting.send(HealthRecord::Failed { what: "wait", errno: Some(errno.raw_os_error()) });
                    0
                }
            };
            let awake = monotonic();
            self.workloads.handle.turn();
            self.show_alive(awake);
            let end = super::fault_injection::without_allocation(|| {
                let end = self.turn(&events[..count], awake);
                self.workloads.handle.set_acts(self.enforcement.acts());
                self.reporting.publish();
                end
            });
            if let Some(end) = end {
                return end;
            }
            self.make_room();
            self.yield_cpu();
        }
    }

    /// Shows the supervisor that this thread runs, and the kernel that what it stops will be continued.
    fn show_alive(&mut self, now: MonotonicNs) {
        self.heart.beat(now);
        self.triggers.source_mut().lease_brakes(super::fault_injection::lease_from(now));
    }

    /// Sleeps for a moment where the source stays readable and has nothing to read. A kernel program was interrupted
    /// between reserving a record and submitting it, perhaps on this CPU: it cannot go on while this thread, which has
    /// a higher priority than all ordinary ones, polls without a pause. What is due is late by this at most.
    fn yield_cpu(&self) {
        if self.triggers.empty_drains() >= EMPTY_DRAINS {
            let _ = poll(&mut [], Some(&BUSY_NAP));
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let now = monotonic();
        let overdue = self.next_overdue().map(|(at, ..)| at);
        let beat = Some(now.after(heartbeat::PERIOD));
        let others = [self.enforcement.due(now), self.scopes.next_due(now), self.stopping.due(), beat];
        let due = [self.schedule.due(), overdue].into_iter().chain(others).flatten().min();
        due.and_then(|due| due.since(now).try_into().ok())
    }

    fn turn(&mut self, events: &[epoll::Event], awake: MonotonicNs) -> Option<End> {
        let mut trigger = Trigger::new(awake);
        let empty_drains = self.triggers.empty_drains();
        for event in events {
            match Ready::of(event.data.u64()) {
                Ready::Term => {
                    self.triggers.clear_term();
                    self.schedule.end_by(awake.after(END_MOST), End::Asked);
                    // A threshold may have been crossed just now.
                    trigger.because(Cause::FollowUp);
                }
                Ready::Parent => return Some(End::Orphaned),
                Ready::Inventory => {
                    self.triggers.clear_inventory();
                    // A workload that was not known may be the one that grows.
                    if self.take_updates() && self.scopes.episodes.is_open() {
                        trigger.because(Cause::FollowUp);
                    }
                    if self.enforcement.take_over() {
                        self.take_victims_over();
                        self.resume_evictions(awake);
                        self.workloads.handle.request(Request::TakeOver);
                        trigger.because(Cause::FollowUp);
                    }
                }
                Ready::Source(token) => self.drain(token, &mut trigger),
            }
        }
        self.triggers.turned(empty_drains);
        self.follow_up(awake, &mut trigger);
        self.reread_slices(awake, &mut trigger);
        if self.schedule.take_ask(awake) {
            self.follow_evictions(awake);
            self.end_gone_holds(awake);
        }
        let is_slow = self.schedule.take_slow(awake);
        if is_slow {
            self.slow_turn();
            trigger.because(Cause::Timer);
        }
        if self.schedule.take_drain(awake) || is_slow {
            self.drain_all(&mut trigger);
        }
        if self.schedule.is_sample_due(awake) {
            trigger.because(Cause::FollowUp);
        }
        if trigger.cause().is_some() {
            self.sample(&trigger);
        }
        self.judge_disks(awake);
        self.evict_for_disks(awake);
        self.name_evictions(awake);
        self.report_readings(awake);
        let (by, end) = self.schedule.end()?;
        self.end_holds(awake);
        let is_awaited = self.figures.is_awaited() || self.walking.is_awaited();
        let decision = is_awaited.then_some("take a decision before the end");
        match self.enforcement.under_way().or(decision) {
            Some(_) if awake < by => None,
            under_way => {
                // It is left to the next core, or to the undo.
                if let Some(what) = under_way {
                    self.reporting.send(HealthRecord::Failed { what, errno: None });
                }
                Some(end)
            }
        }
    }

    /// What is read from time to time alone, where the source does not sample by a period of its own.
    fn slow_turn(&mut self) {
        if self.triggers.source_mut().restore() {
            self.reporting.send(HealthRecord::Tampered(Tampered::Thresholds));
        }
        self.check_source();
        self.enforcement.kernel_brake.find_stopped(self.triggers.source());
        if self.enforcement.kernel_brake.has_failed() {
            // The thread keeps in its record what it could not continue, for the next time.
            self.reporting
                .send(HealthRecord::Failed { what: "continue a process that the kernel stopped", errno: None });
        }
        self.read_task_limit();
    }

    /// Where the charge hook did not run since the last time, perhaps no memory was charged: the inventory thread has some
    /// charged; while nothing happens, only after some times. Until that has answered, what the hook shows is left for it
    /// to see.
    fn check_source(&mut self) {
        let handle = &self.workloads.handle;
        if handle.is_asked(Request::Source) {
            return;
        }
        let has_run = self.triggers.source_mut().ran();
        if self.resting.charged(has_run) {
            handle.request(Request::Source);
        }
    }

    /// Takes the inventory thread's updates in. Gives whether there was any for decisions on memory.
    fn take_updates(&mut self) -> bool {
        let mut any = false;
        while let Ok(update) = self.workloads.updates.pop() {
            any |= !matches!(
                update,
                News::Disk(..)
                    | News::Removed(_)
                    | News::Receipt(_)
                    | News::Stop(_)
                    | News::Recorded(_)
                    | News::Throttled(..)
                    | News::Table(Update::Storage(..))
            );
            self.take_in(update);
        }
        if any {
            self.resting.end();
        }
        any
    }

    fn take_in(&mut self, news: News) {
        match news {
            News::Disk(reading, cost) => self.disks.learn(reading, cost, monotonic()),
            News::Removed(result) => self.disks.removed(result, monotonic(), &mut self.reporting),
            News::Stop(result) => self.stopped_by_runtime(result),
            News::Recorded(uid) => self.recorded(uid, monotonic()),
            News::Throttled(cgroup, lasted) => self.evict_throttled(cgroup, lasted, monotonic()),
            News::Table(Update::Mark(index, mark)) => {
                self.enforcement.kernel_brake.mark(index, mark, self.triggers.source_mut());
            }
            News::Machine(machine) => {
                self.arming.set_machine(machine);
                // The threshold is armed by the old figures until the next sample.
                self.schedule.sample_by(MonotonicNs(0));
            }
            News::Walked => {
                self.walking.done(monotonic());
                self.schedule.sample_by(MonotonicNs(0));
            }
            News::SourceLost => self.schedule.end_by(monotonic().after(END_MOST), End::SourceLost),
            News::Thawed(cgroup) => self.enforcement.forget_thawed(cgroup),
            News::Receipt(receipt) => self.acknowledge(receipt),
            News::Condition(state) => self.take_before(state, monotonic()),
            News::KillSwitch(is_thrown) => self.switch(is_thrown),
            News::Table(update) => {
                if let Update::Workload(_, Facts { handle, .. }) | Update::Slice(_, Some(SliceFacts { handle, .. })) =
                    &update
                {
                    self.figures.outdate(handle.id());
                }
                let joined = if let Update::Workload(_, facts) = &update { Some(facts.handle.id()) } else { None };
                if let Some(old) = self.workloads.table.take(update) {
                    self.left_table(old.id());
                    self.workloads.close(old);
                }
                if joined.is_some_and(|id| self.enforcement.dying().any(|dying| dying == id)) {
                    self.take_victims_over();
                }
            }
        }
    }

    /// What the victims of an earlier process still hold is coming back: no other workload is evicted for it.
    fn take_victims_over(&mut self) {
        for id in self.enforcement.dying() {
            let table = &mut self.workloads.table;
            let row = table.of(&[Some(id)]).and_then(|key| table.get(key));
            if row.is_some_and(|workload| workload.termination == Termination::Stays) {
                table.set_termination(id, Termination::Killed(Bytes(u64::MAX)));
            }
        }
    }

    /// Releases everything that is held, for the end.
    pub(super) fn release(&mut self) {
        let source = self.triggers.source_mut();
        let _ = source.disarm();
        self.enforcement.kernel_brake.unmark(source);
        let now = monotonic();
        self.thaw_all(now);
        self.end_holds(now);
        self.enforcement.kernel_brake.end();
    }

    /// Whether everything goes on that was stopped or frozen, after [`Self::release`].
    pub(super) fn has_released(&mut self) -> bool {
        let now = monotonic();
        self.take_results(now, &mut Trigger::new(now));
        self.reporting.publish();
        self.enforcement.kernel_brake.has_ended() && !self.enforcement.holds() && !self.enforcement.holds_down()
    }
}

#[cfg(test)]
mod tests {
    use super::super::thresholds::Machine;
    use super::testing::{self, Scene};
    use super::*;
    use arrayvec::ArrayVec;
    use core::sync::atomic::{AtomicBool, Ordering};
    use plimsoll_sense::{Descriptor, Kind, MAX_DESCRIPTORS, SenseError, Source, WakeList};

    #[test]
    fn a_shadowing_agent_closes_no_handle_itself() {
        let mut scene = Scene::new(1);
        scene.watch.enforcement.enforcer = None;
        scene.cgroup("a", 1);
        let handle = Arc::downgrade(&scene.joins(0, "a"));
        scene.update(Update::Gone(0));
        assert_eq!(handle.strong_count(), 1, "the watching thread dropped the last one");
        assert!(scene.returned.pop().is_ok_and(|returned| returned.path() == b"a"));
    }

    /// Its charge hook has run where the flag is set.
    struct Charged(Arc<AtomicBool>);

    impl Source for Charged {
        fn kind(&self) -> Kind {
            Kind::Ebpf
        }

        fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS> {
            ArrayVec::new()
        }

        fn drain(&mut self, _: u32, _: &mut WakeList) -> Result<(), SenseError> {
            Ok(())
        }

        fn ran(&mut self) -> bool {
            self.0.swap(false, Ordering::Relaxed)
        }
    }

    #[test]
    fn a_charge_hook_that_did_not_run_has_to_show_that_it_does() {
        let ran = Arc::new(AtomicBool::new(true));
        let mut scene = Scene::woken_by(Charged(Arc::clone(&ran)), testing::slice_policy(1));
        let asks = |scene: &mut Scene| {
            scene.watch.slow_turn();
            scene.watch.workloads.handle.is_asked(Request::Source)
        };
        assert!(!asks(&mut scene), "it has run");
        assert!(asks(&mut scene), "it has not since");
        ran.store(true, Ordering::Relaxed);
        assert!(asks(&mut scene) && ran.load(Ordering::Relaxed), "what it shows is for the thread that was asked");
    }

    #[test]
    fn while_nothing_happens_a_charge_hook_need_not_run_for_a_while() {
        for (used, turns) in [(20, 20), (30, 4)] {
            let ran = Arc::new(AtomicBool::new(true));
            let mut scene = Scene::woken_by(Charged(ran), testing::slice_policy(1));
            scene.watch.reporting.set_traced(false);
            let mut asks = |used: u64| {
                scene.uses("slice", used);
                scene.watch.slow_turn();
                scene.watch.sample(&Trigger::of(Cause::Timer, monotonic()));
                scene.watch.workloads.handle.is_asked(Request::Source)
            };
            assert!(!asks(20), "it has run");
            let asked = (1..100).find(|turn| asks(if *turn < 4 { 20 } else { used }));
            assert_eq!(asked, Some(turns), "{used}");
        }
    }

    #[test]
    fn a_machine_that_changed_is_sampled_with_its_new_figures() {
        let mut scene = Scene::new(1);
        scene.sample();
        assert_eq!(scene.watch.schedule.next_sample(), None);
        let machine = Machine { low_watermark: plimsoll_units::Pages(7), ..(*scene.watch.arming.machine()) };
        scene.receive(News::Machine(machine));
        assert_eq!((*scene.watch.arming.machine()), machine);
        assert!(scene.watch.schedule.next_sample().is_some_and(|at| at <= monotonic()));
    }
}
