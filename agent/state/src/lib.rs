//! What must survive the death of a process, at any instruction: the run record of what is frozen and being killed, the
//! processes that were stopped one by one, what the next core goes on with ([`Kept`]) and which pods are protected, the
//! lock that lets one agent act, the queue from the core to the reporter, and the heartbeat of the core. What must survive
//! the end of the machine, too, is in [`durable`], on a disk.
//!
//! All shared memory is whole 64-bit words, checked on every read: what another process left behind, or is writing at
//! the same time, is never trusted. Writing to it allocates nothing and never waits. It does not outlive a reboot, and need
//! not: no freeze does.

pub mod durable;
mod error;
pub mod handover;
pub mod heartbeat;
mod kept;
mod lock;
mod protections;
pub mod queue;
mod record;
mod shared;
mod stopped;
mod two_slots;
mod undo;

pub use error::StateError;
pub use kept::{KEPT_MOST, Kept};
pub use lock::ActingLock;
pub use protections::{Protected, Protections};
pub use record::{Entry, Record};
pub use stopped::{Continued, StoppedProcesses, continue_stopped};
pub use two_slots::Found;
pub use undo::{PendingKill, Undone, thaw, undo};
