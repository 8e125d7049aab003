//! Opening a directory by a name that an attacker may have made.
//!
//! A name is taken first (`O_PATH`), which follows no link, mounts nothing, and asks no file system but the one that the name
//! is in; what it stands for is compared; and that very directory is opened to be read, whatever the name stands for by
//! then. `openat2(2)` would do it at once, but systemd refuses that call to a service with `RestrictSUIDSGID=`, as the
//! shipped unit has it: its filter does not see which mode a file would be made with (`seccomp_restrict_sxid`,
//! src/shared/seccomp-util.c).

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::path::Arg;

/// Takes what a name in a directory stands for, a link itself. The name is a single component.
pub(crate) fn take(directory: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a directory that was taken, to be read.
///
/// # Errors
/// `ENOTDIR` for what is none.
pub(crate) fn open(taken: impl AsFd) -> Result<OwnedFd, Errno> {
    openat(taken, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Dir, FileType, mknodat};
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_was_taken_is_opened_whatever_the_name_stands_for_then() {
        let place = tempfile::tempdir().expect("a directory");
        let at = |name: &str| place.path().join(name);
        for directory in ["first", "first/within", "secret"] {
            fs::create_dir(at(directory)).expect("a directory");
        }
        let base = fs::File::open(place.path()).expect("it is there");
        let taken = take(&base, "first").expect("it is there");
        fs::rename(at("first"), at("moved")).expect("renamed");
        symlink(at("secret"), at("first")).expect("a link");
        let names = Dir::new(open(&taken).expect("a directory")).expect("it can be read");
        let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name().to_owned()).collect();
        assert!(names.contains(&c"within".to_owned()), "{names:?}");
        let link = take(&base, "first").expect("a link is taken, and not followed");
        assert_eq!(open(&link).err(), Some(Errno::NOTDIR));
    }

    #[test]
    fn what_is_no_directory_is_taken_without_opening_it_and_never_opened() {
        let place = tempfile::tempdir().expect("a directory");
        // Opened to be read it would wait for a writer.
        mknodat(CWD, place.path().join("fifo"), FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
        let base = fs::File::open(place.path()).expect("it is there");
        let fifo = take(&base, "fifo").expect("it is there");
        assert_eq!(open(&fifo).err(), Some(Errno::NOTDIR));
        assert_eq!(take(&base, "missing").err(), Some(Errno::NOENT));
    }
}
