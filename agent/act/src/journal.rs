//! Actions that are about to be taken, written where they outlive this process.

use plimsoll_node::cgroup::Handle;
use plimsoll_node::process::Pid;
use plimsoll_units::{CgroupId, MonotonicNs};

/// How far an action has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is about to be frozen; perhaps it is.
    Freezing,
    /// It was frozen.
    Frozen,
    /// It is about to be killed; perhaps it was.
    Killing,
    /// It was killed, and is waited for.
    KillWritten,
}

/// What a step belongs to. One cgroup can be in one of each at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// To be undone by thawing.
    Brake,
    /// Never to be done twice.
    Kill,
}

impl Step {
    /// Which action it is a step of.
    pub fn action(self) -> Action {
        match self {
            Self::Freezing | Self::Frozen => Action::Brake,
            Self::Killing | Self::KillWritten => Action::Kill,
        }
    }
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent<'p> {
    /// How far it has come.
    pub step: Step,
    /// Which cgroup it is taken on.
    pub cgroup: CgroupId,
    /// Where that cgroup is, below the root.
    pub path: &'p [u8],
    /// When the action began.
    pub since: MonotonicNs,
    /// It is taken on the parts of that cgroup ([`Handle::is_by_parts`]), and not on itself.
    pub by_parts: bool,
}

impl<'p> Intent<'p> {
    /// A step of an action on this cgroup.
    pub fn of(step: Step, handle: &'p Handle, since: MonotonicNs) -> Self {
        Self { step, cgroup: handle.id(), path: handle.path(), since, by_parts: handle.is_by_parts() }
    }
}

/// There is no room for another action; nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run record has no room for another action")]
pub struct JournalFull;

/// Where intents are written. Writing must not block or allocate, and must outlive the death of this process at any
/// instruction.
pub trait Journal {
    /// Writes an intent, in the place of an earlier step of the same action on the same cgroup.
    fn write(&mut self, intent: Intent<'_>) -> Result<(), JournalFull>;
    /// Forgets an action that is over. One that was never written is fine.
    fn clear(&mut self, cgroup: CgroupId, action: Action);
}

/// A process that is sent SIGSTOP because the freeze of its cgroup waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoppedProcess {
    /// Its number.
    pub pid: Pid,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// The cgroup that it was found in.
    pub cgroup: CgroupId,
}

/// Where stopped processes are written down before the signal, by a worker. Must outlive the death of this process at
/// any instruction.
pub trait StopJournal: core::fmt::Debug + Send + Sync {
    /// Writes a process down that is about to be stopped.
    fn write(&self, process: StoppedProcess) -> Result<(), JournalFull>;
    /// Continues all processes that were found in a cgroup and are still the same, and clears them.
    fn continue_in(&self, cgroup: CgroupId);
}
