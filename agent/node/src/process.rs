//! Processes by descriptor, so that a number used again can never be mistaken for the process that was meant.

use crate::{file, sys};
use plimsoll_units::Bytes;
use procfs::process::{Process, Status};
use procfs::{FromBufRead as _, FromRead as _};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal};
use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

pub use rustix::process::Pid;

/// Opens a descriptor for `pid`. `ESRCH` where there is no such process.
pub fn open(pid: Pid) -> Result<OwnedFd, Errno> {
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
}

/// Opens the process that a thread belongs to, as far as signals go: they reach all of it. `ESRCH` or `ENOENT` where
/// there is no such thread.
///
/// `pidfd_open` refuses a thread that is not the first one of its process, and `PIDFD_THREAD` came with Linux 6.9. The
/// directory of a thread below /proc stands for its process on all of them (`pidfd_send_signal(2)`).
pub fn open_by_thread(thread: Pid) -> Result<OwnedFd, Errno> {
    open(thread).or_else(|_| {
        let path = format!("/proc/{}", thread.as_raw_nonzero());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    })
}

/// The process of a thread that was opened by [`open_by_thread`]; `None` where that is gone. Opens a file: for a helper
/// thread.
pub fn of_thread(opened: impl AsFd, thread: Pid) -> Option<Pid> {
    let status = match rustix::fs::openat(opened, "status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(status) => status,
        // Not a directory below /proc: it was opened as a process.
        Err(Errno::NOTDIR) => return Some(thread),
        Err(_) => return None,
    };
    let mut text = [0; 512];
    let length = rustix::io::read(status, &mut text).ok()?;
    let line = crate::parse::lines(&text[..length]).find_map(|line| line.strip_prefix(b"Tgid:"))?;
    let number = i32::try_from(crate::parse::u64_after_blanks(line)?).ok()?;
    Pid::from_raw(number)
}

/// Whether a thread is one of this process, by their numbers. Opens nothing.
pub fn has_thread(process: Pid, thread: Pid) -> bool {
    // Where the signal would be refused, the thread was found.
    sys::would_signal_thread(process, thread) != Err(Errno::SRCH)
}

/// The process at the other end of a connection to a Unix socket, and its effective user: the one that had the socket listen,
/// as they were then (unix(7)). `None` where it has no number in this PID namespace.
pub fn peer(connection: impl AsFd) -> Result<Option<(Pid, u32)>, Errno> {
    let (process, user) = sys::peer_credentials(connection.as_fd())?;
    Ok(Pid::from_raw(process).map(|process| (process, user)))
}

/// Whether the process has ended, by its descriptor.
pub fn is_over(process: &OwnedFd) -> bool {
    has_ended(process).unwrap_or(true)
}

/// Kills the process. One that is gone already is fine.
pub fn kill(pidfd: impl AsFd) -> Result<(), Errno> {
    signal(pidfd, Signal::KILL)
}

/// Asks the process to end by itself. One that is gone already is fine.
pub fn terminate(pidfd: impl AsFd) -> Result<(), Errno> {
    signal(pidfd, Signal::TERM)
}

/// Stops all threads of the process until it is continued. One that is gone already is fine.
pub fn stop(pidfd: impl AsFd) -> Result<(), Errno> {
    signal(pidfd, Signal::STOP)
}

/// Continues the process with this number, if it is still the one that started then ([`Stat::start_ticks`]). Gives
/// whether it was. One that lives and of which that cannot be read is an error: it may be the one. Opens files: for a
/// helper thread.
pub fn resume(pid: Pid, start_ticks: u64) -> Result<bool, Errno> {
    let process = match open(pid) {
        Ok(process) => process,
        Err(Errno::SRCH) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    // Where the number was given to another process since it was opened, the signal goes to none.
    resume_as(&process, Stat::read(pid), start_ticks)
}

fn resume_as(process: &OwnedFd, stat: Option<Stat>, start_ticks: u64) -> Result<bool, Errno> {
    let Some(stat) = stat else { return if has_ended(process)? { Ok(false) } else { Err(Errno::ACCESS) } };
    let is_same = stat.start_ticks == start_ticks;
    if is_same {
        signal(process, Signal::CONT)?;
    }
    Ok(is_same)
}

/// Whether a process has ended.
fn has_ended(process: &OwnedFd) -> Result<bool, Errno> {
    let now = Timespec::default();
    Ok(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now))? > 0)
}

