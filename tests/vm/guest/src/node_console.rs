//! What a cluster's node runs of the build that is tested, from when that came: images of the agent and of this program, and
//! on the console the agent's log and what becomes of memory. The rest of the node is [`crate::kubelet`].

use crate::containerd::{self, Driver};
use crate::kubelet::UNIT;
use crate::node_watch;
use crate::pod_logs::PodLogs;
use crate::systemd::systemctl;
use anyhow::{Context as _, Result};
use std::fs;
use std::time::Duration;

/// What the host is answered, by the connection that brought this program, when the node is ready for pods.
const READY: &[u8] = b"ready\n";
/// The namespace of the agents.
const AGENTS: &str = "plimsoll";
/// A test makes this file to have the kubelet restarted as soon as the agent has begun to kill, and what its log has of that.
const RESTART: &str = "/run/restart-the-kubelet-with-the-next-kill";
const KILL: &str = "\"kill\":\"begun\"";

/// Brings the images, and stays until the machine is ended. Its standard input is the connection to the host.
pub(crate) fn main() -> Result<()> {
    let client = containerd::start(Driver::Systemd)?;
    // No registry has it.
    containerd::import_agent(&client)?;
    node_watch::start()?;
    rustix::io::write(std::io::stdin(), READY).context("cannot answer the host")?;
    println!("the programs have come; this machine runs until it is ended");
    let mut logs = PodLogs::of(AGENTS);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let has_killed = logs.print_new(KILL);
        if has_killed && fs::remove_file(RESTART).is_ok() {
            systemctl(&["restart", UNIT])?;
            println!("NODE kubelet restarted");
        }
    }
}
