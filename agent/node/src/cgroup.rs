//! One cgroup by descriptors that stay open: read, frozen and killed without opening anything.
//!
//! A handle never follows a path again after it was made: if the cgroup is removed and another made at the same path,
//! the handle answers [`Fault::Gone`], it does not act on the newcomer.

use crate::file::{self, KeptFile};
use crate::{Fault, NodeError, parse};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use parts::Parts;
use plimsoll_units::{Bytes, CgroupId};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, OFlags, Stat, fstat, statat};
use rustix::io::Errno;

mod parts;
mod tasks;
mod throttling;
mod tree;
mod walk;

pub use parts::{KEPT, Population, Spares};
pub use tasks::{Activity, Pids, TaskList};
pub use throttling::Throttling;
pub use tree::{Root, children, id_of, open_below};
pub use walk::{Bound, DEPTH, Walk};

/// One cgroup by its directory and the files that a decision reads or writes: usage and population at each sample,
/// freeze and kill, and the number of tasks where that is decided about. All other files are read by helper threads,
/// which open them where they need them: the kernel keeps 1 to 5 KiB for each open file of a cgroup, and there may be
/// thousands of cgroups.
pub struct Handle {
    id: CgroupId,
    path: Vec<u8>,
    dir: OwnedFd,
    current: Option<KeptFile>,
    /// What was last read of it; [`UNREAD`] before.
    seen: AtomicU64,
    events: KeptFile,
    tasks: Option<KeptFile>,
    freeze: Option<KeptFile>,
    kill: Option<KeptFile>,
    spares: Option<Spares>,
    parts: Option<Parts>,
}

/// More than any cgroup uses.
const UNREAD: u64 = u64::MAX;

/// What a handle is opened for.
#[derive(Clone, Copy, Debug)]
pub struct Purpose {
    /// To be frozen and killed, which takes the right to write.
    pub is_written: bool,
    /// Its tasks are counted, which takes a descriptor more.
    pub counts_tasks: bool,
    /// The cgroups directly in it that are neither frozen nor killed with it, nor count as its population.
    pub spares: Option<Spares>,
}

/// All files of a cgroup that are ever opened.
const FILES: [&str; 22] = [
    "cgroup.events",
    "cgroup.freeze",
    "cgroup.kill",
    "cgroup.procs",
    "cgroup.threads",
    "cpu.stat",
    "memory.current",
    "memory.events",
    "memory.events.local",
    "memory.high",
    "memory.low",
    "memory.max",
    "memory.min",
    "memory.peak",
    "memory.pressure",
    "memory.reclaim",
    "memory.stat",
    "memory.swap.current",
    "memory.swap.max",
    "memory.zswap.current",
    "pids.current",
    "pids.max",
];

impl Drop for Handle {
    /// The kernel keeps the names of files that were open when their cgroup was removed, each with its inode, until memory is
    /// short, and charges them to the process that opened them: 4 KiB for the files of a handle, and more where a helper
    /// thread had others open at that moment. Looking a name up makes it forget it (`kernfs_dop_revalidate`,
    /// fs/kernfs/dir.c). Waits for locks of the kernel: for a helper thread.
    fn drop(&mut self) {
        // In one that is there names would be remembered instead; its removal forgets those that are not in use.
        if self.events() == Err(Fault::Gone) {
            for name in FILES {
                let _ = statat(&self.dir, name, AtFlags::empty());
            }
        }
    }
}

/// What a cgroup holds of swap. What is not there or cannot be read is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swap {
    /// What of its memory is in swap, in compressed form as well: `memory.swap.current`.
    pub used: Option<Bytes>,
    /// How much may be: `memory.swap.max`, which a kubelet with `LimitedSwap` sets for each container. Absent for no limit.
    pub limit: Option<Bytes>,
    /// What of that is in memory in compressed form, and takes there: `memory.zswap.current` (Linux 5.19 and later).
    pub compressed: Option<Bytes>,
}

/// Opens a file of the cgroup whose directory is open; `None` where it has no such file.
fn open_in(dir: BorrowedFd<'_>, name: &'static str, how: OFlags) -> Result<Option<KeptFile>, Errno> {
    debug_assert!(FILES.contains(&name), "{name} is none of the files that are forgotten with their cgroup");
    KeptFile::open_below(dir, name, how)
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.escape_ascii().to_string();
        f.debug_struct("Handle").field("id", &self.id.0).field("path", &path).finish_non_exhaustive()
    }
}

