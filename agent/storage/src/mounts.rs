//! Which file system a path is on.

use crate::error::StorageError;
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The number of a file system in the kernel (`st_dev`). Btrfs gives each subvolume one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// Its major number, zero where no block device is behind the file system.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
}

impl Device {
    pub(crate) const fn of(stat: &Statx) -> Self {
        Self { major: stat.stx_dev_major, minor: stat.stx_dev_minor }
    }
}

/// A file system, as seen from a directory on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// The number of the directory's file system.
    pub device: Device,
    /// Where it is mounted: the mount that the directory is on.
    pub mount_point: PathBuf,
    /// Its type: `ext4`, `xfs`, `overlay`.
    pub fs_type: String,
    /// What was mounted: a device for most.
    pub source: OsString,
    /// Where it is measured: [`Self::mount_point`], as cAdvisor does it, because on a directory with a project quota the
    /// kernel answers with the quota; or the directory, where the mount point is hidden by another mount.
    pub measured_at: PathBuf,
}

impl FileSystem {
    /// Whether both are one file system. Subvolumes of one btrfs are, by the device that they were mounted from, since
    /// cAdvisor finds them so (`GetDirFsDevice`); bind mounts are, and overlays are not, whatever is below them.
    pub fn is(&self, other: &Self) -> bool {
        let is_btrfs = |fs: &Self| fs.fs_type == "btrfs" && fs.source.as_encoded_bytes().starts_with(b"/dev/");
        self.device == other.device || (is_btrfs(self) && is_btrfs(other) && self.source == other.source)
    }
}

/// What is mounted, by `/proc/self/mountinfo`. It is opened once, so that a process that may open no file any more still
/// reads what is mounted by then.
#[derive(Debug)]
pub struct Mounts(File);

impl Mounts {
    /// Opens the list.
    pub fn open() -> Result<Self, StorageError> {
        File::open(LIST).map(Self).map_err(|error| unread(errno(&error)))
    }

    /// The file system of a directory. Symbolic links on the way are followed. May hang where a disk does.
    ///
    /// A directory that this user may not reach is on the file system of the nearest one above that it may, unless
    /// something is mounted on the way; a link on the way cannot be seen.
    pub(crate) fn file_system(&mut self, directory: &Path) -> Result<FileSystem, StorageError> {
        let failed = |source| StorageError::File { what: "stat", path: directory.to_owned(), source };
        let (reached, stat) = nearest(directory, stat).map_err(failed)?;
        let device = Device::of(&stat);
        let (mut found, mut is_between) = (None, false);
        self.each(|mount| {
            is_between |=
                mount.point != reached && mount.point.starts_with(reached) && directory.starts_with(&mount.point);
            if mount.id == stat.stx_mnt_id {
                found = Some(mount);
            }
        })?;
        if reached != directory && is_between {
            return Err(failed(Errno::ACCESS));
        }
        let Some(Mount { id: _, point: mount_point, fs_type, source }) = found else {
            return Err(StorageError::NoMount { mount: stat.stx_mnt_id, path: directory.to_owned() });
        };
        let is_visible = self::stat(&mount_point).is_ok_and(|at_mount| Device::of(&at_mount) == device);
        let measured_at = if is_visible { mount_point.clone() } else { reached.to_owned() };
        Ok(FileSystem { device, mount_point, fs_type, source, measured_at })
    }

    /// Goes through what is mounted now. Lines that are none are passed over; the longest is two paths and bounded by the
    /// kernel.
    fn each(&mut self, mut with: impl FnMut(Mount)) -> Result<(), StorageError> {
        let mut read = || {
            self.0.rewind()?;
            let mut lines = BufReader::new(&self.0);
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line)? > 0 {
                if let Some(mount) = parse(&line) {
                    with(mount);
                }
                line.clear();
            }
            Ok(())
        };
        read().map_err(|error: std::io::Error| unread(errno(&error)))
    }
}

const LIST: &str = "/proc/self/mountinfo";

