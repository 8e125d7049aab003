//! What is left on file systems, read by a thread of its own: a dead disk lets it wait for as long as it likes. The
//! watching thread asks, and looks for the answer later; it waits for neither.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use plimsoll_node::clock::monotonic;
use plimsoll_policy::kubelet::{FsStats, StatsTime};
use plimsoll_storage::{Device, room_at};
use plimsoll_units::MonotonicNs;
use rtrb::{Consumer, RingBuffer};
use rustix::event::{PollFd, PollFlags, poll};

use super::inventory::{clear, eventfd, wake};

/// Its stack, locked like all memory of this process: nothing here recurses.
const STACK: usize = 64 << 10;

/// One thread reads no more directories than this.
pub(super) const MOST_DIRECTORIES: usize = 5;

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Disk {
    /// Its number in the kernel.
    pub(super) device: Device,
    /// What is left on it.
    pub(super) left: FsStats,
}

/// The file system of each directory, by its place; absent where it could not be read.
pub(super) type Disks = [Option<Disk>; MOST_DIRECTORIES];

/// The thread, as seen from the watching thread.
pub(super) struct DiskReader {
    asks: OwnedFd,
    answers: Consumer<(MonotonicNs, Disks)>,
    /// Since when an answer is due. While a disk hangs it stays so.
    asked: Option<MonotonicNs>,
}

impl DiskReader {
    /// For the file systems of these directories, whichever those are when they are asked for.
    pub(super) fn start(name: &str, directories: Vec<PathBuf>) -> anyhow::Result<Self> {
        Self::start_with(name, move || {
            let mut disks = [None; MOST_DIRECTORIES];
            for (disk, directory) in disks.iter_mut().zip(&directories) {
                *disk = room_at(directory).ok().map(|(device, left)| Disk { device, left });
            }
            disks
        })
    }

    /// With what answers.
    pub(super) fn start_with(name: &str, read: impl Fn() -> Disks + Send + 'static) -> anyhow::Result<Self> {
        let asks = eventfd()?;
        let asked = asks.try_clone()?;
        // One is asked for at a time.
        let (mut give, answers) = RingBuffer::new(1);
        let run = move || {
            loop {
                let _ = poll(&mut [PollFd::new(&asked, PollFlags::IN)], None);
                clear(&asked);
                if give.is_abandoned() {
                    return;
                }
                // As old as its question: it may have been true at any moment from then on.
                let at = monotonic();
                let _ = give.push((at, read()));
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(run);
        thread.with_context(|| format!("cannot start the thread {name}, which reads disks"))?;
        Ok(Self { asks, answers, asked: None })
    }

    /// Asks, unless an answer is due already. Gives whether it asked.
    pub(super) fn ask(&mut self, now: MonotonicNs) -> bool {
        let asks = self.asked.is_none();
        if asks {
            self.asked = Some(now);
            wake(&self.asks);
        }
        asks
    }

    /// The answer to the last question, once, with its time. Absent until it has come.
    pub(super) fn answer(&mut self) -> Option<Disks> {
        let (at, disks) = self.answers.pop().ok()?;
        self.asked = None;
        let time = StatsTime(i64::try_from(at.0).unwrap_or(i64::MAX));
        let timed = |disk: Disk| Disk { left: FsStats { time: Some(time), ..disk.left }, ..disk };
        Some(disks.map(|disk| disk.map(timed)))
    }

    /// For how long an answer has been due.
    pub(super) fn outstanding(&self, now: MonotonicNs) -> Duration {
        self.asked.map_or(Duration::ZERO, |asked| now.since(asked))
    }
}

/// What was read of the disks of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NodeDisks {
    /// Of the kubelet's directory.
    pub(super) node: Disk,
    /// Of the directories in which the container runtime keeps images and writable layers, or may keep them.
    pub(super) runtime: Disks,
}

/// The disk of the kubelet's directory could not be read, or has not answered for a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unread;

/// After so long the question itself is worth a report.
const HANGS: Duration = Duration::from_mins(1);
/// The disks of the runtime are waited for so long, and are absent then: one that hangs holds no other up.
const WAITS: Duration = Duration::from_secs(1);

/// One thread for the kubelet's directory, and one for the runtime's.
pub(super) struct DiskReaders {
    node: DiskReader,
    runtime: DiskReader,
    /// The next answer of the runtime's disks is to an earlier question, and too old.
    is_late: bool,
    /// What was read of the kubelet's, while the runtime's are waited for, and since when.
    read: Option<(Disk, MonotonicNs)>,
}

impl DiskReaders {
    pub(super) const fn new(node: DiskReader, runtime: DiskReader) -> Self {
        Self { node, runtime, is_late: false, read: None }
    }

    /// Asks for what is left on all of them.
    pub(super) fn ask(&mut self, now: MonotonicNs) {
        // What was not taken in time.
        let _ = self.runtime.answer();
        self.node.ask(now);
        self.is_late = !self.runtime.ask(now);
    }

