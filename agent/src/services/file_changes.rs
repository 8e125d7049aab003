//! When to look at a file again.

use std::future::pending;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Instant, sleep_until};

/// It is looked at so often at most.
const PAUSE: Duration = Duration::from_secs(1);
/// It is looked at so often at least: what a symbolic link leads to changes without a notice.
const SLOWEST: Duration = Duration::from_secs(30);
/// How many reads of notices come before a look: more of them say nothing more.
const READS: usize = 16;

/// Has the kernel give notice of what changes in a directory, for [`Changes`].
///
/// # Errors
/// Where the directory may not be listed, or this user has as many instances as it may.
pub(super) fn notices_of(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let notices = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let what = WatchFlags::CREATE | WatchFlags::MODIFY | WatchFlags::MOVED_TO | WatchFlags::MOVED_FROM;
    let what = what | WatchFlags::DELETE | WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
    inotify::add_watch(&notices, format!("/proc/self/fd/{}", directory.as_raw_fd()), what)?;
    Ok(notices)
}

/// The moments at which a file may have changed.
pub(super) struct Changes {
    notices: Option<Receiver>,
    pause: Duration,
    slowest: Duration,
    looked: Option<Instant>,
    /// Something has changed since.
    is_noticed: bool,
}

impl Changes {
    /// Of a file in the directory of these notices; without any it is looked at as often as may be.
    ///
    /// # Errors
    /// Where the runtime cannot wait for them.
    pub(super) fn by(notices: Option<OwnedFd>) -> std::io::Result<Self> {
        // They are waited for and read as what comes by a pipe.
        let notices = notices.map(|notices| Receiver::from_file_unchecked(notices.into())).transpose()?;
        let slowest = if notices.is_some() { SLOWEST } else { PAUSE };
        Ok(Self { notices, pause: PAUSE, slowest, looked: None, is_noticed: false })
    }

    /// Waits for the next one; the first is at once. May be dropped and called again.
    pub(super) async fn next(&mut self) {
        if let Some(looked) = self.looked {
            if !self.is_noticed {
                tokio::select! {
                    () = noticed(self.notices.as_ref()) => self.is_noticed = true,
                    () = sleep_until(looked + self.slowest) => {}
                }
            }
            // Over where there was no notice: at rest one timer is enough.
            sleep_until(looked + self.pause).await;
        }
        (self.looked, self.is_noticed) = (Some(Instant::now()), false);
    }
}

/// Waits for a notice, and takes all that are there.
async fn noticed(notices: Option<&Receiver>) {
    let Some(notices) = notices else { return pending().await };
    if notices.readable().await.is_err() {
        return pending().await;
    }
    for _ in 0..READS {
        if notices.try_read(&mut [0; 4096]).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;
    use tokio::time::timeout;

    const LONG: Duration = Duration::from_hours(1);
    const PATIENCE: Duration = Duration::from_mins(1);
    const SHORT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn what_becomes_of_a_file_in_the_directory_is_noticed_and_nothing_comes_without() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (file, new) = (directory.path().join("pods.json"), directory.path().join("new"));
        let opened = std::fs::File::open(directory.path()).expect("it is there");
        let notices = notices_of(opened.as_fd()).expect("an instance");
        let mut changes = Changes::by(Some(notices)).expect("a descriptor");
        (changes.pause, changes.slowest) = (Duration::ZERO, LONG);
        timeout(PATIENCE, changes.next()).await.expect("the first is at once");
        let steps: [(&str, &dyn Fn() -> std::io::Result<()>); 4] = [
            ("written", &|| std::fs::write(&file, "[]")),
            ("written again", &|| std::fs::write(&file, "[ ]")),
            ("replaced", &|| std::fs::write(&new, "[]").and_then(|()| std::fs::rename(&new, &file))),
            ("removed", &|| std::fs::remove_file(&file)),
        ];
        for (what, step) in steps {
            assert!(timeout(SHORT, changes.next()).await.is_err(), "not {what} yet");
            step().expect("writable");
            timeout(PATIENCE, changes.next()).await.expect(what);
        }
    }

    #[tokio::test]
    async fn without_notices_it_is_looked_at_after_a_pause() {
        let mut changes = Changes::by(None).expect("nothing is needed");
        assert_eq!((changes.pause, changes.slowest), (PAUSE, PAUSE));
        changes.next().await;
        (changes.pause, changes.slowest) = (SHORT, SHORT);
        let begun = Instant::now();
        timeout(PATIENCE, changes.next()).await.expect("after the pause");
        assert!(begun.elapsed() < PATIENCE && changes.looked.is_some_and(|looked| looked >= begun));
    }
}
