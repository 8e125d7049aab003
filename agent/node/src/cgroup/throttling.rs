//! What memory.high does to a cgroup: how often it was exceeded, and how long tasks waited. For helper threads: each
//! figure opens a file.

use super::tree::some_children;
use super::{Handle, limit};
use crate::pressure::Pressure;
use crate::{Fault, parse};
use core::time::Duration;
use plimsoll_units::Bytes;
use rustix::fd::AsFd as _;
use rustix::fs::OFlags;

/// Counted since the cgroup was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// How often its own memory.high was exceeded, so that the task that was charged had to reclaim, and to wait where that
    /// was not enough: `high` of `memory.events.local` (Linux 5.2 and later), which leaves out the cgroups below.
    pub exceeded: u64,
    /// How long some of its tasks, or of those below it, waited for memory: `some` of `memory.pressure`. Absent where the
    /// kernel keeps no pressure stall information for it.
    pub stalled: Option<Duration>,
}

impl Handle {
    /// How memory.high throttles it.
    pub fn throttling(&self) -> Result<Throttling, Fault> {
        let file = self.open_file("memory.events.local", OFlags::RDONLY)?;
        let mut buffer = [0; 512];
        let exceeded = parse::field(file.read(&mut buffer)?, b"high").ok_or(file.malformed("high"))?;
        Ok(Throttling { exceeded, stalled: self.stalled() })
    }

    fn stalled(&self) -> Option<Duration> {
        let file = self.open_file("memory.pressure", OFlags::RDONLY).ok()?;
        let mut buffer = [0; 256];
        Pressure::parse(file.read(&mut buffer).ok()?).map(|pressure| pressure.some.total)
    }

    /// Above which its tasks are throttled; `None` for no limit of that kind.
    pub fn high(&self) -> Result<Option<Bytes>, Fault> {
        let high = limit(&self.open_file("memory.high", OFlags::RDONLY)?)?;
        Ok((high.0 != u64::MAX).then_some(high))
    }

    /// The paths of the cgroups directly in it, sorted; of `most` at most, which are the same ones each time.
    pub fn below(&self, most: usize) -> Result<Vec<Vec<u8>>, Fault> {
        let names =
            some_children(self.dir.as_fd(), most).map_err(|errno| Fault::Read { file: "its directory", errno })?;
        Ok(names.iter().map(|name| [self.path(), b"/", name].concat()).collect())
    }
}
