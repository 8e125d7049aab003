//! The disks that a node has, and what pods take of them: which file systems `nodefs`, `imagefs` and `containerfs` are,
//! what is left on each, when to look again, and how much each pod's logs and volumes occupy.
//!
//! Whatever touches a disk may hang, for as long as a dead disk or an NFS server does. [`Worker`] asks in a thread of
//! its own and keeps the answer with its time, so that no thread waits; [`DiskWatch`] has one for each file system. A
//! [`Scan`] goes through a tree in slices that its caller paces, and holds a bounded amount of memory and descriptors
//! whatever is in the tree.
//!
//! Nothing here decides, and nothing writes to a disk or assigns a quota. What could not be read is absent, never zero.
//! What is measured how, with bounds and sources, is in agent/docs/local-storage.md.

#![forbid(unsafe_code)]

mod directory;
mod disks;
mod error;
mod layout;
mod mounts;
mod pace;
mod pod;
mod projects;
mod scan;
mod statfs;
mod worker;

pub use disks::{DiskState, DiskWatch};
pub use error::StorageError;
pub use layout::{Disks, Roots, Warning, find};
pub use mounts::{Device, FileSystem, Mounts};
pub use pace::{Left, Pace, has_moved, next_reading};
pub use pod::{Measure, Part, PodDirectories, PodDirectory, PodName, VolumeKind};
pub use projects::{VolumeProject, volume_projects};
pub use scan::{Count, Incomplete, Outcome, Progress, Scan, Slice};
pub use statfs::{Trouble, left_at, room_at};
pub use worker::{Slots, Worker};
