//! Shows the supervisor that the core's watching thread runs: a counter in shared memory, which the core alone adds to
//! and the supervisor only reads. A value that an attacker wrote there could only hide that the core does not run.
//!
//! Beside it is an alarm, a timer that each beat sets anew: nothing has to wake while the core runs, to see that.

use crate::error::StateError;
use crate::queue::{memory, seal};
use crate::shared::{Shared, View};
use core::sync::atomic::Ordering;
use core::time::Duration;
use plimsoll_units::MonotonicNs;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::sync::Arc;

/// The watching thread beats at least so often, also where nothing happens.
pub const PERIOD: Duration = Duration::from_millis(1250);

/// The alarm is set anew by the first beat after so long.
const SET_AGAIN: Duration = Duration::from_millis(250);
/// The alarm goes off so long after it was set: half a second at least after a beat that does not come was due.
const ALARM: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// Words of the memory: the counter.
const WORDS: usize = 1;

/// The side that beats.
#[derive(Debug)]
pub struct Heart {
    beats: Shared,
    alarm: OwnedFd,
    /// When the alarm is to be set anew.
    due: MonotonicNs,
}

/// The side that counts.
#[derive(Debug)]
pub struct Pulse {
    beats: View,
    alarm: Arc<OwnedFd>,
}

/// What is handed to a core.
#[derive(Debug)]
pub struct Parts {
    /// The memory of the counter.
    pub memory: OwnedFd,
    /// The timer.
    pub alarm: OwnedFd,
}

fn failed(what: &'static str) -> impl Fn(Errno) -> StateError {
    move |source| StateError::Memory { what, source }
}

/// Makes the memory and the alarm for one core, and gives what is handed to it. The alarm is not set.
pub fn create() -> Result<(Pulse, Parts), StateError> {
    let memory = memory("plimsoll-heartbeat", WORDS)?;
    seal(&memory, SealFlags::empty())?;
    let beats = View::map(&memory, WORDS).map_err(failed("map memory"))?;
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let alarm = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed("make a timer"))?;
    let own = rustix::io::fcntl_dupfd_cloexec(&alarm, 0).map_err(failed("duplicate a timer"))?;
    Ok((Pulse { beats, alarm: Arc::new(own) }, Parts { memory, alarm }))
}

impl Heart {
    /// The heart of this process, of what its supervisor made.
    pub fn attach(memory: impl AsFd, alarm: OwnedFd) -> Result<Self, StateError> {
        let beats = Shared::map(memory, WORDS).map_err(failed("map memory"))?;
        Ok(Self { beats, alarm, due: MonotonicNs(0) })
    }

    /// One store, and at most four times a second a system call: neither allocates nor waits.
    pub fn beat(&mut self, now: MonotonicNs) {
        // Before it is counted: a side that has seen a beat relies on the alarm.
        if self.due <= now {
            self.due = now.after(SET_AGAIN);
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: ALARM };
            // It fails for no timer only. Then the count is all that shows that this thread runs.
            let _ = timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &once);
        }
        self.beats.words()[0].fetch_add(1, Ordering::Release);
    }
}

impl Pulse {
    /// How often it beat; zero: the thread has not begun.
    pub fn count(&self) -> u64 {
        self.beats.load(0, Ordering::Acquire)
    }

    /// Readable while the last beat is longer ago than the alarm takes. One that was never set is not.
    pub fn alarm(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.alarm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_beat_is_counted() {
        let (pulse, Parts { memory, alarm }) = create().expect("memory");
        let mut heart = Heart::attach(&memory, alarm).expect("it can be written");
        for count in 0..3 {
            assert_eq!(pulse.count(), count);
            heart.beat(MonotonicNs(count));
        }
    }

    #[test]
    fn the_alarm_goes_off_where_no_beat_sets_it_anew() {
        use rustix::event::{PollFd, PollFlags, poll};
        use rustix::time::timerfd_gettime;
        let (pulse, Parts { memory, alarm }) = create().expect("memory");
        let mut heart = Heart::attach(&memory, alarm).expect("it can be written");
        let is_off = |at_most: i64| {
            let mut fds = [PollFd::from_borrowed_fd(pulse.alarm.as_fd(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: at_most, tv_nsec: 0 })) == Ok(1)
        };
        assert_eq!(timerfd_gettime(&*pulse.alarm).expect("a timer").it_value.tv_sec, 0, "no beat has set it");
        let at = |ms: u64| MonotonicNs(0).after(Duration::from_millis(ms));
        heart.beat(at(0));
        assert!(is_off(60));
        heart.beat(at(249));
        assert!(is_off(0), "it is not set at each beat");
        heart.beat(at(250));
        assert!(!is_off(0), "the core goes on");
    }
}
