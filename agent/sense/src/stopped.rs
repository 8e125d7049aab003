//! Undoing the in-kernel brake: by the agent itself, its supervisor, or the next start.
//!
//! The kernel writes down what it stops before it stops it, in a map pinned in bpffs that outlives every process. A
//! process is continued only if it is still the one that was written down. Brakes must be off, or their agent gone,
//! before.

use std::{fs, path::Path};

use aya::maps::{HashMap, Map, MapData};
use plimsoll_units::{CgroupId, MonotonicNs};
use rustix::{io::Errno, process::Pid};

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

/// Continues the process of this number if it started at this time, in clock ticks since boot. Gives whether it was that
/// one; an error where that cannot be found out, or where it cannot be signalled.
pub type Resume = fn(Pid, u64) -> Result<bool, Errno>;

/// What became of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// Processes continued.
    pub continued: usize,
    /// Records of processes that are gone.
    pub gone: usize,
    /// Processes that could not be continued; their records stay.
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

    /// Has `resume` continue every process written down, and takes away the record of what it continued or found to be
    /// gone.
    pub fn undo(&mut self, resume: Resume) -> Undone {
        let mut undone = Undone::default();
        for stopped in self.list() {
            let resume = || {
                let pid = i32::try_from(stopped.pid).ok().and_then(Pid::from_raw);
                pid.map_or(Ok(false), |pid| resume(pid, ticks(stopped.start_ns)))
            };
            match resume() {
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
            let _ = resume();
        }
        undone
    }
}

/// Every process in the record pinned at `path`; none where nothing is pinned.
pub fn list(path: &Path) -> Result<Vec<Stopped>, SenseError> {
    Ok(StoppedRecord::open(path)?.map_or(Vec::new(), |record| record.list()))
}

/// Has `resume` continue everything in the record pinned at `path`.
pub fn undo(path: &Path, resume: Resume) -> Result<Undone, SenseError> {
    Ok(StoppedRecord::open(path)?.map_or(Undone::default(), |mut record| record.undo(resume)))
}

/// Nanoseconds since boot in the ticks that /proc shows.
fn ticks(nanoseconds: u64) -> u64 {
    nanoseconds / (1_000_000_000 / rustix::param::clock_ticks_per_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_pinned_is_nothing_stopped() {
        let directory = tempfile::tempdir().expect("tempdir");
        assert_eq!(undo(&directory.path().join("stopped"), |_, _| Ok(true)).expect("no record"), Undone::default());
    }
}
