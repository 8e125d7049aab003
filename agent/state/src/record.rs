//! The run record: what is frozen and what is being killed, in a file on /run that outlives every process.
//!
//! Two slots are written in turn, each with a sequence number, the boot it belongs to and a checksum. The process may
//! be killed at any instruction while it writes one: then that slot does not check and the other one holds. Process
//! death needs no fsync, and a freeze does not survive a reboot.

use crate::error::StateError;
use crate::shared::Shared;
use core::sync::atomic::{AtomicU64, Ordering};
use plimsoll_act::{Action, Intent, Journal, JournalFull, Step};
use plimsoll_node::boot::BootId;
use plimsoll_units::{CgroupId, MonotonicNs};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, fstat, openat, rename};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// How many actions can be open at a time.
const ROWS: usize = 64;
/// `PLIMSOLL` as bytes, less one for each version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"PLIMSOLL");
const HEADER: usize = 6;
/// Step and path length, cgroup, since, path.
const ROW: usize = 3 + PATH / 8;
/// The longest path that is kept, in bytes: a cgroup with a longer one is found by its id.
const PATH: usize = 256;
const SLOT: usize = HEADER + ROWS * ROW;
const FILE_BYTES: u64 = 2 * 8 * SLOT as u64;
/// A length that no path has: it was too long to keep.
const TOO_LONG: u64 = 0xffff_ffff;

/// The record, opened and mapped. Its image in this process is what counts; the slots are its copies.
#[derive(Debug)]
pub struct Record {
    shared: Shared,
    image: Box<[u64]>,
    locked: bool,
}

/// What was there when the record was opened.
#[derive(Debug)]
pub enum Found {
    /// Nothing, or a record of which nothing was written yet.
    New,
    /// The record of an earlier process of this boot; its entries are in the record now.
    Continued,
    /// A record of an earlier boot, whose freezes are no more; it was begun anew.
    OtherBoot,
    /// Something that is no record of this version. It was moved aside; what it held is unknown.
    Broken {
        /// Where it is now.
        aside: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
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
}

impl Record {
    /// Opens the record at `path`, or makes one. Never fails for what is in the file: that is in `Found`.
    pub fn open(path: &Path, boot: BootId) -> Result<(Self, Found), StateError> {
        let fail = |what| move |source| StateError::File { what, path: path.to_owned(), source };
        let fd = open_file(path).map_err(fail("open"))?;
        let length = fstat(&fd).map_err(fail("read the length of"))?.st_size;
        let (newest, fd, mut found) = match length {
            0 => (None, fd, Found::New),
            length if u64::try_from(length) == Ok(FILE_BYTES) => {
                let shared = Shared::map(&fd, 2 * SLOT).map_err(fail("map"))?;
                match newest(shared.words()) {
                    Ok(newest) => (newest, fd, Found::New),
                    Err(why) => set_aside(path, why).map_err(fail("set aside"))?,
                }
            }
            _ => set_aside(path, "it has another length").map_err(fail("set aside"))?,
        };
        fallocate(&fd, FallocateFlags::empty(), 0, FILE_BYTES).map_err(fail("reserve room for"))?;
        let shared = Shared::map(&fd, 2 * SLOT).map_err(fail("map"))?;
        let locked = shared.lock();
        let mut image = vec![0; SLOT].into_boxed_slice();
        if let Some(newest) = newest {
            if is_of(&newest, boot) {
                image.copy_from_slice(&newest);
                found = Found::Continued;
            } else {
                image[SEQUENCE] = newest[SEQUENCE];
                found = Found::OtherBoot;
            }
        }
        image[0] = MAGIC;
        let (low, high) = boot.words();
        (image[BOOT], image[BOOT + 1]) = (low, high);
        let mut record = Self { shared, image, locked };
        record.publish();
        Ok((record, found))
    }

    /// The open actions in the record at `path`, which is left as it is: another process writes it, or cannot any more.
    /// None where there is no record of this boot.
    pub fn read(path: &Path, boot: BootId) -> Result<Vec<Entry>, StateError> {
        let fail = |what| move |source| StateError::File { what, path: path.to_owned(), source };
        let fd = match openat(CWD, path, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            opened => opened.map_err(fail("open"))?,
        };
        if u64::try_from(fstat(&fd).map_err(fail("stat"))?.st_size) != Ok(FILE_BYTES) {
            return Ok(Vec::new());
        }
        let shared = Shared::map(&fd, 2 * SLOT).map_err(fail("map"))?;
        let newest = newest(shared.words()).ok().flatten().filter(|image| is_of(image, boot));
        Ok(newest.map_or_else(Vec::new, |image| entries(&image)))
    }

    /// Whether it is locked in memory.
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    /// All open actions, by when they were first written.
    pub fn entries(&self) -> Vec<Entry> {
        entries(&self.image)
    }

    fn position(&self, cgroup: CgroupId, action: Action) -> Option<usize> {
        (0..count(&self.image)).find(|index| {
            let row = row(&self.image, *index);
            row[1] == cgroup.0 && step_of(row[0]).is_some_and(|step| step.action() == action)
        })
    }

