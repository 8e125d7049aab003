//! What must survive the end of the agent and of the machine: evictions that are not finished, conditions, what is known
//! of pods, and when images were used. On a disk, written and synced by services alone; neither a decision nor a kill waits
//! for it.
//!
//! # On disk
//!
//! Two files in a directory of services' own. Each holds all of the content, with a sequence number, the boot it was
//! written in and a checksum (`durable/image.rs`); the body has an entry of JSON a line (`durable/entry.rs`). A write
//! goes to the file that does *not* hold what is durable, in place, and counts once both the file and the directory are
//! synced. So at every moment one whole generation is on the disk, and usually two. In place rather than by renaming a
//! new file: the room of both is reserved, so that a full disk, which is when disk pressure is decided on, does not
//! stop the writes. On a file system that copies on write, or that cannot reserve, a full disk is reported like any
//! other failure.
//!
//! A file that cannot be used (`.broken`) or that a newer version wrote (`.newer`) is renamed before its place is
//! written again. It is for people: nothing reads it, and a later one of the same name replaces it.
//!
//! # Order of an eviction
//!
//! 1. The core writes the kill to the run record ([`crate::Record`], in memory that outlives processes), and kills. It
//!    waits for no disk.
//! 2. At the same time it reports to services, which writes the eviction here with the [`Progress`] that is known.
//! 3. When the kernel says that the cgroups are empty, the eviction is [`Progress::Verified`]; when the cluster has
//!    acknowledged it, it is reported; when the pod is gone it is removed.
//!
//! After a restart the core goes on from its own files, asks the kernel how far each has come, and names it again. Those files,
//! and not these, name the cgroup of each eviction by its id, which is never given again in a boot. So what the runtime starts
//! for the same pod later in another cgroup is not killed for the same decision. The pod's own cgroup outlives its containers:
//! of a pod that was asked to end, what is started in it before a core has seen it empty is killed at the end of the grace,
//! unless that was ten seconds before the next core began. After a reboot nothing of that lives: see [`Found::Rebooted`].
//!
//! # Failures
//!
//! The content is in memory, and stays there when the disk fails; [`Store::commit`] says so once, tries again with a
//! growing pause, and says when it works again.

mod content;
mod disk;
mod entry;
mod image;
mod look;
mod moment;
mod slots;

pub use content::Refused;
pub use disk::OpenError;
pub use entry::{Condition, Eviction, Figures, PodName, Progress, Reason};
pub use look::{Look, look};
pub use moment::Moment;
pub use slots::{Problem, WriteError};

use content::{Content, Kind};
use core::time::Duration;
use disk::{Directory, Lock};
use entry::{Entry, Facts, Images};
use plimsoll_node::boot::BootId;
use plimsoll_units::MonotonicNs;
use rustix::fd::OwnedFd;
use slots::{Restored, Slots};
use std::path::Path;

/// The first pause after a write that failed; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after writes that failed.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// What survives, and its place on the disk. At most 4.1 MiB in each of the two files, as much in memory, and twice
/// that while it is read or written.
#[derive(Debug)]
pub struct Store {
    slots: Slots<Directory>,
    content: Content,
    is_changed: bool,
    failing: Option<Failing>,
}

/// Writes fail.
#[derive(Debug)]
struct Failing {
    error: WriteError,
    failures: u32,
    pause: Duration,
    next: MonotonicNs,
}

/// What was there when a store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing that could be read.
    Nothing,
    /// What was written in this boot.
    Continued,
    /// What was written in an earlier boot, without what cannot be true any more: evictions that were only decided and that
    /// were not reported, since what they were decided for is over. Those that were killed for are verified: nothing of
    /// that boot lives.
    Rebooted {
        /// How many entries are left out.
        dropped: u32,
    },
}

/// An opened store.
#[derive(Debug)]
pub struct Opened {
    /// With what was there.
    pub store: Store,
    /// What that was.
    pub found: Found,
    /// What could not be read, to be reported.
    pub problems: Vec<Problem>,
}

/// What came of [`Store::commit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit {
    /// All was durable before.
    Unchanged,
    /// All is durable now.
    Written,
    /// The same, after writes had failed so often.
    Recovered {
        /// How often.
        failures: u32,
    },
    /// The write failed, for another reason than the last one: to be reported. What was committed before is on the
    /// disk; what changed since is in memory alone.
    Degraded(WriteError),
    /// Still so.
    StillDegraded,
}

impl Store {
    /// Opens the store in this directory, which is made (mode 0700) if its parent is there. One process at a time has
    /// it. Never fails for what is in the files. That a disk can only be read is said by the first [`Self::commit`],
    /// since what is on it can be used all the same.
    ///
    /// After an error the caller works on without a store, and tries again later: only what was opened was read, and is
    /// not overwritten.
    pub fn open(directory: &Path, boot: BootId) -> Result<Opened, OpenError> {
        Ok(Self::read(Directory::open(directory)?, boot))
    }

    /// The same in a directory that is open to be listed, for a process that may not search those above it. `path` is for
    /// messages.
    pub fn open_in(directory: OwnedFd, path: &Path, boot: BootId) -> Result<Opened, OpenError> {
        Ok(Self::read(Directory::of(directory, path, Lock::Free)?, boot))
    }

