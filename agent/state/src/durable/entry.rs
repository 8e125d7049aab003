//! What is kept, an entry each. An entry is a line of JSON, so that another version can read what it knows: fields that
//! it does not know are ignored, and fields that are absent are unknown. A field or a kind that is added later has to
//! be one that an older version can do without, or raises the oldest reader of the file.

use super::moment::Moment;
use plimsoll_policy::kubelet::Signal;
use plimsoll_policy::message::Cause;
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
    Condition(Condition),
    Eviction(Eviction),
    Facts(Facts),
    Images(Images),
}

impl Entry {
    /// What of it can still be true after a reboot.
    pub(super) fn after_reboot(self) -> Option<Self> {
        match self {
            Self::Condition(Condition { name, is_true, since, observed, is_crossed }) => {
                Some(Self::Condition(Condition {
                    name,
                    is_true,
                    since: since.of_earlier_boot(),
                    observed: observed.map(Moment::of_earlier_boot),
                    is_crossed,
                }))
            }
            Self::Eviction(eviction) => eviction.after_reboot().map(Self::Eviction),
            kept @ (Self::Facts(_) | Self::Images(_)) => Some(kept),
        }
    }
}

/// A condition of the node, as it was reported to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Its type in the status of a node.
    pub name: String,
    /// Its status.
    pub is_true: bool,
    /// When that last changed (`lastTransitionTime`).
    pub since: Moment,
    /// When a threshold behind it was last crossed, which its transition period counts from; absent if never.
    #[serde(default)]
    pub observed: Option<Moment>,
    /// A threshold behind it was crossed when this was written, so that [`Self::observed`] is later than it says. From
    /// version 2 on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_crossed: bool,
}

/// A field of a later version is not written where it says nothing.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What is known of a pod.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) uid: String,
    pub(super) text: String,
}

/// What is remembered of one image, in the form of the caller, which has to say by itself what it is. From version 2 on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Images {
    pub(super) id: String,
    pub(super) text: String,
}

/// A pod that is evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eviction {
    /// Its number, which is higher than those of all before in the same boot. Zero in a file of version 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub number: u64,
    /// Which.
    pub pod: PodName,
    /// Why.
    pub reason: Reason,
    /// Seconds for an orderly end; zero is at once.
    #[serde(default)]
    pub grace_seconds: u32,
    /// When it was decided.
    pub decided: Moment,
    /// How far it has come on the node.
    pub progress: Progress,
    /// The cluster has acknowledged it.
    #[serde(default)]
    pub is_reported: bool,
    /// A soft threshold asked for it. From version 2 on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_soft: bool,
    /// It is left alone, and its processes live: what it was decided for is over, or they could not be killed. What is
    /// written of its progress holds, so that version 1 goes on with it as far as that goes. From version 2 on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_given_up: bool,
    /// The figures behind the reason. From version 2 on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub figures: Figures,
}

/// What an eviction was decided by, in the unit of its reason: bytes, or what the signal counts. Absent fields are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Where the threshold was.
    #[serde(default, skip_serializing_if = "is_default")]
    pub threshold: Option<i64>,
    /// What was available.
    #[serde(default, skip_serializing_if = "is_default")]
    pub available: Option<i64>,
    /// The limit of the pod's own.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limit: Option<u64>,
    /// The volume or the container that it is of, by the number that stands for its name.
    #[serde(default, skip_serializing_if = "is_default")]
    pub part: Option<u32>,
    /// What the pod took, in bytes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub used: Option<u64>,
}

/// A pod by its names. The UID is as the API server has it: what is reported to the cluster names it, so that a successor
/// of the same name is not meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodName {
    /// Its UID.
    pub uid: String,
    /// Its namespace; empty for unknown.
    #[serde(default)]
    pub namespace: String,
    /// Its name within that; empty for unknown.
    #[serde(default)]
    pub name: String,
}

/// How far an eviction has come on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// It was decided. Its processes may have been killed or asked to end, or not.
    Decided,
    /// SIGKILL was sent to all processes of its cgroups.
    Killed,
    /// No process is left, by the kernel's word.
    Verified,
}