/// Why /proc hides processes of other users from this one, if it may: it is mounted with `hidepid` and a group that root
/// is not in (proc(5)), and the agent has no CAP_SYS_PTRACE.
pub fn hidden_processes() -> Option<String> {
    let mounts = Process::myself().and_then(|process| process.mountinfo()).ok()?;
    let proc = mounts.into_iter().rfind(|mount| mount.mount_point == Path::new("/proc") && mount.fs_type == "proc")?;
    hides(&proc.super_options)
}

fn hides(options: &HashMap<String, Option<String>>) -> Option<String> {
    let value = |key: &str| options.get(key).and_then(Option::as_deref);
    let hidepid = value("hidepid").filter(|value| !matches!(*value, "0" | "off"))?;
    // Without a group it is root's.
    let group = value("gid").filter(|group| *group != "0")?;
    Some(format!("/proc is mounted with hidepid={hidepid},gid={group}, which hides processes of other users"))
}

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// When it started, in clock ticks since boot: with its number, that names one process.
    pub start_ticks: u64,
    /// A signal has stopped it.
    pub is_stopped: bool,
    /// Its resident memory, in pages.
    pub resident: u64,
}

impl Stat {
    /// Reads it; `None` where there is no such process. Opens a file: for a helper thread.
    pub fn read(pid: Pid) -> Option<Self> {
        let text = file::read_all(&PathBuf::from(format!("/proc/{}/stat", pid.as_raw_nonzero()))).ok()?;
        Self::parse(&text)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let stat = procfs::process::Stat::from_read(text).ok()?;
        // Not `t`: what a tracer has stopped goes on when that lets it, which may be at once.
        let is_stopped = stat.state == 'T';
        Some(Self { start_ticks: stat.starttime, is_stopped, resident: stat.rss })
    }
}

fn signal(pidfd: impl AsFd, signal: Signal) -> Result<(), Errno> {
    match rustix::process::pidfd_send_signal(pidfd, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// What became of an attempt to take a dying process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// All of its memory that is its own was given back.
    Yes,
    /// It is gone already, and its memory with it.
    Gone,
    /// Another task holds the lock of its memory map; worth trying again.
    Busy,
    /// It is not dying, or it shares its memory with a process that is not.
    NotDying,
    /// This kernel cannot (before 5.15), or refuses.
    Refused(Errno),
}

/// Takes the memory of a process that was killed, without waiting until it gets to run and exit. Can take long for a
/// large process: not for the thread that watches.
pub fn release(pidfd: impl AsFd) -> Released {
    match sys::process_mrelease(pidfd) {
        Ok(()) => Released::Yes,
        Err(Errno::SRCH) => Released::Gone,
        Err(Errno::AGAIN | Errno::INTR) => Released::Busy,
        Err(Errno::INVAL) => Released::NotDying,
        Err(errno) => Released::Refused(errno),
    }
}

/// Gives the calling thread a table of open files of its own, empty but for the standard three. What it opens from here
/// on is closed by the kernel the moment this thread ends, also where the process is killed, and not with all that the
/// process has open. No descriptor may be handed to or from this thread: a number means another file on each side.
/// `ENOSYS` before Linux 5.9.
pub fn separate_descriptors() -> Result<(), Errno> {
    sys::unshare_files()
}

/// The cgroup v2 path of a process, from the root of the cgroup tree, without a slash at its beginning; empty for the
/// root itself. `None` where there is no such process, or no cgroup v2.
pub fn cgroup_path(pid: Option<Pid>) -> Option<Vec<u8>> {
    let path = match pid {
        None => PathBuf::from("/proc/self/cgroup"),
        Some(pid) => PathBuf::from(format!("/proc/{}/cgroup", pid.as_raw_nonzero())),
    };
    let text = file::read_all(&path).ok()?;
    let line = crate::parse::lines(&text).find_map(|line| line.strip_prefix(b"0::/"))?;
    Some(line.strip_suffix(b" (deleted)").unwrap_or(line).to_vec())
}

/// The processes of this machine, each with a descriptor that is held while it is read.
pub fn all() -> impl Iterator<Item = Process> {
    // What ends meanwhile is left out.
    procfs::process::all_processes().into_iter().flatten().flatten()
}

/// What a process holds, by its `/proc/PID/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The process.
    pub pid: i32,
    /// Its command name; what is not UTF-8 in it is replaced.
    pub name: String,
    /// In memory.
    pub resident: Bytes,
    /// In swap.
    pub swapped: Bytes,
    /// In tables to find both.
    pub page_tables: Bytes,
    /// Of the huge page pool, which is not resident.
    pub huge_pages: Bytes,
}

