//! Memory that stays: nothing of this process may have to be fetched from a disk while memory is short.

use crate::{NodeError, program};
use core::hint::black_box;
use core::ops::Range;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::disable_transparent_huge_pages;

/// How much of a thread's stack is touched beforehand. The deepest way from a wake to a kill needs far less.
const STACK: usize = 256 << 10;

/// Locks all memory that this process has and will have, and brings it in, but for the tables of the program that are
/// not read any more unless it panics, and for these parts of its code and constants, of which this process is to use nothing
/// any more: a page of them is locked once it is used.
///
/// What comes later counts against the limit of locked memory as soon as CAP_IPC_LOCK is given up, and every allocation
/// beyond it would fail: where that limit cannot be raised, only what there is now is locked.
pub fn all(unused: &[Range<usize>]) -> Result<Locked, NodeError> {
    let unlimited = Rlimit { current: None, maximum: None };
    let later = match setrlimit(Resource::Memlock, unlimited) {
        Ok(()) => MlockAllFlags::FUTURE,
        Err(_) => MlockAllFlags::empty(),
    };
    mlockall(MlockAllFlags::CURRENT | later).map_err(refused)?;
    program::let_go_of_tables();
    unused.iter().for_each(program::let_go_of_part);
    Ok(Locked { later })
}

/// How this process's memory is locked.
#[derive(Debug)]
pub struct Locked {
    /// How what comes later is: brought in and locked as soon as it is mapped, or not at all.
    later: MlockAllFlags,
}

impl Default for Locked {
    /// Not at all.
    fn default() -> Self {
        Self { later: MlockAllFlags::empty() }
    }
}

impl Locked {
    /// What `make` makes, with large storage of it locked page by page as that is first touched: for room that is reserved
    /// for more than is likely to be needed. Whatever needs a page of it without a fault has to touch it beforehand.
    pub fn reserve<T>(&self, make: impl FnOnce() -> T) -> T {
        let is_on_fault = !self.later.is_empty() && mlockall(self.later | MlockAllFlags::ONFAULT).is_ok();
        let reserved = make();
        if is_on_fault {
            // It was granted before, and what it may be refused for has not changed.
            let _ = mlockall(self.later);
        }
        reserved
    }
}

/// Locks what this process has and will have page by page as it is first touched: for a process that maps much more
/// than it uses.
pub fn all_on_fault() -> Result<(), NodeError> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).map_err(refused)
}

/// Has the kernel map pages of the usual size alone from here on, for this process and those that it starts
/// (`PR_SET_THP_DISABLE`): of a thread's stack, which is some MiB large and hardly used, it may make one huge page, which
/// would be locked then.
pub fn small_pages() -> Result<(), NodeError> {
    disable_transparent_huge_pages(true).map_err(|source| NodeError::Refused {
        what: "have no huge pages",
        source,
        advice: "The agent may take some MiB more",
    })
}

fn refused(source: rustix::io::Errno) -> NodeError {
    NodeError::Refused {
        what: "lock this process's memory",
        source,
        advice: "Give it CAP_IPC_LOCK, or raise its limit of locked memory (LimitMEMLOCK=)",
    }
}

/// Touches the calling thread's stack as deep as it will be used, so that no fault grows it later.
#[expect(clippy::large_stack_arrays, reason = "to be large and on the stack is its purpose")]
#[inline(never)]
pub fn touch_stack() {
    let mut stack = [0_u8; STACK];
    // One write a page would do; the compiler must not know that they are never read.
    for byte in stack.iter_mut().step_by(1024) {
        *byte = 1;
    }
    black_box(&stack);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::transparent_huge_pages_are_disabled;

    #[test]
    fn pages_of_the_usual_size_are_asked_for() {
        small_pages().expect("every kernel has it");
        assert!(transparent_huge_pages_are_disabled().expect("every kernel has it"));
    }
}
