//! What must survive the death of a process, at any instruction: the run record of what is frozen and being killed, the
//! processes that were stopped one by one, the lock that lets one agent act, the queue from the core to the reporter,
//! and the heartbeat of the core. What must survive the end of the machine, too, is in [`durable`], on a disk.
//!
//! All shared memory is whole 64-bit words, checked on every read: what another process left behind, or is writing at
//! the same time, is never trusted. Writing to it allocates nothing and never waits. It does not outlive a reboot, and need
//! not: no freeze does.

pub mod durable;
mod error;
pub mod handover;
pub mod heartbeat;
mod lock;
pub mod queue;
mod record;
mod shared;
mod stopped;
mod undo;

pub use error::StateError;
pub use lock::ActingLock;
pub use record::{Entry, Found, Record};
pub use stopped::{Continued, StoppedProcesses, continue_stopped};
pub use undo::{PendingKill, Undone, thaw, undo};
