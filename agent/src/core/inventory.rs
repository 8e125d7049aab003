//! The thread that walks directories, opens files and allocates, so that the watching thread need not.
//!
//! It keeps the inventory of workloads, follows where the kubelet and container runtimes are, reads the machine's
//! watermarks, names processes that grew outside all workloads, follows what containers take and which of them memory.high
//! throttles, and reports the state of the source.

mod annotation;
mod following;
mod handle;
mod informing;
mod naming;
mod node_services;
mod notices;
mod outgoing;
mod pod_socket;
mod relieving;
mod schedule;
mod stops;
mod switch;

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use plimsoll_inventory::{CoreMessage, Coverage, Inventory, Refresh, Sink as _, Source};
use plimsoll_node::clock::monotonic;
use plimsoll_sense::{HealthReader, Hook, HookState, PacketRings, SourceAttempt};
use plimsoll_state::Entry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::past::thaw_again;
use super::thresholds::Machine;
use crate::record::{DiskRecord, HealthRecord, StartParts, StartupRecord, Tampered};

pub(super) use annotation::Annotation;
pub(super) use following::Following;
pub(super) use handle::{InventoryHandle, Request, clear, eventfd, wake};
pub(super) use node_services::NodeServices;
pub(super) use outgoing::{News, Outgoing};
use pod_socket::Others;
pub(super) use pod_socket::PodSocket;
use schedule::Schedule;
pub(super) use switch::Switches;

/// How often it is reported that the core lives, where something happens or no event would say so.
const PACE: Duration = Duration::from_secs(5);
/// A watching thread that has not woken for so long is stuck, and no heartbeat is reported any more.
const STUCK: Duration = Duration::from_mins(1);
/// Suspects are named at most so often, and less often where that takes long.
const SUSPECTS_PAUSE: Duration = Duration::from_secs(5);

/// What the inventory thread reports of the core whenever the reporter was restarted, and when this agent takes over.
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
    pub(super) left: Vec<Entry>,
    pub(super) troubles: Vec<String>,
}

/// The thread, before it is started.
pub(super) struct Thread {
    pub(super) inventory: Inventory,
    pub(super) outgoing: Outgoing,
    pub(super) health: HealthReader,
    pub(super) packet_rings: PacketRings,
    /// As it was read at the start.
    pub(super) machine: Machine,
    pub(super) handle: InventoryHandle,
    /// What an earlier process froze and could not be thawed yet: tried again in each slow turn.
    pub(super) left: Vec<Entry>,
    /// Readable when the reporter was restarted.
    pub(super) reporter_restarted: OwnedFd,
    /// What stops every action.
    pub(super) switches: Switches,
    /// Where the kubelet and container runtimes are.
    pub(super) node_services: NodeServices,
    /// What containers take.
    pub(super) following: Following,
    /// By which another process sends what is known of pods and disks.
    pub(super) pods: Option<PodSocket>,
    /// What the watching thread says of evictions and conditions.
    pub(super) messages: rtrb::Consumer<CoreMessage>,
    /// By which the broker is sent orders.
    pub(super) broker: Option<PodSocket>,
    /// By which the scanner sends what pods take of disks.
    pub(super) storage: Option<PodSocket>,
    /// Comes before [`Request::TakeOver`].
    pub(super) taken_over: Receiver<TakenOver>,
    /// The watching thread wakes by itself from time to time: if it does not, the core is stuck.
    pub(super) turns: bool,
    /// The source submits events for cgroups that come and go, so that walks only find what those missed.
    pub(super) has_events: bool,
}

impl Thread {
    /// Finds and opens everything for the first time, on the caller's thread, and gives what the watching thread is to know
    /// of it before it begins. That wakes it for its first turn.
    pub(super) fn first(&mut self) -> Vec<News> {
        self.check_switch();
        self.find_node_services();
        self.inventory.discover(&mut self.outgoing);
        self.outgoing.publish();
        self.outgoing.first.take().unwrap_or_default()
    }

