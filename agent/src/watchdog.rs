//! The watch over the core: a thread of the supervisor with the priority of the core's watching thread. It sleeps for
//! as long as that thread sets its alarm anew. Once it does not, this one wakes as often as that should: where it runs
//! in time and that one does not run, the core hangs, and not the machine. It is killed, and the supervisor undoes what
//! it held and starts another. One that cannot die yet, because it is in an uninterruptible system call, holds nothing
//! any more either.
//!
//! To the service manager the supervisor reports (sd_notify) when the core has begun to watch, and from then on that
//! its own threads run.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use plimsoll_node::priority;
use plimsoll_node::process;
use plimsoll_state::heartbeat::{self, Pulse};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, Signal, pidfd_send_signal};

use crate::service_manager::ServiceManager;
use crate::undo::undo_before_death;

/// How often the thread compares while no alarm does it for it: as often as the core beats where nothing happens.
const PERIOD: Duration = heartbeat::PERIOD;
/// A thread that slept so long could not run itself: that time says nothing of the core.
const LATE: Duration = PERIOD.saturating_add(Duration::from_millis(250));
/// The core is killed when its watching thread did not run for so long; by then the marks of its in-kernel brake have run out.
const HANGS: Duration = crate::core::BRAKE_LEASE;
/// The same before the thread has begun: programs are loaded and all cgroups walked until then, without real-time
/// priority and locked memory. A machine that thrashes may need longer than this thread shows: the time is doubled for
/// each core that was killed before it began.
const START: Duration = Duration::from_mins(2);
/// How often it is doubled at most.
const DOUBLINGS: u32 = 5;
/// How long a killed core may take to die before what it holds is undone all the same.
const DEATH: Duration = Duration::from_secs(1);

/// What the thread and the supervisor's own thread share.
#[derive(Debug)]
struct Shared {
    service_manager: Option<ServiceManager>,
    core: Mutex<Option<Core>>,
    /// How often the thread compared.
    rounds: AtomicU64,
    /// A core has begun to watch.
    ready: AtomicBool,
    /// How many cores, one after another, were killed before they began.
    unbegun: AtomicU32,
    over: AtomicBool,
    /// Has the thread compare now.
    wake: OwnedFd,
}

/// The core that is watched.
#[derive(Debug)]
struct Core {
    process: OwnedFd,
    pulse: Pulse,
    judge: Judge,
}

/// The thread, and how the supervisor reports.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    reported: Instant,
    rounds: u64,
}

impl Watchdog {
    /// Starts the thread. The run record is in `directory`.
    pub(crate) fn start(directory: PathBuf) -> anyhow::Result<Self> {
        let service_manager = ServiceManager::from_environment().context("cannot report to the service manager")?;
        let shared = Arc::new(Shared {
            service_manager,
            core: Mutex::new(None),
            rounds: AtomicU64::new(0),
            ready: AtomicBool::new(false),
            unbegun: AtomicU32::new(0),
            over: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        });
        let seen = Arc::clone(&shared);
        let serve = move || {
            // Refused alike for both threads: then both are ordinary ones.
            let _ = priority::raise_this_thread(priority::Level::Watching);
            while !seen.over.load(Ordering::Relaxed) {
                let slept = seen.sleep();
                seen.compare(slept, &directory);
            }
        };
        thread::Builder::new().name("watchdog".into()).spawn(serve).context("cannot start the watchdog's thread")?;
        Ok(Self { shared, reported: Instant::now(), rounds: 0 })
    }

    /// Watches this core from now on.
    pub(crate) fn watch(&self, core: Pid, pulse: Pulse) -> Result<(), rustix::io::Errno> {
        let judge = Judge {
            #[cfg(feature = "fault-injection")]
            is_off: crate::fault_injection::may_hang(),
            ..Judge::after(self.shared.unbegun.load(Ordering::Relaxed))
        };
        *self.shared.core() = Some(Core { process: process::open(core)?, pulse, judge });
        // It may wait for the alarm of the core before, which says nothing of this one.
        self.shared.wake();
        Ok(())
    }

    /// The core is gone. Waits for the end of what the thread is undoing.
    pub(crate) fn forget(&self) {
        *self.shared.core() = None;
    }

