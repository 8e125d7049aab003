//! Other programs on this machine that kill when memory is short.

use crate::process::{self, Pid};

/// The names of their processes, which are those of their units.
pub const KNOWN: [&str; 4] = ["earlyoom", "systemd-oomd", "nohang", "oomd"];

/// One that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// What it is called.
    pub name: &'static str,
    /// Its process.
    pub pid: Pid,
}

/// All that run now.
pub fn peers() -> Vec<Peer> {
    let mut peers: Vec<Peer> = process::all()
        // Whatever ended meanwhile is no peer.
        .filter_map(|process| {
            let name = known(&process.stat().ok()?.comm)?;
            Some(Peer { name, pid: Pid::from_raw(process.pid)? })
        })
        .collect();
    peers.sort_unstable_by_key(|peer| peer.pid.as_raw_nonzero());
    peers
}

fn known(comm: &str) -> Option<&'static str> {
    KNOWN.into_iter().find(|name| *name == comm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_with_a_known_name_are_peers() {
        for (comm, expected) in [("earlyoom", true), ("systemd-oomd", true), ("earlyoomx", false), ("", false)] {
            assert_eq!(known(comm).is_some(), expected, "{comm}");
        }
    }

    #[test]
    fn a_process_that_has_the_name_is_found() {
        let before = std::fs::read("/proc/self/comm").expect("readable");
        std::fs::write("/proc/self/comm", "nohang").expect("it is ours");
        let found = peers();
        std::fs::write("/proc/self/comm", before).expect("it is ours");
        assert!(found.contains(&Peer { name: "nohang", pid: rustix::process::getpid() }), "{found:?}");
    }
}