impl Memory {
    /// Reads it; `None` for a process that is gone or a thread of the kernel.
    pub fn of(process: &Process) -> Option<Self> {
        let mut status = Vec::new();
        process.open_relative("status").ok()?.read_to_end(&mut status).ok()?;
        Self::parse(&status)
    }

    fn parse(status: &[u8]) -> Option<Self> {
        // A process chooses its name, and must not be overlooked for one that is no text.
        let status = Status::from_buf_read(String::from_utf8_lossy(status).as_bytes()).ok()?;
        let bytes = |kib: Option<u64>| Bytes(kib.unwrap_or(0).saturating_mul(1024));
        Some(Self {
            pid: status.pid,
            resident: bytes(Some(status.vmrss?)),
            swapped: bytes(status.vmswap),
            page_tables: bytes(status.vmpte),
            huge_pages: bytes(status.hugetlbpages),
            name: status.name,
        })
    }
}

/// A process that is held: what is done by its descriptor never befalls another one that was given its number.
#[derive(Debug)]
pub struct Opened {
    /// Its number when it was opened, or that of the thread by which it was found.
    pub pid: Pid,
    /// Its descriptor.
    pub fd: OwnedFd,
}

/// Opened tasks of one list.
#[derive(Debug, Default)]
pub struct OpenedTasks {
    /// Up to as many as were asked for.
    pub tasks: Vec<Opened>,
    /// There were more than that.
    pub more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_seen_with_its_memory_whatever_its_name() {
        let own = i32::try_from(std::process::id()).expect("small");
        let process = all().find(|process| process.pid == own).expect("it runs");
        let memory = Memory::of(&process).expect("it holds some");
        assert!(memory.pid == own && memory.resident > Bytes(100_000) && memory.huge_pages == Bytes::ZERO);

        let status = std::fs::read("/proc/self/status").expect("readable");
        let lines: Vec<&[u8]> = status.split(|byte| *byte == b'\n').collect();
        let with = |changes: &[(&str, &[u8])]| {
            let line = |line: &&[u8]| {
                let change = changes.iter().find(|(key, _)| line.starts_with(key.as_bytes()));
                change.map_or_else(|| line.to_vec(), |(key, value)| [key.as_bytes(), value].concat())
            };
            let lines = lines.iter().map(line).filter(|line| !line.ends_with(b"leave out"));
            Memory::parse(&lines.collect::<Vec<_>>().join(&b'\n'))
        };
        let huge = with(&[("Name:", b"\t\xff:x"), ("VmRSS:", b"\t     100 kB"), ("HugetlbPages:", b"\t    2048 kB")]);
        let huge = huge.expect("it holds some");
        assert_eq!((huge.resident, huge.huge_pages), (Bytes(102_400), Bytes(2_097_152)));
        assert!(huge.name.starts_with('\u{fffd}'), "{}", huge.name);
        assert_eq!(with(&[("VmRSS:", b"leave out")]), None, "as for a thread of the kernel");
    }

