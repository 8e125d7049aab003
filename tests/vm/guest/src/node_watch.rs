//! What becomes of a node's memory, on the machine's console: a cluster's records have neither when memory ran out and came
//! back nor what the OOM killer killed. And the least that could be done about it, for comparison: a kill without a decision.

use crate::cgroup::ROOT;
use crate::machine;
use anyhow::{Context as _, Result};
use plimsoll_node::priority::{Level, Priority, raise_this_thread};
use rustix::mm::{MlockAllFlags, mlockall};
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(20);
/// Memory is low where less is available (`MemAvailable`): twice the kubelet's own threshold, so that it is low before
/// anything acts on that.
const LOW: u64 = 200 << 20;
/// A test makes this file to have the largest of these pods killed, once, when less than the kubelet's threshold is available.
/// What it has in it is sent to a port of the loopback then, where a proxy has a connection to the API server.
const KILL: &str = "/run/kill-the-largest-pod-at-the-threshold";
const PROXY: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 8001);
const THRESHOLD: u64 = 101 << 20;
const PODS: &str = "kubepods.slice/kubepods-burstable.slice";

/// Looks on from a thread of its own for as long as this process runs.
///
/// Each change is a line that begins with `NODE`: `low` or `back`, and `oom-kills`, with the time in milliseconds since the
/// machine's boot and what is available in MiB, or how many processes the OOM killer has killed since the boot; and `killed`,
/// with the time before the kill and what was sent with it.
pub(crate) fn start() -> Result<()> {
    // While memory runs out this program's own pages are not to be read anew from a disk.
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).context("cannot lock this program's memory")?;
    let mut seen = Seen { is_low: false, oom_kills: machine::oom_kills()?, sent: None };
    thread::spawn(move || {
        // Else it would see how busy the node is, and not when memory was back.
        let priority = raise_this_thread(Level::Watching);
        if priority != Priority::RoundRobin {
            println!("NODE is watched by an ordinary thread: {priority:?}");
        }
        loop {
            if let Err(error) = seen.look() {
                println!("NODE cannot be watched: {error:#}");
                return;
            }
            thread::sleep(PERIOD);
        }
    });
    Ok(())
}

/// What was printed last.
struct Seen {
    is_low: bool,
    oom_kills: u64,
    /// The last request that was sent. A proxy gives up what it hands on when this is closed.
    sent: Option<TcpStream>,
}

impl Seen {
    fn look(&mut self) -> Result<()> {
        let (available, oom_kills) = (machine::meminfo("MemAvailable")?, machine::oom_kills()?);
        let at = machine::now_ns() / 1_000_000;
        if available < THRESHOLD
            && let Ok(request) = fs::read(KILL)
            && let Some(pod) = largest()?
        {
            machine::set(pod.join("cgroup.kill"), "1")?;
            let sent = send(&request);
            fs::remove_file(KILL)?;
            println!("NODE killed at={at}");
            let unsent =
                |error: &anyhow::Error| println!("NODE cannot send what a bare kill is reported by: {error:#}");
            self.sent = sent.inspect_err(unsent).ok();
        }
        if oom_kills != self.oom_kills {
            println!("NODE oom-kills at={at} count={oom_kills}");
        }
        let is_low = available < LOW;
        if is_low != self.is_low {
            println!("NODE {} at={at} mib={}", if is_low { "low" } else { "back" }, available >> 20);
        }
        (self.is_low, self.oom_kills) = (is_low, oom_kills);
        Ok(())
    }
}

fn send(request: &[u8]) -> Result<TcpStream> {
    let mut proxy = TcpStream::connect(PROXY)?;
    proxy.write_all(request)?;
    Ok(proxy)
}

/// The pod with the most memory.
fn largest() -> Result<Option<PathBuf>> {
    let place = PathBuf::from(ROOT).join(PODS);
    let entries = fs::read_dir(&place).with_context(|| format!("cannot read {}", place.display()))?;
    // One may go meanwhile.
    let used = |path: &PathBuf| fs::read_to_string(path.join("memory.current")).ok()?.trim().parse::<u64>().ok();
    let pods = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(pods.filter_map(|path| Some((used(&path)?, path))).max().map(|(_, path)| path))
}
