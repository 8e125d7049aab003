//! What others than the agent did to pods of this node, as an API server has it.

use std::fmt;
use std::sync::atomic::Ordering;

use plimsoll_policy::Uid;
use plimsoll_policy::message::EvictedFor;
use plimsoll_units::MonotonicNs;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};

use crate::metrics::{Label, store};

/// How often, since the process that sends this began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witnessed {
    /// Evictions by the kubelet, in the order of [`EvictedFor::ALL`].
    pub evictions: [u64; EvictedFor::ALL.len()],
    /// Containers that the OOM killer ended.
    pub oom_killed_containers: u64,
}

/// What ended a pod, or a container of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndedBy {
    /// The kubelet evicted the pod.
    Kubelet,
    /// The OOM killer ended a container.
    OomKiller,
}

impl EndedBy {
    pub(crate) const ALL: [Self; 2] = [Self::Kubelet, Self::OomKiller];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::OomKiller => "oom_killer",
        }
    }
}

impl fmt::Display for EndedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kubelet => "the kubelet",
            Self::OomKiller => "the OOM killer",
        })
    }
}

/// A pod that others than the agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The pod.
    pub uid: Uid,
    /// What ended it.
    pub by: EndedBy,
    /// When an API server had that.
    pub at: MonotonicNs,
}

/// What was done, as metrics.
#[derive(Clone, Default)]
pub(crate) struct WitnessedMetrics {
    evictions: Family<Label, Counter>,
    oom_killed_containers: Counter,
}

impl WitnessedMetrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self { evictions, oom_killed_containers } = metrics.clone();
        let help = "Pods that the kubelet evicted, as the API server has it, by what their message names";
        registry.register("kubelet_evictions", help, evictions);
        let help = "Containers that the OOM killer ended, as the API server has it";
        registry.register("oom_killed_containers", help, oom_killed_containers);
        metrics.set(&Witnessed::default());
        metrics
    }

    pub(crate) fn set(&self, witnessed: &Witnessed) {
        for (cause, count) in EvictedFor::ALL.into_iter().zip(witnessed.evictions) {
            store(&self.evictions, ("resource", cause.name()), count);
        }
        self.oom_killed_containers.inner().store(witnessed.oom_killed_containers, Ordering::Relaxed);
    }
}
