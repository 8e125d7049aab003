//! /proc/vmstat: what the machine has done about memory since it started.

use crate::file::KeptFile;
use crate::{Fault, NodeError, parse};

const PATH: &str = "/proc/vmstat";

/// /proc/vmstat is 4 to 6 KiB; more would be cut, and a counter that is cut off is an error, not a zero.
const BUFFER: usize = 16 << 10;

/// /proc/vmstat, kept open.
#[derive(Debug)]
pub struct VmStat {
    file: KeptFile,
}

/// Counters since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmCounters {
    /// Processes that the OOM killer has killed, for the machine or in a cgroup.
    pub oom_kill: u64,
    /// Page faults that had to wait for a disk.
    pub major_faults: u64,
    /// Pages brought in from swap.
    pub swapped_in: u64,
    /// Pages taken out to swap.
    pub swapped_out: u64,
    /// Pages that tasks looked at while they reclaimed for themselves.
    pub scanned_direct: u64,
    /// Pages that were dropped and soon needed again: page cache that thrashes. Absent before Linux 5.9.
    pub refaulted_file: Option<u64>,
    /// Pages that came back from swap soon after they went there. Absent before Linux 5.9.
    pub refaulted_anon: Option<u64>,
}

impl VmStat {
    /// Opens it.
    pub fn open() -> Result<Self, NodeError> {
        Ok(Self { file: KeptFile::open(PATH)? })
    }

    /// Reads it now, without allocating.
    pub fn read(&self) -> Result<VmCounters, Fault> {
        let mut buffer = [0; BUFFER];
        VmCounters::parse(self.file.read(&mut buffer)?)
    }
}

impl VmCounters {
    fn parse(text: &[u8]) -> Result<Self, Fault> {
        let need =
            |field: &'static str| parse::field(text, field.as_bytes()).ok_or(Fault::Malformed { file: PATH, field });
        Ok(Self {
            oom_kill: need("oom_kill")?,
            major_faults: need("pgmajfault")?,
            swapped_in: need("pswpin")?,
            swapped_out: need("pswpout")?,
            scanned_direct: need("pgscan_direct")?,
            refaulted_file: parse::field(text, b"workingset_refault_file"),
            refaulted_anon: parse::field(text, b"workingset_refault_anon"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_file_gives_its_counters() {
        let counters = VmCounters::parse(include_bytes!("../tests/data/vmstat-6.18")).expect("a whole file");
        assert_eq!(counters.oom_kill, 0);
        assert_eq!(counters.major_faults, 13_624);
        assert!(counters.refaulted_file.is_some() && counters.refaulted_anon.is_some());
        assert_eq!(VmCounters::parse(b"oom_kill 1\n"), Err(Fault::Malformed { file: PATH, field: "pgmajfault" }));
    }

    #[test]
    fn this_machine_can_be_read() {
        let file = VmStat::open().expect("there is a /proc");
        assert!(file.read().expect("readable").major_faults > 0);
    }
}
