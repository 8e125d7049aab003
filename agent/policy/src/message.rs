//! What the kubelet (1.36) says when it evicts: the message of the status and the event, the event's annotations, the
//! texts of its other events, and the labels of its metrics. Typed reasons are made first and rendered later; nothing
//! here runs on the thread that decides.

mod plan;
mod seen;

pub use plan::{Message, MessageContext};
pub use seen::EvictedFor;

use crate::kubelet::{Amount, Reading, Resource, Signal};
use core::fmt;
use plimsoll_units::{Percentage, Quantity};

/// The reason of a pod's failed status and of its event.
pub const EVICTED: &str = "Evicted";
/// The reason of the node's event when a threshold is met.
pub const THRESHOLD_MET: &str = "EvictionThresholdMet";
/// The type of both events.
pub const EVENT_TYPE: &str = "Warning";
/// The pod's condition that says why it went, and the reason in it.
pub const DISRUPTION_CONDITION: &str = "DisruptionTarget";
/// See [`DISRUPTION_CONDITION`].
pub const DISRUPTION_REASON: &str = "TerminationByKubelet";
/// See [`DISRUPTION_CONDITION`].
pub const DISRUPTION_STATUS: &str = "True";
/// The phase of a pod that was evicted.
pub const PHASE: &str = "Failed";
/// The label of the eviction metrics that holds the signal's name.
pub const SIGNAL_LABEL: &str = "eviction_signal";

/// The error of a turn in which the runtime did not say which disks there are, with its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisksUnknown<'a>(pub &'a str);

impl fmt::Display for DisksUnknown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "eviction manager: failed to get HasDedicatedImageFs: {}", self.0)
    }
}

/// Where a threshold is, as messages print it.
#[derive(Clone, Debug, PartialEq)]
pub enum ThresholdText {
    /// As it was written; the text as Kubernetes prints it.
    Written(String),
    /// At this share of the capacity. Prints with binary suffixes whatever it is a share of.
    Fraction(Percentage),
}

/// The threshold that a message names, and what was left.
#[derive(Clone, Debug, PartialEq)]
pub struct Met {
    /// What was measured.
    pub signal: Signal,
    /// At how much it is.
    pub threshold: ThresholdText,
    /// What was read of it.
    pub reading: Reading,
}

impl Met {
    /// The one that the kubelet names: the first in its own order that is about the resource and was read,
    /// whether it is met or not (`getThresholdMetInfo`).
    pub fn first<'a>(
        resource: Resource,
        thresholds: impl IntoIterator<Item = (Signal, &'a ThresholdText)>,
        seen: impl Fn(Signal) -> Option<Reading>,
    ) -> Option<Self> {
        thresholds
            .into_iter()
            .filter(|(signal, _)| signal.resource() == resource)
            .find_map(|(signal, threshold)| Some(Self { signal, threshold: threshold.clone(), reading: seen(signal)? }))
    }
}

/// Bytes, counted or rounded, as messages print them.
const fn binary(bytes: i64) -> Quantity {
    Quantity::binary(bytes as i128)
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Threshold quantity: ")?;
        match &self.threshold {
            ThresholdText::Written(text) => f.write_str(text)?,
            ThresholdText::Fraction(share) => binary(share.of(self.reading.capacity)).fmt(f)?,
        }
        f.write_str(", available: ")?;
        let available = self.reading.available;
        if self.signal.is_bytes() {
            binary(available).fmt(f)?;
        } else {
            Quantity::decimal(available.into()).fmt(f)?;
        }
        f.write_str(". ")
    }
}

/// What a container asks for. Init containers come before the others, as in the pod's specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The container's name.
    pub name: String,
    /// Its request of the resource.
    pub request: Quantity,
}

/// What a container uses, as statistics have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// The container's name.
    pub name: String,
    /// Its memory that cannot be dropped.
    pub working_set: Option<u64>,
    /// Its writable layer.
    pub root_fs: Option<u64>,
    /// Its logs.
    pub logs: Option<u64>,
}

impl Used {
    /// Of this resource. Disk counts only if both parts are known; of inodes and processes no container is named.
    fn of(&self, resource: Resource) -> Option<i64> {
        let used = match resource {
            Resource::Memory => self.working_set?,
            Resource::EphemeralStorage => self.root_fs?.wrapping_add(self.logs?),
            Resource::Inodes | Resource::Pids => return None,
        };
        Some(used.cast_signed())
    }
}

