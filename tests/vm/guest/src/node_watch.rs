//! What becomes of a node's memory, on the machine's console: a cluster's records have neither when memory ran out and came
//! back nor what the OOM killer killed.

use crate::machine;
use anyhow::{Context as _, Result};
use rustix::mm::{MlockAllFlags, mlockall};
use std::thread;
use std::time::Duration;

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(20);
/// Memory is low where less is available (`MemAvailable`): twice the kubelet's own threshold, so that it is low before
/// anything acts on that.
const LOW: u64 = 200 << 20;

/// Looks on from a thread of its own for as long as this process runs.
///
/// Each change is a line that begins with `NODE`: `low` or `back`, and `oom-kills`, with the time in milliseconds since the
/// machine's boot and what is available in MiB, or how many processes the OOM killer has killed since the boot.
pub(crate) fn start() -> Result<()> {
    // While memory runs out this program's own pages are not to be read anew from a disk.
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).context("cannot lock this program's memory")?;
    let mut seen = Seen { is_low: false, oom_kills: machine::oom_kills()? };
    thread::spawn(move || {
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
}

impl Seen {
    fn look(&mut self) -> Result<()> {
        let (available, oom_kills) = (machine::meminfo("MemAvailable")?, machine::oom_kills()?);
        let at = machine::now_ns() / 1_000_000;
        if oom_kills != self.oom_kills {
            println!("NODE oom-kills at={at} count={oom_kills}");
        }
        let is_low = available < LOW;
        if is_low != self.is_low {
            println!("NODE {} at={at} mib={}", if is_low { "low" } else { "back" }, available >> 20);
        }
        *self = Self { is_low, oom_kills };
        Ok(())
    }
}
