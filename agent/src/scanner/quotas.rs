//! What the kernel counts for volumes that have a project of their own (ext4, xfs), so that they need no scan
//! ([decision 23](../../docs/decisions/0023-project-quotas.md)).
//!
//! The kernel gives that to CAP_SYS_ADMIN alone, which the scanner must not have. A thread of the supervisor, which nothing
//! else waits for, since a disk may not answer, reads it when the scanner asks, once in a round. An answer ends with an empty
//! message.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_node::project::{self, Project, Taken};
use plimsoll_storage::{PodDirectories, PodName, StorageError, volume_projects};
use rustix::event::PollFlags;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::{Deserialize, Serialize};

use crate::answering::{Answering, PAUSE, is_closed, sent, wait};

/// The list of projects and their directories (projects(5)).
pub(crate) const LIST: &str = "/etc/projects";
/// The longest message, in bytes, and how many figures fit, whose names have 63 bytes each at most.
const MESSAGE: usize = 4096;
const FIGURES: usize = 24;
/// How long the scanner waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The thread's stack, of which what is used is locked like all memory of the supervisor.
const STACK: usize = 128 << 10;

/// What a volume takes by the kernel's own count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// The pod's UID, as its directory has it.
    pub(crate) pod: String,
    /// The name of an `emptyDir`.
    pub(crate) volume: String,
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

/// What was found at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quotas {
    /// How many volumes of pods are in the list, with a project of their own.
    pub(crate) listed: usize,
    /// Of those whose figures the kernel gave.
    pub(crate) figures: Vec<Figure>,
    /// Why the kernel gives this process none of them.
    pub(crate) refused: Option<Errno>,
}

/// Reads the figures of the volumes of pods in the kubelet's directory that the list names. May hang where a disk does.
///
/// # Errors
/// Where there is a list that cannot be read, or is too long to be believed.
pub(crate) fn read(list: &Path, kubelet: &Path) -> io::Result<Quotas> {
    read_by(list, kubelet, count)
}

fn read_by(
    list: &Path,
    kubelet: &Path,
    count: impl Fn(&OwnedFd, u32) -> Result<Option<Taken>, Errno>,
) -> io::Result<Quotas> {
    let Some(list) = open(list)? else { return Ok(Quotas::default()) };
    let volumes = volume_projects(list, &kubelet.join("pods"))?;
    let mut quotas = Quotas { listed: volumes.len(), ..Quotas::default() };
    if volumes.is_empty() {
        return Ok(quotas);
    }
    // Logs have no projects.
    let directories = PodDirectories::open(kubelet, kubelet);
    for volume in volumes {
        let directory = directories.pod(PodName { name: None, uid: &volume.pod });
        let opened = directory.and_then(|directory| directory.volume_with_its_project(&volume.volume));
        let taken = match opened {
            Ok(Some(opened)) => count(&opened, volume.number),
            Err(StorageError::File { source, .. }) => Err(source),
            Ok(None) | Err(_) => Ok(None),
        };
        match taken {
            Ok(Some(Taken { bytes, inodes })) => {
                quotas.figures.push(Figure { pod: volume.pod, volume: volume.volume, bytes, inodes });
            }
            // It would be so of each volume: a capability is missing, or the kernel has no such call.
            Err(errno @ (Errno::PERM | Errno::NOSYS)) => {
                quotas.refused = Some(errno);
                break;
            }
            // A pod may close its own volume.
            Err(errno @ Errno::ACCESS) => quotas.refused = Some(errno),
            // The directory has another project, or the file system counts none. What cannot be opened otherwise, as what is
            // gone, is the scan's to report.
            Ok(None) | Err(_) => {}
        }
    }
    quotas.refused = quotas.refused.filter(|_| quotas.figures.is_empty());
    Ok(quotas)
}

