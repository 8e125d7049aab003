//! The disks that a node has, and what pods take of them.
//!
//! Nothing here decides, and nothing writes to a disk or assigns a quota. What could not be read is absent, never zero.

#![forbid(unsafe_code)]

mod error;
mod layout;
mod mounts;

pub use error::StorageError;
pub use layout::{Disks, Roots, Warning, find};
pub use mounts::{Device, FileSystem};
