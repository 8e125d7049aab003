//! What the process that decides sends another one: orders to remove, orders about pods that run, pods that it evicts, and
//! conditions of the node, and incidents for people. Messages of numbers, and in an incident of short names that others chose; what
//! pods are called and what they ask for is known to the process that receives them.
//!
//! Of evictions and conditions none may be lost, and either process may be killed at any time. So the one that decides names
//! each again until a [`Receipt`] for it came that says that it is durable. An incident is sent once.

use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::{Condition, Signal};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use serde::{Deserialize, Serialize};

use crate::incident::Incident;
use crate::removal::RemovalOrder;
use crate::runtime_order::{RelaxOrder, StopOrder};
use crate::storage::Limited;

/// No message of the process that decides is longer, in bytes.
pub const CORE_MESSAGE: usize = 128;

/// A message of the process that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoreMessage {
    /// Remove what is dead or unused.
    Remove(RemovalOrder),
    /// A pod is evicted, or was.
    Eviction(Eviction),
    /// What a condition of the node is.
    Condition(ConditionState),
    /// Raise a container's memory.high.
    Relax(RelaxOrder),
    /// Stop a pod.
    Stop(StopOrder),
    /// Cgroups came or went: the container runtime may have others to name.
    CgroupsChanged,
    /// Something happened that people are to know of.
    Incident(Incident),
}

impl CoreMessage {
    /// Writes it into a buffer, and gives what it takes of that.
    pub fn encode<'b>(&self, buffer: &'b mut [u8; CORE_MESSAGE]) -> &'b [u8] {
        // A test holds that the longest one fits.
        postcard::to_slice(self, buffer).map_or(&[], |bytes| bytes)
    }

    /// Reads one. `None` for what is no message, asks for what there is not, or has something after it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::take_from_bytes(bytes).ok().filter(|(_, rest)| rest.is_empty()).map(|(message, _)| message)
    }
}

/// The number of an eviction: of two in a boot the later one has the higher number, whichever process took it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EvictionNumber(pub u64);

impl EvictionNumber {
    /// The number of an eviction that is decided `now`, after one of the number `self`. The clock cannot be set, so a process
    /// that knows nothing of the one before continues its numbers.
    #[must_use]
    pub fn next(self, now: MonotonicNs) -> Self {
        Self(self.0.saturating_add(1).max(now.0))
    }
}

/// A pod that is evicted, by the decision of the process that acts on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eviction {
    /// The same in each message about it.
    pub number: EvictionNumber,
    /// The pod.
    pub uid: Uid,
    /// The pod's cgroup when it was decided. What the runtime starts for the pod later in another one is not meant.
    pub cgroup: CgroupId,
    /// How far it has come.
    pub step: EvictionStep,
    /// Why.
    pub cause: EvictionCause,
    /// A soft threshold asked for it.
    pub is_soft: bool,
    /// Seconds for an orderly end; zero: its processes are killed at once.
    pub grace_seconds: u32,
    /// What the pod took of what was short: bytes of memory or disk. Absent where that was not read.
    pub used: Option<Bytes>,
    /// When it was decided, on the monotonic clock.
    pub decided: MonotonicNs,
    /// When it was decided, in milliseconds since 1970 by the clock of the wall, for what is reported.
    pub wall_ms: u64,
}

/// How far an eviction has come on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EvictionStep {
    /// It was decided. The pod may have been asked to end.
    Decided,
    /// SIGKILL was sent to all of its processes.
    Killed,
    /// It is left alone: it could not be killed, did not end in time, or what it was decided for was over before it was
    /// killed. It may still end, which is a later step.
    GivenUp,
    /// No process is left in its cgroup, by `cgroup.events`, or that is gone.
    Verified,
}

impl EvictionStep {
    /// Whether nothing more is done for it on the node.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::GivenUp | Self::Verified)
    }
}

/// Why a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EvictionCause {
    /// A threshold was met.
    Threshold {
        /// What it is on.
        signal: Signal,
        /// Where it is: in bytes, or in what the signal counts. Of a share what that came to.
        threshold: i64,
        /// What was available when it was decided, in the same unit: by the reading that was below.
        available: i64,
    },
    /// Swap was short, pages came back from it, and all tasks stalled.
    Swap,
    /// The pod was over a limit of its own.
    Limit {
        /// What that is on; absent for the pod as a whole.
        on: Option<Limited>,
        /// The limit.
        limit: Bytes,
    },
    /// memory.high throttled one of its containers, although it was raised as far as it may be.
    Throttled,
}

/// What a condition of the node is, as the process that acts concludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionState {
    /// Which.
    pub condition: Condition,
    /// Whether it holds.
    pub is_true: bool,
    /// When that last changed, as far as the sender knows, on the monotonic clock.
    pub since: MonotonicNs,
    /// The same time in milliseconds since 1970 by the clock of the wall.
    pub wall_ms: u64,
    /// When a threshold behind it was last crossed, which its transition period counts from. Absent while one is crossed,
    /// where none ever was, and where that is not known.
    pub observed: Option<MonotonicNs>,
}

