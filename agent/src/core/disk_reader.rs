//! What is left on the disk of the kubelet's directory, read by a thread of its own: a dead disk lets it wait for as long as
//! it likes. The watching thread asks, and looks for the answer later; it waits for neither.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

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
    /// An answer is due. While a disk hangs it stays so.
    is_asked: bool,
}

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
        Ok(Self { asks, answers, is_asked: false })
    }

    /// Asks, unless an answer is due already.
    pub(super) fn ask(&mut self) {
        if !self.is_asked {
            self.is_asked = true;
            wake(&self.asks);
        }
    }

    /// The answer to the last question, once, with its time. Absent until it has come, and where it could not be read.
    pub(super) fn answer(&mut self) -> Option<FsStats> {
        let (at, left) = self.answers.pop().ok()?;
        self.is_asked = false;
        let time = StatsTime(i64::try_from(at.0).unwrap_or(i64::MAX));
        left.map(|left| FsStats { time: Some(time), ..left })
    }
}

#[cfg(test)]
impl DiskReader {
    /// Whether an answer has come that was not taken.
    pub(super) fn has_answer(&self) -> bool {
        !self.answers.is_empty()
    }
}

impl Drop for DiskReader {
    fn drop(&mut self) {
        // So that its thread finds that its answers go nowhere.
        wake(&self.asks);
    }
}
