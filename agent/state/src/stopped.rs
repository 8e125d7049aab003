//! Processes that were stopped one by one, in a file on /run that outlives every process: each is written down before it
//! is sent SIGSTOP, and cleared after it was continued.
//!
//! The process that writes may be killed at any instruction. A row counts by its first word alone, which is written last
//! and cleared first.

use crate::error::StateError;
use crate::shared::Shared;
use core::sync::atomic::{AtomicU64, Ordering};
use plimsoll_act::{JournalFull, StopJournal, StoppedProcess};
use plimsoll_node::boot::BootId;
use plimsoll_node::process::{Pid, resume};
use plimsoll_units::CgroupId;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, openat};
use std::path::Path;

/// How many processes can be stopped at a time.
const ROWS: usize = 256;
/// `PLIMSTOP` as bytes, less one for each version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"PLIMSTOP");
/// Magic number, boot.
const HEADER: usize = 3;
/// Process, when it started, cgroup.
const ROW: usize = 3;
const WORDS: usize = HEADER + ROWS * ROW;
const FILE_BYTES: u64 = 8 * WORDS as u64;

/// The file, opened and mapped.
#[derive(Debug)]
pub struct StoppedProcesses {
    shared: Shared,
}

/// What became of stopped processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Continued {
    /// Processes that were continued.
    pub continued: usize,
    /// Processes that could not be signalled; their rows stay.
    pub failed: usize,
}

impl StoppedProcesses {
    /// Opens the file at `path`, or makes it. What an earlier process of this boot wrote down is kept.
    pub fn open(path: &Path, boot: BootId) -> Result<Self, StateError> {
        let opened = Self::open_with(path, OFlags::CREATE)?;
        let words = opened.shared.words();
        if !opened.is_of(boot) {
            // What was stopped before a reboot is no more.
            for word in words {
                word.store(0, Ordering::Relaxed);
            }
            let (low, high) = boot.words();
            words[1].store(low, Ordering::Relaxed);
            words[2].store(high, Ordering::Relaxed);
            words[0].store(MAGIC, Ordering::Release);
        }
        // Without it a row may have to wait for a disk; the run record reports the same.
        let _ = opened.shared.lock();
        Ok(opened)
    }

    fn open_with(path: &Path, how: OFlags) -> Result<Self, StateError> {
        let fail = |what| move |source| StateError::File { what, path: path.to_owned(), source };
        let how = how | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(CWD, path, how, Mode::RUSR | Mode::WUSR).map_err(fail("open"))?;
        fallocate(&fd, FallocateFlags::empty(), 0, FILE_BYTES).map_err(fail("reserve room for"))?;
        Ok(Self { shared: Shared::map(&fd, WORDS).map_err(fail("map"))? })
    }

    fn is_of(&self, boot: BootId) -> bool {
        let words = self.shared.words();
        let read = |index: usize| words[index].load(Ordering::Acquire);
        (read(0), (read(1), read(2))) == (MAGIC, boot.words())
    }

    fn rows(&self) -> impl Iterator<Item = &[AtomicU64]> {
        self.shared.words()[HEADER..].chunks_exact(ROW)
    }

    /// All processes that are written down.
    pub fn list(&self) -> Vec<StoppedProcess> {
        self.rows().filter_map(process_of).collect()
    }

    /// Continues every process that is written down and is still the same, and clears it.
    pub fn continue_all(&self) -> Continued {
        self.continue_those(|_| true)
    }

    fn continue_those(&self, is_meant: impl Fn(&StoppedProcess) -> bool) -> Continued {
        let mut done = Continued::default();
        for row in self.rows() {
            let Some(process) = process_of(row).filter(&is_meant) else { continue };
            match resume(process.pid, process.start_ticks) {
                Ok(was_the_same) => {
                    row[0].store(0, Ordering::Release);
                    done.continued += usize::from(was_the_same);
                }
                Err(_) => done.failed += 1,
            }
        }
        done
    }
}

/// Continues what the file at `path` says is stopped. Nothing is made where there is no file. The process that wrote it
/// is dead, or was killed; what it still stops while it dies is continued by the next call. Safe to call again.
pub fn continue_stopped(path: &Path, boot: BootId) -> Result<Continued, StateError> {
    if matches!(std::fs::exists(path), Ok(false)) {
        return Ok(Continued::default());
    }
    let opened = StoppedProcesses::open_with(path, OFlags::empty())?;
    Ok(if opened.is_of(boot) { opened.continue_all() } else { Continued::default() })
}

