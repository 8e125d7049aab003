//! Which workloads there are: cgroups that a pattern names and that may be evicted, with their owners and slow figures,
//! and the table that the watching thread takes observations from.
//!
//! [`Inventory`] walks directories, opens files and allocates, on a thread of its own. What it finds it sends as
//! [`Update`]s. [`Table`] takes these in on the watching thread; it opens nothing, and allocates nothing after it was
//! made. [`Containers`] has figures of workloads and of what is directly in them, by which nothing is decided. Nothing here
//! decides, kills or logs. [`Message`] and [`StorageMessage`] are what other processes send of the node, pods
//! and disks, and [`CoreMessage`] is what they are sent.

#![forbid(unsafe_code)]

mod containers;
mod core_message;
mod discover;
mod identity;
mod incident;
mod inventory;
mod message;
mod orphans;
mod owner;
mod patterns;
mod pods;
mod protected;
mod rate;
mod relief;
mod removal;
mod runtime_order;
mod seen;
mod slices;
mod storage;
mod table;
mod termination;
mod throttle;
mod update;

pub use containers::{Container, ContainerFigures, Containers, Found as FoundContainer, MOST_CONTAINERS};
pub use core_message::{
    CORE_MESSAGE, ConditionState, CoreMessage, Eviction, EvictionCause, EvictionNumber, EvictionStep, Receipt,
    ReceiptOf,
};
pub use discover::{Bounds, Discovery, Found, discover, workload_of};
pub use identity::{ContainerCgroup, ContainerKind, PodCgroup, identify, identify_in, is_monitor};
pub use incident::{CommandName, Exhausted, Incident, IncidentKind, IncidentOf, PathEnd, without_zeros};
pub use inventory::{Config, Coverage, Inventory, Refresh, Sink};
pub use message::{DiskReading, DiskRole, MESSAGE, Message, Room, Source};
pub use orphans::OrphanedPods;
pub use patterns::Patterns;
pub use pods::{MOST_PODS, Pod, PodFacts, PodIdentity, PodMessage, PodRoot, Pods, Rank};
pub use protected::Protected;
pub use rate::Rate;
pub use relief::{EVICTED_AFTER, RAISED_WITHIN, Relief, ReliefMode, Reliefs, Throttled};
pub use removal::{RemovalError, RemovalOrder, RemovalResult, RemovalWords};
pub use runtime_order::{ContainerNumber, RelaxOrder, StopOrder, StopResult};
pub use slices::SlicePlace;
pub use storage::{
    Counts, InUse, LayersOn, Limited, MOST_PARTS, Measurer, PartUsage, PodStorage, StorageLimit, StorageMessage,
    StoragePart, name_number,
};
pub use table::{Observed, SLOTS, Table, Unobserved, Workload};
pub use termination::Termination;
pub use throttle::{Change, Ended, Stall, Throttle};
pub use update::{Facts, Mark, SliceFacts, SliceFigures, Update};
