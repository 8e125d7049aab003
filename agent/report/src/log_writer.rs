//! From the log to standard output: a thread and a bounded queue before it.
//!
//! Standard output may be a pipe that is not read. Then lines are lost and counted; the threads that log go on. The
//! writer of `tracing-appender` is not used, because at its end it prints to standard error, which may be that pipe,
//! and because it does not count the lines that it could not write.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Lines that wait to be written.
const LINES: usize = 512;

/// Called for each line that is lost.
type Lost = dyn Fn() + Send + Sync;

/// Takes lines and never waits for the one that reads them.
#[derive(Clone)]
pub(crate) struct LogWriter {
    queue: Arc<Mutex<Queue>>,
    lost: Arc<Lost>,
}

#[derive(Debug)]
struct Queue {
    /// Absent once the log is closed.
    lines: Option<SyncSender<String>>,
    /// Lines that were lost since one was taken.
    missing: u64,
}

impl std::fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.queue.fmt(f)
    }
}

/// Notices when everything is written.
#[derive(Debug)]
pub(crate) struct Written(Mutex<Receiver<()>>);

/// Starts the thread that writes to `target`; `lost` is called for each line that could not be written.
pub(crate) fn start(
    mut target: impl Write + Send + 'static,
    lost: impl Fn() + Send + Sync + 'static,
) -> io::Result<(LogWriter, Written)> {
    let (lines, waiting) = sync_channel::<String>(LINES);
    let (done, written) = sync_channel(0);
    let lost: Arc<Lost> = Arc::new(lost);
    let own = Arc::clone(&lost);
    let write = move || {
        for line in waiting {
            if target.write_all(line.as_bytes()).and_then(|()| target.flush()).is_err() {
                own();
            }
        }
        // Its other end hangs up when this is dropped.
        drop(done);
    };
    thread::Builder::new().name("log".into()).spawn(write)?;
    let queue = Arc::new(Mutex::new(Queue { lines: Some(lines), missing: 0 }));
    Ok((LogWriter { queue, lost }, Written(Mutex::new(written))))
}

impl LogWriter {
    /// Hands a line over, its end included. Where lines before it were lost, what `gap` makes of their number comes
    /// first.
    pub(crate) fn offer(&self, line: String, gap: impl FnOnce(u64) -> String) {
        let mut queue = self.queue();
        let Queue { lines: Some(lines), missing } = &mut *queue else { return };
        if *missing > 0 && lines.try_send(gap(*missing)).is_ok() {
            *missing = 0;
        }
        if lines.try_send(line).is_err() {
            *missing += 1;
            (self.lost)();
        }
    }

    /// Takes no more lines. Once all that were taken are written, the thread ends.
    pub(crate) fn close(&self) {
        self.queue().lines = None;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Written {
    /// Waits for the thread's end, at most so long. False: it still waits for its lines to be read.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        written.recv_timeout(patience) != Err(RecvTimeoutError::Timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Sender, channel};

    /// A target that lets one write through for each permit.
    struct Gate {
        permits: Receiver<()>,
        text: Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.permits.recv().is_err() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.text.send(bytes.to_vec()).expect("the test reads it");
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gap(lines: u64) -> String {
        format!("{lines} missing\n")
    }

    #[test]
    fn a_log_that_is_not_read_loses_lines_and_stops_no_thread() {
        let ((permit, permits), (text, read)) = (channel(), channel());
        let lost = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&lost);
        let count = move || _ = count.fetch_add(1, Ordering::Relaxed);
        let (log_writer, written) = start(Gate { permits, text }, count).expect("a thread");
        log_writer.offer("first\n".into(), gap);
        let mut more = 0;
        while lost.load(Ordering::Relaxed) < 2 {
            log_writer.offer("more\n".into(), gap);
            more += 1;
            assert!(more <= LINES + 3, "the queue is not bounded");
        }
        assert!(!written.wait(Duration::from_millis(1)));
        // It is read again: what was taken is written, then how many are missing.
        let taken = 1 + more - 2;
        let next = || {
            permit.send(()).expect("it waits");
            read.recv().expect("it writes")
        };
        let lines: Vec<Vec<u8>> = (0..taken).map(|_| next()).collect();
        assert_eq!((&lines[0][..], &lines[taken - 1][..]), (&b"first\n"[..], &b"more\n"[..]));
        log_writer.offer("after\n".into(), gap);
        assert_eq!([next(), next()], [b"2 missing\n".to_vec(), b"after\n".to_vec()]);
        // Its reader closes its end: what waits is lost and counted, and the thread ends.
        log_writer.offer("last\n".into(), gap);
        drop(permit);
        log_writer.close();
        assert!(written.wait(Duration::from_mins(1)));
        assert_eq!(lost.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn lines_before_the_close_are_written() {
        let ((permit, permits), (text, read)) = (channel(), channel());
        let (log_writer, written) = start(Gate { permits, text }, || {}).expect("a thread");
        for line in ["a\n", "b\n"] {
            log_writer.offer(line.into(), gap);
            permit.send(()).expect("it waits");
        }
        log_writer.close();
        assert!(written.wait(Duration::from_mins(1)));
        assert_eq!(read.iter().collect::<Vec<_>>().concat(), b"a\nb\n");
    }
}
