//! What the tests of this crate share: a cgroup made of plain files, and a journal in memory.

use crate::journal::{Action, Intent, Journal, JournalFull, Step};
use core::time::Duration;
use plimsoll_node::cgroup::{Handle, Root};
use plimsoll_units::{CgroupId, MonotonicNs};
use std::fs;
use std::sync::Arc;

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

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).expect("writable");
    }
}

/// Remembers every step, and what is not cleared yet.
pub(crate) struct Book {
    room: usize,
    written: Vec<Step>,
    open: Vec<(CgroupId, Action)>,
}

impl Default for Book {
    fn default() -> Self {
        Self::with_room(8)
    }
}

impl Book {
    pub(crate) fn with_room(room: usize) -> Self {
        Self { room, written: Vec::new(), open: Vec::new() }
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.written
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
        Ok(())
    }

    fn clear(&mut self, cgroup: CgroupId, action: Action) {
        self.open.retain(|entry| *entry != (cgroup, action));
    }
}
