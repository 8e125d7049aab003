//! One cgroup by descriptors that stay open: read, frozen and killed without opening anything.
//!
//! A handle never follows a path again after it was made: if the cgroup is removed and another made at the same path,
//! the handle answers [`Fault::Gone`], it does not act on the newcomer.

use crate::file::{self, KeptFile};
use crate::process::{self, Opened, OpenedProcesses, Pid};
use crate::{Fault, NodeError, parse, sys};
use core::fmt;
use core::time::Duration;
use plimsoll_units::{Bytes, CgroupId};
use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, Stat, fstat, openat, readlink};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The root of the cgroup tree.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens the root of a tree, `/sys/fs/cgroup` as a rule.
    pub fn open(path: &Path) -> Result<Self, NodeError> {
        let fd = openat(CWD, path, DIRECTORY, Mode::empty()).map_err(|source| NodeError::Open {
            path: path.to_owned(),
            source,
            advice: "It must be the root of a cgroup2 mount",
        })?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where a cgroup is now, below the root; `None` where it is gone. The kernel finds it by its id, whatever the size of
    /// the tree. Needs CAP_DAC_READ_SEARCH.
    pub fn path_of(&self, cgroup: CgroupId) -> Result<Option<Vec<u8>>, NodeError> {
        let failed = |source| NodeError::Open {
            path: self.path.clone(),
            source,
            advice: "To open a cgroup by its id CAP_DAC_READ_SEARCH is needed",
        };
        let fd = match sys::open_kernfs_by_id(self.as_fd(), cgroup.0) {
            Ok(fd) => fd,
            Err(Errno::STALE | Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        let link = readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new()).map_err(failed)?;
        // A cgroup outside of this mount, and one that was removed, have no path below the root.
        let below = link.as_bytes().strip_prefix(self.path.as_os_str().as_bytes());
        let path = below.and_then(|path| path.strip_prefix(b"/")).filter(|path| !path.is_empty());
        Ok(path
            .filter(|path| open_below(self.as_fd(), path).and_then(|fd| id_of(fd.as_fd())) == Ok(cgroup))
            .map(Into::into))
    }

    /// Searches the whole tree for a cgroup: for one whose path is not known. `None` where it is gone.
    pub fn find(&self, cgroup: CgroupId) -> Result<Option<Vec<u8>>, NodeError> {
        // Depth first, without recursion: a tree may be deep.
        let mut open = vec![Vec::new()];
        while let Some(path) = open.pop() {
            let dir = if path.is_empty() { self.fd.try_clone().ok() } else { open_below(self.as_fd(), &path).ok() };
            // What is removed meanwhile holds nothing.
            let Some(dir) = dir else { continue };
            if !path.is_empty() && id_of(dir.as_fd()) == Ok(cgroup) {
                return Ok(Some(path));
            }
            let below = children(dir.as_fd()).map_err(|source| NodeError::Read { path: self.path.clone(), source });
            for name in below? {
                open.push(if path.is_empty() { name } else { [path.as_slice(), b"/", &name].concat() });
            }
        }
        Ok(None)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens the directory at `path` below `dir`, one name at a time: no symbolic link, no `..`, nothing outside.
pub fn open_below(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let open = |from: BorrowedFd<'_>, name: &[u8]| match name {
        b"." | b".." => Err(Errno::INVAL),
        name => openat(from, OsStr::from_bytes(name), DIRECTORY, Mode::empty()),
    };
    let mut fd = open(dir, names.next().ok_or(Errno::INVAL)?)?;
    for name in names {
        fd = open(fd.as_fd(), name)?;
    }
    Ok(fd)
}

/// The id of the cgroup whose directory is open.
pub fn id_of(fd: BorrowedFd<'_>) -> Result<CgroupId, Errno> {
    fstat(fd).map(|stat| CgroupId(stat.st_ino))
}

/// One cgroup by its directory and the files that a decision reads or writes: usage and population at each sample, freeze
/// and kill. All other files are read by helper threads, which open them where they need them: the kernel keeps 1 to 5 KiB
/// for each open file of a cgroup, and there may be thousands of cgroups.
pub struct Handle {
    id: CgroupId,
    path: Vec<u8>,
    dir: OwnedFd,
    current: Option<KeptFile>,
    events: KeptFile,
    freeze: Option<KeptFile>,
    kill: Option<KeptFile>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.escape_ascii().to_string();
        f.debug_struct("Handle").field("id", &self.id.0).field("path", &path).finish_non_exhaustive()
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

/// Which of a cgroup's two lists of tasks is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskList {
    /// `cgroup.procs`: a process by its first thread, in that one's cgroup. A process whose first thread has exited
    /// stays listed while others of its threads live; one whose threads have all exited is not, also before its parent
    /// waits for it. (`css_task_iter_advance` with `CSS_TASK_ITER_PROCS`, kernel/cgroup/cgroup.c, since c03cd7738a83 in
    /// Linux 5.2.)
    ///
    /// An exited first thread cannot be moved: where the others were moved on since, their process is listed in the
    /// cgroup that they left (`cgroup_migrate_add_task` passes over `PF_EXITING`), and nowhere once that one was
    /// removed.
    Processes,
    /// `cgroup.threads`: every live thread, in its own cgroup, whatever became of the first one.
    Threads,
}

impl TaskList {
    const fn file(self) -> &'static str {
        match self {
            Self::Processes => "cgroup.procs",
            Self::Threads => "cgroup.threads",
        }
    }

    /// Opens what it lists: the process itself, or the process of a thread.
    fn open(self, task: Pid) -> Result<OwnedFd, Errno> {
        match self {
            Self::Processes => process::open(task),
            Self::Threads => process::open_by_thread(task),
        }
    }
}

/// What shows that tasks of a cgroup run or end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// CPU time that was used in it and below it since it was made, by tasks that are gone as well; to about a timer
    /// tick for those that run.
    pub cpu: Duration,
    /// Threads in it and below it that have not exited.
    pub threads: usize,
}

