//! The way of the log to standard output: a thread and a bounded queue before it.
//!
//! Whoever reads the log may stop reading. Then lines are lost; whoever writes them goes on.

use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

/// Lines that wait for their reader.
const LINES: usize = 512;

/// Takes lines and never waits. Once it is dropped, the thread writes what is left and ends.
#[derive(Debug)]
pub(crate) struct LogWriter {
    lines: SyncSender<String>,
}

/// Tells when everything is written.
#[derive(Debug)]
pub(crate) struct Written(Receiver<()>);

/// Starts the thread that writes to `target`; `lost` is called for each line that could not be written.
pub(crate) fn start(
    mut target: impl Write + Send + 'static,
    lost: impl Fn() + Send + 'static,
) -> anyhow::Result<(LogWriter, Written)> {
    let (lines, waiting) = sync_channel::<String>(LINES);
    let (done, written) = sync_channel(0);
    let write = move || {
        for line in waiting {
            if target.write_all(line.as_bytes()).and_then(|()| target.flush()).is_err() {
                lost();
            }
        }
        // Its other end hangs up when this goes.
        drop(done);
    };
    thread::Builder::new().name("log".into()).spawn(write).context("cannot start the thread that writes the log")?;
    Ok((LogWriter { lines }, Written(written)))
}

impl LogWriter {
    /// Hands over a line, its end included. False: there was no room.
    pub(crate) fn offer(&self, line: String) -> bool {
        self.lines.try_send(line).is_ok()
    }
}

impl Written {
    /// Waits for the thread's end, at most so long. False: the reader of the log is still not reading.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        self.0.recv_timeout(patience) != Err(RecvTimeoutError::Timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    /// A reader that lets one write through for each word.
    struct Stuck {
        words: Receiver<()>,
        text: std::sync::mpsc::Sender<Vec<u8>>,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.words.recv().is_err() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.text.send(bytes.to_vec()).expect("the test reads it");
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_does_not_read_loses_lines_and_stops_nobody() {
        let ((word, words), (text, read)) = (channel(), channel());
        let lost = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&lost);
        let count = move || _ = count.fetch_add(1, Ordering::Relaxed);
        let (log_writer, written) = start(Stuck { words, text }, count).expect("a thread");
        assert!(log_writer.offer("first\n".into()));
        let mut more = 0;
        while log_writer.offer("more\n".into()) {
            more += 1;
            assert!(more <= LINES + 1, "it is not bounded");
        }
        assert!(more >= LINES - 1, "{more}");
        assert!(!written.wait(Duration::from_millis(1)));
        word.send(()).expect("it waits");
        assert_eq!(read.recv().expect("it writes"), b"first\n");
        // The reader goes; what waits is lost and counted, and the thread ends.
        drop((word, log_writer));
        assert!(written.wait(Duration::from_mins(1)));
        assert_eq!(lost.load(Ordering::Relaxed), more);
    }

    #[test]
    fn what_was_offered_is_written_before_the_end() {
        let ((word, words), (text, read)) = (channel(), channel());
        let (log_writer, written) = start(Stuck { words, text }, || {}).expect("a thread");
        for line in ["a\n", "b\n"] {
            assert!(log_writer.offer(line.into()));
            word.send(()).expect("it waits");
        }
        drop(log_writer);
        assert!(written.wait(Duration::from_mins(1)));
        assert_eq!(read.iter().collect::<Vec<_>>().concat(), b"a\nb\n");
    }
}
