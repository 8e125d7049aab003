//! The thread that continues what the in-kernel brake stopped. It does nothing else, so that nobody waits for a walk
//! through the cgroups or a slow figure.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use plimsoll_act::{KillPoint, reached};
use plimsoll_sense::stopped::{StoppedRecord, Undone};

/// A map of stopped processes may be written just as it is read: it is read again until nothing was found.
const ROUNDS: usize = 3;
/// The thread's stack, locked like all memory of this process.
const STACK: usize = 256 << 10;

const CONTINUE: u32 = 1;
const END: u32 = 2;

/// The thread, by what it was asked.
#[derive(Debug)]
pub(super) struct Resumer {
    asked: Arc<AtomicU32>,
    thread: JoinHandle<()>,
}

impl Resumer {
    /// Starts it with the record of whom the kernel stopped.
    pub(super) fn start(mut record: StoppedRecord) -> io::Result<Self> {
        Self::with(move || resume_all(&mut record))
    }

    fn with(mut resume: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let asked = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&asked);
        let serve = move || loop {
            let now = seen.swap(0, Ordering::AcqRel);
            if now != 0 {
                resume();
            }
            if now & END != 0 {
                return;
            }
            thread::park();
        };
        let thread = thread::Builder::new().name("resume".into()).stack_size(STACK).spawn(serve)?;
        Ok(Self { asked, thread })
    }

    /// Asks for everybody to be continued, and does not wait.
    pub(super) fn ask(&self) {
        self.put(CONTINUE);
    }

    /// Asks for everybody to be continued for the last time.
    pub(super) fn end(&self) {
        self.put(END);
    }

    /// Whether that is done.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    fn put(&self, what: u32) {
        self.asked.fetch_or(what, Ordering::AcqRel);
        self.thread.thread().unpark();
    }
}

fn resume_all(record: &mut StoppedRecord) {
    for _ in 0..ROUNDS {
        if record.undo() == Undone::default() {
            return;
        }
        reached(KillPoint::KernelContinued);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn each_request_is_answered_and_the_last_one_is_waited_for() {
        let (told, heard) = channel();
        let resumer = Resumer::with(move || told.send(()).expect("somebody listens")).expect("a thread starts");
        for _ in 0..3 {
            resumer.ask();
            heard.recv().expect("it is alive");
        }
        assert!(!resumer.has_ended());
        resumer.end();
        assert_eq!(heard.iter().count(), 1);
        while !resumer.has_ended() {
            thread::yield_now();
        }
    }
}
