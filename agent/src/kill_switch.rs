//! The kill switch: a file of root's that stops every action for as long as it is there, and in a cluster an annotation on
//! the node's object.
//!
//! Only a regular file counts that root owns, in directories that root alone may write, up to the root of the file system,
//! with no symbolic link on the way: another user must not be able to stop the agent, nor to take the file away.
//!
//! Changes are reported by the kernel (inotify(7)), so that nothing polls. It does not report a mount over one of the
//! directories, nor what another machine does on a network file system, so that it is checked from time to time
//! as well.

use core::time::Duration;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use plimsoll_node::clock::monotonic;
use plimsoll_units::MonotonicNs;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, CWD, FileType, Stat, statat};
use rustix::io::Errno;

/// The annotation.
pub(crate) use plimsoll_kube::KILL_SWITCH as ANNOTATION;

/// Where the kernel reports no changes, how often to check.
const CHECK_PACE: Duration = Duration::from_millis(500);
/// Directories that keep changing are watched anew so often at a time; the next check goes on.
const ROUNDS: usize = 4;
/// What group and others may write.
const OTHERS_WRITE: u32 = 0o022;

/// What is at its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing.
    Absent,
    /// A file that counts.
    Thrown,
    /// Something that does not count, and why.
    Ignored(Ignored),
}

/// Why what is there does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ignored {
    /// This directory is another user's.
    DirectoryOf(PathBuf, u32),
    /// Group or others may write this directory.
    Writable(PathBuf),
    /// This is a symbolic link.
    Link(PathBuf),
    /// It is another user's.
    FileOf(u32),
    /// It is no regular file.
    NoFile,
    /// It cannot be seen whether it is there.
    Unseen(PathBuf, Errno),
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DirectoryOf(directory, user) => {
                write!(f, "{} belongs to user {user}, and has to belong to root", directory.display())
            }
            Self::Writable(directory) => {
                write!(f, "others than root may write {}: chmod go-w it", directory.display())
            }
            Self::Link(path) => write!(f, "{} is a symbolic link: configure the path that it names", path.display()),
            Self::FileOf(user) => write!(f, "it belongs to user {user}, and has to belong to root"),
            Self::NoFile => write!(f, "it is no regular file"),
            Self::Unseen(path, errno) => write!(f, "{}: {errno}", path.display()),
        }
    }
}

/// A directory on the way, and which one it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Directory {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Where the switch would be, and what was seen there last.
#[derive(Debug)]
pub(crate) struct KillSwitch {
    path: PathBuf,
    /// The directory that is trusted as it is; all below it are checked.
    root: PathBuf,
    /// The user that has to own it.
    owner: u32,
    /// The directories that are watched.
    way: Vec<Directory>,
    /// Readable when something changed in one of them.
    watch: Result<OwnedFd, Errno>,
    checked: MonotonicNs,
    is_thrown: bool,
}

impl KillSwitch {
    /// The one at `path`, which is absolute and has no `..`. It is not checked yet.
    pub(crate) fn new(path: &Path) -> Self {
        Self::below(Path::new("/"), 0, path)
    }

    /// The same below a directory that is trusted, of this user.
    pub(crate) fn below(root: &Path, owner: u32, path: &Path) -> Self {
        let watch = Err(Errno::NOSYS);
        let (path, root) = (path.to_owned(), root.to_owned());
        Self { path, root, owner, way: Vec::new(), watch, checked: MonotonicNs(0), is_thrown: false }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it was thrown when it was last checked.
    pub(crate) const fn is_thrown(&self) -> bool {
        self.is_thrown
    }

    /// Readable when it is to be checked again. Absent where the kernel does not report that: then it is at [`Self::due`].
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().ok().map(OwnedFd::as_fd)
    }

    /// Why the kernel reports no changes, if so.
    pub(crate) fn unreported(&self) -> Option<Errno> {
        self.watch.as_ref().err().copied()
    }

    /// When it is checked again where the kernel does not report changes.
    pub(crate) fn due(&self) -> Option<MonotonicNs> {
        self.watch.is_err().then(|| self.checked.after(CHECK_PACE))
    }

    /// Checks what is there, and has changes reported from here on.
    pub(crate) fn check(&mut self) -> Found {
        self.checked = monotonic();
        if let Ok(watch) = &self.watch {
            // What is left of a flood makes it readable again.
            let _ = rustix::io::read(watch, &mut [0; 4096]);
        }
        let (mut way, mut found) = self.walk();
        for _ in 0..ROUNDS {
            if self.watch.is_ok() && way == self.way {
                break;
            }
            // What changed before it was watched is seen by the next walk.
            (self.watch, self.way) = (watched(&way), way);
            (way, found) = self.walk();
        }
        self.is_thrown = found == Found::Thrown;
        found
    }

