//! Cgroups made for a test, and their removal with everything in them.
//!
//! Cgroup v2 only, mounted at /sys/fs/cgroup. Nothing here is clever about systemd: where that manages cgroups, it makes
//! and removes them (`systemd.rs`), and they are only read and written here.

use crate::machine::{named, set, wait_for};
use anyhow::{Context as _, Result, ensure};
use rustix::mount::{MountFlags, mount_remount};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where cgroup v2 is mounted.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";

/// The mount option by which pages of hugetlb are charged to the memory of their cgroup (Linux 6.6 and later; systemd 259
/// and later mount with it).
pub(crate) const HUGETLB_ACCOUNTING: &str = "memory_hugetlb_accounting";

/// Whether this kernel knows a mount option of cgroup v2 that the first ones did not.
pub(crate) fn has_mount_option(name: &str) -> bool {
    fs::read_to_string("/sys/kernel/cgroup/features").is_ok_and(|all| all.lines().any(|known| known == name))
}

/// Has pages of hugetlb charged to the memory of their cgroup from now on, or not. All other mount options stay.
pub(crate) fn charge_huge_pages(is_on: bool) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut fields = mounts.lines().map(|line| line.split(' ').skip(1));
    let options = fields.find_map(|mut it| it.next().filter(|place| *place == ROOT).and(it.nth(1)));
    let options = options.with_context(|| format!("nothing is mounted at {ROOT}"))?.split(',');
    let kept = options.filter(|option| *option != HUGETLB_ACCOUNTING && has_mount_option(option));
    let options: Vec<&str> = kept.chain(is_on.then_some(HUGETLB_ACCOUNTING)).collect();
    let options = CString::new(options.join(","))?;
    mount_remount(ROOT, MountFlags::empty(), options.as_c_str()).context("cannot mount cgroups with another option")
}

/// One cgroup below the root.
#[derive(Clone, Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes `name` (such as `work.slice/a`) and its parents, with the memory and pids controllers on all the way down.
    pub(crate) fn create(name: &str) -> Result<Self> {
        let mut path = PathBuf::from(ROOT);
        for part in Path::new(name).components() {
            set(path.join("cgroup.subtree_control"), "+memory +pids")?;
            path.push(part);
            if !path.exists() {
                fs::create_dir(&path).with_context(|| format!("cannot make the cgroup {}", path.display()))?;
            }
        }
        Ok(Self { path })
    }

    /// One that is there.
    pub(crate) fn existing(name: &str) -> Result<Self> {
        let path = Path::new(ROOT).join(name);
        ensure!(path.is_dir(), "there is no cgroup {}", path.display());
        Ok(Self { path })
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its path below the root of the hierarchy, without a leading slash: `work.slice/a`.
    pub(crate) fn name(&self) -> &str {
        self.path.strip_prefix(ROOT).ok().and_then(Path::to_str).unwrap_or_default()
    }

    /// Its id: the inode number of its directory.
    pub(crate) fn id(&self) -> Result<u64> {
        Ok(fs::metadata(&self.path).with_context(|| format!("no cgroup {}", self.path.display()))?.ino())
    }

    /// One of its files, as text.
    pub(crate) fn read(&self, file: &str) -> Result<String> {
        let path = self.path.join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Writes one of its files.
    pub(crate) fn write(&self, file: &str, value: &str) -> Result<()> {
        set(self.path.join(file), value)
    }

    /// What is charged to it and below it, in bytes.
    pub(crate) fn current(&self) -> Result<u64> {
        Ok(self.read("memory.current")?.trim().parse()?)
    }

    /// Whether any process lives in it or below it.
    pub(crate) fn populated(&self) -> Result<bool> {
        Ok(named(&self.read("cgroup.events")?, "populated") == Some(1))
    }

    /// Whether it is asked to be frozen.
    pub(crate) fn is_frozen(&self) -> Result<bool> {
        Ok(self.read("cgroup.freeze")?.trim() == "1")
    }

    /// Whether no process in it runs, because that was asked for.
    pub(crate) fn stands_still(&self) -> Result<bool> {
        Ok(self.is_frozen()? && named(&self.read("cgroup.events")?, "frozen") == Some(1))
    }

    /// Kills all in it, waits until it is empty, and removes it with all cgroups below it.
    pub(crate) fn remove(&self) -> Result<()> {
        remove_tree(&self.path)
    }
}

/// All cgroups that exist, as directories, the root not among them.
pub(crate) fn all() -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left = vec![PathBuf::from(ROOT)];
    while let Some(path) = left.pop() {
        let Ok(entries) = fs::read_dir(&path) else { continue };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.insert(entry.path());
                left.push(entry.path());
            }
        }
    }
    found
}

/// Kills and removes every cgroup that is not in `before`.
pub(crate) fn restore(before: &BTreeSet<PathBuf>) -> Result<()> {
    let made: Vec<PathBuf> = all().difference(before).cloned().collect();
    // Parents sort before their children: removing a parent's tree takes the children along.
    for path in made {
        if path.exists() {
            remove_tree(&path)?;
        }
    }
    Ok(())
}

fn remove_tree(path: &Path) -> Result<()> {
    let limit = Duration::from_secs(20);
    // A frozen process dies only from SIGKILL through cgroup.kill, which thaws nothing; both are written for old kernels.
    // Before Linux 5.14 there is no such file, and what a test started was killed process by process.
    let kill = path.join("cgroup.kill");
    if kill.exists() {
        set(kill, "1")?;
    }
    set(path.join("cgroup.freeze"), "0")?;
    wait_for(&format!("{} is empty", path.display()), limit, || {
        let events = fs::read_to_string(path.join("cgroup.events"))?;
        Ok(named(&events, "populated") == Some(0))
    })?;
    let mut below = vec![path.to_path_buf()];
    let mut left = vec![path.to_path_buf()];
    while let Some(parent) = left.pop() {
        for entry in fs::read_dir(&parent)?.flatten() {
            if entry.file_type()?.is_dir() {
                below.push(entry.path());
                left.push(entry.path());
            }
        }
    }
    for path in below.iter().rev() {
        // An emptied cgroup can be busy for a moment while its last task is still being reaped.
        wait_for(&format!("{} is removed", path.display()), limit, || {
            Ok(fs::remove_dir(path).is_ok() || !path.exists())
        })?;
    }
    Ok(())
}