/// The answer to a message of the process that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// For what.
    pub of: ReceiptOf,
    /// It is on the disk. Else it is in the memory of the process that answers, and has to be named again.
    pub is_durable: bool,
}

/// What was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReceiptOf {
    /// That this eviction has come so far.
    Eviction(EvictionNumber, EvictionStep),
    /// This state of a condition.
    Condition(ConditionState),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::{Exhausted, IncidentKind, IncidentOf, PathEnd};
    use crate::runtime_order::ContainerNumber;
    use core::time::Duration;
    use plimsoll_policy::kubelet::Reclaim;
    use proptest::prelude::*;

    fn all() -> Vec<CoreMessage> {
        let remove = RemovalOrder {
            number: u64::MAX,
            what: Reclaim { containers: true, images: true },
            bytes: Bytes(u64::MAX),
            until: MonotonicNs(u64::MAX),
        };
        let eviction = |(cause, step)| Eviction {
            number: EvictionNumber(u64::MAX),
            uid: Uid(u128::MAX),
            cgroup: CgroupId(u64::MAX),
            step,
            cause,
            is_soft: true,
            grace_seconds: u32::MAX,
            used: Some(Bytes(u64::MAX)),
            decided: MonotonicNs(u64::MAX),
            wall_ms: u64::MAX,
        };
        let signal = Signal::ALL[Signal::ALL.len() - 1];
        let limit = |on| EvictionCause::Limit { on, limit: Bytes(u64::MAX) };
        let causes = [
            (EvictionCause::Threshold { signal, threshold: i64::MIN, available: i64::MIN }, EvictionStep::Decided),
            (EvictionCause::Swap, EvictionStep::Killed),
            (EvictionCause::Throttled, EvictionStep::Killed),
            (limit(None), EvictionStep::GivenUp),
            (limit(Some(Limited::Volume(u32::MAX))), EvictionStep::Verified),
            (limit(Some(Limited::Container(u32::MAX))), EvictionStep::Verified),
        ];
        let condition = |condition| ConditionState {
            condition,
            is_true: true,
            since: MonotonicNs(u64::MAX),
            wall_ms: u64::MAX,
            observed: Some(MonotonicNs(u64::MAX)),
        };
        let conditions = Condition::ALL.map(condition).map(CoreMessage::Condition);
        let evictions = causes.map(eviction).map(CoreMessage::Eviction);
        let (until, container) = (MonotonicNs(u64::MAX), ContainerNumber::of(&[b'f'; 64]).expect("an id"));
        let orders = [
            CoreMessage::Remove(remove),
            CoreMessage::Relax(RelaxOrder { container, high: Bytes(u64::MAX), until }),
            CoreMessage::Stop(StopOrder { uid: Uid(u128::MAX), grace_seconds: u32::MAX, until }),
            CoreMessage::CgroupsChanged,
        ];
        let path = PathEnd::of(&[b'x'; 64]);
        let (resident, exhausted) = (Some(Bytes(u64::MAX)), Exhausted::Slice(path));
        let cgroup = IncidentOf::Cgroup { id: Some(CgroupId(u64::MAX)), path };
        let incidents = [
            (IncidentKind::Frozen(Duration::MAX), IncidentOf::Pod(Uid(u128::MAX))),
            (IncidentKind::Stopped, cgroup),
            (IncidentKind::Reclaimed { asked: Bytes(u64::MAX), is_all: true }, cgroup),
            (IncidentKind::OomKill { pid: u32::MAX, name: [b'x'; 16], resident, exhausted }, cgroup),
        ];
        let incidents = incidents.map(|(what, of)| CoreMessage::Incident(Incident { what, of, wall_ms: u64::MAX }));
        orders.into_iter().chain(evictions).chain(conditions).chain(incidents).collect()
    }

    #[test]
    fn the_longest_message_fits_and_only_a_whole_one_is_read() {
        for message in all() {
            let mut buffer = [0; CORE_MESSAGE];
            let bytes = message.encode(&mut buffer).to_vec();
            assert_eq!(CoreMessage::decode(&bytes), Some(message));
            assert_eq!(CoreMessage::decode(&bytes[..bytes.len() - 1]), None, "a part of {message:?}");
            assert_eq!(CoreMessage::decode(&[&bytes[..], &[0]].concat()), None, "more than {message:?}");
        }
        assert_eq!(CoreMessage::decode(&[]), None);
        assert_eq!(CoreMessage::decode(&[255; CORE_MESSAGE]), None);
    }

    #[test]
    fn numbers_rise_within_a_sample_and_from_one_process_to_the_next() {
        let first = EvictionNumber::default().next(MonotonicNs(100));
        let second = first.next(MonotonicNs(100));
        let after_a_restart = EvictionNumber::default().next(MonotonicNs(5000));
        assert_eq!([first.0, second.0, after_a_restart.0], [100, 101, 5000]);
        assert_eq!(EvictionNumber(u64::MAX).next(MonotonicNs(1)).0, u64::MAX);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..160)) {
            let _ = CoreMessage::decode(&bytes);
        }
    }
}
