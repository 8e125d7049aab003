//! The thread that continues what the in-kernel brake stopped. It does nothing else, so that no stopped process waits for
//! a walk through the cgroups or a slow figure.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use plimsoll_act::{KillPoint, reached};
use plimsoll_node::process;
use plimsoll_sense::stopped::{StoppedRecord, Undone};

/// A map of stopped processes may be written just as it is read: it is read again until nothing was found.
const ROUNDS: usize = 3;
/// The thread's stack, locked like all memory of this process.
const STACK: usize = 64 << 10;

const CONTINUE: u32 = 1;
const END: u32 = 2;

/// The thread, by what is requested from it.
#[derive(Debug)]
pub(super) struct Resumer {
    asked: Arc<AtomicU32>,
    failed: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Resumer {
    /// Starts it with the record of what the kernel stopped.
    pub(super) fn start(mut record: StoppedRecord) -> io::Result<Self> {
        Self::with(move || resume_all(&mut record))
    }

    /// `resume` gives whether all could be continued.
    fn with(mut resume: impl FnMut() -> bool + Send + 'static) -> io::Result<Self> {
        let (asked, failed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, failing) = (Arc::clone(&asked), Arc::clone(&failed));
        let serve = move || loop {
            let now = seen.swap(0, Ordering::AcqRel);
            if now != 0 && !resume() {
                failing.store(true, Ordering::Release);
            }
            if now & END != 0 {
                return;
            }
            thread::park();
        };
        let thread = thread::Builder::new().name("resume".into()).stack_size(STACK).spawn(serve)?;
        Ok(Self { asked, failed, thread })
    }

    /// Requests that every stopped process is continued, and does not wait.
    pub(super) fn request(&self) {
        self.put(CONTINUE);
    }

    /// Requests that every stopped process is continued for the last time.
    pub(super) fn end(&self) {
        self.put(END);
    }

    /// Whether that is done.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Whether a process could not be continued since this was last asked.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.swap(false, Ordering::AcqRel)
    }

    fn put(&self, what: u32) {
        self.asked.fetch_or(what, Ordering::AcqRel);
        self.thread.thread().unpark();
    }
}

fn resume_all(record: &mut StoppedRecord) -> bool {
    let mut failed = 0;
    for _ in 0..ROUNDS {
        let undone = record.undo(process::resume);
        if undone == Undone::default() {
            return true;
        }
        failed = undone.failed;
        reached(KillPoint::KernelContinued);
    }
    failed == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn each_request_is_answered_and_the_last_one_is_waited_for() {
        let (reported, answers) = channel();
        let mut round = 0;
        let resume = move || {
            round += 1;
            reported.send(()).expect("the test receives");
            round != 2
        };
        let resumer = Resumer::with(resume).expect("a thread starts");
        let mut failures = 0;
        for _ in 0..3 {
            resumer.request();
            answers.recv().expect("it is alive");
        }
        assert!(!resumer.has_ended());
        resumer.end();
        assert_eq!(answers.iter().count(), 1);
        while !resumer.has_ended() {
            thread::yield_now();
        }
        for _ in 0..2 {
            failures += u32::from(resumer.has_failed());
        }
        assert_eq!(failures, 1, "reported once");
    }
}
