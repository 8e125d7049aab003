//! Slices with thresholds of their own: where they are, and their slow figures.

use std::sync::Arc;

use plimsoll_node::Fault;
use plimsoll_node::cgroup::{Handle, Root};
use plimsoll_units::Pattern;

use crate::{Found, Patterns, PodRoot, SliceFigures};

/// Where a slice with thresholds of its own is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlicePlace {
    /// Below the cgroup root.
    Path(Pattern),
    /// The cgroup of all pods, at the first of [`PodRoot::all_pods`] that is there. Where pods are no workloads, it is
    /// nowhere.
    Pods,
}

/// A slice that is there and has a limit.
pub(crate) type Read = (Arc<Handle>, SliceFigures);

impl SlicePlace {
    /// Whether a workload is in it.
    pub(crate) fn holds(&self, found: &Found) -> bool {
        match self {
            Self::Path(path) => path.covers(&found.path),
            Self::Pods => found.pod.is_some(),
        }
    }

    /// Reads it now, by the handle that is `known` for as long as that cgroup is there; or why no threshold can be below
    /// its limit.
    pub(crate) fn read(&self, known: Option<&Read>, root: &Root, patterns: &Patterns) -> Result<Read, String> {
        // Opened anew: the watching thread waits for another reader of a file that is kept.
        let is_gone = |handle: &Handle| matches!(handle.populated_now(), Err(Fault::Gone | Fault::Absent { .. }));
        let known = known.filter(|(handle, _)| !is_gone(handle)).map(|(handle, _)| Arc::clone(handle));
        let Some(handle) = known.or_else(|| self.open(root, patterns)) else {
            return Err(match self {
                Self::Path(path) => format!("there is no cgroup {} here", path.as_str()),
                Self::Pods => "there is no kubepods cgroup here".to_owned(),
            });
        };
        let limit = handle.max().map_err(|fault| format!("memory.max of {}: {fault}", handle.path().escape_ascii()))?;
        let max = limit.ok_or_else(|| format!("{} has no memory.max", handle.path().escape_ascii()))?;
        let cache = handle.page_cache().unwrap_or_default();
        Ok((handle, SliceFigures { max, cache }))
    }

    fn open(&self, root: &Root, patterns: &Patterns) -> Option<Arc<Handle>> {
        let paths = match self {
            Self::Path(path) => vec![path.as_str().as_bytes().to_vec()],
            Self::Pods => patterns.pods.as_ref().map_or_else(Vec::new, PodRoot::all_pods),
        };
        let handle = paths.iter().find_map(|path| Handle::open(root, path).ok().flatten())?;
        handle.read_all_once();
        Some(Arc::new(handle))
    }
}
