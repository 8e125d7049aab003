//! Which workload cgroups there are now. Walks directories and allocates: for a helper thread.

use crate::owner::{Boundary, Standing};
use crate::pods::{PodIdentity, PodPath};
use crate::{Patterns, Protected};
use plimsoll_node::NodeError;
use plimsoll_node::cgroup::{Root, children, id_of, open_below};
use plimsoll_policy::Owner;
use plimsoll_units::{Bytes, CgroupId, Match};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::mem;
use std::os::unix::ffi::OsStrExt as _;

/// What a walk is bounded by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Names in a path. Of what lies deeper the cgroup at this depth is the workload.
    pub depth: usize,
    /// Workloads of one owner. Where it has more, its delegated cgroup is one workload.
    pub of_owner: usize,
    /// Workloads in all. Where there are more, owners with many of them become one workload each.
    pub count: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { depth: 32, of_owner: 256, count: crate::SLOTS }
    }
}

/// One workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Its path below the root.
    pub path: Vec<u8>,
    /// Its cgroup.
    pub id: CgroupId,
    /// The pattern that matches it, by its place in the list; of an owner that is one workload, that of its first.
    pub pattern: usize,
    /// The delegated cgroup that it lies in; absent where it lies in none, or is that cgroup.
    pub owner: Option<Owner>,
    /// How much of the path is the owner's.
    pub(crate) owner_length: usize,
    /// Its effective protection, from files that its owner cannot write.
    pub reservation: Bytes,
    /// The pod whose cgroup it is.
    pub pod: Option<PodIdentity>,
}

/// What a walk found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// The workloads, by path. None is inside another. There may be more than the bounds allow where even one for each
    /// owner is too many.
    pub workloads: Vec<Found>,
    /// Cgroups that a pattern matches but that hold something which must not be touched.
    pub refused: Vec<Vec<u8>>,
    /// Owners with more workloads than they may have that cannot be one workload, because they hold something which must
    /// not be touched.
    pub exceeding: usize,
    /// The first directory that could not be opened or listed although it may be there, as without a free descriptor, and
    /// why: there may be workloads below it.
    pub unread: Option<(Vec<u8>, Errno)>,
}

/// Walks the tree. The cost of one owner is bounded: the walk leaves its subtree where it has too many workloads.
pub fn discover(
    root: &Root,
    patterns: &Patterns,
    protected: &Protected,
    bounds: Bounds,
) -> Result<Discovery, NodeError> {
    let mut walk = Walk::new(patterns, protected, bounds);
    let failed = |source| NodeError::Read { path: root.path().to_owned(), source };
    let standing = Standing::of_root(root.as_fd());
    for name in children(root.as_fd()).map_err(failed)? {
        walk.visit(root.as_fd(), &mut Vec::new(), &name, 1, standing);
    }
    let mut of_owner = bounds.of_owner;
    while walk.found.workloads.len() > bounds.count && of_owner > 1 {
        of_owner /= 2;
        walk.merge_beyond(root, of_owner);
    }
    Ok(walk.found)
}

/// The workload cgroup that `path` is or lies in, if there is one: for a cgroup that a kernel event names.
pub fn workload_of(root: &Root, patterns: &Patterns, protected: &Protected, path: &[u8]) -> Option<Found> {
    let walk = Walk::new(patterns, protected, Bounds::default());
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    let mut standing = Standing::of_root(root.as_fd());
    for (depth, end) in (1..=walk.bounds.depth).zip(ends.chain([path.len()])) {
        let path = &path[..end];
        let fd = open_below(root.as_fd(), path).ok()?;
        standing = standing.of_child(fd.as_fd(), end);
        let (how, pattern) = patterns.find(path);
        match of_root(patterns.pod(path), standing) {
            PodPath::Pod(_) if walk.must_be_spared(fd.as_fd(), path) => return None,
            PodPath::Pod(pod) => return Found::of_pod(fd.as_fd(), path, pod, standing),
            PodPath::Above => continue,
            PodPath::Not => {}
        }
        match how {
            Match::Not => return None,
            Match::Prefix => {}
            Match::Below if !walk.is_leaf(fd.as_fd(), depth) => {}
            Match::Below | Match::Whole if walk.must_be_spared(fd.as_fd(), path) => return None,
            Match::Below | Match::Whole => return Found::of(fd.as_fd(), path, pattern, standing),
        }
    }
    None
}

