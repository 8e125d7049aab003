//! Other programs on this machine that kill when memory is short.

use crate::process::Pid;
use std::path::Path;

/// By the names of their processes.
const KNOWN: [&str; 4] = ["earlyoom", "systemd-oomd", "nohang", "oomd"];

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
    peers_below(Path::new("/proc"))
}

fn peers_below(proc: &Path) -> Vec<Peer> {
    let Ok(entries) = std::fs::read_dir(proc) else { return Vec::new() };
    let mut peers: Vec<Peer> = entries
        .flatten()
        .filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            // Whatever ended meanwhile is no peer.
            let comm = std::fs::read(entry.path().join("comm")).ok()?;
            let name = KNOWN.into_iter().find(|name| name.as_bytes() == comm.trim_ascii_end())?;
            Some(Peer { name, pid })
        })
        .collect();
    peers.sort_unstable_by_key(|peer| peer.pid.as_raw_nonzero());
    peers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_with_a_known_name_are_peers() {
        let proc = tempfile::tempdir().expect("a temporary directory");
        for (pid, comm) in [("7", "earlyoom\n"), ("41", "systemd-oomd\n"), ("5", "earlyoomx\n"), ("self", "oomd\n")] {
            std::fs::create_dir(proc.path().join(pid)).expect("writable");
            std::fs::write(proc.path().join(pid).join("comm"), comm).expect("writable");
        }
        let found: Vec<_> = peers_below(proc.path()).iter().map(|peer| (peer.name, peer.pid.as_raw_pid())).collect();
        assert_eq!(found, [("earlyoom", 7), ("systemd-oomd", 41)]);
    }
}
