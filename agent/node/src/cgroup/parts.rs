//! A cgroup in which some cgroups are spared, such as a pod's that holds monitors of the container runtime: it is frozen
//! and killed by its parts, which are all others directly in it, one by one.

use super::tree::{DIRECTORY, children, id_of};
use super::{Handle, UNREAD, events, have, number, open_in};
use crate::Fault;
use core::sync::atomic::AtomicU64;
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// Whether a cgroup directly in another one is spared when that is frozen or killed, by its name.
pub type Spares = fn(&[u8]) -> bool;

/// So many parts are kept open at most: the author of a pod chooses how many containers it has.
pub const KEPT: usize = 16;

const EVENTS: &str = "cgroup.events";
const FREEZE: &str = "cgroup.freeze";
const KILL: &str = "cgroup.kill";

/// The parts of a cgroup in which something was spared when its handle was opened.
#[derive(Debug)]
pub(super) struct Parts {
    /// Those that are kept open, with their `cgroup.events` alone.
    kept: Vec<Handle>,
    /// There were no others.
    is_all: bool,
}

/// Whether a cgroup has live processes, as far as those are not spared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Population {
    /// It has.
    Populated,
    /// None is in the parts that are kept open. What lives is spared, or in a part that came later, or for which there
    /// was no room: a helper thread can find out.
    PerhapsSpared,
    /// It has none.
    Empty,
}

impl Parts {
    /// Those of the cgroup whose directory is open; `None` where nothing in it is spared.
    pub(super) fn open(dir: BorrowedFd<'_>, spares: Spares) -> Result<Option<Self>, Errno> {
        let Some(names) = beside_spared(dir, spares)? else { return Ok(None) };
        let mut kept = Vec::with_capacity(names.len().min(KEPT));
        for name in names.iter().take(KEPT) {
            match Handle::open_part(dir, name) {
                Ok(part) => kept.push(part),
                Err(Errno::NOENT | Errno::NODEV) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Some(Self { kept, is_all: names.len() <= KEPT }))
    }

    pub(super) fn descriptors(&self) -> u32 {
        self.kept.iter().map(Handle::descriptors).sum()
    }

    fn is_of(&self, names: &[Vec<u8>]) -> bool {
        self.is_all == (names.len() <= KEPT) && self.kept.iter().map(|part| &part.path).eq(names.iter().take(KEPT))
    }

    /// What cannot be read is taken to be populated, and what was removed is empty.
    fn any_populated(&self) -> bool {
        let is_populated = |part: &Handle| part.events().map_or_else(|fault| fault != Fault::Gone, |it| it.populated);
        self.kept.iter().any(is_populated)
    }

    fn any_frozen(&self) -> bool {
        self.kept.iter().any(|part| part.events().is_ok_and(|events| events.frozen))
    }
}

/// The names of a cgroup's parts; `None` where nothing in it is spared.
fn beside_spared(dir: BorrowedFd<'_>, spares: Spares) -> Result<Option<Vec<Vec<u8>>>, Errno> {
    let mut names = children(dir)?;
    let all = names.len();
    names.retain(|name| !spares(name));
    Ok((names.len() < all).then_some(names))
}

impl Handle {
    fn open_part(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Self, Errno> {
        let dir = openat(dir, OsStr::from_bytes(name), DIRECTORY, Mode::empty())?;
        Ok(Self {
            id: id_of(dir.as_fd())?,
            path: name.to_vec(),
            current: None,
            seen: AtomicU64::new(UNREAD),
            events: open_in(dir.as_fd(), EVENTS, OFlags::RDONLY)?.ok_or(Errno::NOENT)?,
            tasks: None,
            freeze: None,
            kill: None,
            spares: None,
            parts: None,
            dir,
        })
    }

    /// Whether something in it was spared when it was opened: then its parts are frozen, and not itself.
    pub fn is_by_parts(&self) -> bool {
        self.parts.is_some()
    }

    /// Whether this cgroup is one of its parts that are kept open.
    pub fn has_part(&self, cgroup: plimsoll_units::CgroupId) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.kept.iter().any(|part| part.id == cgroup))
    }

    /// Whether its parts are others than those that it was opened with. Opens: for a helper thread.
    pub fn is_outdated(&self) -> bool {
        match (&self.parts, self.beside_spared()) {
            (Some(parts), Ok(Some(names))) => !parts.is_of(&names),
            (parts, Ok(names)) => parts.is_some() != names.is_some(),
            (_, Err(_)) => false,
        }
    }

    /// The names of its parts now; `None` where nothing in it is spared.
    fn beside_spared(&self) -> Result<Option<Vec<Vec<u8>>>, Fault> {
        let Some(spares) = self.spares else { return Ok(None) };
        beside_spared(self.dir.as_fd(), spares).map_err(list_fault)
    }

    /// Whether it has live processes, as far as those are not spared.
    pub fn population(&self) -> Result<Population, Fault> {
        Ok(match &self.parts {
            _ if !self.events()?.populated => Population::Empty,
            Some(parts) if !parts.any_populated() => Population::PerhapsSpared,
            Some(_) | None => Population::Populated,
        })
    }

