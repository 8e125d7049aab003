//! The same storms with the agent and without, side by side in one boot.

use super::storm::{self, Devices, Kind, Took};
use super::{Machine, save, settings, settled};
use crate::agent::Agent;
use crate::machine::named;
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::path::Path;

/// What is measured.
const STORMS: [Kind; 4] = [Kind::Allocation, Kind::Fork, Kind::PageCache, Kind::PageCacheAtLimit];

/// All that was measured. Times are in nanoseconds.
#[derive(Serialize)]
struct Measured {
    cell: &'static str,
    #[serde(flatten)]
    machine: Machine,
    runs: Vec<Run>,
}

/// One storm.
#[derive(Serialize)]
struct Run {
    storm: Kind,
    /// Those of one number, with the agent and without, are a pair.
    pair: usize,
    /// Whether the agent ran.
    agent: bool,
    #[serde(flatten)]
    took: Took,
    /// What the agent's own processes ran meanwhile.
    agent_ns: u64,
}

/// Which of a pair is measured first changes from pair to pair, so that what changes with time is the same for both.
pub(super) const fn order(pair: usize) -> [bool; 2] {
    if pair.is_multiple_of(2) { [false, true] } else { [true, false] }
}

pub(super) fn measure(pairs: usize, out: &Path) -> Result<()> {
    let devices = Devices::create()?;
    let settings = settings()?;
    let mut measured = Measured { cell: "storms", machine: Machine::here()?, runs: Vec::new() };
    println!("PLAN {}", pairs * 2 * STORMS.len());
    for kind in STORMS {
        storm::run(kind, 1, &devices)?;
    }
    let mut agent: Option<Agent> = None;
    for pair in 0..pairs {
        for is_on in order(pair) {
            match (is_on, agent.take()) {
                (true, None) => agent = Some(settled(&settings)?),
                (false, Some(running)) => running.stop()?,
                (_, same) => agent = same,
            }
            for storm in STORMS {
                let used = || -> Result<u64> {
                    let text = settings.cgroup()?.read("cpu.stat")?;
                    Ok(named(&text, "usage_usec").context("cpu.stat has no usage_usec")? * 1000)
                };
                let before = used()?;
                let took = storm::run(storm, storm.times(), &devices)?;
                let run = Run { storm, pair, agent: is_on, took, agent_ns: used()? - before };
                println!("ROUND {} {}", measured.runs.len() + 1, serde_json::to_string(&run)?);
                measured.runs.push(run);
                save(out, &measured)?;
            }
        }
    }
    agent.map_or(Ok(()), Agent::stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_both_and_they_take_turns_in_being_first() {
        assert_eq!([0, 1, 2, 3].map(|pair| order(pair)[0]), [false, true, false, true]);
        assert!([0, 1].iter().all(|pair| order(*pair)[0] != order(*pair)[1]));
    }
}
