//! Taking the memory of processes that were killed, while they die.

use crate::point::{KillPoint, reached};
use crate::worker::{AT_A_TIME, Done, ROUNDS};
use core::time::Duration;
use plimsoll_node::cgroup::{Handle, TaskList};
use plimsoll_node::clock::monotonic;
use plimsoll_node::process::{self, Opened, Pid, Released};
use plimsoll_units::MonotonicNs;
use std::collections::HashSet;
use std::thread;

/// So long a victim has to give its memory back itself before it is taken. One that has begun to is left alone (`ESRCH`):
/// a second walk over its address space takes as long again where both want the same CPU, and keeps it from its page tables
/// meanwhile, for which the first walk waits (`exit_mmap`, mm/mmap.c), so that it seems to be stuck. What cannot run to its
/// end, because it is throttled or waits in the kernel, is not there by then.
pub(crate) const HEAD_START: Duration = Duration::from_millis(20);
/// The pause between two rounds over a victim's processes.
const PAUSE: Duration = Duration::from_millis(2);
/// After so long, or [`ROUNDS`], a victim's memory is left to the kernel, which gives it back with each process: others
/// wait for the worker, and the tree is its owner's to make.
const MOST: Duration = Duration::from_secs(1);

/// What was done to each process so far.
#[derive(Default)]
struct Tally {
    released: u32,
    gone: u32,
    kept: u32,
    /// Processes whose memory was taken: they may still be listed for a while.
    over: HashSet<Pid>,
    /// Those that were tried in this round, and to be tried again.
    left: HashSet<Pid>,
}

impl Tally {
    fn take(&mut self, one: &Opened) {
        let count = match process::release(&one.fd) {
            Released::Yes => &mut self.released,
            Released::Gone => &mut self.gone,
            Released::Refused(_) => &mut self.kept,
            Released::Busy | Released::NotDying => {
                self.left.insert(one.pid);
                return;
            }
        };
        *count += 1;
        self.over.insert(one.pid);
    }

    /// Tries each process once. Gives whether something is left to try.
    fn round(&mut self, handle: &Handle, by: MonotonicNs) -> bool {
        self.left.clear();
        let Ok(mut walk) = handle.walk() else { return false };
        walk.advance();
        while let Some(dir) = walk.dir()
            && monotonic() <= by
        {
            let mut skip = |pid| self.over.contains(&pid) || self.left.contains(&pid);
            let opened = TaskList::Processes.open_in(dir, AT_A_TIME, &mut skip).unwrap_or_default();
            opened.tasks.iter().for_each(|one| self.take(one));
            if !opened.more || opened.tasks.is_empty() {
                walk.advance();
            }
        }
        !self.left.is_empty()
    }
}

/// Takes the memory of each process of a cgroup that was killed, from then on.
pub(crate) fn release(handle: &Handle, from: MonotonicNs) -> Done {
    thread::sleep(from.since(monotonic()));
    reached(KillPoint::ReleaseStarted);
    let by = monotonic().after(MOST);
    let mut tally = Tally::default();
    for round in 0..ROUNDS {
        // A removed cgroup, or an empty one, has nothing left to take.
        if monotonic() > by || !matches!(handle.populated_now(), Ok(true)) {
            break;
        }
        if round > 0 {
            thread::sleep(PAUSE);
        }
        if !tally.round(handle, by) {
            break;
        }
    }
    let unfinished = u32::try_from(tally.left.len()).unwrap_or(u32::MAX);
    reached(KillPoint::ReleaseFinished);
    Done::Released {
        cgroup: handle.id(),
        released: tally.released,
        gone: tally.gone,
        kept: tally.kept.saturating_add(unfinished),
    }
}

#[cfg(test)]
mod tests;
