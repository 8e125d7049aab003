//! Rows in a file on /run that outlives every process.
//!
//! Two slots are written in turn, each with a sequence number, the boot it belongs to and a checksum. The process may
//! be killed at any instruction while it writes one: then that slot does not check and the other one holds. Process
//! death needs no fsync. Room for both is reserved, so that a full /run stops no write, and writing is storing words:
//! it neither allocates nor waits.

use crate::error::StateError;
use crate::shared::Shared;
use core::sync::atomic::{AtomicU64, Ordering};
use plimsoll_node::boot::BootId;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, fstat, openat, rename};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

const SEQUENCE: usize = 1;
const BOOT: usize = 2;
const COUNT: usize = 4;
const CHECKSUM: usize = 5;
/// Magic number, and the words above.
const HEADER: usize = 6;

/// What is in the rows of a file.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Eight bytes that name it, less one for each version of it.
    pub(crate) magic: u64,
    /// Words of a row.
    pub(crate) row: usize,
    /// How many there can be.
    pub(crate) rows: usize,
    /// Whether a row can be one.
    pub(crate) is_row: fn(&[u64]) -> bool,
}

impl Layout {
    /// Words of a slot.
    const fn slot(&self) -> usize {
        HEADER + self.rows * self.row
    }

    const fn file_bytes(&self) -> u64 {
        2 * 8 * self.slot() as u64
    }
}

