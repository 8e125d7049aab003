//! The slices with thresholds of their own: those that are listed, and the cgroup of all pods.

use crate::machine::{IN_RUN, Slice};
use crate::model::Configuration;
use plimsoll_policy::kubelet::Signal;
use plimsoll_policy::{EvictionPolicy, SliceId};
use plimsoll_units::Pattern;

/// As the kubelet's statistics call the cgroup of all pods (`SystemContainerPods` in `pkg/kubelet/stats`).
const PODS: &str = "pods";

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchedSlice<'a> {
    /// One of `machine.slices`, by its path below the cgroup root.
    Listed(&'a Pattern),
    /// The cgroup of all pods, with the thresholds on `allocatableMemory.available`. Its path follows from the cgroup
    /// driver of the kubelet.
    Pods,
}

impl<'a> WatchedSlice<'a> {
    /// What logs and traces call it.
    pub fn name(self) -> &'a str {
        match self {
            Self::Listed(path) => path.as_str(),
            Self::Pods => PODS,
        }
    }

    /// Whether the workload at this path below the cgroup root is in it.
    pub fn holds(self, cgroup: &str, is_pod: bool) -> bool {
        match self {
            Self::Listed(path) => path.covers(cgroup),
            Self::Pods => is_pod,
        }
    }
}

impl Configuration {
    /// The slices that `run` decides about, in the order of [`Config::slices`](plimsoll_policy::Config::slices).
    pub fn slices(&self) -> impl Iterator<Item = WatchedSlice<'_>> + Clone {
        let listed = self.listed_slices();
        let pods = (self.policy.slices.len() > listed.len()).then_some(WatchedSlice::Pods);
        listed.iter().map(|slice| WatchedSlice::Listed(&slice.path)).chain(pods)
    }

    /// Those of `machine.slices` that `run` decides about; the policy `kubelet` decides about none.
    pub(crate) fn listed_slices(&self) -> &[Slice] {
        if self.eviction_policy == EvictionPolicy::Kubelet { &[] } else { &self.machine.slices }
    }

    /// What logs and traces call a slice.
    pub fn slice_name(&self, SliceId(slice): SliceId) -> Option<&str> {
        self.slices().nth(slice.into()).map(WatchedSlice::name)
    }

    /// Whether `run` decides by a signal. All pods together are decided about where they are workloads, as a slice.
    pub(crate) fn decides_by(&self, signal: Signal) -> bool {
        let decides_by_all_pods = || self.machine.knows_pods() && self.eviction_policy != EvictionPolicy::Kubelet;
        IN_RUN.contains(&signal) || signal == Signal::AllocatableMemoryAvailable && decides_by_all_pods()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::kubelet::ThresholdAmount;
    use plimsoll_units::{Bytes, Percentage};

    const FACTS: &str = "podFacts: /run/pods/pods.json";

    fn configuration(text: &str) -> Configuration {
        crate::parse(text, "f").unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn all_pods_are_a_slice_where_they_are_workloads_and_the_kubelet_bounds_them() {
        let slices = "slices: [{path: a, evictionHard: {memory.available: 1Mi}}]";
        for (text, machine, expected) in [
            ("", format!("{slices}, {FACTS}"), &["a", "pods"][..]),
            ("", FACTS.to_owned(), &["pods"]),
            ("", slices.to_owned(), &["a"]),
            ("enforceNodeAllocatable: [none]\n", FACTS.to_owned(), &[]),
            ("evictionHard: {pid.available: 5%}\n", FACTS.to_owned(), &[]),
            ("evictionPolicy: openshift3\n", FACTS.to_owned(), &["pods"]),
            ("evictionPolicy: kubelet\n", FACTS.to_owned(), &[]),
            ("evictionPolicy: kubelet\n", format!("{slices}, {FACTS}"), &[]),
        ] {
            let configuration = configuration(&format!("{text}machine: {{{machine}}}"));
            let names: Vec<_> = configuration.slices().map(WatchedSlice::name).collect();
            assert_eq!(
                (names, configuration.policy.slices.len()),
                (expected.to_vec(), expected.len()),
                "{text}{machine}"
            );
            assert_eq!(configuration.slice_name(SliceId(0)), expected.first().copied());
            // Another one in its place decides as if it had been configured.
            for policy in EvictionPolicy::ALL {
                let configured = text.lines().filter(|line| !line.starts_with("evictionPolicy"));
                let configured = configured.collect::<Vec<_>>().join("\n");
                let configured =
                    self::configuration(&format!("{configured}\nevictionPolicy: {policy}\nmachine: {{{machine}}}"));
                assert_eq!(
                    configuration.clone().with_eviction_policy(policy).policy,
                    configured.policy,
                    "{text}{machine}"
                );
            }
        }
    }

    #[test]
    fn all_pods_are_one_of_as_many_slices_as_there_is_room_for() {
        let with = |count: usize| {
            let slices = (0..count).map(|index| format!("{{path: s{index}, evictionHard: {{memory.available: 1Mi}}}}"));
            let slices: Vec<_> = slices.collect();
            crate::parse(&format!("machine: {{{FACTS}, slices: [{}]}}", slices.join(", ")), "f")
        };
        assert_eq!(with(14).expect("there is room").slices().count(), 15);
        let error = with(15).expect_err("one more").to_string();
        assert_eq!(
            error,
            "f:1: machine.slices: expected at most 14 slices with thresholds, beside the cgroup of all pods"
        );
    }

    #[test]
    fn the_thresholds_of_all_pods_are_the_hard_ones_on_memory_and_their_own() {
        let text = format!(
            "evictionHard: {{memory.available: 10%, pid.available: 5%}}\n\
             evictionSoft: {{memory.available: 20%, allocatableMemory.available: 1Gi}}\n\
             evictionSoftGracePeriod: {{memory.available: 1m, allocatableMemory.available: 2m}}\n\
             evictionMinimumReclaim: {{memory.available: 5Mi}}\nmachine: {{{FACTS}}}"
        );
        let configuration = configuration(&text);
        let thresholds = &configuration.policy.slices[0].thresholds;
        assert!(thresholds.iter().all(|it| it.signal == Signal::AllocatableMemoryAvailable));
        let found: Vec<_> = thresholds.iter().map(|it| (it.amount, it.grace.as_secs(), it.min_reclaim)).collect();
        let mib = |mib| Some(ThresholdAmount::bytes(Bytes::mib(mib)));
        let tenth = Some(ThresholdAmount::Share(Percentage::of_one(0.1)));
        assert_eq!(found, [(mib(1024), 120, None), (tenth, 0, mib(5))]);
        // The share is that of what is allocatable, and follows it.
        let hard = [1000, 100].map(|mib| thresholds[1].bytes(Bytes::mib(mib)));
        assert_eq!(hard, [Some(Bytes(104_857_601)), Some(Bytes(10_485_760))]);
        let node: Vec<_> = configuration.policy.thresholds.iter().map(|it| it.signal).collect();
        assert!(!node.contains(&Signal::AllocatableMemoryAvailable), "{node:?}");
    }
}
