//! To run before others when everything waits, and to be the last that the OOM killer thinks of.

use crate::{NodeError, sys};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
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
    fs::write(path, value.to_string()).map_err(|error| refused(path, &error, "Lowering it needs CAP_SYS_RESOURCE"))
}

/// Has the OOM killer end processes of the cgroup `own`, below the tree's `root`, one by one. The kubelet has it end all of
/// a container's (`memory.oom.group`, since 1.28), and then the least of them costs the others.
///
/// # Errors
/// Where it ends all of them and this cannot be changed. Where there is no such file, nothing is; what ancestors have is not
/// the agent's.
pub fn die_one_by_one(root: &Path, own: &[u8]) -> Result<(), NodeError> {
    let path = root.join(OsStr::from_bytes(own)).join("memory.oom.group");
    let refused =
        |error| refused(&path, &error, "Until it is 0, the OOM killer ends all of the agent where it ends one process");
    match fs::read_to_string(&path) {
        Ok(group) if group.trim_end() == "0" => Ok(()),
        Ok(_) => fs::write(&path, "0").map_err(refused),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(refused(error)),
    }
}

fn refused(path: &Path, error: &std::io::Error, advice: &'static str) -> NodeError {
    NodeError::Open { path: path.to_owned(), source: Errno::from_io_error(error).unwrap_or(Errno::IO), advice }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities;
    use rustix::process::getpriority_process;

    #[test]
    fn a_container_that_dies_as_a_whole_is_made_to_die_by_its_processes() {
        let root = tempfile::tempdir().expect("a directory");
        let file = root.path().join("pod/container/memory.oom.group");
        die_one_by_one(root.path(), b"pod/container").expect("there is no memory controller");
        fs::create_dir_all(file.parent().expect("the container")).expect("made");
        for (before, after) in [("1\n", "0"), ("0\n", "0\n")] {
            fs::write(&file, before).expect("written");
            die_one_by_one(root.path(), b"pod/container").expect("it can be written");
            assert_eq!(fs::read_to_string(&file).expect("readable"), after, "{before:?}");
        }
        fs::remove_file(&file).expect("removed");
        fs::create_dir(&file).expect("made");
        let error = die_one_by_one(root.path(), b"pod/container").expect_err("a directory is read as no file");
        assert!(error.to_string().contains("pod/container/memory.oom.group"), "{error}");
    }

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
