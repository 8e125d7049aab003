//! Thresholds and bounds, already parsed and checked: what [`decide`](crate::decide()) depends on.

use crate::eviction_policy::EvictionPolicy;
use crate::kubelet::{Signal, Threshold, ThresholdAmount};
use crate::plan::Why;
use crate::scope::Scope;
use core::time::Duration;
use plimsoll_units::{Bytes, Percentage};

/// When swap counts as pressure: less than this free, pages coming back from it, and all tasks stalling, all at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwapThreshold {
    /// Free swap below this is short.
    pub free: ThresholdAmount,
    /// For so long without a break before anything is evicted.
    pub grace: Duration,
}

/// The thresholds of a slice that has its own memory limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SliceThresholds {
    /// Thresholds on memory, below the slice's limit.
    pub thresholds: Vec<Threshold>,
}

/// Everything that [`decide`](crate::decide()) depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which implementation decides, and in which order workloads are evicted.
    pub eviction_policy: EvictionPolicy,
    /// The node's thresholds, those derived for containerfs included.
    pub thresholds: Vec<Threshold>,
    /// Slices with thresholds of their own, at most [`SliceSet::MAX_SLICES`](crate::SliceSet::MAX_SLICES);
    /// [`SliceId`](crate::SliceId) is the index.
    pub slices: Vec<SliceThresholds>,
    /// Swap's own threshold, if it has one.
    pub swap: Option<SwapThreshold>,
    /// How long a condition stays after a threshold behind it was last crossed, in its grace or beyond.
    pub pressure_transition: Duration,
    /// The longest that a victim of a soft threshold gets for an orderly end.
    pub max_pod_grace_seconds: i64,
    /// Limits of local storage are enforced.
    pub local_storage_isolation: bool,
    /// At most so many owners lose workloads for hard thresholds within any sixty seconds.
    pub hard_victims_per_minute: u32,
    /// At most so many for soft ones, counted apart so that these never use up what hard ones need.
    pub soft_victims_per_minute: u32,
    /// Evict by rank even where most of the growth was in nothing that may be evicted.
    pub evict_for_unattributed: bool,
    /// Growth counts from this much of the fall in available memory on, in percent. Where workloads that may be evicted
    /// grew by less together, none of them is responsible for it; and for what another left behind only those pay that
    /// grew by this much of what the one grew by that grew most.
    pub responsible_percent: u8,
    /// Memory is plentiful while this much more than the highest threshold is available; growth is measured from there.
    pub plentiful: ThresholdAmount,
    /// Where only the kubelet's reading of memory is below a threshold, or for swap: at least this much of a window, in
    /// percent, must all tasks have been waiting for memory before anything is evicted.
    pub stall_percent: u8,
    /// Where only the kubelet's reading is below a threshold: how long after a reclaim that did not help the next is
    /// asked.
    pub reclaim_pause: Duration,
    /// A reclaim whose end was not reported for so long is not waited for any longer.
    pub reclaim_patience: Duration,
    /// How long a pod that returned at once and is over its request again is left alone at first; twice as long each
    /// time.
    pub loop_pause: Duration,
    /// The longest such pause.
    pub loop_pause_most: Duration,
}

impl Config {
    /// The thresholds of a scope; none for a slice that is not configured.
    pub fn thresholds_in(&self, scope: Scope) -> &[Threshold] {
        match scope {
            Scope::Node => &self.thresholds,
            Scope::Slice(slice) => {
                self.slices.get(slice.0 as usize).map_or(&[][..], |slice| slice.thresholds.as_slice())
            }
        }
    }

    /// Those of a scope that are on one signal.
    pub fn thresholds_on(&self, scope: Scope, signal: Signal) -> impl Iterator<Item = &Threshold> + Clone {
        self.thresholds_in(scope).iter().filter(move |threshold| threshold.signal == signal)
    }

    /// The signal that a scope's own memory is called by: of the cgroup of all pods what is allocatable.
    pub fn memory_signal(&self, scope: Scope) -> Signal {
        let of_slice = self.thresholds_in(scope).first().filter(|_| scope != Scope::Node);
        of_slice.map_or(Signal::MemoryAvailable, |threshold| threshold.signal)
    }

    /// Whether the conditions of a scope are the node's: its own, and what all pods lack together, as in the kubelet, where
    /// `memory.available` and `allocatableMemory.available` have one condition (`signalToNodeCondition`).
    pub fn is_of_node(&self, scope: Scope) -> bool {
        scope == Scope::Node || self.memory_signal(scope) == Signal::AllocatableMemoryAvailable
    }

    /// The signal of a threshold, by its place; absent where it is no threshold on a signal.
    pub fn signal_of(&self, scope: Scope, why: Why) -> Option<Signal> {
        match why {
            Why::Threshold(index) => Some(self.thresholds_in(scope).get(index as usize)?.signal),
            Why::Swap | Why::Limit(_) => None,
        }
    }
}

impl Config {
    /// The seconds that a victim has for an orderly end where there is time for one: its own grace, and no more than the
    /// longest that is given.
    pub fn soft_grace_seconds(&self, own: Option<i64>) -> i64 {
        own.map_or(self.max_pod_grace_seconds, |own| own.min(self.max_pod_grace_seconds))
    }
}

impl Default for Config {
    /// The kubelet's default for memory, a hard threshold at 100 MiB, and bounds that suit most machines.
    fn default() -> Self {
        Self {
            eviction_policy: EvictionPolicy::default(),
            thresholds: vec![Threshold::hard(Signal::MemoryAvailable, ThresholdAmount::bytes(Bytes::mib(100)))],
            slices: Vec::new(),
            swap: None,
            pressure_transition: Duration::from_mins(5),
            max_pod_grace_seconds: 0,
            local_storage_isolation: true,
            hard_victims_per_minute: 30,
            soft_victims_per_minute: 30,
            evict_for_unattributed: false,
            responsible_percent: 10,
            plentiful: ThresholdAmount::Share(Percentage::of_one(0.03)),
            stall_percent: 20,
            reclaim_pause: Duration::from_secs(10),
            reclaim_patience: Duration::from_secs(30),
            loop_pause: Duration::from_secs(10),
            loop_pause_most: Duration::from_mins(5),
        }
    }
}
