//! Who may act: one agent on a machine, whatever directory it keeps its state in.
//!
//! Two locks. The machine's is at one fixed place and says who acts; the directory's says who writes the run record in it,
//! so that a record whose writer is dead can be undone although another agent acts meanwhile.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use plimsoll_state::ActingLock;

/// The machine's lock.
pub(crate) const MACHINE: &str = "/run/plimsoll/lock";

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

/// What somebody who wants to undo found free, as long as it is kept.
#[derive(Debug)]
pub(crate) struct Free {
    /// Nobody writes the run record.
    pub(crate) record: bool,
    /// Nobody acts, so that what the kernel side stopped is nobody's.
    pub(crate) stopped: bool,
    _held: [Option<ActingLock>; 2],
}

impl Locks {
    /// Of the agent that keeps its state in `directory`.
    pub(crate) fn of(directory: &Path) -> Self {
        Self::at(MACHINE.as_ref(), directory)
    }

    pub(crate) fn at(machine: &Path, directory: &Path) -> Self {
        Self { machine: machine.to_owned(), directory: directory.join("record.lock") }
    }

    /// Makes the directories that the locks are in.
    pub(crate) fn make_places(&self) -> anyhow::Result<()> {
        let places = [
            (&self.directory, "choose another with --state-directory"),
            (&self.machine, "the lock of the one that acts on this machine is there, and must be for all the same"),
        ];
        for (path, advice) in places {
            let place = path.parent().unwrap_or(path);
            fs::create_dir_all(place)
                .with_context(|| format!("cannot make the directory {}; {advice}", place.display()))?;
        }
        Ok(())
    }

    /// Takes the right to act; `None` while another agent has it. Never waits, and allocates nothing.
    pub(crate) fn try_acquire(&self) -> anyhow::Result<Option<Acting>> {
        let Some(directory) = ActingLock::try_acquire(&self.directory)? else { return Ok(None) };
        let machine = ActingLock::try_acquire(&self.machine)?;
        Ok(machine.map(|machine| Acting { _directory: directory, _machine: machine }))
    }

    /// Takes what nobody holds, to undo what was left. Makes no directory: where there is none, nobody holds anything.
    pub(crate) fn free(&self) -> anyhow::Result<Free> {
        let (record, directory) = lock(&self.directory)?;
        let (nobody_acts, machine) = lock(&self.machine)?;
        Ok(Free { record, stopped: record && nobody_acts, _held: [directory, machine] })
    }
}

/// Takes a lock for a moment. False: somebody has it.
fn lock(path: &Path) -> anyhow::Result<(bool, Option<ActingLock>)> {
    let place = path.parent().unwrap_or(path);
    if !fs::exists(place).with_context(|| format!("cannot look at {}", place.display()))? {
        return Ok((true, None));
    }
    let lock = ActingLock::try_acquire(path)?;
    Ok((lock.is_some(), lock))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_acts_whatever_its_directory_and_a_dead_ones_record_is_free() {
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
        // Whoever is refused keeps nothing.
        assert!(other.try_acquire().expect("writable").is_some());
        assert!(one.try_acquire().expect("writable").is_some());
    }
}
