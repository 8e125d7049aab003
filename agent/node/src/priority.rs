//! To run before others when everything waits, and to be the last that the OOM killer thinks of.

use crate::{NodeError, sys};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};
use std::path::Path;

/// The nice value of most weight.
const BEST_NICE: i32 = -20;

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
        Err(refused) => match prefer_this_thread() {
            Ok(()) => Priority::Nice(refused),
            Err(errno) => Priority::Unchanged(errno),
        },
    }
}

/// Lets threads of this process ask for [`prefer_this_thread`] without `CAP_SYS_NICE`. Needs `CAP_SYS_RESOURCE`.
pub fn permit_preference() -> Result<(), Errno> {
    // getrlimit(2), RLIMIT_NICE: 20 less the nice value.
    let limit = Some(u64::from(20 + BEST_NICE.unsigned_abs()));
    setrlimit(Resource::Nice, Rlimit { current: limit, maximum: limit })
}

/// Gives the calling thread the best nice value: it stays ordinary, but hundreds of others that run do not keep it from a
/// CPU for seconds.
pub fn prefer_this_thread() -> Result<(), Errno> {
    // No process named means the calling thread.
    setpriority_process(None, BEST_NICE)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities;
    use rustix::process::getpriority_process;

    #[test]
    fn a_thread_without_capabilities_is_preferred_where_that_was_permitted() {
        // Refused to one that is not root.
        let is_permitted = permit_preference().is_ok();
        let thread = std::thread::spawn(move || {
            capabilities::keep_only(&[]).expect("dropped");
            let is_preferred = prefer_this_thread().is_ok();
            assert_eq!(is_preferred, is_permitted);
            assert_eq!(getpriority_process(None) == Ok(BEST_NICE), is_preferred);
        });
        thread.join().expect("the thread");
    }
}
