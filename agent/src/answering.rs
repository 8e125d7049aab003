//! Threads of the supervisor that answer another process, each by a way of its own. A question is one byte; an answer is as
//! many messages as it takes. What they read may hang with its disk: nothing waits for them, and there are never many.

use std::io;
use std::os::fd::OwnedFd;
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use plimsoll_state::handover;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// From one answer to the next, however often is asked: the other process is not trusted.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);
/// So many more questions count as the one that is answered: they may come without end.
const MOST_QUESTIONS: usize = 64;
/// Threads that wait for a disk for processes that have ended, and the one that answers.
const THREADS: usize = 3;

/// The threads that answer, one for each time that the other process was started.
#[derive(Debug, Default)]
pub(crate) struct Answering(Vec<JoinHandle<()>>);

impl Answering {
    /// The end for a new process of a way to a thread that answers until that end is closed, with this pause after each answer.
    /// `answer`: answers once, and gives whether the other end is still there.
    ///
    /// # Errors
    /// Where no thread can be started, or those for earlier processes still wait for a disk.
    pub(crate) fn begin(
        &mut self,
        thread: Builder,
        pause: Duration,
        answer: impl FnMut(&OwnedFd) -> bool + Send + 'static,
    ) -> io::Result<OwnedFd> {
        self.0.retain(|thread| !thread.is_finished());
        if self.0.len() >= THREADS {
            return Err(Errno::BUSY.into());
        }
        let (other, way) = handover::messages_pair()?;
        self.0.push(thread.spawn(move || answer_all(&way, pause, answer))?);
        Ok(other)
    }
}

/// Answers until the other end is closed, which ends the pause, too.
pub(crate) fn answer_all(way: &OwnedFd, pause: Duration, mut answer: impl FnMut(&OwnedFd) -> bool) {
    while asked(way) && answer(way) {
        wait(way, PollFlags::empty(), Some(pause));
    }
}

/// Waits until it is asked, and takes the questions that are there; false: there will be none.
pub(crate) fn asked(way: &OwnedFd) -> bool {
    let question = || recv(way, &mut [0; 1][..], RecvFlags::DONTWAIT).map(|(length, _)| length);
    // The end of the way is no message.
    let is_asked = once_ready(way, PollFlags::IN, question).is_some_and(|length| length > 0);
    if is_asked {
        let _ = (0..MOST_QUESTIONS).take_while(|_| question().is_ok_and(|length| length > 0)).count();
    }
    is_asked
}

/// Sends it, once there is room; false: the other end is closed.
pub(crate) fn sent(way: &OwnedFd, send: impl FnMut() -> Result<(), Errno>) -> bool {
    once_ready(way, PollFlags::OUT, send).is_some()
}

/// Does it once the way is ready for it; `None`: the other end is closed. What else goes wrong, as where memory is short, may
/// pass: an end of this thread would last until the other process is started again.
fn once_ready<T>(way: &OwnedFd, ready: PollFlags, mut act: impl FnMut() -> Result<T, Errno>) -> Option<T> {
    let mut is_said = false;
    loop {
        match act() {
            Ok(done) => return Some(done),
            Err(Errno::AGAIN | Errno::INTR) => wait(way, ready, None),
            Err(errno) if is_closed(errno) => return None,
            Err(errno) => {
                if !is_said {
                    let thread = thread::current();
                    tracing::warn!("{}: no answer for now: {errno}", thread.name().unwrap_or_default());
                }
                is_said = true;
                thread::sleep(PAUSE);
            }
        }
    }
}

/// Whether such an error says that the other end of a way is closed.
pub(crate) fn is_closed(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET | Errno::CONNREFUSED)
}

/// Waits for that, for the other end to be closed, or for so long.
pub(crate) fn wait(way: &OwnedFd, flags: PollFlags, most: Option<Duration>) {
    let most = most.and_then(|most| Timespec::try_from(most).ok());
    let _ = poll(&mut [PollFd::new(way, flags)], most.as_ref());
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::net::{SendFlags, send};
    use std::sync::mpsc;
    use std::time::Instant;

    fn ask(way: &OwnedFd) -> Result<(), Errno> {
        send(way, &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
    }

    /// Waits until all threads have ended.
    pub(crate) fn await_end(answering: &Answering) {
        let begun = Instant::now();
        while !answering.0.iter().all(JoinHandle::is_finished) {
            assert!(begun.elapsed() < Duration::from_mins(1), "{answering:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn threads_that_wait_for_a_disk_are_bounded_and_nothing_waits_for_them() {
        let mut answering = Answering::default();
        let mut begin = |answer: mpsc::Receiver<()>| {
            let way = answering.begin(Builder::new(), Duration::ZERO, move |_| answer.recv().is_ok());
            way.inspect(|way| ask(way).expect("room"))
        };
        let mut hanging = Vec::new();
        for _ in 0..THREADS {
            let (disk, answer) = mpsc::channel();
            // The process has ended; that thread does not see it yet.
            drop(begin(answer).expect("a thread"));
            hanging.push(disk);
        }
        let refused = begin(mpsc::channel().1).expect_err("all of them hang");
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        hanging.clear();
        await_end(&answering);
        assert!(answering.begin(Builder::new(), Duration::ZERO, |_| true).is_ok());
    }

    #[test]
    fn after_an_answer_there_is_a_pause_unless_the_process_has_ended() {
        let (answered, answers) = mpsc::channel();
        let begin = |answering: &mut Answering, pause| {
            let answered = answered.clone();
            answering.begin(Builder::new(), pause, move |_| answered.send(Instant::now()).is_ok()).expect("a thread")
        };
        let pause = Duration::from_millis(200);
        let mut answering = Answering::default();
        let way = begin(&mut answering, pause);
        let next = || {
            ask(&way).expect("room");
            answers.recv_timeout(Duration::from_mins(1)).expect("an answer")
        };
        let first = next();
        assert!(next() >= first + pause);
        let way = begin(&mut answering, Duration::from_hours(1));
        ask(&way).expect("room");
        answers.recv_timeout(Duration::from_mins(1)).expect("an answer");
        ask(&way).expect("room");
        drop(way);
        answering.0.remove(0);
        await_end(&answering);
    }

    #[test]
    fn questions_that_come_without_end_are_answered_and_those_that_waited_are_one() {
        let (other, way) = handover::messages_pair().expect("sockets");
        for _ in 0..=MOST_QUESTIONS {
            ask(&other).expect("room");
        }
        assert!(asked(&way));
        assert_eq!(handover::receive_request(&way).err(), Some(Errno::AGAIN), "all are taken");
        let flood = thread::spawn(move || while ask(&other) != Err(Errno::PIPE) {});
        assert!(asked(&way), "it does not take them for ever");
        drop(way);
        flood.join().expect("no panic");
    }

    #[test]
    fn what_cannot_be_sent_for_now_is_sent_later_and_only_the_end_of_the_way_ends_it() {
        let (_other, way) = handover::messages_pair().expect("sockets");
        let mut answers = vec![Ok(()), Err(Errno::INTR), Err(Errno::NOBUFS), Err(Errno::AGAIN)];
        assert!(sent(&way, || answers.pop().expect("it is sent")));
        assert!(answers.is_empty());
        for errno in [Errno::PIPE, Errno::CONNRESET, Errno::CONNREFUSED] {
            assert!(!sent(&way, || Err(errno)), "{errno}");
        }
    }
}