    /// Makes the image the newest slot.
    fn publish(&mut self) {
        self.image[SEQUENCE] = self.image[SEQUENCE].wrapping_add(1);
        let used = used(&self.image);
        self.image[CHECKSUM] = checksum(&self.image[..used]);
        store(slot(self.shared.words(), self.image[SEQUENCE]), &self.image[..used]);
    }
}

impl Journal for Record {
    fn write(&mut self, intent: Intent<'_>) -> Result<(), JournalFull> {
        let index = match self.position(intent.cgroup, intent.step.action()) {
            Some(index) => index,
            None if count(&self.image) == ROWS => return Err(JournalFull),
            None => {
                self.image[COUNT] += 1;
                count(&self.image) - 1
            }
        };
        let start = HEADER + index * ROW;
        fill(&mut self.image[start..start + ROW], &intent);
        self.publish();
        Ok(())
    }

    fn clear(&mut self, cgroup: CgroupId, action: Action) {
        let Some(index) = self.position(cgroup, action) else { return };
        let end = used(&self.image);
        self.image.copy_within(HEADER + (index + 1) * ROW..end, HEADER + index * ROW);
        self.image[COUNT] -= 1;
        self.publish();
    }
}

const SEQUENCE: usize = 1;
const BOOT: usize = 2;
const COUNT: usize = 4;
const CHECKSUM: usize = 5;

fn open_file(path: &Path) -> Result<OwnedFd, Errno> {
    let how = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, how, Mode::RUSR | Mode::WUSR)
}

type Opened = (Option<Box<[u64]>>, OwnedFd, Found);

fn set_aside(path: &Path, why: &'static str) -> Result<Opened, Errno> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".broken");
    let aside = PathBuf::from(aside);
    rename(path, &aside)?;
    Ok((None, open_file(path)?, Found::Broken { aside, why }))
}

fn slot(words: &[AtomicU64], sequence: u64) -> &[AtomicU64] {
    if sequence.is_multiple_of(2) { &words[..SLOT] } else { &words[SLOT..] }
}

fn store(slot: &[AtomicU64], image: &[u64]) {
    for (to, from) in slot.iter().zip(image) {
        to.store(*from, Ordering::Relaxed);
    }
}

fn entries(image: &[u64]) -> Vec<Entry> {
    (0..count(image)).filter_map(|index| entry(row(image, index))).collect()
}

/// How many rows are used; never more than there are.
fn count(image: &[u64]) -> usize {
    usize::try_from(image[COUNT]).map_or(ROWS, |count| count.min(ROWS))
}

fn used(image: &[u64]) -> usize {
    HEADER + count(image) * ROW
}

fn row(image: &[u64], index: usize) -> &[u64] {
    &image[HEADER + index * ROW..HEADER + (index + 1) * ROW]
}

fn checksum(used: &[u64]) -> u64 {
    let mut hasher = crc32fast::Hasher::new();
    for (index, word) in used.iter().enumerate() {
        let word = if index == CHECKSUM { 0 } else { *word };
        hasher.update(&word.to_le_bytes());
    }
    u64::from(hasher.finalize())
}

/// Whether an image was written in this boot.
fn is_of(image: &[u64], boot: BootId) -> bool {
    (image[BOOT], image[BOOT + 1]) == boot.words()
}

/// The newest slot that checks. `None`: nothing was ever written.
fn newest(words: &[AtomicU64]) -> Result<Option<Box<[u64]>>, &'static str> {
    let slots = [&words[..SLOT], &words[SLOT..]].map(|slot| {
        let image: Box<[u64]> = slot.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        check(&image).map(|()| image)
    });
    match slots {
        [Ok(first), Ok(second)] => {
            // They follow one another; the later one may have wrapped.
            let ahead = first[SEQUENCE].wrapping_sub(second[SEQUENCE]);
            Ok(Some(if ahead < u64::MAX / 2 { first } else { second }))
        }
        [Ok(image), Err(_)] | [Err(_), Ok(image)] => Ok(Some(image)),
        // The first write ever goes to the second slot, and dies with its writer: then nothing was done yet either.
        [Err(_), Err(_)] if words[..SLOT].iter().all(|word| word.load(Ordering::Relaxed) == 0) => Ok(None),
        [Err(why), Err(_)] => Err(why),
    }
}

fn check(image: &[u64]) -> Result<(), &'static str> {
    if image[0] != MAGIC {
        return Err("it is not a run record of this version");
    }
    if image[COUNT] > ROWS as u64 {
        return Err("it has more entries than there is room for");
    }
    let used = &image[..used(image)];
    if image[CHECKSUM] != checksum(used) {
        return Err("its checksum is wrong in both slots");
    }
    if (0..count(image)).any(|index| entry(row(image, index)).is_none()) {
        return Err("it has an entry that cannot be");
    }
    Ok(())
}

fn step_of(word: u64) -> Option<Step> {
    match word >> 32 {
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
    row[0] = step << 32 | length;
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
    Some(Entry { step: step_of(row[0])?, cgroup: CgroupId(row[1]), path, since: MonotonicNs(row[2]) })
}

#[cfg(test)]
mod tests;
