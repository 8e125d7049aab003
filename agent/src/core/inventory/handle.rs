//! How the watching thread asks the inventory thread for something: a word and a descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

/// What the watching thread asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::core) enum Request {
    /// Look for workloads that came or went.
    Discover = 1,
    /// Read the slow figures now.
    Refresh = 2,
    /// Name the processes that hold much memory outside all workloads.
    Suspects = 4,
    /// End.
    End = 8,
    /// Report that this agent acts from now on.
    TakeOver = 16,
}

/// The watching thread's end.
#[derive(Clone, Debug)]
pub(in crate::core) struct InventoryHandle {
    asked: Arc<AtomicU32>,
    /// How often the watching thread woke.
    turns: Arc<AtomicU32>,
    wake: Arc<OwnedFd>,
}

impl InventoryHandle {
    pub(in crate::core) fn new() -> Result<Self, Errno> {
        Ok(Self { asked: Arc::default(), turns: Arc::default(), wake: Arc::new(eventfd()?) })
    }

    /// Asks; a second request before the first is taken changes nothing.
    pub(in crate::core) fn request(&self, what: Request) {
        if self.asked.fetch_or(what as u32, Ordering::AcqRel) & what as u32 == 0 {
            ring(&self.wake);
        }
    }

    /// The watching thread woke.
    pub(in crate::core) fn turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the watching thread woke.
    pub(super) fn turns(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Takes all that was asked, as the bits of [`Request`].
    pub(super) fn take(&self) -> u32 {
        clear(&self.wake);
        self.asked.swap(0, Ordering::AcqRel)
    }
}

impl AsFd for InventoryHandle {
    /// Readable when something was asked.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// An eventfd for a wake between two threads or processes.
pub(in crate::core) fn eventfd() -> Result<OwnedFd, Errno> {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Makes an eventfd readable.
pub(in crate::core) fn ring(fd: &OwnedFd) {
    // A full counter is readable already.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Makes an eventfd unreadable until it is written again.
pub(in crate::core) fn clear(fd: &OwnedFd) {
    let mut count = [0; 8];
    while let Err(Errno::INTR) = rustix::io::read(fd, &mut count) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_twice_before_it_is_taken_is_done_once() {
        let handle = InventoryHandle::new().expect("an eventfd");
        handle.request(Request::Discover);
        handle.request(Request::Discover);
        handle.request(Request::End);
        assert_eq!(handle.take(), Request::Discover as u32 | Request::End as u32);
        assert_eq!(handle.take(), 0);
    }
}
