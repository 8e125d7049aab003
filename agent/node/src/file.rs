//! One small kernel file, opened once and read again and again from its start.

use crate::{Fault, NodeError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, pread, pwrite};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// An open descriptor and the name that faults give it.
#[derive(Debug)]
pub(crate) struct KeptFile {
    fd: OwnedFd,
    name: &'static str,
}

impl KeptFile {
    /// Opens `path` to be read.
    pub(crate) fn open(path: &'static str) -> Result<Self, NodeError> {
        Self::open_at(CWD, path, OFlags::RDONLY).map_err(|source| NodeError::Open {
            path: PathBuf::from(path),
            source,
            advice: "It is needed to see this machine's memory; is /proc mounted?",
        })
    }

    /// Opens `name` below `dir`; `None` where there is no such file.
    pub(crate) fn open_below(dir: BorrowedFd<'_>, name: &'static str, how: OFlags) -> Result<Option<Self>, Errno> {
        match Self::open_at(dir, name, how) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn open_at(dir: BorrowedFd<'_>, name: &'static str, how: OFlags) -> Result<Self, Errno> {
        let fd = openat(dir, name, how | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?;
        Ok(Self { fd, name })
    }

    /// Reads the whole file into `buffer`, as far as it fits, and gives what was read.
    pub(crate) fn read<'b>(&self, buffer: &'b mut [u8]) -> Result<&'b [u8], Fault> {
        let mut filled = 0;
        while filled < buffer.len() {
            match pread(&self.fd, &mut buffer[filled..], filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.read_fault(errno)),
            }
        }
        Ok(&buffer[..filled])
    }

    /// Reads one piece at `offset`; an empty piece is the end.
    pub(crate) fn read_piece<'b>(&self, buffer: &'b mut [u8], offset: u64) -> Result<&'b [u8], Fault> {
        loop {
            match pread(&self.fd, &mut *buffer, offset) {
                Ok(count) => return Ok(&buffer[..count]),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.read_fault(errno)),
            }
        }
    }

    /// Writes `text` at the start of the file, once.
    pub(crate) fn write(&self, text: &[u8]) -> Result<(), Fault> {
        loop {
            match pwrite(&self.fd, text, 0) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::NODEV | Errno::NOENT) => return Err(Fault::Gone),
                Err(errno) => return Err(Fault::Write { file: self.name, errno }),
            }
        }
    }

    fn read_fault(&self, errno: Errno) -> Fault {
        match errno {
            // kernfs answers ENODEV for a file whose directory was removed while the descriptor was open.
            Errno::NODEV => Fault::Gone,
            errno => Fault::Read { file: self.name, errno },
        }
    }

    pub(crate) fn malformed(&self, field: &'static str) -> Fault {
        Fault::Malformed { file: self.name, field }
    }
}

impl AsFd for KeptFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads a whole file of any size. Allocates: not for the way from a wake to a kill.
pub(crate) fn read_all(path: &Path) -> Result<Vec<u8>, NodeError> {
    let fail = |source| NodeError::Read { path: path.to_owned(), source };
    let fd = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(fail)?;
    let mut text = vec![0; 8192];
    let mut filled = 0;
    loop {
        match rustix::io::read(&fd, &mut text[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(source) => return Err(fail(source)),
        }
        if filled == text.len() {
            text.resize(filled * 2, 0);
        }
    }
    text.truncate(filled);
    Ok(text)
}

/// A path as bytes came from the kernel: names in a cgroup tree need not be UTF-8.
pub(crate) fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}
