//! The disks that a node has, and what pods take of them.
//!
//! A [`Scan`] goes through a tree in slices that its caller paces, and holds a bounded amount of memory and descriptors
//! whatever is in the tree.
//!
//! Nothing here decides, and nothing writes to a disk or assigns a quota. What could not be read is absent, never zero.

#![forbid(unsafe_code)]

mod error;
mod layout;
mod mounts;
mod scan;

pub use error::StorageError;
pub use layout::{Disks, Roots, Warning, find};
pub use mounts::{Device, FileSystem};
pub use scan::{Count, Incomplete, Outcome, Progress, Scan, Slice};