    /// Reports to the service manager that both threads run, where it is time; gives when it is time again.
    pub(crate) fn report(&mut self) -> Option<Duration> {
        let service_manager = self.shared.service_manager.as_ref()?;
        // Some times in each interval: one report may be lost.
        let every = service_manager.watchdog? / 4;
        let rounds = self.shared.rounds.load(Ordering::Relaxed);
        // Before it has the report that the agent is ready it expects none, and its queue has room for a few reports only.
        let is_ready = self.shared.ready.load(Ordering::Relaxed);
        if is_ready && self.reported.elapsed() >= every && rounds != self.rounds && service_manager.report("WATCHDOG=1")
        {
            (self.reported, self.rounds) = (Instant::now(), rounds);
            // So that it shows until the next report that it runs.
            self.shared.wake();
        }
        Some(every)
    }
}

impl Drop for Watchdog {
    /// Ends the thread.
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.shared.wake();
    }
}

impl Shared {
    fn core(&self) -> MutexGuard<'_, Option<Core>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A full counter is readable already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// The alarm of the core, if it does for this thread what it would do each [`PERIOD`].
    fn alarm(&self) -> Option<Arc<OwnedFd>> {
        let is_reported = self.service_manager.is_none() || self.ready.load(Ordering::Relaxed);
        let core = self.core();
        core.as_ref().filter(|core| is_reported && core.judge.count > 0).map(|core| core.pulse.alarm())
    }

    /// Sleeps until it is time to compare.
    fn sleep(&self) -> Slept {
        let begun = Instant::now();
        let alarm = self.alarm().filter(|alarm| !is_readable(alarm));
        let period = Timespec::try_from(PERIOD).ok().filter(|_| alarm.is_none());
        let mut fds = vec![PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)];
        fds.extend(alarm.as_ref().map(|alarm| PollFd::new(alarm, PollFlags::IN)));
        let _ = poll(&mut fds, period.as_ref());
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        match &alarm {
            Some(alarm) if is_readable(alarm) => Slept::UntilAlarm,
            Some(_) | None => Slept::For(begun.elapsed()),
        }
    }

    /// Compares what the core did with what this thread did, which slept.
    fn compare(&self, slept: Slept, directory: &Path) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        let mut core = self.core();
        let Some(Core { process, pulse, judge }) = &mut *core else { return };
        let count = pulse.count();
        if count > 0
            && !self.ready.load(Ordering::Relaxed)
            && let Some(service_manager) = &self.service_manager
        {
            self.ready.store(service_manager.report("READY=1"), Ordering::Relaxed);
        }
        if count > 0 {
            self.unbegun.store(0, Ordering::Relaxed);
        }
        let Some(silent) = judge.hangs(count, slept) else { return };
        if count == 0 {
            self.unbegun.fetch_add(1, Ordering::Relaxed);
        }
        let seconds = silent.as_secs_f64();
        tracing::warn!(seconds, "the core does not run although this machine does, and is killed");
        let _ = pidfd_send_signal(&*process, Signal::KILL);
        let patience = Timespec::try_from(DEATH).ok();
        if poll(&mut [PollFd::new(&*process, PollFlags::IN)], patience.as_ref()) != Ok(1) {
            match undo_before_death(directory) {
                Ok(summary) => tracing::warn!("undone before the core could die: {summary}"),
                Err(error) => tracing::warn!("cannot undo what the core holds that cannot die yet: {error:#}"),
            }
        }
    }
}

fn is_readable(fd: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)
}

/// How the thread slept.
#[derive(Clone, Copy, Debug)]
enum Slept {
    /// For so long.
    For(Duration),
    /// Until the core had not set its alarm anew for longer than [`PERIOD`].
    UntilAlarm,
}

/// Distinguishes a core that hangs from a machine that does.
#[derive(Debug)]
struct Judge {
    /// How long it may take to begin.
    start: Duration,
    count: u64,
    /// For how long this thread ran in time while the core did not.
    silent: Duration,
    was_judged: bool,
    is_off: bool,
}

impl Judge {
    /// Of a core that is started after so many that were killed before they began.
    fn after(unbegun: u32) -> Self {
        let start = START * 2_u32.pow(unbegun.min(DOUBLINGS));
        Self { start, count: 0, silent: Duration::ZERO, was_judged: false, is_off: false }
    }