impl Handle {
    /// Opens the cgroup at `path` below the root (bytes as the kernel has them, no slash at the beginning). The root
    /// itself is refused: nothing is ever done to all of a machine. `None` where there is no such cgroup.
    pub fn open(root: &Root, path: &[u8]) -> Result<Option<Self>, NodeError> {
        match Self::open_all(root.as_fd(), path) {
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

    fn open_all(root: BorrowedFd<'_>, path: &[u8]) -> Result<Self, Errno> {
        let dir = open_below(root, path)?;
        let id = id_of(dir.as_fd())?;
        let at = dir.as_fd();
        let open = |name, how| KeptFile::open_below(at, name, how);
        Ok(Self {
            id,
            path: path.to_vec(),
            current: open("memory.current", OFlags::RDONLY)?,
            events: open("cgroup.events", OFlags::RDONLY)?.ok_or(Errno::NOENT)?,
            freeze: open("cgroup.freeze", OFlags::RDWR)?,
            kill: open("cgroup.kill", OFlags::WRONLY)?,
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
        let optional = [self.current.is_some(), self.freeze.is_some(), self.kill.is_some()];
        2 + optional.into_iter().map(u32::from).sum::<u32>()
    }

    /// Opens one of its files for a helper thread.
    fn open_file(&self, name: &'static str, how: OFlags) -> Result<KeptFile, Fault> {
        match KeptFile::open_below(self.dir.as_fd(), name, how) {
            Ok(file) => file.ok_or(Fault::Absent { file: name }),
            Err(Errno::NODEV) => Err(Fault::Gone),
            Err(errno) if how.contains(OFlags::WRONLY) => Err(Fault::Write { file: name, errno }),
            Err(errno) => Err(Fault::Read { file: name, errno }),
        }
    }

    /// What it and everything below it uses, exact to what each processor has charged beforehand (64 pages).
    pub fn usage(&self) -> Result<Bytes, Fault> {
        number(have(self.current.as_ref(), "memory.current")?)
    }

    /// Its page cache that reclaim takes first. Up to two seconds old, and reading it makes the kernel add up its
    /// per-processor figures. Opens a file: for a helper thread.
    pub fn inactive_file(&self) -> Result<Bytes, Fault> {
        self.stat(&["inactive_file"])
    }

    /// The sum of fields of `memory.stat`.
    fn stat(&self, names: &[&'static str]) -> Result<Bytes, Fault> {
        let file = self.open_file("memory.stat", OFlags::RDONLY)?;
        let mut buffer = [0; 8192];
        let text = file.read(&mut buffer)?;
        names.iter().try_fold(Bytes::ZERO, |sum, name| {
            let field = parse::field(text, name.as_bytes()).map(Bytes).ok_or(file.malformed(name))?;
            Ok(sum.saturating_add(field))
        })
    }

    /// Memory of the kernel's own that is charged to it (`kernel` of `memory.stat`, Linux 5.18 and later). As old and as
    /// costly as [`Self::inactive_file`].
    pub fn kernel_memory(&self) -> Result<Bytes, Fault> {
        self.stat(&["kernel"])
    }

    /// What reclaim could take of it without ending or swapping a process: page cache on either list, tmpfs not included,
    /// and slab that can shrink. As old and as costly as [`Self::inactive_file`].
    pub fn reclaimable(&self) -> Result<Bytes, Fault> {
        self.stat(&["active_file", "inactive_file", "slab_reclaimable"])
    }

    /// What it may use at most; `None` for no limit of its own. Opens a file: for a helper thread.
    pub fn max(&self) -> Result<Option<Bytes>, Fault> {
        let max = limit(&self.open_file("memory.max", OFlags::RDONLY)?)?;
        Ok((max.0 != u64::MAX).then_some(max))
    }

    /// Whether it has live processes, and whether all of them are frozen.
    pub fn events(&self) -> Result<Events, Fault> {
        let mut buffer = [0; 128];
        let text = self.events.read(&mut buffer)?;
        let populated = parse::field(text, b"populated").ok_or(self.events.malformed("populated"))?;
        // Before 5.2 nothing can be frozen.
        Ok(Events { populated: populated != 0, frozen: parse::field(text, b"frozen") == Some(1) })
    }

    /// Whether there is a live process in it or below it.
    pub fn populated(&self) -> Result<bool, Fault> {
        self.events().map(|events| events.populated)
    }

    /// Whether all of its processes are frozen, by its own or a parent's freeze.
    pub fn frozen(&self) -> Result<bool, Fault> {
        self.events().map(|events| events.frozen)
    }

    /// Whether a freeze of it was written, by this or any other program.
    pub fn freeze_asked(&self) -> Result<bool, Fault> {
        let file = have(self.freeze.as_ref(), "cgroup.freeze")?;
        number(file).map(|asked| asked.0 != 0)
    }

    /// Freezes all processes in it and below it, or thaws them. Returns before they are.
    pub fn freeze(&self, is_frozen: bool) -> Result<(), Fault> {
        have(self.freeze.as_ref(), "cgroup.freeze")?.write(if is_frozen { b"1" } else { b"0" })
    }

    /// Kills every process in it and below it, forks in flight included. Returns before they have exited.
    pub fn kill(&self) -> Result<(), Fault> {
        have(self.kill.as_ref(), "cgroup.kill")?.write(b"1")
    }

    /// Asks the kernel to take back `amount` of it. Opens a file, and blocks for as long as that takes: for a helper thread.
    /// `EAGAIN` in the fault: less than that could be had.
    pub fn reclaim(&self, amount: Bytes) -> Result<(), Fault> {
        let mut text = [0; 20];
        let mut rest = amount.0;
        let mut start = text.len();
        loop {
            start -= 1;
            // A remainder of ten fits a byte.
            text[start] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.open_file("memory.reclaim", OFlags::WRONLY)?.write(&text[start..])
    }

    /// Calls `each` with the tasks in it and below it, at any depth, until `each` says no, or there are no more. Opens
    /// and allocates: for a helper thread.
    pub fn each_task(&self, list: TaskList, each: &mut dyn FnMut(Pid) -> bool) -> Result<(), Fault> {
        let fault = |errno| Fault::Read { file: "a directory below", errno };
        // Depth first, without recursion: a tree may be deep.
        let mut left = vec![Vec::new()];
        while let Some(path) = left.pop() {
            let below = if path.is_empty() { Ok(None) } else { open_below(self.dir.as_fd(), &path).map(Some) };
            // What is removed meanwhile has no tasks.
            let Ok(below) = below else { continue };
            let dir = below.as_ref().map_or(self.dir.as_fd(), AsFd::as_fd);
            match KeptFile::open_below(dir, list.file(), OFlags::RDONLY) {
                Ok(Some(tasks)) => match each_pid(&tasks, each) {
                    Ok(true) | Err(Fault::Gone) => {}
                    Ok(false) => return Ok(()),
                    Err(fault) => return Err(fault),
                },
                Ok(None) | Err(Errno::NODEV) => {}
                Err(errno) => return Err(fault(errno)),
            }
            match children(dir) {
                Ok(names) => left.extend(names.iter().map(|name| [path.as_slice(), b"/", name].concat())),
                Err(Errno::NODEV | Errno::NOENT) => {}
                Err(errno) => return Err(fault(errno)),
            }
        }
        Ok(())
    }

    /// Opens up to `most` of the processes that a list names by tasks which are not in `except`. Each is given only if
    /// the task was still in the cgroup after it was opened, so that no number used again leads astray. Allocates and
    /// opens: for a helper thread.
    pub fn open_processes(&self, list: TaskList, most: usize, except: &HashSet<Pid>) -> Result<OpenedProcesses, Fault> {
        let mut opened = Vec::new();
        let mut more = false;
        self.each_task(list, &mut |pid| {
            if except.contains(&pid) {
                return true;
            }
            if opened.len() == most {
                more = true;
                return false;
            }
            // One that ended meanwhile is not missed.
            opened.extend(list.open(pid).ok().map(|fd| Opened { pid, fd }));
            true
        })?;
        if !opened.is_empty() {
            let all: HashSet<Pid> = opened.iter().map(|one| one.pid).collect();
            let mut still = HashSet::with_capacity(all.len());
            self.each_task(list, &mut |pid| {
                still.extend(all.contains(&pid).then_some(pid));
                still.len() < all.len()
            })?;
            opened.retain(|one| still.contains(&one.pid));
        }
        Ok(OpenedProcesses { cgroup: self.id, processes: opened, more })
    }

    /// Whether its tasks run or end. Opens files, and makes the kernel add up its per-processor figures: for a helper
    /// thread.
    pub fn activity(&self) -> Result<Activity, Fault> {
        const STAT: &str = "cpu.stat";
        let stat = KeptFile::open_below(self.dir.as_fd(), STAT, OFlags::RDONLY);
        let stat = stat.map_err(|errno| Fault::Read { file: STAT, errno })?.ok_or(Fault::Absent { file: STAT })?;
        let mut buffer = [0; 1024];
        let used = parse::field(stat.read(&mut buffer)?, b"usage_usec").ok_or(stat.malformed("usage_usec"))?;
        let mut threads = 0;
        self.each_task(TaskList::Threads, &mut |_| {
            threads += 1;
            true
        })?;
        Ok(Activity { cpu: Duration::from_micros(used), threads })
    }
}

fn have<'f>(file: Option<&'f KeptFile>, name: &'static str) -> Result<&'f KeptFile, Fault> {
    file.ok_or(Fault::Absent { file: name })
}

fn number(file: &KeptFile) -> Result<Bytes, Fault> {
    let mut buffer = [0; 32];
    parse::u64_after_blanks(file.read(&mut buffer)?).map(Bytes).ok_or(file.malformed("number"))
}

fn limit(file: &KeptFile) -> Result<Bytes, Fault> {
    let mut buffer = [0; 32];
    parse::limit(file.read(&mut buffer)?).map(Bytes).ok_or(file.malformed("limit"))
}

/// The larger of `memory.low` and `memory.min` of the cgroup whose directory is open, counting only files that `is_trusted`;
/// `max` is the largest amount there is. Zero where it has none. Opens files: for a helper thread.
pub fn protection(dir: BorrowedFd<'_>, is_trusted: impl Fn(&Stat) -> bool) -> Bytes {
    let read = |name| {
        let file = KeptFile::open_below(dir, name, OFlags::RDONLY).ok()??;
        if is_trusted(&fstat(&file).ok()?) { limit(&file).ok() } else { None }
    };
    ["memory.low", "memory.min"].into_iter().filter_map(read).max().unwrap_or(Bytes::ZERO)
}

/// One list of tasks. False: `each` has said no.
fn each_pid(tasks: &KeptFile, each: &mut dyn FnMut(Pid) -> bool) -> Result<bool, Fault> {
    let mut buffer = [0; 4096];
    let mut offset = 0;
    loop {
        let piece = match tasks.read_piece(&mut buffer, offset) {
            // A threaded cgroup has no processes of its own: they are listed where its threads' domain begins, above
            // it.
            Err(Fault::Read { errno: Errno::OPNOTSUPP, .. }) => return Ok(true),
            piece => piece?,
        };
        // The kernel cuts between lines unless the buffer is shorter than one; take whole lines only.
        let Some(end) = piece.iter().rposition(|byte| *byte == b'\n') else { return Ok(true) };
        for line in parse::lines(&piece[..end]) {
            let number = parse::u64_after_blanks(line).and_then(|number| i32::try_from(number).ok());
            // Zero stands for a process of another pid namespace.
            let Some(pid) = number.and_then(Pid::from_raw) else { continue };
            if !each(pid) {
                return Ok(false);
            }
        }
        offset += end as u64 + 1;
    }
}

/// Names of the directories in `dir`, sorted.
pub fn children(dir: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if entry.file_type() == rustix::fs::FileType::Directory && name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Tree {
        dir: tempfile::TempDir,
    }

    impl Tree {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().expect("a temporary directory") }
        }

        /// A directory with the files of a cgroup, as plain files.
        fn cgroup(&self, path: &[u8], files: &[(&str, &str)]) {
            let dir = self.dir.path().join(file::path_of(path));
            fs::create_dir_all(&dir).expect("writable");
            for (name, text) in [
                ("cgroup.events", "populated 1\nfrozen 0\n"),
                ("cgroup.freeze", "0\n"),
                ("memory.current", "4096\n"),
                ("memory.low", "0\n"),
                ("memory.min", "0\n"),
            ]
            .iter()
            .chain(files)
            {
                fs::write(dir.join(name), text).expect("writable");
            }
        }

        fn open(&self, path: &[u8]) -> Option<Handle> {
            let root = Root::open(self.dir.path()).expect("it is there");
            Handle::open(&root, path).expect("no other failure than absence")
        }
    }

    #[test]
    fn names_made_to_hurt_are_names() {
        let tree = Tree::new();
        for path in [
            &b"system.slice/dev-disk-by\\x2dlabel.swap"[..],
            b"user.slice/new\nline",
            b"a/\xff\xfe\x80",
            b"a/ memory.current",
            b"a/*",
            b"a/...",
        ] {
            tree.cgroup(path, &[("memory.current", "8192\n")]);
            let handle = tree.open(path).expect("it is there");
            assert_eq!(handle.usage(), Ok(Bytes(8192)));
            assert_eq!(handle.path(), path);
        }
    }

    #[test]
    fn nothing_outside_the_tree_is_opened() {
        let tree = Tree::new();
        tree.cgroup(b"inside/a", &[]);
        std::os::unix::fs::symlink(tree.dir.path().join("inside"), tree.dir.path().join("link")).expect("writable");
        let root = Root::open(&tree.dir.path().join("inside")).expect("it is there");
        for path in [&b""[..], b"/", b"..", b"../inside/a", b"a/..", b"./a"] {
            assert!(Handle::open(&root, path).is_err(), "{}", path.escape_ascii());
        }
        let root = Root::open(tree.dir.path()).expect("it is there");
        assert!(Handle::open(&root, b"link/a").is_err());
        assert!(Handle::open(&root, b"none").expect("absence is no error").is_none());
    }

    #[test]
    fn figures_come_out_of_their_files() {
        let tree = Tree::new();
        tree.cgroup(
            b"w",
            &[
                ("memory.low", "1048576\n"),
                ("memory.min", "2097152\n"),
                ("memory.max", "max\n"),
                ("memory.stat", "anon 1\nfile 2\ninactive_file 12288\nactive_file 4096\nslab_reclaimable 512\n"),
                ("memory.events", "low 0\nhigh 0\nmax 4\noom 2\noom_kill 1\n"),
                ("cgroup.events", "populated 0\nfrozen 1\n"),
            ],
        );
        let handle = tree.open(b"w").expect("it is there");
        assert_eq!(protection(handle.dir.as_fd(), |_| true), Bytes::mib(2));
        assert_eq!(protection(handle.dir.as_fd(), |_| false), Bytes::ZERO);
        assert_eq!(handle.descriptors(), 4, "the directory, memory.current, cgroup.events, cgroup.freeze");
        assert_eq!(handle.max(), Ok(None));
        assert_eq!(handle.inactive_file(), Ok(Bytes(12_288)));
        assert_eq!(handle.reclaimable(), Ok(Bytes(12_288 + 4096 + 512)));
        assert_eq!(handle.events(), Ok(Events { populated: false, frozen: true }));
        assert_eq!(handle.kill(), Err(Fault::Absent { file: "cgroup.kill" }));
    }

    #[test]
    fn what_is_written_arrives_as_text() {
        let tree = Tree::new();
        tree.cgroup(b"w", &[("cgroup.kill", ""), ("memory.reclaim", "")]);
        let handle = tree.open(b"w").expect("it is there");
        let text = |name: &str| fs::read_to_string(tree.dir.path().join("w").join(name)).expect("readable");
        handle.freeze(true).expect("writable");
        assert_eq!(handle.freeze_asked(), Ok(true));
        handle.freeze(false).expect("writable");
        assert_eq!(text("cgroup.freeze"), "0\n");
        handle.kill().expect("writable");
        assert_eq!(text("cgroup.kill"), "1");
        for (amount, written) in [(0, "0"), (1_048_576, "1048576"), (u64::MAX, "18446744073709551615")] {
            handle.reclaim(Bytes(amount)).expect("writable");
            assert_eq!(text("memory.reclaim"), written);
        }
    }

    #[test]
    fn processes_are_found_at_any_depth() {
        let tree = Tree::new();
        let many = (1..=3000).map(|pid| pid.to_string()).collect::<Vec<_>>().join("\n") + "\n";
        tree.cgroup(b"w", &[("cgroup.procs", &many)]);
        tree.cgroup(b"w/a/b", &[("cgroup.procs", "4001\n0\n4002\n")]);
        let handle = tree.open(b"w").expect("it is there");
        let mut found = Vec::new();
        let mut take = |pid: Pid| {
            found.push(pid.as_raw_pid());
            true
        };
        handle.each_task(TaskList::Processes, &mut take).expect("readable");
        assert_eq!(found, (1..=3000).chain([4001, 4002]).collect::<Vec<_>>());
        let mut seen = 0;
        let mut until = |_| {
            seen += 1;
            seen < 7
        };
        handle.each_task(TaskList::Processes, &mut until).expect("readable");
        assert_eq!(seen, 7);
        tree.cgroup(b"d", &[]);
        let deep = b"d/".repeat(300);
        tree.cgroup(&deep, &[("cgroup.threads", "5\n")]);
        let mut found = Vec::new();
        let mut take = |pid: Pid| {
            found.push(pid.as_raw_pid());
            true
        };
        tree.open(b"d").expect("it is there").each_task(TaskList::Threads, &mut take).expect("readable");
        assert_eq!(found, [5]);
    }

    #[test]
    fn activity_is_cpu_time_and_threads_of_all_below() {
        let tree = Tree::new();
        tree.cgroup(b"w", &[("cpu.stat", "usage_usec 1500\nuser_usec 500\n"), ("cgroup.threads", "7\n8\n")]);
        tree.cgroup(b"w/a", &[("cgroup.threads", "9\n")]);
        let handle = tree.open(b"w").expect("it is there");
        assert_eq!(handle.activity(), Ok(Activity { cpu: Duration::from_micros(1500), threads: 3 }));
        let without = tree.open(b"w/a").expect("it is there");
        assert_eq!(without.activity(), Err(Fault::Absent { file: "cpu.stat" }));
    }

    #[test]
    fn processes_are_opened_as_many_as_asked() {
        let tree = Tree::new();
        let me = rustix::process::getpid();
        let parent = rustix::process::getppid().expect("a test has a parent");
        let text = format!("{}\n{}\n", me.as_raw_pid(), parent.as_raw_pid());
        tree.cgroup(b"w", &[("cgroup.procs", &text)]);
        let handle = tree.open(b"w").expect("it is there");
        let (none, one) = (HashSet::new(), HashSet::from([me]));
        for (most, except, opened, more) in
            [(0, &none, 0, true), (1, &none, 1, true), (2, &none, 2, false), (1, &one, 1, false)]
        {
            let processes = handle.open_processes(TaskList::Processes, most, except).expect("readable");
            assert_eq!((processes.processes.len(), processes.more), (opened, more));
        }
    }
}