    /// The answer to the last question, once. Absent until it has come.
    pub(super) fn answer(&mut self, now: MonotonicNs) -> Result<Option<NodeDisks>, Unread> {
        if let Some([node, ..]) = self.node.answer() {
            self.read = Some((node.ok_or(Unread)?, now));
        }
        let Some((node, since)) = self.read else {
            return if self.node.outstanding(now) >= HANGS { Err(Unread) } else { Ok(None) };
        };
        let runtime = match self.runtime.answer() {
            Some(disks) if !self.is_late => disks,
            None if self.runtime.asked.is_some() && now.since(since) < WAITS => return Ok(None),
            Some(_) | None => [None; MOST_DIRECTORIES],
        };
        self.read = None;
        Ok(Some(NodeDisks { node, runtime }))
    }
}

#[cfg(test)]
impl DiskReaders {
    /// Whether no answer is to come that is waited for.
    pub(super) fn have_answered(&self) -> bool {
        [&self.node, &self.runtime].iter().all(|reader| !reader.answers.is_empty() || reader.asked.is_none())
    }

    /// As if the kubelet's disk had been asked then, and had not answered since.
    pub(super) const fn hang(&mut self, since: MonotonicNs) {
        self.node.asked = Some(since);
    }
}

impl Drop for DiskReader {
    fn drop(&mut self) {
        // So that its thread finds that its answers go nowhere.
        wake(&self.asks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, Ordering};
    use std::sync::Arc;

    fn disk(minor: u32) -> Disk {
        Disk { device: Device { major: 1, minor }, left: FsStats::default() }
    }

    /// A thread that answers with this disk, while it may.
    fn reader(minor: u32, may: &Arc<AtomicBool>) -> DiskReader {
        let may = Arc::clone(may);
        let read = move || {
            while !may.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            [Some(disk(minor)), None, None, None, None]
        };
        DiskReader::start_with("disk", read).expect("a thread")
    }

    fn await_answers(readers: &DiskReaders, of_node_alone: bool) {
        while if of_node_alone { readers.node.answers.is_empty() } else { !readers.have_answered() } {
            std::thread::yield_now();
        }
    }

    fn devices(readers: &mut DiskReaders, now: MonotonicNs) -> Result<Option<[Option<u32>; 2]>, Unread> {
        let of = |disk: Option<Disk>| disk.map(|disk| disk.device.minor);
        Ok(readers.answer(now)?.map(|NodeDisks { node, runtime }| [of(Some(node)), of(runtime[0])]))
    }

    #[test]
    fn disks_of_the_runtime_that_hang_are_waited_for_a_second_and_absent_then() {
        let [now, may] = [true, false].map(|may| Arc::new(AtomicBool::new(may)));
        let mut readers = DiskReaders::new(reader(1, &now), reader(2, &may));
        let begun = monotonic();
        readers.ask(begun);
        await_answers(&readers, true);
        assert_eq!(devices(&mut readers, begun), Ok(None), "the runtime's are waited for");
        assert_eq!(devices(&mut readers, begun.after(WAITS)), Ok(Some([Some(1), None])));
        // It answers an earlier question, too late.
        let later = monotonic();
        readers.ask(later);
        may.store(true, Ordering::Relaxed);
        await_answers(&readers, false);
        assert_eq!(devices(&mut readers, later), Ok(Some([Some(1), None])));
        let last = monotonic();
        readers.ask(last);
        await_answers(&readers, false);
        assert_eq!(devices(&mut readers, last), Ok(Some([Some(1), Some(2)])));
        assert_eq!(devices(&mut readers, last), Ok(None), "each answer counts once");
    }

    #[test]
    fn a_disk_of_the_kubelet_that_hangs_or_cannot_be_read_is_unread() {
        let [now, never] = [true, false].map(|may| Arc::new(AtomicBool::new(may)));
        let mut readers = DiskReaders::new(reader(1, &never), reader(2, &now));
        let begun = monotonic();
        readers.ask(begun);
        for (after, expected) in [(Duration::ZERO, Ok(None)), (HANGS, Err(Unread))] {
            assert_eq!(devices(&mut readers, begun.after(after)), expected);
        }
        never.store(true, Ordering::Relaxed);
        let gone = DiskReader::start("disk", vec!["/no/such/directory".into()]).expect("a thread");
        let mut readers = DiskReaders::new(gone, reader(2, &now));
        readers.ask(begun);
        await_answers(&readers, false);
        assert_eq!(devices(&mut readers, begun), Err(Unread));
    }

    #[test]
    fn directories_have_their_places() {
        let directories = vec!["/no/such/directory".into(), "/proc".into()];
        let mut reader = DiskReader::start("disk", directories).expect("a thread");
        reader.ask(monotonic());
        while reader.answers.is_empty() {
            std::thread::yield_now();
        }
        let disks = reader.answer().expect("it has come");
        assert_eq!(disks.map(|disk| disk.is_some()), [false, true, false, false, false]);
        assert!(disks[1].and_then(|disk| disk.left.time).is_some());
    }
}
