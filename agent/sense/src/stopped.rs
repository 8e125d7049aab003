//! Undoing the in-kernel brake: by the agent itself, its supervisor, or the next start.
//!
//! The kernel writes down what it stops before it stops it, in a map pinned in bpffs that outlives every process. A
//! process is continued only if it is still the one that was written down. Brakes must be off, or their agent gone,
//! before.

use std::{fs, io, path::Path};

use aya::maps::{HashMap, Map, MapData};
use plimsoll_units::{CgroupId, MonotonicNs};
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::{error::SenseError, probe::with_sources};

/// A process that the brake stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// The process.
    pub pid: u32,
    /// When it started, in nanoseconds since boot.
    pub start_ns: u64,
    /// The marked slice.
    pub slice: CgroupId,
    /// When it was stopped.
    pub at: MonotonicNs,
}

/// What became of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// Processes continued.
    pub continued: usize,
    /// Records of processes that are gone.
    pub gone: usize,
    /// Processes that could not be signalled; their records stay.
    pub failed: usize,
}

/// The pinned record, opened.
#[derive(Debug)]
pub struct StoppedRecord {
    map: HashMap<MapData, u32, [u64; 3]>,
}

impl StoppedRecord {
    /// Opens the record pinned at `path`; `None` where nothing is pinned, which means that nothing was ever stopped.
    pub fn open(path: &Path) -> Result<Option<Self>, SenseError> {
        if !fs::exists(path).unwrap_or(true) {
            return Ok(None);
        }
        let failed =
            |error: &dyn std::error::Error| SenseError::Ebpf { what: "the stopped record", why: with_sources(error) };
        let data = MapData::from_pin(path).map_err(|error| failed(&error))?;
        let map = HashMap::try_from(Map::HashMap(data)).map_err(|error| failed(&error))?;
        Ok(Some(Self { map }))
    }

    /// Every process written down.
    pub fn list(&self) -> Vec<Stopped> {
        self.map
            .iter()
            .filter_map(Result::ok)
            .map(|(pid, [start_ns, slice, at])| Stopped { pid, start_ns, slice: CgroupId(slice), at: MonotonicNs(at) })
            .collect()
    }

    /// Continues every process written down that is still the same, and takes its record away.
    pub fn undo(&mut self) -> Undone {
        let mut undone = Undone::default();
        for stopped in self.list() {
            match resume(stopped) {
                Ok(true) => undone.continued += 1,
                Ok(false) => undone.gone += 1,
                Err(_) => {
                    undone.failed += 1;
                    continue;
                }
            }
            let _ = self.map.remove(&stopped.pid);
            // The kernel writes the record first and stops then: what came between the two must not stay stopped. From
            // here on it finds no record and writes a new one.
            let _ = resume(stopped);
        }
        undone
    }
}

/// Every process in the record pinned at `path`; none where nothing is pinned.
pub fn list(path: &Path) -> Result<Vec<Stopped>, SenseError> {
    Ok(StoppedRecord::open(path)?.map_or(Vec::new(), |record| record.list()))
}

/// Continues everything in the record pinned at `path`.
pub fn undo(path: &Path) -> Result<Undone, SenseError> {
    Ok(StoppedRecord::open(path)?.map_or(Undone::default(), |mut record| record.undo()))
}

/// Whether the process was still the one written down, and continued.
fn resume(stopped: Stopped) -> io::Result<bool> {
    let Some(pid) = i32::try_from(stopped.pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
    // Held from here on: the number cannot be given to another process between the check and the signal.
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let stat = match fs::read(format!("/proc/{}/stat", stopped.pid)) {
        Ok(stat) => stat,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if start_ticks(&stat) != Some(ticks(stopped.start_ns)) {
        return Ok(false);
    }
    match pidfd_send_signal(&process, Signal::CONT) {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Nanoseconds since boot in the ticks that /proc shows.
fn ticks(nanoseconds: u64) -> u64 {
    nanoseconds / (1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// The start time in `/proc/PID/stat`: field 22, the 20th after the command, which may hold spaces and parentheses.
fn start_ticks(stat: &[u8]) -> Option<u64> {
    let after_command = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = stat[after_command + 1..].split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    std::str::from_utf8(fields.nth(19)?).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_command() {
        for command in ["cat", "a b", ") R 1 2", "(x)"] {
            let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
            let stat = format!("7 ({command}) S {}", fields.join(" "));
            assert_eq!(start_ticks(stat.as_bytes()), Some(22), "{stat}");
        }
        assert_eq!(start_ticks(b"7 (cat) S 1 2"), None);
        assert_eq!(start_ticks(b""), None);
    }

    #[test]
    fn another_process_under_the_same_number_is_left_alone() {
        let own = Stopped { pid: std::process::id(), start_ns: 0, slice: CgroupId(1), at: MonotonicNs(0) };
        let stat = fs::read("/proc/self/stat").expect("stat");
        assert_ne!(start_ticks(&stat), Some(0), "this process did not start at boot");
        assert_eq!(resume(own).ok(), Some(false));
        let without_process = Stopped { pid: 0, ..own };
        assert_eq!(resume(without_process).ok(), Some(false));
    }

    #[test]
    fn nothing_pinned_is_nothing_stopped() {
        let directory = tempfile::tempdir().expect("tempdir");
        assert_eq!(undo(&directory.path().join("stopped")).expect("no record"), Undone::default());
    }
}
