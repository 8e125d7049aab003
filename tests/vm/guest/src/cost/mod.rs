//! What the agent costs: the instructions of each hook, the slowdown of storms, what it takes at rest beside other daemons,
//! its start, and what the verifier takes.
//!
//! All of it is measured on one processor whose clock follows the instructions that it runs (`-icount`), so that a time is
//! a number of instructions, whatever else the host does. A processor without work does not wait there: its clock goes to
//! the next timer.

mod hooks;
mod idle;
mod pods;
mod start;
pub(crate) mod storm;
mod storms;
pub(crate) mod verified;

use crate::agent::{Agent, Settings};
use crate::machine::meminfo;
use crate::scene::MIB;
use anyhow::{Context as _, Result};
use idle::Workloads;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What to measure.
    what: What,
    /// How often, side by side; for `idle` and `pods` how many windows.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// How many workloads there are, one after the other; for `idle` and `pods`.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    workloads: Vec<u32>,
    /// Where the measurements are written, as JSON.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    Hooks,
    Storms,
    Idle,
    Large,
    Pods,
    Start,
    Verified,
}

pub(crate) fn main(arguments: &Arguments) -> Result<()> {
    let Arguments { what, rounds, workloads, out } = arguments;
    match what {
        What::Hooks => hooks::measure(*rounds, out),
        What::Storms => storms::measure(*rounds, out),
        What::Idle => idle::measure(Workloads::Cgroups, *rounds, workloads, out),
        What::Large => idle::measure(Workloads::Large, *rounds, workloads, out),
        What::Pods => idle::measure(Workloads::Pods, *rounds, workloads, out),
        What::Start => start::measure(*rounds, out),
        What::Verified => save(out, &verified::here()?),
    }
}

/// Where it is measured.
#[derive(Clone, Serialize)]
struct Machine {
    kernel: String,
    cpus: usize,
    page_bytes: usize,
    memory_bytes: u64,
}

impl Machine {
    fn here() -> Result<Self> {
        Ok(Self {
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            cpus: thread::available_parallelism()?.get(),
            page_bytes: rustix::param::page_size(),
            memory_bytes: meminfo("MemTotal")?,
        })
    }
}

fn save(path: &Path, measured: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(measured)?;
    fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// Long enough after a start for all that is done once.
const SETTLED: Duration = Duration::from_secs(20);

/// The agent as it is shipped, with a threshold that nothing crosses, and with the usual limit of victims a minute: each sample
/// goes through its places.
fn settings() -> Result<Settings> {
    Ok(Settings { victims_per_minute: 30, ..Settings::as_shipped(64 * MIB)? })
}

/// Starts it, and waits until what it does once is over.
fn settled(settings: &Settings) -> Result<Agent> {
    let agent = Agent::start(settings)?;
    thread::sleep(SETTLED);
    Ok(agent)
}