    /// For how long the core did not run, once where that is too long.
    fn hangs(&mut self, count: u64, slept: Slept) -> Option<Duration> {
        match slept {
            // The last beat is longer ago than that.
            Slept::UntilAlarm => (self.count, self.silent) = (count, PERIOD),
            Slept::For(_) if count != self.count => (self.count, self.silent) = (count, Duration::ZERO),
            Slept::For(slept) if slept < LATE => self.silent += slept,
            Slept::For(_) => {}
        }
        let most = if count == 0 { self.start } else { HANGS };
        let hangs = self.silent >= most && !self.was_judged && !self.is_off;
        self.was_judged |= hangs;
        hangs.then_some(self.silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many rounds a core is killed that beats in the first `beats` of them.
    fn killed_after(beats: u64, slept: impl Fn(u64) -> Duration) -> Option<u64> {
        killed_by(Judge::after(0), beats, slept)
    }

    fn killed_by(mut judge: Judge, beats: u64, slept: impl Fn(u64) -> Duration) -> Option<u64> {
        (0..100_000).find(|round| judge.hangs((round + 1).min(beats), Slept::For(slept(*round))).is_some())
    }

    #[test]
    fn a_core_that_does_not_run_is_killed_in_time_and_once() {
        let rounds = |time: Duration| u64::try_from(time.as_nanos() / PERIOD.as_nanos()).expect("few");
        assert_eq!(killed_after(10, |_| PERIOD), Some(9 + rounds(HANGS)));
        assert_eq!(killed_after(0, |_| PERIOD), Some(rounds(START) - 1), "one that never began has longer");
        for (unbegun, times) in [(1, 2), (2, 4), (100, 32)] {
            let after = killed_by(Judge::after(unbegun), 0, |_| PERIOD);
            assert_eq!(after, Some(times * rounds(START) - 1), "after {unbegun} that never began");
        }
        let mut judge = Judge::after(0);
        let times = (0..10_000).filter(|_| judge.hangs(1, Slept::For(PERIOD)).is_some()).count();
        assert_eq!(times, 1);
    }

    #[test]
    fn a_core_that_sets_no_alarm_is_killed_as_soon_as_one_that_is_counted() {
        let mut judge = Judge::after(0);
        assert_eq!(judge.hangs(1, Slept::For(PERIOD)), None);
        assert_eq!(judge.hangs(100, Slept::UntilAlarm), None, "the beats until then were not counted");
        let rounds = (2..100).find(|_| judge.hangs(100, Slept::For(PERIOD)).is_some());
        let most = u32::try_from(HANGS.as_nanos() / PERIOD.as_nanos()).ok();
        assert_eq!(rounds, most, "with the one that the alarm stands for");
        let mut judge = Judge::after(0);
        for count in 1..100 {
            assert_eq!(judge.hangs(count, Slept::UntilAlarm), None, "it goes on after each alarm");
        }
    }

    #[test]
    fn the_thread_sleeps_while_the_core_sets_its_alarm() {
        let (pulse, parts) = heartbeat::create().expect("memory");
        let mut heart = heartbeat::Heart::attach(&parts.memory, parts.alarm).expect("it can be written");
        let own = process::open(rustix::process::getpid()).expect("it runs");
        let shared = Shared {
            service_manager: None,
            core: Mutex::new(Some(Core { process: own, pulse, judge: Judge::after(0) })),
            rounds: AtomicU64::new(0),
            ready: AtomicBool::new(false),
            unbegun: AtomicU32::new(0),
            over: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor"),
        };
        assert!(shared.alarm().is_none(), "it has not begun");
        heart.beat(plimsoll_units::MonotonicNs(0));
        shared.compare(Slept::For(PERIOD), Path::new("/nowhere"));
        assert!(shared.alarm().is_some());
        let slept = shared.sleep();
        assert!(matches!(slept, Slept::UntilAlarm), "{slept:?}");
        assert!(matches!(shared.sleep(), Slept::For(slept) if slept >= PERIOD), "it compares each period from then on");
        shared.wake();
        heart.beat(plimsoll_units::MonotonicNs(1_000_000_000));
        let slept = shared.sleep();
        assert!(matches!(slept, Slept::For(_)), "it is woken before the alarm: {slept:?}");
    }

    #[test]
    fn a_core_is_not_killed_for_what_the_machine_does() {
        assert_eq!(killed_after(u64::MAX, |_| PERIOD), None, "it runs");
        for slept in [LATE, Duration::from_secs(30)] {
            assert_eq!(killed_after(10, |_| slept), None, "this thread did not run either");
        }
        assert!(killed_after(10, |_| LATE.saturating_sub(Duration::from_millis(1))).is_some(), "it ran nearly in time");
        // Every other time late: only the rest counts.
        let slept = |round: u64| if round.is_multiple_of(2) { PERIOD } else { LATE };
        assert_eq!(killed_after(10, slept), killed_after(10, |_| PERIOD).map(|round| 2 * (round - 9) + 8));
    }
}