/// Opens the list; `None` where there is none. A pipe in its place would wait for a writer.
fn open(list: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(CWD, list, flags, Mode::empty()) {
        Ok(file) if FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile => Ok(Some(file.into())),
        Ok(_) => Err(ErrorKind::InvalidInput.into()),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// What the kernel counts for a directory's project, where it is this one and all that is made in the directory has it.
fn count(directory: &OwnedFd, number: u32) -> Result<Option<Taken>, Errno> {
    if project::of(directory)? != (Project { number, is_inherited: true }) {
        return Ok(None);
    }
    project::taken(directory, number).map(Some)
}

/// The end for a new scanner of a way to a thread that answers until that end is closed.
///
/// # Errors
/// Where no thread can be started, or those for earlier scanners still wait for a disk.
pub(crate) fn serve(answering: &mut Answering, kubelet: PathBuf) -> io::Result<OwnedFd> {
    serve_by(answering, PAUSE, move || read(Path::new(LIST), &kubelet))
}

fn serve_by(
    answering: &mut Answering,
    pause: Duration,
    mut read: impl FnMut() -> io::Result<Quotas> + Send + 'static,
) -> io::Result<OwnedFd> {
    let thread = thread::Builder::new().name("project-quotas".into()).stack_size(STACK);
    let mut said = Said::Nothing;
    answering.begin(thread, pause, move |way| answer(way, read(), &mut said))
}

/// What the log says of what was found, once until that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    Read,
    Refused(Errno),
    Unreadable(ErrorKind),
}

impl Said {
    fn of(found: &io::Result<Quotas>) -> Self {
        match found {
            Ok(Quotas { refused: Some(errno), .. }) => Self::Refused(*errno),
            Ok(quotas) if quotas.figures.is_empty() => Self::Nothing,
            Ok(_) => Self::Read,
            Err(error) => Self::Unreadable(error.kind()),
        }
    }

    /// Whether what is found now is to be said. Nothing to be read, as while there is no such pod, changes nothing: the next
    /// one would have it said again.
    fn changes_to(&mut self, new: Self) -> bool {
        let is_new = new != *self && new != Self::Nothing;
        if is_new {
            *self = new;
        }
        is_new
    }

    fn say(self) {
        match self {
            Self::Nothing => {}
            Self::Read => tracing::info!("project quotas are read: volumes that have one are not scanned"),
            Self::Refused(errno) => tracing::warn!(
                "project quotas are not read: the kernel gives what it counts to CAP_SYS_ADMIN alone, by quotactl_fd(2) \
                 from Linux 5.14 on; volumes that have one are scanned: {errno}"
            ),
            Self::Unreadable(why) => {
                tracing::warn!("project quotas are not read, and volumes are scanned: {LIST}: {why}");
            }
        }
    }
}

/// Answers once with what was found, and logs that where it is something else than before. False: the other end is closed.
fn answer(way: &OwnedFd, found: io::Result<Quotas>, said: &mut Said) -> bool {
    let new = Said::of(&found);
    if said.changes_to(new) {
        new.say();
    }
    let figures = found.map(|quotas| quotas.figures).unwrap_or_default();
    figures.chunks(FIGURES).chain([&[][..]]).all(|part| put(way, part))
}

/// Sends figures once there is room for them. False: the other end is closed.
fn put(way: &OwnedFd, figures: &[Figure]) -> bool {
    let mut room = [0; MESSAGE];
    // As many as these have room.
    let Ok(bytes) = postcard::to_slice(figures, &mut room) else { return false };
    sent(way, || send(way, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop))
}

/// The scanner's end.
#[derive(Debug)]
pub(super) struct Asking {
    way: OwnedFd,
    /// An answer that was not waited for to its end.
    is_outstanding: bool,
    /// That there will be no answer was logged.
    has_ended: bool,
}

impl Asking {
    pub(super) const fn new(way: OwnedFd) -> Self {
        Self { way, is_outstanding: false, has_ended: false }
    }

    /// What the kernel counts now. Nothing where that is not known within five seconds; what is said later is of then, and
    /// counts for nothing.
    pub(super) fn ask(&mut self) -> Vec<Figure> {
        self.ask_within(PATIENCE)
    }

    fn ask_within(&mut self, patience: Duration) -> Vec<Figure> {
        if self.is_outstanding && self.take(Duration::ZERO).is_none() {
            return Vec::new();
        }
        let asked = send(&self.way, &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        self.is_outstanding = asked.is_ok();
        match asked {
            Ok(_) => self.take(patience).unwrap_or_default(),
            Err(errno) => self.fail(errno).unwrap_or_default(),
        }
    }

    /// There is no answer; where the other end is closed there will be none, which is logged once.
    fn fail(&mut self, why: Errno) -> Option<Vec<Figure>> {
        if is_closed(why) && !std::mem::replace(&mut self.has_ended, true) {
            tracing::warn!(
                "nothing is heard of project quotas until the scanner is started again, and volumes are scanned: {why}"
            );
        }
        None
    }

    /// An answer to its end, if that comes in time.
    fn take(&mut self, within: Duration) -> Option<Vec<Figure>> {
        let until = Instant::now() + within;
        let mut figures = Vec::new();
        let mut room = [0; MESSAGE];
        loop {
            match recv(&self.way, &mut room[..], RecvFlags::DONTWAIT) {
                // Its end is no message.
                Ok((0, _)) => return self.fail(Errno::PIPE),
                Ok((length, _)) => {
                    let mut part: Vec<Figure> = postcard::from_bytes(&room[..length]).ok()?;
                    if part.is_empty() {
                        self.is_outstanding = false;
                        return Some(figures);
                    }
                    figures.append(&mut part);
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    wait(&self.way, PollFlags::IN, Some(left));
                }
                Err(errno) => return self.fail(errno),
            }
        }
    }
}

#[cfg(test)]
mod tests;