    /// The same of one that another process may have ([`OpenError::Held`]): waits until it has not. The kernel wakes the
    /// thread the moment that process ends.
    pub fn open_once_free_in(directory: OwnedFd, path: &Path, boot: BootId) -> Result<Opened, OpenError> {
        Ok(Self::read(Directory::of(directory, path, Lock::Awaited)?, boot))
    }

    fn read(directory: Directory, boot: BootId) -> Opened {
        let (slots, restored, mut problems) = Slots::open(directory, boot);
        let (content, found) = match restored {
            None => (Content::default(), Found::Nothing),
            Some(Restored { path, boot: written_in, body }) => {
                let is_rebooted = written_in != boot;
                let (content, read) = Content::read(&body, is_rebooted);
                if let Some(first) = read.first_error {
                    problems.push(Problem::Skipped { path, entries: read.skipped, first });
                }
                (content, if is_rebooted { Found::Rebooted { dropped: read.dropped } } else { Found::Continued })
            }
        };
        // The first commit writes where nothing is, so that room is reserved while there is some.
        let is_changed = found != Found::Continued || !problems.is_empty();
        Opened { store: Self { slots, content, is_changed, failing: None }, found, problems }
    }

    /// Makes what was changed durable. Waits for the disk, for as long as that takes: for a thread that may. How often
    /// is the caller's to say, since each time writes all content. `now` is held against the pause after a failure
    /// alone.
    pub fn commit(&mut self, now: MonotonicNs) -> Commit {
        if !self.is_changed {
            return Commit::Unchanged;
        }
        if self.failing.as_ref().is_some_and(|failing| now < failing.next) {
            return Commit::StillDegraded;
        }
        match self.slots.write(&self.content) {
            Ok(()) => {
                self.is_changed = false;
                self.failing.take().map_or(Commit::Written, |Failing { failures, .. }| Commit::Recovered { failures })
            }
            Err(error) => {
                let last = self.failing.take();
                let is_new = last.as_ref().is_none_or(|last| last.error != error);
                let pause = last.as_ref().map_or(FIRST_PAUSE, |last| (last.pause * 2).min(LONGEST_PAUSE));
                let failures = last.map_or(0, |last| last.failures).saturating_add(1);
                self.failing = Some(Failing { error: error.clone(), failures, pause, next: now.after(pause) });
                if is_new { Commit::Degraded(error) } else { Commit::StillDegraded }
            }
        }
    }

    /// Why what is here is not durable, if writes fail: for readiness, metrics and `check`.
    pub fn degraded(&self) -> Option<&WriteError> {
        self.failing.as_ref().map(|failing| &failing.error)
    }

    /// All evictions, by UID.
    pub fn evictions(&self) -> Vec<Eviction> {
        let of_kind = |entry| if let Entry::Eviction(eviction) = entry { Some(eviction) } else { None };
        self.content.entries(Kind::Eviction).filter_map(of_kind).collect()
    }

    /// Adds an eviction, in the place of an earlier one of the same UID.
    pub fn set_eviction(&mut self, eviction: Eviction) -> Result<(), Refused> {
        self.put(&Entry::Eviction(eviction))
    }

    /// Forgets an eviction that is over.
    pub fn remove_eviction(&mut self, uid: &str) {
        self.is_changed |= self.content.remove(Kind::Eviction, uid);
    }

    /// All conditions, by type.
    pub fn conditions(&self) -> Vec<Condition> {
        let of_kind = |entry| if let Entry::Condition(condition) = entry { Some(condition) } else { None };
        self.content.entries(Kind::Condition).filter_map(of_kind).collect()
    }

    /// Adds a condition, in the place of an earlier one of the same type.
    pub fn set_condition(&mut self, condition: Condition) -> Result<(), Refused> {
        self.put(&Entry::Condition(condition))
    }

    /// What is known of each pod, by UID, in the form that it was given in.
    pub fn facts(&self) -> Vec<(String, String)> {
        let of_kind = |entry| if let Entry::Facts(Facts { uid, text }) = entry { Some((uid, text)) } else { None };
        self.content.entries(Kind::Facts).filter_map(of_kind).collect()
    }

    /// Adds what is known of a pod, in the place of what was known before. Its form is the caller's, and has to say by
    /// itself what it is, since another version may read it.
    pub fn set_facts(&mut self, uid: String, text: String) -> Result<(), Refused> {
        self.put(&Entry::Facts(Facts { uid, text }))
    }

    /// Forgets what is known of a pod that is gone.
    pub fn remove_facts(&mut self, uid: &str) {
        self.is_changed |= self.content.remove(Kind::Facts, uid);
    }

    /// What is remembered of each image, by its id, in the form that it was given in.
    pub fn images(&self) -> Vec<(String, String)> {
        let of_kind = |entry| if let Entry::Images(Images { id, text }) = entry { Some((id, text)) } else { None };
        self.content.entries(Kind::Images).filter_map(of_kind).collect()
    }

    /// Adds what is remembered of an image, in the place of what was before. Its form is the caller's, as for
    /// [`Self::set_facts`].
    pub fn set_image(&mut self, id: String, text: String) -> Result<(), Refused> {
        self.put(&Entry::Images(Images { id, text }))
    }

    /// Forgets an image that is gone.
    pub fn remove_image(&mut self, id: &str) {
        self.is_changed |= self.content.remove(Kind::Images, id);
    }

    fn put(&mut self, entry: &Entry) -> Result<(), Refused> {
        self.is_changed |= self.content.put(entry)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