/// What `memory.stat` says of a cgroup's page cache, by one reading, and what was charged at that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCache {
    /// All that was charged to the cgroup, in bytes. What is charged to it later may be page cache, too.
    pub charged: Bytes,
    /// What reclaim takes first, in bytes.
    pub inactive_file: Bytes,
    /// What reclaim could take without ending or swapping a process, in bytes: page cache on either list, tmpfs not
    /// included, and slab that can shrink. Absent where that could not be read.
    pub reclaimable: Option<Bytes>,
}

impl PageCache {
    /// Whether a later reading differs, or what is charged by so much that it could.
    pub fn differs(&self, later: &Self) -> bool {
        const MUCH: u64 = 1 << 20;
        (self.inactive_file, self.reclaimable) != (later.inactive_file, later.reclaimable)
            || self.charged.0.abs_diff(later.charged.0) >= MUCH
    }
}

/// What `cgroup.events` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Events {
    /// There is a live process in it or below it.
    pub populated: bool,
    /// All of its processes are frozen.
    pub frozen: bool,
}

impl Handle {
    /// Opens the cgroup at `path` below the root (bytes as the kernel has them, no slash at the beginning). The root
    /// itself is refused: nothing is ever done to all of a machine. `None` where there is no such cgroup.
    pub fn open(root: &Root, path: &[u8]) -> Result<Option<Self>, NodeError> {
        Self::open_for(root, path, Purpose { is_written: true, counts_tasks: false, spares: None })
    }

    /// The same for one whose tasks are counted as well, which keeps a descriptor more.
    pub fn open_with_tasks(root: &Root, path: &[u8]) -> Result<Option<Self>, NodeError> {
        Self::open_for(root, path, Purpose { is_written: true, counts_tasks: true, spares: None })
    }

    /// The same for one that is only read, which takes no right to write.
    pub fn open_to_read(root: &Root, path: &[u8]) -> Result<Option<Self>, NodeError> {
        Self::open_for(root, path, Purpose { is_written: false, counts_tasks: true, spares: None })
    }

    /// The same for this purpose.
    pub fn open_for(root: &Root, path: &[u8], purpose: Purpose) -> Result<Option<Self>, NodeError> {
        match Self::open_all(root.as_fd(), path, purpose) {
            Ok(handle) => Ok(Some(handle)),
            Err(Errno::NOENT | Errno::NODEV) => Ok(None),
            Err(source) => Err(NodeError::Open {
                path: root.path.join(file::path_of(path)),
                source,
                advice: match source {
                    Errno::MFILE | Errno::NFILE => "Raise the limit of open files (LimitNOFILE=)",
                    Errno::ACCESS => "It belongs to another user: CAP_DAC_OVERRIDE is needed",
                    _ => "It must be a cgroup below the root of a cgroup2 mount",
                },
            }),
        }
    }

    fn open_all(root: BorrowedFd<'_>, path: &[u8], purpose: Purpose) -> Result<Self, Errno> {
        let Purpose { is_written, counts_tasks, spares } = purpose;
        let dir = open_below(root, path)?;
        let id = id_of(dir.as_fd())?;
        let at = dir.as_fd();
        let open = |name, how| open_in(at, name, how);
        Ok(Self {
            id,
            path: path.to_vec(),
            current: open("memory.current", OFlags::RDONLY)?,
            seen: AtomicU64::new(UNREAD),
            events: open("cgroup.events", OFlags::RDONLY)?.ok_or(Errno::NOENT)?,
            tasks: if counts_tasks { open("pids.current", OFlags::RDONLY)? } else { None },
            freeze: if is_written { open("cgroup.freeze", OFlags::RDWR)? } else { None },
            kill: if is_written { open("cgroup.kill", OFlags::WRONLY)? } else { None },
            spares,
            parts: spares.map_or(Ok(None), |spares| Parts::open(at, spares))?,
            dir,
        })
    }

    /// Which cgroup it is.
    pub fn id(&self) -> CgroupId {
        self.id
    }

    /// Its path below the root, as it was opened.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// How many levels it is below the root, 1 for a child of the root.
    pub fn level(&self) -> u16 {
        u16::try_from(self.path.split(|byte| *byte == b'/').count()).unwrap_or(u16::MAX)
    }

    /// Whether the memory controller is on for it, so that it has a usage of its own.
    pub fn has_memory(&self) -> bool {
        self.current.is_some()
    }

    /// Whether one write kills all of it (Linux 5.14 and later).
    pub fn has_kill(&self) -> bool {
        self.kill.is_some()
    }

