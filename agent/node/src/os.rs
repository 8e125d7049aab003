//! Which cgroups this machine has: all of version 2, all of version 1, or both at once.

use rustix::fs::statfs;
use std::path::{Path, PathBuf};

/// Where distributions mount cgroups.
pub const CGROUP_ROOT: &str = "/sys/fs/cgroup";

const CGROUP2_MAGIC: u64 = 0x6367_7270;
const CGROUP1_MAGIC: u64 = 0x0027_e0eb;

/// How cgroups are mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupMode {
    /// Version 2 alone: what the agent acts in.
    Unified,
    /// Memory is version 1's, with a version 2 tree beside it that has no memory controller: it can only be watched.
    Hybrid {
        /// Where version 2 is mounted.
        unified: PathBuf,
    },
    /// Version 1 alone.
    Legacy,
    /// None is mounted in the usual place.
    Absent,
}

impl CgroupMode {
    /// Looks at the mounts at and below [`CGROUP_ROOT`].
    pub fn detect() -> Self {
        Self::at(Path::new(CGROUP_ROOT), |path| statfs(path).ok().map(|stat| stat.f_type.cast_unsigned()))
    }

    /// Where version 2 is mounted; `None` where it is not there.
    pub fn root(&self) -> Option<&Path> {
        match self {
            Self::Unified => Some(CGROUP_ROOT.as_ref()),
            Self::Hybrid { unified } => Some(unified),
            Self::Legacy | Self::Absent => None,
        }
    }

    /// Why the agent cannot run with it, in one sentence; `None` where it can.
    pub fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::Unified | Self::Hybrid { .. } => None,
            Self::Legacy => Some(
                "This machine has cgroup version 1 only, where neither freezing nor killing a cgroup as a whole is possible: \
                 boot with systemd.unified_cgroup_hierarchy=1.",
            ),
            Self::Absent => Some("No cgroups are mounted at /sys/fs/cgroup: mount cgroup2 there."),
        }
    }

    fn at(root: &Path, magic: impl Fn(&Path) -> Option<u64>) -> Self {
        if magic(root) == Some(CGROUP2_MAGIC) {
            return Self::Unified;
        }
        let unified = root.join("unified");
        if magic(&unified) == Some(CGROUP2_MAGIC) {
            return Self::Hybrid { unified };
        }
        if magic(&root.join("memory")) == Some(CGROUP1_MAGIC) || magic(&root.join("systemd")) == Some(CGROUP1_MAGIC) {
            return Self::Legacy;
        }
        Self::Absent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_follows_from_mounts() {
        const TMPFS: u64 = 0x0102_1994;
        let hybrid = CgroupMode::Hybrid { unified: PathBuf::from("/c/unified") };
        for (mounts, mode) in [
            (&[("/c", CGROUP2_MAGIC)][..], CgroupMode::Unified),
            (&[("/c", TMPFS), ("/c/unified", CGROUP2_MAGIC), ("/c/memory", CGROUP1_MAGIC)], hybrid),
            (&[("/c", TMPFS), ("/c/memory", CGROUP1_MAGIC)], CgroupMode::Legacy),
            (&[("/c", TMPFS), ("/c/systemd", CGROUP1_MAGIC)], CgroupMode::Legacy),
            (&[("/c", TMPFS)], CgroupMode::Absent),
            (&[], CgroupMode::Absent),
        ] {
            let magic = |path: &Path| mounts.iter().find(|mount| Path::new(mount.0) == path).map(|mount| mount.1);
            assert_eq!(CgroupMode::at(Path::new("/c"), magic), mode);
        }
        let root = |mode: CgroupMode| mode.root().map(Path::to_owned);
        assert_eq!(root(CgroupMode::Unified), Some(PathBuf::from(CGROUP_ROOT)));
        assert_eq!(root(CgroupMode::Hybrid { unified: "/c/unified".into() }), Some("/c/unified".into()));
        assert_eq!([CgroupMode::Legacy, CgroupMode::Absent].map(root), [None, None]);
        assert!(CgroupMode::Legacy.refusal().is_some());
        assert!(CgroupMode::Unified.refusal().is_none());
    }
}
