//! What is in a store's directory, for a process that only looks: nothing is locked, made or changed.

use super::content::{Content, Kind};
use super::disk::{NAMES, OpenError, is_trusted, read};
use super::image;
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;
use std::path::Path;

/// What is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The version that wrote the newest file that can be read; absent where there is none.
    pub version: Option<u32>,
    /// Of how many pods it has facts.
    pub pods: usize,
    /// How many evictions are in it.
    pub evictions: usize,
    /// What is wrong, in sentences.
    pub problems: Vec<String>,
}

/// Looks into the directory of a store that belongs to this user. `None`: it is not there.
///
/// # Errors
/// Where it cannot be opened, or another user could have written into it.
pub fn look(directory: &Path, user: u32) -> Result<Option<Look>, OpenError> {
    let fail = |what| move |source| OpenError::Directory { what, path: directory.to_owned(), source };
    let fd = match open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened.map_err(fail("open"))?,
    };
    let stat = fstat(&fd).map_err(fail("stat"))?;
    if !is_trusted(&stat, user) {
        let (owner, mode) = (stat.st_uid, stat.st_mode & 0o7777);
        return Err(OpenError::Untrusted { path: directory.to_owned(), owner, mode, user });
    }
    let (mut look, mut newest) = (Look::default(), None);
    for (slot, name) in NAMES.into_iter().enumerate() {
        let bytes = match read(&fd, slot, user) {
            Ok(bytes) => bytes.unwrap_or_default(),
            Err(why) => {
                look.problems.push(format!("{name} is not used: {why}"));
                continue;
            }
        };
        match image::decode(&bytes) {
            Err(why) => look.problems.push(format!("{name} is not used: {why}")),
            Ok(Some(image)) if newest.is_none_or(|sequence| sequence < image.sequence) => {
                newest = Some(image.sequence);
                // What a reboot leaves of it does not matter to how much there is.
                let (content, read) = Content::read(image.body, false);
                look.version = Some(image::version(&bytes));
                look.pods = content.entries(Kind::Facts).count();
                look.evictions = content.entries(Kind::Eviction).count();
                if let Some(version) = image.newer {
                    look.problems.push(format!("{name} is of version {version}, of which this program reads a part"));
                } else if let Some(why) = read.first_error {
                    look.problems.push(format!("{} entries of {name} are not read: {why}", read.skipped));
                }
            }
            Ok(_) => {}
        }
    }
    Ok(Some(look))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::Store;
    use plimsoll_node::boot::BootId;
    use plimsoll_units::MonotonicNs;
    use rustix::process::geteuid;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_newest_file_is_counted_while_another_process_has_it_and_nothing_changes() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (path, user) = (folder.path().join("journal"), geteuid().as_raw());
        assert_eq!(look(&path, user).expect("it can be looked for"), None);
        assert!(!path.exists(), "it is not made");
        let mut store = Store::open(&path, BootId([7; 16])).expect("it can be opened").store;
        assert_eq!(look(&path, user).expect("it is there"), Some(Look::default()));
        for (count, uid) in [(1, "a"), (2, "b")] {
            store.set_facts(uid.into(), "{}".into()).expect("room");
            store.commit(MonotonicNs(1));
            let found = look(&path, user).expect("it is there").expect("it is there");
            assert_eq!((found.version, found.pods, found.evictions, found.problems), (Some(2), count, 0, vec![]));
        }
        fs::write(path.join("state.1"), "garbage").expect("writable");
        let found = look(&path, user).expect("it is there").expect("it is there");
        assert_eq!((found.pods, found.problems.len()), (1, 1), "the older one holds");
        assert!(found.problems[0].starts_with("state.1 is not used: "), "{:?}", found.problems);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("it is ours");
        let error = look(&path, user).expect_err("others can write into it").to_string();
        assert!(error.contains("777"), "{error}");
    }

    #[test]
    fn what_a_newer_version_wrote_is_named() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let user = geteuid().as_raw();
        for (oldest_reader, version, says) in [(1, Some(9), "reads a part"), (9, None, "is not used")] {
            let bytes = image::encode_as([9, oldest_reader], BootId([7; 16]), 3, core::iter::empty());
            fs::write(folder.path().join("state.0"), bytes).expect("writable");
            let found = look(folder.path(), user).expect("it is there").expect("it is there");
            assert_eq!(found.version, version);
            assert!(matches!(&found.problems[..], [why] if why.contains(says)), "{:?}", found.problems);
        }
    }
}
