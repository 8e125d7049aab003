//! What `check` reports of slices with thresholds of their own, the cgroup of all pods among them: their limits are what the
//! thresholds are measured against.

use std::path::Path;

use plimsoll_config::{Configuration, WatchedSlice};
use plimsoll_node::cgroup::Root;
use plimsoll_report::text::printable;
use plimsoll_units::Bytes;

use super::{Row, row};
use crate::observe::first_of;

/// A slice, and its cgroup with the limit, or why there is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SliceFacts {
    /// Absent for all pods.
    path: Option<String>,
    limit: Result<(String, Bytes), String>,
}

/// Those that `run` would decide about. `root`: the cgroup tree.
pub(super) fn find(configuration: &Configuration, root: Option<&Path>) -> Vec<SliceFacts> {
    let root = root.and_then(|root| Root::open(root).ok());
    let slice = |slice| {
        let (path, paths, missing) = match slice {
            WatchedSlice::Listed(path) => {
                let path = path.as_str();
                (Some(path.to_owned()), vec![path.as_bytes().to_vec()], "there is no such cgroup here")
            }
            WatchedSlice::Pods => {
                (None, crate::core::pod_root(configuration).all_pods(), "there is no kubepods cgroup here")
            }
        };
        let found = root.as_ref().and_then(|root| first_of(root, &paths));
        let limit = found.ok_or_else(|| missing.to_owned()).and_then(|(cgroup, figures)| match figures.max {
            None => Err(format!("{cgroup} has no memory.max")),
            Some(max) => Ok((cgroup, max)),
        });
        SliceFacts { path, limit }
    };
    configuration.slices().map(slice).collect()
}

pub(super) fn slice_row(SliceFacts { path, limit }: &SliceFacts) -> Row {
    let (name, advice) = match path {
        Some(path) => (
            printable(&format!("slice {path}")),
            "its thresholds have no effect: give it a limit (MemoryMax=), or correct machine.slices; the agent finds it when it is \
             there",
        ),
        None => (
            "allocatable memory".to_owned(),
            "allocatableMemory.available is not observed: a kubelet with enforceNodeAllocatable: [pods] makes the \
             cgroup and sets its limit; the agent finds it when it is there",
        ),
    };
    let text = match limit {
        Ok((cgroup, max)) => format!("{max}, memory.max of {cgroup}"),
        Err(why) => why.clone(),
    };
    row(&name, limit.is_ok(), printable(&text), advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tests::tree;

    fn rows(text: &str, cgroups: &[(&str, u64, u64, u64, u64, u64)]) -> Vec<(String, String, bool)> {
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        let found = find(&configuration, Some(tree(cgroups).path()));
        let rows = found.iter().map(slice_row);
        rows.map(|Row { name, found, advice, .. }| (name, found, advice.is_empty())).collect()
    }

    #[test]
    fn where_all_pods_have_no_limit_the_signal_is_lost() {
        for (cgroups, expected, is_good) in [
            (&[][..], "there is no kubepods cgroup here", false),
            (&[("kubepods.slice", 1, 0, 0, 0, 0)][..], "kubepods.slice has no memory.max", false),
            (&[("kubepods", 1, 0, 0, 0, 3 << 20)][..], "3.0 MiB, memory.max of kubepods", true),
        ] {
            let row = ("allocatable memory".to_owned(), expected.to_owned(), is_good);
            assert_eq!(rows("machine: {podFacts: /run/pods/pods.json}", cgroups), [row]);
        }
        assert_eq!(find(&Configuration::default(), None), [], "no row on a machine that is no node");
    }

    #[test]
    fn a_slice_without_a_limit_has_a_row_that_says_so() {
        let text = "machine: {slices: [{path: a.slice, evictionHard: {memory.available: 1Mi}}]}";
        for (cgroups, expected, is_good) in [
            (&[][..], "there is no such cgroup here", false),
            (&[("a.slice", 1, 0, 0, 0, 0)][..], "a.slice has no memory.max", false),
            (&[("a.slice", 1, 0, 0, 0, 3 << 20)][..], "3.0 MiB, memory.max of a.slice", true),
        ] {
            assert_eq!(rows(text, cgroups), [("slice a.slice".to_owned(), expected.to_owned(), is_good)]);
        }
        assert_eq!(rows(&format!("evictionPolicy: kubelet\n{text}"), &[]), [], "it decides about no slice");
    }
}
