//! For what a kubelet has evicted a pod, by the message in the pod's status.

use crate::kubelet::Resource;

/// What a message of the kubelet names. It names the resource, and not which of its signals was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictedFor {
    /// The node was short of this.
    Resource(Resource),
    /// A limit of local storage.
    Limit,
    /// Something that no message of a kubelet's known here says.
    Unknown,
}

impl EvictedFor {
    /// All of them; the place of each is [`Self::place`].
    pub const ALL: [Self; 6] = [
        Self::Resource(Resource::Memory),
        Self::Resource(Resource::EphemeralStorage),
        Self::Resource(Resource::Inodes),
        Self::Resource(Resource::Pids),
        Self::Limit,
        Self::Unknown,
    ];

    /// By the message of a status with the reason [`EVICTED`](super::EVICTED). `None`: the pod was not admitted, and never
    /// ran.
    pub fn of_message(message: &str) -> Option<Self> {
        if message.starts_with("The node had condition: ") {
            return None;
        }
        let limits = ["Usage of EmptyDir volume ", "Pod ephemeral local storage usage ", "Container "];
        if limits.iter().any(|beginning| message.starts_with(beginning)) {
            return Some(Self::Limit);
        }
        let low = message.strip_prefix("The node was low on resource: ").and_then(|rest| rest.split('.').next());
        let is_named = |it: &Self| matches!(it, Self::Resource(resource) if Some(resource.name()) == low);
        Some(Self::ALL.into_iter().find(is_named).unwrap_or(Self::Unknown))
    }

    /// Its place in [`Self::ALL`].
    pub const fn place(self) -> usize {
        match self {
            Self::Resource(Resource::Memory) => 0,
            Self::Resource(Resource::EphemeralStorage) => 1,
            Self::Resource(Resource::Inodes) => 2,
            Self::Resource(Resource::Pids) => 3,
            Self::Limit => 4,
            Self::Unknown => 5,
        }
    }

    /// In the metric's label and in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resource(resource) => resource.name(),
            Self::Limit => "limit",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NodeLow, OverLimit, Victim};
    use super::*;
    use crate::admission;
    use crate::kubelet::Condition;

    #[test]
    fn what_is_written_by_the_kubelets_rules_is_read_back() {
        let mut texts = Vec::new();
        for expected in EvictedFor::ALL {
            if let EvictedFor::Resource(resource) = expected {
                texts.push((NodeLow::of(resource, None, &Victim::default()).to_string(), Some(expected)));
            }
            assert_eq!(EvictedFor::ALL[expected.place()], expected);
        }
        for limit in [
            OverLimit::EmptyDir { name: "v".into(), limit: "1Gi".into() },
            OverLimit::Pod { limit: "2Gi".into() },
            OverLimit::Container { name: "c".into(), limit: "1Gi".into() },
        ] {
            texts.push((limit.to_string(), Some(EvictedFor::Limit)));
        }
        texts.push((admission::Refused(vec![Condition::MemoryPressure]).to_string(), None));
        texts.push(("Evicted by another controller".to_owned(), Some(EvictedFor::Unknown)));
        texts.push(("The node was low on resource: gpus. ".to_owned(), Some(EvictedFor::Unknown)));
        texts.push((String::new(), Some(EvictedFor::Unknown)));
        for (text, expected) in texts {
            assert_eq!(EvictedFor::of_message(&text), expected, "{text}");
        }
    }
}
