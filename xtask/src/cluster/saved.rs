//! A node that is ready, saved with all that it was ready beside: what it has written to its disk, its memory, and of the
//! control plane certificates, kubeconfigs and etcd's data. Why, and what it depends on, is in decision 21.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};

use super::{kube, node};
use crate::qemu::Processor;
use crate::release::sha256;
use crate::vm::SAVED_MEMORY;
use crate::{debian_root, kernels, lock, run};

/// What decides, of this checkout, what a node is like when it is ready: what makes machines, and the whole of what can run in
/// one, so that none of it is forgotten. Of the agent nothing does but [`debian_root::INSTALLED`]: its crates that the guest's
/// program has are used later.
const SOURCES: [&str; 12] = [
    "Cargo.lock",
    "Cargo.toml",
    "tests/vm/guest",
    "tests/vm/init",
    "xtask/src/cluster",
    "xtask/src/debian_root.rs",
    "xtask/src/debian_root.sh",
    "xtask/src/image.rs",
    "xtask/src/kernels.rs",
    "xtask/src/qemu.rs",
    "xtask/src/tunnel.rs",
    "xtask/src/vm.rs",
];
/// Of the control plane's folder: etcd's data and what kubeadm made.
const OF_THE_CONTROL_PLANE: [&str; 6] =
    ["etcd", "pki", "super-admin.conf", "controller-manager.conf", "scheduler.conf", "kubelet.conf"];
/// How old it may be. The certificates that kubeadm makes end after a year.
const LIFETIME: Duration = Duration::from_hours(24 * 30);
/// The checksums of all its files.
const SUMS: &str = "SHA256SUMS";
/// Where one is made.
const UNFINISHED: &str = "unfinished";

/// One in the cache, whether or not it is there. No other command makes, restores or removes one before this is dropped.
pub(super) struct Saved {
    nodes: PathBuf,
    key: String,
    _lock: File,
}

impl Saved {
    /// The one that is as a node would be that is booted now.
    pub(super) fn current() -> anyhow::Result<Self> {
        Self::of(run::cache()?.join("nodes"), key()?)
    }

    fn of(nodes: PathBuf, key: String) -> anyhow::Result<Self> {
        // A memory holds keys.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&nodes);
        made.with_context(|| format!("cannot make {}", nodes.display()))?;
        let lock = lock::wait(&nodes)?;
        Ok(Self { nodes, key, _lock: lock })
    }

    pub(super) fn place(&self) -> PathBuf {
        self.nodes.join(&self.key)
    }

    /// Has it made by `make`, which is given the directory for it, unless it is there and young enough. All others are
    /// removed: they are of other versions.
    pub(super) fn ensure(&self, make: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
        if is_young(&self.place().join(SAVED_MEMORY), SystemTime::now()) {
            return Ok(());
        }
        self.clear()?;
        let unfinished = self.nodes.join(UNFINISHED);
        fs::create_dir(&unfinished).with_context(|| format!("cannot make {}", unfinished.display()))?;
        if let Err(error) = make(&unfinished).and_then(|()| seal(&unfinished)) {
            self.clear()?;
            return Err(error);
        }
        fs::rename(&unfinished, self.place()).with_context(|| format!("cannot make {}", self.place().display()))?;
        let mut du = Command::new("du");
        let used = run::text(du.args(["--summarize", "--human-readable"]).arg(self.place()))?;
        println!("the node is saved for {} days at most: {}", LIFETIME.as_secs() / 86_400, used.trim());
        Ok(())
    }

