//! Which cgroups are workloads, and which are never touched, by pattern. No file is opened here.

use crate::pods::{PodPath, PodRoot};
use plimsoll_units::{Match, Pattern};

/// Patterns of workloads, and of cgroups that are never touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns {
    /// The first that matches a cgroup counts.
    pub workloads: Vec<Pattern>,
    /// With everything below them.
    pub never: Vec<Pattern>,
    /// Where pods are, whose cgroups are workloads whatever the patterns say; absent where they are none.
    pub pods: Option<PodRoot>,
}

impl Patterns {
    /// The first pattern that matches the cgroup at `path`, or else the last that may match something below it, by its
    /// place in the list.
    pub(crate) fn find(&self, path: &[u8]) -> (Match, usize) {
        let mut prefix = (Match::Not, 0);
        for (index, pattern) in self.workloads.iter().enumerate() {
            match pattern.match_of(path) {
                Match::Not => {}
                Match::Prefix => prefix = (Match::Prefix, index),
                found @ (Match::Whole | Match::Below) => return (found, index),
            }
        }
        prefix
    }

    /// How the cgroup at `path` stands to pods, where they are workloads.
    pub(crate) fn pod(&self, path: &[u8]) -> PodPath {
        self.pods.as_ref().map_or(PodPath::Not, |root| root.path(path))
    }

    /// Whether the cgroup at `path` is around pods, is one, or is in one, where they are workloads.
    pub(crate) fn concerns_pods(&self, path: &[u8]) -> bool {
        self.pods.as_ref().is_some_and(|root| root.concerns(path))
    }

    /// Whether `path` is one that is never touched, or below one.
    pub(crate) fn is_never(&self, path: &[u8]) -> bool {
        self.never.iter().any(|pattern| pattern.covers(path))
    }

    /// Whether something below `path` might be one that is never touched.
    pub(crate) fn never_may_be_below(&self, path: &[u8]) -> bool {
        self.never.iter().any(|pattern| pattern.match_of(path) == Match::Prefix)
    }
}

#[cfg(test)]
impl Patterns {
    pub(crate) fn of(workloads: &[&str], never: &[&str]) -> Self {
        let parsed = |texts: &[&str]| texts.iter().map(|text| Pattern::parse(text).expect("a pattern")).collect();
        Self { workloads: parsed(workloads), never: parsed(never), pods: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_holds_for_what_is_below() {
        let patterns = Patterns::of(&["a/*"], &["a/keep", "a/x/*/deep"]);
        for (path, never, below) in [
            ("a/keep", true, false),
            ("a/keep/b", true, false),
            ("a/x", false, true),
            ("a/x/y/deep/z", true, false),
            ("a/other", false, false),
        ] {
            assert_eq!(patterns.is_never(path.as_bytes()), never, "{path}");
            assert_eq!(patterns.never_may_be_below(path.as_bytes()), below, "{path}");
        }
    }
}
