//! To run before others when everything waits, and to be the last that the OOM killer thinks of.

use crate::{NodeError, sys};
use rustix::io::Errno;
use rustix::process::setpriority_process;
use std::path::Path;

/// What the calling thread got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Real time, round robin: before every ordinary task.
    RoundRobin,
    /// Ordinary, with the best nice value. Real time was refused for this reason.
    Nice(Errno),
    /// As before: both were refused, the second for this reason.
    Unchanged(Errno),
}

/// Levels of real-time priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The lowest one: behind every other real-time task.
    Watching,
    /// The next one: before what watches, which it runs for.
    Writing,
}

/// Raises the calling thread, as far as the kernel allows. Never an error: an ordinary thread is slower, not wrong.
pub fn raise_this_thread(level: Level) -> Priority {
    let level = match level {
        Level::Watching => 1,
        Level::Writing => 2,
    };
    match sys::set_round_robin(level) {
        Ok(()) => Priority::RoundRobin,
        // No process named means the calling thread.
        Err(refused) => match setpriority_process(None, -20) {
            Ok(()) => Priority::Nice(refused),
            Err(errno) => Priority::Unchanged(errno),
        },
    }
}

/// Has the calling thread run, and read from disks, only where no other one would. Gives what was refused.
pub fn lower_this_thread() -> Result<(), Errno> {
    // Both are tried.
    let (cpu, io) = (sys::set_idle_cpu(), sys::set_idle_io());
    cpu.and(io)
}

/// Sets the OOM killer's adjustment for this process: from -1000 (never) to 1000 (first).
pub fn set_oom_score_adj(value: i16) -> Result<(), NodeError> {
    let path = Path::new("/proc/self/oom_score_adj");
    std::fs::write(path, value.to_string()).map_err(|error| NodeError::Open {
        path: path.to_owned(),
        source: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        advice: "Lowering it needs CAP_SYS_RESOURCE",
    })
}
