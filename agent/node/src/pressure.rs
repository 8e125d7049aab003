//! Pressure stall information: how long tasks waited for memory, on the machine or in a cgroup.

use crate::file::KeptFile;
use crate::{Fault, NodeError, parse};
use core::time::Duration;

/// The machine's /proc/pressure/memory, kept open.
#[derive(Debug)]
pub struct MemoryPressure {
    file: KeptFile,
}

/// One reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Some tasks waited while others ran.
    pub some: Stall,
    /// All tasks that were not idle waited. Absent for the machine's processors on old kernels, never for memory.
    pub full: Option<Stall>,
}

/// One line of a pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// Share of the last 10 seconds, in hundredths of a percent.
    pub avg10: u32,
    /// Share of the last 60 seconds, in hundredths of a percent.
    pub avg60: u32,
    /// Time waited since boot.
    pub total: Duration,
}

impl MemoryPressure {
    /// Opens it. Fails where the kernel has no PSI or it is switched off.
    pub fn open() -> Result<Self, NodeError> {
        Ok(Self { file: KeptFile::open("/proc/pressure/memory")? })
    }

    /// Reads it now, without allocating.
    pub fn read(&self) -> Result<Pressure, Fault> {
        let mut buffer = [0; 256];
        Pressure::parse(self.file.read(&mut buffer)?).ok_or(self.file.malformed("some line"))
    }
}

impl Pressure {
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let line = |kind: &[u8]| parse::lines(text).find_map(|line| line.strip_prefix(kind));
        Some(Self { some: Stall::parse(line(b"some ")?)?, full: line(b"full ").and_then(Stall::parse) })
    }
}

impl Stall {
    fn parse(line: &[u8]) -> Option<Self> {
        let value = |key: &[u8]| line.split(|byte| *byte == b' ').find_map(|part| part.strip_prefix(key));
        let (total, _) = parse::leading_u64(value(b"total=")?)?;
        Some(Self {
            avg10: hundredths(value(b"avg10=")?)?,
            avg60: hundredths(value(b"avg60=")?)?,
            total: Duration::from_micros(total),
        })
    }
}

/// `12.34` as 1234.
fn hundredths(text: &[u8]) -> Option<u32> {
    let (whole, rest) = parse::leading_u64(text)?;
    let (part, _) = parse::leading_u64(rest.strip_prefix(b".")?)?;
    u32::try_from(whole.checked_mul(100)?.checked_add(part)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_read() {
        let text =
            b"some avg10=12.34 avg60=0.05 avg300=0.00 total=1500\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=7\n";
        let pressure = Pressure::parse(text).expect("two lines");
        assert_eq!(pressure.some, Stall { avg10: 1234, avg60: 5, total: Duration::from_micros(1500) });
        assert_eq!(pressure.full.map(|full| full.total), Some(Duration::from_micros(7)));
        assert_eq!(Pressure::parse(b"full avg10=1.00 avg60=0.00 avg300=0.00 total=7\n"), None);
    }
}
