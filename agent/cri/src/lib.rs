//! What the container runtime knows of pods, containers and images, and what it may be asked to stop, remove and relax.
//!
//! A runtime's socket is equivalent to root: a process that may write to it may run anything on the node. [`Runtime`] is
//! therefore a client of fourteen calls of the Container Runtime Interface, version 1, and has no others: it lists, stops and
//! removes, and sets memory.high of a container. The messages for running, executing, attaching and port forwarding do not
//! exist in this program ([decision 11](../../docs/decisions/0011-a-narrow-client-of-the-runtime.md)).
//!
//! The rules of what may be removed are pure functions over what was listed: [`assess`] and [`unused`] for images,
//! [`dead_containers`] and [`dead_sandboxes`] for the rest. [`Collector`] removes by them as far as it is ordered to. Nothing
//! here decides to remove anything.
//!
//! # What is trusted
//!
//! The runtime is: it is root. The text that it passes on is not: names, labels, annotations, image references and paths
//! were written by the authors of pods. They are kept as they came, with control characters and terminal escapes in
//! them, and code that prints them neutralises them. Errors print such text escaped.
//!
//! # Bounds
//!
//! Each call has a time limit and its answer a size limit ([`Limits`]); nothing is retried except once, on a new
//! connection, a call whose old connection was lost. A [`Runtime`] has one call under way at a time, and a clone of it has
//! another one on the same connection. What a call returns
//! takes at most some four times its answer's size, and nothing is kept between calls. [`History`] remembers at most
//! [`History::MOST`] images.

#![forbid(unsafe_code)]

mod broker;
mod collect;
mod connection;
mod dead;
mod dial;
mod error;
mod id;
mod images;
mod in_use;
mod listed;
mod request;
mod runtime;
mod sockets;
mod stop;

pub use broker::{Change, Guard, Listed, pass};
pub use collect::{Collect, Collected, Collector};
pub use connection::{Call, Limits, Version};
pub use dead::{Dead, dead_containers, dead_sandboxes};
pub use dial::Dial;
pub use error::Error;
pub use id::{ContainerId, IdError, ImageId, SandboxId};
pub use images::{Assessed, History, Kept, Rules, assess, unused};
pub use in_use::InUse;
pub use listed::{
    Container, ContainerState, ContainerStatus, FileSystem, FileSystems, Image, ImageUse, Sandbox, SandboxState,
    WritableLayer,
};
pub use runtime::Runtime;
pub use sockets::{USUAL_SOCKETS, socket_path};
pub use stop::RunningPod;

/// The messages, as they are compiled from `proto/runtime.proto`.
mod proto {
    #![expect(
        unreachable_pub,
        clippy::enum_variant_names,
        clippy::struct_field_names,
        clippy::trivially_copy_pass_by_ref,
        reason = "generated"
    )]
    include!(concat!(env!("OUT_DIR"), "/messages/runtime.v1.rs"));
}
