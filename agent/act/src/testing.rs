//! What the tests of this crate share: a cgroup made of plain files, journals in memory, and a worker whose writes wait.

use crate::journal::{Action, Intent, Journal, JournalFull, Step, StopJournal, StoppedProcess};
use crate::worker::Worker;
use core::time::Duration;
use plimsoll_node::cgroup::{Handle, Purpose, Root, Spares};
use plimsoll_node::process::{Stat, resume};
use plimsoll_units::{CgroupId, MonotonicNs};
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

pub(crate) fn ms(at: u64) -> MonotonicNs {
    MonotonicNs(0).after(Duration::from_millis(at))
}

pub(crate) struct Fake {
    dir: tempfile::TempDir,
    pub(crate) handle: Arc<Handle>,
}

impl Fake {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_files(name, &[("cgroup.kill", "")])
    }

    pub(crate) fn with_files(name: &str, files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let below = dir.path().join(name);
        fs::create_dir(&below).expect("writable");
        for (file, text) in [
            ("cgroup.events", "populated 1\nfrozen 0\n"),
            ("cgroup.procs", ""),
            ("cgroup.freeze", "0\n"),
            ("memory.current", "104857600\n"),
        ]
        .iter()
        .chain(files)
        {
            fs::write(below.join(file), text).expect("writable");
        }
        Self::of(dir, name)
    }

    /// With a part, beside a cgroup that is spared, in which something lives.
    pub(crate) fn with_part(name: &str) -> Self {
        let made = Self::new(name);
        for inner in ["part", "spared"] {
            made.make(inner);
            made.fill(inner);
        }
        let root = Root::open(made.dir.path()).expect("it is there");
        let spares = Some((|name| name == b"spared") as Spares);
        let purpose = Purpose { is_written: true, counts_tasks: false, spares };
        let handle = Handle::open_for(&root, name.as_bytes(), purpose).expect("readable").expect("it is there");
        Self { handle: Arc::new(handle), ..made }
    }

    /// Gives a cgroup below it files.
    pub(crate) fn fill(&self, inner: &str) {
        for (file, text) in [
            ("cgroup.events", "populated 1\nfrozen 0\n"),
            ("cgroup.procs", ""),
            ("cgroup.threads", ""),
            ("cgroup.freeze", "0\n"),
            ("cgroup.kill", ""),
        ] {
            self.write(&format!("{inner}/{file}"), text);
        }
    }

    /// Whose file of this name takes no write.
    pub(crate) fn that_refuses(name: &str, file: &str) -> Self {
        let made = Self::new(name);
        let path = made.file(file);
        fs::remove_file(&path).expect("it is there");
        symlink("/dev/full", &path).expect("writable");
        Self::of(made.dir, name)
    }

    fn of(dir: tempfile::TempDir, name: &str) -> Self {
        let root = Root::open(dir.path()).expect("it is there");
        let handle = Handle::open(&root, name.as_bytes()).expect("readable").expect("it is there");
        Self { dir, handle: Arc::new(handle) }
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        let below = std::str::from_utf8(self.handle.path()).expect("tests name their cgroups plainly");
        self.dir.path().join(below).join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).expect("readable").trim_end().to_owned()
    }

    /// Makes a cgroup below it, without any file.
    pub(crate) fn make(&self, name: &str) {
        fs::create_dir(self.file(name)).expect("writable");
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).expect("writable");
    }
}

/// Remembers every step, and what is not cleared yet.
pub(crate) struct Book {
    room: usize,
    written: Vec<Step>,
    by_parts: Vec<bool>,
    open: Vec<(CgroupId, Action)>,
}

impl Default for Book {
    fn default() -> Self {
        Self::with_room(8)
    }
}

impl Book {
    pub(crate) fn with_room(room: usize) -> Self {
        Self { room, written: Vec::new(), by_parts: Vec::new(), open: Vec::new() }
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.written
    }

    /// Of each step.
    pub(crate) fn by_parts(&self) -> &[bool] {
        &self.by_parts
    }

    pub(crate) fn is_clear(&self) -> bool {
        self.open.is_empty()
    }
}

impl Journal for Book {
    fn write(&mut self, intent: Intent<'_>) -> Result<(), JournalFull> {
        let key = (intent.cgroup, intent.step.action());
        if !self.open.contains(&key) {
            if self.open.len() == self.room {
                return Err(JournalFull);
            }
            self.open.push(key);
        }
        self.written.push(intent.step);
        self.by_parts.push(intent.by_parts);
        Ok(())
    }

    fn clear(&mut self, cgroup: CgroupId, action: Action) {
        self.open.retain(|entry| *entry != (cgroup, action));
    }
}

/// Stopped processes, in memory, with room for two.
#[derive(Debug, Default)]
pub(crate) struct StopList(Mutex<Vec<StoppedProcess>>);

impl StopList {
    pub(crate) fn count(&self) -> usize {
        self.0.lock().expect("no test panics with it").len()
    }
}

impl StopJournal for StopList {
    fn write(&self, process: StoppedProcess) -> Result<(), JournalFull> {
        let mut all = self.0.lock().expect("no test panics with it");
        assert!(Stat::read(process.pid).is_some_and(|stat| !stat.is_stopped), "it is written down before");
        if all.len() == 2 {
            return Err(JournalFull);
        }
        all.push(process);
        Ok(())
    }

    fn continue_in(&self, cgroup: CgroupId) {
        for process in self.0.lock().expect("no test panics with it").drain(..) {
            assert_eq!((process.cgroup, resume(process.pid, process.start_ticks)), (cgroup, Ok(true)));
        }
    }
}

/// A worker that does no job until [`Self::end_wait`], as where another writer has the lock.
pub(crate) struct WriterThatWaits(Sender<()>);

impl WriterThatWaits {
    pub(crate) fn start() -> (Worker, Self) {
        let (release, waits) = channel();
        // An error is the end of the test.
        let wait = move || waits.recv().unwrap_or_default();
        (Worker::start_with("write", 8, wait).expect("a thread starts"), Self(release))
    }

    pub(crate) fn end_wait(&self) {
        self.0.send(()).expect("it waits");
    }
}
