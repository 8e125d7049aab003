//! Which file system a path is on.

use crate::error::StorageError;
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
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
    /// The file system of a directory. Symbolic links on the way are followed. May hang where a disk does.
    pub(crate) fn of(directory: &Path) -> Result<Self, StorageError> {
        let failed = |source| StorageError::File { what: "stat", path: directory.to_owned(), source };
        let stat = stat(directory).map_err(failed)?;
        let device = Device::of(&stat);
        let mount = mount(stat.stx_mnt_id).map_err(|source| StorageError::File {
            what: "read",
            path: "/proc/self/mountinfo".into(),
            source,
        })?;
        let Some(Mount { point: mount_point, fs_type, source }) = mount else {
            return Err(StorageError::NoMount { mount: stat.stx_mnt_id, path: directory.to_owned() });
        };
        let is_visible = self::stat(&mount_point).is_ok_and(|at_mount| Device::of(&at_mount) == device);
        let measured_at = if is_visible { mount_point.clone() } else { directory.to_owned() };
        Ok(Self { device, mount_point, fs_type, source, measured_at })
    }

    /// Whether both are one file system. Subvolumes of one btrfs are, by the device that they were mounted from, since
    /// cAdvisor finds them so (`GetDirFsDevice`); bind mounts are, and overlays are not, whatever is below them.
    pub fn is(&self, other: &Self) -> bool {
        let is_btrfs = |fs: &Self| fs.fs_type == "btrfs" && fs.source.as_encoded_bytes().starts_with(b"/dev/");
        self.device == other.device || (is_btrfs(self) && is_btrfs(other) && self.source == other.source)
    }
}

/// Without following an automount: looking should mount nothing.
fn stat(path: &Path) -> Result<Statx, Errno> {
    statx(CWD, path, AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}

/// One line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    fs_type: String,
    source: OsString,
}

/// The mount with this id. Lines of other mounts are passed over unread, so that a mount point that is not UTF-8 in some
/// container's volume keeps no other mount from being found; the longest line is two paths and bounded by the kernel.
fn mount(id: u64) -> Result<Option<Mount>, Errno> {
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let mut lines = BufReader::new(File::open("/proc/self/mountinfo").map_err(errno)?);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).map_err(errno)? > 0 {
        if let Some(mount) = parse(&line, id) {
            return Ok(Some(mount));
        }
        line.clear();
    }
    Ok(None)
}

fn parse(line: &[u8], id: u64) -> Option<Mount> {
    let mut fields = line.trim_ascii_end().split(|byte| *byte == b' ');
    if str::from_utf8(fields.next()?).ok()?.parse() != Ok(id) {
        return None;
    }
    let point = OsString::from_vec(unescape(fields.nth(3)?)).into();
    // Behind the mount point are options, and as many optional fields as there are, up to a lone hyphen.
    fields.find(|field| *field == b"-")?;
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = OsString::from_vec(unescape(fields.next()?));
    Some(Mount { point, fs_type, source })
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
    fn a_line_is_found_by_its_id_whatever_its_optional_fields_and_names() {
        let found = |line: &[u8], id| {
            parse(line, id).map(|mount| (mount.point.into_os_string().into_vec(), mount.fs_type, mount.source))
        };
        for (line, id, expected) in [
            (&b"36 35 98:0 /a /b rw,noatime - ext4 /dev/root rw\n"[..], 36, Some((&b"/b"[..], "ext4", "/dev/root"))),
            (b"36 35 98:0 / /b rw master:1 shared:2 - xfs /dev/sda1 rw", 36, Some((b"/b", "xfs", "/dev/sda1"))),
            (b"36 35 98:0 / /a\\040b\\134\\011 rw - tmpfs a\\040b rw", 36, Some((b"/a b\\\t", "tmpfs", "a b"))),
            (b"36 35 98:0 / /\xff\\0 rw - tmpfs t rw", 36, Some((b"/\xff\\0", "tmpfs", "t"))),
            (b"36 35 98:0 / /b rw - ext4 /dev/root rw", 6, None),
            (b"36 35 98:0 / /b rw ext4 /dev/root rw", 36, None),
            (b"36 35 98:0 /", 36, None),
            (b"\n", 36, None),
        ] {
            let expected = expected.map(|(point, kind, source)| (point.to_vec(), kind.to_owned(), source.into()));
            assert_eq!(found(line, id), expected, "{}", String::from_utf8_lossy(line));
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
        let found = FileSystem::of(&link).expect("proc");
        assert_eq!((found.fs_type.as_str(), found.mount_point.as_path()), ("proc", Path::new("/proc")));
        assert_eq!(found.measured_at, Path::new("/proc"));
        let missing = FileSystem::of(&directory.path().join("missing")).expect_err("it is missing");
        assert!(missing.is_not_found() && missing.to_string().contains("missing"), "{missing}");
    }
}