    fn clear(&self) -> anyhow::Result<()> {
        for entry in fs::read_dir(&self.nodes)? {
            let path = entry?.path();
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Removes it, as far as it is there.
    pub(super) fn remove(&self) {
        let _ = fs::remove_dir_all(self.place());
    }

    /// Brings what is of the control plane into its folder. An error where any file is not as it was saved: QEMU would restore
    /// a memory with other contents.
    pub(super) fn bring(&self, folder: &Path) -> anyhow::Result<()> {
        let place = self.place();
        check(&place).with_context(|| format!("{} is damaged", place.display()))?;
        copy(&place, folder)
    }
}

/// Writes the checksums of all that is in a directory.
fn seal(folder: &Path) -> anyhow::Result<()> {
    let sums = format!("find . -type f ! -name {SUMS} -exec sha256sum {{}} + > {SUMS}");
    run::text(Command::new("sh").args(["-c", &sums]).current_dir(folder)).map(drop).context("no checksums")
}

/// An error with their names where files of a directory are not as [`seal`] found them.
fn check(folder: &Path) -> anyhow::Result<()> {
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--strict", "--quiet", SUMS]).current_dir(folder);
    let mut said = Vec::new();
    let status = run::each_line(&mut check, &mut |line| {
        said.push(line.to_owned());
        Ok(())
    })?;
    ensure!(status.success(), "{}", said.join("; "));
    Ok(())
}

/// Copies what is of the control plane from one folder to another. It must not run.
pub(super) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut cp = Command::new("cp");
    cp.arg("--archive").args(OF_THE_CONTROL_PLANE.map(|name| from.join(name))).arg(to);
    run::text(&mut cp).map(drop).with_context(|| format!("cannot copy the control plane of {}", from.display()))
}

/// Whether a file is there and not too old. One from the future is: the clock was set back, and certificates may not be valid.
fn is_young(file: &Path, now: SystemTime) -> bool {
    let written = fs::metadata(file).and_then(|it| it.modified()).ok();
    written.is_some_and(|written| now.duration_since(written).is_ok_and(|age| age < LIFETIME))
}

/// Another one for all that a node depends on, but for what it is given afterwards.
fn key() -> anyhow::Result<String> {
    let mut inputs = sources(run::root(), &SOURCES)?;
    for (place, text) in debian_root::INSTALLED {
        write!(inputs, "{place}\n{text}\n")?;
    }
    let kernel = kernels::get(node::KERNEL)?;
    let root = debian_root::get(node::KERNEL, &debian_root::names(&node::PACKAGES))?;
    for file in [kernel.busybox(), kernel.image, root, node::disk()?, kube::program()?] {
        let is = fs::metadata(&file).with_context(|| format!("cannot read {}", file.display()))?;
        writeln!(inputs, "{} {} {:?}", file.display(), is.len(), is.modified()?)?;
    }
    for program in [format!("qemu-system-{}", Processor::X86_64.name()), "rustc".into()] {
        inputs += &run::text(Command::new(program).arg("--version").current_dir(run::root()))?;
    }
    // The emulated TSC is this one, and the kernel has measured it.
    let processors = fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
    inputs.extend(processors.lines().find(|line| line.starts_with("model name")));
    Ok(sha256(inputs.as_bytes())[..16].to_owned())
}

/// The names and texts of these files, and of all in these folders, in an order that is always the same.
fn sources(root: &Path, names: &[&str]) -> anyhow::Result<String> {
    let mut left: Vec<PathBuf> = names.iter().map(|name| root.join(name)).collect();
    let mut files = BTreeMap::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            for entry in fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))? {
                left.push(entry?.path());
            }
        } else {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            files.insert(path.strip_prefix(root)?.to_owned(), text);
        }
    }
    let mut all = String::new();
    for (name, text) in &files {
        write!(all, "{} {}\n{text}", name.display(), text.len())?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn saved(place: &Path, key: &str) -> Saved {
        Saved::of(place.join("nodes"), key.into()).expect("writable")
    }

    /// As the making of a node does.
    fn fill(folder: &Path) -> anyhow::Result<()> {
        Ok(fs::write(folder.join(SAVED_MEMORY), "")?)
    }

    #[test]
    fn a_node_is_made_once_for_a_version_and_none_is_kept_of_others() {
        let place = tempfile::tempdir().expect("a directory");
        let old = saved(place.path(), "old");
        old.ensure(fill).expect("it is made");
        old.ensure(|_| unreachable!()).expect("it is there");
        let removed = old.place();
        drop(old);
        let new = saved(place.path(), "new");
        new.ensure(fill).expect("it is made");
        assert!(new.place().is_dir() && !removed.exists());
        new.remove();
        new.remove();
        new.ensure(fill).expect("it is made anew");
    }

    #[test]
    fn of_a_node_that_was_not_made_whole_nothing_is_left() {
        let place = tempfile::tempdir().expect("a directory");
        let node = saved(place.path(), "key");
        fs::create_dir(node.nodes.join(UNFINISHED)).expect("of a command that was killed");
        node.ensure(|folder| fill(folder).and_then(|()| anyhow::bail!("stopped"))).expect_err("it was stopped");
        assert_eq!(fs::read_dir(&node.nodes).expect("it is there").count(), 0);
    }

    #[test]
    fn a_node_of_which_a_file_was_changed_is_not_used() {
        type Damage = fn(&Path) -> std::io::Result<()>;
        let place = tempfile::tempdir().expect("a directory");
        let node = saved(place.path(), "key");
        let whole = |folder: &Path| {
            fs::write(folder.join(SAVED_MEMORY), "memory")?;
            OF_THE_CONTROL_PLANE.iter().try_for_each(|name| Ok(fs::write(folder.join(name), name)?))
        };
        let damages: [(bool, Damage); 5] = [
            (true, |_| Ok(())),
            (false, |file| fs::write(file, "nemory")),
            (false, |file| fs::write(file, "memor")),
            (false, |file| fs::remove_file(file)),
            (false, |file| fs::write(file.with_file_name(SUMS), "")),
        ];
        for (used, damage) in damages {
            node.ensure(whole).expect("it is made");
            damage(&node.place().join(SAVED_MEMORY)).expect("writable");
            let brought = node.bring(place.path());
            assert_eq!(brought.is_ok(), used, "{brought:?}");
            node.remove();
        }
    }

    #[test]
    fn files_that_are_damaged_are_named() {
        let place = tempfile::tempdir().expect("a directory");
        for name in [SAVED_MEMORY, "whole", "gone"] {
            fs::write(place.path().join(name), name).expect("writable");
        }
        seal(place.path()).expect("it has checksums");
        fs::write(place.path().join(SAVED_MEMORY), "").expect("writable");
        fs::remove_file(place.path().join("gone")).expect("it is there");
        let error = check(place.path()).expect_err("two are damaged").to_string();
        assert!(error.contains("./memory: FAILED") && error.contains("./gone: FAILED"), "{error}");
        assert!(!error.contains("whole"), "{error}");
    }

    #[test]
    fn while_one_command_has_it_no_other_one_does() {
        let place = tempfile::tempdir().expect("a directory");
        let first = saved(place.path(), "key");
        let (send, has) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| send.send(saved(place.path(), "key").place()));
            has.recv_timeout(Duration::from_millis(50)).expect_err("it waits");
            drop(first);
            has.recv().expect("it goes on");
        });
    }

    #[test]
    fn each_change_of_a_source_is_another_version() {
        let place = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let file = place.path().join(name);
            fs::create_dir_all(file.parent().expect("a folder")).expect("writable");
            fs::write(file, text).expect("writable");
        };
        let read = || sources(place.path(), &["folder", "file"]).expect("all are there");
        let mut seen = BTreeSet::new();
        for (name, text) in
            [("file", ""), ("folder/a", ""), ("folder/below/b", ""), ("folder/below/b", "x"), ("file", "x")]
        {
            write(name, text);
            fs::create_dir_all(place.path().join("folder")).expect("writable");
            assert!(seen.insert(read()), "{name}");
            assert_eq!(read(), read());
        }
        write("other", "x");
        assert!(seen.contains(&read()));
        fs::remove_file(place.path().join("file")).expect("it is there");
        sources(place.path(), &["folder", "file"]).expect_err("one is gone");
    }

    #[test]
    fn the_sources_of_a_node_are_there() {
        sources(run::root(), &SOURCES).expect("all are there, and text");
    }

    #[test]
    fn a_node_outlives_neither_its_certificates_nor_a_clock_that_is_set_back() {
        let place = tempfile::tempdir().expect("a directory");
        fill(place.path()).expect("writable");
        let file = place.path().join(SAVED_MEMORY);
        let written = fs::metadata(&file).and_then(|it| it.modified()).expect("it is there");
        let second = Duration::from_secs(1);
        for (now, young) in [
            (written, true),
            (written + LIFETIME - second, true),
            (written + LIFETIME, false),
            (written - second, false),
        ] {
            assert_eq!(is_young(&file, now), young);
        }
        assert!(!is_young(&place.path().join("none"), written));
    }
}
