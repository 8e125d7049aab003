//! The way through a cgroup and all below it. The owner of a subtree chooses its shape, so neither the memory nor the
//! work for a step depends on that.

use super::Spares;
use super::tree::{DIRECTORY, id_of};
use plimsoll_units::{CgroupId, MonotonicNs};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, RawDir, openat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::mem::{MaybeUninit, take};
use std::os::unix::ffi::OsStrExt as _;

/// How many levels below its beginning a walk goes, each of which it keeps open: a descriptor and [`PIECE`] bytes.
pub const DEPTH: usize = 256;
/// How much of a directory is read at a time, in bytes: the longest name takes 280.
const PIECE: usize = 1024;

/// How far a walk goes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// In so many cgroups.
    pub cgroups: usize,
    /// Until then.
    pub by: MonotonicNs,
}

impl Bound {
    /// None.
    pub const NONE: Self = Self { cgroups: usize::MAX, by: MonotonicNs(u64::MAX) };
}

/// A walk, depth first: it opens each cgroup by its name in the one above, which it keeps open meanwhile. It can be left
/// alone for any time between two steps. Opens files: for a helper thread.
#[derive(Debug)]
pub struct Walk {
    levels: Vec<Level>,
    is_new: bool,
    is_whole: bool,
    spares: Option<Spares>,
}

#[derive(Debug)]
struct Level {
    dir: OwnedFd,
    name: Vec<u8>,
    /// Names of cgroups in it that were read and not visited yet, each behind a slash.
    children: Vec<u8>,
}

impl Walk {
    /// Before its first step, which gives the cgroup itself whose directory is open.
    pub fn begin(top: BorrowedFd<'_>) -> Result<Self, Errno> {
        let dir = openat(top, ".", DIRECTORY, Mode::empty())?;
        let top = Level { dir, name: Vec::new(), children: Vec::new() };
        Ok(Self { levels: vec![top], is_new: true, is_whole: true, spares: None })
    }

    /// The same without what is spared directly in that cgroup.
    pub(super) fn sparing(self, spares: Option<Spares>) -> Self {
        Self { spares, ..self }
    }

    /// Goes on to the next cgroup and gives its directory; `None` at the end. What is removed meanwhile is passed over.
    pub fn advance(&mut self) -> Option<BorrowedFd<'_>> {
        if !take(&mut self.is_new) {
            self.step();
        }
        self.dir()
    }

    /// Where it is; `None` at the end.
    pub fn dir(&self) -> Option<BorrowedFd<'_>> {
        self.levels.last().map(|level| level.dir.as_fd())
    }

    /// The path from where it began to where it is.
    pub fn path(&self) -> Vec<u8> {
        let names: Vec<&[u8]> = self.levels.iter().skip(1).map(|level| level.name.as_slice()).collect();
        names.join(&b'/')
    }

    /// Whether nothing was left out so far: no level below [`DEPTH`], and no cgroup that could not be opened or read.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    fn step(&mut self) {
        while let Some(level) = self.levels.last_mut() {
            let name = match level.next_child() {
                Ok(Some(name)) if level.name.is_empty() && self.spares.is_some_and(|spares| spares(&name)) => continue,
                Ok(Some(name)) => name,
                end => {
                    // A directory that was removed has no children.
                    self.is_whole &= matches!(end, Ok(_) | Err(Errno::NOENT | Errno::NODEV));
                    self.levels.pop();
                    continue;
                }
            };
            if self.levels.len() > DEPTH {
                self.is_whole = false;
                self.levels.pop();
                continue;
            }
            match openat(&self.levels[self.levels.len() - 1].dir, OsStr::from_bytes(&name), DIRECTORY, Mode::empty()) {
                Ok(dir) => return self.levels.push(Level { dir, name, children: Vec::new() }),
                Err(Errno::NOENT | Errno::NODEV) => {}
                Err(_) => self.is_whole = false,
            }
        }
    }
}

impl Level {
    fn next_child(&mut self) -> Result<Option<Vec<u8>>, Errno> {
        while self.children.is_empty() {
            let mut buffer = [MaybeUninit::uninit(); PIECE];
            let mut entries = RawDir::new(&self.dir, &mut buffer);
            let mut is_end = true;
            while let Some(entry) = entries.next() {
                is_end = false;
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if entry.file_type() == FileType::Directory && name != b"." && name != b".." {
                    self.children.push(b'/');
                    self.children.extend(name);
                }
                // The next one would be read anew.
                if entries.is_buffer_empty() {
                    break;
                }
            }
            if is_end {
                return Ok(None);
            }
        }
        let slash = self.children.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let name = self.children.split_off(slash);
        Ok(name.get(1..).map(Into::into))
    }
}