/// What is known of a pod that is evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Victim {
    /// Its name.
    pub name: String,
    /// Its pod-level request of the resource, if it has one.
    pub request: Option<Quantity>,
    /// Its containers, init containers first.
    pub containers: Vec<Asked>,
    /// Its statistics; absent if there are none.
    pub used: Option<VictimUsage>,
}

/// What statistics have of a pod's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Bytes that cannot be dropped. The kubelet reports 0 where they are not known (`memoryUsage`).
    pub working_set: Option<u64>,
}

/// The statistics of a pod that is evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VictimUsage {
    /// The pod's memory; absent if they do not have it.
    pub memory: Option<MemoryUsage>,
    /// Its containers, in the order of the statistics.
    pub containers: Vec<Used>,
}

/// A container that uses more than it requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffendingContainer {
    /// Its name.
    pub name: String,
    /// What it used.
    pub used: i64,
    /// Its request as Kubernetes prints it.
    pub request: String,
}

/// Why a pod is evicted, when the node is low on something.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeLow {
    /// On what.
    pub resource: Resource,
    /// The threshold that is named, if any was read.
    pub met: Option<Met>,
    /// The pod as a whole, and its containers; absent without statistics of it.
    pub offending: Option<(Option<OffendingContainer>, Vec<OffendingContainer>)>,
}

impl NodeLow {
    /// Puts the reason together (`evictionMessage`).
    pub fn of(resource: Resource, met: Option<Met>, victim: &Victim) -> Self {
        let Victim { name, request, containers, used } = victim;
        let offending = used.as_ref().map(|VictimUsage { memory, containers: stats }| {
            // Only memory can be asked for by a whole pod, and such a request is named even if usage is below it.
            let memory = if resource == Resource::Memory { *memory } else { None };
            let pod = memory.zip(request.as_ref()).map(|(memory, request)| OffendingContainer {
                name: name.clone(),
                used: memory.working_set.unwrap_or(0).cast_signed(),
                request: request.to_string(),
            });
            let over = stats.iter().filter_map(|stats| {
                // Where an init container has the name of a container, the container's request counts.
                let asked = containers.iter().rfind(|asked| asked.name == stats.name)?;
                let used = stats.of(resource)?;
                (Amount::whole(used) > asked.request.amount()).then(|| OffendingContainer {
                    name: asked.name.clone(),
                    used,
                    request: asked.request.to_string(),
                })
            });
            (pod, over.collect())
        });
        Self { resource, met, offending }
    }

    /// The annotations of the event, by key; none without statistics. They are empty where no container uses more than it
    /// requests.
    pub fn annotations(&self) -> Vec<(&'static str, String)> {
        let Some((pod, containers)) = &self.offending else { return Vec::new() };
        let joined =
            |part: fn(&OffendingContainer) -> String| containers.iter().map(part).collect::<Vec<_>>().join(",");
        let mut annotations = vec![
            ("offending_containers", joined(|offending| offending.name.clone())),
            ("offending_containers_usage", joined(|offending| binary(offending.used).to_string())),
        ];
        if let Some(pod) = pod {
            annotations.push(("offending_pod", pod.name.clone()));
            annotations.push(("offending_pod_usage", binary(pod.used).to_string()));
        }
        annotations.push(("starved_resource", self.resource.name().to_owned()));
        annotations
    }
}

impl fmt::Display for NodeLow {
    /// With a space at its end, as the kubelet has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = self.resource.name();
        write!(f, "The node was low on resource: {resource}. ")?;
        if let Some(met) = &self.met {
            met.fmt(f)?;
        }
        let Some((pod, containers)) = &self.offending else { return Ok(()) };
        for (what, OffendingContainer { name, used, request }) in
            pod.iter().map(|pod| ("Pod", pod)).chain(containers.iter().map(|container| ("Container", container)))
        {
            let used = binary(*used);
            write!(f, "{what} {name} was using {used}, request is {request}, has larger consumption of {resource}. ")?;
        }
        Ok(())
    }
}

/// Why a pod is evicted that used more local storage than its own limits allow. Such an event carries no annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverLimit {
    /// A volume of its own.
    EmptyDir {
        /// The volume.
        name: String,
        /// Its limit as Kubernetes prints it.
        limit: String,
    },
    /// The pod as a whole.
    Pod {
        /// The sum of its containers' limits.
        limit: String,
    },
    /// One container.
    Container {
        /// The container.
        name: String,
        /// Its limit.
        limit: String,
    },
}

