//! Two files that are written in turn. The one that holds what is durable is never written to.

use super::content::Content;
use super::disk::{Aside, Disk};
use super::image::{self, Image, NotRead};
use plimsoll_node::boot::BootId;
use rustix::io::Errno;
use std::path::PathBuf;

/// What was not as it should be when a store was opened. To be reported; the store works.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A file was not used. Where it was the newest one, what was written last is lost, and what was written before
    /// that holds.
    #[error(
        "{} was not used: {why}. Before its place is written again it is renamed: .broken comes behind its name, or \
         .newer",
        path.display()
    )]
    NotUsed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The state is a newer version's: what only that one knows was not read.
    #[error(
        "{} is of version {version}, which is newer: what only that one knows is not used. Before its place is written \
         again it is renamed: .newer comes behind its name",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// Entries were not read.
    #[error("{entries} of the entries in {} were not read: {first}", path.display())]
    Skipped {
        /// The file.
        path: PathBuf,
        /// How many.
        entries: u32,
        /// What is wrong with the first one.
        first: String,
    },
}

/// A write failed. What was durable before is not touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {what} {}: {source}. What changes from now on is kept in memory alone", path.display())]
pub struct WriteError {
    /// What was tried.
    pub what: &'static str,
    /// On what.
    pub path: PathBuf,
    /// What the kernel answered.
    pub source: Errno,
}

/// What was durable.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Restored {
    pub(super) path: PathBuf,
    pub(super) boot: BootId,
    pub(super) body: Vec<u8>,
}

/// Both files.
#[derive(Debug)]
pub(super) struct Slots<D> {
    disk: D,
    boot: BootId,
    /// The highest that was seen, or written.
    sequence: u64,
    /// The one that is written next.
    target: usize,
    /// What is in it has to be kept: it is set aside before it is written.
    aside: [Option<Aside>; 2],
}

impl<D: Disk> Slots<D> {
    /// Reads what was durable.
    pub(super) fn open(disk: D, boot: BootId) -> (Self, Option<Restored>, Vec<Problem>) {
        let mut slots = Self { disk, boot, sequence: 0, target: 0, aside: [None; 2] };
        let (mut newest, mut problems) = (None::<(u64, Option<u32>, Restored)>, Vec::new());
        for slot in [0, 1] {
            let path = slots.disk.path(slot);
            let mut aside = Aside::Broken;
            let not_used = match slots.disk.read(slot) {
                Ok(None) => continue,
                Err(why) => why,
                Ok(Some(bytes)) => match image::decode(&bytes) {
                    Ok(None) => continue,
                    Ok(Some(Image { boot, sequence, newer, body })) => {
                        slots.sequence = slots.sequence.max(sequence);
                        slots.aside[slot] = newer.map(|_| Aside::Newer);
                        if newest.as_ref().is_none_or(|(other, ..)| *other < sequence) {
                            newest = Some((sequence, newer, Restored { path, boot, body: body.to_vec() }));
                            slots.target = 1 - slot;
                        }
                        continue;
                    }
                    Err(why) => {
                        if let NotRead::Newer { sequence, .. } = why {
                            // What that version finds when it comes back is not taken for newer than what is written
                            // now.
                            slots.sequence = slots.sequence.max(sequence);
                            aside = Aside::Newer;
                        }
                        why.to_string()
                    }
                },
            };
            slots.aside[slot] = Some(aside);
            problems.push(Problem::NotUsed { path, why: not_used });
        }
        let restored = newest.map(|(_, newer, restored)| {
            problems.extend(newer.map(|version| Problem::Newer { path: restored.path.clone(), version }));
            restored
        });
        (slots, restored, problems)
    }

    /// Makes this content durable.
    pub(super) fn write(&mut self, content: &Content) -> Result<(), WriteError> {
        let (target, sequence) = (self.target, self.sequence + 1);
        let path = self.disk.path(target);
        let fail = |what| {
            let path = path.clone();
            move |source| WriteError { what, path, source }
        };
        let image = image::encode(self.boot, sequence, content.lines());
        if let Some(aside) = self.aside[target] {
            self.disk.set_aside(target, aside).map_err(fail("set aside"))?;
            self.aside[target] = None;
        }
        let file = match self.disk.open(target) {
            Err(Errno::INVAL) => {
                // Something was put in its place. The next time it is set aside.
                self.aside[target] = Some(Aside::Broken);
                return Err(fail("open")(Errno::INVAL));
            }
            opened => opened.map_err(fail("open"))?,
        };
        self.disk.reserve(&file, image.len());
        self.disk.write(&file, &image).map_err(fail("write"))?;
        self.disk.sync(&file).map_err(fail("sync"))?;
        self.disk.sync_names().map_err(fail("sync the directory of"))?;
        self.sequence = sequence;
        self.target = 1 - target;
        // The next write, to the other one, must find room where the disk is full by then.
        if self.aside[self.target].is_none()
            && let Ok(other) = self.disk.open(self.target)
        {
            self.disk.reserve(&other, image.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
