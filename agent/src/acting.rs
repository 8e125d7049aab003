//! The right to act: one agent on a machine has it, whatever directory it keeps its state in.
//!
//! Two locks. The machine's is at one fixed place and is held by the agent that acts; the directory's is held by the one
//! that writes the run record in it, so that a record whose writer is dead can be undone although another agent acts
//! meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use anyhow::Context as _;
use plimsoll_node::{capabilities, process};
use plimsoll_state::ActingLock;
use rustix::io::Errno;

/// The machine's lock: a file of the root cgroup, so that it is one inode for all mount namespaces of the machine, and
/// one that only root may open (mode 0200), so that no other user can hold it. It is opened and never written.
const ROOT_CGROUP: &str = "/sys/fs/cgroup/memory.reclaim";
/// The machine's lock before Linux 5.19, where the root cgroup has no such file. Containers need a mount of it.
const RUN: &str = "/run/plimsoll/lock";

/// The machine's lock on this machine.
pub(crate) fn machine_lock() -> &'static Path {
    Path::new(if Path::new(ROOT_CGROUP).exists() { ROOT_CGROUP } else { RUN })
}

/// The two locks, by path.
#[derive(Clone, Debug)]
pub(crate) struct Locks {
    machine: PathBuf,
    directory: PathBuf,
}

/// The right to act, as long as it is kept.
#[derive(Debug)]
pub(crate) struct Acting {
    _directory: ActingLock,
    _machine: ActingLock,
}

/// The claim of this process to the right to act, on a thread of its own that has a table of open files of its own.
///
/// A lock is free when the last descriptor of it is closed. The descriptors of a process that is killed are closed when
/// its last thread ends, in no order that is documented, and its kernel programs are detached meanwhile, one by one: until
/// then no other agent could act. This thread's table has the locks and nothing that takes long to close, and the kernel
/// closes it as soon as the thread is killed.
#[derive(Debug)]
pub(crate) struct Claim {
    is_given_back: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The turn of an agent that shadows.
#[derive(Debug)]
pub(crate) struct Turn(Receiver<Answer>);

/// What the thread reports, in this order.
#[derive(Debug)]
enum Answer {
    /// The kernel gave it no table of its own.
    SharesFiles(Errno),
    /// Another agent acts.
    Waits,
    /// The right to act is this agent's.
    Acts,
    /// A lock could not be opened.
    Failed(anyhow::Error),
}

/// Stack of the thread, locked like all memory of this process. The tests claim on half of it, without optimisation; not with
/// what injects faults, which needs room itself.
const STACK: usize = if cfg!(all(test, not(feature = "fault-injection"))) { 32 << 10 } else { 64 << 10 };

impl Claim {
    /// Claims the right to act. `None`: this agent acts from now on; otherwise it shadows until its turn comes.
    pub(crate) fn start(locks: Locks, troubles: &mut Vec<String>) -> anyhow::Result<(Self, Option<Turn>)> {
        let (answers, turn) = channel();
        let is_given_back = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_given_back);
        let serve = move || match claim(&locks, &answers) {
            Ok(acting) => {
                while !seen.load(Ordering::Acquire) {
                    thread::park();
                }
                drop(acting);
            }
            Err(error) => drop(answers.send(Answer::Failed(error))),
        };
        let thread = thread::Builder::new().name("claim".into()).stack_size(STACK).spawn(serve);
        let thread = thread.context("cannot start the thread that holds the right to act")?;
        let this = Self { is_given_back, thread };
        loop {
            match turn.recv().context("the thread that holds the right to act ended")? {
                Answer::SharesFiles(errno) => troubles.push(format!(
                    "the right to act is held together with all open files ({errno}): if this process is killed, \
                     another agent may have to wait until its kernel programs are detached"
                )),
                Answer::Waits => return Ok((this, Some(Turn(turn)))),
                Answer::Acts => return Ok((this, None)),
                Answer::Failed(error) => return Err(error),
            }
        }
    }

    /// Gives it back without waiting: neither allocates nor opens or closes anything on the calling thread.
    pub(crate) fn give_back(&self) {
        self.is_given_back.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }

    /// Whether another agent may act, after [`Self::give_back`].
    pub(crate) fn has_given_back(&self) -> bool {
        self.thread.is_finished()
    }
}

impl Turn {
    /// Waits until this agent acts.
    pub(crate) fn wait(self) -> anyhow::Result<()> {
        match self.0.recv().context("the thread that waits for the right to act ended")? {
            Answer::Acts => Ok(()),
            Answer::Failed(error) => Err(error),
            answer @ (Answer::SharesFiles(_) | Answer::Waits) => anyhow::bail!("{answer:?} was reported already"),
        }
    }
}

fn claim(locks: &Locks, answers: &Sender<Answer>) -> anyhow::Result<Acting> {
    // The thread that asked may have ended meanwhile; then so does this one, with its process.
    let report = |answer| drop(answers.send(answer));
    process::separate_descriptors().unwrap_or_else(|errno| report(Answer::SharesFiles(errno)));
    capabilities::keep_only(&[capabilities::DAC_OVERRIDE])?;
    let acting = if let Some(acting) = locks.try_acquire()? {
        acting
    } else {
        report(Answer::Waits);
        locks.acquire()?
    };
    report(Answer::Acts);
    Ok(acting)
}

