//! What was read, kept so that another process reads the same even if the files have changed.

use crate::files::{Files, Machine};
use core::cell::RefCell;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The contents of files and directories, and what could not be read with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    files: BTreeMap<String, Result<String, String>>,
    directories: BTreeMap<String, Result<Vec<String>, String>>,
}

impl Snapshot {
    /// Whether the same was read, where a process in one has the number `own`, and in the other the number `others`.
    #[must_use]
    pub fn is_the_same_of(&self, own: Option<u32>, other: &Self, others: Option<u32>) -> bool {
        self.without(own) == other.without(others)
    }

    /// Without the number of a process in names.
    fn without(&self, process: Option<u32>) -> Self {
        let Some(process) = process else { return self.clone() };
        let prefix = format!("/proc/{process}/");
        let files = self.files.iter().map(|(name, text)| (name.replacen(&prefix, "/proc/-/", 1), text.clone()));
        Self { files: files.collect(), directories: self.directories.clone() }
    }
}

/// Paths are printed as text everywhere; bytes that are no text are replaced here in the same way.
fn name(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl Files for Snapshot {
    fn read(&self, path: &Path) -> io::Result<String> {
        let found = self.files.get(&name(path)).ok_or(io::ErrorKind::NotFound)?;
        found.clone().map_err(io::Error::other)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let found = self.directories.get(&name(directory)).ok_or(io::ErrorKind::NotFound)?;
        found.clone().map(|names| names.into_iter().map(PathBuf::from).collect()).map_err(io::Error::other)
    }
}

/// Reads from a place and keeps what it read.
pub(crate) struct Keeping<F> {
    from: F,
    kept: RefCell<Snapshot>,
}

impl<F> Keeping<F> {
    pub(crate) const fn new(from: F) -> Self {
        Self { from, kept: RefCell::new(Snapshot { files: BTreeMap::new(), directories: BTreeMap::new() }) }
    }

    pub(crate) fn into_kept(self) -> Snapshot {
        self.kept.into_inner()
    }
}

impl<F: Files> Files for Keeping<F> {
    fn read(&self, path: &Path) -> io::Result<String> {
        let found = self.from.read(path);
        let kept = found.as_ref().map(Clone::clone).map_err(ToString::to_string);
        self.kept.borrow_mut().files.insert(name(path), kept);
        found
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let found = self.from.list(directory);
        let names = |paths: &Vec<PathBuf>| paths.iter().map(|path| name(path)).collect();
        let kept = found.as_ref().map(names).map_err(ToString::to_string);
        self.kept.borrow_mut().directories.insert(name(directory), kept);
        found
    }
}

/// Plimsoll's own file as it was kept, and a kubelet's anew.
pub(crate) struct Anew<'a> {
    pub(crate) own: Option<&'a Path>,
    pub(crate) kept: &'a Snapshot,
}

impl Files for Anew<'_> {
    fn read(&self, path: &Path) -> io::Result<String> {
        if self.own == Some(path) { self.kept.read(path) } else { Machine.read(path) }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        Machine.list(directory)
    }
}