    /// Why a file would be ignored that is put there, where nothing is there now.
    pub(crate) fn distrust(&self) -> Option<Ignored> {
        let is_there = statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        match self.way() {
            (_, Some(Found::Ignored(why))) if !is_there => Some(why),
            _ => None,
        }
    }

    /// The directories on the way that this user alone may write, as far as they go, and what is at the path.
    fn walk(&self) -> (Vec<Directory>, Found) {
        let (way, end) = self.way();
        let found = statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        let found = match (end, found) {
            // Where there is something, the reason is reported.
            (Some(Found::Ignored(why)), Err(_)) if !matches!(why, Ignored::Unseen(..)) => Found::Absent,
            (Some(end), _) => end,
            (None, Err(Errno::NOENT | Errno::NOTDIR)) => Found::Absent,
            (None, Err(errno)) => Found::Ignored(Ignored::Unseen(self.path.clone(), errno)),
            (None, Ok(found)) => self.judge(&found),
        };
        (way, found)
    }

    /// The directories on the way that this user alone may write, as far as they go, and why they end before the path.
    fn way(&self) -> (Vec<Directory>, Option<Found>) {
        let mut way = Vec::new();
        let mut at = self.root.clone();
        let below = self.path.strip_prefix(&self.root).unwrap_or(&self.path);
        for name in below.components() {
            let found = match statat(CWD, &at, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT | Errno::NOTDIR) => return (way, Some(Found::Absent)),
                Err(errno) => return (way, Some(Found::Ignored(Ignored::Unseen(at, errno)))),
                Ok(found) => found,
            };
            if let Some(why) = self.distrusts(&at, &found) {
                // Nothing further down counts.
                return (way, Some(Found::Ignored(why)));
            }
            way.push(Directory { path: at.clone(), device: found.st_dev, inode: found.st_ino });
            at.push(name);
        }
        (way, None)
    }

    /// Why what is below a directory does not count, if so.
    fn distrusts(&self, path: &Path, found: &Stat) -> Option<Ignored> {
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Symlink => Some(Ignored::Link(path.to_owned())),
            _ if found.st_uid != self.owner => Some(Ignored::DirectoryOf(path.to_owned(), found.st_uid)),
            _ if found.st_mode & OTHERS_WRITE != 0 => Some(Ignored::Writable(path.to_owned())),
            _ => None,
        }
    }

    fn judge(&self, found: &Stat) -> Found {
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Symlink => Found::Ignored(Ignored::Link(self.path.clone())),
            FileType::RegularFile if found.st_uid == self.owner => Found::Thrown,
            FileType::RegularFile => Found::Ignored(Ignored::FileOf(found.st_uid)),
            _ => Found::Ignored(Ignored::NoFile),
        }
    }
}

