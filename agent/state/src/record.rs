//! The run record: what is frozen and what is being killed, in a file on /run that outlives every process
//! ([`TwoSlots`]). A freeze does not survive a reboot, and neither does the record.

use crate::error::StateError;
use crate::two_slots::{Found, Image, Layout, TwoSlots};
use plimsoll_act::{Action, Intent, Journal, JournalFull, Step};
use plimsoll_node::boot::BootId;
use plimsoll_units::{CgroupId, MonotonicNs};
use std::path::Path;

/// Step, path length and whether it is by parts; cgroup; since; path.
const ROW: usize = 3 + PATH / 8;
/// The longest path that is kept, in bytes: a cgroup with a longer one is found by its id.
const PATH: usize = 256;
/// A length that no path has: it was too long to keep.
const TOO_LONG: u64 = 0xffff_ffff;
/// In the word of step and path length: [`Intent::by_parts`].
const BY_PARTS: u64 = 1 << 63;

/// A row for each action that is open at a time.
static LAYOUT: Layout = Layout {
    magic: u64::from_le_bytes(*b"PLIMSOLL"),
    row: ROW,
    rows: Record::ROOM,
    is_row: |row| entry(row).is_some(),
};

/// The record, opened and mapped.
#[derive(Debug)]
pub struct Record {
    slots: TwoSlots,
    locked: bool,
}

/// One open action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// How far it has come.
    pub step: Step,
    /// The cgroup that it is done to.
    pub cgroup: CgroupId,
    /// Where that cgroup is, below the root; `None` where the path was too long to keep.
    pub path: Option<Vec<u8>>,
    /// When the action began.
    pub since: MonotonicNs,
    /// [`Intent::by_parts`].
    pub by_parts: bool,
}

impl Record {
    /// So many actions are open at a time at most.
    pub const ROOM: usize = 64;

    /// Opens the record at `path`, or makes one. Never fails for what is in the file: that is in `Found`.
    pub fn open(path: &Path, boot: BootId) -> Result<(Self, Found), StateError> {
        let (slots, found) = TwoSlots::open(&LAYOUT, path, boot)?;
        Ok((Self { locked: slots.lock(), slots }, found))
    }

    /// The open actions in the record at `path`, which is left as it is: another process writes it, or cannot any more.
    /// None where there is no record of this boot.
    pub fn read(path: &Path, boot: BootId) -> Result<Vec<Entry>, StateError> {
        Ok(TwoSlots::read(&LAYOUT, path, boot)?.as_ref().map(entries).unwrap_or_default())
    }

    /// Whether it is locked in memory.
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    /// All open actions, by when they were first written.
    pub fn entries(&self) -> Vec<Entry> {
        entries(self.slots.image())
    }

    fn position(&self, cgroup: CgroupId, action: Action) -> Option<usize> {
        let is_meant = |row: &[u64]| row[1] == cgroup.0 && step_of(row[0]).is_some_and(|step| step.action() == action);
        self.slots.image().rows().position(is_meant)
    }
}

impl Journal for Record {
    fn write(&mut self, intent: Intent<'_>) -> Result<(), JournalFull> {
        let row = match self.position(intent.cgroup, intent.step.action()) {
            Some(index) => self.slots.row_mut(index),
            None => self.slots.push().ok_or(JournalFull)?,
        };
        fill(row, &intent);
        self.slots.publish();
        Ok(())
    }

    fn clear(&mut self, cgroup: CgroupId, action: Action) {
        let Some(index) = self.position(cgroup, action) else { return };
        self.slots.remove(index);
        self.slots.publish();
    }
}

fn entries(image: &Image) -> Vec<Entry> {
    image.rows().filter_map(entry).collect()
}

fn step_of(word: u64) -> Option<Step> {
    match (word & !BY_PARTS) >> 32 {
        1 => Some(Step::Freezing),
        2 => Some(Step::Frozen),
        3 => Some(Step::Killing),
        4 => Some(Step::KillWritten),
        _ => None,
    }
}

fn fill(row: &mut [u64], intent: &Intent<'_>) {
    let step: u64 = match intent.step {
        Step::Freezing => 1,
        Step::Frozen => 2,
        Step::Killing => 3,
        Step::KillWritten => 4,
    };
    let path = if intent.path.len() <= PATH { intent.path } else { &[] };
    let length = if intent.path.len() <= PATH { path.len() as u64 } else { TOO_LONG };
    row[0] = step << 32 | length | if intent.by_parts { BY_PARTS } else { 0 };
    row[1] = intent.cgroup.0;
    row[2] = intent.since.0;
    row[3..].fill(0);
    for (word, bytes) in row[3..].iter_mut().zip(path.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
}

fn entry(row: &[u64]) -> Option<Entry> {
    let length = row[0] & TOO_LONG;
    let path = if length == TOO_LONG {
        None
    } else {
        let length = usize::try_from(length).ok().filter(|length| *length <= PATH)?;
        let mut bytes: Vec<u8> = row[3..].iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(length);
        Some(bytes)
    };
    let (cgroup, since, by_parts) = (CgroupId(row[1]), MonotonicNs(row[2]), row[0] & BY_PARTS != 0);
    Some(Entry { step: step_of(row[0])?, cgroup, path, since, by_parts })
}

#[cfg(test)]
mod tests;
