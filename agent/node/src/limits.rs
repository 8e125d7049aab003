//! How many tasks there are, and how many there may be, as the kubelet reads it for `pid.available`
//! (`pkg/kubelet/stats/pidlimit/pidlimit_linux.go`).

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

    /// How many more there can be; none where the limit was lowered below what there is.
    pub fn available(&self) -> u64 {
        self.limit().saturating_sub(self.tasks)
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

    /// Reads them now, each by one call, without allocating.
    pub fn read(&self) -> Result<TaskReading, Fault> {
        let mut buffer = [0; 128];
        let text = self.loadavg.read_piece(&mut buffer, 0)?;
        let tasks = tasks_of(text).ok_or(self.loadavg.malformed("number of tasks"))?;
        Ok(TaskReading { tasks, pid_max: number(&self.pid_max)?, threads_max: number(&self.threads_max)? })
    }
}

fn number(file: &KeptFile) -> Result<u64, Fault> {
    let mut buffer = [0; 32];
    parse::u64_after_blanks(file.read_piece(&mut buffer, 0)?).ok_or(file.malformed("number"))
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

    #[test]
    fn the_lesser_limit_counts_and_what_is_above_it_leaves_none() {
        for (pid_max, threads_max, limit, available) in [(4000, 1000, 1000, 800), (300, 9000, 300, 100), (150, 9, 9, 0)]
        {
            let reading = TaskReading { tasks: 200, pid_max, threads_max };
            assert_eq!((reading.limit(), reading.available()), (limit, available));
        }
    }
}