/// Searches below `top` for a cgroup, and gives its path from there; `None` where it is gone. `NAMETOOLONG` where not all
/// could be searched.
pub(super) fn find(top: BorrowedFd<'_>, cgroup: CgroupId) -> Result<Option<Vec<u8>>, Errno> {
    let mut walk = Walk::begin(top)?;
    walk.advance();
    while let Some(dir) = walk.advance() {
        if id_of(dir) == Ok(cgroup) {
            return Ok(Some(walk.path()));
        }
    }
    if walk.is_whole { Ok(None) } else { Err(Errno::NAMETOOLONG) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::open_below;
    use rustix::fs::{CWD, mkdirat};
    use std::collections::HashSet;

    /// Makes a chain of directories below the one at `top`, and gives the last one. Its path may be longer than the kernel
    /// takes.
    fn chain(top: &std::path::Path, names: usize, name: &str) -> OwnedFd {
        let mut dir = openat(CWD, top, DIRECTORY, Mode::empty()).expect("it is there");
        for _ in 0..names {
            mkdirat(&dir, name, Mode::RWXU).expect("writable");
            dir = openat(&dir, name, DIRECTORY, Mode::empty()).expect("it is there");
        }
        dir
    }

    fn walk(top: &std::path::Path) -> Walk {
        Walk::begin(openat(CWD, top, DIRECTORY, Mode::empty()).expect("it is there").as_fd()).expect("readable")
    }

    #[test]
    fn each_is_visited_once_and_memory_does_not_depend_on_the_tree() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let long = "n".repeat(250);
        let end = chain(tree.path(), 100, &long);
        let many: HashSet<String> = (0..500).map(|number| format!("{number:0250}")).collect();
        for name in &many {
            mkdirat(&end, name.as_str(), Mode::RWXU).expect("writable");
        }
        let (mut walk, mut seen, mut held) = (walk(tree.path()), Vec::new(), 0);
        while walk.advance().is_some() {
            let level = walk.levels.last().expect("it is at one");
            seen.push(String::from_utf8(level.name.clone()).expect("text"));
            let bytes = |level: &Level| level.name.capacity() + level.children.capacity();
            held = held.max(walk.levels.iter().map(bytes).max().expect("there is one"));
        }
        assert_eq!(seen.len(), 1 + 100 + many.len());
        assert_eq!(seen.into_iter().collect::<HashSet<_>>().difference(&many).count(), 2, "the top and the chain's");
        assert!(held <= 3 * PIECE, "{held} bytes for a level");
        assert!(walk.is_whole());
    }

    #[test]
    fn what_is_left_out_is_known() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let end = chain(tree.path(), DEPTH, "d");
        let count = |walk: &mut Walk| std::iter::from_fn(|| walk.advance().map(drop)).count();
        let mut all = walk(tree.path());
        assert_eq!((count(&mut all), all.is_whole()), (1 + DEPTH, true));
        mkdirat(&end, "d", Mode::RWXU).expect("writable");
        let mut cut = walk(tree.path());
        assert_eq!((count(&mut cut), cut.is_whole()), (1 + DEPTH, false));
    }

    #[test]
    fn what_is_removed_meanwhile_has_nothing_in_it() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        for name in ["a", "b", "c"] {
            std::fs::create_dir(tree.path().join(name)).expect("writable");
        }
        let mut walk = walk(tree.path());
        walk.advance();
        // It is in the first of them.
        walk.advance();
        let at = String::from_utf8(walk.path()).expect("text");
        for name in ["a", "b", "c"] {
            std::fs::remove_dir(tree.path().join(name)).expect("it is empty");
        }
        assert!(!at.is_empty() && walk.advance().is_none());
        assert!(walk.is_whole());
    }

    #[test]
    fn a_cgroup_is_found_although_another_one_goes() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let meant = chain(tree.path(), 3, "m");
        let id = id_of(meant.as_fd()).expect("it is open");
        let top = openat(CWD, tree.path(), DIRECTORY, Mode::empty()).expect("it is there");
        assert_eq!(find(top.as_fd(), id), Ok(Some(b"m/m/m".to_vec())));
        assert_eq!(find(top.as_fd(), CgroupId(id.0 + 1_000_000)), Ok(None));
        assert!(open_below(top.as_fd(), b"m/m/m").is_ok());
        // Where not all was searched, it is not said to be gone.
        drop(chain(&tree.path().join("m/m/m"), DEPTH, "d"));
        assert_eq!(find(top.as_fd(), CgroupId(id.0 + 1_000_000)), Err(Errno::NAMETOOLONG));
    }
}