/// Pods are where root alone may make cgroups: a user's own one may have any name.
fn of_root(pod: PodPath, standing: Standing) -> PodPath {
    if standing.boundary.is_none() { pod } else { PodPath::Not }
}

impl Found {
    fn of_pod(fd: BorrowedFd<'_>, path: &[u8], pod: PodIdentity, standing: Standing) -> Option<Self> {
        let (id, reservation) = (id_of(fd).ok()?, standing.protection);
        Some(Self { path: path.to_vec(), id, reservation, pod: Some(pod), ..Self::default() })
    }

    fn of(fd: BorrowedFd<'_>, path: &[u8], pattern: usize, standing: Standing) -> Option<Self> {
        let id = id_of(fd).ok()?;
        let found = Self { path: path.to_vec(), id, pattern, reservation: standing.protection, ..Self::default() };
        Some(match standing.boundary {
            Some(Boundary { owner, path_length }) if owner.id != id => {
                Self { owner: Some(owner), owner_length: path_length, ..found }
            }
            _ => found,
        })
    }

    /// Its owner as one workload.
    fn merged(&self) -> Option<Self> {
        let Owner { id, request } = self.owner?;
        let path = self.path[..self.owner_length].to_vec();
        Some(Self { path, id, pattern: self.pattern, reservation: request, ..Self::default() })
    }
}

struct Walk<'w> {
    patterns: &'w Patterns,
    protected: &'w Protected,
    bounds: Bounds,
    found: Discovery,
    /// Where the workloads of the owner begin whose subtree is being walked.
    owner_begin: usize,
    /// That owner has too many.
    is_exceeded: bool,
}

impl<'w> Walk<'w> {
    fn new(patterns: &'w Patterns, protected: &'w Protected, bounds: Bounds) -> Self {
        Self { patterns, protected, bounds, found: Discovery::default(), owner_begin: 0, is_exceeded: false }
    }

    fn visit(&mut self, parent: BorrowedFd<'_>, path: &mut Vec<u8>, name: &[u8], depth: usize, standing: Standing) {
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let (how, pattern) = self.patterns.find(path);
        let pod = of_root(self.patterns.pod(path), standing);
        let opened = (how != Match::Not || pod != PodPath::Not).then(|| open_child(parent, name));
        if let Some(Err(errno)) = opened {
            self.note(path, errno);
        }
        if let Some(Ok(fd)) = opened {
            let standing_here = standing.of_child(fd.as_fd(), path.len());
            let pod = of_root(pod, standing_here);
            let is_boundary = standing.boundary.is_none() && standing_here.boundary.is_some();
            if is_boundary {
                self.owner_begin = self.found.workloads.len();
            }
            match (pod, how) {
                (PodPath::Pod(pod), _) => self.take_pod(fd.as_fd(), path, pod, standing_here),
                // A user's cgroup with the name of a pod's.
                (PodPath::Not, Match::Not) => {}
                (PodPath::Not, Match::Whole) => self.take(fd.as_fd(), path, pattern, standing_here),
                (PodPath::Not, Match::Below) if self.is_leaf(fd.as_fd(), depth) => {
                    self.take(fd.as_fd(), path, pattern, standing_here);
                }
                (PodPath::Above, _) | (PodPath::Not, Match::Below | Match::Prefix) => {
                    self.descend(fd.as_fd(), path, depth, standing_here);
                }
            }
            if is_boundary && mem::take(&mut self.is_exceeded) {
                let of_owner = self.found.workloads.split_off(self.owner_begin);
                self.merge(fd.as_fd(), &of_owner, self.bounds.of_owner);
            }
        }
        path.truncate(length);
    }

    fn descend(&mut self, fd: BorrowedFd<'_>, path: &mut Vec<u8>, depth: usize, standing: Standing) {
        if depth == self.bounds.depth {
            return;
        }
        let children = children(fd).unwrap_or_else(|errno| {
            self.note(path, errno);
            Vec::new()
        });
        for name in children {
            self.visit(fd, path, &name, depth + 1, standing);
            if self.is_exceeded {
                return;
            }
        }
    }