fn unread(source: Errno) -> StorageError {
    StorageError::File { what: "read", path: LIST.into(), source }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// The nearest of a directory and those above it that may be reached, with its `stat`.
fn nearest<T>(directory: &Path, stat: impl Fn(&Path) -> Result<T, Errno>) -> Result<(&Path, T), Errno> {
    let mut reached = directory;
    loop {
        match (stat(reached), reached.parent()) {
            (Err(Errno::ACCESS), Some(parent)) => reached = parent,
            (stat, _) => return stat.map(|stat| (reached, stat)),
        }
    }
}

/// Without following an automount: looking should mount nothing.
fn stat(path: &Path) -> Result<Statx, Errno> {
    statx(CWD, path, AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}

/// One line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    id: u64,
    point: PathBuf,
    fs_type: String,
    source: OsString,
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.trim_ascii_end().split(|byte| *byte == b' ');
    let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let point = OsString::from_vec(unescape(fields.nth(3)?)).into();
    // Behind the mount point are options, and as many optional fields as there are, up to a lone hyphen.
    fields.find(|field| *field == b"-")?;
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = OsString::from_vec(unescape(fields.next()?));
    Some(Mount { id, point, fs_type, source })
}

/// Space, tab, newline and backslash are written as a backslash and three octal digits (`mangle`, fs/seq_file.c).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, behind @ ..] = rest {
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', behind @ ..]) = (first, behind) {
            plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = behind;
        } else {
            plain.push(*first);
            rest = behind;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_its_optional_fields_and_names() {
        let found = |line: &[u8]| {
            parse(line).map(|mount| (mount.id, mount.point.into_os_string().into_vec(), mount.fs_type, mount.source))
        };
        for (line, expected) in [
            (&b"36 35 98:0 /a /b rw,noatime - ext4 /dev/root rw\n"[..], Some((36, &b"/b"[..], "ext4", "/dev/root"))),
            (b"36 35 98:0 / /b rw master:1 shared:2 - xfs /dev/sda1 rw", Some((36, b"/b", "xfs", "/dev/sda1"))),
            (b"36 35 98:0 / /a\\040b\\134\\011 rw - tmpfs a\\040b rw", Some((36, b"/a b\\\t", "tmpfs", "a b"))),
            (b"36 35 98:0 / /\xff\\0 rw - tmpfs t rw", Some((36, b"/\xff\\0", "tmpfs", "t"))),
            (b"x 35 98:0 / /b rw - ext4 /dev/root rw", None),
            (b"36 35 98:0 / /b rw ext4 /dev/root rw", None),
            (b"36 35 98:0 /", None),
            (b"\n", None),
        ] {
            let expected =
                expected.map(|(id, point, kind, source)| (id, point.to_vec(), kind.to_owned(), source.into()));
            assert_eq!(found(line), expected, "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn subvolumes_of_one_btrfs_are_one_file_system_and_overlays_are_not() {
        let fs = |minor, fs_type: &str, source: &str| FileSystem {
            device: Device { major: 0, minor },
            mount_point: "/".into(),
            fs_type: fs_type.to_owned(),
            source: source.into(),
            measured_at: "/".into(),
        };
        for (one, other, same) in [
            (fs(1, "btrfs", "/dev/sda"), fs(2, "btrfs", "/dev/sda"), true),
            (fs(1, "btrfs", "/dev/sda"), fs(2, "btrfs", "/dev/sdb"), false),
            (fs(1, "overlay", "overlay"), fs(2, "overlay", "overlay"), false),
            (fs(1, "tmpfs", "/dev/sda"), fs(2, "tmpfs", "/dev/sda"), false),
            (fs(1, "ext4", "/dev/sda"), fs(1, "ext4", "/dev/root"), true),
        ] {
            assert_eq!((one.is(&other), other.is(&one)), (same, same), "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_file_system_is_found_through_links_and_one_that_is_missing_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/proc/self", &link).expect("a link");
        let mut mounts = Mounts::open().expect("this is Linux");
        // From its beginning each time.
        for _ in 0..2 {
            let found = mounts.file_system(&link).expect("proc");
            assert_eq!((found.fs_type.as_str(), found.mount_point.as_path()), ("proc", Path::new("/proc")));
            assert_eq!(found.measured_at, Path::new("/proc"));
        }
        let missing = mounts.file_system(&directory.path().join("missing")).expect_err("it is missing");
        assert!(missing.is_not_found() && missing.to_string().contains("missing"), "{missing}");
    }

    #[test]
    fn what_may_not_be_reached_is_found_by_what_is_above_it() {
        let stat = |path: &Path| match path.to_str() {
            Some("/a/closed") => Ok(1),
            Some(path) if path.starts_with("/a/closed/") => Err(Errno::ACCESS),
            _ => Err(Errno::NOENT),
        };
        let found = |path| nearest(Path::new(path), stat).map(|(reached, _)| reached.to_owned());
        assert_eq!(found("/a/closed"), Ok("/a/closed".into()));
        assert_eq!(found("/a/closed/b/c"), Ok("/a/closed".into()));
        assert_eq!(found("/a/gone"), Err(Errno::NOENT));
        assert_eq!(nearest(Path::new("/"), |_| Err::<(), _>(Errno::ACCESS)), Err(Errno::ACCESS));
    }
}