    /// How many descriptors it keeps open.
    pub fn descriptors(&self) -> u32 {
        let Self { current, tasks, freeze, kill, parts, .. } = self;
        let optional = [current.is_some(), tasks.is_some(), freeze.is_some(), kill.is_some()];
        2 + optional.into_iter().map(u32::from).sum::<u32>() + parts.as_ref().map_or(0, Parts::descriptors)
    }

    /// Opens one of its files for a helper thread.
    fn open_file(&self, name: &'static str, how: OFlags) -> Result<KeptFile, Fault> {
        match open_in(self.dir.as_fd(), name, how) {
            Ok(file) => file.ok_or(Fault::Absent { file: name }),
            Err(Errno::NODEV) => Err(Fault::Gone),
            Err(errno) if how.contains(OFlags::WRONLY) => Err(Fault::Write { file: name, errno }),
            Err(errno) => Err(Fault::Read { file: name, errno }),
        }
    }

    /// What it and everything below it uses, exact to what each processor has charged beforehand (64 pages).
    pub fn usage(&self) -> Result<Bytes, Fault> {
        let usage = number(have(self.current.as_ref(), "memory.current")?)?;
        self.seen.store(usage.0, Ordering::Relaxed);
        Ok(usage)
    }

    /// What [`Self::usage`] gave last, to whichever thread, without reading anything. Absent before that.
    pub fn usage_seen(&self) -> Option<Bytes> {
        Some(self.seen.load(Ordering::Relaxed)).filter(|seen| *seen != UNREAD).map(Bytes)
    }

    /// How many tasks are in it and below it, those too that have ended and were not waited for yet. Absent where the pids
    /// controller is off for it, and where the handle was not opened for that.
    pub fn tasks(&self) -> Result<u64, Fault> {
        number(have(self.tasks.as_ref(), "pids.current")?).map(|tasks| tasks.0)
    }

    /// Its page cache. Up to two seconds old, and reading it makes the kernel add up its per-processor figures. Opens a
    /// file: for a helper thread.
    pub fn page_cache(&self) -> Result<PageCache, Fault> {
        // Opened anew: the file that is kept is read by the watching thread, and the kernel lets one reader of an open
        // file wait for another (`seq_read_iter`, fs/seq_file.c).
        let charged = number(&self.open_file("memory.current", OFlags::RDONLY)?)?;
        let [inactive_file, active_file, slab] = self.stat(["inactive_file", "active_file", "slab_reclaimable"])?;
        let inactive_file = inactive_file?;
        let others = active_file.ok().zip(slab.ok()).map(|(active_file, slab)| active_file.saturating_add(slab));
        let reclaimable = others.map(|others| inactive_file.saturating_add(others));
        Ok(PageCache { charged, inactive_file, reclaimable })
    }

    /// Page cache on its active list. As old and as costly as [`Self::page_cache`].
    pub fn active_file(&self) -> Result<Bytes, Fault> {
        let [active_file] = self.stat(["active_file"])?;
        active_file
    }

    /// Memory of the kernel's own that is charged to it (`kernel` of `memory.stat`, Linux 5.18 and later). As old and as
    /// costly as [`Self::page_cache`].
    pub fn kernel_memory(&self) -> Result<Bytes, Fault> {
        let [kernel] = self.stat(["kernel"])?;
        kernel
    }

