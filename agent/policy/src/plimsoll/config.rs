//! Lines and bounds that decisions about pods go by.

use crate::kubelet::{Line, Threshold};
use core::time::Duration;

/// In which order pods go when memory is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MemoryOrder {
    /// Over the request first, then low priority, then how far over, then the youngest.
    #[default]
    Plimsoll,
    /// By class of service; see [`openshift3`](crate::openshift3).
    OpenShift3,
}

/// When swap counts as pressure: less than this free, pages coming back from it, and all tasks stalling, all at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwapThreshold {
    /// Free swap below this is short.
    pub free: Line,
    /// For so long without a break before anybody goes.
    pub grace: Duration,
}

/// Everything [`decide`](super::decide()) goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The kubelet's thresholds, those derived for containerfs included.
    pub thresholds: Vec<Threshold>,
    /// Swap's own line, if it has one.
    pub swap: Option<SwapThreshold>,
    /// The order for memory.
    pub memory_order: MemoryOrder,
    /// How long a condition stays after a threshold behind it was met.
    pub pressure_transition: Duration,
    /// The longest that a victim of a soft threshold gets for an orderly end.
    pub max_pod_grace_seconds: i64,
    /// Limits of local storage are enforced.
    pub local_storage_isolation: bool,
    /// At most this many victims of hard thresholds within any sixty seconds.
    pub hard_victims_per_minute: u32,
    /// At most this many of soft ones, counted apart so that these never use up what hard ones need.
    pub soft_victims_per_minute: u32,
    /// Where only the kubelet's reading of memory is below a threshold, or for swap: at least this much of a window, in
    /// percent, must all tasks have been waiting for memory before somebody is evicted.
    pub stall_percent: u8,
    /// Where only the kubelet's reading is below a threshold: how long after a reclaim that did not help the next is
    /// asked.
    pub reclaim_pause: Duration,
    /// A clean-up that was not heard of for so long is not waited for any longer.
    pub reclaim_patience: Duration,
    /// How long a pod that returned at once and is over again is left alone at first; twice as long each time.
    pub loop_pause: Duration,
    /// The longest such pause.
    pub loop_pause_most: Duration,
}

impl Default for Config {
    /// No thresholds, the kubelet's defaults, and bounds that suit most machines.
    fn default() -> Self {
        Self {
            thresholds: Vec::new(),
            swap: None,
            memory_order: MemoryOrder::Plimsoll,
            pressure_transition: Duration::from_mins(5),
            max_pod_grace_seconds: 0,
            local_storage_isolation: true,
            hard_victims_per_minute: 20,
            soft_victims_per_minute: 10,
            stall_percent: 20,
            reclaim_pause: Duration::from_secs(10),
            reclaim_patience: Duration::from_secs(30),
            loop_pause: Duration::from_secs(10),
            loop_pause_most: Duration::from_mins(5),
        }
    }
}
