//! Folders for as long as something runs.

use std::fs::{self, File};
use std::path::Path;

use anyhow::Context;
use tempfile::TempDir;

use crate::{lock, run, vm};

/// The file in such a folder that is locked while it is used.
const IN_USE: &str = "in-use";

/// A folder below target/vm. It is removed when this is dropped, or, where the command was killed before, by the next one
/// that makes such a folder.
pub(crate) struct Scratch {
    folder: TempDir,
    _in_use: File,
}

impl Scratch {
    /// One of those whose names begin with this prefix.
    pub(crate) fn new(prefix: &str) -> anyhow::Result<Self> {
        Self::below(&run::root().join(vm::PLACE), prefix)
    }

    fn below(place: &Path, prefix: &str) -> anyhow::Result<Self> {
        // A folder of another command has its locked file once this is held.
        let alone = lock::file(&place.join(prefix))?;
        alone.lock().with_context(|| format!("cannot lock {}", place.display()))?;
        remove_unused(place, prefix)?;
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(place)?;
        let in_use = File::create(folder.path().join(IN_USE))?;
        in_use.lock().with_context(|| format!("cannot lock {}", folder.path().display()))?;
        Ok(Self { folder, _in_use: in_use })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes those that no command uses any more.
fn remove_unused(place: &Path, prefix: &str) -> anyhow::Result<()> {
    for entry in fs::read_dir(place).with_context(|| format!("cannot list {}", place.display()))? {
        let entry = entry?;
        let is_one = entry.file_name().to_string_lossy().starts_with(prefix);
        // One without the file was made by other sources, and may be in use.
        let in_use = File::open(entry.path().join(IN_USE)).ok().filter(|_| is_one);
        if in_use.is_some_and(|file| file.try_lock().is_ok()) {
            // Where it cannot be removed, or its command removes it now, nothing here depends on that.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_command_left_is_removed_and_what_is_in_use_is_not() {
        let place = tempfile::tempdir().expect("a directory");
        let left = |name: &str, has_file: bool| {
            let folder = place.path().join(name);
            fs::create_dir(&folder).expect("made");
            if has_file {
                fs::write(folder.join(IN_USE), "").expect("written");
            }
            folder
        };
        let (killed, other) = (left("machine-killed", true), left("demo-killed", true));
        let of_other_sources = left("machine-old", false);
        let one = Scratch::below(place.path(), "machine-").expect("made");
        let two = Scratch::below(place.path(), "machine-").expect("made");
        assert!(!killed.exists() && other.exists() && of_other_sources.exists());
        assert!(one.path().is_dir() && two.path().is_dir());
        let paths = [&one, &two].map(|it| it.path().to_owned());
        drop((one, two));
        assert!(!paths.iter().any(|path| path.exists()));
    }
}
