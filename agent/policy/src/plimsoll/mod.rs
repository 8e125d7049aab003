//! The eviction policy `plimsoll`: the kubelet's thresholds, conditions, ranking and messages over pods and all nine
//! signals, without the defects that users report. [`openshift3`](crate::openshift3) is the same with another order for
//! memory.
//!
//! Every difference from the kubelet has a paragraph in `agent/docs/eviction-policies.md`. Where to find it:
//!
//! - [`judge`]: which lines are crossed, by which reading, since when; conditions; swap as a threshold of its own.
//! - [`reclaim`]: what is cleaned up first, in which order, and when that was enough.
//! - [`ranking`]: who would go first, and who cannot.
//! - [`victims`]: how many go, what is coming back already, and the bounds.
//! - [`loops`]: pods that return at once and are over again.
//! - [`decide()`] puts these together, once a turn.
//! - [`text`] says it in words.
//!
//! Nothing here reads a file or a clock or kills anybody, and but for [`text`] nothing allocates after the start.

mod config;
mod decide;
mod judge;
mod loops;
mod observation;
mod plan;
mod ranking;
mod reclaim;
mod state;
pub mod text;
mod victims;

pub use config::{Config, MemoryOrder, SwapThreshold};
pub use decide::decide;
pub use observation::{Going, Image, Observation, OwnerUid, Pod, PodUid, Reclaimed, Swap};
pub use plan::{
    Action, ConditionCase, Deficit, Fate, Judged, NoVictim, Outcome, Plan, Ranked, ReclaimOrder, Stage, Why,
};
pub use state::State;
