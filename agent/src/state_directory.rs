//! Where the run record and what belongs to it are kept: in `machine.stateDirectory`, or in memory where that can only be
//! read. Without them nothing that was frozen could be undone, and nothing would be evicted.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use plimsoll_report::text::printable;
use rustix::fs::{FsWord, StatVfsMountFlags, statfs, statvfs};
use rustix::process::geteuid;
use std::os::unix::fs::MetadataExt as _;

/// The types of file systems that are in memory alone (linux/magic.h): tmpfs and ramfs.
pub(crate) const IN_MEMORY: [FsWord; 2] = [0x0102_1994, 0x8584_58f6];
/// Where it is kept instead: the first that is in memory and can be written to. The next agent finds it there, and so does
/// `undo`.
pub(crate) const FALLBACKS: [&str; 2] = ["/run/plimsoll", "/dev/shm/plimsoll"];
/// Access for the group and for others.
const OTHERS_WRITE: u32 = 0o022;

/// The directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateDirectory {
    /// Where state is kept.
    pub(crate) path: PathBuf,
    /// The configured one, where it can only be read and `path` is another.
    pub(crate) read_only: Option<PathBuf>,
}

impl StateDirectory {
    /// Finds it. Makes nothing.
    pub(crate) fn find(configured: &Path) -> Self {
        Self::find_among(configured, &FALLBACKS.map(Path::new), is_read_only)
    }

    fn find_among(configured: &Path, fallbacks: &[&Path], is_read_only: impl Fn(&Path) -> bool) -> Self {
        let usable = |path: &&&Path| !is_read_only(path) && is_in_memory(path) && is_own(path).unwrap_or(true);
        let other = is_read_only(configured).then(|| fallbacks.iter().find(usable)).flatten();
        match other {
            Some(path) => Self { path: path.into(), read_only: Some(configured.to_owned()) },
            // Where nothing else can be had, the error says why.
            None => Self { path: configured.to_owned(), read_only: None },
        }
    }

    /// Makes the one in memory where that is used, and checks that no other user can write there: `/dev/shm` is every
    /// user's.
    ///
    /// # Errors
    /// Where it cannot be made, or is another user's.
    pub(crate) fn make(&self) -> anyhow::Result<()> {
        if self.read_only.is_none() {
            return Ok(());
        }
        let path = self.path.display();
        std::fs::create_dir_all(&self.path).with_context(|| format!("cannot make the directory {path}"))?;
        ensure!(is_own(&self.path).unwrap_or(false), "{path} is no directory that this user alone may write to");
        Ok(())
    }

    /// What is wrong with it, if anything, and what that costs.
    pub(crate) fn trouble(&self) -> Option<String> {
        let configured = self.read_only.as_ref()?.display();
        let text = format!(
            "machine.stateDirectory, {configured}, can only be read: what is frozen and what is being killed is written \
             down in memory, in {}",
            self.path.display()
        );
        Some(printable(&text))
    }
}

/// Whether its file system, or its mount, can only be read. One that is not there yet would be made in the next one above.
fn is_read_only(path: &Path) -> bool {
    statvfs(there(path)).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY))
}

fn is_in_memory(path: &Path) -> bool {
    statfs(there(path)).is_ok_and(|fs| IN_MEMORY.contains(&fs.f_type))
}

fn there(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(path)
}

/// Whether it is a directory of this user's and no link, which no other user may write to. `None`: there is nothing.
fn is_own(path: &Path) -> Option<bool> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some(found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & OTHERS_WRITE == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    /// A directory that is in memory on every machine.
    fn in_memory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
    }

    #[test]
    fn what_can_be_written_to_is_kept_also_where_it_is_not_there_yet() {
        let place = in_memory();
        for path in [place.path().to_owned(), place.path().join("not/yet")] {
            let found = StateDirectory::find_among(&path, &[Path::new("/dev/shm")], is_read_only);
            assert_eq!(found, StateDirectory { path, read_only: None });
            assert_eq!(found.trouble(), None);
            found.make().expect("nothing is made");
        }
        assert!(!place.path().join("not").exists());
    }

    #[test]
    fn a_directory_of_another_users_or_a_link_is_not_used_for_it() {
        let place = in_memory();
        let at = |name: &str| place.path().join(name);
        for name in ["own", "open", "target"] {
            std::fs::create_dir(at(name)).expect("a directory");
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(0o700)).expect("it is ours");
        }
        std::fs::set_permissions(at("open"), std::fs::Permissions::from_mode(0o777)).expect("it is ours");
        symlink(at("target"), at("link")).expect("a link");
        for (name, is_used) in [("own", Some(true)), ("open", Some(false)), ("link", Some(false)), ("none", None)] {
            assert_eq!(is_own(&at(name)), is_used, "{name}");
            let made = StateDirectory { path: at(name), read_only: Some("/configured".into()) }.make();
            assert_eq!(made.is_ok(), is_used.unwrap_or(true), "{name}: {made:?}");
        }
        assert!(at("none").is_dir());
    }

    #[test]
    fn the_first_fallback_in_memory_that_is_no_other_users_takes_its_place_and_that_is_said() {
        let place = in_memory();
        let open = place.path().join("open");
        std::fs::create_dir(&open).expect("a directory");
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
        let [configured, read_only, made] = ["configured", "read-only", "made"].map(|name| place.path().join(name));
        let only_read = |path: &Path| path == configured || path == read_only;
        let fallbacks = [&read_only, Path::new("/proc"), &open, &made];
        let found = StateDirectory::find_among(&configured, &fallbacks, only_read);
        assert_eq!(found, StateDirectory { path: made.clone(), read_only: Some(configured.clone()) });
        let trouble = found.trouble().expect("it is said");
        assert!(trouble.contains("configured, can only be read") && trouble.ends_with("/made"), "{trouble}");
        let none = StateDirectory::find_among(&configured, &fallbacks[..3], only_read);
        assert_eq!(none, StateDirectory { path: configured, read_only: None });
    }
}
