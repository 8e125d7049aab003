//! The source below eBPF: the kernel's own PSI trigger on memory.
//!
//! It fires when tasks waited for memory long enough within a window, at best 50 ms after that began, and once a
//! window. Stall also rises on slow disks with memory free, so its owner must read memory before it acts.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::{
    error::SenseError,
    kind::Kind,
    source::{Descriptor, Interest, MAX_DESCRIPTORS, Source},
    wake::{Wake, WakeList},
};

/// The window that the kernel grants without `CAP_SYS_RESOURCE`: its own averaging period.
const UNPRIVILEGED_WINDOW_US: u32 = 2_000_000;

/// How much stall in which window fires the trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TriggerSpec {
    /// Some task waited this long, in microseconds.
    pub stall_us: u32,
    /// Within this long, in microseconds; 500 ms to 10 s.
    pub window_us: u32,
}

impl Default for TriggerSpec {
    /// 150 ms of stall within one second.
    fn default() -> Self {
        Self { stall_us: 150_000, window_us: 1_000_000 }
    }
}

impl TriggerSpec {
    /// What is requested when the kernel refuses `self`: the same share of the unprivileged window.
    fn unprivileged(self) -> Self {
        let share = u64::from(self.stall_us) * u64::from(UNPRIVILEGED_WINDOW_US) / u64::from(self.window_us.max(1));
        Self { stall_us: u32::try_from(share).unwrap_or(UNPRIVILEGED_WINDOW_US), window_us: UNPRIVILEGED_WINDOW_US }
    }

    fn text(self) -> String {
        format!("some {} {}\0", self.stall_us, self.window_us)
    }
}

/// A trigger on one pressure file.
#[derive(Debug)]
pub struct PsiTrigger {
    file: File,
    granted: TriggerSpec,
}

impl PsiTrigger {
    /// Sets the trigger on `path` (`/proc/pressure/memory`), with the window of two seconds where the kernel refuses
    /// the one requested.
    pub fn new(path: &Path, wanted: TriggerSpec) -> Result<Self, SenseError> {
        match Self::set(path, wanted) {
            Err(SenseError::TriggerRefused { error, .. })
                if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) =>
            {
                Self::set(path, wanted.unprivileged())
            }
            answer => answer,
        }
    }

    /// What the kernel granted.
    pub fn granted(&self) -> TriggerSpec {
        self.granted
    }

    fn set(path: &Path, spec: TriggerSpec) -> Result<Self, SenseError> {
        let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(|error| SenseError::File {
            action: "open",
            path: path.into(),
            error,
        })?;
        file.write_all(spec.text().as_bytes()).map_err(|error| refused(path, spec, error))?;
        Ok(Self { file, granted: spec })
    }
}

fn refused(path: &Path, spec: TriggerSpec, error: io::Error) -> SenseError {
    SenseError::TriggerRefused { trigger: spec.text().trim_end_matches('\0').into(), path: PathBuf::from(path), error }
}

impl Source for PsiTrigger {
    fn kind(&self) -> Kind {
        Kind::PsiTrigger
    }

    fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS> {
        ArrayVec::from_iter([Descriptor { fd: self.file.as_fd(), interest: Interest::Priority, token: 0 }])
    }

    /// The kernel clears the event when it is polled, not when it is read, so epoll has taken it already: being called
    /// is the event, and the poll here only checks for errors.
    fn drain(&mut self, _token: u32, wakes: &mut WakeList) -> Result<(), SenseError> {
        let TriggerSpec { stall_us, window_us } = self.granted;
        if !wakes.is_full() {
            wakes.push(Wake::Psi { window_us, stall_us });
        }
        let mut wait = [PollFd::new(&self.file, PollFlags::PRI)];
        // Interrupted by a signal, it finds an error the next time.
        match poll(&mut wait, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(SenseError::System { action: "poll the PSI trigger", error: error.into() }),
        }
        if wait[0].revents().contains(PollFlags::ERR) {
            // By a number, as a message would be allocated.
            let action = "poll the PSI trigger, as its cgroup or the trigger itself is gone";
            return Err(SenseError::System { action, error: Errno::NODEV.into() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unprivileged_window_keeps_the_share() {
        let TriggerSpec { stall_us, window_us } = TriggerSpec::default().unprivileged();
        assert_eq!((stall_us, window_us), (300_000, 2_000_000));
        let odd = TriggerSpec { stall_us: u32::MAX, window_us: 0 }.unprivileged();
        assert_eq!(odd.window_us, 2_000_000);
    }

    #[test]
    fn a_missing_pressure_file_is_named() {
        let error =
            PsiTrigger::new(Path::new("/nonexistent/memory"), TriggerSpec::default()).expect_err("no such file");
        assert!(error.to_string().contains("/nonexistent/memory"), "{error}");
    }
}
