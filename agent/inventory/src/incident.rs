//! What the process that decides did, or was too late for, beside evictions and conditions: for people, sent once.

use core::time::Duration;

use plimsoll_policy::Uid;
use plimsoll_units::{Bytes, CgroupId};
use serde::{Deserialize, Serialize};

/// A process's command name as the kernel has it (`TASK_COMM_LEN`), which the process may choose.
pub type CommandName = [u8; 16];

/// The longest part of a path in a message, in bytes.
const MOST_PATH: usize = 32;

/// Something that happened to a pod, or to a cgroup that is none's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// What.
    pub what: IncidentKind,
    /// To what.
    pub of: IncidentOf,
    /// When, in milliseconds since 1970 by the clock of the wall.
    pub wall_ms: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IncidentKind {
    /// It was frozen while memory was short, and goes on after so long.
    Frozen(Duration),
    /// A process in it was stopped by the kernel program while memory was short.
    Stopped,
    /// The kernel was asked to take back so much of its page cache, and took all of that or less.
    Reclaimed {
        /// What was asked for.
        asked: Bytes,
        /// All of it was taken back.
        is_all: bool,
    },
    /// The OOM killer killed a process, and not at the limit of a container.
    OomKill {
        /// The process.
        pid: u32,
        /// Its command name, filled up with zero bytes.
        name: CommandName,
        /// What it had resident.
        resident: Option<Bytes>,
        /// What there was no memory left of.
        exhausted: Exhausted,
    },
}

/// What the OOM killer found no memory left of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exhausted {
    /// The machine, which has a threshold.
    Machine,
    /// A slice with a threshold, whose memory.max was reached.
    Slice(PathEnd),
    /// The NUMA nodes that the process is bound to, by its cpuset or by a memory policy. No threshold is for these: to evict from
    /// the whole machine would bring back memory of other nodes.
    NumaNodes,
}

/// Where it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IncidentOf {
    /// In a pod.
    Pod(Uid),
    /// In a cgroup that is no pod's, as far as that is known.
    Cgroup {
        /// Which; absent where that is not known.
        id: Option<CgroupId>,
        /// Its path below the cgroup root; empty where that is not known.
        path: PathEnd,
    },
}

/// The end of a cgroup's path, which names it, as far as it fits: bytes that were chosen where the cgroup was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathEnd([u8; MOST_PATH]);

impl PathEnd {
    /// That of this path.
    pub fn of(path: &[u8]) -> Self {
        let (mut bytes, end) = ([0; MOST_PATH], &path[path.len().saturating_sub(MOST_PATH)..]);
        bytes[..end.len()].copy_from_slice(end);
        Self(bytes)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        without_zeros(&self.0)
    }
}

/// A name without the zero bytes that it is filled up with.
pub fn without_zeros(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_path_that_is_too_long_the_end_is_kept() {
        let long = b"system.slice/system-backup.slice/backup.service";
        for (path, expected) in [
            (&b""[..], &b""[..]),
            (b"system.slice/cron.service", b"system.slice/cron.service"),
            (&long[..], &long[long.len() - MOST_PATH..]),
        ] {
            assert_eq!(PathEnd::of(path).bytes(), expected);
        }
    }
}