    /// Serves until it is asked to end.
    pub(super) fn serve(mut self, mut startup_report: StartupReport) {
        let has_slices = !self.inventory.config().slices.is_empty();
        let mut schedule = Schedule::new(self.has_events, has_slices, monotonic());
        schedule.figures.hurry(monotonic());
        self.report_startup(&mut startup_report, &mut schedule, true);
        loop {
            self.outgoing.publish();
            let (asked, reporter_restarted) = self.wait(&schedule);
            let is_asked = |what: Request| asked & what as u32 != 0;
            if is_asked(Request::End) {
                return;
            }
            if asked != 0 {
                schedule.stir(asked, self.handle.headroom(), monotonic());
            }
            if is_asked(Request::Crossing) {
                // Before everything else: the watching thread waits for it below a threshold.
                self.sight_crossing(&mut schedule);
            }
            self.follow_switch();
            self.follow_node_services(asked, &mut schedule);
            if is_asked(Request::Remove) {
                self.send_removal();
            }
            if is_asked(Request::Stop) {
                self.send_stops();
            }
            if is_asked(Request::Inform) {
                self.inform();
            }
            self.take_inventory(asked, &mut schedule);
            self.learn(&mut schedule);
            self.check_source(&mut schedule);
            let now = monotonic();
            if is_asked(Request::Suspects) && schedule.suspects.is_overdue(now) {
                self.name_suspects();
                schedule.suspects.done(now, monotonic(), SUSPECTS_PAUSE);
            }
            if is_asked(Request::TakeOver)
                && let Ok(TakenOver { undone, left, troubles }) = self.taken_over.try_recv()
            {
                self.left = left;
                startup_report = StartupReport { shadow: None, undone, troubles, ..startup_report };
                self.report_startup(&mut startup_report, &mut schedule, true);
            }
            let is_slow = schedule.beat.is_overdue(now);
            self.follow_containers(&mut schedule, is_slow);
            if is_slow {
                self.read_machine();
                for cgroup in thaw_again(&mut self.left, &self.inventory.config().root) {
                    self.outgoing.send(News::Thawed(cgroup));
                }
                schedule.beaten(now, self.left.is_empty());
            }
            if reporter_restarted {
                clear(&self.reporter_restarted);
                self.report_startup(&mut startup_report, &mut schedule, false);
            } else if is_slow {
                self.report(&mut schedule);
            }
        }
    }

    /// Has the source's programs show that they run, if that is asked. Where they do not, the core ends, and it stays
    /// asked, so that this is reported once.
    fn check_source(&mut self, schedule: &mut Schedule) {
        if schedule.is_source_lost || !self.handle.is_asked(Request::Source) {
            return;
        }
        if self.health.runs() {
            return self.handle.answer(Request::Source);
        }
        schedule.is_source_lost = true;
        self.outgoing.report(HealthRecord::Tampered(Tampered::Programs));
        self.outgoing.send(News::SourceLost);
    }

