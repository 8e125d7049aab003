//! Descriptors that this process was started with, named by number on its command line.

#![expect(unsafe_code, reason = "a number is turned into the descriptor that it names")]

use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

use anyhow::{Context as _, ensure};
use rustix::io::{FdFlags, fcntl_setfd};

/// Takes over the descriptor with this number. Each number may be taken once.
///
/// # Errors
/// Where nothing is open under the number: the process was not started by the supervisor.
pub(crate) fn take(number: RawFd) -> anyhow::Result<OwnedFd> {
    ensure!(
        number > 2,
        "descriptor {number} is not to be taken over: this command is started by `plimsoll run`, not by hand"
    );
    std::fs::metadata(format!("/proc/self/fd/{number}"))
        .with_context(|| format!("descriptor {number} is not open: this command is started by `plimsoll run`"))?;
    // SAFETY: it is open, as was just seen, and nothing else in this process owns it: numbers are taken right at the
    // start, before this process opens anything, and each one once.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    Ok(fd)
}
