//! Which delegated cgroup a workload belongs to, and its effective protection, from files that its owner cannot write.
//!
//! A cgroup is delegated where a user other than the tree's own (root) may make cgroups in it or move processes into
//! it. As systemd delegates, its directory and its `cgroup.procs` belong to the user, its `memory.*` files still to
//! root, and everything below to the user. The topmost delegated cgroup on a path is the owner of all workloads below
//! it.
//!
//! Effective protection is the larger of `memory.low` and `memory.min`, and never more than the parent's
//! (Documentation/admin-guide/cgroup-v2.rst, "memory.min"). Two things of the kernel's rule are left out, because usage
//! decides them, which the owners of siblings determine: where siblings claim more than their parent has, each would get a
//! share by usage, and is counted with its whole claim; with the mount option `memory_recursiveprot`, protection that no
//! child claims would be shared among them by usage, and is counted for none.

use plimsoll_node::cgroup::protection;
use plimsoll_policy::Owner;
use plimsoll_units::{Bytes, CgroupId};
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Stat, fstat, statat};

/// Which files count: those that only the user of the tree's root directory may write. In a user namespace all users that
/// it does not map look like one, so that there the files of all of them count or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trust {
    uid: u32,
}

impl Trust {
    fn holds(self, stat: &Stat) -> bool {
        const WRITABLE_BY_OTHERS: u32 = 0o022;
        stat.st_uid == self.uid && stat.st_mode & WRITABLE_BY_OTHERS == 0
    }
}

/// The topmost delegated cgroup on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Boundary {
    pub(crate) owner: Owner,
    /// How much of the path is its own.
    pub(crate) path_length: usize,
}

/// What is known of a cgroup by the path to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    trust: Trust,
    /// Its effective protection; of a cgroup below a boundary nothing counts.
    pub(crate) protection: Bytes,
    pub(crate) boundary: Option<Boundary>,
}

impl Standing {
    /// The root's. Nothing bounds the protection of its children.
    pub(crate) fn of_root(root: BorrowedFd<'_>) -> Self {
        let uid = fstat(root).map_or(0, |stat| stat.st_uid);
        Self { trust: Trust { uid }, protection: Bytes(u64::MAX), boundary: None }
    }

    /// That of a child with this directory and this path.
    pub(crate) fn of_child(self, dir: BorrowedFd<'_>, path_length: usize) -> Self {
        let Self { trust, protection: of_parent, boundary } = self;
        if boundary.is_some() {
            return Self { protection: Bytes::ZERO, ..self };
        }
        let protection = match of_parent {
            // It has none then, whatever it claims. On most nodes that is so of all pods, and their files need not be read.
            Bytes::ZERO => Bytes::ZERO,
            most => protection(dir, |stat| trust.holds(stat)).min(most),
        };
        let Ok(stat) = fstat(dir) else { return Self { protection: Bytes::ZERO, ..self } };
        let procs = statat(dir, "cgroup.procs", AtFlags::SYMLINK_NOFOLLOW);
        let is_delegated = !trust.holds(&stat) || procs.is_ok_and(|procs| !trust.holds(&procs));
        let owner = Owner { id: CgroupId(stat.st_ino), request: protection };
        Self { trust, protection, boundary: is_delegated.then_some(Boundary { owner, path_length }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, OFlags, openat};
    use std::fs;
    use std::os::fd::{AsFd as _, OwnedFd};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::{Path, PathBuf};

    /// A tree whose delegated parts are writable by the group, which needs no second user.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a temporary directory"))
        }

        /// `low` and `min` in MiB.
        fn cgroup(&self, path: &str, low: u64, min: u64) -> PathBuf {
            let folder = self.0.path().join(path);
            fs::create_dir_all(&folder).expect("writable");
            for (file, mib) in [("memory.low", low), ("memory.min", min)] {
                fs::write(folder.join(file), format!("{}\n", mib << 20)).expect("writable");
            }
            fs::write(folder.join("cgroup.procs"), "").expect("writable");
            folder
        }

        /// The standing of the last of the names.
        fn standing(&self, path: &str) -> Standing {
            let open = |path: &Path| -> OwnedFd {
                openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("it is there")
            };
            let mut folder = self.0.path().to_owned();
            let mut standing = Standing::of_root(open(&folder).as_fd());
            for name in path.split('/') {
                folder.push(name);
                let length = folder.as_os_str().len() - self.0.path().as_os_str().len() - 1;
                standing = standing.of_child(open(&folder).as_fd(), length);
            }
            standing
        }
    }

    /// Lets others than the owner of the tree write it.
    fn give(path: &Path) {
        let mode = fs::metadata(path).expect("it is there").permissions().mode();
        fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o020)).expect("it is ours");
    }

    #[test]
    fn only_files_of_the_trees_own_user_that_no_other_may_write_are_trusted() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let stat = |uid, mode| {
            let mut stat = rustix::fs::stat(folder.path()).expect("it is there");
            (stat.st_uid, stat.st_mode) = (uid, mode);
            stat
        };
        for (uid, mode, trusted) in
            [(0, 0o644, true), (0, 0o755, true), (1000, 0o644, false), (0, 0o664, false), (0, 0o646, false)]
        {
            assert_eq!(Trust { uid: 0 }.holds(&stat(uid, mode)), trusted, "{uid} {mode:o}");
        }
    }

    #[test]
    fn protection_is_the_larger_of_both_kinds_and_bounded_by_the_ancestors() {
        let tree = Tree::new();
        tree.cgroup("slice", 100, 0);
        for (name, low, min, expected) in
            [("a", 50, 0, 50), ("b", 0, 70, 70), ("c", 500, 0, 100), ("d", 0, 0, 0), ("e", 20, 900, 100)]
        {
            tree.cgroup(&format!("slice/{name}"), low, min);
            let standing = tree.standing(&format!("slice/{name}"));
            assert_eq!((standing.protection, standing.boundary), (Bytes::mib(expected), None), "{name}");
        }
        tree.cgroup("bare", 0, 0);
        tree.cgroup("bare/leaf", 50, 0);
        assert_eq!(tree.standing("bare/leaf").protection, Bytes::ZERO, "its parent has none");
    }

    #[test]
    fn the_topmost_delegated_cgroup_is_the_owner_and_nothing_below_it_counts() {
        let tree = Tree::new();
        tree.cgroup("slice", 200, 0);
        for given in ["", "cgroup.procs"] {
            let name = format!("slice/user{given}");
            let user = tree.cgroup(&name, 64, 0);
            let leaf = tree.cgroup(&format!("{name}/app/leaf"), 500, 500);
            for path in [user.join(given), leaf.clone(), leaf.join("memory.low"), leaf.join("memory.min")] {
                give(&path);
            }
            let owner =
                Owner { id: CgroupId(rustix::fs::stat(&user).expect("it is there").st_ino), request: Bytes::mib(64) };
            let boundary = Some(Boundary { owner, path_length: name.len() });
            assert_eq!(tree.standing(&name).boundary, boundary);
            tree.cgroup(&format!("{name}/app"), 500, 0);
            let below = tree.standing(&format!("{name}/app/leaf"));
            assert_eq!((below.boundary, below.protection), (boundary, Bytes::ZERO));
        }
    }

    #[test]
    fn a_file_of_protection_that_the_owner_may_write_does_not_count() {
        let tree = Tree::new();
        let user = tree.cgroup("user", 64, 32);
        give(&user);
        give(&user.join("memory.low"));
        assert_eq!(tree.standing("user").boundary.map(|it| it.owner.request), Some(Bytes::mib(32)));
    }
}
