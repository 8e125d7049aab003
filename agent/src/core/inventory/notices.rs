//! Which workloads the kernel reports to have exceeded a limit: inotify(7) on their `memory.events`, which says so also for
//! the cgroups below (Documentation/admin-guide/cgroup-v2.rst). Nothing polls, on any kernel, with or without eBPF.
//!
//! A watch ends with its first event (`IN_ONESHOT`): one that is at its limit all the time wakes this thread once, and is
//! then looked at at a pace of its own until it is quiet and is watched anew.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use plimsoll_inventory::SLOTS;
use plimsoll_node::cgroup::{Handle, Root};
use plimsoll_units::CgroupId;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

/// Watches at a time: one for each workload that there is a row for. Each keeps an inode of the kernel's, some 1 KiB, and counts
/// against `fs.inotify.max_user_watches` of root. Workloads beyond that are noticed when figures are read.
pub(super) const MOST_WATCHES: usize = SLOTS;
/// What one read takes of events.
const BUFFER: usize = 4096;

/// The watches.
#[derive(Debug)]
pub(super) struct Notices {
    inotify: Result<OwnedFd, Errno>,
    watches: HashMap<CgroupId, i32>,
    cgroups: HashMap<i32, CgroupId>,
    /// Why one could not be watched.
    refused: Option<Errno>,
}

impl Notices {
    pub(super) fn new() -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        Self { inotify, watches: HashMap::new(), cgroups: HashMap::new(), refused: None }
    }

    /// Readable when a workload exceeded a limit. Absent where the kernel does not report that.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().ok().map(OwnedFd::as_fd)
    }

    /// Why some workloads are noticed late, if so.
    pub(super) fn trouble(&self) -> Option<Errno> {
        self.inotify.as_ref().err().copied().or(self.refused)
    }

    /// Has the next time reported that it exceeds a limit. False: that is not possible.
    pub(super) fn watch(&mut self, root: &Root, workload: &Handle) -> bool {
        let Ok(inotify) = &self.inotify else { return false };
        if self.watches.contains_key(&workload.id()) {
            return true;
        }
        if self.watches.len() >= MOST_WATCHES {
            return false;
        }
        let file = root.path().join(OsStr::from_bytes(workload.path())).join("memory.events");
        let how = WatchFlags::MODIFY | WatchFlags::ONESHOT | WatchFlags::DONT_FOLLOW;
        match inotify::add_watch(inotify, &file, how) {
            Ok(watch) => {
                self.watches.insert(workload.id(), watch);
                self.cgroups.insert(watch, workload.id());
                self.refused = None;
                true
            }
            // It is gone, which the inventory finds.
            Err(Errno::NOENT | Errno::NOTDIR) => false,
            Err(errno) => {
                self.refused = Some(errno);
                false
            }
        }
    }

    /// Whether the next time that a workload exceeds a limit is reported.
    pub(super) fn is_watched(&self, id: CgroupId) -> bool {
        self.watches.contains_key(&id)
    }

    /// Ends the watches of what is no workload any more: the kernel would keep their inodes.
    pub(super) fn retain(&mut self, is_workload: impl Fn(CgroupId) -> bool) {
        for (id, watch) in self.watches.extract_if(|id, _| !is_workload(*id)) {
            // A cgroup that was made at the path of another in the meantime may have its watch.
            if self.cgroups.get(&watch) == Some(&id) {
                self.cgroups.remove(&watch);
                if let Ok(inotify) = &self.inotify {
                    let _ = inotify::remove_watch(inotify, watch);
                }
            }
        }
    }

    /// The workloads that exceeded a limit since they were watched. They are watched no more.
    pub(super) fn take(&mut self) -> Vec<CgroupId> {
        let Ok(inotify) = &self.inotify else { return Vec::new() };
        let mut buffer = [const { MaybeUninit::uninit() }; BUFFER];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        let mut noticed = Vec::new();
        while let Ok(event) = reader.next() {
            // The one that says that the watch has ended follows the first, or comes alone where the file is gone.
            if let Some(id) = self.cgroups.remove(&event.wd())
                && self.watches.get(&id) == Some(&event.wd())
            {
                self.watches.remove(&id);
                noticed.push(id);
            }
        }
        noticed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A tree of plain files, of which inotify reports writes just as the kernel has it report those of a cgroup.
    fn workload(root: &tempfile::TempDir, name: &str) -> (Root, Handle) {
        let dir = root.path().join(name);
        fs::create_dir_all(&dir).expect("writable");
        for (file, text) in
            [("cgroup.events", "populated 1\n"), ("memory.current", "0\n"), ("memory.events", "high 0\n")]
        {
            fs::write(dir.join(file), text).expect("writable");
        }
        let opened = Root::open(root.path()).expect("it is there");
        let handle = Handle::open(&opened, name.as_bytes()).expect("readable").expect("it is there");
        (opened, handle)
    }

    #[test]
    fn an_excess_is_reported_once_until_it_is_watched_again() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (root, handle) = workload(&dir, "a");
        let exceed = || fs::write(dir.path().join("a/memory.events"), "high 1\n").expect("writable");
        let mut notices = Notices::new();
        exceed();
        assert!(notices.watch(&root, &handle) && notices.watch(&root, &handle));
        assert_eq!(notices.take(), [], "what was before is not reported");
        exceed();
        exceed();
        assert!(notices.is_watched(handle.id()));
        assert_eq!(notices.take(), [handle.id()]);
        assert!(!notices.is_watched(handle.id()));
        exceed();
        assert_eq!(notices.take(), []);
        assert!(notices.watch(&root, &handle));
        exceed();
        assert_eq!(notices.take(), [handle.id()]);
        assert_eq!(notices.trouble(), None);
    }

    #[test]
    fn what_is_no_workload_any_more_is_not_watched_and_what_is_gone_is_no_trouble() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let ((root, kept), (_, left), (_, gone)) =
            (workload(&dir, "kept"), workload(&dir, "left"), workload(&dir, "gone"));
        fs::remove_dir_all(dir.path().join("gone")).expect("ours");
        let mut notices = Notices::new();
        assert_eq!([&kept, &left, &gone].map(|handle| notices.watch(&root, handle)), [true, true, false]);
        notices.retain(|id| id == kept.id());
        for name in ["kept", "left"] {
            fs::write(dir.path().join(name).join("memory.events"), "high 1\n").expect("writable");
        }
        assert_eq!(notices.take(), [kept.id()]);
        assert!(notices.watches.is_empty() && notices.cgroups.is_empty() && notices.trouble().is_none());
    }

    #[test]
    fn the_number_of_watches_is_bounded() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (root, handle) = workload(&dir, "a");
        let mut notices = Notices::new();
        notices.watches.extend((0..).map(|number| (CgroupId(u64::MAX - number), 0)).take(MOST_WATCHES));
        assert!(!notices.watch(&root, &handle) && notices.trouble().is_none());
    }
}