    #[test]
    fn a_process_that_lives_and_cannot_be_read_is_not_taken_for_gone() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = Pid::from_child(&child);
        let (process, stat) = (open(pid).expect("it runs"), Stat::read(pid).expect("it runs"));
        let ticks = stat.start_ticks;
        assert_eq!(resume_as(&process, None, ticks), Err(Errno::ACCESS));
        assert_eq!(resume_as(&process, Some(stat), ticks), Ok(true));
        assert_eq!(resume_as(&process, Some(stat), ticks + 1), Ok(false), "another one of that number");
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert_eq!(resume_as(&process, None, ticks), Ok(false));
    }

    #[test]
    fn hidden_processes_are_found_by_the_options_of_proc() {
        for (options, hides_others) in [
            ("", false),
            ("hidepid=invisible", false),
            ("hidepid=2 gid=0", false),
            ("gid=4", false),
            ("hidepid=0 gid=4", false),
            ("hidepid=off gid=4", false),
            ("hidepid=invisible gid=4", true),
            ("hidepid=1 gid=4", true),
        ] {
            let pairs = options.split_whitespace().map(|option| option.split_once('=').expect("a value"));
            let map = pairs.map(|(key, value)| (key.to_owned(), Some(value.to_owned()))).collect();
            assert_eq!(hides(&map).is_some(), hides_others, "{options}");
        }
        assert_eq!(hidden_processes(), None, "/proc is as usual here");
    }

    #[test]
    fn the_process_that_has_a_socket_listen_is_known_by_a_connection() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let connection = std::os::unix::net::UnixStream::connect(&path).expect("it listens");
        let expected = (rustix::process::getpid(), rustix::process::geteuid().as_raw());
        assert_eq!(peer(&connection), Ok(Some(expected)));
        assert_eq!(peer(std::fs::File::open("/proc/self/stat").expect("readable")), Err(Errno::NOTSOCK));
    }

    #[test]
    fn a_thread_is_known_by_its_process() {
        let own = rustix::process::getpid();
        let parent = rustix::process::getppid().expect("a test has a parent");
        std::thread::scope(|scope| {
            let (send, receive) = std::sync::mpsc::channel();
            let (end, wait) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                send.send(rustix::thread::gettid()).expect("it is awaited");
                wait.recv().unwrap_or_default();
            });
            let living = receive.recv().expect("it lives");
            assert!(has_thread(own, living) && !has_thread(parent, living));
            assert_eq!(of_thread(open_by_thread(living).expect("it lives"), living), Some(own));
            drop(end);
        });
        assert_eq!(of_thread(open_by_thread(own).expect("it lives"), own), Some(own));
    }

    #[test]
    fn only_a_signal_stops_for_others() {
        for (state, is_stopped) in [('T', true), ('t', false), ('S', false)] {
            let text = std::fs::read_to_string("/proc/self/stat").expect("readable");
            let (head, tail) = text.rsplit_once(") ").expect("a name");
            let text = format!("{head}) {state}{}", &tail[1..]);
            assert_eq!(Stat::parse(text.as_bytes()).expect("well formed").is_stopped, is_stopped, "{state}");
        }
    }

    #[test]
    fn what_a_thread_opens_in_its_own_table_is_its_own() {
        use std::os::fd::AsRawFd as _;
        let place = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| place.path().join(name);
        let names = |table: &str| -> Vec<PathBuf> {
            let numbers = std::fs::read_dir(table).expect("readable").flatten();
            numbers.filter_map(|number| std::fs::read_link(number.path()).ok()).collect()
        };
        let shared = std::fs::File::create(path("shared")).expect("writable");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                separate_descriptors().expect("the kernel allows it");
                let _own = std::fs::File::create(path("own")).expect("writable");
                let own = names("/proc/thread-self/fd");
                assert!(own.contains(&path("own")) && !own.contains(&path("shared")), "{own:?}");
                let process = names("/proc/self/fd");
                assert!(!process.contains(&path("own")) && process.contains(&path("shared")), "{process:?}");
            });
        });
        // Still the same file.
        let link = std::fs::read_link(format!("/proc/self/fd/{}", shared.as_raw_fd())).expect("it is open");
        assert_eq!(link, path("shared"));
    }

    #[test]
    fn a_process_is_stopped_and_continued_only_where_it_is_still_the_same() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = Pid::from_child(&child);
        let stat = || Stat::read(pid).expect("it runs");
        let start_ticks = stat().start_ticks;
        let wait_until_stopped = |is_stopped: bool| {
            while stat().is_stopped != is_stopped {
                std::thread::yield_now();
            }
        };
        stop(open(pid).expect("it runs")).expect("it is ours");
        wait_until_stopped(true);
        assert_eq!(resume(pid, start_ticks + 1), Ok(false));
        assert!(stat().is_stopped, "another process is meant");
        assert_eq!(resume(pid, start_ticks), Ok(true));
        wait_until_stopped(false);
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert_eq!((Stat::read(pid), resume(pid, start_ticks)), (None, Ok(false)));
    }

    #[test]
    fn a_child_is_killed_once_and_then_gone() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = Pid::from_child(&child);
        let pidfd = open(pid).expect("it runs");
        assert_eq!(release(&pidfd), Released::NotDying);
        kill(&pidfd).expect("it is ours");
        child.wait().expect("it is ours");
        assert_eq!(kill(&pidfd), Ok(()));
        assert_eq!(release(&pidfd), Released::Gone);
    }
}