/// Why a pod is evicted, by the names of the kubelet's metric (`eviction_signal`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Reason {
    /// A threshold, or a limit of its own.
    Cause(Cause),
    /// Swap was short.
    Swap,
    /// memory.high throttled one of its containers.
    Throttled,
    /// A newer version's.
    Unknown(String),
}

const SWAP: &str = "swap";
/// As no signal of the kubelet's is named.
const THROTTLED: &str = "memory.high";

impl From<String> for Reason {
    fn from(name: String) -> Self {
        let causes = [Cause::EmptyDirLimit, Cause::ContainerLimit, Cause::PodLimit].into_iter();
        let mut causes = causes.chain(Signal::ALL.into_iter().map(Cause::Signal));
        match causes.find(|cause| cause.label() == name) {
            Some(cause) => Self::Cause(cause),
            None if name == SWAP => Self::Swap,
            None if name == THROTTLED => Self::Throttled,
            None => Self::Unknown(name),
        }
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Cause(cause) => cause.label().to_owned(),
            Reason::Swap => SWAP.to_owned(),
            Reason::Throttled => THROTTLED.to_owned(),
            Reason::Unknown(name) => name,
        }
    }
}

impl Eviction {
    fn after_reboot(self) -> Option<Self> {
        if (self.progress == Progress::Decided || self.is_given_up) && !self.is_reported {
            return None;
        }
        let decided = self.decided.of_earlier_boot();
        Some(Self { decided, progress: Progress::Verified, is_given_up: false, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECIDED: Moment = Moment { wall_ms: 1_000_000, boot_ms: Some(50_000) };

    fn eviction(progress: Progress, is_reported: bool) -> Eviction {
        Eviction {
            pod: PodName { uid: "u".into(), namespace: "n".into(), name: "p".into() },
            reason: Reason::Swap,
            grace_seconds: 30,
            decided: DECIDED,
            progress,
            is_reported,
            number: 1,
            is_soft: true,
            is_given_up: false,
            figures: Figures::default(),
        }
    }

    #[test]
    fn one_that_was_given_up_is_over_with_a_reboot() {
        for progress in [Progress::Decided, Progress::Killed] {
            let eviction = Eviction { is_given_up: true, ..eviction(progress, false) };
            assert_eq!(eviction.after_reboot(), None, "{progress:?}");
        }
    }

    #[test]
    fn a_reboot_leaves_what_can_still_be_true() {
        use Progress::{Decided, Killed, Verified};
        for (progress, is_reported, stays) in [
            (Decided, false, false),
            (Decided, true, true),
            (Killed, false, true),
            (Killed, true, true),
            (Verified, false, true),
            (Verified, true, true),
        ] {
            let before = eviction(progress, is_reported);
            let decided = Moment { boot_ms: None, ..DECIDED };
            let expected = Eviction { decided, progress: Verified, ..before.clone() };
            assert_eq!(before.after_reboot(), stays.then_some(expected), "{progress:?}, {is_reported}");
        }
    }

    #[test]
    fn reasons_have_the_names_of_the_kubelets_metric() {
        for (reason, name) in [
            (Reason::Cause(Cause::Signal(Signal::NodeFsInodesFree)), "nodefs.inodesFree"),
            (Reason::Cause(Cause::PodLimit), "ephemeralpodfs.limit"),
            (Reason::Cause(Cause::ContainerLimit), "ephemeralcontainerfs.limit"),
            (Reason::Cause(Cause::EmptyDirLimit), "emptydirfs.limit"),
            (Reason::Swap, "swap"),
            (Reason::Throttled, "memory.high"),
            (Reason::Unknown("tomorrow".into()), "tomorrow"),
        ] {
            assert_eq!(Reason::from(name.to_owned()), reason);
            assert_eq!(String::from(reason), name);
        }
        for signal in Signal::ALL {
            let reason = Reason::Cause(Cause::Signal(signal));
            assert_eq!(Reason::from(String::from(reason.clone())), reason);
        }
    }
}
