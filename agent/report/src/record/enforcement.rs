//! What was done to a cgroup or a process, and what became of it.

use core::fmt;
use core::time::Duration;

use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde::{Deserialize, Serialize};

/// Sent by the watching thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EnforcementRecord<'a> {
    /// A cgroup was frozen or thawed; or that was refused.
    Brake {
        /// Its path.
        path: &'a [u8],
        /// When.
        at: MonotonicNs,
        /// What became of it.
        what: Braked,
    },
    /// The in-kernel brake stopped a process.
    StoppedInKernel {
        /// The process.
        pid: u32,
        /// The marked slice.
        slice: CgroupId,
        /// When, by the kernel.
        at: MonotonicNs,
    },
    /// A cgroup was killed; or that was refused.
    Kill {
        /// The plan that named it, or zero for what became of an earlier kill.
        plan: u64,
        /// Its path.
        path: &'a [u8],
        /// Its usage when that was decided.
        usage: Option<Bytes>,
        /// When.
        at: MonotonicNs,
        /// What became of it.
        what: Killed,
    },
    /// The memory of a victim's processes was taken while they died.
    Released {
        /// The cgroup.
        cgroup: CgroupId,
        /// Processes whose memory was taken before they exited.
        released: u32,
        /// Processes that had exited before that.
        gone: u32,
        /// Processes whose memory could not be taken.
        kept: u32,
    },
    /// Reclaim that was asked for is over.
    Reclaimed {
        /// The cgroup.
        cgroup: CgroupId,
        /// How much was asked for.
        asked: Bytes,
        /// All of it was reclaimed.
        all: bool,
    },
    /// An evicted pod is held down, or is no more; or that was refused.
    Hold {
        /// The path of its cgroup.
        path: &'a [u8],
        /// When.
        at: MonotonicNs,
        /// What became of it.
        what: Held,
    },
    /// How many pods are held down. When that changes, and from time to time while there are any.
    HeldDown {
        /// So many.
        count: u32,
    },
}

/// What became of a brake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Braked {
    /// It is frozen.
    Frozen,
    /// Its freeze waits for other writers, and so many of its processes were stopped one by one meanwhile.
    Stopped(u32),
    /// It was thawed after so long.
    Thawed(Duration),
    /// It grew by so much although it was frozen; it stays frozen, and the next plan ranks it as growing.
    StillGrows(Bytes),
    /// It was removed meanwhile.
    Gone,
    /// It could not be frozen.
    Refused(Refused),
    /// It could not be thawed; it is tried again shortly.
    ThawFailed,
}

impl Braked {
    /// In the log's field `brake` and the metric's label `outcome`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frozen => "frozen",
            Self::Stopped(_) => "stopped",
            Self::Thawed(_) => "thawed",
            Self::StillGrows(_) => "still-grows",
            Self::Gone => "gone",
            Self::Refused(_) => "refused",
            Self::ThawFailed => "thaw-failed",
        }
    }
}

/// What became of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Killed {
    /// All its processes were sent the signal.
    Begun,
    /// It was asked to terminate by itself within so long.
    Asked(Duration),
    /// It was removed or empty before.
    Gone,
    /// It grew by so much since, so that not all of it is what was killed, and was killed once more.
    Again(Bytes),
    /// Its last process exited: how long that took, and what is still charged to it.
    Emptied(Duration, Option<Bytes>),
    /// It has not emptied in time, or went on growing; what is still charged to it.
    Stuck(Option<Bytes>),
    /// It was not killed.
    Refused(Refused),
}

impl Killed {
    /// In the log's field `kill`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Asked(_) => "asked",
            Self::Gone => "gone",
            Self::Again(_) => "again",
            Self::Emptied(..) => "emptied",
            Self::Stuck(_) => "stuck",
            Self::Refused(_) => "refused",
        }
    }
}

/// What became of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Held {
    /// It is frozen, for so long at most.
    Begun(Duration),
    /// It is frozen no more, for this reason and after so long.
    Ended(HoldEnd, Duration),
    /// It could not be frozen.
    Refused(Refused),
}

impl Held {
    /// In the log's field `hold`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Begun(_) => "begun",
            Self::Ended(..) => "ended",
            Self::Refused(_) => "refused",
        }
    }

    /// Why it ended.
    pub const fn end(self) -> Option<HoldEnd> {
        match self {
            Self::Ended(why, _) => Some(why),
            Self::Begun(_) | Self::Refused(_) => None,
        }
    }
}

/// Why a pod is not held down any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HoldEnd {
    /// The API server has its status, or has it no more. What was started in it was killed.
    Recorded,
    /// Its time was over.
    Over,
    /// Its cgroup was removed.
    Gone,
    /// The agent ends, or acts no more.
    NotActing,
}

impl HoldEnd {
    /// In the log's field `reason`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Over => "over",
            Self::Gone => "gone",
            Self::NotActing => "not-acting",
        }
    }
}

/// Why nothing was done. Nothing was left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refused {
    /// That is under way already.
    Already,
    /// Another program froze it.
    ByOther,
    /// There is no room for another.
    Full,
    /// The kernel refused, with this error number where there is one.
    Kernel(Option<i32>),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Already => f.write_str("that is under way already"),
            Self::ByOther => f.write_str("another program froze it"),
            Self::Full => f.write_str("there is no room for another"),
            Self::Kernel(None) => f.write_str("the kernel refused"),
            Self::Kernel(Some(errno)) => std::io::Error::from_raw_os_error(*errno).fmt(f),
        }
    }
}
