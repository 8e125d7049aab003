//! Which workload cgroups there are now. Walks directories and allocates: for a helper thread.

use crate::{Patterns, Protected};
use plimsoll_node::NodeError;
use plimsoll_node::cgroup::{Root, children, id_of, open_below};
use plimsoll_units::{CgroupId, Match};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// How far a walk goes before it gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Names in a path.
    pub depth: usize,
    /// Workloads.
    pub count: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { depth: 32, count: 4096 }
    }
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its path below the root.
    pub path: Vec<u8>,
    /// Which cgroup it is.
    pub id: CgroupId,
    /// The pattern that meant it, by its place in the list.
    pub pattern: usize,
}

/// What a walk found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// The workloads, by path. None is inside another.
    pub workloads: Vec<Found>,
    /// Cgroups that a pattern means but that hold something which must not be touched.
    pub refused: Vec<Vec<u8>>,
    /// There was more than the bounds allow.
    pub cut_off: bool,
}

/// Walks the tree.
pub fn discover(
    root: &Root,
    patterns: &Patterns,
    protected: &Protected,
    bounds: Bounds,
) -> Result<Discovery, NodeError> {
    let mut walk = Walk { patterns, protected, bounds, found: Discovery::default() };
    let failed = |source| NodeError::Read { path: root.path().to_owned(), source };
    for name in children(root.as_fd()).map_err(failed)? {
        walk.visit(root.as_fd(), &mut Vec::new(), &name, 1);
    }
    Ok(walk.found)
}

/// The workload cgroup that `path` is or lies in, if there is one: for a cgroup that was just made or that a kernel event
/// names.
pub fn workload_of(root: &Root, patterns: &Patterns, protected: &Protected, path: &[u8]) -> Option<Found> {
    let mut ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end).collect::<Vec<_>>();
    ends.push(path.len());
    ends.into_iter().find_map(|end| {
        let path = &path[..end];
        let (how, pattern) = patterns.find(path);
        if !matches!(how, Match::Whole | Match::Below) {
            return None;
        }
        let fd = open_below(root.as_fd(), path).ok()?;
        let walk = Walk { patterns, protected, bounds: Bounds::default(), found: Discovery::default() };
        if how == Match::Below && has_counted_children(fd.as_fd()) || walk.must_be_spared(fd.as_fd(), path) {
            return None;
        }
        Some(Found { path: path.to_vec(), id: id_of(fd.as_fd()).ok()?, pattern })
    })
}

struct Walk<'w> {
    patterns: &'w Patterns,
    protected: &'w Protected,
    bounds: Bounds,
    found: Discovery,
}

impl Walk<'_> {
    fn visit(&mut self, parent: BorrowedFd<'_>, path: &mut Vec<u8>, name: &[u8], depth: usize) {
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        // What is removed while this walks is no workload.
        if let Ok(fd) = open_child(parent, name) {
            self.look_at(fd.as_fd(), path, depth);
        }
        path.truncate(length);
    }

    fn look_at(&mut self, fd: BorrowedFd<'_>, path: &mut Vec<u8>, depth: usize) {
        let (how, pattern) = self.patterns.find(path);
        match how {
            Match::Not => return,
            Match::Whole => return self.take(fd, path, pattern),
            // A leaf, as the memory controller sees it: nothing below has a usage of its own.
            Match::Below if !has_counted_children(fd) => return self.take(fd, path, pattern),
            Match::Below | Match::Prefix => {}
        }
        if depth == self.bounds.depth {
            self.found.cut_off = true;
            return;
        }
        for name in children(fd).unwrap_or_default() {
            self.visit(fd, path, &name, depth + 1);
        }
    }

    fn take(&mut self, fd: BorrowedFd<'_>, path: &[u8], pattern: usize) {
        if self.must_be_spared(fd, path) {
            self.found.refused.push(path.to_vec());
        } else if self.found.workloads.len() == self.bounds.count {
            self.found.cut_off = true;
        } else if let Ok(id) = id_of(fd) {
            self.found.workloads.push(Found { path: path.to_vec(), id, pattern });
        }
    }

    fn must_be_spared(&self, fd: BorrowedFd<'_>, path: &[u8]) -> bool {
        self.protected.is_in(path) || self.patterns.is_never(path) || self.never_below(fd, path, self.bounds.depth)
    }

    fn never_below(&self, fd: BorrowedFd<'_>, path: &[u8], depth: usize) -> bool {
        if depth == 0 || !self.patterns.never_may_be_below(path) {
            return false;
        }
        children(fd).unwrap_or_default().iter().any(|name| {
            let below = [path, b"/", name].concat();
            self.patterns.is_never(&below)
                || open_child(fd, name).is_ok_and(|child| self.never_below(child.as_fd(), &below, depth - 1))
        })
    }
}

