//! The kernel's counters of pages. Each CPU keeps back what it adds, up to a threshold (`vm stats threshold` in
//! /proc/zoneinfo), and folds it in about once a second.

use crate::Fault;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

/// Reading it has every CPU fold in what it keeps back (mm/vmstat.c, `vmstat_refresh`).
const REFRESH: &str = "/proc/sys/vm/stat_refresh";

/// Has every CPU fold in what it keeps back, and waits for all of them: not for the thread that watches. A CPU on which a
/// real-time task runs without a pause answers when that yields. Root may, without any capability.
///
/// `EINVAL` counts as done: an older kernel answers it where one of its counters is below zero, after all CPUs are
/// through.
pub fn fold() -> Result<(), Fault> {
    let read = openat(CWD, REFRESH, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::read(&file, &mut [0_u8; 1]));
    match read {
        Ok(_) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(Fault::Read { file: REFRESH, errno }),
    }
}
