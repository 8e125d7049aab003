//! How many tasks there are, and how many there may be.

use crate::file::KeptFile;
use crate::{Fault, NodeError, parse};

/// The files that say so, kept open.
#[derive(Debug)]
pub struct TaskLimits {
    loadavg: KeptFile,
    pid_max: KeptFile,
    threads_max: KeptFile,
}

/// One reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskReading {
    /// Tasks (threads) that exist.
    pub tasks: u64,
    /// One more than the largest process id.
    pub pid_max: u64,
    /// How many tasks the kernel will make.
    pub threads_max: u64,
}

impl TaskReading {
    /// How many tasks there can be: the lesser of the two limits.
    pub fn limit(&self) -> u64 {
        self.pid_max.min(self.threads_max)
    }
}

impl TaskLimits {
    /// Opens them.
    pub fn open() -> Result<Self, NodeError> {
        Ok(Self {
            loadavg: KeptFile::open("/proc/loadavg")?,
            pid_max: KeptFile::open("/proc/sys/kernel/pid_max")?,
            threads_max: KeptFile::open("/proc/sys/kernel/threads-max")?,
        })
    }

    /// Reads them now, without allocating.
    pub fn read(&self) -> Result<TaskReading, Fault> {
        let mut buffer = [0; 128];
        let tasks = tasks_of(self.loadavg.read(&mut buffer)?).ok_or(self.loadavg.malformed("number of tasks"))?;
        Ok(TaskReading { tasks, pid_max: number(&self.pid_max)?, threads_max: number(&self.threads_max)? })
    }
}

fn number(file: &KeptFile) -> Result<u64, Fault> {
    let mut buffer = [0; 32];
    parse::u64_after_blanks(file.read(&mut buffer)?).ok_or(file.malformed("number"))
}

/// The second number of the fourth field of `0.01 0.02 0.00 1/88 7628`.
fn tasks_of(loadavg: &[u8]) -> Option<u64> {
    let field = loadavg.split(|byte| *byte == b' ').nth(3)?;
    let slash = field.iter().position(|byte| *byte == b'/')?;
    parse::u64_after_blanks(&field[slash + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_counted_in_loadavg() {
        for (text, tasks) in [("0.01 0.02 0.00 1/88 7628\n", Some(88)), ("0.01 0.02 0.00 1\n", None), ("", None)] {
            assert_eq!(tasks_of(text.as_bytes()), tasks);
        }
    }

    #[test]
    fn this_machine_has_fewer_tasks_than_it_may() {
        let reading = TaskLimits::open().expect("there is a /proc").read().expect("readable");
        assert!(reading.tasks > 0);
        assert!(reading.tasks < reading.limit());
    }
}