    /// Fields of one reading of `memory.stat`.
    fn stat<const FIELDS: usize>(
        &self,
        names: [&'static str; FIELDS],
    ) -> Result<[Result<Bytes, Fault>; FIELDS], Fault> {
        let file = self.open_file("memory.stat", OFlags::RDONLY)?;
        let mut buffer = [0; 8192];
        let text = file.read(&mut buffer)?;
        Ok(names.map(|name| parse::field(text, name.as_bytes()).map(Bytes).ok_or(file.malformed(name))))
    }

    /// What it may use at most; `None` for no limit of its own. Opens a file: for a helper thread.
    pub fn max(&self) -> Result<Option<Bytes>, Fault> {
        let max = limit(&self.open_file("memory.max", OFlags::RDONLY)?)?;
        Ok((max.0 != u64::MAX).then_some(max))
    }

    /// The most that it has used since it was made (Linux 5.19 and later). Opens a file: for a helper thread.
    pub fn peak(&self) -> Result<Bytes, Fault> {
        number(&self.open_file("memory.peak", OFlags::RDONLY)?)
    }

    /// What of its memory is in swap. Opens a file: for a helper thread.
    pub fn swapped(&self) -> Result<Bytes, Fault> {
        number(&self.open_file("memory.swap.current", OFlags::RDONLY)?)
    }

    /// What it holds of swap and may hold of that, as far as it can be read. Opens files: for a helper thread.
    pub fn swap(&self) -> Swap {
        let zswap = self.open_file("memory.zswap.current", OFlags::RDONLY).and_then(|file| number(&file));
        let max = self.open_file("memory.swap.max", OFlags::RDONLY).and_then(|file| limit(&file));
        Swap { used: self.swapped().ok(), limit: max.ok().filter(|max| max.0 != u64::MAX), compressed: zswap.ok() }
    }

    /// Its protection, as [`protection`] has it, whichever user may write these files. Opens files: for a helper thread.
    pub fn protection(&self) -> Bytes {
        protection(self.dir.as_fd(), |_| true)
    }

    /// Whether it has live processes, and whether all of them are frozen.
    pub fn events(&self) -> Result<Events, Fault> {
        events(&self.events)
    }

    /// Reads the files that are kept, once: the kernel allocates room for what it gives at the first reading of each
    /// (`seq_read_iter`, fs/seq_file.c), which must not wait until the watching thread reads them. For a helper thread,
    /// before the handle is handed on.
    pub fn read_all_once(&self) {
        let _ = (self.usage(), self.populated(), self.tasks(), self.freeze_asked());
    }

    /// Whether all of its processes are frozen, by its own or a parent's freeze.
    pub fn frozen(&self) -> Result<bool, Fault> {
        self.events().map(|events| events.frozen)
    }

    /// Asks the kernel to take back `amount` of its page cache. Opens a file, and blocks for as long as that takes: for a
    /// helper thread. `EAGAIN` in the fault: less than that could be had.
    ///
    /// By the key `swappiness`, of which a kernel before commit 68cd9050d871 knows nothing: that may write to swap as well.
    pub fn reclaim(&self, amount: Bytes) -> Result<(), Fault> {
        const DIGITS: usize = 20;
        const WITHOUT_SWAP: &[u8; 13] = b" swappiness=0";
        let mut text = [0; DIGITS + WITHOUT_SWAP.len()];
        text[DIGITS..].copy_from_slice(WITHOUT_SWAP);
        let mut rest = amount.0;
        let mut start = DIGITS;
        loop {
            start -= 1;
            // A remainder of ten fits a byte.
            text[start] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let file = self.open_file("memory.reclaim", OFlags::WRONLY)?;
        match file.write(&text[start..]) {
            Err(Fault::Write { errno: Errno::INVAL, .. }) => file.write(&text[start..DIGITS]),
            written => written,
        }
    }
}

fn have<'f>(file: Option<&'f KeptFile>, name: &'static str) -> Result<&'f KeptFile, Fault> {
    file.ok_or(Fault::Absent { file: name })
}

fn events(file: &KeptFile) -> Result<Events, Fault> {
    let mut buffer = [0; 128];
    let text = file.read_piece(&mut buffer, 0)?;
    let populated = parse::field(text, b"populated").ok_or(file.malformed("populated"))?;
    // Before 5.2 nothing can be frozen.
    Ok(Events { populated: populated != 0, frozen: parse::field(text, b"frozen") == Some(1) })
}

/// The kernel gives a file of one value, and `cgroup.events`, whole: a second read would only find the end.
fn number(file: &KeptFile) -> Result<Bytes, Fault> {
    let mut buffer = [0; 32];
    parse::u64_after_blanks(file.read_piece(&mut buffer, 0)?).map(Bytes).ok_or(file.malformed("number"))
}

fn limit(file: &KeptFile) -> Result<Bytes, Fault> {
    let mut buffer = [0; 32];
    parse::limit(file.read_piece(&mut buffer, 0)?).map(Bytes).ok_or(file.malformed("limit"))
}

/// The larger of `memory.low` and `memory.min` of the cgroup whose directory is open, counting only files that
/// `is_trusted`; `max` is the largest amount there is. Zero where it has none. Opens files: for a helper thread.
pub fn protection(dir: BorrowedFd<'_>, is_trusted: impl Fn(&Stat) -> bool) -> Bytes {
    let read = |name| {
        let file = open_in(dir, name, OFlags::RDONLY).ok()??;
        if is_trusted(&fstat(&file).ok()?) { limit(&file).ok() } else { None }
    };
    ["memory.low", "memory.min"].into_iter().filter_map(read).max().unwrap_or(Bytes::ZERO)
}

#[cfg(test)]
mod tests;
