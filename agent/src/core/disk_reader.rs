//! What is left on the disk of the kubelet's directory, read by a thread of its own: a dead disk lets it wait for as long as
//! it likes. The watching thread asks, and looks for the answer later; it waits for neither.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use plimsoll_node::clock::monotonic;
use plimsoll_policy::kubelet::{FsStats, StatsTime};
use plimsoll_storage::left_at;
use plimsoll_units::MonotonicNs;
use rtrb::{Consumer, RingBuffer};
use rustix::event::{PollFd, PollFlags, poll};

use super::inventory::{clear, eventfd, wake};

/// Its stack, locked like all memory of this process: nothing here recurses.
const STACK: usize = 64 << 10;

/// The thread, as seen from the watching thread.
pub(super) struct DiskReader {
    asks: OwnedFd,
    answers: Consumer<(MonotonicNs, Option<FsStats>)>,
    /// Since when an answer is due. While a disk hangs it stays so.
    asked: Option<MonotonicNs>,
}

/// The disk could not be read, or has not answered for so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unread;

/// After so long the question itself is worth a report.
const HANGS: Duration = Duration::from_mins(1);

impl DiskReader {
    /// For the file system of this directory, whichever that is when it is asked for.
    pub(super) fn start(directory: PathBuf) -> anyhow::Result<Self> {
        Self::start_with(move || left_at(&directory).ok())
    }

    /// With what answers.
    pub(super) fn start_with(read: impl Fn() -> Option<FsStats> + Send + 'static) -> anyhow::Result<Self> {
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
        let thread = std::thread::Builder::new().name("disk".into()).stack_size(STACK).spawn(run);
        thread.context("cannot start the thread that reads the kubelet's disk")?;
        Ok(Self { asks, answers, asked: None })
    }

    /// Asks, unless an answer is due already.
    pub(super) fn ask(&mut self, now: MonotonicNs) {
        if self.asked.is_none() {
            self.asked = Some(now);
            wake(&self.asks);
        }
    }

    /// The answer to the last question, once, with its time. Absent until it has come.
    pub(super) fn answer(&mut self, now: MonotonicNs) -> Result<Option<FsStats>, Unread> {
        let Ok((at, left)) = self.answers.pop() else {
            let hangs = self.asked.is_some_and(|asked| now.since(asked) >= HANGS);
            return if hangs { Err(Unread) } else { Ok(None) };
        };
        self.asked = None;
        let time = StatsTime(i64::try_from(at.0).unwrap_or(i64::MAX));
        left.map(|left| Some(FsStats { time: Some(time), ..left })).ok_or(Unread)
    }
}

#[cfg(test)]
impl DiskReader {
    /// Whether an answer has come that was not taken.
    pub(super) fn has_answer(&self) -> bool {
        !self.answers.is_empty()
    }

    /// As if it had been asked then, and had not answered since.
    pub(super) const fn hang(&mut self, since: MonotonicNs) {
        self.asked = Some(since);
    }
}

impl Drop for DiskReader {
    fn drop(&mut self) {
        // So that its thread finds that its answers go nowhere.
        wake(&self.asks);
    }
}
