//! Reading the files of the configuration.

use crate::model::Text;
use crate::tree::Problems;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

/// A place of files.
pub(crate) trait Files {
    fn read(&self, path: &Path) -> io::Result<String>;
    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;

    fn text(&self, path: &Path, problems: &mut Problems) -> Option<Text> {
        let file = path.display().to_string();
        match self.read(path) {
            Ok(text) => Some(Text { file, text }),
            Err(error) => {
                problems.turn_to(&file);
                problems.add(None, "", None, &unreadable(&error));
                None
            }
        }
    }

    fn drop_ins(&self, directory: &Path, problems: &mut Problems) -> Vec<Text> {
        match self.list(directory) {
            Ok(files) => files.iter().filter_map(|path| self.text(path, problems)).collect(),
            Err(error) => {
                problems.turn_to(&directory.display().to_string());
                let why = format!("it cannot be read: {error}; name a directory that exists and may be read");
                problems.add(None, "", None, &why);
                Vec::new()
            }
        }
    }
}

/// Why a file cannot be read, and what to do.
pub fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::InvalidData => "it is no text in UTF-8; name a text file".to_owned(),
        _ => format!("it cannot be read: {error}; name a file that exists and may be read"),
    }
}

/// Reading a pipe that has a name in the file system would wait for its writer, for ever where there is none. One without
/// a name, as a shell hands it over at /dev/fd or on standard input, leads to no such name.
fn refuse_named_pipe(path: &Path) -> io::Result<()> {
    let is_pipe = std::fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo());
    if is_pipe && path.canonicalize().is_ok() { Err(io::Error::other("it is a named pipe")) } else { Ok(()) }
}

/// This machine's files.
pub(crate) struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<String> {
        refuse_named_pipe(path)?;
        // A command line can have any bytes.
        if path.file_name().is_some_and(|name| name == "cmdline") {
            return Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned());
        }
        std::fs::read_to_string(path)
    }

    /// As the kubelet walks (`filepath.WalkDir`): by name in each directory, into directories but not through links to them, of
    /// which the path itself may be one.
    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        if directory.symlink_metadata()?.is_symlink() {
            return Ok(Vec::new());
        }
        let mut entries = std::fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        let mut files = Vec::new();
        for entry in entries {
            let name = entry.file_name();
            if entry.file_type()?.is_dir() {
                files.extend(self.list(&entry.path())?);
            } else if name.to_string_lossy().ends_with(".conf") {
                files.push(entry.path());
            }
        }
        Ok(files)
    }
}

/// The machine's files, as a process in a container sees them that is in the machine's PID namespace: what is not among its
/// own is looked for where the machine's first process has it. Paths are the machine's.
pub(crate) struct Machine;

/// The root of the machine's first process.
const MACHINE: &str = "/proc/1/root";

impl Machine {
    fn of(path: &Path) -> PathBuf {
        Path::new(MACHINE).join(path.strip_prefix("/").unwrap_or(path))
    }
}

impl Files for Machine {
    fn read(&self, path: &Path) -> io::Result<String> {
        match Disk.read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Disk.read(&Self::of(path)).map_err(|_| error),
            found => found,
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        match Disk.list(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let found = Disk.list(&Self::of(directory)).map_err(|_| error)?;
                let own =
                    |path: PathBuf| path.strip_prefix(MACHINE).map_or(path.clone(), |path| Path::new("/").join(path));
                Ok(found.into_iter().map(own).collect())
            }
            found => found,
        }
    }
}

/// No file is there.
pub(crate) struct Nowhere;

impl Files for Nowhere {
    fn read(&self, _: &Path) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<PathBuf>> {
        Err(io::ErrorKind::NotFound.into())
    }
}