    /// Whether there is a live process in it or below it that is not spared. With more than [`KEPT`] parts, one that is
    /// spared counts.
    pub fn populated(&self) -> Result<bool, Fault> {
        let is_all = self.parts.as_ref().is_none_or(|parts| parts.is_all);
        self.population().map(|population| match population {
            Population::Populated => true,
            Population::PerhapsSpared => !is_all,
            Population::Empty => false,
        })
    }

    /// The same by files that are opened anew: the kernel lets one reader of an open file wait for another
    /// (`seq_read_iter`, fs/seq_file.c), and the watching thread reads those that are kept. For a helper thread.
    pub fn populated_now(&self) -> Result<bool, Fault> {
        if !events(&self.open_file(EVENTS, OFlags::RDONLY)?)?.populated {
            return Ok(false);
        }
        let Some(parts) = self.beside_spared()? else { return Ok(true) };
        let is_populated = |name: &Vec<u8>| match Self::open_part(self.dir.as_fd(), name) {
            Ok(part) => part.events().map_or_else(|fault| fault != Fault::Gone, |it| it.populated),
            Err(errno) => !matches!(errno, Errno::NOENT | Errno::NODEV),
        };
        Ok(parts.iter().any(is_populated))
    }

    /// Whether a freeze of it was written, by this or any other program; of its parts, whether one is frozen. Where not
    /// all are kept open that cannot be read.
    pub fn freeze_asked(&self) -> Result<bool, Fault> {
        let is_asked = number(have(self.freeze.as_ref(), FREEZE)?)?.0 != 0;
        match &self.parts {
            Some(parts) if !parts.is_all => Err(Fault::Absent { file: FREEZE }),
            Some(parts) => Ok(is_asked || parts.any_frozen()),
            None => Ok(is_asked),
        }
    }

    /// Freezes all processes in it and below it, or thaws them, by each of its parts as they are now where it was opened
    /// with some: those that come later are not frozen. Returns before they are frozen. Where it cannot freeze all, it
    /// thaws the others.
    ///
    /// Waits for `cgroup_mutex`, one lock for all cgroups: writers in other subtrees hold it for as long as their
    /// writes take (`cgroup_freeze_write`, kernel/cgroup/cgroup.c). Meanwhile the kernel holds the open file, too, and
    /// [`Self::freeze_asked`] would wait for it (`kernfs_fop_write_iter`, fs/kernfs/file.c). For a helper thread.
    pub fn freeze(&self, is_frozen: bool) -> Result<(), Fault> {
        let own = have(self.freeze.as_ref(), FREEZE)?;
        let text = if is_frozen { b"1" } else { b"0" };
        let Some(spares) = self.spares.filter(|_| self.parts.is_some()) else { return own.write(text) };
        let mut names = children(self.dir.as_fd()).map_err(list_fault)?;
        names.retain(|name| !spares(name));
        let outcome = self.write_each(&names, FREEZE, text);
        if is_frozen && outcome.is_err() {
            let _ = self.write_each(&names, FREEZE, b"0");
        }
        outcome
    }

    /// Thaws each cgroup directly in it: what a process left that died. Nothing in it was frozen before that one froze its
    /// parts. For a helper thread, as [`Self::freeze`].
    pub fn thaw_inside(&self) -> Result<(), Fault> {
        self.write_each(&children(self.dir.as_fd()).map_err(list_fault)?, FREEZE, b"0")
    }

    /// Kills every process in it and below it, forks in flight included, except what is spared: where there is something
    /// now, by each of its parts as they are now. Returns before they have exited. Waits for `cgroup_mutex` as
    /// [`Self::freeze`] does: for a helper thread.
    pub fn kill(&self) -> Result<(), Fault> {
        let own = have(self.kill.as_ref(), KILL)?;
        match self.beside_spared()? {
            None => own.write(b"1"),
            Some(parts) => self.write_each(&parts, KILL, b"1"),
        }
    }

    /// Writes a file of each of these cgroups in it, and gives the first fault. Those that are gone are passed over.
    fn write_each(&self, names: &[Vec<u8>], file: &'static str, text: &[u8]) -> Result<(), Fault> {
        let write = |name: &Vec<u8>| {
            let written = openat(&self.dir, OsStr::from_bytes(name), DIRECTORY, Mode::empty());
            let written = written.and_then(|dir| open_in(dir.as_fd(), file, OFlags::WRONLY));
            match written {
                Ok(Some(file)) => file.write(text).err(),
                // It has no such file, or no files any more.
                Ok(None) | Err(Errno::NOENT | Errno::NODEV) => None,
                Err(errno) => Some(Fault::Write { file, errno }),
            }
        };
        let faults: Vec<Fault> = names.iter().filter_map(write).filter(|fault| *fault != Fault::Gone).collect();
        faults.first().map_or(Ok(()), |fault| Err(*fault))
    }
}

fn list_fault(errno: Errno) -> Fault {
    match errno {
        Errno::NOENT | Errno::NODEV => Fault::Gone,
        errno => Fault::Read { file: "its directory", errno },
    }
}