impl fmt::Display for OverLimit {
    /// With a space at its end, as the kubelet has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyDir { name, limit } => {
                write!(f, "Usage of EmptyDir volume \"{name}\" exceeds the limit \"{limit}\". ")
            }
            Self::Pod { limit } => {
                write!(f, "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ")
            }
            Self::Container { name, limit } => {
                write!(f, "Container {name} exceeded its local ephemeral storage limit \"{limit}\". ")
            }
        }
    }
}

/// The text of the node's event when a threshold is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempting(pub Resource);

impl fmt::Display for Attempting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attempting to reclaim {}", self.0.name())
    }
}

/// Why a pod was evicted, as the metrics name it in [`SIGNAL_LABEL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A threshold.
    Signal(Signal),
    /// The limit of an emptyDir volume.
    EmptyDirLimit,
    /// The limit of a container.
    ContainerLimit,
    /// The limit of a pod.
    PodLimit,
}

impl Cause {
    /// The label's value.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Signal(signal) => signal.name(),
            Self::EmptyDirLimit => "emptydirfs.limit",
            Self::ContainerLimit => "ephemeralcontainerfs.limit",
            Self::PodLimit => "ephemeralpodfs.limit",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_labels() {
        for (text, expected) in [
            (Attempting(Resource::EphemeralStorage).to_string(), "Attempting to reclaim ephemeral-storage"),
            (
                OverLimit::EmptyDir { name: "v".into(), limit: "1Gi".into() }.to_string(),
                "Usage of EmptyDir volume \"v\" exceeds the limit \"1Gi\". ",
            ),
            (
                OverLimit::Pod { limit: "2Gi".into() }.to_string(),
                "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ",
            ),
            (
                OverLimit::Container { name: "c".into(), limit: "1Gi".into() }.to_string(),
                "Container c exceeded its local ephemeral storage limit \"1Gi\". ",
            ),
            (Cause::Signal(Signal::NodeFsInodesFree).label().to_owned(), "nodefs.inodesFree"),
            (Cause::PodLimit.label().to_owned(), "ephemeralpodfs.limit"),
        ] {
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn a_share_that_does_not_fit_is_named_as_it_is_compared() {
        let reading = Reading { available: 5, capacity: i64::MAX, time: None };
        let met = Met {
            signal: Signal::MemoryAvailable,
            threshold: ThresholdText::Fraction(Percentage::of_one(1.0)),
            reading,
        };
        assert_eq!(met.to_string(), "Threshold quantity: -9223372036854775808, available: 5. ");
    }

    #[test]
    fn a_pods_own_request_is_named_with_its_statistics_of_memory() {
        let reported = |memory| {
            let victim = Victim {
                name: "p".into(),
                request: Some(Quantity::parse("1").expect("a quantity")),
                containers: Vec::new(),
                used: Some(VictimUsage { memory, containers: Vec::new() }),
            };
            NodeLow::of(Resource::Memory, None, &victim).to_string()
        };
        let low = "The node was low on resource: memory. ";
        let uses = |used| format!("{low}Pod p was using {used}, request is 1, has larger consumption of memory. ");
        assert_eq!(reported(Some(MemoryUsage { working_set: Some(7) })), uses("7"));
        assert_eq!(reported(Some(MemoryUsage { working_set: None })), uses("0"));
        assert_eq!(reported(None), low);
    }

    #[test]
    fn the_first_threshold_that_was_seen_is_named() {
        let reading = Reading { available: 5, capacity: 10, time: None };
        let (written, share) = (ThresholdText::Written("7".into()), ThresholdText::Fraction(Percentage::of_one(0.5)));
        let thresholds = [
            (Signal::PidAvailable, &written),
            (Signal::AllocatableMemoryAvailable, &written),
            (Signal::MemoryAvailable, &share),
        ];
        let seen = |signal| (signal == Signal::MemoryAvailable).then_some(reading);
        let met = Met::first(Resource::Memory, thresholds, seen).expect("memory was seen");
        assert_eq!(met.to_string(), "Threshold quantity: 5, available: 5. ");
        assert_eq!(Met::first(Resource::Pids, thresholds, seen), None);
    }
}