/// What an undo found free, as long as it is kept.
#[derive(Debug)]
pub(crate) struct Free {
    /// No agent writes the run record.
    pub(crate) record: bool,
    /// No agent acts, so that what the kernel side stopped belongs to none.
    pub(crate) stopped: bool,
    _held: [Option<ActingLock>; 2],
}

impl Locks {
    /// Of the agent that keeps its state in `directory`.
    pub(crate) fn of(directory: &Path) -> Self {
        Self::at(machine_lock(), directory)
    }

    pub(crate) fn at(machine: &Path, directory: &Path) -> Self {
        Self { machine: machine.to_owned(), directory: directory.join("record.lock") }
    }

    /// Makes the directories that the locks are in.
    pub(crate) fn make_places(&self) -> anyhow::Result<()> {
        let places = [
            (&self.directory, "choose another with --state-directory"),
            (&self.machine, "the lock of the agent that acts is there, and has to be at the same place for all agents"),
        ];
        for (path, advice) in places {
            let place = path.parent().unwrap_or(path);
            fs::create_dir_all(place)
                .with_context(|| format!("cannot make the directory {}; {advice}", place.display()))?;
        }
        Ok(())
    }

    /// Takes the right to act; `None` while another agent has it. Never waits.
    pub(crate) fn try_acquire(&self) -> anyhow::Result<Option<Acting>> {
        let Some(directory) = ActingLock::try_acquire(&self.directory)? else { return Ok(None) };
        let machine = ActingLock::try_acquire(&self.machine)?;
        Ok(machine.map(|machine| Acting { _directory: directory, _machine: machine }))
    }

    /// Waits for the right to act.
    ///
    /// For the machine's lock first: meanwhile the directory's stays free, so that what another writer of the run record
    /// left can be undone. No other code waits for one of the two while holding the other.
    fn acquire(&self) -> anyhow::Result<Acting> {
        let machine = ActingLock::acquire(&self.machine)?;
        Ok(Acting { _directory: ActingLock::acquire(&self.directory)?, _machine: machine })
    }

    /// Takes what no agent holds, to undo what was left. Makes no directory: where there is none, there is no lock.
    pub(crate) fn free(&self) -> anyhow::Result<Free> {
        let (record, directory) = lock(&self.directory)?;
        let (none_acts, machine) = lock(&self.machine)?;
        Ok(Free { record, stopped: record && none_acts, _held: [directory, machine] })
    }
}

/// Takes a lock if it is free. False: an agent has it.
fn lock(path: &Path) -> anyhow::Result<(bool, Option<ActingLock>)> {
    let place = path.parent().unwrap_or(path);
    if !fs::exists(place).with_context(|| format!("cannot access {}", place.display()))? {
        return Ok((true, None));
    }
    let lock = ActingLock::try_acquire(path)?;
    Ok((lock.is_some(), lock))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_agent_acts_whatever_its_directory_and_the_record_of_a_dead_one_is_free() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let machine = place.path().join("run/lock");
        let [one, other] = ["one", "other"].map(|name| Locks::at(&machine, &place.path().join(name)));
        let free = |locks: &Locks| {
            let Free { record, stopped, .. } = locks.free().expect("readable");
            (record, stopped)
        };
        assert_eq!(free(&one), (true, true), "nothing was ever made");
        assert!(!place.path().join("one").exists());
        for locks in [&one, &other] {
            locks.make_places().expect("writable");
        }
        let acting = one.try_acquire().expect("writable");
        assert!(acting.is_some());
        assert!(one.try_acquire().expect("writable").is_none());
        assert!(other.try_acquire().expect("writable").is_none(), "another directory, the same machine");
        assert_eq!(free(&one), (false, false));
        assert_eq!(free(&other), (true, false));
        drop(acting);
        assert_eq!(free(&one), (true, true));
        // An agent that waits leaves the record of its directory free too, and has its turn without asking again.
        let acting = one.try_acquire().expect("writable");
        let mut troubles = Vec::new();
        let (claim, turn) = Claim::start(other.clone(), &mut troubles).expect("a thread starts");
        let turn = turn.expect("the other one acts");
        assert_eq!((free(&other), troubles.len()), ((true, false), 0), "{troubles:?}");
        drop(acting);
        turn.wait().expect("its turn comes");
        assert_eq!((free(&one), free(&other)), ((true, false), (false, false)));
        assert!(!claim.has_given_back());
        claim.give_back();
        while !claim.has_given_back() {
            thread::yield_now();
        }
        let (claim, turn) = Claim::start(one.clone(), &mut troubles).expect("a thread starts");
        assert!(turn.is_none() && one.try_acquire().expect("writable").is_none());
        claim.give_back();
        while !claim.has_given_back() {
            thread::yield_now();
        }
        // An agent that is refused keeps nothing.
        assert!(other.try_acquire().expect("writable").is_some());
        assert!(one.try_acquire().expect("writable").is_some());
    }
}