/// What was there when a file was opened.
#[derive(Debug)]
pub enum Found {
    /// Nothing, or a file to which nothing was written yet.
    New,
    /// What an earlier process of this boot wrote; it goes on.
    Continued,
    /// What was written in an earlier boot and is no more; it was begun anew.
    OtherBoot,
    /// Something that is no such file of this version. It was moved aside; what it held is unknown.
    Broken {
        /// Where it is now.
        aside: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// The content of a slot.
#[derive(Debug)]
pub(crate) struct Image {
    layout: &'static Layout,
    words: Box<[u64]>,
}

impl Image {
    fn empty(layout: &'static Layout) -> Self {
        Self { layout, words: vec![0; layout.slot()].into_boxed_slice() }
    }

    /// How many rows there are; never more than there is room for.
    pub(crate) fn count(&self) -> usize {
        let rows = self.layout.rows;
        usize::try_from(self.words[COUNT]).map_or(rows, |count| count.min(rows))
    }

    fn used(&self) -> &[u64] {
        &self.words[..HEADER + self.count() * self.layout.row]
    }

    /// All rows, one after the other.
    pub(crate) fn words(&self) -> &[u64] {
        &self.used()[HEADER..]
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &[u64]> {
        self.words().chunks_exact(self.layout.row)
    }

    fn checksum(&self) -> u64 {
        let mut hasher = crc32fast::Hasher::new();
        for (index, word) in self.used().iter().enumerate() {
            let word = if index == CHECKSUM { 0 } else { *word };
            hasher.update(&word.to_le_bytes());
        }
        u64::from(hasher.finalize())
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.words[0] != self.layout.magic {
            return Err("it is not of this version");
        }
        if self.words[COUNT] > self.layout.rows as u64 {
            return Err("it has more entries than there is room for");
        }
        if self.words[CHECKSUM] != self.checksum() {
            return Err("its checksum is wrong in both slots");
        }
        if !self.rows().all(self.layout.is_row) {
            return Err("it has an entry that cannot be");
        }
        Ok(())
    }

    fn is_of(&self, boot: BootId) -> bool {
        (self.words[BOOT], self.words[BOOT + 1]) == boot.words()
    }

    fn begin(&mut self, boot: BootId) {
        self.words[0] = self.layout.magic;
        (self.words[BOOT], self.words[BOOT + 1]) = boot.words();
    }
}

/// A file, opened and mapped. Its image in this process is what counts; the slots are its copies.
#[derive(Debug)]
pub(crate) struct TwoSlots {
    shared: Shared,
    image: Image,
}

impl TwoSlots {
    /// Opens the file at `path`, or makes one. Never fails for what is in the file: that is in `Found`.
    pub(crate) fn open(layout: &'static Layout, path: &Path, boot: BootId) -> Result<(Self, Found), StateError> {
        let fail = |what| move |source| StateError::File { what, path: path.to_owned(), source };
        let fd = open_file(path).map_err(fail("open"))?;
        let length = fstat(&fd).map_err(fail("read the length of"))?.st_size;
        let (read, fd, mut found) = match length {
            0 => (None, fd, Found::New),
            length if u64::try_from(length) == Ok(layout.file_bytes()) => {
                let shared = map(layout, &fd).map_err(fail("map"))?;
                match newest(layout, shared.words()) {
                    Ok(read) => (read, fd, Found::New),
                    Err(why) => set_aside(path, why).map_err(fail("set aside"))?,
                }
            }
            _ => set_aside(path, "it has another length").map_err(fail("set aside"))?,
        };
        fallocate(&fd, FallocateFlags::empty(), 0, layout.file_bytes()).map_err(fail("reserve room for"))?;
        let shared = map(layout, &fd).map_err(fail("map"))?;
        let mut image = Image::empty(layout);
        match read {
            Some(read) if read.is_of(boot) => (image, found) = (read, Found::Continued),
            Some(read) => {
                image.words[SEQUENCE] = read.words[SEQUENCE];
                found = Found::OtherBoot;
            }
            None => {}
        }
        image.begin(boot);
        let mut opened = Self { shared, image };
        opened.publish();
        Ok((opened, found))
    }

    /// What is in the file at `path`, which is left as it is: another process writes it, or cannot any more. Absent where
    /// there is none of this boot.
    pub(crate) fn read(layout: &'static Layout, path: &Path, boot: BootId) -> Result<Option<Image>, StateError> {
        let fail = |what| move |source| StateError::File { what, path: path.to_owned(), source };
        let fd = match openat(CWD, path, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(fail("open"))?,
        };
        if u64::try_from(fstat(&fd).map_err(fail("stat"))?.st_size) != Ok(layout.file_bytes()) {
            return Ok(None);
        }
        let shared = map(layout, &fd).map_err(fail("map"))?;
        Ok(newest(layout, shared.words()).ok().flatten().filter(|image| image.is_of(boot)))
    }

    /// Keeps it in memory. False: the limit of locked memory is too low.
    pub(crate) fn lock(&self) -> bool {
        self.shared.lock()
    }

    pub(crate) const fn image(&self) -> &Image {
        &self.image
    }

    /// The row at this place.
    pub(crate) fn row_mut(&mut self, index: usize) -> &mut [u64] {
        let start = HEADER + index * self.image.layout.row;
        &mut self.image.words[start..start + self.image.layout.row]
    }

    /// A row more, behind all others, which has to be filled. Absent where there is no room for it.
    pub(crate) fn push(&mut self) -> Option<&mut [u64]> {
        let index = self.image.count();
        if index == self.image.layout.rows {
            return None;
        }
        self.image.words[COUNT] += 1;
        Some(self.row_mut(index))
    }

    /// Takes the row at this place out.
    pub(crate) fn remove(&mut self, index: usize) {
        let (end, row) = (self.image.used().len(), self.image.layout.row);
        self.image.words.copy_within(HEADER + (index + 1) * row..end, HEADER + index * row);
        self.image.words[COUNT] -= 1;
    }

    /// Takes all rows out.
    pub(crate) fn clear(&mut self) {
        self.image.words[COUNT] = 0;
    }

    /// Makes the image the newest slot.
    pub(crate) fn publish(&mut self) {
        let words = &mut self.image.words;
        words[SEQUENCE] = words[SEQUENCE].wrapping_add(1);
        self.image.words[CHECKSUM] = self.image.checksum();
        let layout = self.image.layout;
        store(slot(layout, self.shared.words(), self.image.words[SEQUENCE]), self.image.used());
    }
}

fn open_file(path: &Path) -> Result<OwnedFd, Errno> {
    let how = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, how, Mode::RUSR | Mode::WUSR)
}

fn map(layout: &Layout, fd: &OwnedFd) -> Result<Shared, Errno> {
    Shared::map(fd, 2 * layout.slot())
}

type Opened = (Option<Image>, OwnedFd, Found);

fn set_aside(path: &Path, why: &'static str) -> Result<Opened, Errno> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".broken");
    let aside = PathBuf::from(aside);
    rename(path, &aside)?;
    Ok((None, open_file(path)?, Found::Broken { aside, why }))
}

fn slot<'s>(layout: &Layout, words: &'s [AtomicU64], sequence: u64) -> &'s [AtomicU64] {
    let (even, odd) = words.split_at(layout.slot());
    if sequence.is_multiple_of(2) { even } else { odd }
}

fn store(slot: &[AtomicU64], image: &[u64]) {
    for (to, from) in slot.iter().zip(image) {
        to.store(*from, Ordering::Relaxed);
    }
}

/// The newest slot that checks. `None`: nothing was ever written.
fn newest(layout: &'static Layout, words: &[AtomicU64]) -> Result<Option<Image>, &'static str> {
    let slots = [0, 1].map(|sequence| {
        let words = slot(layout, words, sequence).iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let image = Image { layout, words };
        image.check().map(|()| image)
    });
    match slots {
        [Ok(first), Ok(second)] => {
            // They follow one another; the later one may have wrapped.
            let ahead = first.words[SEQUENCE].wrapping_sub(second.words[SEQUENCE]);
            Ok(Some(if ahead < u64::MAX / 2 { first } else { second }))
        }
        [Ok(image), Err(_)] | [Err(_), Ok(image)] => Ok(Some(image)),
        // The first write ever goes to the second slot, and dies with its writer: then nothing was done yet either.
        [Err(_), Err(_)] if slot(layout, words, 0).iter().all(|word| word.load(Ordering::Relaxed) == 0) => Ok(None),
        [Err(why), Err(_)] => Err(why),
    }
}

#[cfg(test)]
mod tests;
