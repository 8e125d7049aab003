//! The source of last resort, and the baseline that the others are measured against: one sample a period.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use arrayvec::ArrayVec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::{
    error::SenseError,
    kind::Kind,
    source::{Descriptor, Interest, MAX_DESCRIPTORS, Source},
    wake::{Wake, WakeList},
};

/// A timer on `CLOCK_MONOTONIC`. It does not know the thresholds: its owner takes a sample at each tick.
#[derive(Debug)]
pub struct Polling {
    timer: OwnedFd,
}

impl Polling {
    /// Ticks each `period`, the first time after `phase` (after one period where `phase` is zero).
    pub fn new(period: Duration, phase: Duration) -> Result<Self, SenseError> {
        if period.is_zero() {
            return Err(SenseError::ZeroPeriod);
        }
        let failed = |action| move |error: rustix::io::Errno| SenseError::System { action, error: error.into() };
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
            .map_err(failed("create a timer"))?;
        let first = if phase.is_zero() { period } else { phase };
        let setting = Itimerspec { it_interval: timespec(period)?, it_value: timespec(first)? };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &setting).map_err(failed("set the poll timer"))?;
        Ok(Self { timer })
    }
}

fn timespec(duration: Duration) -> Result<Timespec, SenseError> {
    Timespec::try_from(duration).map_err(|_| SenseError::System {
        action: "set the poll timer",
        error: io::Error::new(io::ErrorKind::InvalidInput, "the period is too long"),
    })
}

impl Source for Polling {
    fn kind(&self) -> Kind {
        Kind::Polling
    }

    fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS> {
        ArrayVec::from_iter([Descriptor { fd: self.timer.as_fd(), interest: Interest::Readable, token: 0 }])
    }

    fn drain(&mut self, _token: u32, wakes: &mut WakeList) -> Result<(), SenseError> {
        if wakes.is_full() {
            return Ok(());
        }
        let mut count = [0_u8; 8];
        match rustix::io::read(&self.timer, &mut count) {
            Ok(8) => wakes.push(Wake::Tick { periods: u64::from_ne_bytes(count) }),
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(SenseError::System { action: "read the poll timer", error: error.into() }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::BrakeMark;

    #[test]
    fn a_tick_counts_the_periods_that_passed_and_is_taken_once() {
        let mut source = Polling::new(Duration::from_millis(1), Duration::ZERO).expect("timer");
        let descriptors = source.descriptors();
        let token = descriptors[0].token;
        poll(&mut [PollFd::from_borrowed_fd(descriptors[0].fd, PollFlags::IN)], None).expect("poll");
        drop(descriptors);
        let mut wakes = WakeList::new();
        source.drain(token, &mut wakes).expect("drain");
        assert!(matches!(wakes[..], [Wake::Tick { periods: 1.. }]), "{wakes:?}");
    }

    #[test]
    fn no_tick_before_the_phase() {
        let mut source = Polling::new(Duration::from_hours(1), Duration::from_hours(1)).expect("timer");
        let mut wakes = WakeList::new();
        source.drain(0, &mut wakes).expect("drain");
        assert!(wakes.is_empty());
    }

    #[test]
    fn a_full_list_leaves_the_tick_for_later() {
        let mut source = Polling::new(Duration::from_hours(1), Duration::from_nanos(1)).expect("timer");
        let fd = source.descriptors()[0].fd.try_clone_to_owned().expect("clone");
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).expect("poll");
        let mut wakes: WakeList = std::iter::repeat_n(Wake::Tick { periods: 0 }, crate::WAKES_A_DRAIN).collect();
        source.drain(0, &mut wakes).expect("drain");
        wakes.clear();
        source.drain(0, &mut wakes).expect("drain");
        assert_eq!(wakes[..], [Wake::Tick { periods: 1 }]);
    }

    #[test]
    fn refuses_a_zero_period_and_the_kernel_brake() {
        assert!(matches!(Polling::new(Duration::ZERO, Duration::ZERO), Err(SenseError::ZeroPeriod)));
        let mut source = Polling::new(Duration::from_secs(1), Duration::ZERO).expect("timer");
        let mark = BrakeMark {
            slice: plimsoll_units::CgroupId(1),
            level: 1,
            kubelet: plimsoll_units::Bytes::ZERO,
            mem_available: plimsoll_units::Bytes::mib(1),
        };
        assert!(source.set_brakes(&[]).is_ok());
        assert!(matches!(source.set_brakes(&[mark]), Err(SenseError::NoKernelBrake(Kind::Polling))));
    }
}
