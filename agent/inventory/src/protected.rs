//! The cgroups that must not be killed whatever the patterns say: those of the agent, of init, and of what the node's pods
//! depend on.

use plimsoll_node::process::{self, Pid};
use plimsoll_policy::Protected as Why;

/// Paths below the cgroup root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protected {
    /// The agent's own cgroup; empty where it is in the root. Read once at the start.
    pub own: Vec<u8>,
    /// The cgroup of process 1. Read once at the start.
    pub init: Vec<u8>,
    /// Those of the kubelet and of container runtimes, as far as they were found. A path stays the same when a service is
    /// started again, and its cgroup does not.
    pub node: Vec<Vec<u8>>,
}

impl Protected {
    /// Reads the agent's and init's from /proc.
    pub fn read() -> Self {
        let of = |pid| process::cgroup_path(pid).unwrap_or_default();
        Self { own: of(None), init: of(Pid::from_raw(1)), node: Vec::new() }
    }

    /// Which of them killing all of `path` would kill, if any.
    pub fn why(&self, path: &[u8]) -> Option<Why> {
        let holds = |inner: &[u8]| inner.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        if path == b"init.scope" || holds(&self.init) {
            Some(Why::Init)
        } else if holds(&self.own) {
            Some(Why::Agent)
        } else {
            self.node.iter().any(|service| holds(service)).then_some(Why::Node)
        }
    }
}