/// Readable from here on when something changes in one of these directories.
fn watched(way: &[Directory]) -> Result<OwnedFd, Errno> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
    let themselves = WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
    let how = names | themselves | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
    for directory in way {
        match inotify::add_watch(&watch, &directory.path, how) {
            // It is gone again, which the next walk sees.
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(watch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    /// A switch at `etc/agent/switch` below a directory of this user's.
    fn switch(root: &Path) -> KillSwitch {
        KillSwitch::below(root, rustix::process::geteuid().as_raw(), &root.join("etc/agent/switch"))
    }

    fn root() -> tempfile::TempDir {
        // Its mode is 0700.
        tempfile::tempdir().expect("a temporary directory")
    }

    fn is_reported(switch: &KillSwitch) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(switch.descriptor().expect("it is watched"), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("a descriptor") == 1
    }

    #[test]
    fn a_file_that_comes_and_goes_is_reported_whatever_of_its_directories_was_there() {
        let root = root();
        let mut switch = switch(root.path());
        assert_eq!(switch.check(), Found::Absent);
        assert!(!is_reported(&switch), "nothing has changed");
        let (etc, agent) = (root.path().join("etc"), root.path().join("etc/agent"));
        for (what, change, found) in [
            ("etc is made", &(|| fs::create_dir(&etc)) as &dyn Fn() -> std::io::Result<()>, Found::Absent),
            ("agent is made", &|| fs::create_dir(&agent), Found::Absent),
            ("the switch is thrown", &|| fs::write(agent.join("switch"), ""), Found::Thrown),
            ("it is taken back", &|| fs::remove_file(agent.join("switch")), Found::Absent),
            (
                "it is moved here",
                &|| fs::write(etc.join("x"), "").and_then(|()| fs::rename(etc.join("x"), agent.join("switch"))),
                Found::Thrown,
            ),
            ("its directory is moved away", &|| fs::rename(&agent, etc.join("old")), Found::Absent),
            ("another one comes", &|| fs::create_dir(&agent), Found::Absent),
            ("the switch is thrown in that", &|| fs::write(agent.join("switch"), ""), Found::Thrown),
            ("all goes", &|| fs::remove_dir_all(&etc), Found::Absent),
        ] {
            assert!(!is_reported(&switch), "{what}: nothing has changed");
            change().expect("writable");
            assert!(is_reported(&switch), "{what}");
            assert_eq!(switch.check(), found, "{what}");
            assert_eq!(switch.is_thrown(), found == Found::Thrown, "{what}");
        }
    }

    #[test]
    fn only_a_file_of_root_in_directories_that_root_alone_writes_counts() {
        let root = root();
        let (etc, agent) = (root.path().join("etc"), root.path().join("etc/agent"));
        let file = agent.join("switch");
        fs::create_dir_all(&agent).expect("writable");
        let mut switch = switch(root.path());
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
        assert_eq!(switch.distrust(), None);
        mode(&etc, 0o777);
        assert_eq!(switch.check(), Found::Absent, "nothing is there");
        assert_eq!(switch.distrust(), Some(Ignored::Writable(etc.clone())), "what is put there would not count");
        fs::write(&file, "").expect("writable");
        assert_eq!(switch.distrust(), None, "it is reported already");
        for (path, bits) in [(&etc, 0o777), (&etc, 0o775), (&agent, 0o1777)] {
            mode(path, bits);
            assert_eq!(switch.check(), Found::Ignored(Ignored::Writable(path.clone())), "{bits:o}");
            mode(path, 0o755);
            assert!(is_reported(&switch), "its mode has changed");
            assert_eq!(switch.check(), Found::Thrown, "{bits:o}");
        }
        // Whatever its own mode is: only that it is there counts.
        mode(&file, 0o666);
        assert_eq!(switch.check(), Found::Thrown);
        let mine = rustix::process::geteuid().as_raw();
        let mut of_another = KillSwitch::below(root.path(), mine + 1, &file);
        assert_eq!(of_another.check(), Found::Ignored(Ignored::DirectoryOf(root.path().to_owned(), mine)));
        let found = statat(CWD, &file, AtFlags::SYMLINK_NOFOLLOW).expect("it is there");
        assert_eq!(of_another.judge(&found), Found::Ignored(Ignored::FileOf(mine)));
    }

    #[test]
    fn links_directories_and_what_cannot_be_seen_do_not_count() {
        let root = root();
        let (etc, agent) = (root.path().join("etc"), root.path().join("etc/agent"));
        let file = agent.join("switch");
        fs::create_dir_all(root.path().join("real/agent")).expect("writable");
        fs::write(root.path().join("real/agent/switch"), "").expect("writable");
        symlink("real", &etc).expect("writable");
        let mut switch = switch(root.path());
        assert_eq!(switch.check(), Found::Ignored(Ignored::Link(etc.clone())));
        fs::remove_file(&etc).expect("ours");
        fs::create_dir_all(&file).expect("writable");
        assert_eq!(switch.check(), Found::Ignored(Ignored::NoFile));
        fs::remove_dir(&file).expect("ours");
        symlink("/etc/hostname", &file).expect("writable");
        assert_eq!(switch.check(), Found::Ignored(Ignored::Link(file.clone())));
        fs::remove_dir_all(&etc).expect("ours");
        fs::write(&etc, "").expect("writable");
        assert_eq!(switch.check(), Found::Absent, "a file is where a directory should be");
        let long = root.path().join("x".repeat(300));
        let mut unseen = KillSwitch::below(root.path(), rustix::process::geteuid().as_raw(), &long);
        assert_eq!(unseen.check(), Found::Ignored(Ignored::Unseen(long, Errno::NAMETOOLONG)));
        assert!(!unseen.is_thrown());
    }

    #[test]
    fn where_the_kernel_reports_nothing_it_is_checked_from_time_to_time() {
        let root = root();
        let mut switch = switch(root.path());
        switch.check();
        assert_eq!((switch.due(), switch.unreported()), (None, None));
        switch.watch = Err(Errno::MFILE);
        let checked = switch.checked;
        assert_eq!((switch.due(), switch.unreported()), (Some(checked.after(CHECK_PACE)), Some(Errno::MFILE)));
        assert!(switch.descriptor().is_none());
        switch.check();
        assert!(switch.descriptor().is_some(), "it is tried again");
    }
}