/// Whether something below has a usage of its own.
fn has_counted_children(fd: BorrowedFd<'_>) -> bool {
    let counts = |name: &Vec<u8>| {
        let file = [name.as_slice(), b"/memory.current"].concat();
        statat(fd, OsStr::from_bytes(&file), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    };
    children(fd).is_ok_and(|names| names.iter().any(counts))
}

fn open_child(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, OsStr::from_bytes(name), how, Mode::empty())
}

impl Found {
    /// Its path, to be printed.
    pub fn display(&self) -> String {
        Path::new(OsStr::from_bytes(&self.path)).display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(paths: &[&str]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for path in paths {
            let mut below = dir.path().to_owned();
            for name in path.split('/') {
                below.push(name);
                std::fs::create_dir_all(&below).expect("writable");
                std::fs::write(below.join("memory.current"), "0\n").expect("writable");
            }
        }
        let root = Root::open(dir.path()).expect("it is there");
        (dir, root)
    }

    fn paths(found: &Discovery) -> Vec<String> {
        found.workloads.iter().map(Found::display).collect()
    }

    fn service() -> Protected {
        Protected { own: b"system.slice/plimsoll.service".to_vec(), init: b"init.scope".to_vec() }
    }

    const MACHINE: &[&str] = &[
        "init.scope",
        "system.slice/plimsoll.service",
        "system.slice/a.service/inner",
        "system.slice/b.service",
        "user.slice/user-1.slice/session-1.scope",
        "user.slice/user-1.slice/user@1.service/app.slice/app.scope",
    ];

    #[test]
    fn patterns_find_their_workloads() {
        let (_dir, root) = tree(MACHINE);
        for (workloads, never, expected) in [
            (&["system.slice/*"][..], &[][..], &["system.slice/a.service", "system.slice/b.service"][..]),
            (&["system.slice/*"], &["system.slice/a.service/inner"], &["system.slice/b.service"]),
            (&["system.slice/*"], &["system.slice/a*"], &["system.slice/b.service"]),
            (
                &["user.slice/**"],
                &[],
                &[
                    "user.slice/user-1.slice/session-1.scope",
                    "user.slice/user-1.slice/user@1.service/app.slice/app.scope",
                ],
            ),
            (&["user.slice/user-1.slice", "user.slice/**"], &[], &["user.slice/user-1.slice"]),
            (&["none/*"], &[], &[]),
        ] {
            let patterns = Patterns::of(workloads, never);
            let found = discover(&root, &patterns, &service(), Bounds::default()).expect("readable");
            assert_eq!(paths(&found), expected, "{workloads:?} {never:?}");
            assert!(!found.cut_off);
        }
    }

    #[test]
    fn the_agent_is_refused_not_taken() {
        let (_dir, root) = tree(MACHINE);
        let patterns = Patterns::of(&["system.slice/*"], &[]);
        let found = discover(&root, &patterns, &service(), Bounds::default()).expect("readable");
        assert_eq!(found.refused, [b"system.slice/plimsoll.service"]);
    }

    #[test]
    fn a_walk_has_an_end() {
        let (_dir, root) = tree(MACHINE);
        let patterns = Patterns::of(&["user.slice/**", "system.slice/*"], &[]);
        for bounds in [Bounds { depth: 2, count: 9 }, Bounds { depth: 9, count: 1 }] {
            let found = discover(&root, &patterns, &service(), bounds).expect("readable");
            assert!(found.cut_off, "{bounds:?}");
            assert!(found.workloads.len() <= bounds.count);
        }
    }

    #[test]
    fn a_link_is_not_followed() {
        let (dir, root) = tree(MACHINE);
        std::os::unix::fs::symlink("b.service", dir.path().join("system.slice/c.service")).expect("writable");
        let patterns = Patterns::of(&["system.slice/*"], &[]);
        let found = discover(&root, &patterns, &service(), Bounds::default()).expect("readable");
        assert_eq!(paths(&found), ["system.slice/a.service", "system.slice/b.service"]);
    }

    #[test]
    fn a_cgroup_inside_belongs_to_its_workload() {
        let (_dir, root) = tree(MACHINE);
        let patterns = Patterns::of(&["system.slice/*", "user.slice/**"], &[]);
        for (path, workload) in [
            ("system.slice/a.service/inner", Some("system.slice/a.service")),
            ("system.slice/b.service", Some("system.slice/b.service")),
            ("system.slice/plimsoll.service", None),
            ("system.slice", None),
            ("user.slice/user-1.slice", None),
            ("user.slice/user-1.slice/session-1.scope", Some("user.slice/user-1.slice/session-1.scope")),
            ("init.scope", None),
            ("system.slice/gone.service", None),
        ] {
            let found = workload_of(&root, &patterns, &service(), path.as_bytes());
            assert_eq!(found.map(|found| found.display()).as_deref(), workload, "{path}");
        }
    }
}
