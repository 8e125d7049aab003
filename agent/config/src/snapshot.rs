//! What was read, kept so that another process reads the same even if the files have changed.

use crate::files::{Disk, Files};
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

/// Reads from the disk and keeps what it read.
#[derive(Default)]
pub(crate) struct Keeping(pub(crate) RefCell<Snapshot>);

impl Files for Keeping {
    fn read(&self, path: &Path) -> io::Result<String> {
        let found = Disk.read(path);
        let kept = found.as_ref().map(Clone::clone).map_err(ToString::to_string);
        self.0.borrow_mut().files.insert(name(path), kept);
        found
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let found = Disk.list(directory);
        let names = |paths: &Vec<PathBuf>| paths.iter().map(|path| name(path)).collect();
        let kept = found.as_ref().map(names).map_err(ToString::to_string);
        self.0.borrow_mut().directories.insert(name(directory), kept);
        found
    }
}