    /// Waits until something is due, and gives what was asked and is due, and whether the reporter was restarted.
    fn wait(&self, schedule: &Schedule) -> (u32, bool) {
        let now = monotonic();
        let (due, paused) = (schedule.next(|what| self.handle.is_asked(what)), schedule.pods.paused(now));
        let stored = schedule.storage.paused(now);
        let due = stored.filter(|_| self.storage.is_some()).map_or(due, |stored| stored.min(due));
        let due = paused.filter(|_| self.pods.is_some()).map_or(due, |paused| paused.min(due));
        let due = self.switches.due().map_or(due, |check| check.min(due));
        let due = self.node_services.due().map_or(due, |look| look.min(due));
        let timeout = Timespec::try_from(due.since(now)).ok();
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.handle.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.reporter_restarted.as_fd(), PollFlags::IN),
        ];
        let pods = self.pods.as_ref().filter(|_| paused.is_none());
        let storage = self.storage.as_ref().filter(|_| stored.is_none());
        fds.extend(pods.into_iter().chain(storage).map(|way| PollFd::from_borrowed_fd(way.as_fd(), PollFlags::IN)));
        fds.extend(self.notices().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.extend(self.switches.descriptor().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.extend(self.node_services.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let _ = poll(&mut fds, timeout.as_ref());
        let reporter_restarted = !fds[1].revents().is_empty();
        (self.handle.take(schedule.due(monotonic())), reporter_restarted)
    }

    /// Opens the workloads of a crossing, by a walk at once where they cannot be opened by their ids.
    fn sight_crossing(&mut self, schedule: &mut Schedule) {
        for id in self.handle.crossing() {
            if !self.inventory.sight(id, &mut self.outgoing) {
                schedule.walk.hurry(monotonic());
            }
        }
        self.outgoing.publish();
    }

    /// Walks, sights or reads, as far as that was asked or is due.
    fn take_inventory(&mut self, asked: u32, schedule: &mut Schedule) {
        let begun = monotonic();
        self.outgoing.close_returned();
        let is_awaited = asked & Request::Walk as u32 != 0;
        if is_awaited || asked & Request::Discover as u32 != 0 || schedule.walk.is_overdue(begun) {
            let (events, before) = (self.handle.events().count(), self.inventory.revision());
            self.inventory.discover(&mut self.outgoing);
            schedule.walked(begun, monotonic());
            if events > 0 || self.inventory.revision() != before {
                self.inform_of_cgroups(schedule);
            }
            if is_awaited {
                self.outgoing.send(News::Walked);
                self.outgoing.publish();
            }
        } else if asked & Request::Events as u32 != 0 {
            for id in self.handle.events() {
                self.inventory.check(id, &mut self.outgoing);
                if !self.inventory.sight(id, &mut self.outgoing) {
                    self.handle.request(Request::Discover);
                }
            }
            schedule.events.done(begun, monotonic(), Duration::MAX);
            self.inform_of_cgroups(schedule);
        }
        let begun = monotonic();
        let how = if asked & Request::RefreshAll as u32 != 0 {
            Some(Refresh::Replace)
        } else if asked & Request::Refresh as u32 != 0 {
            Some(Refresh::All)
        } else {
            schedule.refresh.is_overdue(begun).then_some(Refresh::Moved)
        };
        if let Some(how) = how {
            self.inventory.find_slices(how == Refresh::Replace, &mut self.outgoing);
            self.inventory.refresh(how, &mut self.outgoing);
            schedule.refreshed(begun, monotonic(), self.handle.headroom());
        }
        self.outgoing.publish();
    }

    /// Takes in what other processes send of pods and disks: some at a time, with a pause after them, so that a flood of
    /// it delays nothing else.
    fn learn(&mut self, schedule: &mut Schedule) {
        let begun = monotonic();
        if schedule.pods.paused(begun).is_none()
            && let Some(Others { switch, disks, removed, stops, sources, receipts, conditions, recorded }) =
                pod_socket::learn(&mut self.pods, &mut self.inventory, &mut self.outgoing)
        {
            if let Some(is_there) = switch {
                self.switches.say(is_there);
                self.follow_switch();
            }
            if let Some(result) = removed {
                self.outgoing.send(News::Removed(result));
            }
            for result in stops {
                self.outgoing.send(News::Stop(result));
            }
            disks.into_iter().flatten().for_each(|(reading, cost)| self.outgoing.send(News::Disk(reading, cost)));
            let said = receipts.into_iter().map(News::Receipt).chain(conditions.into_iter().map(News::Condition));
            said.chain(recorded.into_iter().map(News::Recorded)).for_each(|news| self.outgoing.send(news));
            for (source, works) in Source::ALL.into_iter().zip(sources) {
                if let Some(works) = works {
                    self.outgoing.trouble_elsewhere(source.name(), (!works).then_some(source.lost()));
                }
            }
            schedule.pods.done(begun, monotonic(), Duration::MAX);
        }
        let begun = monotonic();
        if schedule.storage.paused(begun).is_none()
            && pod_socket::learn_storage(&mut self.storage, &mut self.inventory, &mut self.outgoing)
        {
            schedule.storage.done(begun, monotonic(), Duration::MAX);
        }
        if let Some((pods, is_new)) = self.inventory.orphans(begun) {
            self.outgoing.report(DiskRecord::Orphaned { pods, is_new });
        }
    }

    /// Watermarks and the drift of counters change with `vm.min_free_kbytes`, processors and memory.
    fn read_machine(&mut self) {
        match super::machine() {
            Ok(read) => {
                if let Some(machine) = self.machine.renewed(read) {
                    self.machine = machine;
                    self.outgoing.send(News::Machine(machine));
                }
                self.outgoing.trouble("machine", None);
            }
            Err(error) => {
                self.outgoing.trouble("machine", Some(format!("the thresholds go by older figures: {error:#}")));
            }
        }
    }

    fn report_startup(&mut self, startup_report: &mut StartupReport, schedule: &mut Schedule, first: bool) {
        let StartupReport { source, shadow, attempts, start, undone, troubles } = startup_report;
        self.report_switch();
        let outgoing = &mut self.outgoing;
        for attempt in attempts.iter() {
            if let Some(why) = &attempt.error {
                outgoing.report(StartupRecord::SourceFailed { source: attempt.kind.name(), why: outgoing::clip(why) });
            }
        }
        for Hook { name, state } in &self.health.read().hooks {
            let (attached, how) = match state {
                HookState::Attached(how) => (true, how),
                HookState::Missing(why) => (false, why),
            };
            outgoing.report(StartupRecord::Hook { name, attached, how: outgoing::clip(how) });
        }
        // Last, so that readiness never lacks a reason that is on its way.
        let workloads = self.inventory.workloads();
        outgoing.report(StartupRecord::Armed {
            pid: std::process::id(),
            source,
            shadow: *shadow,
            workloads,
            start: *start,
        });
        self.report_containers();
        let outgoing = &mut self.outgoing;
        if first {
            if let Some((thawed, continued, failed, kills)) = undone.take() {
                outgoing.report(StartupRecord::Undone { thawed, continued, failed, kills });
            }
        } else {
            outgoing.repeat_troubles();
        }
        for text in troubles {
            let (what, text) = (HealthRecord::START, Some(outgoing::clip(text)));
            outgoing.report(HealthRecord::Trouble { what, text, is_logged: false });
        }
        self.report(schedule);
    }

    fn report(&mut self, schedule: &mut Schedule) {
        let health = self.health.read();
        let now = monotonic();
        if schedule.coverage.is_overdue(now) {
            let Coverage { without_row, outside, descriptors, kernel_memory } = self.inventory.coverage();
            let (sample_cost, delayed_samples) = (self.handle.sample_cost(), self.handle.delayed_samples());
            self.outgoing.report(HealthRecord::Inventory {
                without_row,
                outside,
                descriptors,
                kernel_memory,
                sample_cost,
                delayed_samples,
            });
            schedule.covered(now, monotonic());
        }
        let turns = self.handle.turns();
        if turns != schedule.turned.0 || !self.turns {
            schedule.turned = (turns, now);
        }
        if now.since(schedule.turned.1) < STUCK {
            self.outgoing.report(HealthRecord::Beat {
                at: now,
                workloads: self.inventory.workloads(),
                malformed: health.malformed,
                brakes_applied: health.brakes_applied,
                brakes_refused: health.brakes_refused,
                brakes_repeated: health.brakes_repeated,
            });
        }
        let lost = health.lost.iter().map(|(_, count)| count).sum();
        if schedule.has_lost(lost) {
            self.handle.request(Request::Discover);
        }
        for (ring, count) in health.lost {
            self.outgoing.report(HealthRecord::Lost { ring, count });
        }
        for program in health.programs {
            self.outgoing.report(HealthRecord::Program {
                name: program.name,
                runs: program.runs,
                run_time_ns: program.run_time_ns,
                recursion_misses: program.recursion_misses,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::INVENTORY_STACK;
    use super::*;
    use plimsoll_inventory::{Config, Patterns, Protected, Update};
    use plimsoll_node::cgroup::Root;
    use plimsoll_units::Pattern;

    #[derive(Default)]
    struct Sent(Vec<Update>);

    impl plimsoll_inventory::Sink for Sent {
        fn update(&mut self, update: Update) {
            self.0.push(update);
        }

        fn protect(&mut self, _: &plimsoll_state::Protected, _: &[plimsoll_policy::Uid]) -> bool {
            true
        }

        fn trouble(&mut self, tried: &'static str, text: Option<String>) {
            assert_eq!(text, None, "{tried}");
        }
    }

    /// A stack that is too small ends the process. Without optimisation more of it is used than the agent does.
    #[test]
    fn half_of_the_stack_is_enough_for_what_goes_deepest() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        // A walk goes as deep as its bound, and from there as deep again for what must never be touched.
        let mut path = tree.path().join("a");
        for _ in 0..70 {
            std::fs::create_dir_all(&path).expect("writable");
            for (file, text) in [("memory.current", "0\n"), ("cgroup.events", "populated 1\n"), ("cgroup.procs", "")] {
                std::fs::write(path.join(file), text).expect("writable");
            }
            path.push("b");
        }
        let pattern = |text: &str| vec![Pattern::parse(text).expect("a pattern")];
        let config = Config {
            root: Root::open(tree.path()).expect("it is there"),
            patterns: Patterns {
                workloads: pattern("a/**"),
                never: pattern(&format!("a/{}c", "*/".repeat(69))),
                pods: None,
            },
            priorities: vec![0],
            protected: Protected::read(),
            slices: Vec::new(),
            brakes: None,
            max_brakes: 0,
            max_workloads: 9,
            counts_tasks: true,
        };
        let deepest = move || {
            let (mut inventory, mut sent) = (Inventory::new(config), Sent::default());
            inventory.discover(&mut sent);
            inventory.refresh(Refresh::Replace, &mut sent);
            let _ = inventory.coverage();
            let (root, mut containers) = (&inventory.config().root, plimsoll_inventory::Containers::default());
            for workload in inventory.handles() {
                containers.read(root, workload, monotonic(), true, &mut |_| {});
            }
            let _ = super::super::suspects::largest(inventory.config(), &[]);
            super::super::machine().expect("this is Linux");
            sent.0.len()
        };
        let thread =
            std::thread::Builder::new().stack_size(INVENTORY_STACK / 2).spawn(deepest).expect("a thread starts");
        assert_eq!(thread.join().expect("no panic"), 2, "the workload at the bound was found, and read");
    }
}
