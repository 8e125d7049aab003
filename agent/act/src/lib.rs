//! What is done about a plan: brake a cgroup, kill it, take its memory back, and see that it is gone.
//!
//! State machines that the core's thread drives with its own clock: each call reads a few descriptors that are open
//! already and returns. Nothing here decides, allocates after it was made, formats, logs, or waits; what blocks is handed
//! to a [`Worker`]. Freezing and killing a cgroup block: both wait for one lock of all cgroups.
//!
//! Every action is written into a [`Journal`] before it is done, so that the next process can undo it.

#![forbid(unsafe_code)]

mod brake;
mod journal;
mod kill;
mod point;
mod release;
mod signalling;
#[cfg(test)]
mod testing;
mod worker;

pub use brake::{BrakeEvent, BrakeLimits, BrakeRefused, Brakes};
pub use journal::{Action, Intent, Journal, JournalFull, Step, StopJournal, StoppedProcess};
pub use kill::{Begun, KillEvent, KillLimits, KillRefused, Kills, REGROWN};
#[cfg(feature = "kill-points")]
pub use point::on_reached;
pub use point::{KillPoint, reached};
pub use worker::{Done, Job, LATE, Reclaimed, Worker, Workers};
