//! The cgroups that must not be killed whatever the patterns say: the agent's own and init's.

use plimsoll_node::process::{self, Pid};

/// Paths below the cgroup root, read once at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protected {
    /// The agent's own cgroup; empty where it is in the root.
    pub own: Vec<u8>,
    /// The cgroup of process 1.
    pub init: Vec<u8>,
}

impl Protected {
    /// Reads both from /proc.
    pub fn read() -> Self {
        let of = |pid| process::cgroup_path(pid).unwrap_or_default();
        Self { own: of(None), init: of(Pid::from_raw(1)) }
    }

    /// Whether killing all of `path` would kill one of them.
    pub(crate) fn is_in(&self, path: &[u8]) -> bool {
        let holds = |inner: &[u8]| inner.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        path == b"init.scope" || holds(&self.own) || holds(&self.init)
    }
}