    /// Notes a directory that cannot be read. What is removed while this walks is no workload, nor is what may not be read.
    fn note(&mut self, path: &[u8], errno: Errno) {
        if ![Errno::NOENT, Errno::NODEV, Errno::ACCESS, Errno::PERM].contains(&errno) {
            self.found.unread.get_or_insert_with(|| (path.to_vec(), errno));
        }
    }

    /// Whether it is a leaf, as the memory controller sees it (nothing below has a usage of its own), or is taken for one.
    fn is_leaf(&self, fd: BorrowedFd<'_>, depth: usize) -> bool {
        depth == self.bounds.depth || !has_counted_children(fd)
    }

    fn take_pod(&mut self, fd: BorrowedFd<'_>, path: &[u8], pod: PodIdentity, standing: Standing) {
        if self.must_be_spared(fd, path) {
            self.found.refused.push(path.to_vec());
        } else {
            self.found.workloads.extend(Found::of_pod(fd, path, pod, standing));
        }
    }

    fn take(&mut self, fd: BorrowedFd<'_>, path: &[u8], pattern: usize, standing: Standing) {
        if self.must_be_spared(fd, path) {
            self.found.refused.push(path.to_vec());
        } else if let Some(found) = Found::of(fd, path, pattern, standing) {
            self.found.workloads.push(found);
            let of_owner = self.found.workloads.len() - self.owner_begin;
            self.is_exceeded = standing.boundary.is_some() && of_owner > self.bounds.of_owner;
        }
    }

    /// Makes one workload of all that are of one owner, whose directory is `fd`.
    fn merge(&mut self, fd: BorrowedFd<'_>, of_owner: &[Found], most: usize) {
        match of_owner.first().and_then(Found::merged) {
            Some(merged) if !self.must_be_spared(fd, &merged.path) => self.found.workloads.push(merged),
            _ => {
                self.found.exceeding += 1;
                self.found.workloads.extend_from_slice(&of_owner[..most.min(of_owner.len())]);
            }
        }
    }

    /// Merges the workloads of each owner that has more than `most`.
    fn merge_beyond(&mut self, root: &Root, most: usize) {
        let is_same = |a: &Found, b: &Found| a.owner.is_some() && a.owner.map(|it| it.id) == b.owner.map(|it| it.id);
        // Those of one owner are next to each other.
        for of_owner in mem::take(&mut self.found.workloads).chunk_by(is_same) {
            let first = &of_owner[0];
            if of_owner.len() > most
                && let Ok(fd) = open_below(root.as_fd(), &first.path[..first.owner_length])
            {
                self.merge(fd.as_fd(), of_owner, of_owner.len());
            } else {
                self.found.workloads.extend_from_slice(of_owner);
            }
        }
    }

    fn must_be_spared(&self, fd: BorrowedFd<'_>, path: &[u8]) -> bool {
        self.protected.why(path).is_some()
            || self.patterns.is_never(path)
            || self.never_below(fd, path, self.bounds.depth)
    }

    fn never_below(&self, fd: BorrowedFd<'_>, path: &[u8], depth: usize) -> bool {
        if depth == 0 || !self.patterns.never_may_be_below(path) {
            return false;
        }
        // In what cannot be read, such a cgroup may be.
        children(fd).map_or(true, |names| {
            names.iter().any(|name| {
                let below = [path, b"/", name].concat();
                self.patterns.is_never(&below)
                    || match open_child(fd, name) {
                        Ok(child) => self.never_below(child.as_fd(), &below, depth - 1),
                        Err(error) => error != Errno::NOENT,
                    }
            })
        })
    }
}

/// Whether something below has a usage of its own, or may have, as it cannot be read: that is no leaf to be killed.
fn has_counted_children(fd: BorrowedFd<'_>) -> bool {
    let counts = |name: &Vec<u8>| {
        let file = [name.as_slice(), b"/memory.current"].concat();
        statat(fd, OsStr::from_bytes(&file), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    };
    children(fd).map_or(true, |names| names.iter().any(counts))
}

fn open_child(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, OsStr::from_bytes(name), how, Mode::empty())
}

#[cfg(test)]
mod tests;
