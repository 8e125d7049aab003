//! What `check` reports of the cgroup of all pods: its limit is what `allocatableMemory.available` is measured against.

use std::path::Path;

use plimsoll_config::{Configuration, WatchedSlice};
use plimsoll_node::cgroup::Root;
use plimsoll_report::text::printable;
use plimsoll_units::Bytes;

use super::{Row, row};
use crate::observe::first_of;

/// The cgroup with its limit, or why there is no limit.
pub(super) type AllPods = Result<(String, Bytes), String>;

/// Absent where `run` would not decide by it. `root`: the cgroup tree.
pub(super) fn find(configuration: &Configuration, root: Option<&Path>) -> Option<AllPods> {
    configuration.slices().find(|slice| *slice == WatchedSlice::Pods)?;
    let root = root.and_then(|root| Root::open(root).ok());
    let found = root.and_then(|root| first_of(&root, &crate::core::pod_root(configuration).all_pods()));
    Some(match found {
        None => Err("there is no kubepods cgroup here".to_owned()),
        Some((path, figures)) => match figures.max {
            None => Err(format!("{path} has no memory.max")),
            Some(max) => Ok((path, max)),
        },
    })
}

pub(super) fn all_pods_row(found: &AllPods) -> Row {
    let advice = "allocatableMemory.available is not observed: a kubelet with enforceNodeAllocatable: [pods] makes the \
                  cgroup and sets its limit; the agent finds it when it is there";
    let text = match found {
        Ok((path, max)) => format!("{max}, memory.max of {path}"),
        Err(why) => why.clone(),
    };
    row("allocatable memory", found.is_ok(), printable(&text), advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tests::tree;

    #[test]
    fn where_all_pods_have_no_limit_the_signal_is_lost() {
        let text = "machine: {podFacts: /run/pods/pods.json}";
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        for (cgroups, expected, is_good) in [
            (&[][..], "there is no kubepods cgroup here", false),
            (&[("kubepods.slice", 1, 0, 0, 0, 0)][..], "kubepods.slice has no memory.max", false),
            (&[("kubepods", 1, 0, 0, 0, 3 << 20)][..], "3.0 MiB, memory.max of kubepods", true),
        ] {
            let tree = tree(cgroups);
            let found = find(&configuration, Some(tree.path())).expect("pods are workloads");
            let Row { found, advice, .. } = all_pods_row(&found);
            assert_eq!((found.as_str(), advice.is_empty()), (expected, is_good));
        }
        assert_eq!(find(&Configuration::default(), None), None, "no row on a machine that is no node");
    }
}