impl StopJournal for StoppedProcesses {
    fn write(&self, process: StoppedProcess) -> Result<(), JournalFull> {
        let free = self.rows().find(|row| row[0].load(Ordering::Acquire) == 0).ok_or(JournalFull)?;
        free[1].store(process.start_ticks, Ordering::Relaxed);
        free[2].store(process.cgroup.0, Ordering::Relaxed);
        free[0].store(u64::from(process.pid.as_raw_nonzero().get().unsigned_abs()), Ordering::Release);
        Ok(())
    }

    fn continue_in(&self, cgroup: CgroupId) {
        // What could not be continued keeps its row, for the next one and for the undo.
        self.continue_those(|process| process.cgroup == cgroup);
    }
}

fn process_of(row: &[AtomicU64]) -> Option<StoppedProcess> {
    let pid = i32::try_from(row[0].load(Ordering::Acquire)).ok().and_then(Pid::from_raw)?;
    let [start_ticks, cgroup] = [1, 2].map(|index| row[index].load(Ordering::Relaxed));
    Some(StoppedProcess { pid, start_ticks, cgroup: CgroupId(cgroup) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_node::process::{Stat, open, stop};
    use std::process::{Child, Command};

    const BOOT: BootId = BootId([1; 16]);

    fn stopped_child(cgroup: u64) -> (Child, StoppedProcess) {
        let child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = Pid::from_child(&child);
        let start_ticks = Stat::read(pid).expect("it runs").start_ticks;
        stop(open(pid).expect("it runs")).expect("it is ours");
        (child, StoppedProcess { pid, start_ticks, cgroup: CgroupId(cgroup) })
    }

    fn is_stopped(process: &StoppedProcess) -> bool {
        Stat::read(process.pid).expect("it runs").is_stopped
    }

    /// Waits until exactly these are stopped.
    fn wait(processes: &[StoppedProcess], stopped: &[bool]) {
        while processes.iter().map(is_stopped).ne(stopped.iter().copied()) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_a_dead_process_stopped_is_continued_and_another_process_of_that_number_is_not() {
        let run = tempfile::tempdir().expect("a temporary directory");
        let path = run.path().join("stopped");
        assert_eq!(continue_stopped(&path, BOOT).expect("nothing is there"), Continued::default());
        assert!(!path.exists(), "nothing is made");
        let (mut children, processes): (Vec<Child>, Vec<StoppedProcess>) =
            [7, 7, 8].map(stopped_child).into_iter().unzip();
        wait(&processes, &[true, true, true]);
        let opened = StoppedProcesses::open(&path, BOOT).expect("writable");
        let other = StoppedProcess { start_ticks: processes[1].start_ticks + 1, ..processes[1] };
        for process in [processes[0], other, processes[2]] {
            opened.write(process).expect("room");
        }
        drop(opened);
        let opened = StoppedProcesses::open(&path, BOOT).expect("readable");
        assert_eq!(opened.list(), [processes[0], other, processes[2]]);
        opened.continue_in(CgroupId(7));
        wait(&processes, &[false, true, true]);
        assert_eq!(opened.list(), [processes[2]]);
        let done = continue_stopped(&path, BOOT).expect("readable");
        assert_eq!(done, Continued { continued: 1, failed: 0 });
        wait(&processes, &[false, true, false]);
        assert_eq!(opened.list(), []);
        for child in &mut children {
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
        }
    }

    #[test]
    fn a_row_counts_by_its_first_word_and_room_is_bounded() {
        let run = tempfile::tempdir().expect("a temporary directory");
        let path = run.path().join("stopped");
        let opened = StoppedProcesses::open(&path, BOOT).expect("writable");
        let process = |number: i32| StoppedProcess {
            pid: Pid::from_raw(number).expect("not zero"),
            start_ticks: 3,
            cgroup: CgroupId(4),
        };
        for number in 1..=256 {
            opened.write(process(number)).expect("room");
        }
        assert_eq!(opened.write(process(257)), Err(JournalFull));
        // As where the writer died before its last word, or cleared the row.
        opened.shared.words()[HEADER].store(0, Ordering::Relaxed);
        assert_eq!((opened.list().len(), opened.list()[0]), (255, process(2)));
        // The processes of an earlier boot are no more.
        let none = continue_stopped(&path, BootId([2; 16])).expect("readable");
        assert_eq!((none, opened.list().len()), (Continued::default(), 255));
        assert_eq!(StoppedProcesses::open(&path, BootId([2; 16])).expect("writable").list(), []);
    }
}
